//! What all connections of one listener share: its bounds, its counters and the tubes that they use.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use synod_core::jobs::{JobLimits, QueueName};
use tokio::time::{Instant, timeout};

use super::BeanstalkConfig;
use super::command::{Command, Wrong};
use super::tubes::Tubes;
use crate::access::{Answer, PeekState, Question, QueueAccess};

/// What connections share.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) config: BeanstalkConfig,
    /// The tube that is always there, and that every connection begins with.
    pub(crate) default_tube: QueueName,
    /// By which listeners are told apart in statistics.
    pub(crate) id: u64,
    pub(crate) begun: Instant,
    pub(crate) tubes: Tubes,
    pub(crate) commands: [AtomicU64; COUNTED.len()],
    pub(crate) connections: AtomicU64,
    pub(crate) connections_total: AtomicU64,
    pub(crate) producers: AtomicU64,
    pub(crate) workers: AtomicU64,
    pub(crate) waiting: AtomicU64,
    /// The longest body that the queue takes, and when it said so.
    body_limit: Mutex<(u32, Option<Instant>)>,
}

impl Node {
    pub(crate) fn new(config: BeanstalkConfig, default_tube: QueueName) -> Self {
        Self {
            config,
            default_tube,
            id: fastrand::u64(..),
            begun: Instant::now(),
            tubes: Tubes::default(),
            commands: [const { AtomicU64::new(0) }; COUNTED.len()],
            connections: AtomicU64::new(0),
            connections_total: AtomicU64::new(0),
            producers: AtomicU64::new(0),
            workers: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            body_limit: Mutex::new((JobLimits::default().body_bytes_max, None)),
        }
    }

    /// Counts what a client sent, as beanstalkd does: what is in the wrong format does not count.
    pub(crate) fn count(&self, parsed: &Result<Command, Wrong>) {
        if let Some(place) = counted_as(parsed) {
            self.commands[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The longest body that the queue takes, as far as it is known.
    pub(crate) fn body_bytes_max(&self) -> u32 {
        self.body_limit.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Asks for the longest body that the queue takes, if that was not done a short while ago.
    pub(crate) async fn learn_body_limit(&self, access: &impl QueueAccess) {
        let learnt = self.body_limit.lock().unwrap_or_else(PoisonError::into_inner).1;
        if learnt.is_some_and(|learnt| learnt.elapsed() < BODY_LIMIT_AGE_MAX) {
            return;
        }
        // While there is no leader the last known limit has to do; the queue itself refuses what is too long.
        if let Ok(Ok(Answer::Overview(overview))) =
            timeout(BODY_LIMIT_WAIT_MAX, access.ask(Question::Overview)).await
        {
            self.set_body_limit(overview.body_bytes_max);
        }
    }

    pub(crate) fn set_body_limit(&self, body_bytes_max: u32) {
        *self.body_limit.lock().unwrap_or_else(PoisonError::into_inner) =
            (body_bytes_max, Some(Instant::now()));
    }
}

/// The commands that are counted, in the order in which `stats` tells them.
pub(crate) const COUNTED: [&str; 22] = [
    "put",
    "peek",
    "peek-ready",
    "peek-delayed",
    "peek-buried",
    "reserve",
    "reserve-with-timeout",
    "delete",
    "release",
    "use",
    "watch",
    "ignore",
    "bury",
    "kick",
    "touch",
    "stats",
    "stats-job",
    "stats-tube",
    "list-tubes",
    "list-tube-used",
    "list-tubes-watched",
    "pause-tube",
];

/// The place of a command in [`COUNTED`].
const fn counted_as(parsed: &Result<Command, Wrong>) -> Option<usize> {
    Some(match parsed {
        Ok(Command::Put { .. }) | Err(Wrong::ExpectedCrlf | Wrong::JobTooBig) => 0,
        Ok(Command::Peek(_)) => 1,
        Ok(Command::PeekFirst(PeekState::Ready)) => 2,
        Ok(Command::PeekFirst(PeekState::Delayed)) => 3,
        Ok(Command::PeekFirst(PeekState::Dead)) => 4,
        Ok(Command::Reserve) => 5,
        Ok(Command::ReserveWithTimeout(_)) => 6,
        Ok(Command::Delete(_)) => 7,
        Ok(Command::Release { .. }) => 8,
        Ok(Command::Use(_)) => 9,
        Ok(Command::Watch(_)) => 10,
        Ok(Command::Ignore(_)) => 11,
        Ok(Command::Bury { .. }) => 12,
        Ok(Command::Kick(_)) => 13,
        Ok(Command::Touch(_)) => 14,
        Ok(Command::Stats) => 15,
        Ok(Command::StatsJob(_)) => 16,
        Ok(Command::StatsTube(_)) => 17,
        Ok(Command::ListTubes) => 18,
        Ok(Command::ListTubeUsed) => 19,
        Ok(Command::ListTubesWatched) => 20,
        Ok(Command::PauseTube { .. }) => 21,
        Ok(Command::ReserveJob(_) | Command::KickJob(_) | Command::Quit)
        | Err(Wrong::BadFormat | Wrong::UnknownCommand) => return None,
    })
}

/// For how long what is known of the longest body is good enough.
const BODY_LIMIT_AGE_MAX: Duration = Duration::from_secs(10);
/// For how long a connection waits to know it.
const BODY_LIMIT_WAIT_MAX: Duration = Duration::from_secs(1);
