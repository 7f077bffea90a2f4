//! Grains on whole nodes over real sockets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use synod_cluster::grains::{CallError, Grain, GrainContext, GrainError, GrainKind};
use synod_cluster::remote::{Message, RemoteConfig};
use synod_cluster::{Cluster, ClusterConfig, ClusterProvider, ClusterProviderError, Delivery};
use synod_core::grains::{ActivationEvent, GrainEvent, GrainSnapshot, ResolveResult, RouterEvent};
use synod_core::membership::{ClusterEvent, QuarantineReason};
use synod_core::remote::RemoteEvent;

const PATIENCE: Duration = Duration::from_secs(20);

/// Where each grain was started, in order: the name of the node, by the grain's identity.
type Starts = Arc<Mutex<BTreeMap<String, Vec<String>>>>;

/// Counts. Method 0 adds and returns the sum, 1 says where it runs, 2 panics, 3 calls another counter, 4 unloads it.
struct Counter {
    node: String,
    starts: Starts,
    sum: u64,
}

impl Grain for Counter {
    async fn activate(
        &mut self,
        context: &mut GrainContext,
        snapshot: Option<GrainSnapshot>,
    ) -> Result<(), GrainError> {
        let identity = context.identity().identity().to_owned();
        self.starts.lock().expect("unlocked").entry(identity).or_default().push(self.node.clone());
        if let Some(snapshot) = snapshot {
            self.sum = snapshot.version;
        }
        Ok(())
    }

    async fn call(
        &mut self,
        context: &mut GrainContext,
        method: i32,
        argument: Bytes,
    ) -> Result<Message, GrainError> {
        let text = <String as prost::Message>::decode(argument)
            .map_err(|error| GrainError::invalid_argument(error.to_string()))?;
        match method {
            0 => {
                self.sum +=
                    text.parse::<u64>().map_err(|error| GrainError::invalid_argument(error.to_string()))?;
                Ok(Message::new(&self.sum.to_string()))
            }
            1 => Ok(Message::new(&self.node)),
            2 => panic!("as it was told"),
            3 => {
                let other = context
                    .grain_ref("Counter", &text)
                    .map_err(|error| GrainError::internal(error.to_string()))?;
                let own = context.identity().identity().to_owned();
                let answer: Result<String, CallError> = other.call(3, &own).await;
                Ok(Message::new(&format!("{answer:?}")))
            }
            4 => {
                context.deactivate();
                Ok(Message::new(&String::new()))
            }
            other => Err(GrainError::unimplemented(other)),
        }
    }

    async fn deactivate(&mut self, _: &mut GrainContext) -> Option<GrainSnapshot> {
        Some(GrainSnapshot { version: self.sum, bytes: Arc::from([]) })
    }
}

async fn start(name: &str, seeds: &[&Cluster], starts: &Starts) -> Cluster {
    let remote = RemoteConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    let mut config = ClusterConfig::new(name.parse().expect("a name"), remote);
    let addresses = seeds.iter().filter_map(|seed| seed.remote());
    config.membership.seeds.extend(addresses.map(|remote| remote.authority().clone()));
    let (node, starts) = (name.to_owned(), Arc::clone(starts));
    config.kinds.push(GrainKind::new("Counter", move |_| Counter {
        node: node.clone(),
        starts: Arc::clone(&starts),
        sum: 0,
    }));
    let mut node = Cluster::new(config).expect("valid settings");
    node.start_member().await.expect("a node on loopback");
    node
}

