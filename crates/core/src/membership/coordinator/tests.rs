//! The coordinator through its public inputs: what it decides, what it refuses, and what it never does.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use core::time::Duration;

use super::*;
use crate::HASTE_MAX;
use crate::membership::{
    GossipBody, GossipSender, KeepMajority, MembershipDelta, MembershipVersion, Refutation, RejoinReason,
    TopologyUpdate, ViewDigest,
};

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const EAGER: Duration = Duration::from_millis(5);

/// What is new is told after [`EAGER`], everything else every `gossip_interval`.
fn eager(gossip_interval: Duration) -> MembershipCoordinatorConfig {
    MembershipCoordinatorConfig {
        eager_delay: Some(EAGER),
        gossip_interval,
        ..MembershipCoordinatorConfig::default()
    }
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("a valid name")
}

fn life(name: &str, incarnation: u64) -> MemberId {
    MemberId::new(node(name), Incarnation::new(incarnation).expect("a valid incarnation"))
}

fn address(name: &str) -> Authority {
    Authority::new(&format!("{name}.test:1")).expect("a valid address")
}

fn record(name: &str, incarnation: u64, status: NodeStatus) -> NodeRecord {
    NodeRecord {
        member: life(name, incarnation),
        authority: address(name),
        status,
        refutation: Refutation::default(),
    }
}

fn push(sender: NodeRecord, from: u64, to: u64, records: Vec<NodeRecord>) -> GossipMessage {
    let (from, to) = (MembershipVersion::new(from), MembershipVersion::new(to));
    let delta = MembershipDelta::new(from, to, records).expect("a well-formed delta");
    let view = ViewDigest { version: to, digest: 1, seen: vec![] };
    GossipMessage { sender: GossipSender::Member(sender), body: GossipBody::Push { delta, view } }
}

/// A coordinator, its clock, and everything it ever said.
struct Subject {
    coordinator: MembershipCoordinator,
    now: TimerInstant,
    events: Vec<ClusterEvent>,
    sent: Vec<GossipOutbound>,
    quarantine: Vec<QuarantineEvent>,
    persisted: Vec<Incarnation>,
    wake_at: TimerInstant,
}

impl Subject {
    fn new(config: MembershipCoordinatorConfig) -> Self {
        let coordinator =
            MembershipCoordinator::new(node("self"), address("self"), config).expect("valid settings");
        Self {
            coordinator,
            now: TimerInstant::from_millis(1_000),
            events: vec![],
            sent: vec![],
            quarantine: vec![],
            persisted: vec![],
            wake_at: TimerInstant::ZERO,
        }
    }

    /// A member without seeds: a cluster of one.
    fn alone(config: MembershipCoordinatorConfig) -> Self {
        let mut subject = Self::new(config);
        subject.ok(|c, now| c.start_member(Incarnation::FIRST, 7, now));
        subject
    }

    fn member() -> Self {
        Self::alone(MembershipCoordinatorConfig::default())
    }

    /// A member that is told everything by a provider. It sends nothing, so no missing answer troubles its health.
    fn without_gossip() -> Self {
        Self::alone(MembershipCoordinatorConfig {
            gossip_enabled: false,
            ..MembershipCoordinatorConfig::default()
        })
    }

    fn call(
        &mut self,
        input: impl FnOnce(&mut MembershipCoordinator, TimerInstant) -> Outcome,
    ) -> Result<(), MembershipCoordinatorError> {
        let result = input(&mut self.coordinator, self.now);
        let outcome = match &result {
            Ok(outcome) => outcome.clone(),
            Err(MembershipCoordinatorError::Membership { outcome, .. }) => (**outcome).clone(),
            Err(_) => return result.map(|_| ()),
        };
        self.persisted.extend(outcome.persist);
        self.quarantine.extend(outcome.quarantine_events);
        self.events.extend(outcome.member_events);
        self.events.extend(outcome.topology_event);
        self.sent.extend(outcome.gossip_outbound);
        self.wake_at = outcome.wake_at.unwrap_or(self.wake_at);
        result.map(|_| ())
    }

    fn ok(&mut self, input: impl FnOnce(&mut MembershipCoordinator, TimerInstant) -> Outcome) {
        self.call(input).expect("an accepted input");
    }

