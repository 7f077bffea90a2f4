//! What the instrumentation tells: which branches ran, and which numbers were compared.
//!
//! With `-C passes=sancov-module` LLVM gives every edge of the control flow a counter of one byte, and before `main` it
//! tells where the counters lie. It also calls a function at every comparison of integers. Both are meant for
//! sanitizers written in C; here they are a few lines of Rust.
//!
//! The counters belong to the whole process. Only one thread may fuzz at a time.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// How many edges are instrumented; 0 when the program was built without coverage.
#[must_use]
pub fn edges() -> usize {
    LENGTH.load(Relaxed)
}

/// Begins to count from zero.
pub fn start() {
    // SAFETY: the range is the counters' section, which is writable, lives as long as the process and is known only to
    // the instrumentation. Its increments are not atomic, but the one thread that fuzzes is here and nowhere else.
    unsafe { ptr::write_bytes(START.load(Relaxed), 0, edges()) };
    IS_WATCHING.store(true, Relaxed);
}

/// Ends what [`start`] began. Comparisons are no longer noted; the counters do go on, but little runs until
/// [`merge`].
pub fn stop() {
    IS_WATCHING.store(false, Relaxed);
}

/// Adds what was counted to `reached`, which has a byte for every edge, and returns whether anything in it is new.
///
/// How often an edge ran counts roughly: once, twice, three times, a few times, many times. Each edge has a bit for each
/// of these ranks.
pub fn merge(reached: &mut [u8]) -> bool {
    // SAFETY: as in `start`. Nothing is counted while the slice lives, because the function that it is lent to is not
    // instrumented.
    unsafe { __sanitizer_synod_merge(std::slice::from_raw_parts(START.load(Relaxed), edges()), reached) }
}

/// One of the latest comparisons of an integer with a constant that it did not equal: the constant, and the integer.
#[must_use]
pub fn comparison(random: usize) -> Option<(u64, u64)> {
    let known = COMPARED.load(Relaxed).min(COMPARISONS_KEPT);
    (known > 0).then(|| {
        let [constant, value] = &COMPARISONS[random % known];
        (constant.load(Relaxed), value.load(Relaxed))
    })
}

/// Forgets the comparisons.
pub fn forget_comparisons() {
    COMPARED.store(0, Relaxed);
}

static START: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// The engine is instrumented like everything else, and its comparisons are not of interest.
static IS_WATCHING: AtomicBool = AtomicBool::new(false);

static COMPARISONS: [[AtomicU64; 2]; COMPARISONS_KEPT] =
    [const { [AtomicU64::new(0), AtomicU64::new(0)] }; COMPARISONS_KEPT];
static COMPARED: AtomicUsize = AtomicUsize::new(0);
const COMPARISONS_KEPT: usize = 256;

// ---- What is not instrumented ----
//
// LLVM leaves functions alone whose names begin with `__sanitizer_`. So those that the instrumentation calls do not call
// themselves, and the loop over all counters, which runs after every input, is fast. None of them may call anything
// that is not inlined: it would be instrumented.

/// Adds the ranks of all counters to what was reached, and says whether any is new.
#[unsafe(no_mangle)]
#[inline(never)]
fn __sanitizer_synod_merge(counters: &[u8], reached: &mut [u8]) -> bool {
    let mut is_new = false;
    let (mut at, length) = (0, counters.len().min(reached.len()));
    while at < length {
        // Most edges do not run, so eight at once are passed over.
        if let Some(eight) = counters[at..].first_chunk()
            && u64::from_ne_bytes(*eight) == 0
        {
            at += 8;
            continue;
        }
        let rank = match counters[at] {
            0 => 0,
            1 => 1 << 0,
            2 => 1 << 1,
            3 => 1 << 2,
            4..=7 => 1 << 3,
            8..=15 => 1 << 4,
            16..=31 => 1 << 5,
            32..=127 => 1 << 6,
            128.. => 1 << 7,
        };
        is_new |= rank & !reached[at] != 0;
        reached[at] |= rank;
        at += 1;
    }
    is_new
}

/// Every compiled module calls this before `main`, and all with the one range into which the linker put them.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, end: *mut u8) {
    START.store(start, Relaxed);
    LENGTH.store(end.addr() - start.addr(), Relaxed);
}

/// Single bytes are guessed quickly without help, so only greater constants are kept.
macro_rules! comparisons {
    ($($name:ident($integer:ty)),* $(,)?) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name(constant: $integer, value: $integer) {
            if constant > 0xff && constant != value && IS_WATCHING.load(Relaxed) {
                let next = COMPARED.load(Relaxed);
                COMPARED.store(next.wrapping_add(1), Relaxed);
                let [kept_constant, kept_value] = &COMPARISONS[next % COMPARISONS_KEPT];
                kept_constant.store(constant as u64, Relaxed);
                kept_value.store(value as u64, Relaxed);
            }
        })*
    };
}

comparisons!(
    __sanitizer_cov_trace_const_cmp2(u16),
    __sanitizer_cov_trace_const_cmp4(u32),
    __sanitizer_cov_trace_const_cmp8(u64),
);

// What is compared with something that is no constant is mostly an address or a distance between two, which differ from
// run to run. The branches of a switch are edges of their own.

#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_cmp1(_: u8, _: u8) {}
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_cmp2(_: u16, _: u16) {}
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_cmp4(_: u32, _: u32) {}
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_cmp8(_: u64, _: u64) {}
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_const_cmp1(_: u8, _: u8) {}
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_switch(_: u64, _: *const u64) {}
