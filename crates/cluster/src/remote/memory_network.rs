//! A network inside one process, which breaks when it is told to.
//!
//! It carries bytes between invented authorities, so the whole of remoting runs on it without a socket, and in virtual
//! time. It fails in the ways in which networks fail, and no gentler: a cut is silence, not an error. What was sent stalls
//! and arrives when the cut is healed, what a crash closes is heard of only where the news can get through.
//!
//! ```text
//!   cut      bytes stall in both directions or in one, new connections hang
//!   heal     what stalled flows on
//!   reset    connections between two addresses break, as when a router forgets them
//!   refuse   nobody listens: new connections fail at once
//!   kill     everything at an address breaks, as when its process dies
//! ```

mod pipe;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use synod_core::Authority;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, mpsc};
use tokio::time::Sleep;

use crate::lock;
use pipe::{End, Received, Wire};

/// A network inside this process. Clones are the same network. All its delays are in tokio's time.
#[derive(Clone)]
pub struct MemoryNetwork {
    shared: Arc<Shared>,
}

impl MemoryNetwork {
    /// A network on which everything works and nothing takes time. `seed` feeds the latencies that vary.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = Mutex::new(State { seed, ..State::default() });
        Self { shared: Arc::new(Shared { state, changed: Notify::new() }) }
    }

    /// Cuts the way from `from` to `to`, and that alone. Bytes that were not read yet stall, silently; connections in
    /// either direction cannot be opened, since each needs an answer.
    pub fn cut_one_way(&self, from: &Authority, to: &Authority) {
        self.change(|state| {
            state.cuts.insert((from.clone(), to.clone()));
        });
    }

    /// Cuts the way between two addresses, in both directions.
    pub fn cut(&self, a: &Authority, b: &Authority) {
        self.change(|state| {
            state.cuts.insert((a.clone(), b.clone()));
            state.cuts.insert((b.clone(), a.clone()));
        });
    }

    /// Mends the way between two addresses, in both directions. What had stalled flows on.
    pub fn heal(&self, a: &Authority, b: &Authority) {
        self.change(|state| {
            state.cuts.remove(&(a.clone(), b.clone()));
            state.cuts.remove(&(b.clone(), a.clone()));
        });
    }

    /// Mends every cut at once.
    pub fn heal_all(&self) {
        self.change(|state| state.cuts.clear());
    }

    /// Breaks every connection between two addresses. While the way is cut its ends hear nothing of it.
    pub fn reset(&self, a: &Authority, b: &Authority) {
        for wire in self.wires(|wire| wire.connects(a, b)) {
            wire.reset();
        }
    }

    /// Whether new connections to `authority` are refused, as if nobody listened there. What stands is left alone.
    pub fn refuse(&self, authority: &Authority, refused: bool) {
        self.change(|state| {
            if refused {
                state.refusing.insert(authority.clone());
            } else {
                state.refusing.remove(authority);
            }
        });
    }

    /// The process at `authority` dies: its connections break and nobody listens there, until somebody does again. Peers
    /// behind a cut hear of it when that is healed.
    pub fn kill(&self, authority: &Authority) {
        lock(&self.shared.state).listeners.remove(authority);
        for wire in self.wires(|wire| wire.has_end_at(authority)) {
            wire.kill(authority);
        }
    }

    /// How long bytes take from `from` to `to` from now on: a fixed time (`x..=x`), or one drawn anew for every write.
    /// Order is kept. tokio's timers count milliseconds.
    pub fn set_latency(&self, from: &Authority, to: &Authority, latency: RangeInclusive<Duration>) {
        self.change(|state| {
            state.latencies.insert((from.clone(), to.clone()), latency);
        });
    }

    /// How long bytes take where no latency of its own is set. At first they take no time.
    pub fn set_default_latency(&self, latency: RangeInclusive<Duration>) {
        self.change(|state| state.latency = Some(latency));
    }

    /// Whether somebody listens at `authority`.
    #[must_use]
    pub fn is_listening(&self, authority: &Authority) -> bool {
        lock(&self.shared.state).listeners.contains_key(authority)
    }

    /// How many connections stand.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.wires(Wire::is_open).len()
    }

    pub(super) fn listen(&self, authority: &Authority) -> io::Result<MemoryListener> {
        let mut state = lock(&self.shared.state);
        if state.listeners.contains_key(authority) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "somebody listens there already"));
        }
        let (sender, incoming) = mpsc::channel(BACKLOG_MAX);
        state.listeners.insert(authority.clone(), sender.clone());
        Ok(MemoryListener { network: self.clone(), authority: authority.clone(), sender, incoming })
    }

    pub(super) async fn connect(&self, from: &Authority, to: &Authority) -> io::Result<MemoryStream> {
        let there_and_back = {
            let mut state = lock(&self.shared.state);
            let number = state.next_connection();
            let mut rng = fastrand::Rng::with_seed(state.seed ^ number);
            pipe::draw(&state.latency(from, to), &mut rng) + pipe::draw(&state.latency(to, from), &mut rng)
        };
        if !there_and_back.is_zero() {
            tokio::time::sleep(there_and_back).await;
        }
        loop {
            let changed = self.shared.changed.notified();
            // Before the look, so that no change between the two is missed.
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if let Some(stream) = self.try_connect(from, to)? {
                return Ok(stream);
            }
            changed.await;
        }
    }

    /// A connection; `None` while nothing gets through.
    fn try_connect(&self, from: &Authority, to: &Authority) -> io::Result<Option<MemoryStream>> {
        let mut state = lock(&self.shared.state);
        if !state.listeners.contains_key(from) {
            return Err(io::Error::new(
                io::ErrorKind::AddrNotAvailable,
                "whoever dials is not there any more",
            ));
        }
        if state.is_cut(from, to) || state.is_cut(to, from) {
            return Ok(None);
        }
        let refused = io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens there");
        let Some(listener) = state.listeners.get(to).filter(|_| !state.refusing.contains(to)).cloned() else {
            return Err(refused);
        };
        let number = state.next_connection();
        let wire = Arc::new(Wire::new([from.clone(), to.clone()], state.seed ^ number));
        wire.update(&state);
        state.wires.retain(|_, wire| wire.strong_count() > 0);
        state.wires.insert(number, Arc::downgrade(&wire));
        drop(state);
        let accepted = MemoryStream::new(Arc::clone(&wire), End::Listener);
        // A backlog that is full refuses, as a listener of the system does.
        listener.try_send(accepted).map_err(|_| refused)?;
        Ok(Some(MemoryStream::new(wire, End::Dialer)))
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        {
            let mut state = lock(&self.shared.state);
            change(&mut state);
            for wire in state.wires.values().filter_map(Weak::upgrade) {
                wire.update(&state);
            }
        }
        self.shared.changed.notify_waiters();
    }

    fn wires(&self, chosen: impl Fn(&Wire) -> bool) -> Vec<Arc<Wire>> {
        let state = lock(&self.shared.state);
        state.wires.values().filter_map(Weak::upgrade).filter(|wire| chosen(wire)).collect()
    }
}

