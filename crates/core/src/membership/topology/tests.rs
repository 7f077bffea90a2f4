use alloc::format;
use alloc::vec;

use super::*;
use crate::HASTE_MAX;
use crate::id::Incarnation;

fn member(name: &str, incarnation: u64) -> Member {
    Member {
        id: MemberId::new(
            NodeId::new(name).expect("a node name"),
            Incarnation::new(incarnation).expect("an incarnation"),
        ),
        authority: Authority::new(&format!("{name}:1")).expect("an authority"),
    }
}

fn members(names: &[&str]) -> Vec<Member> {
    names.iter().map(|name| member(name, 1)).collect()
}

fn update(joined: &[&str], left: &[&str], dead: &[&str], now: &[&str]) -> TopologyUpdate {
    let [joined, left, dead, now] = [joined, left, dead, now].map(members);
    TopologyUpdate::new(joined, left, dead, now, vec![], TimerInstant::ZERO)
}

/// Windows of half a second that are never shorter.
fn patient() -> TopologyWindow {
    TopologyWindow::new(Duration::from_millis(500), None)
}

/// A window that has already told of these members.
fn window(reported: &[&str]) -> TopologyWindow {
    let mut window = patient();
    window.close(members(reported), nobody, vec![], TimerInstant::ZERO);
    window
}

fn close(
    window: &mut TopologyWindow,
    now: Vec<Member>,
    died: impl Fn(&MemberId) -> bool,
) -> Option<ClusterTopology> {
    let update = window.close(now, died, vec![], TimerInstant::ZERO)?;
    update.validate().expect("no contradiction");
    Some(update.topology)
}

fn nobody(_: &MemberId) -> bool {
    false
}

#[test]
fn a_window_runs_from_its_first_change_and_closes_once() {
    let mut window = patient();
    let at = TimerInstant::from_millis;
    assert_eq!(window.closes_at(), None);
    window.open(at(1_000));
    // Later changes ride along; they do not keep the window open.
    window.open(at(1_400));
    assert_eq!(window.closes_at(), Some(at(1_500)));

    let blocked = vec![Authority::new("x:1").expect("an authority")];
    let update = window.close(members(&["a"]), nobody, blocked.clone(), at(1_500)).expect("a change");
    assert_eq!((update.observed_at, update.blocked), (at(1_500), blocked));
    assert_eq!(window.closes_at(), None);
    // The next change opens the next window.
    window.open(at(2_000));
    assert_eq!(window.closes_at(), Some(at(2_500)));
}

#[test]
fn what_cancels_out_within_a_window_is_not_told() {
    // Somebody joined and left again: the set at the end is the set at the beginning.
    assert_eq!(close(&mut window(&["a"]), members(&["a"]), nobody), None);
    // Even the death of one that was never told of is nobody's business.
    assert_eq!(close(&mut window(&["a"]), members(&["a"]), |_| true), None);
    assert_eq!(close(&mut patient(), vec![], nobody), None);
}

#[test]
fn a_restart_within_a_window_is_told_as_the_new_life_only() {
    let mut window = window(&["a", "b"]);
    // The old life died or left before the new one came; observers replace one by the other.
    let restarted = vec![member("a", 1), member("b", 2)];
    let topology = close(&mut window, restarted, |id| id.incarnation.get() == 1).expect("a change");
    assert_eq!(topology.joined, [member("b", 2)]);
    assert_eq!((topology.left, topology.dead), (vec![], vec![]));
}

#[test]
fn a_death_is_told_once_whatever_led_to_it() {
    let mut window = window(&["a", "b", "c"]);
    let died = |id: &MemberId| id.node.as_str() == "b";
    // Suspect, then dead, while another one just left: the death is told as a death, the departure as a departure.
    let topology = close(&mut window, members(&["a"]), died).expect("a change");
    assert_eq!((topology.dead, topology.left), (members(&["b"]), members(&["c"])));
    assert_eq!(topology.joined, []);
    // It stays dead, and nobody is told again.
    assert_eq!(close(&mut window, members(&["a"]), died), None);
}

