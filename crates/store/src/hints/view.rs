//! What this node knows of its peers, and what it tells of that: the state behind [`Hints`](super::Hints), free of the
//! library that feeds it.
//!
//! Everything here is called from callbacks that hold the library's lock. So nothing waits: hints go to a bounded channel,
//! and what does not fit is counted and dropped. Up and down are worth more than payloads, which come again; some places of
//! the channel are kept for them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use synod_core::NodeId;
use tokio::sync::mpsc;

use super::queue::{GossipQueue, SeenWindow};
use super::wire::{Envelope, Life, decode_meta, encode_meta};
use super::{GOSSIP_MESSAGE_BYTES_MAX, Hint, HintCounters, PAYLOAD_BYTES_MAX};

pub(super) struct View {
    node: NodeId,
    life: Life,
    label: String,
    /// The peers of the configuration and no others, which bounds everything that is kept by name.
    peers: Mutex<BTreeMap<NodeId, Peer>>,
    queue: Mutex<GossipQueue>,
    /// How many payloads this life has sent.
    sequence: AtomicU64,
    hints: mpsc::Sender<Hint>,
    /// Bytes of payloads that were handed out and are not yet dropped by whoever got them.
    received_bytes: Arc<AtomicUsize>,
    pub(super) counts: Counts,
}

#[derive(Default)]
struct Peer {
    /// The life that is up.
    online: Option<Life>,
    heard: Option<Instant>,
    /// The instance whose payloads came last, and which of them.
    sender: Option<(u64, SeenWindow)>,
}

impl View {
    pub(super) fn new(
        node: NodeId,
        life: Life,
        label: String,
        peers: impl Iterator<Item = NodeId>,
    ) -> (Self, mpsc::Receiver<Hint>) {
        let (hints, receiver) = mpsc::channel(HINTS_MAX);
        let view = Self {
            node,
            life,
            label,
            peers: Mutex::new(peers.map(|node| (node, Peer::default())).collect()),
            queue: Mutex::default(),
            sequence: AtomicU64::new(0),
            hints,
            received_bytes: Arc::default(),
            counts: Counts::default(),
        };
        (view, receiver)
    }

    // ---- What this node sends ----

    pub(super) fn meta(&self) -> Vec<u8> {
        encode_meta(self.life, &self.label)
    }

    /// Puts a payload into its envelope.
    pub(super) fn seal(&self, payload: &[u8]) -> Bytes {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        Envelope { hops: 0, life: self.life, sequence, node: self.node.clone(), payload }.encode().into()
    }

    pub(super) fn queue_gossip(&self, message: Bytes) {
        if !lock(&self.queue).push(message) {
            self.counts.dropped_broadcasts.add();
        }
    }

    /// The datagrams of a round of gossip among that many other nodes.
    pub(super) fn take_gossip(&self, datagrams: usize, room: usize, others: usize) -> Vec<Vec<Bytes>> {
        // Every tenfold of nodes needs further rounds to reach all, as each round multiplies who knows.
        let magnitude = others.checked_ilog10().and_then(|tens| usize::try_from(tens).ok()).unwrap_or(0);
        lock(&self.queue).take(datagrams, room, ROUNDS_PER_MAGNITUDE * (magnitude + 1))
    }

    // ---- What others tell ----

    /// The life that a membership record tells of, if it is one of this cluster and about a node of it.
    pub(super) fn admit(&self, node: &str, meta: &[u8]) -> Option<(NodeId, Life)> {
        let admitted = NodeId::new(node).ok().zip(decode_meta(meta, &self.label));
        admitted.filter(|(node, _)| *node == self.node || lock(&self.peers).contains_key(node))
    }

    /// A node came up, or is up with another life.
    pub(super) fn up(&self, node: NodeId, life: Life) {
        let mut peers = lock(&self.peers);
        let Some(peer) = peers.get_mut(&node) else { return };
        if peer.online.replace(life) == Some(life) {
            return;
        }
        self.tell(Hint::Up { node, instance: life.instance, incarnation: life.incarnation }, 0);
    }

    pub(super) fn down(&self, node: NodeId) {
        let mut peers = lock(&self.peers);
        if peers.get_mut(&node).is_some_and(|peer| peer.online.take().is_some()) {
            self.tell(Hint::Down { node }, 0);
        }
    }

    /// A node answered this one directly.
    pub(super) fn heard(&self, node: NodeId) {
        let mut peers = lock(&self.peers);
        let Some(peer) = peers.get_mut(&node) else { return };
        peer.heard = Some(Instant::now());
        self.tell(Hint::Heard { node }, PLACES_KEPT);
    }

    pub(super) fn name_conflict(&self, node: NodeId, address: SocketAddr, life: Life) {
        self.counts.name_conflicts.add();
        let (instance, incarnation) = (life.instance, life.incarnation);
        self.tell(Hint::NameConflict { node, address, instance, incarnation }, PLACES_KEPT);
    }

