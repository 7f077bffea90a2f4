//! What a node tells about itself: events on its stream, in the log and as numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use synod_cluster::grains::{CallError, Grain, GrainContext, GrainError, GrainKind};
use synod_cluster::remote::{Message, RemoteConfig};
use synod_cluster::{
    Cluster, ClusterConfig, ClusterProvider, ClusterProviderError, Delivery, MetricFamily, MetricsConfig,
    MetricsConfigError, TestCluster,
};
use synod_core::grains::{ActivationEvent, GrainEvent, RouterEvent};
use synod_core::membership::{ClusterEvent, GossipEvent, NodeStatus, QuarantineReason};
use synod_core::remote::RemoteEvent;
use synod_core::{Authority, Incarnation, MemberId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tracing::field::{Field, Visit};
use tracing::span;

const PATIENCE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

/// Answers, after as many milliseconds as it is told.
struct Sleeper;

impl Grain for Sleeper {
    async fn call(&mut self, _: &mut GrainContext, _: i32, argument: Bytes) -> Result<Message, GrainError> {
        let millis = <u64 as prost::Message>::decode(argument).expect("a number");
        tokio::time::sleep(Duration::from_millis(millis)).await;
        Ok(Message::new(&millis))
    }
}

async fn sleep(node: &Cluster, kind: &str, identity: &str, millis: u64) -> Result<u64, CallError> {
    let grain = node.grain_ref(kind, identity).expect("a name").with_timeout(PATIENCE);
    grain.call::<u64>(0, &millis).await
}

/// A node on loopback with an api listener.
async fn start(name: &str, seeds: &[&Cluster], metrics: MetricsConfig) -> Cluster {
    start_with(name, seeds, |config| config.metrics = metrics).await
}

async fn start_with(name: &str, seeds: &[&Cluster], change: impl FnOnce(&mut ClusterConfig)) -> Cluster {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut config = ClusterConfig::new(name.parse().expect("a name"), RemoteConfig::new(any));
    let addresses = seeds.iter().filter_map(|seed| seed.remote());
    config.membership.seeds.extend(addresses.map(|remote| remote.authority().clone()));
    config.membership.topology_emit_interval = Duration::from_millis(50);
    config.kinds.push(GrainKind::new("Sleeper", |_| Sleeper));
    config.api = Some(any);
    change(&mut config);
    let mut node = Cluster::new(config).expect("sound settings");
    node.start_member().await.expect("a node on loopback");
    node
}

/// Status and body of `/metrics`.
async fn scrape(node: &Cluster) -> (u16, String) {
    scrape_at(node.api_address().expect("a listener")).await
}

async fn scrape_at(address: SocketAddr) -> (u16, String) {
    let answer = async {
        let mut stream = TcpStream::connect(address).await.expect("a listener");
        let request = "GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer
    };
    let answer = tokio::time::timeout(PATIENCE, answer).await.expect("in time");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.split(' ').nth(1).expect("a status").parse().expect("a number"), body.to_owned())
}

/// The value of one sample.
fn sample(text: &str, series: &str) -> Option<f64> {
    let value = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
    text.lines().find_map(value)
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let reached = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{what} did not happen"));
}

