//! A member of a cluster, perhaps beside protoactor-go nodes, that does what it is told on standard input.
//!
//! It speaks the line protocol of `interop/go/cmd/peer`, so that one test drives both. Each command is one line; its
//! answer is one JSON object on a line of standard output, `{"reply":"<command>",…}`, with `"error"` if it failed.
//! Events are `{"event":"<name>",…}` and come whenever they happen. The log goes to standard error. The end of standard
//! input ends the process at once and without a word to the cluster.
//!
//! ```sh
//! cargo run -p synod-cluster --example peer -- --health-port 6330 --hosts 127.0.0.1:6330
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::process::exit;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use prost::{Message as _, Name};
use serde_json::{Value, json};
use synod_cluster::gossiper::{Gossiper, TokioGossiper, TokioGossiperConfig};
use synod_cluster::grains::{
    Audience, Broadcast, Broadcasts, CallError, ClusterIdentity, Grain, GrainContext, GrainError, GrainKind,
};
use synod_cluster::pubsub::{self, BatchingProducerConfig, Guarantee, SubscriptionId, TopicOptions};
use synod_cluster::remote::{
    Actor, ActorContext, Message, Pid, Remote, RemoteConfig, RequestError, SendError,
};
use synod_cluster::{
    AutomanagedConfig, Cluster, ClusterConfig, ClusterProvider, Delivery, Discovery, PubSub, Subscription,
};
use synod_core::gossip::{GossipKey, GossipValue, GossiperEvent};
use synod_core::grains::PlacementHash;
use synod_core::membership::ClusterEvent;
use synod_core::roster::RosterMember;
use synod_wire::Dialect;
use synod_wire::actor::{self, TerminatedReason, Touch, Touched};
use tokio::sync::{mpsc, watch};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let mut lines = read_commands();
    let mut cluster = Cluster::new(settings(std::env::args().skip(1))?)?;
    let events = cluster.events().subscribe();
    cluster.start_member().await?;
    let (remote, gossiper) = (running(cluster.remote())?.clone(), running(cluster.gossiper())?.clone());
    let (shown, topology) = watch::channel(json!({"hash": "0", "members": []}));
    tokio::spawn(tell_events(events, gossiper.clone(), shown));
    tokio::spawn(tell_broadcasts(cluster.broadcasts()?));
    print(
        "event",
        "ready",
        json!({"id": running(cluster.own())?.to_string(), "address": remote.authority().as_str()}),
    );

    let watcher = remote.spawn(Watcher)?;
    let (spawned, handlers) = (BTreeMap::new(), Vec::new());
    let mut peer = Peer { cluster, remote, gossiper, topology, watcher, spawned, handlers };
    while let Some(line) = lines.recv().await {
        let command = line.split_whitespace().next().unwrap_or_default();
        let fields = peer.run(&line).await.unwrap_or_else(|error| json!({"error": error.to_string()}));
        print("reply", command, fields);
        match command {
            "leave" => {
                print("event", "left", json!({}));
                break;
            }
            "quit" => break,
            _ => {}
        }
    }
    // Nothing that still runs has anything to add.
    exit(0)
}

/// The node that the flags describe.
fn settings(arguments: impl Iterator<Item = String>) -> Result<ClusterConfig> {
    let arguments: Vec<String> = arguments.collect();
    let mut flags = BTreeMap::new();
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return Err(format!("{pair:?} is no flag with its value").into()) };
        if !FLAGS.contains(&name.as_str()) {
            return Err(format!("there is no flag {name}; there are {FLAGS:?}").into());
        }
        flags.insert(name.as_str(), value.as_str());
    }
    let flag = |name: &str, default| flags.get(name).copied().unwrap_or(default);
    let millis = |name: &str, default| flag(name, default).parse().map(Duration::from_millis);
    let here = |port: &str| port.parse().map(|port: u16| SocketAddr::from(([127, 0, 0, 1], port)));

    let mut remote = RemoteConfig::new(here(flag("--remote-port", "0"))?);
    remote.default_dialect = match flag("--default-dialect", "b") {
        "a" => Dialect::A,
        "b" => Dialect::B,
        other => return Err(format!("{other:?} is no dialect").into()),
    };
    let mut config = ClusterConfig::new(flag("--node", "synod").parse()?, remote);
    config.gossip = TokioGossiperConfig::protoactor();
    config.gossip.gossip.heartbeat_expiration = millis("--heartbeat-expiration-ms", "20000")?;
    config.gossip.gossip.gossip_interval = millis("--gossip-interval-ms", "300")?;
    config.kinds = ["RustOnly", "Shared"].map(|kind| GrainKind::new(kind, |_| Counter::default())).into();
    let hosts = flag("--hosts", "127.0.0.1:6330")
        .split(',')
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()?;
    let listen = here(flag("--health-port", "6330"))?;
    let mut automanaged = AutomanagedConfig::new(flag("--cluster", "synod"), listen, hosts);
    automanaged.refresh_interval = millis("--refresh-ms", "500")?;
    config.discovery = Discovery::Automanaged(automanaged);
    Ok(config)
}

