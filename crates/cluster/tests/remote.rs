//! Remoting between nodes over real sockets of this machine.

use std::net::SocketAddr;
use std::time::Duration;

use synod_cluster::EventStream;
use synod_cluster::remote::{
    Actor, ActorContext, Message, Pid, Remote, RemoteConfig, RequestError, SendError, TypeName,
};
use synod_core::outbound::{AssociationState, DeadLetterReason, OutboundConfig};
use synod_wire::actor::{TerminatedReason, Touch, Touched};
use tokio::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(10);

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn quick() -> RemoteConfig {
    let outbound = OutboundConfig {
        backoff_min: Duration::from_millis(5),
        backoff_max: Duration::from_millis(40),
        ..RemoteConfig::new(loopback()).outbound
    };
    RemoteConfig { outbound, ..RemoteConfig::new(loopback()) }
}

async fn start(config: RemoteConfig, member: &str) -> Remote {
    Remote::start(config, member, EventStream::default()).await.expect("a node on loopback")
}

/// What a probe saw.
#[derive(Debug, PartialEq)]
enum Seen {
    Message(String),
    Terminated(Pid, TerminatedReason),
    Stopped,
}

/// Reports everything that happens to it, and answers texts with the same text.
struct Probe(mpsc::UnboundedSender<Seen>);

impl Actor for Probe {
    async fn receive(&mut self, context: &mut ActorContext, message: Message) {
        if message.is::<Touch>() {
            return;
        }
        let text = String::from_utf8_lossy(&message.payload).into_owned();
        match text.as_str() {
            "panic" => panic!("as it was told"),
            "stop" => context.stop(),
            _ => {}
        }
        if let Some(other) = text.strip_prefix("watch ") {
            let (address, id) = other.split_once('/').expect("a pid");
            context.watch(&Pid::new(address, id));
        }
        self.0.send(Seen::Message(text)).ok();
        context.respond(Message { sender: None, ..message }).ok();
    }

    async fn terminated(&mut self, _: &mut ActorContext, who: Pid, why: TerminatedReason) {
        self.0.send(Seen::Terminated(who, why)).ok();
    }

    async fn stopped(&mut self, _: &mut ActorContext) {
        self.0.send(Seen::Stopped).ok();
    }
}

fn probe(remote: &Remote, name: &str) -> (Pid, mpsc::UnboundedReceiver<Seen>) {
    let (sender, seen) = mpsc::unbounded_channel();
    (remote.spawn_named(name, Probe(sender)).expect("a free name"), seen)
}

fn text(text: &str) -> Message {
    Message::raw(TypeName::from("test.Text"), text.as_bytes().to_vec().into())
}

async fn next(seen: &mut mpsc::UnboundedReceiver<Seen>) -> Seen {
    tokio::time::timeout(PATIENCE, seen.recv()).await.expect("in time").expect("the actor lives")
}

#[tokio::test]
async fn messages_keep_their_order_and_answers_come_back() {
    let (a, b) = (start(quick(), "a#1").await, start(quick(), "b#1").await);
    let (pid, mut seen) = probe(&b, "probe");
    for number in 0..2500 {
        a.feed(&pid, text(&number.to_string())).await.expect("taken");
    }
    for number in 0..2500 {
        assert_eq!(next(&mut seen).await, Seen::Message(number.to_string()));
    }
    let answer = a.request(&pid, text("hello"), PATIENCE).await.expect("an answer");
    assert_eq!(&answer.payload[..], b"hello");
    // Touch is answered for every actor, whatever it does itself.
    let touched: Touched = a.ask(&pid, Message::new(&Touch {}), PATIENCE).await.expect("an answer");
    assert_eq!(touched.who.as_ref().map(Pid::from), Some(pid));
    assert_eq!((a.pending_requests(), b.counters().dead_letters()), (0, 0));
    assert!(a.counters().frames_sent() < 2500, "messages travel in batches");
    assert!(a.shutdown(PATIENCE).await && b.shutdown(PATIENCE).await);
}

#[tokio::test]
async fn whoever_is_not_there_is_answered_for() {
    let (a, b) = (start(quick(), "a#1").await, start(quick(), "b#1").await);
    let nobody = b.pid("nobody");
    let error = a.request(&nobody, text("x"), PATIENCE).await.expect_err("nobody is there");
    assert_eq!(error, RequestError::DeadLetter { target: nobody });
    assert_eq!(b.counters().dead_letters(), 1);
    // The same on this node, and where no node is at all.
    let here = a.pid("nobody");
    assert_eq!(
        a.request(&here, text("x"), PATIENCE).await,
        Err(RequestError::DeadLetter { target: here.clone() })
    );
    let gone = start(quick(), "c#1").await;
    let nowhere = gone.pid("probe");
    gone.shutdown(PATIENCE).await;
    let error = a.request(&nowhere, text("x"), PATIENCE).await.expect_err("no node is there");
    assert_eq!(error, RequestError::DeadLetter { target: nowhere });
    assert!(matches!(a.send(&Pid::new("no address", "x"), text("x")), Err(SendError::InvalidAddress { .. })));
    assert_eq!(a.pending_requests(), 0);
}

