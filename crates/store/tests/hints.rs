//! Nodes that give each other hints over real sockets: who comes, who goes, who is refused, and what gets through.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use memberlist::Options;
use memberlist::delegate::{CompositeDelegate, NodeDelegate};
use memberlist::net::NetTransportOptions;
use memberlist::proto::{Label, MaybeResolvedAddress, Meta};
use memberlist::tokio::{TokioSocketAddrResolver, TokioTcpMemberlist};
use synod_core::NodeId;
use synod_store::hints::{Hint, HintCounters, Hints, HintsConfig, HintsError, PAYLOAD_BYTES_MAX};
use tokio::sync::mpsc;
use tokio::time::timeout;

// ---- The stories ----

#[tokio::test]
async fn nodes_find_each_other_and_all_hear_what_one_says() {
    let [a, b, c] = [address(), address(), address()];
    let cluster = [("a", a), ("b", b), ("c", c)];
    let mut nodes = [
        Node::start(config("a", a, &cluster)).await,
        Node::start(config("b", b, &cluster)).await,
        Node::start(config("c", c, &cluster)).await,
    ];
    for node in &mut nodes {
        node.both_others_are_up(&cluster).await;
    }

    // What fits into a datagram, what just does not, and what never would.
    let payloads = [vec![1; 20], vec![2; 970], vec![3; 980], vec![4; 100_000]];
    for payload in &payloads {
        nodes[0].hints.broadcast(payload);
    }
    for node in &mut nodes[1..] {
        let mut received = Vec::new();
        while received.len() < payloads.len() {
            let (from, payload) = node.payload().await;
            assert_eq!(from, id("a"));
            received.push(payload);
        }
        // They come in any order, but once.
        received.sort();
        assert_eq!(received, payloads);
    }

    // Many at once reach all as well.
    let numbers: HashSet<Vec<u8>> = (0..300_u32).map(|number| number.to_le_bytes().to_vec()).collect();
    for number in &numbers {
        nodes[1].hints.broadcast(number);
    }
    for index in [0, 2] {
        let mut missing = numbers.clone();
        while !missing.is_empty() {
            let (_, payload) = nodes[index].payload().await;
            assert!(missing.remove(&payload), "{payload:?} came twice");
        }
    }

    // Each hears the others itself.
    for node in &mut nodes {
        while node.hints.last_heard().len() < 2 {
            node.hint(|hint| matches!(hint, Hint::Heard { .. })).await;
        }
        assert_eq!(node.hints.counters().dropped_hints, 0);
        assert_eq!(node.hints.counters().refused_members, 0);
    }
}

#[tokio::test]
async fn nodes_find_each_other_by_ipv6() {
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return; // This machine has no IPv6.
    }
    let [a, b] = [address_of(Ipv6Addr::LOCALHOST.into()), address_of(Ipv6Addr::LOCALHOST.into())];
    let cluster = [("a", a), ("b", b)];
    let mut node_a = Node::start(config("a", a, &cluster)).await;
    let mut node_b = Node::start(config("b", b, &cluster)).await;
    node_a.is_up("b").await;
    node_b.is_up("a").await;
    node_a.hints.broadcast(b"small");
    assert_eq!(node_b.payload().await.1, b"small");
    node_b.hints.broadcast(&[7; 10_000]);
    assert_eq!(node_a.payload().await.1, [7; 10_000]);
}

