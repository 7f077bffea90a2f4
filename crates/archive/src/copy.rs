//! What a copy says of itself, in its metadata.

use std::sync::Arc;

use bytes::Bytes;
use object_store::{Attribute, Attributes};
use synod_core::objects::parse_generation;
use synod_core::slots::Tag;
use synod_store::objects::content::{Content, Entry};

/// A copy of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    /// Which write of its cluster it is a copy of; `None` for what somebody else put there.
    pub(crate) generation: Option<Tag>,
    pub(crate) etag: Arc<str>,
    pub(crate) modified_ms: u64,
    pub(crate) size: u64,
    pub(crate) brief: Bytes,
    pub(crate) meta: Bytes,
}

impl Copy {
    /// What the copy of an object is to say.
    pub(crate) fn of(entry: &Entry) -> Self {
        let Content { modified_ms, size, brief, meta, .. } = entry.content.clone();
        Self { generation: Some(entry.tag), etag: Arc::clone(&entry.etag), modified_ms, size, brief, meta }
    }

    /// Whether both are copies of the same content, whichever write it is.
    pub(crate) fn is_same_content(&self, other: &Self) -> bool {
        let plain = |copy: &Self| Self { generation: None, ..copy.clone() };
        plain(self) == plain(other)
    }

    /// The metadata, and whether the record of the object is too large for it and goes beside the copy.
    pub(crate) fn attributes(&self) -> (Attributes, bool) {
        let text = |bytes: &Bytes| base64_simd::STANDARD.encode_to_string(bytes);
        let mut values = vec![(MODIFIED, self.modified_ms.to_string()), (BRIEF, text(&self.brief))];
        if let Some(generation) = self.generation {
            values.push((GENERATION, generation.to_string()));
        }
        if self.etag.bytes().all(|byte| byte.is_ascii_graphic()) {
            values.push((ETAG, self.etag.as_ref().to_owned()));
        }
        let meta = text(&self.meta);
        let is_aside = meta.len() > META_TEXT_MAX;
        match is_aside {
            true => values.push((META_ASIDE, "true".to_owned())),
            false => values.push((META, meta)),
        }
        // An empty header is one that some service drops.
        let values = values.into_iter().filter(|(_, value)| !value.is_empty());
        let attributes = values.map(|(name, value)| (Attribute::Metadata(name.into()), value));
        (attributes.collect(), is_aside)
    }

    /// Reads the metadata back. True beside it when the record of the object is elsewhere.
    pub(crate) fn read(
        attributes: &Attributes,
        size: u64,
        etag: &str,
        modified_ms: u64,
    ) -> Option<(Self, bool)> {
        let value = |name: &'static str| attributes.get(&Attribute::Metadata(name.into()));
        let bytes = |name| match value(name) {
            None => Some(Bytes::new()),
            Some(text) => base64_simd::STANDARD.decode_to_vec(text.as_bytes()).ok().map(Bytes::from),
        };
        let etag = Arc::from(value(ETAG).map_or_else(|| etag.trim_matches('"'), |etag| etag.as_ref()));
        let Some(generation) = value(GENERATION) else {
            let (brief, meta) = (Bytes::new(), Bytes::new());
            return Some((Self { generation: None, etag, modified_ms, size, brief, meta }, false));
        };
        let generation = Some(parse_generation(generation).ok()?);
        let modified_ms = value(MODIFIED)?.parse().ok()?;
        let copy = Self { generation, etag, modified_ms, size, brief: bytes(BRIEF)?, meta: bytes(META)? };
        Some((copy, value(META_ASIDE).is_some()))
    }
}

/// The metadata of what is beside a copy: which generation it belongs to.
pub(crate) fn aside_attributes(generation: Tag) -> Attributes {
    [(Attribute::Metadata(GENERATION.into()), generation.to_string())].into_iter().collect()
}

/// The generation that metadata say.
pub(crate) fn generation_of(attributes: &Attributes) -> Option<Tag> {
    parse_generation(attributes.get(&Attribute::Metadata(GENERATION.into()))?).ok()
}

const GENERATION: &str = "synod-generation";
const ETAG: &str = "synod-etag";
const MODIFIED: &str = "synod-modified";
const BRIEF: &str = "synod-brief";
const META: &str = "synod-meta";
const META_ASIDE: &str = "synod-meta-aside";
/// S3 takes 2 KiB of metadata, with names. What else is there is less than 700 bytes.
const META_TEXT_MAX: usize = 1200;

#[cfg(test)]
mod tests {
    use super::*;
    use synod_core::slots::SlotEpoch;

    fn copy(meta: usize) -> Copy {
        Copy {
            generation: Some(Tag { epoch: SlotEpoch::new(3), sequence: 17 }),
            etag: "d41d8cd9-2".into(),
            modified_ms: 5,
            size: 7,
            brief: Bytes::new(),
            meta: vec![200; meta].into(),
        }
    }

    #[test]
    fn a_copy_says_what_the_object_was_within_the_limits_of_s3() {
        for (meta, is_aside) in [(0, false), (900, false), (901, true), (65_536, true)] {
            let copy = copy(meta);
            let (attributes, aside) = copy.attributes();
            let bytes: usize = attributes
                .iter()
                .map(|(name, value)| match name {
                    Attribute::Metadata(name) => name.len() + value.len(),
                    _ => 0,
                })
                .sum();
            assert!(aside == is_aside && bytes <= 2048, "{meta}: {aside}, {bytes}");
            let (read, aside) = Copy::read(&attributes, 7, "\"other\"", 9).expect("a copy");
            let expected = if is_aside { Copy { meta: Bytes::new(), ..copy } } else { copy };
            assert_eq!((read, aside), (expected, is_aside));
        }
    }

    #[test]
    fn what_somebody_else_put_there_is_a_copy_without_a_generation() {
        let (copy, is_aside) = Copy::read(&Attributes::new(), 7, "\"abc\"", 9).expect("a copy");
        assert_eq!(
            (copy.generation, copy.etag.as_ref(), copy.modified_ms, is_aside),
            (None, "abc", 9, false)
        );
    }

    #[test]
    fn the_same_content_is_known_whichever_write_it_is() {
        let other = Copy { generation: None, ..copy(3) };
        assert!(copy(3).is_same_content(&other));
        assert!(!copy(3).is_same_content(&Copy { modified_ms: 6, ..copy(3) }));
    }
}