/// Lines from standard input. Their end ends the process, unless it is leaving.
fn read_commands() -> mpsc::UnboundedReceiver<String> {
    let (sender, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let mut leaving = false;
        for line in io::stdin().lock().lines().map_while(io::Result::ok) {
            let line = line.trim();
            leaving |= line == "leave";
            if !line.is_empty() && sender.send(line.to_owned()).is_err() {
                return;
            }
        }
        if !leaving {
            exit(0);
        }
    });
    lines
}

fn running<T>(part: Option<T>) -> Result<T> {
    part.ok_or_else(|| "the node is not running".into())
}

struct Peer {
    cluster: Cluster,
    remote: Remote,
    gossiper: TokioGossiper,
    topology: watch::Receiver<Value>,
    watcher: Pid,
    spawned: BTreeMap<String, Arc<Mutex<Seen>>>,
    handlers: Vec<pubsub::Subscription>,
}

/// A grain that counts its calls and answers each with "rust METHOD COUNT TEXT". Method 7 answers with what it heard from
/// topics, "rust 7 COUNT DISORDERED LAST".
#[derive(Default)]
struct Counter {
    count: u64,
    heard: Seen,
}

impl Grain for Counter {
    async fn call(
        &mut self,
        _: &mut GrainContext,
        method: i32,
        argument: Bytes,
    ) -> std::result::Result<Message, GrainError> {
        let text = <String as prost::Message>::decode(argument)
            .map_err(|error| GrainError::invalid_argument(error.to_string()))?;
        if method == 9 {
            return Err(GrainError::new("NOT_FOUND", text));
        }
        if method == 7 {
            let Seen { count, disordered, last } = &self.heard;
            return Ok(Message::new(&format!("rust 7 {count} {disordered} {last}")));
        }
        self.count += 1;
        Ok(Message::new(&format!("rust {method} {} {text}", self.count)))
    }

    async fn receive(&mut self, _: &mut GrainContext, message: Message) {
        if let Ok(text) = message.decode::<String>() {
            self.heard.note(text);
        }
    }
}

impl Peer {
    /// Calls a grain as generated clients do.
    async fn grain(
        &self,
        kind: &str,
        identity: &str,
        method: i32,
        text: String,
        timeout: Duration,
    ) -> Result<Value> {
        let grain = running(self.cluster.grains())?.grain_ref(kind, identity)?.with_timeout(timeout);
        match grain.call::<String>(method, &text).await {
            Ok(text) => Ok(json!({"text": text})),
            Err(CallError::Grain(error)) => Ok(json!({"reason": error.reason, "text": error.message})),
            Err(error) => Err(error.into()),
        }
    }

