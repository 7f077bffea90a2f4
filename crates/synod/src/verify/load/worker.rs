//! A worker with a runtime of its own: when that is dropped, it is gone without a word, as a process that died.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use synod_core::jobs::{Assignment, Delivery, Op, SessionId};
use synod_queue::access::CallError;
use synod_queue::link::SessionEvent;
use synod_queue::verify::{RecordedHands, RecordedSession};
use tokio::task::JoinSet;

use super::{HELD_MAX, LATER, ORDERED, PLAIN, Shared, TRIED, TTR_MS, queue};

/// What kind of worker it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Does its jobs.
    Good,
    /// Gives some back, and puts some aside.
    Picky,
    /// Takes longer than it may, now and then, and does not know.
    Slow,
    /// Goes without a word.
    Fleeting,
}

/// Works until the load is over.
pub(super) fn run(shared: &Arc<Shared>, number: u64, mut rng: fastrand::Rng) {
    let kind =
        [Kind::Good, Kind::Picky, Kind::Slow, Kind::Fleeting][usize::try_from(number % 4).unwrap_or(0)];
    while !shared.is_over.load(Ordering::Relaxed) {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        let life = Duration::from_millis(rng.u64(1_000..5_000));
        let until = (kind == Kind::Fleeting).then(|| Instant::now() + life);
        let worker = Worker { shared, kind, until };
        let is_gone = runtime.block_on(worker.work(&mut rng)).unwrap_or(false);
        shared.vanished.fetch_add(is_gone.into(), Ordering::Relaxed);
        // With the runtime go its sockets.
        runtime.shutdown_background();
    }
}

struct Worker<'a> {
    shared: &'a Arc<Shared>,
    kind: Kind,
    until: Option<Instant>,
}

impl Worker<'_> {
    /// Takes jobs until it is over, or the end has come: then true.
    async fn work(&self, rng: &mut fastrand::Rng) -> Result<bool, CallError> {
        let queues = [PLAIN, ORDERED, LATER, TRIED].into_iter().map(queue).collect::<Result<Vec<_>, _>>()?;
        let (link, history) = (self.shared.link("verify worker"), self.shared.history.clone());
        let mut session = RecordedSession::open(link, history, SessionId::new(rng.u64(1..1 << 48))).await?;
        let hands = session.hands();
        let mut under_way: JoinSet<()> = JoinSet::new();
        let mut grants = tokio::time::interval(GRANT_EVERY);
        loop {
            tokio::select! {
                event = session.next() => match event {
                    Some(SessionEvent::Delivery(delivery)) => {
                        let kind = if self.is_calm() { Kind::Good } else { self.kind };
                        under_way.spawn(handle(hands.clone(), kind, delivery, rng.fork()));
                    }
                    // What was lost is tried all the same: the queue must refuse it.
                    Some(SessionEvent::Lost(_) | SessionEvent::Restarted) => {}
                    None => return Err(CallError::Closed),
                },
                Some(_) = under_way.join_next() => {}
                // Credits that went with lost jobs come back this way.
                _ = grants.tick() => {
                    let free = (HELD_MAX + 2).saturating_sub(u32::try_from(under_way.len()).unwrap_or(HELD_MAX));
                    match session.grant(queues.clone(), free.min(HELD_MAX)).await {
                        // Without a leader, the next time.
                        Ok(()) | Err(CallError::NoLeader) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            if self.shared.is_over.load(Ordering::Relaxed) {
                session.close().await?;
                return Ok(false);
            }
            if self.until.is_some_and(|until| Instant::now() >= until) && !self.is_calm() {
                return Ok(true);
            }
        }
    }

    fn is_calm(&self) -> bool {
        self.shared.is_calm.load(Ordering::Relaxed)
    }
}

async fn handle(hands: RecordedHands, kind: Kind, delivery: Delivery, mut rng: fastrand::Rng) {
    let (job, fence) = (delivery.job, delivery.fence);
    tokio::time::sleep(Duration::from_millis(rng.u64(..20))).await;
    let dice = rng.u8(..100);
    match kind {
        Kind::Picky if dice < 25 => {
            let delay_ms = rng.bool().then(|| rng.u64(..200));
            let nack = Op::Nack { job, fence, delay_ms, priority: None, returns_attempt: rng.u8(..4) == 0 };
            // Lost is lost.
            drop(hands.call(nack).await);
            return;
        }
        Kind::Picky if dice < 28 => {
            drop(hands.call(Op::Bury { job, fence, priority: None }).await);
            return;
        }
        Kind::Slow if dice < 4 => tokio::time::sleep(Duration::from_millis(TTR_MS + 500)).await,
        Kind::Slow if dice < 8 => {
            tokio::time::sleep(Duration::from_millis(TTR_MS * 2 / 3)).await;
            drop(hands.call(Op::Extend { job, fence, ttr_ms: None }).await);
            tokio::time::sleep(Duration::from_millis(TTR_MS * 2 / 3)).await;
        }
        _ => {}
    }
    hands.ack(Assignment { job, fence }).await;
}

const GRANT_EVERY: Duration = Duration::from_millis(500);
