//! The service that clients and workers connect to, on the peer listener of every node.
//!
//! A node that does not lead says who does, and ends the stream. A stream says everything in both directions: commands and
//! their outcomes, wishes for jobs and jobs, questions and answers. Whoever falls silent for too long is gone.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use http::{Request as HttpRequest, Response as HttpResponse};
use synod_cluster::remote::{BearerToken, PeerService};
use synod_core::jobs::{GatewayId, SessionId};
use synod_wire::queue as wire;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::server::{Grpc, StreamingService};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::access::{Answer, Question, look};
use crate::desk::{Admission, Desk, Note, StreamEnd, ToStream, Wish, not_leader, shown};
use crate::wire::{assignment, queues, read_op};

/// The queue service of one node. It refuses everything until its groups run.
#[derive(Clone, Default)]
pub struct QueueService {
    desks: Arc<OnceLock<BTreeMap<u16, Desk>>>,
    token: BearerToken,
}

impl QueueService {
    /// A service for those who show this token.
    #[must_use]
    pub fn new(token: BearerToken) -> Self {
        Self { token, ..Self::default() }
    }

    /// Serves these groups from now on.
    pub(crate) fn open(&self, desks: BTreeMap<u16, Desk>) {
        // A node has one set of groups; a second call would bring the same.
        drop(self.desks.set(desks));
    }

    fn desk(&self, group: u32) -> Result<&Desk, Status> {
        let desks = self
            .desks
            .get()
            .ok_or_else(|| Status::unavailable("the queue of this node has not started yet"))?;
        let known = u16::try_from(group).ok().and_then(|group| desks.get(&group));
        known.ok_or_else(|| Status::not_found(format!("there is no group {group}")))
    }
}

impl PeerService for QueueService {
    fn name(&self) -> &str {
        SERVICE_NAME
    }

    fn call(&self, request: HttpRequest<Body>) -> Pin<Box<dyn Future<Output = HttpResponse<Body>> + Send>> {
        let service = self.clone();
        Box::pin(async move {
            if let Err(refused) = service.token.check(request.headers()) {
                return refused.into_http();
            }
            if request.uri().path() != CONNECT_PATH {
                return Status::unimplemented("the queue service has no such method").into_http();
            }
            let codec = ProstCodec::<wire::Response, wire::Request>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(MESSAGE_BYTES_MAX);
            grpc.streaming(Connect(service), request).await
        })
    }
}

struct Connect(QueueService);

impl StreamingService<wire::Request> for Connect {
    type Response = wire::Response;
    type ResponseStream = Outgoing;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Outgoing>, Status>> + Send>>;

    fn call(&mut self, request: Request<Streaming<wire::Request>>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let (out, outgoing) = mpsc::unbounded_channel();
            // The answer must not wait for the first word of the client, nor for the leader.
            tokio::spawn(serve(service, request.into_inner(), out));
            Ok(Response::new(Outgoing { messages: outgoing, end: None }))
        })
    }
}

/// One stream, from its hello to its end.
async fn serve(service: QueueService, mut requests: Streaming<wire::Request>, out: ToStream) {
    if let Err(status) = greet_and_read(&service, &mut requests, &out).await {
        // It may be the client that is gone.
        drop(out.send(Err(status)));
    }
}

