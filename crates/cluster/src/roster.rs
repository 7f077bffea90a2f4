//! The hands of the roster.
//!
//! [`RosterTask`] reads the event stream for what membership and gossip have to say, hands it to the
//! [`Roster`], and publishes what comes out as
//! [`RosterUpdated`](ClusterEvent::RosterUpdated). In a cluster of synod nodes only, that is all there is to it. A
//! provider that also observes other nodes adds its polls to the same task.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use synod_core::gossip::{GossipUpdate, GossiperEvent};
use synod_core::membership::{ClusterEvent, Member};
use synod_core::remote::RemoteEvent;
use synod_core::roster::{Roster, RosterMember, RosterOutcome, RosterRefusal};
use synod_core::{Authority, MemberId};
use synod_wire::cluster::ClusterTopology;
use synod_wire::payload;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::automanaged::{HealthPoller, HealthReport, HostPoll, PollError, check_kinds, poll_result};
use crate::clock::MonotonicClock;
use crate::event_stream::{Delivery, EventStream, Subscription};

/// What a roster is connected to.
#[derive(Debug)]
pub struct RosterWiring {
    /// What is read. Subscribed to before membership starts: a topology that was published before is not known.
    pub events: Subscription,
    /// Where updates are published.
    pub stream: EventStream,
    /// The time of all events.
    pub clock: MonotonicClock,
}

/// A roster that follows the event stream until it is stopped. Dropping it ends it at once.
pub struct RosterTask {
    members: watch::Receiver<Arc<[RosterMember]>>,
    stop: watch::Sender<bool>,
    running: Option<JoinHandle<()>>,
}

impl RosterTask {
    /// Starts the task of a roster that was not started.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use = "dropping the task ends it"]
    pub fn start(roster: Roster, wiring: RosterWiring) -> Self {
        Self::spawn(roster, wiring, None)
    }

    /// Starts the task, which polls, too.
    pub(crate) fn spawn(roster: Roster, wiring: RosterWiring, polling: Option<Polling>) -> Self {
        let (stop, stopped) = watch::channel(false);
        let RosterWiring { events, stream, clock } = wiring;
        let (shown, members) = watch::channel(Arc::from([]));
        let mut driver = RosterDriver { roster, stream, clock, shown, problems: BTreeSet::new() };
        // Before the task runs, so that whoever started it finds the own entry.
        let out = driver.roster.start();
        driver.publish(out);
        Self { members, stop, running: Some(tokio::spawn(run(driver, events, polling, stopped))) }
    }

    /// Everybody now, in order of their ids.
    #[must_use]
    pub fn members(&self) -> Arc<[RosterMember]> {
        Arc::clone(&self.members.borrow())
    }

    /// Ends the task and waits until it has ended. Nothing is published after that.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        if let Some(running) = self.running.take() {
            // It ends by itself. If it panicked it has ended, too, and the runtime has said so.
            drop(running.await);
        }
    }
}

impl Drop for RosterTask {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

impl fmt::Debug for RosterTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RosterTask").field("members", &self.members()).finish_non_exhaustive()
    }
}

/// Is told of synod nodes that answered a poll and that membership does not know. Called with every poll as long as that
/// lasts; must not block.
pub type SynodPeerListener = Box<dyn FnMut(MemberId, Authority) + Send>;

/// The part of a provider that looks beyond membership.
pub(crate) struct Polling {
    pub(crate) poller: HealthPoller,
    pub(crate) refresh_interval: Duration,
    pub(crate) on_synod_peer: SynodPeerListener,
    /// What this node says about itself; `None` for a client.
    pub(crate) report: Option<watch::Sender<HealthReport>>,
}

async fn run(
    mut driver: RosterDriver,
    mut events: Subscription,
    polling: Option<Polling>,
    mut stopped: watch::Receiver<bool>,
) {
    let (poller, interval, mut on_synod_peer, report) = match polling {
        None => (None, Duration::ZERO, None, None),
        Some(Polling { poller, refresh_interval, on_synod_peer, report }) => {
            (Some(poller), refresh_interval, Some(on_synod_peer), report)
        }
    };
    {
        let mut round = Box::pin(poll_after(poller.as_ref(), Duration::ZERO));
        loop {
            let hints = tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => break,
                delivery = events.recv() => match delivery {
                    None => break,
                    Some(delivery) => driver.handle_delivery(&delivery),
                },
                polls = &mut round => {
                    // As in Go, the pause begins when the round is over.
                    round = Box::pin(poll_after(poller.as_ref(), interval));
                    driver.handle_polls(&polls)
                }
            };
            if let Some(report) = &report {
                driver.update_report(report);
            }
            if let Some(on_synod_peer) = &mut on_synod_peer {
                hints.into_iter().for_each(|peer| on_synod_peer(peer.id, peer.authority));
            }
        }
    }
    if let Some(poller) = poller {
        poller.close().await;
    }
}

/// One round of polls after a pause; without a poller never.
async fn poll_after(poller: Option<&HealthPoller>, pause: Duration) -> Vec<HostPoll> {
    match poller {
        None => pending().await,
        Some(poller) => {
            tokio::time::sleep(pause).await;
            poller.poll().await
        }
    }
}

