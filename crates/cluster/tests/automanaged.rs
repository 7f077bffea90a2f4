//! Nodes that find each other by a list of hosts, over real sockets of the loopback.
//!
//! A Go node is stood in for by a health endpoint whose report has no `runtime`, which is all that a poll sees of one.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use synod_cluster::automanaged::{
    AutomanagedConfig, AutomanagedConfigError, AutomanagedError, AutomanagedProvider, HEALTH_BYTES_MAX,
    HealthError, HealthPoller, HealthReport, HealthServer, HealthServerConfig, HealthServerError,
    HostPollCounts, PollError,
};
use synod_cluster::{Delivery, EventStream, MonotonicClock, RosterWiring, Subscription};
use synod_core::gossip::{BlockReason, GossipMemberId, GossiperEvent};
use synod_core::membership::{ClusterEvent, Member, RejoinReason, TopologyUpdate};
use synod_core::remote::RemoteEvent;
use synod_core::roster::{PeerRuntime, RosterConfig, RosterMember, RosterUpdate};
use synod_core::{Authority, MemberId, TimerInstant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[tokio::test]
async fn a_node_among_go_nodes_lists_them_all_under_gos_hash() {
    let own = listener().await;
    let [one, two] = [GoNode::start("memberId-1", 9001).await, GoNode::start("memberId-2", 9002).await];
    let hosts = vec![address_of(&own), one.host(), two.host()];
    let node = Node::start_on(own, "memberId-0#1", &config(hosts));

    node.until(&["memberId-0#1", "memberId-1", "memberId-2"]).await;
    let members = node.provider.members();
    let go = members.iter().find(|member| member.id.as_str() == "memberId-1").expect("a Go node");
    assert_eq!((go.authority.as_str(), go.runtime), ("127.0.0.1:9001", PeerRuntime::Protoactor));
    assert_eq!(go.kinds, ["Echo", "prototopic"]);
    assert_eq!(node.hints(), [], "this node itself needs no join");
    node.provider.stop().await;
    one.server.stop().await;
    two.server.stop().await;
}

#[tokio::test]
async fn three_synod_nodes_hint_at_each_other_and_learn_their_kinds_when_membership_has_them() {
    let listeners = [listener().await, listener().await, listener().await];
    let hosts: Vec<_> = listeners.iter().map(address_of).collect();
    let mut nodes = Vec::new();
    for (listener, name) in listeners.into_iter().zip(["a#1", "b#1", "c#1"]) {
        let mut config = config(hosts.clone());
        config.kinds = vec![format!("kind of {name}")];
        nodes.push(Node::start_on(listener, name, &config));
    }
    for (node, others) in nodes.iter().zip([["b#1", "c#1"], ["a#1", "c#1"], ["a#1", "b#1"]]) {
        soon(async {
            while !others.iter().all(|other| node.hints().contains(&own(other))) {
                tick().await;
            }
        })
        .await;
        assert_eq!(node.provider.members().len(), 1, "an answer makes nobody a member");
    }

    for node in &nodes {
        node.publish_topology(&["a#1", "b#1", "c#1"]);
    }
    for node in nodes {
        node.until(&["a#1", "b#1", "c#1"]).await;
        soon(async {
            while node.provider.members().iter().any(|member| member.kinds.is_empty()) {
                tick().await;
            }
        })
        .await;
        assert_eq!(node.provider.members()[2].kinds, ["kind of c#1"]);
        node.provider.stop().await;
    }
}

#[tokio::test]
async fn a_node_that_stops_answering_is_gone_after_the_tolerated_misses() {
    let own = listener().await;
    let go = GoNode::start("go", 9001).await;
    let mut config = config(vec![address_of(&own), go.host()]);
    config.roster.poll_misses_max = 2;
    let mut node = Node::start_on(own, "a#1", &config);
    node.until(&["a#1", "go"]).await;

    go.server.stop().await;
    let update = node.next_update(|update| !update.left.is_empty()).await;
    assert_eq!(update.left[0].id.as_str(), "go");
    let misses = node.provider.poll_counters().counts()[1].1.missing;
    assert!(misses >= 3, "gone after {misses} misses");
    node.provider.stop().await;
}

#[tokio::test]
async fn a_restart_at_the_same_address_replaces_the_last_life() {
    let own = listener().await;
    let go = GoNode::start("first-life", 9001).await;
    let mut config = config(vec![address_of(&own), go.host()]);
    // Misses alone would take far too long.
    config.roster.poll_misses_max = 1_000;
    let mut node = Node::start_on(own, "a#1", &config);
    node.until(&["a#1", "first-life"]).await;

    let address = go.server.address();
    go.server.stop().await;
    let again = HealthServer::bind(address).await.expect("a free address");
    let go = GoNode::start_on(again, "second-life", 9001, "c");
    let update = node.next_update(|update| !update.left.is_empty()).await;
    assert_eq!((ids(&update.joined), ids(&update.left)), (vec!["second-life"], vec!["first-life"]));
    node.provider.stop().await;
    go.server.stop().await;
}

#[tokio::test]
async fn whoever_gossip_says_is_over_goes_at_once_although_it_answers() {
    let own = listener().await;
    let go = GoNode::start("go", 9001).await;
    let mut node = Node::start_on(own, "a#1", &config(vec![go.host()]));
    node.until(&["a#1", "go"]).await;
    let (member, reason) = (GossipMemberId::new("go").expect("an id"), BlockReason::Left);
    let event = GossiperEvent::Blocked { member, reason };
    node.stream.publish(ClusterEvent::Gossiper { event, observed_at: TimerInstant::ZERO });
    node.next_update(|update| !update.left.is_empty()).await;
    // It goes on answering, which is told once.
    node.after_rounds(3).await;
    assert_eq!(ids(&node.provider.members()), ["a#1"]);
    let refused = node.refused();
    assert!(
        matches!(&refused[..], [(peer, problem)] if peer == "127.0.0.1:9001" && problem.contains("over"))
    );
    node.provider.stop().await;
}

#[tokio::test]
async fn a_node_that_gossips_is_not_given_up_for_missed_polls() {
    let own = listener().await;
    let go = GoNode::start("go", 9001).await;
    let mut config = config(vec![address_of(&own), go.host()]);
    let alive_grace = Duration::from_secs(600);
    config.roster = RosterConfig { poll_misses_max: 0, alive_grace, ..RosterConfig::default() };
    let node = Node::start_on(own, "a#1", &config);
    node.until(&["a#1", "go"]).await;
    let event = GossiperEvent::Alive { member: GossipMemberId::new("go").expect("an id") };
    node.stream.publish(ClusterEvent::Gossiper { event, observed_at: node.clock.now() });
    // The heartbeat is read before the next round, which comes with its own pause.
    node.after_rounds(1).await;
    go.server.stop().await;
    node.after_rounds(3).await;
    assert_eq!(ids(&node.provider.members()), ["a#1", "go"]);
    node.provider.stop().await;
}

#[tokio::test]
async fn nodes_of_other_clusters_are_ignored_and_told_once() {
    let own = listener().await;
    let other = GoNode::start_on(listener().await, "other", 9001, "another cluster");
    let mut node = Node::start_on(own, "a#1", &config(vec![other.host()]));
    node.after_rounds(3).await;
    assert_eq!(ids(&node.provider.members()), ["a#1"]);
    let (host, counts) = node.provider.poll_counters().counts()[0].clone();
    assert_eq!((counts.answered, counts.missing, counts.refused), (0, 0, 0));
    assert!(counts.other_cluster >= 3);
    let refused = node.refused();
    assert!(
        matches!(&refused[..], [(peer, problem)] if peer == host.as_str() && problem.contains("another cluster"))
    );
    node.provider.stop().await;
    other.server.stop().await;
}

#[tokio::test]
async fn when_nobody_answers_the_roster_stands() {
    let go = GoNode::start("go", 9001).await;
    let mut config = config(vec![go.host()]);
    config.roster.poll_misses_max = 0;
    let node = Node::start_on(listener().await, "a#1", &config);
    node.until(&["a#1", "go"]).await;
    go.server.stop().await;
    node.after_rounds(4).await;
    assert!(node.provider.poll_counters().counts()[0].1.missing >= 3);
    assert_eq!(ids(&node.provider.members()), ["a#1", "go"]);
    node.provider.stop().await;
}

#[tokio::test]
async fn a_host_that_hangs_costs_the_others_nothing_and_a_round_no_more_than_the_timeout() {
    let silent = listener().await;
    let go = GoNode::start("go", 9001).await;
    let timeout = Duration::from_millis(300);
    let hosts = [address_of(&silent), go.host()];
    let poller = HealthPoller::new(&hosts, "c", timeout).expect("sound settings");
    let connections = Arc::new(Mutex::new(Vec::new()));
    let accepting = tokio::spawn({
        let connections = Arc::clone(&connections);
        async move {
            while let Ok((connection, _)) = silent.accept().await {
                connections.lock().expect("a lock").push(connection);
            }
        }
    });
    for _ in 0..2 {
        let began = Instant::now();
        let polls = soon(poller.poll()).await;
        assert_eq!(polls[0].answer, Err(PollError::TimedOut(timeout)));
        assert_eq!(polls[1].answer.as_ref().map(|report| report.member.id.as_str()), Ok("go"));
        let took = began.elapsed();
        assert!(took >= timeout && took < timeout * 10, "{took:?}");
    }
    poller.close().await;
    accepting.abort();
    go.server.stop().await;
}

#[tokio::test]
async fn hostile_answers_are_counted_and_told_once_and_change_nothing() {
    let large = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(HEALTH_BYTES_MAX + 1));
    let json = |body: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let cases = [
        (large, true),
        (json("<html>"), true),
        (json(r#"{"id":7}"#), true),
        (json(r#"{"id":"x","address":"h","port":-1,"cluster_name":"c"}"#), true),
        (json(r#"{"id":"","address":"h","port":1,"cluster_name":"c"}"#), true),
        (json(r#"{"id":"x","address":"h h","port":1,"cluster_name":"c"}"#), true),
        // These are no reports at all, good or bad.
        ("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n".into(), false),
        ("SSH-2.0-OpenSSH_9.9\r\n".into(), false),
        (String::new(), false),
        (format!("HTTP/1.1 200 OK\r\n{}", "x: y\r\n".repeat(50_000)), false),
    ];
    let mut hosts = Vec::new();
    let mut hostile = Vec::new();
    let mut is_refused = Vec::new();
    for (answer, refused) in cases {
        let listener = listener().await;
        hosts.push(address_of(&listener));
        hostile.push(canned(listener, answer));
        is_refused.push(refused);
    }
    let go = GoNode::start("go", 9001).await;
    hosts.push(go.host());
    let mut node = Node::start_on(listener().await, "a#1", &config(hosts.clone()));
    node.until(&["a#1", "go"]).await;
    node.after_rounds(3).await;

    let told = node.refused();
    let counts = node.provider.poll_counters().counts();
    for ((host, counts), refused) in counts.iter().zip(is_refused) {
        let HostPollCounts { answered, missing, other_cluster, refused: count } = *counts;
        assert_eq!((answered, other_cluster), (0, 0), "{host}");
        assert_eq!((count >= 3, missing >= 3), (refused, !refused), "{host}: {counts:?}");
        let times = told.iter().filter(|(peer, _)| peer == host.as_str()).count();
        assert_eq!(times, usize::from(refused), "{host}: {told:?}");
    }
    assert_eq!(ids(&node.provider.members()), ["a#1", "go"]);
    node.provider.stop().await;
    hostile.into_iter().for_each(|task| task.abort());
    go.server.stop().await;
}

#[tokio::test]
async fn the_endpoint_speaks_as_gos_does_and_always_of_the_present_life() {
    let own = listener().await;
    let address = own.local_addr().expect("an address");
    let mut config = config(vec![address_of(&own)]);
    config.kinds = vec!["prototopic".into(), "Echo".into()];
    let mut node = Node::start_on(own, "a#1", &config);
    let port = address.port();
    let report = |id: &str| {
        format!(
            r#"{{"id":"{id}","address":"127.0.0.1","auto_manage_port":{port},"port":8401,"kinds":["Echo","prototopic"],"cluster_name":"c","runtime":"synod"}}"#
        )
    };
    let (head, body) = request(address, "GET /_health").await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("content-type: application/json; charset=UTF-8\r\n"), "{head}");
    assert_eq!(body, report("a#1"));
    for (question, status) in [("GET /", 404), ("GET /_health/x", 404), ("POST /_health", 405)] {
        let (head, _) = request(address, question).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{question}: {head}");
    }

    let [previous, current] = ["a#1", "a#2"].map(own_id);
    let (reason, observed_at) = (RejoinReason::DeclaredDead, TimerInstant::ZERO);
    node.stream.publish(ClusterEvent::SelfRejoining { previous, current, reason, observed_at });
    node.next_update(|update| ids(&update.members) == ["a#2"]).await;
    soon(async {
        while request(address, "GET /_health").await.1 != report("a#2") {
            tick().await;
        }
    })
    .await;
    node.provider.stop().await;
}

#[tokio::test]
async fn a_connection_without_a_request_is_cut_off_and_makes_room() {
    let config = HealthServerConfig { connections_max: 1, request_timeout: Duration::from_millis(200) };
    let (_report, reports) = watch::channel(go_report("go", 9001, "c"));
    let server = HealthServer::start(listener().await, reports, config).expect("sound settings");
    // One says nothing, the next one begins and does not go on. Each has the only place there is, for a while.
    let mut idle = TcpStream::connect(server.address()).await.expect("a connection");
    let mut slow = TcpStream::connect(server.address()).await.expect("a connection");
    slow.write_all(b"GET /_health HTTP/1.1\r\nx: ").await.expect("an open connection");
    let (head, _) = request(server.address(), "GET /_health").await;
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    for stream in [&mut idle, &mut slow] {
        let mut rest = Vec::new();
        // Cut off with or without a word; what matters is that it ends.
        drop(soon(stream.read_to_end(&mut rest)).await);
    }
    assert!(server.counters().waits() > 0);
    assert_eq!(server.counters().answers(), 1);
    server.stop().await;
}

#[tokio::test]
async fn an_endpoint_that_stops_frees_its_address_and_an_address_in_use_is_named() {
    let go = GoNode::start("go", 9001).await;
    let address = go.server.address();
    let taken = HealthServer::bind(address).await.expect_err("the address is taken");
    assert_eq!(taken, HealthServerError::AddressInUse { address });
    let stream = EventStream::default();
    let mut config = config(vec![go.host()]);
    config.listen = address;
    let failed =
        AutomanagedProvider::start_member(&config, own("a#1"), wiring(&stream), Box::new(|_, _| {})).await;
    assert_eq!(failed.err(), Some(AutomanagedError::Server(taken)));
    assert_eq!(stream.subscriber_count(), 0, "nothing runs");

    // A connection that is kept open does not hold the stop up.
    let poller = HealthPoller::new(&[go.host()], "c", Duration::from_secs(5)).expect("sound settings");
    assert!(poller.poll().await[0].answer.is_ok());
    let began = Instant::now();
    go.server.stop().await;
    assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
    assert!(matches!(poller.poll().await[0].answer, Err(PollError::Unreachable(_))));
    poller.close().await;

    let node =
        AutomanagedProvider::start_member(&config, own("a#1"), wiring(&stream), Box::new(|_, _| {})).await;
    let node = node.expect("a free address");
    assert_eq!(node.health_address(), Some(address));
    node.stop().await;
    HealthServer::bind(address).await.expect("a free address");
}

#[tokio::test]
async fn a_client_sees_everyone_serves_nothing_and_leaves_nothing_behind() {
    let (host, go) = go_node_outside();
    let before = tasks();
    let stream = EventStream::default();
    let config = config(vec![host]);
    let client = AutomanagedProvider::start_client(&config, wiring(&stream), Box::new(|_, _| {}));
    let client = client.expect("sound settings");
    assert_eq!(client.health_address(), None);
    let answered = || client.poll_counters().counts()[0].1.answered;
    soon(async {
        while ids(&client.members()) != ["go"] || answered() < 3 {
            tick().await;
        }
    })
    .await;
    client.stop().await;
    assert_eq!((tasks(), stream.subscriber_count()), (before, 0));
    let questions = go.join().expect("a Go node that ends with its connection");
    assert!(questions >= 3, "one connection serves all rounds");
}

#[tokio::test]
async fn a_closed_poller_has_no_connections() {
    let (host, go) = go_node_outside();
    let before = tasks();
    let poller = HealthPoller::new(&[host], "c", Duration::from_secs(10)).expect("sound settings");
    assert!(poller.poll().await[0].answer.is_ok());
    assert!(tasks() > before, "a connection is kept for the next round");
    poller.close().await;
    assert_eq!(tasks(), before);
    assert_eq!(go.join().expect("a Go node that ends with its connection"), 1);
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_to_its_end() {
    let endless = listener().await;
    let poller = HealthPoller::new(&[address_of(&endless)], "c", Duration::from_secs(10));
    let poller = poller.expect("sound settings");
    let sending = tokio::spawn(async move {
        let (mut stream, _) = endless.accept().await.expect("a connection");
        let mut sent = 0;
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.expect("an open connection");
        let chunk = format!("1000\r\n{}\r\n", " ".repeat(0x1000));
        while sent < 64 << 20 && stream.write_all(chunk.as_bytes()).await.is_ok() {
            sent += chunk.len();
        }
        sent
    });
    assert_eq!(poller.poll().await[0].answer, Err(PollError::Refused(HealthError::TooLarge)));
    // What the system's buffers take is sent, and no more.
    let sent = soon(sending).await.expect("a task that ends");
    assert!(sent < 32 << 20, "{sent} bytes were taken");
    poller.close().await;
}

#[tokio::test]
async fn settings_that_cannot_be_used_start_nothing() {
    let listener = listener().await;
    let host = address_of(&listener);
    let stream = EventStream::default();
    let refused = AutomanagedConfigError::DuplicateHost { first: host.clone(), second: host.clone() };
    let config = config(vec![host.clone(), host.clone()]);
    let failed = AutomanagedProvider::start_member_on(
        listener,
        &config,
        own("a#1"),
        wiring(&stream),
        Box::new(|_, _| {}),
    );
    assert_eq!(failed.err(), Some(AutomanagedError::Config(refused.clone())));
    assert_eq!(HealthPoller::new(&[host.clone(), host], "c", Duration::from_secs(1)).err(), Some(refused));
    assert_eq!(PollError::from(HealthError::TooLarge), PollError::Refused(HealthError::TooLarge));
}

/// A node under test, with everything it says.
struct Node {
    provider: AutomanagedProvider,
    stream: EventStream,
    events: Subscription,
    clock: MonotonicClock,
    hints: Arc<Mutex<Vec<Member>>>,
    refused: Vec<(String, String)>,
}

impl Node {
    fn start_on(listener: TcpListener, id: &str, config: &AutomanagedConfig) -> Self {
        let stream = EventStream::default();
        let events = stream.subscribe();
        let hints: Arc<Mutex<Vec<Member>>> = Arc::default();
        let hinted = Arc::clone(&hints);
        let on_synod_peer = Box::new(move |id: MemberId, authority: Authority| {
            hinted.lock().expect("a lock").push(Member { id, authority });
        });
        let wiring = wiring(&stream);
        let clock = wiring.clock;
        let provider = AutomanagedProvider::start_member_on(listener, config, own(id), wiring, on_synod_peer);
        let provider = provider.expect("sound settings");
        Self { provider, stream, events, clock, hints, refused: Vec::new() }
    }

    async fn until(&self, members: &[&str]) {
        soon(async {
            while ids(&self.provider.members()) != members {
                tick().await;
            }
        })
        .await;
    }

    /// The next update that is `wanted`.
    async fn next_update(&mut self, wanted: impl Fn(&RosterUpdate) -> bool) -> RosterUpdate {
        loop {
            let event = match soon(self.events.recv()).await {
                Some(Delivery::Event(event)) => event,
                other => panic!("waiting for an update, got {other:?}"),
            };
            self.note(&event);
            if let ClusterEvent::RosterUpdated { update, .. } = &*event
                && wanted(update)
            {
                return update.clone();
            }
        }
    }

    /// Waits until `rounds` of polls have begun and ended.
    async fn after_rounds(&self, rounds: u64) {
        let asked = || -> Vec<u64> {
            let counts = self.provider.poll_counters().counts();
            counts.iter().map(|(_, c)| c.answered + c.missing + c.other_cluster + c.refused).collect()
        };
        let before = asked();
        soon(async {
            // One more than asked for: the first may have begun before.
            while asked().iter().zip(&before).any(|(now, before)| *now < before + rounds + 1) {
                tick().await;
            }
        })
        .await;
    }

    /// Every refusal that was told so far.
    fn refused(&mut self) -> Vec<(String, String)> {
        while let Some(delivery) = self.events.try_recv() {
            let Delivery::Event(event) = delivery else { panic!("events were missed") };
            self.note(&event);
        }
        self.refused.clone()
    }

    fn note(&mut self, event: &ClusterEvent) {
        if let ClusterEvent::Remote { event: RemoteEvent::InputRefused { peer, problem }, .. } = event {
            self.refused.push((peer.clone(), problem.clone()));
        }
    }

    fn hints(&self) -> Vec<Member> {
        self.hints.lock().expect("a lock").clone()
    }

    fn publish_topology(&self, members: &[&str]) {
        let members = members.iter().map(|id| own(id)).collect();
        let update = TopologyUpdate::new(vec![], vec![], vec![], members, vec![], TimerInstant::ZERO);
        self.stream.publish(ClusterEvent::TopologyUpdated { update });
    }
}

/// What a poll sees of a Go node.
struct GoNode {
    server: HealthServer,
    _report: watch::Sender<HealthReport>,
}

impl GoNode {
    async fn start(id: &str, port: u16) -> Self {
        Self::start_on(listener().await, id, port, "c")
    }

    fn start_on(listener: TcpListener, id: &str, port: u16, cluster_name: &str) -> Self {
        let (report, reports) = watch::channel(go_report(id, port, cluster_name));
        let server = HealthServer::start(listener, reports, HealthServerConfig::default());
        Self { server: server.expect("a listener"), _report: report }
    }

    fn host(&self) -> Authority {
        self.server.address().to_string().parse().expect("an authority")
    }
}

/// A Go node outside of the runtime, so that every task in it is ours. It takes one connection, ends with it, and returns
/// how often it was asked.
fn go_node_outside() -> (Authority, std::thread::JoinHandle<usize>) {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let host = listener.local_addr().expect("an address").to_string().parse().expect("an authority");
    let go = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().expect("a connection");
        let body = String::from_utf8(go_report("go", 9001, "c").encode()).expect("text");
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let mut questions = 0;
        while connection.read(&mut [0; 1024]).is_ok_and(|bytes| bytes > 0) {
            connection.write_all(answer.as_bytes()).expect("an open connection");
            questions += 1;
        }
        questions
    });
    (host, go)
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

fn go_report(id: &str, port: u16, cluster_name: &str) -> HealthReport {
    let member = RosterMember {
        id: GossipMemberId::new(id).expect("an id"),
        authority: format!("127.0.0.1:{port}").parse().expect("an authority"),
        kinds: vec!["prototopic".into(), "Echo".into()],
        runtime: PeerRuntime::Protoactor,
    };
    HealthReport { member, health_port: 6330, cluster_name: cluster_name.into() }
}

/// Answers everything with the same bytes, then closes.
fn canned(listener: TcpListener, answer: String) -> JoinHandle<()> {
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut question = [0; 1024];
            // The poller may give up on such a host at any time.
            drop(stream.read(&mut question).await);
            drop(stream.write_all(answer.as_bytes()).await);
            drop(stream.shutdown().await);
        }
    })
}

async fn request(address: SocketAddr, question: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let text = format!("{question} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).await.expect("an open connection");
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (format!("{head}\r\n"), body.into())
}

/// Rounds follow each other quickly; there is time to answer even on a busy machine.
fn config(hosts: Vec<Authority>) -> AutomanagedConfig {
    let mut config = AutomanagedConfig::new("c", (Ipv4Addr::LOCALHOST, 0).into(), hosts);
    config.refresh_interval = Duration::from_millis(10);
    config.poll_timeout = Duration::from_secs(10);
    config
}

fn wiring(stream: &EventStream) -> RosterWiring {
    let (events, stream) = (stream.subscribe_live(), stream.clone());
    RosterWiring { events, stream, clock: MonotonicClock::start() }
}

async fn listener() -> TcpListener {
    HealthServer::bind((Ipv4Addr::LOCALHOST, 0).into()).await.expect("a free port")
}

fn address_of(listener: &TcpListener) -> Authority {
    listener.local_addr().expect("an address").to_string().parse().expect("an authority")
}

fn own(id: &str) -> Member {
    Member { id: own_id(id), authority: "127.0.0.1:8401".parse().expect("an authority") }
}

fn own_id(id: &str) -> MemberId {
    id.parse().expect("a member id")
}

fn ids(members: &[RosterMember]) -> Vec<&str> {
    members.iter().map(|member| member.id.as_str()).collect()
}

async fn tick() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// Awaits something that must happen.
async fn soon<F: Future>(awaited: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(30), awaited).await.expect("it never happened")
}
