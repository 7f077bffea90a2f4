use alloc::format;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec;

use super::*;
use crate::gossip::GossipMemberId;
use crate::grains::PlacementHash;
use crate::id::Authority;
use crate::roster::{PeerRuntime, RosterMember};

mod handover;

type Registry = VirtualActorRegistry<&'static str>;
type Outcome = ActivationOutcome<&'static str>;

const IDLE: Duration = Duration::from_millis(1000);

const fn at(millis: u64) -> TimerInstant {
    TimerInstant::from_millis(millis)
}

fn host(name: &str) -> GrainHost {
    GrainHost::from(&listed(name))
}

fn id(text: &str) -> GossipMemberId {
    GossipMemberId::new(text).expect("an id")
}

fn listed(name: &str) -> RosterMember {
    let authority = Authority::new(&format!("{name}:1")).expect("an authority");
    let kinds = vec!["Account".into(), "Chat".into(), "Clock".into()];
    RosterMember { id: id(&format!("{name}#1")), authority, kinds, runtime: PeerRuntime::Synod }
}

fn grain(text: &str) -> ClusterIdentity {
    text.parse().expect("a name")
}

fn pid(text: &str) -> ActorPid {
    text.parse().expect("a PID")
}

/// `from` hands the state of `grain` over; `name` ran there.
fn record(grain: &ClusterIdentity, from: &str, name: Option<&str>, version: u64) -> RelocationRecord {
    RelocationRecord {
        grain: grain.clone(),
        from: host(from),
        stopped: name.map(|name| pid(&format!("{from}:1/{name}"))).into_iter().collect(),
        snapshot: Some(snapshot(version)),
        claim: None,
        before: vec![],
        went: None,
        is_leaving: false,
    }
}

fn snapshot(version: u64) -> GrainSnapshot {
    GrainSnapshot { version, bytes: Arc::from([7, 7]) }
}

fn config() -> ActivationConfig {
    ActivationConfig { placement: PlacementHash::Synod, ..ActivationConfig::default() }
}

/// The registry of `one`: chats are unloaded after a second, clocks never, accounts need their state.
fn bare(config: ActivationConfig) -> Registry {
    let kinds = vec![
        GrainKindConfig { idle_limit: Some(IDLE), ..GrainKindConfig::new("Chat") },
        GrainKindConfig { idle_limit: None, ..GrainKindConfig::new("Clock") },
        GrainKindConfig { snapshot_required: true, ..GrainKindConfig::new("Account") },
    ];
    VirtualActorRegistry::new(host("one"), kinds, config).expect("sound settings")
}

/// A registry that is alone on its roster.
fn registry() -> Registry {
    let mut registry = bare(config());
    registry.handle_roster(&[listed("one")], at(0));
    registry
}

/// The activation that an outcome asks to spawn, and the version of the state it is to start from.
fn spawn(out: &Outcome) -> Option<(ActivationId, Option<u64>)> {
    out.commands.iter().find_map(|command| match command {
        ActivationCommand::Spawn { activation, snapshot, .. } => {
            Some((*activation, snapshot.as_ref().map(|snapshot| snapshot.version)))
        }
        _ => None,
    })
}

fn stops(out: &Outcome) -> Vec<(&str, StopReason)> {
    out.commands
        .iter()
        .filter_map(|command| match command {
            ActivationCommand::Stop { pid, reason, .. } => Some((pid.id(), *reason)),
            _ => None,
        })
        .collect()
}

fn refusal(out: &Outcome) -> Option<&ActivationRefusal> {
    out.replies.first().and_then(|reply| reply.result.as_ref().err())
}

/// Starts a grain as `one:1/<name>`.
fn activate(registry: &mut Registry, grain: &ClusterIdentity, name: &str, now: TimerInstant) -> ActorPid {
    let (activation, _) = spawn(&registry.handle_activation_request(grain, "starter", now)).expect("a spawn");
    let pid = pid(&format!("one:1/{name}"));
    let out = registry.handle_spawned(grain, activation, pid.clone(), now);
    assert_eq!(out.replies[0].result, Ok(pid.clone()));
    pid
}

