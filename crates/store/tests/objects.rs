//! The objects of three nodes in one process: real sockets, real disks.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use synod_cluster::Delivery;
use synod_core::NodeId;
use synod_core::membership::ClusterEvent;
use synod_core::objects::{Condition, EntryName, ObjectEvent, Space};
use synod_core::slots::{SlotEvent, SlotRegistryConfig};
use synod_store::config::{ClusterSecret, NodeConfig};
use synod_store::node::{Node, NodeOptions, Origin};
use synod_store::objects::content::{Body, Content, Entry};
use synod_store::objects::contract::{
    BodyWriter as _, ListItem, ListPosition, ListQuery, ObjectStore as _, StoreError, WriteOutcome,
};
use synod_store::objects::{KeeperConfig, Objects};
use synod_wire::slots::{SlotBatch, SlotReceipt};

struct Cluster {
    nodes: Vec<Option<Node>>,
    dir: tempfile::TempDir,
}

impl Cluster {
    async fn start(count: usize) -> Self {
        Self::start_with(count, None).await
    }

    async fn start_with(count: usize, secret: Option<ClusterSecret>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let config = NodeConfig::parse(&yaml(dir.path(), count)).expect("a configuration");
        let config = NodeConfig { secret, ..config };
        let mut starting = tokio::task::JoinSet::new();
        for index in 0..count {
            let config = config.clone();
            starting.spawn(async move { (index, start(config, index).await) });
        }
        let mut nodes: Vec<Option<Node>> = (0..count).map(|_| None).collect();
        while let Some(started) = starting.join_next().await {
            let (index, node) = started.expect("a task");
            nodes[index] = Some(node);
        }
        Self { nodes, dir }
    }

    fn store(&self, index: usize) -> Objects {
        self.nodes[index].as_ref().expect("a node").objects().clone()
    }
}

async fn start(config: NodeConfig, index: usize) -> Node {
    let options = NodeOptions {
        node: NodeId::new(&format!("node{}", index + 1)).expect("a name"),
        origin: Origin::Config(Box::new(config)),
        force_takeover: false,
        is_new_cluster: false,
        registry: SlotRegistryConfig::default(),
        keeper: KeeperConfig::default(),
        extensions: Vec::new(),
        services: Vec::new(),
    };
    Node::start(options).await.expect("a node")
}

fn yaml(dir: &Path, count: usize) -> String {
    let mut text = "registry:
  gossip: {gossip_interval_ms: 100, full_sync_interval_sec: 1, suspect_timeout_sec: 1, fail_timeout_sec: 2}
initial_cluster:
  replication: {total_slots: 32, replicas: 3}
  nodes:
"
    .to_owned();
    for number in 1..=count {
        let (port, disk) = (free_ports(), dir.join(format!("node{number}")));
        let disk = disk.display();
        text += &format!(
            "    - {{node_id: node{number}, bind_addr: '127.0.0.1:{port}', disks: [{{path: '{disk}/a'}}, {{path: '{disk}/b'}}]}}\n"
        );
    }
    text
}

/// The first of five ports that are free now.
fn free_ports() -> u16 {
    loop {
        let first =
            TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        let is_free = |port| TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))).is_ok();
        if first < 65_000 && (first..first + 5).all(is_free) {
            return first;
        }
    }
}

fn object(key: &str) -> EntryName {
    EntryName::new(Space::Object, "photos", key).expect("a name")
}

async fn put(
    store: &Objects,
    key: &str,
    bytes: Bytes,
    condition: Condition,
) -> Result<WriteOutcome, StoreError> {
    let name = object(key);
    let mut writer = store.body_writer(&name);
    let size = bytes.len() as u64;
    let etag = Arc::from(format!("{size:x}"));
    writer.write(bytes).await?;
    let body = writer.finish().await?;
    store.write(&name, condition, etag, Content { size, body, ..Content::default() }).await
}

async fn get(store: &Objects, key: &str) -> Option<Bytes> {
    let name = object(key);
    let entry: Entry = store.read(&name).await.expect("an answer")?;
    let mut stream = store.read_body(&name, &entry.content.body, 0..entry.content.size);
    let mut all = Vec::new();
    while let Some(piece) = stream.next().await {
        all.extend_from_slice(&piece.expect("bytes"));
    }
    Some(all.into())
}

