//! The rows through beanstalkd's protocol, for the original and for whatever else speaks it.
//!
//! A connection has many commands under way, whose replies come in their order. Those that take jobs wait with one `reserve`
//! and send more of them behind it that do not wait, about as many as there were jobs the last time: a `reserve` that waits
//! holds up what is behind it on its connection, the deletion of other jobs among it.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Load, Operation, PATIENCE, Tally, split, take_place};

/// Runs one row.
pub(super) async fn run(server: String, load: Load) -> Tally {
    let mut tally = Tally::default();
    if let Err(error) = measure(&server, &load, &mut tally).await {
        tally.fail(format!("{server}: {error}"));
    }
    tally
}

async fn measure(server: &str, load: &Load, tally: &mut Tally) -> io::Result<()> {
    let shares = split(load.in_flight, load.in_flight.min(CONNECTIONS_MAX));
    let places = Arc::new(Semaphore::new(load.in_flight as usize));
    let (stop, stopped) = watch::channel(false);
    let mut takers = JoinSet::new();
    if load.operation == Operation::Life {
        for share in &shares {
            let connection = Connection::open(server, &load.queue).await?;
            takers.spawn(take(connection, *share as usize, Arc::clone(&places), stopped.clone()));
        }
    }
    let mut submitters = Vec::new();
    for _ in &shares {
        submitters.push(Connection::open(server, &load.queue).await?);
    }
    let began = Instant::now();
    let until = load.until();
    let mut tasks = JoinSet::new();
    for (connection, share) in submitters.into_iter().zip(&shares) {
        let put = put(&load.body);
        let places = (load.operation == Operation::Life).then(|| Arc::clone(&places));
        let share = *share as usize;
        tasks.spawn(async move { submit(connection, &put, share, places.as_deref(), until).await });
    }
    let mut submitted = Vec::new();
    for (some, jobs) in tasks.join_all().await {
        tally.add(some);
        submitted.extend(jobs);
    }
    match load.operation {
        Operation::Enqueue => {
            tally.jobs = submitted.len() as u64;
            tally.took = began.elapsed();
            delete(server, load, &submitted, tally).await?;
        }
        Operation::Life => {
            // All places are free when all jobs have come to their end.
            if timeout(PATIENCE, places.acquire_many(load.in_flight)).await.is_err() {
                tally.fail("jobs did not come to their end in time");
            }
            tally.took = began.elapsed();
            stop.send_replace(true);
            for some in takers.join_all().await {
                tally.add(some);
            }
        }
    }
    empty(server, load, tally).await
}

/// Puts jobs until its time is over, so many at a time, and waits for the last reply. With places, every job takes one.
async fn submit(
    mut connection: Connection,
    put: &[u8],
    share: usize,
    places: Option<&Semaphore>,
    until: Instant,
) -> (Tally, Vec<u64>) {
    let (mut tally, mut jobs) = (Tally::default(), Vec::new());
    let mut sent = VecDeque::with_capacity(share);
    loop {
        while sent.len() < share && Instant::now() < until {
            if let Some(places) = places
                && !take_place(places, sent.is_empty()).await
            {
                break;
            }
            connection.output.extend_from_slice(put);
            sent.push_back(Instant::now());
        }
        loop {
            // The first reply is waited for, and the others are taken that came with it.
            let Some(since) = sent.pop_front() else { return (tally, jobs) };
            match connection.reply().await {
                Ok(Reply::Inserted(job)) => {
                    tally.submissions.push(since.elapsed());
                    if places.is_none() {
                        jobs.push(job);
                    }
                }
                Ok(other) => {
                    tally.fail(format!("a put was answered with {other}"));
                    // The place of a job that never was.
                    if let Some(places) = places {
                        places.add_permits(1);
                    }
                }
                Err(error) => {
                    tally.fail(error);
                    return (tally, jobs);
                }
            }
            if !connection.has_more() {
                break;
            }
        }
    }
}

