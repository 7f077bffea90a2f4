use alloc::format;
use alloc::vec;

use super::*;
use crate::membership::delta::DeltaError;
use crate::membership::record::Refutation;

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("a node name")
}

fn member(name: &str, incarnation: u64) -> MemberId {
    MemberId::new(node(name), Incarnation::new(incarnation).expect("an incarnation"))
}

fn at(port: u16) -> Authority {
    Authority::new(&format!("host:{port}")).expect("an authority")
}

fn record(name: &str, incarnation: u64, port: u16, status: NodeStatus) -> NodeRecord {
    NodeRecord { status, ..NodeRecord::joining(member(name, incarnation), at(port)) }
}

fn table(records: &[NodeRecord]) -> MembershipTable {
    let mut table = MembershipTable::new(100);
    merge_all(&mut table, records);
    table
}

/// Merges and returns how many records were news.
fn merge_all(table: &mut MembershipTable, records: &[NodeRecord]) -> usize {
    records.iter().filter(|record| table.merge(record).expect("room").is_some()).count()
}

/// Everything one can see of a table, to show that a refused input changed nothing.
fn everything(table: &MembershipTable) -> (u128, MembershipSnapshot, MembershipDelta) {
    (table.digest(), table.snapshot(), table.delta_since(MembershipVersion::ZERO))
}

#[test]
fn a_join_registers_a_joining_member_as_the_first_change() {
    let mut table = MembershipTable::new(100);
    assert_eq!((table.version(), table.digest()), (MembershipVersion::ZERO, 0));

    let change = table.try_join(&member("a", 1), &at(1)).expect("admitted").expect("a change");

    let joined = record("a", 1, 1, NodeStatus::Joining);
    assert_eq!(change, RecordChange { previous: None, current: joined.clone() });
    assert_eq!(table.version(), MembershipVersion::new(1));
    assert_ne!(table.digest(), 0);
    assert_eq!(table.snapshot().record(&node("a")), Some(&joined));
}

#[test]
fn every_edge_of_the_life_moves_a_member_once_and_every_other_pair_not_at_all() {
    use NodeStatus::{Dead, Joining, Leaving, Removed, Suspect, Up};
    // Written out rather than computed: this is the specification.
    let edges = [
        (Joining, Up),
        (Joining, Suspect),
        (Joining, Leaving),
        (Up, Suspect),
        (Up, Leaving),
        (Suspect, Up),
        (Suspect, Dead),
        (Leaving, Removed),
        (Dead, Removed),
    ];
    for from in NodeStatus::ALL {
        for to in NodeStatus::ALL {
            // A bystander, so that a wrong bookkeeping of versions or digests has something to damage.
            let start = record("a", 1, 1, from);
            let mut table = table(&[record("b", 1, 2, Up), start.clone()]);
            let before = everything(&table);
            let version = table.version();

            let result = table.transition(&node("a"), to);

            if edges.contains(&(from, to)) {
                let change = result.expect("a legal edge").expect("a change");
                assert_eq!(change.previous, Some(start), "{from} to {to}");
                assert_eq!(change.current.status, to, "{from} to {to}");
                assert_eq!(table.version().get(), version.get() + 1, "{from} to {to}");
                assert_ne!(table.digest(), before.0, "{from} to {to}");
                assert_eq!(table.delta_since(version).records(), [change.current], "{from} to {to}");
            } else {
                let expected = if from == to {
                    Ok(None)
                } else {
                    Err(MembershipError::InvalidTransition { member: member("a", 1), from, to })
                };
                assert_eq!(result, expected, "{from} to {to}");
                assert_eq!(everything(&table), before, "{from} to {to}");
            }
        }
    }
    let unknown = table(&[]).transition(&node("a"), Up);
    assert_eq!(unknown, Err(MembershipError::UnknownNode { node: node("a") }));
}

