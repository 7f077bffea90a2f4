//! The question before a start, from both sides, with messages that come in any order or not at all.

use super::*;

/// The registry of `name`, which goes by the roster of `names`, and has for long.
fn node(name: &str, names: &[&str]) -> Registry {
    let kinds = vec![GrainKindConfig::new("Chat"), GrainKindConfig::new("Account")];
    let mut node = VirtualActorRegistry::new(host(name), kinds, config()).expect("sound settings");
    node.handle_roster(&roster(names), at(0));
    node.poll(START);
    node
}

fn roster(names: &[&str]) -> Vec<RosterMember> {
    names.iter().map(|name| listed(name)).collect()
}

/// A chat that belongs to the last of these, among the first one, the first two and so on.
fn path(owners: &[&[&str]], hosts: &[&str]) -> ClusterIdentity {
    let fits = |grain: &ClusterIdentity| {
        owners.iter().zip(hosts).all(|(names, host)| {
            let members = roster(names);
            PlacementHash::Synod.owner(grain, &members).is_some_and(|owner| owner.id == listed(host).id)
        })
    };
    (0..10_000).map(|n| grain(&format!("Chat/{n}"))).find(fits).expect("one of many")
}

fn run(node: &mut Registry, grain: &ClusterIdentity, place: &str, now: TimerInstant) -> ActorPid {
    let (activation, _) = spawn(&node.handle_activation_request(grain, "starter", now)).expect("a spawn");
    node.handle_spawned(grain, activation, pid(place), now);
    pid(place)
}

fn claims(out: &Outcome) -> Vec<(GrainHost, ClaimRecord)> {
    out.commands
        .iter()
        .filter_map(|command| match command {
            ActivationCommand::Claim { to, claim } => Some((to.clone(), claim.clone())),
            _ => None,
        })
        .collect()
}

fn transfers(out: &Outcome) -> Vec<RelocationRecord> {
    out.commands
        .iter()
        .filter_map(|command| match command {
            ActivationCommand::Transfer { record, .. } => Some(record.clone()),
            _ => None,
        })
        .collect()
}

fn is_outdated(out: &Outcome) -> bool {
    matches!(out.commands[..], [ActivationCommand::Outdated { .. }])
}

const START: TimerInstant = at(100_000);
const AB: &[&str] = &["one", "two"];

#[test]
fn a_stable_cluster_asks_nobody() {
    let mut one = node("one", AB);
    let out = one.handle_activation_request(&owned_by("Chat", "one#1"), "x", START);
    assert!(spawn(&out).is_some() && claims(&out).is_empty());
    assert_eq!(one.handover_counts(), HandoverCounts::default());
}

#[test]
fn the_new_owner_waits_until_the_old_one_has_finished_and_goes_on_from_its_state() {
    let chat = path(&[&["one"], AB], &["one", "two"]);
    let mut one = node("one", &["one"]);
    let mut two = node("two", &["two"]);
    let old = run(&mut one, &chat, "one:1/a", START);
    // `two` has heard of the change, `one` has not.
    two.handle_roster(&roster(AB), START);
    let out = two.handle_activation_request(&chat, "x", START);
    let [(to, claim)] = &claims(&out)[..] else { panic!("{out:?}") };
    assert_eq!((to, spawn(&out)), (&host("one"), None));
    let out = one.handle_claim(claim.clone(), START);
    assert_eq!((stops(&out), transfers(&out)), (vec![("a", StopReason::Moved)], vec![]));
    // Meanwhile it starts nothing, though by its own roster it is the owner, and names who is.
    let out = one.handle_activation_request(&chat, "y", START);
    let Some(ActivationRefusal::NotOwner { owner, .. }) = refusal(&out) else { panic!("{out:?}") };
    assert_eq!(owner.id, id("two#1"));
    // The question is asked again, and changes nothing.
    assert_eq!(claims(&two.poll(START + Duration::from_millis(250))).len(), 1);
    assert_eq!(one.handle_claim(claim.clone(), START).commands, []);

    let out = one.handle_terminated(&chat, &old, Some(snapshot(7)), START);
    let [answer] = &transfers(&out)[..] else { panic!("{out:?}") };
    let out = two.handle_relocation(answer.clone(), START);
    assert_eq!(spawn(&out).map(|(_, restored)| restored), Some(Some(7)));
    assert_eq!((out.events, two.handover_counts().claimed), (vec![], 1));
    // The late roster changes nothing either.
    assert_eq!(one.handle_roster(&roster(AB), START).events, []);
    let out = one.handle_activation_request(&chat, "y", START);
    assert!(matches!(refusal(&out), Some(ActivationRefusal::NotOwner { .. })));
}

