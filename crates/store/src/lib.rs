//! What a node is told, and what it keeps: the configuration of its cluster, the address of one, and the registry on its
//! disk.
//!
//! [`config`] reads the file that a cluster begins with, [`cluster_url`] the address by which a node joins one that exists.
//! [`files`] is the memory of a node: what it has promised, stored and learned, so that a restart forgets nothing that
//! anybody was told.

#![forbid(unsafe_code)]

pub mod cluster_url;
pub mod config;

