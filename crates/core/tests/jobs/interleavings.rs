//! Two jobs, two workers, and every order in which things can happen to them.
//!
//! The state is the queue itself. What the model adds is the world around it: submits that are sent again because nobody
//! knows what became of them, deliveries that are lost with their leader, leases that end, sessions that are closed while
//! their workers go on, and acks that come at any time by any worker that ever got a job.
//!
//! Each rule can be switched off, and the checker must then find the disaster that the rule prevents.

#![allow(clippy::print_stdout, reason = "the paths to the disasters are what one runs it for")]

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use stateright::{Checker, HasDiscoveries, Model, Property};
use synod_core::jobs::{
    Command, Effects, Fence, Frame, GatewayId, JobId, JobLimits, JobQueue, JobState, Op, QueueName, Reply,
    SessionId, Submit, Token,
};

#[test]
fn no_order_of_events_breaks_a_promise() {
    let rules = Rules { entries: 11, ..Rules::default() };
    let checker = rules.checker().spawn_bfs().join();
    checker.assert_properties();
    let states = checker.unique_state_count();
    println!("{states} states");
    assert!(states > 100_000, "{states} states");
}

#[test]
fn without_fences_a_job_is_done_by_one_who_lost_it() {
    assert!(steps_to(Rules { checks_fences: false, ..Rules::default() }, DONE_BY_HOLDER) > 0);
}

#[test]
fn without_tokens_a_submit_makes_two_jobs() {
    assert!(steps_to(Rules { uses_tokens: false, ..Rules::default() }, ONE_JOB_PER_SUBMIT) > 0);
}

#[test]
fn delivery_before_commit_makes_two_holders() {
    assert!(steps_to(Rules { commits_first: false, ..Rules::default() }, ONE_HOLDER) > 0);
}

const ONE_HOLDER: &str = "an assignment has one holder";
const DONE_BY_HOLDER: &str = "a job is done once, by its holder";
const ONE_JOB_PER_SUBMIT: &str = "a submit makes one job";
const NOTHING_LOST: &str = "what was acknowledged is there or done";
const ALL_DONE: &str = "both jobs can be done";
const REFUSED: &str = "an ack can come too late";

/// How far the model goes, and which rules the system follows.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// The length of the log.
    entries: u64,
    checks_fences: bool,
    uses_tokens: bool,
    commits_first: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { entries: 10, checks_fences: true, uses_tokens: true, commits_first: true }
    }
}

/// The queue and what people know.
#[derive(Clone, Debug)]
struct World {
    queue: JobQueue,
    /// What each worker believes to hold.
    known: BTreeSet<(SessionId, JobId, Fence)>,
    /// What the client was told, by submit.
    told: BTreeMap<u64, BTreeSet<JobId>>,
    /// Who did a job, and who held it.
    done: Vec<(JobId, SessionId, SessionId)>,
    was_refused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    /// Sent by the client, for the first time or again.
    Submit(u64),
    /// A worker takes a job. The answer may be lost with the leader.
    Pull(SessionId, IsHeard),
    /// A leader hands out what it has not committed, and goes down.
    PullUncommitted(SessionId),
    Ack(SessionId, JobId, Fence),
    LeasesEnd,
    /// The worker does not hear of it.
    Close(SessionId),
    Open(SessionId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum IsHeard {
    Yes,
    No,
}

const WORKERS: [SessionId; 2] = [SessionId::new(1), SessionId::new(2)];
const GATEWAY: GatewayId = GatewayId::new(1);

impl World {
    fn apply(&mut self, dt_ms: u32, command: impl Into<Command>) -> Effects {
        let mut effects = Effects::new();
        let frame = Frame { dt_ms, wall_ms: 0, commands: vec![command.into()] };
        self.queue.apply(self.queue.index() + 1, &frame, &mut effects).expect("in order");
        effects
    }

    fn holder(&self, job: JobId) -> Option<(SessionId, Fence)> {
        let job = self.queue.job(job)?;
        match job.state {
            JobState::Reserved { session, .. } => Some((session, job.fence)),
            _ => None,
        }
    }

    /// All that makes a difference for what can happen.
    #[expect(clippy::type_complexity, reason = "a key to compare by, named nowhere else")]
    fn key(&self) -> (u64, u64, Vec<(u8, u64, u64, u32, u64)>, Vec<SessionId>) {
        let jobs = (1..=4).filter_map(|number| {
            let job = self.queue.job(JobId::in_group(1, number))?;
            let (state, session, until_ms) = match job.state {
                JobState::Ready => (0, 0, 0),
                JobState::Reserved { session, deadline_ms, .. } => (1, session.get(), deadline_ms),
                JobState::Delayed { until_ms, .. } => (2, 0, until_ms),
                JobState::Dead { .. } => (3, 0, 0),
                JobState::Finished { .. } => (4, 0, 0),
            };
            Some((state, session, until_ms, job.attempts, job.fence.get()))
        });
        (self.queue.index(), self.queue.time_ms(), jobs.collect(), self.queue.sessions().collect())
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
            && self.known == other.known
            && self.told == other.told
            && self.done == other.done
            && self.was_refused == other.was_refused
    }
}

impl Eq for World {}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.key(), &self.known, &self.told, &self.done, self.was_refused).hash(state);
    }
}