#[test]
fn whoever_lags_behind_is_told_and_starts_nothing() {
    let abc: &[&str] = &["one", "two", "three"];
    let chat = path(&[&["one"], AB, abc], &["one", "two", "three"]);
    let (mut one, mut two) = (node("one", &["one"]), node("two", &["two"]));
    run(&mut one, &chat, "one:1/a", START);
    for names in [AB, abc] {
        one.handle_roster(&roster(names), START);
    }
    two.handle_roster(&roster(AB), START);
    let out = two.handle_activation_request(&chat, "x", START);
    let [(_, claim)] = &claims(&out)[..] else { panic!("{out:?}") };
    assert!(is_outdated(&one.handle_claim(claim.clone(), START)));
    let asked = ClaimId { claimer: id("two#1"), number: claim.number };
    // An answer to another question, or to an earlier life, is none.
    for other in [ClaimId { number: 99, ..asked.clone() }, ClaimId { claimer: id("two#0"), ..asked.clone() }]
    {
        assert_eq!(two.handle_outdated(&chat, &other, &id("one#1")).replies, []);
    }
    let out = two.handle_outdated(&chat, &asked, &id("one#1"));
    assert!(matches!(refusal(&out), Some(ActivationRefusal::Outdated { .. })), "{out:?}");
    assert!(two.is_empty());
    assert_eq!(two.poll(START + Duration::from_secs(5)).commands, []);
}

#[test]
fn a_chain_of_changes_leads_to_the_one_that_has_the_state() {
    // It ran at `one`, belonged to `two` for a moment, and belongs to `three` now.
    let abc: &[&str] = &["one", "two", "three"];
    let chat = path(&[&["one"], AB, abc], &["one", "two", "three"]);
    let (mut one, mut two, mut three) =
        (node("one", &["one"]), node("two", &["two"]), node("three", &["three"]));
    let old = run(&mut one, &chat, "one:1/a", START);
    two.handle_roster(&roster(AB), START);
    let waiting = claims(&two.handle_activation_request(&chat, "x", START));
    // `three` is new, and takes `two` for the previous owner. That one still waits itself, gives up and names `one`.
    three.handle_roster(&roster(abc), START);
    let out = three.handle_activation_request(&chat, "y", START);
    let [(to, claim)] = &claims(&out)[..] else { panic!("{out:?}") };
    assert_eq!(*to, host("two"));
    // Neither knows the other's roster; of two that wait the first by id goes first.
    two.handle_roster(&roster(abc), START);
    let out = two.handle_claim(claim.clone(), START);
    let [answer] = &transfers(&out)[..] else { panic!("{out:?}") };
    assert!(answer.before.contains(&host("one")) && !answer.is_confirmed(), "{answer:?}");
    let out = three.handle_relocation(answer.clone(), START);
    let [(to, claim)] = &claims(&out)[..] else { panic!("{out:?}") };
    assert_eq!((to, spawn(&out)), (&host("one"), None));
    // `one` has heard both. Whose question it was when it began to stop does not matter.
    one.handle_claim(waiting[0].1.clone(), START);
    one.handle_claim(claim.clone(), START);
    let out = one.handle_terminated(&chat, &old, Some(snapshot(4)), START);
    let [answer] = &transfers(&out)[..] else { panic!("{out:?}") };
    let out = three.handle_relocation(answer.clone(), START);
    assert_eq!(spawn(&out).map(|(_, restored)| restored), Some(Some(4)));
}

