//! The tour: what a cluster can do, a step at a time, each with its time and, when it fails, its reason.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Serialize, Serializer};
use synod_core::gossip::{GossipKey, GossipValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{COUNTER_ADD, COUNTER_KIND, COUNTER_WHERE, GREETER, Greeter, Node, QuickstartBootstrap};
use crate::cluster::Cluster;
use crate::gossiper::Gossiper;
use crate::provider::ClusterProvider;
use crate::pubsub::{Guarantee, PubSubError, TopicOptions};
use crate::remote::{Message, Pid};

/// One step of the tour, done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QuickstartStep {
    /// Which step, in one word.
    pub step: &'static str,
    /// The node that it is about; `None` for steps about all of them.
    pub node: Option<String>,
    /// Whether it did what it should.
    pub ok: bool,
    /// How long it took; in JSON as `ms`, a number of milliseconds.
    #[serde(rename = "ms", serialize_with = "milliseconds")]
    pub elapsed: Duration,
    /// What was seen, or why it failed.
    pub detail: String,
}

impl QuickstartStep {
    /// A step that saw something, or failed for a reason.
    #[must_use]
    pub fn new(
        step: &'static str,
        node: Option<&str>,
        elapsed: Duration,
        seen: Result<String, String>,
    ) -> Self {
        let ok = seen.is_ok();
        let (Ok(detail) | Err(detail)) = seen;
        Self { step, node: node.map(str::to_owned), ok, elapsed, detail }
    }
}

/// All steps together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuickstartReport {
    /// The steps, in order.
    pub steps: Vec<QuickstartStep>,
    /// How long they took together.
    pub elapsed: Duration,
}

impl QuickstartReport {
    /// Steps and how long they took together.
    #[must_use]
    pub const fn new(steps: Vec<QuickstartStep>, elapsed: Duration) -> Self {
        Self { steps, elapsed }
    }

    /// Whether every step did what it should.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failures() == 0
    }

    /// How many steps did not.
    #[must_use]
    pub fn failures(&self) -> usize {
        self.steps.iter().filter(|step| !step.ok).count()
    }
}

type Tell<'a> = &'a mut (dyn FnMut(&QuickstartStep) + Send);

/// What a step saw, or why it failed.
type Seen = Result<String, String>;

struct Guide<'a> {
    tell: Tell<'a>,
    started: Instant,
    steps: Vec<QuickstartStep>,
}

impl<'a> Guide<'a> {
    fn new(tell: Tell<'a>) -> Self {
        Self { tell, started: Instant::now(), steps: Vec::new() }
    }

    fn note(&mut self, step: &'static str, node: Option<&str>, elapsed: Duration, seen: Seen) -> bool {
        let step = QuickstartStep::new(step, node, elapsed, seen);
        let ok = step.ok;
        (self.tell)(&step);
        self.steps.push(step);
        ok
    }

    fn finish(self) -> QuickstartReport {
        QuickstartReport { steps: self.steps, elapsed: self.started.elapsed() }
    }
}

pub(super) async fn run(cluster: &mut QuickstartBootstrap, tell: Tell<'_>) -> QuickstartReport {
    let mut guide = Guide::new(tell);
    // Without a cluster there is nothing else to show.
    if form(cluster, &mut guide).await {
        ask_actors(cluster, &mut guide).await;
        activate_counters(cluster, &mut guide).await;
        call_counters(cluster, &mut guide).await;
        gossip(cluster, &mut guide).await;
        look_at_api(cluster, &mut guide).await;
        publish(cluster, &mut guide).await;
        lose_a_node(cluster, &mut guide).await;
        leave_politely(cluster, &mut guide).await;
    }
    guide.finish()
}

pub(super) async fn stop(cluster: &mut QuickstartBootstrap, tell: Tell<'_>) -> QuickstartReport {
    let mut guide = Guide::new(tell);
    // All at once, but for the first, which stays to hear the others go.
    let (first, others) = cluster.nodes.split_at_mut(1);
    for nodes in [others, first] {
        let mut leaving = JoinSet::new();
        for node in nodes {
            let Some(mut running) = node.running.take() else { continue };
            let (name, started) = (node.name.clone(), Instant::now());
            leaving.spawn(async move { (name, running.shutdown(true).await, started.elapsed()) });
        }
        while let Some(left) = leaving.join_next().await {
            match left {
                Ok((name, left, elapsed)) => {
                    let seen = left.map(|()| "left and stopped".to_owned()).map_err(text);
                    guide.note("stop", Some(&name), elapsed, seen);
                }
                Err(error) => drop(guide.note("stop", None, guide.started.elapsed(), Err(text(error)))),
            }
        }
    }
    guide.finish()
}

