//! Bodies in and out: streams that are cut into parts, written to all replicas at once, and read from whichever has them.
//!
//! ```text
//!   bytes ──► up to 64 KiB? ──► in the head
//!         └─► a part for each 64 MiB ──┬─► own disk   ──┐
//!                                      ├─► replica    ──┼─► sealed by a quorum ──► named by the head
//!                                      └─► replica    ──┘
//! ```
//!
//! A part is written under a random name and shown by nothing until a head names it, so it needs no fence: whoever was
//! deposed meanwhile has written bytes that nobody will ever ask for. Each replica has a short queue; one that does not take
//! what the others have long taken is given up, as long as a quorum is left.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use synod_core::NodeId;
use synod_core::objects::EntryName;
use synod_core::slots::SlotId;
use synod_wire::objects as wire;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

use super::codec::write_part_id;
use super::content::{Body, INLINE_BYTES_MAX, PART_BYTES_MAX, PartId, PartRef};
use super::contract::{BodyStream, BodyWriter, StoreError};
use super::disk::{Disk, DiskError, PartSeal};
use super::links::part_header;
use super::plane::Plane;

/// Writes one body to the replicas of a slot.
pub struct PlaneWriter {
    plane: Arc<Plane>,
    slot: SlotId,
    held: BytesMut,
    part: Option<OpenPart>,
    parts: Vec<PartRef>,
}

impl PlaneWriter {
    pub(crate) fn new(plane: Arc<Plane>, name: &EntryName) -> Self {
        let slot = plane.slot_of(name);
        Self { plane, slot, held: BytesMut::new(), part: None, parts: Vec::new() }
    }

    /// Sends what is held to the replicas.
    async fn flush(&mut self, mut bytes: Bytes) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            let part = match &mut self.part {
                Some(part) => part,
                empty => empty.insert(OpenPart::begin(&self.plane, self.slot)),
            };
            let room = usize::try_from(PART_BYTES_MAX - part.bytes).unwrap_or(usize::MAX);
            let piece = bytes.split_to(bytes.len().min(room));
            part.write(piece, self.plane.write_quorum()).await?;
            if part.bytes == PART_BYTES_MAX {
                self.seal().await?;
            }
        }
        Ok(())
    }

    async fn seal(&mut self) -> Result<(), StoreError> {
        if let Some(part) = self.part.take() {
            self.parts.push(part.seal(self.plane.write_quorum()).await?);
        }
        Ok(())
    }
}

impl BodyWriter for PlaneWriter {
    async fn write(&mut self, bytes: Bytes) -> Result<(), StoreError> {
        let is_small = self.part.is_none() && self.parts.is_empty();
        if is_small && self.held.len() + bytes.len() <= INLINE_BYTES_MAX {
            self.held.extend_from_slice(&bytes);
            return Ok(());
        }
        // Chunks that come in small are gathered: each costs a message.
        if self.held.len() + bytes.len() < CHUNK_BYTES {
            self.held.extend_from_slice(&bytes);
            return Ok(());
        }
        if !self.held.is_empty() {
            if self.held.len() + bytes.len() <= 2 * CHUNK_BYTES {
                self.held.extend_from_slice(&bytes);
                let held = self.held.split().freeze();
                return self.flush(held).await;
            }
            let held = self.held.split().freeze();
            self.flush(held).await?;
        }
        self.flush(bytes).await
    }

    async fn finish(mut self) -> Result<Body, StoreError> {
        let is_small = self.part.is_none() && self.parts.is_empty();
        let held = self.held.split().freeze();
        if is_small && held.len() <= INLINE_BYTES_MAX {
            return Ok(Body::Inline(held));
        }
        self.flush(held).await?;
        self.seal().await?;
        Ok(Body::Parts(self.parts.into()))
    }
}

/// A part that is being written, by one task for each replica.
struct OpenPart {
    id: PartId,
    bytes: u64,
    copies: Vec<Copy>,
}

/// What is said to whoever keeps a part. A channel that closes without an end was cut.
pub(crate) enum Piece {
    Data(Bytes),
    End,
}

struct Copy {
    node: NodeId,
    chunks: Option<mpsc::Sender<Piece>>,
    sealed: JoinHandle<Result<PartSeal, String>>,
}