#[test]
fn a_state_that_has_moved_on_is_followed() {
    // `one` has just given the state to `two`, and that was confirmed. `three` asked `two` too early.
    let abc: &[&str] = &["one", "two", "three"];
    let chat = path(&[&["one"], AB, abc], &["one", "two", "three"]);
    let (mut one, mut two, mut three) =
        (node("one", &["one"]), node("two", &["two"]), node("three", &["three"]));
    let old = run(&mut one, &chat, "one:1/a", START);
    one.handle_roster(&roster(AB), START);
    let on_its_way = transfers(&one.handle_terminated(&chat, &old, Some(snapshot(4)), START));
    two.handle_roster(&roster(AB), START);
    three.handle_roster(&roster(abc), START);
    let [(_, claim)] = &claims(&three.handle_activation_request(&chat, "y", START))[..] else { panic!() };
    let empty = transfers(&two.handle_claim(claim.clone(), START));
    let out = two.handle_relocation(on_its_way[0].clone(), START);
    let [ActivationCommand::Confirm { receipt, .. }] = &out.commands[..] else { panic!("{out:?}") };
    one.handle_receipt(receipt);
    let out = three.handle_relocation(empty[0].clone(), START);
    let [(_, claim)] = &claims(&out)[..] else { panic!("{out:?}") };
    let answer = transfers(&one.handle_claim(claim.clone(), START));
    assert_eq!(answer[0].went, Some(host("two")));
    let out = three.handle_relocation(answer[0].clone(), START);
    let [(to, claim)] = &claims(&out)[..] else { panic!("{out:?}") };
    assert_eq!((to, spawn(&out)), (&host("two"), None), "it is asked again");
    let answer = transfers(&two.handle_claim(claim.clone(), START));
    let out = three.handle_relocation(answer[0].clone(), START);
    assert_eq!(spawn(&out).map(|(_, restored)| restored), Some(Some(4)));
}

#[test]
fn of_two_that_ask_each_other_one_goes_first() {
    // Who hosts chats is known differently: each has just learned that it does, and the other one does not any more.
    let without = |name| RosterMember { kinds: vec![], ..listed(name) };
    let chat = grain("Chat/a");
    let (mut one, mut two) = (node("one", &["one"]), node("two", &["two"]));
    one.handle_roster(&[without("one"), listed("two")], START);
    one.handle_roster(&[listed("one"), without("two"), without("three")], START);
    two.handle_roster(&[listed("one"), without("two")], START);
    two.handle_roster(&[without("one"), listed("two"), without("four")], START);
    let [(to, to_two)] = &claims(&one.handle_activation_request(&chat, "x", START))[..] else { panic!() };
    assert_eq!(*to, host("two"));
    let [(to, to_one)] = &claims(&two.handle_activation_request(&chat, "y", START))[..] else { panic!() };
    assert_eq!(*to, host("one"));
    assert_eq!(one.handle_claim(to_one.clone(), START).commands, [], "the first by id goes on waiting");
    let out = two.handle_claim(to_two.clone(), START);
    assert!(matches!(refusal(&out), Some(ActivationRefusal::NotOwner { .. })));
    assert_eq!(transfers(&out).len(), 1);
}