    async fn run(&mut self, line: &str) -> Result<Value> {
        let words: Vec<&str> = line.split_whitespace().collect();
        // TEXT is the rest of the line up to the words after it, so it may hold spaces.
        match *words {
            ["members"] => Ok(self.topology.borrow().clone()),
            ["blocked"] => Ok(json!({"blocked": blocked(&self.gossiper)})),
            ["heartbeats"] => self.heartbeats(),
            ["set", key, ref text @ ..] if !text.is_empty() => self.set(key, text.join(" ")).await,
            ["get", key] => self.get(key),
            ["spawn", name] => self.spawn(name),
            ["received", name] => self.received(name),
            ["touch", address, id, timeout] => self.touch(&Pid::new(address, id), millis(timeout)?).await,
            ["ask", address, id, ref text @ .., timeout] if !text.is_empty() => {
                let (pid, message) = (Pid::new(address, id), Message::new(&text.join(" ")));
                let text: String = self.remote.ask(&pid, message, millis(timeout)?).await.map_err(plain)?;
                Ok(json!({"text": text}))
            }
            ["tell", address, id, ref text @ ..] if !text.is_empty() => {
                done(self.remote.send(&Pid::new(address, id), Message::new(&text.join(" "))))
            }
            ["burst", address, id, count, bytes] => {
                self.burst(&Pid::new(address, id), count.parse()?, bytes.parse()?).await
            }
            ["grain", kind, identity, method, ref text @ .., timeout] if !text.is_empty() => {
                self.grain(kind, identity, method.parse()?, text.join(" "), millis(timeout)?).await
            }
            ["owner", kind, identity] => {
                let (grain, roster) = (ClusterIdentity::new(kind, identity)?, self.cluster.roster());
                let owner = PlacementHash::default().owner(&grain, roster.iter());
                Ok(json!({"address": owner.ok_or("nobody hosts it")?.authority.as_str()}))
            }
            ["broadcast", ref text @ ..] if !text.is_empty() => {
                let everybody = Audience { protoactor: true, own: false };
                Ok(json!({"members": self.cluster.broadcast(&text.join(" "), everybody)?}))
            }
            [
                "subscribe" | "unsubscribe" | "subscribe-grain" | "unsubscribe-grain" | "subscribe-handler"
                | "create" | "publish" | "produce" | "topics",
                ..,
            ] => self.run_pubsub(&words).await,
            ["watch", address, id] => {
                done(self.remote.send(&self.watcher, Message::new(&actor::Pid::from(&Pid::new(address, id)))))
            }
            ["stop", address, id] => done(self.remote.stop(&Pid::new(address, id))),
            ["poison", address, id] => done(self.remote.poison(&Pid::new(address, id))),
            ["counters"] => Ok(self.remote.counters().all().into_iter().collect()),
            ["leave"] => {
                self.cluster.shutdown(true).await?;
                Ok(json!({}))
            }
            ["quit"] => Ok(json!({})),
            _ => Err("unknown command, or not its number of words".into()),
        }
    }

    async fn run_pubsub(&mut self, words: &[&str]) -> Result<Value> {
        let topics = running(self.cluster.pubsub())?.clone();
        match *words {
            ["subscribe", topic, name] => {
                topics.subscribe(topic, &self.local(name)).await?;
            }
            ["unsubscribe", topic, name] => {
                topics.unsubscribe(&SubscriptionId::of_actor(topic, &self.local(name))?).await?;
            }
            ["subscribe-grain", topic, kind, identity] => {
                topics.subscribe_grain(topic, kind, identity).await?;
            }
            ["unsubscribe-grain", topic, kind, identity] => {
                topics.unsubscribe(&SubscriptionId::of_grain(topic, kind, identity)?).await?;
            }
            ["subscribe-handler", topic, name] => {
                let seen = Arc::<Mutex<Seen>>::default();
                self.spawned.insert(name.to_owned(), Arc::clone(&seen));
                let handler = move |message: Message| {
                    if let Ok(text) = message.decode::<String>() {
                        seen.lock().unwrap_or_else(PoisonError::into_inner).note(text);
                    }
                    std::future::ready(())
                };
                self.handlers.push(topics.subscribe_with(topic, handler).await?);
            }
            ["create", topic] => {
                let options = TopicOptions { guarantee: Guarantee::AtLeastOnce, ..TopicOptions::default() };
                topics.create_topic(topic, options).await?;
            }
            ["publish", topic, ref text @ ..] if !text.is_empty() => {
                topics.publish(topic, &text.join(" ")).await?;
            }
            ["produce", topic, count] => produce(&topics, topic, count.parse()?).await?,
            ["topics"] => {
                let counts = topics.topic_counts().into_iter().map(|(topic, counts)| {
                    let (forwarded, delivered, failures) =
                        (counts.forwarded, counts.delivered, counts.failures);
                    let counts =
                        json!({"forwarded": forwarded, "delivered": delivered, "failures": failures});
                    (topic.to_string(), counts)
                });
                return Ok(json!({"topics": counts.collect::<BTreeMap<_, _>>()}));
            }
            _ => return Err("not its number of words".into()),
        }
        Ok(json!({}))
    }

