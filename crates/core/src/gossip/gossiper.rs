//! One node's part in the gossip.
//!
//! The gossiper owns the state, the watermarks, the block list and the consensus checks of a node and is the only place
//! where they meet. It has no side effects: each call returns a [`GossiperOutcome`].

mod run;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::config::GossiperConfig;
use super::consensus::{ConsensusCheckId, ConsensusChecker};
use super::error::GossiperError;
use super::id::{GossipKey, GossipMapKey, GossipMemberId};
use super::liveness::BlockReason;
use super::outcome::{GossiperOutcome, RequestToken};
use super::state::{GossipKeyValue, GossipState, GossipValue};
use crate::time::TimerInstant;
use run::Run;

/// Whether a gossiper takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GossiperState {
    /// Never started.
    New,
    /// Started and not stopped.
    Running,
    /// Stopped: every input but a new start is refused.
    Stopped,
}

type Outcome = Result<GossiperOutcome, GossiperError>;

/// The gossip machine of one node.
///
/// **Contract for drivers.** Time is monotonic. Inputs are `handle_*` and `set_members`; commands are `set_*`,
/// `remove_*` and `register_*`. Call [`poll`](Self::poll) at the `wake_at` of the last outcome, or earlier, and
/// [`round`](Self::round) whenever it says that a round is due. Of an outcome, do in this order: publish updates and
/// events, answer, send requests. Every request must come back as [`handle_response`](Self::handle_response) or
/// [`handle_failure`](Self::handle_failure), or it times out in `poll`; what it carried is told again unless it was
/// answered. An error leaves the machine as it was.
#[derive(Debug)]
pub struct Gossiper {
    config: Arc<GossiperConfig>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    New,
    Running(Box<Run>),
    Stopped { own: GossipMemberId, next_token: u64, next_check: u64 },
}

