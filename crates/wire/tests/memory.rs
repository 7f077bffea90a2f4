//! A peer cannot make this node allocate by claiming a number.
//!
//! The allocator of this test keeps a tally. Hostile frames are decoded, and what that cost at its peak is compared with
//! what arrived: a refused frame costs next to nothing, and an accepted one a small multiple of its size.
//!
//! There is one test on purpose: tests run side by side and would pay into the same tally.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use synod_wire::limits::{BATCH_ENVELOPES_MAX, BATCH_HEADERS_MAX, FRAME_BYTES_RECEIVED_MAX};
use synod_wire::{Frame, cluster, payload};

#[global_allocator]
static TALLY: Tally = Tally;

struct Tally;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it came; only numbers are kept.
unsafe impl GlobalAlloc for Tally {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `pointer` came from `alloc` above, which took it from the same allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[test]
fn memory_follows_what_arrived_and_not_what_was_claimed() {
    // A full frame of empty envelopes, two bytes each, would need gigabytes once decoded. It is refused after counting.
    let envelopes = [0x1a, 0x00].repeat(FRAME_BYTES_RECEIVED_MAX / 2 - 8);
    let frame = Bytes::from(delimited(1, &envelopes));
    drop(envelopes);
    assert!(peak(|| drop(Frame::decode(frame).unwrap_err())) < 1024);

    // Lengths that no bytes follow, at every depth: batch, type name, target, envelope, sender and inside a sender.
    for outer in [&[][..], &[0x0a], &[0x12], &[0x1a], &[0x22], &[0x22, 0x05, 0x0a]] {
        let claim = [outer, &[0xff, 0xff, 0xff, 0x7f]].concat();
        let frame = Bytes::from(delimited(1, &claim));
        assert!(peak(|| drop(Frame::decode(frame).unwrap_err())) < 1024, "{outer:02x?}");
    }

    // Gossip about more members than there may be.
    let members = Bytes::from(delimited(1, &[0x0a, 0x00].repeat(1 << 20)));
    assert!(peak(|| drop(payload::decode::<cluster::GossipRequest>(members).unwrap_err())) < 1024);

    // As many headers in as many envelopes as there may be: the costliest frame that is accepted.
    let headers_each = BATCH_HEADERS_MAX / BATCH_ENVELOPES_MAX;
    let header: Vec<u8> =
        (b'a'..).take(headers_each).flat_map(|name| delimited(1, &delimited(1, &[name]))).collect();
    let frame = delimited(1, &delimited(3, &delimited(6, &header)).repeat(BATCH_ENVELOPES_MAX));
    assert!(peak(|| drop(Frame::decode(frame.into()).unwrap())) < 96 << 20);
}

/// How much more memory than before was in use at some moment of `action`, in bytes.
fn peak(action: impl FnOnce()) -> usize {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    action();
    PEAK.load(Ordering::Relaxed) - before
}

fn delimited(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encode_length_delimiter(content.len(), &mut bytes).unwrap();
    bytes.extend(content);
    bytes
}
