//! Statistics and listings, with the keys and in the order of beanstalkd.
//!
//! Numbers of jobs are those of the whole cluster; numbers of commands and connections are those of this node. What has no
//! meaning here is 0: the files of a log that is not beanstalkd's, and jobs that are urgent, which nobody counts.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use synod_core::jobs::{JobState, JobView, Paused, QueueName, QueueStats};

use super::node::{COUNTED, Node};
use super::tubes::Tube;
use crate::access::{JobAnswer, Overview};

/// A mapping in YAML, as beanstalkd writes it.
struct Yaml(String);

impl Yaml {
    fn new() -> Self {
        Self("---\n".to_owned())
    }

    fn set(&mut self, key: &str, value: impl Display) {
        self.0.push_str(&format!("{key}: {value}\n"));
    }
}

/// A list of tubes.
pub(crate) fn list(tubes: &[QueueName]) -> String {
    let mut yaml = Yaml::new();
    for tube in tubes {
        yaml.0.push_str(&format!("- {tube}\n"));
    }
    yaml.0
}

/// The tubes that there are: those with jobs, those that somebody uses or watches, and the default one, which comes first.
pub(crate) fn existing(node: &Node, queues: &[QueueStats]) -> Vec<QueueName> {
    let mut tubes = node.tubes.names();
    tubes.extend(queues.iter().filter(|queue| is_used(queue)).map(|queue| queue.name.clone()));
    tubes.push(node.default_tube.clone());
    tubes.sort_unstable_by(|a, b| (*a != node.default_tube, a).cmp(&(*b != node.default_tube, b)));
    tubes.dedup();
    tubes
}

/// Whether a queue would be there in beanstalkd, which forgets a tube as soon as nothing is in it. Queues are remembered
/// for longer.
pub(crate) const fn is_used(queue: &QueueStats) -> bool {
    queue.ready + queue.reserved + queue.delayed + queue.dead > 0 || queue.watchers > 0
}

/// `stats`.
pub(crate) fn of_all(node: &Node, overview: &Overview, queues: &[QueueStats]) -> String {
    let sum = |count: fn(&QueueStats) -> u64| queues.iter().map(count).sum::<u64>();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut yaml = Yaml::new();
    yaml.set("current-jobs-urgent", 0);
    yaml.set("current-jobs-ready", sum(|queue| queue.ready));
    yaml.set("current-jobs-reserved", sum(|queue| queue.reserved));
    yaml.set("current-jobs-delayed", sum(|queue| queue.delayed));
    yaml.set("current-jobs-buried", sum(|queue| queue.dead));
    for (name, count) in COUNTED.iter().zip(&node.commands) {
        yaml.set(&format!("cmd-{name}"), read(count));
    }
    yaml.set("job-timeouts", overview.totals.timed_out);
    yaml.set("total-jobs", overview.totals.enqueued);
    yaml.set("max-job-size", overview.body_bytes_max);
    yaml.set("current-tubes", existing(node, queues).len());
    yaml.set("current-connections", read(&node.connections));
    yaml.set("current-producers", read(&node.producers));
    yaml.set("current-workers", read(&node.workers));
    yaml.set("current-waiting", read(&node.waiting));
    yaml.set("total-connections", read(&node.connections_total));
    yaml.set("pid", std::process::id());
    yaml.set("version", format_args!("{:?}", env!("CARGO_PKG_VERSION")));
    yaml.set("rusage-utime", "0.000000");
    yaml.set("rusage-stime", "0.000000");
    yaml.set("uptime", node.begun.elapsed().as_secs());
    for key in ["oldest-index", "current-index", "records-migrated", "records-written", "max-size"] {
        yaml.set(&format!("binlog-{key}"), 0);
    }
    yaml.set("draining", overview.is_draining);
    yaml.set("id", format_args!("{:016x}", node.id));
    yaml.set("hostname", format_args!("node-{}", node.config.node));
    yaml.set("os", std::env::consts::OS);
    yaml.set("platform", std::env::consts::ARCH);
    yaml.0
}

