//! What a node does for its objects when nobody asks: it fetches parts that are missing, mends damaged ones, reads all of
//! them once in a while, and removes what nobody needs any more.
//!
//! Which entries differ between replicas is for the machine to find and to mend; this is about the bytes. What cannot be
//! mended is kept in a list, and told to whoever asks: silence would look like health.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use synod_core::slots::SlotId;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::body::{self, PartError, Piece};
use super::content::{PartId, PartRef};
use super::disk::Disk;
use super::handle::unix_millis;
use super::plane::Plane;
use crate::lock;

/// How a node keeps its objects whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeeperConfig {
    /// How many bytes of parts are read per second to see whether they are still what they were. More finds damage sooner
    /// and costs the disk more. At least 64 KiB; 8 MiB by default.
    pub scrub_bytes_per_second: u64,
    /// How long the whole round waits before the next one begins. One day by default.
    pub scrub_pause: Duration,
    /// How long the tombstone of a deleted entry is kept, at least, and until every replica has it. It must be longer than
    /// any message can be late. One day by default.
    pub tombstone_grace: Duration,
}

impl Default for KeeperConfig {
    fn default() -> Self {
        Self { scrub_bytes_per_second: 8 << 20, scrub_pause: DAY, tombstone_grace: DAY }
    }
}

/// Keeps the parts of a node whole.
pub(crate) struct Keeper {
    plane: Arc<Plane>,
    config: KeeperConfig,
    state: Mutex<KeeperState>,
    /// Somebody wants a round now, as fast as the disk goes.
    is_hurried: AtomicBool,
    hurry: Notify,
    fetched: AtomicU64,
}

#[derive(Debug, Default)]
struct KeeperState {
    scrub: ScrubProgress,
    unrepaired: BTreeMap<PartId, String>,
}

/// How far the reading of all parts is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Whether a round is under way.
    pub is_running: bool,
    /// Parts read in this round, or in the last one.
    pub parts: u64,
    /// Of how many.
    pub parts_total: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Parts that were damaged or gone.
    pub damaged: u64,
    /// Of these, the ones that were fetched again.
    pub repaired: u64,
    /// When the last whole round ended, in milliseconds of the wall clock.
    pub finished_ms: Option<u64>,
}

impl Keeper {
    pub(crate) fn new(plane: Arc<Plane>, config: KeeperConfig) -> Arc<Self> {
        Arc::new(Self {
            plane,
            config,
            state: Mutex::default(),
            is_hurried: AtomicBool::new(false),
            hurry: Notify::new(),
            fetched: AtomicU64::new(0),
        })
    }

    /// Begins a round of reading now, as fast as the disk goes.
    pub(crate) fn scrub_now(&self) {
        self.is_hurried.store(true, Ordering::Release);
        lock(&self.state).scrub.is_running = true;
        self.hurry.notify_one();
    }

    /// How far the reading is.
    pub(crate) fn scrub_progress(&self) -> ScrubProgress {
        lock(&self.state).scrub
    }

    /// Parts that are missing or damaged here and that no other replica could give, with the reason.
    pub(crate) fn unrepaired(&self) -> Vec<(PartId, String)> {
        lock(&self.state).unrepaired.iter().map(|(part, reason)| (*part, reason.clone())).collect()
    }

