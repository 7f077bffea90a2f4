//! What the instrumentation tells: which branches ran, and which numbers were compared.
//!
//! With `-C passes=sancov-module` LLVM gives every edge of the control flow a counter of one byte, and before `main` it
//! tells where the counters lie. It also calls a function at every comparison of integers. Both are meant for
//! sanitizers written in C; here they are a few lines of Rust.
//!
//! The counters belong to the whole process. Only one thread may fuzz at a time.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// How many edges are instrumented; 0 when the program was built without coverage.
#[must_use]
pub fn edges() -> usize {
    LENGTH.load(Relaxed)
}

/// Sets all counters to zero.
pub fn clear() {
    // SAFETY: the range is the counters' section, which is writable, lives as long as the process and is known only to
    // the instrumentation. Its increments are not atomic, but the one thread that fuzzes is here and nowhere else.
    unsafe { ptr::write_bytes(START.load(Relaxed), 0, edges()) };
}

/// Copies all counters.
pub fn read(counters: &mut Vec<u8>) {
    counters.resize(edges(), 0);
    // SAFETY: as in `clear`; `counters` has room for as many bytes as are copied, and is no part of the section.
    unsafe { ptr::copy_nonoverlapping(START.load(Relaxed), counters.as_mut_ptr(), edges()) };
}

/// One of the latest comparisons of two unequal integers of four or eight bytes: what was there, and what was wanted,
/// or the other way round.
#[must_use]
pub fn comparison(random: usize) -> Option<(u64, u64)> {
    let known = COMPARED.load(Relaxed).min(COMPARISONS_KEPT);
    (known > 0).then(|| {
        let [left, right] = &COMPARISONS[random % known];
        (left.load(Relaxed), right.load(Relaxed))
    })
}

/// Forgets the comparisons.
pub fn forget_comparisons() {
    COMPARED.store(0, Relaxed);
}

static START: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);

static COMPARISONS: [[AtomicU64; 2]; COMPARISONS_KEPT] =
    [const { [AtomicU64::new(0), AtomicU64::new(0)] }; COMPARISONS_KEPT];
static COMPARED: AtomicUsize = AtomicUsize::new(0);
const COMPARISONS_KEPT: usize = 256;

// ---- What the instrumentation calls ----
//
// LLVM does not instrument functions whose names begin with `__sanitizer_`, so these do not call themselves. They must
// not call anything that is not inlined, which would be instrumented.

/// Every compiled module calls this before `main`, and all with the one range into which the linker put them.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, end: *mut u8) {
    START.store(start, Relaxed);
    LENGTH.store(end.addr() - start.addr(), Relaxed);
}

macro_rules! comparisons {
    ($($name:ident($integer:ty)),* $(,)?) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name(left: $integer, right: $integer) {
            if left != right {
                let next = COMPARED.load(Relaxed);
                COMPARED.store(next.wrapping_add(1), Relaxed);
                let [kept_left, kept_right] = &COMPARISONS[next % COMPARISONS_KEPT];
                kept_left.store(left as u64, Relaxed);
                kept_right.store(right as u64, Relaxed);
            }
        })*
    };
}

comparisons!(
    __sanitizer_cov_trace_cmp4(u32),
    __sanitizer_cov_trace_cmp8(u64),
    __sanitizer_cov_trace_const_cmp4(u32),
    __sanitizer_cov_trace_const_cmp8(u64),
);

// Single bytes are guessed quickly without help, and the branches of a switch are edges of their own.

#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_cmp1(_: u8, _: u8) {}
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_cmp2(_: u16, _: u16) {}
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_const_cmp1(_: u8, _: u8) {}
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_const_cmp2(_: u16, _: u16) {}
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_switch(_: u64, _: *const u64) {}
