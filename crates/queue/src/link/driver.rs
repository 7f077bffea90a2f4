//! The task behind a link.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use synod_core::jobs::{Delivery, Fence, GatewayId, JobId, Reply, SessionId, Token};
use synod_wire::queue as wire;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::connect::{Connection, Seeker};
use super::ledger::Ledger;
use super::outbox::Outbox;
use super::{
    Ask, CallReply, DeliveryReply, LinkConfig, Numbered, NumberedReply, PullReply, SessionEvent, Wish,
};
use crate::access::{Answer, CallError, Question};
use crate::wire::{assignment, read_delivery, read_outcome, refusal, write_held};

/// A command without an outcome.
struct Pending {
    op: wire::command::Op,
    to: To,
}

/// Who wants to know what became of a command.
enum To {
    Caller(CallReply),
    /// Somebody who wants to know the number too.
    Witness(NumberedReply),
    Reserver(DeliveryReply),
    /// The driver: a session is opened again.
    Reopened(SessionId),
    Nobody,
}

struct Waiting {
    wish: Wish,
    reply: PullReply,
}

struct Asked {
    question: Question,
    since: Instant,
    reply: tokio::sync::oneshot::Sender<Result<Answer, CallError>>,
}

struct Session {
    secret: u64,
    events: Option<mpsc::UnboundedSender<SessionEvent>>,
}

pub(super) struct Driver {
    config: Arc<LinkConfig>,
    /// Who numbers.
    gateway: GatewayId,
    /// Since which entry of the log the queue knows that gateway, once it does.
    known_since: Option<u64>,
    ledger: Ledger<Pending>,
    /// Commands of the driver itself, for which there is no number yet.
    backlog: VecDeque<Pending>,
    questions: HashMap<u64, Asked>,
    next_question: u64,
    pulls: BTreeMap<u64, Waiting>,
    sessions: HashMap<SessionId, Session>,
    /// What the sessions of this link hold.
    held: HashMap<JobId, (SessionId, Fence)>,
    /// Jobs that came for reserves whose outcome follows.
    reserved: HashMap<u64, Delivery>,
    outbox: Outbox,
    is_connected: bool,
    window: usize,
}

/// Runs a link until nobody uses it any more.
pub(super) async fn run(config: Arc<LinkConfig>, mut asks: mpsc::Receiver<Ask>) {
    let mut seeker = Seeker::new(&config);
    let mut driver = Driver {
        config,
        gateway: seeker.gateway(),
        known_since: None,
        ledger: Ledger::new(),
        backlog: VecDeque::new(),
        questions: HashMap::new(),
        next_question: 1,
        pulls: BTreeMap::new(),
        sessions: HashMap::new(),
        held: HashMap::new(),
        reserved: HashMap::new(),
        outbox: Outbox::default(),
        is_connected: false,
        window: WINDOW_BEFORE_WELCOME,
    };
    loop {
        let found = {
            let mut seeking = std::pin::pin!(seeker.seek());
            loop {
                let expiry = driver.next_expiry();
                tokio::select! {
                    found = &mut seeking => break found,
                    ask = asks.recv(), if driver.has_room() => match ask {
                        Some(ask) => driver.take(ask),
                        // Nobody is left to hear what becomes of anything.
                        None => return,
                    },
                    () = sleep_until(expiry), if driver.has_patience_to_lose() => driver.expire(),
                }
            }
        };
        let Ok(connection) = found else {
            driver.refuse();
            continue;
        };
        if driver.known_since.is_some_and(|since| since != connection.since) {
            // The queue has forgotten the gateway. Its numbers are not used a second time, so that each means one command.
            connection.close().await;
            driver.begin_anew();
            seeker.rename();
            driver.gateway = seeker.gateway();
            continue;
        }
        driver.known_since = Some(connection.since);
        if driver.serve(connection, &mut asks).await {
            return;
        }
        driver.is_connected = false;
        driver.outbox = Outbox::default();
    }
}

