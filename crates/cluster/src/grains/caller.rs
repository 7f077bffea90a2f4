//! The calling side: a grain by its name.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use prost::Name;
use synod_core::grains::{
    ActorPid, Answer, AttemptFailure, CallEnd, CallRequest, ClusterIdentity, CorrelationId, GrainEvent,
    GrainRpcRouter, RetryPolicy, RouterOutcome, SCHEMA_BASE,
};
use synod_core::roster::RosterMember;
use synod_core::time::TimerInstant;
use synod_wire::cluster::{
    self as wire, ActivationRequest, ActivationResponse, GrainErrorResponse, GrainRequest,
};
use synod_wire::names;
use tokio::time::Instant;

use super::calls::{Calls, Step};
use super::error::{CallError, GrainError};
use super::{Asker, Grains, HEADER_CHAIN, HEADER_DEADLINE, actor_pid, remote_pid};
use crate::remote::{Lane, Message, Pid, RequestError};

/// A grain, whether it runs or not. Cheap to make and to copy.
#[derive(Clone)]
pub struct GrainRef {
    grains: Grains,
    identity: ClusterIdentity,
    timeout: Duration,
    retry: Option<RetryPolicy>,
    once: bool,
    chain: Vec<String>,
    deadline: Option<Instant>,
}

impl GrainRef {
    pub(super) const fn new(grains: Grains, identity: ClusterIdentity) -> Self {
        let timeout = TIMEOUT;
        Self { grains, identity, timeout, retry: None, once: false, chain: Vec::new(), deadline: None }
    }

    pub(super) fn on_behalf(mut self, chain: Vec<String>, deadline: Option<Instant>) -> Self {
        self.chain = chain;
        self.deadline = deadline;
        self
    }

