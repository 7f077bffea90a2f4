//! The hosting side: grains as actors of this node, and the door at which other nodes ask for them.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use synod_core::grains::{ActivationId, ActorPid, ClusterIdentity, GrainSnapshot, PidError};
use synod_core::time::TimerInstant;
use synod_wire::cluster::{ActivationRequest, ActivationTerminated, GrainErrorResponse, GrainRequest};
use synod_wire::{names, payload};
use tokio::time::Instant;

use super::error::GrainError;
use super::grain::{AnyGrain, GrainContext};
use super::handover::HandoverMessage;
use super::timers::Rang;
use super::{Asker, Grains, HEADER_DEADLINE, Headers};
use crate::lock;
use crate::remote::{
    Actor, ActorContext, Letter, Message, Pid, Process, ProcessEnded, SystemMessage, unless_panicked,
};

/// Answers nodes that look for grains.
pub(super) struct Activator(pub(super) Grains);

impl Process for Activator {
    fn deliver(&self, letters: &mut VecDeque<Letter>) -> Result<(), ProcessEnded> {
        for Letter { message, .. } in letters.drain(..) {
            let peer = message.sender.as_ref().map_or("a peer", |sender| sender.address()).to_owned();
            if let Some(handover) = HandoverMessage::read(&message) {
                match handover {
                    Ok(handover) => self.0.take_handover(handover),
                    Err(problem) => self.0.remote().refuse_message(&peer, &problem),
                }
                continue;
            }
            if !message.is::<ActivationRequest>() {
                let problem = format!("a {} for the activator", message.type_name);
                self.0.remote().refuse_message(&peer, &problem);
                continue;
            }
            let Some(sender) = message.sender.clone() else {
                self.0.remote().refuse_message(&peer, "a request for a grain without a sender");
                continue;
            };
            match payload::decode::<ActivationRequest>(message.payload)
                .map(|request| request.cluster_identity)
            {
                Ok(Some(asked)) => match ClusterIdentity::new(&asked.kind, &asked.identity) {
                    Ok(grain) => self.0.ask_registry(&grain, Asker::Peer(sender)),
                    Err(error) => self.0.remote().refuse_message(&peer, &error.to_string()),
                },
                Ok(None) => self.0.remote().refuse_message(&peer, "a request for no grain"),
                Err(error) => self.0.remote().refuse_message(&peer, &error.to_string()),
            }
        }
        Ok(())
    }

    fn tell(&self, _: SystemMessage) -> Result<(), ProcessEnded> {
        Ok(())
    }
}

/// Hears what other nodes announce to everybody.
pub(super) struct Announcements(pub(super) Grains);

impl Process for Announcements {
    fn deliver(&self, letters: &mut VecDeque<Letter>) -> Result<(), ProcessEnded> {
        for Letter { message, .. } in letters.drain(..) {
            if !message.is::<ActivationTerminated>() {
                self.0.publish_broadcast(&message);
                continue;
            }
            if let Ok(ActivationTerminated { pid: Some(pid), cluster_identity: Some(grain) }) =
                payload::decode::<ActivationTerminated>(message.payload)
                && let Ok(grain) = ClusterIdentity::new(&grain.kind, &grain.identity)
                && let Some(pid) = actor_pid(&Pid::from(&pid))
            {
                self.0.forget(&grain, &pid);
            }
        }
        Ok(())
    }

    fn tell(&self, _: SystemMessage) -> Result<(), ProcessEnded> {
        Ok(())
    }
}

/// One activation.
pub(super) struct GrainActor {
    grain: Box<dyn AnyGrain>,
    context: GrainContext,
    activation: ActivationId,
    /// When it was started anew after a panic, lately.
    restarts: Option<Box<Restarts>>,
    snapshot: Option<Box<GrainSnapshot>>,
    /// Whether the registry knows it as running.
    is_running: bool,
    /// Until then the registry need not hear of another use.
    told_until: TimerInstant,
}

/// The times of the last ones.
#[derive(Default)]
struct Restarts(Vec<Instant>);