/// A chat that `one` hosts alone, and that moves to `two` when `two` comes.
fn mover() -> ClusterIdentity {
    owned_by("Chat", "two#1")
}

fn owned_by(kind: &str, owner: &str) -> ClusterIdentity {
    let both = [listed("one"), listed("two")];
    (0..)
        .map(|n| grain(&format!("{kind}/{n}")))
        .find(|grain| {
            PlacementHash::Synod.owner(grain, &both).is_some_and(|member| member.id.as_str() == owner)
        })
        .expect("one of many")
}

#[test]
fn a_grain_is_started_by_its_first_request_and_found_by_all_others() {
    let (mut registry, chat) = (registry(), grain("Chat/a"));
    // All ask at once; one start serves them all.
    let (activation, _) = spawn(&registry.handle_activation_request(&chat, "first", at(0))).expect("a spawn");
    for asker in ["second", "third"] {
        let out = registry.handle_activation_request(&chat, asker, at(1));
        assert_eq!(out, Outcome { wake_at: None, ..Outcome::default() }, "{asker} waits");
    }
    let out = registry.handle_spawned(&chat, activation, pid("one:1/a"), at(2));
    let answered: Vec<_> = out.replies.iter().map(|reply| (reply.to, reply.result.clone())).collect();
    let expected = ["first", "second", "third"].map(|asker| (asker, Ok(pid("one:1/a"))));
    assert_eq!(answered, expected);
    let event = ActivationEvent::Activated { grain: chat.clone(), pid: pid("one:1/a"), activation };
    assert_eq!(out.events, [event]);

    // Whoever comes later is answered at once, with the same activation, as long as it runs.
    let out = registry.handle_activation_request(&chat, "fourth", at(500));
    assert_eq!((out.replies[0].result.clone(), out.commands), (Ok(pid("one:1/a")), vec![]));
}

#[test]
fn a_start_that_fails_is_told_to_all_who_wait_and_tried_again_by_the_next() {
    let (mut registry, chat) = (registry(), grain("Chat/a"));
    let (first, _) = spawn(&registry.handle_activation_request(&chat, "first", at(0))).expect("a spawn");
    registry.handle_activation_request(&chat, "second", at(0));
    let out = registry.handle_spawn_failed(&chat, first, "no memory");
    assert_eq!(out.replies.len(), 2);
    let refused = ActivationRefusal::SpawnFailed { grain: chat.clone(), reason: "no memory".into() };
    assert_eq!(refusal(&out), Some(&refused));
    assert_eq!(refused.to_string(), "Chat/a could not be started: no memory");

    let (second, _) = spawn(&registry.handle_activation_request(&chat, "third", at(1))).expect("a new spawn");
    assert_ne!(first, second);
    // The first start succeeds after all, late: nobody knows it any more, and it is stopped.
    let out = registry.handle_spawned(&chat, first, pid("one:1/late"), at(2));
    assert_eq!((stops(&out), out.replies.len()), (vec![("late", StopReason::Orphan)], 0));
    let out = registry.handle_spawned(&chat, second, pid("one:1/a"), at(3));
    assert_eq!(out.replies[0].result, Ok(pid("one:1/a")));
    // A report that comes twice changes nothing.
    assert_eq!(registry.handle_spawned(&chat, second, pid("one:1/a"), at(3)).commands, []);
}

#[test]
fn what_this_node_may_not_host_is_refused_with_the_reason() {
    let mut registry = bare(config());
    let out = registry.handle_activation_request(&grain("Poem/a"), "x", at(0));
    assert_eq!(refusal(&out), Some(&ActivationRefusal::UnknownKind { kind: "Poem".into() }));
    // Without a roster nobody knows who hosts anything.
    let out = registry.handle_activation_request(&grain("Chat/a"), "x", at(0));
    assert_eq!(refusal(&out), Some(&ActivationRefusal::NoOwner { grain: grain("Chat/a") }));

    // Go would start a second one here without a word.
    registry.handle_roster(&[listed("one"), listed("two")], at(0));
    let out = registry.handle_activation_request(&mover(), "x", at(0));
    let refused = ActivationRefusal::NotOwner { grain: mover(), owner: listed("two") };
    assert_eq!((refusal(&out), out.commands.len()), (Some(&refused), 0));
    assert_eq!(refused.to_string(), format!("{} is hosted by two#1 at two:1", mover()));
}

