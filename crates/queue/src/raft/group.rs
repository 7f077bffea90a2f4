//! A replica of a group, as those see it who use the group.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::errors::ClientWriteError;
use openraft::impls::OneshotResponder;
use openraft::raft::ClientWriteResult;
use openraft::{Raft, RaftMetrics, ReadPolicy};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Sleep;

use super::config::{GroupConfig, GroupConfigError};
use super::identity::{self, IdentityError};
use super::keeper;
use super::lead::{self, Lead, ReplicaInfo};
use super::log_store::LogStore;
use super::machine::{Machine, MachineStore, Shared};
use super::network::Caller;
use super::receive::Receiver;
use super::service::RaftService;
use super::types::{Command, Types};
use crate::connect::Channels;
use crate::journal::{Journal, Remembered};

/// A node that may have a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// Its name.
    pub name: String,
    /// Where its peer listener is: `host:port`.
    pub address: String,
}

/// What a replica is made of.
pub struct GroupParts<M> {
    /// The number of the group.
    pub group: u16,
    /// The name of this node, which is one of `nodes`.
    pub node: String,
    /// All nodes of the cluster, in the same order everywhere. The first one founds the group.
    pub nodes: Vec<NodeAddress>,
    /// Where the identity of the replica and its snapshots are. No other replica uses it.
    pub dir: PathBuf,
    /// The journal of the node.
    pub journal: Arc<Journal>,
    /// The settings.
    pub config: GroupConfig,
    /// A machine to which nothing was applied.
    pub machine: M,
    /// Takes the calls of the other replicas, and knows the cluster and its token.
    pub service: RaftService,
    /// The channels to them.
    pub channels: Arc<Channels>,
    /// Whether it is known that there is no group yet: then the first node does not ask the others before it founds one.
    pub is_new_cluster: bool,
}

/// A replica of a group. Clones are the same replica.
pub struct Group<M: Machine> {
    inner: Arc<Inner<M>>,
}

impl<M: Machine> Clone for Group<M> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

