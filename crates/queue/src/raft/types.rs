//! The types that the Raft engine is told to use, and what they are in the journal and on the wire.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use openraft::impls::leader_id_std::LeaderId;
use openraft::vote::RaftLeaderId;
use openraft::{EntryPayload, Membership, RaftTypeConfig, StoredMembership};
use prost::Message as _;
use synod_wire::raft as wire;

use crate::journal;

/// What the engine works with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Types;

impl RaftTypeConfig for Types {
    type D = Command;
    type R = Output;
    type NodeId = u64;
    type Node = ReplicaNode;
    type Term = u64;
    // At most one leader in a term, so that a term says who led.
    type LeaderId = LeaderId<u64, u64>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = EntryPayload<Command, u64, ReplicaNode>;
    type Entry = openraft::Entry<<Self::LeaderId as RaftLeaderId>::Committed, Self::Payload>;
    type AsyncRuntime = openraft::impls::TokioRuntime;
    type Responder<T>
        = openraft::impls::OneshotResponder<Self, T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

pub(crate) type LogId = openraft::alias::LogIdOf<Types>;
pub(crate) type Vote = openraft::alias::VoteOf<Types>;
pub(crate) type Entry = openraft::alias::EntryOf<Types>;
pub(crate) type Members = Membership<u64, ReplicaNode>;
pub(crate) type StoredMembers = openraft::alias::StoredMembershipOf<Types>;

/// What is proposed. The engine does not look into it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Command(pub(crate) Bytes);

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What applying a command gave. The engine passes it on and has one type for all machines.
pub(crate) struct Output(Mutex<Option<Box<dyn Any + Send>>>);

impl Output {
    pub(crate) fn none() -> Self {
        Self(Mutex::new(None))
    }

    pub(crate) fn new<T: Send + 'static>(output: T) -> Self {
        Self(Mutex::new(Some(Box::new(output))))
    }

    pub(crate) fn take<T: 'static>(self) -> Option<T> {
        let output = self.0.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        output.downcast().ok().map(|output| *output)
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Output(..)")
    }
}

/// Where a replica is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplicaNode {
    pub(crate) name: String,
    pub(crate) address: String,
}

pub(crate) fn log_id(id: journal::EntryId) -> LogId {
    LogId { leader_id: LeaderId::<u64, u64>::new(id.term, 0).to_committed(), index: id.index }
}

pub(crate) fn entry_id(id: &LogId) -> journal::EntryId {
    journal::EntryId { term: id.leader_id.term, index: id.index }
}

pub(crate) fn vote_of(vote: journal::Vote) -> Vote {
    match vote.is_committed {
        true => Vote::new_committed(vote.term, vote.replica),
        false => Vote::new(vote.term, vote.replica),
    }
}

pub(crate) fn kept_vote(vote: &Vote) -> journal::Vote {
    let leader = vote.leader_id();
    journal::Vote { term: leader.term, replica: leader.voted_for, is_committed: vote.is_committed() }
}

/// An entry as the journal keeps it.
pub(crate) fn kept_entry(entry: Entry) -> journal::Entry {
    let (kind, body) = write_payload(entry.payload);
    journal::Entry { id: entry_id(&entry.log_id), kind, body }
}

/// An entry of the journal.
pub(crate) fn read_entry(entry: journal::Entry) -> io::Result<Entry> {
    let payload = read_payload(entry.kind, entry.body)?;
    Ok(openraft::Entry { log_id: log_id(entry.id), payload })
}

/// What an entry of the journal does to the machine. `None`: it concerns the group alone.
pub(crate) fn command_of(entry: journal::Entry) -> io::Result<Option<Bytes>> {
    match read_payload(entry.kind, entry.body)? {
        EntryPayload::Normal(command) => Ok(Some(command.0)),
        EntryPayload::Blank | EntryPayload::Membership(_) => Ok(None),
    }
}

pub(crate) fn write_entry(entry: Entry) -> wire::Entry {
    let (kind, body) = write_payload(entry.payload);
    wire::Entry { term: entry.log_id.leader_id.term, index: entry.log_id.index, kind: kind.into(), body }
}

