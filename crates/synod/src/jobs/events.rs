//! What is told of the queue on the event stream of the node: what happens to jobs, and the queues in numbers.

use std::sync::Arc;
use std::time::Duration;

use synod_cluster::{EventStream, MonotonicClock};
use synod_core::jobs::{Event, QueueStats, SessionStats, SessionTotals};
use synod_core::membership::ClusterEvent;
use synod_queue::QueueNode;
use tokio::sync::broadcast;

use super::WORKERS_SHOWN_MAX;

/// Tells what happens to jobs on the event stream of the node, until the queue ends. What happens within a short while is one
/// event, and no more of it than somebody who listens for other things can bear.
pub(super) async fn publish(
    group: u16,
    mut source: broadcast::Receiver<Arc<Vec<Event>>>,
    stream: EventStream,
    clock: MonotonicClock,
) {
    use broadcast::error::{RecvError, TryRecvError};
    loop {
        let first = match source.recv().await {
            Ok(events) => events,
            Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return,
        };
        let observed_at = clock.now();
        tokio::time::sleep(GATHERED).await;
        let (mut events, mut omitted) = (Vec::new(), 0);
        let mut take = |more: &[Event]| {
            let room = EVENTS_MAX.saturating_sub(events.len()).min(more.len());
            events.extend_from_slice(&more[..room]);
            omitted += (more.len() - room) as u64;
        };
        take(&first);
        loop {
            match source.try_recv() {
                Ok(more) => take(&more),
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        stream.publish(ClusterEvent::Jobs { group, events, omitted, observed_at });
    }
}

/// A group in numbers.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    /// Whether this node leads it.
    pub(super) leads: bool,
    /// The last entry that is in the numbers: where nothing was done they are the same.
    pub(super) index: u64,
    pub(super) queues: Vec<QueueStats>,
    /// Some of the workers.
    pub(super) workers: Vec<SessionStats>,
    pub(super) worker_totals: SessionTotals,
}

impl Numbers {
    /// Those of a group. `None`: there is no such group.
    pub(super) fn of(queue: &QueueNode, group: u16) -> Option<Self> {
        let view = queue.groups().into_iter().find(|view| view.group == group)?;
        let workers = queue.workers(group, None, WORKERS_SHOWN_MAX).unwrap_or_default();
        Some(Self {
            leads: view.lead.is_own,
            index: view.digest.0,
            queues: view.queues,
            workers: workers.workers.into_iter().map(|worker| worker.stats).collect(),
            worker_totals: workers.totals,
        })
    }
}

/// Tells a group in numbers on the event stream of the node, while the node leads it, somebody listens and the numbers change,
/// until the queue ends.
pub(super) async fn report(
    group: u16,
    mut look: impl FnMut() -> Option<Numbers>,
    stream: EventStream,
    clock: MonotonicClock,
) {
    let mut told = None;
    let mut ticks = tokio::time::interval(REPORTED);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if stream.subscriber_count() == 0 {
            // Whoever comes next is told what there is.
            told = None;
            continue;
        }
        let Some(Numbers { leads, index, mut queues, workers, worker_totals }) = look() else { return };
        if !leads || told == Some(index) {
            continue;
        }
        told = Some(index);
        let omitted = queues.len().saturating_sub(QUEUES_MAX) as u64;
        queues.truncate(QUEUES_MAX);
        let observed_at = clock.now();
        stream.publish(ClusterEvent::Queues { group, queues, omitted, workers, worker_totals, observed_at });
    }
}

/// How long events are gathered.
const GATHERED: Duration = Duration::from_millis(100);
/// Most of them at once.
const EVENTS_MAX: usize = 1_024;
/// How often a group is told in numbers.
const REPORTED: Duration = Duration::from_secs(1);
/// Most of its queues.
const QUEUES_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use synod_cluster::Delivery;
    use synod_core::jobs::{EventKind, JobId, SessionId};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_happens_to_jobs_is_told_together_and_no_more_than_there_is_room_for() {
        let (source, events) = broadcast::channel(16);
        let stream = EventStream::default();
        let mut heard = stream.subscribe();
        let task = tokio::spawn(publish(3, events, stream, MonotonicClock::start()));
        let event = |job: u64| Event {
            index: job,
            time_ms: 0,
            wall_ms: 0,
            job: JobId::new(job),
            kind: EventKind::Ready,
        };
        let batch = |jobs: std::ops::Range<u64>| Arc::new(jobs.map(event).collect::<Vec<_>>());
        source.send(batch(0..2)).expect("it listens");
        source.send(batch(2..2_000)).expect("it listens");
        let Some(Delivery::Event(told)) = heard.recv().await else { panic!("an event") };
        let ClusterEvent::Jobs { group: 3, events, omitted, .. } = &*told else { panic!("{told:?}") };
        assert_eq!((events.len(), *omitted), (EVENTS_MAX, 2_000 - EVENTS_MAX as u64));
        assert!(events.iter().map(|event| event.index).eq(0..EVENTS_MAX as u64));
        drop(source);
        task.await.expect("it ends with its source");
    }

    fn numbers(index: u64, leads: bool) -> Numbers {
        let worker = SessionStats {
            session: SessionId::new(7),
            credits: 2,
            granted: 5,
            inflight: 3,
            watching: Vec::new(),
            watching_count: 0,
        };
        let worker_totals = SessionTotals { sessions: 1, credits: 2, granted: 5, inflight: 3 };
        Numbers { leads, index, queues: Vec::new(), workers: vec![worker], worker_totals }
    }

    #[tokio::test(start_paused = true)]
    async fn numbers_are_told_when_they_change_while_somebody_listens_and_the_node_leads() {
        let state = Arc::new(Mutex::new(Some(numbers(1, true))));
        let set = |now| *state.lock().expect("a lock") = now;
        let looks = Arc::new(AtomicUsize::new(0));
        let stream = EventStream::default();
        let look = {
            let (state, looks) = (Arc::clone(&state), Arc::clone(&looks));
            move || {
                looks.fetch_add(1, Ordering::Relaxed);
                state.lock().expect("a lock").clone()
            }
        };
        let task = tokio::spawn(report(3, look, stream.clone(), MonotonicClock::start()));
        tokio::time::sleep(REPORTED * 10).await;
        assert_eq!(looks.load(Ordering::Relaxed), 0, "nobody listens");
        let mut heard = stream.subscribe();
        let Some(Delivery::Event(told)) = heard.recv().await else { panic!("an event") };
        let ClusterEvent::Queues { group: 3, workers, worker_totals, .. } = &*told else {
            panic!("{told:?}")
        };
        assert_eq!((workers[0].credits, workers[0].granted, workers[0].inflight), (2, 5, 3));
        assert_eq!(worker_totals.sessions, 1);
        // The same again, and those of a follower, are not told; and what is told is told once.
        let mut is_quiet = async || tokio::time::timeout(REPORTED * 5, heard.recv()).await.is_err();
        assert!(is_quiet().await);
        set(Some(numbers(2, false)));
        assert!(is_quiet().await);
        set(Some(numbers(2, true)));
        assert!(!is_quiet().await);
        assert!(is_quiet().await);
        set(None);
        task.await.expect("it ends with its queue");
    }
}
