//! What `synod queue` shows: queues in numbers, and single jobs.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anstream::eprintln;
use clap::ValueEnum;
use serde::Serialize;
use synod_core::jobs::{
    DeadReason, Finish, HISTORY_MAX, JobId, JobState, JobView, QueueName, SessionId, SessionTotals, What,
};
use synod_queue::access::{Answer, CallError, JobAnswer, PeekState, Question, QueueAccess as _};
use synod_queue::{Client, ClientError};

use crate::inspect::{ListArgs, json, list, print};
use crate::jobs::{GroupJson, QueueJson, WorkerJson, WorkersJson};
use crate::terminal::{BOLD, GREEN, RED, table};

/// Arguments of `synod queue stats`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StatsArgs {
    /// Show the workers behind this session. At most 100 of a group are shown at once.
    #[arg(long, value_name = "SESSION")]
    after: Option<u64>,
    #[command(flatten)]
    list: ListArgs,
}

/// In which state to look for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum State {
    /// What a worker would get next.
    Ready,
    /// What is due first.
    Delayed,
    /// What has been aside for longest.
    Dead,
}

/// Shows the queues of all groups. Asked again, it shows what happened in between.
pub(super) fn stats(args: &StatsArgs) -> ExitCode {
    let from = args.after.map_or_else(String::new, |session| format!("?after={session}"));
    let url = format!("{}/v1/queue{from}", args.list.ask.api);
    let before = std::cell::RefCell::new(None::<(SystemTime, BTreeMap<u16, (u64, u64, u64)>)>);
    list(&args.list, &url, |shown: &QueueJson| {
        let now = SystemTime::now();
        let counts: BTreeMap<u16, (u64, u64, u64)> = shown
            .groups
            .iter()
            .map(|group| (group.group, (group.totals.enqueued, group.totals.assigned, group.totals.acked)))
            .collect();
        let last = before.replace(Some((now, counts)));
        let groups = shown.groups.iter().map(|group| {
            let passed = last.as_ref().and_then(|(then, counts)| {
                let seconds = now.duration_since(*then).ok()?.as_secs_f64();
                Some((seconds, *counts.get(&group.group)?))
            });
            show_group(group, passed)
        });
        groups.collect::<Vec<_>>().join("\n\n")
    })
}

fn show_group(group: &GroupJson, passed: Option<(f64, (u64, u64, u64))>) -> String {
    let leader = group
        .leader
        .as_deref()
        .map_or_else(|| format!("{RED}no leader{RED:#}"), |leader| format!("{BOLD}{leader}{BOLD:#} leads"));
    let serves =
        if group.serves { String::new() } else { format!(" {RED}(not enough replicas to serve){RED:#}") };
    let mut lines = vec![format!("group {}: {leader}{serves}, term {}", group.group, group.term)];
    let learners = match group.learners.is_empty() {
        true => String::new(),
        false => format!(", followed by {}", group.learners.join(", ")),
    };
    lines.push(format!("replicas  {}{learners}", group.voters.join(", ")));
    lines.push(format!(
        "log       entry {} applied, {} in a snapshot, {:.1} MiB",
        group.applied_index,
        group.snapshot_index,
        group.log_bytes as f64 / f64::from(1 << 20)
    ));
    if let Some((seconds, (enqueued, assigned, acked))) = passed.filter(|(seconds, _)| *seconds > 0.0) {
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        lines.push(format!(
            "a second  {:.0} submitted, {:.0} given out, {:.0} done",
            rate(group.totals.enqueued, enqueued),
            rate(group.totals.assigned, assigned),
            rate(group.totals.acked, acked)
        ));
    }
    let rows = group.queues.iter().map(|queue| {
        let mut notes = Vec::new();
        if queue.paused.is_some() {
            notes.push("paused");
        }
        if queue.is_draining {
            notes.push("drains");
        }
        vec![
            queue.name.to_string(),
            queue.ready.to_string(),
            queue.reserved.to_string(),
            queue.delayed.to_string(),
            queue.dead.to_string(),
            queue.oldest_ready_ms.map_or_else(|| "-".to_owned(), |age| format!("{:.1} s", age as f64 / 1e3)),
            format!("{}/{}", queue.waiting, queue.watchers),
            queue.totals.acked.to_string(),
            notes.join(","),
        ]
    });
    let head = ["QUEUE", "READY", "IN FLIGHT", "DELAYED", "DEAD", "OLDEST", "WORKERS", "DONE", ""];
    let rows: Vec<_> = rows.collect();
    lines.push(if rows.is_empty() { "no queues".to_owned() } else { table(&head, &rows) });
    if group.workers.totals.sessions > 0 {
        lines.push(show_workers(&group.workers));
    }
    lines.join("\n")
}

