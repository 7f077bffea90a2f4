//! Messages to every member at once.
//!
//! Every node has a door for what concerns everybody, the actor `eventstream`. What comes there and is not of the cluster
//! itself is the application's: whoever asked for it gets a copy. Nothing is acknowledged and nothing is kept, so a
//! broadcast is for hints; what must arrive is published to a topic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prost::Name;
use synod_core::roster::PeerRuntime;
use synod_wire::names;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use super::Grains;
use crate::remote::{Lane, Message, Pid};

/// Who hears a broadcast, besides all other synod nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audience {
    /// protoactor-go nodes too. Only for messages of types that every one of them has: a Go node is lost, or tears down
    /// the connection, when it is sent a type that it does not know. Default false.
    pub protoactor: bool,
    /// This node too. Default false.
    pub own: bool,
}

/// What a listener finds.
#[derive(Clone, Debug, PartialEq)]
pub enum Broadcast {
    /// The next message.
    Message(Message),
    /// So many messages were lost here, because they came faster than they were read.
    Missed(u64),
}

/// What other members, or this one, broadcast from now on. Dropping it ends that.
#[derive(Debug)]
pub struct Broadcasts {
    receiver: broadcast::Receiver<Message>,
    missed: Arc<AtomicU64>,
}

impl Broadcasts {
    /// The next message; waits for one. `None` when the node has ended and everything was read.
    ///
    /// A cancelled call loses nothing.
    pub async fn recv(&mut self) -> Option<Broadcast> {
        match self.receiver.recv().await {
            Ok(message) => Some(Broadcast::Message(message)),
            Err(RecvError::Lagged(count)) => Some(self.missed(count)),
            Err(RecvError::Closed) => None,
        }
    }

    /// The next message, if one is there.
    pub fn try_recv(&mut self) -> Option<Broadcast> {
        match self.receiver.try_recv() {
            Ok(message) => Some(Broadcast::Message(message)),
            Err(TryRecvError::Lagged(count)) => Some(self.missed(count)),
            Err(TryRecvError::Empty | TryRecvError::Closed) => None,
        }
    }

    fn missed(&self, count: u64) -> Broadcast {
        self.missed.fetch_add(count, Ordering::Relaxed);
        Broadcast::Missed(count)
    }
}

/// The listeners of one node.
#[derive(Debug)]
pub(super) struct BroadcastBoard {
    sender: broadcast::Sender<Message>,
    missed: Arc<AtomicU64>,
}

impl Default for BroadcastBoard {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(BROADCASTS_MAX), missed: Arc::default() }
    }
}

impl Grains {
    /// Sends a message to the event stream of every other member, once and without an answer. Returns to how many.
    pub fn broadcast<M: prost::Message + Name + 'static>(&self, message: &M, to: Audience) -> usize {
        self.broadcast_message(&Message::new(message), to)
    }

    /// As [`broadcast`](Self::broadcast), for a message that is encoded already.
    pub fn broadcast_message(&self, message: &Message, to: Audience) -> usize {
        let own = self.inner.remote.authority();
        let members = self.members();
        let others = members.iter().filter(|member| {
            member.authority != *own && (to.protoactor || member.runtime == PeerRuntime::Synod)
        });
        let mut count = 0;
        for member in others {
            let target = Pid::new(member.authority.as_str(), names::ACTOR_EVENT_STREAM);
            // What is not taken has become a dead letter; nobody waits for it.
            count += usize::from(self.inner.remote.send_on(Lane::User, &target, message.clone()).is_ok());
        }
        if to.own {
            self.publish_broadcast(message);
            count += 1;
        }
        count
    }

    /// What is broadcast from now on. The newest 1024 messages wait for a slow reader; what it loses is counted.
    #[must_use = "dropping it ends the subscription"]
    pub fn broadcasts(&self) -> Broadcasts {
        let BroadcastBoard { sender, missed } = &self.inner.broadcasts;
        Broadcasts { receiver: sender.subscribe(), missed: Arc::clone(missed) }
    }

    /// How many messages all readers of broadcasts together have lost.
    #[must_use]
    pub fn broadcasts_missed(&self) -> u64 {
        self.inner.broadcasts.missed.load(Ordering::Relaxed)
    }

    /// A message to everybody that is the application's.
    pub(in crate::grains) fn publish_broadcast(&self, message: &Message) {
        if self.inner.broadcasts.sender.send(message.clone()).is_err() {
            tracing::debug!(type_name = %message.type_name, "a broadcast that nobody here listens to");
        }
    }
}

/// Most messages that wait for a reader.
const BROADCASTS_MAX: usize = 1024;
