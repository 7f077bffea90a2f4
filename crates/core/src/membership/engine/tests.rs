use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec;

use super::*;
use crate::id::Incarnation;

/// One node: its table and its engine, which starts in agreement with all its peers.
struct Node {
    table: MembershipTable,
    engine: GossipEngine,
}

impl Node {
    fn new(own: &str, peers: &[&str]) -> Self {
        Self::with(own, peers, &MembershipCoordinatorConfig::default())
    }

    fn with(own: &str, peers: &[&str], config: &MembershipCoordinatorConfig) -> Self {
        let table = MembershipTable::new(10_000);
        let engine = GossipEngine::new(Some((id(own), authority(own))), config, 7);
        let mut node = Self { table, engine };
        node.learn(own, NOW);
        for peer in peers {
            node.learn(peer, NOW);
        }
        for peer in peers {
            node.engine.set_peer(&record(peer), &node.table);
            node.ack(peer);
        }
        node.engine.evaluate(&node.table, NOW);
        assert_eq!(node.engine.phase(), GossipPhase::Confirmed);
        node.engine.take_events();
        node
    }

    /// A change that does not concern the peers: a name nobody had heard of.
    fn learn(&mut self, name: &str, now: TimerInstant) {
        self.table.merge(&record(name)).expect("room").expect("news");
        self.engine.note_change(true, now);
    }

    /// `peer` acknowledges everything there is.
    fn ack(&mut self, peer: &str) -> bool {
        self.engine.accept_ack(&id(peer), self.table.version(), &self.table)
    }

    fn round(&mut self, now: TimerInstant) -> Vec<GossipPush> {
        self.engine.round(&self.table, now).0
    }

    fn phase(&mut self, now: TimerInstant) -> GossipPhase {
        self.engine.evaluate(&self.table, now);
        self.engine.phase()
    }

    fn view(&mut self) -> ViewDigest {
        self.engine.view_digest(&self.table)
    }

    /// `peer` shows its view.
    fn compare(&mut self, peer: &str, view: &ViewDigest) -> bool {
        self.engine.compare_view(&id(peer), view, &self.table)
    }

    /// An exchange with `peer` ends without agreement.
    fn differ(&mut self, peer: &str) -> bool {
        let mut view = self.view();
        view.digest ^= 1;
        assert!(!self.compare(peer, &view));
        self.engine.note_mismatch(&id(peer))
    }
}

fn id(name: &str) -> NodeId {
    NodeId::new(name).expect("a node name")
}

fn authority(name: &str) -> Authority {
    Authority::new(&format!("{name}:1")).expect("an authority")
}

fn record(name: &str) -> NodeRecord {
    let member = MemberId::new(id(name), Incarnation::FIRST);
    NodeRecord { status: NodeStatus::Up, ..NodeRecord::joining(member, authority(name)) }
}

fn version(value: u64) -> MembershipVersion {
    MembershipVersion::new(value)
}

fn delta(from: u64, to: u64) -> MembershipDelta {
    MembershipDelta::new(version(from), version(to), vec![]).expect("a range")
}

fn names(push: &GossipPush) -> Vec<&str> {
    push.delta.records().iter().map(|record| record.member.node.as_str()).collect()
}

fn tick(count: u32) -> TimerInstant {
    NOW + MembershipCoordinatorConfig::default().gossip_interval * count
}

const NOW: TimerInstant = TimerInstant::ZERO;