    /// How many parts were fetched from other replicas.
    pub(crate) fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }

    /// Fetches the parts that heads name and that are not here, for ever.
    pub(crate) async fn fetch_missing(self: Arc<Self>) {
        // A head may come a moment before its last part: what is fetched was missing twice.
        let mut seen = BTreeSet::new();
        loop {
            let mut missing = Vec::new();
            for disk in self.plane.disks().to_vec() {
                let found = tokio::task::spawn_blocking(move || disk.missing_parts(MISSING_MAX, None)).await;
                match found {
                    Ok(Ok(found)) => missing.extend(found),
                    Ok(Err(error)) => tracing::error!(%error, "missing parts cannot be listed"),
                    Err(error) => tracing::error!(%error, "missing parts cannot be listed"),
                }
            }
            let (again, fresh): (Vec<_>, Vec<_>) =
                missing.into_iter().partition(|(part, ..)| seen.contains(&part.id));
            seen = fresh.into_iter().map(|(part, ..)| part.id).collect();
            let has_more = again.len() >= MISSING_MAX / 2;
            let mut failed = 0;
            let mut fetches = tokio::task::JoinSet::new();
            for (part, slot, _) in again {
                if fetches.len() >= FETCHES_MAX
                    && let Some(done) = fetches.join_next().await
                {
                    failed += usize::from(!done.unwrap_or(false));
                }
                let keeper = Arc::clone(&self);
                seen.insert(part.id);
                fetches.spawn(async move { keeper.fetch(slot, part).await });
            }
            while let Some(done) = fetches.join_next().await {
                failed += usize::from(!done.unwrap_or(false));
            }
            // A rebuild goes on at once; without others to ask there is no hurry.
            if !has_more || failed > 0 {
                tokio::time::sleep(MISSING_PAUSE).await;
            }
        }
    }

    /// Mends parts that readers stumbled over, for ever.
    pub(crate) async fn mend_suspects(self: Arc<Self>, mut suspects: mpsc::Receiver<(SlotId, PartRef)>) {
        while let Some((slot, part)) = suspects.recv().await {
            if self.is_damaged(slot, part).await {
                self.mend(slot, part).await;
            }
        }
    }

    /// Reads all parts, at a bounded rate, for ever.
    pub(crate) async fn scrub(self: Arc<Self>) {
        loop {
            // A hurried round does not wait for the next day.
            tokio::select! {
                () = tokio::time::sleep(self.config.scrub_pause) => {}
                () = self.hurry.notified() => {}
            }
            self.scrub_once().await;
        }
    }

    async fn scrub_once(&self) {
        let total = self.plane.disks().iter().map(|disk| disk.usage().map_or(0, |usage| usage.parts)).sum();
        {
            let mut state = lock(&self.state);
            let finished_ms = state.scrub.finished_ms;
            state.scrub = ScrubProgress {
                is_running: true,
                parts_total: total,
                finished_ms,
                ..ScrubProgress::default()
            };
        }
        for disk in self.plane.disks().to_vec() {
            let mut after = None;
            loop {
                let (reader, from) = (disk.clone(), after);
                let found = tokio::task::spawn_blocking(move || reader.named_parts(from, SCRUB_PAGE)).await;
                let Ok(Ok(found)) = found else { break };
                let Some(last) = found.last() else { break };
                after = Some(last.0.id);
                for (part, slot) in found {
                    self.scrub_part(&disk, slot, part).await;
                }
            }
        }
        let mut state = lock(&self.state);
        state.scrub.is_running = false;
        state.scrub.finished_ms = Some(unix_millis());
        drop(state);
        self.is_hurried.store(false, Ordering::Release);
    }

    async fn scrub_part(&self, disk: &Disk, slot: SlotId, part: PartRef) {
        let began = Instant::now();
        let is_damaged = self.is_damaged(slot, part).await;
        // What was replaced meanwhile is gone by right.
        let is_wanted = disk.is_named(part.id).unwrap_or(true);
        let mut is_repaired = false;
        if is_damaged && is_wanted {
            is_repaired = self.mend(slot, part).await;
        }
        {
            let scrub = &mut lock(&self.state).scrub;
            scrub.parts += 1;
            scrub.bytes += part.bytes;
            scrub.damaged += u64::from(is_damaged && is_wanted);
            scrub.repaired += u64::from(is_repaired);
        }
        if !self.is_hurried.load(Ordering::Acquire) {
            let rate = self.config.scrub_bytes_per_second.max(64 * 1024);
            let fair = Duration::from_secs_f64(part.bytes as f64 / rate as f64);
            tokio::select! {
                () = tokio::time::sleep(fair.saturating_sub(began.elapsed())) => {}
                () = self.hurry.notified() => {}
            }
        }
    }

    async fn is_damaged(&self, slot: SlotId, part: PartRef) -> bool {
        let Some(disk) = self.plane.own_disk(slot).cloned() else { return false };
        let read = tokio::task::spawn_blocking(move || {
            let mut range = 0..part.bytes;
            body::stream_part(&disk, part, &mut range, |_| true)
        });
        !matches!(read.await, Ok(Ok(_)))
    }

    /// Replaces a damaged part. True when it is whole again.
    async fn mend(&self, slot: SlotId, part: PartRef) -> bool {
        self.fetch(slot, part).await
    }

    /// Fetches a part from the first replica that has it. True when it is here.
    async fn fetch(&self, slot: SlotId, part: PartRef) -> bool {
        let mut reasons = Vec::new();
        for node in self.plane.replicas(slot).into_iter().filter(|node| node != self.plane.own()) {
            match self.fetch_from(&node, slot, part).await {
                Ok(()) => {
                    lock(&self.state).unrepaired.remove(&part.id);
                    self.fetched.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
                Err(reason) => reasons.push(format!("{node}: {reason}")),
            }
        }
        let mut state = lock(&self.state);
        if state.unrepaired.len() < UNREPAIRED_MAX {
            state.unrepaired.insert(part.id, reasons.join("; "));
        }
        false
    }

    async fn fetch_from(&self, node: &synod_core::NodeId, slot: SlotId, part: PartRef) -> Result<(), String> {
        let disk = self.plane.own_disk(slot).cloned().ok_or("this node does not store the slot")?;
        let mut stream = body::fetch(&self.plane, node, slot, part, 0..part.bytes).await?;
        let (pieces, waiting) = mpsc::channel(4);
        let kept = tokio::task::spawn_blocking(move || keep_same(&disk, part, waiting));
        let mut bytes = 0;
        let outcome = loop {
            match tokio::time::timeout(FETCH_PATIENCE, stream.message()).await {
                Ok(Ok(Some(data))) => {
                    bytes += data.data.len() as u64;
                    if bytes > part.bytes || pieces.send(Piece::Data(data.data)).await.is_err() {
                        break Err("it came too long, or the disk does not take it".to_owned());
                    }
                }
                Ok(Ok(None)) if bytes == part.bytes => {
                    break pieces.send(Piece::End).await.map_err(|_| String::new());
                }
                Ok(Ok(None)) => break Err("it came too short".to_owned()),
                Ok(Err(status)) => break Err(status.message().to_owned()),
                Err(_) => break Err("it takes too long".to_owned()),
            }
        };
        drop(pieces);
        let kept = kept.await.map_err(|error| error.to_string())?;
        outcome?;
        kept.map_err(|error| error.to_string())
    }

    /// Removes what nobody needs any more, for ever.
    pub(crate) async fn collect(self: Arc<Self>) {
        loop {
            tokio::time::sleep(COLLECT_PAUSE).await;
            let now = unix_millis();
            for disk in self.plane.disks().to_vec() {
                let collected =
                    tokio::task::spawn_blocking(move || disk.collect_garbage(now, COLLECT_MAX)).await;
                if let Ok(Err(error)) = collected {
                    tracing::warn!(%error, "garbage cannot be collected");
                }
            }
            self.bury(now).await;
        }
    }

    /// Has old tombstones removed from all replicas, once all have them.
    async fn bury(&self, now: u64) {
        let grace = u64::try_from(self.config.tombstone_grace.as_millis()).unwrap_or(u64::MAX);
        let before = now.saturating_sub(grace);
        for (slot, _) in self.plane.serving() {
            let disk = self.plane.disk(slot).clone();
            let old =
                tokio::task::spawn_blocking(move || disk.old_tombstones(slot, before, BURIED_MAX)).await;
            if let Ok(Ok(entries)) = old
                && !entries.is_empty()
            {
                self.plane.handle(|machine, at| machine.handle_old_tombstones(at, slot, entries));
            }
        }
    }
}

/// Keeps a part that must turn out to be `part`, in place of a damaged one.
fn keep_same(disk: &Disk, part: PartRef, waiting: mpsc::Receiver<Piece>) -> Result<(), PartError> {
    let seal = body::keep(disk, part.id, waiting)?;
    if (seal.bytes, seal.root) == (part.bytes, part.root) {
        return Ok(());
    }
    disk.remove_part(part.id)?;
    Err(PartError::Differs)
}

const DAY: Duration = Duration::from_secs(24 * 3600);
const MISSING_MAX: usize = 256;
const MISSING_PAUSE: Duration = Duration::from_secs(1);
const FETCHES_MAX: usize = 4;
const FETCH_PATIENCE: Duration = Duration::from_secs(30);
const UNREPAIRED_MAX: usize = 1024;
const SCRUB_PAGE: usize = 256;
const COLLECT_PAUSE: Duration = Duration::from_secs(30);
const COLLECT_MAX: usize = 10_000;
const BURIED_MAX: usize = 256;
