use synod_core::Incarnation;
use synod_core::membership::MembershipCoordinatorState;

use super::*;
use crate::incarnation::IncarnationStoreError;
use crate::membership::QuarantineListener;
use crate::testing::{authority, drain, member, name, until, wait_for};

#[tokio::test(start_paused = true)]
async fn a_node_starts_once_stops_any_number_of_times_and_starts_again_in_a_new_life() {
    let network = InMemoryNetwork::default();
    let mut node = LocalClusterProvider::new(config(&network, "a")).expect("sound settings");
    let mut events = node.events().subscribe();
    assert_eq!(node.shutdown(true).await, Ok(()), "a node that never ran is stopped");

    node.start_member().await.expect("a first start");
    let running = ClusterProviderError::AlreadyStarted(AlreadyStarted { mode: ClusterMode::Member });
    assert_eq!(node.start_member().await, Err(running.clone()));
    assert_eq!(node.start_client().await, Err(running));
    wait_for(&mut events, |event| matches!(event, ClusterEvent::TopologyUpdated { .. })).await;
    until(|| node.members().len() == 1).await;

    node.shutdown(false).await.expect("a running node");
    assert_eq!(node.shutdown(true).await, Ok(()));
    assert_eq!(node.shutdown(false).await, Ok(()));
    wait_for(&mut events, |event| matches!(event, ClusterEvent::Shutdown { .. })).await;
    let shutdowns = drain(&mut events).into_iter().filter(|e| matches!(**e, ClusterEvent::Shutdown { .. }));
    assert_eq!(shutdowns.count(), 0, "one shutdown is told once");

    // Nothing of the run is left: no mode, no members, no address, no subscription but ours.
    assert_eq!((node.mode(), node.members(), node.blocked()), (None, vec![], vec![]));
    assert_eq!(node.metrics().map(|metrics| metrics.members), Ok(0));
    assert!(!network.is_attached(&authority("a")));
    assert_eq!(node.events().subscriber_count(), 1);
    assert_eq!(node.leave(name("a")).await, Err(ClusterProviderError::NotStarted));

    node.start_member().await.expect("a start after the stop");
    let own = node.membership().and_then(|membership| membership.view().own.clone());
    assert_eq!(own.map(|own| own.incarnation.get()), Some(2));
}

#[tokio::test(start_paused = true)]
async fn when_the_membership_fails_to_start_the_parts_before_it_are_stopped_again() {
    let network = InMemoryNetwork::default();
    let broken = Arc::new(Mutex::new(Repairable { is_broken: true, inner: MemoryIncarnationStore::new() }));
    let incarnations: Arc<Mutex<dyn IncarnationStore>> = broken.clone();
    let config = LocalClusterConfig { incarnations, ..config(&network, "a") };
    let mut node = LocalClusterProvider::new(config).expect("sound settings");
    let mut events = node.events().subscribe();

    let failed = node.start_member().await;
    let Err(error @ ClusterProviderError::Start(MembershipDriverError::NoLife(_))) = failed else {
        panic!("the start did not fail as it should: {failed:?}");
    };
    assert_eq!(node.mode(), None);
    assert_eq!(node.events().subscriber_count(), 1, "the extension is unsubscribed");
    assert!(!network.is_attached(&authority("a")), "the address is free again");
    assert!(node.membership().is_none());
    let told = drain(&mut events);
    let [told] = told.as_slice() else { panic!("one event tells of the failure: {told:?}") };
    let ClusterEvent::StartupFailed { mode, reason, .. } = &**told else {
        panic!("the failure is not told: {told:?}");
    };
    assert_eq!((mode, reason), (&MembershipCoordinatorState::Member, &error.to_string()));

    // With the cause gone, the same node starts.
    lock(&broken).is_broken = false;
    node.start_member().await.expect("a repaired node");
}

#[tokio::test(start_paused = true)]
async fn an_address_in_use_fails_the_start_and_leaves_the_owner_alone() {
    let network = InMemoryNetwork::default();
    let owner = network.attach(&authority("a")).expect("a free address");
    let mut node = LocalClusterProvider::new(config(&network, "a")).expect("sound settings");
    let mut events = node.events().subscribe();
    let taken = AttachError { authority: authority("a") };
    assert_eq!(node.start_client().await, Err(ClusterProviderError::Attach(taken)));
    let told = drain(&mut events);
    assert!(matches!(
        told.as_slice(),
        [event] if matches!(&**event, ClusterEvent::StartupFailed { mode: MembershipCoordinatorState::Client, .. })
    ));
    assert!(network.is_attached(&authority("a")));
    drop(owner);
    node.start_client().await.expect("a free address");
    assert_eq!(node.mode(), Some(ClusterMode::Client));
}

