//! The queue of a node: its log, its groups, and all that serves them, started and stopped as one.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use synod_cluster::remote::{BearerToken, PeerService};
use synod_core::jobs::{
    Event, JobLimits, QueueStats, SessionId, SessionStats, SessionTotals, SettingOutOfRange, Totals,
};
use synod_log::{DiskError, FileDisk};
use tokio::sync::broadcast;

use crate::beanstalk::{BeanstalkConfig, BeanstalkError, BeanstalkServer};
use crate::client::Client;
use crate::connect::{Channels, Connect, TcpConnect};
use crate::desk::{Desk, DeskConfig};
use crate::jobs::Jobs;
use crate::journal::{Journal, JournalConfig, JournalError};
use crate::link::{Link, LinkConfig};
use crate::raft::{Group, GroupConfig, GroupError, GroupParts, GroupStatus, Lead, NodeAddress, RaftService};
use crate::service::QueueService;

/// The services of the peer listener that belong to a queue. They refuse everything until it runs.
#[derive(Clone)]
pub struct QueueServices {
    raft: RaftService,
    queue: QueueService,
    client_token: Option<String>,
}

impl QueueServices {
    /// The services of a node of this cluster. Peers show one token to each other, clients show another.
    #[must_use]
    pub fn new(cluster: String, peer_token: Option<&str>, client_token: Option<&str>) -> Self {
        let raft = RaftService::new(cluster, BearerToken::new(peer_token));
        let queue = QueueService::new(BearerToken::new(client_token));
        Self { raft, queue, client_token: client_token.map(ToOwned::to_owned) }
    }

    /// As the listener takes them.
    #[must_use]
    pub fn peer_services(&self) -> Vec<Arc<dyn PeerService>> {
        vec![Arc::new(self.raft.clone()), Arc::new(self.queue.clone())]
    }
}

/// What the queue of a node is started with.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// The name of the node.
    pub node: String,
    /// All nodes of the cluster in one order, the same everywhere: names and addresses of their peer listeners.
    pub nodes: Vec<(String, String)>,
    /// Where the node keeps its part of the queue.
    pub dir: PathBuf,
    /// How many groups there are.
    pub groups: u16,
    /// How each group works.
    pub group: GroupConfig,
    /// How a leader serves.
    pub desk: DeskConfig,
    /// The bounds that a new queue begins with.
    pub limits: JobLimits,
    /// The word of an operator that the cluster never had a queue, so that nobody has to be heard before there is one.
    pub is_new_cluster: bool,
    /// Where beanstalkd's clients are served, if they are.
    pub beanstalk: Option<SocketAddr>,
}