impl GrainActor {
    pub(super) fn new(
        grains: Grains,
        identity: ClusterIdentity,
        activation: ActivationId,
        grain: Box<dyn AnyGrain>,
        own: Pid,
        snapshot: Option<GrainSnapshot>,
    ) -> Self {
        let context = GrainContext {
            grains,
            identity,
            own,
            sender: None,
            deadline: None,
            headers: None,
            stopping: false,
            timers: None,
        };
        let (restarts, snapshot) = (None, snapshot.map(Box::new));
        let (is_running, told_until) = (false, TimerInstant::ZERO);
        Self { grain, context, activation, restarts, snapshot, is_running, told_until }
    }

    /// Tells the registry that the grain runs, or that it does not. Returns whether it does.
    async fn begin(&mut self) -> bool {
        let snapshot = self.snapshot.take().map(|snapshot| *snapshot);
        let activated = unless_panicked(self.grain.activate_boxed(&mut self.context, snapshot)).await;
        let grains = self.context.grains.clone();
        let failure = match activated {
            Ok(Ok(())) => match self.pid() {
                Ok(pid) => {
                    self.is_running = true;
                    grains.spawned(&self.context.identity, self.activation, pid);
                    return true;
                }
                Err(error) => error.to_string(),
            },
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it panicked".to_owned(),
        };
        grains.spawn_failed(&self.context.identity, self.activation, &failure);
        false
    }

    /// The PID as machines have it.
    fn pid(&self) -> Result<ActorPid, PidError> {
        let Self { context: GrainContext { grains, own, .. }, .. } = self;
        ActorPid::shared(grains.remote().authority().clone(), &own.shared_id())
    }

    async fn turn(&mut self, request: Bytes) -> Result<Message, GrainError> {
        let request: GrainRequest =
            payload::decode(request).map_err(|error| GrainError::invalid_argument(error.to_string()))?;
        let argument: Bytes = request.message_data;
        let turn = self.grain.call_boxed(&mut self.context, request.method_index, argument);
        match unless_panicked(turn).await {
            Ok(answer) => answer,
            Err(_) => {
                tracing::error!(grain = %self.context.identity, "a grain panicked in a call");
                Box::pin(self.restart()).await;
                Err(GrainError::internal("the grain panicked; it was started anew"))
            }
        }
    }

    /// A timer is due, or somebody pretends that one is.
    async fn ring(&mut self, letter: &Message) {
        let Some(timers) = self.context.timers.as_mut() else { return };
        let Some(name) = timers.ring(letter) else { return };
        let number = timers.number(&name);
        if unless_panicked(self.grain.timer_boxed(&mut self.context, &name)).await.is_err() {
            tracing::error!(grain = %self.context.identity, timer = name, "a grain panicked in a timer");
            return self.restart().await;
        }
        let GrainContext { timers, grains, own, .. } = &mut self.context;
        if let Some(timers) = timers {
            timers.rewind(grains.remote(), own, &name, number);
        }
    }

    /// A grain that panicked is not trusted any more: a fresh one takes its place, unless that happens too often.
    async fn restart(&mut self) {
        let now = Instant::now();
        let Restarts(restarts) = &mut **self.restarts.get_or_insert_default();
        restarts.retain(|at| now.duration_since(*at) <= RESTARTS_PERIOD);
        restarts.push(now);
        let may_restart = restarts.len() <= RESTARTS_MAX;
        self.context.timers = None;
        let fresh = self.context.grains.make(&self.context.identity);
        match fresh {
            Some(grain) if may_restart => {
                self.grain = grain;
                let activated = unless_panicked(self.grain.activate_boxed(&mut self.context, None)).await;
                if !matches!(activated, Ok(Ok(()))) {
                    self.context.stopping = true;
                }
            }
            _ => self.context.stopping = true,
        }
    }

    /// Takes over who asks and what travels beside the message. Returns whether its time is over.
    fn read_headers(&mut self, sender: Option<Pid>, headers: Option<Headers>) -> bool {
        let context = &mut self.context;
        context.sender = sender;
        context.headers = headers;
        let millis: Option<u64> = context.header(HEADER_DEADLINE).and_then(|millis| millis.parse().ok());
        context.deadline = millis.map(|millis| Instant::now() + Duration::from_millis(millis));
        millis == Some(0)
    }

