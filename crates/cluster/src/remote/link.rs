//! One peer, as the senders see it: two queues that a connection empties.
//!
//! While a connection stands, senders put their messages straight into the queue of a lane and the connection's own task
//! makes frames of whatever has gathered there. The more the peer lags, the larger the frames. Whenever the connection
//! does not stand, or something still waits from before it did, the senders go through the association machine instead.
//!
//! Control messages (gossip, membership) have a lane of their own, so that no flood of user messages holds them up.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, Waker};

use synod_core::Authority;
use synod_core::outbound::OverflowPolicy;
use synod_core::roster::PeerRuntime;
use synod_wire::Dialect;
use tokio::sync::Notify;

use super::message::Message;
use super::pid::Pid;
use crate::lock;

/// Which of the two streams to a peer a message travels on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Gossip and membership.
    Control,
    /// Everything else.
    User,
}

impl Lane {
    pub(super) const ALL: [Self; 2] = [Self::Control, Self::User];

    const fn index(self) -> usize {
        match self {
            Self::Control => 0,
            Self::User => 1,
        }
    }
}

/// A message on its way out.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub(super) lane: Lane,
    pub(super) target: Pid,
    pub(super) message: Message,
    /// Whether it was sent before, in a dialect that the peer does not read. It is not sent a third time.
    pub(super) resent: bool,
}

impl Outgoing {
    pub(super) fn bytes(&self) -> usize {
        self.message.queue_bytes() + self.target.id().len()
    }
}

/// Bounds of the queue of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneBounds {
    pub(super) messages_max: usize,
    pub(super) bytes_max: usize,
    pub(super) overflow: OverflowPolicy,
}

/// What became of a message that was offered to a lane.
pub(super) enum Offer {
    /// It waits for the connection's task.
    Taken,
    /// It waits, and these had to make room.
    TakenInsteadOf(Vec<Outgoing>),
    /// The lane does not take messages directly at the moment.
    Closed(Outgoing),
    /// There is no room.
    Full(Outgoing),
}

/// One peer.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) authority: Authority,
    lanes: [LaneQueue; 2],
    peer: Mutex<PeerKnowledge>,
    dialect: AtomicU8,
    foreign: AtomicBool,
    /// Tells the connection's task to end.
    pub(super) hang_up: Notify,
}

#[derive(Debug, Default)]
struct LaneQueue {
    state: Mutex<LaneState>,
    room: Notify,
}

#[derive(Debug, Default)]
struct LaneState {
    /// Which connection empties the queue; 0 is none.
    connection: u64,
    /// Whether senders may go past the association machine.
    direct: bool,
    queue: VecDeque<Outgoing>,
    bytes: usize,
    reader: Option<Waker>,
}

/// What the peer's own frames have told.
#[derive(Debug, Default)]
struct PeerKnowledge {
    dialect: Option<Dialect>,
    /// Which connection `unconfirmed` was sent over. What becomes of it on another one tells nothing about these.
    connection: u64,
    /// Sent in a dialect that the peer has not confirmed; kept to be sent again.
    unconfirmed: VecDeque<Outgoing>,
    unconfirmed_bytes: usize,
    /// The dialect they were sent in.
    unconfirmed_in: Option<Dialect>,
}

impl Link {
    pub(super) fn new(authority: Authority, default_dialect: Dialect) -> Self {
        Self {
            authority,
            lanes: Default::default(),
            peer: Mutex::default(),
            dialect: AtomicU8::new(dialect_code(default_dialect)),
            foreign: AtomicBool::new(true),
            hang_up: Notify::new(),
        }
    }

    /// Puts a message into its lane, if senders may do so now.
    pub(super) fn offer(&self, outgoing: Outgoing, bounds: &LaneBounds) -> Offer {
        let bytes = outgoing.bytes();
        let mut dropped = Vec::new();
        let mut state = lock(&self.lane(outgoing.lane).state);
        if !state.direct {
            return Offer::Closed(outgoing);
        }
        while state.queue.len() >= bounds.messages_max || state.bytes + bytes > bounds.bytes_max {
            if bounds.overflow == OverflowPolicy::RejectNew || state.queue.is_empty() {
                return Offer::Full(outgoing);
            }
            if let Some(oldest) = state.queue.pop_front() {
                state.bytes -= oldest.bytes();
                dropped.push(oldest);
            }
        }
        let reader = state.push(outgoing, bytes);
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        if dropped.is_empty() { Offer::Taken } else { Offer::TakenInsteadOf(dropped) }
    }

    /// Puts a message into its lane by order of the association machine. Returns it when no connection stands.
    pub(super) fn push(&self, outgoing: Outgoing) -> Option<Outgoing> {
        let bytes = outgoing.bytes();
        let mut state = lock(&self.lane(outgoing.lane).state);
        if state.connection == 0 {
            return Some(outgoing);
        }
        let reader = state.push(outgoing, bytes);
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        None
    }