    pub(super) fn received(&self, message: &[u8]) {
        let envelope =
            Envelope::decode(message).filter(|envelope| envelope.payload.len() <= PAYLOAD_BYTES_MAX);
        let Some(envelope) = envelope else {
            return self.counts.refused_payloads.add();
        };
        if envelope.node == self.node && envelope.life == self.life {
            return self.counts.repeated_payloads.add();
        }
        let mut peers = lock(&self.peers);
        let Some(peer) = peers.get_mut(&envelope.node) else {
            return self.counts.refused_payloads.add();
        };
        // Of two processes with one name the one that is known to be up is heard. A later life may speak before its record
        // is here; that is how nodes restart.
        let is_impostor = peer.online.is_some_and(|online| {
            envelope.life.instance != online.instance && envelope.life.incarnation <= online.incarnation
        });
        if is_impostor {
            return self.counts.refused_payloads.add();
        }
        if envelope.hops == 0 {
            peer.heard = Some(Instant::now());
        }
        if peer.sender.as_ref().is_none_or(|(instance, _)| *instance != envelope.life.instance) {
            peer.sender = Some((envelope.life.instance, SeenWindow::default()));
        }
        if !peer.sender.as_mut().is_some_and(|(_, seen)| seen.mark(envelope.sequence)) {
            return self.counts.repeated_payloads.add();
        }
        drop(peers);
        if message.len() <= GOSSIP_MESSAGE_BYTES_MAX && envelope.hops < HOPS_MAX {
            let passed_on = Envelope { hops: envelope.hops + 1, ..envelope.clone() };
            self.queue_gossip(passed_on.encode().into());
        }
        match Lent::new(envelope.payload, &self.received_bytes) {
            Some(lent) => {
                let payload = Bytes::from_owner(lent);
                self.tell(Hint::Received { from: envelope.node, payload }, PLACES_KEPT);
            }
            None => self.counts.dropped_hints.add(),
        }
    }

    // ---- What this node tells ----

    pub(super) fn online(&self) -> Vec<NodeId> {
        let peers = lock(&self.peers);
        peers.iter().filter(|(_, peer)| peer.online.is_some()).map(|(node, _)| node.clone()).collect()
    }

    pub(super) fn last_heard(&self) -> Vec<(NodeId, Duration)> {
        let peers = lock(&self.peers);
        peers
            .iter()
            .filter_map(|(node, peer)| peer.heard.map(|heard| (node.clone(), heard.elapsed())))
            .collect()
    }

    /// Sends a hint unless only so many places are left. Called with the peers locked where it tells of a change of them,
    /// so that hints come in the order of the changes.
    fn tell(&self, hint: Hint, places_kept: usize) {
        if self.hints.capacity() <= places_kept || self.hints.try_send(hint).is_err() {
            self.counts.dropped_hints.add();
        }
    }
}

/// The bytes of a payload that was handed out. They count as held until the last view of them is dropped.
struct Lent {
    bytes: Box<[u8]>,
    held: Arc<AtomicUsize>,
}

impl Lent {
    /// Copies the payload, if there is room for it.
    fn new(payload: &[u8], held: &Arc<AtomicUsize>) -> Option<Self> {
        let grow = |bytes: usize| Some(bytes + payload.len()).filter(|sum| *sum <= RECEIVED_BYTES_MAX);
        held.try_update(Ordering::Relaxed, Ordering::Relaxed, grow).ok()?;
        Some(Self { bytes: payload.into(), held: Arc::clone(held) })
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// See [`HintCounters`].
#[derive(Default)]
pub(super) struct Counts {
    pub(super) dropped_hints: Count,
    pub(super) dropped_broadcasts: Count,
    pub(super) failed_sends: Count,
    pub(super) refused_members: Count,
    pub(super) refused_payloads: Count,
    pub(super) repeated_payloads: Count,
    pub(super) name_conflicts: Count,
    pub(super) joins: Count,
    pub(super) failed_joins: Count,
}

impl Counts {
    pub(super) fn read(&self) -> HintCounters {
        HintCounters {
            dropped_hints: self.dropped_hints.get(),
            dropped_broadcasts: self.dropped_broadcasts.get(),
            failed_sends: self.failed_sends.get(),
            refused_members: self.refused_members.get(),
            refused_payloads: self.refused_payloads.get(),
            repeated_payloads: self.repeated_payloads.get(),
            name_conflicts: self.name_conflicts.get(),
            joins: self.joins.get(),
            failed_joins: self.failed_joins.get(),
        }
    }
}

#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Nothing panics while it holds one of the locks, so a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most hints that wait for their reader.
const HINTS_MAX: usize = 1024;
/// How many of those places only up and down may take.
const PLACES_KEPT: usize = 128;
/// The most bytes of payloads that readers hold.
const RECEIVED_BYTES_MAX: usize = 64 << 20;
/// How often a payload is passed on. With the few nodes that each sender reaches, three times reach thousands.
const HOPS_MAX: u8 = 3;
/// In how many rounds a message is sent by one node, for each power of ten of the number of nodes.
const ROUNDS_PER_MAGNITUDE: usize = 3;

#[cfg(test)]
mod tests;
