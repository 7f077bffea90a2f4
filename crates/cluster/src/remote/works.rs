//! The tasks of actors at work: counted, and cut off when the node ends.
//!
//! There is one for every burst of messages, so they are not kept in a set: starting and ending one costs a counter each.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

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
        // Behind a pointer, since a task would hold it twice: as it came, and as it runs.
        let work = Box::pin(work);
        self.works.running.fetch_add(1, Ordering::SeqCst);
        let counted = Counted(Arc::clone(self));
        // Its end is counted, not awaited.
        drop(self.works.runtime.spawn(until_cut(counted, work)));
    }

    /// Whether the node is over for actors.
    pub(super) fn is_cut(&self) -> bool {
        self.works.is_cut.load(Ordering::Relaxed)
    }
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

/// Does the work, unless the node ends before.
async fn until_cut(counted: Counted, mut work: Pin<Box<impl Future<Output = ()>>>) {
    let works = &counted.0.works;
    // Only once it has to wait: most work never does.
    let mut cut: Option<Pin<Box<OwnedNotified>>> = None;
    std::future::poll_fn(|context| {
        if works.is_cut.load(Ordering::Relaxed) || work.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let cut = cut.get_or_insert_with(|| Box::pin(Arc::clone(&works.cut).notified_owned()));
        if cut.as_mut().poll(context).is_ready() || works.is_cut.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        Poll::Pending
    })
    .await;
    // Gone before its end is counted, with everything that it holds.
    drop(cut);
    drop(work);
}
