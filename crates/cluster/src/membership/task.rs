//! A driver that lives on tokio, and the handles to it.
//!
//! The task waits for three things at once: the moment the coordinator wants to be polled, a command from a handle, a
//! message from a peer. After each it shows its view to the handles, so reading costs them nothing. It ends when it is
//! told to, when nobody holds a handle any more, or when the coordinator gives up; the last view says which.

use std::sync::Arc;
use std::time::Duration;

use synod_core::membership::{
    GossipPhase, Member, MembershipCoordinatorState, MembershipSnapshot, NodeStatus, QuarantineEntry,
    QuarantineReason,
};
use synod_core::{Authority, MemberId, NodeId, TimerInstant};
use tokio::sync::{mpsc, oneshot, watch};

use super::{MembershipCounters, MembershipDriver, MembershipDriverError};
use crate::clock::MonotonicClock;
use crate::incarnation::IncarnationStoreError;
use crate::transport::GossipTransport;

/// Runs a started driver as a tokio task.
#[derive(Debug)]
pub struct MembershipTask<T> {
    driver: MembershipDriver<T>,
    clock: MonotonicClock,
    commands: mpsc::Receiver<Command>,
    shown: watch::Sender<Shown>,
    /// What the shown view was made from.
    shown_mark: Mark,
}