#[test]
fn a_refuted_suspicion_is_outranked_wherever_it_has_spread() {
    let up = record("a", 1, 1, NodeStatus::Up);
    let mut witness = table(core::slice::from_ref(&up));
    let mut elsewhere = table(core::slice::from_ref(&up));

    // The suspicion spreads.
    witness.transition(&node("a"), NodeStatus::Suspect).expect("a legal edge");
    let suspicion = witness.record(&node("a")).expect("known").clone();
    assert_eq!(merge_all(&mut elsewhere, core::slice::from_ref(&suspicion)), 1);

    // The witness hears the accused again; its word now beats the suspicion, in either order of arrival.
    witness.transition(&node("a"), NodeStatus::Up).expect("a legal edge");
    let refuted = witness.record(&node("a")).expect("known").clone();
    assert_eq!(refuted, NodeRecord { refutation: Refutation(1), ..up });
    assert_eq!(merge_all(&mut elsewhere, core::slice::from_ref(&refuted)), 1);
    assert_eq!(merge_all(&mut elsewhere, core::slice::from_ref(&suspicion)), 0);
    assert_eq!(elsewhere.record(&node("a")), Some(&refuted));

    // A refutation answers one suspicion; the next one counts again.
    elsewhere.transition(&node("a"), NodeStatus::Suspect).expect("a legal edge");
    let again = elsewhere.record(&node("a")).expect("known").clone();
    assert_eq!(merge_all(&mut witness, &[again]), 1);
    assert_eq!(witness.record(&node("a")).map(|r| r.status), Some(NodeStatus::Suspect));
}

#[test]
fn a_join_of_a_known_life_is_a_no_op_and_of_a_past_life_is_refused() {
    for status in NodeStatus::ALL {
        let mut table = table(&[record("a", 2, 1, status)]);
        let before = everything(&table);

        // The same life: nothing to do while it lasts, and no way back once it is over.
        let same = table.try_join(&member("a", 2), &at(1));
        if status.is_final() {
            assert_eq!(same, Err(MembershipError::DeadIncarnation { member: member("a", 2), status }));
        } else {
            assert_eq!(same, Ok(None), "{status}");
        }

        // An earlier life is older news whatever became of the later one.
        let known = member("a", 2).incarnation;
        let older = table.try_join(&member("a", 1), &at(1));
        assert_eq!(older, Err(MembershipError::StaleIncarnation { member: member("a", 1), known }));
        assert_eq!(everything(&table), before, "{status}");
    }
}

#[test]
fn a_later_life_replaces_an_earlier_one_at_once() {
    for status in NodeStatus::ALL {
        let old = NodeRecord { refutation: Refutation(7), ..record("a", 1, 1, status) };
        let mut table = table(core::slice::from_ref(&old));

        let change = table.try_join(&member("a", 2), &at(2)).expect("admitted").expect("a change");

        // Nothing of the old life is inherited, not even its refutations or its address.
        let current = record("a", 2, 2, NodeStatus::Joining);
        assert_eq!(change, RecordChange { previous: Some(old), current: current.clone() });
        assert_eq!(table.snapshot().records, [current]);
    }
}

#[test]
fn a_live_holder_keeps_its_address_and_a_dead_one_does_not() {
    for status in NodeStatus::ALL {
        let mut table = table(&[record("a", 1, 1, status)]);
        let before = everything(&table);

        let join = table.try_join(&member("b", 1), &at(1));

        if status.is_final() {
            // A process that was restarted under a new name finds its old address free.
            let change = join.expect("admitted").expect("a change");
            assert_eq!(change.current, record("b", 1, 1, NodeStatus::Joining));
        } else {
            let conflict = MembershipError::AuthorityConflict {
                authority: at(1),
                held_by: member("a", 1),
                requested_by: member("b", 1),
            };
            assert_eq!(join, Err(conflict), "{status}");
            assert_eq!(everything(&table), before, "{status}");
        }
    }
}

#[test]
fn sharing_an_address_by_gossip_does_not_hide_its_other_holder() {
    // Two parts of a cluster admitted different nodes at one address; a merge brings both together.
    let mut table = table(&[record("a", 1, 1, NodeStatus::Up), record("b", 1, 1, NodeStatus::Up)]);
    // Whichever of them returns in a later life meets the other.
    for (name, other) in [("a", "b"), ("b", "a")] {
        let conflict = MembershipError::AuthorityConflict {
            authority: at(1),
            held_by: member(other, 1),
            requested_by: member(name, 2),
        };
        assert_eq!(table.try_join(&member(name, 2), &at(1)), Err(conflict));
    }
}

#[test]
fn one_identity_at_two_addresses_is_a_conflict() {
    let mut table = table(&[record("a", 1, 1, NodeStatus::Up)]);
    let before = everything(&table);
    let conflict =
        MembershipError::IdentityConflict { member: member("a", 1), held_at: at(1), requested_at: at(2) };
    assert_eq!(table.try_join(&member("a", 1), &at(2)), Err(conflict));
    assert_eq!(everything(&table), before);
}

