//! The counter at which the leader of a group serves: commands of all streams go into frames, and what comes out of the
//! frames goes back to the streams.
//!
//! ```text
//!   stream ── commands, pulls ──┐                 ┌──► frame ──► Raft ──► applied ──┐
//!   stream ── commands, pulls ──┼──► Desk: pack ──┼──► frame ──► Raft ──► applied ──┼──► carry out ──► streams
//!   clock ─── ticks ────────────┘                 └──► frame ──► Raft ──► applied ──┘
//! ```
//!
//! Every node has a desk for every group, and it is open while the node leads: a *reign*. What it knows besides the
//! replicated state (which stream speaks for which session, which pulls wait) belongs to one reign and is gone with it:
//! streams hear that somebody else leads now, and their clients say again what matters.
//!
//! **Packing needs no waiting.** A frame takes what has come while the frames before it were written: the sync that is under
//! way is what commands wait for to become many.
//!
//! **Workers that are gone.** A stream that ends takes its sessions with it. Sessions that are open when a reign begins have
//! a grace to come back, for their workers have to find the new leader first.

mod carry;
mod faces;
mod pack;
mod parked;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use synod_core::jobs::{Assignment, Command, Event, GatewayId, JobQueue, Op, QueueName, SessionId, Token};
use synod_wire::queue as wire;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use self::faces::Faces;
pub(crate) use self::faces::shown;
use self::pack::Packer;
use self::parked::Parked;
use crate::jobs::{Carried, Jobs};
use crate::raft::{Group, Lead, Proposed};

/// What a desk is started with.
#[derive(Clone, Debug)]
pub struct DeskConfig {
    /// How long a session may take to find a new leader. Default 5 s.
    pub grace: Duration,
    /// How long a stream may be silent before it counts as gone. Default 5 s.
    pub silence: Duration,
    /// Most commands of a stream without an outcome. It must not exceed the window of the gateways in the limits of the
    /// queue. Default 1 024.
    pub window: u32,
    /// Most streams. Default 4 096.
    pub streams_max: usize,
    /// Most waiting pulls of a stream. Default 16 384.
    pub pulls_max: usize,
}

impl Default for DeskConfig {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(5),
            silence: Duration::from_secs(5),
            window: 1_024,
            streams_max: 4_096,
            pulls_max: 16_384,
        }
    }
}

/// The desk of one group on this node.
#[derive(Clone)]
pub(crate) struct Desk {
    notes: mpsc::Sender<Note>,
    group: Group<Jobs>,
    config: Arc<DeskConfig>,
    events: broadcast::Sender<Arc<Vec<Event>>>,
    faces: Faces,
    /// Room for commands that the desk has not taken yet, in kibibytes.
    room: Arc<Semaphore>,
}

/// What is said to a stream.
pub(crate) type ToStream = mpsc::UnboundedSender<Result<wire::Response, Status>>;

/// One stream, for as long as one reign lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StreamId(u64);

/// A stream that was let in.
pub(crate) struct Admission {
    pub(crate) stream: StreamId,
    /// Commands of it without an outcome.
    pub(crate) under_way: Arc<AtomicU32>,
    pub(crate) term: u64,
    /// Since which entry of the log its gateway is known.
    pub(crate) since: u64,
}

/// Something that a stream brings.
pub(crate) enum Note {
    /// It wants to be let in.
    Open { gateway: GatewayId, name: Arc<str>, out: ToStream, reply: oneshot::Sender<Option<Admission>> },
    /// Things to do, in order, with what a worker that comes back has in its hands.
    Commands {
        stream: StreamId,
        commands: Vec<(u64, Op, Vec<Assignment>)>,
        /// What they take of the room before the desk.
        room: OwnedSemaphorePermit,
    },
    /// Wishes for jobs.
    Pulls { stream: StreamId, pulls: Vec<Wish> },
    /// Wishes that are taken back.
    Withdrawn { stream: StreamId, pulls: Vec<u64> },
    /// It has ended.
    Closed { stream: StreamId, end: StreamEnd },
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// With a goodbye, and nothing left to answer: the gateway will not come back.
    Goodbye,
    /// The client is there and took the stream back or ended it, perhaps to look for another leader: it may come back. That
    /// everything was answered does not say that the answers came through.
    Reset,
    /// The client is gone.
    Gone,
}