    /// Connection `number` empties the lanes from now on.
    pub(super) fn open(&self, number: u64) {
        lock(&self.peer).connection = number;
        for lane in &self.lanes {
            let mut state = lock(&lane.state);
            state.connection = number;
            state.reader = None;
        }
    }

    /// Lets senders go past the association machine, or not.
    pub(super) fn set_direct(&self, direct: bool) {
        for lane in &self.lanes {
            let mut state = lock(&lane.state);
            state.direct = direct && state.connection != 0;
        }
    }

    /// Connection `number` is gone. Returns what was not sent, in order within each lane; `None` when another connection
    /// stands.
    pub(super) fn close(&self, number: u64) -> Option<Vec<Outgoing>> {
        let mut unsent = Vec::new();
        for lane in &self.lanes {
            let mut state = lock(&lane.state);
            if state.connection != number {
                return None;
            }
            state.connection = 0;
            state.direct = false;
            state.bytes = 0;
            unsent.extend(state.queue.drain(..));
            let reader = state.reader.take();
            drop(state);
            lane.room.notify_waiters();
            if let Some(reader) = reader {
                reader.wake();
            }
        }
        Some(unsent)
    }

    /// Whether connection `number` empties the lanes.
    pub(super) fn is_served_by(&self, number: u64) -> bool {
        lock(&self.lanes[0].state).connection == number
    }

    /// Whether nothing is going on and nothing waits.
    pub(super) fn is_idle(&self) -> bool {
        self.is_served_by(0) && self.queued() == 0
    }

    /// Another process may listen there from now on.
    pub(super) fn forget_peer(&self) {
        *lock(&self.peer) = PeerKnowledge::default();
        self.foreign.store(true, Ordering::Relaxed);
    }

    /// Whatever connection there is, is gone. Returns what was not sent.
    pub(super) fn close_any(&self) -> Vec<Outgoing> {
        let number = lock(&self.lanes[0].state).connection;
        self.close(number).unwrap_or_default()
    }

    /// Waits until there is a message in a lane for connection `number`, or until that connection is over.
    pub(super) fn poll_any(&self, lane: Lane, number: u64, context: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.lane(lane).state);
        if state.connection != number || !state.queue.is_empty() {
            return Poll::Ready(());
        }
        match &mut state.reader {
            Some(reader) => reader.clone_from(context.waker()),
            reader => *reader = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Takes up to `max` messages of a lane for connection `number`, if that is not over.
    pub(super) fn take(&self, lane: Lane, number: u64, max: usize, taken: &mut VecDeque<Outgoing>) {
        let queue = self.lane(lane);
        let mut state = lock(&queue.state);
        if state.connection != number {
            return;
        }
        let count = max.min(state.queue.len());
        let LaneState { queue: waiting, bytes, .. } = &mut *state;
        for outgoing in waiting.drain(..count) {
            *bytes -= outgoing.bytes();
            taken.push_back(outgoing);
        }
        drop(state);
        queue.room.notify_waiters();
    }

    /// Puts back what did not fit into a frame. Gives it back when the connection is over.
    pub(super) fn put_back(&self, lane: Lane, number: u64, rest: VecDeque<Outgoing>) -> VecDeque<Outgoing> {
        let mut state = lock(&self.lane(lane).state);
        if state.connection != number {
            return rest;
        }
        // What is sent again was sent before these.
        let older = if rest.front().is_some_and(|outgoing| outgoing.resent) {
            0
        } else {
            state.queue.iter().take_while(|outgoing| outgoing.resent).count()
        };
        state.insert(older, rest);
        VecDeque::new()
    }

    /// Waits until a lane may have room.
    pub(super) fn room(&self, lane: Lane) -> tokio::sync::futures::Notified<'_> {
        self.lane(lane).room.notified()
    }

    /// How many messages wait, in both lanes.
    pub(super) fn queued(&self) -> usize {
        self.lanes.iter().map(|lane| lock(&lane.state).queue.len()).sum()
    }

    /// The dialect to write in.
    pub(super) fn dialect(&self) -> Dialect {
        if self.dialect.load(Ordering::Relaxed) == dialect_code(Dialect::A) { Dialect::A } else { Dialect::B }
    }

    /// Whether the peer must not be sent messages of our own types.
    pub(super) fn is_foreign(&self) -> bool {
        self.foreign.load(Ordering::Relaxed)
    }

    /// The peer said what it runs.
    pub(super) fn note_runtime(&self, runtime: PeerRuntime) {
        self.foreign.store(runtime != PeerRuntime::Synod, Ordering::Relaxed);
        if runtime == PeerRuntime::Synod {
            // It reads both dialects, so nothing was misread.
            let mut peer = lock(&self.peer);
            peer.learn(Dialect::B);
            self.dialect.store(dialect_code(Dialect::B), Ordering::Relaxed);
        }
    }