fn pull(session: SessionId) -> Op {
    let queues = vec![QueueName::new("default").expect("a name")];
    Op::Pull { session, queues, count: 1, ttr_ms: Some(10) }
}

impl Model for Rules {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut world = World {
            queue: JobQueue::new(1, JobLimits::default()).expect("limits"),
            known: BTreeSet::new(),
            told: BTreeMap::new(),
            done: Vec::new(),
            was_refused: false,
        };
        world.apply(0, Op::GatewayOpen { gateway: GATEWAY });
        for session in WORKERS {
            world.apply(0, Op::SessionOpen { session, secret: 0 });
        }
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.queue.index() >= self.entries {
            return;
        }
        actions.extend([1, 2].map(Action::Submit));
        for session in WORKERS {
            if world.queue.session(session).is_some() {
                actions.extend([IsHeard::Yes, IsHeard::No].map(|is_heard| Action::Pull(session, is_heard)));
                actions.push(Action::Close(session));
                if !self.commits_first {
                    actions.push(Action::PullUncommitted(session));
                }
            } else {
                actions.push(Action::Open(session));
            }
        }
        actions.extend(world.known.iter().map(|(session, job, fence)| Action::Ack(*session, *job, *fence)));
        actions.push(Action::LeasesEnd);
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        match action {
            Action::Submit(number) => {
                let name = QueueName::new("default").expect("a name");
                let token = self.uses_tokens.then_some(Token { gateway: GATEWAY, sequence: number });
                let op = Op::Submit(Submit::new(name, vec![number as u8]));
                let effects = world.apply(0, Command { token, op });
                if let Ok(Reply::Submitted { job }) = effects.replies[0] {
                    world.told.entry(number).or_default().insert(job);
                }
            }
            Action::Pull(session, is_heard) => {
                let effects = world.apply(0, pull(session));
                if is_heard == IsHeard::Yes {
                    world.known.extend(
                        effects.deliveries.iter().map(|given| (given.session, given.job, given.fence)),
                    );
                } else if effects.deliveries.is_empty() {
                    return None;
                }
            }
            Action::PullUncommitted(session) => {
                let mut leader = world.clone();
                let effects = leader.apply(0, pull(session));
                world
                    .known
                    .extend(effects.deliveries.iter().map(|given| (given.session, given.job, given.fence)));
            }
            Action::Ack(session, job, fence) => {
                let holder = world.holder(job);
                let shown = match holder {
                    Some((_, current)) if !self.checks_fences => current,
                    _ => fence,
                };
                let effects = world.apply(0, Op::Ack { job, fence: shown });
                match (&effects.replies[0], holder) {
                    (Ok(_), Some((holder, _))) => world.done.push((job, session, holder)),
                    (Ok(_), None) => world.done.push((job, session, SessionId::default())),
                    (Err(_), _) => world.was_refused = true,
                }
            }
            Action::LeasesEnd => {
                world.queue.next_due_ms()?;
                world.apply(10, Op::Tick);
            }
            Action::Close(session) => {
                world.apply(0, Op::SessionClose { session });
            }
            Action::Open(session) => {
                world.apply(0, Op::SessionOpen { session, secret: 0 });
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, world: &World| {
                let holders = |job, fence| {
                    world.known.iter().filter(move |(_, of, by)| (*of, *by) == (job, fence)).count()
                };
                world.known.iter().all(|(_, job, fence)| holders(*job, *fence) == 1)
            }),
            Property::always(DONE_BY_HOLDER, |_, world: &World| {
                let times = |job| world.done.iter().filter(move |(of, ..)| *of == job).count();
                world.done.iter().all(|(job, by, holder)| by == holder && times(*job) == 1)
            }),
            Property::always(ONE_JOB_PER_SUBMIT, |_, world: &World| {
                world.told.values().all(|jobs| jobs.len() == 1)
            }),
            Property::always(NOTHING_LOST, |_, world: &World| {
                let is_done = |job: &JobId| world.done.iter().any(|(of, ..)| of == job);
                world.told.values().flatten().all(|job| world.queue.body(*job).is_some() != is_done(job))
            }),
            Property::sometimes(ALL_DONE, |_, world: &World| world.done.len() == 2),
            Property::sometimes(REFUSED, |_, world: &World| world.was_refused),
        ]
    }
}

/// How many steps it takes until the promise is broken, which it must be.
fn steps_to(rules: Rules, promise: &'static str) -> usize {
    let finish = HasDiscoveries::AnyOf([promise].into());
    let checker = rules.checker().finish_when(finish).spawn_bfs().join();
    let path = checker.discovery(promise).expect("the promise is broken").into_actions();
    println!("{promise}: {path:?}");
    path.len()
}
