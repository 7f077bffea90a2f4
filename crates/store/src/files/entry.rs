//! What is written to the log, and how: batches of entries.
//!
//! ```text
//!   batch      version u8 │ CRC-32C of the entries u32 │ entries ...
//!   entry      kind u8 │ fields, one after the other
//! ```
//!
//! Numbers are of variable length, seven bits in a byte, the least first, in the shortest form; texts and lists have their
//! length before them. So there is one form for each batch, and each batch has one meaning.

use std::net::SocketAddr;
use std::time::Duration;

use synod_core::Incarnation;
use synod_core::id::{Authority, MemberId, NodeId};
use synod_core::slots::{
    BootstrapNode, BootstrapState, ElectionCause, Head, HlcTimestamp, NodePorts, NodeRecord, Pace,
    QueueLayout, RegistryOp, Replication, SlotEpoch, SlotId, SlotRecord, SlotState, Tag, VALUE_BYTES_MAX,
};

use super::checksum::checksum;

/// Something to be written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A change of the registry.
    Op(RegistryOp),
    /// The beginning of the cluster. Checked.
    Bootstrap(BootstrapState),
    /// A life of this node begins.
    Incarnation(Incarnation),
    /// This node took over the name of a suspect. At most [`TAKEOVER_BYTES_MAX`].
    Takeover(String),
}

/// An entry cannot be written. None of its batch was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryRefusal {
    /// The entry, or the text or value in it, is too long.
    #[error("an entry of {bytes} bytes was refused, at most {max} can be written")]
    TooLong {
        /// How long.
        bytes: usize,
        /// The longest.
        max: usize,
    },
    /// The beginning of a cluster was not checked, so it could not be read back.
    #[error(
        "the beginning of a cluster was refused, because it would not be read back as it is: it was not checked"
    )]
    Unchecked,
}

/// A batch cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at its byte {offset}, {problem}")]
pub struct DecodeError {
    /// Where in the batch.
    pub offset: usize,
    /// What is wrong there.
    pub problem: DecodeProblem,
}

