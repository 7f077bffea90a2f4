//! The way to a queue from anywhere: finds the leader, follows it, and says again what was not answered.
//!
//! ```text
//!   calls, pulls, questions ──► Link ──► one stream to the leader
//!                                │ the leader is gone: ask around, connect, open sessions again,
//!                                └─ send again what has no outcome yet, under the same numbers
//! ```
//!
//! Commands are numbered, and the queue does a number once ([`synod_core::jobs::Token`]). So whoever calls need not care
//! about elections: the call takes longer. What a worker holds is told to the new leader, which sends the rest.

mod connect;
mod driver;
mod ledger;
mod outbox;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use synod_cluster::remote::BearerToken;
use synod_core::jobs::{Assignment, Delivery, JobId, Op, QueueName, Reply, SessionId};
use synod_wire::queue as wire;
use tokio::sync::{mpsc, oneshot};

use crate::access::{Answer, CallError, Question, QueueAccess};
use crate::connect::{Connect, TcpConnect};
use crate::wire::write_op;

/// How a link finds its queue.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Nodes of the cluster, as `host:port` of their peer listeners. One that answers is enough.
    pub seeds: Vec<String>,
    /// Which group.
    pub group: u16,
    /// What is shown to a cluster with a secret.
    pub token: BearerToken,
    /// A name for operators to see.
    pub name: String,
    /// How long a call may be without an outcome, elections included. Default 10 s.
    pub patience: Duration,
    /// How connections are made. Default over TCP.
    pub connect: Arc<dyn Connect>,
}

impl LinkConfig {
    /// To the first group of the cluster that these nodes belong to.
    #[must_use]
    pub fn new<S: Into<String>>(seeds: impl IntoIterator<Item = S>) -> Self {
        Self {
            seeds: seeds.into_iter().map(Into::into).collect(),
            group: 0,
            token: BearerToken::default(),
            name: String::new(),
            patience: Duration::from_secs(10),
            connect: Arc::new(TcpConnect),
        }
    }
}

/// A way to a queue. Clones share one stream.
#[derive(Clone)]
pub struct Link {
    asks: mpsc::Sender<Ask>,
    config: Arc<LinkConfig>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("seeds", &self.config.seeds).finish_non_exhaustive()
    }
}

/// What a session hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// A job to do.
    Delivery(Delivery),
    /// The job is not this session's any more.
    Lost(Assignment),
    /// The queue had given the session up: it holds nothing any more, and is open anew, without credits.
    Restarted,
}

/// What became of a call, and the number under which the queue knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// The number. `None`: the call was never sent.
    pub token: Option<synod_core::jobs::Token>,
    /// What became of it.
    pub result: Result<Reply, CallError>,
}

type CallReply = oneshot::Sender<Result<Reply, CallError>>;
type NumberedReply = oneshot::Sender<Numbered>;
type DeliveryReply = oneshot::Sender<Result<Delivery, CallError>>;
/// Nothing where there is nothing, and the pull does not wait.
type PullReply = oneshot::Sender<Result<Option<Delivery>, CallError>>;

/// What a pull is to bring.
#[derive(Clone, Debug)]
struct Wish {
    session: SessionId,
    queues: Vec<QueueName>,
    ttr_ms: Option<u64>,
    waits: bool,
}

/// What is asked of the driver of a link.
enum Ask {
    Command {
        op: wire::command::Op,
        reply: CallReply,
    },
    Numbered {
        op: wire::command::Op,
        reply: NumberedReply,
    },
    Reserve {
        session: SessionId,
        job: JobId,
        reply: DeliveryReply,
    },
    Pull {
        id: u64,
        wish: Wish,
        reply: PullReply,
    },
    Withdraw {
        id: u64,
    },
    Question {
        question: Question,
        reply: oneshot::Sender<Result<Answer, CallError>>,
    },
    Open {
        session: SessionId,
        secret: u64,
        events: Option<mpsc::UnboundedSender<SessionEvent>>,
        reply: CallReply,
    },
}

impl Link {
    /// A link to a queue. It connects by itself, now and whenever it has to.
    #[must_use]
    pub fn new(config: LinkConfig) -> Self {
        let (asks, received) = mpsc::channel(ASKS_MAX);
        let config = Arc::new(config);
        tokio::spawn(driver::run(Arc::clone(&config), received));
        Self { asks, config }
    }

    /// The nodes that it was told of.
    #[must_use]
    pub fn seeds(&self) -> &[String] {
        &self.config.seeds
    }

