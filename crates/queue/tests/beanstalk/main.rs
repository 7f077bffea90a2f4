//! The gateway for beanstalkd's clients over real sockets, in front of a queue in memory.
//!
//! Time is tokio's, and paused: it moves on when everybody waits, so nothing here takes as long as it says.

mod bounds;
mod commands;
mod refusals;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use synod_core::jobs::{Delivery, JobId, JobLimits, Op, QueueName, Reply, SessionId};
use synod_queue::access::{Answer, CallError, Question, QueueAccess};
use synod_queue::beanstalk::{BeanstalkConfig, BeanstalkServer};
use synod_queue::memory::MemoryQueue;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// A listener, and the queue behind it.
struct Gateway<Q = MemoryQueue> {
    server: BeanstalkServer,
    queue: Q,
}

impl Gateway {
    async fn start() -> Self {
        Self::with(JobLimits::default(), BeanstalkConfig::default()).await
    }

    async fn with(limits: JobLimits, config: BeanstalkConfig) -> Self {
        Self::of(MemoryQueue::new(limits).unwrap(), config).await
    }
}

impl<Q: QueueAccess> Gateway<Q> {
    async fn of(queue: Q, config: BeanstalkConfig) -> Self {
        let address = "127.0.0.1:0".parse().unwrap();
        let server = BeanstalkServer::bind(address, config, queue.clone()).await.unwrap();
        Self { server, queue }
    }

    async fn client(&self) -> Client {
        Client { stream: BufReader::new(TcpStream::connect(self.server.local_addr()).await.unwrap()) }
    }

    async fn overview_jobs(&self) -> u64 {
        match self.queue.ask(Question::Overview).await {
            Ok(Answer::Overview(overview)) => overview.jobs,
            other => panic!("{other:?}"),
        }
    }
}

/// A client that says things to the byte.
struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// The next reply without the end of its line, with its body behind a space if it has one. Empty: there are no more.
    async fn reply(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.unwrap();
        let mut reply = line.trim_end_matches("\r\n").to_owned();
        if let Some(("OK" | "RESERVED" | "FOUND", rest)) = reply.split_once(' ') {
            let mut body = vec![0; rest.rsplit(' ').next().unwrap().parse::<usize>().unwrap() + 2];
            self.stream.read_exact(&mut body).await.unwrap();
            assert!(body.ends_with(b"\r\n"), "{body:?}");
            reply.push(' ');
            reply.push_str(&String::from_utf8_lossy(&body[..body.len() - 2]));
        }
        reply
    }

    async fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n")).await;
        self.reply().await
    }

    /// Sends lines, each after the reply to the one before, and compares the replies.
    async fn script(&mut self, lines: &[(&str, &str)]) {
        for (line, wanted) in lines {
            assert_eq!(self.ask(&line.replace('|', "\r\n")).await, *wanted, "to {line:?}");
        }
    }

    /// The value of a key in statistics.
    async fn stat(&mut self, command: &str, key: &str) -> String {
        let yaml = self.ask(command).await;
        let line = yaml.lines().find_map(|line| line.strip_prefix(&format!("{key}: ")));
        line.unwrap_or_else(|| panic!("{key} is not in {yaml}")).to_owned()
    }
}

/// A queue whose calls wait until they are let through, and that can be made to fail.
#[derive(Clone)]
struct Gated {
    queue: MemoryQueue,
    gate: Arc<Semaphore>,
    under_way: Arc<AtomicUsize>,
    most_under_way: Arc<AtomicUsize>,
    /// So many calls fail from now on.
    failures: Arc<AtomicUsize>,
    error: CallError,
}

impl Gated {
    /// Lets so many calls through at first.
    fn new(permits: usize, error: CallError) -> Self {
        Self {
            queue: MemoryQueue::new(JobLimits::default()).unwrap(),
            gate: Arc::new(Semaphore::new(permits)),
            under_way: Arc::default(),
            most_under_way: Arc::default(),
            failures: Arc::default(),
            error,
        }
    }

    fn fail(&self) -> Result<(), CallError> {
        let take_one = |left: usize| left.checked_sub(1);
        match self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take_one) {
            Ok(_) => Err(self.error.clone()),
            Err(_) => Ok(()),
        }
    }
}

impl QueueAccess for Gated {
    async fn call(&self, op: Op) -> Result<Reply, CallError> {
        self.fail()?;
        let under_way = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_under_way.fetch_max(under_way, Ordering::Relaxed);
        self.gate.acquire().await.unwrap().forget();
        let reply = self.queue.call(op).await;
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        reply
    }

    async fn pull(&self, session: SessionId, queues: Vec<QueueName>) -> Result<Delivery, CallError> {
        self.fail()?;
        self.queue.pull(session, queues).await
    }

    async fn reserve(&self, session: SessionId, job: JobId) -> Result<Delivery, CallError> {
        self.fail()?;
        self.queue.reserve(session, job).await
    }

    async fn ask(&self, question: Question) -> Result<Answer, CallError> {
        self.fail()?;
        self.queue.ask(question).await
    }
}
