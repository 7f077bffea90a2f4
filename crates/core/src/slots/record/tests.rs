//! The laws of records: any two of one slot, or of one node, have one join, and it is one of the two.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;
use crate::id::Incarnation;

proptest! {
    #[test]
    fn slot_records_join_whatever_the_order(a in slot_record(0), b in slot_record(0), c in slot_record(0)) {
        let join = |a: &SlotRecord, b: &SlotRecord| a.clone().merge(b.clone());
        let ab = join(&a, &b);
        prop_assert_eq!(&ab, &join(&b, &a));
        prop_assert_eq!(join(&ab, &c), join(&a, &join(&b, &c)));
        prop_assert_eq!(&join(&a, &a), &a);
        // It rises, and nothing is mixed: the join is one of the two, whole.
        for one in [&a, &b] {
            prop_assert_eq!(&join(&ab, one), &ab);
            prop_assert!(ab.precedence(one).is_ge());
            prop_assert!(ab.epoch >= one.epoch);
        }
        prop_assert!(ab == a || ab == b);
        // Only equal records are level, or two nodes could each keep their own.
        prop_assert_eq!(a.precedence(&b).is_eq(), a == b);
    }

    #[test]
    fn node_records_join_whatever_the_order(a in node_record(), b in node_record(), c in node_record()) {
        let join = |a: &NodeRecord, b: &NodeRecord| a.clone().merge(b.clone());
        let ab = join(&a, &b);
        prop_assert_eq!(&ab, &join(&b, &a));
        prop_assert_eq!(join(&ab, &c), join(&a, &join(&b, &c)));
        prop_assert_eq!(&join(&a, &a), &a);
        for one in [&a, &b] {
            prop_assert_eq!(&join(&ab, one), &ab);
            prop_assert!(ab.member.incarnation >= one.member.incarnation);
        }
        prop_assert!(ab == a || ab == b);
        prop_assert_eq!(a.precedence(&b).is_eq(), a == b);
        // A life that leaves never returns, whatever it said before or says later.
        if a.member == b.member {
            prop_assert_eq!(ab.leaving, a.leaving || b.leaving);
        }
    }

    #[test]
    fn two_primaries_of_one_epoch_contradict_each_other(a in slot_record(0), b in slot_record(0)) {
        prop_assert_eq!(a.contradicts(&b), b.contradicts(&a));
        prop_assert_eq!(a.contradicts(&b), a.epoch == b.epoch && a.primary != b.primary);
        let elsewhere = SlotRecord { slot: SlotId::new(1), ..b };
        prop_assert!(!a.contradicts(&elsewhere));
    }
}

/// A record of `slot`, of few enough values that most pairs of them meet in something.
pub(crate) fn slot_record(slot: u16) -> impl Strategy<Value = SlotRecord> {
    let names = || select(["a", "b", "c"].map(name).to_vec());
    let some = || subsequence(["a", "b", "c"].map(name).to_vec(), 0..=3);
    let rest = (0u64..2, some(), select(ElectionCause::ALL.to_vec()));
    (0u64..3, names(), some(), rest).prop_map(
        move |(epoch, primary, replicas, (stamp, granted_by, cause))| SlotRecord {
            slot: SlotId::new(slot),
            epoch: SlotEpoch::new(epoch),
            primary,
            replicas,
            state: SlotState::Stable,
            updated_at: HlcTimestamp::from_bits(stamp),
            granted_by,
            cause,
        },
    )
}

fn node_record() -> impl Strategy<Value = NodeRecord> {
    let address = select(["h:1", "h:2"].map(|text| Authority::new(text).expect("an address")).to_vec());
    (1u64..3, address, 0u64..2, any::<bool>(), 0u64..3).prop_map(
        |(life, address, instance, leaving, heartbeat)| NodeRecord {
            member: MemberId::new(name("a"), Incarnation::new(life).expect("a life")),
            address,
            instance,
            leaving,
            heartbeat: HlcTimestamp::from_bits(heartbeat),
        },
    )
}

fn name(text: &str) -> NodeId {
    NodeId::new(text).expect("a name")
}
