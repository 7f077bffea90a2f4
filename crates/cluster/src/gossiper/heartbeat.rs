//! What a heartbeat says besides that somebody lives: how many actors of each kind the node runs.

use std::collections::BTreeMap;

use prost::{Message, Name};
use synod_core::gossip::{GossipValue, HEARTBEAT_BYTES_MAX};
use synod_wire::cluster::{ActorStatistics, MemberHeartbeat};

/// Knows what this node runs. Asked once per round; must not block.
pub trait ActorStatisticsSource: Send + Sync + 'static {
    /// The number of actors by kind.
    fn actor_count(&self) -> BTreeMap<String, i64>;
}

/// The source of a node that counts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStatistics;

impl ActorStatisticsSource for NoStatistics {
    fn actor_count(&self) -> BTreeMap<String, i64> {
        BTreeMap::new()
    }
}

/// The heartbeat of a node that runs `actor_count`. When there are more kinds than a heartbeat holds, the last ones in
/// order are left out: an incomplete heartbeat is still a sign of life.
pub(super) fn heartbeat(actor_count: BTreeMap<String, i64>) -> GossipValue {
    let mut room = HEARTBEAT_BYTES_MAX - HEADER_BYTES_MAX;
    let fits = |(kind, _): &(String, i64)| {
        let bytes = kind.len() + ENTRY_OVERHEAD_BYTES_MAX;
        let left = room.checked_sub(bytes);
        room = left.unwrap_or(room);
        left.is_some()
    };
    let actor_count = actor_count.into_iter().take_while(fits).collect();
    let heartbeat = MemberHeartbeat { actor_statistics: Some(ActorStatistics { actor_count }) };
    let value = GossipValue::new(&MemberHeartbeat::type_url(), &heartbeat.encode_to_vec());
    value.unwrap_or_else(|_| GossipValue::empty())
}

/// Tags and lengths around the map of counts.
const HEADER_BYTES_MAX: usize = 16;
/// Tags, lengths and the count itself in one entry of the map.
const ENTRY_OVERHEAD_BYTES_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use synod_wire::payload;

    fn counts(value: &GossipValue) -> BTreeMap<String, i64> {
        let heartbeat: MemberHeartbeat =
            payload::decode(Bytes::copy_from_slice(value.bytes())).expect("a heartbeat");
        heartbeat.actor_statistics.expect("statistics").actor_count
    }

    /// R6.2.
    #[test]
    fn a_heartbeat_carries_the_counts_as_far_as_there_is_room() {
        let few = BTreeMap::from([("hello".to_string(), 3), ("topic".to_string(), i64::MAX)]);
        let value = heartbeat(few.clone());
        assert_eq!(value.type_url(), "type.googleapis.com/cluster.MemberHeartbeat");
        assert_eq!(counts(&value), few);
        let many: BTreeMap<_, _> = (0..4_000).map(|number| (format!("kind{number:04}"), -1)).collect();
        let value = heartbeat(many);
        assert!(value.bytes().len() <= HEARTBEAT_BYTES_MAX);
        let kept = counts(&value);
        assert!(kept.len() > 300 && kept.contains_key("kind0000"));
        let huge = heartbeat(BTreeMap::from([("k".repeat(2 * HEARTBEAT_BYTES_MAX), 1)]));
        assert_eq!(counts(&huge), BTreeMap::new());
    }
}