impl<T: GossipTransport + 'static> MembershipTask<T> {
    /// The task of a driver that was started with the time of `clock`, for somebody who has a task already and wants to
    /// take its turns there.
    #[must_use = "dropping the last handle ends the task"]
    pub(crate) fn new(driver: MembershipDriver<T>, clock: MonotonicClock) -> (Self, MembershipHandle) {
        let (command_sender, commands) = mpsc::channel(COMMANDS_MAX);
        let view = Arc::new(MembershipView::of(&driver));
        let (shown, shown_receiver) = watch::channel(Shown { view, exit: None });
        let handle = MembershipHandle {
            commands: command_sender,
            shown: shown_receiver,
            leave_timeout: driver.leave_timeout,
            counters: Arc::clone(driver.counters()),
        };
        let shown_mark = Mark::of(&driver);
        (Self { driver, clock, commands, shown, shown_mark }, handle)
    }

    /// Starts the task of a driver that was started with the time of `clock`. Of a stopped driver the task ends at
    /// once.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use = "dropping the last handle stops the task"]
    pub fn spawn(driver: MembershipDriver<T>, clock: MonotonicClock) -> MembershipHandle {
        let (task, handle) = Self::new(driver, clock);
        tokio::spawn(task.run());
        handle
    }

    /// Waits for the next thing to happen and does what it takes. `Some` when the task is over: then
    /// [`finish`](Self::finish) it.
    ///
    /// A cancelled turn loses nothing: whatever it has taken it carries out before it can be cancelled again.
    pub(crate) async fn turn(&mut self) -> Option<MembershipExit> {
        let Some(wake_at) = self.driver.wake_at() else { return Some(self.stopped_by_itself()) };
        let inbound_ready = self.driver.inbound_ready();
        // Each turn begins with the deadline of the last outcome. The timer comes first and what peers send comes last,
        // so that no flood from outside can keep a node from its own duties.
        let result = tokio::select! {
            biased;
            () = tokio::time::sleep_until(self.clock.instant(wake_at)) => self.driver.poll(self.clock.now()),
            command = self.commands.recv() => match command {
                None => return Some(MembershipExit::Abandoned),
                Some(Command::Stop) => return Some(MembershipExit::Stopped),
                Some(Command::Ask { request, reply }) => {
                    let result = self.perform(request);
                    // Whoever asked finds the effect in the view. That it may have gone away is its own affair.
                    self.show();
                    drop(reply.send(result.clone()));
                    result
                }
            },
            () = inbound_ready.notified() => self.driver.handle_inbound(self.clock.now()),
        };
        self.settle(result)
    }

    /// Runs whatever is due, without waiting. `Some` as in [`turn`](Self::turn).
    pub(crate) fn poll(&mut self) -> Option<MembershipExit> {
        let result = self.driver.poll(self.clock.now());
        self.settle(result)
    }

    /// A sign of life of `member` arrived on another road. One of a life that the table does not hold alive means
    /// nothing. `Some` as in [`turn`](Self::turn).
    pub(crate) fn note_alive(&mut self, member: &MemberId) -> Option<MembershipExit> {
        if !self.holds_alive(member) {
            return None;
        }
        let result = self.driver.handle_heartbeat(member, self.clock.now());
        self.settle(result)
    }

    /// Ends the task and tells the handles why.
    pub(crate) fn finish(mut self, exit: MembershipExit) {
        if self.driver.is_running()
            && let Err(error) = self.driver.stop(self.clock.now())
        {
            tracing::error!(%error, "the membership driver did not stop");
        }
        tracing::debug!(?exit, "the membership task ends");
        // The transport goes first: whoever waits for the end may want its address.
        let Self { driver, shown, .. } = self;
        drop(driver);
        shown.send_replace(Shown { view: Arc::default(), exit: Some(exit) });
    }

    /// When something is due next.
    pub(crate) const fn wake_at(&self) -> Option<TimerInstant> {
        self.driver.wake_at()
    }

    /// This node's name and life; `None` for clients and when stopped.
    pub(crate) fn own(&self) -> Option<&MemberId> {
        self.driver.coordinator().own()
    }

    /// Whether this life of `member` is still alive in the table.
    pub(crate) fn holds_alive(&self, member: &MemberId) -> bool {
        let record = self.driver.coordinator().record(&member.node);
        record.is_some_and(|record| record.member == *member && !record.status.is_final())
    }

    /// Whether this life of `member` is over for certain: it ended, or a later one began.
    pub(crate) fn knows_end_of(&self, member: &MemberId) -> bool {
        let record = self.driver.coordinator().record(&member.node);
        record.is_some_and(|record| {
            let (known, asked) = (record.member.incarnation, member.incarnation);
            known > asked || known == asked && record.status.is_final()
        })
    }

    async fn run(mut self) {
        let exit = loop {
            if let Some(exit) = self.turn().await {
                break exit;
            }
        };
        self.finish(exit);
    }

    fn settle(&mut self, result: Result<(), MembershipDriverError>) -> Option<MembershipExit> {
        if let Err(MembershipDriverError::LifeNotStored(error)) = result {
            return Some(MembershipExit::LifeNotStored(error));
        }
        self.show();
        self.driver.wake_at().is_none().then(|| self.stopped_by_itself())
    }

    fn stopped_by_itself(&self) -> MembershipExit {
        match self.driver.superseded().cloned() {
            Some((by, at)) => MembershipExit::Superseded { by, at },
            None => MembershipExit::Stopped,
        }
    }

    fn perform(&mut self, request: Request) -> Result<(), MembershipDriverError> {
        let now = self.clock.now();
        match request {
            Request::Join(member, authority) => self.driver.handle_join(&member, &authority, now),
            Request::Leave(node) => self.driver.handle_leave(&node, now),
            Request::Down(node) => self.driver.handle_down(&node, now),
            Request::Suspect(node) => self.driver.handle_suspicion(&node, now),
            Request::Quarantine(authority, reason) => self.driver.handle_quarantine(&authority, reason, now),
            Request::Release(authority) => self.driver.release(&authority, now),
        }
    }

    /// Shows the view if it changed. A copy of the whole table is too much for every heartbeat.
    fn show(&mut self) {
        let mark = Mark::of(&self.driver);
        if mark != self.shown_mark {
            self.shown_mark = mark;
            let view = Arc::new(MembershipView::of(&self.driver));
            self.shown.send_replace(Shown { view, exit: None });
        }
    }
}

/// A handle to a running membership. Clones control the same task; when the last is dropped the task stops.
#[derive(Clone, Debug)]
pub struct MembershipHandle {
    commands: mpsc::Sender<Command>,
    shown: watch::Receiver<Shown>,
    leave_timeout: Duration,
    counters: Arc<MembershipCounters>,
}

impl MembershipHandle {
    /// Reports that `member` wants to join, or is there, at `authority`.
    ///
    /// # Errors
    /// Refused by the coordinator, or the task has ended.
    pub async fn join(&self, member: MemberId, authority: Authority) -> Result<(), MembershipHandleError> {
        self.ask(Request::Join(member, authority)).await
    }