#[test]
fn bounds_are_kept_and_told() {
    let mut registry = bare(ActivationConfig { activations_max: 1, waiters_max: 2, ..config() });
    registry.handle_roster(&[listed("one")], at(0));
    let (chat, other) = (grain("Chat/a"), grain("Chat/b"));
    registry.handle_activation_request(&chat, "first", at(0));
    registry.handle_activation_request(&chat, "second", at(0));
    let out = registry.handle_activation_request(&chat, "third", at(0));
    assert_eq!(refusal(&out), Some(&ActivationRefusal::TooManyWaiters { grain: chat, max: 2 }));
    let out = registry.handle_activation_request(&other, "x", at(0));
    assert_eq!(refusal(&out), Some(&ActivationRefusal::TooManyActivations { grain: other, max: 1 }));
}

#[test]
fn an_idle_grain_is_unloaded_at_exactly_its_limit_and_comes_back_on_demand() {
    let (mut registry, chat) = (registry(), grain("Chat/a"));
    let first = activate(&mut registry, &chat, "a", at(0));
    // A message resets the clock, and the alarm that was set before rings for nothing.
    assert_eq!(registry.handle_message(&chat, at(400)), Some(first.clone()));
    registry.handle_turn_done(&chat, &first, at(401));
    assert_eq!(stops(&registry.poll(at(1000))), []);
    let out = registry.poll(TimerInstant::from_nanos(1_400_999_999));
    assert_eq!((stops(&out), out.wake_at), (vec![], Some(at(1401))));
    assert_eq!(stops(&registry.poll(at(1401))), [("a", StopReason::Idle)]);

    let out = registry.handle_terminated(&chat, &first, None, at(1));
    let passivated = ActivationEvent::Passivated { grain: chat.clone(), pid: first.clone() };
    assert_eq!(out.events, [passivated]);
    assert_eq!(out.commands, [ActivationCommand::Announce { grain: chat.clone(), pid: first }]);

    let (activation, _) = spawn(&registry.handle_activation_request(&chat, "x", at(2000))).expect("a spawn");
    let out = registry.handle_spawned(&chat, activation, pid("one:1/b"), at(2000));
    let pid = pid("one:1/b");
    assert_eq!(out.events, [ActivationEvent::Reactivated { grain: chat, pid, activation, restored: None }]);
}

#[test]
fn asking_for_a_grain_is_a_sign_of_interest_and_a_grain_without_limit_stays() {
    let mut registry = registry();
    let (chat, clock) = (grain("Chat/a"), grain("Clock/a"));
    activate(&mut registry, &chat, "chat", at(0));
    activate(&mut registry, &clock, "clock", at(0));
    registry.handle_activation_request(&chat, "x", at(999));
    assert_eq!(stops(&registry.poll(at(1000))), []);
    assert_eq!(stops(&registry.poll(at(1_000_000))), [("chat", StopReason::Idle)]);
}

#[test]
fn a_grain_that_works_is_never_idle() {
    let (mut registry, chat) = (registry(), grain("Chat/a"));
    let pid = activate(&mut registry, &chat, "a", at(0));
    registry.handle_message(&chat, at(10));
    registry.handle_message(&chat, at(20));
    assert_eq!(stops(&registry.poll(at(5000))), [], "two messages are being worked on");
    registry.handle_turn_done(&chat, &pid, at(6000));
    assert_eq!(stops(&registry.poll(at(7500))), [], "one still is");
    // A turn of an earlier activation ends; it is not one of this activation.
    registry.handle_turn_done(&chat, &self::pid("one:1/old"), at(7600));
    assert_eq!(stops(&registry.poll(at(8700))), []);
    let out = registry.handle_turn_done(&chat, &pid, at(9000));
    assert_eq!(out.wake_at, Some(at(10_000)));
    assert_eq!(stops(&registry.poll(at(10_000))), [("a", StopReason::Idle)]);
}