#[test]
fn nobody_waits_for_ever_and_who_did_not_answer_is_told() {
    let chat = path(&[&["one"], AB], &["one", "two"]);
    let mut two = node("two", &["two"]);
    two.handle_roster(&roster(AB), START);
    let mut out = two.handle_activation_request(&chat, "x", START);
    let mut asked = 0;
    while spawn(&out).is_none() {
        asked += claims(&out).len();
        out = two.poll(out.wake_at.expect("an alarm"));
    }
    assert_eq!(asked, 8, "every quarter of a second, for two seconds");
    let missed = ActivationEvent::HandoverMissed { grain: chat.clone(), silent: vec![id("one#1")] };
    assert_eq!((out.events, two.handover_counts().missed), (vec![missed], 1));

    // Who goes away is not waited for at all.
    let mut two = node("two", &["two"]);
    two.handle_roster(&roster(AB), START);
    two.handle_activation_request(&chat, "x", START);
    let out = two.handle_roster(&roster(&["two"]), START);
    assert!(spawn(&out).is_some());
    assert!(matches!(out.events[..], [ActivationEvent::HandoverMissed { .. }]));
}

#[test]
fn the_owner_of_a_grain_that_ran_twice_says_so_once() {
    // Cut off from each other both ran it; now they meet.
    let chat = path(&[&["one"], AB], &["one", "two"]);
    let (mut one, mut two) = (node("one", &["one"]), node("two", &["two"]));
    let (theirs, ours) = (run(&mut one, &chat, "one:1/a", START), run(&mut two, &chat, "two:1/a", START));
    one.handle_roster(&roster(AB), START);
    assert_eq!(stops(&two.handle_roster(&roster(AB), START)), [], "the owner keeps its own");
    // It leaves no state behind, and is told all the same.
    let out = one.handle_terminated(&chat, &theirs, None, START);
    let [report] = &transfers(&out)[..] else { panic!("{out:?}") };
    let out = two.handle_relocation(report.clone(), START);
    let duplicate = ActivationEvent::Duplicate { grain: chat.clone(), kept: Some(ours), stopped: theirs };
    assert_eq!(out.events, [duplicate]);
    let [ActivationCommand::Confirm { receipt, .. }] = &out.commands[..] else { panic!("{out:?}") };
    one.handle_receipt(receipt);
    assert_eq!(two.handle_relocation(report.clone(), START).events, [], "it came twice, and is told once");
    assert_eq!(two.handover_counts().duplicates, 1);
    assert_eq!(one.poll(START + Duration::from_secs(60)).commands, []);
}

#[test]
fn who_returns_is_asked_because_it_may_have_run_anything() {
    let abc: &[&str] = &["one", "two", "three"];
    let chat = path(&[AB, abc], &["two", "two"]);
    let mut two = node("two", abc);
    two.handle_roster(&roster(AB), START);
    // `three` was cut off for long, and ran it. By every roster of `two` it was its own all the time.
    let later = START + Duration::from_secs(60);
    two.poll(later);
    two.handle_roster(&roster(abc), later);
    let out = two.handle_activation_request(&chat, "x", later);
    assert_eq!(claims(&out).first().map(|(to, _)| to), Some(&host("three")));
}

#[test]
fn a_roster_that_comes_back_gives_back_what_was_ceded() {
    let chat = path(&[&["one"], AB], &["one", "two"]);
    let (mut one, mut two) = (node("one", &["one"]), node("two", &["two"]));
    two.handle_roster(&roster(AB), START);
    let [(_, claim)] = &claims(&two.handle_activation_request(&chat, "x", START))[..] else { panic!() };
    one.handle_claim(claim.clone(), START);
    assert!(refusal(&one.handle_activation_request(&chat, "y", START)).is_some());
    // `two` came, as `one` hears only now, and went.
    one.handle_roster(&roster(AB), START);
    one.handle_roster(&roster(&["one"]), START);
    assert_eq!(refusal(&one.handle_activation_request(&chat, "y", START)), None);
}

