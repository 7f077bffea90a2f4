//! The service of the peer listener: takes the calls of other replicas, for all groups of a node.
//!
//! Every call says which cluster, group and replica it is meant for. One that is meant for somebody else, because an address
//! was given to another node for example, is refused before anything looks at it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};

use futures_util::{Stream, StreamExt};
use http::{Request as HttpRequest, Response as HttpResponse};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::Fatal;
use openraft::raft::{
    AppendEntriesRequest, StreamAppendResult, TransferLeaderRequest, VoteRequest, VoteResponse,
};
use prost::Message;
use synod_cluster::remote::{BearerToken, PeerService};
use synod_wire::raft as wire;
use tonic::body::Body;
use tonic::server::{ClientStreamingService, Grpc, StreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::network::{
    APPEND_PATH, INSTALL_PATH, JOIN_PATH, OFFSET_PATH, PRE_VOTE_PATH, STATUS_PATH, TRANSFER_PATH, VOTE_PATH,
    write_reply,
};
use super::types::{Types, read_id, read_vote, read_wire_entry, write_id, write_vote};

/// The Raft service of one node. Groups are served from when they are opened until they are stopped.
#[derive(Clone)]
pub struct RaftService {
    inner: Arc<Inner>,
}

struct Inner {
    cluster: String,
    token: BearerToken,
    groups: RwLock<BTreeMap<u16, Arc<dyn Member>>>,
}

impl RaftService {
    /// A service for the peers of a cluster, who show this token.
    #[must_use]
    pub fn new(cluster: String, token: BearerToken) -> Self {
        Self { inner: Arc::new(Inner { cluster, token, groups: RwLock::default() }) }
    }

    /// The identity of the cluster.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.inner.cluster
    }

    pub(crate) fn token(&self) -> BearerToken {
        self.inner.token.clone()
    }

    pub(crate) fn open(&self, group: u16, member: Arc<dyn Member>) {
        self.inner.groups.write().unwrap_or_else(PoisonError::into_inner).insert(group, member);
    }

    pub(crate) fn close(&self, group: u16) {
        self.inner.groups.write().unwrap_or_else(PoisonError::into_inner).remove(&group);
    }

    /// The replica that a call is meant for. `may_be_any`: it may be for whoever is there.
    fn member(&self, target: Option<wire::Target>, may_be_any: bool) -> Result<Arc<dyn Member>, Status> {
        let target = target.ok_or_else(|| Status::invalid_argument("a call says whom it is meant for"))?;
        if target.cluster != self.inner.cluster {
            return Err(Status::failed_precondition("this node belongs to another cluster"));
        }
        let groups = self.inner.groups.read().unwrap_or_else(PoisonError::into_inner);
        let member = u16::try_from(target.group).ok().and_then(|group| groups.get(&group).cloned());
        let member = member.ok_or_else(|| Status::unavailable("this node does not run that group"))?;
        if target.id != member.id() && !(may_be_any && target.id == 0) {
            return Err(Status::failed_precondition("another replica is meant"));
        }
        Ok(member)
    }
}

impl PeerService for RaftService {
    fn name(&self) -> &str {
        SERVICE_NAME
    }

    fn call(&self, request: HttpRequest<Body>) -> Pin<Box<dyn Future<Output = HttpResponse<Body>> + Send>> {
        let service = self.clone();
        Box::pin(async move {
            if let Err(refused) = service.inner.token.check(request.headers()) {
                return refused.into_http();
            }
            match request.uri().path() {
                APPEND_PATH => grpc().streaming(Append(service), request).await,
                VOTE_PATH => {
                    grpc().unary(Ask(service, |service, request| service.vote(request, false)), request).await
                }
                PRE_VOTE_PATH => {
                    grpc().unary(Ask(service, |service, request| service.vote(request, true)), request).await
                }
                OFFSET_PATH => grpc().unary(Ask(service, Self::offset), request).await,
                INSTALL_PATH => grpc().client_streaming(Install(service), request).await,
                TRANSFER_PATH => grpc().unary(Ask(service, Self::transfer), request).await,
                JOIN_PATH => grpc().unary(Ask(service, Self::join), request).await,
                STATUS_PATH => grpc().unary(Ask(service, Self::status), request).await,
                _ => Status::unimplemented("the Raft service has no such method").into_http(),
            }
        })
    }
}

impl RaftService {
    fn vote(self, request: wire::VoteRequest, is_pre_vote: bool) -> Answer<wire::VoteReply> {
        Box::pin(async move {
            let member = self.member(request.target, false)?;
            let vote = read_vote(request.vote).map_err(invalid)?;
            let last_log_id = request.last.map(read_id);
            let request = VoteRequest { vote, last_log_id, leadership_transfer: request.is_transfer };
            let reply = member.vote(request, is_pre_vote).await.map_err(ended)?;
            Ok(wire::VoteReply {
                vote: Some(write_vote(&reply.vote)),
                is_granted: reply.vote_granted,
                last: reply.last_log_id.as_ref().map(write_id),
            })
        })
    }

    fn offset(self, request: wire::OffsetRequest) -> Answer<wire::OffsetReply> {
        Box::pin(async move {
            let member = self.member(request.target, false)?;
            let name = request.name.ok_or_else(|| Status::invalid_argument("which snapshot?"))?;
            Ok(wire::OffsetReply { offset: member.offset(name).await? })
        })
    }

