//! The settings of remoting, checked once.

use std::net::SocketAddr;
use std::time::Duration;

use synod_core::Authority;
use synod_core::grains::{SCHEMA_BASE, SCHEMAS_MAX};
use synod_core::outbound::{OutboundConfig, OutboundConfigError, OverflowPolicy};
use synod_wire::Dialect;

use super::memory_network::MemoryNetwork;
use super::network::Network;

/// Settings of a [`Remote`](super::Remote).
#[derive(Clone, Debug)]
pub struct RemoteConfig {
    /// What connections are made of. Default [`Network::Tcp`].
    pub network: Network,
    /// Where to listen. Port 0 lets the system choose.
    pub bind: SocketAddr,
    /// Where peers reach this node, if that is not where it listens. Required when it listens on all addresses,
    /// and on a network in memory.
    pub advertised: Option<Authority>,
    /// The dialect of protoactor-go in which a peer is spoken to before it has said anything. Default B.
    pub default_dialect: Dialect,
    /// The versions of the call schema that this node tells its peers of, and without one of which it deals with nobody. 1
    /// to 32 of them, none 0. Default 1 alone. A [`Cluster`](crate::Cluster) takes them from the settings of its calls.
    pub call_schemas: Vec<u32>,
    /// How messages wait for a peer that is not connected. Its default here refuses new messages when a queue is full,
    /// because the sender can react.
    pub outbound: OutboundConfig,
    /// Most messages that wait for one lane of a connected peer. More rides out a slower peer and holds more memory. 1 to
    /// 10 000 000. Default 65 536.
    pub lane_messages_max: usize,
    /// Most bytes that wait for one lane of a connected peer. 64 KiB to 4 GiB. Default 32 MiB.
    pub lane_bytes_max: usize,
    /// How long opening a connection may take, handshake included. 10 ms to 10 min. Default 5 s.
    pub connect_timeout: Duration,
    /// How long a peer that connects may take to say who it is. 10 ms to 10 min. Default 5 s.
    pub handshake_timeout: Duration,
    /// How long the address of a peer that this node cannot deal with is quarantined. 10 ms to 1 day. Default 30 s.
    pub quarantine_ttl: Duration,
    /// Most connections from peers. 1 to 100 000. Default 1024.
    pub inbound_connections_max: usize,
    /// Most messages in the mailbox of one actor. 1 to 10 000 000. Default 65 536.
    pub mailbox_messages_max: usize,
    /// Most bytes in the mailbox of one actor; one message fits whatever its size. 1 KiB to 4 GiB. Default 64 MiB.
    pub mailbox_bytes_max: usize,
    /// How long a stream waits for a full mailbox before what it holds for it becomes dead letters. Everything behind on
    /// the same lane waits with it, but only once per frame and mailbox. 0 to 1 min. Default 1 s.
    pub mailbox_patience: Duration,
    /// Most actors and other processes. 16 to 100 000 000. Default 1 000 000.
    pub processes_max: usize,
    /// Most requests that wait for an answer. 1 to 100 000 000. Default 1 000 000.
    pub requests_max: usize,
    /// Feeds the pauses between attempts to connect. A fixed seed makes a run repeatable; `None`, the default, draws one.
    pub seed: Option<u64>,
}

impl RemoteConfig {
    /// The defaults, listening on `bind`.
    #[must_use]
    pub fn new(bind: SocketAddr) -> Self {
        Self {
            network: Network::Tcp,
            bind,
            advertised: None,
            default_dialect: Dialect::default(),
            call_schemas: vec![SCHEMA_BASE],
            outbound: OutboundConfig { overflow: OverflowPolicy::RejectNew, ..OutboundConfig::default() },
            lane_messages_max: 65_536,
            lane_bytes_max: 32 << 20,
            connect_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(5),
            quarantine_ttl: Duration::from_secs(30),
            inbound_connections_max: 1024,
            mailbox_messages_max: 65_536,
            mailbox_bytes_max: 64 << 20,
            mailbox_patience: Duration::from_secs(1),
            processes_max: 1_000_000,
            requests_max: 1_000_000,
            seed: None,
        }
    }