#[test]
fn a_call_that_meets_a_grain_on_its_way_out_starts_the_next_one() {
    let (mut registry, chat) = (registry(), grain("Chat/a"));
    let old = activate(&mut registry, &chat, "a", at(0));
    registry.poll(at(1000));
    // Too late for this activation: the sender is told, and asks again. It never gets the dying one, as it does in Go.
    assert_eq!(registry.handle_message(&chat, at(1001)), None);
    let out = registry.handle_activation_request(&chat, "late", at(1002));
    assert_eq!((out.replies, out.commands), (vec![], vec![]));
    // With the end of the old one the new one starts, from the state that the old one left.
    let out = registry.handle_terminated(&chat, &old, Some(snapshot(3)), at(1));
    let (activation, restored) = spawn(&out).expect("a spawn");
    assert_eq!(restored, Some(3));
    let out = registry.handle_spawned(&chat, activation, pid("one:1/b"), at(1003));
    assert_eq!((out.replies[0].to, out.replies[0].result.clone()), ("late", Ok(pid("one:1/b"))));
    assert!(matches!(out.events[..], [ActivationEvent::Reactivated { restored: Some(3), .. }]));
}

#[test]
fn a_grain_that_ends_by_itself_is_told_and_an_unknown_end_changes_nothing() {
    let (mut registry, chat) = (registry(), grain("Chat/a"));
    let pid = activate(&mut registry, &chat, "a", at(0));
    let unknown = registry.handle_terminated(&chat, &self::pid("one:1/z"), None, at(1));
    assert_eq!((unknown.events, unknown.commands), (vec![], vec![]));
    let out = registry.handle_terminated(&chat, &pid, None, at(1));
    assert_eq!(out.events, [ActivationEvent::Deactivated { grain: chat.clone(), pid: pid.clone() }]);
    assert_eq!(out.wake_at, None, "no alarm stays behind");
    assert_eq!(registry.handle_terminated(&chat, &pid, None, at(1)).events, []);
}