/// `stats-tube`.
pub(crate) fn of_tube(name: &QueueName, tube: Tube, queue: Option<&QueueStats>, time_ms: u64) -> String {
    let count = |count: fn(&QueueStats) -> u64| queue.map_or(0, count);
    let mut yaml = Yaml::new();
    yaml.set("name", name);
    yaml.set("current-jobs-urgent", 0);
    yaml.set("current-jobs-ready", count(|queue| queue.ready));
    yaml.set("current-jobs-reserved", count(|queue| queue.reserved));
    yaml.set("current-jobs-delayed", count(|queue| queue.delayed));
    yaml.set("current-jobs-buried", count(|queue| queue.dead));
    yaml.set("total-jobs", count(|queue| queue.totals.enqueued));
    yaml.set("current-using", tube.using);
    yaml.set("current-watching", tube.watching);
    yaml.set("current-waiting", tube.waiting);
    yaml.set("cmd-delete", count(|queue| queue.totals.cancelled + queue.totals.acked));
    yaml.set("cmd-pause-tube", tube.pauses);
    let left_ms = match queue.and_then(|queue| queue.paused) {
        None => 0,
        // Until somebody resumes it, which is no number.
        Some(Paused::UntilResumed) => u64::from(u32::MAX) * 1_000,
        Some(Paused::Until(until_ms)) => until_ms.saturating_sub(time_ms),
    };
    // How long the whole pause is, is known where it was asked for.
    let pause_s = if left_ms == 0 { 0 } else { u64::from(tube.pause_s).max(left_ms.div_ceil(1_000)) };
    yaml.set("pause", pause_s);
    yaml.set("pause-time-left", whole_seconds_left(left_ms));
    yaml.0
}

/// `stats-job`; `None`: it is finished.
pub(crate) fn of_job(job: &JobAnswer) -> Option<String> {
    let JobAnswer { view, time_ms, .. } = job;
    let (state, until_ms) = match view.state {
        JobState::Ready => ("ready", None),
        JobState::Reserved { deadline_ms, .. } => ("reserved", Some(deadline_ms)),
        JobState::Delayed { until_ms, .. } => ("delayed", Some(until_ms)),
        JobState::Dead { .. } => ("buried", None),
        JobState::Finished { .. } => return None,
    };
    let mut yaml = Yaml::new();
    yaml.set("id", view.id);
    yaml.set("tube", &view.queue);
    yaml.set("state", state);
    yaml.set("pri", view.priority);
    yaml.set("age", time_ms.saturating_sub(view.submitted.time_ms) / 1_000);
    yaml.set("delay", delay_s(view));
    yaml.set("ttr", view.ttr_ms.div_ceil(1_000));
    yaml.set(
        "time-left",
        until_ms.map_or(0, |until_ms| whole_seconds_left(until_ms.saturating_sub(*time_ms))),
    );
    yaml.set("file", 0);
    yaml.set("reserves", view.counts.reserves);
    yaml.set("timeouts", view.counts.timeouts);
    yaml.set("releases", view.counts.releases);
    yaml.set("buries", view.counts.buries);
    yaml.set("kicks", view.counts.kicks);
    Some(yaml.0)
}

/// How long the delay is that a job is in. What it was before is not remembered.
fn delay_s(view: &JobView) -> u64 {
    let JobState::Delayed { until_ms, is_retry } = view.state else {
        return 0;
    };
    let since_ms = match view.history.last() {
        Some(last) if is_retry => last.time_ms,
        _ => view.submitted.time_ms,
    };
    until_ms.saturating_sub(since_ms).div_ceil(1_000)
}

/// A second that has begun is not left any more, as for a clock that is finer than ours.
const fn whole_seconds_left(left_ms: u64) -> u64 {
    left_ms.saturating_sub(1) / 1_000
}