impl Driver {
    /// Uses a connection until it breaks. True when nobody uses the link any more.
    async fn serve(&mut self, mut connection: Connection, asks: &mut mpsc::Receiver<Ask>) -> bool {
        self.begin(&connection);
        let ping_every = connection.silence / 3;
        let mut ping_at = Instant::now() + ping_every;
        let mut heard_at = Instant::now();
        let mut is_over = false;
        loop {
            self.pack_backlog();
            if is_over && self.ledger.span() == 0 && self.outbox.is_empty() {
                connection.close().await;
                return true;
            }
            let stalls_at = self.stall_begins(heard_at) + STALL;
            let wake_at = ping_at.min(self.next_expiry()).min(stalls_at);
            tokio::select! {
                biased;
                response = connection.responses.message() => match response {
                    Ok(Some(response)) => {
                        heard_at = Instant::now();
                        if let Some(wire::response::Greeting::NotLeader(_)) = response.greeting {
                            self.hear(response);
                            return false;
                        }
                        self.hear(response);
                    }
                    Ok(None) => return false,
                    Err(status) => {
                        tracing::debug!(%status, "the stream to the leader has ended");
                        return false;
                    }
                },
                permit = connection.requests.reserve(), if !self.outbox.is_empty() => match permit {
                    Ok(permit) => {
                        if let Some(request) = self.outbox.pop() {
                            permit.send(request);
                            ping_at = Instant::now() + ping_every;
                        }
                    }
                    Err(_) => return false,
                },
                ask = asks.recv(), if !is_over && self.has_room() => match ask {
                    Some(ask) => self.take(ask),
                    None => is_over = true,
                },
                () = sleep_until(wake_at) => {
                    let now = Instant::now();
                    if now >= ping_at {
                        self.outbox.ping();
                        ping_at = now + ping_every;
                    }
                    self.expire();
                    if now >= stalls_at {
                        return false;
                    }
                }
            }
        }
    }

    /// Numbers from 1 again, as another gateway. What was sent may have been done, and cannot be sent again.
    fn begin_anew(&mut self) {
        for (sequence, pending) in self.ledger.renumber() {
            self.settle(Some(sequence), pending, Err(CallError::NoLeader));
        }
        self.known_since = None;
    }

    /// Says again what has no outcome.
    fn begin(&mut self, connection: &Connection) {
        self.window = connection.window;
        self.is_connected = true;
        self.outbox = Outbox::default();
        self.reserved.clear();
        let stale: Vec<u64> = self
            .ledger
            .iter_mut()
            .filter(|(_, entry)| matches!(entry.item.to, To::Reopened(_)))
            .map(|(sequence, _)| sequence)
            .collect();
        for sequence in stale {
            self.ledger.remove(sequence);
        }
        self.backlog.retain(|pending| !matches!(pending.to, To::Reopened(_)));
        for (session, known) in &self.sessions {
            let held = self.held.iter().filter(|(_, (by, _))| by == session);
            let held = held.map(|(job, (_, fence))| write_held(*job, *fence)).collect();
            let open = wire::SessionOpen { session: session.get(), secret: known.secret, held };
            let op = wire::command::Op::SessionOpen(open);
            self.backlog.push_back(Pending { op, to: To::Reopened(*session) });
        }
        for (sequence, entry) in self.ledger.iter_mut() {
            entry.is_sent = true;
            self.outbox.command(sequence, entry.item.op.clone());
        }
        self.pack_backlog();
        for (id, waiting) in &self.pulls {
            self.outbox.pull(*id, &waiting.wish);
        }
        for (id, asked) in &self.questions {
            self.outbox.question(*id, &asked.question);
        }
    }

    fn take(&mut self, ask: Ask) {
        match ask {
            Ask::Command { op, reply } => self.send(Pending { op, to: To::Caller(reply) }),
            Ask::Numbered { op, reply } => self.send(Pending { op, to: To::Witness(reply) }),
            Ask::Reserve { session, job, reply } => {
                let reserve = wire::Reserve { session: session.get(), job: job.get() };
                let op = wire::command::Op::Reserve(reserve);
                self.send(Pending { op, to: To::Reserver(reply) });
            }
            Ask::Open { session, secret, events, reply } => {
                self.sessions.insert(session, Session { secret, events });
                let open = wire::SessionOpen { session: session.get(), secret, held: Vec::new() };
                self.send(Pending { op: wire::command::Op::SessionOpen(open), to: To::Caller(reply) });
            }
            Ask::Pull { id, wish, reply } => {
                self.outbox.pull(id, &wish);
                self.pulls.insert(id, Waiting { wish, reply });
            }
            Ask::Withdraw { id } => {
                if self.pulls.remove(&id).is_some() {
                    self.outbox.withdraw(id);
                }
            }
            Ask::Question { question, reply } => {
                let id = self.next_question;
                self.next_question += 1;
                self.outbox.question(id, &question);
                self.questions.insert(id, Asked { question, since: Instant::now(), reply });
            }
        }
    }

    /// Gives a command its number and sends it.
    fn send(&mut self, pending: Pending) {
        let op = pending.op.clone();
        let sequence = self.ledger.push(Instant::now(), self.is_connected, pending);
        if self.is_connected {
            self.outbox.command(sequence, op);
        }
    }