#[test]
fn several_changes_make_one_update_with_the_whole_set() {
    let mut window = window(&["a", "b", "c"]);
    let now = members(&["a", "d", "e"]);
    let update = window
        .close(now.clone(), |id| id.node.as_str() == "c", vec![], TimerInstant::ZERO)
        .expect("a change");
    let expected = TopologyUpdate::new(
        members(&["d", "e"]),
        members(&["b"]),
        members(&["c"]),
        now,
        vec![],
        TimerInstant::ZERO,
    );
    assert_eq!(update, expected);
    assert_eq!(update.validate(), Ok(()));
}

#[test]
fn a_member_that_moved_is_told_anew() {
    let mut window = window(&["a"]);
    let moved = Member { authority: Authority::new("elsewhere:1").expect("an authority"), ..member("a", 1) };
    let topology = close(&mut window, vec![moved.clone()], nobody).expect("a change");
    assert_eq!(topology.joined, [moved]);
    assert_eq!((topology.left, topology.dead), (vec![], vec![]));
}

#[test]
fn any_history_yields_updates_that_lead_from_one_set_to_the_next() {
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut window = patient();
        // What happens, and what an observer that only sees the updates makes of it.
        let mut present: BTreeMap<NodeId, Member> = BTreeMap::new();
        let mut dead: BTreeSet<MemberId> = BTreeSet::new();
        let mut observed: BTreeMap<NodeId, Member> = BTreeMap::new();
        let mut next_life = 1;
        for step in 0..20 {
            for _ in 0..rng.usize(..6) {
                let name = format!("n{}", rng.u8(..5));
                let newcomer = member(&name, next_life);
                match rng.u8(..3) {
                    0 => {
                        // A join, or the restart of one that is still believed to be there.
                        next_life += 1;
                        present.insert(newcomer.id.node.clone(), newcomer);
                    }
                    1 => {
                        present.remove(&newcomer.id.node);
                    }
                    _ => {
                        dead.extend(present.remove(&newcomer.id.node).map(|gone| gone.id));
                    }
                }
            }
            let now: Vec<_> = present.values().cloned().collect();
            let update = window.close(now.clone(), |id| dead.contains(id), vec![], TimerInstant::ZERO);
            let context = format!("seed {seed}, step {step}: {update:?}");

            let before = observed.clone();
            if let Some(update) = &update {
                assert_eq!(update.validate(), Ok(()), "{context}");
                assert_eq!(update.members, now, "{context}");
                for gone in update.topology.left.iter().chain(&update.topology.dead) {
                    // Whoever goes is named as it was known.
                    assert_eq!(observed.remove(&gone.id.node).as_ref(), Some(gone), "{context}");
                }
                assert!(update.topology.dead.iter().all(|gone| dead.contains(&gone.id)), "{context}");
                assert!(!update.topology.left.iter().any(|gone| dead.contains(&gone.id)), "{context}");
                for new in &update.topology.joined {
                    assert_ne!(
                        observed.insert(new.id.node.clone(), new.clone()).as_ref(),
                        Some(new),
                        "{context}"
                    );
                }
            }
            assert_eq!(observed, present, "{context}");
            assert_eq!(update.is_some(), before != present, "{context}");
        }
    }
}