/// The workers of a group: how many jobs each takes, and how many it has.
fn show_workers(workers: &WorkersJson) -> String {
    let SessionTotals { sessions, credits, granted, inflight } = workers.totals;
    let mut lines = vec![format!(
        "workers   {sessions}, which take {granted} jobs at a time and {credits} more now, and hold {inflight}"
    )];
    let rows = workers.page.iter().map(|WorkerJson { name, stats }| {
        let mut queues: Vec<&str> = stats.watching.iter().map(QueueName::as_str).collect();
        if stats.watching_count > stats.watching.len() as u64 {
            queues.push("...");
        }
        vec![
            stats.session.to_string(),
            who(stats.session),
            name.clone().unwrap_or_else(|| "-".to_owned()),
            format!("{}/{}", stats.credits, stats.granted),
            stats.inflight.to_string(),
            queues.join(","),
        ]
    });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        lines.push(table(&["SESSION", "WHO", "NAME", "FREE", "HOLDS", "WATCHES"], &rows));
    }
    if let Some(after) = workers.after {
        lines.push(format!("there are more workers; --after {after} shows them"));
    }
    lines.join("\n")
}

/// A job as it is shown.
#[derive(Serialize)]
struct JobJson<'a> {
    #[serde(flatten)]
    job: &'a JobView,
    /// Which node led when it was submitted, and at each event of its history.
    nodes: &'a [Option<String>],
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
}

pub(super) async fn peek(
    queue: &QueueName,
    state: State,
    as_json: bool,
    client: Client,
) -> Result<ExitCode, ClientError> {
    let state = match state {
        State::Ready => PeekState::Ready,
        State::Delayed => PeekState::Delayed,
        State::Dead => PeekState::Dead,
    };
    let Answer::Job(found) = client.link().ask(Question::Peek { queue: queue.clone(), state }).await? else {
        return Err(CallError::Nonsense("not a job".to_owned()).into());
    };
    let Some(job) = found else {
        eprintln!("there is none");
        return Ok(ExitCode::FAILURE);
    };
    let body = job.body.as_deref().map(|body| String::from_utf8_lossy(body).into_owned());
    if as_json {
        return Ok(print(&json(&JobJson { job: &job.view, nodes: &job.nodes, body })));
    }
    Ok(print(&format!("{}\n\n{}", describe(&job), body.unwrap_or_default())))
}

pub(super) async fn list_dead(
    queue: &QueueName,
    count: u32,
    as_json: bool,
    client: Client,
) -> Result<ExitCode, ClientError> {
    let (mut dead, mut after) = (Vec::new(), None);
    while dead.len() < count as usize {
        let left = count - u32::try_from(dead.len()).unwrap_or(count);
        let question = Question::Dead { queue: queue.clone(), after, count: left };
        let Answer::Dead { jobs, more } = client.link().ask(question).await? else {
            return Err(CallError::Nonsense("not a list".to_owned()).into());
        };
        dead.extend(jobs);
        after = more;
        if after.is_none() {
            break;
        }
    }
    if as_json {
        return Ok(print(&json(&dead)));
    }
    let rows = dead.iter().map(|job| {
        let reason = match job.state {
            JobState::Dead { reason: DeadReason::Attempts, .. } => "tried often enough",
            JobState::Dead { reason: DeadReason::Buried, .. } => "put aside",
            _ => "",
        };
        vec![
            job.id.to_string(),
            job.attempts.to_string(),
            job.counts.timeouts.to_string(),
            reason.to_owned(),
            at(job.submitted.wall_ms),
            job.body_bytes.to_string(),
        ]
    });
    let printed =
        print(&table(&["JOB", "TRIES", "TIMED OUT", "WHY", "SUBMITTED", "BYTES"], &rows.collect::<Vec<_>>()));
    if after.is_some() {
        eprintln!("there are more; --count shows more at once");
    }
    Ok(printed)
}

/// Tells the life of a job.
pub(super) async fn explain(job: JobId, as_json: bool, client: Client) -> Result<ExitCode, ClientError> {
    let Some(found) = client.job(job).await? else {
        eprintln!(
            "{RED}error:{RED:#} there is no job {job}, or it was finished too long ago to be remembered"
        );
        return Ok(ExitCode::FAILURE);
    };
    if as_json {
        return Ok(print(&json(&JobJson { job: &found.view, nodes: &found.nodes, body: None })));
    }
    Ok(print(&describe(&found)))
}