    fn refused(
        &mut self,
        input: impl FnOnce(&mut MembershipCoordinator, TimerInstant) -> Outcome,
    ) -> MembershipError {
        match self.call(input) {
            Err(MembershipCoordinatorError::Membership { error, .. }) => error,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    fn join(&mut self, name: &str) {
        self.ok(|c, now| c.handle_join(&life(name, 1), &address(name), now));
    }

    fn join_up(&mut self, name: &str) {
        self.join(name);
        self.beat(name);
    }

    fn beat(&mut self, name: &str) {
        let member = self.record(name).member.clone();
        self.ok(|c, now| c.handle_heartbeat(&member, now));
    }

    fn hear(&mut self, message: GossipMessage) {
        self.ok(|c, now| c.handle_gossip(message, now));
    }

    /// Lets time pass, polling exactly when asked to, as a driver does.
    fn pass(&mut self, time: Duration) {
        self.pass_with(time, |_| {});
    }

    /// Lets time pass with a heartbeat of each of these every half second.
    fn pass_with_beats(&mut self, time: Duration, names: &[&str]) {
        let until = self.now + time;
        while self.now < until {
            names.iter().for_each(|name| self.beat(name));
            self.pass(Duration::from_millis(500));
        }
    }

    fn pass_with(&mut self, time: Duration, mut after_each: impl FnMut(&mut Self)) {
        let until = self.now + time;
        while self.wake_at <= until {
            self.now = self.wake_at.max(self.now);
            self.ok(MembershipCoordinator::poll);
            after_each(self);
        }
        self.now = until;
    }

    fn record(&self, name: &str) -> &NodeRecord {
        self.coordinator.record(&node(name)).expect("a known node")
    }

    fn status(&self, name: &str) -> NodeStatus {
        self.record(name).status
    }

    fn active(&self) -> Vec<String> {
        self.coordinator.active_members().into_iter().map(|member| member.id.to_string()).collect()
    }

    /// The changes of state reported so far, as "name#life: from -> to".
    fn changes(&self) -> Vec<String> {
        let change = |event: &ClusterEvent| match event {
            ClusterEvent::MemberStatusChanged { member, from, to, .. } => {
                let from = from.map_or_else(|| "none".to_string(), |from| from.to_string());
                Some(format!("{member}: {from} -> {to}"))
            }
            _ => None,
        };
        self.events.iter().filter_map(change).collect()
    }

    fn updates(&self) -> Vec<&TopologyUpdate> {
        let updates = self.events.iter().filter_map(|event| match event {
            ClusterEvent::TopologyUpdated { update } => Some(update),
            _ => None,
        });
        updates.collect()
    }

    fn count(&self, wanted: impl Fn(&ClusterEvent) -> bool) -> usize {
        self.events.iter().filter(|event| wanted(event)).count()
    }

    /// Where the pushes so far went, in order of the addresses.
    fn pushed_to(&self) -> Vec<String> {
        let pushes = self.sent.iter().filter(|sent| matches!(sent.message.body, GossipBody::Push { .. }));
        let mut targets: Vec<_> = pushes.map(|sent| sent.target.to_string()).collect();
        targets.sort();
        targets
    }

    fn forget_the_past(&mut self) {
        self.events.clear();
        self.sent.clear();
        self.quarantine.clear();
    }
}

/// Coordinators that hear each other at once; for the protocol itself, without a hostile network.
struct Group {
    subjects: BTreeMap<Authority, Subject>,
}

impl Group {
    fn new(names: &[&str], config: &MembershipCoordinatorConfig) -> Self {
        let seeds: Vec<_> = names.iter().take(1).map(|name| address(name)).collect();
        let start = |name: &&str| {
            let config = MembershipCoordinatorConfig { seeds: seeds.clone(), ..config.clone() };
            let mut subject = Subject::new(MembershipCoordinatorConfig::default());
            subject.coordinator =
                MembershipCoordinator::new(node(name), address(name), config).expect("valid settings");
            subject.ok(|c, now| c.start_member(Incarnation::FIRST, name.len() as u64, now));
            (address(name), subject)
        };
        Self { subjects: names.iter().map(start).collect() }
    }

    fn get(&mut self, name: &str) -> &mut Subject {
        self.subjects.get_mut(&address(name)).expect("a node of the group")
    }

    /// Lets time pass in small steps and delivers everything that is said.
    fn pass(&mut self, time: Duration) {
        let step = Duration::from_millis(20);
        for _ in 0..time.as_millis() / step.as_millis() {
            for subject in self.subjects.values_mut() {
                subject.pass(step);
            }
            self.deliver();
        }
    }

    fn deliver(&mut self) {
        for _ in 0..50 {
            let mail: Vec<_> =
                self.subjects.values_mut().flat_map(|s| core::mem::take(&mut s.sent)).collect();
            if mail.is_empty() {
                return;
            }
            for outbound in mail {
                if let Some(subject) = self.subjects.get_mut(&outbound.target) {
                    // A refusal is an answer, too; whether there is one is what tests look at.
                    drop(subject.call(|c, now| c.handle_gossip(outbound.message, now)));
                }
            }
        }
        panic!("a conversation without end");
    }
}

// --- starting, stopping, modes -------------------------------------------------------------------------------------

#[test]
fn a_stopped_coordinator_refuses_every_input_and_changes_nothing() {
    let mut subject = Subject::new(MembershipCoordinatorConfig::default());
    let calls: Vec<fn(&mut MembershipCoordinator, TimerInstant) -> Outcome> = vec![
        |c, now| c.handle_join(&life("a", 1), &address("a"), now),
        |c, now| c.handle_leave(&node("a"), now),
        |c, now| c.handle_down(&node("a"), now),
        |c, now| c.handle_heartbeat(&life("a", 1), now),
        |c, now| c.handle_gossip(push(record("a", 1, NodeStatus::Up), 0, 1, vec![]), now),
        |c, now| c.handle_quarantine(&address("a"), QuarantineReason::Requested("test".into()), now),
        |c, now| c.handle_release(&address("a"), now),
        MembershipCoordinator::poll,
        MembershipCoordinator::stop,
    ];
    // Before the first start and after a stop alike.
    for round in 0..2 {
        for call in &calls {
            assert_eq!(subject.call(call), Err(MembershipCoordinatorError::NotStarted), "round {round}");
        }
        assert_eq!(subject.coordinator.state(), MembershipCoordinatorState::Stopped);
        assert_eq!(subject.coordinator.snapshot(), MembershipSnapshot::default());
        assert!(subject.coordinator.quarantine_snapshot().is_empty());
        assert_eq!(subject.coordinator.own(), None);
        if round == 0 {
            subject.ok(|c, now| c.start_member(Incarnation::FIRST, 7, now));
            subject.join("a");
            subject.ok(MembershipCoordinator::stop);
        }
    }
}

#[test]
fn a_start_brings_the_member_up_and_a_stop_frees_everything() {
    let mut subject = Subject::member();
    assert_eq!(subject.coordinator.state(), MembershipCoordinatorState::Member);
    assert_eq!(subject.status("self"), NodeStatus::Up);
    assert_eq!(subject.changes(), ["self#1: none -> joining", "self#1: joining -> up"]);
    // A second start would silently drop what the first one holds.
    let again = subject.call(|c, now| c.start_member(Incarnation::FIRST, 7, now));
    let running = MembershipCoordinatorState::Member;
    assert_eq!(again, Err(MembershipCoordinatorError::InvalidState { state: running }));
    assert_eq!(subject.call(|c, now| c.start_client(7, now)), again);
    subject.join("a");
    subject.ok(MembershipCoordinator::stop);
    assert!(subject.coordinator.detector().is_none());
    // The next start is a new life and knows nobody.
    subject.ok(|c, now| c.start_member(Incarnation::new(2).expect("two"), 7, now));
    assert_eq!(subject.active(), ["self#2"]);
}

#[test]
fn a_client_observes_but_is_no_way_into_the_cluster() {
    let mut subject = Subject::new(MembershipCoordinatorConfig {
        seeds: vec![address("seed")],
        ..MembershipCoordinatorConfig::default()
    });
    subject.ok(|c, now| c.start_client(7, now));
    let refused = Err(MembershipCoordinatorError::InvalidState { state: MembershipCoordinatorState::Client });
    assert_eq!(subject.call(|c, now| c.handle_join(&life("a", 1), &address("a"), now)), refused);
    assert_eq!(subject.call(|c, now| c.handle_leave(&node("a"), now)), refused);
    assert_eq!(subject.call(|c, now| c.handle_down(&node("a"), now)), refused);
    // It asks the seed for the table and never presents itself as a member.
    subject.pass(SECOND);
    assert!(!subject.sent.is_empty());
    for outbound in &subject.sent {
        assert_eq!(outbound.target, address("seed"));
        assert!(matches!(outbound.message.sender, GossipSender::Client(_)));
        assert!(matches!(outbound.message.body, GossipBody::Pull { .. }));
    }
    // What it is told it believes, gossip, heartbeats and quarantine included.
    let seed = record("seed", 1, NodeStatus::Up);
    subject.hear(push(seed.clone(), 0, 2, vec![seed, record("a", 1, NodeStatus::Joining)]));
    assert_eq!(subject.active(), ["a#1", "seed#1"]);
    subject.beat("a");
    assert_eq!(subject.status("a"), NodeStatus::Up);
    subject.ok(|c, now| c.handle_quarantine(&address("a"), QuarantineReason::Requested("test".into()), now));
    assert_eq!(subject.active(), ["seed#1"]);
    assert_eq!(subject.coordinator.snapshot().records.len(), 2);
    assert_eq!(subject.coordinator.quarantine_snapshot().len(), 1);
    // It accuses nobody, however long the silence.
    subject.pass(60 * SECOND);
    assert_eq!(subject.status("seed"), NodeStatus::Up);
}

#[test]
fn a_member_answers_the_questions_of_a_client_and_nothing_else() {
    let mut subject = Subject::member();
    let ask = |body| GossipMessage { sender: GossipSender::Client(address("client")), body };
    subject.hear(ask(GossipBody::Pull { after: MembershipVersion::ZERO }));
    let answer = subject.sent.pop().expect("an answer");
    assert_eq!(answer.target, address("client"));
    assert!(matches!(answer.message.body, GossipBody::Push { delta, .. } if delta.records().len() == 1));
    let error = subject.refused(|c, now| c.handle_gossip(ask(GossipBody::Join), now));
    assert_eq!(error, MembershipError::NotAMember { authority: address("client") });
    assert_eq!(subject.active(), ["self#1"]);
}

// --- the life of a member ------------------------------------------------------------------------------------------

#[test]
fn a_member_joins_and_comes_up_with_events_that_carry_the_time() {
    let mut subject = Subject::member();
    subject.forget_the_past();
    subject.now = subject.now + Duration::from_millis(5);
    subject.join("a");
    assert_eq!(subject.status("a"), NodeStatus::Joining);
    subject.beat("a");
    assert_eq!(subject.status("a"), NodeStatus::Up);
    assert_eq!(subject.changes(), ["a#1: none -> joining", "a#1: joining -> up"]);
    assert!(subject.events.iter().all(|event| event.observed_at() == subject.now));
    // Further signs of life change nothing.
    subject.beat("a");
    assert_eq!(subject.changes().len(), 2);
}

#[test]
fn silence_leads_to_suspicion_death_quarantine_removal_and_oblivion() {
    let config = MembershipCoordinatorConfig {
        tombstone_retention: Duration::from_secs(120),
        gossip_enabled: false,
        ..MembershipCoordinatorConfig::default()
    };
    let mut subject = Subject::alone(config);
    subject.join_up("a");
    subject.join_up("b");
    subject.pass_with_beats(10 * SECOND, &["a", "b"]);
    subject.forget_the_past();
    subject.pass_with_beats(6 * SECOND, &["b"]);
    assert_eq!(subject.changes(), ["a#1: up -> suspect"]);
    assert_eq!(subject.active(), ["a#1", "b#1", "self#1"], "suspects are still members");
    assert!(subject.quarantine.is_empty(), "suspicion alone quarantines nobody");
    subject.pass_with_beats(5 * SECOND, &["b"]);
    assert_eq!(subject.changes()[1], "a#1: suspect -> dead");
    assert_eq!(subject.active(), ["b#1", "self#1"]);
    let reason = QuarantineReason::Dead(life("a", 1));
    assert_eq!(
        subject.quarantine[0],
        QuarantineEvent::Quarantined { authority: address("a"), reason: reason.clone() }
    );
    assert_eq!(
        subject.count(|e| matches!(e, ClusterEvent::MemberQuarantined { reason: r, .. } if *r == reason)),
        1
    );
    subject.pass_with_beats(60 * SECOND, &["b"]);
    assert_eq!(subject.changes()[2], "a#1: dead -> removed");
    assert_eq!(subject.quarantine.last(), Some(&QuarantineEvent::Cleared { authority: address("a") }));
    subject.pass_with_beats(130 * SECOND, &["b"]);
    assert_eq!(subject.coordinator.record(&node("a")), None, "tombstones do not pile up");
    assert_eq!(subject.changes().len(), 3);
}

#[test]
fn a_suspect_that_is_heard_again_is_up_and_its_record_outranks_the_suspicion() {
    let mut subject = Subject::member();
    subject.join_up("a");
    subject.join_up("b");
    // Nobody answers this node's gossip, so it is patient.
    subject.pass_with_beats(15 * SECOND, &["b"]);
    assert_eq!(subject.status("a"), NodeStatus::Suspect);
    let suspicion = subject.record("a").clone();
    subject.beat("a");
    assert_eq!(subject.status("a"), NodeStatus::Up);
    assert!(subject.record("a").supersedes(&suspicion));
    // The suspicion comes back as an echo and has no effect.
    let b = record("b", 1, NodeStatus::Up);
    subject.hear(push(b, 0, 1, vec![suspicion]));
    assert_eq!(subject.status("a"), NodeStatus::Up);
}

#[test]
fn a_member_that_never_came_up_is_suspected_as_what_it_was() {
    let mut subject = Subject::without_gossip();
    subject.join("a");
    subject.forget_the_past();
    subject.pass(8 * SECOND);
    assert_eq!(subject.changes(), ["a#1: joining -> suspect"]);
    // A suspect that knocks again is neither refused nor cleared by that.
    subject.join("a");
    assert_eq!(subject.status("a"), NodeStatus::Suspect);
}

#[test]
fn a_peers_word_alone_does_not_clear_a_suspicion() {
    let mut subject = Subject::member();
    let b = record("b", 1, NodeStatus::Up);
    subject.hear(push(b.clone(), 0, 2, vec![b.clone(), record("a", 1, NodeStatus::Suspect)]));
    // The peer has not heard of the suspicion yet; what it says is older.
    subject.hear(push(b.clone(), 2, 3, vec![record("a", 1, NodeStatus::Up)]));
    assert_eq!(subject.status("a"), NodeStatus::Suspect);
    // A refutation is newer.
    let refuted = NodeRecord { refutation: Refutation(1), ..record("a", 1, NodeStatus::Up) };
    subject.hear(push(b, 3, 4, vec![refuted]));
    assert_eq!(subject.status("a"), NodeStatus::Up);
}

#[test]
fn a_record_that_does_not_fit_does_not_cost_the_others() {
    let config = MembershipCoordinatorConfig { members_max: 3, ..MembershipCoordinatorConfig::default() };
    let mut subject = Subject::alone(config);
    subject.join("z");
    let b = record("b", 1, NodeStatus::Up);
    let news = vec![b.clone(), record("c", 1, NodeStatus::Up), record("z", 1, NodeStatus::Up)];
    subject.hear(push(b, 0, 3, news));
    assert_eq!(subject.active(), ["b#1", "self#1", "z#1"]);
    assert_eq!(subject.status("z"), NodeStatus::Up, "what stands behind the refused record is taken");
    let full = |event: &ClusterEvent| {
        matches!(
            event,
            ClusterEvent::Membership {
                event: MembershipEvent::Refused(MembershipError::TableFull { .. }),
                ..
            }
        )
    };
    assert_eq!(subject.count(full), 1);
}

#[test]
fn a_decision_from_outside_kills_at_once() {
    let mut subject = Subject::member();
    subject.join_up("a");
    subject.forget_the_past();
    subject.ok(|c, now| c.handle_down(&node("a"), now));
    assert_eq!(subject.changes(), ["a#1: up -> suspect", "a#1: suspect -> dead"]);
    assert_eq!(subject.active(), ["self#1"]);
    // Not oneself, not strangers, not the leaving.
    let own = subject.refused(|c, now| c.handle_down(&node("self"), now));
    assert_eq!(own, MembershipError::NotOneself { node: node("self") });
    let stranger = subject.refused(|c, now| c.handle_down(&node("x"), now));
    assert_eq!(stranger, MembershipError::UnknownNode { node: node("x") });
    subject.join_up("b");
    subject.ok(|c, now| c.handle_leave(&node("b"), now));
    let leaving = subject.refused(|c, now| c.handle_down(&node("b"), now));
    assert!(matches!(leaving, MembershipError::InvalidTransition { from: NodeStatus::Leaving, .. }));
    assert_eq!(subject.status("b"), NodeStatus::Leaving, "a refused input changes nothing");
}

#[test]
fn an_illegal_step_is_refused_and_the_reason_is_told() {
    let mut subject = Subject::without_gossip();
    subject.join_up("a");
    subject.join_up("b");
    subject.pass_with_beats(7 * SECOND, &["b"]);
    let before = subject.coordinator.snapshot();
    subject.forget_the_past();
    let error = subject.refused(|c, now| c.handle_leave(&node("a"), now));
    let (from, to) = (NodeStatus::Suspect, NodeStatus::Leaving);
    assert_eq!(error, MembershipError::InvalidTransition { member: life("a", 1), from, to });
    assert_eq!(subject.coordinator.snapshot(), before);
    let told = ClusterEvent::Membership { event: MembershipEvent::Refused(error), observed_at: subject.now };
    assert_eq!(subject.events, [told]);
}

#[test]
fn a_member_that_left_is_never_suspected_afterwards() {
    // Regression: the detector went on watching, its verdict on a removed member failed, and the failure ended the loop.
    let mut subject = Subject::member();
    subject.join_up("a");
    subject.join_up("b");
    subject.ok(|c, now| c.handle_leave(&node("a"), now));
    subject.pass_with_beats(30 * SECOND, &["b"]);
    assert_eq!(subject.status("a"), NodeStatus::Removed);
    assert!(subject.changes().iter().all(|change| !change.contains("suspect")), "{:?}", subject.changes());
    assert_eq!(subject.count(|event| matches!(event, ClusterEvent::Membership { .. })), 0);
    assert_eq!(subject.coordinator.detector().map(PhiFailureDetector::watched), Some(1));
}

#[test]
fn several_things_due_at_once_all_happen() {
    // Regression: one failing member in a poll discarded everything gathered before it.
    let mut subject = Subject::member();
    for name in ["a", "b", "c"] {
        subject.join_up(name);
    }
    subject.pass_with_beats(5 * SECOND, &["a", "b", "c"]);
    subject.ok(|c, now| c.handle_quarantine(&address("x"), QuarantineReason::Requested("test".into()), now));
    subject.ok(|c, now| c.handle_leave(&node("c"), now));
    subject.forget_the_past();
    subject.pass_with_beats(100 * SECOND, &[]);
    let changes = subject.changes();
    for expected in ["a#1: suspect -> dead", "b#1: suspect -> dead", "c#1: leaving -> removed"] {
        assert!(changes.iter().any(|change| change == expected), "{expected} in {changes:?}");
    }
    assert!(subject.quarantine.contains(&QuarantineEvent::Cleared { authority: address("x") }));
}

#[test]
fn a_later_life_replaces_the_earlier_one_at_once() {
    let mut subject = Subject::member();
    subject.join_up("a");
    subject.forget_the_past();
    subject.ok(|c, now| c.handle_join(&life("a", 2), &address("a"), now));
    assert_eq!(subject.changes(), ["a#1: up -> removed", "a#2: none -> joining"]);
    assert_eq!(subject.active(), ["a#2", "self#1"]);
    // The earlier life cannot come back, neither by itself nor through others.
    let error = subject.refused(|c, now| c.handle_join(&life("a", 1), &address("a"), now));
    assert!(matches!(error, MembershipError::StaleIncarnation { .. }));
    let error = subject.refused(|c, now| c.handle_heartbeat(&life("a", 1), now));
    assert!(matches!(error, MembershipError::StaleIncarnation { .. }));
    assert_eq!(subject.active(), ["a#2", "self#1"]);
}

#[test]
fn a_dead_life_never_returns_but_its_name_and_its_address_do() {
    // Regression: a restarted process with another id was refused its own address for ever.
    let mut subject = Subject::member();
    subject.join_up("a");
    subject.ok(|c, now| c.handle_down(&node("a"), now));
    // During the quarantine the dead life is refused because of it, afterwards because it is dead.
    let error = subject.refused(|c, now| c.handle_join(&life("a", 1), &address("a"), now));
    assert!(matches!(error, MembershipError::Quarantined { .. }));
    let error = subject.refused(|c, now| c.handle_heartbeat(&life("a", 1), now));
    assert!(matches!(error, MembershipError::DeadIncarnation { .. }));
    // Another name at the same address is somebody else and is let in at once.
    subject.ok(|c, now| c.handle_join(&life("b", 1), &address("a"), now));
    assert_eq!(subject.active(), ["b#1", "self#1"]);
    subject.ok(|c, now| c.handle_down(&node("b"), now));
    // So is a later life of the first name.
    subject.ok(|c, now| c.handle_join(&life("a", 2), &address("a"), now));
    assert_eq!(subject.active(), ["a#2", "self#1"]);
    subject.pass_with_beats(40 * SECOND, &["a"]);
    let error = subject.refused(|c, now| c.handle_join(&life("b", 1), &address("b"), now));
    assert!(matches!(error, MembershipError::DeadIncarnation { .. }));
}

#[test]
fn an_address_belongs_to_one_live_member() {
    let mut subject = Subject::member();
    subject.join_up("a");
    subject.forget_the_past();
    let error = subject.refused(|c, now| c.handle_join(&life("b", 1), &address("a"), now));
    let (held_by, requested_by) = (life("a", 1), life("b", 1));
    assert_eq!(error, MembershipError::AuthorityConflict { authority: address("a"), held_by, requested_by });
    assert_eq!(subject.active(), ["a#1", "self#1"]);
    let told = ClusterEvent::Membership { event: MembershipEvent::Refused(error), observed_at: subject.now };
    assert_eq!(subject.events, [told], "collisions are told");
}

// --- quarantine ----------------------------------------------------------------------------------------------------

#[test]
fn a_quarantined_member_is_inactive_until_the_quarantine_ends() {
    // Regression: a quarantine by the transport left the member in the active set.
    let mut subject = Subject::member();
    subject.join_up("a");
    subject.pass_with_beats(SECOND, &["a"]);
    subject.forget_the_past();
    let reason = QuarantineReason::InvalidAssociation("wrong uid".into());
    subject.ok(|c, now| c.handle_quarantine(&address("a"), reason.clone(), now));
    assert_eq!(subject.active(), ["self#1"]);
    subject.pass(SECOND);
    let update = subject.updates()[0];
    assert_eq!(update.topology.left.len(), 1);
    assert_eq!(update.blocked, [address("a")]);
    // Gossip that praises it changes nothing about that.
    let b = record("b", 1, NodeStatus::Up);
    let praised = NodeRecord { refutation: Refutation(5), ..record("a", 1, NodeStatus::Up) };
    subject.hear(push(b.clone(), 0, 1, vec![b, praised]));
    assert_eq!(subject.active(), ["b#1", "self#1"]);
    // Nothing is sent to it, and nothing it says is heard.
    subject.sent.clear();
    subject.pass(10 * SECOND);
    assert!(subject.sent.iter().all(|outbound| outbound.target != address("a")));
    let error = subject.refused(|c, now| c.handle_heartbeat(&life("a", 1), now));
    assert_eq!(error, MembershipError::Quarantined { authority: address("a"), reason });
    // When it ends the member is active again, and that is told.
    subject.forget_the_past();
    subject.pass_with(25 * SECOND, |s| {
        if s.coordinator.record(&node("b")).is_some_and(|r| r.status.is_active()) {
            s.beat("b");
        }
    });
    assert_eq!(subject.quarantine, [QuarantineEvent::Cleared { authority: address("a") }]);
    assert!(subject.active().contains(&"a#1".to_string()));
    assert!(
        subject.updates().iter().any(|update| update.topology.joined.iter().any(|m| m.id == life("a", 1)))
    );
}

#[test]
fn a_join_during_quarantine_is_refused_told_why_and_observed() {
    let mut subject = Subject::member();
    let reason = QuarantineReason::Requested("misbehaves".into());
    subject.ok(|c, now| c.handle_quarantine(&address("a"), reason.clone(), now));
    subject.forget_the_past();
    let error = subject.refused(|c, now| c.handle_join(&life("a", 1), &address("a"), now));
    assert_eq!(error, MembershipError::Quarantined { authority: address("a"), reason: reason.clone() });
    assert_eq!(error.to_string(), "a.test:1 is quarantined (requested: misbehaves); nothing was changed");
    let told = |event: &ClusterEvent| matches!(event, ClusterEvent::MemberQuarantined { reason: r, .. } if *r == reason);
    assert_eq!(subject.count(told), 1);
    // The same by message: the joiner gets the reason.
    let join = GossipMessage {
        sender: GossipSender::Member(record("a", 1, NodeStatus::Joining)),
        body: GossipBody::Join,
    };
    subject.refused(|c, now| c.handle_gossip(join.clone(), now));
    let answer = subject.sent.pop().expect("an answer");
    assert!(matches!(answer.message.body, GossipBody::Refused(refusal) if refusal.reason == error));
    // Released by hand, or when its time is over, it may join.
    subject.ok(|c, now| c.handle_release(&address("a"), now));
    subject.hear(join);
    assert_eq!(subject.active(), ["a#1", "self#1"]);
    let reason = QuarantineReason::Requested("again".into());
    subject.ok(|c, now| c.handle_quarantine(&address("b"), reason, now));
    assert_eq!(subject.coordinator.quarantine_snapshot().len(), 1);
    subject.pass_with_beats(31 * SECOND, &["a"]);
    assert!(subject.coordinator.quarantine_snapshot().is_empty());
    subject.join("b");
}

#[test]
fn a_quarantine_that_makes_room_for_another_is_told_to_have_ended() {
    let config = MembershipCoordinatorConfig { members_max: 2, ..MembershipCoordinatorConfig::default() };
    let mut subject = Subject::alone(config);
    for name in ["x", "y", "z"] {
        let reason = QuarantineReason::Requested("test".into());
        subject.ok(|c, now| c.handle_quarantine(&address(name), reason, now));
        subject.now = subject.now + Duration::from_millis(1);
    }
    assert_eq!(subject.coordinator.quarantine_snapshot().len(), 2);
    assert!(subject.quarantine.contains(&QuarantineEvent::Cleared { authority: address("x") }));
}

#[test]
fn a_node_is_never_quarantined_by_itself() {
    let mut subject = Subject::member();
    let reason = QuarantineReason::Requested("a mistake".into());
    let error = subject.refused(|c, now| c.handle_quarantine(&address("self"), reason, now));
    assert_eq!(error, MembershipError::NotOneself { node: node("self") });
    assert!(subject.coordinator.quarantine_snapshot().is_empty());
}

// --- topology ------------------------------------------------------------------------------------------------------

#[test]
fn changes_of_one_window_make_one_update_and_no_change_makes_none() {
    let mut subject = Subject::alone(MembershipCoordinatorConfig {
        eager_delay: None,
        ..MembershipCoordinatorConfig::default()
    });
    subject.pass(SECOND);
    assert_eq!(subject.updates().len(), 1, "the node itself");
    subject.join_up("a");
    subject.join_up("b");
    subject.forget_the_past();
    let opened = subject.now;
    subject.pass(Duration::from_millis(499));
    assert!(subject.updates().is_empty(), "not before the window closes");
    subject.pass(Duration::from_millis(1));
    let update = subject.updates()[0].clone();
    assert_eq!(update.observed_at, opened + Duration::from_millis(500));
    assert_eq!(update.topology.joined.len(), 2);
    assert_eq!(update.members.len(), 3);
    assert_eq!(update.validate(), Ok(()));
    subject.pass_with_beats(3 * SECOND, &["a", "b"]);
    assert_eq!(subject.updates().len(), 1, "nothing changed since");
}

#[test]
fn contrary_changes_of_one_window_cancel_out() {
    // Regression: a member that joined and left in one window was in both lists, and the update was rejected.
    let mut subject = Subject::member();
    subject.join_up("stays");
    subject.pass_with_beats(SECOND, &["stays"]);
    subject.forget_the_past();
    subject.join_up("a");
    subject.ok(|c, now| c.handle_leave(&node("a"), now));
    subject.pass_with_beats(2 * SECOND, &["stays"]);
    assert!(subject.updates().is_empty(), "{:?}", subject.updates());
    // A restart within a window is a join of the new life, nothing else.
    subject.ok(|c, now| c.handle_down(&node("stays"), now));
    subject.ok(|c, now| c.handle_join(&life("stays", 2), &address("stays"), now));
    subject.pass_with_beats(SECOND, &["stays"]);
    let update = subject.updates()[0];
    assert_eq!(update.validate(), Ok(()));
    assert_eq!(update.topology.joined.iter().map(|m| m.id.to_string()).collect::<Vec<_>>(), ["stays#2"]);
    assert!(update.topology.left.is_empty() && update.topology.dead.is_empty());
    // Suspected and dead within a window: dead, once.
    subject.forget_the_past();
    subject.ok(|c, now| c.handle_down(&node("stays"), now));
    subject.pass(SECOND);
    let update = subject.updates()[0];
    assert_eq!(update.validate(), Ok(()));
    assert_eq!(update.topology.dead.len(), 1);
    assert!(update.topology.left.is_empty());
}

#[test]
fn the_first_changes_after_a_calm_are_told_soon_and_a_storm_is_gathered() {
    let mut subject = Subject::alone(eager(SECOND));
    subject.pass(SECOND);
    subject.forget_the_past();
    let changed = subject.now;
    subject.join_up("a");
    subject.pass(2 * MILLISECOND);
    subject.join_up("b");
    subject.pass(3 * MILLISECOND);
    let update = subject.updates()[0].clone();
    assert_eq!(update.observed_at, changed + EAGER);
    assert_eq!((update.topology.joined.len(), update.members.len()), (2, 3), "what came along is in it");
    assert_eq!(subject.updates().len(), 1);

    subject.forget_the_past();
    for storm in 0..1_000 {
        subject.join(&format!("m{storm}"));
        subject.pass(MILLISECOND);
    }
    // Two windows of half a second, and the one that was open.
    let told = subject.updates().len();
    assert!(told <= 3 * (HASTE_MAX as usize + 1), "{told} updates");
    assert!(subject.updates().iter().all(|update| update.validate().is_ok()));
    subject.pass(SECOND);
    assert_eq!(subject.updates().last().expect("an update").members.len(), 1_003, "nothing is lost");
}

#[test]
fn one_that_leaves_in_order_is_listed_until_the_window_closes() {
    let mut subject = Subject::alone(eager(SECOND));
    subject.join_up("a");
    subject.pass(SECOND);
    subject.forget_the_past();
    subject.ok(|c, now| c.handle_leave(&node("a"), now));
    subject.pass(Duration::from_millis(499));
    assert!(subject.updates().is_empty(), "{:?}", subject.updates());
    subject.pass(MILLISECOND);
    assert_eq!(subject.updates()[0].topology.left.len(), 1);
}

// --- gossip --------------------------------------------------------------------------------------------------------

#[test]
fn what_is_new_is_pushed_ahead_of_the_round_to_all_who_lack_it() {
    // By a provider's word.
    let mut subject = Subject::alone(eager(100 * SECOND));
    subject.pass(10 * SECOND);
    subject.join_up("a");
    subject.pass(2 * MILLISECOND);
    subject.join_up("b");
    subject.pass(2 * MILLISECOND);
    assert_eq!(subject.pushed_to(), Vec::<String>::new(), "too soon: more may come along");
    subject.pass(MILLISECOND);
    assert_eq!(subject.pushed_to(), ["a.test:1", "b.test:1"]);

    // By a peer's word: it goes on to whoever is not known to have it.
    subject.forget_the_past();
    subject.hear(push(record("a", 1, NodeStatus::Up), 0, 3, vec![record("c", 1, NodeStatus::Up)]));
    subject.forget_the_past();
    subject.pass(EAGER);
    assert!(subject.pushed_to().contains(&"c.test:1".to_string()), "{:?}", subject.pushed_to());

    // In a calm nothing hurries.
    subject.forget_the_past();
    subject.pass(200 * MILLISECOND);
    assert_eq!(subject.pushed_to(), Vec::<String>::new());
}

#[test]
fn whoever_has_yet_to_answer_is_told_the_rest_once_it_has() {
    let mut subject = Subject::alone(eager(100 * SECOND));
    subject.pass(10 * SECOND);
    subject.join_up("a");
    subject.pass(EAGER);
    let version = subject.sent.iter().rev().find_map(|sent| match &sent.message.body {
        GossipBody::Push { delta, .. } => Some(delta.to()),
        _ => None,
    });
    let version = version.expect("a push");
    subject.join_up("b");
    subject.forget_the_past();
    subject.pass(EAGER);
    assert_eq!(subject.pushed_to(), ["b.test:1"], "a has not answered yet");
    let view = ViewDigest { version: MembershipVersion::new(1), digest: 1, seen: vec![] };
    let body = GossipBody::Ack { version, view, delta: None };
    subject.hear(GossipMessage { sender: GossipSender::Member(record("a", 1, NodeStatus::Up)), body });
    subject.forget_the_past();
    subject.pass(EAGER);
    assert_eq!(subject.pushed_to(), ["a.test:1"]);
}

#[test]
fn a_storm_of_changes_makes_a_bounded_number_of_rounds() {
    let interval = 200 * MILLISECOND;
    let mut subject = Subject::alone(eager(interval));
    let (mut rounds, intervals) = (0, 10);
    for storm in 0..intervals * interval.as_millis() {
        subject.join(&format!("m{storm}"));
        subject.forget_the_past();
        subject.pass(MILLISECOND);
        rounds += usize::from(!subject.pushed_to().is_empty());
    }
    let (eager, all) =
        (HASTE_MAX as usize * intervals as usize, (HASTE_MAX as usize + 1) * intervals as usize);
    // One interval may have begun before the storm.
    assert!((eager..=all + HASTE_MAX as usize + 1).contains(&rounds), "{rounds} rounds");
}

#[test]
fn without_an_eager_delay_changes_wait_for_the_round() {
    let config = MembershipCoordinatorConfig { eager_delay: None, ..eager(10 * SECOND) };
    let mut subject = Subject::alone(config);
    subject.join_up("a");
    subject.pass(100 * MILLISECOND);
    assert_eq!(subject.pushed_to(), Vec::<String>::new());
    subject.pass(10 * SECOND);
    assert!(subject.pushed_to().contains(&"a.test:1".to_string()));
}

#[test]
fn a_client_has_nothing_to_hurry_for() {
    let mut client = Subject::new(eager(100 * SECOND));
    client.ok(|c, now| c.start_client(7, now));
    client.hear(push(record("a", 1, NodeStatus::Up), 0, 1, vec![record("b", 1, NodeStatus::Up)]));
    client.forget_the_past();
    client.pass(SECOND);
    assert!(client.sent.is_empty(), "{:?}", client.sent);
}

#[test]
fn a_node_that_joins_is_known_to_all_within_milliseconds() {
    for eager_delay in [Some(EAGER), None] {
        let config = MembershipCoordinatorConfig { eager_delay, ..eager(10 * SECOND) };
        let mut group = Group::new(&["a", "b", "c", "d", "e"], &config);
        for _ in 0..20 {
            group.subjects.values_mut().for_each(|subject| subject.pass(MILLISECOND));
            group.deliver();
        }
        let agreed = group.subjects.values().all(|subject| subject.active().len() == 5);
        assert_eq!(agreed, eager_delay.is_some(), "{eager_delay:?}");
    }
}

#[test]
fn two_members_exchange_their_changes() {
    let mut group = Group::new(&["a", "b"], &MembershipCoordinatorConfig::default());
    group.pass(SECOND);
    group.get("a").join_up("x");
    group.get("b").join_up("y");
    group.pass(2 * SECOND);
    let (a, b) = (group.get("a").coordinator.view_digest(), group.get("b").coordinator.view_digest());
    assert_eq!(a, b);
    assert_eq!(group.get("a").active(), ["a#1", "b#1", "x#1", "y#1"]);
}

#[test]
fn news_from_a_peer_are_told_like_ones_own() {
    let mut subject = Subject::member();
    let b = record("b", 1, NodeStatus::Up);
    subject.forget_the_past();
    subject.hear(push(b.clone(), 0, 2, vec![b, record("c", 4, NodeStatus::Suspect)]));
    assert_eq!(subject.changes(), ["b#1: none -> up", "c#4: none -> suspect"]);
    // A suspicion learnt from a peer runs out here, too, even if nobody speaks of it any more.
    subject.pass_with_beats(60 * SECOND, &["b"]);
    assert!(subject.changes().contains(&"c#4: suspect -> dead".to_string()), "{:?}", subject.changes());
}

#[test]
fn stale_news_of_a_death_harm_nobody() {
    // Regression: a dead record in a delta quarantined the member even when the record itself was ignored.
    let mut subject = Subject::member();
    let b = record("b", 1, NodeStatus::Up);
    subject.ok(|c, now| c.handle_join(&life("a", 2), &address("a"), now));
    subject.beat("a");
    subject.forget_the_past();
    subject.hear(push(b.clone(), 0, 2, vec![b, record("a", 1, NodeStatus::Dead)]));
    assert_eq!(subject.active(), ["a#2", "b#1", "self#1"]);
    assert!(subject.quarantine.is_empty());
    assert_eq!(subject.changes(), ["b#1: none -> up"]);
}

#[test]
fn a_delta_with_a_gap_is_not_applied_but_asked_for() {
    let mut subject = Subject::member();
    let b = record("b", 1, NodeStatus::Up);
    subject.hear(push(b.clone(), 0, 3, vec![b.clone()]));
    subject.forget_the_past();
    // Changes 4 and 5 never arrived.
    subject.hear(push(b.clone(), 5, 6, vec![record("c", 1, NodeStatus::Up)]));
    assert_eq!(subject.active(), ["b#1", "self#1"]);
    assert_eq!(subject.coordinator.phase(), Some(GossipPhase::Reconciling));
    let answer = subject.sent.pop().expect("an answer");
    assert_eq!(answer.message.body, GossipBody::Pull { after: MembershipVersion::new(3) });
    // The missing range arrives and everything is as it should be.
    subject.hear(push(b, 3, 6, vec![record("c", 1, NodeStatus::Up)]));
    assert_eq!(subject.active(), ["b#1", "c#1", "self#1"]);
}

#[test]
fn a_peer_with_the_same_view_has_left_nothing_out() {
    let mut group = Group::new(&["a", "b"], &MembershipCoordinatorConfig::default());
    group.pass(3 * SECOND);
    let digest = group.get("a").coordinator.view_digest();
    let b = group.get("a").record("b").clone();
    // What b changed reached a through others, so the range looks torn; the digest proves that nothing is missing.
    let subject = group.get("a");
    subject.forget_the_past();
    let mut torn = push(b, 90, 91, vec![]);
    if let GossipBody::Push { view, .. } = &mut torn.body {
        view.digest = digest;
    }
    subject.hear(torn);
    assert!(subject.sent.iter().all(|sent| !matches!(sent.message.body, GossipBody::Pull { .. })));
    assert_eq!(subject.coordinator.phase(), Some(GossipPhase::Confirmed));
}

#[test]
fn while_views_contradict_each_other_changes_from_outside_wait() {
    let mut group = Group::new(&["a", "b", "c"], &MembershipCoordinatorConfig::default());
    group.pass(2 * SECOND);
    // Two processes claim to be x#1.
    let (c, elsewhere) = (group.get("a").record("c").clone(), address("elsewhere"));
    let x = record("x", 1, NodeStatus::Up);
    let impostor = NodeRecord { authority: elsewhere, ..x.clone() };
    let a = group.get("a");
    a.hear(push(c.clone(), 0, 90, vec![x]));
    a.hear(push(c, 90, 91, vec![impostor.clone()]));
    let conflict = |event: &ClusterEvent| {
        matches!(
            event,
            ClusterEvent::Gossip { event: crate::membership::GossipEvent::ConflictDetected { .. }, .. }
        )
    };
    assert_eq!(a.count(conflict), 1);
    let error = a.refused(|c, now| c.handle_join(&life("y", 1), &address("y"), now));
    assert_eq!(error, MembershipError::UnresolvedConflict);
    assert_eq!(a.refused(|c, now| c.handle_leave(&node("b"), now)), MembershipError::UnresolvedConflict);
    // Once all hold the same record again, changes are welcome.
    group.pass(120 * SECOND);
    assert_eq!(group.get("a").coordinator.phase(), Some(GossipPhase::Confirmed));
    group.get("a").join("y");
}

#[test]
fn without_gossip_nothing_is_sent_and_nothing_is_heard() {
    let mut subject = Subject::alone(MembershipCoordinatorConfig {
        gossip_enabled: false,
        seeds: vec![address("seed")],
        ..MembershipCoordinatorConfig::default()
    });
    assert_eq!(subject.status("self"), NodeStatus::Up, "there is no way to ask for admission");
    subject.join_up("a");
    subject.join_up("b");
    subject.pass_with_beats(10 * SECOND, &["a"]);
    assert!(subject.sent.is_empty());
    let b = record("b", 1, NodeStatus::Up);
    let error = subject.refused(|c, now| c.handle_gossip(push(b, 0, 1, vec![]), now));
    assert_eq!(error, MembershipError::GossipDisabled);
    // Failure detection works on the provider's heartbeats alone.
    subject.pass_with_beats(60 * SECOND, &["a"]);
    assert!(subject.status("b") >= NodeStatus::Dead);
    assert_eq!(subject.status("a"), NodeStatus::Up);
}

#[test]
fn heartbeats_go_to_the_watchers_and_only_new_ones_count() {
    let mut group = Group::new(&["a", "b"], &MembershipCoordinatorConfig::default());
    group.pass(2 * SECOND);
    let b = group.get("a").record("b").clone();
    let a = group.get("a");
    let phi = |subject: &Subject| {
        let detector = subject.coordinator.detector().expect("a running coordinator");
        detector.phi(&node("b"), subject.now)
    };
    let beat = |sequence| GossipMessage {
        sender: GossipSender::Member(b.clone()),
        body: GossipBody::Heartbeat { sequence },
    };
    a.hear(beat(1_000));
    a.pass(3 * SECOND);
    let silence = phi(a);
    a.hear(beat(1_000));
    assert!(phi(a) >= silence, "a doubled heartbeat is no sign of life");
    a.hear(beat(1_001));
    assert!(phi(a) < silence);
}

#[test]
fn a_heartbeat_does_not_begin_a_watch() {
    // Regression: a heartbeat under way while the ring moved on began a watch that nobody fed, and a healthy member was
    // suspected some seconds later.
    let config =
        MembershipCoordinatorConfig { heartbeat_monitors: 1, ..MembershipCoordinatorConfig::default() };
    let mut subject = Subject::alone(config);
    for name in ["a", "b", "c", "d"] {
        subject.join_up(name);
    }
    assert_eq!(subject.coordinator.detector().map(PhiFailureDetector::watched), Some(1));
}

// --- oneself -------------------------------------------------------------------------------------------------------

#[test]
fn a_node_that_is_suspected_refutes_and_stays_the_same_life() {
    let mut subject = Subject::member();
    let b = record("b", 1, NodeStatus::Up);
    let accused = NodeRecord { refutation: Refutation(3), ..record("self", 1, NodeStatus::Suspect) };
    subject.forget_the_past();
    subject.hear(push(b.clone(), 0, 1, vec![accused.clone()]));
    assert_eq!(subject.status("self"), NodeStatus::Up);
    assert_eq!(subject.record("self").refutation, Refutation(4));
    assert!(subject.record("self").supersedes(&accused));
    assert_eq!(subject.coordinator.own(), Some(&life("self", 1)));
    assert_eq!(subject.coordinator.health_score(), 1, "being suspected is a sign of bad health");
    // The answer carries the refutation, so the accuser learns it at once.
    let answer = subject.sent.pop().expect("an answer");
    let GossipBody::Ack { delta: Some(delta), .. } = answer.message.body else { panic!("no refutation") };
    assert!(delta.records().contains(subject.record("self")));
}

#[test]
fn a_node_that_was_declared_dead_begins_a_new_life() {
    let mut subject = Subject::member();
    let b = record("b", 1, NodeStatus::Up);
    subject.hear(push(b.clone(), 0, 1, vec![b.clone()]));
    subject.ok(|c, now| c.handle_down(&node("b"), now));
    subject.ok(|c, now| c.handle_join(&life("b", 2), &address("b"), now));
    subject.forget_the_past();
    let b = record("b", 2, NodeStatus::Up);
    subject.hear(push(b.clone(), 0, 1, vec![record("self", 1, NodeStatus::Dead)]));
    let next = Incarnation::new(2).expect("two");
    assert_eq!(subject.persisted, [next], "the new life is stored before anything is sent");
    assert_eq!(subject.coordinator.own(), Some(&life("self", 2)));
    assert_eq!(subject.status("self"), NodeStatus::Joining);
    let rejoining = ClusterEvent::SelfRejoining {
        previous: life("self", 1),
        current: life("self", 2),
        reason: RejoinReason::DeclaredDead,
        observed_at: subject.now,
    };
    assert!(subject.events.contains(&rejoining));
    // It asks the one that brought the verdict, and is up when it is welcome.
    subject.pass(SECOND);
    assert!(subject.sent.iter().any(|s| s.target == b.authority && s.message.body == GossipBody::Join));
    let mut welcome = push(b.clone(), 0, 2, vec![b, record("self", 2, NodeStatus::Joining)]);
    if let GossipBody::Push { delta, view } = welcome.body {
        welcome.body = GossipBody::Welcome { delta, view };
    }
    subject.hear(welcome);
    assert_eq!(subject.active(), ["b#2", "self#2"]);
    assert_eq!(subject.status("self"), NodeStatus::Up);
}

#[test]
fn a_name_taken_over_by_a_later_life_elsewhere_ends_this_one() {
    let mut subject = Subject::member();
    let b = record("b", 1, NodeStatus::Up);
    let successor = NodeRecord { authority: address("elsewhere"), ..record("self", 2, NodeStatus::Up) };
    subject.hear(push(b, 0, 1, vec![successor]));
    assert_eq!(subject.coordinator.state(), MembershipCoordinatorState::Stopped);
    let superseded = |event: &ClusterEvent| {
        matches!(event, ClusterEvent::Membership { event: MembershipEvent::Superseded { .. }, .. })
    };
    assert_eq!(subject.count(superseded), 1);
}

#[test]
fn a_leaving_node_is_gone_when_everybody_knows() {
    let mut group = Group::new(&["a", "b", "c"], &MembershipCoordinatorConfig::default());
    group.pass(2 * SECOND);
    group.get("b").ok(|c, now| c.handle_leave(&node("b"), now));
    assert_eq!(group.get("b").status("b"), NodeStatus::Leaving);
    group.pass(SECOND);
    for name in ["a", "b", "c"] {
        assert_eq!(group.get(name).status("b"), NodeStatus::Removed, "at {name}");
    }
    for name in ["a", "c"] {
        let changes = group.get(name).changes();
        assert!(changes.iter().all(|change| !change.contains("dead")), "{changes:?}");
    }
    // Alone there is nobody to tell.
    let mut alone = Subject::member();
    alone.ok(|c, now| c.handle_leave(&node("self"), now));
    assert_eq!(alone.status("self"), NodeStatus::Removed);
}

#[test]
fn a_joining_node_that_nobody_answers_keeps_asking_ever_less_often() {
    let config = MembershipCoordinatorConfig {
        seeds: vec![address("self"), address("seed")],
        ..MembershipCoordinatorConfig::default()
    };
    let mut subject = Subject::alone(config);
    subject.pass(60 * SECOND);
    assert_eq!(subject.status("self"), NodeStatus::Joining);
    let asked = subject.sent.iter().filter(|sent| sent.message.body == GossipBody::Join).count();
    assert!((15..30).contains(&asked), "asked {asked} times in a minute");
    assert!(subject.sent.iter().all(|sent| sent.target == address("seed")), "nobody asks oneself");
}

#[test]
fn a_node_that_nobody_lets_in_goes_on_alone_if_it_may() {
    let config = MembershipCoordinatorConfig {
        seeds: vec![address("seed")],
        form_alone_after: Some(3 * SECOND),
        ..MembershipCoordinatorConfig::default()
    };
    let mut subject = Subject::alone(config);
    subject.pass(2 * SECOND);
    assert_eq!(subject.status("self"), NodeStatus::Joining);
    subject.pass(2 * SECOND);
    assert_eq!(subject.status("self"), NodeStatus::Up);
    // It goes on to look for the seed.
    subject.sent.clear();
    subject.pass(20 * SECOND);
    assert!(subject.sent.iter().any(|sent| sent.target == address("seed")));
}

#[test]
fn the_word_of_another_detector_makes_a_suspect_until_it_is_heard() {
    let mut subject = Subject::without_gossip();
    subject.join_up("a");
    subject.pass_with_beats(5 * SECOND, &["a"]);
    subject.ok(|c, now| c.handle_suspicion(&node("a"), now));
    assert_eq!(subject.status("a"), NodeStatus::Suspect);
    subject.pass_with_beats(2 * SECOND, &["a"]);
    assert_eq!(subject.status("a"), NodeStatus::Up);
    let now = subject.now;
    assert!(subject.coordinator.handle_suspicion(&node("self"), now).is_err());
    assert!(subject.coordinator.handle_suspicion(&node("stranger"), now).is_err());
}

// --- health and downing --------------------------------------------------------------------------------------------

#[test]
fn a_node_that_was_paused_accuses_nobody_of_its_own_sleep() {
    let mut subject = Subject::without_gossip();
    subject.join_up("a");
    subject.join_up("b");
    subject.pass_with_beats(10 * SECOND, &["a", "b"]);
    // Twenty seconds pass without a single call.
    subject.now = subject.now + 20 * SECOND;
    subject.ok(MembershipCoordinator::poll);
    assert_eq!((subject.status("a"), subject.status("b")), (NodeStatus::Up, NodeStatus::Up));
    assert!(subject.coordinator.health_score() > 0);
    // Silence from now on counts as usual.
    subject.pass_with_beats(20 * SECOND, &["b"]);
    assert!(subject.status("a") >= NodeStatus::Suspect);
    assert_eq!(subject.status("b"), NodeStatus::Up);
}

#[test]
fn a_node_in_bad_health_waits_longer_before_it_gives_up() {
    let dead_after = |late_calls: usize| {
        let mut subject = Subject::without_gossip();
        subject.join_up("a");
        subject.join_up("b");
        subject.pass_with_beats(10 * SECOND, &["a", "b"]);
        for _ in 0..late_calls {
            // Late, but not late enough to be taken for a pause.
            subject.now = subject.wake_at + Duration::from_millis(600);
            subject.beat("a");
            subject.beat("b");
            subject.ok(MembershipCoordinator::poll);
        }
        assert_eq!(subject.coordinator.health_score() as usize, late_calls);
        let since = subject.now;
        while subject.status("a") != NodeStatus::Dead {
            subject.pass_with_beats(Duration::from_millis(500), &["b"]);
        }
        subject.now.saturating_since(since)
    };
    let healthy = dead_after(0);
    assert!(healthy < 12 * SECOND, "{healthy:?}");
    // Both the pause and the suspicion are stretched: three and five seconds more for each point.
    assert!(dead_after(2) >= healthy + 15 * SECOND);
}

#[test]
fn the_only_peer_is_given_up_in_time_though_nobody_else_answers() {
    // Regression: every unanswered push to the dead peer made this node doubt itself more, up to a minute of patience.
    let mut subject = Subject::member();
    subject.join_up("a");
    subject.pass_with_beats(10 * SECOND, &["a"]);
    let since = subject.now;
    while subject.status("a") != NodeStatus::Dead {
        subject.pass(SECOND);
    }
    assert_eq!(subject.coordinator.health_score(), 1, "one silent peer is one sign");
    let took = subject.now.saturating_since(since);
    assert!(took < 20 * SECOND, "{took:?}");
}

#[test]
fn a_small_side_reports_the_loss_of_its_quorum_instead_of_giving_up() {
    let config = MembershipCoordinatorConfig {
        downing: Arc::new(KeepMajority::default()),
        ..MembershipCoordinatorConfig::default()
    };
    let mut subject = Subject::alone(config);
    for name in ["a", "b", "c", "d"] {
        subject.join_up(name);
    }
    subject.pass_with_beats(10 * SECOND, &["a", "b", "c", "d"]);
    subject.forget_the_past();
    subject.pass_with_beats(80 * SECOND, &["a"]);
    for name in ["b", "c", "d"] {
        assert_eq!(subject.status(name), NodeStatus::Suspect);
    }
    assert_eq!(
        subject.count(|e| matches!(e, ClusterEvent::QuorumLost { reachable: 2, suspected: 3, .. })),
        1
    );
    // They come back: nothing was lost.
    subject.pass_with_beats(2 * SECOND, &["a", "b", "c", "d"]);
    assert_eq!(subject.count(|e| matches!(e, ClusterEvent::QuorumRegained { .. })), 1);
    assert_eq!(subject.active().len(), 5);
}

#[test]
fn of_the_accused_the_suspicion_is_told_first() {
    let mut subject = Subject::member();
    subject.join_up("a");
    subject.join_up("b");
    subject.pass_with_beats(10 * SECOND, &["a", "b"]);
    subject.forget_the_past();
    let accused = record("a", 1, NodeStatus::Suspect);
    while subject.status("a") == NodeStatus::Up {
        subject.sent.clear();
        subject.pass_with(Duration::from_millis(10), |_| {});
    }
    let told = |sent: &GossipOutbound| match &sent.message.body {
        GossipBody::Push { delta, .. } => sent.target == address("a") && delta.records().contains(&accused),
        _ => false,
    };
    assert!(subject.sent.iter().any(told), "{:?}", subject.sent);
}
