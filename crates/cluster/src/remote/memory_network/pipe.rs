//! One connection: two pipes that can be stalled and broken.

use std::collections::VecDeque;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use synod_core::Authority;
use tokio::io::ReadBuf;
use tokio::time::Instant;

use super::State;
use crate::lock;

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Dialer,
    Listener,
}

impl End {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Dialer => Self::Listener,
            Self::Listener => Self::Dialer,
        }
    }
}

/// What a read found.
pub(super) enum Received {
    /// Bytes, or the end of them.
    Some,
    /// Nothing yet; the reader is woken when that changes.
    Nothing,
    /// Bytes that are on their way until then.
    Later(Instant),
}

/// A connection between two authorities.
pub(super) struct Wire {
    /// The dialer's and the listener's.
    authorities: [Authority; 2],
    pipes: Mutex<Pipes>,
}

/// The pipes by the end that reads from them.
struct Pipes([Pipe; 2]);

/// The way to one end.
struct Pipe {
    bytes: BytesMut,
    /// When how many of them arrive, in order.
    arrivals: VecDeque<(Instant, usize)>,
    /// The last arrival so far: nothing overtakes it.
    last: Option<Instant>,
    /// When the reader learns that there is no more.
    finished: Option<Instant>,
    /// Nothing gets through for now.
    cut: bool,
    /// On its way to the reader: the connection is broken.
    broken: bool,
    /// The reader's end was closed.
    is_closed: bool,
    /// The reader's process is dead.
    dead: bool,
    latency: RangeInclusive<Duration>,
    rng: fastrand::Rng,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn new(rng: fastrand::Rng) -> Self {
        Self {
            bytes: BytesMut::new(),
            arrivals: VecDeque::new(),
            last: None,
            finished: None,
            cut: false,
            broken: false,
            is_closed: false,
            dead: false,
            latency: Duration::ZERO..=Duration::ZERO,
            rng,
            reader: None,
            writer: None,
        }
    }

    /// When what is written now arrives.
    fn arrival(&mut self) -> Instant {
        let at = Instant::now() + draw(&self.latency, &mut self.rng);
        let at = self.last.map_or(at, |last| last.max(at));
        self.last = Some(at);
        at
    }
}

impl Pipes {
    fn to(&mut self, end: End) -> &mut Pipe {
        &mut self.0[end as usize]
    }

    /// Whether the news that the connection is broken has reached `end`.
    fn is_broken_at(&mut self, end: End) -> bool {
        let way_back_is_cut = self.to(end.other()).cut;
        let closed_there = self.to(end.other()).is_closed && self.to(end.other()).has_unread();
        let pipe = self.to(end);
        // Whoever gets bytes that nobody will read says so; for that they must get there, and the answer back.
        pipe.dead || !pipe.cut && (pipe.broken || closed_there && !way_back_is_cut)
    }

    fn wake_all(&mut self) -> Vec<Waker> {
        self.0.iter_mut().flat_map(|pipe| [pipe.reader.take(), pipe.writer.take()]).flatten().collect()
    }
}

impl Pipe {
    fn has_unread(&self) -> bool {
        !self.bytes.is_empty()
    }
}

impl Wire {
    pub(super) fn new(authorities: [Authority; 2], seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let pipes = [Pipe::new(rng.fork()), Pipe::new(rng.fork())];
        Self { authorities, pipes: Mutex::new(Pipes(pipes)) }
    }

    pub(super) const fn authority(&self, end: End) -> &Authority {
        &self.authorities[end as usize]
    }

    pub(super) fn connects(&self, a: &Authority, b: &Authority) -> bool {
        let [dialer, listener] = &self.authorities;
        (dialer, listener) == (a, b) || (dialer, listener) == (b, a)
    }

    pub(super) fn has_end_at(&self, authority: &Authority) -> bool {
        self.authorities.contains(authority)
    }

    /// Whether both ends are there.
    pub(super) fn is_open(&self) -> bool {
        lock(&self.pipes).0.iter().all(|pipe| !pipe.is_closed && !pipe.broken && !pipe.dead)
    }

