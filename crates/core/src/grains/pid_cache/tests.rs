use alloc::format;
use alloc::vec;

use super::*;
use crate::roster::PeerRuntime;

const fn at(millis: u64) -> TimerInstant {
    TimerInstant::from_millis(millis)
}

fn grain(identity: &str) -> ClusterIdentity {
    ClusterIdentity::new("Chat", identity).expect("a name")
}

fn pid(text: &str) -> ActorPid {
    text.parse().expect("a PID")
}

fn member(id: &str) -> GossipMemberId {
    GossipMemberId::new(id).expect("an id")
}

fn listed(id: &str, authority: &str) -> RosterMember {
    let authority = Authority::new(authority).expect("an authority");
    RosterMember { id: member(id), authority, kinds: vec!["Chat".into()], runtime: PeerRuntime::Synod }
}

fn cache(capacity: usize) -> PidCache {
    PidCache::new(PidCacheConfig { capacity, ttl: Duration::from_millis(100) }).expect("sound settings")
}

/// A cache that found `a` and `b` on one node and `c` on another.
fn filled() -> PidCache {
    let mut cache = cache(10);
    for (identity, text, host) in [("a", "h:1/a", "one#1"), ("b", "h:1/b", "one#1"), ("c", "h:2/c", "two#1")]
    {
        assert_eq!(cache.insert(&grain(identity), pid(text), member(host), at(0)).dropped, []);
    }
    cache
}

fn reasons(out: &PidCacheOutcome) -> Vec<(&str, PidDropReason)> {
    out.dropped.iter().map(|dropped| (dropped.grain.identity(), dropped.reason)).collect()
}

#[test]
fn an_entry_is_believed_until_exactly_its_time_is_over() {
    let mut cache = cache(10);
    let out = cache.insert(&grain("a"), pid("h:1/a"), member("one#1"), at(0));
    assert_eq!(out.wake_at, Some(at(100)));
    let (found, out) = cache.get(&grain("a"), TimerInstant::from_nanos(99_999_999));
    assert_eq!((found, out.dropped), (Some(pid("h:1/a")), vec![]));
    // Having been used does not make it true for longer.
    let (found, out) = cache.get(&grain("a"), at(100));
    assert_eq!((found, reasons(&out)), (None, vec![("a", PidDropReason::Expired)]));
    assert_eq!(out.wake_at, None);
    assert_eq!(cache.counts(), PidCacheCounts { hits: 1, misses: 1, drops: 1 });
}

#[test]
fn what_nobody_asks_for_is_swept() {
    let mut cache = filled();
    assert_eq!(cache.poll(at(99)).dropped, []);
    assert_eq!(cache.poll(at(100)).dropped.len(), 3);
    assert!(cache.is_empty());
}

#[test]
fn the_least_recently_used_entry_makes_room() {
    let mut cache = cache(3);
    // In the order of the alphabet and of arrival `a` would go first; it is used, so `b` does.
    for identity in ["a", "b", "c"] {
        cache.insert(&grain(identity), pid("h:1/x"), member("one#1"), at(0));
    }
    cache.get(&grain("a"), at(1));
    let out = cache.insert(&grain("d"), pid("h:1/d"), member("one#1"), at(1));
    assert_eq!(reasons(&out), [("b", PidDropReason::Evicted)]);
    let out = cache.insert(&grain("e"), pid("h:1/e"), member("one#1"), at(1));
    assert_eq!(reasons(&out), [("c", PidDropReason::Evicted)]);
    assert_eq!(cache.len(), 3);
}

#[test]
fn finding_a_grain_again_evicts_nobody() {
    let mut cache = cache(2);
    cache.insert(&grain("a"), pid("h:1/a"), member("one#1"), at(0));
    cache.insert(&grain("b"), pid("h:1/b"), member("one#1"), at(0));
    let out = cache.insert(&grain("a"), pid("h:2/a"), member("two#1"), at(50));
    assert_eq!((out.dropped, cache.len()), (vec![], 2));
    // The newer finding counts, and its time began when it was made.
    cache.poll(at(149));
    assert_eq!(cache.get(&grain("a"), at(149)).0, Some(pid("h:2/a")));
    assert_eq!(cache.get(&grain("b"), at(149)).0, None);
}

