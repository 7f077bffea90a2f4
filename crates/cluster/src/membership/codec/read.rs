//! From the fields of `membership.proto` to the coordinator's types, checking every one.

use synod_core::membership::{
    GossipBody, GossipMessage, GossipSender, MEMBERS_MAX, MembershipDelta, MembershipError,
    MembershipVersion, NodeRecord, NodeStatus, QuarantineReason, Refusal, Refutation, Standing, ViewDigest,
};
use synod_core::{Authority, Incarnation, MemberId, NodeId};
use synod_wire::membership::message::{Body, Sender};
use synod_wire::membership::quarantined::Reason as Quarantine;
use synod_wire::membership::refusal::Reason;
use synod_wire::membership::{self as wire, Message};

use super::{DETAIL_BYTES_MAX, MembershipCodecError, MessagePart, SEEN_WORDS_MAX, WORD_BYTES};

pub(super) fn message(message: Message) -> Result<GossipMessage, MembershipCodecError> {
    let sender = match present(message.sender, MessagePart::Sender, "a member or a client")? {
        Sender::Member(own) => GossipSender::Member(record(own, MessagePart::Sender)?),
        Sender::Client(address) => GossipSender::Client(authority(&address, MessagePart::Sender)?),
    };
    let body = body(present(message.body, MessagePart::Body, "a known kind of message")?)?;
    Ok(GossipMessage { sender, body })
}

fn body(body: Body) -> Result<GossipBody, MembershipCodecError> {
    Ok(match body {
        Body::Ack(ack) => GossipBody::Ack {
            version: MembershipVersion::new(ack.version),
            view: view(ack.view)?,
            delta: ack.delta.map(delta).transpose()?,
        },
        Body::Heartbeat(heartbeat) => GossipBody::Heartbeat { sequence: heartbeat.sequence },
        Body::Join(wire::Join {}) => GossipBody::Join,
        Body::Probe(probe) => {
            GossipBody::Probe { verdict: verdict(probe.verdict)?, standing: standing(probe.standing)? }
        }
        Body::Pull(pull) => GossipBody::Pull { after: MembershipVersion::new(pull.after) },
        Body::Push(push) => GossipBody::Push { delta: delta(changes(push.delta)?)?, view: view(push.view)? },
        Body::Refused(refusal) => GossipBody::Refused(Refusal {
            reason: reason(present(refusal.reason, MessagePart::Reason, "a known reason")?)?,
            verdict: verdict(refusal.verdict)?,
            standing: standing(refusal.standing)?,
        }),
        Body::Welcome(welcome) => {
            GossipBody::Welcome { delta: delta(changes(welcome.delta)?)?, view: view(welcome.view)? }
        }
    })
}

fn present<T>(field: Option<T>, part: MessagePart, name: &'static str) -> Result<T, MembershipCodecError> {
    field.ok_or(MembershipCodecError::Missing { part, field: name })
}

fn node(name: &str, part: MessagePart) -> Result<NodeId, MembershipCodecError> {
    NodeId::new(name).map_err(|source| MembershipCodecError::Node { part, source })
}

fn authority(address: &str, part: MessagePart) -> Result<Authority, MembershipCodecError> {
    Authority::new(address).map_err(|source| MembershipCodecError::Authority { part, source })
}

fn incarnation(number: u64, part: MessagePart) -> Result<Incarnation, MembershipCodecError> {
    Incarnation::new(number).map_err(|source| MembershipCodecError::Incarnation { part, source })
}

fn member(member: Option<wire::Member>, part: MessagePart) -> Result<MemberId, MembershipCodecError> {
    let member = present(member, part, "a member")?;
    Ok(MemberId::new(node(&member.node, part)?, incarnation(member.incarnation, part)?))
}

fn status(status: i32, part: MessagePart) -> Result<NodeStatus, MembershipCodecError> {
    match wire::Status::try_from(status) {
        Ok(wire::Status::Joining) => Ok(NodeStatus::Joining),
        Ok(wire::Status::Up) => Ok(NodeStatus::Up),
        Ok(wire::Status::Suspect) => Ok(NodeStatus::Suspect),
        Ok(wire::Status::Leaving) => Ok(NodeStatus::Leaving),
        Ok(wire::Status::Dead) => Ok(NodeStatus::Dead),
        Ok(wire::Status::Removed) => Ok(NodeStatus::Removed),
        Ok(wire::Status::Unspecified) | Err(_) => Err(MembershipCodecError::Status { part, status }),
    }
}

fn record(record: wire::Record, part: MessagePart) -> Result<NodeRecord, MembershipCodecError> {
    Ok(NodeRecord {
        member: member(record.member, part)?,
        authority: authority(&record.authority, part)?,
        status: status(record.status, part)?,
        refutation: Refutation(record.refutation),
    })
}

