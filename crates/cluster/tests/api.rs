//! The api listener of whole nodes, over loopback.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use synod_cluster::grains::{Grain, GrainContext, GrainError, GrainKind};
use synod_cluster::remote::{Message, RemoteConfig};
use synod_cluster::{ApiError, Cluster, ClusterConfig, ClusterProvider, ClusterProviderError, MetricsConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PATIENCE: Duration = Duration::from_secs(20);

/// Answers with its argument.
struct Echo;

impl Grain for Echo {
    async fn call(&mut self, _: &mut GrainContext, _: i32, argument: Bytes) -> Result<Message, GrainError> {
        let text = <String as prost::Message>::decode(argument);
        Ok(Message::new(&text.map_err(|error| GrainError::invalid_argument(error.to_string()))?))
    }
}

fn config() -> ClusterConfig {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut config = ClusterConfig::new("a".parse().expect("a name"), RemoteConfig::new(any));
    config.membership.topology_emit_interval = Duration::from_millis(50);
    config.kinds.push(GrainKind::new("Echo", |_| Echo));
    config.api = Some(any);
    config
}

async fn start(config: ClusterConfig) -> (Cluster, SocketAddr) {
    let mut node = Cluster::new(config).expect("sound settings");
    node.start_member().await.expect("a node on loopback");
    let address = node.api_address().expect("a listener");
    (node, address)
}

/// Status and body of the answer to a GET.
async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let answer = async {
        let mut stream = TcpStream::connect(address).await.expect("a listener");
        let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer
    };
    let answer = tokio::time::timeout(PATIENCE, answer).await.expect("in time");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).expect("a status");
    (status.parse().expect("a number"), body.to_owned())
}