#[test]
fn a_state_on_its_way_out_is_taken_back_when_the_grain_returns() {
    let chat = path(&[&["one"], AB], &["one", "two"]);
    let (mut one, mut two) = (node("one", &["one"]), node("two", &["two"]));
    let old = run(&mut one, &chat, "one:1/a", START);
    one.handle_roster(&roster(AB), START);
    let on_its_way = transfers(&one.handle_terminated(&chat, &old, Some(snapshot(4)), START));
    // It belongs to `one` again, which asks. `two` has nothing yet, and then gets and confirms the state.
    one.handle_roster(&[listed("one"), RosterMember { kinds: vec![], ..listed("two") }], START);
    let [(_, claim)] = &claims(&one.handle_activation_request(&chat, "x", START))[..] else { panic!() };
    two.handle_roster(&roster(AB), START);
    let nothing = transfers(&two.handle_claim(claim.clone(), START));
    let out = two.handle_relocation(on_its_way[0].clone(), START);
    let [ActivationCommand::Confirm { receipt, .. }] = &out.commands[..] else { panic!("{out:?}") };
    // The receipt overtakes the answer.
    one.handle_receipt(receipt);
    let out = one.handle_relocation(nothing[0].clone(), START);
    assert_eq!(spawn(&out).map(|(_, restored)| restored), Some(Some(4)));
}

#[test]
fn who_was_given_a_grain_and_left_is_not_waited_for() {
    let chat = path(&[&["one"], AB], &["one", "two"]);
    let (mut one, mut two) = (node("one", &["one"]), node("two", &["two"]));
    two.handle_roster(&roster(AB), START);
    let [(_, claim)] = &claims(&two.handle_activation_request(&chat, "x", START))[..] else { panic!() };
    one.handle_claim(claim.clone(), START);
    one.handle_roster(&roster(AB), START);
    one.handle_roster(&roster(&["one"]), START);
    // Nor is anybody else sent there.
    let mut three = node("three", &["three"]);
    three.handle_roster(&roster(&["one", "three"]), START);
    let mut asked = (0..100).map(|n| grain(&format!("Chat/{n}"))).flat_map(|other| {
        let out = three.handle_activation_request(&other, "z", START);
        claims(&out)
    });
    let (_, claim) = asked.next().expect("one that may run at the other");
    let claim = ClaimRecord { grain: chat.clone(), ..claim };
    let answer = transfers(&one.handle_claim(claim, START));
    assert_eq!((&answer[0].went, &answer[0].before[..]), (&None, &[][..]));
    one.handle_roster(&roster(&["one", "four"]), START);
    one.handle_roster(&roster(&["one"]), START);
    assert!(
        claims(&one.handle_activation_request(&chat, "y", START)).iter().all(|(to, _)| *to != host("two"))
    );
}

#[test]
fn a_report_to_the_wrong_node_goes_on_to_the_owner() {
    // `one` has run it beside `three`, and takes `two` for the owner.
    let abc: &[&str] = &["one", "two", "three"];
    let chat = path(&[&["one"], AB, abc], &["one", "two", "three"]);
    let (mut one, mut two, mut three) = (node("one", &["one"]), node("two", abc), node("three", abc));
    let theirs = run(&mut one, &chat, "one:1/a", START);
    let ours = run(&mut three, &chat, "three:1/a", START);
    one.handle_roster(&roster(AB), START);
    let report = transfers(&one.handle_terminated(&chat, &theirs, None, START));
    assert_eq!(two.handle_relocation(report[0].clone(), START).events, []);
    let out = two.poll(START + Duration::from_secs(2));
    let [report] = &transfers(&out)[..] else { panic!("{out:?}") };
    let out = three.handle_relocation(report.clone(), START);
    let duplicate = ActivationEvent::Duplicate { grain: chat, kept: Some(ours), stopped: theirs };
    assert_eq!(out.events, [duplicate]);
}

