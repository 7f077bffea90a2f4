//! Grains that change their host, on nodes over real sockets. Rosters are given by hand, so that views can differ.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use synod_cluster::grains::{Grain, GrainContext, GrainError, GrainKind, Grains, GrainsConfig, RetryPolicy};
use synod_cluster::remote::{Message, Remote, RemoteConfig};
use synod_cluster::{Delivery, EventStream, MonotonicClock, Subscription};
use synod_core::gossip::GossipMemberId;
use synod_core::grains::{ActivationEvent, ClusterIdentity, GrainEvent, GrainSnapshot, PlacementHash};
use synod_core::membership::ClusterEvent;
use synod_core::roster::{PeerRuntime, RosterMember, RosterUpdate};

const PATIENCE: Duration = Duration::from_secs(20);

/// Adds up what it is told. Its state is the sum.
struct Sum(u64);

impl Grain for Sum {
    async fn activate(
        &mut self,
        _: &mut GrainContext,
        snapshot: Option<GrainSnapshot>,
    ) -> Result<(), GrainError> {
        self.0 = snapshot.map_or(0, |snapshot| snapshot.version);
        Ok(())
    }

    async fn call(&mut self, _: &mut GrainContext, method: i32, _: Bytes) -> Result<Message, GrainError> {
        self.0 += u64::try_from(method).map_err(|error| GrainError::invalid_argument(error.to_string()))?;
        Ok(Message::new(&self.0.to_string()))
    }

    async fn deactivate(&mut self, _: &mut GrainContext) -> Option<GrainSnapshot> {
        Some(GrainSnapshot { version: self.0, bytes: Arc::from([]) })
    }
}

struct Node {
    member: RosterMember,
    grains: Grains,
    remote: Remote,
    events: Subscription,
}

impl Node {
    async fn start(name: &str) -> Self {
        let (stream, clock) = (EventStream::default(), MonotonicClock::start());
        let config = RemoteConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        let remote = Remote::bind(config, stream.clone(), clock).await.expect("a node on loopback");
        remote.open(name);
        let id = GossipMemberId::new(&format!("{name}#1")).expect("an id");
        let mut config = GrainsConfig::default();
        config.activation.placement = PlacementHash::Synod;
        config.activation.handover_patience = PATIENCE;
        config.router.retry = RetryPolicy::Fixed { retries: 100, delay: Duration::from_millis(20) };
        let events = stream.subscribe_live();
        let kinds = vec![GrainKind::new("Sum", |_: &ClusterIdentity| Sum(0))];
        let grains =
            Grains::start(config, kinds, id.clone(), &remote, stream, clock).expect("sound settings");
        let (authority, kinds) = (remote.authority().clone(), vec!["Sum".to_owned()]);
        let member = RosterMember { id, authority, kinds, runtime: PeerRuntime::Synod };
        Self { member, grains, remote, events }
    }

    fn see(&self, nodes: &[&Self]) {
        let members: Vec<_> = nodes.iter().map(|node| node.member.clone()).collect();
        let update = RosterUpdate { hash: 0, members, joined: vec![], left: vec![] };
        self.grains.handle_roster(&update);
    }

    async fn add(&self, identity: &str, number: i32) -> u64 {
        let grain = self.grains.grain_ref("Sum", identity).expect("a name").with_timeout(PATIENCE);
        let sum: String = grain.call(number, &String::new()).await.expect("an answer");
        sum.parse().expect("a number")
    }