struct RosterDriver {
    roster: Roster,
    stream: EventStream,
    clock: MonotonicClock,
    shown: watch::Sender<Arc<[RosterMember]>>,
    /// What was wrong with the last answers: who, and what. Told when it begins, not with every poll.
    problems: BTreeSet<(String, String)>,
}

impl RosterDriver {
    fn handle_delivery(&mut self, delivery: &Delivery) -> Vec<Member> {
        let event = match delivery {
            Delivery::Event(event) => event,
            Delivery::Missed(events) => {
                // Every topology carries all members, and every poll asks all hosts.
                tracing::warn!(events, "cluster events were missed; the next topology repairs the roster");
                return Vec::new();
            }
        };
        let out = match &**event {
            ClusterEvent::TopologyUpdated { update } => match self.roster.handle_topology(update) {
                Ok(out) => out,
                Err(error) => {
                    tracing::warn!(%error, "a topology did not reach the roster");
                    return Vec::new();
                }
            },
            ClusterEvent::GossipStateUpdated { update, .. } if update.key.as_str() == KINDS_KEY => {
                match kinds_of(update) {
                    Some((member, kinds)) => self.roster.handle_kinds(&member, kinds),
                    None => return Vec::new(),
                }
            }
            ClusterEvent::SelfRejoining { current, .. } => self.roster.handle_rejoin(current),
            ClusterEvent::Gossiper { event: GossiperEvent::Blocked { member, .. }, .. } => {
                self.roster.handle_blocked(member)
            }
            ClusterEvent::Gossiper { event: GossiperEvent::Alive { member }, observed_at } => {
                self.roster.handle_alive(member, *observed_at);
                return Vec::new();
            }
            _ => return Vec::new(),
        };
        self.publish(out)
    }

    fn handle_polls(&mut self, polls: &[HostPoll]) -> Vec<Member> {
        let out = self.roster.handle_poll(poll_result(polls), self.clock.now());
        self.tell_problems(problems(polls, &out.refusals), polls);
        self.publish(out)
    }

    /// Publishes what changed, and returns whom membership should know.
    fn publish(&mut self, out: RosterOutcome) -> Vec<Member> {
        if let Some(update) = out.update {
            tracing::info!(
                hash = update.hash,
                members = update.members.len(),
                joined = ?ids(&update.joined),
                left = ?ids(&update.left),
                "the roster changed"
            );
            self.shown.send_replace(update.members.as_slice().into());
            let observed_at = self.clock.now();
            self.stream.publish(ClusterEvent::RosterUpdated { update, observed_at });
        }
        out.join_hints
    }

    fn tell_problems(&mut self, mut now: BTreeSet<(String, String)>, polls: &[HostPoll]) {
        // A host that is silent between two bad answers has not become better.
        for poll in polls.iter().filter(|poll| is_silent(poll)) {
            let host = poll.host.as_str();
            now.extend(self.problems.iter().filter(|(peer, _)| peer == host).cloned());
        }
        for (peer, problem) in now.difference(&self.problems) {
            tracing::warn!(peer, problem, "a health report was not used");
            let event = RemoteEvent::InputRefused { peer: peer.clone(), problem: problem.clone() };
            self.stream.publish(ClusterEvent::Remote { event, observed_at: self.clock.now() });
        }
        self.problems = now;
    }

    fn update_report(&self, report: &watch::Sender<HealthReport>) {
        let Some(own) = self.roster.own() else { return };
        report.send_if_modified(|report| {
            let changed = report.member != own;
            if changed {
                report.member = own;
            }
            changed
        });
    }
}

/// Who says it hosts what. What cannot be read is nobody's kind.
fn kinds_of(update: &GossipUpdate) -> Option<(MemberId, Vec<String>)> {
    let member = update.member.as_str().parse().ok()?;
    let told: ClusterTopology = payload::decode(update.value.bytes().to_vec().into()).ok()?;
    let kinds = told.members.into_iter().next()?.kinds;
    check_kinds(&kinds).ok()?;
    Some((member, kinds))
}

/// The gossip key under which a synod node says which kinds of grains it hosts.
pub(crate) const KINDS_KEY: &str = "synod-kinds";

fn is_silent(poll: &HostPoll) -> bool {
    match &poll.answer {
        Ok(_) | Err(PollError::OtherCluster { .. } | PollError::Refused(_)) => false,
        Err(_) => true,
    }
}

fn problems(polls: &[HostPoll], refusals: &[RosterRefusal]) -> BTreeSet<(String, String)> {
    let mut problems = BTreeSet::new();
    let mut host_of = BTreeMap::new();
    for HostPoll { host, answer } in polls {
        match answer {
            Ok(report) => {
                if let Some(first) = host_of.insert(&report.member.id, host) {
                    let id = &report.member.id;
                    let problem = format!("it is {id}, as {first} is; Go nodes take it for two members");
                    problems.insert((host.to_string(), problem));
                }
            }
            Err(error @ (PollError::OtherCluster { .. } | PollError::Refused(_))) => {
                problems.insert((host.to_string(), error.to_string()));
            }
            Err(error) => tracing::debug!(%host, %error, "no health report"),
        }
    }
    problems.extend(refusals.iter().map(|refusal| (refusal.authority().to_string(), refusal.to_string())));
    problems
}

fn ids(members: &[RosterMember]) -> Vec<&str> {
    members.iter().map(|member| member.id.as_str()).collect()
}

#[cfg(test)]
mod tests;
