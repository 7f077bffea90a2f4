use synod_core::Incarnation;
use synod_core::membership::{
    GossipBody, GossipSender, MembershipDelta, MembershipError, MembershipVersion, NodeRecord, NodeStatus,
    Refutation, ViewDigest,
};

use super::*;
use crate::event_stream::{Delivery, Subscription};
use crate::incarnation::MemoryIncarnationStore;
use crate::testing::{authority, member, name};
use crate::transport::GossipTransportError;

#[test]
fn the_quarantine_is_applied_by_everyone_before_anything_is_published_or_sent() {
    let mut node = Node::started();
    node.join("b");
    node.join("c");
    node.log.take();

    // c tells that b died: one outcome with a quarantine, events and an acknowledgement.
    node.receive("c", 1, push(&record("b", 1, NodeStatus::Dead)));
    node.driver.handle_inbound(at(10)).expect("a running driver");
    let log = node.log.take();
    assert_eq!(
        log[..2],
        ["transport keeps out b:8401", "listener keeps out b:8401"],
        "the mirrors come first: {log:?}"
    );
    let published = log.iter().position(|entry| entry == "published MemberQuarantined").expect("published");
    let sent = log.iter().position(|entry| entry == "sent c:8401").expect("an acknowledgement");
    assert!(published < sent, "{log:?}");
    assert!(log[sent..].iter().all(|entry| entry.starts_with("sent")), "sending comes last: {log:?}");
}

#[test]
fn an_expired_quarantine_is_released_at_the_transport_before_the_events_the_topology_and_the_gossip() {
    let mut node = Node::started();
    node.join("b");
    node.join("c");
    node.driver.poll(at(600)).expect("a running driver");
    node.driver.handle_down(&name("b"), at(700)).expect("a known node");
    node.log.take();

    // One late poll does everything at once: the quarantine ends, the window closes, heartbeats are due.
    node.driver.poll(at(40_000)).expect("a running driver");
    let log = node.log.take();
    assert_eq!(log[..2], ["transport lets in b:8401", "listener lets in b:8401"], "{log:?}");
    let lifted = log.iter().position(|entry| entry == "published QuarantineLifted").expect("published");
    let topology = log.iter().position(|entry| entry == "published TopologyUpdated").expect("published");
    let sent = log.iter().position(|entry| entry.starts_with("sent")).expect("gossip");
    assert!(lifted < topology && topology < sent, "{log:?}");
}

#[test]
fn a_new_life_is_stored_before_anyone_hears_of_it() {
    let mut node = Node::started();
    node.join("c");
    node.driver.poll(at(600)).expect("a running driver");
    node.log.take();

    // c says that this very life is over, so a new one begins.
    node.receive("c", 1, push(&record("a", 1, NodeStatus::Dead)));
    node.driver.handle_inbound(at(700)).expect("a running driver");
    let log = node.log.take();
    assert_eq!(log[0], "stored 2", "{log:?}");
    assert!(log.contains(&"published SelfRejoining".to_owned()), "{log:?}");
    assert_eq!(node.driver.coordinator().own().map(|own| own.incarnation.get()), Some(2));
}

#[test]
fn a_life_that_cannot_be_stored_is_not_lived_and_nobody_hears_of_it() {
    let mut node = Node::started();
    node.join("b");
    node.join("c");
    node.driver.handle_down(&name("b"), at(500)).expect("a known node");
    node.driver.poll(at(600)).expect("a running driver");
    node.log.take();
    node.log.refuse_to_store();

    node.receive("c", 1, push(&record("a", 1, NodeStatus::Dead)));
    node.receive("c", 1, push(&record("d", 1, NodeStatus::Up)));
    let refused = node.driver.handle_inbound(at(700));
    assert!(matches!(refused, Err(MembershipDriverError::LifeNotStored(_))), "{refused:?}");

    // The mirrors are released because the judge is gone; observers hear of the stop, and of nothing else.
    assert_eq!(
        node.log.take(),
        ["transport lets in b:8401", "listener lets in b:8401", "published Shutdown"]
    );
    assert!(!node.driver.is_running());
    assert_eq!(node.driver.wake_at(), None);
    assert_eq!(node.driver.poll(at(800)), Err(MembershipCoordinatorError::NotStarted.into()));
}