pub(crate) struct Inner<M: Machine> {
    pub(crate) group: u16,
    pub(crate) own: ReplicaInfo,
    pub(crate) nodes: Vec<NodeAddress>,
    pub(crate) config: GroupConfig,
    pub(crate) journal: Arc<Journal>,
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) raft: Raft<Types, MachineStore<M>>,
    pub(crate) caller: Caller,
    pub(crate) receiver: Receiver,
    pub(crate) lead: watch::Sender<Lead>,
    pub(crate) ended: watch::Sender<Option<String>>,
    /// Replicas that want to join, for the leader's keeper.
    pub(crate) joins: mpsc::Sender<ReplicaInfo>,
    service: RaftService,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl<M: Machine> Group<M> {
    /// Opens the replica of this node, or makes a new one that founds the group or asks to be taken in. It runs until it is
    /// stopped.
    ///
    /// # Errors
    /// A setting is out of range, the disk failed, or what is on it is damaged or belongs to somebody else.
    pub async fn open(parts: GroupParts<M>) -> Result<Self, GroupError> {
        parts.config.validate()?;
        let own = parts.nodes.iter().find(|node| node.name == parts.node);
        let own = own.ok_or_else(|| GroupError::NotInLayout(parts.node.clone()))?.clone();
        std::fs::create_dir_all(&parts.dir).map_err(|error| GroupError::Storage(error.to_string()))?;
        let remembered = parts.journal.remembered(parts.group);
        let is_blank = remembered == Remembered::default();
        let snapshots = parts.dir.join("snapshots");
        if is_blank && snapshots.exists() {
            // Of a replica that has lost its journal: it is not this one.
            std::fs::remove_dir_all(&snapshots).map_err(|error| GroupError::Storage(error.to_string()))?;
        }
        let id = identity::open(&parts.dir, parts.service.cluster(), is_blank)?;
        let shared = Shared::open(parts.machine, parts.group, snapshots.clone());
        let shared = Arc::new(shared.map_err(|error| GroupError::Storage(error.to_string()))?);
        if remembered.purged.is_some() && shared.current().is_none() {
            return Err(GroupError::Storage(
                "entries were purged, but there is no snapshot that holds them".into(),
            ));
        }
        let caller = Caller {
            channels: parts.channels,
            cluster: parts.service.cluster().into(),
            group: parts.group,
            token: parts.service.token(),
            heartbeat: parts.config.heartbeat(),
        };
        let config = parts.config.engine(format!("{}/{}", parts.service.cluster(), parts.group));
        let config = config.validate().map_err(|error| GroupError::Storage(error.to_string()))?;
        let log = LogStore::new(Arc::clone(&parts.journal), parts.group);
        let machine = MachineStore::new(Arc::clone(&shared));
        let raft = Raft::new(id, Arc::new(config), caller.clone(), log, machine).await;
        let raft = raft.map_err(|error| GroupError::Storage(error.to_string()))?;
        let (joins, joining) = mpsc::channel(JOINS_MAX);
        let inner = Arc::new(Inner {
            group: parts.group,
            own: ReplicaInfo { id, node: own.name, address: own.address },
            nodes: parts.nodes,
            config: parts.config,
            journal: parts.journal,
            shared,
            raft,
            caller,
            receiver: Receiver::new(snapshots, parts.group),
            lead: watch::Sender::new(Lead::default()),
            ended: watch::Sender::new(None),
            joins,
            service: parts.service,
            tasks: Mutex::default(),
        });
        inner.service.open(inner.group, Arc::clone(&inner) as Arc<_>);
        let tasks = vec![
            tokio::spawn(lead::follow(Arc::clone(&inner))),
            tokio::spawn(keeper::belong(Arc::clone(&inner), parts.is_new_cluster)),
            tokio::spawn(keeper::keep_members(Arc::clone(&inner), joining)),
            tokio::spawn(keeper::keep_snapshots(Arc::clone(&inner))),
            tokio::spawn(keeper::compare(Arc::clone(&inner))),
        ];
        *inner.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
        Ok(Self { inner })
    }

    /// Proposes an entry. Entries are written in the order of these calls, if they are written. What comes of it says the
    /// future.
    ///
    /// # Errors
    /// The entry is too large, or the replica was stopped. It was not written.
    pub async fn propose(&self, entry: Bytes) -> Result<Proposed<M::Output>, ProposeError> {
        let max = self.inner.journal.body_bytes_max().min(ENTRY_BYTES_MAX);
        if entry.len() > max {
            return Err(ProposeError::TooLarge { bytes: entry.len(), max });
        }
        if self.inner.ended.borrow().is_some() {
            return Err(ProposeError::Stopped);
        }
        let (responder, answer) = OneshotResponder::new_pair();
        let proposed = self.inner.raft.client_write_ff(Command(entry), Some(responder)).await;
        proposed.map_err(|_| ProposeError::Stopped)?;
        let deadline = Box::pin(tokio::time::sleep(self.inner.config.propose_timeout));
        Ok(Proposed { answer, deadline, output: std::marker::PhantomData })
    }

    /// Who leads, from now on.
    #[must_use]
    pub fn lead(&self) -> watch::Receiver<Lead> {
        self.inner.lead.subscribe()
    }

    /// Waits until this replica has applied all that is committed. It leads then, and a majority has said so lately: what is
    /// read now is what any later leader has.
    ///
    /// # Errors
    /// It does not lead, or cannot know.
    pub async fn confirm(&self) -> Result<(), NotLeader> {
        let confirmed = self.inner.raft.ensure_linearizable(ReadPolicy::LeaseRead).await;
        confirmed.map(drop).map_err(|_| NotLeader { leader: self.inner.lead.borrow().leader.clone() })
    }

    /// The name of this node.
    pub(crate) fn node(&self) -> &str {
        &self.inner.own.node
    }

    /// Looks at the machine. Nothing is applied meanwhile.
    pub fn read<R>(&self, look: impl FnOnce(&M) -> R) -> R {
        look(&self.inner.shared.machine())
    }

    /// Hands leadership to the voter that has most of the log. True if somebody else leads when this returns.
    pub async fn hand_over(&self, patience: Duration) -> bool {
        let mut lead = self.lead();
        let attempt = Duration::from_millis(self.inner.config.election_ms.start);
        let hand_over = async {
            loop {
                let metrics = self.inner.metrics();
                if metrics.current_leader.is_some_and(|leader| leader != self.inner.own.id) {
                    return;
                }
                let replication = metrics.replication.as_ref();
                let voters = metrics.membership_config.voter_ids().filter(|id| *id != self.inner.own.id);
                let index =
                    |id: &u64| replication.and_then(|all| all.get(id).copied().flatten()).map(|id| id.index);
                if let Some(heir) = voters.max_by_key(index) {
                    drop(self.inner.raft.trigger().transfer_leader(heir).await);
                }
                // It may not have all of the log yet. Then it is asked again.
                let is_done =
                    |lead: &Lead| lead.leader.as_ref().is_some_and(|leader| leader.id != self.inner.own.id);
                drop(tokio::time::timeout(attempt, lead.wait_for(is_done)).await);
            }
        };
        tokio::time::timeout(patience, hand_over).await.is_ok()
    }

    /// How the replica is.
    #[must_use]
    pub fn status(&self) -> GroupStatus {
        let metrics = self.inner.metrics();
        let members = metrics.membership_config.membership();
        let voters: Vec<u64> = members.voter_ids().collect();
        let replicas = members.nodes().map(|(id, node)| ReplicaInfo::new(*id, node));
        let (voters, learners) = replicas.partition(|replica| voters.contains(&replica.id));
        let index = |id: Option<super::types::LogId>| id.map(|id| id.index);
        let matching = metrics.replication.iter().flatten().map(|(id, matching)| (*id, index(*matching)));
        GroupStatus {
            group: self.inner.group,
            own: self.inner.own.clone(),
            term: metrics.current_term,
            leader: self.inner.lead.borrow().leader.clone(),
            voters,
            learners,
            is_changing: members.get_joint_config().len() > 1
                || metrics.membership_config.log_id() != metrics.committed_membership_config.log_id(),
            last: metrics.last_log_index,
            applied: index(metrics.last_applied),
            snapshot: index(metrics.snapshot),
            purged: index(metrics.purged),
            log_bytes: self.inner.journal.bytes_after(self.inner.group, None),
            matching: matching.collect(),
        }
    }

    /// Waits until the replica cannot go on, and says why. The process is to end then: what is on the disk is not known.
    pub async fn ended(&self) -> String {
        let mut ended = self.inner.ended.subscribe();
        let reason = ended.wait_for(Option::is_some).await;
        reason.ok().and_then(|reason| reason.clone()).unwrap_or_default()
    }

    /// Stops the replica, without handing over anything. What waits for an answer gets none.
    pub async fn stop(&self) {
        self.inner.service.close(self.inner.group);
        let tasks = std::mem::take(&mut *self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in &tasks {
            task.abort();
        }
        // The engine ends its tasks, whatever this says.
        drop(self.inner.raft.shutdown().await);
        for task in tasks {
            drop(task.await);
        }
        self.inner.lead.send_replace(Lead::default());
        self.inner.end("the replica was stopped".into());
        // If the log has stopped, its users know by now.
        drop(self.inner.journal.write_noted(self.inner.group));
    }

    #[cfg(test)]
    pub(crate) fn inner(&self) -> &Arc<Inner<M>> {
        &self.inner
    }
}

impl<M: Machine> Inner<M> {
    /// Says that the replica cannot go on. The first reason stays.
    pub(crate) fn end(&self, reason: String) {
        self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert(reason);
            is_first
        });
    }

    pub(crate) fn metrics(&self) -> RaftMetrics<Types> {
        self.raft.metrics().borrow_watched().clone()
    }
}