    /// The defaults for a node at `authority` on a network inside this process.
    #[must_use]
    pub fn in_memory(network: MemoryNetwork, authority: Authority) -> Self {
        let bind = SocketAddr::from(([0, 0, 0, 0], 0));
        Self { network: Network::Memory(network), advertised: Some(authority), ..Self::new(bind) }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), RemoteConfigError> {
        self.outbound.validate()?;
        let counts = [
            ("call_schemas", self.call_schemas.len(), 1, SCHEMAS_MAX),
            ("lane_messages_max", self.lane_messages_max, 1, 10_000_000),
            ("lane_bytes_max", self.lane_bytes_max, 64 << 10, 4 << 30),
            ("inbound_connections_max", self.inbound_connections_max, 1, 100_000),
            ("mailbox_messages_max", self.mailbox_messages_max, 1, 10_000_000),
            ("mailbox_bytes_max", self.mailbox_bytes_max, 1 << 10, 4 << 30),
            ("processes_max", self.processes_max, 16, 100_000_000),
            ("requests_max", self.requests_max, 1, 100_000_000),
        ];
        if self.call_schemas.contains(&0) {
            return Err(RemoteConfigError::SchemaZero);
        }
        for (field, value, min, max) in counts {
            if !(min..=max).contains(&value) {
                return Err(RemoteConfigError::Count { field, value, min, max });
            }
        }
        let (short, long) = (Duration::from_millis(10), Duration::from_secs(600));
        let durations = [
            ("connect_timeout", self.connect_timeout, short, long),
            ("handshake_timeout", self.handshake_timeout, short, long),
            ("quarantine_ttl", self.quarantine_ttl, short, Duration::from_secs(86_400)),
            ("mailbox_patience", self.mailbox_patience, Duration::ZERO, Duration::from_secs(60)),
        ];
        for (field, value, min, max) in durations {
            if !(min..=max).contains(&value) {
                return Err(RemoteConfigError::Duration { field, value, min, max });
            }
        }
        if self.advertised.is_none()
            && (self.bind.ip().is_unspecified() || matches!(self.network, Network::Memory(_)))
        {
            return Err(RemoteConfigError::NotAdvertised { bind: self.bind });
        }
        Ok(())
    }

    /// Where peers reach a node that listens on `bound`.
    pub(super) fn advertised_at(&self, bound: SocketAddr) -> Result<Authority, RemoteConfigError> {
        match &self.advertised {
            Some(authority) => Ok(authority.clone()),
            None => Authority::new(&bound.to_string())
                .map_err(|_| RemoteConfigError::NotAdvertised { bind: self.bind }),
        }
    }
}

/// A setting is out of range. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteConfigError {
    /// A number is out of range.
    #[error("remote.{field} must be {min} to {max}, it is {value}")]
    Count {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: usize,
        /// The smallest value.
        min: usize,
        /// The largest value.
        max: usize,
    },
    /// A duration is out of range.
    #[error("remote.{field} must be {min:?} to {max:?}, it is {value:?}")]
    Duration {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: Duration,
        /// The shortest value.
        min: Duration,
        /// The longest value.
        max: Duration,
    },
    /// Peers could not reach a node that listens everywhere and says nothing about where it is.
    #[error("remote.advertised is required when remote.bind is {bind}: peers cannot dial that address")]
    NotAdvertised {
        /// Where it listens.
        bind: SocketAddr,
    },
    /// 0 is no version.
    #[error("remote.call_schemas must not contain version 0")]
    SchemaZero,
    /// A setting of the associations.
    #[error(transparent)]
    Outbound(#[from] OutboundConfigError),
}
