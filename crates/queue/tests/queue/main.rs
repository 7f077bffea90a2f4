//! Queues of three nodes over sockets, used as clients and workers use them.

mod cluster;
mod failover;
mod groups;
mod laggard;
mod protocol;
mod verify;
mod workers;