#[test]
fn reports_that_meet_at_the_wrong_node_all_go_on_to_the_owner() {
    let abc: &[&str] = &["one", "two", "three"];
    let abcd: &[&str] = &["one", "two", "three", "four"];
    let chat = path(&[abc, abcd], &["three", "three"]);
    let (mut two, mut three) = (node("two", abc), node("three", abc));
    run(&mut three, &chat, "three:1/a", START);
    let told = |out: &Outcome| -> Vec<ActorPid> {
        let stopped = out.events.iter().filter_map(|event| match event {
            ActivationEvent::Duplicate { stopped, .. } => Some(stopped.clone()),
            _ => None,
        });
        stopped.collect()
    };
    let report = |n: usize| RelocationRecord {
        stopped: vec![pid(&format!("one:1/{n}"))],
        snapshot: None,
        ..record(&chat, "one", None, 0)
    };
    for n in 0..3 {
        two.handle_relocation(report(n), START);
    }
    let out = two.poll(START + Duration::from_secs(2));
    let [reports] = &transfers(&out)[..] else { panic!("{out:?}") };
    let out = three.handle_relocation(reports.clone(), START);
    assert_eq!(told(&out), [0, 1, 2].map(|n| pid(&format!("one:1/{n}"))));
    let [ActivationCommand::Confirm { receipt, .. }] = &out.commands[..] else { panic!("{out:?}") };
    // Another comes before the first ones are confirmed, and goes with them; those are not told again.
    let later = START + Duration::from_secs(4);
    two.handle_relocation(report(3), later);
    let out = two.handle_roster(&roster(abcd), later);
    two.handle_receipt(receipt);
    let [reports] = &transfers(&out)[..] else { panic!("{out:?}") };
    assert_eq!(told(&three.handle_relocation(reports.clone(), later)), [pid("one:1/3")]);
    // There are never more than a few; the latest matter.
    let much_later = START + Duration::from_secs(100);
    for n in 10..30 {
        two.handle_relocation(report(n), much_later);
    }
    let out = two.poll(much_later + Duration::from_secs(2));
    assert_eq!(
        transfers(&out)[0].stopped,
        [22, 23, 24, 25, 26, 27, 28, 29].map(|n| pid(&format!("one:1/{n}")))
    );
}

#[test]
fn who_leaves_takes_nothing_with_it_that_others_give_it() {
    let abc: &[&str] = &["one", "two", "three"];
    let chat = path(&[&["one", "three"]], &["one"]);
    // Its sender leaves, too: it must not be left with it.
    let given = RelocationRecord { is_leaving: true, ..record(&chat, "one", Some("a"), 4) };
    let mut two = node("two", abc);
    // Something of its own keeps it here for a while: it passes on what it is given, to somebody else.
    let own = path(&[abc], &["two"]);
    let running = run(&mut two, &own, "two:1/a", START);
    two.handle_leave(START);
    let out = two.handle_relocation(given.clone(), START);
    let [ActivationCommand::Confirm { .. }, ActivationCommand::Transfer { to, record: passed }] =
        &out.commands[..]
    else {
        panic!("{out:?}")
    };
    assert_eq!((to, &passed.snapshot), (&host("three"), &given.snapshot));
    // It has arrived, and a newcomer asks: it is told where.
    let (by, version) = (id("three#1"), passed.snapshot.as_ref().map(|snapshot| snapshot.version));
    let receipt = RelocationReceipt { grain: chat.clone(), by, stopped: passed.stopped.clone(), version };
    let mut after = two.clone();
    after.handle_receipt(&receipt);
    let claim = ClaimRecord { grain: chat.clone(), from: host("four"), number: 1, roster: 7 };
    let answer = transfers(&after.handle_claim(claim, START));
    assert_eq!(answer[0].went, Some(host("three")));
    two.handle_terminated(&own, &running, None, START);
    assert!(!two.is_drained(), "not before that has arrived");
    // One that is done does not take anything any more, and its sender keeps it.
    let mut gone = node("two", abc);
    gone.handle_leave(START);
    assert!(gone.is_drained());
    assert_eq!(gone.handle_relocation(given, START).commands, []);
}