#[test]
fn a_change_is_confirmed_when_every_peer_acknowledged_it() {
    let mut a = Node::new("a", &["b", "c"]);
    a.learn("x", tick(1));
    assert_eq!(a.phase(tick(1)), GossipPhase::Diffusing);
    let current = a.table.version();

    // It goes to both peers, as one dissemination.
    let targets: BTreeSet<_> = a.round(tick(1)).into_iter().map(|push| push.target).collect();
    assert_eq!(targets, BTreeSet::from([authority("b"), authority("c")]));

    // One acknowledgement is not enough; the second one is.
    assert!(a.ack("b"));
    assert_eq!(a.phase(tick(2)), GossipPhase::Diffusing);
    assert!(a.ack("c"));
    assert_eq!(a.phase(tick(3)), GossipPhase::Confirmed);
    let took = tick(3).saturating_since(tick(1));
    let story = [
        GossipEvent::Disseminated { version: current, peers: 2 },
        GossipEvent::Confirmed { version: current, took },
    ];
    assert_eq!(a.engine.take_events(), story);

    // Nothing new happens, nothing is told again.
    a.ack("b");
    a.round(tick(4));
    assert_eq!(a.phase(tick(4)), GossipPhase::Confirmed);
    assert_eq!(a.engine.take_events(), []);
}

#[test]
fn only_the_right_acknowledgement_of_the_right_peer_confirms() {
    let mut a = Node::new("a", &["b", "c"]);
    let older = a.table.version();
    a.learn("x", NOW);
    a.round(NOW);
    let current = a.table.version();

    // Twice from one peer, late from the other, from the future, and from somebody who was never asked.
    a.ack("b");
    a.ack("b");
    assert!(!a.engine.accept_ack(&id("c"), older, &a.table));
    assert!(!a.engine.accept_ack(&id("c"), version(current.get() + 1), &a.table));
    assert!(!a.ack("stranger"));
    assert!(!a.ack("x"));
    assert_eq!(a.phase(tick(1)), GossipPhase::Diffusing);
    assert_eq!(a.engine.acked(&id("c")), Some(older));
    assert_eq!(a.engine.acked(&id("stranger")), None);

    // What b acknowledged was the version before: a further change needs a further acknowledgement.
    a.learn("y", tick(1));
    a.ack("c");
    assert!(!a.engine.accept_ack(&id("b"), current, &a.table));
    assert_eq!(a.phase(tick(1)), GossipPhase::Diffusing);
    a.ack("b");
    assert_eq!(a.phase(tick(1)), GossipPhase::Confirmed);
}

#[test]
fn a_node_without_peers_agrees_with_itself_at_once() {
    let mut a = Node::new("a", &[]);
    a.learn("x", tick(5));
    assert_eq!(a.phase(tick(5)), GossipPhase::Confirmed);
    let confirmed = GossipEvent::Confirmed { version: a.table.version(), took: Duration::ZERO };
    assert_eq!(a.engine.take_events(), [confirmed]);
    assert_eq!(a.round(tick(6)), []);
}

#[test]
fn a_peer_that_goes_or_falls_silent_is_not_waited_for() {
    // Taken out while its acknowledgement is outstanding.
    let mut a = Node::new("a", &["b", "c"]);
    a.learn("x", NOW);
    a.round(NOW);
    a.ack("b");
    assert_eq!(a.phase(NOW), GossipPhase::Diffusing);
    a.engine.remove_peer(&id("c"));
    assert_eq!(a.phase(NOW), GossipPhase::Confirmed);
    assert_eq!(a.engine.peers().map(|(node, _)| node.clone()).collect::<Vec<_>>(), [id("b")]);

    // Suspected while its acknowledgement is outstanding: it still gets the news, but nobody waits for it.
    let mut a = Node::new("a", &["b", "c"]);
    a.learn("x", NOW);
    a.ack("b");
    let suspect = NodeRecord { status: NodeStatus::Suspect, ..record("c") };
    a.engine.set_peer(&suspect, &a.table);
    let before = a.round(NOW);
    assert_eq!(before.len(), 1, "{before:?}");
    assert_eq!(a.phase(NOW), GossipPhase::Confirmed);

    // Heard again, its agreement counts for the next change.
    a.engine.set_peer(&record("c"), &a.table);
    a.learn("y", NOW);
    a.ack("b");
    assert_eq!(a.phase(NOW), GossipPhase::Diffusing);
}

