//! The api listener: what a node says about itself over HTTP, to whoever runs it.
//!
//! | path | answer |
//! |---|---|
//! | `/healthz` | 200 while the node runs |
//! | `/readyz` | 200 when it is a member and has a topology that lists it, else 503 with the reason |
//! | `/metrics` | its numbers in the text format of Prometheus, 503 and why when they are not told |
//!
//! It is off unless [`ClusterConfig::api`](crate::ClusterConfig::api) names an address. Nothing is authenticated and
//! nothing can be changed here.

mod exposition;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use synod_core::NodeId;
use tokio::net::TcpListener;

use crate::core::{ClusterCore, ClusterMode};
use crate::gossiper::TokioGossiper;
use crate::grains::Grains;
use crate::http_server::{HttpBounds, HttpServer};
use crate::lock;
use crate::membership::MembershipHandle;
use crate::metrics::{MetricFamily, MetricsConfig, MetricsError};
use crate::pubsub::PubSub;
use crate::remote::Remote;
pub use exposition::Exposition;

/// The parts of a node that are asked.
#[derive(Clone)]
pub(crate) struct ApiSources {
    pub(crate) node: NodeId,
    pub(crate) metrics: MetricsConfig,
    pub(crate) core: Arc<Mutex<ClusterCore>>,
    pub(crate) remote: Remote,
    pub(crate) membership: MembershipHandle,
    pub(crate) gossiper: Option<TokioGossiper>,
    pub(crate) grains: Grains,
    pub(crate) pubsub: PubSub,
}

/// The listener of a running node. Dropping it cuts all connections.
pub(crate) struct ApiServer {
    server: HttpServer,
    leaving: Arc<AtomicBool>,
}

impl ApiServer {
    /// Answers on `listen` for the node that `sources` belong to.
    pub(crate) async fn start(
        listen: SocketAddr,
        sources: ApiSources,
        extension: Option<Arc<dyn ApiExtension>>,
    ) -> Result<Self, ApiError> {
        let listener = TcpListener::bind(listen).await.map_err(|error| ApiError::bind(listen, &error))?;
        let (leaving, waits): (Arc<AtomicBool>, Arc<AtomicU64>) = Default::default();
        let added = extension.as_ref().map(|extension| extension.routes());
        let (leaving_too, waits_too) = (Arc::clone(&leaving), Arc::clone(&waits));
        let answers = Answers { sources, leaving: leaving_too, waits: waits_too, extension };
        let router = Router::new()
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .fallback(not_found)
            .with_state(answers)
            .merge(added.unwrap_or_default());
        let bounds = HttpBounds { connections_max: CONNECTIONS_MAX, request_timeout: REQUEST_TIMEOUT };
        let server = HttpServer::start(listener, router, bounds, waits)
            .map_err(|error| ApiError::bind(listen, &error))?;
        Ok(Self { server, leaving })
    }

    /// Where it listens.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The node is on its way out: it still answers, but nobody should begin anything with it.
    pub(crate) fn say_leaving(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Frees the address and waits until every connection has ended.
    pub(crate) async fn stop(self) {
        self.server.stop().await;
    }
}

/// What an application adds to the api listener of its node.
pub trait ApiExtension: Send + Sync + 'static {
    /// Further paths. They must not repeat those of the node, and the router must have no fallback.
    fn routes(&self) -> Router;

    /// Whether the application is ready too; the node is not ready before that.
    ///
    /// # Errors
    /// Why not, for whoever asks `/readyz`.
    fn check_ready(&self) -> Result<(), String>;

    /// Adds its numbers to `/metrics`.
    fn expose(&self, text: &mut Exposition);
}

/// The api listener could not be opened. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// Another process has the address.
    #[error("the api address {address} is in use; nothing was started")]
    AddressInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be used here.
    #[error("the api address {address} cannot be used ({reason}); nothing was started")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        reason: String,
    },
}

impl ApiError {
    fn bind(address: SocketAddr, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::AddrInUse => Self::AddressInUse { address },
            _ => Self::Bind { address, reason: error.to_string() },
        }
    }
}

