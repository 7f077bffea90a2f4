//! One client: what it says is done in order, as much of it at once as can be.
//!
//! ```text
//!   bytes ──► parser ──► commands about single jobs ──► up to 256 under way ──► replies, in order ──► bytes
//!                   └──► all others: alone, after those before them
//! ```
//!
//! Commands that name the same job, and those that look at more than one, wait for the ones before. So a client sees what it
//! would see if each command were done when its turn comes.

mod alone;
mod reserve;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use synod_core::jobs::{Fence, JobId, Op, QueueName, SessionId, Submit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::command::{Command, Wrong};
use super::held::HeldJobs;
use super::issue::{self, Hold, Issued, UnderWay};
use super::node::Node;
use super::parser::Parser;
use super::reply::Reply;
use crate::access::QueueAccess;

/// One client.
pub(crate) struct Connection<Q> {
    access: Q,
    node: Arc<Node>,
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    parser: Parser,
    input: BytesMut,
    output: BytesMut,
    /// The client says no more.
    is_ended: bool,
    /// Once the replies are written, that is it.
    is_quitting: bool,
    /// Whether it was asked how long a body may be.
    is_limit_known: bool,
    used: QueueName,
    watched: Vec<QueueName>,
    session: Option<SessionId>,
    held: HeldJobs,
    under_way: FuturesOrdered<UnderWay>,
    jobs_under_way: BTreeSet<JobId>,
    bytes_under_way: usize,
    /// Waits for what is under way.
    next: Option<Command>,
    is_producer: bool,
    is_worker: bool,
}

/// The connection is over: the client is gone.
struct Gone;

impl<Q: QueueAccess> Connection<Q> {
    pub(crate) fn new(access: Q, node: Arc<Node>, stream: TcpStream) -> Self {
        let (reader, writer) = stream.into_split();
        let default = node.default_tube.clone();
        node.connections_total.fetch_add(1, Ordering::Relaxed);
        node.connections.fetch_add(1, Ordering::Relaxed);
        node.tubes.change(&default, |tube| {
            tube.using += 1;
            tube.watching += 1;
        });
        Self {
            access,
            node,
            reader,
            writer,
            parser: Parser::default(),
            input: BytesMut::new(),
            output: BytesMut::new(),
            is_ended: false,
            is_quitting: false,
            is_limit_known: false,
            used: default.clone(),
            watched: vec![default],
            session: None,
            held: HeldJobs::default(),
            under_way: FuturesOrdered::new(),
            jobs_under_way: BTreeSet::new(),
            bytes_under_way: 0,
            next: None,
            is_producer: false,
            is_worker: false,
        }
    }

    /// Serves the client until it goes, or until `stopped` is done. What it holds is then for others.
    pub(crate) async fn serve(mut self, stopped: impl Future<Output = ()>) {
        tokio::select! {
            // What one connection gives back when all are stopped is not for the next of them.
            biased;
            () = stopped => {}
            Gone = self.run() => {}
        }
        if let Some(session) = self.session.take() {
            let closed = issue::call(&self.access, &self.node, Op::SessionClose { session });
            if !matches!(timeout(CLOSE_WAIT_MAX, closed).await, Ok(Ok(_))) {
                tracing::warn!(%session, "a session was not closed; its jobs wait for their time-outs");
            }
        }
    }

    async fn run(&mut self) -> Gone {
        loop {
            if !self.is_limit_known && !self.input.is_empty() {
                self.node.learn_body_limit(&self.access).await;
                self.is_limit_known = true;
            }
            if let Some(command) = self.start_what_is_there() {
                match self.do_alone(command).await {
                    Ok(reply) => reply.write(&mut self.output),
                    Err(gone) => return gone,
                }
                continue;
            }
            let is_done = self.under_way.is_empty() && self.output.is_empty();
            if is_done && (self.is_quitting || self.is_ended) {
                return Gone;
            }
            let may_read = self.may_read();
            tokio::select! {
                // All replies that are there go out together.
                biased;
                Some(issued) = self.under_way.next(), if !self.under_way.is_empty() => self.finish(&issued),
                written = self.writer.write_buf(&mut self.output), if !self.output.is_empty() => {
                    if !matches!(written, Ok(1..)) {
                        return Gone;
                    }
                }
                read = self.reader.read_buf(&mut self.input), if may_read => {
                    if !self.heard(&read) {
                        return Gone;
                    }
                }
            }
        }
    }