/// A wish for jobs.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) id: u64,
    pub(crate) session: SessionId,
    pub(crate) queues: Vec<QueueName>,
    pub(crate) count: u32,
    pub(crate) ttr_ms: Option<u64>,
    pub(crate) waits: bool,
}

impl Desk {
    /// Starts the desk of a group.
    pub(crate) fn start(group: Group<Jobs>, config: DeskConfig) -> Self {
        let (notes, received) = mpsc::channel(NOTES_MAX);
        let (events, _) = broadcast::channel(EVENTS_KEPT);
        let config = Arc::new(config);
        let faces = Faces::default();
        let keeper = Keeper {
            lead: group.lead(),
            group: group.clone(),
            config: Arc::clone(&config),
            events: events.clone(),
            faces: faces.clone(),
            next_stream: 1,
            reign: None,
            pause_ends: Instant::now(),
        };
        tokio::spawn(keeper.run(received));
        let room = Arc::new(Semaphore::new(ROOM_KIB));
        Self { notes, group, config, events, faces, room }
    }

    pub(crate) const fn group(&self) -> &Group<Jobs> {
        &self.group
    }

    pub(crate) fn config(&self) -> &DeskConfig {
        &self.config
    }

    /// What happens to jobs, as this node sees it while it leads.
    pub(crate) fn events(&self) -> broadcast::Receiver<Arc<Vec<Event>>> {
        self.events.subscribe()
    }

    /// By which names the sessions came that are open, while this node leads.
    pub(crate) const fn faces(&self) -> &Faces {
        &self.faces
    }

    /// Hands something in. False when the desk is gone.
    pub(crate) async fn hand_in(&self, note: Note) -> bool {
        self.notes.send(note).await.is_ok()
    }

    /// Hands commands in, once there is room for all that they carry. A stream that waits here is not read from, so that its
    /// client has to wait as well. False when the desk is gone.
    pub(crate) async fn hand_in_commands(
        &self,
        stream: StreamId,
        commands: Vec<(u64, Op, Vec<Assignment>)>,
    ) -> bool {
        let bytes: usize = commands.iter().map(|(_, op, _)| pack::cost(op)).sum();
        let kib = u32::try_from(bytes.div_ceil(1 << 10).min(ROOM_KIB)).unwrap_or(u32::MAX);
        match Arc::clone(&self.room).acquire_many_owned(kib).await {
            Ok(room) => self.hand_in(Note::Commands { stream, commands, room }).await,
            Err(_) => false,
        }
    }

    /// Lets a stream in, if this node leads.
    pub(crate) async fn admit(&self, gateway: GatewayId, name: Arc<str>, out: ToStream) -> Option<Admission> {
        let (reply, admitted) = oneshot::channel();
        self.hand_in(Note::Open { gateway, name, out, reply }).await;
        admitted.await.ok().flatten()
    }
}

/// The task behind a desk.
struct Keeper {
    lead: watch::Receiver<Lead>,
    group: Group<Jobs>,
    config: Arc<DeskConfig>,
    events: broadcast::Sender<Arc<Vec<Event>>>,
    faces: Faces,
    next_stream: u64,
    reign: Option<Reign>,
    /// When a leader whose reign ended early may begin another one.
    pause_ends: Instant,
}

/// What belongs to one reign.
struct Reign {
    term: u64,
    packer: Packer,
    under_way: FuturesOrdered<Proposed<Carried>>,
    /// For each frame under way, who asked for what, and when it was packed.
    origins: VecDeque<(Vec<Origin>, Instant)>,
    streams: HashMap<StreamId, Stream>,
    sessions: HashMap<SessionId, StreamId>,
    faces: Faces,
    /// Sessions that nobody has come back for yet, and until when they may.
    orphans: HashMap<SessionId, Instant>,
    parked: Parked,
    /// When something happens by itself.
    tick_at: Option<Instant>,
    /// When the queue is told again which gateways are here: it forgets those that it has not heard of for too long, and a
    /// client may well have nothing to do for as long.
    refresh_at: Instant,
    /// What a simulation that delivers too early takes for the next entry, and for the state before it.
    #[cfg(test)]
    ahead: Option<(u64, JobQueue)>,
}

