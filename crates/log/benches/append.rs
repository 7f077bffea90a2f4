//! How many records of 256 bytes become durable in a second, beside two databases that could hold them as well.
//!
//! `cargo bench -p synod-log --bench append` prints one table. Each contender runs in a directory below the current one,
//! so on a disk and not in memory, and syncs the data before it acknowledges. One driver keeps a number of records
//! outstanding: it hands in as many, waits for the oldest, and hands in the next. The databases get what the log brings
//! along, group commit: one thread takes all that wait and commits them together. Short rounds of all contenders alternate,
//! and the median counts, so that the moods of a shared disk hit all alike.
//!
//! Wall-clock figures belong to the machine; compare runs on one machine only.

#![allow(clippy::print_stdout)]

use std::collections::VecDeque;
use std::error::Error;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fjall::{Database as Fjall, KeyspaceCreateOptions, PersistMode};
use redb::{Database as Redb, Durability, TableDefinition};
use synod_log::{FileDisk, Log, LogConfig, Ticket};

const PAYLOAD_BYTES: usize = 256;
const OUTSTANDING: [usize; 3] = [1, 64, 1024];
const ROUNDS: usize = 25;
const ROUND: Duration = Duration::from_millis(300);
const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");

fn main() -> Result<(), Box<dyn Error>> {
    // A test run of all targets only wants to know that this works.
    let (rounds, round) = if std::env::args().any(|argument| argument == "--bench") {
        (ROUNDS, ROUND)
    } else {
        (1, Duration::ZERO)
    };
    println!("durable appends of {PAYLOAD_BYTES} bytes per second, median of {rounds} rounds\n");
    println!("| outstanding | synod-log | redb | fjall | synod-log / redb | synod-log / fjall |");
    println!("|---:|---:|---:|---:|---:|---:|");
    for outstanding in OUTSTANDING {
        let mut rates: [Vec<f64>; 3] = Default::default();
        for _ in 0..rounds {
            for (rates, contender) in rates.iter_mut().zip([synod_log, redb, fjall]) {
                let directory = tempfile::tempdir_in(".")?;
                rates.push(contender(directory.path(), outstanding, round)?);
            }
        }
        let [own, redb, fjall] = rates.map(median);
        println!(
            "| {outstanding} | {own:.0} | {redb:.0} | {fjall:.0} | {:.1} | {:.1} |",
            own / redb,
            own / fjall
        );
    }
    Ok(())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_unstable_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

fn synod_log(directory: &Path, outstanding: usize, round: Duration) -> Result<f64, Box<dyn Error>> {
    let (log, _) = Log::open(LogConfig::default(), FileDisk::open(directory.join("log"))?)?;
    let rate = drive(
        outstanding,
        round,
        |payload| Ok(log.append(payload)?),
        |ticket| Ok(Ticket::wait(ticket).map(drop)?),
    )?;
    log.close()?;
    Ok(rate)
}

fn redb(directory: &Path, outstanding: usize, round: Duration) -> Result<f64, Box<dyn Error>> {
    let database = Redb::create(directory.join("redb"))?;
    let committer = Committer::start(move |first, payloads| {
        let mut transaction = database.begin_write().map_err(|error| error.to_string())?;
        transaction.set_durability(Durability::Immediate).map_err(|error| error.to_string())?;
        {
            let mut table = transaction.open_table(TABLE).map_err(|error| error.to_string())?;
            for (index, payload) in (first..).zip(payloads) {
                table.insert(index, payload.as_slice()).map_err(|error| error.to_string())?;
            }
        }
        transaction.commit().map_err(|error| error.to_string())
    });
    committer.drive(outstanding, round)
}

fn fjall(directory: &Path, outstanding: usize, round: Duration) -> Result<f64, Box<dyn Error>> {
    let database = Fjall::builder(directory.join("fjall")).open()?;
    let keyspace = database.keyspace("log", KeyspaceCreateOptions::default)?;
    let committer = Committer::start(move |first, payloads| {
        let mut batch = database.batch().durability(Some(PersistMode::SyncData));
        for (index, payload) in (first..).zip(payloads) {
            batch.insert(&keyspace, index.to_be_bytes(), payload.as_slice());
        }
        batch.commit().map_err(|error| error.to_string())
    });
    committer.drive(outstanding, round)
}

/// Keeps a number of records outstanding for a while. The rate counts what became durable until the last was.
fn drive<T>(
    outstanding: usize,
    round: Duration,
    mut submit: impl FnMut(Vec<u8>) -> Result<T, Box<dyn Error>>,
    mut wait: impl FnMut(T) -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let (mut window, mut count, start) = (VecDeque::with_capacity(outstanding), 0_u32, Instant::now());
    loop {
        let is_over = start.elapsed() >= round && count > 0;
        while window.len() < outstanding && !is_over {
            window.push_back(submit(vec![7; PAYLOAD_BYTES])?);
        }
        let Some(oldest) = window.pop_front() else { break };
        wait(oldest)?;
        count += 1;
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

/// Group commit for a database: a thread that commits all that waits at a time.
struct Committer {
    queue: Sender<Vec<u8>>,
    progress: Arc<Progress>,
    thread: JoinHandle<()>,
}

/// How many records are durable, or why no more will be.
struct Progress {
    durable: Mutex<Result<u64, String>>,
    changed: Condvar,
}

impl Committer {
    fn start(commit: impl FnMut(u64, &[Vec<u8>]) -> Result<(), String> + Send + 'static) -> Self {
        let (queue, waiting) = mpsc::channel();
        let progress = Arc::new(Progress { durable: Mutex::new(Ok(0)), changed: Condvar::new() });
        let thread = thread::spawn({
            let progress = Arc::clone(&progress);
            move || commit_all(&waiting, &progress, commit)
        });
        Self { queue, progress, thread }
    }

    fn drive(self, outstanding: usize, round: Duration) -> Result<f64, Box<dyn Error>> {
        let (mut submitted, mut durable) = (0, 0);
        let rate = drive(
            outstanding,
            round,
            |payload| {
                submitted += 1;
                Ok(self.queue.send(payload).map(|()| submitted)?)
            },
            |index: u64| {
                // One answer for a batch is remembered for all of it.
                if index > durable {
                    durable = self.progress.wait_for(index)?;
                }
                Ok(())
            },
        )?;
        drop(self.queue);
        self.thread.join().map_err(|_| "the committer panicked")?;
        Ok(rate)
    }
}

fn commit_all(
    waiting: &Receiver<Vec<u8>>,
    progress: &Progress,
    mut commit: impl FnMut(u64, &[Vec<u8>]) -> Result<(), String>,
) {
    let mut durable = 0;
    while let Ok(first) = waiting.recv() {
        let batch: Vec<_> = std::iter::once(first).chain(waiting.try_iter()).collect();
        let result = commit(durable, &batch);
        durable += batch.len() as u64;
        let is_failed = result.is_err();
        *progress.durable.lock().unwrap_or_else(PoisonError::into_inner) = result.map(|()| durable);
        progress.changed.notify_all();
        if is_failed {
            break;
        }
    }
}

impl Progress {
    fn wait_for(&self, index: u64) -> Result<u64, String> {
        let mut durable = self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        while durable.as_ref().is_ok_and(|durable| *durable < index) {
            durable = self.changed.wait(durable).unwrap_or_else(PoisonError::into_inner);
        }
        durable.clone()
    }
}