    /// Starts the commands that have come, as far as they need not wait. One that must be done alone is returned, when its
    /// turn has come.
    fn start_what_is_there(&mut self) -> Option<Command> {
        while self.may_start() {
            let command = match self.next.take() {
                Some(command) => command,
                None => {
                    let parsed = self.parser.next(&mut self.input, self.node.body_bytes_max())?;
                    self.node.count(&parsed);
                    match parsed {
                        Ok(command) => command,
                        Err(wrong) => {
                            // The limit may have been raised.
                            self.is_limit_known &= wrong != Wrong::JobTooBig;
                            self.answer(wrong.into());
                            continue;
                        }
                    }
                }
            };
            if self.must_wait(&command) && !self.under_way.is_empty() {
                self.next = Some(command);
                return None;
            }
            if let Some(command) = self.start(command) {
                return Some(command);
            }
        }
        None
    }

    fn may_start(&self) -> bool {
        let config = &self.node.config;
        !self.is_quitting
            && self.under_way.len() < config.commands_under_way_max
            && self.output.len() < config.output_bytes_max
            && self.bytes_under_way < BYTES_UNDER_WAY_MAX
    }

    /// Whether a command could see what one before it has not done yet.
    fn must_wait(&self, command: &Command) -> bool {
        match command {
            Command::Put { .. }
            | Command::Use(_)
            | Command::Watch(_)
            | Command::Ignore(_)
            | Command::ListTubeUsed
            | Command::ListTubesWatched
            | Command::Quit => false,
            Command::Delete(job)
            | Command::Release { job, .. }
            | Command::Bury { job, .. }
            | Command::Touch(job)
            | Command::KickJob(job) => self.jobs_under_way.contains(job),
            _ => true,
        }
    }

    /// Starts a command, or returns it: it must be done alone.
    fn start(&mut self, command: Command) -> Option<Command> {
        let (access, node) = (self.access.clone(), self.node.clone());
        match command {
            Command::Put { put, body } => {
                if !self.is_producer {
                    self.is_producer = true;
                    node.producers.fetch_add(1, Ordering::Relaxed);
                }
                let mut submit = Submit::new(self.used.clone(), body);
                submit.client = node.config.client;
                submit.priority = put.priority;
                submit.delay_ms = millis(put.delay_s);
                submit.ttr_ms = Some(millis(put.ttr_s.max(1)));
                self.bytes_under_way += submit.body.len();
                self.under_way.push_back(Box::pin(issue::put(access, node, submit)));
            }
            Command::Delete(job) => {
                self.jobs_under_way.insert(job);
                let fence = self.held.fence(job);
                self.under_way.push_back(Box::pin(issue::delete(access, node, job, fence)));
            }
            Command::Release { job, priority, delay_s } => {
                let (delay_ms, priority) = (Some(millis(delay_s)), Some(priority));
                self.speak(job, |fence| Op::Nack { job, fence, delay_ms, priority, returns_attempt: false });
            }
            Command::Bury { job, priority } => {
                self.speak(job, |fence| Op::Bury { job, fence, priority: Some(priority) });
            }
            Command::Touch(job) => self.speak(job, |fence| Op::Extend { job, fence, ttr_ms: None }),
            Command::KickJob(job) => {
                self.jobs_under_way.insert(job);
                self.under_way.push_back(Box::pin(issue::kick_job(access, node, job)));
            }
            Command::Use(tube) => {
                node.tubes.change(&tube, |tube| tube.using += 1);
                node.tubes.change(&self.used, |tube| tube.using -= 1);
                self.used = tube.clone();
                self.answer(Reply::Using(tube));
            }
            Command::Watch(tube) => self.watch(tube),
            Command::Ignore(tube) => self.ignore(&tube),
            Command::ListTubeUsed => self.answer(Reply::Using(self.used.clone())),
            Command::ListTubesWatched => self.answer(Reply::Yaml(super::stats::list(&self.watched))),
            Command::Quit => self.is_quitting = true,
            command => return Some(command),
        }
        None
    }