async fn ready(address: SocketAddr) {
    let ready = async {
        while get(address, "/readyz").await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ready).await.expect("in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_ready_once_it_has_a_topology_and_until_it_is_stopped() {
    let mut config = config();
    // Long enough to be asked before the first topology.
    config.membership.topology_emit_interval = Duration::from_secs(1);
    config.membership.eager_delay = None;
    let (mut node, address) = start(config).await;
    assert_eq!(get(address, "/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(get(address, "/readyz").await, (503, "the node has no topology yet\n".to_owned()));
    ready(address).await;
    let (status, body) = get(address, "/elsewhere").await;
    assert_eq!(
        (status, body.as_str()),
        (404, "there is nothing here; /healthz, /readyz and /metrics are always there\n")
    );
    node.shutdown(true).await.expect("a clean end");
    assert_eq!(node.api_address(), None);
    TcpListener::bind(address).await.expect("the address is free again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_alive_but_not_ready() {
    let mut node = Cluster::new(config()).expect("sound settings");
    node.start_client().await.expect("a client");
    let address = node.api_address().expect("a listener");
    assert_eq!(get(address, "/healthz").await.0, 200);
    assert_eq!(get(address, "/readyz").await, (503, "the node is a client and no member\n".to_owned()));
    assert_eq!(get(address, "/metrics").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_api_address_is_taken_does_not_run_at_all() {
    let taken = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = taken.local_addr().expect("an address");
    let mut config = config();
    config.api = Some(address);
    let mut node = Cluster::new(config).expect("sound settings");
    let error = node.start_member().await.expect_err("the address is taken");
    assert!(
        matches!(&error, ClusterProviderError::Api(ApiError::AddressInUse { address: of }) if *of == address),
        "{error}"
    );
    assert!(node.remote().is_none() && node.mode().is_none(), "what had started was stopped again");
    // And it can be started when the address is free.
    drop(taken);
    node.start_member().await.expect("a free address");
    assert_eq!(node.api_address(), Some(address));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_metrics_there_are_no_numbers_but_events() {
    let mut config = config();
    config.metrics = MetricsConfig::disabled();
    let mut node = Cluster::new(config).expect("sound settings");
    let mut events = node.events().subscribe_live();
    node.start_member().await.expect("a node on loopback");
    let address = node.api_address().expect("a listener");
    assert_eq!(get(address, "/metrics").await, (503, "metrics are switched off on this node\n".to_owned()));
    ready(address).await;
    assert!(events.try_recv().is_some(), "events flow all the same");
}

/// Every line is a help, a type or a sample of the family that they began; no family comes twice.
#[tokio::test(flavor = "multi_thread")]
async fn the_numbers_are_what_prometheus_reads() {
    let (node, address) = start(config()).await;
    ready(address).await;
    for _ in 0..3 {
        let grain = node.grain_ref("Echo", "one").expect("running").with_timeout(PATIENCE);
        grain.call::<String>(0, &"hello".to_owned()).await.expect("an answer");
    }
    let topics = node.pubsub().expect("running");
    let _news = topics.subscribe_channel("news", 8).await.expect("subscribed");
    topics.publish("news", &"hello".to_owned()).await.expect("published");
    topics.publish("olds", &"hello".to_owned()).await.expect_err("nobody knows it");
    let (status, text) = get(address, "/metrics").await;
    assert_eq!(status, 200);
    let samples = parse(&text);
    assert_eq!(samples["synod_pubsub_published_total"], 1.0);
    assert_eq!(samples["synod_pubsub_refused_total"], 1.0);
    assert_eq!(samples["synod_pubsub_topics"], 2.0);
    for (name, value) in [("published", 1.0), ("delayed", 0.0), ("dropped", 0.0), ("redelivered", 0.0)] {
        assert_eq!(samples[&format!("synod_pubsub_topic_{name}_total{{topic=\"news\"}}")], value, "{name}");
        assert!(samples.contains_key(&format!("synod_pubsub_{name}_total")), "{name}");
    }
    assert_eq!(samples["synod_cluster_members"], 1.0);
    assert_eq!(samples["synod_node_ready"], 1.0);
    assert_eq!(samples["synod_grain_calls_completed_total"], 6.0, "three, and three to topics");
    assert_eq!(samples["synod_grain_activations{kind=\"Echo\"}"], 1.0);
    assert_eq!(samples["synod_grain_call_duration_seconds_count"], 6.0);
    assert!(samples["synod_grain_call_duration_seconds_sum"] > 0.0);
    assert!(samples["synod_gossip_rounds_total"] >= 1.0);
    assert!(samples.contains_key("synod_remote_bytes_sent_total"));
    assert!(samples.contains_key("synod_membership_sends_failed_total"));
    let address = node.remote().expect("running").authority();
    assert_eq!(samples[&format!("synod_node_info{{node=\"a\",address=\"{address}\"}}")], 1.0);
    // The buckets of a histogram never fall, and the last one holds everything.
    let buckets: Vec<f64> = text
        .lines()
        .filter(|line| line.starts_with("synod_grain_call_duration_seconds_bucket"))
        .map(|line| samples[line.rsplit_once(' ').expect("a sample").0])
        .collect();
    assert!(buckets.is_sorted(), "{buckets:?}");
    assert_eq!(buckets.last(), Some(&6.0));
}

/// Reads an exposition as strictly as Prometheus does, and returns the samples with their labels.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let (mut samples, mut families) = (BTreeMap::new(), BTreeMap::new());
    let (mut helped, mut family) = (String::new(), String::new());
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').expect("a help");
            assert!(!words.trim().is_empty(), "{line}");
            name.clone_into(&mut helped);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a type");
            assert_eq!(name, helped, "the help comes first");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(families.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} comes twice");
            name.clone_into(&mut family);
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a sample");
            let (name, labels) =
                series.split_once('{').map_or((series, None), |(name, rest)| (name, Some(rest)));
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{line}");
            let suffix = name.strip_prefix(family.as_str()).expect("a sample of the family at hand");
            let is_histogram = families[&family] == "histogram";
            let suffixes: &[&str] = if is_histogram { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.contains(&suffix), "{line}");
            if let Some(labels) = labels {
                let labels = labels.strip_suffix("\"}").expect("closed labels");
                for label in labels.split("\",") {
                    let (name, _) = label.split_once("=\"").expect("a label");
                    assert!(name.bytes().all(|byte| byte.is_ascii_lowercase()), "{line}");
                }
            }
            let value = value.parse().expect("a number");
            assert!(samples.insert(series.to_owned(), value).is_none(), "{series} comes twice");
        }
    }
    samples
}
