//! Actors: one mailbox, one message at a time, and an end that is told to whoever watches.
//!
//! An [`Actor`] is a value with an async `receive`. It has a tokio task while it has something to do. It ends when it is told to stop
//! (now), poisoned (after the messages before the pill), when it asks for it, or when it panics; whatever is unread then
//! becomes dead letters, so that nobody waits for an answer that cannot come.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use synod_core::outbound::DeadLetterReason;
use synod_wire::actor::{PoisonPill, Terminated, TerminatedReason, Touch, Touched};
use synod_wire::cluster::{PubSubAutoRespondBatchTransport, PublishResponse, PublishStatus};
use synod_wire::payload;

use super::cell::{ActorCell, Body};
use super::message::Message;
use super::pid::Pid;
use super::process::{Letter, SystemMessage};
use super::{Remote, SendError};
use crate::pubsub::unpack;

/// Behaviour with a mailbox.
pub trait Actor: Send + 'static {
    /// Takes one message. The next one waits until this is done.
    fn receive(&mut self, context: &mut ActorContext, message: Message) -> impl Future<Output = ()> + Send;

    /// The actor begins; its first message waits until this is done.
    fn started(&mut self, _context: &mut ActorContext) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// An actor that this one watches has ended.
    fn terminated(
        &mut self,
        _context: &mut ActorContext,
        _who: Pid,
        _why: TerminatedReason,
    ) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// The actor ends; it receives no more.
    fn stopped(&mut self, _context: &mut ActorContext) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// What an actor can do besides computing.
pub struct ActorContext {
    remote: Remote,
    own: Pid,
    sender: Option<Pid>,
    /// Most actors have none.
    watching: Option<Box<Watching>>,
    stopping: bool,
}

impl ActorContext {
    pub(super) const fn new(remote: Remote, own: Pid) -> Self {
        Self { remote, own, sender: None, watching: None, stopping: false }
    }

    /// The name of this actor.
    #[must_use]
    pub const fn own(&self) -> &Pid {
        &self.own
    }

    /// Who wants the answer to the message at hand.
    #[must_use]
    pub const fn sender(&self) -> Option<&Pid> {
        self.sender.as_ref()
    }

    /// The node that this actor lives on.
    #[must_use]
    pub const fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Answers the message at hand. Nothing happens when nobody wants an answer.
    ///
    /// # Errors
    /// The answer was not taken for delivery.
    pub fn respond(&self, answer: Message) -> Result<(), SendError> {
        match &self.sender {
            Some(sender) => self.remote.send(sender, answer),
            None => Ok(()),
        }
    }

    /// Wants to hear when `other` ends.
    pub fn watch(&mut self, other: &Pid) {
        let watched = &mut self.watching.get_or_insert_default().watched;
        if watched.len() < WATCHES_MAX && watched.insert(other.clone()) {
            self.remote.watch(&self.own, other);
        }
    }

    /// No longer wants to hear of it.
    pub fn unwatch(&mut self, other: &Pid) {
        if self.watching.as_mut().is_some_and(|watching| watching.watched.remove(other)) {
            self.remote.unwatch(&self.own, other);
        }
    }

    /// Ends after the message at hand.
    pub const fn stop(&mut self) {
        self.stopping = true;
    }
}

/// Who waits for the end of an actor, and for whose end it waits.
#[derive(Default)]
struct Watching {
    watchers: BTreeSet<Pid>,
    watched: BTreeSet<Pid>,
}

impl Watching {
    fn watch(&mut self, watcher: Pid) {
        if self.watchers.len() < WATCHES_MAX {
            self.watchers.insert(watcher);
        }
    }
}

impl fmt::Debug for ActorContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActorContext").field("own", &self.own).finish_non_exhaustive()
    }
}

/// Lets an actor work until it has nothing to do, or until it ends.
pub(super) async fn work<A: Actor>(cell: Arc<ActorCell<A>>, mut body: Box<Body<A>>, is_new: bool) {
    let mut letters = VecDeque::new();
    if is_new {
        // Once in the life of an actor: the task of a burst of messages is to be small.
        let started = Box::pin(unless_panicked(body.actor.started(&mut body.context))).await;
        if started.is_err() {
            return Box::pin(end(*body, true, &cell, letters)).await;
        }
    }
    while !body.context.stopping {
        match unless_panicked(live(&mut body, &cell, &mut letters)).await {
            Ok(Rest::Ended) => break,
            Ok(Rest::Idle) => {
                body.context.sender = None;
                match cell.rest(body) {
                    Some(woken) => body = woken,
                    None => return,
                }
            }
            Err(()) => return Box::pin(end(*body, true, &cell, letters)).await,
        }
    }
    Box::pin(end(*body, false, &cell, letters)).await;
}

