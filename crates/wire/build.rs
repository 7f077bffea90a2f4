//! Turns `proto/*.proto` into Rust. The compiler is protox, written in Rust, so that building needs no `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = [
        "actor.proto",
        "remote.proto",
        "cluster.proto",
        "gossip.proto",
        "grain.proto",
        "pubsub.proto",
        "membership.proto",
        "slots.proto",
        "objects.proto",
        "raft.proto",
        "queue.proto",
    ];
    let descriptors = protox::compile(files, ["proto"])?;
    prost_build::Config::new()
        // Payloads stay slices of the frame in which they arrived instead of being copied out of it.
        .bytes(["."])
        // Equal messages have equal bytes only if their maps are written in one order.
        .btree_map(["."])
        // The full name is what travels as an envelope's type name, and in the type URL of an `Any`.
        .enable_type_names()
        .type_name_domain(["."], "type.googleapis.com")
        .compile_fds(descriptors)?;
    Ok(())
}