fn verdict(verdict: Option<wire::Record>) -> Result<Option<NodeRecord>, MembershipCodecError> {
    verdict.map(|verdict| record(verdict, MessagePart::Verdict)).transpose()
}

fn changes(delta: Option<wire::Delta>) -> Result<wire::Delta, MembershipCodecError> {
    present(delta, MessagePart::Body, "the changes")
}

fn delta(delta: wire::Delta) -> Result<MembershipDelta, MembershipCodecError> {
    let records = delta.records.into_iter().enumerate();
    let records = records.map(|(index, changed)| record(changed, MessagePart::Record(index)));
    let (from, to) = (MembershipVersion::new(delta.from), MembershipVersion::new(delta.to));
    Ok(MembershipDelta::new(from, to, records.collect::<Result<_, _>>()?)?)
}

fn view(view: Option<wire::Digest>) -> Result<ViewDigest, MembershipCodecError> {
    let view = present(view, MessagePart::Body, "the view")?;
    // Up to here the bits are a slice of what arrived; only now memory is taken for them.
    let (words, rest) = view.seen.as_chunks::<WORD_BYTES>();
    if !rest.is_empty() || words.len() > SEEN_WORDS_MAX {
        return Err(MembershipCodecError::Seen { bytes: view.seen.len() });
    }
    Ok(ViewDigest {
        version: MembershipVersion::new(view.version),
        digest: u128::from(view.digest_high) << 64 | u128::from(view.digest_low),
        seen: words.iter().map(|word| u64::from_le_bytes(*word)).collect(),
    })
}

fn standing(standing: Option<wire::Standing>) -> Result<Standing, MembershipCodecError> {
    let part = MessagePart::Standing;
    let standing = present(standing, MessagePart::Body, "the standing")?;
    Ok(Standing { reachable: members(standing.reachable, part)?, lowest: node(&standing.lowest, part)? })
}

fn members(number: u32, part: MessagePart) -> Result<usize, MembershipCodecError> {
    let members = number as usize;
    if members > MEMBERS_MAX {
        return Err(MembershipCodecError::TooManyMembers { part, members });
    }
    Ok(members)
}

fn reason(reason: Reason) -> Result<MembershipError, MembershipCodecError> {
    let part = MessagePart::Reason;
    Ok(match reason {
        Reason::AuthorityConflict(conflict) => MembershipError::AuthorityConflict {
            authority: authority(&conflict.authority, part)?,
            held_by: member(conflict.held_by, part)?,
            requested_by: member(conflict.requested_by, part)?,
        },
        Reason::DeadIncarnation(dead) => MembershipError::DeadIncarnation {
            member: member(dead.member, part)?,
            status: status(dead.status, part)?,
        },
        Reason::GossipDisabled(wire::Plain {}) => MembershipError::GossipDisabled,
        Reason::IdentityConflict(conflict) => MembershipError::IdentityConflict {
            member: member(conflict.member, part)?,
            held_at: authority(&conflict.held_at, part)?,
            requested_at: authority(&conflict.requested_at, part)?,
        },
        Reason::InvalidTransition(transition) => MembershipError::InvalidTransition {
            member: member(transition.member, part)?,
            from: status(transition.from, part)?,
            to: status(transition.to, part)?,
        },
        Reason::NotAMember(address) => MembershipError::NotAMember { authority: authority(&address, part)? },
        Reason::NotOneself(name) => MembershipError::NotOneself { node: node(&name, part)? },
        Reason::Outranked(reachable) => MembershipError::Outranked { reachable: members(reachable, part)? },
        Reason::Quarantined(quarantined) => MembershipError::Quarantined {
            authority: authority(&quarantined.authority, part)?,
            reason: match present(quarantined.reason, part, "a known reason of a quarantine")? {
                Quarantine::Dead(dead) => QuarantineReason::Dead(member(Some(dead), part)?),
                Quarantine::InvalidAssociation(words) => QuarantineReason::InvalidAssociation(detail(words)?),
                Quarantine::Requested(words) => QuarantineReason::Requested(detail(words)?),
            },
        },
        Reason::StaleIncarnation(stale) => MembershipError::StaleIncarnation {
            member: member(stale.member, part)?,
            known: incarnation(stale.known, part)?,
        },
        Reason::TableFull(full) => MembershipError::TableFull {
            node: node(&full.node, part)?,
            members_max: members(full.members_max, part)?,
        },
        Reason::UnresolvedConflict(wire::Plain {}) => MembershipError::UnresolvedConflict,
        Reason::UnknownNode(name) => MembershipError::UnknownNode { node: node(&name, part)? },
    })
}

fn detail(words: String) -> Result<String, MembershipCodecError> {
    if words.len() > DETAIL_BYTES_MAX {
        return Err(MembershipCodecError::DetailTooLong { bytes: words.len() });
    }
    Ok(words)
}