    fn local(&self, name: &str) -> Pid {
        Pid::new(self.remote.authority().as_str(), name)
    }

    /// For how long each member was not heard. Go nodes have two names for a heartbeat; the newer entry counts.
    fn heartbeats(&self) -> Result<Value> {
        let now = self.cluster.clock().now();
        let mut members = BTreeMap::new();
        for key in ["heartbeat", "heathbeat"] {
            for (member, entry) in self.gossiper.get_state(&GossipKey::new(key)?) {
                let age = now.saturating_since(entry.local_timestamp).as_millis();
                let least = members.entry(member.to_string()).or_insert(age);
                *least = age.min(*least);
            }
        }
        let members: BTreeMap<_, _> =
            members.into_iter().map(|(id, age)| (id, json!({"age_ms": u64::try_from(age).ok()}))).collect();
        Ok(json!({"members": members}))
    }

    async fn set(&self, key: &str, text: String) -> Result<Value> {
        let value = GossipValue::new(&String::type_url(), &text.encode_to_vec())?;
        self.gossiper.set_state_request(GossipKey::new(key)?, value).await?;
        Ok(json!({"key": key}))
    }

    fn get(&self, key: &str) -> Result<Value> {
        let entries = self.gossiper.get_state(&GossipKey::new(key)?).into_iter();
        let values: BTreeMap<_, _> =
            entries.map(|(id, entry)| (id.to_string(), decoded(&entry.value))).collect();
        Ok(json!({"key": key, "values": values}))
    }

    fn spawn(&mut self, name: &str) -> Result<Value> {
        let seen = Arc::<Mutex<Seen>>::default();
        let pid = self.remote.spawn_named(name, Echo(Arc::clone(&seen)))?;
        self.spawned.insert(name.to_owned(), seen);
        Ok(json!({"address": pid.address(), "id": pid.id()}))
    }

    fn received(&self, name: &str) -> Result<Value> {
        let seen = self.spawned.get(name).ok_or("not spawned here")?;
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(json!({"count": seen.count, "disordered": seen.disordered, "last": seen.last}))
    }

    async fn touch(&self, pid: &Pid, timeout: Duration) -> Result<Value> {
        let touched: Touched = self.remote.ask(pid, Message::new(&Touch {}), timeout).await.map_err(plain)?;
        let who = touched.who.unwrap_or_default();
        Ok(json!({"who": {"address": who.address, "id": who.id}}))
    }

    /// Sends `count` numbered texts of `bytes` each as fast as they are taken.
    async fn burst(&self, pid: &Pid, count: usize, bytes: usize) -> Result<Value> {
        for number in 1..=count {
            self.remote
                .feed(pid, Message::new(&format!("{number:08}{}", "x".repeat(bytes.saturating_sub(8)))))
                .await?;
        }
        Ok(json!({}))
    }
}

/// What an echo saw.
#[derive(Default)]
struct Seen {
    count: usize,
    /// How many texts were not greater than the one before.
    disordered: usize,
    last: String,
}

impl Seen {
    fn note(&mut self, text: String) {
        self.disordered += usize::from(self.count > 0 && text <= self.last);
        self.count += 1;
        self.last = text;
    }
}

/// Publishes numbers through a batching producer and waits until all are published.
async fn produce(topics: &PubSub, topic: &str, count: usize) -> Result<()> {
    let producer = topics.producer(topic, BatchingProducerConfig::default())?;
    let receipts: Vec<_> = (0..count)
        .map(|number| producer.produce(&format!("{number:06}")))
        .collect::<std::result::Result<_, _>>()?;
    for receipt in receipts {
        receipt.await?;
    }
    Ok(())
}

/// Answers every request with what it was asked, and remembers what it saw.
struct Echo(Arc<Mutex<Seen>>);

