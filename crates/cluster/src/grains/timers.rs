//! Timers of a grain: it is called back in a turn of its own.
//!
//! A timer sends its grain a letter when it is due, so it waits for the turns before it like any call. A repeated one is
//! wound up again after its turn: a slow grain is not buried under its own alarms. Timers end with the activation.

use std::collections::BTreeMap;
use std::time::Duration;

use prost::Name;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::remote::{Message, Pid, Remote};

/// A timer was not set. Those that were set before go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TimerError {
    /// The name is empty or too long.
    #[error("the name of a timer has 1 to {TIMER_NAME_BYTES_MAX} bytes, this one has {bytes}")]
    Name {
        /// Its length.
        bytes: usize,
    },
    /// The time is out of range.
    #[error("a timer waits 1 ms to {TIMER_MAX:?}, not {wait:?}")]
    Wait {
        /// The refused time.
        wait: Duration,
    },
    /// The grain has as many timers as it may.
    #[error("a grain has at most {TIMERS_MAX} timers at a time")]
    TooMany,
}

/// The timers of one activation.
#[derive(Debug, Default)]
pub(super) struct Timers {
    set: BTreeMap<String, Timer>,
}

#[derive(Debug)]
struct Timer {
    /// Tells the letter of this timer from those of earlier ones, and from anything that a peer makes up.
    number: u64,
    due: Instant,
    period: Option<Duration>,
    waiting: JoinHandle<()>,
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.waiting.abort();
    }
}

impl Timers {
    /// Sets the timer `name` of the grain `own`, replacing an earlier one.
    pub(super) fn set(
        &mut self,
        remote: &Remote,
        own: &Pid,
        name: &str,
        wait: Duration,
        is_repeated: bool,
    ) -> Result<(), TimerError> {
        if name.is_empty() || name.len() > TIMER_NAME_BYTES_MAX {
            return Err(TimerError::Name { bytes: name.len() });
        }
        if !(TIMER_MIN..=TIMER_MAX).contains(&wait) {
            return Err(TimerError::Wait { wait });
        }
        if self.set.len() >= TIMERS_MAX && !self.set.contains_key(name) {
            return Err(TimerError::TooMany);
        }
        let timer = Timer::wind_up(remote, own, name, Instant::now() + wait, is_repeated.then_some(wait));
        self.set.insert(name.to_owned(), timer);
        Ok(())
    }

    /// Ends a timer. Returns whether there was one.
    pub(super) fn cancel(&mut self, name: &str) -> bool {
        self.set.remove(name).is_some()
    }

    /// Whether a letter is of a timer that is set, which one, and how to go on after its turn.
    pub(super) fn ring(&mut self, letter: &Message) -> Option<String> {
        let Rang { name, number } = letter.decode().ok()?;
        let timer = self.set.get(&name).filter(|timer| timer.number == number)?;
        if timer.period.is_none() {
            self.set.remove(&name);
        }
        Some(name)
    }

    /// Winds a repeated timer up again, unless its turn has set or ended it.
    pub(super) fn rewind(&mut self, remote: &Remote, own: &Pid, name: &str, number_before: Option<u64>) {
        let Some(timer) = self.set.get_mut(name) else { return };
        let Some(period) = timer.period.filter(|_| Some(timer.number) == number_before) else { return };
        let now = Instant::now();
        let mut due = timer.due + period;
        if due <= now {
            // Whatever was missed is skipped, and the beat kept.
            let late = now.duration_since(due).as_nanos() / period.as_nanos();
            due += period * u32::try_from(late).unwrap_or(u32::MAX).saturating_add(1);
        }
        *timer = Timer::wind_up(remote, own, name, due, Some(period));
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.set.get(name).map(|timer| timer.number)
    }
}

impl Timer {
    fn wind_up(remote: &Remote, own: &Pid, name: &str, due: Instant, period: Option<Duration>) -> Self {
        let number = fastrand::u64(1..);
        let letter = Message::new(&Rang { name: name.to_owned(), number });
        let (remote, own) = (remote.clone(), own.clone());
        let waiting = tokio::spawn(async move {
            tokio::time::sleep_until(due).await;
            // With a full mailbox it waits; a grain that is over has no timers.
            drop(remote.feed(&own, letter).await);
        });
        Self { number, due, period, waiting }
    }
}

/// The letter of a timer that is due. It never leaves its node.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Rang {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint64, tag = "2")]
    number: u64,
}

impl Name for Rang {
    const NAME: &'static str = "TimerRang";
    const PACKAGE: &'static str = "synod.grains";
}

/// Most timers of one activation.
pub const TIMERS_MAX: usize = 64;
/// Longest name of a timer in bytes.
pub const TIMER_NAME_BYTES_MAX: usize = 128;
const TIMER_MIN: Duration = Duration::from_millis(1);
/// Longest time that a timer waits.
pub const TIMER_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
