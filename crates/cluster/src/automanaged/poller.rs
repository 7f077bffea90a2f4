//! Asks every host whether it is there.
//!
//! All hosts are asked at once, and each has the same short time to answer, so one that hangs costs the others nothing.
//! What comes back is bounded, decoded and checked before anyone sees it; what cannot be used is counted per host.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use synod_core::Authority;
use synod_core::roster::PollResult;
use tokio::task::JoinSet;

use super::config::{AutomanagedConfigError, check_duration, check_hosts};
use super::health::{HEALTH_BYTES_MAX, HealthError, HealthReport, decode_health};
use super::server::HEALTH_PATH;
use crate::lock;

/// Polls the health endpoints of a list of hosts. Connections are kept open between rounds.
pub struct HealthPoller {
    hosts: PollCounters,
    cluster_name: Arc<str>,
    timeout: Duration,
    client: Option<HttpClient>,
    connections: ConnectionTasks,
}

type HttpClient = Client<HttpConnector, Empty<Bytes>>;

/// What one host answered in one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPoll {
    /// The host.
    pub host: Authority,
    /// Its report, or why there is none.
    pub answer: Result<HealthReport, PollError>,
}

/// Why a host has no report in a round.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// It belongs to another cluster.
    #[error("it belongs to the cluster {name:?}; it was ignored")]
    OtherCluster {
        /// That cluster.
        name: String,
    },
    /// It answered something that cannot be used.
    #[error("{0}; it was ignored")]
    Refused(#[from] HealthError),
    /// It answered with another status than 200.
    #[error("it answered with the status {0}")]
    Status(u16),
    /// It did not answer in time.
    #[error("it did not answer within {0:?}")]
    TimedOut(Duration),
    /// It could not be reached, or the connection broke.
    #[error("it cannot be reached ({0})")]
    Unreachable(String),
}

/// How the polls of all hosts went. Copies read the same numbers.
#[derive(Clone, Debug)]
pub struct PollCounters(Arc<[Host]>);

impl PollCounters {
    /// The numbers now, in the order of the hosts.
    #[must_use]
    pub fn counts(&self) -> Vec<(Authority, HostPollCounts)> {
        self.0.iter().map(|host| (host.authority.clone(), host.counts())).collect()
    }
}

/// How the polls of one host went, counted from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostPollCounts {
    /// Usable reports.
    pub answered: u64,
    /// No answer: unreachable, late, or with another status than 200.
    pub missing: u64,
    /// Reports of another cluster.
    pub other_cluster: u64,
    /// Answers that cannot be used.
    pub refused: u64,
}

impl HealthPoller {
    /// A poller of `hosts`, of which each has `timeout` to answer. Only members of `cluster_name` count.
    ///
    /// # Errors
    /// A host that is named twice, too many of them or none, or a timeout out of range.
    pub fn new(
        hosts: &[Authority],
        cluster_name: &str,
        timeout: Duration,
    ) -> Result<Self, AutomanagedConfigError> {
        check_hosts(hosts)?;
        check_duration("poll_timeout", timeout)?;
        let connections = ConnectionTasks::default();
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(timeout));
        connector.set_nodelay(true);
        let client = Client::builder(connections.clone())
            .pool_max_idle_per_host(1)
            .http1_max_buf_size(HEALTH_BYTES_MAX)
            .build(connector);
        let hosts = PollCounters(hosts.iter().cloned().map(Host::new).collect());
        Ok(Self { hosts, cluster_name: cluster_name.into(), timeout, client: Some(client), connections })
    }

    /// Asks all hosts and waits until each has answered or its time is over. The answers come in the order of the hosts.
    ///
    /// A cancelled call leaves no question behind.
    pub async fn poll(&self) -> Vec<HostPoll> {
        let mut questions = JoinSet::new();
        for (index, host) in self.hosts.0.iter().enumerate() {
            let Some(client) = self.client.clone() else { continue };
            let (authority, timeout) = (host.authority.clone(), self.timeout);
            let cluster_name = Arc::clone(&self.cluster_name);
            questions.spawn(async move {
                let answer = tokio::time::timeout(timeout, ask(&client, &authority)).await;
                let answer = answer.unwrap_or(Err(PollError::TimedOut(timeout)));
                (index, of_cluster(answer, &cluster_name))
            });
        }
        let mut answers: Vec<_> = questions.join_all().await;
        answers.sort_by_key(|(index, _)| *index);
        answers
            .into_iter()
            .map(|(index, answer)| {
                let host = &self.hosts.0[index];
                host.count(&answer);
                HostPoll { host: host.authority.clone(), answer }
            })
            .collect()
    }

    /// How the polls went. The counters outlive the poller.
    #[must_use]
    pub const fn counters(&self) -> &PollCounters {
        &self.hosts
    }

    /// Closes the connections and waits until they are closed.
    pub async fn close(mut self) {
        self.client = None;
        let mut connections = std::mem::take(&mut *lock(&self.connections.0));
        connections.shutdown().await;
    }
}

