//! Each invariant is shown to bite: a step that breaks it is made up and must be caught.

use std::time::Duration;

use synod_core::Incarnation;
use synod_core::membership::{GossipMessage, GossipOutbound, GossipSender, QuarantineReason, TopologyUpdate};

use super::*;

struct Fixture {
    coordinator: MembershipCoordinator,
    config: MembershipCoordinatorConfig,
    own: Authority,
    observer: Observer,
}

impl Fixture {
    fn new() -> Self {
        let config = MembershipCoordinatorConfig::default();
        let own = Authority::new("a.sim:1").expect("an address");
        let node = NodeId::new("a").expect("a name");
        let mut coordinator =
            MembershipCoordinator::new(node, own.clone(), config.clone()).expect("valid settings");
        coordinator.start_member(Incarnation::FIRST, 1, TimerInstant::ZERO).expect("a stopped coordinator");
        Self { coordinator, config, own, observer: Observer::default() }
    }

    fn check(&mut self, outcome: &MembershipCoordinatorOutcome) -> Check {
        let step = Step {
            now: TimerInstant::from_millis(1_000),
            polled: true,
            thorough: true,
            own_authority: &self.own,
            coordinator: &self.coordinator,
            outcome,
            config: &self.config,
        };
        self.observer.check(&step)
    }

    fn caught(&mut self, outcome: &MembershipCoordinatorOutcome) -> &'static str {
        self.check(outcome).expect_err("a broken invariant").0
    }
}

fn member(name: &str) -> Member {
    Member {
        id: MemberId::new(NodeId::new(name).expect("a name"), Incarnation::FIRST),
        authority: Authority::new(&format!("{name}.sim:1")).expect("an address"),
    }
}

fn status(name: &str, to: NodeStatus) -> ClusterEvent {
    let Member { id, authority } = member(name);
    let observed_at = TimerInstant::from_millis(10);
    ClusterEvent::MemberStatusChanged { member: id, authority, from: None, to, observed_at }
}

fn outcome() -> MembershipCoordinatorOutcome {
    MembershipCoordinatorOutcome::default()
}

fn message(target: &str) -> GossipOutbound {
    let sender = GossipSender::Client(Authority::new("a.sim:1").expect("an address"));
    let message = GossipMessage { sender, body: GossipBody::Join };
    GossipOutbound { target: Authority::new(target).expect("an address"), message }
}

#[test]
fn a_step_that_breaks_nothing_passes() {
    assert_eq!(Fixture::new().check(&outcome()), Ok(()));
}

#[test]
fn a_dead_incarnation_that_returns_is_caught() {
    let mut fixture = Fixture::new();
    let events = vec![status("b", NodeStatus::Dead), status("b", NodeStatus::Up)];
    assert_eq!(
        fixture.caught(&MembershipCoordinatorOutcome { member_events: events, ..outcome() }),
        "final-verdict"
    );
}

#[test]
fn a_clock_that_runs_backwards_is_caught() {
    let mut fixture = Fixture::new();
    let late = ClusterEvent::QuorumRegained { observed_at: TimerInstant::from_millis(20) };
    let events = vec![late, status("b", NodeStatus::Up)];
    assert_eq!(
        fixture.caught(&MembershipCoordinatorOutcome { member_events: events, ..outcome() }),
        "event-time"
    );
}

#[test]
fn an_update_that_contradicts_the_last_one_is_caught() {
    let mut fixture = Fixture::new();
    let at = TimerInstant::from_millis(10);
    let update = |joined, members| {
        let update = TopologyUpdate::new(joined, vec![], vec![], members, vec![], at);
        MembershipCoordinatorOutcome {
            topology_event: Some(ClusterEvent::TopologyUpdated { update }),
            ..outcome()
        }
    };
    assert_eq!(fixture.check(&update(vec![member("a")], vec![member("a")])), Ok(()));
    // Member b appears although nobody said that it joined.
    let unsaid = update(vec![member("c")], vec![member("a"), member("b"), member("c")]);
    assert_eq!(fixture.caught(&unsaid), "topology");
}

#[test]
fn a_message_to_oneself_or_to_the_quarantined_is_caught() {
    let mut fixture = Fixture::new();
    let to_self = MembershipCoordinatorOutcome { gossip_outbound: vec![message("a.sim:1")], ..outcome() };
    assert_eq!(fixture.caught(&to_self), "addressing");
    let kept_out = member("b").authority;
    let reason = QuarantineReason::Requested("a test".to_owned());
    fixture
        .coordinator
        .handle_quarantine(&kept_out, reason, TimerInstant::ZERO)
        .expect("a running coordinator");
    let to_it = MembershipCoordinatorOutcome { gossip_outbound: vec![message("b.sim:1")], ..outcome() };
    assert_eq!(fixture.caught(&to_it), "addressing");
}

#[test]
fn a_machine_that_wants_to_be_polled_again_at_once_is_caught() {
    let at = TimerInstant::from_millis(1_000).saturating_sub(Duration::from_millis(1));
    let restless = MembershipCoordinatorOutcome { wake_at: Some(at), ..outcome() };
    assert_eq!(Fixture::new().caught(&restless), "progress");
}

#[test]
fn a_record_that_goes_back_is_caught() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.check(&outcome()), Ok(()));
    // Remember something greater than the table holds.
    let greater = fixture.coordinator.snapshot().records[0].clone();
    let greater = NodeRecord { status: NodeStatus::Leaving, ..greater };
    fixture.observer.records.insert(greater.member.node.clone(), greater);
    assert_eq!(fixture.caught(&outcome()), "record-order");
}