impl Gossiper {
    /// A gossiper that was never started.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn new(config: GossiperConfig) -> Result<Self, GossiperError> {
        config.validate()?;
        Ok(Self { config: Arc::new(config), phase: Phase::New })
    }

    /// Starts as `own`, knowing nobody. `seed` feeds the choice of peers. A round is due at once.
    ///
    /// # Errors
    /// Refused while running, and under the id of the run before: its peers have blocked it.
    pub fn start(&mut self, own: GossipMemberId, seed: u64, now: TimerInstant) -> Outcome {
        let (next_token, next_check) = match &self.phase {
            Phase::New => (0, 0),
            Phase::Running(_) => return Err(GossiperError::AlreadyStarted),
            Phase::Stopped { own: left, .. } if *left == own => {
                return Err(GossiperError::MemberIdReused { member: own });
            }
            Phase::Stopped { next_token, next_check, .. } => (*next_token, *next_check),
        };
        let mut run = Run::new(own, Arc::clone(&self.config), seed, now, (next_token, next_check));
        let outcome = run.step(now, |_, _| Ok(()));
        self.phase = Phase::Running(Box::new(run));
        outcome
    }

    /// Goes on as `own`, a new life of this node: what this node wrote, its checks and what it knows of others stay.
    /// The old life is blocked, so that echoes of it are not taken for news of somebody else. Whom the driver had asked to
    /// block is not blocked any more: a node that begins a new life yields to those whom it had declared dead.
    ///
    /// # Errors
    /// Refused while not running, and under an id that is blocked.
    pub fn rejoin(&mut self, own: GossipMemberId, now: TimerInstant) -> Outcome {
        self.running()?.step(now, |run, out| run.rejoin(own, out))
    }

    /// Says goodbye to as many peers as a round goes to, and forgets everything. The outcome carries these last
    /// requests; the driver may wait for their answers but has nobody to tell.
    ///
    /// # Errors
    /// Refused while not running.
    pub fn stop(&mut self, now: TimerInstant) -> Outcome {
        let run = self.running()?;
        let mut outcome = run.step(now, |run, out| run.say_goodbye(now, out))?;
        outcome.wake_at = None;
        outcome.round_due = false;
        let (next_token, next_check) = run.next_ids();
        self.phase = Phase::Stopped { own: run.own().clone(), next_token, next_check };
        Ok(outcome)
    }

    /// The cluster consists of `members` now; this node may be among them. Peers that are gone get no more gossip, and
    /// what they hold is forgotten. What they said is kept until they are blocked, be it by their silence: an id that
    /// comes back before that must not have lost what its peers believe to have told.
    ///
    /// # Errors
    /// Refused while not running, and for more members than the settings allow.
    pub fn set_members(&mut self, members: &[GossipMemberId], now: TimerInstant) -> Outcome {
        self.running()?.step(now, |run, _| run.set_members(members))
    }

    /// Somebody else decides whether `members` live, and says so by [`handle_block`](Self::handle_block): their silence
    /// alone does not block them. Whoever was vouched for before and is not now, is judged by its silence again. Those that
    /// are vouched for are told what is new ahead of the round.
    ///
    /// # Errors
    /// Refused while not running, and for more members than the settings allow.
    pub fn set_vouched(&mut self, members: &[GossipMemberId], now: TimerInstant) -> Outcome {
        self.running()?.step(now, |run, _| run.set_vouched(members, now))
    }

    /// Writes an entry of this node. It is told from the next round on.
    ///
    /// # Errors
    /// Refused while not running, for the gossiper's own keys, for keys that hold a map, and beyond a bound.
    pub fn set_state(&mut self, key: &GossipKey, value: GossipValue, now: TimerInstant) -> Outcome {
        self.running()?.step(now, |run, _| run.set_state(key, value, now))
    }

    /// Sets one entry of the map under `key`, for all members to read.
    ///
    /// # Errors
    /// Refused like [`set_state`](Self::set_state), for keys that hold a plain value, and when the map grows too large.
    pub fn set_map_value(
        &mut self,
        key: &GossipKey,
        map_key: &GossipMapKey,
        value: &[u8],
        now: TimerInstant,
    ) -> Outcome {
        self.running()?.step(now, |run, _| run.write_map(key, map_key, Some(value), now))
    }

    /// Removes one entry of the map under `key`, whoever set it. Harmless when there is none.
    ///
    /// # Errors
    /// Refused like [`set_map_value`](Self::set_map_value).
    pub fn remove_map_value(
        &mut self,
        key: &GossipKey,
        map_key: &GossipMapKey,
        now: TimerInstant,
    ) -> Outcome {
        self.running()?.step(now, |run, _| run.write_map(key, map_key, None, now))
    }

    /// Adds a consensus check and looks at it at once: the outcome says whether the members agree already.
    ///
    /// # Errors
    /// Refused while not running and beyond a bound.
    pub fn register_consensus_check(
        &mut self,
        checker: ConsensusChecker,
        now: TimerInstant,
    ) -> Result<(ConsensusCheckId, GossiperOutcome), GossiperError> {
        let run = self.running()?;
        let id = run.register(checker)?;
        Ok((id, run.step(now, |_, _| Ok(()))?))
    }

    /// Removes a consensus check. Returns whether there was one of that id.
    ///
    /// # Errors
    /// Refused while not running.
    pub fn remove_consensus_check(&mut self, id: ConsensusCheckId) -> Result<bool, GossiperError> {
        Ok(self.running()?.remove_check(id))
    }

    /// `from` sent `state`. Whoever it is, what is newer is taken; a peer is answered with what it lacks, anybody else
    /// with nothing. `from` is who the transport says it is: what a Go peer writes into its message is the id of the
    /// receiver.
    ///
    /// # Errors
    /// Refused while not running and from blocked members.
    pub fn handle_request(
        &mut self,
        from: &GossipMemberId,
        state: &GossipState,
        now: TimerInstant,
    ) -> Outcome {
        self.running()?.step(now, |run, out| run.request(from, state, now, out))
    }

    /// The request was answered, perhaps with what the peer has to tell: it holds now what the request carried.
    ///
    /// # Errors
    /// Refused while not running, and for requests that are not waited for (any more).
    pub fn handle_response(
        &mut self,
        token: RequestToken,
        state: Option<&GossipState>,
        now: TimerInstant,
    ) -> Outcome {
        self.running()?.step(now, |run, out| run.response(token, state, now, out))
    }

    /// The request could not be delivered: what it carried will be told again.
    ///
    /// # Errors
    /// Refused while not running, and for requests that are not waited for (any more).
    pub fn handle_failure(&mut self, token: RequestToken, now: TimerInstant) -> Outcome {
        self.running()?.step(now, |run, _| run.failure(token))
    }

    /// Blocks a member for good, because somebody who knows says that it is gone. Harmless when it is blocked already.
    ///
    /// # Errors
    /// Refused while not running, and for this node itself.
    pub fn handle_block(&mut self, member: &GossipMemberId, now: TimerInstant) -> Outcome {
        self.running()?.step(now, |run, out| run.request_block(member, out))
    }

    /// One round: blocks whoever was silent for too long, writes this node's heartbeat with `heartbeat` as its content,
    /// and tells a few random peers what they lack. The next round is due an interval later, give or take the jitter.
    ///
    /// # Errors
    /// Refused while not running, and for a heartbeat that is too large.
    pub fn round(&mut self, heartbeat: &GossipValue, now: TimerInstant) -> Outcome {
        self.running()?.step(now, |run, out| run.round(heartbeat, now, out))
    }

    /// Reports requests whose time is over, tells something new to members that are vouched for, and says whether a round is
    /// due.
    ///
    /// # Errors
    /// Refused while not running.
    pub fn poll(&mut self, now: TimerInstant) -> Outcome {
        self.running()?.step(now, |run, out| {
            run.time_out(now, out);
            run.tell_eagerly(now, out);
            Ok(())
        })
    }

    /// Whether it runs.
    #[must_use]
    pub const fn lifecycle(&self) -> GossiperState {
        match self.phase {
            Phase::New => GossiperState::New,
            Phase::Running(_) => GossiperState::Running,
            Phase::Stopped { .. } => GossiperState::Stopped,
        }
    }

    /// Every member's entry under `key`, this node's included, in member order; nothing of blocked members. Empty while
    /// not running.
    pub fn state(&self, key: &GossipKey) -> impl Iterator<Item = (&GossipMemberId, &GossipKeyValue)> {
        self.run().into_iter().flat_map(move |run| run.state(key))
    }

    /// The value that stands in the map under `key`, whoever set it.
    #[must_use]
    pub fn map_value(&self, key: &GossipKey, map_key: &GossipMapKey) -> Option<Arc<[u8]>> {
        self.run()?.map(key).value(map_key)
    }

    /// The keys that have a value in the map under `key`, in order.
    #[must_use]
    pub fn map_keys(&self, key: &GossipKey) -> Vec<GossipMapKey> {
        self.run().map(|run| run.map(key).keys()).unwrap_or_default()
    }

    /// What the members agree on, in the order of the check's keys; `None` when they do not.
    #[must_use]
    pub fn consensus(&self, id: ConsensusCheckId) -> Option<&[Vec<u8>]> {
        self.run()?.consensus(id)
    }

    /// All blocked members in order, and why. Empty while not running.
    pub fn blocked_members(&self) -> impl Iterator<Item = (&GossipMemberId, BlockReason)> {
        self.run().into_iter().flat_map(Run::blocked)
    }

    /// Everyone who may be told something, in order: the members without this node and the blocked ones.
    pub fn peers(&self) -> impl Iterator<Item = &GossipMemberId> {
        self.run().into_iter().flat_map(Run::peers)
    }

    /// How many watermarks are kept: at most one for each pair of a peer and a known member, and as many on their way.
    #[must_use]
    pub fn watermarks(&self) -> usize {
        self.run().map_or(0, Run::watermarks)
    }

    fn run(&self) -> Option<&Run> {
        match &self.phase {
            Phase::Running(run) => Some(run),
            Phase::New | Phase::Stopped { .. } => None,
        }
    }

    fn running(&mut self) -> Result<&mut Run, GossiperError> {
        match &mut self.phase {
            Phase::New => Err(GossiperError::NotStarted),
            Phase::Running(run) => Ok(run),
            Phase::Stopped { .. } => Err(GossiperError::AlreadyStopped),
        }
    }
}

#[cfg(test)]
mod tests;