    /// The peer wrote in `dialect`, so that is what it reads. What was sent in the other one goes back to the front of
    /// the lanes; returns whether there was any.
    pub(super) fn note_dialect(&self, dialect: Dialect) -> bool {
        let mut peer = lock(&self.peer);
        if peer.dialect == Some(dialect) {
            return false;
        }
        let misread = peer.unconfirmed_in.is_some_and(|used| used != dialect);
        let unconfirmed = peer.learn(dialect);
        self.dialect.store(dialect_code(dialect), Ordering::Relaxed);
        if !misread || unconfirmed.is_empty() {
            return false;
        }
        // Still under the lock, so that nothing newer is written in between.
        for lane in Lane::ALL {
            let again = unconfirmed.iter().filter(|outgoing| outgoing.lane == lane);
            let again = again.map(|outgoing| Outgoing { resent: true, ..outgoing.clone() }).collect();
            let mut state = lock(&self.lane(lane).state);
            // Without a connection they are lost with the one they were sent over.
            if state.connection != 0 {
                let reader = state.insert(0, again);
                drop(state);
                if let Some(reader) = reader {
                    reader.wake();
                }
            }
        }
        true
    }

    /// Whether what is sent now has to be kept, because the peer's dialect is a guess.
    pub(super) fn is_guessing(&self) -> bool {
        lock(&self.peer).dialect.is_none()
    }

    /// Keeps what is sent on a guess over connection `number`.
    ///
    /// # Errors
    /// Gives it back when the guess has turned out wrong meanwhile: it must not be sent like that.
    pub(super) fn keep_unconfirmed(
        &self,
        sent: VecDeque<Outgoing>,
        dialect: Dialect,
        number: u64,
    ) -> Result<(), VecDeque<Outgoing>> {
        let mut peer = lock(&self.peer);
        if let Some(known) = peer.dialect {
            return if known == dialect { Ok(()) } else { Err(sent) };
        }
        if peer.connection != number {
            return Ok(());
        }
        if peer.unconfirmed.is_empty() {
            peer.unconfirmed_in = Some(dialect);
        }
        for outgoing in sent.into_iter().filter(|outgoing| !outgoing.resent) {
            peer.unconfirmed_bytes += outgoing.bytes();
            peer.unconfirmed.push_back(outgoing);
        }
        if peer.unconfirmed.len() > UNCONFIRMED_MAX || peer.unconfirmed_bytes > UNCONFIRMED_BYTES_MAX {
            peer.forget_unconfirmed();
        }
        Ok(())
    }

    /// The connection is over that everything unconfirmed was sent over. If the peer hung up because it `misread` that,
    /// switches to the other dialect and returns what to send again.
    pub(super) fn take_unconfirmed(&self, misread: bool) -> Vec<Outgoing> {
        let mut peer = lock(&self.peer);
        peer.connection = 0;
        let is_guess = peer.dialect.is_none();
        let used = peer.unconfirmed_in;
        let unconfirmed = peer.forget_unconfirmed();
        match used {
            Some(used) if misread && is_guess && !unconfirmed.is_empty() => {
                self.dialect.store(dialect_code(used.other()), Ordering::Relaxed);
                unconfirmed.into_iter().map(|outgoing| Outgoing { resent: true, ..outgoing }).collect()
            }
            _ => Vec::new(),
        }
    }

    const fn lane(&self, lane: Lane) -> &LaneQueue {
        &self.lanes[lane.index()]
    }
}

impl PeerKnowledge {
    /// Returns what was unconfirmed until now.
    fn learn(&mut self, dialect: Dialect) -> VecDeque<Outgoing> {
        self.dialect = Some(dialect);
        self.forget_unconfirmed()
    }

    fn forget_unconfirmed(&mut self) -> VecDeque<Outgoing> {
        self.unconfirmed_bytes = 0;
        self.unconfirmed_in = None;
        std::mem::take(&mut self.unconfirmed)
    }
}

impl LaneState {
    /// Inserts behind the first `position` messages, and returns who waits for something to read.
    fn insert(&mut self, position: usize, messages: VecDeque<Outgoing>) -> Option<Waker> {
        self.bytes += messages.iter().map(Outgoing::bytes).sum::<usize>();
        let before = self.queue.drain(..position).collect::<Vec<_>>();
        for outgoing in before.into_iter().chain(messages).rev() {
            self.queue.push_front(outgoing);
        }
        if self.queue.is_empty() { None } else { self.reader.take() }
    }

    /// Appends, and returns who waits for something to read.
    fn push(&mut self, outgoing: Outgoing, bytes: usize) -> Option<Waker> {
        self.bytes += bytes;
        self.queue.push_back(outgoing);
        self.reader.take()
    }
}

const fn dialect_code(dialect: Dialect) -> u8 {
    match dialect {
        Dialect::A => 1,
        Dialect::B => 2,
    }
}

/// Most messages that are kept until a guessed dialect is confirmed.
const UNCONFIRMED_MAX: usize = 4096;
/// Most bytes that are kept until then.
const UNCONFIRMED_BYTES_MAX: usize = 4 << 20;