/// The queue of a node could not be started. Nothing runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// Its directory cannot be used.
    #[error("{dir}: {error}")]
    Directory {
        /// Which.
        dir: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The disk of its log failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Its log cannot be used.
    #[error("the log of the queue in {dir} cannot be used: {error}")]
    Log {
        /// Where.
        dir: PathBuf,
        /// Why.
        error: JournalError,
    },
    /// A group did not start.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// A limit is out of its range.
    #[error(transparent)]
    Limits(#[from] SettingOutOfRange),
    /// The listener for beanstalkd's clients did not start.
    #[error(transparent)]
    Beanstalk(#[from] BeanstalkError),
    /// The node is not one of the cluster's.
    #[error("node {node} is not one of the cluster's")]
    Stranger {
        /// Its name.
        node: String,
    },
}

/// The queue of a node that runs.
pub struct QueueNode {
    desks: BTreeMap<u16, Desk>,
    beanstalk: Option<BeanstalkServer>,
    seeds: Vec<String>,
    client_token: Option<String>,
    connect: Arc<dyn Connect>,
}

/// One group as one node sees it.
#[derive(Clone, Debug)]
pub struct GroupView {
    /// Which.
    pub group: u16,
    /// Who leads, and whether that is this node.
    pub lead: Lead,
    /// The replicas and how far they are.
    pub status: GroupStatus,
    /// What happened in all queues, as far as this node knows.
    pub totals: Totals,
    /// The queues, as far as this node knows.
    pub queues: Vec<QueueStats>,
    /// A digest of all that ever happened, the same on all nodes that are as far.
    pub digest: (u64, u64),
}

/// The workers of one group as one node sees them: all of them in numbers, and some of them one by one.
#[derive(Clone, Debug, Default)]
pub struct WorkersView {
    /// All of them together.
    pub totals: SessionTotals,
    /// Some of them, by the numbers of their sessions.
    pub workers: Vec<WorkerView>,
    /// Whether there are more behind those.
    pub has_more: bool,
}

/// One worker.
#[derive(Clone, Debug)]
pub struct WorkerView {
    /// Its session in numbers.
    pub stats: SessionStats,
    /// What its client calls itself, if it does and this node leads.
    pub name: Option<Arc<str>>,
}

impl QueueNode {
    /// Starts the queue of a node. It serves when its groups have found enough replicas.
    ///
    /// # Errors
    /// A part could not be started; then nothing runs.
    pub async fn start(options: QueueOptions, services: &QueueServices) -> Result<Self, QueueError> {
        let dir = options.dir.clone();
        std::fs::create_dir_all(&dir).map_err(|error| QueueError::Directory { dir: dir.clone(), error })?;
        let disk = FileDisk::open(dir.join("log"))?;
        let opened = Journal::open(JournalConfig::default(), disk);
        let (journal, _) = opened.map_err(|error| QueueError::Log { dir: dir.join("log"), error })?;
        Self::start_with(options, services, journal, Arc::new(TcpConnect)).await
    }

    /// Starts the queue of a node with a log and a network that are not the usual ones.
    ///
    /// # Errors
    /// A part could not be started; then nothing runs.
    pub async fn start_with(
        options: QueueOptions,
        services: &QueueServices,
        journal: Journal,
        connect: Arc<dyn Connect>,
    ) -> Result<Self, QueueError> {
        let QueueOptions { node, nodes, dir, groups, group, desk, limits, is_new_cluster, beanstalk } =
            options;
        let own = nodes.iter().position(|(name, _)| *name == node);
        let Some(own) = own else { return Err(QueueError::Stranger { node }) };
        let (journal, channels) = (Arc::new(journal), Arc::new(Channels::new(Arc::clone(&connect))));
        let members: Vec<NodeAddress> = nodes
            .iter()
            .map(|(name, address)| NodeAddress { name: name.clone(), address: address.clone() })
            .collect();
        let mut desks = BTreeMap::new();
        for number in 0..groups {
            let opened = Group::open(GroupParts {
                group: number,
                service: services.raft.clone(),
                node: node.clone(),
                nodes: members.clone(),
                dir: dir.join(format!("group-{number}")),
                journal: Arc::clone(&journal),
                config: group.clone(),
                machine: Jobs::new(number, limits.clone())?,
                channels: Arc::clone(&channels),
                is_new_cluster,
            });
            desks.insert(number, Desk::start(opened.await?, desk.clone()));
        }
        services.queue.open(desks.clone());
        let mut seeds: Vec<String> = nodes.iter().map(|(_, address)| address.clone()).collect();
        seeds.rotate_left(own);
        let client_token = services.client_token.clone();
        let mut running = Self { desks, beanstalk: None, seeds, client_token, connect };
        if let Some(address) = beanstalk {
            let number = u16::try_from(own + 1).unwrap_or(u16::MAX);
            let config = BeanstalkConfig { node: number, ..BeanstalkConfig::default() };
            let link =
                Link::new(LinkConfig { name: format!("beanstalkd at {node}"), ..running.link_config() });
            match BeanstalkServer::bind(address, config, link).await {
                Ok(server) => running.beanstalk = Some(server),
                Err(error) => {
                    running.stop(Duration::ZERO).await;
                    return Err(error.into());
                }
            }
        }
        Ok(running)
    }

    /// How one gets to the queue from here.
    #[must_use]
    pub fn link_config(&self) -> LinkConfig {
        let token = BearerToken::new(self.client_token.as_deref());
        LinkConfig {
            token,
            connect: Arc::clone(&self.connect),
            ..LinkConfig::new(self.seeds.iter().cloned())
        }
    }

    /// A client of the queue.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.link_config())
    }

    /// Where beanstalkd's clients are served, if they are.
    #[must_use]
    pub fn beanstalk_address(&self) -> Option<SocketAddr> {
        self.beanstalk.as_ref().map(BeanstalkServer::local_addr)
    }

    /// The groups as this node sees them.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupView> {
        let view = |(group, desk): (&u16, &Desk)| {
            let lead = desk.group().lead().borrow().clone();
            let status = desk.group().status();
            let (totals, queues, digest) = desk.group().read(|jobs| {
                let queue = jobs.queue();
                (queue.totals(), queue.queues().collect(), (queue.index(), queue.digest()))
            });
            GroupView { group: *group, lead, status, totals, queues, digest }
        };
        self.desks.iter().map(view).collect()
    }

    /// The workers of a group as this node sees them, from the one after this session on, so many at most. `None`: there is
    /// no such group.
    #[must_use]
    pub fn workers(&self, group: u16, after: Option<SessionId>, count: usize) -> Option<WorkersView> {
        let desk = self.desks.get(&group)?;
        let (totals, (page, has_more)) = desk.group().read(|jobs| {
            let queue = jobs.queue();
            (queue.session_totals(), queue.list_sessions(after, count))
        });
        let named = |stats: SessionStats| WorkerView { name: desk.faces().of(stats.session), stats };
        Some(WorkersView { totals, workers: page.into_iter().map(named).collect(), has_more })
    }

    /// What happens to the jobs of a group, for as long as this node leads it. `None`: there is no such group.
    #[must_use]
    pub fn events(&self, group: u16) -> Option<broadcast::Receiver<Arc<Vec<Event>>>> {
        self.desks.get(&group).map(Desk::events)
    }

    /// Waits until a group cannot go on any more, and says why. The node should end then.
    pub fn ended(&self) -> impl Future<Output = String> + Send + use<> {
        let groups: Vec<Group<Jobs>> = self.desks.values().map(|desk| desk.group().clone()).collect();
        async move {
            let mut ends: FuturesUnordered<_> = groups.iter().map(Group::ended).collect();
            match ends.next().await {
                Some(reason) => reason,
                None => std::future::pending().await,
            }
        }
    }

    /// Hands leadership over, lets clients go on elsewhere, and stops. True when nothing was left without a leader.
    pub async fn stop(self, patience: Duration) -> bool {
        let mut is_handed_over = true;
        for desk in self.desks.values() {
            if !patience.is_zero() {
                is_handed_over &= desk.group().hand_over(patience).await;
            }
        }
        if let Some(beanstalk) = self.beanstalk {
            beanstalk.stop().await;
        }
        for desk in self.desks.values() {
            desk.group().stop().await;
        }
        is_handed_over
    }
}