#[test]
fn without_a_stored_life_nothing_starts() {
    let mut node = Node::stopped();
    node.log.refuse_to_store();
    let refused = node.driver.start_member(1, at(0));
    assert!(matches!(refused, Err(MembershipDriverError::NoLife(_))), "{refused:?}");
    assert_eq!(node.log.take(), Vec::<String>::new());
    assert!(!node.driver.is_running());
}

#[test]
fn one_failing_send_does_not_stop_the_others_and_is_counted() {
    let mut node = Node::started();
    for name in ["b", "c", "d"] {
        node.join(name);
    }
    node.log.take();
    node.log.fail_next_send();
    node.driver.poll(at(200)).expect("a running driver");
    let log = node.log.take();
    let sends: Vec<_> = log.iter().filter(|entry| entry.starts_with("sent")).collect();
    let failed: Vec<_> = log.iter().filter(|entry| entry.starts_with("failed")).collect();
    assert_eq!((sends.len(), failed.len()), (2, 1), "{log:?}");
    assert_eq!(node.driver.counters().sends_failed(), 1);
}

#[test]
fn a_join_refused_by_quarantine_returns_the_error_and_publishes_the_event() {
    let mut node = Node::started();
    let reason = QuarantineReason::Requested("test".into());
    node.driver.handle_quarantine(&authority("b"), reason.clone(), at(1)).expect("another address");
    node.log.take();

    let refused =
        node.driver.handle_join(&record("b", 1, NodeStatus::Joining).member, &authority("b"), at(2));
    let Err(MembershipDriverError::Refused(MembershipCoordinatorError::Membership { error, .. })) = refused
    else {
        panic!("the join was not refused: {refused:?}");
    };
    assert_eq!(error, MembershipError::Quarantined { authority: authority("b"), reason });
    let log = node.log.take();
    assert!(log.contains(&"published MemberQuarantined".to_owned()), "{log:?}");

    // When the quarantine is lifted by hand the transport hears of it and the same join is accepted.
    node.driver.release(&authority("b"), at(3)).expect("a running driver");
    assert_eq!(node.log.take()[..2], ["transport lets in b:8401", "listener lets in b:8401"]);
    node.join("b");
}

#[test]
fn starting_twice_and_stopping_twice_are_refused_and_a_restart_begins_a_new_life() {
    let mut node = Node::started();
    let running = MembershipCoordinatorError::InvalidState { state: MembershipCoordinatorState::Member };
    assert_eq!(node.driver.start_member(1, at(1)), Err(running.clone().into()));
    assert_eq!(node.driver.start_client(1, at(1)), Err(running.into()));
    // The refused start used up no life.
    assert_eq!(node.stored(), Some(1));

    node.driver.stop(at(2)).expect("a running driver");
    let stopped = MembershipDriverError::from(MembershipCoordinatorError::NotStarted);
    assert_eq!(node.driver.stop(at(3)), Err(stopped.clone()));
    assert_eq!(node.driver.handle_inbound(at(3)), Err(stopped));

    node.driver.start_member(1, at(4)).expect("a stopped driver");
    assert_eq!(node.driver.coordinator().own().map(|own| own.incarnation.get()), Some(2));
    assert_eq!(node.stored(), Some(2));
}

#[test]
fn a_stop_releases_what_the_transport_keeps_out() {
    let mut node = Node::started();
    let reason = QuarantineReason::Requested("test".into());
    node.driver.handle_quarantine(&authority("b"), reason, at(1)).expect("another address");
    node.log.take();
    node.driver.stop(at(2)).expect("a running driver");
    let log = node.log.take();
    assert!(log.contains(&"transport lets in b:8401".to_owned()), "{log:?}");
    assert!(log.contains(&"listener lets in b:8401".to_owned()), "{log:?}");
}

