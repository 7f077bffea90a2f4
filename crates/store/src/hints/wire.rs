//! The bytes that hints travel as: what a node says of itself, and the envelope of a payload. Hand-encoded, with a version
//! first, numbers little-endian.
//!
//! ```text
//!   meta       version u8 │ instance u64 │ incarnation u64 │ label length u8 │ label
//!   envelope   version u8 │ hops u8 │ instance u64 │ incarnation u64 │ sequence u64 │ name length u8 │ name │ payload
//! ```
//!
//! Whatever does not read as exactly that, by a version that this one knows, is nothing.

use synod_core::NodeId;

/// One life of a node, as told by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) instance: u64,
    pub(super) incarnation: u64,
}

/// What a node says of itself in its membership record.
pub(super) fn encode_meta(life: Life, label: &str) -> Vec<u8> {
    let mut bytes = vec![META_VERSION];
    bytes.extend(life.instance.to_le_bytes());
    bytes.extend(life.incarnation.to_le_bytes());
    bytes.extend(u8::try_from(label.len()).map(|length| [length]).unwrap_or_default());
    bytes.extend(label.as_bytes());
    bytes
}

/// The life that a record tells of, if it is a record of the cluster with that label.
pub(super) fn decode_meta(bytes: &[u8], label: &str) -> Option<Life> {
    let mut reader = Reader(bytes);
    let [META_VERSION] = reader.array()? else {
        return None;
    };
    let life = reader.life()?;
    let [label_length] = reader.array()?;
    let is_ours = usize::from(label_length) == label.len() && reader.0 == label.as_bytes();
    is_ours.then_some(life)
}

/// A payload with where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Envelope<'a> {
    /// How often it was passed on; 0 when it comes from its origin itself.
    pub(super) hops: u8,
    pub(super) life: Life,
    /// Counts the payloads of that life.
    pub(super) sequence: u64,
    pub(super) node: NodeId,
    pub(super) payload: &'a [u8],
}

impl<'a> Envelope<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let name = self.node.as_str();
        let mut bytes = Vec::with_capacity(ENVELOPE_HEADER_BYTES + name.len() + self.payload.len());
        bytes.extend([ENVELOPE_VERSION, self.hops]);
        bytes.extend(self.life.instance.to_le_bytes());
        bytes.extend(self.life.incarnation.to_le_bytes());
        bytes.extend(self.sequence.to_le_bytes());
        bytes.extend(u8::try_from(name.len()).map(|length| [length]).unwrap_or_default());
        bytes.extend(name.as_bytes());
        bytes.extend(self.payload);
        bytes
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let [ENVELOPE_VERSION, hops] = reader.array()? else {
            return None;
        };
        let life = reader.life()?;
        let sequence = u64::from_le_bytes(reader.array()?);
        let [name_length] = reader.array()?;
        let (name, payload) = reader.0.split_at_checked(usize::from(name_length))?;
        let node = NodeId::new(std::str::from_utf8(name).ok()?).ok()?;
        Some(Self { hops, life, sequence, node, payload })
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn life(&mut self) -> Option<Life> {
        let instance = u64::from_le_bytes(self.array()?);
        Some(Life { instance, incarnation: u64::from_le_bytes(self.array()?) })
    }
}

/// What an envelope adds to its payload and to the name of its origin.
pub(super) const ENVELOPE_HEADER_BYTES: usize = 1 + 1 + 8 + 8 + 8 + 1;
const META_VERSION: u8 = 1;
const ENVELOPE_VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Life = Life { instance: 0x0102_0304_0506_0708, incarnation: 3 };

    #[test]
    fn a_record_is_read_by_its_own_cluster_only_and_only_whole() {
        let bytes = encode_meta(LIFE, "ours");
        assert_eq!(bytes, b"\x01\x08\x07\x06\x05\x04\x03\x02\x01\x03\0\0\0\0\0\0\0\x04ours");
        assert_eq!(decode_meta(&bytes, "ours"), Some(LIFE));
        assert_eq!(decode_meta(&bytes, "theirs"), None);
        assert_eq!(decode_meta(&bytes, "our"), None);
        for end in 0..bytes.len() {
            assert_eq!(decode_meta(&bytes[..end], "ours"), None, "cut at {end}");
        }
        let longer = [&bytes[..], b"!"].concat();
        assert_eq!(decode_meta(&longer, "ours"), None);
        let later_version = [&[2], &bytes[1..]].concat();
        assert_eq!(decode_meta(&later_version, "ours"), None);
    }

    #[test]
    fn an_envelope_is_read_as_it_was_written_and_only_by_its_version() {
        let node = NodeId::new("a-1").unwrap();
        let envelope = Envelope { hops: 2, life: LIFE, sequence: 9, node, payload: b"slot 7" };
        let bytes = envelope.encode();
        assert_eq!(bytes.len(), ENVELOPE_HEADER_BYTES + 3 + 6);
        assert_eq!(Envelope::decode(&bytes), Some(envelope));
        for end in 0..ENVELOPE_HEADER_BYTES + 3 {
            assert_eq!(Envelope::decode(&bytes[..end]), None, "cut at {end}");
        }
        assert_eq!(Envelope::decode(&[&[2], &bytes[1..]].concat()), None);
        let mut nameless = bytes;
        nameless[ENVELOPE_HEADER_BYTES - 1] = 0;
        assert_eq!(Envelope::decode(&nameless), None);
    }
}
