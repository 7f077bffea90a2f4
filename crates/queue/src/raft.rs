//! Raft groups.
mod log_store;
mod machine;
mod snapshot;
mod types;
#[cfg(test)]
mod tests;

pub use machine::Machine;
