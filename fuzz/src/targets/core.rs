//! Targets in `synod-core`: names that are parsed, and the map that is written by hand.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use synod_core::gossip::{
    GossipKey, GossipMap, GossipMapKey, GossipMemberId, GossipValue, MAP_TYPE_URL, SequenceNumber,
};
use synod_core::grains::{ActorPid, ClusterIdentity, IDENTITY_BYTES_MAX, KIND_BYTES_MAX};
use synod_core::{Authority, Incarnation, MemberId, NodeId};

use crate::seeds;

/// Every name that can be parsed, from any text; every number, from any eight bytes.
pub(super) fn identifiers(input: &[u8]) {
    if let Some(bytes) = input.first_chunk() {
        numbers(u64::from_le_bytes(*bytes));
    }
    let Ok(text) = str::from_utf8(input) else { return };
    if let Ok(number) = text.parse() {
        numbers(number);
    }
    let node = name::<NodeId>(text);
    let authority = name::<Authority>(text);
    let member = name::<GossipMemberId>(text);
    name::<GossipKey>(text);
    name::<GossipMapKey>(text);

    // What gives every node a member id: node names are stricter than those of members.
    if let Some(node) = node {
        assert_eq!(node.as_str(), text);
        let id = GossipMemberId::from(&MemberId::new(node, Incarnation::FIRST));
        assert_eq!(GossipMemberId::new(id.as_str()).as_ref(), Ok(&id));
        assert!(member.is_some_and(|member| member.as_str() == text));
    }
    // A resolver is given what stands before the last colon, and the rest is a port.
    if let Some(authority) = authority {
        let (host, port) = authority.as_str().rsplit_once(':').expect("a port");
        assert!(!host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0), "{authority}");
        let (host, port) = text.rsplit_once(':').expect("a port");
        assert!(port.bytes().all(|digit| digit.is_ascii_digit()), "{text:?}");
        assert!(host.bytes().all(|letter| letter.is_ascii_graphic()), "{text:?}");
    }
}

/// The name of a grain, and that of an actor on a node: one text, and the same parts however they come together.
pub(super) fn grain_names(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    if let Some(grain) = name::<ClusterIdentity>(text) {
        assert_eq!(grain.key().as_str(), text);
        let (kind, identity) = (grain.kind(), grain.identity());
        assert!(!kind.contains('/') && !text.contains(char::is_control), "{text:?}");
        assert!((1..=KIND_BYTES_MAX).contains(&kind.len()), "{text:?}");
        assert!((1..=IDENTITY_BYTES_MAX).contains(&identity.len()), "{text:?}");
        assert_eq!(ClusterIdentity::new(kind, identity).as_ref(), Ok(&grain));
    }
    if let Some(pid) = name::<ActorPid>(text) {
        let (_, id) = text.split_once('/').expect("an id");
        assert_eq!(pid.id(), id);
        assert!(!id.is_empty() && !id.starts_with('/') && !id.contains(char::is_control), "{text:?}");
        assert_eq!(ActorPid::new(pid.authority().clone(), id).as_ref(), Ok(&pid));
    }
}

/// A name that was accepted is accepted again as it is printed, and is the same.
fn name<T: FromStr<Err: Debug + Display> + Display + PartialEq + Debug>(text: &str) -> Option<T> {
    match text.parse::<T>() {
        Ok(name) => {
            assert_eq!(&name.to_string().parse::<T>().expect("accepted before"), &name);
            Some(name)
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

fn numbers(number: u64) {
    if let Ok(incarnation) = Incarnation::new(number) {
        assert_eq!(incarnation.get(), number);
        assert!(incarnation.next().is_none_or(|next| next > incarnation));
    }
    if let Ok(sequence) = SequenceNumber::new(number.cast_signed()) {
        assert_eq!(sequence.get(), number.cast_signed());
        assert!(sequence.next().is_none_or(|next| next.previous() == Some(sequence)));
    }
}

/// A map that is read is written as the same bytes, up to the order of its keys.
pub(super) fn gossip_map(input: &[u8]) {
    let Ok(value) = GossipValue::new(MAP_TYPE_URL, input) else { return };
    match GossipMap::decode(&value) {
        Ok(map) => {
            let written = map.encode().expect("what was read can be written");
            assert_eq!(written.bytes().len(), input.len());
            assert_eq!(GossipMap::decode(&written), Ok(map));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub(super) fn texts() -> Vec<Vec<u8>> {
    let mut texts = seeds::tokens();
    texts.extend(
        ["n001", "n001.rack-2_a", "localhost:8401", "[::1]:8401", "[2001:db8::1]:65535", "1"].map(Into::into),
    );
    texts.push(((1_u64 << 53) - 1).to_le_bytes().to_vec());
    texts
}

pub(super) fn grains_and_pids() -> Vec<Vec<u8>> {
    let mut texts = seeds::tokens();
    let names = [
        "Counter/user:123",
        "Chat/room/7",
        "prototopic/orders",
        "127.0.0.1:8401/partition-activator/Counter/user:123$1",
        "[::1]:8401/future0",
        "localhost:1/$2",
    ];
    texts.extend(names.map(Into::into));
    texts.push([&[b'k'; KIND_BYTES_MAX][..], b"/", &[b'i'; IDENTITY_BYTES_MAX]].concat());
    texts
}

pub(super) fn gossip_maps() -> Vec<Vec<u8>> {
    vec![
        b"\x01\0\0\0\0".to_vec(),
        b"\x01\0\0\0\x02\0\x01a\0\0\0\0\0\0\0\x01\0\0\x02bc\0\0\0\0\0\0\0\x02\x01\0\0\0\x03xyz".to_vec(),
    ]
}
