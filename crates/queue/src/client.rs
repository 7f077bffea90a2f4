//! A client of the queue: submits jobs, and looks after queues.

use bytes::Bytes;
use synod_core::jobs::{CancelGuard, JobId, NameError, Op, QueueName, QueueStats, Reply, Submit};

use crate::access::{Answer, CallError, JobAnswer, Overview, Question, QueueAccess};
use crate::link::{Link, LinkConfig};

/// A client of a queue. Clones share one connection, which finds the leader by itself.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use synod_queue::Client;
///
/// let client = Client::connect(["127.0.0.1:7371", "127.0.0.1:7381", "127.0.0.1:7391"]);
/// let job = client.submit("emails", "to: ada@example.org").await?;
/// println!("job {job} is on the disks of a majority");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    link: Link,
}

impl Client {
    /// A client of the cluster that these nodes belong to, by `host:port` of their peer listeners. One that answers is enough.
    #[must_use]
    pub fn connect<S: Into<String>>(seeds: impl IntoIterator<Item = S>) -> Self {
        Self::new(LinkConfig::new(seeds))
    }

    /// A client with settings of its own.
    #[must_use]
    pub fn new(config: LinkConfig) -> Self {
        Self { link: Link::new(config) }
    }

    /// The way to the queue, for what this client has no method for.
    #[must_use]
    pub const fn link(&self) -> &Link {
        &self.link
    }

    /// Submits a job, and returns when it is on the disks of a majority.
    ///
    /// # Errors
    /// The name is not one of a queue, the job was refused, or nobody answered in time.
    pub async fn submit(&self, queue: &str, body: impl Into<Bytes>) -> Result<JobId, ClientError> {
        self.submit_job(Submit::new(QueueName::new(queue)?, body)).await
    }

    /// Submits a job with all that can be said about it. One that the queue knows already by its dedupe key is that one.
    ///
    /// # Errors
    /// The job was refused, or nobody answered in time.
    pub async fn submit_job(&self, job: Submit) -> Result<JobId, ClientError> {
        submitted(self.link.call(Op::Submit(job)).await)
    }

    /// Submits many jobs, as many at a time as the queue lets, in their order, and tells what became of each.
    pub async fn submit_all(
        &self,
        jobs: impl IntoIterator<Item = Submit>,
    ) -> Vec<Result<JobId, ClientError>> {
        let mut begun = Vec::new();
        for job in jobs {
            begun.push(self.link.begin(Op::Submit(job)).await);
        }
        let mut results = Vec::with_capacity(begun.len());
        for call in begun {
            results.push(match call {
                Ok(call) => submitted(call.await),
                Err(error) => Err(error.into()),
            });
        }
        results
    }

    /// Takes a job back that nobody holds.
    ///
    /// # Errors
    /// There is none, somebody holds it, or nobody answered in time.
    pub async fn cancel(&self, job: JobId) -> Result<(), ClientError> {
        self.do_op(Op::Cancel { job, guard: CancelGuard::Idle }).await.map(drop)
    }

    /// Makes dead jobs of a queue ready again, the longest dead first, and tells how many.
    ///
    /// # Errors
    /// There is no such queue, or nobody answered in time.
    pub async fn redrive(&self, queue: &str, count: u32) -> Result<u32, ClientError> {
        match self.do_op(Op::Kick { queue: QueueName::new(queue)?, count }).await? {
            Reply::Counted { count } => Ok(count),
            other => Err(nonsense(&other)),
        }
    }

    /// Has something done that there is no method for.
    ///
    /// # Errors
    /// It was refused, or nobody answered in time.
    pub async fn do_op(&self, op: Op) -> Result<Reply, ClientError> {
        Ok(self.link.call(op).await?)
    }

    /// All queues in numbers.
    ///
    /// # Errors
    /// Nobody answered in time.
    pub async fn queues(&self) -> Result<Vec<QueueStats>, ClientError> {
        match self.link.ask(Question::Queues).await? {
            Answer::Queues(queues) => Ok(queues),
            other => Err(nonsense(&other)),
        }
    }

    /// All queues together.
    ///
    /// # Errors
    /// Nobody answered in time.
    pub async fn overview(&self) -> Result<Overview, ClientError> {
        match self.link.ask(Question::Overview).await? {
            Answer::Overview(overview) => Ok(*overview),
            other => Err(nonsense(&other)),
        }
    }

    /// A job and what is remembered of its life, finished jobs included for a while.
    ///
    /// # Errors
    /// Nobody answered in time.
    pub async fn job(&self, job: JobId) -> Result<Option<JobAnswer>, ClientError> {
        match self.link.ask(Question::Job { job, with_body: false }).await? {
            Answer::Job(job) => Ok(job.map(|job| *job)),
            other => Err(nonsense(&other)),
        }
    }
}

/// A client did not get what it wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The name is not one of a queue.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The call.
    #[error(transparent)]
    Call(#[from] CallError),
}

fn submitted(result: Result<Reply, CallError>) -> Result<JobId, ClientError> {
    match result? {
        Reply::Submitted { job } | Reply::Duplicate { job } => Ok(job),
        other => Err(nonsense(&other)),
    }
}

fn nonsense(answer: &impl std::fmt::Debug) -> ClientError {
    CallError::Nonsense(format!("{answer:?}")).into()
}
