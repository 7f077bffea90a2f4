//! The gateway over real connections: every topic of S3 that it serves, and what it refuses.

// Helpers are there for all topics, and each uses its own part of them.
#[allow(dead_code, unreachable_pub)]
mod support {
    pub mod client;
    pub mod digest;
    pub mod memory;
    pub mod world;
}

mod topics {
    mod access;
    mod buckets;
    mod checksums;
    mod conditions;
    mod configuration;
    mod copies;
    mod gateway;
    mod listing;
    mod objects;
    mod uploads;
}