#[test]
fn a_full_table_refuses_new_names_and_serves_known_ones() {
    let mut table = MembershipTable::new(2);
    table.merge(&record("a", 1, 1, NodeStatus::Up)).expect("room");
    table.merge(&record("b", 1, 2, NodeStatus::Removed)).expect("room");
    let before = everything(&table);

    // Tombstones take room too: forgetting them early would bring the dead back.
    let full = MembershipError::TableFull { node: node("c"), members_max: 2 };
    assert_eq!(table.try_join(&member("c", 1), &at(3)), Err(full.clone()));
    assert_eq!(table.merge(&record("c", 1, 3, NodeStatus::Up)), Err(full));
    assert_eq!(everything(&table), before);

    // A name that is known needs no room, neither for a change nor for a new life.
    assert!(table.transition(&node("a"), NodeStatus::Suspect).expect("a legal edge").is_some());
    assert!(table.try_join(&member("b", 2), &at(2)).expect("admitted").is_some());
}

#[test]
fn a_stale_delta_is_harmless_and_a_replayed_one_idempotent() {
    let mut sender = MembershipTable::new(100);
    sender.try_join(&member("a", 1), &at(1)).expect("admitted");
    let stale = sender.delta_since(MembershipVersion::ZERO);
    sender.transition(&node("a"), NodeStatus::Up).expect("a legal edge");
    sender.transition(&node("a"), NodeStatus::Leaving).expect("a legal edge");
    let fresh = sender.delta_since(stale.to());
    assert_eq!((fresh.from().get(), fresh.to().get()), (1, 3));

    let mut receiver = MembershipTable::new(100);
    assert_eq!(merge_all(&mut receiver, fresh.records()), 1);
    let after = everything(&receiver);
    // The same again, and what was true long ago: neither is news.
    assert_eq!(merge_all(&mut receiver, fresh.records()), 0);
    assert_eq!(merge_all(&mut receiver, stale.records()), 0);
    assert_eq!(everything(&receiver), after);
    assert_eq!(receiver.digest(), sender.digest());
}

#[test]
fn a_tombstone_blocks_resurrection_until_it_is_pruned() {
    let up = record("a", 1, 1, NodeStatus::Up);
    let mut table = table(&[record("a", 1, 1, NodeStatus::Removed), record("b", 1, 2, NodeStatus::Up)]);
    let before = everything(&table);

    // No statement about the same life brings it back, however often it was refuted.
    let refuted = NodeRecord { refutation: Refutation(u32::MAX), ..up.clone() };
    let dead = record("a", 1, 1, NodeStatus::Dead);
    assert_eq!(merge_all(&mut table, &[up.clone(), refuted, dead]), 0);
    assert!(table.try_join(&member("a", 1), &at(1)).is_err());
    assert_eq!(everything(&table), before);

    // Only tombstones are forgotten: a prune that comes too late must not hit a member.
    table.prune(&node("b"));
    assert_eq!(everything(&table), before);

    // Forgetting is no change of the view: nobody is told, and versions go on as before.
    table.prune(&node("a"));
    assert_eq!(table.record(&node("a")), None);
    assert_eq!((table.digest(), table.version()), (before.0, before.1.version));
    let whole = table.delta_since(MembershipVersion::ZERO);
    assert_eq!(whole.records(), [record("b", 1, 2, NodeStatus::Up)]);
    assert_eq!(whole.to(), table.version());

    // From now on the name is like any other.
    assert_eq!(merge_all(&mut table, &[up]), 1);
    assert_eq!(table.version().get(), before.1.version.get() + 1);
}

#[test]
fn a_delta_holds_the_changes_of_its_range_in_order_and_each_node_once() {
    let names = ["c", "a", "b"];
    let records = names.map(|name| record(name, 1, 1, NodeStatus::Up));
    let mut table = table(&records);
    let since = |table: &MembershipTable, from| {
        let delta = table.delta_since(MembershipVersion::new(from));
        let nodes: Vec<_> = delta.records().iter().map(|r| r.member.node.clone()).collect();
        (delta.from().get(), delta.to().get(), nodes)
    };

    assert_eq!(since(&table, 0), (0, 3, vec![node("c"), node("a"), node("b")]));
    assert_eq!(since(&table, 1), (1, 3, vec![node("a"), node("b")]));
    assert_eq!(since(&table, 3), (3, 3, vec![]));
    // A range that begins in the future (a peer that mixed us up with somebody) is empty, not backwards.
    assert_eq!(since(&table, 9), (9, 9, vec![]));

    // A node that changes again moves to the end; its earlier change is no longer worth telling.
    table.transition(&node("c"), NodeStatus::Suspect).expect("a legal edge");
    assert_eq!(since(&table, 0), (0, 4, vec![node("a"), node("b"), node("c")]));
    assert_eq!(since(&table, 3), (3, 4, vec![node("c")]));
}

