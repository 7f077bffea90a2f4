//! A connection that counts its bytes and does not wait forever for a peer that says nothing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;

use super::counters::{RemoteCounters, add};
use super::network::ByteStream;

/// Whether the peer of a connection has said who it is, or has failed to in time.
#[derive(Clone, Debug, Default)]
pub(super) struct Established(Arc<AtomicU8>);

impl Established {
    pub(super) fn set(&self) {
        self.0.store(ESTABLISHED, Ordering::Release);
    }

    pub(super) fn is_expired(&self) -> bool {
        self.0.load(Ordering::Acquire) == EXPIRED
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Acquire) == ESTABLISHED
    }

    fn expire(&self) {
        self.0.store(EXPIRED, Ordering::Release);
    }
}

/// A counted connection.
pub(super) struct Socket {
    stream: ByteStream,
    counters: Arc<RemoteCounters>,
    established: Established,
    patience: Option<Pin<Box<Sleep>>>,
    /// Gives the place among the connections back when the stream is dropped.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Socket {
    /// A connection to a peer.
    pub(super) fn outbound(stream: ByteStream, counters: Arc<RemoteCounters>) -> io::Result<Self> {
        configure(&stream)?;
        Ok(Self { stream, counters, established: Established::default(), patience: None, _permit: None })
    }

    /// A connection from a peer, which has `patience` to say who it is.
    pub(super) fn inbound(
        stream: ByteStream,
        counters: Arc<RemoteCounters>,
        patience: Duration,
        permit: OwnedSemaphorePermit,
    ) -> io::Result<Self> {
        configure(&stream)?;
        let patience = Some(Box::pin(tokio::time::sleep(patience)));
        Ok(Self { stream, counters, established: Established::default(), patience, _permit: Some(permit) })
    }

    /// What tells this connection that its peer has said who it is.
    pub(super) fn established(&self) -> Established {
        self.established.clone()
    }
}

/// Small frames go out at once; a peer whose machine is gone is noticed without gRPC's pings, which Go takes for abuse.
fn configure(stream: &ByteStream) -> io::Result<()> {
    let ByteStream::Tcp(stream) = stream else { return Ok(()) };
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(patience) = &mut this.patience {
            if this.established.get() {
                this.patience = None;
            } else if patience.as_mut().poll(context).is_ready() {
                add(&this.counters.connections_expired, 1);
                this.established.expire();
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the peer did not say who it is in time",
                )));
            }
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        add(&this.counters.bytes_received, buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write(context, buffer))?;
        add(&this.counters.bytes_sent, written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(context, buffers))?;
        add(&this.counters.bytes_sent, written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

const ESTABLISHED: u8 = 1;
const EXPIRED: u8 = 2;
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