    /// Waits for an event of a grain that fits.
    async fn expect(&mut self, mut fits: impl FnMut(&ActivationEvent) -> bool) {
        let expected = async {
            loop {
                let Some(Delivery::Event(event)) = self.events.recv().await else { continue };
                if let ClusterEvent::Grain { event: GrainEvent::Activation(event), .. } = &*event
                    && fits(event)
                {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, expected).await.expect("in time");
    }

    async fn stop(self) {
        self.grains.stop();
        self.remote.shutdown(Duration::ZERO).await;
    }
}

/// Identities that belong to `owner` among both.
fn owned(owner: &Node, other: &Node, count: usize) -> Vec<String> {
    let members = [owner.member.clone(), other.member.clone()];
    (0..)
        .map(|number| format!("user:{number}"))
        .filter(|identity| {
            let grain = ClusterIdentity::new("Sum", identity).expect("a name");
            PlacementHash::Synod.owner(&grain, &members).is_some_and(|found| found.id == owner.member.id)
        })
        .take(count)
        .collect()
}

/// The new owner hears of the change first and is called at once; the old one does not know yet that it is one.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_owner_starts_only_after_the_old_one_and_with_its_state() {
    let (a, b) = (Node::start("a").await, Node::start("b").await);
    let moving = owned(&b, &a, 20);
    a.see(&[&a]);
    for identity in &moving {
        assert_eq!(a.add(identity, 5).await, 5);
    }
    b.see(&[&a, &b]);
    for identity in &moving {
        assert_eq!(b.add(identity, 1).await, 6, "{identity}");
    }
    assert_eq!(a.grains.activation_counts()["Sum"], 0, "the old owner has yielded");
    a.see(&[&a, &b]);
    for identity in &moving {
        assert_eq!(a.add(identity, 1).await, 7, "{identity}: it is found at the new owner");
    }
    let (ours, theirs) = (b.grains.handover_counts(), a.grains.handover_counts());
    assert_eq!((ours.claimed, ours.missed, ours.duplicates, ours.snapshots_dropped), (20, 0, 0, 0));
    assert_eq!((theirs.yielded, theirs.snapshots_dropped), (20, 0));
    a.stop().await;
    b.stop().await;
}

/// Both ran the same grains while they did not know each other. When they meet, each grain stays where it belongs, and
/// its owner says that there were two.
#[tokio::test(flavor = "multi_thread")]
async fn of_grains_that_ran_twice_one_stays_and_it_is_told() {
    let (mut a, mut b) = (Node::start("a").await, Node::start("b").await);
    let (of_a, of_b) = (owned(&a, &b, 5), owned(&b, &a, 5));
    a.see(&[&a]);
    b.see(&[&b]);
    for identity in of_a.iter().chain(&of_b) {
        assert_eq!((a.add(identity, 1).await, b.add(identity, 10).await), (1, 10));
    }
    a.see(&[&a, &b]);
    b.see(&[&a, &b]);
    let mut told = Vec::new();
    for (owner, count) in [(&mut a, 5), (&mut b, 5)] {
        let authority = owner.member.authority.clone();
        let mut found = 0;
        owner
            .expect(|event| {
                if let ActivationEvent::Duplicate { grain, kept: Some(kept), stopped } = event {
                    assert!(*kept.authority() == authority && *stopped.authority() != authority);
                    told.push(grain.identity().to_owned());
                    found += 1;
                }
                found == count
            })
            .await;
    }
    told.sort();
    let mut expected: Vec<_> = of_a.iter().chain(&of_b).cloned().collect();
    expected.sort();
    assert_eq!(told, expected);
    for node in [&a, &b] {
        assert_eq!(node.grains.activation_counts()["Sum"], 5);
        assert_eq!(node.grains.handover_counts().duplicates, 5);
        // Everybody finds the one that stayed.
        for identity in &of_a {
            assert!(node.add(identity, 0).await < 10);
        }
        for identity in &of_b {
            assert!(node.add(identity, 0).await >= 10);
        }
    }
    a.stop().await;
    b.stop().await;
}

/// A node that leaves waits until its successor has confirmed every state.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_leaves_goes_when_its_states_have_arrived() {
    let (a, b) = (Node::start("a").await, Node::start("b").await);
    a.see(&[&a, &b]);
    b.see(&[&a, &b]);
    let moving = owned(&a, &b, 20);
    for identity in &moving {
        assert_eq!(b.add(identity, 3).await, 3);
    }
    assert!(a.grains.drain(PATIENCE).await);
    a.stop().await;
    b.see(&[&b]);
    for identity in &moving {
        assert_eq!(b.add(identity, 1).await, 4, "{identity}");
    }
    b.stop().await;
}