    /// Takes over what the network says about this way.
    pub(super) fn update(&self, state: &State) {
        let mut pipes = lock(&self.pipes);
        for end in [End::Dialer, End::Listener] {
            let (from, to) = (self.authority(end.other()), self.authority(end));
            let pipe = pipes.to(end);
            pipe.cut = state.is_cut(from, to);
            pipe.latency = state.latency(from, to);
        }
        let wakers = pipes.wake_all();
        drop(pipes);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Breaks the connection. Each end hears of it as soon as something gets through to it.
    pub(super) fn reset(&self) {
        self.with_all_woken(|pipes| {
            for pipe in &mut pipes.0 {
                pipe.broken = true;
            }
        });
    }

    /// The process at `authority` is dead: its end is broken at once, the other one when the news gets through.
    pub(super) fn kill(&self, authority: &Authority) {
        self.with_all_woken(|pipes| {
            for end in [End::Dialer, End::Listener] {
                if self.authority(end) == authority {
                    pipes.to(end).dead = true;
                    pipes.to(end.other()).broken = true;
                }
            }
        });
    }

    /// `end` writes no more.
    pub(super) fn finish(&self, end: End) {
        self.with_all_woken(|pipes| {
            let pipe = pipes.to(end.other());
            if pipe.finished.is_none() {
                pipe.finished = Some(pipe.arrival());
            }
        });
    }

    /// `end` neither writes nor reads any more.
    pub(super) fn close(&self, end: End) {
        self.finish(end);
        self.with_all_woken(|pipes| pipes.to(end).is_closed = true);
    }

    pub(super) fn read(
        &self,
        end: End,
        buffer: &mut ReadBuf<'_>,
        context: &Context<'_>,
    ) -> io::Result<Received> {
        let mut pipes = lock(&self.pipes);
        if pipes.is_broken_at(end) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let pipe = pipes.to(end);
        let next = pipe.arrivals.front().map(|(at, _)| *at).or(pipe.finished);
        let now = Instant::now();
        let received = match next {
            Some(_) if pipe.cut => Received::Nothing,
            None => Received::Nothing,
            Some(at) if at > now => Received::Later(at),
            Some(_) => Received::Some,
        };
        if !matches!(received, Received::Some) {
            pipe.reader = Some(context.waker().clone());
            return Ok(received);
        }
        while let Some((at, count)) = pipe.arrivals.front_mut()
            && *at <= now
            && buffer.remaining() > 0
        {
            let taken = (*count).min(buffer.remaining());
            buffer.put_slice(&pipe.bytes[..taken]);
            pipe.bytes.advance(taken);
            *count -= taken;
            if *count == 0 {
                pipe.arrivals.pop_front();
            }
        }
        let writer = pipe.writer.take();
        drop(pipes);
        if let Some(writer) = writer {
            writer.wake();
        }
        Ok(received)
    }

    pub(super) fn write(
        &self,
        end: End,
        buffers: &[io::IoSlice<'_>],
        context: &Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut pipes = lock(&self.pipes);
        if pipes.is_broken_at(end) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let pipe = pipes.to(end.other());
        if pipe.finished.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = PIPE_BYTES_MAX - pipe.bytes.len();
        let offered: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        if room == 0 && offered > 0 {
            pipe.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let written = offered.min(room);
        let mut left = written;
        for buffer in buffers {
            let taken = buffer.len().min(left);
            pipe.bytes.extend_from_slice(&buffer[..taken]);
            left -= taken;
        }
        if written > 0 {
            let at = pipe.arrival();
            match pipe.arrivals.back_mut() {
                Some((last, count)) if *last == at => *count += written,
                _ => pipe.arrivals.push_back((at, written)),
            }
        }
        let reader = pipe.reader.take();
        // Whoever writes to an end that was closed is told so where it reads.
        let told = if pipe.is_closed { pipes.to(end).reader.take() } else { None };
        drop(pipes);
        [reader, told].into_iter().flatten().for_each(Waker::wake);
        Poll::Ready(Ok(written))
    }

    /// Changes the pipes and wakes everybody, outside of the lock.
    fn with_all_woken(&self, change: impl FnOnce(&mut Pipes)) {
        let mut pipes = lock(&self.pipes);
        change(&mut pipes);
        let wakers = pipes.wake_all();
        drop(pipes);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A time of this range.
pub(super) fn draw(range: &RangeInclusive<Duration>, rng: &mut fastrand::Rng) -> Duration {
    let (least, most) = (*range.start(), *range.end());
    if most <= least { least } else { least + (most - least).mul_f64(rng.f64()) }
}

/// Most bytes on their way in one direction. A writer waits when there are as many.
const PIPE_BYTES_MAX: usize = 256 << 10;
