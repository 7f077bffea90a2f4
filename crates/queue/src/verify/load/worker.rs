//! Workers, of all kinds.

use std::time::Duration;

use synod_core::jobs::{Assignment, Delivery, Op, SessionId};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{HELD_MAX, LATER, Load, ORDERED, PLAIN, TRIED, TTR_MS, queue};
use crate::access::CallError;
use crate::link::SessionEvent;
use crate::verify::witness::{RecordedHands, RecordedSession};

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

impl Kind {
    fn of(number: u64) -> Self {
        [Self::Good, Self::Picky, Self::Slow, Self::Fleeting][usize::try_from(number % 4).unwrap_or(0)]
    }
}

/// How the life of a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerEnd {
    /// The load is over.
    Over,
    /// It is to vanish without a word, as a process that died: whoever runs it lets go of all that it has.
    Vanishes,
}

impl Load {
    /// Whether the worker of this number vanishes now and then.
    #[must_use]
    pub fn is_fleeting(number: u64) -> bool {
        Kind::of(number) == Kind::Fleeting
    }

    /// A worker: takes jobs until the load is over, or its end has come. Its number says what kind of worker it is.
    ///
    /// # Errors
    /// The queue did not take it in, or did not answer in time.
    pub async fn work(&self, number: u64, rng: &mut fastrand::Rng) -> Result<WorkerEnd, CallError> {
        let kind = Kind::of(number);
        let life = Duration::from_millis(rng.u64(1_000..5_000));
        let until = (kind == Kind::Fleeting).then(|| Instant::now() + life);
        let queues = [PLAIN, ORDERED, LATER, TRIED].into_iter().map(queue).collect::<Result<Vec<_>, _>>()?;
        let (link, history) = (self.link("verify worker"), self.history.clone());
        let mut session = RecordedSession::open(link, history, SessionId::new(rng.u64(1..1 << 48))).await?;
        let hands = session.hands();
        let mut under_way: JoinSet<()> = JoinSet::new();
        let mut grants = tokio::time::interval(GRANT_EVERY);
        loop {
            tokio::select! {
                event = session.next() => match event {
                    Some(SessionEvent::Delivery(delivery)) => {
                        let kind = if self.is_calm() { Kind::Good } else { kind };
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
            if self.is_over() {
                session.close().await?;
                return Ok(WorkerEnd::Over);
            }
            if until.is_some_and(|until| Instant::now() >= until) && !self.is_calm() {
                return Ok(WorkerEnd::Vanishes);
            }
        }
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