/// An entry that was proposed. Resolves when it was applied here, or when it is known that it will not be, or not known for
/// too long. Dropping it does not take the entry back.
#[must_use = "whether the entry was applied is what it says"]
pub struct Proposed<T> {
    answer: oneshot::Receiver<ClientWriteResult<Types>>,
    deadline: Pin<Box<Sleep>>,
    output: std::marker::PhantomData<fn() -> T>,
}

impl<T: 'static> Future for Proposed<T> {
    type Output = Result<Applied<T>, ProposeError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match Pin::new(&mut self.answer).poll(context) {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                return self.deadline.as_mut().poll(context).map(|()| Err(ProposeError::Unknown));
            }
        };
        Poll::Ready(match answer {
            Ok(Ok(response)) => {
                let index = response.log_id.index;
                let output = response.data.take().ok_or(ProposeError::Unknown)?;
                Ok(Applied { index, output })
            }
            Ok(Err(ClientWriteError::ForwardToLeader(forward))) => {
                let leader = forward.leader_id.zip(forward.leader_node);
                Err(ProposeError::NotLeader { leader: leader.map(|(id, node)| ReplicaInfo::new(id, &node)) })
            }
            // The engine has let go of it, or has stopped with it.
            Ok(Err(_)) | Err(_) => Err(ProposeError::Unknown),
        })
    }
}

