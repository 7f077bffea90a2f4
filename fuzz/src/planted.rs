//! Bugs planted on purpose, to see that the fuzzer finds them. They run only when called for by name.

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use synod_cluster::grains::codec::read_relocation;
use synod_cluster::grains::generated::json;
use synod_cluster::remote::{self, TypeName};
use synod_core::grains::ClusterIdentity;
use synod_wire::cluster::PubSubBatchTransport;

use crate::engine::Target;
use crate::targets::cluster;

/// All of them.
pub const PLANTED: &[Target] = &[
    Target::new("planted-magic", magic, Vec::new),
    Target::new("planted-number", number, Vec::new),
    Target::new("planted-memory", memory, Vec::new),
    Target::new("planted-slow", slow, Vec::new),
    Target::new("planted-hang", hang, Vec::new),
    Target::new("planted-stack", stack, Vec::new),
    Target::new("planted-allocation", allocation, Vec::new),
    Target::new("planted-slash", slash, || vec![b"Counter/user:123".to_vec()]),
    Target::new("planted-json", digits, || vec![b"\n\x05[1,2]".to_vec()]),
    Target::new("planted-version", version, cluster::relocations),
    Target::new("planted-type-id", type_id, cluster::batches),
    Target::new("planted-nothing", nothing, Vec::new),
];

/// Four bytes, looked at one after the other: blind chance finds them once in four billion inputs.
fn magic(input: &[u8]) {
    let mut matched = 0;
    for (byte, wanted) in input.iter().zip(b"\xc5ynd") {
        if black_box(byte) != wanted {
            return;
        }
        matched += 1;
    }
    assert!(matched < 4, "the planted bug");
}

/// Four bytes, compared at once: no branch tells that three of them are right.
fn number(input: &[u8]) {
    let number = input.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    assert_ne!(black_box(number), Some(0xc579_6e64), "the planted bug");
}

fn memory(input: &[u8]) {
    if let [b'm', high, low, ..] = input {
        black_box(Vec::<[u8; 64]>::with_capacity(u16::from_be_bytes([*high, *low]).into()));
    }
}

fn slow(input: &[u8]) {
    if input.len() > 8 {
        thread::sleep(Duration::from_millis(1100));
    }
}

fn hang(input: &[u8]) {
    while black_box(input.len()) > 8 {
        thread::sleep(Duration::from_millis(10));
    }
}

fn stack(input: &[u8]) {
    fn deeper(depth: u64) -> u64 {
        let frame = black_box([depth; 64]);
        if frame[0] == u64::MAX { 0 } else { deeper(depth + 1) + frame[1] }
    }
    if input.len() > 8 {
        black_box(deeper(0));
    }
}

fn allocation(input: &[u8]) {
    if input.len() > 8 {
        black_box(Vec::<u8>::with_capacity(1 << 40));
    }
}

/// Divides the name of a grain at its last slash.
fn slash(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    if let (Ok(grain), Some((kind, _))) = (text.parse::<ClusterIdentity>(), text.rsplit_once('/')) {
        assert_eq!(grain.kind(), kind, "the planted bug");
    }
}

/// Takes numbers for digits.
fn digits(input: &[u8]) {
    if let Ok(numbers) = json::argument::<Vec<u64>>(Bytes::copy_from_slice(input)) {
        assert!(numbers.iter().all(|number| *number < 10), "the planted bug");
    }
}

/// Takes the version of a state that was handed over for a small number.
fn version(input: &[u8]) {
    let name = TypeName::from("synod.grains.Relocation");
    let message = remote::Message::raw(name, Bytes::copy_from_slice(input));
    if let Some(snapshot) = read_relocation(&message).and_then(|record| record.snapshot) {
        assert!(u32::try_from(snapshot.version).is_ok(), "the planted bug");
    }
}

/// Trusts the numbers that point from a published message to its type.
fn type_id(input: &[u8]) {
    let Ok(batch) = PubSubBatchTransport::decode(input) else { return };
    let exists = |type_id| usize::try_from(type_id).is_ok_and(|index| index < batch.type_names.len());
    assert!(batch.envelopes.iter().all(|envelope| exists(envelope.type_id)), "the planted bug");
}

fn nothing(_: &[u8]) {}