    /// Asks `node`, which may be this one, to leave.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub async fn leave(&self, node: NodeId) -> Result<(), MembershipHandleError> {
        self.ask(Request::Leave(node)).await
    }

    /// Declares `node` dead.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub async fn down(&self, node: NodeId) -> Result<(), MembershipHandleError> {
        self.ask(Request::Down(node)).await
    }

    /// Reports that another detector holds `node` for gone. It is suspected until it is heard again.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub async fn suspect(&self, node: NodeId) -> Result<(), MembershipHandleError> {
        self.ask(Request::Suspect(node)).await
    }

    /// Keeps `authority` out.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub async fn quarantine(
        &self,
        authority: Authority,
        reason: QuarantineReason,
    ) -> Result<(), MembershipHandleError> {
        self.ask(Request::Quarantine(authority, reason)).await
    }

    /// Lets `authority` in again before its time.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub async fn release(&self, authority: Authority) -> Result<(), MembershipHandleError> {
        self.ask(Request::Release(authority)).await
    }

    /// Stops at once, without a word to the others, and waits until the task has ended.
    ///
    /// # Errors
    /// The task had ended before.
    pub async fn stop(&self) -> Result<MembershipExit, MembershipHandleError> {
        self.commands.send(Command::Stop).await.map_err(|_| MembershipHandleError::Ended)?;
        Ok(self.ended().await)
    }

    /// Leaves, waits until everybody knows (at most the configured leave timeout), and stops.
    ///
    /// # Errors
    /// The task ended before it was told to stop.
    pub async fn leave_and_stop(&self) -> Result<Departure, MembershipHandleError> {
        let departure = self.take_leave().await?;
        self.stop().await?;
        Ok(departure)
    }

    /// Waits until the view fulfils `condition`.
    ///
    /// # Errors
    /// The task ended first.
    pub async fn wait_until(
        &self,
        mut condition: impl FnMut(&MembershipView) -> bool,
    ) -> Result<Arc<MembershipView>, MembershipHandleError> {
        let mut shown = self.shown.clone();
        let reached = shown.wait_for(|shown| shown.exit.is_some() || condition(&shown.view)).await;
        match reached {
            Ok(shown) if shown.exit.is_none() => Ok(Arc::clone(&shown.view)),
            _ => Err(MembershipHandleError::Ended),
        }
    }

    /// Waits until the task has ended, and says why it did.
    pub async fn ended(&self) -> MembershipExit {
        let mut shown = self.shown.clone();
        let last = shown.wait_for(|shown| shown.exit.is_some()).await;
        last.ok().and_then(|shown| shown.exit.clone()).unwrap_or(MembershipExit::Aborted)
    }

    /// Every view from now on, the present one first.
    pub fn views(&self) -> MembershipViews {
        let mut shown = self.shown.clone();
        shown.mark_changed();
        MembershipViews { shown }
    }

    /// The latest view.
    #[must_use]
    pub fn view(&self) -> Arc<MembershipView> {
        Arc::clone(&self.shown.borrow().view)
    }

    /// Whether the task still runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.commands.is_closed() && self.shown.borrow().exit.is_none()
    }

    /// What went wrong without failing a call.
    #[must_use]
    pub fn counters(&self) -> &MembershipCounters {
        &self.counters
    }

    async fn take_leave(&self) -> Result<Departure, MembershipHandleError> {
        let Some(own) = self.view().own.clone() else { return Ok(Departure::Unannounced) };
        match self.leave(own.node).await {
            Ok(()) => {}
            Err(MembershipHandleError::Ended) => return Err(MembershipHandleError::Ended),
            Err(error) => {
                tracing::warn!(%error, "the node stops without having left");
                return Ok(Departure::Unannounced);
            }
        }
        let gone = self.wait_until(|view| view.own_status == Some(NodeStatus::Removed));
        match tokio::time::timeout(self.leave_timeout, gone).await {
            Ok(known) => known.map(|_| Departure::Announced),
            Err(_) => Ok(Departure::Unannounced),
        }
    }

    async fn ask(&self, request: Request) -> Result<(), MembershipHandleError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Ask { request, reply };
        self.commands.send(command).await.map_err(|_| MembershipHandleError::Ended)?;
        let answer = answer.await.map_err(|_| MembershipHandleError::Ended)?;
        Ok(answer?)
    }
}

