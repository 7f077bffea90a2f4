//! The task that both kinds of gossip run in.
//!
//! It waits for whatever comes first, hands it to the machine and carries out what the machine returns. Due times come
//! before everything else, so that no flood of requests can keep a node from its own heartbeat; all other inputs take
//! their chances equally. Nothing is awaited between taking an input and having dealt with it.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use prost_types::Any;
use synod_core::MemberId;
use synod_core::gossip::{
    self, ConsensusCheckId, ConsensusChecker, GossipKey, GossipMapKey, GossipMemberId, GossipRequest,
    GossipState, GossipUpdate, GossipValue, GossiperEvent, GossiperOutcome, GossiperState, RequestToken,
};
use synod_core::membership::ClusterEvent;
use synod_core::remote::RemoteEvent;
use synod_core::roster::{PeerRuntime, RosterMember, RosterUpdate};
use synod_core::time::TimerInstant;
use synod_wire::cluster::ClusterTopology;
use synod_wire::payload;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};

use super::GossiperError;
use super::carrier::GossipCarrierError;
use super::consensus::ConsensusHandle;
use super::heartbeat::heartbeat;
use super::tokio_gossiper::Shared;
use crate::lock;
use crate::membership::{MembershipExit, MembershipTask};
use crate::transport::GossipTransport;

/// Drives the machine and, if there is one, the membership of a node.
pub(super) struct GossipTask<T> {
    shared: Arc<Shared>,
    own: GossipMemberId,
    membership: Option<MembershipTask<T>>,
    line: Line,
    roster: watch::Receiver<Option<Arc<ClusterEvent>>>,
    exchanges: JoinSet<Exchanged>,
    wake_at: TimerInstant,
    /// Peers that have said that they block this life, and of which observers were told.
    blocked_by: BTreeSet<GossipMemberId>,
    /// Whom membership answers for.
    vouched: BTreeSet<GossipMemberId>,
}

/// The task's ends of what connects it with its handles.
pub(super) struct Line {
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) requests: mpsc::Receiver<Request>,
    pub(super) stop: oneshot::Receiver<()>,
    /// Set to true at the very end.
    pub(super) ended: watch::Sender<bool>,
}

/// What a handle asks for.
pub(super) enum Command {
    Write { write: Write, reply: Option<oneshot::Sender<Result<(), GossiperError>>> },
    Register { checker: ConsensusChecker, reply: oneshot::Sender<Result<ConsensusHandle, GossiperError>> },
}

/// What a peer sent.
pub(super) struct Request {
    pub(super) from: GossipMemberId,
    pub(super) state: GossipState,
    pub(super) reply: oneshot::Sender<Result<Option<GossipState>, GossiperError>>,
}

/// A change of this node's own entries.
pub(super) enum Write {
    State(GossipKey, GossipValue),
    MapValue(GossipKey, GossipMapKey, Vec<u8>),
    MapRemoval(GossipKey, GossipMapKey),
}

/// What became of a request.
struct Exchanged {
    token: RequestToken,
    result: Result<Option<GossipState>, GossipCarrierError>,
}

enum Input {
    Due,
    Stop,
    /// Nobody holds the gossiper any more.
    Abandoned,
    Exchanged(Result<Exchanged, JoinError>),
    MembershipOver(Option<MembershipExit>),
    ChecksRemoved,
    Roster,
    Command(Command),
    Request(Request),
}

type Outcome = Result<GossiperOutcome, gossip::GossiperError>;