impl Drop for HealthPoller {
    fn drop(&mut self) {
        lock(&self.connections.0).abort_all();
    }
}

impl fmt::Debug for HealthPoller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthPoller").field("counters", &self.hosts).finish_non_exhaustive()
    }
}

/// What a round means for the roster.
#[must_use]
pub fn poll_result(polls: &[HostPoll]) -> PollResult {
    let mut result = PollResult::default();
    for poll in polls {
        match &poll.answer {
            Ok(report) => result.members.push(report.member.clone()),
            Err(PollError::OtherCluster { .. }) => result.strangers += 1,
            Err(_) => result.missing += 1,
        }
    }
    result
}

async fn ask(client: &HttpClient, host: &Authority) -> Result<HealthReport, PollError> {
    let unreachable = |error: &dyn std::error::Error| PollError::Unreachable(innermost(error));
    let uri = Uri::builder().scheme("http").authority(host.as_str()).path_and_query(HEALTH_PATH).build();
    let uri = uri.map_err(|error| unreachable(&error))?;
    let request = Request::get(uri).body(Empty::new()).map_err(|error| unreachable(&error))?;
    let response = client.request(request).await.map_err(|error| unreachable(&error))?;
    if response.status() != StatusCode::OK {
        return Err(PollError::Status(response.status().as_u16()));
    }
    let body = Limited::new(response.into_body(), HEALTH_BYTES_MAX).collect().await;
    let body = body.map_err(|error| match error.downcast::<LengthLimitError>() {
        Ok(_) => PollError::Refused(HealthError::TooLarge),
        Err(error) => unreachable(&*error),
    })?;
    Ok(decode_health(&body.to_bytes())?)
}

fn of_cluster(
    answer: Result<HealthReport, PollError>,
    cluster_name: &str,
) -> Result<HealthReport, PollError> {
    match answer {
        Ok(report) if report.cluster_name != cluster_name => {
            let name = report.cluster_name.chars().take(CLUSTER_NAME_CHARS_TOLD).collect();
            Err(PollError::OtherCluster { name })
        }
        answer => answer,
    }
}

/// The client wraps what the system said in its own layers; what the system said is what helps.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[derive(Debug)]
struct Host {
    authority: Authority,
    answered: AtomicU64,
    missing: AtomicU64,
    other_cluster: AtomicU64,
    refused: AtomicU64,
}

impl Host {
    fn new(authority: Authority) -> Self {
        let [answered, missing, other_cluster, refused] = [const { AtomicU64::new(0) }; 4];
        Self { authority, answered, missing, other_cluster, refused }
    }

    fn count(&self, answer: &Result<HealthReport, PollError>) {
        let counter = match answer {
            Ok(_) => &self.answered,
            Err(PollError::OtherCluster { .. }) => &self.other_cluster,
            Err(PollError::Refused(_)) => &self.refused,
            Err(_) => &self.missing,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn counts(&self) -> HostPollCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        HostPollCounts {
            answered: read(&self.answered),
            missing: read(&self.missing),
            other_cluster: read(&self.other_cluster),
            refused: read(&self.refused),
        }
    }
}

/// The tasks in which the client runs its connections. It would leave them to the runtime; here they belong to the
/// poller, which ends them and waits for it.
#[derive(Clone, Default)]
struct ConnectionTasks(Arc<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for ConnectionTasks {
    fn execute(&self, task: F) {
        let mut tasks = lock(&self.0);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

/// How much of a foreign cluster's name is repeated.
const CLUSTER_NAME_CHARS_TOLD: usize = 64;
