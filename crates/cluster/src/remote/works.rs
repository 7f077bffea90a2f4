//! The bursts of work of actors: counted, and cut off when the node ends.
//!
//! There is one for every burst of messages, so they are not kept in a set: starting and ending one costs a counter each.
//!
//! Work has a task of its own, so that actors work side by side. There is one exception: whoever does nothing but wait for
//! the outcome may as well [begin](Inner::work_here) the work itself. Most turns of grains end without having waited for
//! anything, and then nobody was woken and no task was made; the others go on in a task.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use super::Inner;

/// The actors at work.
#[derive(Debug)]
pub(super) struct Works {
    runtime: Handle,
    running: AtomicUsize,
    is_cut: AtomicBool,
    cut: Arc<Notify>,
    ended: Notify,
}

impl Works {
    /// For the runtime of the caller.
    pub(super) fn new() -> Self {
        Self {
            runtime: Handle::current(),
            running: AtomicUsize::new(0),
            is_cut: AtomicBool::new(false),
            cut: Arc::default(),
            ended: Notify::new(),
        }
    }

    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Ends everything at the next point at which it waits, and lets nothing begin any more.
    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        self.cut.notify_waiters();
    }

    /// Waits until nobody works.
    pub(super) async fn all_ended(&self) {
        loop {
            let ended = self.ended.notified();
            if self.running.load(Ordering::SeqCst) == 0 {
                return;
            }
            ended.await;
        }
    }
}

impl Inner {
    /// Runs the work of an actor, which ends with the node.
    pub(super) fn work(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        // Its end is counted, not awaited.
        drop(self.works.runtime.spawn(self.until_cut(work)));
    }

    /// Runs the work of an actor as far as it goes without waiting, and the rest as [`work`](Self::work) does. Only if
    /// [`may_work_here`].
    pub(super) fn work_here(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let mut work = Box::pin(self.until_cut(work));
        // Whoever calls may live in another runtime, or in none.
        let _entered = self.works.runtime.enter();
        let _here = WorksHere::begin();
        // Nobody needs to be woken: what is not ready is polled again, by its task.
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            drop(self.works.runtime.spawn(work));
        }
    }

    /// Whether the node is over for actors.
    pub(super) fn is_cut(&self) -> bool {
        self.works.is_cut.load(Ordering::Relaxed)
    }

    fn until_cut<F: Future<Output = ()>>(self: &Arc<Self>, work: F) -> UntilCut<F> {
        self.works.running.fetch_add(1, Ordering::SeqCst);
        UntilCut { work: Some(work), cut: None, counted: Counted(Arc::clone(self)) }
    }
}

/// Whether this thread may begin the work of an actor in its own time. Work that begins other work leaves that to tasks: a
/// chain of actors would be as deep as the stack otherwise.
pub(super) fn may_work_here() -> bool {
    !WORKS_HERE.get()
}

/// Notes that this thread is at work, until it is dropped.
struct WorksHere;

impl WorksHere {
    fn begin() -> Self {
        WORKS_HERE.set(true);
        Self
    }
}

impl Drop for WorksHere {
    fn drop(&mut self) {
        WORKS_HERE.set(false);
    }
}

thread_local! {
    static WORKS_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Counts its end.
struct Counted(Arc<Inner>);

impl Drop for Counted {
    fn drop(&mut self) {
        let works = &self.0.works;
        if works.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            works.ended.notify_waiters();
        }
    }
}

pin_project! {
    /// Does the work, unless the node ends before.
    struct UntilCut<F> {
        #[pin]
        work: Option<F>,
        // Only once it has to wait: most work never does.
        cut: Option<Pin<Box<OwnedNotified>>>,
        // Last, so that the work is gone before its end is counted, with everything that it holds.
        counted: Counted,
    }
}

impl<F: Future<Output = ()>> Future for UntilCut<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let works = &this.counted.0.works;
        let mut is_over = works.is_cut.load(Ordering::Relaxed)
            || this.work.as_mut().as_pin_mut().is_none_or(|work| work.poll(context).is_ready());
        if !is_over {
            let cut = this.cut.get_or_insert_with(|| Box::pin(Arc::clone(&works.cut).notified_owned()));
            is_over = cut.as_mut().poll(context).is_ready() || works.is_cut.load(Ordering::SeqCst);
        }
        if !is_over {
            return Poll::Pending;
        }
        this.work.set(None);
        Poll::Ready(())
    }
}