    fn pack_backlog(&mut self) {
        while self.ledger.span() < self.window
            && let Some(pending) = self.backlog.pop_front()
        {
            self.send(pending);
        }
    }

    fn has_room(&self) -> bool {
        self.backlog.is_empty() && self.ledger.span() < self.window && self.questions.len() < QUESTIONS_MAX
    }

    /// Takes in what the leader says. Jobs come before the outcomes that speak of them.
    fn hear(&mut self, response: wire::Response) {
        for delivery in response.deliveries {
            let (reserved_by, pulled_by) = (delivery.reserved_by, delivery.pulled_by);
            match read_delivery(delivery) {
                Ok(delivery) => self.hand_out(delivery, reserved_by, pulled_by),
                Err(error) => tracing::warn!(%error, "a delivery makes no sense"),
            }
        }
        for outcome in response.outcomes {
            let Some(pending) = self.ledger.remove(outcome.sequence) else { continue };
            let result = match read_outcome(outcome.result) {
                Ok(result) => result.map_err(CallError::Refused),
                Err(error) => Err(CallError::Nonsense(error.to_string())),
            };
            if let To::Reserver(reply) = pending.to {
                let job = self.reserved.remove(&outcome.sequence);
                let missing = || CallError::Nonsense("a reserve without its job".to_owned());
                // Whoever does not wait any more finds the job when its lease ends.
                drop(reply.send(result.and_then(|_| job.ok_or_else(missing))));
            } else {
                self.settle(Some(outcome.sequence), pending, result);
            }
        }
        for end in response.pull_ends {
            // One that brought something was answered with it.
            if let Some(waiting) = self.pulls.remove(&end.id) {
                let told = match end.refusal.checked_sub(1).map(refusal) {
                    None => Ok(None),
                    Some(Ok(refusal)) => Err(CallError::Refused(refusal)),
                    Some(Err(error)) => Err(CallError::Nonsense(error.to_string())),
                };
                drop(waiting.reply.send(told));
            }
        }
        for revocation in response.revocations {
            let session = SessionId::new(revocation.session);
            let Some(lost) = revocation.held.map(assignment) else { continue };
            if self.held.get(&lost.job) == Some(&(session, lost.fence)) {
                self.held.remove(&lost.job);
            }
            self.tell(session, SessionEvent::Lost(lost));
        }
        for answer in response.answers {
            if let Some(asked) = self.questions.remove(&answer.id) {
                drop(asked.reply.send(read_answer(&answer)));
            }
        }
    }

    /// Gives a job to whoever asked for it; where there is nobody any more, it goes back.
    fn hand_out(&mut self, delivery: Delivery, reserved_by: u64, pulled_by: u64) {
        let (session, job, fence) = (delivery.session, delivery.job, delivery.fence);
        if self.held.insert(job, (session, fence)) == Some((session, fence)) {
            // It was told before.
            return;
        }
        if reserved_by > 0 {
            self.reserved.insert(reserved_by, delivery);
            return;
        }
        let waits = match pulled_by {
            0 => self.pulls.iter().find(|(_, waiting)| waiting.wish.session == session).map(|(id, _)| *id),
            id => Some(id),
        };
        let events = self.sessions.get(&session).and_then(|session| session.events.as_ref());
        let is_taken = match (waits.and_then(|id| self.pulls.remove(&id)), events) {
            (Some(waiting), _) => waiting.reply.send(Ok(Some(delivery))).is_ok(),
            (None, Some(events)) if pulled_by == 0 => events.send(SessionEvent::Delivery(delivery)).is_ok(),
            (None, _) => false,
        };
        if !is_taken {
            let held = Some(write_held(job, fence));
            let nack = wire::Nack { held, delay_ms: Some(0), priority: None, returns_attempt: true };
            self.backlog.push_back(Pending { op: wire::command::Op::Nack(nack), to: To::Nobody });
        }
    }