#[test]
fn an_update_of_a_peer_keeps_what_is_known_of_it_and_another_life_does_not() {
    let mut a = Node::new("a", &["b"]);
    let old = a.table.version();
    a.engine.accept_delta(&id("b"), &delta(0, 9), NOW).expect("a first contact");
    a.learn("x", NOW);

    // The same life in another state.
    a.engine.set_peer(&NodeRecord { status: NodeStatus::Suspect, ..record("b") }, &a.table);
    a.engine.set_peer(&record("b"), &a.table);
    assert_eq!((a.engine.acked(&id("b")), a.engine.received(&id("b"))), (Some(old), version(9)));

    // A new life counts its own versions from the beginning, and was let in by somebody who told it everything.
    let reborn = MemberId::new(id("b"), Incarnation::FIRST.next().expect("a second life"));
    a.engine.set_peer(&NodeRecord::joining(reborn, authority("b")), &a.table);
    assert_eq!(a.engine.acked(&id("b")), Some(a.table.version()));
    assert_eq!(a.engine.received(&id("b")), MembershipVersion::ZERO);
    assert_eq!(a.engine.accept_delta(&id("b"), &delta(3, 4), NOW), Ok(()));
}

#[test]
fn a_peer_whose_identity_is_held_elsewhere_is_reached_there() {
    // Two processes claimed one identity and the order of records picked the one at the other address.
    let mut a = Node::new("a", &["b"]);
    a.engine.accept_delta(&id("b"), &delta(0, 9), NOW).expect("a first contact");
    let elsewhere = NodeRecord { authority: authority("elsewhere"), ..record("b") };
    a.engine.set_peer(&elsewhere, &a.table);
    a.learn("x", NOW);
    assert_eq!(a.round(NOW).first().map(|push| push.target.clone()), Some(authority("elsewhere")));
    // What the other process had sent says nothing about this one's versions.
    assert_eq!(a.engine.received(&id("b")), MembershipVersion::ZERO);
}

#[test]
fn a_gap_is_asked_for_and_nothing_of_it_is_taken_as_held() {
    let mut a = Node::new("a", &["b"]);
    // The first contact sets the mark, wherever it begins; overlapping ranges move it forward only.
    assert_eq!(a.engine.accept_delta(&id("b"), &delta(2, 5), NOW), Ok(()));
    assert_eq!(a.engine.accept_delta(&id("b"), &delta(3, 7), NOW), Ok(()));
    assert_eq!(a.engine.accept_delta(&id("b"), &delta(0, 4), NOW), Ok(()));
    assert_eq!(a.engine.received(&id("b")), version(7));
    assert_eq!(a.engine.take_events(), []);

    // Versions 8 and 9 are missing.
    assert_eq!(a.engine.accept_delta(&id("b"), &delta(9, 12), NOW), Err(GossipGap { after: version(7) }));
    assert_eq!(a.engine.received(&id("b")), version(7));
    let requested = GossipEvent::ReconcilingRequested { peer: id("b"), after: version(7) };
    assert_eq!(a.engine.take_events(), [requested]);

    // As long as they are missing the views are known to differ.
    assert_eq!(a.phase(NOW), GossipPhase::Reconciling);
    assert_eq!(a.engine.take_events(), []);

    // The answer closes the gap, and an equal view ends the matter.
    assert_eq!(a.engine.accept_delta(&id("b"), &delta(7, 12), NOW), Ok(()));
    assert_eq!(a.engine.received(&id("b")), version(12));
    let view = a.view();
    assert!(a.compare("b", &view));
    assert_eq!(a.phase(NOW), GossipPhase::Confirmed);

    // Nobody owes us the history of a stranger.
    assert_eq!(a.engine.accept_delta(&id("stranger"), &delta(3, 4), NOW), Ok(()));
    assert_eq!(a.engine.received(&id("stranger")), MembershipVersion::ZERO);
}