struct Stream {
    out: ToStream,
    gateway: GatewayId,
    /// What it calls itself.
    name: Arc<str>,
    sessions: HashSet<SessionId>,
    under_way: Arc<AtomicU32>,
}

/// Who asked for a command of a frame.
enum Origin {
    /// A stream that wants to be let in.
    Open { stream: StreamId, reply: oneshot::Sender<Option<Admission>> },
    /// A stream.
    Stream { stream: StreamId, sequence: u64 },
    /// A stream that opens a session, whose worker has this in its hands.
    Session { stream: StreamId, sequence: u64, session: SessionId, held: Vec<Assignment> },
    /// A stream that closes a session.
    SessionEnd { stream: StreamId, sequence: u64, session: SessionId },
    /// A stream's wish for jobs.
    Pull { stream: StreamId, wish: Wish },
    /// The desk itself.
    Desk,
}

impl Keeper {
    async fn run(mut self, mut notes: mpsc::Receiver<Note>) {
        let mut batch = Vec::with_capacity(NOTES_AT_ONCE);
        loop {
            self.follow_lead();
            self.propose().await;
            let Some(reign) = &mut self.reign else {
                let is_paused = self.pause_ends > Instant::now();
                tokio::select! {
                    () = sleep_until(self.pause_ends), if is_paused => {}
                    changed = self.lead.changed() => if changed.is_err() { return },
                    note = notes.recv() => match note {
                        Some(note) => refuse(note),
                        None => return,
                    },
                }
                continue;
            };
            let wake_at = reign.wake_at();
            tokio::select! {
                biased;
                changed = self.lead.changed() => if changed.is_err() { return },
                applied = reign.under_way.next(), if !reign.under_way.is_empty() => match applied {
                    Some(Ok(applied)) => self.carry(applied),
                    // Whoever waits hears of it when the reign ends, which is now.
                    Some(Err(_)) => self.abdicate(),
                    None => {}
                },
                count = notes.recv_many(&mut batch, NOTES_AT_ONCE), if reign.packer.has_room() => {
                    if count == 0 {
                        return;
                    }
                    for note in batch.drain(..) {
                        self.take(note);
                    }
                }
                () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => self.look_at_clock(),
            }
        }
    }

    /// Begins and ends reigns.
    fn follow_lead(&mut self) {
        let lead = self.lead.borrow_and_update().clone();
        let leads = lead.is_own && lead.serves;
        if self.reign.as_ref().is_some_and(|reign| !leads || reign.term != lead.term) {
            self.abdicate();
        }
        if leads && self.reign.is_none() && self.pause_ends <= Instant::now() {
            self.reign = Some(self.begin(lead.term));
        }
    }

    fn begin(&self, term: u64) -> Reign {
        let now = Instant::now();
        let grace_ends = now + self.config.grace;
        let (orphans, due, refresh_at) = self.group.read(|jobs| {
            let queue = jobs.queue();
            let orphans = queue.sessions().map(|session| (session, grace_ends)).collect();
            (orphans, due_at(now, queue.time_ms(), queue.next_due_ms()), now + refresh_pause(queue))
        });
        let mut packer = Packer::new(now);
        // Names of nodes are ones, unless a test has others.
        if let Ok(node) = self.group.node().parse() {
            packer.push(Origin::Desk, Op::Lead { node }.into());
        }
        Reign {
            term,
            packer,
            under_way: FuturesOrdered::new(),
            origins: VecDeque::new(),
            streams: HashMap::new(),
            sessions: HashMap::new(),
            faces: self.faces.clone(),
            orphans,
            parked: Parked::default(),
            tick_at: due,
            refresh_at,
            #[cfg(test)]
            ahead: None,
        }
    }

    /// Ends the reign: every stream is told who leads now, as far as that is known.
    fn abdicate(&mut self) {
        let Some(reign) = self.reign.take() else { return };
        // It may lead on, and take nothing for a while: because it hands over, for example.
        self.pause_ends = Instant::now() + REIGN_PAUSE;
        self.faces.clear();
        let told = not_leader(&self.lead.borrow());
        for stream in reign.streams.into_values() {
            // A stream that has ended need not be told.
            drop(stream.out.send(Ok(told.clone())));
        }
    }