#[derive(Clone)]
struct Answers {
    sources: ApiSources,
    leaving: Arc<AtomicBool>,
    waits: Arc<AtomicU64>,
    extension: Option<Arc<dyn ApiExtension>>,
}

/// Why nobody should begin anything with a node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NotReady {
    Application(String),
    Leaving,
    Client,
    Ended,
    NoTopology,
    NotListed,
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Application(reason) => reason,
            Self::Leaving => "the node is leaving",
            Self::Client => "the node is a client and no member",
            Self::Ended => "the membership of the node has ended",
            Self::NoTopology => "the node has no topology yet",
            Self::NotListed => "the topology does not list the node",
        })
    }
}

impl Answers {
    fn check_ready(&self) -> Result<(), NotReady> {
        let ApiSources { node, core, membership, .. } = &self.sources;
        if self.leaving.load(Ordering::Relaxed) {
            return Err(NotReady::Leaving);
        }
        if !membership.is_running() {
            return Err(NotReady::Ended);
        }
        let core = lock(core);
        match core.mode() {
            Some(ClusterMode::Member) => {}
            Some(ClusterMode::Client) => return Err(NotReady::Client),
            None => return Err(NotReady::Ended),
        }
        if core.topology_hash().is_none() {
            return Err(NotReady::NoTopology);
        }
        if !core.members().iter().any(|member| member.id.node == *node) {
            return Err(NotReady::NotListed);
        }
        drop(core);
        match &self.extension {
            Some(extension) => extension.check_ready().map_err(NotReady::Application),
            None => Ok(()),
        }
    }

    fn exposition(&self) -> Result<String, MetricsError> {
        let mut text = self.sources.exposition()?;
        if !self.sources.metrics.endpoint {
            return Err(MetricsError::NotExported);
        }
        let ready = u64::from(self.check_ready().is_ok());
        text.one_gauge("synod_node_ready", "1 when the node is ready, else 0.", ready);
        let waits = self.waits.load(Ordering::Relaxed);
        text.counters(
            "synod_api",
            &[("waits", "How often all connections of this listener were in use.", waits)],
        );
        if let Some(extension) = &self.extension {
            extension.expose(&mut text);
        }
        Ok(text.finish())
    }
}

impl ApiSources {
    /// The numbers of the families that are exported.
    pub(crate) fn exposition(&self) -> Result<Exposition, MetricsError> {
        let Self { node, metrics, core, remote, membership, gossiper, grains, pubsub } = self;
        let mut text = Exposition::default();
        let (node, address) = (node.as_str(), remote.authority().as_str());
        {
            let core = lock(core);
            let events = core.event_counts()?;
            text.gauge("synod_node_info", "Always 1; the labels name the node.");
            text.sample("synod_node_info", &[("node", node), ("address", address)], 1);
            text.events(events.iter().filter(|event| metrics.exports(event.family)));
            if metrics.exports(MetricFamily::Membership) {
                text.cluster(&core.metrics()?, core.convergence()?);
            }
        }
        if metrics.exports(MetricFamily::Membership) {
            let counters = membership.counters();
            let counters = [
                ("sends_failed", "Messages that the transport did not take.", counters.sends_failed()),
                ("messages_refused", "Messages from peers that were refused.", counters.messages_refused()),
            ];
            text.counters("synod_membership", &counters);
        }
        if let Some(gossiper) = gossiper.as_ref().filter(|_| metrics.exports(MetricFamily::Gossip)) {
            text.counters("synod_gossip", &gossiper.counters().described());
        }
        if metrics.exports(MetricFamily::Remote) {
            text.remote(remote);
        }
        if metrics.exports(MetricFamily::Grains) {
            text.grains(grains);
        }
        if metrics.exports(MetricFamily::PubSub) {
            text.pubsub(pubsub);
        }
        Ok(text)
    }
}

async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(answers): State<Answers>) -> Response {
    match answers.check_ready() {
        Ok(()) => "ready\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn metrics(State(answers): State<Answers>) -> Response {
    match answers.exposition() {
        Ok(text) => ([(CONTENT_TYPE, exposition::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

async fn not_found() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "there is nothing here; /healthz, /readyz and /metrics are always there\n")
}

/// Most connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection may stay without a complete request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
