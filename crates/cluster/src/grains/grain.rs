//! What a grain is made of.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin as StdPin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use synod_core::grains::{ClusterIdentity, GrainKindConfig, GrainSnapshot, IdentityError};
use tokio::time::Instant;

use super::error::GrainError;
use super::timers::{TimerError, Timers};
use super::{GrainRef, GrainService, Grains, HEADER_CHAIN};
use crate::remote::{Message, Pid, SendError};

/// The behaviour of one kind of grains. One call at a time; state needs no lock.
pub trait Grain: Send + 'static {
    /// Takes one call: the method by its position in the service, its argument encoded.
    fn call(
        &mut self,
        context: &mut GrainContext,
        method: i32,
        argument: Bytes,
    ) -> impl Future<Output = Result<Message, GrainError>> + Send;

    /// The grain begins to run, from `snapshot` if there is one.
    ///
    /// An error refuses the activation; the callers that wait for it are told.
    fn activate(
        &mut self,
        _context: &mut GrainContext,
        _snapshot: Option<GrainSnapshot>,
    ) -> impl Future<Output = Result<(), GrainError>> + Send {
        std::future::ready(Ok(()))
    }

    /// The grain stops. What it returns is given to its next activation, here or elsewhere.
    fn deactivate(
        &mut self,
        _context: &mut GrainContext,
    ) -> impl Future<Output = Option<GrainSnapshot>> + Send {
        std::future::ready(None)
    }

    /// The timer `name`, which [`GrainContext::set_timer`] or [`GrainContext::set_interval`] set, is due. It has a turn of
    /// its own, between calls.
    fn timer(&mut self, _context: &mut GrainContext, _name: &str) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// A message that is no call, such as one that was published to a topic. Whoever waits for an answer gets it through
    /// [`GrainContext::respond`].
    fn receive(&mut self, _context: &mut GrainContext, _message: Message) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// What a grain knows about itself and the call at hand, and how it calls others.
pub struct GrainContext {
    pub(super) grains: Grains,
    pub(super) identity: ClusterIdentity,
    pub(super) own: Pid,
    pub(super) sender: Option<Pid>,
    pub(super) deadline: Option<Instant>,
    pub(super) headers: Option<Arc<BTreeMap<String, String>>>,
    pub(super) stopping: bool,
    /// Most grains have none.
    pub(super) timers: Option<Box<Timers>>,
}

impl GrainContext {
    /// Kind and identity of this grain.
    #[must_use]
    pub const fn identity(&self) -> &ClusterIdentity {
        &self.identity
    }

    /// The name of this activation.
    #[must_use]
    pub const fn own(&self) -> &Pid {
        &self.own
    }

    /// The grains of the cluster. Calls that belong to the call at hand are better made through
    /// [`grain`](Self::grain): they end in time and cannot wait for themselves.
    #[must_use]
    pub const fn grains(&self) -> &Grains {
        &self.grains
    }

    /// Another grain, called on behalf of the call at hand: within its time, and not by way of this grain again.
    ///
    /// # Errors
    /// The identity does not name a grain.
    pub fn grain<S: GrainService>(&self, identity: &str) -> Result<S::Client, IdentityError> {
        Ok(S::client(self.grain_ref(S::KIND, identity)?))
    }

    /// As [`grain`](Self::grain), for calls without types.
    ///
    /// # Errors
    /// Kind and identity do not name a grain.
    pub fn grain_ref(&self, kind: &str, identity: &str) -> Result<GrainRef, IdentityError> {
        let chain = self.header(HEADER_CHAIN).map(|chain| chain.split('\n').map(str::to_owned));
        let mut chain: Vec<_> = chain.into_iter().flatten().collect();
        chain.push(self.identity.to_string());
        Ok(self.grains.grain_ref(kind, identity)?.on_behalf(chain, self.deadline))
    }

    /// How long the caller still waits; `None` when it did not say.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Who wants the answer.
    #[must_use]
    pub const fn sender(&self) -> Option<&Pid> {
        self.sender.as_ref()
    }

    /// Answers the message at hand, if it is no call: those are answered with what [`Grain::call`] returns. Nothing
    /// happens when nobody wants an answer.
    ///
    /// # Errors
    /// The answer was not taken for delivery.
    pub fn respond(&self, answer: Message) -> Result<(), SendError> {
        match &self.sender {
            Some(sender) => self.grains.remote().send(sender, answer),
            None => Ok(()),
        }
    }

