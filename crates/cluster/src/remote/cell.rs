//! Where an actor rests between messages.
//!
//! An actor has a task only while it has something to do. The first message that comes to it at rest starts one, and when
//! its mailbox is empty the actor goes back into its cell and the task ends. So an idle actor costs its own size and a
//! little more, and a million of them can wait for somebody to call. If whoever sends the message only waits for what
//! comes of it, the actor works in that one's time, and needs a task only if it has to wait for something itself.
//!
//! ```text
//!              letter, or word about the actor itself
//!   Resting ────────────────────────────────────────────► Working ──► Over
//!      ▲                 mailbox empty                        │  stopped, poisoned, panicked
//!      └──────────────────────────────────────────────────────┘
//! ```

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::Remote;
use super::actor::{self, Actor, ActorContext};
use super::mailbox::Mailbox;
use super::pid::Pid;
use super::process::{Letter, Process, ProcessEnded, SystemMessage};
use super::works::may_work_here;
use crate::lock;

/// An actor of this node, and what waits for it.
pub(super) struct ActorCell<A> {
    remote: Remote,
    this: Weak<Self>,
    state: Mutex<State<A>>,
    /// Set when there is word about the actor itself, so that the worker need not lock between two letters.
    system_waits: AtomicBool,
    /// How many bursts of an actor that takes its time are not begun by whoever waits for them.
    caution: AtomicU8,
}

struct State<A> {
    mailbox: Mailbox,
    life: Life<A>,
    /// Made for the first one who finds the mailbox full.
    room: Option<Arc<Notify>>,
}

enum Life<A> {
    // Behind a pointer, because it changes hands with every burst of messages.
    Resting(Box<Body<A>>),
    Working,
    Over,
}

/// The actor, and what it can do.
pub(super) struct Body<A> {
    pub(super) actor: A,
    pub(super) context: ActorContext,
}

impl<A: Actor> ActorCell<A> {
    /// A cell whose actor is about to begin; [`begin`](Self::begin) lets it.
    pub(super) fn new(remote: Remote) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            remote,
            this: Weak::clone(this),
            state: Mutex::new(State { mailbox: Mailbox::default(), life: Life::Working, room: None }),
            system_waits: AtomicBool::new(false),
            caution: AtomicU8::new(0),
        })
    }

    /// Starts the actor. What came meanwhile waits for its end of `started`.
    pub(super) fn begin(self: Arc<Self>, own: Pid, actor: A) {
        let remote = self.remote.clone();
        let body = Box::new(Body { actor, context: ActorContext::new(remote.clone(), own) });
        remote.inner.work(actor::work(self, body, true));
    }

    /// Swaps the letters that wait into `taken`, which must be empty. Returns whether there is anything, of either sort.
    pub(super) fn take(&self, taken: &mut VecDeque<Letter>) -> bool {
        let mut state = lock(&self.state);
        let has_any = !state.mailbox.is_empty();
        state.mailbox.take(taken);
        if !taken.is_empty()
            && let Some(room) = &state.room
        {
            room.notify_waiters();
        }
        has_any
    }

    /// The next thing that overtakes letters.
    pub(super) fn take_system(&self) -> Option<SystemMessage> {
        if !self.system_waits.load(Ordering::Acquire) {
            return None;
        }
        let mut state = lock(&self.state);
        let message = state.mailbox.take_system();
        self.system_waits.store(state.mailbox.has_system(), Ordering::Release);
        message
    }

    /// Lets the actor rest, unless something came; then it is given back.
    pub(super) fn rest(&self, body: Box<Body<A>>) -> Option<Box<Body<A>>> {
        let mut state = lock(&self.state);
        if !state.mailbox.is_empty() {
            return Some(body);
        }
        // Whatever room it had is given back; an idle actor is to cost little.
        state.mailbox = Mailbox::default();
        state.life = Life::Resting(body);
        None
    }

    /// Takes no more, and gives back what was not read.
    pub(super) fn close(&self) -> (VecDeque<Letter>, VecDeque<SystemMessage>) {
        let mut state = lock(&self.state);
        state.life = Life::Over;
        let mut mailbox = std::mem::take(&mut state.mailbox);
        if let Some(room) = &state.room {
            room.notify_waiters();
        }
        drop(state);
        let mut letters = VecDeque::new();
        mailbox.take(&mut letters);
        (letters, std::iter::from_fn(|| mailbox.take_system()).collect())
    }

    /// Puts something into the mailbox, and gets an actor at rest to work: in a task, or `here` if it is quick.
    fn put(&self, here: bool, put: impl FnOnce(&mut Mailbox)) -> Result<(), ProcessEnded> {
        let mut state = lock(&self.state);
        if matches!(state.life, Life::Over) || self.remote.inner.is_cut() {
            return Err(ProcessEnded);
        }
        put(&mut state.mailbox);
        if state.mailbox.has_system() {
            self.system_waits.store(true, Ordering::Release);
        }
        if state.mailbox.is_empty() || matches!(state.life, Life::Working) {
            return Ok(());
        }
        let resting = std::mem::replace(&mut state.life, Life::Working);
        drop(state);
        if let (Life::Resting(body), Some(cell)) = (resting, self.this.upgrade()) {
            if here && may_work_here() && self.is_quick() {
                let began = Instant::now();
                self.remote.inner.work_here(actor::work(cell, body, false));
                if began.elapsed() > QUICK_MAX {
                    self.caution.store(CAUTION, Ordering::Relaxed);
                }
            } else {
                self.remote.inner.work(actor::work(cell, body, false));
            }
        }
        Ok(())
    }

    /// Whether the actor may be expected not to hold up whoever waits for it.
    fn is_quick(&self) -> bool {
        match self.caution.load(Ordering::Relaxed) {
            0 => true,
            caution => {
                self.caution.store(caution - 1, Ordering::Relaxed);
                false
            }
        }
    }
}

impl<A: Actor> Process for ActorCell<A> {
    fn deliver(&self, letters: &mut VecDeque<Letter>) -> Result<(), ProcessEnded> {
        self.put(false, |mailbox| mailbox.deliver(letters, &self.remote.inner.config))
    }

    fn deliver_and_wait(&self, letters: &mut VecDeque<Letter>) -> Result<(), ProcessEnded> {
        self.put(true, |mailbox| mailbox.deliver(letters, &self.remote.inner.config))
    }

    fn tell(&self, message: SystemMessage) -> Result<(), ProcessEnded> {
        self.put(false, |mailbox| mailbox.tell(message))
    }

    fn room(&self) -> Option<Arc<Notify>> {
        Some(Arc::clone(lock(&self.state).room.get_or_insert_default()))
    }
}

/// What an actor may take of the time of whoever waits for it. Whatever else that one has to do waits as well.
const QUICK_MAX: Duration = Duration::from_micros(50);
/// After so many bursts an actor that took longer is tried again.
const CAUTION: u8 = 64;