    /// The same grain, called with this much patience. Default 5 s.
    #[must_use]
    pub const fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The same grain, with another answer to attempts that fail.
    #[must_use]
    pub const fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = Some(retry);
        self
    }

    /// The same grain, called by whoever would do harm by a repetition: a call that the grain may have handled is not tried
    /// again, but ends with an error.
    #[must_use]
    pub const fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// Its kind and identity.
    #[must_use]
    pub const fn identity(&self) -> &ClusterIdentity {
        &self.identity
    }

    /// Calls a method by its position in the service, and reads the answer as `R`.
    ///
    /// # Errors
    /// [`CallError`] says whether the grain may have handled the call.
    pub async fn call<R: prost::Message + Name + Default>(
        &self,
        method: i32,
        argument: &impl prost::Message,
    ) -> Result<R, CallError> {
        let read = |answer: Message| answer.decode().map_err(|error| error.to_string());
        self.call_as(method, argument.encode_to_vec().into(), read).await
    }

    /// Calls a method with an encoded argument, and returns what `read` makes of the answer.
    pub(super) async fn call_as<T>(
        &self,
        method: i32,
        argument: Bytes,
        read: impl Fn(Message) -> Result<T, String>,
    ) -> Result<T, CallError> {
        let request =
            GrainRequest { method_index: method, message_data: argument, message_type_name: String::new() };
        self.request_as(Message::new(&request), read).await
    }

    /// A call that cannot be written fails before it begins. Observers are told all the same.
    pub(super) fn unwritable(&self, reason: String) -> CallError {
        let grain = self.identity.clone();
        self.grains.publish(GrainEvent::CallUnwritable { grain: grain.clone(), reason: reason.clone() });
        CallError::Failed { grain, failure: AttemptFailure::Uncodable(reason) }
    }

    /// Calls a method with an encoded argument, and returns whatever the grain answers.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn call_raw(&self, method: i32, argument: Bytes) -> Result<Message, CallError> {
        self.call_as(method, argument, Ok).await
    }

    /// Sends the grain any message and waits for its answer, as `actor.Touch` for one that only wakes it.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn request(&self, message: Message) -> Result<Message, CallError> {
        self.request_as(message, Ok).await
    }

    /// An answer that cannot be read is a failure of the call, so it is read before the call is over.
    async fn request_as<T>(
        &self,
        message: Message,
        read: impl Fn(Message) -> Result<T, String>,
    ) -> Result<T, CallError> {
        let name = self.identity.key().as_str();
        if self.chain.iter().any(|before| before == name) {
            let mut chain = self.chain.clone();
            chain.push(name.to_owned());
            return Err(CallError::Cycle { grain: self.identity.clone(), chain });
        }
        let now = self.grains.inner.clock.now();
        let within = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let patience = within.map_or(self.timeout, |within| within.min(self.timeout));
        let request = CallRequest {
            grain: self.identity.clone(),
            deadline: now + patience,
            schema_min: SCHEMA_BASE,
            retry: self.retry,
            known: self.grains.recall(&self.identity, now),
            once: self.once,
        };
        let (correlation, first, outcome) = self.calls().begin(request, now);
        let mut pending = PendingCall { grains: &self.grains, correlation, is_over: false };
        self.grains.perform_calls(outcome);
        let mut answered = None;
        let mut step = match first {
            None => self.calls().next(correlation).await,
            told => told,
        };
        loop {
            let told = match step {
                None => break Err(CallError::ShutDown { grain: self.identity.clone() }),
                Some(Step::Ended(end)) => {
                    pending.is_over = true;
                    break self.ended(end, answered);
                }
                Some(Step::Resolve) => {
                    tokio::select! {
                        biased;
                        told = self.resolve(correlation) => told,
                        // Another attempt begins, or the time is over: this one is not waited for any more.
                        told = self.calls().next(correlation) => { step = told; continue }
                    }
                }
                Some(Step::Send { pid, remaining, schema }) => {
                    let request = self.with_headers(&message, remaining);
                    let target = remote_pid(&pid);
                    tokio::select! {
                        biased;
                        answer = self.grains.remote().request_patiently(Lane::User, &target, request) => {
                            self.settle(correlation, answer, schema, &read, &mut answered)
                        }
                        told = self.calls().next(correlation) => { step = told; continue }
                    }
                }
            };
            step = match told {
                None => self.calls().next(correlation).await,
                told => told,
            };
        }
    }

    fn calls(&self) -> &Calls {
        &self.grains.inner.calls
    }

    /// Looks for the grain. Returns what to do next, unless that is told later.
    async fn resolve(&self, correlation: CorrelationId) -> Option<Step> {
        let failure = match self.grains.look_up(&self.identity) {
            Ok(pid) => return self.resolved(correlation, pid),
            Err(None) => AttemptFailure::NoHost,
            Err(Some(owner)) if owner.authority == *self.grains.remote().authority() => {
                self.grains.ask_registry(&self.identity, Asker::Call(correlation));
                return None;
            }
            Err(Some(owner)) => match self.ask_owner(&owner).await {
                Ok(pid) => {
                    self.grains.remember(&self.identity, &pid, owner.id);
                    return self.resolved(correlation, pid);
                }
                Err(failure) => failure,
            },
        };
        self.failed(correlation, failure)
    }

    async fn ask_owner(&self, owner: &RosterMember) -> Result<ActorPid, AttemptFailure> {
        let identity = wire::ClusterIdentity {
            identity: self.identity.identity().to_owned(),
            kind: self.identity.kind().to_owned(),
        };
        let request = ActivationRequest {
            cluster_identity: Some(identity),
            request_id: String::new(),
            topology_hash: 0,
        };
        let message =
            Message::protocol(&request).map_err(|error| AttemptFailure::Uncodable(error.to_string()))?;
        let activator = Pid::new(owner.authority.as_str(), names::ACTOR_PARTITION_ACTIVATOR);
        let timeout = self.grains.inner.config.router.attempt_timeout;
        match self.grains.remote().ask::<ActivationResponse>(&activator, message, timeout).await {
            Ok(ActivationResponse { pid: Some(pid), failed: false, .. }) => actor_pid(&Pid::from(&pid))
                .ok_or_else(|| AttemptFailure::ActivationRefused("the host named no actor".into())),
            Ok(_) => Err(AttemptFailure::ActivationRefused("the host did not start it".into())),
            Err(RequestError::Timeout { .. }) => Err(AttemptFailure::NoAnswer),
            Err(_) => Err(AttemptFailure::Unreachable(owner.authority.clone())),
        }
    }

    /// Tells the router how an attempt went, and keeps the answer, if that is what came. Returns what to do next.
    fn settle<T>(
        &self,
        correlation: CorrelationId,
        answer: Result<Message, RequestError>,
        schema: u32,
        read: impl Fn(Message) -> Result<T, String>,
        answered: &mut Option<Answered<T>>,
    ) -> Option<Step> {
        let failure = match answer {
            Ok(message) => match Answered::read(message, read) {
                Ok(readable) => {
                    let is_content = matches!(readable, Answered::Content(_));
                    let kind = if is_content { Answer::Success } else { Answer::GrainError };
                    *answered = Some(readable);
                    return self.decide(correlation, |router, now| {
                        router.handle_response(correlation, kind, schema, now)
                    });
                }
                Err(reason) => {
                    *answered = Some(Answered::Unreadable);
                    AttemptFailure::Uncodable(reason)
                }
            },
            Err(RequestError::DeadLetter { .. }) => AttemptFailure::DeadLetter,
            Err(RequestError::Timeout { .. }) => AttemptFailure::NoAnswer,
            Err(other) => AttemptFailure::Uncodable(other.to_string()),
        };
        self.failed(correlation, failure)
    }

    fn resolved(&self, correlation: CorrelationId, pid: ActorPid) -> Option<Step> {
        if let Some(obstacle) = self.grains.obstacle(&pid) {
            self.grains.forget(&self.identity, &pid);
            return self.failed(correlation, obstacle);
        }
        self.decide(correlation, |router, now| router.handle_resolved(correlation, pid, now))
    }

    fn failed(&self, correlation: CorrelationId, failure: AttemptFailure) -> Option<Step> {
        self.decide(correlation, |router, now| router.handle_failure(correlation, failure, now))
    }

    fn decide(
        &self,
        correlation: CorrelationId,
        decide: impl FnOnce(&mut GrainRpcRouter, TimerInstant) -> RouterOutcome,
    ) -> Option<Step> {
        let now = self.grains.inner.clock.now();
        let (own, outcome) = self.calls().decide(correlation, |router| decide(router, now));
        self.grains.perform_calls(outcome);
        own
    }

    fn ended<T>(&self, end: CallEnd, answered: Option<Answered<T>>) -> Result<T, CallError> {
        let grain = self.identity.clone();
        Err(match (end, answered) {
            (CallEnd::Completed { .. }, Some(Answered::Content(content))) => return Ok(content),
            (CallEnd::Completed { .. }, Some(Answered::Error(error))) => CallError::Grain(error),
            (CallEnd::Failed(AttemptFailure::Uncodable(reason)), Some(Answered::Unreadable)) => {
                CallError::Answer { grain, reason }
            }
            (CallEnd::Rejected(rejection), _) => CallError::Rejected { grain, rejection },
            (CallEnd::DroppedOldest, _) => CallError::Dropped { grain },
            (CallEnd::TimedOut { attempts }, _) => CallError::Timeout { grain, attempts },
            (CallEnd::Failed(failure), _) => CallError::Failed { grain, failure },
            _ => CallError::ShutDown { grain },
        })
    }

    /// The deadline travels as the time that is left, since clocks differ, and the way so far with it.
    fn with_headers(&self, message: &Message, remaining: Duration) -> Message {
        if message.headers.is_none() && self.chain.is_empty() {
            let headers = Some(self.grains.deadline_headers(remaining));
            return Message { headers, ..message.clone() };
        }
        let mut headers: BTreeMap<_, _> = message.headers.as_deref().cloned().unwrap_or_default();
        headers.insert(HEADER_DEADLINE.to_owned(), remaining.as_millis().to_string());
        if !self.chain.is_empty() {
            headers.insert(HEADER_CHAIN.to_owned(), self.chain.join("\n"));
        }
        message.clone().with_headers(headers)
    }
}

impl fmt::Debug for GrainRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrainRef").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// What came of an answer.
enum Answered<T> {
    /// What was asked for.
    Content(T),
    /// That it cannot be had.
    Error(GrainError),
    /// Nothing: it cannot be read.
    Unreadable,
}

impl<T> Answered<T> {
    fn read(answer: Message, read: impl Fn(Message) -> Result<T, String>) -> Result<Self, String> {
        if answer.is::<GrainErrorResponse>() {
            let error = answer.decode::<GrainErrorResponse>();
            return error.map(|error| Self::Error(error.into())).map_err(|error| error.to_string());
        }
        read(answer).map(Self::Content)
    }
}

/// Ends a call whose caller went away.
struct PendingCall<'a> {
    grains: &'a Grains,
    correlation: CorrelationId,
    is_over: bool,
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        let calls = &self.grains.inner.calls;
        if !self.is_over && calls.leave(self.correlation) {
            let now = self.grains.inner.clock.now();
            let outcome = calls.tell(self.correlation, |router| router.cancel(self.correlation, now));
            self.grains.perform_calls(outcome);
        }
    }
}

/// How long a call may take unless it says otherwise; the same as in Go.
const TIMEOUT: Duration = Duration::from_secs(5);