impl OpenPart {
    fn begin(plane: &Arc<Plane>, slot: SlotId) -> Self {
        let id = PartId::random();
        let copies = plane.replicas(slot).into_iter().map(|node| {
            let (chunks, waiting) = mpsc::channel(CHUNKS_MAX);
            let sealed = if node == *plane.own() {
                let disk = plane.disk(slot).clone();
                tokio::task::spawn_blocking(move || {
                    keep(&disk, id, waiting).map_err(|error| describe(&error))
                })
            } else {
                let (plane, to) = (Arc::clone(plane), node.clone());
                tokio::spawn(async move { send(&plane, &to, slot, id, waiting).await })
            };
            Copy { node, chunks: Some(chunks), sealed }
        });
        Self { id, bytes: 0, copies: copies.collect() }
    }

    /// Gives a piece to all replicas, in chunks. One that has failed, or that others need not wait for, is left behind.
    async fn write(&mut self, mut piece: Bytes, quorum: usize) -> Result<(), StoreError> {
        self.bytes += piece.len() as u64;
        while !piece.is_empty() {
            let chunk = piece.split_to(piece.len().min(CHUNK_BYTES));
            let mut taking = self.copies.iter().filter(|copy| copy.chunks.is_some()).count();
            for copy in &mut self.copies {
                let Some(chunks) = &copy.chunks else { continue };
                let is_taken = match chunks.try_send(Piece::Data(chunk.clone())) {
                    Ok(()) => true,
                    Err(mpsc::error::TrySendError::Closed(_)) => false,
                    Err(mpsc::error::TrySendError::Full(chunk)) => {
                        chunks.send_timeout(chunk, patience(taking, quorum)).await.is_ok()
                    }
                };
                taking -= usize::from(!is_taken);
                if !is_taken {
                    tracing::debug!(node = %copy.node, part = %self.id, "a replica takes no more of a part");
                    copy.chunks = None;
                }
            }
            if self.copies.iter().filter(|copy| copy.chunks.is_some()).count() < quorum {
                return Err(self.failure().await);
            }
        }
        Ok(())
    }

    /// Waits until a quorum has the part on its disks. The others go on by themselves.
    async fn seal(mut self, quorum: usize) -> Result<PartRef, StoreError> {
        // A replica that was left behind has lost pieces. It hears no end, so it keeps nothing.
        let whole = self.copies.drain(..).filter(|copy| copy.chunks.is_some()).collect::<Vec<_>>();
        let (seals, mut sealed) = mpsc::channel(whole.len().max(1));
        for copy in whole {
            let seals = seals.clone();
            tokio::spawn(async move {
                if let Some(chunks) = copy.chunks {
                    // One that has ended says why below.
                    chunks.send_timeout(Piece::End, BUSY_PATIENCE).await.ok();
                }
                let seal = copy.sealed.await.unwrap_or_else(|error| Err(error.to_string()));
                // Nobody waits for the last one any more.
                seals.send((copy.node, seal)).await.ok();
            });
        }
        drop(seals);
        let (mut good, mut reasons): (Vec<PartSeal>, _) = (Vec::new(), Vec::new());
        while let Some((node, seal)) = sealed.recv().await {
            match seal {
                Ok(seal) if seal.bytes != self.bytes => {
                    reasons.push(format!("{node} kept {} bytes", seal.bytes));
                }
                Ok(seal) if good.first().is_some_and(|first| *first != seal) => {
                    reasons.push(format!("{node} kept other bytes"));
                }
                Ok(seal) => good.push(seal),
                Err(reason) => reasons.push(format!("{node}: {reason}")),
            }
            if good.len() >= quorum {
                return Ok(PartRef { id: self.id, bytes: self.bytes, root: good[0].root });
            }
        }
        Err(unavailable(&reasons))
    }

    /// Why too few replicas take the part.
    async fn failure(&mut self) -> StoreError {
        let mut reasons = Vec::new();
        for copy in self.copies.drain(..).filter(|copy| copy.chunks.is_none()) {
            let ended = tokio::time::timeout(Duration::from_millis(100), copy.sealed).await;
            let reason = match ended {
                Ok(Ok(Err(reason))) => reason,
                _ => "takes too long".to_owned(),
            };
            reasons.push(format!("{}: {reason}", copy.node));
        }
        unavailable(&reasons)
    }
}

/// How long the slowest of `taking` replicas is waited for. Without it there are enough, or it is one of those that a
/// part needs: then the disks are busy with what others write, and to wait is what slows the writers down.
fn patience(taking: usize, quorum: usize) -> Duration {
    if taking > quorum { LAGGARD_PATIENCE } else { BUSY_PATIENCE }
}

fn unavailable(reasons: &[String]) -> StoreError {
    let reason = format!("too few replicas have kept a part ({})", reasons.join("; "));
    match reasons.iter().any(|reason| reason.contains(FULL_MARK)) {
        true => StoreError::Full { reason },
        false => StoreError::Unavailable { reason },
    }
}