#[test]
fn a_capacity_of_nothing_is_refused_and_so_is_any_setting_out_of_range() {
    let sound = PidCacheConfig::default();
    assert_eq!((sound.capacity, sound.ttl), (1024, Duration::from_secs(300)));
    let refused = |config: PidCacheConfig| match PidCache::new(config).map(|_| ()) {
        Err(PidCacheConfigError::Count { field, .. } | PidCacheConfigError::Duration { field, .. }) => field,
        Ok(()) => "nothing",
    };
    assert_eq!(refused(PidCacheConfig { capacity: 0, ..sound.clone() }), "capacity");
    assert_eq!(refused(PidCacheConfig { capacity: 1_000_001, ..sound.clone() }), "capacity");
    assert_eq!(refused(PidCacheConfig { ttl: Duration::ZERO, ..sound.clone() }), "ttl");
    assert_eq!(refused(PidCacheConfig { ttl: Duration::from_secs(86_401), ..sound.clone() }), "ttl");
    assert_eq!(refused(sound), "nothing");
}

#[test]
fn what_changed_in_the_cluster_drops_the_entries_concerned_and_no_others() {
    let mut cache = filled();
    let out = cache.handle_authority_invalid(&Authority::new("h:1").expect("an authority"));
    let mut dropped = reasons(&out);
    dropped.sort_unstable();
    assert_eq!(dropped, [("a", PidDropReason::AuthorityInvalid), ("b", PidDropReason::AuthorityInvalid)]);
    assert_eq!(cache.len(), 1);

    let mut cache = filled();
    assert_eq!(cache.handle_member_gone(&member("nobody#1")).dropped, []);
    assert_eq!(reasons(&cache.handle_member_gone(&member("two#1"))), [("c", PidDropReason::MemberGone)]);
    assert_eq!(reasons(&cache.handle_grain_gone(&grain("a"))), [("a", PidDropReason::GrainGone)]);
    assert_eq!(cache.handle_grain_gone(&grain("a")).dropped, [], "an entry is dropped once");
}

#[test]
fn a_failure_drops_only_the_activation_that_failed() {
    let mut cache = filled();
    cache.insert(&grain("a"), pid("h:2/a"), member("two#1"), at(1));
    // The answer of a slow attempt at the old activation comes when the new one is known already.
    assert_eq!(cache.handle_failed(&grain("a"), &pid("h:1/a")).dropped, []);
    let out = cache.handle_failed(&grain("a"), &pid("h:2/a"));
    assert_eq!(reasons(&out), [("a", PidDropReason::Failed)]);
}

#[test]
fn a_roster_drops_whom_it_does_not_list_and_what_moved() {
    let hash = PlacementHash::Synod;
    let before = [listed("one#1", "h:1"), listed("two#1", "h:2")];
    let mut cache = cache(1000);
    for n in 0..200 {
        let grain = grain(&format!("{n}"));
        let owner = hash.owner(&grain, &before).expect("an owner");
        let found = ActorPid::new(owner.authority.clone(), grain.identity()).expect("a PID");
        cache.insert(&grain, found, owner.id.clone(), at(0));
    }
    assert_eq!(cache.handle_roster(&before, hash).dropped, [], "nothing changed");

    // A third member takes its share, and the entries of what moved go; the others stay.
    let after = [before[0].clone(), before[1].clone(), listed("three#1", "h:3")];
    let moved = cache.handle_roster(&after, hash).dropped;
    assert!((40..95).contains(&moved.len()), "{} of 200 moved", moved.len());
    assert!(moved.iter().all(|dropped| dropped.reason == PidDropReason::OwnerChanged));

    // The second restarts. Same name, same address: but what ran there is gone.
    let restarted = [after[0].clone(), listed("two#2", "h:2"), after[2].clone()];
    let gone = cache.handle_roster(&restarted, hash).dropped;
    assert!(gone.iter().all(|dropped| dropped.reason == PidDropReason::NotOnRoster));
    assert_eq!(cache.len(), 200 - moved.len() - gone.len());
    assert_eq!(cache.get(&gone[0].grain, at(1)).0, None);
}

#[test]
fn the_list_of_drops_is_bounded_and_the_count_is_not() {
    let mut cache = cache(1000);
    for n in 0..300 {
        cache.insert(&grain(&format!("{n}")), pid("h:1/x"), member("one#1"), at(0));
    }
    let out = cache.handle_member_gone(&member("one#1"));
    assert_eq!((out.dropped.len(), out.untold), (DROPS_TOLD_MAX, 300 - DROPS_TOLD_MAX));
    assert_eq!(cache.counts().drops, 300);
}
