//! Hints: who seems to be up, and what others have to say about it. None of it is promised.
//!
//! Think of voices in a corridor. They tell early who came and who seems gone, and they carry news; they also mishear,
//! repeat themselves, and fall silent. So nothing that must be right is decided by them: whoever acts on a hint asks the
//! nodes themselves before anything is changed.
//!
//! ```text
//!                    ┌────────────────── Hints ───────────────────┐
//!   broadcast ──►    │ small: queue, datagrams in rounds ─────────┼──► few nodes, which pass it on
//!                    │ large: one stream to each online node ─────┼──► every online node
//!   Hint      ◄──    │ up, down, heard, received, name conflict ◄─┼─── probes, records, payloads
//!                    │ every few seconds: join who is not online ─┼──► the configured peers
//!                    └────────────────────────────────────────────┘
//! ```
//!
//! The voices are [memberlist], a SWIM implementation. This module is the only one that names it, and makes up for what it
//! leaves out:
//!
//! - It does not call nodes again that it lost, so two halves of a cluster would stay apart. Peers that are not online are
//!   joined again and again.
//! - A node whose messages get nowhere does not notice. [`Hints::last_heard`] tells how long ago each peer answered *this*
//!   node; if none does, it is probably this one that is alone.
//! - A second process of the same name joins without an error. [`Hint::NameConflict`] tells of it, and its payloads are
//!   refused while the first one is up, unless it is a later incarnation.
//! - It sends user messages to some nodes and leaves it at that. Here they go in rounds of their own, to all nodes in turn,
//!   and who hears one first passes it on.
//!
//! Payloads may be lost, and come in any order. One may come twice, though mostly does not.
//!
//! [memberlist]: https://docs.rs/memberlist/0.8.5

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use memberlist::error::Error as MemberlistError;
use memberlist::net::error::NetTransportError;
use memberlist::proto::MaybeResolvedAddress;
use synod_core::NodeId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};

use self::bridge::{Bridge, Memberlist, Transport};
pub use self::config::{HintsConfig, HintsConfigError};
use self::view::View;
use self::wire::Life;
use crate::lock;

mod bridge;
mod config;
mod queue;
mod view;
mod wire;

/// The largest payload of [`Hints::broadcast`], 4 MiB.
pub const PAYLOAD_BYTES_MAX: usize = 4 << 20;

/// Something that was heard. May be wrong, late, or missing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// A peer is up; or it is up with another life than before, as after a restart that nobody noticed.
    Up {
        /// Its name.
        node: NodeId,
        /// The random number of its process.
        instance: u64,
        /// Which life of its name it says that it is.
        incarnation: u64,
    },
    /// A peer left, or is given up by this node or by another.
    Down {
        /// Its name.
        node: NodeId,
    },
    /// A peer answered a probe of this node directly.
    Heard {
        /// Its name.
        node: NodeId,
    },
    /// A payload that a peer broadcast.
    Received {
        /// Who says that it did. As good as the secret is.
        from: NodeId,
        /// What it broadcast. Holders of many payloads should copy what they keep: when 64 MiB are held, further ones are
        /// dropped.
        payload: Bytes,
    },
    /// A second process claims a name, that of a peer or of this node. Comes repeatedly while it lasts, to the nodes that
    /// the second process talks to and to that process itself; the first one may never hear of it. Also comes when a node
    /// restarts at another address before its old life is given up; then the second has a higher incarnation, and is
    /// up as soon as the old one is down.
    NameConflict {
        /// The name.
        node: NodeId,
        /// Where the second process listens.
        address: SocketAddr,
        /// Its random number.
        instance: u64,
        /// Which life of the name it says that it is.
        incarnation: u64,
    },
}

/// How often something was dropped, refused or tried since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HintCounters {
    /// Hints that did not fit because their reader is slow or gone.
    pub dropped_hints: u64,
    /// Payloads that were not sent as often as they should, or at all: too large, or too many waiting.
    pub dropped_broadcasts: u64,
    /// Large payloads that did not reach one of the nodes that were online.
    pub failed_sends: u64,
    /// Membership records of other clusters, of unknown nodes, of other versions, or malformed.
    pub refused_members: u64,
    /// Payloads of unknown nodes, of other versions, malformed, too large, or of a second process of a name.
    pub refused_payloads: u64,
    /// Payloads that came again, which is how gossip works.
    pub repeated_payloads: u64,
    /// How often a second process claimed a name.
    pub name_conflicts: u64,
    /// Calls to peers that were not online, and that answered.
    pub joins: u64,
    /// Calls to peers that were not online, and that did not answer or could not be found.
    pub failed_joins: u64,
}