#[test]
fn a_grain_that_belongs_elsewhere_is_handed_over_with_its_state() {
    let (mut registry, chat, stayer) = (registry(), mover(), owned_by("Chat", "one#1"));
    let (moved, _) =
        (activate(&mut registry, &chat, "moved", at(0)), activate(&mut registry, &stayer, "stays", at(0)));
    let out = registry.handle_roster(&[listed("one"), listed("two")], at(0));
    assert_eq!(stops(&out), [("moved", StopReason::Moved)], "what stays is not disturbed");
    // Until it has stopped nobody else may have it, and nobody here starts it again.
    let out = registry.handle_activation_request(&chat, "x", at(1));
    assert!(matches!(refusal(&out), Some(ActivationRefusal::NotOwner { .. })));

    let out = registry.handle_terminated(&chat, &moved, Some(snapshot(9)), at(1));
    let record = record(&chat, "one", Some("moved"), 9);
    let expected = [
        ActivationCommand::Transfer { to: host("two"), record: record.clone() },
        ActivationCommand::Announce { grain: chat.clone(), pid: moved.clone() },
    ];
    assert_eq!(out.commands, expected, "the state travels before anyone hears of the end");
    let (to, version) = (Some(id("two#1")), Some(9));
    let handed_over = ActivationEvent::HandedOver { grain: chat.clone(), pid: moved, to, snapshot: version };
    assert_eq!(out.events, [handed_over]);

    // It is sent again until the new host has it.
    let out = registry.poll(at(501));
    assert!(
        matches!(&out.commands[..], [ActivationCommand::Transfer { record: again, .. }] if *again == record)
    );
    let kinds = vec![GrainKindConfig::new("Chat")];
    let mut two = VirtualActorRegistry::<&str>::new(host("two"), kinds, config()).expect("sound settings");
    // The state is faster than the roster, and comes twice.
    for _ in 0..2 {
        let out = two.handle_relocation(record.clone(), at(0));
        assert_eq!(out.events, []);
        let [ActivationCommand::Confirm { to, receipt }] = &out.commands[..] else { panic!("{out:?}") };
        assert_eq!(*to, host("one"));
        registry.handle_receipt(receipt);
    }
    let is_transfer = |command: &ActivationCommand| matches!(command, ActivationCommand::Transfer { .. });
    assert!(!registry.poll(at(9000)).commands.iter().any(is_transfer), "nothing is sent any more");
    // One that has just come asks who was there before it.
    two.handle_roster(&[listed("one"), listed("two")], at(0));
    let out = two.handle_activation_request(&chat, "y", at(0));
    let [ActivationCommand::Claim { to, claim }] = &out.commands[..] else { panic!("{out:?}") };
    assert_eq!(*to, host("one"));
    let out = registry.handle_claim(claim.clone(), at(9001));
    let [ActivationCommand::Transfer { record: nothing, .. }] = &out.commands[..] else { panic!("{out:?}") };
    assert!(!nothing.is_confirmed());
    let out = two.handle_relocation(nothing.clone(), at(1));
    let (activation, restored) = spawn(&out).expect("a spawn");
    assert_eq!(restored, Some(9));
    let out = two.handle_spawned(&chat, activation, pid("two:1/a"), at(1));
    assert!(matches!(out.events[..], [ActivationEvent::Reactivated { restored: Some(9), .. }]));
    // It comes once more, and now the grain runs. Nothing is lost by that.
    assert_eq!(two.handle_relocation(record, at(2)).events, []);
}

#[test]
fn a_grain_whose_host_died_starts_anew_unless_it_needs_its_state() {
    // `two` hosted both and died without a word. `one` is the owner now.
    let mut registry = bare(config());
    registry.handle_roster(&[listed("one"), listed("two")], at(0));
    let (chat, account) = (mover(), owned_by("Account", "two#1"));
    assert!(refusal(&registry.handle_activation_request(&chat, "x", at(0))).is_some());
    registry.handle_roster(&[listed("one")], at(0));
    let out = registry.handle_activation_request(&chat, "x", at(1));
    assert!(spawn(&out).is_some(), "nobody is asked: who might know is gone");
    let out = registry.handle_activation_request(&account, "x", at(1));
    assert_eq!(refusal(&out), Some(&ActivationRefusal::StateMissing { grain: account.clone() }));
    assert_eq!(out.events, [ActivationEvent::SnapshotMissing { grain: account.clone() }]);

    // The application brings the state, from wherever it keeps it.
    registry.handle_relocation(record(&account, "backup", None, 4), at(1));
    let (activation, restored) =
        spawn(&registry.handle_activation_request(&account, "x", at(2))).expect("a spawn");
    assert_eq!(restored, Some(4));
    // A start that fails does not cost the state.
    registry.handle_spawn_failed(&account, activation, "no memory");
    let out = registry.handle_activation_request(&account, "x", at(3));
    let (activation, restored) = spawn(&out).expect("a spawn");
    assert_eq!(restored, Some(4));
    // One that runs needs nothing more, but must leave a state behind.
    let pid = pid("one:1/account");
    registry.handle_spawned(&account, activation, pid.clone(), at(3));
    assert!(refusal(&registry.handle_activation_request(&account, "x", at(4))).is_none());
    let out = registry.handle_terminated(&account, &pid, None, at(1));
    assert!(out.events.contains(&ActivationEvent::SnapshotMissing { grain: account }));
}

#[test]
fn states_that_wait_here_follow_their_grains() {
    let (mut registry, chat) = (registry(), mover());
    let pid = activate(&mut registry, &chat, "a", at(0));
    registry.poll(at(1000));
    registry.handle_terminated(&chat, &pid, Some(snapshot(1)), at(1));
    // It was unloaded here and nobody calls it; now it belongs to `two`.
    let out = registry.handle_roster(&[listed("one"), listed("two")], at(0));
    let record = record(&chat, "one", None, 1);
    assert_eq!(out.commands, [ActivationCommand::Transfer { to: host("two"), record }]);
}

