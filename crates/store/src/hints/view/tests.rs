//! The bounds of what is kept and told, and the ways of a payload, without any network.

use super::*;

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

const FIRST: Life = Life { instance: 1, incarnation: 1 };

/// A view of the node of that name on peers `a` to `f`, itself left out.
fn view(name: &str) -> (View, mpsc::Receiver<Hint>) {
    let others = ["a", "b", "c", "d", "e", "f"].into_iter().filter(|other| *other != name).map(node);
    View::new(node(name), FIRST, "cluster".into(), others)
}

fn take_one(view: &View) -> Option<Bytes> {
    view.take_gossip(1, 1000, 5).into_iter().flatten().next()
}

fn payload(hint: Option<Hint>) -> Bytes {
    match hint {
        Some(Hint::Received { payload, .. }) => payload,
        other => panic!("a payload was expected, not {other:?}"),
    }
}

#[test]
fn who_hears_a_payload_first_passes_it_on_until_it_has_gone_far_enough() {
    let (origin, _) = view("a");
    origin.queue_gossip(origin.seal(b"news"));
    let mut message = take_one(&origin).unwrap();
    for name in ["b", "c", "d", "e"] {
        let (next, mut hints) = view(name);
        next.received(&message);
        assert_eq!(payload(hints.try_recv().ok()), "news");
        match take_one(&next) {
            Some(passed_on) => message = passed_on,
            None => assert_eq!(name, "e", "three pass it on"),
        }
        // Only who got it from its origin has heard the origin.
        assert_eq!(next.last_heard().len(), usize::from(name == "b"));
        // The second time it is no news, wherever it comes from.
        next.received(&message);
        assert_eq!(hints.try_recv(), Err(mpsc::error::TryRecvError::Empty));
        assert_eq!(next.counts.read().repeated_payloads, 1);
    }
    // It comes back to its origin too, which has no use for it.
    origin.received(&message);
    assert_eq!(origin.counts.read().repeated_payloads, 1);
    assert_eq!(origin.counts.read().refused_payloads, 0);
}

#[test]
fn payloads_leave_room_for_up_and_down_when_their_reader_is_slow() {
    let (view_of_b, mut hints) = view("b");
    let (a, _) = view("a");
    for _ in 0..HINTS_MAX {
        view_of_b.received(&a.seal(b"news"));
    }
    assert_eq!(view_of_b.counts.read().dropped_hints, PLACES_KEPT as u64);
    view_of_b.up(node("a"), FIRST);
    view_of_b.down(node("a"));
    let mut told = Vec::new();
    while let Ok(hint) = hints.try_recv() {
        told.push(hint);
    }
    assert_eq!(told.len(), HINTS_MAX - PLACES_KEPT + 2);
    assert_eq!(told.last(), Some(&Hint::Down { node: node("a") }));
}

#[test]
fn payloads_that_nobody_drops_are_bounded_by_their_bytes() {
    let (view_of_b, mut hints) = view("b");
    let (a, _) = view("a");
    let large = vec![0; PAYLOAD_BYTES_MAX];
    let room_for = RECEIVED_BYTES_MAX / PAYLOAD_BYTES_MAX;
    for _ in 0..=room_for {
        view_of_b.received(&a.seal(&large));
    }
    let held: Vec<Hint> = std::iter::from_fn(|| hints.try_recv().ok()).collect();
    assert_eq!(held.len(), room_for);
    assert_eq!(view_of_b.counts.read().dropped_hints, 1);
    // A part of a payload holds all of it.
    let part = payload(held.first().cloned()).slice(..1);
    drop(held);
    for _ in 0..room_for {
        view_of_b.received(&a.seal(&large));
    }
    assert_eq!(view_of_b.counts.read().dropped_hints, 2);
    drop(part);
}

#[test]
fn a_payload_over_the_limit_is_refused() {
    let (view_of_b, mut hints) = view("b");
    let (a, _) = view("a");
    view_of_b.received(&a.seal(&vec![0; PAYLOAD_BYTES_MAX + 1]));
    assert_eq!(view_of_b.counts.read().refused_payloads, 1);
    assert_eq!(hints.try_recv(), Err(mpsc::error::TryRecvError::Empty));
}

#[test]
fn of_two_processes_with_one_name_the_one_that_is_up_is_heard_or_a_later_life() {
    let (view_of_b, mut hints) = view("b");
    let (a, _) = view("a");
    let process_of_a = |instance, incarnation| {
        View::new(node("a"), Life { instance, incarnation }, "cluster".into(), std::iter::empty()).0
    };
    view_of_b.up(node("a"), FIRST);
    assert!(matches!(hints.try_recv(), Ok(Hint::Up { .. })));
    view_of_b.received(&process_of_a(2, 1).seal(b"impostor"));
    view_of_b.received(&process_of_a(3, 2).seal(b"restarted"));
    view_of_b.received(&a.seal(b"known"));
    assert_eq!(payload(hints.try_recv().ok()), "restarted");
    assert_eq!(payload(hints.try_recv().ok()), "known");
    assert_eq!(view_of_b.counts.read().refused_payloads, 1);
    // Of a node that is down anybody may speak: its record may be on the way.
    view_of_b.down(node("a"));
    assert!(matches!(hints.try_recv(), Ok(Hint::Down { .. })));
    view_of_b.received(&process_of_a(2, 1).seal(b"back"));
    assert_eq!(payload(hints.try_recv().ok()), "back");
}
