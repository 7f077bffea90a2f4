//! An allocator that keeps a tally, so that an input which is small and costs much is found out.
//!
//! It also refuses what no input here may ever need. The process then dies, and the input is found in its record, while
//! the machine it runs on has not begun to swap.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How much more memory than before was in use at some moment of `action`, in bytes, and what it returned.
pub fn peak_during<T>(action: impl FnOnce() -> T) -> (usize, T) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = action();
    (PEAK.load(Relaxed).saturating_sub(before), result)
}

/// Most memory that the process may use, in bytes.
pub const PROCESS_BYTES_MAX: usize = 1 << 30;

#[global_allocator]
static TALLY: Tally = Tally;

struct Tally;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it came, or refused with a null pointer; only numbers
// are kept.
unsafe impl GlobalAlloc for Tally {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.load(Relaxed).saturating_add(layout.size());
        // The instrumentation notes the numbers that are compared. These say nothing about the input, and differ from
        // run to run; their quotient is always the same.
        if black_box(live / PROCESS_BYTES_MAX) > 0 {
            return ptr::null_mut();
        }
        LIVE.fetch_add(layout.size(), Relaxed);
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `pointer` came from `alloc` above, which took it from the same allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}