#[test]
fn a_node_whose_name_is_taken_over_stops_and_says_so() {
    let mut node = Node::started();
    node.log.take();
    let successor = NodeRecord { authority: authority("z"), ..record("a", 9, NodeStatus::Up) };
    node.inbox.lock().expect("a lock").push(GossipMessage {
        sender: GossipSender::Member(successor.clone()),
        body: GossipBody::Heartbeat { sequence: 1 },
    });
    node.driver.handle_inbound(at(10)).expect("a running driver");
    assert!(!node.driver.is_running());
    assert_eq!(node.driver.superseded(), Some(&(successor.member, authority("z"))));
    assert_eq!(node.log.take(), ["published Membership", "published Shutdown"]);
}

#[test]
fn a_refused_message_is_counted_and_does_not_cost_the_ones_behind_it() {
    let mut node = Node::started();
    node.join("b");
    node.driver.handle_down(&name("b"), at(1)).expect("a known node");
    node.receive("b", 1, GossipBody::Heartbeat { sequence: 1 });
    node.receive("c", 1, GossipBody::Join);
    node.driver.handle_inbound(at(2)).expect("a running driver");
    assert_eq!(node.driver.counters().messages_refused(), 1);
    assert!(node.driver.coordinator().record(&name("c")).is_some());
}

#[test]
fn a_heartbeat_from_outside_brings_a_member_up() {
    let mut node = Node::started();
    node.join("b");
    node.driver.handle_heartbeat(&record("b", 1, NodeStatus::Up).member, at(5)).expect("a known member");
    assert_eq!(node.driver.coordinator().record(&name("b")).map(|b| b.status), Some(NodeStatus::Up));
    node.driver.handle_leave(&name("b"), at(6)).expect("a member that is up");
    assert_eq!(node.driver.coordinator().record(&name("b")).map(|b| b.status), Some(NodeStatus::Leaving));
}

#[test]
fn a_client_observes_without_a_life_of_its_own() {
    let mut node = Node::stopped();
    node.driver.start_client(1, at(0)).expect("a stopped driver");
    assert_eq!((node.stored(), node.driver.coordinator().own()), (None, None));
    let refused = node.driver.handle_leave(&name("a"), at(1));
    let client = MembershipCoordinatorError::InvalidState { state: MembershipCoordinatorState::Client };
    assert_eq!(refused, Err(client.into()));
}

/// One driver whose every effect goes into one log.
struct Node {
    driver: MembershipDriver<RecordingTransport>,
    log: Log,
    inbox: Arc<Mutex<Vec<GossipMessage>>>,
    store: MemoryIncarnationStore,
}

impl Node {
    fn stopped() -> Self {
        let stream = EventStream::default();
        let log = Log::new(stream.subscribe());
        let inbox = Arc::default();
        let transport = RecordingTransport { log: log.clone(), inbox: Arc::clone(&inbox) };
        let store = MemoryIncarnationStore::new();
        let recording = Box::new(RecordingStore { log: log.clone(), store: store.clone() });
        let config = MembershipCoordinatorConfig::default();
        let mut driver =
            MembershipDriver::new(name("a"), authority("a"), config, transport, stream, recording)
                .expect("sound settings");
        driver.add_quarantine_listener(Box::new(RecordingListener(log.clone())));
        Self { driver, log, inbox, store }
    }

    fn started() -> Self {
        let mut node = Self::stopped();
        node.driver.start_member(1, at(0)).expect("a stopped driver");
        node
    }

    fn join(&mut self, name: &str) {
        let member = record(name, 1, NodeStatus::Joining).member;
        self.driver.handle_join(&member, &authority(name), at(0)).expect("an accepted join");
    }

    fn receive(&self, from: &str, incarnation: u64, body: GossipBody) {
        let sender = GossipSender::Member(record(from, incarnation, NodeStatus::Up));
        self.inbox.lock().expect("a lock").push(GossipMessage { sender, body });
    }

    fn stored(&self) -> Option<u64> {
        self.store.stored().map(Incarnation::get)
    }
}