#[test]
fn a_state_does_not_go_to_a_go_node_and_comes_back_if_it_cannot_be_delivered() {
    let foreign = RosterMember { runtime: PeerRuntime::Protoactor, ..listed("two") };
    let (mut registry, chat) = (registry(), grain("Chat/a"));
    let pid = activate(&mut registry, &chat, "a", at(0));
    // The whole kind belongs to the Go node now.
    let own = RosterMember { kinds: vec![], ..listed("one") };
    registry.handle_roster(&[own, foreign], at(0));
    let out = registry.handle_terminated(&chat, &pid, Some(snapshot(2)), at(1));
    assert!(matches!(out.commands[..], [ActivationCommand::Announce { .. }]), "{:?}", out.commands);
    let (version, reason) = (2, SnapshotDrop::ForeignHost);
    let dropped = ActivationEvent::SnapshotDropped { grain: chat.clone(), version, reason };
    assert!(out.events.contains(&dropped));

    // A synod node is the next host, but is gone before it has the state. It goes to the one after that.
    let own = || RosterMember { kinds: vec![], ..listed("one") };
    registry.handle_roster(&[own(), listed("two")], at(0));
    registry.handle_relocation(record(&chat, "four", None, 3), at(0));
    let out = registry.poll(at(2000));
    let passed_on = |to| [ActivationCommand::Transfer { to, record: record(&chat, "one", None, 3) }];
    assert_eq!(out.commands, passed_on(host("two")));
    let out = registry.handle_roster(&[own(), listed("three")], at(2001));
    assert_eq!(out.commands, passed_on(host("three")));
    // That one is there, but never confirms it.
    let mut now = at(2001);
    let given_up = loop {
        now = registry.poll(now).wake_at.expect("an alarm");
        let events = registry.poll(now).events;
        if !events.is_empty() {
            break events;
        }
    };
    let (version, reason) = (3, SnapshotDrop::Undelivered);
    assert_eq!(given_up, [ActivationEvent::SnapshotDropped { grain: chat, version, reason }]);
}

#[test]
fn what_nobody_else_hosts_is_not_stopped() {
    let (mut registry, chat) = (registry(), grain("Chat/a"));
    let pid = activate(&mut registry, &chat, "a", at(0));
    let out = registry.handle_roster(&[RosterMember { kinds: vec![], ..listed("one") }], at(0));
    assert_eq!((stops(&out), registry.pid(&chat)), (vec![], Some(&pid)));
}

#[test]
fn a_roster_that_changes_during_a_start_is_obeyed_when_it_ends() {
    let (mut registry, chat) = (registry(), mover());
    let (activation, _) = spawn(&registry.handle_activation_request(&chat, "x", at(0))).expect("a spawn");
    let out = registry.handle_roster(&[listed("one"), listed("two")], at(0));
    assert!(matches!(refusal(&out), Some(ActivationRefusal::NotOwner { .. })), "who waits need not");
    let out = registry.handle_spawned(&chat, activation, pid("one:1/a"), at(1));
    assert_eq!((stops(&out), out.replies.len()), (vec![("a", StopReason::Moved)], 0));

    // `two` goes again before the stop is over: the grain stays, with its state, and starts again when it is asked for.
    registry.handle_roster(&[listed("one")], at(0));
    registry.handle_activation_request(&chat, "y", at(2));
    let out = registry.handle_terminated(&chat, &pid("one:1/a"), Some(snapshot(1)), at(1));
    assert_eq!(spawn(&out).map(|(_, restored)| restored), Some(Some(1)));
}