#[test]
fn settings_out_of_range_are_refused_before_anything_runs() {
    let network = InMemoryNetwork::default();
    let mut no_fanout = config(&network, "a");
    no_fanout.membership.gossip_fanout = 0;
    let refused = LocalClusterProvider::new(no_fanout).err();
    assert!(matches!(refused, Some(ClusterProviderError::Membership(_))), "{refused:?}");

    let mut no_queue = config(&network, "a");
    no_queue.events.queue_capacity = 0;
    let refused = LocalClusterProvider::new(no_queue).err();
    assert!(matches!(refused, Some(ClusterProviderError::Events(_))), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn while_metrics_are_off_every_question_fails_and_all_events_flow() {
    let network = InMemoryNetwork::default();
    let config = LocalClusterConfig { metrics_enabled: false, ..config(&network, "a") };
    let mut node = LocalClusterProvider::new(config).expect("sound settings");
    let mut events = node.events().subscribe();
    assert_eq!(node.metrics(), Err(MetricsError::Disabled));
    node.start_member().await.expect("a first start");
    node.join(member("b", 1), authority("b")).await.expect("an accepted join");
    wait_for(&mut events, |event| matches!(event, ClusterEvent::Startup { .. })).await;
    wait_for(&mut events, |event| matches!(event, ClusterEvent::MemberStatusChanged { .. })).await;
    wait_for(&mut events, |event| matches!(event, ClusterEvent::TopologyUpdated { .. })).await;
    until(|| node.members().len() == 2).await;
    assert_eq!(node.metrics(), Err(MetricsError::Disabled));
    node.down(name("b")).await.expect("a known node");
    wait_for(&mut events, |event| matches!(event, ClusterEvent::MemberQuarantined { .. })).await;
    node.shutdown(false).await.expect("a running node");
    wait_for(&mut events, |event| matches!(event, ClusterEvent::Shutdown { .. })).await;
    assert_eq!(node.metrics(), Err(MetricsError::Disabled));
}

#[tokio::test(start_paused = true)]
async fn quarantine_listeners_serve_every_run_of_the_node() {
    let network = InMemoryNetwork::default();
    let mut node = LocalClusterProvider::new(config(&network, "a")).expect("sound settings");
    let told = Arc::new(Mutex::new(Told::default()));
    node.add_quarantine_listener(told.clone());
    for run in 1..=2 {
        node.start_member().await.expect("a stopped node");
        let reason = QuarantineReason::Requested("test".into());
        node.quarantine(authority("b"), reason).await.expect("another address");
        node.release(authority("b")).await.expect("a running node");
        node.shutdown(false).await.expect("a running node");
        assert_eq!(told.lock().expect("a lock").events, 2 * run);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_broke_down_says_so_at_the_shutdown_and_can_be_started_again() {
    let network = InMemoryNetwork::default();
    let mut node = LocalClusterProvider::new(config(&network, "a")).expect("sound settings");
    let told = Arc::new(Mutex::new(Told { panics: true, events: 0 }));
    node.add_quarantine_listener(told.clone());
    node.start_member().await.expect("a first start");
    let mut events = node.events().subscribe_live();

    // A listener panics, and the membership task with it.
    let reason = QuarantineReason::Requested("test".into());
    let refused = node.quarantine(authority("b"), reason).await;
    assert_eq!(refused, Err(ClusterProviderError::Handle(MembershipHandleError::Ended)));
    assert_eq!(node.shutdown(true).await, Err(ClusterProviderError::Aborted));
    wait_for(&mut events, |event| matches!(event, ClusterEvent::ShutdownFailed { .. })).await;
    assert_eq!((node.mode(), node.shutdown(true).await), (None, Ok(())));

    told.lock().unwrap_or_else(std::sync::PoisonError::into_inner).panics = false;
    node.start_member().await.expect("a stopped node");
}

#[derive(Default)]
struct Told {
    panics: bool,
    events: usize,
}

impl QuarantineListener for Told {
    fn quarantine_changed(&mut self, _event: &synod_core::membership::QuarantineEvent) {
        assert!(!self.panics, "a listener with a fault");
        self.events += 1;
    }
}

struct Repairable {
    is_broken: bool,
    inner: MemoryIncarnationStore,
}

impl IncarnationStore for Repairable {
    fn load(&mut self) -> Result<Option<Incarnation>, IncarnationStoreError> {
        if self.is_broken {
            return Err(IncarnationStoreError::Load { reason: "the disk is gone".into() });
        }
        self.inner.load()
    }

    fn persist(&mut self, incarnation: Incarnation) -> Result<(), IncarnationStoreError> {
        self.inner.persist(incarnation)
    }
}

fn lock(store: &Mutex<Repairable>) -> std::sync::MutexGuard<'_, Repairable> {
    store.lock().expect("a lock")
}

fn config(network: &InMemoryNetwork, node: &str) -> LocalClusterConfig {
    LocalClusterConfig::new(name(node), authority(node), network.clone())
}