/// Takes jobs and deletes them until it is told to stop.
async fn take(
    mut connection: Connection,
    share: usize,
    places: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
) -> Tally {
    let mut tally = Tally::default();
    let (mut held, mut wanted) = (Vec::new(), 1);
    while !held.is_empty() || !*stopped.borrow() {
        let deletions = held.len();
        for job in held.drain(..) {
            connection.say(&format!("delete {job}\r\n"));
        }
        connection.say("reserve-with-timeout 1\r\n");
        for _ in 1..wanted {
            connection.say("reserve-with-timeout 0\r\n");
        }
        for place in 0..deletions + wanted {
            match connection.reply().await {
                Ok(Reply::Deleted) if place < deletions => {
                    tally.jobs += 1;
                    places.add_permits(1);
                }
                Ok(Reply::Reserved(job)) if place >= deletions => held.push(job),
                Ok(Reply::TimedOut) if place >= deletions => {}
                Ok(other) if place < deletions => tally.fail(format!("a delete was answered with {other}")),
                Ok(other) => tally.fail(format!("a reserve was answered with {other}")),
                Err(error) => {
                    tally.fail(error);
                    return tally;
                }
            }
        }
        wanted = (held.len() * 2).clamp(1, share);
    }
    tally
}

/// Deletes jobs that nobody has reserved, over several connections.
async fn delete(server: &str, load: &Load, jobs: &[u64], tally: &mut Tally) -> io::Result<()> {
    let mut tasks = JoinSet::new();
    for jobs in jobs.chunks(jobs.len().div_ceil(CONNECTIONS_MAX as usize).max(1)) {
        let mut connection = Connection::open(server, &load.queue).await?;
        let jobs = jobs.to_vec();
        tasks.spawn(async move {
            let mut tally = Tally::default();
            for some in jobs.chunks(DELETES_AT_ONCE) {
                some.iter().for_each(|job| connection.say(&format!("delete {job}\r\n")));
                for _ in some {
                    match connection.reply().await {
                        Ok(Reply::Deleted) => {}
                        Ok(other) => tally.fail(format!("a delete was answered with {other}")),
                        Err(error) => {
                            tally.fail(error);
                            return tally;
                        }
                    }
                }
            }
            tally
        });
    }
    for some in tasks.join_all().await {
        tally.add(some);
    }
    Ok(())
}

/// Deletes what is left, which is nothing unless something went wrong.
async fn empty(server: &str, load: &Load, tally: &mut Tally) -> io::Result<()> {
    let mut connection = Connection::open(server, &load.queue).await?;
    loop {
        connection.say("reserve-with-timeout 0\r\n");
        let Reply::Reserved(job) = connection.reply().await? else { return Ok(()) };
        tally.fail("a job was left in the tube, and deleted");
        connection.say(&format!("delete {job}\r\n"));
        connection.reply().await?;
    }
}

fn put(body: &[u8]) -> Vec<u8> {
    let mut put = format!("put 0 0 60 {}\r\n", body.len()).into_bytes();
    put.extend_from_slice(body);
    put.extend_from_slice(b"\r\n");
    put
}

/// A connection whose tube is that of the row.
struct Connection {
    stream: TcpStream,
    input: BytesMut,
    /// What is sent before the next reply is waited for.
    output: Vec<u8>,
}

enum Reply {
    Inserted(u64),
    Reserved(u64),
    Deleted,
    TimedOut,
    /// Anything else, as it was said.
    Other(String),
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inserted(_) => "INSERTED",
            Self::Reserved(_) => "RESERVED",
            Self::Deleted => "DELETED",
            Self::TimedOut => "TIMED_OUT",
            Self::Other(line) => line,
        })
    }
}

impl Connection {
    async fn open(server: &str, tube: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let mut connection = Self { stream, input: BytesMut::new(), output: Vec::new() };
        connection.say(&format!("use {tube}\r\nwatch {tube}\r\nignore default\r\n"));
        for _ in 0..3 {
            connection.reply().await?;
        }
        Ok(connection)
    }

