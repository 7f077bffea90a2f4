//! Objects as applications and operators meet them: three real processes of the `synod` binary, spoken to by S3 and the
//! command line, killed, frozen, cut off, told to leave, robbed of their disks, and given bytes that rot.
//!
//! Each test has a cluster of its own, in a directory and on ports of its own, that ends with it; when it fails, it prints
//! what the nodes logged. With `SYNOD_LONG_TESTS` they go on for minutes, and store gigabytes.

#![allow(clippy::print_stderr, reason = "what was measured, skipped or logged is shown with the test")]

#[path = "../harness/cluster.rs"]
#[allow(dead_code, reason = "another test uses the rest")]
mod cluster;
#[path = "../harness/http.rs"]
#[allow(dead_code, reason = "another test uses the rest")]
mod http;
#[path = "../harness/network.rs"]
#[allow(dead_code, reason = "another test uses the rest")]
mod network;

mod alone;
mod archive;
mod clients;
mod conditional;
mod faults;
mod healing;
mod keys;
mod large;
mod leaving;
mod listing;
mod refused;
mod register;
mod store;