#[tokio::test]
async fn a_node_that_vanishes_is_down_and_is_up_again_when_it_restarts() {
    let [a, b, c] = [address(), address(), address()];
    let cluster = [("a", a), ("b", b), ("c", c)];
    let mut node_a = Node::start(config("a", a, &cluster)).await;
    let mut node_b = Node::start(config("b", b, &cluster)).await;
    let node_c = Node::start(config("c", c, &cluster)).await;
    node_a.both_others_are_up(&cluster).await;
    node_b.both_others_are_up(&cluster).await;

    drop(node_c);
    node_a.is_down("c").await;
    node_b.is_down("c").await;
    assert_eq!(node_a.hints.online(), [id("b")]);

    let second_life = HintsConfig { incarnation: 2, ..config("c", c, &cluster) };
    let instance = second_life.instance;
    let mut node_c = Node::start(second_life).await;
    assert_eq!(node_a.is_up("c").await, (instance, 2));
    assert_eq!(node_b.is_up("c").await, (instance, 2));

    // It begins to count its payloads anew, and is heard all the same.
    node_c.both_others_are_up(&cluster).await;
    node_c.hints.broadcast(b"back");
    assert_eq!(node_a.payload().await, (id("c"), b"back".to_vec()));

    // It goes again, and comes back elsewhere, where nobody looks for it.
    drop(node_c);
    node_a.is_down("c").await;
    node_b.is_down("c").await;
    let third_life = HintsConfig { incarnation: 3, ..config("c", address(), &cluster) };
    let _node_c = Node::start(third_life).await;
    assert_eq!(node_a.is_up("c").await.1, 3);
    assert_eq!(node_b.is_up("c").await.1, 3);
}

#[tokio::test]
async fn a_node_that_leaves_is_down_before_one_that_vanished_and_its_address_is_free() {
    let [a, b, c] = [address(), address(), address()];
    let cluster = [("a", a), ("b", b), ("c", c)];
    let patient =
        |name, at| HintsConfig { suspect_timeout: Duration::from_secs(3), ..config(name, at, &cluster) };
    let mut node_a = Node::start(patient("a", a)).await;
    let mut node_b = Node::start(patient("b", b)).await;
    let node_c = Node::start(patient("c", c)).await;
    node_a.both_others_are_up(&cluster).await;
    node_b.both_others_are_up(&cluster).await;

    drop(node_c);
    node_b.hints.leave(Duration::from_secs(10)).await;
    TcpListener::bind(b).unwrap();
    UdpSocket::bind(b).unwrap();
    let down = node_a.hint(|hint| matches!(hint, Hint::Down { .. })).await;
    assert_eq!(down, Hint::Down { node: id("b") }, "it said so");
    node_a.is_down("c").await;
}

#[tokio::test]
async fn nodes_of_another_cluster_or_with_another_secret_are_never_up() {
    let at = [address(), address(), address(), address(), address()];
    let cluster = [("a", at[0]), ("b", at[1]), ("label", at[2]), ("secret", at[3]), ("plain", at[4])];
    let mut node_a = Node::start(config("a", at[0], &cluster)).await;
    let strangers = [
        HintsConfig { label: "another".into(), ..config("label", at[2], &cluster) },
        HintsConfig { secret: Some([9; 32]), ..config("secret", at[3], &cluster) },
        HintsConfig { secret: None, ..config("plain", at[4], &cluster) },
    ];
    let mut started = Vec::new();
    for stranger in strangers {
        started.push(Node::start(stranger).await);
    }
    // They call, and are called, several times each, and then still know nobody.
    for stranger in &mut started {
        stranger.has_counted(|counters| counters.failed_joins >= 8).await;
        assert_eq!(stranger.hints.online(), []);
    }
    node_a.has_counted(|counters| counters.failed_joins >= 8).await;
    assert_eq!(node_a.hints.online(), []);
    assert_eq!(node_a.hints.counters().refused_members, 0, "nothing that they say is even read");

    // A node of the cluster is welcome at the same time.
    let _node_b = Node::start(config("b", at[1], &cluster)).await;
    node_a.is_up("b").await;
    assert_eq!(node_a.hints.online(), [id("b")]);
}

#[tokio::test]
async fn a_node_that_nobody_configured_is_never_up_and_not_heard() {
    let [a, b, z] = [address(), address(), address()];
    let mut node_a = Node::start(config("a", a, &[("a", a), ("b", b)])).await;
    let mut node_b = Node::start(config("b", b, &[("a", a), ("b", b)])).await;
    let mut unknown = Node::start(config("z", z, &[("a", a), ("z", z)])).await;
    unknown.is_up("a").await;
    node_a.has_counted(|counters| counters.refused_members > 0).await;
    unknown.hints.broadcast(&[1; 5_000]);
    node_a.has_counted(|counters| counters.refused_payloads > 0).await;
    node_b.is_up("a").await;
    node_b.hints.broadcast(b"known");
    assert_eq!(node_a.payload().await, (id("b"), b"known".to_vec()));
    assert_eq!(node_a.hints.online(), [id("b")]);
}

