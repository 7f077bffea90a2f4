//! Bugs planted on purpose, to see that the fuzzer finds them. They run only when called for by name.

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use crate::engine::Target;

/// All of them.
pub const PLANTED: &[Target] = &[
    Target::new("planted-magic", magic, Vec::new),
    Target::new("planted-number", number, Vec::new),
    Target::new("planted-memory", memory, Vec::new),
    Target::new("planted-slow", slow, Vec::new),
    Target::new("planted-hang", hang, Vec::new),
    Target::new("planted-stack", stack, Vec::new),
    Target::new("planted-allocation", allocation, Vec::new),
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

fn nothing(_: &[u8]) {}