/// An entry was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied<T> {
    /// Where it stands in the log.
    pub index: u64,
    /// What applying it gave.
    pub output: T,
}

/// An entry was not applied, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProposeError {
    /// This replica does not lead, or not for sure. The entry was not written.
    #[error("this replica does not lead the group")]
    NotLeader {
        /// Who does, as far as is known.
        leader: Option<ReplicaInfo>,
    },
    /// The entry is too large. It was not written.
    #[error("an entry of {bytes} bytes was refused, at most {max} are allowed")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The largest size.
        max: usize,
    },
    /// Leadership was lost, or a majority was not there for too long. Whether the entry will be applied is not known.
    #[error("the outcome of the proposal is not known")]
    Unknown,
    /// The replica was stopped. The entry was not written.
    #[error("the replica was stopped")]
    Stopped,
}

/// This replica does not lead, or not for sure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica does not lead the group")]
pub struct NotLeader {
    /// Who does, as far as is known.
    pub leader: Option<ReplicaInfo>,
}

/// A replica could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] GroupConfigError),
    /// The node is none of the cluster's.
    #[error("node {0} is not one of the nodes of the cluster")]
    NotInLayout(String),
    /// It is not known who the replica is.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The disk failed, or what is on it cannot be used.
    #[error("the replica cannot be opened: {0}")]
    Storage(String),
}

/// How a replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStatus {
    /// The number of the group.
    pub group: u16,
    /// The replica.
    pub own: ReplicaInfo,
    /// The term that it is in.
    pub term: u64,
    /// Who leads, as far as it knows.
    pub leader: Option<ReplicaInfo>,
    /// Who votes.
    pub voters: Vec<ReplicaInfo>,
    /// Who only learns.
    pub learners: Vec<ReplicaInfo>,
    /// Whether that is about to change: then more replicas may be needed for a majority than it seems.
    pub is_changing: bool,
    /// The last entry of its log.
    pub last: Option<u64>,
    /// The last entry that was applied.
    pub applied: Option<u64>,
    /// The last entry in its newest snapshot.
    pub snapshot: Option<u64>,
    /// The last entry that was purged.
    pub purged: Option<u64>,
    /// Bytes of the entries in its log.
    pub log_bytes: u64,
    /// Up to where the others have the log, if this one leads.
    pub matching: BTreeMap<u64, Option<u64>>,
}

/// How many replicas may wait to be taken in. They ask again.
const JOINS_MAX: usize = 64;
/// Longest entry. It has to fit into a message of the wire.
const ENTRY_BYTES_MAX: usize = 24 << 20;