#[tokio::test]
async fn a_second_process_of_a_name_is_told_of_and_not_heard() {
    let [a, b] = [address(), address()];
    let cluster = [("a", a), ("b", b)];
    let mut node_a = Node::start(config("a", a, &cluster)).await;
    let first = config("b", b, &cluster);
    let instance_of_first = first.instance;
    let mut node_b = Node::start(first).await;
    assert_eq!(node_a.is_up("b").await.0, instance_of_first);
    node_b.is_up("a").await;

    let second = config("b", address(), &cluster);
    let (instance_of_second, address_of_second) = (second.instance, second.bind);
    let mut impostor = Node::start(second).await;
    // Each of the two that talk is told of the one that it did not know.
    let cases = [(&mut node_a, address_of_second, instance_of_second), (&mut impostor, b, instance_of_first)];
    for (node, address, instance) in cases {
        let conflict = node.hint(|hint| matches!(hint, Hint::NameConflict { .. })).await;
        assert_eq!(conflict, Hint::NameConflict { node: id("b"), address, instance, incarnation: 1 });
    }

    // The second one sees the others, but they hear only the first.
    assert_eq!(impostor.hints.online(), [id("a")]);
    impostor.hints.broadcast(&[6; 5_000]);
    node_a.has_counted(|counters| counters.refused_payloads > 0).await;
    node_b.hints.broadcast(b"mine");
    assert_eq!(node_a.payload().await, (id("b"), b"mine".to_vec()));
    assert!(node_a.hints.counters().name_conflicts > 0);
}

#[tokio::test]
async fn a_peer_that_comes_late_is_called_until_it_answers() {
    let [a, b] = [address(), address()];
    let mut node_a = Node::start(config("a", a, &[("a", a), ("b", b)])).await;
    node_a.has_counted(|counters| counters.failed_joins >= 2).await;
    // The other one does not know where to call, so it must be called.
    let nowhere = SocketAddr::new(a.ip(), 1);
    let mut node_b = Node::start(config("b", b, &[("a", nowhere), ("b", b)])).await;
    node_a.is_up("b").await;
    node_b.is_up("a").await;
    assert!(node_a.hints.counters().joins > 0);
}

#[tokio::test]
async fn two_halves_that_have_forgotten_each_other_become_one_again() {
    // All that reaches a node passes its gate.
    let [a, b] = [address(), address()];
    let [gate_a, gate_b] = [Gate::before(a).await, Gate::before(b).await];
    let cluster = [("a", gate_a.address), ("b", gate_b.address)];
    let behind_gate = |name, bind, gate: &Gate| HintsConfig {
        bind,
        // Dead nodes are remembered ten times as long.
        suspect_timeout: Duration::from_millis(300),
        ..config(name, gate.address, &cluster)
    };
    let mut node_a = Node::start(behind_gate("a", a, &gate_a)).await;
    let mut node_b = Node::start(behind_gate("b", b, &gate_b)).await;
    node_a.is_up("b").await;
    node_b.is_up("a").await;

    gate_a.open.store(false, Ordering::Relaxed);
    gate_b.open.store(false, Ordering::Relaxed);
    node_a.is_down("b").await;
    node_b.is_down("a").await;
    // A call every 100 ms that fails, for longer than the dead are remembered.
    let failed_before = node_a.hints.counters().failed_joins;
    node_a.has_counted(|counters| counters.failed_joins >= failed_before + 40).await;
    let silence = node_a.hints.last_heard();
    assert!(silence.iter().all(|(_, age)| *age > Duration::from_secs(3)), "{silence:?}");

    gate_a.open.store(true, Ordering::Relaxed);
    gate_b.open.store(true, Ordering::Relaxed);
    node_a.is_up("b").await;
    node_b.is_up("a").await;
    node_a.hints.broadcast(b"together");
    assert_eq!(node_b.payload().await.1, b"together");
}

