//! Gossip as protoactor-go writes it.
//!
//! What comes in is read entry by entry: one that makes no sense is skipped and counted, and the others are taken. It
//! is never sent again in a better shape, so it must not cost the message. What goes out is never what a Go node
//! stumbles over: the state is always there, no member is without entries, and a request names its *receiver* in the
//! field for a member id. The time stamps of entries stay at home: each node stamps what it accepts with its own clock.

use prost_types::Any;
use synod_core::TimerInstant;
use synod_core::gossip::{
    GossipKey, GossipKeyValue, GossipMemberId, GossipState, GossipValue, SequenceNumber,
};
use synod_wire::cluster;

/// A state as a message carries it.
#[must_use]
pub fn encode_state(state: &GossipState) -> cluster::GossipState {
    let members = state.members().filter(|(_, entries)| !entries.is_empty());
    let members = members.map(|(member, entries)| {
        let values = entries.iter().map(|(key, entry)| (key.as_str().into(), encode_entry(entry)));
        (member.as_str().into(), cluster::GossipMemberState { values: values.collect() })
    });
    cluster::GossipState { members: members.collect() }
}

/// A request to `receiver`, of whatever kind it is.
#[must_use]
pub fn encode_request(receiver: &GossipMemberId, state: &GossipState) -> cluster::GossipRequest {
    cluster::GossipRequest { state: Some(encode_state(state)), member_id: receiver.as_str().into() }
}

/// The answer to a request.
#[must_use]
pub fn encode_response(state: &GossipState) -> cluster::GossipResponse {
    cluster::GossipResponse { state: Some(encode_state(state)) }
}

/// What could be read of a state that came over the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodedState {
    /// The entries that make sense. Their time stamps mean nothing until somebody accepts them.
    pub state: GossipState,
    /// How many entries were skipped.
    pub undecodable: usize,
}

/// Reads a state, whatever it contains.
#[must_use]
pub fn decode_state(state: cluster::GossipState) -> DecodedState {
    let mut decoded = DecodedState::default();
    for (member, entries) in state.members {
        let Ok(member) = GossipMemberId::new(&member) else {
            decoded.undecodable += entries.values.len();
            continue;
        };
        for (key, entry) in entries.values {
            match decode_entry(&key, entry) {
                Some((key, entry)) => decoded.state.insert(&member, key, entry),
                None => decoded.undecodable += 1,
            }
        }
    }
    decoded
}

fn encode_entry(entry: &GossipKeyValue) -> cluster::GossipKeyValue {
    let value = Any { type_url: entry.value.type_url().into(), value: entry.value.bytes().into() };
    cluster::GossipKeyValue {
        sequence_number: entry.sequence_number.get(),
        value: Some(value),
        local_timestamp_unix_milliseconds: 0,
    }
}

fn decode_entry(key: &str, entry: cluster::GossipKeyValue) -> Option<(GossipKey, GossipKeyValue)> {
    let key = GossipKey::new(key).ok()?;
    let sequence_number = SequenceNumber::new(entry.sequence_number).ok()?;
    let any = entry.value?;
    let value = GossipValue::new(&any.type_url, &any.value).ok()?;
    Some((key, GossipKeyValue { value, sequence_number, local_timestamp: TimerInstant::ZERO }))
}

#[cfg(test)]
mod tests;
