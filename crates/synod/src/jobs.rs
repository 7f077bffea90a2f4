//! The job queue of a node, and its part of the api.

mod events;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde::{Deserialize, Serialize};
use synod_cluster::remote::PeerService;
use synod_cluster::{ApiExtension, Exposition};
use synod_core::jobs::{JobLimits, QueueStats, SessionId, SessionStats, SessionTotals, Totals};
use synod_core::slots::QueueLayout;
use synod_queue::raft::GroupConfig;
use synod_queue::{
    Client, DeskConfig, GroupView, QueueError, QueueNode, QueueOptions, QueueServices, WorkerView,
    WorkersView,
};
use synod_store::node::{Node, Passport, PeerServices};

/// The queue of a node, as `GET /v1/queue` shows it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct QueueJson {
    /// Where clients connect: the peer listeners of all nodes, this one first.
    pub(crate) peers: Vec<String>,
    /// Where beanstalkd's clients connect to this node.
    pub(crate) beanstalk: Option<SocketAddr>,
    pub(crate) groups: Vec<GroupJson>,
}

/// One group, as the node sees it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct GroupJson {
    pub(crate) group: u16,
    pub(crate) term: u64,
    pub(crate) leader: Option<String>,
    /// Whether the node that was asked leads.
    pub(crate) leads: bool,
    /// Whether enough replicas are there to serve.
    pub(crate) serves: bool,
    pub(crate) voters: Vec<String>,
    pub(crate) learners: Vec<String>,
    pub(crate) applied_index: u64,
    pub(crate) last_index: u64,
    pub(crate) snapshot_index: u64,
    pub(crate) log_bytes: u64,
    /// Of all that ever happened: the same on all nodes with the same `digest_index`.
    pub(crate) digest: String,
    pub(crate) digest_index: u64,
    pub(crate) totals: Totals,
    pub(crate) queues: Vec<QueueStats>,
    pub(crate) workers: WorkersJson,
}

/// The workers of a group, as the node sees them.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct WorkersJson {
    /// All of them together.
    #[serde(flatten)]
    pub(crate) totals: SessionTotals,
    /// Some of them, by the numbers of their sessions.
    pub(crate) page: Vec<WorkerJson>,
    /// There are more: `?after=` with this number shows them.
    pub(crate) after: Option<SessionId>,
}

/// One worker.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct WorkerJson {
    /// What it calls itself. Only the leader knows.
    pub(crate) name: Option<String>,
    #[serde(flatten)]
    pub(crate) stats: SessionStats,
}

impl WorkersJson {
    fn of(view: WorkersView) -> Self {
        let WorkersView { totals, workers, has_more } = view;
        let after = workers.last().map(|worker| worker.stats.session).filter(|_| has_more);
        let worker =
            |WorkerView { stats, name }| WorkerJson { name: name.map(|name| name.to_string()), stats };
        Self { totals, page: workers.into_iter().map(worker).collect(), after }
    }
}

impl GroupJson {
    fn of(view: GroupView, workers: WorkersView) -> Self {
        let GroupView { group, lead, status, totals, queues, digest } = view;
        let names = |replicas: Vec<synod_queue::raft::ReplicaInfo>| {
            replicas.into_iter().map(|replica| replica.node).collect::<Vec<_>>()
        };
        Self {
            group,
            term: lead.term,
            leader: lead.leader.map(|leader| leader.node),
            leads: lead.is_own,
            serves: lead.serves,
            voters: names(status.voters),
            learners: names(status.learners),
            applied_index: status.applied.unwrap_or(0),
            last_index: status.last.unwrap_or(0),
            snapshot_index: status.snapshot.unwrap_or(0),
            log_bytes: status.log_bytes,
            digest: format!("{:016x}", digest.1),
            digest_index: digest.0,
            totals,
            queues,
            workers: WorkersJson::of(workers),
        }
    }
}

/// The part of the node that is about the queue. It answers once the queue runs.
#[derive(Clone, Default)]
pub(crate) struct JobsApi {
    services: Arc<OnceLock<QueueServices>>,
    /// Taken when it is stopped.
    running: Arc<Mutex<Option<QueueNode>>>,
}