#[test]
fn a_change_that_spreads_too_slowly_is_reconciled_and_can_still_be_confirmed() {
    let config = MembershipCoordinatorConfig::default();
    let mut a = Node::new("a", &["b"]);
    let start = tick(3);
    a.learn("x", start);
    // A further change does not give the first one more time.
    a.learn("y", start + config.convergence_timeout / 2);

    let late = start + config.convergence_timeout;
    assert_eq!(a.phase(late.saturating_sub(Duration::from_nanos(1))), GossipPhase::Diffusing);
    assert_eq!(config.convergence_timeout, Duration::from_secs(1));
    assert_eq!(a.engine.take_events(), []);
    assert_eq!(a.phase(late), GossipPhase::Reconciling);
    let version = a.table.version();
    // Told once, however long it lasts.
    a.phase(late + config.gossip_interval / 2);
    let told = GossipEvent::Late { version, waited: config.convergence_timeout };
    assert_eq!(a.engine.take_events(), [told]);
    a.ack("b");
    assert_eq!(a.phase(late + config.gossip_interval), GossipPhase::Confirmed);
    let took = config.convergence_timeout + config.gossip_interval;
    assert_eq!(a.engine.take_events(), [GossipEvent::Confirmed { version, took }]);
    // The next change has its full time again.
    a.learn("z", late + config.gossip_interval);
    assert_eq!(a.phase(late + config.convergence_timeout), GossipPhase::Diffusing);
}

#[test]
fn an_unanswered_push_is_repeated_ever_less_often_and_in_the_end_with_everything() {
    let mut a = Node::new("a", &["b"]);
    let acked = a.table.version();
    a.learn("x", NOW);

    // Asked at every interval, the engine pushes after 1, 2, 4 and then every 8 of them.
    let mut pushed = Vec::new();
    for count in 0..32 {
        let (pushes, silent) = a.engine.round(&a.table, tick(count));
        // An answer that does not come is a sign for the health of this node, once per silence.
        assert_eq!(silent, usize::from(count == 1));
        pushed.extend(pushes.into_iter().map(|push| (count, push.delta.from())));
    }
    let zero = MembershipVersion::ZERO;
    // Three tries with what should be missing; then the assumption about the peer must be wrong.
    assert_eq!(pushed, [(0, acked), (1, acked), (3, acked), (7, zero), (15, zero), (23, zero), (31, zero)]);

    // An answer to what was sent clears the account; the next change is sent alone and at once.
    assert!(a.ack("b"));
    a.learn("y", tick(32));
    let (pushes, silent) = a.engine.round(&a.table, tick(32));
    assert_eq!(silent, 0);
    assert_eq!(pushes.first().map(names), Some(vec!["y"]));
}

#[test]
fn an_answer_to_an_earlier_push_does_not_count_as_the_answer_to_this_one() {
    let mut a = Node::new("a", &["b"]);
    a.learn("x", NOW);
    a.round(NOW);
    let first = a.table.version();
    a.learn("y", tick(1));
    assert_eq!(a.engine.round(&a.table, tick(1)).1, 1);

    // The late answer moves the watermark, but the second push is still open, and the silence the same.
    assert!(!a.engine.accept_ack(&id("b"), first, &a.table));
    assert_eq!(a.engine.acked(&id("b")), Some(first));
    let (pushes, silent) = a.engine.round(&a.table, tick(3));
    assert_eq!(silent, 0);
    assert_eq!(pushes.first().map(names), Some(vec!["y"]));
}

#[test]
fn views_that_keep_differing_are_repaired_with_everything() {
    let mut a = Node::new("a", &["b"]);
    let current = a.table.version();
    let view = a.view();

    // Two fruitless exchanges may be bad luck, and an agreement forgives them.
    assert!(!a.differ("b"));
    assert!(!a.differ("b"));
    assert!(a.compare("b", &view));
    assert_eq!(a.engine.acked(&id("b")), Some(current));

    // Three in a row are not: something is missing that the watermarks do not show.
    assert!(!a.differ("b"));
    assert!(!a.differ("b"));
    assert!(a.differ("b"));
    assert_eq!(a.engine.acked(&id("b")), Some(MembershipVersion::ZERO));
    let pushes = a.round(NOW);
    assert_eq!(pushes.first().map(names), Some(vec!["a", "b"]));

    // And the count begins anew.
    assert!(!a.differ("b"));
    assert!(!a.differ("stranger"));
}

