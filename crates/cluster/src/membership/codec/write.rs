//! From the coordinator's types to the fields of `membership.proto`.

use bytes::Bytes;
use synod_core::MemberId;
use synod_core::membership::{
    GossipBody, GossipMessage, GossipSender, MEMBERS_MAX, MembershipDelta, MembershipError, NodeRecord,
    NodeStatus, QuarantineReason, Refusal, Standing, ViewDigest,
};
use synod_wire::membership::message::{Body, Sender};
use synod_wire::membership::quarantined::Reason as Quarantine;
use synod_wire::membership::refusal::Reason;
use synod_wire::membership::{self as wire, Message};

use super::{DETAIL_BYTES_MAX, MembershipCodecError, MessagePart, SEEN_WORDS_MAX, VERSION, WORD_BYTES};

pub(super) fn message(message: &GossipMessage) -> Result<Message, MembershipCodecError> {
    let sender = match &message.sender {
        GossipSender::Member(own) => Sender::Member(record(own)),
        GossipSender::Client(authority) => Sender::Client(authority.to_string()),
    };
    Ok(Message { version: VERSION, sender: Some(sender), body: Some(body(&message.body)?) })
}

fn body(body: &GossipBody) -> Result<Body, MembershipCodecError> {
    Ok(match body {
        GossipBody::Ack { version, view, delta: changes } => Body::Ack(wire::Ack {
            version: version.get(),
            view: Some(digest(view)?),
            delta: changes.as_ref().map(delta),
        }),
        GossipBody::Heartbeat { sequence } => Body::Heartbeat(wire::Heartbeat { sequence: *sequence }),
        GossipBody::Join => Body::Join(wire::Join {}),
        GossipBody::Probe { verdict, standing: weight } => Body::Probe(wire::Probe {
            verdict: verdict.as_ref().map(record),
            standing: Some(standing(weight)?),
        }),
        GossipBody::Pull { after } => Body::Pull(wire::Pull { after: after.get() }),
        GossipBody::Push { delta: changes, view } => {
            Body::Push(wire::View { delta: Some(delta(changes)), view: Some(digest(view)?) })
        }
        GossipBody::Refused(refused) => Body::Refused(refusal(refused)?),
        GossipBody::Welcome { delta: changes, view } => {
            Body::Welcome(wire::View { delta: Some(delta(changes)), view: Some(digest(view)?) })
        }
    })
}

fn member(member: &MemberId) -> wire::Member {
    wire::Member { node: member.node.to_string(), incarnation: member.incarnation.get() }
}

fn record(record: &NodeRecord) -> wire::Record {
    wire::Record {
        member: Some(member(&record.member)),
        authority: record.authority.to_string(),
        status: status(record.status),
        refutation: record.refutation.0,
    }
}

fn status(status: NodeStatus) -> i32 {
    i32::from(match status {
        NodeStatus::Joining => wire::Status::Joining,
        NodeStatus::Up => wire::Status::Up,
        NodeStatus::Suspect => wire::Status::Suspect,
        NodeStatus::Leaving => wire::Status::Leaving,
        NodeStatus::Dead => wire::Status::Dead,
        NodeStatus::Removed => wire::Status::Removed,
    })
}

fn delta(delta: &MembershipDelta) -> wire::Delta {
    wire::Delta {
        from: delta.from().get(),
        to: delta.to().get(),
        records: delta.records().iter().map(record).collect(),
    }
}

fn digest(view: &ViewDigest) -> Result<wire::Digest, MembershipCodecError> {
    if view.seen.len() > SEEN_WORDS_MAX {
        return Err(MembershipCodecError::Seen { bytes: view.seen.len() * WORD_BYTES });
    }
    let seen: Vec<u8> = view.seen.iter().flat_map(|word| word.to_le_bytes()).collect();
    Ok(wire::Digest {
        version: view.version.get(),
        digest_high: (view.digest >> 64) as u64,
        digest_low: view.digest as u64,
        seen: Bytes::from(seen),
    })
}

fn standing(standing: &Standing) -> Result<wire::Standing, MembershipCodecError> {
    Ok(wire::Standing {
        reachable: members(standing.reachable, MessagePart::Standing)?,
        lowest: standing.lowest.to_string(),
    })
}

fn members(members: usize, part: MessagePart) -> Result<u32, MembershipCodecError> {
    u32::try_from(members)
        .ok()
        .filter(|_| members <= MEMBERS_MAX)
        .ok_or(MembershipCodecError::TooManyMembers { part, members })
}

fn refusal(refusal: &Refusal) -> Result<wire::Refusal, MembershipCodecError> {
    Ok(wire::Refusal {
        verdict: refusal.verdict.as_ref().map(record),
        standing: Some(standing(&refusal.standing)?),
        reason: Some(reason(&refusal.reason)?),
    })
}

fn reason(reason: &MembershipError) -> Result<Reason, MembershipCodecError> {
    Ok(match reason {
        MembershipError::AuthorityConflict { authority, held_by, requested_by } => {
            Reason::AuthorityConflict(wire::AuthorityConflict {
                authority: authority.to_string(),
                held_by: Some(member(held_by)),
                requested_by: Some(member(requested_by)),
            })
        }
        MembershipError::DeadIncarnation { member: dead, status: end } => {
            Reason::DeadIncarnation(wire::DeadIncarnation {
                member: Some(member(dead)),
                status: status(*end),
            })
        }
        MembershipError::GossipDisabled => Reason::GossipDisabled(wire::Plain {}),
        MembershipError::IdentityConflict { member: claimed, held_at, requested_at } => {
            Reason::IdentityConflict(wire::IdentityConflict {
                member: Some(member(claimed)),
                held_at: held_at.to_string(),
                requested_at: requested_at.to_string(),
            })
        }
        MembershipError::InvalidTransition { member: moved, from, to } => {
            Reason::InvalidTransition(wire::InvalidTransition {
                member: Some(member(moved)),
                from: status(*from),
                to: status(*to),
            })
        }
        MembershipError::NotAMember { authority } => Reason::NotAMember(authority.to_string()),
        MembershipError::NotOneself { node } => Reason::NotOneself(node.to_string()),
        MembershipError::Outranked { reachable } => {
            Reason::Outranked(members(*reachable, MessagePart::Reason)?)
        }
        MembershipError::Quarantined { authority, reason } => Reason::Quarantined(wire::Quarantined {
            authority: authority.to_string(),
            reason: Some(match reason {
                QuarantineReason::Dead(dead) => Quarantine::Dead(member(dead)),
                QuarantineReason::InvalidAssociation(words) => Quarantine::InvalidAssociation(detail(words)),
                QuarantineReason::Requested(words) => Quarantine::Requested(detail(words)),
            }),
        }),
        MembershipError::StaleIncarnation { member: stale, known } => {
            Reason::StaleIncarnation(wire::StaleIncarnation {
                member: Some(member(stale)),
                known: known.get(),
            })
        }
        MembershipError::TableFull { node, members_max } => Reason::TableFull(wire::TableFull {
            node: node.to_string(),
            members_max: members(*members_max, MessagePart::Reason)?,
        }),
        MembershipError::UnresolvedConflict => Reason::UnresolvedConflict(wire::Plain {}),
        MembershipError::UnknownNode { node } => Reason::UnknownNode(node.to_string()),
        other => return Err(MembershipCodecError::UnspeakableReason { reason: other.clone() }),
    })
}

fn detail(words: &str) -> String {
    words[..words.floor_char_boundary(DETAIL_BYTES_MAX)].to_owned()
}