#[test]
fn each_contradiction_is_refused_with_its_own_reason() {
    let node = |name: &str| member(name, 1).id.node;
    assert_eq!(update(&["a"], &["b"], &["c"], &["a", "d"]).validate(), Ok(()));

    // One node twice in one list.
    let duplicates = [
        ("members", update(&[], &[], &[], &["a", "b", "a"])),
        ("joined", update(&["a", "a"], &[], &[], &["a"])),
        ("left", update(&[], &["a", "a"], &[], &[])),
        ("dead", update(&[], &[], &["a", "a"], &[])),
    ];
    for (set, update) in duplicates {
        assert_eq!(update.validate(), Err(TopologyError::Duplicate { node: node("a"), set }));
    }
    // Two lives of one node are one node twice.
    let lives = vec![member("a", 1), member("a", 2)];
    let twice = TopologyUpdate::new(vec![], vec![], vec![], lives, vec![], TimerInstant::ZERO);
    assert_eq!(twice.validate(), Err(TopologyError::Duplicate { node: node("a"), set: "members" }));

    // One node in two lists.
    let overlaps = [
        ("joined", "left", update(&["a"], &["a"], &[], &["a"])),
        ("joined", "dead", update(&["a"], &[], &["a"], &["a"])),
        ("left", "dead", update(&[], &["a"], &["a"], &[])),
    ];
    for (first, second, update) in overlaps {
        assert_eq!(update.validate(), Err(TopologyError::Overlap { node: node("a"), first, second }));
    }

    // Gone, and there all the same.
    let ghosts = [("left", update(&[], &["a"], &[], &["a"])), ("dead", update(&[], &[], &["a"], &["a"]))];
    for (set, update) in ghosts {
        assert_eq!(update.validate(), Err(TopologyError::DepartedStillMember { node: node("a"), set }));
    }

    // Come, and not there; or there in another life.
    let missing = update(&["a"], &[], &[], &["b"]);
    assert_eq!(missing.validate(), Err(TopologyError::JoinedNotMember { member: member("a", 1).id }));
    let (joined, there) = (vec![member("a", 2)], vec![member("a", 1)]);
    let other_life = TopologyUpdate::new(joined, vec![], vec![], there, vec![], TimerInstant::ZERO);
    assert_eq!(other_life.validate(), Err(TopologyError::JoinedNotMember { member: member("a", 2).id }));
}

#[test]
fn the_hash_tells_sets_apart_and_ignores_everything_else() {
    let hash = |members: Vec<Member>| {
        TopologyUpdate::new(vec![], vec![], vec![], members, vec![], TimerInstant::ZERO).topology.hash
    };
    let base = hash(members(&["a", "b", "c"]));
    // Neither the order nor the way that led here matters: two nodes compare what they see now.
    for order in [["c", "b", "a"], ["b", "a", "c"], ["a", "c", "b"]] {
        assert_eq!(hash(members(&order)), base);
    }
    let by_another_way = TopologyUpdate::new(
        members(&["c"]),
        members(&["x"]),
        vec![],
        members(&["a", "b", "c"]),
        vec![Authority::new("x:1").expect("an authority")],
        TimerInstant::from_millis(7),
    );
    assert_eq!(by_another_way.topology.hash, base);

    // Another life, another address or another name is another set. Names that only look alike when strung together
    // must not collide.
    let moved = Member { authority: Authority::new("z:1").expect("an authority"), ..member("c", 1) };
    let others = [
        vec![],
        members(&["a", "b"]),
        members(&["a", "b", "d"]),
        members(&["ab", "c"]),
        members(&["a", "bc"]),
        vec![member("a", 1), member("b", 1), member("c", 2)],
        vec![member("a", 1), member("b", 1), moved],
    ];
    let hashes: BTreeSet<_> = others.iter().cloned().map(hash).chain([base]).collect();
    assert_eq!(hashes.len(), others.len() + 1);
}

#[test]
fn the_first_windows_after_a_calm_are_short() {
    let (at, eager) = (TimerInstant::from_millis, Duration::from_millis(5));
    let mut window = TopologyWindow::new(Duration::from_millis(500), Some(eager));
    let mut lengths = vec![];
    for calm in [1_000, 10_000] {
        let mut now = at(calm);
        for _ in 0..=HASTE_MAX {
            window.open(now);
            let closes_at = window.closes_at().expect("an open window");
            lengths.push(closes_at.saturating_since(now).as_millis());
            window.close(vec![], nobody, vec![], closes_at);
            now = closes_at;
        }
    }
    let calm = [[5; HASTE_MAX as usize].as_slice(), &[500]].concat();
    assert_eq!(lengths, calm.repeat(2));
    // A window that is short anyway becomes no longer.
    let mut window = TopologyWindow::new(Duration::ZERO, Some(eager));
    window.open(at(1_000));
    assert_eq!(window.closes_at(), Some(at(1_000)));
}