#[test]
fn a_node_that_leaves_drains() {
    let mut registry = registry();
    let (a, b, c) = (grain("Chat/a"), grain("Chat/b"), grain("Chat/c"));
    let running = activate(&mut registry, &a, "a", at(0));
    let (starting, _) = spawn(&registry.handle_activation_request(&b, "early", at(0))).expect("a spawn");
    let kept = activate(&mut registry, &c, "c", at(0));
    registry.handle_terminated(&c, &kept, Some(snapshot(1)), at(1));
    registry.handle_roster(&[listed("one")], at(0));
    let out = registry.handle_leave(at(0));
    assert_eq!(stops(&out), [("a", StopReason::Leaving)]);
    let nobody = ActivationRefusal::Leaving { grain: b.clone(), successor: None };
    assert_eq!(refusal(&out), Some(&nobody), "who waits is sent away");

    // While it drains others come, and they are named as successors. The kept state goes to whoever is next.
    let out = registry.handle_roster(&[listed("one"), listed("two")], at(0));
    let kept = RelocationRecord { is_leaving: true, ..record(&c, "one", None, 1) };
    assert_eq!(out.commands, [ActivationCommand::Transfer { to: host("two"), record: kept.clone() }]);
    let out = registry.handle_activation_request(&a, "late", at(1));
    let leaving = ActivationRefusal::Leaving { grain: a.clone(), successor: Some(listed("two")) };
    assert_eq!((refusal(&out), out.commands.len()), (Some(&leaving), 0));

    // It is done when the last one is: what was starting is stopped as soon as it runs.
    let out = registry.handle_terminated(&a, &running, Some(snapshot(5)), at(1));
    assert!(matches!(&out.commands[0], ActivationCommand::Transfer { to, .. } if *to == host("two")));
    assert!(!registry.is_drained());
    let out = registry.handle_spawned(&b, starting, pid("one:1/b"), at(2));
    assert_eq!(stops(&out), [("b", StopReason::Leaving)]);
    registry.handle_terminated(&b, &pid("one:1/b"), None, at(1));
    // Nor is it done before the last state has arrived, and the last activation was told.
    assert!(!registry.is_drained());
    let receipt = |grain: &ClusterIdentity, ended: Option<ActorPid>, version| RelocationReceipt {
        grain: grain.clone(),
        by: id("two#1"),
        stopped: ended.into_iter().collect(),
        version,
    };
    registry.handle_receipt(&receipt(&kept.grain, None, Some(1)));
    registry.handle_receipt(&receipt(&a, Some(running), Some(5)));
    registry
        .handle_receipt(&RelocationReceipt { by: id("two#2"), ..receipt(&b, Some(pid("one:1/b")), None) });
    assert!(!registry.is_drained(), "not by anyone else's word");
    let out = registry.handle_receipt(&receipt(&b, Some(pid("one:1/b")), None));
    assert_eq!(out.events.last(), Some(&ActivationEvent::Drained));
    assert!(registry.is_drained());
    assert_eq!(registry.handle_roster(&[listed("two")], at(0)).events, [], "it is told once");
}

#[test]
fn the_heartbeat_learns_how_many_grains_of_each_kind_run() {
    let mut registry = registry();
    let chat = grain("Chat/a");
    let pid = activate(&mut registry, &chat, "a", at(0));
    activate(&mut registry, &grain("Chat/b"), "b", at(0));
    registry.handle_activation_request(&grain("Clock/a"), "x", at(0));
    let counts = |registry: &Registry| registry.counts().map(|(_, count)| count).collect::<Vec<_>>();
    assert_eq!(counts(&registry), [0, 2, 0], "accounts, chats, clocks; one that starts does not run yet");
    registry.handle_terminated(&chat, &pid, None, at(1));
    assert_eq!(counts(&registry), [0, 1, 0]);
}

#[test]
fn a_kind_given_twice_is_refused() {
    let kinds = vec![GrainKindConfig::new("Chat"), GrainKindConfig::new("Chat")];
    let refused = VirtualActorRegistry::<()>::new(host("one"), kinds, config()).map(|_| ());
    assert_eq!(refused, Err(ActivationConfigError::DuplicateKind { kind: "Chat".into() }));
}
