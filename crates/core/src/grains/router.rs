//! The calling side: calls to one grain take their turn, find it, and come to an end in time.
//!
//! ```text
//!   call ──► lane of the grain ──► Resolving ──► Sent ──► ended: completed, failed, timed out, cancelled
//!     │        waits its turn        ▲             │
//!     │                              └── Pausing ◄─┘ no answer, dead letter: forget where it was, look again
//!     └► rejected, or the oldest in the lane is dropped
//! ```
//!
//! A call that tries again keeps its place in the lane, so calls to one grain begin in the order in which they were made.
//! Whatever happens, a call is over at its deadline, and its caller hears of it exactly once.

mod config;
mod histogram;
mod outcome;
mod schema;

pub use config::{RetryPolicy, RouterConfig, RouterConfigError, SCHEMA_BASE, SCHEMAS_MAX};
pub use histogram::LatencyHistogram;
pub use outcome::{
    Answer, AttemptFailure, CallCounts, CallEnd, CallRejection, CallRequest, CorrelationId, EndedCall,
    RouterCommand, RouterEvent, RouterOutcome,
};
pub use schema::shared_schema;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::identity::{ClusterIdentity, GrainKey};
use super::pid::ActorPid;
use crate::id::Authority;
use crate::outbound::OverflowPolicy;
use crate::time::TimerInstant;
use schema::SchemaTable;

/// The calls of one node to grains, wherever they live.
///
/// Inputs: [`call`](Self::call), [`cancel`](Self::cancel) and `handle_*`; [`poll`](Self::poll) at the `wake_at` of the
/// last outcome. Time is monotonic. Every call ends exactly once, in `ended`. Every `Resolve` is answered by
/// [`handle_resolved`](Self::handle_resolved) or [`handle_failure`](Self::handle_failure), every `Send` by
/// [`handle_response`](Self::handle_response) or [`handle_failure`](Self::handle_failure); an answer that never comes is
/// taken for a failure when its time is over.
#[derive(Clone, Debug)]
pub struct GrainRpcRouter {
    config: RouterConfig,
    schemas: SchemaTable,
    calls: BTreeMap<CorrelationId, Call>,
    lanes: BTreeMap<GrainKey, Lane>,
    /// In order of time. Each time stands in its call, too.
    deadlines: BTreeSet<(TimerInstant, CorrelationId)>,
    /// The end of an attempt, or of the pause before the next, likewise.
    alarms: BTreeSet<(TimerInstant, CorrelationId)>,
    last_correlation: u64,
    stride: u64,
    counts: CallCounts,
    latencies: LatencyHistogram,
    rng: fastrand::Rng,
}

/// The calls to one grain.
#[derive(Clone, Debug, Default)]
struct Lane {
    running: usize,
    queue: VecDeque<CorrelationId>,
}

#[derive(Clone, Debug)]
struct Call {
    grain: ClusterIdentity,
    accepted_at: TimerInstant,
    deadline: TimerInstant,
    alarm: Option<TimerInstant>,
    schema_min: u32,
    retry: RetryPolicy,
    once: bool,
    attempts: u32,
    phase: Phase,
    /// The version in which the request was sent last. An answer that comes after its attempt was given up still counts.
    schema: Option<u32>,
}

#[derive(Clone, Debug)]
enum Phase {
    Waiting,
    Resolving,
    Sent(ActorPid),
    Pausing,
}

