//! Several futures that run as one task.
//!
//! What belongs to one connection wakes each other all the time: the connection reads a frame and wakes the reader of the
//! stream, a lane makes a frame and wakes the connection that writes it. As tasks of their own each of these steps would
//! go through the scheduler, which after a few of them gets another thread out of bed. In a crew whoever is woken by
//! another member has its turn before the task ends, so a message costs one wake-up on its way in and one on its way out.
//!
//! Whoever joins first begins the task, and it ends with the last member. A member that panics takes the others with it,
//! as the end of a connection does.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use hyper::rt::Executor;

use crate::lock;

/// A crew, to be joined. Clones are the same one.
#[derive(Clone)]
pub(super) struct Crew {
    shared: Arc<Shared>,
}

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Shared {
    begin: Box<dyn Fn(CrewTask) + Send + Sync>,
    /// [`WORKING`] while the task looks after its members, [`RUNG`] once one of them is woken. Both are 0 while it sleeps.
    state: AtomicU8,
    waker: Mutex<Option<Waker>>,
    entrance: Mutex<Entrance>,
}

#[derive(Default)]
struct Entrance {
    jobs: Vec<Job>,
    has_task: bool,
}

impl Crew {
    /// A crew whose task `begin` spawns once there is something to do.
    pub(super) fn new(begin: impl Fn(CrewTask) + Send + Sync + 'static) -> Self {
        Self {
            shared: Arc::new(Shared {
                begin: Box::new(begin),
                state: AtomicU8::new(0),
                waker: Mutex::default(),
                entrance: Mutex::default(),
            }),
        }
    }

    pub(super) fn join(&self, job: impl Future<Output = ()> + Send + 'static) {
        let mut entrance = lock(&self.shared.entrance);
        entrance.jobs.push(Box::pin(job));
        let has_task = std::mem::replace(&mut entrance.has_task, true);
        drop(entrance);
        if has_task {
            self.shared.ring();
        } else {
            (self.shared.begin)(CrewTask {
                shared: Arc::clone(&self.shared),
                members: Vec::new(),
                is_over: false,
            });
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Crew {
    fn execute(&self, job: F) {
        self.join(job);
    }
}

impl Shared {
    /// Somebody has something to do. While the task works it sees that itself.
    fn ring(&self) {
        if self.state.fetch_or(RUNG, Ordering::AcqRel) == 0
            && let Some(waker) = &*lock(&self.waker)
        {
            waker.wake_by_ref();
        }
    }
}

/// The one task of a crew.
pub(super) struct CrewTask {
    shared: Arc<Shared>,
    members: Vec<Member>,
    is_over: bool,
}

struct Member {
    job: Job,
    bell: Arc<Bell>,
    waker: Waker,
}

/// Wakes one member.
struct Bell {
    rung: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.shared.ring();
        }
    }
}

impl CrewTask {
    /// Lets everybody who was woken work once, those who just joined included. Returns whether anybody is left.
    fn round(&mut self) -> bool {
        let mut entrance = lock(&self.shared.entrance);
        for job in entrance.jobs.drain(..) {
            let bell = Arc::new(Bell { rung: AtomicBool::new(true), shared: Arc::clone(&self.shared) });
            self.members.push(Member { job, waker: Waker::from(Arc::clone(&bell)), bell });
        }
        // Under the lock, so that whoever joins now begins another task.
        if self.members.is_empty() {
            entrance.has_task = false;
            self.is_over = true;
            return false;
        }
        drop(entrance);
        self.members.retain_mut(|member| {
            let is_called = member.bell.rung.swap(false, Ordering::AcqRel);
            !is_called || member.job.as_mut().poll(&mut Context::from_waker(&member.waker)).is_pending()
        });
        // One more round finds out whether somebody joined.
        if self.members.is_empty() {
            self.shared.state.fetch_or(RUNG, Ordering::AcqRel);
        }
        true
    }
}

impl Future for CrewTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let shared = Arc::clone(&self.shared);
        {
            let mut waker = lock(&shared.waker);
            if !waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
                *waker = Some(context.waker().clone());
            }
        }
        for _ in 0..ROUNDS_MAX {
            // Before anybody is looked at, so that who is woken after that asks for another round.
            shared.state.swap(WORKING, Ordering::AcqRel);
            if !self.round() {
                return Poll::Ready(());
            }
            let slept = shared.state.compare_exchange(WORKING, 0, Ordering::AcqRel, Ordering::Acquire);
            if slept.is_ok() {
                return Poll::Pending;
            }
        }
        // Other tasks want to run as well.
        shared.state.store(RUNG, Ordering::Release);
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for CrewTask {
    fn drop(&mut self) {
        if !self.is_over {
            // It was cut off, or a member panicked. Who waits at the entrance would wait there forever.
            let entrance = std::mem::take(&mut *lock(&self.shared.entrance));
            drop(entrance);
        }
    }
}

const WORKING: u8 = 1;
const RUNG: u8 = 2;
/// How often the members may wake each other before other tasks have their turn.
const ROUNDS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    fn crew() -> Crew {
        Crew::new(|task| drop(tokio::spawn(task)))
    }

    #[tokio::test]
    async fn members_wake_each_other_and_are_woken_from_outside() {
        let crew = crew();
        let (to_second, mut from_first) = mpsc::unbounded_channel::<u32>();
        let (to_test, mut from_second) = mpsc::unbounded_channel::<u32>();
        let (to_first, mut from_test) = mpsc::unbounded_channel::<u32>();
        crew.join(async move {
            while let Some(number) = from_test.recv().await {
                to_second.send(number + 1).ok();
            }
        });
        crew.join(async move {
            while let Some(number) = from_first.recv().await {
                to_test.send(number * 2).ok();
            }
        });
        for number in 0..1000 {
            assert_eq!(to_first.send(number), Ok(()));
            assert_eq!(from_second.recv().await, Some((number + 1) * 2));
        }
        // The end of one is what the other waited for.
        drop(to_first);
        assert_eq!(from_second.recv().await, None);
    }

    #[tokio::test]
    async fn a_crew_whose_members_are_gone_begins_anew() {
        let crew = crew();
        for _ in 0..3 {
            let (done, is_done) = oneshot::channel();
            let again = crew.clone();
            // It joins from inside, as the last thing that its only member does.
            crew.join(async move {
                again.join(async move {
                    done.send(()).ok();
                });
            });
            assert_eq!(is_done.await, Ok(()));
        }
    }

    #[tokio::test]
    async fn a_member_that_never_rests_leaves_time_for_others() {
        let crew = crew();
        crew.join(std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::Pending
        }));
        // On the only thread of this runtime.
        let (done, is_done) = oneshot::channel();
        tokio::spawn(async move { done.send(()).ok() });
        assert_eq!(is_done.await, Ok(()));
    }
}