fn describe(JobAnswer { view, time_ms, nodes, .. }: &JobAnswer) -> String {
    let seconds = |millis: u64| format!("{:.1} s", millis as f64 / 1e3);
    let stands = match view.state {
        JobState::Ready => "waits for a worker".to_owned(),
        JobState::Reserved { session, deadline_ms, .. } => format!(
            "is in the hands of {}, for another {}",
            who(session),
            seconds(deadline_ms.saturating_sub(*time_ms))
        ),
        JobState::Delayed { until_ms, is_retry } => format!(
            "waits for {} more{}",
            seconds(until_ms.saturating_sub(*time_ms)),
            if is_retry { ", to be tried again" } else { "" }
        ),
        JobState::Dead { reason: DeadReason::Attempts, .. } => {
            "is put aside: it was tried as often as it may be".into()
        }
        JobState::Dead { reason: DeadReason::Buried, .. } => "is put aside: a worker said so".into(),
        JobState::Finished { how } => match how {
            Finish::Acked => format!("{GREEN}is done{GREEN:#}"),
            Finish::Cancelled => "was taken back".into(),
            Finish::Expired => "was dropped: nobody took it in time".into(),
            Finish::Dropped => "was dropped: it was tried as often as it may be".into(),
        },
    };
    let mut lines = vec![format!("job {BOLD}{}{BOLD:#} of queue {} {stands}", view.id, view.queue)];
    let tries = if view.max_attempts == 0 { String::new() } else { format!(" of {}", view.max_attempts) };
    lines.push(format!(
        "priority {}, tried {}{tries} times, {} to run, {} bytes",
        view.priority,
        view.attempts,
        seconds(view.ttr_ms),
        view.body_bytes
    ));
    let moment = |time_ms: u64| at(view.submitted.wall_ms + time_ms.saturating_sub(view.submitted.time_ms));
    let mut nodes = nodes.iter().map(|node| node.clone().unwrap_or_else(|| "-".to_owned()));
    let mut node = || nodes.next().unwrap_or_default();
    let mut rows = vec![vec![
        moment(view.submitted.time_ms),
        node(),
        format!("entry {}", view.submitted.index),
        "submitted".to_owned(),
        String::new(),
    ]];
    if view.history.len() >= HISTORY_MAX {
        let forgotten = "what came next is not remembered any more";
        rows.push(["", "", "", forgotten, ""].map(ToOwned::to_owned).into());
    }
    rows.extend(view.history.iter().map(|entry| {
        let what = match entry.what {
            What::Ready => "its time has come",
            What::Assigned => "given out",
            What::Acked => "done",
            What::TimedOut => "its worker took too long",
            What::WorkerDown => "its worker was gone",
            What::Released => "given back",
            What::Buried => "put aside by its worker",
            What::WornOut => "put aside: tried as often as it may be",
            What::Cancelled => "taken back",
            What::Expired => "dropped: nobody took it in time",
            What::Kicked => "made ready by hand",
            _ => "something new",
        };
        vec![
            moment(entry.time_ms),
            node(),
            format!("entry {}", entry.index),
            what.to_owned(),
            entry.session.map(who).unwrap_or_default(),
        ]
    }));
    lines.push(table(&["TIME (UTC)", "NODE", "LOG", "WHAT", "WHO"], &rows));
    lines.join("\n")
}

/// A session as an operator knows it: the upper bits tell the node whose gateway it came through.
fn who(session: SessionId) -> String {
    let (node, number) = (session.get() >> 48, session.get() & ((1 << 48) - 1));
    match node {
        0 => format!("worker {number:x}"),
        node => format!("connection {number:x} of the beanstalkd gateway of node {node}"),
    }
}

/// A time of day, to the millisecond.
fn at(unix_ms: u64) -> String {
    let since = Duration::from_millis(unix_ms);
    let (days, rest) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}.{:03}",
        rest / 3600,
        rest % 3600 / 60,
        rest % 60,
        since.subsec_millis()
    )
}

/// The date of a day since 1970.
const fn date(days: u64) -> (u64, u64, u64) {
    // Years are taken to begin in March, so that the day that some have more is their last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + if month <= 2 { 1 } else { 0 }, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day_are_told_as_people_write_them() {
        for (unix_ms, expected) in [
            (0, "1970-01-01 00:00:00.000"),
            (951_782_400_000, "2000-02-29 00:00:00.000"),
            (951_868_799_999, "2000-02-29 23:59:59.999"),
            (1_794_787_200_123, "2026-11-16 00:00:00.123"),
            (4_107_542_400_000, "2100-03-01 00:00:00.000"),
        ] {
            assert_eq!(at(unix_ms), expected);
        }
    }

    #[test]
    fn sessions_of_gateways_tell_their_node() {
        assert_eq!(who(SessionId::new(0x2a)), "worker 2a");
        assert_eq!(who(SessionId::new(3 << 48 | 0x2a)), "connection 2a of the beanstalkd gateway of node 3");
    }
}