impl Actor for Echo {
    async fn receive(&mut self, context: &mut ActorContext, message: Message) {
        let Ok(text) = message.decode::<String>() else { return };
        let answer = Message::new(&text);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).note(text);
        if let Err(error) = context.respond(answer) {
            log(&error);
        }
    }
}

/// Tells about the end of those whose names it is sent.
struct Watcher;

impl Actor for Watcher {
    async fn receive(&mut self, context: &mut ActorContext, message: Message) {
        if let Ok(pid) = message.decode::<actor::Pid>() {
            context.watch(&Pid::from(&pid));
        }
    }

    async fn terminated(&mut self, _: &mut ActorContext, who: Pid, why: TerminatedReason) {
        let why = i32::from(why);
        print("event", "terminated", json!({"address": who.address(), "id": who.id(), "why": why}));
    }
}

/// Prints changes of the membership, logs everything else.
async fn tell_events(mut events: Subscription, gossiper: TokioGossiper, shown: watch::Sender<Value>) {
    while let Some(delivery) = events.recv().await {
        let Delivery::Event(event) = delivery else { continue };
        match &*event {
            ClusterEvent::RosterUpdated { update, .. } => {
                let members: Vec<_> = update.members.iter().map(described).collect();
                let mut topology = json!({"hash": update.hash.to_string(), "members": members});
                shown.send_replace(topology.clone());
                topology["joined"] = ids(&update.joined);
                topology["left"] = ids(&update.left);
                topology["blocked"] = blocked(&gossiper);
                print("event", "topology", topology);
            }
            // With every heartbeat.
            ClusterEvent::Gossiper { event: GossiperEvent::Alive { .. }, .. }
            | ClusterEvent::GossipStateUpdated { .. } => {}
            event => log(&format_args!("{event:?}")),
        }
    }
}

/// Prints what others broadcast.
async fn tell_broadcasts(mut broadcasts: Broadcasts) {
    while let Some(heard) = broadcasts.recv().await {
        match heard {
            Broadcast::Message(message) => match message.decode::<String>() {
                Ok(text) => print("event", "broadcast", json!({"text": text})),
                Err(error) => log(&error),
            },
            Broadcast::Missed(count) => log(&format_args!("{count} broadcasts were missed")),
        }
    }
}

fn described(member: &RosterMember) -> Value {
    json!({"id": member.id.as_str(), "address": member.authority.as_str(), "kinds": member.kinds})
}

fn ids(members: &[RosterMember]) -> Value {
    members.iter().map(|member| member.id.as_str()).collect()
}

fn blocked(gossiper: &TokioGossiper) -> Value {
    gossiper.blocked_members().keys().map(|member| member.as_str().to_owned()).collect()
}

/// The text of a `StringValue`, and of anything else its type.
fn decoded(value: &GossipValue) -> Value {
    match String::decode(value.bytes()) {
        Ok(text) if value.type_url() == String::type_url() => json!(text),
        _ => json!({"type": value.type_url().trim_start_matches("type.googleapis.com/")}),
    }
}

/// The two ends of a request that everybody knows, as the Go peer names them.
fn plain(error: RequestError) -> Box<dyn Error> {
    match error {
        RequestError::DeadLetter { .. } => "dead letter".into(),
        RequestError::Timeout { .. } => "timeout".into(),
        other => other.into(),
    }
}

fn done(sent: std::result::Result<(), SendError>) -> Result<Value> {
    Ok(sent.map(|()| json!({}))?)
}

fn millis(text: &str) -> Result<Duration> {
    Ok(Duration::from_millis(text.parse()?))
}

/// Prints one object on a line. Whoever read the lines is gone when that fails, and the end of the input is about to
/// follow.
fn print(kind: &str, name: &str, mut fields: Value) {
    fields[kind] = json!(name);
    writeln!(io::stdout().lock(), "{fields}").ok();
}

fn log(what: &dyn std::fmt::Display) {
    writeln!(io::stderr().lock(), "{what}").ok();
}

const FLAGS: [&str; 9] = [
    "--cluster",
    "--default-dialect",
    "--gossip-interval-ms",
    "--health-port",
    "--heartbeat-expiration-ms",
    "--hosts",
    "--node",
    "--refresh-ms",
    "--remote-port",
];