    /// Opens a session, which is told everything that concerns it. It is opened again by itself after an election.
    ///
    /// # Errors
    /// As of a call.
    pub async fn open_session(
        &self,
        session: SessionId,
    ) -> Result<mpsc::UnboundedReceiver<SessionEvent>, CallError> {
        let (events, heard) = mpsc::unbounded_channel();
        let (reply, answered) = oneshot::channel();
        let secret = fastrand::u64(1..);
        self.ask(Ask::Open { session, secret, events: Some(events), reply }).await?;
        answered.await.map_err(|_| CallError::Closed)??;
        Ok(heard)
    }

    /// Begins a call and does not wait for it, so that many can be under way; in the order of these calls they are done.
    ///
    /// # Errors
    /// The link was closed, or the command is not for clients.
    pub async fn begin(
        &self,
        op: Op,
    ) -> Result<impl Future<Output = Result<Reply, CallError>> + Send + use<>, CallError> {
        let (reply, answered) = oneshot::channel();
        match op {
            Op::SessionOpen { session, secret } => {
                self.ask(Ask::Open { session, secret, events: None, reply }).await?;
            }
            op => {
                let op = write_op(op).ok_or_else(not_for_clients)?;
                self.ask(Ask::Command { op, reply }).await?;
            }
        }
        Ok(async move { answered.await.unwrap_or(Err(CallError::Closed)) })
    }

    /// As [`begin`](Self::begin), and tells the number of the call in the end, for those who keep a record. Not for sessions
    /// that are opened.
    ///
    /// # Errors
    /// The link was closed, or the command is not for clients.
    pub async fn begin_numbered(
        &self,
        op: Op,
    ) -> Result<impl Future<Output = Numbered> + Send + use<>, CallError> {
        let (reply, answered) = oneshot::channel();
        let op = write_op(op).ok_or_else(not_for_clients)?;
        self.ask(Ask::Numbered { op, reply }).await?;
        let closed = Numbered { token: None, result: Err(CallError::Closed) };
        Ok(async move { answered.await.unwrap_or(closed) })
    }

    /// Takes a job, if there is one or as soon as there is.
    async fn pull_one(&self, wish: Wish) -> Result<Option<Delivery>, CallError> {
        let (reply, answered) = oneshot::channel();
        let id = fastrand::u64(1..);
        self.ask(Ask::Pull { id, wish, reply }).await?;
        let mut withdrawal = Withdrawal { asks: &self.asks, id: Some(id) };
        let delivery = answered.await.unwrap_or(Err(CallError::Closed));
        withdrawal.id = None;
        delivery
    }

    /// Hands something to the driver, in the order in which these are first polled: where there is room nothing is waited
    /// for, not even the turn of another task.
    async fn ask(&self, ask: Ask) -> Result<(), CallError> {
        match self.asks.try_send(ask) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(ask)) => {
                self.asks.send(ask).await.map_err(|_| CallError::Closed)
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(CallError::Closed),
        }
    }
}

impl QueueAccess for Link {
    async fn call(&self, op: Op) -> Result<Reply, CallError> {
        match op {
            Op::Pull { session, queues, count: 1, ttr_ms } => {
                let pulled = self.pull_one(Wish { session, queues, ttr_ms, waits: false }).await?;
                let assignment = |delivery: Delivery| Assignment { job: delivery.job, fence: delivery.fence };
                Ok(Reply::Pulled(pulled.map(assignment).into_iter().collect()))
            }
            op => self.begin(op).await?.await,
        }
    }

    async fn pull(&self, session: SessionId, queues: Vec<QueueName>) -> Result<Delivery, CallError> {
        let pulled = self.pull_one(Wish { session, queues, ttr_ms: None, waits: true }).await?;
        pulled.ok_or_else(|| CallError::Nonsense("a pull that waits came back with nothing".to_owned()))
    }

    async fn reserve(&self, session: SessionId, job: JobId) -> Result<Delivery, CallError> {
        let (reply, answered) = oneshot::channel();
        self.ask(Ask::Reserve { session, job, reply }).await?;
        answered.await.unwrap_or(Err(CallError::Closed))
    }

    async fn ask(&self, question: Question) -> Result<Answer, CallError> {
        let (reply, answered) = oneshot::channel();
        Self::ask(self, Ask::Question { question, reply }).await?;
        answered.await.unwrap_or(Err(CallError::Closed))
    }
}

fn not_for_clients() -> CallError {
    CallError::Nonsense("the command is not one for clients".to_owned())
}

/// Takes a pull back that nobody waits for any more.
struct Withdrawal<'a> {
    asks: &'a mpsc::Sender<Ask>,
    id: Option<u64>,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        // Where there is no room, the driver finds out when the job comes: nobody takes it, and it goes back.
        if let Some(id) = self.id {
            drop(self.asks.try_send(Ask::Withdraw { id }));
        }
    }
}

/// Asks that wait for the driver.
const ASKS_MAX: usize = 4_096;