    /// Proposes what has come, as long as not too much is under way.
    async fn propose(&mut self) {
        while let Some(reign) = &mut self.reign
            && reign.under_way.len() < FRAMES_UNDER_WAY_MAX
            && let Some((entry, origins)) = reign.packer.pack(Instant::now(), unix_millis())
        {
            let packed_at = reign.packer.last_frame();
            #[cfg(test)]
            carry::deliver_early(&self.group, reign, &entry);
            match self.group.propose(entry).await {
                Ok(proposed) => {
                    reign.under_way.push_back(proposed);
                    reign.origins.push_back((origins, packed_at));
                }
                Err(_) => self.abdicate(),
            }
        }
    }

    fn take(&mut self, note: Note) {
        let Some(reign) = &mut self.reign else { return refuse(note) };
        match note {
            Note::Open { gateway, name, out, reply } => {
                if reign.streams.len() >= self.config.streams_max {
                    drop(
                        out.send(Err(Status::resource_exhausted(
                            "there are as many streams as there may be",
                        ))),
                    );
                    return;
                }
                let stream = StreamId(self.next_stream);
                self.next_stream += 1;
                let (sessions, under_way) = (HashSet::new(), Arc::new(AtomicU32::new(0)));
                reign.streams.insert(stream, Stream { out, gateway, name, sessions, under_way });
                let origin = Origin::Open { stream, reply };
                reign.packer.push(origin, Op::GatewayOpen { gateway }.into());
            }
            Note::Commands { stream, commands, room } => {
                let Some(gateway) = reign.streams.get(&stream).map(|stream| stream.gateway) else { return };
                for (sequence, op, held) in commands {
                    let origin = match &op {
                        Op::SessionOpen { session, .. } => {
                            Origin::Session { stream, sequence, session: *session, held }
                        }
                        Op::SessionClose { session } => {
                            Origin::SessionEnd { stream, sequence, session: *session }
                        }
                        _ => Origin::Stream { stream, sequence },
                    };
                    let token = Some(Token { gateway, sequence });
                    reign.packer.push(origin, Command { token, op });
                }
                // They are with the packer now, which has a bound of its own.
                drop(room);
            }
            Note::Pulls { stream, pulls } => {
                for wish in pulls {
                    self.consider(stream, wish);
                }
            }
            Note::Withdrawn { stream, pulls } => {
                let mut response = wire::Response::default();
                for id in pulls {
                    // One that is not parked is under way, or was answered.
                    if reign.parked.remove(stream, id).is_some() {
                        response.pull_ends.push(wire::PullEnd { id, count: 0, refusal: 0 });
                    }
                }
                if let (Some(stream), false) = (reign.streams.get(&stream), response.pull_ends.is_empty()) {
                    drop(stream.out.send(Ok(response)));
                }
            }
            Note::Closed { stream, end } => {
                let Some(gone) = reign.streams.remove(&stream) else { return };
                reign.parked.remove_all(stream);
                for session in gone.sessions {
                    // It may have come back on another stream.
                    if reign.sessions.get(&session) == Some(&stream) {
                        reign.sessions.remove(&session);
                        reign.faces.remove(session);
                        match end {
                            StreamEnd::Reset => {
                                reign.orphans.insert(session, Instant::now() + self.config.grace);
                            }
                            StreamEnd::Goodbye | StreamEnd::Gone => {
                                reign.packer.push(Origin::Desk, Op::SessionClose { session }.into());
                            }
                        }
                    }
                }
                if end == StreamEnd::Goodbye {
                    reign.packer.push(Origin::Desk, Op::GatewayClose { gateway: gone.gateway }.into());
                }
            }
        }
    }

    /// Has a wish fulfilled, if there is something for it, or lets it wait.
    fn consider(&mut self, stream: StreamId, wish: Wish) {
        let Some(reign) = &mut self.reign else { return };
        let has_ready = self.group.read(|jobs| wish.queues.iter().any(|name| jobs.queue().has_ready(name)));
        if has_ready || !wish.waits {
            reign.packer.push_pull(stream, wish);
        } else if reign.parked.count(stream) >= self.config.pulls_max {
            if let Some(stream) = reign.streams.get(&stream) {
                let refused = Status::resource_exhausted("the stream has as many waiting pulls as it may");
                drop(stream.out.send(Err(refused)));
            }
        } else {
            reign.parked.insert(stream, wish);
        }
    }