async fn greet_and_read(
    service: &QueueService,
    requests: &mut Streaming<wire::Request>,
    out: &ToStream,
) -> Result<(), Status> {
    let first = timeout(HELLO_PATIENCE, requests.message()).await;
    let first = first.map_err(|_| Status::deadline_exceeded("no hello came"))??;
    let hello = first.and_then(|request| request.hello);
    let hello = hello.ok_or_else(|| Status::invalid_argument("the first message must be a hello"))?;
    if hello.version != PROTOCOL_VERSION {
        let text = format!("version {} of the protocol; this node speaks {PROTOCOL_VERSION}", hello.version);
        return Err(Status::failed_precondition(text));
    }
    if hello.gateway == 0 {
        return Err(Status::invalid_argument("gateway must not be 0"));
    }
    let desk = service.desk(hello.group)?;
    let Some(admission) = desk.admit(GatewayId::new(hello.gateway), shown(&hello.name), out.clone()).await
    else {
        let told = not_leader(&desk.group().lead().borrow());
        drop(out.send(Ok(told)));
        return Ok(());
    };
    let welcome = wire::Welcome {
        term: admission.term,
        window: desk.config().window,
        body_bytes_max: desk.group().read(|jobs| jobs.queue().limits().body_bytes_max),
        since: admission.since,
        silence_ms: u32::try_from(desk.config().silence.as_millis()).unwrap_or(u32::MAX),
    };
    let greeting = Some(wire::response::Greeting::Welcome(welcome));
    drop(out.send(Ok(wire::Response { greeting, ..wire::Response::default() })));
    let read = read(desk, &admission, requests, out).await;
    let end = match &read {
        Ok(Said::Goodbye) if admission.under_way.load(Ordering::Relaxed) == 0 => StreamEnd::Goodbye,
        Ok(Said::NoMore) => StreamEnd::Reset,
        Err(status) if status.code() == Code::Cancelled => StreamEnd::Reset,
        Ok(Said::Goodbye) | Err(_) => StreamEnd::Gone,
    };
    desk.hand_in(Note::Closed { stream: admission.stream, end }).await;
    read.map(drop)
}

/// The last that a stream said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// That its gateway will not come back.
    Goodbye,
    /// Nothing in particular.
    NoMore,
}

/// Takes in what a stream says until it ends.
async fn read(
    desk: &Desk,
    admission: &Admission,
    requests: &mut Streaming<wire::Request>,
    out: &ToStream,
) -> Result<Said, Status> {
    let config = desk.config();
    let stream = admission.stream;
    loop {
        let next = tokio::select! {
            next = timeout(config.silence, requests.message()) => next,
            // Whoever does not read any more is gone, and so is a reign that ended.
            () = out.closed() => return Err(Status::cancelled("the client is gone")),
        };
        let request = next.map_err(|_| Status::deadline_exceeded("the client was silent for too long"))??;
        let Some(request) = request else { return Ok(Said::NoMore) };
        let wire::Request { hello: _, commands, queries, pulls, withdrawn, goodbye } = request;
        if !commands.is_empty() {
            let count = u32::try_from(commands.len()).unwrap_or(u32::MAX);
            let before = admission.under_way.fetch_add(count, Ordering::Relaxed);
            if before.saturating_add(count) > config.window {
                let text = format!("more than {} commands without an outcome", config.window);
                return Err(Status::resource_exhausted(text));
            }
            let commands = commands.into_iter().map(command).collect::<Result<Vec<_>, _>>()?;
            desk.hand_in_commands(stream, commands).await;
        }
        if !pulls.is_empty() {
            let pulls = pulls.into_iter().map(wish).collect::<Result<Vec<_>, _>>()?;
            desk.hand_in(Note::Pulls { stream, pulls }).await;
        }
        if !withdrawn.is_empty() {
            desk.hand_in(Note::Withdrawn { stream, pulls: withdrawn }).await;
        }
        for query in queries {
            let answers = vec![answer(desk, query).await?];
            drop(out.send(Ok(wire::Response { answers, ..wire::Response::default() })));
        }
        if goodbye {
            return Ok(Said::Goodbye);
        }
    }
}

type Brought = (u64, synod_core::jobs::Op, Vec<synod_core::jobs::Assignment>);

fn command(command: wire::Command) -> Result<Brought, Status> {
    let sequence = command.sequence;
    let malformed = |text: String| Status::invalid_argument(format!("command {sequence}: {text}"));
    if sequence == 0 {
        return Err(malformed("numbers start from 1".to_owned()));
    }
    let op = command.op.ok_or_else(|| malformed("nothing to do, or something unknown".to_owned()))?;
    let held = match &op {
        wire::command::Op::SessionOpen(open) => open.held.iter().map(|held| assignment(*held)).collect(),
        _ => Vec::new(),
    };
    let op = read_op(op).map_err(|error| malformed(error.to_string()))?;
    Ok((sequence, op, held))
}