fn random(bytes: usize) -> Bytes {
    let mut all = vec![0; bytes];
    fastrand::Rng::with_seed(bytes as u64).fill(&mut all);
    all.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_node_takes_every_node_gives_back() {
    let cluster = Cluster::start(3).await;
    let sizes = [0, 1, 4096, 64 * 1024, 64 * 1024 + 1, 3 << 20];
    for (index, size) in sizes.into_iter().enumerate() {
        let outcome = put(&cluster.store(index % 3), &format!("{size}"), random(size), Condition::Any).await;
        assert!(matches!(outcome, Ok(WriteOutcome::Done(Some(_)))), "{outcome:?}");
    }
    for index in 0..3 {
        for size in sizes {
            let got = get(&cluster.store(index), &format!("{size}")).await;
            assert!(got == Some(random(size)), "{size} bytes through node {index}");
        }
        assert_eq!(get(&cluster.store(index), "nothing").await, None);
    }
    let is_inline = |entry: Entry| matches!(entry.content.body, Body::Inline(_));
    let small = cluster.store(0).read(&object("65536")).await.expect("an answer").expect("an entry");
    let large = cluster.store(0).read(&object("65537")).await.expect("an answer").expect("an entry");
    assert!(is_inline(small) && !is_inline(large));

    // A range across the blocks of a part.
    let name = object(&format!("{}", 3 << 20));
    let entry = cluster.store(1).read(&name).await.expect("an answer").expect("an entry");
    let mut stream = cluster.store(1).read_body(&name, &entry.content.body, 100_000..1_900_001);
    let mut all = Vec::new();
    while let Some(piece) = stream.next().await {
        all.extend_from_slice(&piece.expect("bytes"));
    }
    assert!(all == random(3 << 20)[100_000..1_900_001]);
}

/// Each node has two disks. Slots are spread over them, so sixteen objects are on both.
#[tokio::test(flavor = "multi_thread")]
async fn all_disks_of_a_node_are_used() {
    let cluster = Cluster::start(3).await;
    for number in 0..16 {
        let written = put(&cluster.store(0), &format!("{number}"), random(70_000), Condition::Any).await;
        assert!(matches!(written, Ok(WriteOutcome::Done(Some(_)))), "{written:?}");
    }
    for disk in ["a", "b"] {
        let parts = cluster.dir.path().join("node1").join(disk).join("objects/parts");
        assert!(count_files(&parts) > 0, "nothing is on disk {disk}");
    }
}

/// Every slot is served by one node, which says so on the event stream of the cluster, after it was elected.
#[tokio::test(flavor = "multi_thread")]
async fn the_event_stream_tells_who_serves_which_slot() {
    let cluster = Cluster::start(3).await;
    let mut streams: Vec<_> =
        cluster.nodes.iter().flatten().map(|node| node.cluster().events().subscribe()).collect();
    let (mut elected, mut served) = (BTreeSet::new(), BTreeSet::new());
    while served.len() < 32 {
        for stream in &mut streams {
            while let Some(Delivery::Event(event)) = stream.try_recv() {
                match &*event {
                    ClusterEvent::Slots { events, .. } => {
                        elected.extend(events.iter().filter_map(|event| match event {
                            SlotEvent::Elected { slot, epoch, .. } => Some((*slot, *epoch)),
                            _ => None,
                        }));
                    }
                    ClusterEvent::Objects { events, .. } => {
                        served.extend(events.iter().filter_map(|event| match event {
                            ObjectEvent::SlotServing { slot, epoch, .. } => Some((*slot, *epoch)),
                            _ => None,
                        }));
                    }
                    _ => {}
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(served.is_subset(&elected), "{served:?} without {elected:?}");
}

/// Nodes of a cluster with a secret prove to each other that they know it. Whoever does not is not listened to.
#[tokio::test(flavor = "multi_thread")]
async fn only_who_knows_the_secret_speaks_to_a_node_as_a_peer() {
    let secret = ClusterSecret::new([7; 32]);
    let cluster = Cluster::start_with(3, Some(secret)).await;
    let written = put(&cluster.store(0), "key", random(3 << 20), Condition::Any).await;
    assert!(matches!(written, Ok(WriteOutcome::Done(Some(_)))), "{written:?}");
    assert!(get(&cluster.store(1), "key").await == Some(random(3 << 20)));

    let peer = cluster.nodes[0].as_ref().expect("a node").place().peer().expect("an address");
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{peer}")).expect("an address");
    let mut grpc = tonic::client::Grpc::new(endpoint.connect().await.expect("a connection"));
    for path in ["/synod.slots.v1.Slots/Deliver", "/synod.objects.v1.Objects/Deliver"] {
        for shown in [None, Some("Bearer 00"), Some("Basic 00")] {
            grpc.ready().await.expect("a connection");
            let mut request = tonic::Request::new(SlotBatch::default());
            if let Some(shown) = shown {
                request.metadata_mut().insert("authorization", shown.parse().expect("a header"));
            }
            let codec = tonic_prost::ProstCodec::<SlotBatch, SlotReceipt>::default();
            let answer = grpc.unary(request, path.parse().expect("a path"), codec).await;
            let code = answer.expect_err("it is not listened to").code();
            assert_eq!(code, tonic::Code::Unauthenticated, "{path} with {shown:?}");
        }
    }
}

fn count_files(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries.map(|path| if path.is_dir() { count_files(&path) } else { 1 }).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_hold_for_one_of_many() {
    let cluster = Cluster::start(3).await;
    let mut puts = tokio::task::JoinSet::new();
    for index in 0..30 {
        let store = cluster.store(index % 3);
        puts.spawn(async move { put(&store, "once", random(100 + index), Condition::Absent).await });
    }
    let (mut winners, mut unknown) = (0, 0);
    while let Some(outcome) = puts.join_next().await {
        match outcome.expect("a task") {
            Ok(WriteOutcome::Done(_)) => winners += 1,
            Ok(WriteOutcome::Refused(there)) => assert!(there.is_some()),
            // On a busy machine an answer may be late: that one may have won.
            Err(StoreError::Indeterminate) => unknown += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(winners == 1 || winners == 0 && unknown > 0, "{winners} winners, {unknown} unknown");
    let there = cluster.store(0).read(&object("once")).await.expect("an answer").expect("an entry");
    let other = Condition::EtagIn([Arc::from("0")].into());
    let refused = put(&cluster.store(1), "once", random(7), other).await;
    assert!(matches!(refused, Ok(WriteOutcome::Refused(Some(entry))) if entry.tag == there.tag));
    let same = Condition::EtagIn([Arc::clone(&there.etag)].into());
    assert!(matches!(put(&cluster.store(2), "once", random(7), same).await, Ok(WriteOutcome::Done(Some(_)))));
    let deleted = cluster.store(0).delete(&object("once"), Condition::Any).await;
    assert!(matches!(deleted, Ok(WriteOutcome::Done(Some(_)))));
    assert_eq!(get(&cluster.store(1), "once").await, None);
    let again = cluster.store(2).delete(&object("once"), Condition::Any).await;
    assert_eq!(again, Ok(WriteOutcome::Done(None)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_is_whole_and_in_order_page_by_page() {
    let cluster = Cluster::start(3).await;
    let mut keys: Vec<String> = (0..60).map(|number| format!("a/{number:03}")).collect();
    keys.extend((0..40).map(|number| format!("b/{}/{number}", number % 4)));
    for (index, key) in keys.iter().enumerate() {
        put(&cluster.store(index % 3), key, random(10), Condition::Any).await.expect("a write");
    }
    keys.sort();
    let query = |after, limit| ListQuery {
        space: Space::Object,
        bucket: "photos".to_owned(),
        prefix: String::new(),
        delimiter: String::new(),
        after,
        limit,
        beside: None,
    };
    for limit in [1000, 7] {
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = cluster.store(1).list(query(after.take(), limit)).await.expect("a page");
            for item in page.items {
                let ListItem::Entry(entry) = item else { panic!("no delimiter was asked for") };
                listed.push(entry.key);
            }
            if !page.is_truncated {
                break;
            }
            after = listed.last().cloned().map(ListPosition::Key);
        }
        assert_eq!(listed, keys);
    }
    let folded = ListQuery { delimiter: "/".to_owned(), prefix: "b/".to_owned(), ..query(None, 1000) };
    let page = cluster.store(2).list(folded).await.expect("a page");
    let prefixes: Vec<_> = (0..4).map(|number| ListItem::Prefix(format!("b/{number}/"))).collect();
    assert_eq!(page.items, prefixes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_gone_takes_nothing_with_it() {
    let mut cluster = Cluster::start(3).await;
    for number in 0..50 {
        let size = if number % 5 == 0 { 200_000 } else { 1000 };
        put(&cluster.store(number % 3), &format!("{number}"), random(size + number), Condition::Any)
            .await
            .expect("a write");
    }
    cluster.nodes[0].take().expect("a node").kill().await;
    for number in 0..50 {
        let size = if number % 5 == 0 { 200_000 } else { 1000 };
        let got = get(&cluster.store(1 + number % 2), &format!("{number}")).await;
        assert!(got == Some(random(size + number)), "{number}");
    }
    let replaced = put(&cluster.store(1), "7", random(99), Condition::Present).await;
    assert!(matches!(replaced, Ok(WriteOutcome::Done(Some(_)))), "{replaced:?}");
    tokio::time::timeout(Duration::from_secs(10), get(&cluster.store(2), "7")).await.expect("an answer");
}
