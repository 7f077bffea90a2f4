//! Finding each other by a list of hosts, as protoactor-go's automanaged provider does.
//!
//! Every node has the same list of health addresses. It answers at its own, asks at all of them every now and then, and
//! whoever answers is there. Nobody registers and nobody says goodbye: a node leaves by not answering any more.
//!
//! ```text
//!                       ┌── GET /_health ◄── peers
//!   HealthServer ◄──────┤
//!        ▲ own report   └──► peers ──► HealthPoller ──► Roster ──► RosterUpdated
//!        └──────────────────────────────────────────────┘  ▲
//!                          membership, gossip ─────────────┘
//! ```
//!
//! A Go node believes a single poll; this one asks gossip, too, before it gives a Go node up. Synod nodes that it meets
//! on the way it leaves to membership.

mod config;
mod health;
mod poller;
mod server;

pub use config::{AutomanagedConfig, AutomanagedConfigError, HOSTS_MAX};
pub(crate) use health::check_kinds;
pub use health::{HEALTH_BYTES_MAX, HealthError, HealthReport, KIND_BYTES_MAX, KINDS_MAX, decode_health};
pub use poller::{HealthPoller, HostPoll, HostPollCounts, PollCounters, PollError, poll_result};
pub use server::{HEALTH_PATH, HealthServer, HealthServerConfig, HealthServerCounters, HealthServerError};

use std::net::SocketAddr;
use std::sync::Arc;

use synod_core::gossip::GossipMemberId;
use synod_core::membership::Member;
use synod_core::roster::{PeerRuntime, Roster, RosterMember};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::roster::{Polling, RosterTask, RosterWiring, SynodPeerListener};

/// A running provider: the health endpoint of a member, the polls, and the roster. Dropping it ends all at once.
#[derive(Debug)]
pub struct AutomanagedProvider {
    server: Option<HealthServer>,
    polls: PollCounters,
    roster: RosterTask,
}

impl AutomanagedProvider {
    /// Starts as the member `own`. Whatever peers do next (connect, gossip, ask for grains) must work already: the first
    /// answer makes this node a member to every Go node.
    ///
    /// # Errors
    /// A setting that cannot be used, or a health address that is taken. Nothing runs then.
    pub async fn start_member(
        config: &AutomanagedConfig,
        own: Member,
        wiring: RosterWiring,
        on_synod_peer: SynodPeerListener,
    ) -> Result<Self, AutomanagedError> {
        config.validate()?;
        let listener = HealthServer::bind(config.listen).await?;
        Self::start_member_on(listener, config, own, wiring, on_synod_peer)
    }

    /// As [`start_member`](Self::start_member), on a listener that is bound already; `config.listen` is not looked at.
    ///
    /// # Errors
    /// A setting that cannot be used.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start_member_on(
        listener: TcpListener,
        config: &AutomanagedConfig,
        own: Member,
        wiring: RosterWiring,
        on_synod_peer: SynodPeerListener,
    ) -> Result<Self, AutomanagedError> {
        config.validate()?;
        let listen = listener.local_addr().map_err(|error| HealthServerError::Listener(error.to_string()))?;
        if !is_listed(config, &own, listen) {
            tracing::warn!(
                %listen,
                authority = %own.authority,
                "this node's own health address is not among the hosts; nodes that use this list will not find it"
            );
        }
        let mut kinds = config.kinds.clone();
        kinds.sort();
        kinds.dedup();
        let roster = Roster::member(own.clone(), kinds.clone(), config.roster.clone())
            .map_err(AutomanagedConfigError::from)?;
        let member = RosterMember {
            id: GossipMemberId::from(&own.id),
            authority: own.authority,
            kinds,
            runtime: PeerRuntime::Synod,
        };
        let cluster_name = config.cluster_name.clone();
        let (report, reports) =
            watch::channel(HealthReport { member, health_port: listen.port(), cluster_name });
        let poller = HealthPoller::new(&config.hosts, &config.cluster_name, config.poll_timeout)?;
        let server = HealthServer::start(listener, reports, config.server)?;
        Ok(Self::start(Some(server), poller, config, roster, wiring, on_synod_peer, Some(report)))
    }

    /// Starts as a client: it sees the members and is none.
    ///
    /// # Errors
    /// A setting that cannot be used.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start_client(
        config: &AutomanagedConfig,
        wiring: RosterWiring,
        on_synod_peer: SynodPeerListener,
    ) -> Result<Self, AutomanagedError> {
        config.validate()?;
        let roster = Roster::client(config.roster.clone()).map_err(AutomanagedConfigError::from)?;
        let poller = HealthPoller::new(&config.hosts, &config.cluster_name, config.poll_timeout)?;
        Ok(Self::start(None, poller, config, roster, wiring, on_synod_peer, None))
    }

    /// Everybody now, in order of their ids.
    #[must_use]
    pub fn members(&self) -> Arc<[RosterMember]> {
        self.roster.members()
    }

    /// Where the health endpoint listens; `None` for a client.
    #[must_use]
    pub fn health_address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(HealthServer::address)
    }

    /// How the polls went.
    #[must_use]
    pub const fn poll_counters(&self) -> &PollCounters {
        &self.polls
    }

    /// Stops asking, then stops answering, which is what tells Go nodes that this one left. When this returns nothing of
    /// the provider runs and the address is free.
    pub async fn stop(self) {
        self.roster.stop().await;
        if let Some(server) = self.server {
            server.stop().await;
        }
    }

    fn start(
        server: Option<HealthServer>,
        poller: HealthPoller,
        config: &AutomanagedConfig,
        roster: Roster,
        wiring: RosterWiring,
        on_synod_peer: SynodPeerListener,
        report: Option<watch::Sender<HealthReport>>,
    ) -> Self {
        let polls = poller.counters().clone();
        let refresh_interval = config.refresh_interval;
        let polling = Polling { poller, refresh_interval, on_synod_peer, report };
        let roster = RosterTask::spawn(roster, wiring, Some(polling));
        Self { server, polls, roster }
    }
}

/// The provider could not start. Nothing runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AutomanagedError {
    /// A setting cannot be used.
    #[error(transparent)]
    Config(#[from] AutomanagedConfigError),
    /// The health endpoint cannot be opened.
    #[error(transparent)]
    Server(#[from] HealthServerError),
}

/// Whether some host is likely this node: the port of its endpoint, and one of the names it may have.
fn is_listed(config: &AutomanagedConfig, own: &Member, listen: SocketAddr) -> bool {
    let address = listen.ip().to_string();
    config.hosts.iter().filter(|host| host.port() == listen.port()).any(|host| {
        let name = host.host();
        name.eq_ignore_ascii_case(own.authority.host())
            || name.trim_matches(['[', ']']) == address
            || (listen.ip().is_loopback() && name.eq_ignore_ascii_case("localhost"))
    })
}
