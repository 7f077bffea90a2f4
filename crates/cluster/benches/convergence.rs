//! How long a new cluster takes to agree on its members, beside the goal of one second.
//!
//!     cargo bench -p synod-cluster --bench convergence
//!     cargo bench -p synod-cluster --bench convergence -- --rounds 50 --kills 3 --timers quickstart
//!
//! Whole nodes of one process on loopback, with the timers of production unless told otherwise: the first starts alone, the
//! others know its address. The clock starts when the last `start_member()` has returned, and four stages are shown:
//! `table` until every node holds every member as up, `topology` until every node has told its own parts so, `hosts` until
//! every node knows what grains each member hosts, `consensus` until every node knows that all have the same topology.
//! Then a node is dropped without a word; how long the others take to suspect it and to give it up is for information,
//! because the timers of the failure detector decide it.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use synod_cluster::event_stream::{Delivery, Subscription};
use synod_cluster::grains::{Grain, GrainContext, GrainError, GrainKind};
use synod_cluster::membership::{MembershipHandle, MembershipView};
use synod_cluster::quickstart::{demo_gossip, demo_membership};
use synod_cluster::remote::{Message, RemoteConfig};
use synod_cluster::{Cluster, ClusterConfig, ClusterProvider};
use synod_core::NodeId;
use synod_core::membership::{ClusterEvent, NodeStatus};
use tokio::task::JoinSet;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let load = Load::parse(&arguments)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure(&load))
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

struct Load {
    rounds: usize,
    kills: usize,
    quickstart: bool,
}

impl Load {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut load = Self { rounds: 50, kills: 3, quickstart: false };
        for pair in arguments.chunks(2) {
            let [name, value] = pair else { return Err(format!("{} needs a value", pair[0]).into()) };
            match (name.as_str(), value.as_str()) {
                ("--rounds", value) => load.rounds = value.parse()?,
                ("--kills", value) => load.kills = value.parse()?,
                ("--timers", "production") => load.quickstart = false,
                ("--timers", "quickstart") => load.quickstart = true,
                (name, value) => return Err(format!("unknown setting {name} {value}").into()),
            }
        }
        Ok(load)
    }
}

async fn measure(load: &Load) -> Result<(), Failure> {
    let timers = if load.quickstart { "quickstart" } else { "production" };
    let mut out = std::io::stdout().lock();
    writeln!(out, "from the last start until all agree, timers of {timers}, goal {GOAL:?}")?;
    writeln!(out, "nodes  stage         p50 ms   p99 ms   goal/p50   rounds")?;
    drop(out);
    for nodes in SIZES {
        let mut stages = vec![Vec::new(); STAGES.len()];
        for _ in 0..load.rounds {
            let (cluster, took) = form(nodes, load).await?;
            stages.iter_mut().zip(took).for_each(|(stage, took)| stage.push(took));
            drop(cluster);
        }
        for (stage, took) in STAGES.into_iter().zip(stages) {
            show(nodes, stage, took)?;
        }
        let (mut suspected, mut dead) = (Vec::new(), Vec::new());
        for _ in 0..load.kills {
            let (mut cluster, _) = form(nodes, load).await?;
            let victim = cluster.pop().ok_or("no node runs")?;
            let killed = Instant::now();
            let name = victim.node;
            drop(victim.cluster);
            let has = |wanted: fn(NodeStatus) -> bool| {
                let name = name.clone();
                move |view: &MembershipView| view.status(&name).is_some_and(wanted)
            };
            let others: Vec<_> = cluster.iter().map(|node| node.membership.clone()).collect();
            all_views(&others, has(|status| status >= NodeStatus::Suspect)).await?;
            suspected.push(killed.elapsed());
            all_views(&others, has(NodeStatus::is_final)).await?;
            dead.push(killed.elapsed());
        }
        show(nodes, "suspected", suspected)?;
        show(nodes, "given up", dead)?;
    }
    Ok(())
}

struct Node {
    node: NodeId,
    membership: MembershipHandle,
    cluster: Cluster,
}