    /// What travels beside the call.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.as_ref()?.get(name).map(String::as_str)
    }

    /// Calls [`Grain::timer`] with `name` once, after `wait` (1 ms to a year). A timer of that name is replaced. Timers end
    /// with the activation: one that waits longer than the idle limit of its kind is never heard of.
    ///
    /// # Errors
    /// The name or the time is out of range, or the grain has too many timers.
    pub fn set_timer(&mut self, name: &str, wait: Duration) -> Result<(), TimerError> {
        self.timers.get_or_insert_default().set(self.grains.remote(), &self.own, name, wait, false)
    }

    /// Calls [`Grain::timer`] with `name` again and again, every `period`, beginning after the first one. Each time is a
    /// use of the grain, so it is not unloaded as long as the period is shorter than the idle limit. Times that pass while
    /// the grain is busy are skipped.
    ///
    /// # Errors
    /// As [`set_timer`](Self::set_timer).
    pub fn set_interval(&mut self, name: &str, period: Duration) -> Result<(), TimerError> {
        self.timers.get_or_insert_default().set(self.grains.remote(), &self.own, name, period, true)
    }

    /// Ends a timer. Returns whether there was one.
    pub fn cancel_timer(&mut self, name: &str) -> bool {
        self.timers.as_mut().is_some_and(|timers| timers.cancel(name))
    }

    /// Unloads this grain after the call at hand. The next call starts it again.
    pub const fn deactivate(&mut self) {
        self.stopping = true;
    }
}

impl fmt::Debug for GrainContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrainContext").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// One kind of grains that a node hosts.
#[derive(Clone)]
pub struct GrainKind {
    pub(super) config: GrainKindConfig,
    pub(super) factory: Arc<Factory>,
    /// Whether a grain is started as soon as its state is here, without a call.
    pub(super) starts_with_state: bool,
}

impl GrainKind {
    /// The kind `name`, whose grains `factory` makes. They are unloaded after an hour without a call.
    pub fn new<G: Grain>(
        name: &str,
        factory: impl Fn(&ClusterIdentity) -> G + Send + Sync + 'static,
    ) -> Self {
        let factory =
            Arc::new(move |identity: &ClusterIdentity| Box::new(factory(identity)) as Box<dyn AnyGrain>);
        Self { config: GrainKindConfig::new(name), factory, starts_with_state: false }
    }

    /// Unloads grains after so long without a call, give or take a thousandth; `None` never.
    #[must_use]
    pub const fn idle_after(mut self, limit: Option<Duration>) -> Self {
        self.config.idle_limit = limit;
        self
    }

    /// Starts a grain as soon as its state was handed over: it has work to do that nobody will call it for.
    #[must_use]
    pub(crate) const fn starting_with_state(mut self) -> Self {
        self.starts_with_state = true;
        self
    }

    /// Starts grains only from a state that they left behind.
    #[must_use]
    pub const fn requires_snapshot(mut self) -> Self {
        self.config.snapshot_required = true;
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.kind
    }
}

impl fmt::Debug for GrainKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrainKind").field("config", &self.config).finish_non_exhaustive()
    }
}

type Factory = dyn Fn(&ClusterIdentity) -> Box<dyn AnyGrain> + Send + Sync;

pub(super) type Turn<'a, T> = StdPin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A grain whose type nobody needs to know.
pub(super) trait AnyGrain: Send {
    fn call_boxed<'a>(
        &'a mut self,
        context: &'a mut GrainContext,
        method: i32,
        argument: Bytes,
    ) -> Turn<'a, Result<Message, GrainError>>;

    fn activate_boxed<'a>(
        &'a mut self,
        context: &'a mut GrainContext,
        snapshot: Option<GrainSnapshot>,
    ) -> Turn<'a, Result<(), GrainError>>;

    fn deactivate_boxed<'a>(&'a mut self, context: &'a mut GrainContext) -> Turn<'a, Option<GrainSnapshot>>;

    fn receive_boxed<'a>(&'a mut self, context: &'a mut GrainContext, message: Message) -> Turn<'a, ()>;

    fn timer_boxed<'a>(&'a mut self, context: &'a mut GrainContext, name: &'a str) -> Turn<'a, ()>;
}

impl<G: Grain> AnyGrain for G {
    fn call_boxed<'a>(
        &'a mut self,
        context: &'a mut GrainContext,
        method: i32,
        argument: Bytes,
    ) -> Turn<'a, Result<Message, GrainError>> {
        Box::pin(self.call(context, method, argument))
    }

    fn activate_boxed<'a>(
        &'a mut self,
        context: &'a mut GrainContext,
        snapshot: Option<GrainSnapshot>,
    ) -> Turn<'a, Result<(), GrainError>> {
        Box::pin(self.activate(context, snapshot))
    }

    fn deactivate_boxed<'a>(&'a mut self, context: &'a mut GrainContext) -> Turn<'a, Option<GrainSnapshot>> {
        Box::pin(self.deactivate(context))
    }

    fn receive_boxed<'a>(&'a mut self, context: &'a mut GrainContext, message: Message) -> Turn<'a, ()> {
        Box::pin(self.receive(context, message))
    }

    fn timer_boxed<'a>(&'a mut self, context: &'a mut GrainContext, name: &'a str) -> Turn<'a, ()> {
        Box::pin(self.timer(context, name))
    }
}
