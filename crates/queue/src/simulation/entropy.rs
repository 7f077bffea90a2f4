//! Randomness that a seed decides, for everything that asks the system for some.
//!
//! The engine draws its elections, maps their order and the runtime its fairness from the system. In this process the
//! system's randomness is what this module says: on the thread of a simulation a sequence of its own, elsewhere the real one.

use std::cell::RefCell;
use std::fs::File;
use std::io::Read as _;

thread_local! {
    static SEQUENCE: RefCell<Option<fastrand::Rng>> = const { RefCell::new(None) };
}

/// From now on all randomness on this thread comes from a seed. Only of use on a thread that has not asked for any yet.
pub(super) fn seed(seed: u64) {
    SEQUENCE.set(Some(fastrand::Rng::with_seed(seed)));
    fastrand::seed(seed);
}

/// What the C library has under this name, for this process.
///
/// # Safety
/// `buffer` points to `length` bytes that may be written, as the original has it.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    // SAFETY: the caller says so.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
    let is_simulated = SEQUENCE
        .try_with(|sequence| sequence.borrow_mut().as_mut().map(|sequence| sequence.fill(bytes)).is_some());
    if !is_simulated.unwrap_or(false) {
        let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(bytes));
        if read.is_err() {
            return -1;
        }
    }
    isize::try_from(length).unwrap_or(-1)
}
