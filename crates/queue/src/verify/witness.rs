//! Clients and workers that write down what they see.

use synod_core::jobs::check::{Record, SubmitAnswer};
use synod_core::jobs::{Assignment, JobId, Op, QueueName, Refusal, Reply, SessionId, Submit};
use tokio::sync::mpsc;
use xxhash_rust::xxh3::xxh3_64;

use super::history::History;
use crate::access::{CallError, QueueAccess as _};
use crate::link::{Link, SessionEvent};

/// A client that writes down what it submits and what it is told. Clones share one link.
#[derive(Clone, Debug)]
pub struct RecordedClient {
    link: Link,
    history: History,
}

impl RecordedClient {
    /// A client on a link.
    #[must_use]
    pub const fn new(link: Link, history: History) -> Self {
        Self { link, history }
    }

    /// The link, for what need not be recorded.
    #[must_use]
    pub const fn link(&self) -> &Link {
        &self.link
    }

    /// Submits a job. One that the queue knows already by its dedupe key is not accepted, and has no number here.
    ///
    /// # Errors
    /// It was refused, or nobody answered in time.
    pub async fn submit(&self, job: Submit) -> Result<Option<JobId>, CallError> {
        let body_hash = xxh3_64(&job.body);
        let numbered = self.link.begin_numbered(Op::Submit(job)).await?.await;
        let answer = match &numbered.result {
            Ok(Reply::Submitted { job }) => SubmitAnswer::Accepted { job: *job },
            // These say only that the queue cannot tell any more.
            Err(CallError::Refused(Refusal::GatewayUnknown | Refusal::SequenceTooOld)) => {
                SubmitAnswer::Unknown
            }
            Ok(_) | Err(CallError::Refused(_)) => SubmitAnswer::Refused,
            Err(_) => SubmitAnswer::Unknown,
        };
        if let Some(token) = numbered.token {
            self.history.saw(Record::Submit { token, body_hash, answer });
        }
        match (numbered.result?, answer) {
            (_, SubmitAnswer::Accepted { job }) => Ok(Some(job)),
            _ => Ok(None),
        }
    }
}

/// A session of a worker that writes down what it gets and what becomes of its acks.
#[derive(Debug)]
pub struct RecordedSession {
    link: Link,
    history: History,
    session: SessionId,
    events: mpsc::UnboundedReceiver<SessionEvent>,
}

impl RecordedSession {
    /// Opens a session.
    ///
    /// # Errors
    /// The queue did not take it in.
    pub async fn open(link: Link, history: History, session: SessionId) -> Result<Self, CallError> {
        let events = link.open_session(session).await?;
        Ok(Self { link, history, session, events })
    }

    /// Under which number the queue knows it.
    #[must_use]
    pub const fn session(&self) -> SessionId {
        self.session
    }

    /// What can be handed to those who do the jobs.
    #[must_use]
    pub fn hands(&self) -> RecordedHands {
        RecordedHands { link: self.link.clone(), history: self.history.clone(), session: self.session }
    }

    /// Takes so many jobs, instead of what is left of earlier ones.
    ///
    /// # Errors
    /// It was refused, or nobody answered in time.
    pub async fn grant(&self, queues: Vec<QueueName>, credits: u32) -> Result<(), CallError> {
        let op = Op::Credit { session: self.session, queues, credits, replaces: true };
        self.link.call(op).await.map(drop)
    }

    /// What the session hears next. `None`: its link is gone.
    pub async fn next(&mut self) -> Option<SessionEvent> {
        let event = self.events.recv().await?;
        if let SessionEvent::Delivery(delivery) = &event {
            self.history.saw(Record::Delivery {
                session: self.session,
                job: delivery.job,
                fence: delivery.fence,
                body_hash: xxh3_64(&delivery.body),
            });
        }
        Some(event)
    }

    /// Ends it. What it holds is for others.
    ///
    /// # Errors
    /// It was refused, or nobody answered in time.
    pub async fn close(self) -> Result<(), CallError> {
        self.link.call(Op::SessionClose { session: self.session }).await.map(drop)
    }
}

/// What a session says about the jobs that it holds.
#[derive(Clone, Debug)]
pub struct RecordedHands {
    link: Link,
    history: History,
    session: SessionId,
}

impl RecordedHands {
    /// The job is done. Tells whether that was taken; `None`: nobody answered in time.
    pub async fn ack(&self, Assignment { job, fence }: Assignment) -> Option<bool> {
        let is_taken = match self.link.call(Op::Ack { job, fence }).await {
            Ok(_) => Some(true),
            Err(CallError::Refused(_)) => Some(false),
            Err(_) => None,
        };
        self.history.saw(Record::Ack { session: self.session, job, fence, is_taken });
        is_taken
    }

    /// Anything else. It is not recorded: what came of it is in the log.
    ///
    /// # Errors
    /// It was refused, or nobody answered in time.
    pub async fn call(&self, op: Op) -> Result<Reply, CallError> {
        self.link.call(op).await
    }
}