    fn say(&mut self, command: &str) {
        self.output.extend_from_slice(command.as_bytes());
    }

    /// Whether something has come that nobody has looked at yet.
    fn has_more(&self) -> bool {
        !self.input.is_empty()
    }

    /// The next reply. What is to be sent is sent if it has to be waited for.
    async fn reply(&mut self) -> io::Result<Reply> {
        let end = loop {
            match self.input.windows(2).position(|two| two == b"\r\n") {
                Some(end) => break end,
                None => self.wait().await?,
            }
        };
        let line = String::from_utf8_lossy(&self.input.split_to(end)).into_owned();
        self.input.advance(2);
        let mut words = line.split(' ');
        let (word, number) = (words.next().unwrap_or_default(), words.next().and_then(|id| id.parse().ok()));
        Ok(match (word, number) {
            ("INSERTED", Some(job)) => Reply::Inserted(job),
            ("RESERVED", Some(job)) => {
                let bytes = words.next().and_then(|bytes| bytes.parse::<usize>().ok());
                let bytes =
                    bytes.ok_or_else(|| io::Error::other(format!("a reply makes no sense: {line}")))?;
                while self.input.len() < bytes + 2 {
                    self.wait().await?;
                }
                self.input.advance(bytes + 2);
                Reply::Reserved(job)
            }
            ("DELETED", _) => Reply::Deleted,
            ("TIMED_OUT", _) => Reply::TimedOut,
            _ => Reply::Other(line),
        })
    }

    async fn wait(&mut self) -> io::Result<()> {
        if !self.output.is_empty() {
            self.stream.write_all(&self.output).await?;
            self.output.clear();
        }
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// Connections that put, and as many that take.
const CONNECTIONS_MAX: u32 = 16;
/// Jobs of a connection that are deleted at once when a row has ended.
const DELETES_AT_ONCE: usize = 256;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use synod_core::jobs::JobLimits;
    use synod_queue::access::{Answer, Question, QueueAccess as _};
    use synod_queue::beanstalk::{BeanstalkConfig, BeanstalkServer};
    use synod_queue::memory::MemoryQueue;

    use super::*;

    async fn serve(limits: JobLimits) -> (MemoryQueue, BeanstalkServer) {
        let queue = MemoryQueue::new(limits).expect("limits");
        let address = "127.0.0.1:0".parse().expect("an address");
        let server = BeanstalkServer::bind(address, BeanstalkConfig::default(), queue.clone()).await;
        (queue, server.expect("a server"))
    }

    fn load(operation: Operation, in_flight: u32) -> Load {
        let (body, queue) = (vec![b'x'; 200].into(), "bench".to_owned());
        Load { operation, in_flight, body, queue, runs_for: Duration::from_millis(100) }
    }

    #[tokio::test]
    async fn every_job_of_a_row_comes_to_its_end_and_none_is_left() {
        let (queue, server) = serve(JobLimits::default()).await;
        for operation in [Operation::Enqueue, Operation::Life] {
            for in_flight in [1, 40] {
                let tally = run(server.local_addr().to_string(), load(operation, in_flight)).await;
                assert_eq!(tally.failures, [].into(), "{operation} with {in_flight} in flight");
                assert!(tally.jobs > 0 && tally.jobs == tally.submissions.len() as u64);
                match queue.ask(Question::Overview).await {
                    Ok(Answer::Overview(overview)) => assert_eq!(overview.jobs, 0, "jobs are left"),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[tokio::test]
    async fn what_fails_is_counted_and_named() {
        let (_queue, server) = serve(JobLimits { body_bytes_max: 100, ..JobLimits::default() }).await;
        for operation in [Operation::Enqueue, Operation::Life] {
            let tally = run(server.local_addr().to_string(), load(operation, 4)).await;
            assert_eq!(tally.jobs, 0);
            let named: Vec<&String> = tally.failures.keys().collect();
            assert_eq!(named, ["a put was answered with JOB_TOO_BIG"]);
        }
    }
}
