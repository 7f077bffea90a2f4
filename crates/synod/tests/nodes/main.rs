//! Nodes as their operators run them: real processes of the `synod` binary on real sockets and disks, killed, frozen, cut
//! off, restarted and lied to.
//!
//! Everything is seen from outside, by the api and the command line. Each test has a cluster of its own, in a directory
//! and on ports of its own, that ends with it; when it fails, it prints what the nodes logged.

#![allow(clippy::print_stderr, reason = "what was measured, skipped or logged is shown with the test")]

#[path = "../harness/cluster.rs"]
mod cluster;
#[path = "../harness/http.rs"]
mod http;
#[allow(dead_code, reason = "another test uses the rest")]
#[path = "../harness/network.rs"]
mod network;

mod history;
mod join;
mod partition;
mod registry;