#[test]
fn an_acknowledgement_with_another_view_is_no_agreement() {
    // A new peer is assumed to know what we know, so the first push to it is empty and its answer worth little.
    let mut a = Node::new("a", &["b"]);
    a.learn("c", NOW);
    a.engine.set_peer(&record("c"), &a.table);
    a.ack("b");
    let pushes = a.round(NOW);
    assert_eq!(pushes.first().map(names), Some(vec![]));

    // It acknowledges the empty push and shows a view that lacks something.
    assert!(a.ack("c"));
    assert!(!a.differ("c"));
    assert_eq!(a.phase(NOW), GossipPhase::Diffusing);

    // Equal views are agreement.
    let view = a.view();
    assert!(a.compare("c", &view));
    assert_eq!(a.phase(NOW), GossipPhase::Confirmed);
}

#[test]
fn agreement_spreads_through_others() {
    let all = ["a", "b", "c"];
    let others = |own: &str| all.into_iter().filter(|name| *name != own).collect::<Vec<_>>();
    let [mut a, mut b, mut c] = all.map(|own| Node::new(own, &others(own)));
    for node in [&mut a, &mut b, &mut c] {
        node.learn("x", NOW);
    }

    // C shows its view to b, and b shows its own to a: a has never spoken with c.
    let view = c.view();
    assert!(b.compare("c", &view));
    assert_eq!(b.phase(NOW), GossipPhase::Diffusing);
    let view = b.view();
    assert!(a.compare("b", &view));
    assert_eq!(a.phase(NOW), GossipPhase::Confirmed);
    // So a need not send c what c has, nor b.
    let current = a.table.version();
    assert_eq!([a.engine.acked(&id("b")), a.engine.acked(&id("c"))], [Some(current); 2]);

    // Another change makes all that hearsay worthless.
    a.learn("y", NOW);
    assert!(!a.compare("b", &view));
    a.ack("b");
    assert_eq!(a.phase(NOW), GossipPhase::Diffusing);
    let targets: Vec<_> = a.round(NOW).into_iter().map(|push| push.target).collect();
    assert_eq!(targets, [authority("c")]);
}

#[test]
fn more_than_half_of_the_seeds_confirm_for_all() {
    let seeds = ["a", "b", "c", "d"];
    let config = MembershipCoordinatorConfig {
        confirmation: Confirmation::SeedQuorum(seeds.map(authority).to_vec()),
        ..MembershipCoordinatorConfig::default()
    };
    let mut a = Node::with("a", &["b", "c", "d", "e", "f"], &config);
    a.learn("x", NOW);

    // The node itself is a seed; half is not more than half, and others do not count at all.
    a.ack("b");
    a.ack("e");
    a.ack("f");
    assert_eq!(a.phase(NOW), GossipPhase::Diffusing);
    a.ack("c");
    assert_eq!(a.phase(NOW), GossipPhase::Confirmed);
    // The one that is still missing gets the change all the same: it was never taken for informed.
    let current = a.table.version();
    assert!(a.engine.acked(&id("d")) < Some(current));
    assert_eq!(a.engine.acked(&id("c")), Some(current));
}

#[test]
fn the_only_seed_confirms_alone() {
    let config = MembershipCoordinatorConfig {
        confirmation: Confirmation::SeedQuorum(vec![authority("b")]),
        ..MembershipCoordinatorConfig::default()
    };
    let mut a = Node::with("a", &["b", "c"], &config);
    a.learn("x", NOW);
    a.ack("c");
    assert_eq!(a.phase(NOW), GossipPhase::Diffusing);
    a.ack("b");
    assert_eq!(a.phase(NOW), GossipPhase::Confirmed);
}