    fn transfer(self, request: wire::TransferRequest) -> Answer<wire::TransferReply> {
        Box::pin(async move {
            let member = self.member(request.target, false)?;
            let from = read_vote(request.from).map_err(invalid)?;
            let request = TransferLeaderRequest::new(from, member.id(), request.last.map(read_id));
            let refusal = member.transfer(request).await.map_err(ended)?.unwrap_or_default();
            Ok(wire::TransferReply { refusal })
        })
    }

    fn join(self, request: wire::JoinRequest) -> Answer<wire::JoinReply> {
        Box::pin(async move {
            let member = self.member(request.target, true)?;
            let replica = request.replica.ok_or_else(|| Status::invalid_argument("who wants to join?"))?;
            member.join(replica)
        })
    }

    fn status(self, request: wire::StatusRequest) -> Answer<wire::StatusReply> {
        Box::pin(async move { Ok(self.member(request.target, true)?.status()) })
    }
}

/// A replica, as far as calls of others reach it.
pub(crate) trait Member: Send + Sync {
    fn id(&self) -> u64;

    fn append(
        &self,
        requests: BoxStream<'static, AppendEntriesRequest<Types>>,
    ) -> BoxStream<'static, Result<StreamAppendResult<Types>, Fatal<Types>>>;

    fn vote(
        &self,
        request: VoteRequest<Types>,
        is_pre_vote: bool,
    ) -> BoxFuture<'static, Result<VoteResponse<Types>, String>>;

    /// Stands for election at the wish of the leader, or says why not.
    fn transfer(
        &self,
        request: TransferLeaderRequest<Types>,
    ) -> BoxFuture<'static, Result<Option<String>, String>>;

    /// How much of a snapshot is here already.
    fn offset(self: Arc<Self>, name: wire::SnapshotName) -> BoxFuture<'static, Result<u64, Status>>;

    fn install(
        self: Arc<Self>,
        first: wire::InstallRequest,
        rest: Streaming<wire::InstallRequest>,
    ) -> BoxFuture<'static, Result<wire::InstallReply, Status>>;

    fn join(&self, replica: wire::Replica) -> Result<wire::JoinReply, Status>;

    fn status(&self) -> wire::StatusReply;
}

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;
type Answered<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

/// One question, one answer.
struct Ask<Q, A>(RaftService, fn(RaftService, Q) -> Answer<A>);

impl<Q, A: Send + 'static> UnaryService<Q> for Ask<Q, A> {
    type Response = A;
    type Future = Answered<A>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let answer = (self.1)(self.0.clone(), request.into_inner());
        Box::pin(async move { answer.await.map(Response::new) })
    }
}

struct Append(RaftService);

type Replies = Pin<Box<dyn Stream<Item = Result<wire::AppendReply, Status>> + Send>>;

impl StreamingService<wire::AppendRequest> for Append {
    type Response = wire::AppendReply;
    type ResponseStream = Replies;
    type Future = Answered<Replies>;

    fn call(&mut self, request: Request<Streaming<wire::AppendRequest>>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let mut requests = request.into_inner();
            let Some(mut first) = requests.message().await? else {
                return Ok(Response::new(Box::pin(futures_util::stream::empty()) as Replies));
            };
            let member = service.member(first.target.take(), false)?;
            let first = read_request(first)?;
            // What cannot be read ends the stream; what came before it is answered.
            let read = |(): &mut (), request: Result<_, Status>| {
                std::future::ready(request.and_then(read_request).ok())
            };
            let rest = requests.scan((), read);
            let requests = futures_util::stream::once(std::future::ready(first)).chain(rest);
            let replies = member.append(Box::pin(requests));
            let replies = replies.map(|reply| match reply {
                Ok(result) => Ok(write_reply(&result)),
                Err(fatal) => Err(ended(fatal.to_string())),
            });
            Ok(Response::new(Box::pin(replies) as Replies))
        })
    }
}

struct Install(RaftService);

impl ClientStreamingService<wire::InstallRequest> for Install {
    type Response = wire::InstallReply;
    type Future = Answered<wire::InstallReply>;

    fn call(&mut self, request: Request<Streaming<wire::InstallRequest>>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let mut requests = request.into_inner();
            let first = requests.message().await?;
            let mut first = first.ok_or_else(|| Status::invalid_argument("which snapshot?"))?;
            let member = service.member(first.target.take(), false)?;
            member.install(first, requests).await.map(Response::new)
        })
    }
}

fn read_request(request: wire::AppendRequest) -> Result<AppendEntriesRequest<Types>, Status> {
    let entries = request.entries.into_iter().map(read_wire_entry).collect::<Result<_, _>>();
    Ok(AppendEntriesRequest {
        vote: read_vote(request.vote).map_err(invalid)?,
        prev_log_id: request.previous.map(read_id),
        entries: entries.map_err(invalid)?,
        leader_commit: request.committed.map(read_id),
    })
}

fn grpc<Q, A>() -> Grpc<ProstCodec<A, Q>>
where
    Q: Message + Default + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
{
    Grpc::new(ProstCodec::<A, Q>::default()).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

#[allow(clippy::needless_pass_by_value)]
fn invalid(error: std::io::Error) -> Status {
    Status::invalid_argument(error.to_string())
}

fn ended(reason: String) -> Status {
    Status::unavailable(reason)
}

/// The full name of the service.
const SERVICE_NAME: &str = "synod.raft.v1.Raft";
/// Longest message. The largest entry fits, and so does what is read of the log for one message.
const MESSAGE_BYTES_MAX: usize = 32 << 20;