    /// Does what its time has come for.
    fn look_at_clock(&mut self) {
        let Some(reign) = &mut self.reign else { return };
        let now = Instant::now();
        if reign.tick_at.is_some_and(|at| at <= now) {
            reign.tick_at = None;
            reign.packer.ask_for_tick();
        }
        if reign.refresh_at <= now {
            reign.refresh_at = now + self.group.read(|jobs| refresh_pause(jobs.queue()));
            let gateways: BTreeSet<GatewayId> = reign.streams.values().map(|stream| stream.gateway).collect();
            for gateway in gateways {
                reign.packer.push(Origin::Desk, Op::GatewayOpen { gateway }.into());
            }
        }
        let late = reign.orphans.iter().filter(|(_, until)| **until <= now).map(|(session, _)| *session);
        for session in late.collect::<Vec<_>>() {
            reign.orphans.remove(&session);
            reign.packer.push(Origin::Desk, Op::SessionClose { session }.into());
        }
    }
}

impl Reign {
    fn wake_at(&self) -> Option<Instant> {
        let grace = self.orphans.values().min().copied();
        let refresh = (!self.streams.is_empty()).then_some(self.refresh_at);
        [self.tick_at, grace, refresh].into_iter().flatten().min()
    }
}

impl Stream {
    fn answered(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers a note that cannot be taken, where somebody waits for that. Streams hear why by themselves.
fn refuse(note: Note) {
    if let Note::Open { reply, .. } = note {
        drop(reply.send(None));
    }
}

/// What a stream hears that has come to the wrong node.
pub(crate) fn not_leader(lead: &Lead) -> wire::Response {
    let leader = match &lead.leader {
        Some(leader) if !lead.is_own => leader.address.clone(),
        _ => String::new(),
    };
    let reason = match lead.is_own {
        true => "this node leads, and does not serve yet",
        false => "this node does not lead",
    };
    let told = wire::NotLeader { leader, term: lead.term, reason: reason.to_owned() };
    wire::Response { greeting: Some(wire::response::Greeting::NotLeader(told)), ..wire::Response::default() }
}

/// When queue time, which was `time_ms` at `then`, is `due_ms`.
fn due_at(then: Instant, time_ms: u64, due_ms: Option<u64>) -> Option<Instant> {
    let wait = Duration::from_millis(due_ms?.saturating_sub(time_ms)).min(TICK_AT_LEAST_EVERY);
    Some(then + wait)
}

/// How often the queue hears of gateways that are here: in good time before it would forget them.
fn refresh_pause(queue: &JobQueue) -> Duration {
    Duration::from_millis(queue.limits().gateway_idle_ms / 3).min(TICK_AT_LEAST_EVERY)
}

fn unix_millis() -> u64 {
    use std::time::{SystemTime, UNIX_EPOCH};
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Where time is simulated, the date is too.
    #[cfg(test)]
    let since = turmoil::since_epoch().filter(|_| turmoil::in_simulation()).unwrap_or(since);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Frames that are written while the next one is packed. More would make them smaller.
const FRAMES_UNDER_WAY_MAX: usize = 4;
/// So long after a reign that ended the next one of the same node begins at the earliest.
const REIGN_PAUSE: Duration = Duration::from_millis(20);
/// Notes that wait for the desk. A full desk makes streams wait, and streams make their clients wait.
const NOTES_MAX: usize = 1_024;
/// Commands that wait for the desk may carry so much, whoever they are of.
const ROOM_KIB: usize = 32 << 10;
/// Notes that are taken at once.
const NOTES_AT_ONCE: usize = 256;
/// Batches of events that a slow listener may be behind.
const EVENTS_KEPT: usize = 1_024;
/// Alarms far in the future are looked at again now and then: clocks have ends.
const TICK_AT_LEAST_EVERY: Duration = Duration::from_secs(3_600);
