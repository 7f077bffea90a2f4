//! The way of a message to somebody of this node, to another node, or to nobody.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use synod_core::Authority;
use synod_core::grains::{SCHEMA_BASE, SCHEMAS_MAX, shared_schema};
use synod_core::membership::ClusterEvent;
use synod_core::outbound::DeadLetterReason;
use synod_core::remote::RemoteEvent;
use synod_wire::actor::{DeadLetterResponse, Terminated, TerminatedReason, Unwatch, Watch};

use super::client::ConnectError;
use super::counters::add;
use super::link::{Lane, Link, Outgoing};
use super::message::Message;
use super::pid::Pid;
use super::process::{Letter, Process, ProcessEnded, SystemMessage};
use super::{Inner, SendError, SystemKind, Told, Unsent};
use crate::lock;

impl Inner {
    pub(super) fn send(
        self: &Arc<Self>,
        lane: Lane,
        target: &Pid,
        message: Message,
    ) -> Result<(), SendError> {
        self.try_send(lane, target, message).map_err(|unsent| self.unsent(target, unsent))
    }

    fn unsent(&self, target: &Pid, unsent: Unsent) -> SendError {
        match unsent {
            Unsent::Failed(error) => error,
            Unsent::Full(message) => {
                let reason = DeadLetterReason::QueueFull;
                self.count_dead_letter(target, &message, &reason);
                SendError::Refused { target: target.clone(), reason }
            }
        }
    }

    /// As [`send`](Self::send), by somebody who waits for the answer.
    pub(super) fn send_and_wait(
        self: &Arc<Self>,
        lane: Lane,
        target: &Pid,
        message: Message,
    ) -> Result<(), SendError> {
        if target.address() != &*self.address {
            return self.send(lane, target, message);
        }
        let delivered =
            self.deliver_local(target, message, |process, letters| process.deliver_and_wait(letters));
        delivered.map_err(|unsent| self.unsent(target, unsent))
    }

    pub(super) fn try_send(
        self: &Arc<Self>,
        lane: Lane,
        target: &Pid,
        message: Message,
    ) -> Result<(), Unsent> {
        if target.address() == &*self.address {
            return self.deliver_local(target, message, |process, letters| process.deliver(letters));
        }
        if *self.shutdown.borrow() {
            return Err(Unsent::Failed(SendError::ShutDown));
        }
        self.send_out(Outgoing { lane, target: target.clone(), message, resent: false })
    }

    fn deliver_local(
        self: &Arc<Self>,
        target: &Pid,
        message: Message,
        deliver: impl FnOnce(&dyn Process, &mut VecDeque<Letter>) -> Result<(), ProcessEnded>,
    ) -> Result<(), Unsent> {
        let kind = SystemKind::of(message.type_name.as_str());
        if kind != SystemKind::User {
            if self.deliver_system(target, kind, &message) {
                return Ok(());
            }
            let reason = DeadLetterReason::Unsendable(format!("a {} that says nothing", message.type_name));
            return Err(Unsent::Failed(SendError::Refused { target: target.clone(), reason }));
        }
        let Some(process) = self.processes.find(target.id()) else {
            self.bury(target, &message, &DeadLetterReason::NoSuchActor);
            return Ok(());
        };
        let mut letters = VecDeque::from([Letter { request_id: target.request_id(), message }]);
        let delivered = deliver(&*process, &mut letters);
        match (delivered, letters.pop_front()) {
            (_, None) => Ok(()),
            (Ok(()), Some(letter)) => Err(Unsent::Full(letter.message)),
            (Err(_), Some(letter)) => {
                self.bury(target, &letter.message, &DeadLetterReason::NoSuchActor);
                Ok(())
            }
        }
    }

    /// Tells an actor of this node something about itself. Returns false when the message says nothing.
    pub(super) fn deliver_system(
        self: &Arc<Self>,
        target: &Pid,
        kind: SystemKind,
        message: &Message,
    ) -> bool {
        let told = match kind {
            SystemKind::User => return false,
            SystemKind::Stop => SystemMessage::Stop,
            SystemKind::Watch => match message.decode::<Watch>() {
                Ok(Watch { watcher: Some(watcher) }) => SystemMessage::Watch(Pid::from(&watcher)),
                _ => return false,
            },
            SystemKind::Unwatch => match message.decode::<Unwatch>() {
                Ok(Unwatch { watcher: Some(watcher) }) => SystemMessage::Unwatch(Pid::from(&watcher)),
                _ => return false,
            },
            SystemKind::Terminated => match message.decode::<Terminated>() {
                Ok(Terminated { who: Some(who), why }) => {
                    let who = Pid::from(&who);
                    lock(&self.watches).remove(target, &who);
                    let why = TerminatedReason::try_from(why).unwrap_or(TerminatedReason::Stopped);
                    SystemMessage::Terminated { who, why }
                }
                _ => return false,
            },
        };
        let process = self.processes.find(target.id());
        let heard = process.is_some_and(|process| process.tell(told.clone()).is_ok());
        if !heard && let SystemMessage::Watch(watcher) = told {
            self.tell_terminated(&watcher, target, TerminatedReason::NotFound);
        }
        true
    }