#[tokio::test]
async fn records_and_payloads_that_cannot_be_read_are_counted_and_ignored() {
    let [a, b, m] = [address(), address(), address()];
    let cluster = [("a", a), ("b", b), ("m", m)];
    let plain = |name, at| HintsConfig { secret: None, ..config(name, at, &cluster) };
    let mut node_a = Node::start(plain("a", a)).await;

    // A member of the cluster by label and by name, but of some other make.
    let mut transport = NetTransportOptions::new(Arc::<str>::from("m"));
    transport.add_bind_address(m);
    let options = Options::local().with_label(Label::try_from("cluster").unwrap());
    let delegate = CompositeDelegate::new().with_node_delegate(OtherMeta);
    type OtherMake<D> = TokioTcpMemberlist<Arc<str>, TokioSocketAddrResolver, D>;
    let other_make = OtherMake::with_delegate(delegate, transport, options).await.unwrap();
    other_make.join(MaybeResolvedAddress::Resolved(a)).await.unwrap();
    node_a.has_counted(|counters| counters.refused_members > 0).await;
    for message in [&b""[..], b"\x01", b"\x02 of a later version", &[1; 10_000]] {
        let before = node_a.hints.counters().refused_payloads;
        other_make.send_reliable(&a, message.to_vec().into()).await.unwrap();
        node_a.has_counted(|counters| counters.refused_payloads > before).await;
    }
    other_make.send(&a, vec![9; 100].into()).await.unwrap();
    node_a.has_counted(|counters| counters.refused_payloads == 5).await;

    // Nothing of it was told, and others are heard as before.
    let mut node_b = Node::start(plain("b", b)).await;
    node_b.is_up("a").await;
    node_b.hints.broadcast(b"sound");
    assert_eq!(node_a.payload().await, (id("b"), b"sound".to_vec()));
    assert_eq!(node_a.hints.online(), [id("b")]);
    other_make.shutdown().await.unwrap();
}

#[tokio::test]
async fn what_is_too_large_or_too_much_is_counted_and_dropped() {
    let a = address();
    let node = Node::start(config("a", a, &[("a", a)])).await;
    node.hints.broadcast(&vec![0; PAYLOAD_BYTES_MAX + 1]);
    assert_eq!(node.hints.counters().dropped_broadcasts, 1);
    for _ in 0..2_000 {
        node.hints.broadcast(b"nobody takes it");
    }
    assert_eq!(node.hints.counters().dropped_broadcasts, 1 + 2_000 - 1_024);
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = taken.local_addr().unwrap();
    match Hints::start(config("a", at, &[("a", at)])).await {
        Err(HintsError::Bind { address, .. }) => assert_eq!(address, at),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("two listen on {at}"),
    }
}

// ---- What they are told with ----

struct Node {
    hints: Hints,
    receiver: mpsc::Receiver<Hint>,
}

impl Node {
    /// Starts a node as soon as its address is free.
    async fn start(config: HintsConfig) -> Self {
        let start = async {
            loop {
                match Hints::start(config.clone()).await {
                    Ok((hints, receiver)) => return Self { hints, receiver },
                    Err(HintsError::Bind { .. }) => tokio::time::sleep(POLL).await,
                    Err(other) => panic!("{other}"),
                }
            }
        };
        timeout(PATIENCE, start).await.expect("the address does not become free")
    }

    async fn hint(&mut self, is_wanted: impl Fn(&Hint) -> bool) -> Hint {
        let search = async {
            loop {
                match self.receiver.recv().await {
                    Some(hint) if is_wanted(&hint) => return hint,
                    Some(_) => {}
                    None => panic!("the hints have ended"),
                }
            }
        };
        timeout(PATIENCE, search).await.expect("the hint does not come")
    }

