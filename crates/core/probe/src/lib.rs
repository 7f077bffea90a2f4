//! A node on bare metal: synod-core with nothing but an allocator and a panic handler beneath it.
//!
//! Whatever in core, or in anything it depends on, reaches for std makes this crate fail to build, because std brings a
//! second panic handler.

#![no_std]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::panic::PanicInfo;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use synod_core::membership::{
    MembershipCoordinator, MembershipCoordinatorConfig, MembershipCoordinatorOutcome, NodeStatus,
};
use synod_core::{Authority, Incarnation, NodeId, TimerInstant};

/// Forms a cluster of one and returns how many of its members are up; 0 when anything is refused.
#[unsafe(no_mangle)]
pub extern "C" fn synod_core_probe() -> usize {
    cluster_of_one().map_or(0, |coordinator| {
        coordinator.snapshot().records.iter().filter(|record| record.status == NodeStatus::Up).count()
    })
}

fn cluster_of_one() -> Option<MembershipCoordinator> {
    let node = NodeId::new("probe").ok()?;
    let authority = Authority::new("localhost:8401").ok()?;
    let config = MembershipCoordinatorConfig::default();
    let mut coordinator = MembershipCoordinator::new(node, authority, config).ok()?;
    let started = coordinator.start_member(Incarnation::FIRST, 7, TimerInstant::ZERO).ok()?;
    let MembershipCoordinatorOutcome { wake_at, .. } = started;
    coordinator.poll(wake_at?).ok()?;
    Some(coordinator)
}

/// Hands out memory and never takes it back.
struct Bump {
    arena: UnsafeCell<[u8; ARENA_BYTES]>,
    used: AtomicUsize,
}

// SAFETY: the arena is only touched through the disjoint ranges that `used` hands out atomically.
unsafe impl Sync for Bump {}

// SAFETY: every returned range lies in the arena, is aligned as asked for, and is never handed out twice.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let base = self.arena.get().cast::<u8>();
        let range = |used: usize| {
            let padding = (base as usize).checked_add(used)?.wrapping_neg() & (layout.align() - 1);
            let start = used.checked_add(padding)?;
            let end = start.checked_add(layout.size())?;
            (end <= ARENA_BYTES).then_some((start, end))
        };
        let taken = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| range(used).map(|(_, end)| end));
        match taken.ok().and_then(range) {
            // SAFETY: `start` lies in the arena.
            Some((start, _)) => unsafe { base.add(start) },
            None => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static MEMORY: Bump = Bump { arena: UnsafeCell::new([0; ARENA_BYTES]), used: AtomicUsize::new(0) };

#[panic_handler]
fn halt(_: &PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// Plenty for a cluster of one.
const ARENA_BYTES: usize = 1 << 20;