/// The hints could not be started. Nothing listens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HintsError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] HintsConfigError),
    /// The address cannot be listened on, by TCP or by UDP.
    #[error("hints cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// memberlist refused to start.
    #[error("hints cannot be started: {reason}")]
    Start {
        /// What it said.
        reason: String,
    },
}

/// A source of hints, and a carrier of small news. Dropping it stops it without a word: to others it vanishes. See the
/// [module](self).
pub struct Hints {
    view: Arc<View>,
    large: mpsc::Sender<Bytes>,
    /// How to end it, until somebody has: with how long to try to announce it. Dropped, the driver stops unannounced.
    end: Mutex<Option<(oneshot::Sender<Duration>, JoinHandle<()>)>>,
}

impl fmt::Debug for Hints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hints").finish_non_exhaustive()
    }
}

impl Hints {
    /// Listens, and begins to call the peers. Must be called in a tokio runtime with time and I/O.
    ///
    /// # Errors
    /// A setting is out of range, or the address is taken.
    pub async fn start(config: HintsConfig) -> Result<(Self, mpsc::Receiver<Hint>), HintsError> {
        config.validate()?;
        let life = Life { instance: config.instance, incarnation: config.incarnation };
        let names = config.peers.iter().map(|(node, _)| node.clone());
        let (view, hints) = View::new(config.node.clone(), life, config.label.clone(), names);
        let view = Arc::new(view);
        let members = Memberlist::with_delegate(
            Bridge(Arc::clone(&view)),
            bridge::transport_options(&config),
            bridge::options(&config)?,
        )
        .await
        .map_err(start_error)?;

        let (large, large_to_send) = mpsc::channel(LARGE_PAYLOADS_MAX);
        let (leave, left) = oneshot::channel();
        let driver = tokio::spawn(drive(members, Arc::clone(&view), config, large_to_send, left));
        Ok((Self { view, large, end: Mutex::new(Some((leave, driver))) }, hints))
    }

    /// Tells a payload to all nodes that are online, as well as can be. One that fits into a datagram is queued and
    /// goes in rounds of gossip, a larger one goes by a stream to each of them, and has to get there within about a second.
    /// More than fits into the queues, and more than
    /// [`PAYLOAD_BYTES_MAX`], is dropped and counted.
    pub fn broadcast(&self, payload: &[u8]) {
        if payload.len() > PAYLOAD_BYTES_MAX {
            return self.view.counts.dropped_broadcasts.add();
        }
        let message = self.view.seal(payload);
        if message.len() <= GOSSIP_MESSAGE_BYTES_MAX {
            self.view.queue_gossip(message);
        } else if self.large.try_send(message).is_err() {
            self.view.counts.dropped_broadcasts.add();
        }
    }

    /// The peers that seem to be up.
    #[must_use]
    pub fn online(&self) -> Vec<NodeId> {
        self.view.online()
    }

    /// How long ago each peer was last heard by this node itself, by an answer to a probe or by a payload of its own. Peers
    /// that were never heard are missing.
    #[must_use]
    pub fn last_heard(&self) -> Vec<(NodeId, Duration)> {
        self.view.last_heard()
    }

    /// What was dropped, refused and tried so far.
    #[must_use]
    pub fn counters(&self) -> HintCounters {
        self.view.counts.read()
    }

    /// Announces that this node leaves, for as long as `timeout`, and stops. When it returns the address is free.
    pub async fn leave(&self, timeout: Duration) {
        let end = lock(&self.end).take();
        if let Some((leave, driver)) = end {
            // Both fail only when the driver is gone already, with the runtime that it ran in.
            leave.send(timeout).ok();
            driver.await.ok();
        }
    }
}

/// Works until the owner leaves or is gone.
async fn drive(
    members: Memberlist,
    view: Arc<View>,
    config: HintsConfig,
    large: mpsc::Receiver<Bytes>,
    left: oneshot::Receiver<Duration>,
) {
    let work = async {
        tokio::join!(
            keep_joining(&members, &view, &config),
            keep_gossiping(&members, &view, &config),
            send_large(&members, &view, large),
        )
    };
    let announce_for = tokio::select! {
        left = left => left.ok(),
        _ = work => None,
    };
    if let Some(announce_for) = announce_for
        && let Err(error) = members.leave(announce_for.max(Duration::from_millis(1))).await
    {
        tracing::debug!(node = %config.node, %error, "nobody may have heard that this node leaves");
    }
    if let Err(error) = members.shutdown().await {
        tracing::warn!(node = %config.node, %error, "hints did not stop cleanly");
    }
}

