//! Clusters inside one process, in virtual time: nodes find each other, fail, leave, return, and are split and healed.

use std::sync::Arc;
use std::time::Duration;

use synod_cluster::{
    ClusterMode, ClusterProvider, Delivery, InMemoryNetwork, LocalClusterConfig, LocalClusterProvider,
    MembershipExit, MembershipHandle, MembershipView, Subscription, TopologyListener,
};
use synod_core::membership::{
    ClusterEvent, GossipEvent, GossipPhase, KeepMajority, Member, MembershipError, MembershipEvent,
    NodeStatus, QuarantineReason, RejoinReason, TopologyUpdate,
};
use synod_core::{Authority, Incarnation, MemberId, NodeId};
use tokio::sync::watch;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn three_nodes_form_a_cluster_and_all_apply_the_same_topology() {
    let [a, b, c] = cluster().await;
    let mut hashes = Vec::new();
    for node in [&a, &b, &c] {
        let metrics = node.provider.metrics().expect("metrics are on");
        assert_eq!((metrics.members, metrics.quarantined, metrics.topology_failures), (3, 0, 0));
        assert!(metrics.status_changes >= 3);
        assert_eq!(node.provider.mode(), Some(ClusterMode::Member));
        let members = node.provider.members();
        assert_eq!(members.iter().map(|member| member.id.node.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        hashes.extend(node.applied.borrow().as_ref().map(|update| update.topology.hash));
    }
    assert!(hashes.len() == 3 && hashes.windows(2).all(|pair| pair[0] == pair[1]), "{hashes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_killed_node_is_declared_dead_quarantined_and_reported_in_the_topology() {
    let [mut a, mut b, c] = cluster().await;
    let c_id = c.view().own.clone().expect("c is a member");
    drop(c);
    for node in [&mut a, &mut b] {
        node.until(|view| view.status(&name("c")) == Some(NodeStatus::Dead)).await;
        let quarantine = node.view().quarantine.clone();
        assert_eq!(quarantine.len(), 1);
        assert_eq!(quarantine[0].authority, authority("c"));
        assert_eq!(quarantine[0].reason, QuarantineReason::Dead(c_id.clone()));

        let update = node.applied_until(|update| update.members.len() == 2).await;
        assert_eq!(update.topology.dead.iter().map(|member| &member.id).collect::<Vec<_>>(), [&c_id]);
        assert_eq!((update.topology.left.len(), update.blocked.as_slice()), (0, &[authority("c")][..]));
        assert_eq!(node.provider.blocked(), [authority("c")]);
        let metrics = node.provider.metrics().expect("metrics are on");
        assert_eq!((metrics.members, metrics.quarantined), (2, 1));
        let life = [NodeStatus::Suspect, NodeStatus::Dead];
        assert!(node.states_of("c").ends_with(&life), "dead by way of suspicion");
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_node_that_returns_in_a_later_life_is_let_in_at_once() {
    let [mut a, mut b, c] = cluster().await;
    let config = c.config.clone();
    drop(c);
    for node in [&mut a, &mut b] {
        node.until(|view| view.status(&name("c")) == Some(NodeStatus::Dead)).await;
        node.applied_until(|update| update.members.len() == 2).await;
    }

    let returned_at = Instant::now();
    let mut c = Node::start(config).await;
    assert_eq!(c.view().own.as_ref().map(|own| own.incarnation.get()), Some(2));
    for node in [&mut a, &mut b, &mut c] {
        node.until(|view| is_up(view, "c") && view.quarantine.is_empty()).await;
        node.applied_until(|update| update.members.len() == 3).await;
        assert_eq!(node.provider.metrics().map(|metrics| metrics.quarantined), Ok(0));
    }
    // The quarantine concerned the life that died; the new one does not wait for its end.
    assert!(returned_at.elapsed() < Duration::from_secs(5), "it took {:?}", returned_at.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_leaves_is_removed_by_way_of_leaving_and_never_dead() {
    let [mut a, mut b, mut c] = cluster().await;
    for node in [&mut a, &mut b] {
        node.states_of("c");
    }
    c.provider.shutdown(true).await.expect("a running node");
    for node in [&mut a, &mut b] {
        node.until(|view| view.status(&name("c")) == Some(NodeStatus::Removed)).await;
        assert_eq!(node.states_of("c"), [NodeStatus::Leaving, NodeStatus::Removed]);
        let update = node.applied_until(|update| update.members.len() == 2).await;
        assert_eq!(update.topology.left.len(), 1);
        assert_eq!((update.topology.dead.len(), update.blocked.len()), (0, 0));
        assert_eq!(node.view().quarantine, []);
    }
    // The one that left is gone, and may come back in a later life.
    assert_eq!(c.provider.mode(), None);
    c.provider.start_member().await.expect("a stopped node");
    for node in [&mut a, &mut b, &mut c] {
        node.applied_until(|update| update.members.len() == 3).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_can_be_asked_to_leave_by_another_one() {
    let [mut a, b, c] = cluster().await;
    a.states_of("c");
    b.provider.leave(name("c")).await.expect("a member that is up");
    c.until(|view| view.own_status == Some(NodeStatus::Removed)).await;
    a.until(|view| view.status(&name("c")) == Some(NodeStatus::Removed)).await;
    assert_eq!(a.states_of("c"), [NodeStatus::Leaving, NodeStatus::Removed]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_downed_by_mistake_is_told_and_returns_in_a_new_life() {
    let [mut a, mut b, mut c] = cluster().await;
    a.provider.down(name("c")).await.expect("a member that is up");
    a.until(|view| view.status(&name("c")) == Some(NodeStatus::Dead)).await;
    c.until(|view| view.own.as_ref().is_some_and(|own| own.incarnation.get() == 2)).await;
    let declared_dead = c.events().into_iter().any(|event| {
        matches!(&*event, ClusterEvent::SelfRejoining { reason: RejoinReason::DeclaredDead, .. })
    });
    assert!(declared_dead, "it was told why");
    let stored = c.config.incarnations.lock().expect("a lock").load();
    assert_eq!(stored, Ok(c.view().own.as_ref().map(|own| own.incarnation)));
    agree([&mut a, &mut b, &mut c]).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_split_the_lighter_side_yields_and_all_views_are_equal() {
    let [mut a, mut b, mut c] = cluster().await;
    let network = a.config.network.clone();
    for other in ["a", "b"] {
        network.disconnect(&authority("c"), &authority(other));
    }
    for node in [&a, &b] {
        node.until(|view| view.status(&name("c")) == Some(NodeStatus::Dead)).await;
    }
    let alone = |view: &MembershipView| {
        ["a", "b"].iter().all(|other| view.status(&name(other)) == Some(NodeStatus::Dead))
    };
    c.until(alone).await;

    for other in ["a", "b"] {
        network.reconnect(&authority("c"), &authority(other));
    }
    agree([&mut a, &mut b, &mut c]).await;

    // The majority kept its lives; the one that had been alone began a new one.
    let life = |node: &Node| node.view().own.as_ref().map(|own| own.incarnation.get());
    assert_eq!([life(&a), life(&b), life(&c)], [Some(1), Some(1), Some(2)]);
    let rejoined = c.events().into_iter().find_map(|event| match &*event {
        ClusterEvent::SelfRejoining { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert!(matches!(rejoined, Some(RejoinReason::Outranked | RejoinReason::DeclaredDead)), "{rejoined:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_follows_the_cluster_and_is_no_part_of_it() {
    let [a, b, c] = cluster().await;
    let config = Node::config(&a.config.network, "x", &["a"]);
    let mut client = Node::new(config);
    client.provider.start_client().await.expect("a first start");
    client.applied_until(|update| update.members.len() == 3).await;
    assert_eq!(client.provider.mode(), Some(ClusterMode::Client));
    assert_eq!(client.view().own, None);
    for node in [&a, &b, &c] {
        assert_eq!(node.provider.members().len(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_name_is_started_elsewhere_stops_and_can_be_started_again() {
    let [a, _b, mut c] = cluster().await;
    let (network, old) = (a.config.network.clone(), c.handle());
    // The same name, a later life, another address.
    let mut config = Node::config(&network, "c", &["a"]);
    config.authority = authority("elsewhere");
    config.incarnations = Arc::clone(&c.config.incarnations);
    let successor = Node::start(config).await;
    let exit = tokio::time::timeout(PATIENCE, old.ended()).await.expect("time is up");
    let by = successor.view().own.clone().expect("a member");
    assert_eq!(exit, MembershipExit::Superseded { by, at: authority("elsewhere") });
    assert!(c.provider.membership().is_none());
    c.provider.shutdown(true).await.expect("a stop after the end is harmless");
    assert_eq!((c.provider.mode(), c.provider.members()), (None, vec![]));
    c.provider.start_member().await.expect("a stopped node");
    assert_eq!(c.view().own.as_ref().map(|own| own.incarnation.get()), Some(3));
}

/// A clash of addresses: the newcomer is refused, the others keep what they have, and observers hear of it.
#[tokio::test(start_paused = true)]
async fn whoever_claims_an_address_in_use_is_refused_and_it_is_told() {
    let [mut a, b, _c] = cluster().await;
    a.events();
    let digest = a.view().digest;
    let newcomer = MemberId::new(name("other"), Incarnation::FIRST);
    let error = a.handle().join(newcomer.clone(), authority("b")).await.expect_err("b is there");
    let held_by = b.view().own.clone().expect("a member");
    let clash =
        MembershipError::AuthorityConflict { authority: authority("b"), held_by, requested_by: newcomer };
    assert_eq!(error.to_string(), clash.to_string());
    let told = a.events().into_iter().any(|event| {
        matches!(&*event, ClusterEvent::Membership { event: MembershipEvent::Refused(refused), .. }
            if *refused == clash)
    });
    assert!(told);
    assert_eq!(a.view().digest, digest);
}

/// Nobody gossips for an hour: what a newcomer knows, it was handed when it was let in.
#[tokio::test(start_paused = true)]
async fn a_newcomer_is_handed_the_membership_with_its_welcome() {
    let network = InMemoryNetwork::default();
    let config = |node: &str, seeds: &[&str]| {
        let mut config = Node::config(&network, node, seeds);
        config.membership.gossip_interval = Duration::from_secs(3600);
        config
    };
    let a = Node::start(config("a", &[])).await;
    let b = Node::start(config("b", &["a"])).await;
    b.until(|view| view.records.record(&name("a")).is_some()).await;
    let c = Node::start(config("c", &["a"])).await;
    let began = Instant::now();
    c.until(|view| ["a", "b", "c"].iter().all(|node| view.records.record(&name(node)).is_some())).await;
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(a.view().records.record(&name("c")).is_some());
    assert!(b.view().records.record(&name("c")).is_none(), "nobody told the other one yet");
}

/// Two processes under one name and life, each let in by one side of a split: all settle on the same one, the other record is
/// told as rejected, and until they agree nothing is changed from outside.
#[tokio::test(start_paused = true)]
async fn views_that_contradict_each_other_are_settled_the_same_way_everywhere() {
    let network = InMemoryNetwork::default();
    let mut a = Node::start(Node::config(&network, "a", &[])).await;
    let mut b = Node::start(Node::config(&network, "b", &["a"])).await;
    for node in [&a, &b] {
        node.until(|view| ["a", "b"].iter().all(|other| is_up(view, other))).await;
    }
    let separated = |network: &InMemoryNetwork, change: fn(&InMemoryNetwork, &Authority, &Authority)| {
        for (one, other) in [("a", "b"), ("a", "x2"), ("b", "x1"), ("x1", "x2")] {
            change(network, &authority(one), &authority(other));
        }
    };
    separated(&network, InMemoryNetwork::disconnect);
    let claimant = |address: &str, seed: &str| {
        let mut config = Node::config(&network, "x", &[seed]);
        config.authority = authority(address);
        config
    };
    let _first = Node::start(claimant("x1", "a")).await;
    let _second = Node::start(claimant("x2", "b")).await;
    for node in [&a, &b] {
        node.until(|view| is_up(view, "x")).await;
    }
    a.events();
    b.events();
    // The two sides meet, while one who has to agree is out of reach.
    let witness = Node::start(Node::config(&network, "w", &["a"])).await;
    a.until(|view| is_up(view, "w")).await;
    let cut_off = |change: fn(&InMemoryNetwork, &Authority, &Authority)| {
        for other in ["a", "b", "x1", "x2"] {
            change(&network, &authority("w"), &authority(other));
        }
    };
    cut_off(InMemoryNetwork::disconnect);
    network.reconnect(&authority("a"), &authority("b"));
    let found = async {
        loop {
            for node in [&mut a, &mut b] {
                let events = node.events();
                let rejected = events.iter().find_map(|event| match &**event {
                    ClusterEvent::Gossip {
                        event: GossipEvent::ConflictDetected { accepted, rejected, .. },
                        ..
                    } => Some((accepted.authority.clone(), rejected.authority.clone())),
                    _ => None,
                });
                if let Some((accepted, rejected)) = rejected {
                    return (node.handle(), accepted, rejected);
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, found).await.expect("the contradiction is found");
    let (finder, accepted, rejected) = found;
    assert_ne!(accepted, rejected);
    let newcomer = MemberId::new(name("y"), Incarnation::FIRST);
    let error = finder.join(newcomer.clone(), authority("y")).await.expect_err("a contradiction");
    assert_eq!(error.to_string(), MembershipError::UnresolvedConflict.to_string());
    // Everybody meets everybody. All hold one record, and changes are welcome again.
    separated(&network, InMemoryNetwork::reconnect);
    cut_off(InMemoryNetwork::reconnect);
    let holder =
        |view: &MembershipView| view.records.record(&name("x")).map(|record| record.authority.clone());
    let settled =
        |view: &MembershipView| view.phase == Some(GossipPhase::Confirmed) && holder(view).is_some();
    a.until(settled).await;
    b.until(|view| settled(view) && holder(view) == holder(&a.view())).await;
    witness.until(|view| settled(view) && holder(view) == holder(&a.view())).await;
    assert_eq!(holder(&a.view()), Some(accepted));
    finder.join(newcomer, authority("y")).await.expect("no contradiction");
}

/// With keep-majority the side that finds itself cut off gives up nobody, and says so; the other one decides, and all
/// follow it when they meet again.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_cut_off_follows_the_majority() {
    let network = InMemoryNetwork::default();
    let config = |node: &str, seeds: &[&str]| {
        let mut config = Node::config(&network, node, seeds);
        config.membership.downing = Arc::new(KeepMajority::default());
        config
    };
    let mut a = Node::start(config("a", &[])).await;
    let mut b = Node::start(config("b", &["a"])).await;
    let mut c = Node::start(config("c", &["a", "b"])).await;
    agree([&mut a, &mut b, &mut c]).await;
    for other in ["a", "b"] {
        network.disconnect(&authority("c"), &authority(other));
    }
    for node in [&a, &b] {
        node.until(|view| view.status(&name("c")) == Some(NodeStatus::Dead)).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let lost = c
        .events()
        .into_iter()
        .any(|event| matches!(&*event, ClusterEvent::QuorumLost { reachable: 1, suspected: 2, .. }));
    assert!(lost);
    for other in ["a", "b"] {
        assert_eq!(c.view().status(&name(other)), Some(NodeStatus::Suspect));
        network.reconnect(&authority("c"), &authority(other));
    }
    agree([&mut a, &mut b, &mut c]).await;
    assert!(c.view().own.as_ref().is_some_and(|own| own.incarnation.get() == 2), "it joined the others anew");
}

/// A node under observation.
struct Node {
    config: LocalClusterConfig,
    provider: LocalClusterProvider,
    applied: watch::Receiver<Option<TopologyUpdate>>,
    stream: Subscription,
}

impl Node {
    fn config(network: &InMemoryNetwork, node: &str, seeds: &[&str]) -> LocalClusterConfig {
        let mut config = LocalClusterConfig::new(name(node), authority(node), network.clone());
        config.membership.seeds = seeds.iter().map(|seed| authority(seed)).collect();
        config.seed = Some(node.bytes().map(u64::from).sum());
        config
    }

    fn new(config: LocalClusterConfig) -> Self {
        let provider = LocalClusterProvider::new(config.clone()).expect("sound settings");
        let (sender, applied) = watch::channel(None);
        provider.add_topology_listener(Box::new(Recorder(sender)));
        let stream = provider.events().subscribe();
        Self { config, provider, applied, stream }
    }

    async fn start(config: LocalClusterConfig) -> Self {
        let mut node = Self::new(config);
        node.provider.start_member().await.expect("a first start");
        node
    }

    fn handle(&self) -> MembershipHandle {
        self.provider.membership().expect("a running node").clone()
    }

    fn view(&self) -> Arc<MembershipView> {
        self.handle().view()
    }

    async fn until(&self, condition: impl FnMut(&MembershipView) -> bool) {
        let handle = self.handle();
        let reached = tokio::time::timeout(PATIENCE, handle.wait_until(condition)).await;
        reached
            .unwrap_or_else(|_| panic!("time is up, the view is {:#?}", self.view()))
            .expect("a running node");
    }

    async fn applied_until(&mut self, condition: impl Fn(&TopologyUpdate) -> bool) -> TopologyUpdate {
        let reached = self.applied.wait_for(|update| update.as_ref().is_some_and(&condition));
        let update = tokio::time::timeout(PATIENCE, reached).await.expect("time is up").expect("a listener");
        update.clone().expect("an update")
    }

    /// What was published since the last call.
    fn events(&mut self) -> Vec<Arc<ClusterEvent>> {
        let deliveries = std::iter::from_fn(|| self.stream.try_recv());
        deliveries
            .map(|delivery| match delivery {
                Delivery::Event(event) => event,
                Delivery::Missed(events) => panic!("{events} events were missed"),
            })
            .collect()
    }

    /// The states that `node` went through since the last call.
    fn states_of(&mut self, node: &str) -> Vec<NodeStatus> {
        let events = self.events();
        let states = events.iter().filter_map(|event| match &**event {
            ClusterEvent::MemberStatusChanged { member, to, .. } if member.node == name(node) => Some(*to),
            _ => None,
        });
        states.collect()
    }
}

struct Recorder(watch::Sender<Option<TopologyUpdate>>);

impl TopologyListener for Recorder {
    fn topology_applied(&mut self, update: &TopologyUpdate, _departed: &[Member]) {
        self.0.send_replace(Some(update.clone()));
    }
}

/// Three nodes that are up in each other's eyes and have applied it.
async fn cluster() -> [Node; 3] {
    let network = InMemoryNetwork::default();
    let a = Node::start(Node::config(&network, "a", &[])).await;
    let b = Node::start(Node::config(&network, "b", &["a"])).await;
    let c = Node::start(Node::config(&network, "c", &["a", "b"])).await;
    let mut nodes = [a, b, c];
    agree(nodes.each_mut()).await;
    nodes
}

/// Waits until the nodes hold one view in which all of them are up, and have applied it.
async fn agree(nodes: [&mut Node; 3]) {
    let settled = |view: &MembershipView| {
        view.phase == Some(GossipPhase::Confirmed)
            && view.members.len() == 3
            && ["a", "b", "c"].iter().all(|node| is_up(view, node))
    };
    for node in &nodes {
        node.until(settled).await;
    }
    let digest = nodes[0].view().digest;
    for node in nodes {
        node.until(|view| settled(view) && view.digest == digest).await;
        let judged = node.view().members.clone();
        node.applied_until(|update| update.members == judged).await;
        assert_eq!(node.provider.members(), judged);
    }
}

fn is_up(view: &MembershipView, node: &str) -> bool {
    view.status(&name(node)) == Some(NodeStatus::Up)
}

fn name(node: &str) -> NodeId {
    NodeId::new(node).expect("a name")
}

fn authority(node: &str) -> Authority {
    Authority::new(&format!("{node}:8401")).expect("an authority")
}

/// How much virtual time anything may take.
const PATIENCE: Duration = Duration::from_secs(300);