#[test]
fn a_contradiction_lasts_until_the_views_are_confirmed_again() {
    let mut a = Node::new("a", &["b", "c"]);
    let (accepted, rejected) = (record("x"), NodeRecord { authority: authority("y"), ..record("x") });
    a.engine.note_conflict(&id("b"), accepted.clone(), rejected.clone(), NOW);
    assert_eq!(a.engine.take_events(), [GossipEvent::ConflictDetected { peer: id("b"), accepted, rejected }]);

    // The one that brought the contradiction holds another view, even if ours did not change by it.
    assert_eq!(a.phase(NOW), GossipPhase::Reconciling);
    assert!(a.engine.has_conflict());
    // Agreement with others settles nothing.
    a.ack("c");
    assert_eq!(a.phase(NOW), GossipPhase::Reconciling);
    assert!(a.engine.has_conflict());

    a.ack("b");
    assert_eq!(a.phase(NOW), GossipPhase::Confirmed);
    assert!(!a.engine.has_conflict());
}

#[test]
fn a_round_never_exceeds_the_fan_out_and_costs_one_message_in_peace() {
    let names: Vec<_> = (0..20).map(|index| format!("n{index}")).collect();
    let peers: Vec<_> = names.iter().map(|name| &**name).collect();
    let mut a = Node::new("a", &peers);
    let fanout = MembershipCoordinatorConfig::default().gossip_fanout;

    // In peace, one comparison with a random peer per round, and over time with all of them.
    let mut met = BTreeSet::new();
    for count in 0..400 {
        let pushes = a.round(tick(count));
        assert_eq!(pushes.len(), 1);
        for push in pushes {
            assert_eq!(push.delta.records(), []);
            let (peer, _) = push.target.as_str().split_once(':').expect("an authority");
            met.insert(id(peer));
            a.ack(peer);
        }
    }
    assert_eq!(met.len(), 20);

    // While a change spreads, up to the fan-out, to different peers, and never to one that is known to have it.
    a.learn("x", tick(400));
    a.ack("n0");
    let mut told = Vec::new();
    for count in 400..407 {
        let pushes = a.round(tick(400));
        assert!(pushes.len() <= fanout, "{} pushes in round {count}", pushes.len());
        told.extend(pushes.into_iter().map(|push| push.target));
    }
    let distinct: BTreeSet<_> = told.iter().cloned().collect();
    assert_eq!((told.len(), distinct.len()), (19, 19));
    assert!(!distinct.contains(&authority("n0")));
    assert!(!distinct.contains(&authority("a")));

    // Last words go to peers that answer, and to no more than asked for.
    let suspect = NodeRecord { status: NodeStatus::Suspect, ..record("n1") };
    a.engine.set_peer(&suspect, &a.table);
    assert_eq!(a.engine.random_peers(4).len(), 4);
    let all: BTreeSet<_> = a.engine.random_peers(100).into_iter().collect();
    assert_eq!((all.len(), all.contains(&id("n1"))), (19, false));
}

#[test]
fn what_was_acknowledged_is_not_sent_again_and_what_was_lost_is() {
    let mut a = Node::new("a", &["b"]);
    a.learn("x", NOW);
    assert_eq!(a.round(NOW).first().map(names), Some(vec!["x"]));
    a.ack("b");

    // The next push carries the next change alone. It is lost.
    a.learn("y", tick(1));
    assert_eq!(a.round(tick(1)).first().map(names), Some(vec!["y"]));
    // So the one after carries it again, together with what came since.
    a.learn("z", tick(2));
    assert_eq!(a.round(tick(2)).first().map(names), Some(vec!["y", "z"]));
    a.ack("b");

    // The mark is the last version that the peer is known to hold.
    assert_eq!(a.engine.acked(&id("b")), Some(a.table.version()));
    assert_eq!(a.engine.acked(&id("stranger")), None);
}

#[test]
fn whoever_was_just_welcomed_owes_the_cluster_nothing() {
    let mut a = Node::new("a", &["b"]);
    a.learn("x", NOW);
    a.learn("y", NOW);
    a.engine.assume_informed(&a.table);
    // The peers are assumed to hold what came from them, so the round only compares views.
    let pushes = a.round(NOW);
    assert_eq!(pushes.first().map(names), Some(vec![]));
    // An assumption is no agreement.
    assert_eq!(a.phase(NOW), GossipPhase::Diffusing);
}