/// Keeps a part on a disk of this node. Runs on a thread of its own.
pub(crate) fn keep(
    disk: &Disk,
    id: PartId,
    mut waiting: mpsc::Receiver<Piece>,
) -> Result<PartSeal, PartError> {
    let mut file = disk.create_part(id)?;
    loop {
        match waiting.blocking_recv() {
            Some(Piece::Data(bytes)) => file.write(&bytes)?,
            Some(Piece::End) => return Ok(file.seal()?),
            None => return Err(PartError::Cut),
        }
    }
}

/// A part could not be kept or read here.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum PartError {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("it was cut before its end")]
    Cut,
    #[error("it is not here")]
    Missing,
    #[error("it is here with other bytes")]
    Differs,
}

/// Has another replica keep a part.
async fn send(
    plane: &Plane,
    to: &NodeId,
    slot: SlotId,
    id: PartId,
    mut waiting: mpsc::Receiver<Piece>,
) -> Result<PartSeal, String> {
    use wire::part_chunk::Body;
    let (chunks, stream) = mpsc::channel(1);
    let feed = async move {
        let mut bytes = 0;
        if chunks.send(part_header(plane.cluster(), write_part_id(id), slot.get())).await.is_err() {
            return;
        }
        while let Some(piece) = waiting.recv().await {
            let (body, is_end) = match piece {
                Piece::Data(data) => {
                    bytes += data.len() as u64;
                    (Body::Data(data), false)
                }
                Piece::End => (Body::End(bytes), true),
            };
            if chunks.send(wire::PartChunk { body: Some(body) }).await.is_err() || is_end {
                return;
            }
        }
    };
    let call = plane.links().write_part(to, ReceiverStream::new(stream));
    let (seal, ()) = tokio::join!(call, feed);
    let seal = seal.map_err(|status| status.message().to_owned())?;
    Ok(PartSeal { bytes: seal.bytes, root: seal.root })
}

/// What a disk said, for another node.
pub(crate) fn describe(error: &PartError) -> String {
    match error {
        PartError::Disk(DiskError::Full { .. }) => format!("{FULL_MARK}: {error}"),
        _ => error.to_string(),
    }
}

/// Reads a range of a body, part by part.
pub(crate) fn read(plane: Arc<Plane>, slot: SlotId, body: &Body, range: Range<u64>) -> BodyStream {
    let (pieces, stream) = mpsc::channel(CHUNKS_MAX);
    match body {
        Body::Inline(bytes) => {
            let size = bytes.len() as u64;
            let (from, to) = (range.start.min(size), range.end.min(size));
            if from < to {
                // Within the bytes, which are in memory.
                let piece = bytes.slice(from as usize..to as usize);
                // There is room: it is the first.
                pieces.try_send(Ok(piece)).ok();
            }
        }
        Body::Parts(parts) => {
            let mut wanted = VecDeque::new();
            let mut begin = 0;
            for part in parts.iter() {
                let end = begin + part.bytes;
                let (from, to) = (range.start.max(begin), range.end.min(end));
                if from < to {
                    wanted.push_back((*part, from - begin..to - begin));
                }
                begin = end;
            }
            tokio::spawn(async move {
                for (part, range) in wanted {
                    if let Err(error) = read_part(&plane, slot, part, range, &pieces).await {
                        if let Some(error) = error {
                            pieces.send(Err(error)).await.ok();
                        }
                        return;
                    }
                }
            });
        }
    }
    BodyStream::new(stream)
}

/// Reads a range of a part from whichever replica has it. `Err(None)` when nobody listens any more.
async fn read_part(
    plane: &Arc<Plane>,
    slot: SlotId,
    part: PartRef,
    mut range: Range<u64>,
    pieces: &mpsc::Sender<Result<Bytes, StoreError>>,
) -> Result<(), Option<StoreError>> {
    let mut reasons = Vec::new();
    let mut sources = plane.replicas(slot);
    // The own disk first: it costs no network.
    sources.sort_by_key(|node| node != plane.own());
    for node in sources {
        let reason = if node == *plane.own() {
            read_here(plane, slot, part, &mut range, pieces).await?
        } else {
            read_there(plane, &node, slot, part, &mut range, pieces).await?
        };
        match reason {
            None => return Ok(()),
            Some(reason) => reasons.push(format!("{node}: {reason}")),
        }
    }
    let reason = format!("part {} cannot be read ({})", part.id, reasons.join("; "));
    Err(Some(StoreError::Damaged { reason }))
}