impl GrainRpcRouter {
    /// A router without calls. `seed` feeds the jitter.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn new(config: RouterConfig, seed: u64) -> Result<Self, RouterConfigError> {
        config.validate()?;
        Ok(Self {
            schemas: SchemaTable::new(config.schema_versions.clone()),
            config,
            calls: BTreeMap::new(),
            lanes: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            alarms: BTreeSet::new(),
            last_correlation: 0,
            stride: 1,
            counts: CallCounts::default(),
            latencies: LatencyHistogram::default(),
            rng: fastrand::Rng::with_seed(seed),
        })
    }

    /// The same router, one of `stride` that share their numbers: it uses every `stride`th, beginning after `first`.
    #[must_use]
    pub const fn numbered(mut self, first: u64, stride: u64) -> Self {
        self.last_correlation = first;
        self.stride = stride;
        self
    }

    /// Takes on a call, or rejects it. Either way it has a number from now on.
    pub fn call(&mut self, request: CallRequest, now: TimerInstant) -> (CorrelationId, RouterOutcome) {
        let mut out = RouterOutcome::default();
        self.last_correlation += self.stride;
        let correlation = CorrelationId(self.last_correlation);
        match self.admit(&request, now, &mut out) {
            Ok(()) => {
                let known = request.known.clone();
                self.accept(correlation, request, now, &mut out);
                self.go_where_known(correlation, known, now, &mut out);
            }
            Err(rejection) => {
                self.counts.rejected += 1;
                let end = CallEnd::Rejected(rejection);
                out.ended.push(EndedCall { correlation, grain: request.grain, end });
            }
        }
        (correlation, self.finish(out))
    }

    /// The caller lost interest. Harmless when the call is over.
    pub fn cancel(&mut self, correlation: CorrelationId, now: TimerInstant) -> RouterOutcome {
        let mut out = RouterOutcome::default();
        self.end(correlation, CallEnd::Cancelled, now, &mut out);
        self.finish(out)
    }

    /// The grain was found: the request goes there, if both sides can speak about it.
    pub fn handle_resolved(
        &mut self,
        correlation: CorrelationId,
        pid: ActorPid,
        now: TimerInstant,
    ) -> RouterOutcome {
        let mut out = self.expire(now);
        if !self.calls.get(&correlation).is_some_and(|call| matches!(call.phase, Phase::Resolving)) {
            self.counts.late += 1;
            return self.finish(out);
        }
        self.send(correlation, pid, now, &mut out);
        self.finish(out)
    }

    /// The grain answered, in this version of the call schema.
    pub fn handle_response(
        &mut self,
        correlation: CorrelationId,
        answer: Answer,
        schema: u32,
        now: TimerInstant,
    ) -> RouterOutcome {
        let mut out = self.expire(now);
        match self.calls.get(&correlation).map(|call| (call.schema, call.accepted_at)) {
            Some((Some(agreed), _)) if agreed != schema => {
                let failure = AttemptFailure::AnswerSchema { answered: schema, agreed };
                self.fail(correlation, failure, now, &mut out);
            }
            Some((Some(_), accepted_at)) => {
                let latency = now.saturating_since(accepted_at);
                self.end(correlation, CallEnd::Completed { answer, latency }, now, &mut out);
            }
            // Over already, or never sent.
            Some((None, _)) | None => self.counts.late += 1,
        }
        self.finish(out)
    }

    /// The attempt failed. Depending on the failure, the policy and the deadline another one follows.
    pub fn handle_failure(
        &mut self,
        correlation: CorrelationId,
        failure: AttemptFailure,
        now: TimerInstant,
    ) -> RouterOutcome {
        let mut out = self.expire(now);
        match self.calls.get(&correlation).map(|call| &call.phase) {
            Some(Phase::Resolving | Phase::Sent(_)) => self.fail(correlation, failure, now, &mut out),
            Some(Phase::Waiting | Phase::Pausing) | None => self.counts.late += 1,
        }
        self.finish(out)
    }

    /// A peer says which versions of the call schema it speaks.
    pub fn handle_peer_schemas(&mut self, peer: &Authority, offered: &[u32]) -> RouterOutcome {
        let mut out = RouterOutcome::default();
        out.events.push(self.schemas.negotiate(peer, offered));
        self.finish(out)
    }

    /// A peer is gone: what was sent to it will not be answered.
    pub fn handle_peer_gone(&mut self, peer: &Authority, now: TimerInstant) -> RouterOutcome {
        let mut out = self.expire(now);
        self.schemas.forget(peer);
        let is_there = |call: &Call| matches!(&call.phase, Phase::Sent(pid) if pid.authority() == peer);
        let unanswered: Vec<_> =
            self.calls.iter().filter(|(_, call)| is_there(call)).map(|(id, _)| *id).collect();
        for correlation in unanswered {
            self.fail(correlation, AttemptFailure::Unreachable(peer.clone()), now, &mut out);
        }
        self.finish(out)
    }

    /// Ends every call whose time is over, and lets those behind them take their turn.
    pub fn expire(&mut self, now: TimerInstant) -> RouterOutcome {
        let mut out = RouterOutcome::default();
        // Where one of them frees a turn, `advance` passes over the others.
        while let Some(correlation) = pop_due(&mut self.deadlines, now) {
            self.time_out(correlation, now, &mut out);
        }
        self.finish(out)
    }

    /// Runs everything that is due: ends calls, gives up attempts, begins others.
    pub fn poll(&mut self, now: TimerInstant) -> RouterOutcome {
        let mut out = self.expire(now);
        let mut due = Vec::new();
        while let Some(correlation) = pop_due(&mut self.alarms, now) {
            due.push(correlation);
        }
        for correlation in due {
            let call = self.calls.get_mut(&correlation);
            let call = call.map(|call| {
                call.alarm = None;
                &call.phase
            });
            match call {
                Some(Phase::Pausing) => self.attempt(correlation, now, &mut out),
                Some(Phase::Resolving | Phase::Sent(_)) => {
                    self.fail(correlation, AttemptFailure::NoAnswer, now, &mut out);
                }
                Some(Phase::Waiting) | None => {}
            }
        }
        self.finish(out)
    }

    /// How calls have fared.
    #[must_use]
    pub const fn counts(&self) -> CallCounts {
        self.counts
    }

    /// How long answered calls took.
    #[must_use]
    pub const fn latencies(&self) -> &LatencyHistogram {
        &self.latencies
    }

    /// How many calls are under way, those that wait for their turn included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// How many calls to `grain` have their turn, and how many wait for it.
    #[must_use]
    pub fn lane(&self, grain: &ClusterIdentity) -> (usize, usize) {
        self.lanes.get(grain.key()).map_or((0, 0), |lane| (lane.running, lane.queue.len()))
    }

    /// Whether there is room for a call. With `DropOldest` room is made.
    fn admit(
        &mut self,
        request: &CallRequest,
        now: TimerInstant,
        out: &mut RouterOutcome,
    ) -> Result<(), CallRejection> {
        if request.deadline <= now {
            return Err(CallRejection::DeadlinePassed);
        }
        if let Some(retry) = &request.retry {
            retry.validate().map_err(CallRejection::Retry)?;
        }
        let RouterConfig { concurrency_limit, queue_depth: depth, overflow, calls_max: max, .. } =
            self.config;
        // What is over makes room first.
        while let Some(correlation) = pop_due(&mut self.deadlines, now) {
            self.time_out(correlation, now, out);
        }
        let (running, queued) = self.lane(&request.grain);
        if running >= concurrency_limit && queued >= depth {
            let oldest = self.lanes.get(request.grain.key()).and_then(|lane| lane.queue.front().copied());
            match (overflow, oldest) {
                (OverflowPolicy::DropOldest, Some(oldest)) => {
                    self.end(oldest, CallEnd::DroppedOldest, now, out);
                }
                _ => return Err(CallRejection::QueueFull { depth }),
            }
        }
        if self.calls.len() >= max { Err(CallRejection::TooManyCalls { max }) } else { Ok(()) }
    }

    fn accept(
        &mut self,
        correlation: CorrelationId,
        request: CallRequest,
        now: TimerInstant,
        out: &mut RouterOutcome,
    ) {
        let CallRequest { grain, deadline, schema_min, retry, once, .. } = request;
        self.counts.accepted += 1;
        self.deadlines.insert((deadline, correlation));
        let lane = self.lanes.entry(grain.key().clone()).or_default();
        // Mostly nobody is before it.
        let has_turn = lane.queue.is_empty() && lane.running < self.config.concurrency_limit;
        if has_turn {
            lane.running += 1;
        } else {
            lane.queue.push_back(correlation);
        }
        let retry = retry.unwrap_or(self.config.retry);
        let (accepted_at, attempts, phase, schema, alarm) = (now, 0, Phase::Waiting, None, None);
        let call =
            Call { grain, accepted_at, deadline, alarm, schema_min, retry, once, attempts, phase, schema };
        self.calls.insert(correlation, call);
        if has_turn {
            self.attempt(correlation, now, out);
        }
    }

    /// Gives the next calls of a lane their turn, past those whose time is over, and forgets a lane without calls.
    fn advance(&mut self, key: &GrainKey, now: TimerInstant, out: &mut RouterOutcome) {
        while let Some(lane) = self.lanes.get_mut(key) {
            if lane.running >= self.config.concurrency_limit {
                return;
            }
            let Some(next) = lane.queue.front().copied() else {
                if lane.running == 0 {
                    self.lanes.remove(key);
                }
                return;
            };
            if self.calls.get(&next).is_some_and(|call| call.deadline <= now) {
                self.remove(next, CallEnd::TimedOut { attempts: 0 }, out);
                continue;
            }
            lane.queue.pop_front();
            lane.running += 1;
            self.attempt(next, now, out);
        }
    }

    fn attempt(&mut self, correlation: CorrelationId, now: TimerInstant, out: &mut RouterOutcome) {
        let Some(call) = self.calls.get_mut(&correlation) else { return };
        call.attempts += 1;
        call.phase = Phase::Resolving;
        if call.attempts > 1 {
            self.counts.retries += 1;
        }
        call.set_alarm(correlation, Some(now + self.config.attempt_timeout), &mut self.alarms);
        out.commands.push(RouterCommand::Resolve { correlation, grain: call.grain.clone() });
    }

    /// Spares a call whose turn it is the search, if it said where the grain is.
    fn go_where_known(
        &mut self,
        correlation: CorrelationId,
        known: Option<ActorPid>,
        now: TimerInstant,
        out: &mut RouterOutcome,
    ) {
        let searches = |command: &RouterCommand| matches!(command, RouterCommand::Resolve { correlation: whose, .. } if *whose == correlation);
        if let Some(pid) = known
            && out.commands.last().is_some_and(searches)
        {
            out.commands.pop();
            self.send(correlation, pid, now, out);
        }
    }

    /// Sends the request to `pid`, if both sides can speak about it.
    fn send(
        &mut self,
        correlation: CorrelationId,
        pid: ActorPid,
        now: TimerInstant,
        out: &mut RouterOutcome,
    ) {
        let Some(call) = self.calls.get_mut(&correlation) else { return };
        let peer = pid.authority();
        let failure = match self.schemas.version(peer) {
            None => Some(AttemptFailure::NoCommonSchema(peer.clone())),
            Some(shared) if shared < call.schema_min => {
                let (peer, needed) = (peer.clone(), call.schema_min);
                Some(AttemptFailure::SchemaTooOld { peer, needed, shared })
            }
            Some(schema) => {
                call.schema = Some(schema);
                call.phase = Phase::Sent(pid.clone());
                if call.once {
                    // No other attempt may follow, so this one has all the time that is left.
                    call.set_alarm(correlation, None, &mut self.alarms);
                }
                let (deadline, remaining) = (call.deadline, call.deadline.saturating_since(now));
                out.commands.push(RouterCommand::Send { correlation, pid, schema, deadline, remaining });
                None
            }
        };
        if let Some(failure) = failure {
            self.fail(correlation, failure, now, out);
        }
    }

    /// Plans another attempt, or ends the call.
    fn fail(
        &mut self,
        correlation: CorrelationId,
        failure: AttemptFailure,
        now: TimerInstant,
        out: &mut RouterOutcome,
    ) {
        self.evict(correlation, &failure, out);
        let Some(call) = self.calls.get_mut(&correlation) else { return };
        let may_be_done = matches!(call.phase, Phase::Sent(_)) && failure != AttemptFailure::DeadLetter;
        let may_repeat = failure.is_passing() && !(call.once && may_be_done);
        let pause = if may_repeat { call.retry.pause(call.attempts, &mut self.rng) } else { None };
        match pause.map(|pause| now + pause).filter(|at| *at < call.deadline) {
            Some(at) => {
                call.phase = Phase::Pausing;
                call.set_alarm(correlation, Some(at), &mut self.alarms);
                let (grain, attempts) = (call.grain.clone(), call.attempts);
                out.events.push(RouterEvent::Retrying { correlation, grain, attempts, failure, at });
            }
            None => {
                let end = match failure {
                    AttemptFailure::NoAnswer => CallEnd::TimedOut { attempts: call.attempts },
                    failure => CallEnd::Failed(failure),
                };
                self.end(correlation, end, now, out);
            }
        }
    }

    fn time_out(&mut self, correlation: CorrelationId, now: TimerInstant, out: &mut RouterOutcome) {
        self.evict(correlation, &AttemptFailure::NoAnswer, out);
        let attempts = self.calls.get(&correlation).map_or(0, |call| call.attempts);
        self.end(correlation, CallEnd::TimedOut { attempts }, now, out);
    }

    /// Whoever does not answer is not looked for in the same place again.
    fn evict(&self, correlation: CorrelationId, failure: &AttemptFailure, out: &mut RouterOutcome) {
        if let Some(Call { phase: Phase::Sent(pid), grain, .. }) = self.calls.get(&correlation)
            && failure.is_passing()
        {
            let (grain, pid) = (grain.clone(), pid.clone());
            out.commands.push(RouterCommand::Evict { correlation, grain, pid });
        }
    }

    /// Ends a call and gives its turn to the next. Harmless when it is over.
    fn end(&mut self, correlation: CorrelationId, end: CallEnd, now: TimerInstant, out: &mut RouterOutcome) {
        if let Some(key) = self.calls.get(&correlation).map(|call| call.grain.key().clone()) {
            self.remove(correlation, end, out);
            self.advance(&key, now, out);
        }
    }

    /// Takes a call out of everything and tells how it ended.
    fn remove(&mut self, correlation: CorrelationId, end: CallEnd, out: &mut RouterOutcome) {
        let Some(mut call) = self.calls.remove(&correlation) else { return };
        self.deadlines.remove(&(call.deadline, correlation));
        call.set_alarm(correlation, None, &mut self.alarms);
        let Call { grain, phase, .. } = call;
        if let Some(lane) = self.lanes.get_mut(grain.key()) {
            match phase {
                Phase::Waiting => lane.queue.retain(|waiting| *waiting != correlation),
                Phase::Resolving | Phase::Sent(_) | Phase::Pausing => lane.running -= 1,
            }
        }
        let counts = &mut self.counts;
        match &end {
            CallEnd::Rejected(_) => counts.rejected += 1,
            CallEnd::Completed { answer, latency } => {
                counts.completed += 1;
                counts.grain_errors += u64::from(*answer == Answer::GrainError);
                self.latencies.record(*latency);
                if self.config.latency_alert.is_some_and(|alert| *latency > alert) {
                    counts.slow += 1;
                    let (grain, latency) = (grain.clone(), *latency);
                    out.events.push(RouterEvent::Slow { correlation, grain, latency });
                }
            }
            CallEnd::Failed(_) => counts.failed += 1,
            CallEnd::DroppedOldest => counts.dropped += 1,
            CallEnd::TimedOut { .. } => counts.timed_out += 1,
            CallEnd::Cancelled => counts.cancelled += 1,
        }
        out.ended.push(EndedCall { correlation, grain, end });
    }

    fn finish(&self, mut out: RouterOutcome) -> RouterOutcome {
        let first = |times: &BTreeSet<(TimerInstant, CorrelationId)>| times.first().map(|(at, _)| *at);
        out.wake_at = first(&self.deadlines).into_iter().chain(first(&self.alarms)).min();
        out
    }
}

impl Call {
    /// Moves the alarm of this call, or ends it.
    fn set_alarm(
        &mut self,
        own: CorrelationId,
        at: Option<TimerInstant>,
        alarms: &mut BTreeSet<(TimerInstant, CorrelationId)>,
    ) {
        if let Some(before) = self.alarm.take() {
            alarms.remove(&(before, own));
        }
        if let Some(at) = at {
            alarms.insert((at, own));
            self.alarm = Some(at);
        }
    }
}

/// Takes the first whose time has come.
fn pop_due(times: &mut BTreeSet<(TimerInstant, CorrelationId)>, now: TimerInstant) -> Option<CorrelationId> {
    if times.first()?.0 > now {
        return None;
    }
    times.pop_first().map(|(_, correlation)| correlation)
}

#[cfg(test)]
mod tests;