#[test]
fn a_state_stays_with_its_sender_if_that_comes_after_the_one_who_leaves() {
    let (abc, ac): (&[&str], &[&str]) = (&["one", "two", "three"], &["one", "three"]);
    let chat = path(&[abc, ac], &["two", "one"]);
    let (mut one, mut two) = (node("one", abc), node("two", abc));
    // `two` leaves, but something keeps it for a while. `one` does not know that.
    run(&mut two, &path(&[abc, ac], &["two", "three"]), "two:1/b", START);
    two.handle_leave(START);
    one.handle_relocation(record(&chat, "three", Some("a"), 4), START);
    let out = one.poll(START + Duration::from_secs(2));
    let [misplaced] = &transfers(&out)[..] else { panic!("{out:?}") };
    let out = two.handle_relocation(misplaced.clone(), START);
    assert_eq!(out.commands, [], "nobody would ask `three` for it");
    // As soon as `one` hears of it, the grain goes on from there.
    let later = START + Duration::from_secs(3);
    one.handle_roster(&roster(ac), later);
    let out = one.handle_activation_request(&chat, "x", later);
    assert_eq!(spawn(&out).map(|(_, restored)| restored), Some(Some(4)));
}

#[test]
fn nothing_is_given_to_one_who_said_that_it_leaves() {
    let (abc, ac): (&[&str], &[&str]) = (&["one", "two", "three"], &["one", "three"]);
    let mine = path(&[abc, ac], &["two", "one"]);
    let theirs = path(&[abc, ac], &["two", "three"]);
    let mut one = node("one", abc);
    for chat in [&mine, &theirs] {
        let given = RelocationRecord { is_leaving: true, ..record(chat, "two", Some("a"), 4) };
        one.handle_relocation(given, START);
    }
    // By the roster both belong to `two`. One waits here until that has changed, the other goes to whoever is next.
    let out = one.poll(START + Duration::from_secs(2));
    let [ActivationCommand::Transfer { to, record }] = &out.commands[..] else { panic!("{out:?}") };
    assert_eq!((to, &record.grain), (&host("three"), &theirs));
    assert!(refusal(&one.handle_activation_request(&mine, "x", START)).is_some());
    one.handle_roster(&roster(ac), START);
    let out = one.handle_activation_request(&mine, "x", START);
    assert_eq!(spawn(&out).map(|(_, restored)| restored), Some(Some(4)));
}

#[test]
fn who_begins_to_leave_says_so_with_what_it_sends_again() {
    let chat = path(&[&["one"], AB], &["one", "two"]);
    let mut one = node("one", &["one"]);
    let old = run(&mut one, &chat, "one:1/a", START);
    one.handle_roster(&roster(AB), START);
    let sent = transfers(&one.handle_terminated(&chat, &old, Some(snapshot(4)), START));
    one.handle_leave(START);
    let again = transfers(&one.poll(START + Duration::from_millis(500)));
    assert!(!sent[0].is_leaving);
    assert_eq!(again, [RelocationRecord { is_leaving: true, ..sent[0].clone() }]);
}

#[test]
fn a_state_that_is_given_back_to_one_who_leaves_stays_with_its_sender() {
    let chat = path(&[AB], &["one"]);
    let (mut one, three) = (node("one", &["one", "two", "three"]), host("three"));
    let running = run(&mut one, &path(&[&["one", "two", "three"]], &["one"]), "one:1/b", START);
    one.handle_relocation(record(&chat, "four", None, 4), START);
    let out = one.handle_leave(START);
    let given: Vec<_> = transfers(&out).into_iter().filter(|record| record.grain == chat).collect();
    assert_eq!((given.len(), running.id()), (1, "b"));
    // It comes back at once from whoever has it, for a question that was asked before.
    let back = RelocationRecord { from: three, ..given[0].clone() };
    assert_eq!(one.handle_relocation(back, START).commands, [], "not confirmed: it would be lost");
}

