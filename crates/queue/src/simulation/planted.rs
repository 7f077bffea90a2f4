//! Mistakes that a simulation plants in the product, to see that its checker finds them.

use std::cell::Cell;

use synod_core::jobs::{Frame, JobQueue, Op};

/// Something that the product must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// Disks say that they have synced, and have not.
    NoSync,
    /// Acks count for whoever holds the job, whatever fence they name.
    NoFence,
    /// Jobs are delivered when their frame is proposed, not when it is committed.
    EarlyDelivery,
}

thread_local! {
    /// A simulation has a thread of its own.
    static PLANTED: Cell<Option<Mistake>> = const { Cell::new(None) };
}

pub(super) fn plant(mistake: Option<Mistake>) {
    PLANTED.set(mistake);
}

/// Whether this mistake is to be made.
pub(crate) fn is_planted(mistake: Mistake) -> bool {
    PLANTED.get() == Some(mistake)
}

/// Makes every ack in a frame name the fence that holds, if that is planted.
pub(crate) fn blur_fences(queue: &JobQueue, frame: &mut Frame) {
    if !is_planted(Mistake::NoFence) {
        return;
    }
    for command in &mut frame.commands {
        if let Op::Ack { job, fence } = &mut command.op
            && let Some(view) = queue.job(*job)
        {
            *fence = view.fence;
        }
    }
}