/// One line of the log: its target and its fields.
type Line = (String, BTreeMap<&'static str, String>);

/// A log that can be read.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Line>>>);

impl Log {
    fn of(&self, target: &str) -> Vec<BTreeMap<&'static str, String>> {
        let lines = self.0.lock().expect("unlocked");
        lines.iter().filter(|(of, _)| of == target).map(|(_, fields)| fields.clone()).collect()
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("synod::")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields(BTreeMap<&'static str, String>);
        impl Visit for Fields {
            fn record_str(&mut self, field: &Field, value: &str) {
                self.0.insert(field.name(), value.to_owned());
            }
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                self.0.insert(field.name(), format!("{value:?}"));
            }
        }
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        self.0.lock().expect("unlocked").push((event.metadata().target().to_owned(), fields.0));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// What is expected of one family: its labels, whom it is about, and how it looks on the stream.
struct Expected {
    family: &'static str,
    kind: &'static str,
    subject: Option<String>,
    result: &'static str,
    on_stream: Box<dyn Fn(&ClusterEvent) -> bool>,
}

/// 10.1: whatever it is about, an event reaches the stream, the log and the numbers, with kind, subject and result.
#[tokio::test]
async fn every_family_of_events_reaches_the_stream_the_log_and_the_numbers() {
    let log = Log::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let a = start("a", &[], MetricsConfig::default()).await;
    let mut events = a.events().subscribe();
    let b = start("b", &[&a], MetricsConfig::default()).await;
    until("they meet", || a.roster().len() == 2).await;
    let b_address = b.remote().expect("running").authority().clone();
    sleep(&a, "Sleeper", "one", 0).await.expect("an answer");
    sleep(&a, "Nobody", "two", 0).await.expect_err("nobody hosts it");
    let nobody = a.remote().expect("running").pid("nobody");
    a.remote().expect("running").send(&nobody, Message::new(&"x".to_owned())).expect("taken");
    let outcast: Authority = "10.0.0.9:1".parse().expect("an address");
    let membership = a.membership().expect("running");
    let reason = QuarantineReason::Requested("a test".into());
    membership.quarantine(outcast.clone(), reason).await.expect("taken");
    membership.release(outcast.clone()).await.expect("taken");

    let own = a.remote().expect("running").authority().to_string();
    let (up, kept_out, let_in) = (b_address.clone(), outcast.clone(), outcast.clone());
    let expected = [
        Expected {
            family: "membership",
            kind: "member_up",
            subject: Some(b_address.to_string()),
            result: "ok",
            on_stream: Box::new(move |event| {
                matches!(event, ClusterEvent::MemberStatusChanged { authority, to: NodeStatus::Up, .. }
                    if *authority == up)
            }),
        },
        Expected {
            family: "membership",
            kind: "quarantined",
            subject: Some(outcast.to_string()),
            result: "failed",
            on_stream: Box::new(
                move |event| matches!(event, ClusterEvent::MemberQuarantined { authority, .. } if *authority == kept_out),
            ),
        },
        Expected {
            family: "membership",
            kind: "quarantine_lifted",
            subject: Some(outcast.to_string()),
            result: "ok",
            on_stream: Box::new(
                move |event| matches!(event, ClusterEvent::QuarantineLifted { authority, .. } if *authority == let_in),
            ),
        },
        Expected {
            family: "gossip",
            kind: "confirmed",
            subject: None,
            result: "ok",
            on_stream: Box::new(|event| {
                matches!(event, ClusterEvent::Gossip { event: GossipEvent::Confirmed { .. }, .. })
            }),
        },
        Expected {
            family: "grains",
            kind: "call_failed",
            subject: Some("Nobody/two".to_owned()),
            result: "failed",
            on_stream: Box::new(|event| {
                matches!(event, ClusterEvent::Grain { event: GrainEvent::CallFailed(ended), .. }
                    if ended.grain.to_string() == "Nobody/two")
            }),
        },
        Expected {
            family: "remote",
            kind: "dead_letter",
            subject: Some(own),
            result: "failed",
            on_stream: Box::new(|event| {
                matches!(event, ClusterEvent::Remote { event: RemoteEvent::DeadLetter { actor, .. }, .. }
                    if actor == "nobody")
            }),
        },
    ];
    let mut stream = Vec::new();
    for Expected { family, kind, subject, result, on_stream } in &expected {
        let seen = async {
            while !stream.iter().any(|event: &Arc<ClusterEvent>| on_stream(event)) {
                match events.recv().await {
                    Some(Delivery::Event(event)) => stream.push(event),
                    other => panic!("the stream ended with {other:?}"),
                }
            }
        };
        tokio::time::timeout(PATIENCE, seen).await.unwrap_or_else(|_| panic!("{kind} is not on the stream"));
        let logged = || {
            log.of("synod::events").iter().any(|line| {
                line.get("family").map(String::as_str) == Some(family)
                    && line.get("kind").map(String::as_str) == Some(kind)
                    && line.get("subject") == subject.as_ref()
                    && line.get("result").map(String::as_str) == Some(result)
            })
        };
        until(kind, logged).await;
        let series = format!("synod_events_total{{family=\"{family}\",kind=\"{kind}\",result=\"{result}\"}}");
        let (_, text) = scrape(&a).await;
        assert!(sample(&text, &series).is_some_and(|count| count >= 1.0), "{series} is not among\n{text}");
    }
    // The grain was started on one of both nodes, and that one told.
    let activated = stream.iter().any(|event| {
        matches!(&**event, ClusterEvent::Grain {
            event: GrainEvent::Activation(ActivationEvent::Activated { grain, .. }), ..
        } if grain.to_string() == "Sleeper/one")
    });
    let series = "synod_events_total{family=\"grains\",kind=\"activated\",result=\"ok\"}";
    let (_, text) = scrape(if activated { &a } else { &b }).await;
    assert!(sample(&text, series).is_some_and(|count| count >= 1.0), "{text}");
}

/// 10.2, 6.5: the end of every call is counted with its duration, and one beyond the threshold raises an alert.
#[tokio::test]
async fn calls_are_measured_and_slow_ones_raise_an_alert() {
    let alert = Some(Duration::from_millis(200));
    let a = start_with("a", &[], |config| config.grains.router.latency_alert = alert).await;
    let mut events = a.events().subscribe_live();
    for millis in [0, 0, 0, 400] {
        sleep(&a, "Sleeper", "one", millis).await.expect("an answer");
    }
    sleep(&a, "Nobody", "two", 0).await.expect_err("nobody hosts it");
    let alert = std::iter::from_fn(|| events.try_recv()).find_map(|delivery| match delivery {
        Delivery::Event(event) => match &*event {
            ClusterEvent::Grain {
                event: GrainEvent::Router(RouterEvent::Slow { grain, latency, .. }),
                ..
            } => Some((grain.to_string(), *latency)),
            _ => None,
        },
        Delivery::Missed(_) => None,
    });
    let (grain, latency) = alert.expect("an alert");
    assert_eq!(grain, "Sleeper/one");
    assert!(latency >= Duration::from_millis(400));
    let (_, text) = scrape(&a).await;
    for (series, least) in [
        ("synod_grain_calls_completed_total", 4.0),
        ("synod_grain_calls_failed_total", 1.0),
        ("synod_grain_calls_slow_total", 1.0),
        ("synod_grain_call_duration_seconds_count", 4.0),
        ("synod_grain_call_duration_seconds_sum", 0.4),
    ] {
        assert!(sample(&text, series).is_some_and(|value| value >= least), "{series}\n{text}");
    }
}

/// 10.3: whoever asks for the numbers gets them at any time, while other nodes come, leave and vanish.
#[tokio::test(flavor = "multi_thread")]
async fn the_endpoint_answers_for_as_long_as_the_node_runs() {
    let mut a = start("a", &[], MetricsConfig::default()).await;
    let address = a.api_address().expect("a listener");
    let asking = Arc::new(Mutex::new((0_u32, BTreeSet::new())));
    let seen = Arc::clone(&asking);
    let dashboard = tokio::spawn(async move {
        loop {
            let (status, text) = scrape_at(address).await;
            assert_eq!(status, 200, "{text}");
            let members = sample(&text, "synod_cluster_members").expect("a number");
            let mut seen = seen.lock().expect("unlocked");
            seen.0 += 1;
            seen.1.insert(members as u32);
        }
    });
    for polite in [true, true, false] {
        let mut b = start("b", &[&a], MetricsConfig::default()).await;
        until("it joins", || a.metrics().expect("on").members == 2).await;
        let before = asking.lock().expect("unlocked").0;
        until("somebody asks", || asking.lock().expect("unlocked").0 > before + 1).await;
        if polite {
            b.shutdown(true).await.expect("a clean end");
            until("it leaves", || a.metrics().expect("on").members == 1).await;
        } else {
            drop(b);
        }
    }
    let before = asking.lock().expect("unlocked").0;
    until("somebody asks", || asking.lock().expect("unlocked").0 > before + 1).await;
    assert!(!dashboard.is_finished(), "every answer was a good one");
    dashboard.abort();
    assert!(asking.lock().expect("unlocked").1.is_superset(&BTreeSet::from([1, 2])));
    a.shutdown(true).await.expect("a clean end");
}

/// 10.5: which numbers are told, and whether over HTTP, is a setting.
#[tokio::test]
async fn only_the_chosen_families_are_told_and_only_where_they_should_be() {
    let only = |families: &[MetricFamily]| MetricsConfig {
        families: families.iter().copied().collect(),
        ..MetricsConfig::default()
    };
    let prefixes = ["synod_cluster_", "synod_gossip_", "synod_remote_", "synod_grain_", "synod_pubsub_"];
    for (family, chosen) in MetricFamily::ALL.into_iter().zip(prefixes) {
        let mut node = start("a", &[], only(&[family])).await;
        sleep(&node, "Sleeper", "one", 0).await.expect("an answer");
        let (status, text) = scrape(&node).await;
        assert_eq!(status, 200);
        for prefix in prefixes {
            assert_eq!(text.contains(&format!("\n{prefix}")), prefix == chosen, "{family}: {prefix}\n{text}");
        }
        let others = text.lines().filter(|line| {
            line.starts_with("synod_events_total{") && !line.contains(&format!("family=\"{family}\""))
        });
        assert_eq!(others.count(), 0);
        assert!(text.contains("synod_node_info{node=\"a\""), "who tells it is always told");
        node.shutdown(true).await.expect("a clean end");
    }
    let config = MetricsConfig { endpoint: false, ..MetricsConfig::default() };
    let node = start("a", &[], config).await;
    let refusal = "metrics are not exported over HTTP on this node\n".to_owned();
    assert_eq!(scrape(&node).await, (503, refusal));
    assert!(node.metrics().is_ok(), "a program may ask");
}

/// 10.5: the numbers are logged once per interval, which is a setting, too; what cannot be used starts nothing.
#[tokio::test(start_paused = true)]
async fn the_numbers_are_logged_as_often_as_they_should_be() {
    let log = Log::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let lines = || log.of("synod::metrics");
    let start = async |metrics: MetricsConfig| {
        TestCluster::builder()
            .nodes(1)
            .configure(move |_, config| config.metrics = metrics.clone())
            .start()
            .await
    };
    for (seconds, expected) in [(10, 6), (30, 2)] {
        let metrics = MetricsConfig { log_interval: Some(seconds * SECOND), ..MetricsConfig::default() };
        let mut cluster = start(metrics).await.expect("it settles");
        tokio::time::sleep(65 * SECOND).await;
        let told = lines();
        assert_eq!(told.len(), expected, "every {seconds} s");
        for line in told {
            assert_eq!(line["node"], "node-0");
            assert!(line["message"].contains("synod_cluster_members 1, "), "{}", line["message"]);
            assert!(!line["message"].contains('\n'));
        }
        // With the node it ends.
        cluster.stop(0).await.expect("a clean end");
        log.0.lock().expect("unlocked").clear();
        tokio::time::sleep(65 * SECOND).await;
        assert_eq!(lines().len(), 0);
    }
    for metrics in
        [MetricsConfig::default(), MetricsConfig { log_interval: Some(SECOND), ..MetricsConfig::disabled() }]
    {
        let _cluster = start(metrics).await.expect("it settles");
        tokio::time::sleep(65 * SECOND).await;
        assert_eq!(lines().len(), 0);
    }
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut config = ClusterConfig::new("a".parse().expect("a name"), RemoteConfig::new(any));
    let value = Duration::from_millis(999);
    config.metrics.log_interval = Some(value);
    let error = Cluster::new(config).expect_err("too often");
    assert!(
        matches!(&error, ClusterProviderError::Metrics(MetricsConfigError::LogInterval { value: told })
            if *told == value),
        "{error}"
    );
}

/// 7.5, D1: how long a change took is measured, one that takes longer than the limit counts as late, and the limit is a
/// setting.
#[tokio::test(start_paused = true)]
async fn convergence_is_measured_and_late_changes_are_told() {
    for limit in [SECOND, 3 * SECOND] {
        let cluster = TestCluster::builder()
            .configure(move |_, config| config.membership.convergence_timeout = limit)
            .start()
            .await
            .expect("it settles");
        let node = cluster.node(0);
        let membership = node.membership().expect("running").clone();
        let confirmed = async || {
            let agreed = membership
                .wait_until(|view| view.phase == Some(synod_core::membership::GossipPhase::Confirmed));
            tokio::time::timeout(PATIENCE, agreed).await.expect("in time").expect("running");
        };
        confirmed().await;
        let late_before = node.metrics().expect("on").late_changes;
        let mut events = node.events().subscribe_live();
        // A change that one member cannot hear of, though nobody suspects it yet.
        cluster.partition(&[&[0, 1], &[2]]);
        let ghost = MemberId::new("ghost".parse().expect("a name"), Incarnation::FIRST);
        let began = tokio::time::Instant::now();
        membership.join(ghost, "ghost:1".parse().expect("an address")).await.expect("taken");
        let late = async {
            loop {
                if let Some(Delivery::Event(event)) = events.recv().await
                    && let ClusterEvent::Gossip { event: GossipEvent::Late { waited, .. }, .. } = &*event
                {
                    return *waited;
                }
            }
        };
        let waited = tokio::time::timeout(PATIENCE, late).await.expect("it is told");
        assert!(waited >= limit && began.elapsed() >= limit, "{waited:?}");
        assert!(began.elapsed() < limit + SECOND, "{:?}", began.elapsed());
        tokio::task::yield_now().await;
        assert_eq!(node.metrics().expect("on").late_changes, late_before + 1);
        cluster.heal();
        confirmed().await;
        let took = std::iter::from_fn(|| events.try_recv()).find_map(|delivery| match delivery {
            Delivery::Event(event) => match &*event {
                ClusterEvent::Gossip { event: GossipEvent::Confirmed { took, .. }, .. } => Some(*took),
                _ => None,
            },
            Delivery::Missed(_) => None,
        });
        assert!(took.is_some_and(|took| took >= limit), "{took:?}");
    }
}