    /// Instance and incarnation of a node when it comes up.
    async fn is_up(&mut self, name: &str) -> (u64, u64) {
        match self.hint(|hint| matches!(hint, Hint::Up { node, .. } if *node == id(name))).await {
            Hint::Up { instance, incarnation, .. } => (instance, incarnation),
            other => panic!("{other:?}"),
        }
    }

    async fn both_others_are_up(&mut self, cluster: &[(&str, SocketAddr)]) {
        while self.hints.online().len() < cluster.len() - 1 {
            self.hint(|hint| matches!(hint, Hint::Up { .. })).await;
        }
    }

    async fn is_down(&mut self, name: &str) {
        self.hint(|hint| *hint == Hint::Down { node: id(name) }).await;
    }

    async fn payload(&mut self) -> (NodeId, Vec<u8>) {
        match self.hint(|hint| matches!(hint, Hint::Received { .. })).await {
            Hint::Received { from, payload } => (from, payload.to_vec()),
            other => panic!("{other:?}"),
        }
    }

    /// Counters are not announced, so they are looked at until they are right.
    async fn has_counted(&mut self, is_enough: impl Fn(HintCounters) -> bool) {
        let look = async {
            while !is_enough(self.hints.counters()) {
                tokio::time::sleep(POLL).await;
            }
        };
        timeout(PATIENCE, look).await.unwrap_or_else(|_| panic!("{:?}", self.hints.counters()));
    }
}

/// Passes on what comes to its address, by TCP and UDP, as long as it is open.
struct Gate {
    address: SocketAddr,
    open: Arc<AtomicBool>,
}

impl Gate {
    async fn before(target: SocketAddr) -> Self {
        let address = address();
        let open = Arc::new(AtomicBool::new(true));
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        let is_open = Arc::clone(&open);
        tokio::spawn(async move {
            while let Ok((mut outside, _)) = listener.accept().await {
                if is_open.load(Ordering::Relaxed) {
                    tokio::spawn(async move {
                        let mut inside = tokio::net::TcpStream::connect(target).await?;
                        tokio::io::copy_bidirectional(&mut outside, &mut inside).await
                    });
                }
            }
        });
        let socket = tokio::net::UdpSocket::bind(address).await.unwrap();
        let is_open = Arc::clone(&open);
        tokio::spawn(async move {
            let mut datagram = vec![0; 65_536];
            while let Ok((bytes, _)) = socket.recv_from(&mut datagram).await {
                if is_open.load(Ordering::Relaxed) {
                    socket.send_to(&datagram[..bytes], target).await.unwrap();
                }
            }
        });
        Self { address, open }
    }
}

struct OtherMeta;

impl NodeDelegate for OtherMeta {
    async fn node_meta(&self, _limit: usize) -> Meta {
        Meta::try_from(&b"not what a node of synod says of itself"[..]).unwrap()
    }
}

/// A quick node of the cluster that listens where it says it does.
fn config(name: &str, at: SocketAddr, cluster: &[(&str, SocketAddr)]) -> HintsConfig {
    static INSTANCES: AtomicU64 = AtomicU64::new(1);
    let others = cluster.iter().filter(|(other, _)| *other != name);
    HintsConfig {
        node: id(name),
        instance: INSTANCES.fetch_add(1, Ordering::Relaxed),
        incarnation: 1,
        bind: at,
        advertise: at,
        label: "cluster".into(),
        peers: others.map(|(other, at)| (id(other), at.to_string())).collect(),
        gossip_interval: Duration::from_millis(50),
        fanout: 3,
        suspect_timeout: Duration::from_millis(1500),
        full_sync_interval: Duration::from_secs(1),
        rejoin_interval: Duration::from_millis(100),
        secret: Some([5; 32]),
    }
}

fn id(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn address() -> SocketAddr {
    address_of(Ipv4Addr::LOCALHOST.into())
}

/// An address whose port is free, by TCP and by UDP, and is given to no other test.
fn address_of(ip: IpAddr) -> SocketAddr {
    static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);
    loop {
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        if UdpSocket::bind(address).is_ok() && GIVEN.lock().unwrap().insert(address.port()) {
            return address;
        }
    }
}

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);
