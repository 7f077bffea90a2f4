//! Who does the work of an actor: whoever asks it begins, and a task goes on where it has to wait.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use synod_cluster::remote::{Actor, ActorContext, Message, Pid, Remote, RemoteConfig};
use synod_cluster::{EventStream, MonotonicClock};
use synod_wire::actor::Touched;
use tokio::sync::{mpsc, oneshot};

const PATIENCE: Duration = Duration::from_secs(20);

async fn node() -> Remote {
    let config = RemoteConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    let bound = Remote::bind(config, EventStream::default(), MonotonicClock::start()).await;
    bound.expect("a node on loopback")
}

fn question() -> Message {
    Message::new(&Touched { who: None })
}

/// Says when its turn begins, waits to be let go, and says that it ends.
struct Held {
    turns: mpsc::UnboundedSender<&'static str>,
    gate: Option<oneshot::Receiver<()>>,
}

impl Actor for Held {
    async fn receive(&mut self, context: &mut ActorContext, _: Message) {
        self.turns.send("begins").ok();
        if let Some(gate) = self.gate.take() {
            gate.await.ok();
        }
        self.turns.send("ends").ok();
        context.respond(question()).ok();
    }
}

#[tokio::test]
async fn a_turn_goes_on_when_whoever_began_it_is_gone() {
    let remote = node().await;
    let (turns, mut seen) = mpsc::unbounded_channel();
    let (open, gate) = oneshot::channel();
    let held = remote.spawn(Held { turns, gate: Some(gate) }).expect("an actor");
    // Once its beginning is behind it, so that it is at rest.
    while remote.task_count() > 1 {
        tokio::task::yield_now().await;
    }
    {
        let mut asked = pin!(remote.request(&held, question(), PATIENCE));
        let polled = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        assert_eq!(seen.try_recv(), Ok("begins"), "before anybody else had a chance to run");
    }
    // The next one waits for its turn, whoever asks.
    let mut next = pin!(remote.request(&held, question(), PATIENCE));
    assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(seen.try_recv().is_err());
    open.send(()).expect("it waits");
    next.await.expect("an answer");
    let seen = std::array::from_fn(|_| seen.try_recv().unwrap_or("nothing"));
    assert_eq!(seen, ["ends", "begins", "ends"]);
    assert!(remote.shutdown(PATIENCE).await);
}

/// Asks the next one before it answers.
struct Link(Option<Pid>);

impl Actor for Link {
    async fn receive(&mut self, context: &mut ActorContext, _: Message) {
        if let Some(next) = &self.0 {
            context.remote().request(next, question(), PATIENCE).await.expect("an answer");
        }
        context.respond(question()).ok();
    }
}

#[tokio::test]
async fn a_chain_of_actors_may_be_longer_than_the_stack_is_deep() {
    let remote = node().await;
    let mut first = None;
    for _ in 0..5000 {
        first = Some(remote.spawn(Link(first)).expect("an actor"));
    }
    let first = first.expect("there are some");
    remote.request(&first, question(), PATIENCE).await.expect("an answer");
    assert!(remote.shutdown(PATIENCE).await);
}