/// Calls every peer that is not online, now and every few seconds.
async fn keep_joining(members: &Memberlist, view: &Arc<View>, config: &HintsConfig) {
    let mut rounds = interval(config.rejoin_interval);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let online = view.online();
        let mut calls = JoinSet::new();
        for (node, address) in config.peers.iter().filter(|(node, _)| !online.contains(node)) {
            let (members, view) = (members.clone(), Arc::clone(view));
            let (node, address) = (node.clone(), address.clone());
            calls.spawn(async move {
                match timeout(JOIN_TIMEOUT, join(&members, &address)).await.unwrap_or(Err(JoinError::Late)) {
                    Ok(()) => view.counts.joins.add(),
                    Err(error) => {
                        view.counts.failed_joins.add();
                        tracing::debug!(peer = %node, %address, %error, "a peer that is not online did not answer");
                    }
                }
            });
        }
        while calls.join_next().await.is_some() {}
    }
}

/// Exchanges all that is known with whoever listens at that `host:port`.
async fn join(members: &Memberlist, address: &str) -> Result<(), JoinError> {
    let mut result = Err(JoinError::Unknown);
    for address in tokio::net::lookup_host(address).await?.take(ADDRESSES_MAX) {
        result = match members.join(MaybeResolvedAddress::Resolved(address)).await {
            Ok(_) => return Ok(()),
            Err(error) => Err(JoinError::Refused(error.to_string())),
        };
    }
    result
}

#[derive(Debug, thiserror::Error)]
enum JoinError {
    #[error("its name could not be resolved: {0}")]
    Resolve(#[from] io::Error),
    #[error("its name has no address")]
    Unknown,
    #[error("{0}")]
    Refused(String),
    #[error("it took too long")]
    Late,
}

/// Sends what is queued to a few nodes at a time, to each of them the same, and to all in turn. memberlist would take
/// messages along with its own, but for one node and another the next, so that of many at once each reaches only some.
async fn keep_gossiping(members: &Memberlist, view: &View, config: &HintsConfig) {
    let mut rounds = interval(config.gossip_interval);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turn = 0_usize;
    loop {
        rounds.tick().await;
        let online = members.online_members().await;
        let mut others: Vec<_> = online.iter().filter(|member| member.id() != members.local_id()).collect();
        if others.is_empty() {
            continue;
        }
        others.sort_unstable_by(|one, other| one.id().cmp(other.id()));
        let targets = config.fanout.min(others.len());
        let room = bridge::packet_bytes_max(config);
        for messages in view.take_gossip(DATAGRAMS_PER_ROUND, room, others.len()) {
            for member in others.iter().cycle().skip(turn % others.len()).take(targets) {
                // What is lost is sent again, and passed on by others.
                members.send_many(member.address(), messages.iter().cloned()).await.ok();
            }
        }
        turn = turn.wrapping_add(targets);
    }
}

/// Sends what is too large for a datagram to every online node, one payload after the other.
async fn send_large(members: &Memberlist, view: &Arc<View>, mut large: mpsc::Receiver<Bytes>) {
    while let Some(message) = large.recv().await {
        let mut sends = JoinSet::new();
        for member in members.online_members().await {
            if member.id() == members.local_id() {
                continue;
            }
            let (members, view, message) = (members.clone(), Arc::clone(view), message.clone());
            sends.spawn(async move {
                // memberlist bounds how long it connects, not how long it writes to a peer that does not read.
                let send = timeout(SEND_TIMEOUT, members.send_reliable(member.address(), message)).await;
                if !matches!(send, Ok(Ok(()))) {
                    view.counts.failed_sends.add();
                }
            });
        }
        while sends.join_next().await.is_some() {}
    }
}

fn start_error(error: MemberlistError<Transport, Bridge>) -> HintsError {
    match error {
        MemberlistError::Transport(
            NetTransportError::ListenPacket(address, source)
            | NetTransportError::ListenPromised(address, source),
        ) => HintsError::Bind { address, source },
        other => HintsError::Start { reason: other.to_string() },
    }
}

/// The largest message that is gossiped: with all that goes around it, and the longest label, it fits into one datagram.
const GOSSIP_MESSAGE_BYTES_MAX: usize = 1000;
/// How many datagrams a node gets in one round of gossip.
const DATAGRAMS_PER_ROUND: usize = 16;
/// How many large payloads may wait to be sent.
const LARGE_PAYLOADS_MAX: usize = 16;
/// How many addresses of one name are tried.
const ADDRESSES_MAX: usize = 8;
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