/// Starts all nodes and waits until each says that all of them are there.
async fn form(cluster: &mut QuickstartBootstrap, guide: &mut Guide<'_>) -> bool {
    for index in 0..cluster.nodes.len() {
        let started = Instant::now();
        let seen = cluster.start(index, Duration::ZERO).await;
        let seen = seen.map(|authority| format!("listens on {authority}")).map_err(text);
        if !guide.note("start", Some(&cluster.nodes[index].name), started.elapsed(), seen) {
            return false;
        }
    }
    let started = Instant::now();
    let agreed = agree(cluster).await;
    if !guide.note("form", None, started.elapsed(), agreed) {
        return false;
    }
    for node in &cluster.nodes {
        let started = Instant::now();
        let members = node.running.as_ref().map(Cluster::roster).unwrap_or_default();
        let names: Vec<_> = members.iter().map(|member| cluster.name_at(member.authority.as_str())).collect();
        let seen = format!("sees {} members: {}", names.len(), list(&names));
        let seen = if names.len() == cluster.nodes.len() { Ok(seen) } else { Err(seen) };
        guide.note("members", Some(&node.name), started.elapsed(), seen);
    }
    true
}

/// Waits until the rosters are complete, and until the nodes have told each other so.
async fn agree(cluster: &QuickstartBootstrap) -> Seen {
    settle(cluster).await?;
    let (mut hashes, deadline) = (BTreeSet::new(), Instant::now() + PATIENCE);
    for node in cluster.nodes() {
        let patience = deadline.saturating_duration_since(Instant::now());
        hashes.insert(node.topology_consensus(patience).await.map_err(text)?);
    }
    match hashes.first() {
        Some(hash) if hashes.len() == 1 => {
            Ok(format!("{} nodes agree on topology {hash:016x}", cluster.nodes().count()))
        }
        _ => Err(format!("the nodes hold {} different topologies", hashes.len())),
    }
}