impl fmt::Debug for MemoryNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.shared.state);
        f.debug_struct("MemoryNetwork")
            .field("listeners", &state.listeners.keys())
            .field("cuts", &state.cuts)
            .finish_non_exhaustive()
    }
}

struct Shared {
    /// Taken before the lock of a wire, never after.
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    seed: u64,
    listeners: BTreeMap<Authority, mpsc::Sender<MemoryStream>>,
    /// From where to where nothing gets through.
    cuts: BTreeSet<(Authority, Authority)>,
    refusing: BTreeSet<Authority>,
    latency: Option<RangeInclusive<Duration>>,
    latencies: BTreeMap<(Authority, Authority), RangeInclusive<Duration>>,
    wires: BTreeMap<u64, Weak<Wire>>,
    last_connection: u64,
}

impl State {
    fn is_cut(&self, from: &Authority, to: &Authority) -> bool {
        !self.cuts.is_empty() && self.cuts.contains(&(from.clone(), to.clone()))
    }

    fn latency(&self, from: &Authority, to: &Authority) -> RangeInclusive<Duration> {
        let own = self.latencies.get(&(from.clone(), to.clone()));
        own.or(self.latency.as_ref()).cloned().unwrap_or(Duration::ZERO..=Duration::ZERO)
    }

    fn next_connection(&mut self) -> u64 {
        self.last_connection += 1;
        self.last_connection
    }
}

/// Takes connections at one authority until it is dropped.
pub(super) struct MemoryListener {
    network: MemoryNetwork,
    authority: Authority,
    sender: mpsc::Sender<MemoryStream>,
    incoming: mpsc::Receiver<MemoryStream>,
}

impl MemoryListener {
    pub(super) async fn accept(&mut self) -> io::Result<MemoryStream> {
        // This listener holds a sender itself, so there is always a next one to wait for.
        self.incoming.recv().await.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))
    }
}

impl Drop for MemoryListener {
    fn drop(&mut self) {
        let mut state = lock(&self.network.shared.state);
        // After a kill somebody else may listen there by now.
        if state.listeners.get(&self.authority).is_some_and(|sender| sender.same_channel(&self.sender)) {
            state.listeners.remove(&self.authority);
        }
    }
}

impl fmt::Debug for MemoryListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryListener").field("authority", &self.authority).finish_non_exhaustive()
    }
}

/// One end of a connection. Dropping it closes the connection.
pub(super) struct MemoryStream {
    wire: Arc<Wire>,
    end: End,
    /// Until the next bytes are there.
    arrival: Option<Pin<Box<Sleep>>>,
}

impl MemoryStream {
    const fn new(wire: Arc<Wire>, end: End) -> Self {
        Self { wire, end, arrival: None }
    }

    /// Who is at the other end.
    pub(super) fn peer(&self) -> &Authority {
        self.wire.authority(self.end.other())
    }
}

impl AsyncRead for MemoryStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            match this.wire.read(this.end, buffer, context)? {
                Received::Some => return Poll::Ready(Ok(())),
                Received::Nothing => return Poll::Pending,
                Received::Later(at) => {
                    let arrival = this.arrival.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
                    if arrival.deadline() != at {
                        arrival.as_mut().reset(at);
                    }
                    ready!(arrival.as_mut().poll(context));
                }
            }
        }
    }
}

impl AsyncWrite for MemoryStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        self.wire.write(self.end, &[io::IoSlice::new(buffer)], context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.wire.write(self.end, buffers, context)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wire.finish(self.end);
        Poll::Ready(Ok(()))
    }
}

impl Drop for MemoryStream {
    fn drop(&mut self) {
        self.wire.close(self.end);
    }
}

impl fmt::Debug for MemoryStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStream").field("peer", self.peer()).finish_non_exhaustive()
    }
}

/// Most connections that wait to be accepted.
const BACKLOG_MAX: usize = 256;

#[cfg(test)]
mod tests;