/// Tells whoever has to know that the actor is over.
async fn end<A: Actor>(body: Body<A>, panicked: bool, cell: &ActorCell<A>, letters: VecDeque<Letter>) {
    let Body { mut actor, mut context } = body;
    context.remote.unregister(context.own.id());
    let (unread, unheard) = cell.close();
    let ended = if panicked { Err(()) } else { unless_panicked(actor.stopped(&mut context)).await };
    if ended.is_err() {
        tracing::error!(actor = %context.own, "the actor panicked and was ended");
    }
    let mut watching = context.watching.take().unwrap_or_default();
    for message in unheard {
        match message {
            SystemMessage::Watch(watcher) => watching.watch(watcher),
            SystemMessage::Unwatch(watcher) => drop(watching.watchers.remove(&watcher)),
            SystemMessage::Stop | SystemMessage::Terminated { .. } => {}
        }
    }
    for watcher in &watching.watchers {
        context.remote.tell_terminated(watcher, &context.own, TerminatedReason::Stopped);
    }
    for watched in &watching.watched {
        context.remote.unwatch(&context.own, watched);
    }
    for letter in letters.into_iter().chain(unread) {
        context.remote.bury(&context.own, &letter.message, &DeadLetterReason::NoSuchActor);
    }
}

/// Why an actor stopped working.
enum Rest {
    Idle,
    Ended,
}

async fn live<A: Actor>(body: &mut Body<A>, cell: &ActorCell<A>, letters: &mut VecDeque<Letter>) -> Rest {
    let Body { actor, context } = body;
    let mut has_read = false;
    loop {
        while let Some(message) = cell.take_system() {
            match message {
                SystemMessage::Stop => return Rest::Ended,
                SystemMessage::Watch(watcher) => context.watching.get_or_insert_default().watch(watcher),
                SystemMessage::Unwatch(watcher) => {
                    if let Some(watching) = &mut context.watching {
                        watching.watchers.remove(&watcher);
                    }
                }
                SystemMessage::Terminated { who, why } => {
                    if let Some(watching) = &mut context.watching {
                        watching.watched.remove(&who);
                    }
                    context.sender = None;
                    Box::pin(actor.terminated(context, who, why)).await;
                }
            }
        }
        let Some(letter) = letters.pop_front() else {
            if cell.take(letters) {
                continue;
            }
            return Rest::Idle;
        };
        // A long queue must not keep the other tasks of this thread waiting. One letter is no queue.
        if has_read {
            tokio::task::coop::consume_budget().await;
        }
        has_read = true;
        let Letter { message, .. } = letter;
        if message.is::<PoisonPill>() {
            return Rest::Ended;
        }
        if message.is::<PubSubAutoRespondBatchTransport>() {
            Box::pin(receive_published(actor, context, message)).await;
        } else {
            context.sender.clone_from(&message.sender);
            let touched = message.is::<Touch>() && message.sender.is_some();
            // Boxed, so that no piece of a task is larger than what allocators hand out fast.
            Box::pin(actor.receive(context, message)).await;
            if touched {
                let answer = Message::new(&Touched { who: Some((&context.own).into()) });
                // Whoever asked may be gone; that became a dead letter already.
                drop(context.respond(answer));
            }
        }
        if context.stopping {
            return Rest::Ended;
        }
    }
}

/// Takes published messages one by one, and tells whoever delivered them once all are taken.
async fn receive_published<A: Actor>(actor: &mut A, context: &mut ActorContext, batch: Message) {
    let published: PubSubAutoRespondBatchTransport = match payload::decode(batch.payload.clone()) {
        Ok(published) => published,
        Err(error) => {
            let peer = batch.sender.as_ref().map_or("a peer", |sender| sender.address());
            return context.remote.refuse_message(peer, &error.to_string());
        }
    };
    for message in unpack(&published.type_names, published.envelopes) {
        if context.stopping {
            // An actor that ends half way does not have the batch.
            return context.remote.bury(&context.own, &batch, &DeadLetterReason::NoSuchActor);
        }
        context.sender = None;
        actor.receive(context, message).await;
    }
    context.sender = batch.sender;
    // Whoever delivered may be gone; that became a dead letter already.
    drop(context.respond(Message::new(&PublishResponse { status: PublishStatus::Ok.into() })));
}

/// The end of a watched actor, as it travels.
pub(super) fn terminated_message(who: &Pid, why: TerminatedReason) -> Message {
    Message::new(&Terminated { who: Some(who.into()), why: why.into() })
}

/// Runs `life`, and survives its panic. What the panic left half done must not be used any more.
pub(crate) const fn unless_panicked<F: Future>(life: F) -> UnlessPanicked<F> {
    UnlessPanicked { life }
}

pin_project! {
    // An async function would hold `life` twice: as it came, and as it runs.
    pub(crate) struct UnlessPanicked<F> {
        #[pin]
        life: F,
    }
}

impl<F: Future> Future for UnlessPanicked<F> {
    type Output = Result<F::Output, ()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let life = self.project().life;
        // What a panic leaves half done is dropped right after, or only read for the names of its watchers.
        match std::panic::catch_unwind(AssertUnwindSafe(|| life.poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(())),
        }
    }
}

/// Most actors that one actor watches, and most that watch it.
const WATCHES_MAX: usize = 65_536;