#[test]
fn a_long_history_is_told_in_several_deltas_that_continue_each_other() {
    let count = 2 * DELTA_RECORDS_MAX + 10;
    let mut sender = MembershipTable::new(count);
    for index in 0..count {
        sender.merge(&record(&format!("n{index}"), 1, 1, NodeStatus::Up)).expect("room");
    }
    // Some change again, so that the order of changes is not the order of arrival and the versions have holes.
    for index in (0..count).step_by(7) {
        sender.transition(&node(&format!("n{index}")), NodeStatus::Suspect).expect("a legal edge");
    }

    let mut receiver = MembershipTable::new(count);
    let mut from = MembershipVersion::ZERO;
    let mut sizes = Vec::new();
    while from < sender.version() {
        let delta = sender.delta_since(from);
        assert_eq!(delta.from(), from);
        // Whatever is cut here passes the check at the other end of the wire.
        MembershipDelta::new(delta.from(), delta.to(), delta.records().to_vec()).expect("well-formed");
        // Every record is news: nothing is told twice.
        assert_eq!(merge_all(&mut receiver, delta.records()), delta.records().len());
        sizes.push(delta.records().len());
        from = delta.to();
    }

    assert_eq!(sizes, [DELTA_RECORDS_MAX, DELTA_RECORDS_MAX, 10]);
    assert_eq!(receiver.digest(), sender.digest());
}

#[test]
fn a_malformed_delta_is_refused_with_the_reason() {
    let (v1, v2) = (MembershipVersion::new(1), MembershipVersion::new(2));
    let up = |name: &str| record(name, 1, 1, NodeStatus::Up);
    let many = |count| (0..count).map(|index| up(&format!("n{index}"))).collect::<Vec<_>>();

    assert_eq!(MembershipDelta::new(v2, v1, vec![]), Err(DeltaError::Backwards { from: v2, to: v1 }));
    let records = DELTA_RECORDS_MAX + 1;
    assert_eq!(MembershipDelta::new(v1, v2, many(records)), Err(DeltaError::TooLarge { records }));
    // Two lives of one node contradict each other in one delta, too.
    let twice = vec![up("a"), up("b"), record("a", 2, 1, NodeStatus::Up)];
    assert_eq!(MembershipDelta::new(v1, v2, twice), Err(DeltaError::DuplicateNode { node: node("a") }));

    // The bounds themselves are fine: a full delta, an empty range, a record told out of turn.
    assert!(MembershipDelta::new(v1, v2, many(DELTA_RECORDS_MAX)).is_ok());
    assert!(MembershipDelta::new(v1, v1, vec![up("a")]).is_ok());
}

#[test]
fn the_digest_covers_every_field_of_every_record_but_the_removed() {
    let base = record("a", 1, 1, NodeStatus::Up);
    let views = [
        table(&[]),
        table(core::slice::from_ref(&base)),
        table(&[record("b", 1, 1, NodeStatus::Up)]),
        table(&[record("a", 2, 1, NodeStatus::Up)]),
        table(&[record("a", 1, 2, NodeStatus::Up)]),
        table(&[record("a", 1, 1, NodeStatus::Suspect)]),
        table(&[NodeRecord { refutation: Refutation(1), ..base.clone() }]),
        table(&[base.clone(), record("b", 1, 1, NodeStatus::Up)]),
    ];
    for (index, view) in views.iter().enumerate() {
        for other in &views[..index] {
            assert_ne!(view.digest(), other.digest(), "{:?} and {:?}", view.snapshot(), other.snapshot());
        }
    }

    // A node that never heard of a departed member, and one that remembers it, agree about who is there.
    let mut remembers = table(&[base.clone(), record("x", 1, 9, NodeStatus::Leaving)]);
    assert_ne!(remembers.digest(), views[1].digest());
    remembers.transition(&node("x"), NodeStatus::Removed).expect("a legal edge");
    assert_eq!(remembers.digest(), views[1].digest());
}