    /// Tells what became of a command, and draws the conclusions. Without a number it was never sent.
    fn settle(&mut self, sequence: Option<u64>, pending: Pending, result: Result<Reply, CallError>) {
        use wire::command::Op;
        let is_known = matches!(result, Ok(_) | Err(CallError::Refused(_)));
        match &pending.op {
            Op::Ack(held) if is_known => self.let_go(*held),
            Op::Nack(wire::Nack { held: Some(held), .. }) | Op::Bury(wire::Bury { held: Some(held), .. })
                if is_known =>
            {
                self.let_go(*held);
            }
            Op::Cancel(wire::Cancel { job, guard: Some(wire::cancel::Guard::Held(fence)) }) if is_known => {
                self.let_go(wire::Held { job: *job, fence: *fence });
            }
            Op::SessionClose(session) if is_known => self.forget(SessionId::new(*session)),
            Op::SessionOpen(open)
                if matches!(result, Err(CallError::Refused(_) | CallError::GroupUnknown { .. })) =>
            {
                self.forget(SessionId::new(open.session));
            }
            _ => {}
        }
        match pending.to {
            // Whoever asked may not wait any more.
            To::Caller(reply) => drop(reply.send(result)),
            To::Witness(reply) => {
                let token = sequence.map(|sequence| Token { gateway: self.gateway, sequence });
                drop(reply.send(Numbered { token, result }));
            }
            To::Reserver(reply) => drop(reply.send(Err(result.err().unwrap_or(CallError::NoLeader)))),
            To::Reopened(session) => {
                if result == Ok(Reply::Opened { is_resumed: false }) {
                    self.held.retain(|_, (by, _)| *by != session);
                    self.tell(session, SessionEvent::Restarted);
                }
            }
            To::Nobody => {}
        }
    }

    fn let_go(&mut self, held: wire::Held) {
        let held = assignment(held);
        if self.held.get(&held.job).is_some_and(|(_, fence)| *fence == held.fence) {
            self.held.remove(&held.job);
        }
    }

    fn forget(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        self.held.retain(|_, (by, _)| *by != session);
    }

    fn tell(&self, session: SessionId, event: SessionEvent) {
        if let Some(events) = self.sessions.get(&session).and_then(|session| session.events.as_ref()) {
            drop(events.send(event));
        }
    }

    fn has_patience_to_lose(&self) -> bool {
        self.ledger.oldest().is_some() || !self.questions.is_empty()
    }

    fn next_expiry(&self) -> Instant {
        let asked = self.questions.values().map(|asked| asked.since).min();
        let oldest = match (self.ledger.oldest(), asked) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        oldest.map_or_else(|| Instant::now() + FAR, |oldest| oldest + self.config.patience)
    }

    /// Since when the leader has owed an outcome.
    fn stall_begins(&self, heard_at: Instant) -> Instant {
        match self.ledger.oldest() {
            Some(oldest) => oldest.max(heard_at),
            None => Instant::now() + FAR,
        }
    }

    /// There is no such group: tells everybody who waits.
    fn refuse(&mut self) {
        let unknown = CallError::GroupUnknown { group: self.config.group };
        for (sequence, entry) in self.ledger.expire(Instant::now()) {
            match entry.is_sent {
                true => self.settle(Some(sequence), entry.item, Err(CallError::NoLeader)),
                false => self.settle(None, entry.item, Err(unknown.clone())),
            }
        }
        for (_, asked) in self.questions.drain() {
            drop(asked.reply.send(Err(unknown.clone())));
        }
        for (_, waiting) in std::mem::take(&mut self.pulls) {
            drop(waiting.reply.send(Err(unknown.clone())));
        }
    }

    /// Gives up on what has taken too long.
    fn expire(&mut self) {
        let Some(before) = Instant::now().checked_sub(self.config.patience) else { return };
        for (sequence, entry) in self.ledger.expire(before) {
            let sequence = entry.is_sent.then_some(sequence);
            self.settle(sequence, entry.item, Err(CallError::NoLeader));
        }
        let late: Vec<u64> =
            self.questions.iter().filter(|(_, asked)| asked.since <= before).map(|(id, _)| *id).collect();
        for id in late {
            if let Some(asked) = self.questions.remove(&id) {
                drop(asked.reply.send(Err(CallError::NoLeader)));
            }
        }
    }
}

fn read_answer(answer: &wire::Answer) -> Result<Answer, CallError> {
    let mut read = serde_json::from_slice(&answer.answer)
        .map_err(|error| CallError::Nonsense(format!("an answer that cannot be read: {error}")))?;
    if let Answer::Job(Some(job)) = &mut read {
        job.body = answer.body.clone();
    }
    Ok(read)
}

/// How many commands may wait before any leader has said how many.
const WINDOW_BEFORE_WELCOME: usize = 512;
/// Questions without an answer.
const QUESTIONS_MAX: usize = 256;
/// A leader that owes an outcome and says nothing for so long may be none any more.
const STALL: Duration = Duration::from_secs(2);
/// Later than anything.
const FAR: Duration = Duration::from_secs(86_400);