pub(crate) fn read_wire_entry(entry: wire::Entry) -> io::Result<Entry> {
    let kind = u8::try_from(entry.kind).map_err(|_| nonsense("an entry of an unknown kind"))?;
    let id = journal::EntryId { term: entry.term, index: entry.index };
    read_entry(journal::Entry { id, kind, body: entry.body })
}

pub(crate) fn write_id(id: &LogId) -> wire::EntryId {
    wire::EntryId { term: id.leader_id.term, index: id.index }
}

pub(crate) fn read_id(id: wire::EntryId) -> LogId {
    log_id(journal::EntryId { term: id.term, index: id.index })
}

pub(crate) fn write_vote(vote: &Vote) -> wire::Vote {
    let vote = kept_vote(vote);
    wire::Vote { term: vote.term, replica: vote.replica, is_committed: vote.is_committed }
}

pub(crate) fn read_vote(vote: Option<wire::Vote>) -> io::Result<Vote> {
    let vote = vote.ok_or_else(|| nonsense("a vote is missing"))?;
    let wire::Vote { term, replica, is_committed } = vote;
    Ok(vote_of(journal::Vote { term, replica, is_committed }))
}

pub(crate) fn write_members(members: &Members) -> wire::Membership {
    let voters = members.get_joint_config().iter();
    wire::Membership {
        voters: voters.map(|ids| wire::Voters { ids: ids.iter().copied().collect() }).collect(),
        replicas: members.nodes().map(|(id, node)| write_replica(*id, node)).collect(),
    }
}

pub(crate) fn read_members(members: wire::Membership) -> io::Result<Members> {
    let voters: Vec<BTreeSet<u64>> =
        members.voters.into_iter().map(|voters| voters.ids.into_iter().collect()).collect();
    let replicas = members.replicas.into_iter();
    let replicas: BTreeMap<u64, ReplicaNode> = replicas.map(read_replica).collect();
    if voters.is_empty() && replicas.is_empty() {
        return Ok(Members::default());
    }
    Members::new(voters, replicas).map_err(|error| nonsense(&error.to_string()))
}

pub(crate) fn write_replica(id: u64, node: &ReplicaNode) -> wire::Replica {
    wire::Replica { id, node: node.name.clone(), address: node.address.clone() }
}

pub(crate) fn read_replica(replica: wire::Replica) -> (u64, ReplicaNode) {
    (replica.id, ReplicaNode { name: replica.node, address: replica.address })
}

pub(crate) fn write_header(last: Option<&LogId>, members: &StoredMembers) -> wire::SnapshotHeader {
    wire::SnapshotHeader {
        last: last.map(write_id),
        membership: Some(write_members(members.membership())),
        membership_at: members.log_id().as_ref().map(write_id),
    }
}

pub(crate) fn read_header(header: wire::SnapshotHeader) -> io::Result<(Option<LogId>, StoredMembers)> {
    let last = header.last.map(read_id);
    let members = read_members(header.membership.unwrap_or_default())?;
    Ok((last, StoredMembership::new(header.membership_at.map(read_id), members)))
}

/// An error for something that cannot be.
pub(crate) fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn write_payload(payload: EntryPayload<Command, u64, ReplicaNode>) -> (u8, Bytes) {
    match payload {
        EntryPayload::Blank => (BLANK, Bytes::new()),
        EntryPayload::Normal(command) => (COMMAND, command.0),
        EntryPayload::Membership(members) => (MEMBERSHIP, write_members(&members).encode_to_vec().into()),
    }
}

fn read_payload(kind: u8, body: Bytes) -> io::Result<EntryPayload<Command, u64, ReplicaNode>> {
    match kind {
        BLANK => Ok(EntryPayload::Blank),
        COMMAND => Ok(EntryPayload::Normal(Command(body))),
        MEMBERSHIP => {
            let members = wire::Membership::decode(body).map_err(|error| nonsense(&error.to_string()))?;
            Ok(EntryPayload::Membership(read_members(members)?))
        }
        _ => Err(nonsense("an entry of an unknown kind")),
    }
}

const BLANK: u8 = 0;
const COMMAND: u8 = 1;
const MEMBERSHIP: u8 = 2;
