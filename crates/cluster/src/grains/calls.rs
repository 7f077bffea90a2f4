//! The calls of this node that are under way.
//!
//! Calls to different grains have nothing to do with each other, so they are spread over several routers, each behind a
//! lock of its own. A call that is alone with its grain and knows where it lives takes two of these locks in its life:
//! one to begin, one to end.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::hash::{BuildHasher, BuildHasherDefault, RandomState};
use std::sync::{Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

use synod_core::Authority;
use synod_core::grains::{
    ActorPid, CallCounts, CallEnd, CallRequest, ClusterIdentity, CorrelationId, GrainRpcRouter,
    LatencyHistogram, RouterCommand, RouterConfig, RouterConfigError, RouterOutcome,
};
use synod_core::time::TimerInstant;

use crate::lock;
use crate::numbers::NumberHasher;

/// What a call is told to do next.
#[derive(Debug)]
pub(super) enum Step {
    /// Find the grain.
    Resolve,
    /// Send the request there.
    Send { pid: ActorPid, remaining: Duration, schema: u32 },
    /// It is over.
    Ended(CallEnd),
}

/// The calls, and what they are told.
pub(super) struct Calls {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
}

struct Shard {
    router: GrainRpcRouter,
    waiting: HashMap<CorrelationId, Slot, BuildHasherDefault<NumberHasher>>,
    is_stopped: bool,
}

/// Where a call hears what to do next.
#[derive(Default)]
struct Slot {
    steps: VecDeque<Step>,
    waker: Option<Waker>,
}

impl Calls {
    pub(super) fn new(config: &RouterConfig, seed: u64) -> Result<Self, RouterConfigError> {
        // A small bound on all calls is kept exactly, by one router; a large one is divided.
        let count = if config.calls_max < SHARED_MIN { 1 } else { SHARDS };
        let config = RouterConfig { calls_max: config.calls_max.div_ceil(count), ..config.clone() };
        let shards = (0..count as u64).map(|index| {
            let router = GrainRpcRouter::new(config.clone(), seed.wrapping_add(index))?;
            let router = router.numbered(index, count as u64);
            Ok(Mutex::new(Shard { router, waiting: HashMap::default(), is_stopped: false }))
        });
        Ok(Self { shards: shards.collect::<Result<_, RouterConfigError>>()?, hasher: RandomState::new() })
    }

    /// Begins a call. Returns what it is to do first, unless it has to wait for its turn, and what else follows.
    pub(super) fn begin(
        &self,
        request: CallRequest,
        now: TimerInstant,
    ) -> (CorrelationId, Option<Step>, RouterOutcome) {
        let mut shard = lock(self.shard_of(&request.grain));
        let (correlation, mut outcome) = shard.router.call(request, now);
        if shard.is_stopped {
            // Nobody looks at deadlines any more. Who waits without a slot learns that the node stops.
            drop(shard.router.cancel(correlation, now));
            return (correlation, None, RouterOutcome::default());
        }
        let first = take_own(correlation, &mut outcome);
        if !matches!(first, Some(Step::Ended(_))) {
            shard.waiting.insert(correlation, Slot::default());
        }
        shard.pass_on(&mut outcome);
        (correlation, first, outcome)
    }

    /// Lets the router of a call decide something about it. Returns what the call is to do next, if it is told at once, and
    /// what else follows.
    pub(super) fn decide(
        &self,
        correlation: CorrelationId,
        decide: impl FnOnce(&mut GrainRpcRouter) -> RouterOutcome,
    ) -> (Option<Step>, RouterOutcome) {
        let mut shard = self.shard(correlation);
        let mut outcome = decide(&mut shard.router);
        let own = take_own(correlation, &mut outcome);
        if matches!(own, Some(Step::Ended(_))) {
            shard.waiting.remove(&correlation);
        }
        shard.pass_on(&mut outcome);
        (own, outcome)
    }

    /// As [`decide`](Self::decide), about a call that waits to be told.
    pub(super) fn tell(
        &self,
        correlation: CorrelationId,
        decide: impl FnOnce(&mut GrainRpcRouter) -> RouterOutcome,
    ) -> RouterOutcome {
        let mut shard = self.shard(correlation);
        let mut outcome = decide(&mut shard.router);
        shard.pass_on(&mut outcome);
        outcome
    }

    /// Lets every router decide something.
    pub(super) fn decide_all(
        &self,
        mut decide: impl FnMut(&mut GrainRpcRouter) -> RouterOutcome,
    ) -> impl Iterator<Item = RouterOutcome> {
        self.shards.iter().map(move |shard| {
            let mut shard = lock(shard);
            let mut outcome = decide(&mut shard.router);
            shard.pass_on(&mut outcome);
            outcome
        })
    }

    /// What the call is to do next; `None` when the node stops.
    pub(super) async fn next(&self, correlation: CorrelationId) -> Option<Step> {
        poll_fn(|context| {
            let mut shard = self.shard(correlation);
            let Some(slot) = shard.waiting.get_mut(&correlation) else { return Poll::Ready(None) };
            match slot.steps.pop_front() {
                Some(step) => {
                    if matches!(step, Step::Ended(_)) {
                        shard.waiting.remove(&correlation);
                    }
                    Poll::Ready(Some(step))
                }
                None => {
                    if !slot.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                        slot.waker = Some(context.waker().clone());
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The caller went away. Returns whether the call was still under way.
    pub(super) fn leave(&self, correlation: CorrelationId) -> bool {
        self.shard(correlation).waiting.remove(&correlation).is_some()
    }

    /// Nobody is told anything any more, and whoever calls from now on is told that.
    pub(super) fn stop(&self) {
        for shard in &self.shards {
            let waiting = {
                let mut shard = lock(shard);
                shard.is_stopped = true;
                std::mem::take(&mut shard.waiting)
            };
            for waker in waiting.into_values().filter_map(|slot| slot.waker) {
                waker.wake();
            }
        }
    }

    pub(super) fn counts(&self) -> CallCounts {
        self.shards.iter().fold(CallCounts::default(), |sum, shard| sum.plus(lock(shard).router.counts()))
    }

    pub(super) fn latencies(&self) -> LatencyHistogram {
        self.shards.iter().fold(LatencyHistogram::default(), |mut sum, shard| {
            sum.add(lock(shard).router.latencies());
            sum
        })
    }

    /// Agrees with a peer on how to speak. The routers agree alike, so one of them speaks for all.
    pub(super) fn handle_peer_schemas(&self, peer: &Authority, offered: &[u32]) -> RouterOutcome {
        let outcomes = self.decide_all(|router| router.handle_peer_schemas(peer, offered));
        outcomes.last().unwrap_or_default()
    }

    fn shard_of(&self, grain: &ClusterIdentity) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(grain) as usize % self.shards.len()]
    }

    fn shard(&self, correlation: CorrelationId) -> MutexGuard<'_, Shard> {
        lock(&self.shards[correlation.get() as usize % self.shards.len()])
    }
}

impl Shard {
    /// Tells calls what to do, and leaves in the outcome what concerns others.
    fn pass_on(&mut self, outcome: &mut RouterOutcome) {
        if !outcome.commands.is_empty() {
            outcome.commands.retain_mut(|command| match step(command) {
                Some((correlation, step)) => {
                    self.tell(correlation, step);
                    false
                }
                None => true,
            });
        }
        for ended in &outcome.ended {
            self.tell(ended.correlation, Step::Ended(ended.end.clone()));
        }
    }

    fn tell(&mut self, correlation: CorrelationId, step: Step) {
        if let Some(slot) = self.waiting.get_mut(&correlation) {
            slot.steps.push_back(step);
            if let Some(waker) = slot.waker.take() {
                waker.wake();
            }
        }
    }
}

/// Takes what concerns the call itself out of an outcome. Its end stays there as well, for whoever counts.
fn take_own(correlation: CorrelationId, outcome: &mut RouterOutcome) -> Option<Step> {
    let mut own = None;
    if !outcome.commands.is_empty() {
        outcome.commands.retain_mut(|command| match step(command) {
            Some((whose, step)) if whose == correlation => {
                own = Some(step);
                false
            }
            _ => true,
        });
    }
    let ended = outcome.ended.iter().find(|ended| ended.correlation == correlation);
    ended.map(|ended| Step::Ended(ended.end.clone())).or(own)
}

/// A command to a call, as it hears it; `None` for what somebody else does.
fn step(command: &RouterCommand) -> Option<(CorrelationId, Step)> {
    match command {
        RouterCommand::Evict { .. } => None,
        RouterCommand::Resolve { correlation, .. } => Some((*correlation, Step::Resolve)),
        RouterCommand::Send { correlation, pid, remaining, schema, .. } => {
            let (pid, remaining, schema) = (pid.clone(), *remaining, *schema);
            Some((*correlation, Step::Send { pid, remaining, schema }))
        }
    }
}

const SHARDS: usize = 16;
/// From this bound on calls it is divided among several routers.
const SHARED_MIN: usize = 16_384;