/// Starts a cluster and waits until it agrees. Says when each stage was reached.
async fn form(nodes: usize, load: &Load) -> Result<(Vec<Node>, [Duration; STAGES.len()]), Failure> {
    let mut cluster: Vec<Node> = Vec::with_capacity(nodes);
    let mut events = Vec::with_capacity(nodes);
    for index in 0..nodes {
        let node: NodeId = format!("n{index}").parse()?;
        let remote = RemoteConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let mut config = ClusterConfig::new(node.clone(), remote);
        if load.quickstart {
            config.membership = demo_membership(nodes);
            config.gossip = demo_gossip(nodes);
        }
        config.kinds.push(GrainKind::new(KIND, |_| Nothing));
        let first = cluster.first().and_then(|first| first.cluster.remote());
        config.membership.seeds.extend(first.map(|remote| remote.authority().clone()));
        let mut member = Cluster::new(config)?;
        events.push(member.events().subscribe_live());
        member.start_member().await?;
        let membership = member.membership().ok_or("the node does not run")?.clone();
        cluster.push(Node { node, membership, cluster: member });
    }
    let started = Instant::now();
    let handles: Vec<_> = cluster.iter().map(|node| node.membership.clone()).collect();
    let table = async {
        all_views(&handles, move |view| {
            view.members.len() == nodes
                && view.members.iter().all(|member| view.status(&member.id.node) == Some(NodeStatus::Up))
        })
        .await?;
        Ok::<_, Failure>(started.elapsed())
    };
    let topology = async {
        let mut told = JoinSet::new();
        events.into_iter().for_each(|events| drop(told.spawn(told_of(nodes, events))));
        while let Some(one) = told.join_next().await {
            one??;
        }
        Ok(started.elapsed())
    };
    let hosts = async {
        for node in &cluster {
            node.cluster.wait_for_hosts(KIND, nodes, PATIENCE).await?;
        }
        Ok(started.elapsed())
    };
    let consensus = async {
        // Before all are there, some agree on less.
        loop {
            let mut hashes = Vec::with_capacity(nodes);
            for node in &cluster {
                node.cluster.wait_for_hosts(KIND, nodes, PATIENCE).await?;
                hashes.push(node.cluster.topology_consensus(PATIENCE).await?);
            }
            if hashes.windows(2).all(|pair| pair[0] == pair[1]) {
                return Ok(started.elapsed());
            }
        }
    };
    let (table, topology, hosts, consensus) = tokio::try_join!(table, topology, hosts, consensus)?;
    Ok((cluster, [table, topology, hosts, consensus]))
}

/// Waits until a topology of so many members was told.
async fn told_of(nodes: usize, mut events: Subscription) -> Result<(), Failure> {
    let found = async {
        while let Some(delivery) = events.recv().await {
            if let Delivery::Event(event) = delivery
                && let ClusterEvent::TopologyUpdated { update } = &*event
                && update.members.len() == nodes
            {
                return Ok(());
            }
        }
        Err(Failure::from("the events ended"))
    };
    tokio::time::timeout(PATIENCE, found).await?
}

/// Waits until the view of every node is as wanted.
async fn all_views(
    nodes: &[MembershipHandle],
    wanted: impl Fn(&MembershipView) -> bool + Clone + Send + 'static,
) -> Result<(), Failure> {
    let mut waiting = JoinSet::new();
    for node in nodes {
        let (node, wanted) = (node.clone(), wanted.clone());
        waiting.spawn(async move { tokio::time::timeout(PATIENCE, node.wait_until(wanted)).await });
    }
    while let Some(one) = waiting.join_next().await {
        one???;
    }
    Ok(())
}

fn show(nodes: usize, stage: &str, mut took: Vec<Duration>) -> Result<(), Failure> {
    took.sort_unstable();
    let Some(last) = took.len().checked_sub(1) else { return Ok(()) };
    let at = |percent: usize| took[(percent * last).div_ceil(100)].as_secs_f64() * 1000.0;
    let ratio = GOAL.as_secs_f64() * 1000.0 / at(50);
    let (p50, p99, rounds) = (at(50), at(99), took.len());
    writeln!(std::io::stdout(), "{nodes:5}  {stage:<10} {p50:9.2} {p99:8.2} {ratio:9.1}x {rounds:8}")?;
    Ok(())
}

/// A grain that is only there to be hosted.
struct Nothing;

impl Grain for Nothing {
    async fn call(&mut self, _: &mut GrainContext, method: i32, _: Bytes) -> Result<Message, GrainError> {
        Err(GrainError::unimplemented(method))
    }
}

/// What the design asks of three nodes on a local network.
const GOAL: Duration = Duration::from_secs(1);
const STAGES: [&str; 4] = ["table", "topology", "hosts", "consensus"];
const SIZES: [usize; 2] = [3, 5];
const KIND: &str = "nothing";
const PATIENCE: Duration = Duration::from_secs(60);