#[tokio::test]
async fn the_end_of_an_actor_is_told_to_its_watchers() {
    let (a, b) = (start(quick(), "a#1").await, start(quick(), "b#1").await);
    let (watcher, mut seen) = probe(&a, "watcher");
    let (watched, mut watched_seen) = probe(&b, "watched");
    let watch = |pid: &Pid| text(&format!("watch {pid}"));
    for end in ["stop", "panic"] {
        let (pid, _seen) = probe(&b, end);
        a.request(&watcher, watch(&pid), PATIENCE).await.expect("it watches");
        a.send(&pid, text(end)).expect("taken");
        assert!(matches!(next(&mut seen).await, Seen::Message(_)));
        assert_eq!(next(&mut seen).await, Seen::Terminated(pid, TerminatedReason::Stopped));
    }
    // Poisoned: after what was sent before. Stopped: before what is unread.
    a.request(&watcher, watch(&watched), PATIENCE).await.expect("it watches");
    a.send(&watched, text("last words")).expect("taken");
    a.poison(&watched).expect("taken");
    assert_eq!(next(&mut watched_seen).await, Seen::Message("last words".into()));
    assert_eq!(next(&mut watched_seen).await, Seen::Stopped);
    assert!(matches!(next(&mut seen).await, Seen::Message(_)));
    assert_eq!(next(&mut seen).await, Seen::Terminated(watched.clone(), TerminatedReason::Stopped));
    // Who is not there has ended already.
    a.request(&watcher, watch(&watched), PATIENCE).await.expect("it watches");
    assert!(matches!(next(&mut seen).await, Seen::Message(_)));
    assert_eq!(next(&mut seen).await, Seen::Terminated(watched, TerminatedReason::NotFound));
    // A node that is gone takes everybody on it along.
    let (there, _there_seen) = probe(&b, "there");
    a.request(&watcher, watch(&there), PATIENCE).await.expect("it watches");
    assert!(matches!(next(&mut seen).await, Seen::Message(_)));
    b.request(&there, text("settled"), PATIENCE).await.expect("it lives");
    a.depart(b.authority());
    assert_eq!(next(&mut seen).await, Seen::Terminated(there, TerminatedReason::AddressTerminated));
}

#[tokio::test]
async fn messages_wait_for_a_node_that_comes_back_on_its_address() {
    let (a, b) = (start(quick(), "a#1").await, start(quick(), "b#1").await);
    let (pid, mut seen) = probe(&b, "probe");
    a.send(&pid, text("before")).expect("taken");
    assert_eq!(next(&mut seen).await, Seen::Message("before".into()));
    let address = b.authority().clone();
    b.shutdown(PATIENCE).await;
    assert_eq!(next(&mut seen).await, Seen::Stopped);
    while a.association(&address).0 != AssociationState::Disconnected {
        tokio::task::yield_now().await;
    }
    a.send(&pid, text("during")).expect("it waits");
    let again = RemoteConfig { bind: address.as_str().parse().expect("an address"), ..quick() };
    let b = start(again, "b#2").await;
    let (_, mut seen) = probe(&b, "probe");
    assert_eq!(next(&mut seen).await, Seen::Message("during".into()));
}

#[tokio::test]
async fn a_quarantined_address_gets_nothing_until_it_is_released() {
    let (a, b) = (start(quick(), "a#1").await, start(quick(), "b#1").await);
    let (pid, mut seen) = probe(&b, "probe");
    a.request(&pid, text("open"), PATIENCE).await.expect("an answer");
    assert_eq!(next(&mut seen).await, Seen::Message("open".into()));
    a.quarantine(b.authority(), "a test", None);
    let refused = a.send(&pid, text("refused"));
    let reason = DeadLetterReason::Quarantined("a test".into());
    assert_eq!(refused, Err(SendError::Refused { target: pid.clone(), reason }));
    a.release(b.authority());
    a.request(&pid, text("open again"), PATIENCE).await.expect("an answer");
    assert_eq!(next(&mut seen).await, Seen::Message("open again".into()));
}