/// The effects of a driver in the order they happened. Events are pulled in whenever something else is noted.
#[derive(Clone)]
struct Log(Arc<Mutex<Entries>>);

struct Entries {
    lines: Vec<String>,
    events: Subscription,
    store_fails: bool,
    send_fails: bool,
}

impl Log {
    fn new(events: Subscription) -> Self {
        let entries = Entries { lines: Vec::new(), events, store_fails: false, send_fails: false };
        Self(Arc::new(Mutex::new(entries)))
    }

    fn note(&self, line: String) {
        let mut entries = self.0.lock().expect("a lock");
        entries.pull_events();
        entries.lines.push(line);
    }

    fn take(&self) -> Vec<String> {
        let mut entries = self.0.lock().expect("a lock");
        entries.pull_events();
        std::mem::take(&mut entries.lines)
    }

    fn refuse_to_store(&self) {
        self.0.lock().expect("a lock").store_fails = true;
    }

    fn fail_next_send(&self) {
        self.0.lock().expect("a lock").send_fails = true;
    }
}

impl Entries {
    fn pull_events(&mut self) {
        while let Some(Delivery::Event(event)) = self.events.try_recv() {
            let text = format!("{event:?}");
            let variant = text.split([' ', '{']).next().unwrap_or_default();
            self.lines.push(format!("published {variant}"));
        }
    }
}

struct RecordingTransport {
    log: Log,
    inbox: Arc<Mutex<Vec<GossipMessage>>>,
}

impl GossipTransport for RecordingTransport {
    fn send(&mut self, outbound: GossipOutbound) -> Result<(), GossipTransportError> {
        let target = outbound.target;
        if std::mem::take(&mut self.log.0.lock().expect("a lock").send_fails) {
            self.log.note(format!("failed {target}"));
            return Err(GossipTransportError::Unreachable { target });
        }
        self.log.note(format!("sent {target}"));
        Ok(())
    }

    fn poll_inbound(&mut self) -> Vec<GossipMessage> {
        std::mem::take(&mut *self.inbox.lock().expect("a lock"))
    }

    fn inbound_ready(&self) -> Arc<Notify> {
        Arc::default()
    }

    fn apply_quarantine(&mut self, event: &QuarantineEvent) {
        self.log.note(format!("transport {}", described(event)));
    }
}

struct RecordingListener(Log);

impl QuarantineListener for RecordingListener {
    fn quarantine_changed(&mut self, event: &QuarantineEvent) {
        self.0.note(format!("listener {}", described(event)));
    }
}

struct RecordingStore {
    log: Log,
    store: MemoryIncarnationStore,
}

impl IncarnationStore for RecordingStore {
    fn load(&mut self) -> Result<Option<Incarnation>, IncarnationStoreError> {
        self.store.load()
    }

    fn persist(&mut self, incarnation: Incarnation) -> Result<(), IncarnationStoreError> {
        if self.log.0.lock().expect("a lock").store_fails {
            return Err(IncarnationStoreError::Persist { incarnation, reason: "the disk is full".into() });
        }
        self.log.note(format!("stored {incarnation}"));
        self.store.persist(incarnation)
    }
}

fn described(event: &QuarantineEvent) -> String {
    match event {
        QuarantineEvent::Quarantined { authority, .. } => format!("keeps out {authority}"),
        QuarantineEvent::Cleared { authority } => format!("lets in {authority}"),
    }
}

fn push(news: &NodeRecord) -> GossipBody {
    let (from, to) = (MembershipVersion::ZERO, MembershipVersion::new(1));
    let delta = MembershipDelta::new(from, to, vec![news.clone()]).expect("a sound delta");
    GossipBody::Push { delta, view: ViewDigest { version: to, digest: 1, seen: vec![] } }
}

fn record(node: &str, incarnation: u64, status: NodeStatus) -> NodeRecord {
    let member = member(node, incarnation);
    NodeRecord { member, authority: authority(node), status, refutation: Refutation::default() }
}

const fn at(millis: u64) -> TimerInstant {
    TimerInstant::from_millis(millis)
}