    fn speak(&mut self, job: JobId, op: impl FnOnce(Fence) -> Op) {
        let op = self.held.fence(job).map(op);
        self.jobs_under_way.insert(job);
        self.under_way.push_back(Box::pin(issue::speak(self.access.clone(), self.node.clone(), op, job)));
    }

    fn watch(&mut self, tube: QueueName) {
        if !self.watched.contains(&tube) {
            if self.watched.len() >= WATCHED_MAX {
                self.answer(Reply::OUT_OF_MEMORY);
                return;
            }
            self.node.tubes.change(&tube, |tube| tube.watching += 1);
            self.watched.push(tube);
        }
        self.answer(Reply::Watching(self.watched.len()));
    }

    fn ignore(&mut self, tube: &QueueName) {
        if let Some(place) = self.watched.iter().position(|watched| watched == tube) {
            if self.watched.len() == 1 {
                self.answer(Reply::Word("NOT_IGNORED"));
                return;
            }
            self.watched.swap_remove(place);
            self.node.tubes.change(tube, |tube| tube.watching -= 1);
        }
        self.answer(Reply::Watching(self.watched.len()));
    }

    /// A reply that is known at once has its turn too.
    fn answer(&mut self, reply: Reply) {
        if self.under_way.is_empty() {
            reply.write(&mut self.output);
        } else {
            self.under_way.push_back(Box::pin(std::future::ready(Issued::at_once(reply))));
        }
    }

    /// A command is done.
    fn finish(&mut self, issued: &Issued) {
        self.bytes_under_way -= issued.bytes;
        if let Some((job, hold)) = issued.about {
            self.jobs_under_way.remove(&job);
            match hold {
                Hold::Same => {}
                Hold::Anew => self.held.touch(job),
                Hold::Ended => self.held.remove(job),
            }
        }
        issued.reply.write(&mut self.output);
    }

    fn may_read(&self) -> bool {
        !self.is_ended
            && !self.is_quitting
            && self.input.len() < INPUT_BYTES_MAX.max(self.parser.bytes_wanted())
    }

    /// The client has sent something, or said that it sends no more. Whether it is still there.
    fn heard(&mut self, read: &std::io::Result<usize>) -> bool {
        match read {
            Ok(0) => self.is_ended = true,
            Ok(_) => {}
            Err(_) => return false,
        }
        true
    }
}

impl<Q> Drop for Connection<Q> {
    fn drop(&mut self) {
        let node = &self.node;
        node.tubes.change(&self.used, |tube| tube.using -= 1);
        for tube in &self.watched {
            node.tubes.change(tube, |tube| tube.watching -= 1);
        }
        node.connections.fetch_sub(1, Ordering::Relaxed);
        node.producers.fetch_sub(self.is_producer.into(), Ordering::Relaxed);
        node.workers.fetch_sub(self.is_worker.into(), Ordering::Relaxed);
    }
}

fn millis(seconds: u32) -> u64 {
    u64::from(seconds) * 1_000
}

/// How much of what a client sends ahead is held, bodies that are longer excepted.
const INPUT_BYTES_MAX: usize = 64 << 10;
/// From so many bytes of bodies under way on, no further command is begun.
const BYTES_UNDER_WAY_MAX: usize = 4 << 20;
/// How many tubes one connection watches.
const WATCHED_MAX: usize = 1_000;
/// How long a connection that has ended waits for the queue to hear of it.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(5);
