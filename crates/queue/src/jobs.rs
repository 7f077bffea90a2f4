//! The job queue as what a Raft group replicates.

use std::collections::VecDeque;
use std::io::{self, Read, Write};

use bytes::Bytes;
use synod_core::jobs::{Effects, Frame, JobLimits, JobQueue, Snapshot, SnapshotDecoder};

use crate::raft::Machine;

/// The jobs of one group, on one replica.
#[derive(Debug)]
pub struct Jobs {
    queue: JobQueue,
    /// What the digest was after each of the latest entries.
    digests: VecDeque<(u64, u64)>,
}

/// What an applied frame leads to, for the node that proposed it.
#[derive(Debug)]
pub struct Carried {
    /// What is to be carried out.
    pub effects: Effects,
    /// Queue time after it.
    pub time_ms: u64,
    /// At which queue time something happens by itself.
    pub next_due_ms: Option<u64>,
}

impl Jobs {
    /// An empty queue, as every replica of a group begins.
    ///
    /// # Errors
    /// A limit is out of its range.
    pub fn new(group: u16, limits: JobLimits) -> Result<Self, synod_core::jobs::SettingOutOfRange> {
        JobQueue::new(group, limits).map(|queue| Self { queue, digests: VecDeque::new() })
    }

    /// The queue, to be asked.
    #[must_use]
    pub const fn queue(&self) -> &JobQueue {
        &self.queue
    }
}

impl Machine for Jobs {
    type Output = Carried;
    type Frozen = Snapshot;

    fn apply(&mut self, index: u64, entry: &Bytes, is_wanted: bool) -> io::Result<Carried> {
        #[cfg_attr(not(test), expect(unused_mut))]
        let mut frame = Frame::decode(entry.clone()).map_err(io::Error::other)?;
        #[cfg(test)]
        crate::simulation::planted::blur_fences(&self.queue, &mut frame);
        let mut effects = if is_wanted { Effects::new() } else { Effects::ignored() };
        self.queue.apply(index, &frame, &mut effects).map_err(io::Error::other)?;
        if self.digests.len() >= DIGESTS_KEPT {
            self.digests.pop_front();
        }
        self.digests.push_back((index, self.queue.digest()));
        Ok(Carried { effects, time_ms: self.queue.time_ms(), next_due_ms: self.queue.next_due_ms() })
    }

    fn digest(&self) -> Option<(u64, u64)> {
        self.digests.back().copied()
    }

    fn digest_at(&self, index: u64) -> Option<u64> {
        let place = self.digests.binary_search_by_key(&index, |(index, _)| *index).ok()?;
        self.digests.get(place).map(|(_, digest)| *digest)
    }

    fn freeze(&self) -> Snapshot {
        self.queue.snapshot()
    }

    fn write(frozen: Snapshot, out: &mut dyn Write) -> io::Result<()> {
        frozen.chunks().try_for_each(|chunk| out.write_all(&chunk))
    }

    fn read(group: u16, input: &mut dyn Read) -> io::Result<Self> {
        let mut decoder = SnapshotDecoder::new();
        loop {
            let mut chunk = Vec::with_capacity(CHUNK_BYTES);
            if (&mut *input).take(CHUNK_BYTES as u64).read_to_end(&mut chunk)? == 0 {
                break;
            }
            decoder.feed(chunk.into()).map_err(io::Error::other)?;
        }
        let queue = decoder.finish().map_err(io::Error::other)?;
        if queue.group() != group {
            return Err(io::Error::other(format!("a snapshot of group {} for group {group}", queue.group())));
        }
        let digests = VecDeque::from([(queue.index(), queue.digest())]);
        Ok(Self { queue, digests })
    }
}

/// So many entries behind another replica, what became of them can still be compared.
const DIGESTS_KEPT: usize = 4_096;
/// How much of a snapshot is in memory at a time.
const CHUNK_BYTES: usize = 256 << 10;