impl<T: GossipTransport + 'static> GossipTask<T> {
    pub(super) fn new(
        shared: Arc<Shared>,
        own: GossipMemberId,
        membership: Option<MembershipTask<T>>,
        line: Line,
    ) -> Self {
        let (roster, wake_at) = (shared.stream.watch_roster(), shared.clock.now());
        let (exchanges, blocked_by, vouched) = (JoinSet::new(), BTreeSet::new(), BTreeSet::new());
        Self { shared, own, membership, line, roster, exchanges, wake_at, blocked_by, vouched }
    }

    pub(super) async fn run(mut self, first: GossiperOutcome) {
        self.perform(first);
        self.adopt_roster();
        let told = self.serve().await;
        self.say_goodbye(told);
        // What still waits in the queues, and whoever wants to add to them, learns that there is no more gossip.
        self.line.commands.close();
        self.line.requests.close();
        while self.line.commands.try_recv().is_ok() {}
        while self.line.requests.try_recv().is_ok() {}
        if told {
            self.flush().await;
        }
        self.exchanges.shutdown().await;
        if let Some(membership) = self.membership.take() {
            membership.finish(MembershipExit::Stopped);
        }
        tracing::debug!(own = %self.own, told, "the gossip task ends");
        self.line.ended.send_replace(true);
    }

    /// Goes on until it is told to stop (true) or abandoned (false).
    async fn serve(&mut self) -> bool {
        loop {
            let input = self.next_input().await;
            // A check that nobody holds any more takes up no room and has no more to say.
            self.remove_checks();
            match input {
                Input::Due => self.wake(),
                Input::Stop => return true,
                Input::Abandoned => return false,
                Input::Exchanged(exchanged) => self.settle(exchanged),
                Input::MembershipOver(exit) => self.end_membership(exit),
                Input::ChecksRemoved => {}
                Input::Roster => self.adopt_roster(),
                Input::Command(command) => self.obey(command),
                // That whoever asked has gone away is its own affair.
                Input::Request(Request { from, state, reply }) => {
                    drop(reply.send(self.answer(&from, &state)));
                }
            }
            self.follow_own_life();
        }
    }

    /// Every part of it can be cancelled without loss, so the losers of the race are asked again.
    async fn next_input(&mut self) -> Input {
        let due = self.membership.as_ref().and_then(MembershipTask::wake_at);
        let due = due.map_or(self.wake_at, |at| at.min(self.wake_at));
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(self.shared.clock.instant(due)) => Input::Due,
            input = async {
                tokio::select! {
                    told = &mut self.line.stop => if told.is_ok() { Input::Stop } else { Input::Abandoned },
                    Some(exchanged) = self.exchanges.join_next() => Input::Exchanged(exchanged),
                    exit = turn(&mut self.membership) => Input::MembershipOver(exit),
                    () = self.shared.checks.removals() => Input::ChecksRemoved,
                    Ok(()) = self.roster.changed() => Input::Roster,
                    command = self.line.commands.recv() => command.map_or(Input::Abandoned, Input::Command),
                    request = self.line.requests.recv() => request.map_or(Input::Abandoned, Input::Request),
                }
            } => input,
        }
    }

    /// Something is due: a request is late, a round begins, or the membership wants to be polled.
    fn wake(&mut self) {
        let now = self.shared.clock.now();
        let polled = self.shared.machine().poll(now);
        let round_due = polled.as_ref().is_ok_and(|outcome| outcome.round_due);
        self.carry_out(polled, "a poll");
        if round_due {
            self.round(now);
        } else if let Some(membership) = self.membership.as_mut() {
            let exit = membership.poll();
            self.end_membership(exit);
        }
    }

    /// Both kinds of gossip are told in one round.
    fn round(&mut self, now: TimerInstant) {
        if let Some(membership) = self.membership.as_mut() {
            let exit = membership.poll();
            self.end_membership(exit);
        }
        let statistics = Arc::clone(&lock(&self.shared.statistics));
        // A fault of an application that counts its actors must not cost the node its place in the cluster.
        let counted = catch_unwind(AssertUnwindSafe(|| statistics.actor_count()));
        let heartbeat = heartbeat(counted.unwrap_or_else(|_| {
            tracing::error!("the actor statistics panicked; the heartbeat goes without");
            BTreeMap::new()
        }));
        let outcome = self.shared.machine().round(&heartbeat, now);
        if outcome.is_err() {
            // The machine still wants its round; without a pause it would be asked for it over and over.
            self.wake_at = now + self.shared.config.gossip.gossip_interval;
        }
        self.shared.counters.add_rounds(1);
        self.carry_out(outcome, "a round");
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Write { write, reply } => {
                let result = self.write(write);
                match (reply, result) {
                    (Some(reply), result) => drop(reply.send(result)),
                    (None, Ok(())) => {}
                    (None, Err(error)) => {
                        self.shared.counters.add_commands_refused(1);
                        tracing::warn!(%error, "a gossip entry was not written");
                    }
                }
            }
            Command::Register { checker, reply } => drop(reply.send(self.register(checker))),
        }
    }

    fn write(&mut self, write: Write) -> Result<(), GossiperError> {
        let now = self.shared.clock.now();
        let outcome = {
            let mut machine = self.shared.machine();
            match write {
                Write::State(key, value) => machine.set_state(&key, value, now),
                Write::MapValue(key, map_key, value) => machine.set_map_value(&key, &map_key, &value, now),
                Write::MapRemoval(key, map_key) => machine.remove_map_value(&key, &map_key, now),
            }
        };
        self.perform(outcome?);
        Ok(())
    }

    /// Dropping the handle removes the check, also when whoever asked for it has gone away.
    fn register(&mut self, checker: ConsensusChecker) -> Result<ConsensusHandle, GossiperError> {
        let now = self.shared.clock.now();
        let registered = self.shared.machine().register_consensus_check(checker, now);
        let (id, outcome) = registered?;
        let agreement = self.shared.checks.add(id);
        self.perform(outcome);
        Ok(ConsensusHandle::new(id, Arc::downgrade(&self.shared), agreement))
    }

    fn remove_checks(&mut self) {
        let removed: BTreeSet<ConsensusCheckId> = self.shared.checks.take_removed();
        if removed.is_empty() {
            return;
        }
        let mut machine = self.shared.machine();
        for id in removed {
            // A check of an earlier run is gone already.
            drop(machine.remove_consensus_check(id));
        }
    }

    fn answer(
        &mut self,
        from: &GossipMemberId,
        state: &GossipState,
    ) -> Result<Option<GossipState>, GossiperError> {
        self.shared.counters.add_requests_received(1);
        let outcome = self.shared.machine().handle_request(from, state, self.shared.clock.now());
        Ok(self.perform(outcome?))
    }

    fn settle(&mut self, exchanged: Result<Exchanged, JoinError>) {
        let counters = Arc::clone(&self.shared.counters);
        let Exchanged { token, result } = match exchanged {
            Ok(exchanged) => exchanged,
            Err(error) => {
                // Its token is lost with it; the machine notices by itself that nobody answered.
                tracing::error!(%error, "an exchange of gossip was aborted");
                return;
            }
        };
        let now = self.shared.clock.now();
        let outcome = {
            let mut machine = self.shared.machine();
            match &result {
                Ok(answer) => machine.handle_response(token, answer.as_ref(), now),
                Err(_) => machine.handle_failure(token, now),
            }
        };
        // Of a request that the machine has given up already it has also said so.
        let in_time = outcome.is_ok() || !self.shared.is_running();
        match result {
            Ok(_) if in_time => counters.add_requests_answered(1),
            Err(error) if in_time => {
                tracing::debug!(%error, "gossip was not delivered");
                match error {
                    GossipCarrierError::TimedOut { .. } => counters.add_requests_timed_out(1),
                    _ => counters.add_requests_failed(1),
                }
            }
            _ => {}
        }
        if let Ok(outcome) = outcome {
            self.perform(outcome);
        }
    }

    /// The latest roster is what counts, however many there were since the last look.
    fn adopt_roster(&mut self) {
        let Some(event) = self.roster.borrow_and_update().clone() else { return };
        let ClusterEvent::RosterUpdated { update, .. } = &*event else { return };
        let (gone, ids) = {
            let mut peers = lock(&self.shared.peers);
            (peers.replace(update), peers.ids())
        };
        let now = self.shared.clock.now();
        let outcome = self.shared.machine().set_members(&ids, now);
        self.carry_out(outcome, "a roster");
        self.vouch_for(update);
        self.blocked_by.retain(|peer| ids.contains(peer));
        for member in &gone {
            if self.is_over(member) {
                let outcome = self.shared.machine().handle_block(member, now);
                self.carry_out(outcome, "the end of a member");
            }
        }
    }

    /// Membership decides who of its members lives, with more evidence than one silence. Whoever it holds alive is not
    /// blocked behind its back, or after a partition the two would gossip no more and still be members of one cluster.
    fn vouch_for(&mut self, update: &RosterUpdate) {
        if self.membership.is_none() {
            return;
        }
        let listed = update.members.iter().filter(|member| member.runtime == PeerRuntime::Synod);
        let listed: BTreeSet<_> = listed.map(|member| member.id.clone()).collect();
        let suspected: Vec<_> = self.vouched.iter().filter(|member| !self.is_over(member)).cloned().collect();
        self.vouched = listed;
        self.vouched.extend(suspected);
        let vouched: Vec<_> = self.vouched.iter().cloned().collect();
        let outcome = self.shared.machine().set_vouched(&vouched, self.shared.clock.now());
        self.carry_out(outcome, "the members that membership answers for");
    }

    /// Whether a member that is not in the roster will never come back. Membership knows better than the roster: it may
    /// hold somebody alive that the roster leaves out for now, or know nothing yet because this node begins a new life.
    fn is_over(&self, member: &GossipMemberId) -> bool {
        let may_live = |membership: &MembershipTask<T>| {
            let member = member.as_str().parse::<MemberId>();
            member.is_ok_and(|member| !membership.knows_end_of(&member))
        };
        *member != self.own && !self.membership.as_ref().is_some_and(may_live)
    }

    /// When the membership begins a new life, the old id is dead to everybody, and so it is to gossip.
    fn follow_own_life(&mut self) {
        let Some(own) = self.membership.as_ref().and_then(MembershipTask::own) else { return };
        let own = GossipMemberId::from(own);
        if own != self.own {
            tracing::info!(old = %self.own, %own, "gossip goes on in a new life");
            let outcome = self.shared.machine().rejoin(own.clone(), self.shared.clock.now());
            self.own = own;
            self.blocked_by.clear();
            self.carry_out(outcome, "a new life");
        }
    }

    fn end_membership(&mut self, exit: Option<MembershipExit>) {
        if let Some(exit) = exit
            && let Some(membership) = self.membership.take()
        {
            membership.finish(exit);
        }
    }

    /// From here on the machine refuses everything. Nobody is told by a gossiper that was abandoned.
    fn say_goodbye(&mut self, told: bool) {
        let outcome = self.shared.machine().stop(self.shared.clock.now());
        self.shared.checks.clear();
        if told {
            self.carry_out(outcome, "a stop");
        }
    }

    /// Waits for everything that is on its way, but not for ever. The membership goes on meanwhile.
    async fn flush(&mut self) {
        let until = self.shared.clock.now() + self.shared.config.flush_timeout;
        let deadline = tokio::time::sleep_until(self.shared.clock.instant(until));
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                exchanged = self.exchanges.join_next() => match exchanged {
                    Some(exchanged) => self.settle(exchanged),
                    None => return,
                },
                exit = turn(&mut self.membership) => self.end_membership(exit),
                () = &mut deadline => return,
            }
        }
    }

    fn carry_out(&mut self, outcome: Outcome, what: &'static str) {
        match outcome {
            Ok(outcome) => drop(self.perform(outcome)),
            Err(error) => tracing::error!(%error, "the gossiper refused {what}"),
        }
    }

    /// Carries out an outcome: publish, answer, send. The answer is left to the caller.
    fn perform(&mut self, outcome: GossiperOutcome) -> Option<GossipState> {
        let now = self.shared.clock.now();
        let counters = &self.shared.counters;
        counters.add_entries_merged(outcome.updates.len());
        counters.add_entries_refused(outcome.refusals.len());
        counters.add_requests_timed_out(outcome.timed_out.len());
        for (_, peer) in &outcome.timed_out {
            tracing::debug!(%peer, "gossip was not answered in time");
        }
        for update in outcome.updates {
            let blocker = self.blocker(&update);
            self.shared.stream.publish(ClusterEvent::GossipStateUpdated { update, observed_at: now });
            if let Some(peer) = blocker {
                let event = RemoteEvent::BlockedByPeer { peer: peer.authority };
                self.shared.stream.publish(ClusterEvent::Remote { event, observed_at: now });
            }
        }
        for event in outcome.events {
            let alive = match &event {
                GossiperEvent::Alive { member } => member.as_str().parse::<MemberId>().ok(),
                GossiperEvent::Consensus(consensus) => {
                    self.shared.checks.show(consensus);
                    None
                }
                GossiperEvent::Blocked { .. } => None,
            };
            self.shared.stream.publish(ClusterEvent::Gossiper { event, observed_at: now });
            if let Some(member) = alive {
                let exit = self.membership.as_mut().and_then(|membership| membership.note_alive(&member));
                self.end_membership(exit);
            }
        }
        for request in outcome.requests {
            self.send(request);
        }
        if let Some(wake_at) = outcome.wake_at {
            self.wake_at = wake_at;
        }
        outcome.answer
    }

    /// The peer that says, for the first time, that it has blocked this node. It may be wrong, and it is not asked about
    /// others: whom to block each node decides by its own evidence.
    fn blocker(&mut self, update: &GossipUpdate) -> Option<RosterMember> {
        if update.key.as_str() != TOPOLOGY_KEY || self.blocked_by.contains(&update.member) {
            return None;
        }
        let any = Any { type_url: update.value.type_url().into(), value: update.value.bytes().into() };
        let topology: ClusterTopology = payload::decode_any(&any).ok()?;
        if !topology.blocked.iter().any(|blocked| blocked == self.own.as_str()) {
            return None;
        }
        let peer = lock(&self.shared.peers).member(&update.member).cloned()?;
        self.blocked_by.insert(update.member.clone());
        Some(peer)
    }

    /// Each request is a task of its own: one dead peer holds nobody up.
    fn send(&mut self, request: GossipRequest) {
        self.shared.counters.add_requests_sent(1);
        let GossipRequest { token, target, state, deadline, .. } = request;
        let Some(target) = lock(&self.shared.peers).member(&target).cloned() else {
            // The roster was larger than the machine takes, or lost it just now.
            let outcome = self.shared.machine().handle_failure(token, self.shared.clock.now());
            self.shared.counters.add_requests_failed(1);
            drop(outcome);
            return;
        };
        let timeout = self.shared.config.gossip.gossip_request_timeout;
        let late = self.shared.clock.instant(deadline);
        let carrier = Arc::clone(&self.shared.carrier);
        self.exchanges.spawn(async move {
            let authority = target.authority.clone();
            let answered =
                tokio::time::timeout_at(late, carrier.exchange_boxed(target, state, timeout)).await;
            let timed_out = |_| Err(GossipCarrierError::TimedOut { target: authority, timeout });
            Exchanged { token, result: answered.unwrap_or_else(timed_out) }
        });
    }
}

impl<T> Drop for GossipTask<T> {
    /// An aborted task must not leave a machine that seems to run, nor anybody waiting for it.
    fn drop(&mut self) {
        let mut machine = self.shared.machine();
        if machine.lifecycle() == GossiperState::Running {
            drop(machine.stop(self.shared.clock.now()));
        }
        drop(machine);
        if !*self.line.ended.borrow() {
            self.shared.checks.clear();
        }
    }
}

/// A turn of the membership; for ever without one. Cancelling it loses nothing.
async fn turn<T: GossipTransport + 'static>(
    membership: &mut Option<MembershipTask<T>>,
) -> Option<MembershipExit> {
    match membership {
        Some(membership) => membership.turn().await,
        None => std::future::pending().await,
    }
}

/// Where protoactor-go says how it sees the cluster.
const TOPOLOGY_KEY: &str = "topology";