/// What is wrong with a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeProblem {
    /// It ends too early.
    #[error("it ends too early")]
    Truncated,
    /// It is not what was written.
    #[error("its checksum does not fit")]
    Checksum,
    /// It was written by a later version of this program.
    #[error("version {version} of the format begins, and {known} is the last one known")]
    LaterVersion {
        /// Its version.
        version: u8,
        /// The last one that is known.
        known: u8,
    },
    /// There is no such kind of entry.
    #[error("there is an entry of the unknown kind {0}")]
    Kind(u8),
    /// A number is not in its form or out of its range.
    #[error("there is no {0}")]
    Number(&'static str),
    /// A text is not one, or not what its field holds.
    #[error("there is no {0}")]
    Text(&'static str),
    /// The beginning of a cluster is not sound.
    #[error("there is an unsound beginning of a cluster")]
    Bootstrap,
}

/// Encodes entries as one batch, or as few as possible when they are too many for one. Heads come first: should a crash
/// leave only some of the batches, a head without its promise does no harm, and a promise without its head could.
pub(super) fn encode(entries: &[Entry]) -> Result<(Vec<u8>, Vec<Vec<u8>>), EntryRefusal> {
    let is_head = |entry: &&Entry| matches!(entry, Entry::Op(RegistryOp::Head { .. }));
    let heads = entries.iter().filter(is_head);
    let others = entries.iter().filter(|entry| !is_head(entry));
    let (mut done, mut batch) = (Vec::new(), empty_batch());
    for entry in heads.chain(others) {
        let one = encode_entry(entry)?;
        if batch.len() + one.len() > BATCH_BYTES_MAX {
            done.push(seal(std::mem::replace(&mut batch, empty_batch())));
        }
        batch.extend(one);
    }
    done.push(seal(batch));
    let first = done.remove(0);
    Ok((first, done))
}

/// A batch of none, to have a place in the log.
pub(super) fn fence() -> Vec<u8> {
    seal(empty_batch())
}

/// Reads a batch.
pub(super) fn decode(batch: &[u8]) -> Result<Vec<Entry>, DecodeError> {
    let mut reader = Reader { bytes: batch, offset: 0 };
    let version = reader.byte()?;
    match version {
        VERSION => {}
        0 => return Err(reader.error_at(0, DecodeProblem::Number("version of the format"))),
        _ => return Err(reader.error_at(0, DecodeProblem::LaterVersion { version, known: VERSION })),
    }
    let stored = reader.take(4)?.try_into().map_or(0, u32::from_le_bytes);
    if stored != checksum(&batch[HEADER_BYTES..]) {
        return Err(reader.error_at(1, DecodeProblem::Checksum));
    }
    let mut entries = Vec::new();
    while reader.offset < batch.len() {
        entries.push(reader.entry()?);
    }
    Ok(entries)
}

fn empty_batch() -> Vec<u8> {
    vec![VERSION, 0, 0, 0, 0]
}

fn seal(mut batch: Vec<u8>) -> Vec<u8> {
    let checksum = checksum(&batch[HEADER_BYTES..]);
    batch[1..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    batch
}

fn encode_entry(entry: &Entry) -> Result<Vec<u8>, EntryRefusal> {
    let limit = |bytes: usize, max: usize| {
        if bytes > max { Err(EntryRefusal::TooLong { bytes, max }) } else { Ok(()) }
    };
    let mut out = Writer(Vec::new());
    match entry {
        Entry::Op(RegistryOp::Promise { slot, epoch, granted_to }) => {
            out.0.push(PROMISE);
            out.number(slot.get().into());
            out.number(epoch.get());
            out.text(granted_to.as_ref().map_or("", NodeId::as_str));
        }
        Entry::Op(RegistryOp::Head { slot, head: Head { tag, accepted, value } }) => {
            limit(value.len(), VALUE_BYTES_MAX)?;
            out.0.push(HEAD);
            out.number(slot.get().into());
            out.number(tag.epoch.get());
            out.number(tag.sequence);
            out.number(accepted.get());
            out.bytes(value);
        }
        Entry::Op(RegistryOp::Record(record)) => {
            out.0.push(RECORD);
            out.record(record);
        }
        Entry::Op(RegistryOp::Node(record)) => {
            out.0.push(NODE);
            out.text(record.member.node.as_str());
            out.number(record.member.incarnation.get());
            out.text(record.address.as_str());
            out.number(record.instance);
            out.number(record.leaving.into());
            out.number(record.heartbeat.bits());
        }
        Entry::Bootstrap(state) => {
            out.0.push(BOOTSTRAP);
            out.bootstrap(state);
            let read = Reader { bytes: &out.0, offset: 0 }.entry();
            if read.as_ref() != Ok(entry) {
                return Err(EntryRefusal::Unchecked);
            }
        }
        Entry::Incarnation(life) => {
            out.0.push(INCARNATION);
            out.number(life.get());
        }
        Entry::Takeover(text) => {
            limit(text.len(), TAKEOVER_BYTES_MAX)?;
            out.0.push(TAKEOVER);
            out.text(text);
        }
    }
    limit(out.0.len(), BATCH_BYTES_MAX - HEADER_BYTES)?;
    Ok(out.0)
}

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, mut number: u64) {
        while number > 0x7F {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn names(&mut self, names: &[NodeId]) {
        self.number(names.len() as u64);
        names.iter().for_each(|name| self.text(name.as_str()));
    }

    fn duration(&mut self, duration: Duration) {
        self.number(duration.as_secs());
        self.number(duration.subsec_nanos().into());
    }

    fn record(&mut self, record: &SlotRecord) {
        let SlotRecord { slot, epoch, primary, replicas, state, updated_at, granted_by, cause } = record;
        self.number(slot.get().into());
        self.number(epoch.get());
        self.text(primary.as_str());
        self.names(replicas);
        self.0.push(match state {
            SlotState::Stable => STABLE,
        });
        self.number(updated_at.bits());
        self.names(granted_by);
        self.0.push(cause.number());
    }

    fn bootstrap(&mut self, state: &BootstrapState) {
        let BootstrapState {
            initialized_at,
            initialized_by,
            namespace,
            nodes,
            replication,
            pace,
            archive,
            queue,
        } = state;
        self.number(initialized_at.bits());
        self.text(initialized_by.as_str());
        self.text(namespace);
        self.number(nodes.len() as u64);
        for node in nodes {
            let BootstrapNode { node, bind, advertise_host, ports, disks } = node;
            self.text(node.as_str());
            self.text(&bind.to_string());
            self.text(advertise_host);
            let NodePorts { peer, gossip, s3, jobs } = *ports;
            [peer, gossip, s3, jobs].into_iter().for_each(|port| self.number(port.into()));
            self.number(disks.len() as u64);
            disks.iter().for_each(|disk| self.text(disk));
        }
        let Replication { total_slots, replicas, min_write_replicas } = *replication;
        self.number(total_slots.into());
        self.number(replicas.into());
        self.number(min_write_replicas.into());
        let Pace { gossip_interval, full_sync_interval, suspect_timeout, fail_timeout, fanout } = *pace;
        for duration in [gossip_interval, full_sync_interval, suspect_timeout, fail_timeout] {
            self.duration(duration);
        }
        self.number(fanout.into());
        self.number(archive.is_some().into());
        if let Some(archive) = archive {
            self.text(archive);
        }
        let QueueLayout { is_enabled, voters, groups, heartbeat, election_min, election_max } = *queue;
        self.number(is_enabled.into());
        self.number(voters.into());
        self.number(groups.into());
        [heartbeat, election_min, election_max].into_iter().for_each(|duration| self.duration(duration));
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    fn entry(&mut self) -> Result<Entry, DecodeError> {
        let start = self.offset;
        Ok(match self.byte()? {
            PROMISE => {
                let (slot, epoch) = (self.slot()?, self.epoch()?);
                let granted_to = match self.peek() {
                    Some(0) => {
                        self.byte()?;
                        None
                    }
                    _ => Some(self.name()?),
                };
                Entry::Op(RegistryOp::Promise { slot, epoch, granted_to })
            }
            HEAD => {
                let slot = self.slot()?;
                let tag = Tag { epoch: self.epoch()?, sequence: self.number()? };
                let accepted = self.epoch()?;
                let value = self.length_and_bytes()?.into();
                Entry::Op(RegistryOp::Head { slot, head: Head { tag, accepted, value } })
            }
            RECORD => Entry::Op(RegistryOp::Record(self.record()?)),
            NODE => {
                let node = self.name()?;
                let member = MemberId::new(node, self.incarnation()?);
                let address = self.parsed("address", |text| {
                    Authority::new(text).ok().filter(|address| address.as_str() == text)
                })?;
                let (instance, leaving) = (self.number()?, self.boolean()?);
                let heartbeat = self.stamp()?;
                Entry::Op(RegistryOp::Node(NodeRecord { member, address, instance, leaving, heartbeat }))
            }
            BOOTSTRAP => {
                let state = self.bootstrap()?;
                match state.clone().checked() {
                    Ok(checked) if checked == state => Entry::Bootstrap(state),
                    _ => return Err(self.error_at(start, DecodeProblem::Bootstrap)),
                }
            }
            INCARNATION => Entry::Incarnation(self.incarnation()?),
            TAKEOVER => Entry::Takeover(self.text()?.to_owned()),
            kind => return Err(self.error_at(start, DecodeProblem::Kind(kind))),
        })
    }

    fn record(&mut self) -> Result<SlotRecord, DecodeError> {
        let (slot, epoch, primary, replicas) = (self.slot()?, self.epoch()?, self.name()?, self.names()?);
        let start = self.offset;
        let state = match self.byte()? {
            STABLE => SlotState::Stable,
            _ => return Err(self.error_at(start, DecodeProblem::Number("state of a slot"))),
        };
        let (updated_at, granted_by) = (self.stamp()?, self.names()?);
        let start = self.offset;
        let cause = ElectionCause::ALL.get(usize::from(self.byte()?)).copied();
        let cause =
            cause.ok_or_else(|| self.error_at(start, DecodeProblem::Number("cause of an election")))?;
        Ok(SlotRecord { slot, epoch, primary, replicas, state, updated_at, granted_by, cause })
    }

    fn bootstrap(&mut self) -> Result<BootstrapState, DecodeError> {
        let (initialized_at, initialized_by) = (self.stamp()?, self.name()?);
        let namespace = self.text()?.to_owned();
        let mut nodes = Vec::new();
        for _ in 0..self.count()? {
            let node = self.name()?;
            let bind = self.parsed("address to listen at", |text| {
                text.parse::<SocketAddr>().ok().filter(|bind| bind.to_string() == text)
            })?;
            let advertise_host = self.text()?.to_owned();
            let ports = NodePorts {
                peer: self.small("port")?,
                gossip: self.small("port")?,
                s3: self.small("port")?,
                jobs: self.small("port")?,
            };
            let mut disks = Vec::new();
            for _ in 0..self.count()? {
                disks.push(self.text()?.to_owned());
            }
            nodes.push(BootstrapNode { node, bind, advertise_host, ports, disks });
        }
        let replication = Replication {
            total_slots: self.small("number of slots")?,
            replicas: self.small("number of replicas")?,
            min_write_replicas: self.small("number of replicas")?,
        };
        let pace = Pace {
            gossip_interval: self.duration()?,
            full_sync_interval: self.duration()?,
            suspect_timeout: self.duration()?,
            fail_timeout: self.duration()?,
            fanout: self.small("fanout")?,
        };
        let archive = if self.boolean()? { Some(self.text()?.to_owned()) } else { None };
        let queue = QueueLayout {
            is_enabled: self.boolean()?,
            voters: self.small("number of voters")?,
            groups: self.small("number of groups")?,
            heartbeat: self.duration()?,
            election_min: self.duration()?,
            election_max: self.duration()?,
        };
        Ok(BootstrapState {
            initialized_at,
            initialized_by,
            namespace,
            nodes,
            replication,
            pace,
            archive,
            queue,
        })
    }

    fn slot(&mut self) -> Result<SlotId, DecodeError> {
        self.small("slot").map(SlotId::new)
    }

    fn epoch(&mut self) -> Result<SlotEpoch, DecodeError> {
        self.number().map(SlotEpoch::new)
    }

    fn stamp(&mut self) -> Result<HlcTimestamp, DecodeError> {
        self.number().map(HlcTimestamp::from_bits)
    }

    fn incarnation(&mut self) -> Result<Incarnation, DecodeError> {
        let start = self.offset;
        let life = Incarnation::new(self.number()?);
        life.map_err(|_| self.error_at(start, DecodeProblem::Number("incarnation")))
    }

    fn duration(&mut self) -> Result<Duration, DecodeError> {
        let (seconds, start) = (self.number()?, self.offset);
        let nanos: u32 = self.small("duration")?;
        if nanos >= 1_000_000_000 {
            return Err(self.error_at(start, DecodeProblem::Number("duration")));
        }
        Ok(Duration::new(seconds, nanos))
    }

    fn boolean(&mut self) -> Result<bool, DecodeError> {
        let start = self.offset;
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.error_at(start, DecodeProblem::Number("yes or no"))),
        }
    }

    fn name(&mut self) -> Result<NodeId, DecodeError> {
        self.parsed("name of a node", |text| NodeId::new(text).ok())
    }

    fn names(&mut self) -> Result<Vec<NodeId>, DecodeError> {
        let mut names = Vec::new();
        for _ in 0..self.count()? {
            names.push(self.name()?);
        }
        Ok(names)
    }

    fn parsed<T>(
        &mut self,
        what: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, DecodeError> {
        let start = self.offset;
        let text = self.text()?;
        parse(text).ok_or_else(|| self.error_at(start, DecodeProblem::Text(what)))
    }

    fn text(&mut self) -> Result<&'a str, DecodeError> {
        let start = self.offset;
        let bytes = self.length_and_bytes()?;
        str::from_utf8(bytes).map_err(|_| self.error_at(start, DecodeProblem::Text("text")))
    }

    fn length_and_bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.count()?;
        self.take(length)
    }

    /// A number of things that each take at least a byte, so that no count promises more than there is.
    fn count(&mut self) -> Result<usize, DecodeError> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if count > self.bytes.len() - self.offset {
            return Err(self.error_at(self.bytes.len(), DecodeProblem::Truncated));
        }
        Ok(count)
    }

    fn small<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T, DecodeError> {
        let start = self.offset;
        T::try_from(self.number()?).map_err(|_| self.error_at(start, DecodeProblem::Number(what)))
    }

    fn number(&mut self) -> Result<u64, DecodeError> {
        let start = self.offset;
        let malformed = |reader: &Self| reader.error_at(start, DecodeProblem::Number("number"));
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            // Ten bytes at most, of which the last has one bit; and no zero behind the others, for one form each.
            if shift == 63 && bits > 1 || shift > 63 || byte == 0 && shift > 0 {
                return Err(malformed(self));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
            shift += 7;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.offset).copied()
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let taken = self.bytes[self.offset..].get(..count);
        let taken = taken.ok_or_else(|| self.error_at(self.bytes.len(), DecodeProblem::Truncated))?;
        self.offset += count;
        Ok(taken)
    }

    const fn error_at(&self, offset: usize, problem: DecodeProblem) -> DecodeError {
        DecodeError { offset, problem }
    }
}

/// Longest text about a takeover in bytes.
pub const TAKEOVER_BYTES_MAX: usize = 4096;
/// Longest batch in bytes.
pub(super) const BATCH_BYTES_MAX: usize = 1 << 20;
const HEADER_BYTES: usize = 5;
const VERSION: u8 = 1;
const PROMISE: u8 = 1;
const HEAD: u8 = 2;
const RECORD: u8 = 3;
const NODE: u8 = 4;
const BOOTSTRAP: u8 = 5;
const INCARNATION: u8 = 6;
const TAKEOVER: u8 = 7;
const STABLE: u8 = 0;

#[cfg(test)]
mod tests;
