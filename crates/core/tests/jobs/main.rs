//! The laws of the job queue: that it does what a far simpler queue does, that its bytes are its state, that its checker
//! finds what is wrong, and that no order of events breaks a promise.

mod bytes;
mod checking;
mod interleavings;
mod model;
mod obedience;
mod script;