/// A request through a handle failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipHandleError {
    /// The driver refused or failed.
    #[error(transparent)]
    Driver(#[from] MembershipDriverError),
    /// The task ended before it could answer.
    #[error("the membership task has ended; the request was not carried out")]
    Ended,
}

/// How a node that was to leave gracefully went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It is removed in its own view: everybody it could reach knows.
    Announced,
    /// It went before everybody knew: time was up, it was refused, or it is no member.
    Unannounced,
}

/// Why a membership task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MembershipExit {
    /// The last handle was dropped.
    Abandoned,
    /// The task was aborted or panicked.
    Aborted,
    /// The node had to begin a new life and could not store it.
    LifeNotStored(IncarnationStoreError),
    /// It was told to stop.
    Stopped,
    /// Another process took this node's name over.
    Superseded {
        /// The later life.
        by: MemberId,
        /// Where it is.
        at: Authority,
    },
}

/// The views of a node, one after another. Who is slow misses some, but never the latest.
#[derive(Debug)]
pub struct MembershipViews {
    shown: watch::Receiver<Shown>,
}

impl MembershipViews {
    /// The next view; `None` once the membership has ended.
    pub async fn next(&mut self) -> Option<Arc<MembershipView>> {
        self.shown.changed().await.ok()?;
        let shown = self.shown.borrow_and_update();
        shown.exit.is_none().then(|| Arc::clone(&shown.view))
    }
}

/// What a node believes about the cluster at one moment. Empty when the task has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipView {
    /// Whether and how the node takes part.
    pub state: MembershipCoordinatorState,
    /// Its name and life; `None` for clients.
    pub own: Option<MemberId>,
    /// Its own state; `None` for clients.
    pub own_status: Option<NodeStatus>,
    /// How far the last change has spread.
    pub phase: Option<GossipPhase>,
    /// The active members, in node order.
    pub members: Vec<Member>,
    /// Every record, also of members that are gone.
    pub records: MembershipSnapshot,
    /// All quarantined addresses.
    pub quarantine: Vec<QuarantineEntry>,
    /// A digest of the records; equal on nodes that agree.
    pub digest: u128,
}

impl MembershipView {
    fn of<T: GossipTransport>(driver: &MembershipDriver<T>) -> Self {
        let coordinator = driver.coordinator();
        Self {
            state: coordinator.state(),
            own: coordinator.own().cloned(),
            own_status: coordinator.own_status(),
            phase: coordinator.phase(),
            members: coordinator.active_members(),
            records: coordinator.snapshot(),
            quarantine: coordinator.quarantine_snapshot(),
            digest: coordinator.view_digest(),
        }
    }

    /// The state of one node.
    #[must_use]
    pub fn status(&self, node: &NodeId) -> Option<NodeStatus> {
        self.records.record(node).map(|record| record.status)
    }
}

impl Default for MembershipView {
    fn default() -> Self {
        Self {
            state: MembershipCoordinatorState::Stopped,
            own: None,
            own_status: None,
            phase: None,
            members: Vec::new(),
            records: MembershipSnapshot::default(),
            quarantine: Vec::new(),
            digest: 0,
        }
    }
}

/// What the handles see.
#[derive(Clone, Debug)]
struct Shown {
    view: Arc<MembershipView>,
    exit: Option<MembershipExit>,
}

/// Equal marks mean equal views, but for tombstones that were forgotten in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    revision: u64,
    digest: u128,
    phase: Option<GossipPhase>,
}

impl Mark {
    fn of<T: GossipTransport>(driver: &MembershipDriver<T>) -> Self {
        let coordinator = driver.coordinator();
        Self { revision: driver.revision, digest: coordinator.view_digest(), phase: coordinator.phase() }
    }
}

#[derive(Debug)]
enum Command {
    Ask { request: Request, reply: oneshot::Sender<Result<(), MembershipDriverError>> },
    Stop,
}

#[derive(Debug)]
enum Request {
    Join(MemberId, Authority),
    Leave(NodeId),
    Down(NodeId),
    Suspect(NodeId),
    Quarantine(Authority, QuarantineReason),
    Release(Authority),
}

/// So many commands wait for the task; who brings more waits itself.
const COMMANDS_MAX: usize = 64;

#[cfg(test)]
mod tests;
