//! What clients, workers and replicas saw, compared with what the log says.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::replay::{Lives, Stand};
use super::{Expectations, Finding, Record, Report, SubmitAnswer};
use crate::jobs::effects::{Event, EventKind};
use crate::jobs::frame::Token;
use crate::jobs::id::{Fence, JobId, SessionId};

/// All records, by kind.
#[derive(Default)]
pub(super) struct Witnesses {
    submits: Vec<(Token, u64, SubmitAnswer)>,
    deliveries: Vec<(JobId, Fence, SessionId, u64)>,
    acks: Vec<(JobId, Fence, SessionId, Option<bool>)>,
    /// By index and replica, each in the order of its replica.
    events: BTreeMap<(u64, u64), Vec<Event>>,
    hashes: Vec<(u64, u64, u128)>,
    left: BTreeSet<JobId>,
}

impl Witnesses {
    pub(super) fn take(&mut self, record: Record) {
        match record {
            Record::Submit { token, body_hash, answer } => self.submits.push((token, body_hash, answer)),
            Record::Delivery { session, job, fence, body_hash } => {
                self.deliveries.push((job, fence, session, body_hash));
            }
            Record::Ack { session, job, fence, is_taken } => self.acks.push((job, fence, session, is_taken)),
            Record::Event { replica, event } => {
                self.events.entry((event.index, replica)).or_default().push(event);
            }
            Record::Hash { replica, index, hash } => self.hashes.push((index, replica, hash)),
            Record::Left { job } => {
                self.left.insert(job);
            }
        }
    }

    /// The events of all entries in their order, each once. A replica that stopped in the middle of an entry, or that was
    /// given a snapshot instead of entries, told less than others; what it told must be the same.
    pub(super) fn committed(&mut self, report: &mut Report) -> Vec<Event> {
        let mut all: Vec<Event> = Vec::new();
        let mut longest: Option<(u64, u64, Vec<Event>)> = None;
        for ((index, replica), events) in core::mem::take(&mut self.events) {
            longest = match longest.take() {
                Some((same, first, before)) if same == index => {
                    let shorter = before.len().min(events.len());
                    if before[..shorter] != events[..shorter] {
                        report.add(Finding::EventsDiffer { index, first, second: replica });
                    }
                    Some(if events.len() > before.len() {
                        (index, replica, events)
                    } else {
                        (same, first, before)
                    })
                }
                before => {
                    all.extend(before.into_iter().flat_map(|(_, _, events)| events));
                    Some((index, replica, events))
                }
            };
        }
        all.extend(longest.into_iter().flat_map(|(_, _, events)| events));
        all
    }

    /// Compares what was seen with the lives of jobs that the log tells.
    pub(super) fn compare(mut self, lives: &Lives, expectations: &Expectations, report: &mut Report) {
        self.compare_submits(lives, report);
        self.compare_deliveries(lives, report);
        self.compare_acks(lives, report);
        self.compare_hashes(report);
        for (job, life) in &lives.jobs {
            if expectations.has_listing && life.stand != Stand::Ended && !self.left.contains(job) {
                report.add(Finding::LostJob { job: *job });
            }
            if expectations.is_drained && !matches!(life.stand, Stand::Ended | Stand::Dead) {
                report.add(Finding::NotDrained { job: *job });
            }
        }
        for job in &self.left {
            if lives.jobs.get(job).is_none_or(|life| life.stand == Stand::Ended) {
                report.add(Finding::Phantom { job: *job });
            }
        }
    }

    fn compare_submits(&self, lives: &Lives, report: &mut Report) {
        let mut sent: BTreeMap<Token, u64> = BTreeMap::new();
        let mut told: BTreeMap<Token, JobId> = BTreeMap::new();
        for (token, body_hash, answer) in &self.submits {
            sent.insert(*token, *body_hash);
            let SubmitAnswer::Accepted { job } = answer else {
                continue;
            };
            report.seen.accepted += 1;
            if let Some(first) = told.insert(*token, *job).filter(|first| first != job) {
                report.add(Finding::TokenTwice { token: *token, first, second: *job });
            }
            match lives.jobs.get(job) {
                None => report.add(Finding::LostSubmit { job: *job }),
                Some(life) if life.body_hash != *body_hash => report.add(Finding::BodyDiffers { job: *job }),
                Some(_) => {}
            }
        }
        if self.submits.is_empty() {
            return;
        }
        for (job, life) in &lives.jobs {
            match life.token.map(|token| sent.get(&token)) {
                // Submitted by somebody who keeps no record.
                None => {}
                Some(None) => report.add(Finding::Phantom { job: *job }),
                Some(Some(body_hash)) if *body_hash != life.body_hash => {
                    report.add(Finding::BodyDiffers { job: *job });
                }
                Some(Some(_)) => {}
            }
        }
    }

    fn compare_deliveries(&self, lives: &Lives, report: &mut Report) {
        let mut holders: BTreeMap<(JobId, Fence), SessionId> = BTreeMap::new();
        for (job, fence, session, body_hash) in &self.deliveries {
            report.seen.deliveries += 1;
            let Some(life) = lives.jobs.get(job) else {
                report.add(Finding::Phantom { job: *job });
                continue;
            };
            if life.body_hash != *body_hash {
                report.add(Finding::BodyDiffers { job: *job });
            }
            let first = *holders.entry((*job, *fence)).or_insert(*session);
            if first != *session {
                report.add(Finding::TwoHolders { job: *job, fence: *fence, first, second: *session });
            }
            if lives.assignments.get(&(*job, *fence)) != Some(session) {
                report.add(Finding::DeliveredUncommitted { job: *job, fence: *fence });
            }
        }
    }

    fn compare_acks(&self, lives: &Lives, report: &mut Report) {
        for (job, fence, session, is_taken) in &self.acks {
            let done = lives.acks.get(job);
            let is_done_by_it = done == Some(&(*fence, *session));
            match is_taken {
                Some(true) if !is_done_by_it => report.add(Finding::WrongAck { job: *job, fence: *fence }),
                _ => {}
            }
        }
    }

    fn compare_hashes(&mut self, report: &mut Report) {
        self.hashes.sort_unstable();
        for pair in self.hashes.windows(2) {
            let [(index, first, hash), (next, second, other)] = pair else {
                continue;
            };
            if index == next && first != second {
                report.seen.compared += 1;
            }
            if index == next && hash != other {
                report.add(Finding::HashesDiffer { index: *index, first: *first, second: *second });
            }
        }
    }
}

/// Whether an event ends an assignment without the job being done.
pub(super) const fn is_loss(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::TimeoutRequeue { .. } | EventKind::WorkerDownRequeue { .. } | EventKind::Requeue { .. }
    )
}