    /// A message reaches nobody: counts and publishes it, and tells its sender.
    pub(super) fn bury(self: &Arc<Self>, target: &Pid, message: &Message, reason: &DeadLetterReason) {
        self.count_dead_letter(target, message, reason);
        let Some(sender) = message.sender.as_ref() else { return };
        if message.is::<DeadLetterResponse>()
            || sender.id() == target.id() && sender.address() == target.address()
        {
            return;
        }
        let answer = Message::new(&DeadLetterResponse { target: Some(target.into()) });
        // The sender may be as unreachable as the target; it has been counted then.
        drop(self.send(Lane::User, sender, answer));
    }

    pub(super) fn count_dead_letter(&self, target: &Pid, message: &Message, reason: &DeadLetterReason) {
        add(&self.counters.dead_letters, 1);
        if self.may_tell() {
            tracing::debug!(%target, type_name = %message.type_name, ?reason, "a dead letter");
            self.publish(RemoteEvent::DeadLetter {
                authority: target.address().to_owned(),
                actor: target.id().to_owned(),
                type_name: message.type_name.to_string(),
                reason: reason.clone(),
            });
        }
    }

    /// A peer sent something that cannot be used.
    pub(super) fn refuse(&self, peer: &str, problem: &str) {
        if self.may_tell() {
            tracing::warn!(peer, problem, "a peer sent something that cannot be used");
            self.publish(RemoteEvent::InputRefused { peer: peer.to_owned(), problem: problem.to_owned() });
        }
    }

    /// A flood of bad input must not become a flood of events; the counters know it all.
    fn may_tell(&self) -> bool {
        let now = self.clock.now();
        let mut told = lock(&self.told);
        if told.since.is_none_or(|since| now.saturating_since(since) >= TOLD_PERIOD) {
            *told = Told { since: Some(now), count: 0 };
        }
        told.count += 1;
        told.count <= TOLD_MAX
    }

    pub(super) fn publish(&self, event: RemoteEvent) {
        self.events.publish(ClusterEvent::Remote { event, observed_at: self.clock.now() });
    }

    /// Waits until a target may have room again.
    pub(super) async fn room_for(&self, target: &Pid) {
        let room = async {
            if target.address() == &*self.address {
                match self.processes.find(target.id()).and_then(|process| process.room()) {
                    Some(room) => room.notified().await,
                    None => tokio::task::yield_now().await,
                }
            } else if let Some(link) = self.link(target.address()) {
                link.room(Lane::User).await;
            }
        };
        // Room may appear between the refusal and this wait, and a backlog of the machine says nothing when it shrinks.
        drop(tokio::time::timeout(ROOM_PAUSE, room).await);
    }

    /// Waits until nothing is queued for any peer.
    pub(super) async fn flushed(&self) {
        loop {
            let waiting: Vec<_> = self.links().values().filter(|link| link.queued() > 0).cloned().collect();
            if waiting.is_empty() {
                return;
            }
            tokio::time::sleep(ROOM_PAUSE).await;
        }
    }

    /// The link to a peer that said where it is.
    pub(super) fn link_to(&self, address: &str) -> Option<Arc<Link>> {
        self.link(address).or_else(|| self.make_link(address).ok())
    }

    /// Whether this node and one that speaks `offered` of the call schema have a version in common. Who names none speaks
    /// the first.
    pub(super) fn shares_schema(&self, offered: &[u32]) -> bool {
        let offered = if offered.is_empty() { &[SCHEMA_BASE] } else { offered };
        offered.len() <= SCHEMAS_MAX && shared_schema(&self.config.call_schemas, offered).is_some()
    }

    /// The peer that this node dialled speaks `offered` of the call schema.
    pub(super) fn agree(&self, peer: &Authority, offered: &[u32]) -> Result<(), ConnectError> {
        let listener = lock(&self.schema_listener).clone();
        if let Some(listener) = listener {
            listener(peer, if offered.is_empty() { &[SCHEMA_BASE] } else { offered });
        }
        if self.shares_schema(offered) {
            return Ok(());
        }
        let offered = offered[..offered.len().min(SCHEMAS_MAX)].to_vec();
        self.refuse(peer.as_str(), &format!("it speaks only {offered:?} of the call schema"));
        Err(ConnectError::NoCommonSchema { offered })
    }

    /// What this life of the node is known by. Waits until the node is opened.
    pub(super) async fn member_id(&self) -> Arc<str> {
        let mut known = self.member_id.subscribe();
        match known.wait_for(Option::is_some).await {
            Ok(member_id) => member_id.clone().unwrap_or_default(),
            Err(_) => Arc::default(),
        }
    }

    pub(super) fn blocked(&self) -> Arc<BTreeSet<String>> {
        Arc::clone(&self.blocked.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn is_blocked(&self, member_id: &str) -> bool {
        self.blocked.read().unwrap_or_else(PoisonError::into_inner).contains(member_id)
    }

    /// Runs a task of this node, which ends with it.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

/// How many dead letters and refusals are published …
const TOLD_MAX: usize = 32;
/// … in such a time.
const TOLD_PERIOD: Duration = Duration::from_secs(1);
/// How long whoever waits for room waits before looking again.
const ROOM_PAUSE: Duration = Duration::from_millis(5);