impl JobsApi {
    /// Starts the queue of a node, where its cluster has one. `None`: it has none.
    ///
    /// # Errors
    /// The queue cannot be started.
    pub(crate) async fn start(
        &self,
        node: &Node,
        is_new_cluster: bool,
    ) -> Result<Option<Client>, QueueError> {
        let bootstrap = node.registry().bootstrap();
        let QueueLayout { is_enabled, voters, groups, heartbeat, election_min, election_max } =
            bootstrap.queue;
        let Some(services) = self.services.get().filter(|_| is_enabled) else { return Ok(None) };
        let place = node.place();
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let nodes = bootstrap.nodes.iter().filter_map(|node| {
            // A checked layout has only good addresses.
            Some((node.node.to_string(), node.peer().ok()?.to_string()))
        });
        let options = QueueOptions {
            node: place.node.to_string(),
            nodes: nodes.collect(),
            dir: queue_dir(node),
            groups,
            group: GroupConfig {
                election_ms: millis(election_min)..millis(election_max),
                heartbeat_ms: millis(heartbeat),
                voters: voters.into(),
                ..GroupConfig::default()
            },
            desk: DeskConfig::default(),
            limits: JobLimits::default(),
            is_new_cluster,
            beanstalk: Some(SocketAddr::new(place.bind.ip(), place.ports.jobs)),
        };
        let running = QueueNode::start(options, services).await?;
        let client = running.client();
        let happenings: Vec<_> =
            (0..groups).filter_map(|group| Some((group, running.events(group)?))).collect();
        *self.lock() = Some(running);
        for (group, happening) in happenings {
            let (stream, clock) = (node.cluster().events().clone(), node.cluster().clock());
            tokio::spawn(events::publish(group, happening, stream.clone(), clock));
            // A queue that is let go of without being stopped is not to be kept by those who only look at it.
            let running = Arc::downgrade(&self.running);
            let look = move || events::Numbers::of(lock(&*running.upgrade()?).as_ref()?, group);
            tokio::spawn(events::report(group, look, stream, clock));
        }
        Ok(Some(client))
    }

    /// Waits until the queue cannot go on any more, and says why.
    pub(crate) async fn ended(&self) -> String {
        let ended = self.lock().as_ref().map(QueueNode::ended);
        match ended {
            Some(ended) => ended.await,
            None => std::future::pending().await,
        }
    }

    /// Where beanstalkd's clients are served.
    pub(crate) fn beanstalk_address(&self) -> Option<SocketAddr> {
        self.lock().as_ref().and_then(QueueNode::beanstalk_address)
    }

    /// The node that leads the first group, as far as this one knows.
    pub(crate) fn leader(&self) -> Option<String> {
        let groups = self.lock().as_ref().map(QueueNode::groups)?;
        groups.into_iter().next()?.lead.leader.map(|leader| leader.node)
    }

    /// How many replicas vote in the first group, as far as this node knows.
    pub(crate) fn voters(&self) -> usize {
        let groups = self.lock().as_ref().map(QueueNode::groups);
        groups.and_then(|groups| Some(groups.first()?.status.voters.len())).unwrap_or(0)
    }

    /// Hands over what it leads, and ends.
    pub(crate) async fn stop(&self, patience: Duration) -> bool {
        let running = self.lock().take();
        match running {
            Some(running) => running.stop(patience).await,
            None => true,
        }
    }