#[test]
fn a_report_to_one_who_dies_goes_to_the_next_owner() {
    let abc: &[&str] = &["one", "two", "three"];
    let chat = path(&[&["one", "two"], abc], &["two", "three"]);
    let (mut one, mut two) = (node("one", &["one"]), node("two", AB));
    let theirs = run(&mut one, &chat, "one:1/a", START);
    let ours = run(&mut two, &chat, "two:1/a", START);
    one.handle_roster(&roster(abc), START);
    one.handle_terminated(&chat, &theirs, None, START);
    let out = one.handle_roster(&roster(AB), START);
    let [report] = &transfers(&out)[..] else { panic!("{out:?}") };
    let duplicate = ActivationEvent::Duplicate { grain: chat, kept: Some(ours), stopped: theirs };
    assert_eq!(two.handle_relocation(report.clone(), START).events, [duplicate]);
}

#[test]
fn when_the_one_that_was_asked_leaves_its_heir_is_asked() {
    // `two` is new and asks `one`, which has just left everything to `three` and goes.
    let abc: &[&str] = &["one", "two", "three"];
    let chat = path(&[&["one", "three"], abc], &["one", "two"]);
    let mut two = node("two", &["two"]);
    two.handle_roster(&roster(abc), START);
    let out = two.handle_activation_request(&chat, "x", START);
    assert_eq!(claims(&out).iter().map(|(to, _)| to.clone()).collect::<Vec<_>>(), [host("one")]);
    let out = two.handle_roster(&roster(&["two", "three"]), START);
    assert_eq!(claims(&out).iter().map(|(to, _)| to.clone()).collect::<Vec<_>>(), [host("three")]);
    let (_, claim) = &claims(&out)[0];
    let claim = Some(ClaimId { claimer: id("two#1"), number: claim.number });
    let answer = RelocationRecord { claim, ..record(&chat, "three", None, 8) };
    let out = two.handle_relocation(answer, START);
    assert_eq!(spawn(&out).map(|(_, restored)| restored), Some(Some(8)));
}

#[test]
fn what_is_given_back_may_start_again_though_the_roster_has_not_changed() {
    // `two` comes, takes the grain, and leaves again before `one` has heard of it.
    let chat = path(&[&["one"], AB], &["one", "two"]);
    let (mut one, mut two) = (node("one", &["one"]), node("two", &["two"]));
    two.handle_roster(&roster(AB), START);
    let [(_, claim)] = &claims(&two.handle_activation_request(&chat, "x", START))[..] else { panic!() };
    one.handle_claim(claim.clone(), START);
    assert!(refusal(&one.handle_activation_request(&chat, "y", START)).is_some());
    one.handle_relocation(record(&chat, "two", Some("a"), 3), START);
    let out = one.handle_activation_request(&chat, "y", START);
    assert_eq!((refusal(&out), claims(&out).len()), (None, 1), "it asks, in case that was an old word");
    let silent = one.poll(START + Duration::from_secs(2));
    assert_eq!(spawn(&silent).map(|(_, restored)| restored), Some(Some(3)));
}

#[test]
fn a_go_node_is_never_asked() {
    let go = |name| RosterMember { runtime: PeerRuntime::Protoactor, ..listed(name) };
    let chat = path(&[&["one"], AB], &["one", "two"]);
    let mut two = node("two", &["two"]);
    two.handle_roster(&[go("one"), listed("two")], START);
    let out = two.handle_activation_request(&chat, "x", START);
    assert!(spawn(&out).is_some() && claims(&out).is_empty());
}

#[test]
fn a_roster_that_takes_the_grain_away_ends_the_wait() {
    let abc: &[&str] = &["one", "two", "three"];
    let chat = path(&[&["one"], AB, abc], &["one", "two", "three"]);
    let mut two = node("two", &["two"]);
    two.handle_roster(&roster(AB), START);
    two.handle_activation_request(&chat, "x", START);
    let out = two.handle_roster(&roster(abc), START);
    assert!(matches!(refusal(&out), Some(ActivationRefusal::NotOwner { .. })));
    assert!(two.is_empty());
    two.handle_leave(START);
    assert!(two.is_drained());
}
