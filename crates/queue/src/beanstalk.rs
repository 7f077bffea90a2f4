//! The gateway for beanstalkd's clients: its text protocol, in front of any queue.
//!
//! A client speaks to any node, in the words of beanstalkd 1.12, and gets the queue of the whole cluster. What it reserves
//! belongs to its connection: each connection is a session of the queue, opened with its first reserve and closed with the
//! connection, which gives back at once what it held. While the cluster has no leader a client waits for its reply.
//!
//! Differences that a client can see: numbers of jobs do not start with 1; numbers of commands and connections in `stats`
//! are those of the node; `delay` of a job that is not delayed is 0, and jobs are never `urgent`; a line ends with the first
//! CR LF, even after a lone CR; `list-tubes` and `stats-tube` know tubes without jobs only if a connection of the same node
//! has to do with them.

mod command;
mod connection;
mod held;
mod issue;
mod node;
mod parser;
mod reply;
mod stats;
mod tubes;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use synod_core::jobs::{ClientId, NameError, QueueName};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::access::QueueAccess;
use connection::Connection;
use node::Node;

/// How a node serves beanstalkd's clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BeanstalkConfig {
    /// The number of this node, which is in the upper 16 bits of its sessions, so that the history of a job tells nodes
    /// apart. Default 0.
    pub node: u16,
    /// Whose cap the jobs count against that clients of this listener put. Default: nobody's.
    pub client: ClientId,
    /// Most connections at a time. One more is told `OUT_OF_MEMORY` and closed. 1 to 1 000 000. Default 4 096.
    pub connections_max: usize,
    /// How many commands of one connection are under way at once, if it sends so many ahead. More makes such a client faster
    /// and lets it take more of what the queue can do from others. 1 to 65 536. Default 256.
    pub commands_under_way_max: usize,
    /// From so many bytes of replies on that a client has not read, none of its further commands is begun. A reply is
    /// written whole, so a body may come on top. 1 KiB to 1 GiB. Default 256 KiB.
    pub output_bytes_max: usize,
    /// For how long a command waits that the queue cannot take now, because its client has too many jobs unfinished or too
    /// much is under way, before it is answered with `OUT_OF_MEMORY`. At most 1 h. Default 3 s.
    pub over_cap_wait: Duration,
}

impl Default for BeanstalkConfig {
    fn default() -> Self {
        Self {
            node: 0,
            client: ClientId::default(),
            connections_max: 4_096,
            commands_under_way_max: 256,
            output_bytes_max: 256 << 10,
            over_cap_wait: Duration::from_secs(3),
        }
    }
}

impl BeanstalkConfig {
    fn validate(&self) -> Result<(), BeanstalkError> {
        let wait_s = usize::try_from(self.over_cap_wait.as_secs()).unwrap_or(usize::MAX);
        let fields = [
            ("connections_max", self.connections_max, 1, 1_000_000),
            ("commands_under_way_max", self.commands_under_way_max, 1, 65_536),
            ("output_bytes_max", self.output_bytes_max, 1 << 10, 1 << 30),
            ("over_cap_wait", wait_s, 0, 3_600),
        ];
        match fields.into_iter().find(|(_, value, min, max)| !(min..=max).contains(&value)) {
            Some((field, value, ..)) => Err(BeanstalkError::Config { field, value }),
            None => Ok(()),
        }
    }
}

/// The gateway could not be started. Nothing listens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BeanstalkError {
    /// A setting is out of its range.
    #[error("{field} is {value}, out of its range")]
    Config {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: usize,
    },
    /// The address cannot be listened at.
    #[error("cannot listen at {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The tube that is always there has no name that a queue can have.
    #[error(transparent)]
    Name(#[from] NameError),
}

/// A listener for beanstalkd's clients. Dropping it ends it, without waiting for anything.
#[derive(Debug)]
pub struct BeanstalkServer {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl BeanstalkServer {
    /// Listens at an address, and serves whoever connects.
    ///
    /// # Errors
    /// A setting is out of its range, or the address cannot be listened at.
    pub async fn bind<Q: QueueAccess>(
        address: SocketAddr,
        config: BeanstalkConfig,
        access: Q,
    ) -> Result<Self, BeanstalkError> {
        config.validate()?;
        let node = Arc::new(Node::new(config, QueueName::new(DEFAULT_TUBE)?));
        let failed = |source| BeanstalkError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (stop, stopped) = watch::channel(false);
        let accepting = tokio::spawn(accept(listener, node, access, stopped));
        Ok(Self { address, stop, accepting })
    }

    /// Where it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, closes those that there are and gives back what they hold.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        if let Err(error) = self.accepting.await {
            tracing::error!(%error, "the gateway for beanstalkd's clients broke");
        }
    }
}

async fn accept<Q: QueueAccess>(
    listener: TcpListener,
    node: Arc<Node>,
    access: Q,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            // Its sender is gone, or says so: both end it.
            _ = stopped.wait_for(|is_stopped| *is_stopped) => break,
            Some(ended) = connections.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a connection broke");
                }
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) if connections.len() >= node.config.connections_max => refuse(&stream),
            Ok((stream, _)) => {
                // Only a delay is lost without it.
                drop(stream.set_nodelay(true));
                let connection = Connection::new(access.clone(), node.clone(), stream);
                let mut stopped = stopped.clone();
                connections.spawn(connection.serve(async move {
                    drop(stopped.wait_for(|is_stopped| *is_stopped).await);
                }));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// There are as many connections as there may be.
fn refuse(stream: &TcpStream) {
    tracing::warn!("a connection was refused: there are as many as there may be");
    // A new connection has room for so few bytes; if not, it is closed without a word.
    drop(stream.try_write(b"OUT_OF_MEMORY\r\n"));
}

/// The tube that every connection begins with.
const DEFAULT_TUBE: &str = "default";
/// How long the listener waits when it cannot take a connection, so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