fn wish(pull: wire::Pull) -> Result<Wish, Status> {
    let id = pull.id;
    let malformed = |text: String| Status::invalid_argument(format!("pull {id}: {text}"));
    if id == 0 || pull.count == 0 || pull.queues.is_empty() {
        return Err(malformed("id, count and queues must be there".to_owned()));
    }
    Ok(Wish {
        id,
        session: SessionId::new(pull.session),
        queues: queues(pull.queues).map_err(|error| malformed(error.to_string()))?,
        count: pull.count,
        ttr_ms: pull.ttr_ms,
        waits: pull.waits,
    })
}

/// Answers a question, as the leader that this node is for certain.
async fn answer(desk: &Desk, query: wire::Query) -> Result<wire::Answer, Status> {
    let question: Question = serde_json::from_slice(&query.question)
        .map_err(|error| Status::invalid_argument(format!("question {}: {error}", query.id)))?;
    desk.group().confirm().await.map_err(|_| Status::aborted("this node does not lead any more"))?;
    let mut answer = desk.group().read(|jobs| look(jobs.queue(), question));
    let body = match &mut answer {
        Answer::Job(Some(job)) => job.body.take(),
        _ => None,
    };
    let answer = serde_json::to_vec(&answer).map_err(|error| Status::internal(error.to_string()))?;
    Ok(wire::Answer { id: query.id, answer: answer.into(), body })
}

/// What goes out on a stream: all that has gathered while the client did not read becomes one message.
pub(crate) struct Outgoing {
    messages: mpsc::UnboundedReceiver<Result<wire::Response, Status>>,
    /// Why it ends after what was said last.
    end: Option<Status>,
}

impl Stream for Outgoing {
    type Item = Result<wire::Response, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(status) = self.end.take() {
            self.messages.close();
            return Poll::Ready(Some(Err(status)));
        }
        let first = match self.messages.poll_recv(context) {
            Poll::Ready(Some(Ok(first))) => first,
            other => return other,
        };
        let mut whole = first;
        let mut bytes = size(&whole);
        // A greeting stands for itself.
        while whole.greeting.is_none() && bytes < RESPONSE_BYTES_MIN {
            match self.messages.try_recv() {
                Ok(Ok(next)) => {
                    bytes += size(&next);
                    let is_last = next.greeting.is_some();
                    whole.greeting = next.greeting;
                    whole.outcomes.extend(next.outcomes);
                    whole.deliveries.extend(next.deliveries);
                    whole.revocations.extend(next.revocations);
                    whole.answers.extend(next.answers);
                    whole.pull_ends.extend(next.pull_ends);
                    if is_last {
                        break;
                    }
                }
                Ok(Err(status)) => {
                    self.end = Some(status);
                    break;
                }
                Err(_) => break,
            }
        }
        Poll::Ready(Some(Ok(whole)))
    }
}

fn size(response: &wire::Response) -> usize {
    let bodies = response.deliveries.iter().map(|delivery| delivery.body.len() + 64).sum::<usize>();
    let answers = response
        .answers
        .iter()
        .map(|answer| answer.answer.len() + answer.body.as_ref().map_or(0, bytes::Bytes::len))
        .sum::<usize>();
    bodies + answers + 24 * (response.outcomes.len() + response.revocations.len() + response.pull_ends.len())
}

/// The full name of the service.
const SERVICE_NAME: &str = "synod.queue.v1.Queue";
/// Where streams begin.
pub(crate) const CONNECT_PATH: &str = "/synod.queue.v1.Queue/Connect";
/// The version of the protocol that this release speaks.
pub(crate) const PROTOCOL_VERSION: u32 = 1;
/// Longest message, in either direction.
pub(crate) const MESSAGE_BYTES_MAX: usize = 72 << 20;
/// A message that has gathered so much is sent.
const RESPONSE_BYTES_MIN: usize = 128 << 10;
/// How long a stream may take to say hello.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);
