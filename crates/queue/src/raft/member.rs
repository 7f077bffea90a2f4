//! What a replica does when others call it.

use std::sync::Arc;

use futures_util::StreamExt;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::Fatal;
use openraft::raft::{
    AppendEntriesRequest, StreamAppendResult, TransferLeaderRequest, VoteRequest, VoteResponse,
};
use synod_wire::raft as wire;
use tonic::{Status, Streaming};

use super::group::Inner;
use super::lead::ReplicaInfo;
use super::machine::Machine;
use super::service::Member;
use super::types::{Types, read_vote, write_vote};
use crate::blocking::blocking;

impl<M: Machine> Member for Inner<M> {
    fn id(&self) -> u64 {
        self.own.id
    }

    fn append(
        &self,
        requests: BoxStream<'static, AppendEntriesRequest<Types>>,
    ) -> BoxStream<'static, Result<StreamAppendResult<Types>, Fatal<Types>>> {
        self.raft.stream_append(requests).boxed()
    }

    fn vote(
        &self,
        request: VoteRequest<Types>,
        is_pre_vote: bool,
    ) -> BoxFuture<'static, Result<VoteResponse<Types>, String>> {
        let raft = self.raft.clone();
        Box::pin(async move {
            let vote = if is_pre_vote { raft.pre_vote(request).await } else { raft.vote(request).await };
            vote.map_err(|error| error.to_string())
        })
    }

    fn transfer(
        &self,
        request: TransferLeaderRequest<Types>,
    ) -> BoxFuture<'static, Result<Option<String>, String>> {
        let raft = self.raft.clone();
        Box::pin(async move {
            let answer = raft.handle_transfer_leader(request).await.map_err(|error| error.to_string())?;
            Ok(answer.err().map(|refusal| refusal.to_string()))
        })
    }

    fn offset(self: Arc<Self>, name: wire::SnapshotName) -> BoxFuture<'static, Result<u64, Status>> {
        Box::pin(async move { self.receiver.offset(&name).await })
    }

    fn install(
        self: Arc<Self>,
        first: wire::InstallRequest,
        rest: Streaming<wire::InstallRequest>,
    ) -> BoxFuture<'static, Result<wire::InstallReply, Status>> {
        Box::pin(async move {
            let vote = read_vote(first.vote).map_err(|error| Status::invalid_argument(error.to_string()))?;
            let snapshot = self.receiver.receive(&first, rest).await?;
            let path = snapshot.snapshot.path.clone();
            tracing::info!(group = self.group, last = ?snapshot.meta.last_log_id, "a snapshot has arrived");
            let installed = self.raft.install_full_snapshot(vote, snapshot).await;
            let reply = installed.map_err(|fatal| Status::unavailable(fatal.to_string()))?;
            // It has another name now, unless it was not wanted.
            drop(blocking(move || std::fs::remove_file(path)).await);
            Ok(wire::InstallReply { vote: Some(write_vote(&reply.vote)) })
        })
    }

    fn join(&self, replica: wire::Replica) -> Result<wire::JoinReply, Status> {
        let wire::Replica { id, node, address } = replica;
        let known = self.nodes.iter().any(|known| known.name == node && known.address == address);
        if !known || id == 0 {
            return Err(Status::failed_precondition("that node is not one of the cluster's"));
        }
        let lead = self.lead.borrow().clone();
        // If there is no room, it asks again.
        let is_noted = lead.is_own && self.joins.try_send(ReplicaInfo { id, node, address }).is_ok();
        Ok(wire::JoinReply { is_noted, leader: lead.leader.map(write_info) })
    }

    fn status(&self) -> wire::StatusReply {
        let metrics = self.metrics();
        let is_member =
            metrics.last_log_index.is_some() || metrics.current_term > 0 || metrics.snapshot.is_some();
        let (digest_index, digest) = self.shared.machine().digest().unwrap_or_default();
        wire::StatusReply {
            replica: Some(write_info(self.own.clone())),
            is_member,
            term: metrics.current_term,
            leader: self.lead.borrow().leader.clone().map(write_info),
            applied: metrics.last_applied.map_or(0, |last| last.index),
            digest_index,
            digest,
        }
    }
}

pub(crate) fn write_info(info: ReplicaInfo) -> wire::Replica {
    wire::Replica { id: info.id, node: info.node, address: info.address }
}
