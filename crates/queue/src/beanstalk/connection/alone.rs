//! Commands that look at more than one job, or wait: each is done when nothing else of its connection is under way.

use synod_core::jobs::{JobId, Op, QueueName, QueueStats, Refusal, Reply as Done};

use super::{Connection, Gone, millis};
use crate::access::{Answer, CallError, JobAnswer, Overview, Question, QueueAccess};
use crate::beanstalk::command::Command;
use crate::beanstalk::reply::Reply;
use crate::beanstalk::{issue, stats};

impl<Q: QueueAccess> Connection<Q> {
    /// Does a command. Nothing else of this connection is under way.
    pub(super) async fn do_alone(&mut self, command: Command) -> Result<Reply, Gone> {
        let result = match command {
            Command::Reserve => return self.reserve(None).await,
            Command::ReserveWithTimeout(seconds) => return self.reserve(seconds).await,
            Command::ReserveJob(job) => return Ok(self.reserve_job(job).await),
            Command::Peek(job) => self.peek(Question::Job { job, with_body: true }).await,
            Command::PeekFirst(state) => self.peek(Question::Peek { queue: self.used.clone(), state }).await,
            Command::Kick(count) => self.kick(count).await,
            Command::PauseTube { tube, seconds } => self.pause_tube(tube, seconds).await,
            Command::Stats => self.stats().await,
            Command::StatsJob(job) => self.stats_job(job).await,
            Command::StatsTube(tube) => self.stats_tube(tube).await,
            Command::ListTubes => self.list_tubes().await,
            // All others were started at once.
            _ => Ok(Reply::INTERNAL_ERROR),
        };
        Ok(result.unwrap_or_else(Reply::from))
    }

    async fn peek(&mut self, question: Question) -> Result<Reply, CallError> {
        Ok(match self.job(question).await? {
            // What is remembered of a finished job has no body.
            Some(JobAnswer { view, body: Some(body), .. }) => Reply::Found { job: view.id, body },
            _ => Reply::NOT_FOUND,
        })
    }

    async fn kick(&mut self, count: u32) -> Result<Reply, CallError> {
        let op = Op::Kick { queue: self.used.clone(), count };
        match issue::call(&self.access, &self.node, op).await {
            Ok(Done::Counted { count }) => Ok(Reply::Kicked(count)),
            Ok(_) => Ok(Reply::INTERNAL_ERROR),
            Err(CallError::Refused(Refusal::QueueUnknown)) => Ok(Reply::Kicked(0)),
            Err(error) => Err(error),
        }
    }

    async fn pause_tube(&mut self, tube: QueueName, seconds: u32) -> Result<Reply, CallError> {
        let op = Op::Pause { queue: tube.clone(), millis: Some(millis(seconds)) };
        let mut paused = issue::call(&self.access, &self.node, op.clone()).await;
        let is_used_here = tube == self.node.default_tube || self.node.tubes.find(&tube).is_some();
        if is_used_here && matches!(paused, Err(CallError::Refused(Refusal::QueueUnknown))) {
            // A tube that somebody uses is there, though the queue has heard nothing of it: a session that watches it makes
            // it known.
            let session = self.session().await?;
            let watch = Op::Credit { session, queues: vec![tube.clone()], credits: 0, replaces: true };
            issue::call(&self.access, &self.node, watch).await?;
            paused = issue::call(&self.access, &self.node, op).await;
        }
        paused?;
        self.node.tubes.change(&tube, |tube| {
            tube.pauses += 1;
            tube.pause_s = seconds;
        });
        Ok(Reply::Word("PAUSED"))
    }

    async fn stats(&mut self) -> Result<Reply, CallError> {
        let overview = self.overview().await?;
        self.node.set_body_limit(overview.body_bytes_max);
        let queues = self.queues().await?;
        Ok(Reply::Yaml(stats::of_all(&self.node, &overview, &queues)))
    }

    async fn stats_job(&mut self, job: JobId) -> Result<Reply, CallError> {
        let job = self.job(Question::Job { job, with_body: false }).await?;
        Ok(job.as_ref().and_then(stats::of_job).map_or(Reply::NOT_FOUND, Reply::Yaml))
    }

    async fn stats_tube(&mut self, name: QueueName) -> Result<Reply, CallError> {
        let Answer::Queue(queue) = self.access.ask(Question::Queue(name.clone())).await? else {
            return Err(nonsense());
        };
        let tube = self.node.tubes.find(&name);
        let has_jobs = queue.as_deref().is_some_and(stats::is_used);
        if tube.is_none() && !has_jobs && name != self.node.default_tube {
            return Ok(Reply::NOT_FOUND);
        }
        let time_ms = match queue.as_ref().and_then(|queue| queue.paused) {
            Some(_) => self.overview().await?.time_ms,
            None => 0,
        };
        Ok(Reply::Yaml(stats::of_tube(&name, tube.unwrap_or_default(), queue.as_deref(), time_ms)))
    }

    async fn list_tubes(&mut self) -> Result<Reply, CallError> {
        let queues = self.queues().await?;
        Ok(Reply::Yaml(stats::list(&stats::existing(&self.node, &queues))))
    }

    async fn job(&mut self, question: Question) -> Result<Option<JobAnswer>, CallError> {
        match self.access.ask(question).await? {
            Answer::Job(job) => Ok(job.map(|job| *job)),
            _ => Err(nonsense()),
        }
    }

    async fn overview(&mut self) -> Result<Box<Overview>, CallError> {
        match self.access.ask(Question::Overview).await? {
            Answer::Overview(overview) => Ok(overview),
            _ => Err(nonsense()),
        }
    }

    async fn queues(&mut self) -> Result<Vec<QueueStats>, CallError> {
        match self.access.ask(Question::Queues).await? {
            Answer::Queues(queues) => Ok(queues),
            _ => Err(nonsense()),
        }
    }
}

fn nonsense() -> CallError {
    CallError::Nonsense("a question was answered with something else".to_owned())
}
