//! Remoting against peers that are broken, hostile or merely old.
//!
//! The peers of these tests are written on bare HTTP/2 (`raw_client`, `raw_server`), so they can do what no gRPC library
//! would: send any bytes as a frame, claim lengths they do not send, never read, fall silent in the middle of a word,
//! hang up with any status. Every test ends with the same question: does the node still serve an honest peer?

mod dialects;
mod floods;
mod frames;
mod go_peers;
mod handshakes;
mod letters;
mod node;
mod raw_client;
mod raw_server;
mod reconnects;
mod slow_peers;
mod way_back;