    /// The queue, with so many of the workers of each group, from the one after this session on.
    fn show(&self, after: Option<SessionId>, workers: usize) -> Option<QueueJson> {
        let running = self.lock();
        let running = running.as_ref()?;
        let group = |view: GroupView| {
            let workers = running.workers(view.group, after, workers).unwrap_or_default();
            GroupJson::of(view, workers)
        };
        Some(QueueJson {
            peers: running.link_config().seeds,
            beanstalk: running.beanstalk_address(),
            groups: running.groups().into_iter().map(group).collect(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<QueueNode>> {
        lock(&self.running)
    }
}

fn lock(running: &Mutex<Option<QueueNode>>) -> MutexGuard<'_, Option<QueueNode>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PeerServices for JobsApi {
    fn services(&self, passport: &Passport) -> Vec<Arc<dyn PeerService>> {
        let Passport { cluster, peer_token, admin_token } = passport;
        let services = self.services.get_or_init(|| {
            QueueServices::new(cluster.to_string(), peer_token.as_deref(), admin_token.as_deref())
        });
        services.peer_services()
    }
}

impl ApiExtension for JobsApi {
    fn routes(&self) -> Router {
        Router::new().route("/v1/queue", get(show)).with_state(self.clone())
    }

    fn check_ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn expose(&self, text: &mut Exposition) {
        let Some(shown) = self.show(None, WORKERS_SHOWN_MAX) else { return };
        let group_label = |group: &GroupJson| group.group.to_string();
        let gauges: [Gauge; 7] = [
            ("synod_queue_leads", "Whether this node leads the group.", |group| group.leads.into()),
            ("synod_queue_term", "The term of the group.", |group| group.term),
            ("synod_queue_voters", "Replicas that vote.", |group| group.voters.len() as u64),
            ("synod_queue_applied_index", "The last entry that was applied.", |group| group.applied_index),
            ("synod_queue_snapshot_index", "The last entry in a snapshot.", |group| group.snapshot_index),
            ("synod_queue_log_bytes", "Bytes of entries in the log.", |group| group.log_bytes),
            ("synod_queue_sessions", "Sessions of workers that are open.", |group| {
                group.workers.totals.sessions
            }),
        ];
        for (name, help, value) in gauges {
            text.gauge(name, help);
            for group in &shown.groups {
                text.sample(name, &[("group", &group_label(group))], value(group));
            }
        }
        let name = "synod_queue_credits";
        text.gauge(name, "Jobs that workers take at a time, by whether they have them.");
        for group in &shown.groups {
            let SessionTotals { credits, granted, .. } = group.workers.totals;
            for (state, count) in [("free", credits), ("used", granted.saturating_sub(credits))] {
                text.sample(name, &[("group", &*group_label(group)), ("state", state)], count);
            }
        }
        type Number = (&'static str, &'static str, fn(&SessionStats) -> u64);
        let of_workers: [Number; 3] = [
            ("synod_queue_worker_credits", "How many more jobs a worker takes.", |worker| {
                worker.credits.into()
            }),
            ("synod_queue_worker_granted", "How many jobs a worker takes at a time.", |worker| {
                worker.granted.into()
            }),
            ("synod_queue_worker_inflight", "How many jobs a worker holds.", |worker| worker.inflight),
        ];
        for (name, help, value) in of_workers {
            text.gauge(name, help);
            for group in &shown.groups {
                for WorkerJson { name: known_as, stats } in &group.workers.page {
                    let labels = [
                        ("group", &*group_label(group)),
                        ("session", &*stats.session.to_string()),
                        ("worker", known_as.as_deref().unwrap_or_default()),
                    ];
                    text.sample(name, &labels, value(stats));
                }
            }
        }
        let name = "synod_queue_events_total";
        text.counter(name, "What happened to jobs, by kind.");
        for group in &shown.groups {
            for (kind, count) in kinds(&group.totals) {
                text.sample(name, &[("group", &group_label(group)), ("kind", kind)], count);
            }
        }
        let name = "synod_queue_jobs";
        text.gauge(name, "Jobs, by queue and state.");
        for (group, queue) in queues(&shown) {
            let states = [
                ("ready", queue.ready),
                ("reserved", queue.reserved),
                ("delayed", queue.delayed),
                ("dead", queue.dead),
            ];
            for (state, count) in states {
                let labels =
                    [("group", &*group_label(group)), ("queue", queue.name.as_str()), ("state", state)];
                text.sample(name, &labels, count);
            }
        }
        let name = "synod_queue_oldest_ready_seconds";
        text.gauge(name, "For how long the oldest job that could be given out has waited.");
        for (group, queue) in queues(&shown) {
            let seconds = queue.oldest_ready_ms.unwrap_or(0) as f64 / 1e3;
            text.sample(name, &[("group", &*group_label(group)), ("queue", queue.name.as_str())], seconds);
        }
        let name = "synod_queue_waiting_workers";
        text.gauge(name, "Workers that would take a job now.");
        for (group, queue) in queues(&shown) {
            text.sample(
                name,
                &[("group", &*group_label(group)), ("queue", queue.name.as_str())],
                queue.waiting,
            );
        }
    }
}

/// The name of a number of a group, what it means, and where it is.
type Gauge = (&'static str, &'static str, fn(&GroupJson) -> u64);

fn queues(shown: &QueueJson) -> impl Iterator<Item = (&GroupJson, &QueueStats)> {
    let all = shown.groups.iter().flat_map(|group| group.queues.iter().map(move |queue| (group, queue)));
    all.take(QUEUES_EXPOSED_MAX)
}

/// What is counted, by name.
pub(crate) fn kinds(totals: &Totals) -> [(&'static str, u64); 11] {
    [
        ("enqueue", totals.enqueued),
        ("assign", totals.assigned),
        ("ack", totals.acked),
        ("timeout_requeue", totals.timed_out),
        ("worker_down_requeue", totals.worker_down),
        ("requeue", totals.released),
        ("dlq", totals.dead),
        ("cancelled", totals.cancelled),
        ("expired", totals.expired),
        ("kicked", totals.kicked),
        ("rejected", totals.rejected),
    ]
}

/// Which of the workers are to be shown.
#[derive(Debug, Deserialize)]
struct WorkersFrom {
    after: Option<SessionId>,
}

async fn show(State(api): State<JobsApi>, Query(from): Query<WorkersFrom>) -> Response {
    match api.show(from.after, WORKERS_SHOWN_MAX) {
        Some(shown) => Json(shown).into_response(),
        None => {
            let error = serde_json::json!({ "error": "this node has no job queue" });
            (StatusCode::SERVICE_UNAVAILABLE, Json(error)).into_response()
        }
    }
}

/// Where a node keeps its part of the queue: beside its registry, on its first disk.
fn queue_dir(node: &Node) -> PathBuf {
    PathBuf::from(node.place().disks.first().cloned().unwrap_or_default()).join("queue")
}

/// Workers of a group that are shown at once.
const WORKERS_SHOWN_MAX: usize = 100;
/// Numbers of more queues would be too many for whoever reads them.
const QUEUES_EXPOSED_MAX: usize = 1_000;