    async fn take(&mut self, actor: &ActorContext, mut message: Message) {
        if message.type_name.as_str() == names::GRAIN_REQUEST {
            let is_late = self.read_headers(message.sender.take(), message.headers.take());
            let answer = if is_late {
                // Whoever has stopped waiting is not worked for.
                Err(GrainError::new(
                    "DEADLINE_EXCEEDED",
                    "the caller's time was over before the grain's turn",
                ))
            } else {
                self.turn(message.payload).await
            };
            let answer = answer.unwrap_or_else(|error| Message::new(&GrainErrorResponse::from(error)));
            // Whoever asked may be gone; that has become a dead letter then.
            drop(actor.respond(answer));
        } else {
            // Boxed, since calls are what a task has to have room for.
            Box::pin(self.take_other(message)).await;
        }
    }

    async fn take_other(&mut self, message: Message) {
        self.read_headers(message.sender.clone(), message.headers.clone());
        if message.is::<Rang>() {
            self.ring(&message).await;
        } else {
            let received = unless_panicked(self.grain.receive_boxed(&mut self.context, message)).await;
            if received.is_err() {
                self.restart().await;
            }
        }
    }

    /// Tells the registry of a turn, if it has to know. It did hear of one that had to wait for something.
    fn tell_use(&mut self, is_begun: bool) {
        let GrainContext { grains, identity, .. } = &self.context;
        let now = grains.now();
        if !self.is_running || !is_begun && now < self.told_until {
            return;
        }
        if !is_begun {
            grains.turn_begins(identity);
        }
        if let Ok(pid) = self.pid() {
            grains.turn_ends(identity, &pid);
        }
        self.told_until = now + grains.use_precision(identity);
    }
}

impl Actor for GrainActor {
    async fn started(&mut self, actor: &mut ActorContext) {
        if !self.begin().await {
            actor.stop();
        }
    }

    async fn receive(&mut self, actor: &mut ActorContext, message: Message) {
        let (grains, identity) = (self.context.grains.clone(), self.context.identity.clone());
        let mut is_begun = false;
        {
            let mut turn = pin!(self.take(actor, message));
            std::future::poll_fn(|context| {
                let polled = turn.as_mut().poll(context);
                // A turn that waits is not idle, however long it takes. Most are over before anybody could ask.
                if polled.is_pending() && !is_begun {
                    is_begun = true;
                    grains.turn_begins(&identity);
                }
                polled
            })
            .await;
        }
        self.context.sender = None;
        self.context.headers = None;
        self.tell_use(is_begun);
        if self.context.stopping {
            actor.stop();
        }
    }

    async fn stopped(&mut self, _: &mut ActorContext) {
        let Ok(pid) = self.pid() else { return };
        if !std::mem::take(&mut self.is_running) {
            return;
        }
        let snapshot = unless_panicked(self.grain.deactivate_boxed(&mut self.context)).await.unwrap_or(None);
        self.context.grains.terminated(&self.context.identity, &pid, snapshot);
    }
}

/// What grains tell the registry while they run.
impl Grains {
    fn turn_begins(&self, grain: &ClusterIdentity) {
        lock(&self.inner.registry).handle_message(grain, self.inner.clock.now());
    }

    fn turn_ends(&self, grain: &ClusterIdentity, pid: &ActorPid) {
        let outcome = lock(&self.inner.registry).handle_turn_done(grain, pid, self.inner.clock.now());
        self.wake(outcome.wake_at);
    }

    fn now(&self) -> TimerInstant {
        self.inner.clock.now()
    }

    /// How long after a use of a grain another one makes no difference to whether it is idle.
    fn use_precision(&self, grain: &ClusterIdentity) -> Duration {
        let limit = self.inner.kinds.get(grain.kind()).and_then(|kind| kind.config.idle_limit);
        limit.map_or(Duration::MAX, |limit| limit / IDLE_PARTS)
    }
}

/// The PID as machines have it.
pub(crate) fn actor_pid(pid: &Pid) -> Option<ActorPid> {
    ActorPid::shared(pid.address().parse().ok()?, &pid.shared_id()).ok()
}

/// The PID as messages have it.
pub(crate) fn remote_pid(pid: &ActorPid) -> Pid {
    Pid::new(pid.authority().shared(), pid.shared_id())
}

/// So often a grain is started anew after a panic …
const RESTARTS_MAX: usize = 10;
/// … in such a time, as in Go.
const RESTARTS_PERIOD: Duration = Duration::from_secs(10);
/// Idle limits are kept to one of so many parts.
const IDLE_PARTS: u32 = 1000;