/// Waits until `nodes` all see each other, and what each of them hosts.
async fn settle(nodes: &[&Cluster]) {
    let settled = async {
        for node in nodes {
            while node.roster().len() != nodes.len()
                || node.roster().iter().any(|member| member.kinds.is_empty())
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("in time");
}

async fn add(node: &Cluster, identity: &str, number: u64) -> Result<u64, CallError> {
    let grain = node.grain_ref("Counter", identity).expect("running").with_timeout(PATIENCE);
    let sum: String = grain.call(0, &number.to_string()).await?;
    Ok(sum.parse().expect("a number"))
}

/// 5.1, 5.2: every node finds the same activation, and there is one, however many ask first.
#[tokio::test(flavor = "multi_thread")]
async fn a_grain_is_started_once_and_found_by_everybody() {
    let starts = Starts::default();
    let a = start("a", &[], &starts).await;
    let b = start("b", &[&a], &starts).await;
    let c = start("c", &[&a], &starts).await;
    settle(&[&a, &b, &c]).await;
    let identities: Vec<_> = (0..100).map(|number| format!("user:{number}")).collect();
    let calls = identities.iter().flat_map(|identity| [&a, &b, &c].map(|node| add(node, identity, 1)));
    let sums = futures_join(calls).await;
    for (identity, sums) in identities.iter().zip(sums.chunks(3)) {
        let mut sums: Vec<_> = sums.iter().map(|sum| *sum.as_ref().expect("an answer")).collect();
        sums.sort_unstable();
        assert_eq!(sums, [1, 2, 3], "{identity}: all calls reached one activation");
    }
    let starts = starts.lock().expect("unlocked").clone();
    assert!(starts.values().all(|nodes| nodes.len() == 1), "each was started once");
    let hosts: std::collections::BTreeSet<_> = starts.values().flatten().collect();
    assert_eq!(hosts.len(), 3, "all nodes host some");
    assert_eq!(a.grains().expect("running").call_counts().completed, 100);
}

async fn futures_join<T: Send + 'static>(calls: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut calls: Vec<_> = calls.map(|call| (Box::pin(call), None)).collect();
    std::future::poll_fn(|context| {
        let mut pending = false;
        for (call, result) in &mut calls {
            if result.is_none() {
                match call.as_mut().poll(context) {
                    std::task::Poll::Ready(done) => *result = Some(done),
                    std::task::Poll::Pending => pending = true,
                }
            }
        }
        if pending { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    calls.into_iter().filter_map(|(_, result)| result).collect()
}

/// 5.4: the hosts of some grains go, one politely and one not. Every grain is there all the same.
#[tokio::test(flavor = "multi_thread")]
async fn grains_of_a_node_that_goes_are_found_elsewhere() {
    let starts = Starts::default();
    let a = start("a", &[], &starts).await;
    let mut b = start("b", &[&a], &starts).await;
    settle(&[&a, &b]).await;
    for number in 0..20 {
        add(&a, &format!("user:{number}"), 1).await.expect("an answer");
    }
    assert!(!b.grains().expect("running").activation_counts().is_empty());
    let mut events = b.events().subscribe_live();
    b.shutdown(true).await.expect("a clean end");
    let drained = std::iter::from_fn(|| events.try_recv()).any(|delivery| {
        let Delivery::Event(event) = delivery else { return false };
        matches!(&*event, ClusterEvent::Grain { event: GrainEvent::Activation(ActivationEvent::Drained), .. })
    });
    assert!(drained, "its grains were stopped before it went");
    for number in 0..20 {
        let sum = add(&a, &format!("user:{number}"), 1).await.expect("an answer");
        assert_eq!(sum, 2, "it brought its state along");
    }
    let started = starts.lock().expect("unlocked").clone();
    assert!(started.values().all(|nodes| nodes.last().map(String::as_str) == Some("a")));
}

/// 5.3, and what a grain says about its own state: unloaded, it is started again from where it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_grain_that_is_unloaded_goes_on_where_it_was() {
    let starts = Starts::default();
    let a = start("a", &[], &starts).await;
    settle(&[&a]).await;
    assert_eq!(add(&a, "one", 5).await, Ok(5));
    let grain = a.grain_ref("Counter", "one").expect("running");
    grain.call::<String>(4, &String::new()).await.expect("an answer");
    assert_eq!(add(&a, "one", 1).await, Ok(6));
    assert_eq!(starts.lock().expect("unlocked")["one"], ["a", "a"]);
}

/// Errors reach the caller as they are, a panic costs the state and not the grain, and nobody waits for itself.
#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_is_told() {
    let starts = Starts::default();
    let a = start("a", &[], &starts).await;
    let b = start("b", &[&a], &starts).await;
    settle(&[&a, &b]).await;
    for identity in ["x", "y", "z"] {
        let grain = b.grain_ref("Counter", identity).expect("running");
        let error = grain.call::<String>(0, &"no number".to_owned()).await.expect_err("no number");
        assert!(matches!(&error, CallError::Grain(error) if error.reason == "INVALID_ARGUMENT"), "{error}");
        let error = grain.call::<String>(99, &String::new()).await.expect_err("no method");
        assert!(matches!(&error, CallError::Grain(error) if error.reason == "UNIMPLEMENTED"), "{error}");
        assert_eq!(add(&a, identity, 7).await, Ok(7));
        let error = grain.call::<String>(2, &String::new()).await.expect_err("it panics");
        assert!(matches!(&error, CallError::Grain(error) if error.reason == "INTERNAL"), "{error}");
        assert_eq!(add(&a, identity, 1).await, Ok(1), "a fresh one took its place");
    }
    // x calls y, which calls x.
    let grain = a.grain_ref("Counter", "x").expect("running");
    let answer: String = grain.call(3, &"y".to_owned()).await.expect("an answer");
    assert!(answer.contains("Cycle") && answer.contains("Counter/x"), "{answer}");
    // A kind that nobody hosts.
    let nobody = a.grain_ref("Nobody", "x").expect("running").with_timeout(Duration::from_millis(300));
    let error = nobody.call::<String>(0, &String::new()).await.expect_err("nobody hosts it");
    assert!(matches!(error, CallError::Failed { .. } | CallError::Timeout { .. }), "{error}");
}

/// Method 0 sets an interval and a timer, 1 says how often each rang, 2 ends the interval, 3 panics in the next timer.
#[derive(Default)]
struct Clockwork {
    rang: BTreeMap<String, u32>,
    panics: bool,
}

impl Grain for Clockwork {
    async fn call(
        &mut self,
        context: &mut GrainContext,
        method: i32,
        _: Bytes,
    ) -> Result<Message, GrainError> {
        let answer = match method {
            0 => {
                context.set_interval("tick", Duration::from_secs(10)).expect("sound");
                context.set_timer("once", Duration::from_secs(25)).expect("sound");
                context.set_timer("never", Duration::from_secs(5)).expect("sound");
                assert!(context.cancel_timer("never") && !context.cancel_timer("never"));
                format!("{:?}", context.set_timer("", Duration::ZERO))
            }
            1 => format!("{:?}", self.rang),
            2 => context.cancel_timer("tick").to_string(),
            3 => {
                self.panics = true;
                String::new()
            }
            other => return Err(GrainError::unimplemented(other)),
        };
        Ok(Message::new(&answer))
    }

    async fn timer(&mut self, _: &mut GrainContext, name: &str) {
        assert!(!self.panics, "as it was told");
        *self.rang.entry(name.to_owned()).or_default() += 1;
    }
}

/// Timers have turns of their own, in the grain's time; they end when they are told to, and with the grain.
#[tokio::test(start_paused = true)]
async fn a_grain_is_called_back_by_its_timers() {
    let remote = RemoteConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    let mut config = ClusterConfig::new("clock".parse().expect("a name"), remote);
    config.kinds.push(GrainKind::new("Clockwork", |_| Clockwork::default()));
    let mut node = Cluster::new(config).expect("valid settings");
    node.start_member().await.expect("a node on loopback");
    let grain = node.grain_ref("Clockwork", "a").expect("running").with_timeout(PATIENCE);
    let ask = async |method: i32| grain.call::<String>(method, &()).await.expect("an answer");
    assert_eq!(ask(0).await, r#"Err(Name { bytes: 0 })"#);
    tokio::time::sleep(Duration::from_secs(24)).await;
    assert_eq!(ask(1).await, r#"{"tick": 2}"#);
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(ask(1).await, r#"{"once": 1, "tick": 3}"#);
    assert_eq!(ask(2).await, "true");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(ask(1).await, r#"{"once": 1, "tick": 3}"#, "it was ended");
    // A panic costs the state, the timers with it.
    ask(0).await;
    ask(3).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(ask(1).await, "{}");
    node.shutdown(true).await.expect("an end");
}

/// 2.1 to 2.5: whether an actor can be reached follows the newest view: who is there, who left, who is kept out.
#[tokio::test(flavor = "multi_thread")]
async fn a_pid_is_resolved_by_who_is_there() {
    let starts = Starts::default();
    let a = start("a", &[], &starts).await;
    let mut b = start("b", &[&a], &starts).await;
    settle(&[&a, &b]).await;
    let authority = b.remote().expect("running").authority().clone();
    let pid = format!("{authority}/partition-activator/x$1");
    let resolve = || a.resolve(&pid).expect("a PID");
    let version_of = |result: &ResolveResult| match result {
        ResolveResult::Ready { version, .. }
        | ResolveResult::Unreachable { version, .. }
        | ResolveResult::Quarantine { version, .. } => *version,
    };
    let ready = resolve();
    let ResolveResult::Ready { pid: canonical, member, .. } = &ready else { panic!("{ready:?}") };
    assert_eq!((canonical.to_string(), member.as_str().starts_with("b#")), (pid.clone(), true));

    let membership = a.membership().expect("running").clone();
    membership
        .quarantine(authority.clone(), QuarantineReason::Requested("a test".into()))
        .await
        .expect("taken");
    let kept_out =
        until(|| Some(resolve()).filter(|now| matches!(now, ResolveResult::Quarantine { .. }))).await;
    assert!(version_of(&kept_out) > version_of(&ready), "{kept_out:?}");
    membership.release(authority.clone()).await.expect("taken");
    until(|| Some(resolve()).filter(|now| matches!(now, ResolveResult::Ready { .. }))).await;

    b.shutdown(true).await.expect("an end");
    let gone = until(|| Some(resolve()).filter(|now| matches!(now, ResolveResult::Unreachable { .. }))).await;
    assert!(version_of(&gone) > version_of(&kept_out), "{gone:?}");
    assert!(matches!(a.resolve("127.0.0.1:1/x"), Ok(ResolveResult::Unreachable { node: None, .. })));
    for text in ["no-slash", "127.0.0.1:70000/x", "127.0.0.1:1/eventstream"] {
        assert!(matches!(a.resolve(text), Err(ClusterProviderError::Pid(_))), "{text}");
    }
}

/// Looks until there is something. Nothing tells when a view has reached every part of a node.
async fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            match look() {
                Some(found) => return found,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("in time")
}

/// 6.1: nodes speak the highest version of the call schema that they share, and refuse those with whom they share none.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_agree_on_a_version_of_the_call_schema_or_refuse_each_other() {
    let start_with = async |name: &str, seeds: &[&Cluster], versions: &[u32]| {
        let remote = RemoteConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        let mut config = ClusterConfig::new(name.parse().expect("a name"), remote);
        let addresses = seeds.iter().filter_map(|seed| seed.remote());
        config.membership.seeds.extend(addresses.map(|remote| remote.authority().clone()));
        config.grains.router.schema_versions = versions.to_vec();
        let mut node = Cluster::new(config).expect("valid settings");
        node.start_member().await.expect("a node on loopback");
        node
    };
    let a = start_with("a", &[], &[1, 2]).await;
    let mut events = a.events().subscribe();
    let b = start_with("b", &[&a], &[3, 2, 1]).await;
    let c = start_with("c", &[&a], &[4]).await;
    let address = |node: &Cluster| node.remote().expect("running").authority().clone();
    let (mut agreed, mut refused) = (None, None);
    let heard = async {
        while agreed.is_none() || refused.is_none() {
            let Some(Delivery::Event(event)) = events.recv().await else { panic!("the stream ended") };
            match &*event {
                ClusterEvent::Grain {
                    event: GrainEvent::Router(RouterEvent::SchemaAgreed { peer, version }),
                    ..
                } if *peer == address(&b) => {
                    agreed = Some(*version);
                }
                ClusterEvent::Remote { event: RemoteEvent::InputRefused { problem, .. }, .. }
                    if problem.contains("[4]") =>
                {
                    refused = Some(problem.clone());
                }
                _ => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, heard).await.expect("in time");
    assert_eq!(agreed, Some(2));
    until(|| (a.roster().len() == 2).then_some(())).await;
    assert_eq!(c.roster().len(), 1, "nobody deals with it");
}