/// Waits until each running node lists all running nodes and nobody else, with the kinds that they host.
async fn settle(cluster: &QuickstartBootstrap) -> Result<(), String> {
    let expected: BTreeSet<_> =
        cluster.addresses().map(|(_, authority)| authority.as_str().to_owned()).collect();
    let lists_all = |node: &Cluster| {
        let roster = node.roster();
        let listed: BTreeSet<_> = roster.iter().map(|member| member.authority.as_str().to_owned()).collect();
        listed == expected && roster.iter().all(|member| !member.kinds.is_empty())
    };
    // Watched before they are looked at, so that no change is missed in between.
    let mut watched: Vec<_> = cluster.nodes().map(|node| (node, node.events().watch_roster())).collect();
    let settled = async {
        while let Some((_, rosters)) = watched.iter_mut().find(|(node, _)| !lists_all(node)) {
            // The events of a node last as long as the node.
            rosters.changed().await.ok();
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.map_err(|_| {
        let late =
            cluster.nodes.iter().filter(|node| node.running.as_ref().is_some_and(|node| !lists_all(node)));
        let late: Vec<_> = late.map(|node| node.name.as_str()).collect();
        format!("after {PATIENCE:?} not all members are listed by {}", list(&late))
    })
}

/// Every node asks the sample actor of every other.
async fn ask_actors(cluster: &QuickstartBootstrap, guide: &mut Guide<'_>) {
    for node in &cluster.nodes {
        let started = Instant::now();
        let seen = ask_from(cluster, node).await;
        guide.note("actor", Some(&node.name), started.elapsed(), seen);
    }
}

async fn ask_from(cluster: &QuickstartBootstrap, node: &Node) -> Seen {
    let remote = node.running.as_ref().and_then(Cluster::remote).ok_or("the node does not run")?;
    let mut asked = Vec::new();
    for (name, authority) in cluster.addresses().filter(|(name, _)| *name != node.name) {
        let target = Pid::new(authority.as_str(), GREETER);
        let answer: Result<String, _> = remote.ask(&target, Message::new(&node.name), CALL_PATIENCE).await;
        let answer = answer.map_err(|error| format!("{target}: {error}"))?;
        if answer != Greeter::greeting(name, &node.name) {
            return Err(format!("{target} answered {answer:?}"));
        }
        asked.push(name);
    }
    Ok(format!("asks {GREETER} on {}: all answer", list(&asked)))
}

/// Calls counters that nobody has started until each node hosts one.
async fn activate_counters(cluster: &mut QuickstartBootstrap, guide: &mut Guide<'_>) {
    let started = Instant::now();
    let seen = find_counters(cluster).await;
    guide.note("activate", None, started.elapsed(), seen);
}

async fn find_counters(cluster: &mut QuickstartBootstrap) -> Seen {
    let first = cluster.nodes().next().ok_or("no node runs")?;
    let mut counters = std::collections::BTreeMap::<String, Vec<String>>::new();
    let mut number = 0;
    while counters.len() < cluster.nodes.len() || number < cluster.nodes.len() * COUNTERS_PER_NODE {
        if number == COUNTERS_MAX {
            let hosts = counters.len();
            return Err(format!(
                "{COUNTERS_MAX} counters live on only {hosts} of {} nodes",
                cluster.nodes.len()
            ));
        }
        number += 1;
        let identity = format!("visits-{number}");
        let host = host_of(first, &identity).await?;
        counters.entry(host).or_default().push(identity);
    }
    let hosts: Vec<_> = counters.iter().map(|(host, on)| format!("{} on {host}", on.len())).collect();
    let seen = format!("{number} counters, started by their first call: {}", list(&hosts));
    cluster.counters = counters;
    Ok(seen)
}

/// Every node calls the counters of every other, and each counter has heard them all in the end.
async fn call_counters(cluster: &QuickstartBootstrap, guide: &mut Guide<'_>) {
    for (round, node) in (1..).zip(&cluster.nodes) {
        let started = Instant::now();
        let seen = call_from(cluster, node, round).await;
        guide.note("call", Some(&node.name), started.elapsed(), seen);
    }
}

async fn call_from(cluster: &QuickstartBootstrap, node: &Node, round: u64) -> Seen {
    let caller = node.running.as_ref().ok_or("the node does not run")?;
    let mut calls = 0;
    for (host, identities) in &cluster.counters {
        for identity in identities {
            let sum = add(caller, identity, CALL_PATIENCE).await?;
            if sum != round {
                return Err(format!(
                    "{identity} on {host} says {sum} after {round} calls: there is more than one"
                ));
            }
            calls += 1;
        }
    }
    let hosts: Vec<_> = cluster.counters.keys().map(String::as_str).collect();
    Ok(format!("adds to {calls} counters on {}: each says {round}", list(&hosts)))
}

/// One node says something, the others read it.
async fn gossip(cluster: &QuickstartBootstrap, guide: &mut Guide<'_>) {
    let started = Instant::now();
    let seen = tell_all(cluster).await;
    guide.note("gossip", None, started.elapsed(), seen);
}

async fn tell_all(cluster: &QuickstartBootstrap) -> Seen {
    let mut nodes = cluster.nodes.iter();
    let (teller, value) = (nodes.next().ok_or("no node runs")?, b"blue");
    let key = GossipKey::new("quickstart.color").map_err(text)?;
    let told = GossipValue::new("example.Color", value).map_err(text)?;
    let gossiper = teller.running.as_ref().and_then(Cluster::gossiper).ok_or("the node does not run")?;
    gossiper.set_state_request(key.clone(), told).await.map_err(text)?;
    let mut readers = Vec::new();
    for node in nodes {
        let gossiper = node.running.as_ref().and_then(Cluster::gossiper).ok_or("the node does not run")?;
        let read = || gossiper.get_state(&key).values().any(|entry| entry.value.bytes() == value);
        let Ok(()) = until(PATIENCE, read).await else {
            return Err(format!("{} did not hear of it within {PATIENCE:?}", node.name));
        };
        readers.push(node.name.as_str());
    }
    Ok(format!("color=blue, set on {}, read on {}", teller.name, list(&readers)))
}

/// The first node says over HTTP that it is ready, if it was told to.
async fn look_at_api(cluster: &QuickstartBootstrap, guide: &mut Guide<'_>) {
    let Some(address) = cluster.api_address() else { return };
    let started = Instant::now();
    let seen = tokio::time::timeout(CALL_PATIENCE, get_ready(address)).await;
    let seen = match seen {
        Ok(Ok(status)) if status.ends_with("200 OK") => Ok(format!("http://{address}/readyz says {status}")),
        Ok(Ok(status)) => Err(format!("http://{address}/readyz says {status}")),
        Ok(Err(error)) => Err(format!("http://{address}/readyz: {error}")),
        Err(_) => Err(format!("http://{address}/readyz said nothing within {CALL_PATIENCE:?}")),
    };
    guide.note("api", Some(&cluster.nodes[0].name), started.elapsed(), seen);
}

/// The first line of the answer.
async fn get_ready(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).await?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

/// Every node publishes to a topic, and subscribers on all of them hear everything.
async fn publish(cluster: &QuickstartBootstrap, guide: &mut Guide<'_>) {
    let started = Instant::now();
    let seen = publish_news(cluster).await;
    guide.note("publish", None, started.elapsed(), seen);
}

async fn publish_news(cluster: &QuickstartBootstrap) -> Seen {
    let topics: Vec<_> =
        cluster.nodes.iter().filter_map(|node| Some((node, node.running.as_ref()?.pubsub()?))).collect();
    let options = TopicOptions { guarantee: Guarantee::AtLeastOnce, ..TopicOptions::default() };
    let (_, first) = topics.first().ok_or("no node runs")?;
    match first.create_topic(TOPIC, options).await {
        Ok(()) | Err(PubSubError::AlreadyCreated { .. }) => {}
        Err(error) => return Err(error.to_string()),
    }
    let mut listeners = Vec::new();
    for (node, pubsub) in &topics {
        listeners.push((&node.name, pubsub.subscribe_channel(TOPIC, topics.len()).await.map_err(text)?));
    }
    let mut published = Vec::new();
    for (node, pubsub) in &topics {
        let news = format!("{} is up", node.name);
        pubsub.publish(TOPIC, &news).await.map_err(text)?;
        published.push(news);
    }
    let mut hearers = Vec::new();
    for (name, mut listener) in listeners {
        for news in &published {
            match tokio::time::timeout(CALL_PATIENCE, listener.recv()).await {
                Ok(Some(message)) if message.decode::<String>().as_ref() == Ok(news) => {}
                Ok(Some(message)) => return Err(format!("{name} heard {message:?} instead of {news:?}")),
                _ => return Err(format!("{name} did not hear {news:?} within {CALL_PATIENCE:?}")),
            }
        }
        listener.unsubscribe().await.map_err(text)?;
        hearers.push(name);
    }
    let count = published.len();
    Ok(format!(
        "{count} messages to the topic {TOPIC}, one from each node: heard in order on {}",
        list(&hearers)
    ))
}

/// A node is gone without a word. The others notice, and its grains are found elsewhere.
async fn lose_a_node(cluster: &mut QuickstartBootstrap, guide: &mut Guide<'_>) {
    let victim = cluster.nodes.len() - 1;
    let name = cluster.nodes[victim].name.clone();
    let orphans = cluster.counters.remove(&name).unwrap_or_default();
    let started = Instant::now();
    drop(cluster.nodes[victim].running.take());
    let killed = Instant::now();
    let seen = format!("killed without a word; {} counters lived there", orphans.len());
    guide.note("kill", Some(&name), killed - started, Ok(seen));

    let detected = async {
        let settled = settle(cluster).await;
        (settled.map(|()| "every other node has given it up".to_owned()), killed.elapsed())
    };
    let recovered = async { (call_until_answered(cluster, &orphans).await, killed.elapsed()) };
    let ((detected, detected_after), (recovered, recovered_after)) = tokio::join!(detected, recovered);
    guide.note("detect", Some(&name), detected_after, detected);
    guide.note("recover", None, recovered_after, recovered);
    come_back(cluster, guide, victim).await;
}

/// A node says goodbye. Nobody has to find out, and its grains are found elsewhere.
async fn leave_politely(cluster: &mut QuickstartBootstrap, guide: &mut Guide<'_>) {
    let leaver = 1;
    let name = cluster.nodes[leaver].name.clone();
    // Some have moved since they were first found.
    let found = find_counters(cluster).await;
    let movers = cluster.counters.remove(&name).unwrap_or_default();
    let Some(mut running) = cluster.nodes[leaver].running.take() else { return };
    let started = Instant::now();
    let seen = async {
        running.shutdown(true).await.map_err(text)?;
        settle(cluster).await?;
        Ok("left; every other node knows".to_owned())
    };
    let seen = seen.await;
    guide.note("leave", Some(&name), started.elapsed(), seen);
    let started = Instant::now();
    let seen = match found {
        Ok(_) => call_until_answered(cluster, &movers).await,
        Err(reason) => Err(reason),
    };
    guide.note("move", None, started.elapsed(), seen);
    come_back(cluster, guide, leaver).await;
}

/// The node starts again, as a new incarnation.
async fn come_back(cluster: &mut QuickstartBootstrap, guide: &mut Guide<'_>, index: usize) {
    let started = Instant::now();
    let seen = async {
        let authority = cluster.start(index, PORT_PATIENCE).await.map_err(text)?;
        settle(cluster).await?;
        Ok(format!("is back on {authority}; {} members", cluster.nodes().count()))
    };
    let seen = seen.await;
    guide.note("return", Some(&cluster.nodes[index].name), started.elapsed(), seen);
}

/// Calls each counter from the first node until it answers.
async fn call_until_answered(cluster: &QuickstartBootstrap, identities: &[String]) -> Seen {
    let caller = cluster.nodes().next().ok_or("no node runs")?;
    let deadline = Instant::now() + PATIENCE;
    let (mut failures, mut hosts) = (0, BTreeSet::new());
    for identity in identities {
        while let Err(error) = add(caller, identity, RETRY_PATIENCE).await {
            failures += 1;
            if Instant::now() >= deadline {
                return Err(format!("{error}, and so {failures} times within {PATIENCE:?}"));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        hosts.insert(host_of(caller, identity).await?);
    }
    let hosts: Vec<_> = hosts.into_iter().collect();
    let (count, hosts) = (identities.len(), list(&hosts));
    Ok(format!("{count} counters answer again, on {hosts}; failed calls until then: {failures}"))
}

async fn add(caller: &Cluster, identity: &str, patience: Duration) -> Result<u64, String> {
    let grain = caller.grain_ref(COUNTER_KIND, identity).map_err(text)?.with_timeout(patience);
    grain.call(COUNTER_ADD, &1_u64).await.map_err(text)
}

async fn host_of(caller: &Cluster, identity: &str) -> Result<String, String> {
    let grain = caller.grain_ref(COUNTER_KIND, identity).map_err(text)?.with_timeout(CALL_PATIENCE);
    grain.call(COUNTER_WHERE, &()).await.map_err(text)
}

struct Late;

/// Looks again and again until `done`.
async fn until(patience: Duration, mut done: impl FnMut() -> bool) -> Result<(), Late> {
    let deadline = Instant::now() + patience;
    while !done() {
        if Instant::now() >= deadline {
            return Err(Late);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Ok(())
}

impl QuickstartBootstrap {
    /// The name of the node that listens on `address`, or the address of a stranger.
    fn name_at(&self, address: &str) -> String {
        let known = self.addresses().find(|(_, authority)| authority.as_str() == address);
        known.map_or(address, |(name, _)| name).to_owned()
    }
}

/// Names for people: all of a few, the first of many.
fn list(names: &[impl AsRef<str>]) -> String {
    let (shown, rest) =
        if names.len() > NAMES_SHOWN { names.split_at(NAMES_SHOWN - 1) } else { (names, &[][..]) };
    let shown: Vec<_> = shown.iter().map(AsRef::as_ref).collect();
    let shown = shown.join(", ");
    if rest.is_empty() { shown } else { format!("{shown} and {} more", rest.len()) }
}

fn text(error: impl Display) -> String {
    error.to_string()
}

fn milliseconds<S: Serializer>(elapsed: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(elapsed.as_micros() as f64 / 1000.0)
}

/// The topic of the tour.
const TOPIC: &str = "news";
/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// How long a step may take before it counts as failed.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a call may take while all nodes are up.
const CALL_PATIENCE: Duration = Duration::from_secs(5);
/// How long a node that comes back waits for its port.
const PORT_PATIENCE: Duration = Duration::from_secs(5);
/// How long a call may take while a node is lost.
const RETRY_PATIENCE: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Most names in one line.
const NAMES_SHOWN: usize = 4;
const COUNTERS_PER_NODE: usize = 4;
/// With so many counters every one of sixteen nodes hosts some, almost surely.
const COUNTERS_MAX: usize = 1000;
