//! What connections are made of: sockets of the system, or byte streams inside the process.
//!
//! Everything above (frames, lanes, handshakes, HTTP/2) is the same on both. The choice is made once per connection, and a
//! byte on a socket costs one predictable branch more than without it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use synod_core::Authority;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use super::config::RemoteConfig;
use super::memory_network::{MemoryListener, MemoryNetwork, MemoryStream};

/// Where a node listens and dials.
#[derive(Clone, Debug, Default)]
pub enum Network {
    /// The sockets of the system.
    #[default]
    Tcp,
    /// A network inside this process. The node listens at its advertised authority, which need not exist anywhere else;
    /// `bind` is not used.
    Memory(MemoryNetwork),
}

impl Network {
    /// Opens the listener of a node, and says where peers reach it.
    pub(super) async fn listen(
        config: &RemoteConfig,
    ) -> Result<(Listener, Authority), super::RemoteStartError> {
        let failed = |address: String, error: &io::Error| super::RemoteStartError::Bind {
            address,
            reason: error.to_string(),
        };
        let bind = || config.bind.to_string();
        match &config.network {
            Self::Tcp => {
                let listener =
                    TcpListener::bind(config.bind).await.map_err(|error| failed(bind(), &error))?;
                let bound = listener.local_addr().map_err(|error| failed(bind(), &error))?;
                Ok((Listener::Tcp(listener), config.advertised_at(bound)?))
            }
            Self::Memory(network) => {
                let authority = config.advertised_at(config.bind)?;
                let listener =
                    network.listen(&authority).map_err(|error| failed(authority.to_string(), &error))?;
                Ok((Listener::Memory(listener), authority))
            }
        }
    }

    /// Opens a connection from the node `own` to `peer`.
    pub(super) async fn connect(&self, own: &Authority, peer: &Authority) -> io::Result<ByteStream> {
        match self {
            Self::Tcp => Ok(ByteStream::Tcp(TcpStream::connect(peer.as_str()).await?)),
            Self::Memory(network) => Ok(ByteStream::Memory(network.connect(own, peer).await?)),
        }
    }
}

/// Takes connections.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Memory(MemoryListener),
}

impl Listener {
    /// The next connection, and where it comes from.
    pub(super) async fn accept(&mut self) -> io::Result<(ByteStream, String)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((ByteStream::Tcp(stream), peer.to_string()))
            }
            Self::Memory(listener) => {
                let stream = listener.accept().await?;
                let peer = stream.peer().to_string();
                Ok((ByteStream::Memory(stream), peer))
            }
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(super) enum ByteStream {
    Tcp(TcpStream),
    Memory(MemoryStream),
}

impl AsyncRead for ByteStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Memory(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ByteStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, buffer),
            Self::Memory(stream) => Pin::new(stream).poll_write(context, buffer),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
            Self::Memory(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Memory(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Memory(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Memory(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