/// Reads from the own disk. What is left of the range is where it stopped, with the reason.
async fn read_here(
    plane: &Arc<Plane>,
    slot: SlotId,
    part: PartRef,
    range: &mut Range<u64>,
    pieces: &mpsc::Sender<Result<Bytes, StoreError>>,
) -> Result<Option<String>, Option<StoreError>> {
    let (disk, to, mut left) = (plane.disk(slot).clone(), pieces.clone(), range.clone());
    let read = tokio::task::spawn_blocking(move || {
        let outcome = stream_part(&disk, part, &mut left, |bytes| to.blocking_send(Ok(bytes)).is_ok());
        (outcome, left)
    });
    let Ok((outcome, left)) = read.await else { return Ok(Some("the reader ended".to_owned())) };
    *range = left;
    match outcome {
        Ok(true) => Ok(None),
        Ok(false) => Err(None),
        Err(error) => {
            plane.suspect_part(slot, part, &error);
            Ok(Some(error.to_string()))
        }
    }
}

/// Streams a range of a part of a disk to `take`, block by block, until that wants no more: then false.
pub(crate) fn stream_part(
    disk: &Disk,
    part: PartRef,
    range: &mut Range<u64>,
    mut take: impl FnMut(Bytes) -> bool,
) -> Result<bool, PartError> {
    let reader = disk.open_part(part.id)?.ok_or(PartError::Missing)?;
    if reader.bytes() != part.bytes || reader.root() != part.root {
        return Err(PartError::Differs);
    }
    while range.start < range.end {
        // Up to the end of a chunk, so that blocks are read whole.
        let end = (range.start / READ_BYTES + 1) * READ_BYTES;
        let piece = reader.read(range.start..end.min(range.end))?;
        range.start += piece.len() as u64;
        if !take(piece) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads from another replica.
async fn read_there(
    plane: &Arc<Plane>,
    node: &NodeId,
    slot: SlotId,
    part: PartRef,
    range: &mut Range<u64>,
    pieces: &mpsc::Sender<Result<Bytes, StoreError>>,
) -> Result<Option<String>, Option<StoreError>> {
    let mut stream = match fetch(plane, node, slot, part, range.clone()).await {
        Ok(stream) => stream,
        Err(reason) => return Ok(Some(reason)),
    };
    while range.start < range.end {
        let data = match tokio::time::timeout(READ_PATIENCE, stream.message()).await {
            Ok(Ok(Some(data))) => data.data,
            Ok(Ok(None)) => return Ok(Some("the stream ended early".to_owned())),
            Ok(Err(status)) => return Ok(Some(status.message().to_owned())),
            Err(_) => return Ok(Some("it takes too long".to_owned())),
        };
        if data.len() as u64 > range.end - range.start {
            return Ok(Some("more came than was asked for".to_owned()));
        }
        range.start += data.len() as u64;
        if pieces.send(Ok(data)).await.is_err() {
            return Err(None);
        }
    }
    Ok(None)
}

/// Asks a replica for a range of a part.
pub(crate) async fn fetch(
    plane: &Plane,
    node: &NodeId,
    slot: SlotId,
    part: PartRef,
    range: Range<u64>,
) -> Result<tonic::Streaming<wire::PartData>, String> {
    let request = wire::PartRequest {
        cluster: crate::codec::cluster_bytes(plane.cluster()),
        part: Some(super::content::part_to_wire(&part)),
        slot: slot.get().into(),
        from: range.start,
        to: range.end,
    };
    let call = plane.links().read_part(node, request);
    match tokio::time::timeout(READ_PATIENCE, call).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(status)) => Err(status.message().to_owned()),
        Err(_) => Err("it takes too long".to_owned()),
    }
}

/// Largest chunk of a part on the wire, in bytes.
pub(crate) const CHUNK_BYTES: usize = 256 * 1024;
/// How much of a part is read at a time, in bytes: whole blocks.
const READ_BYTES: u64 = 256 * 1024;
/// Chunks that may wait for one replica, or for one reader.
const CHUNKS_MAX: usize = 4;
/// How long a replica may refuse a chunk before it is left behind, when there are enough without it.
const LAGGARD_PATIENCE: Duration = Duration::from_secs(5);
/// How long a replica may refuse a chunk before the body that needs it fails.
const BUSY_PATIENCE: Duration = Duration::from_secs(60);
const READ_PATIENCE: Duration = Duration::from_secs(10);
/// How a full disk is told over the wire.
const FULL_MARK: &str = "no room";
