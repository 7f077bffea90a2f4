//! Makes Rust of the service.

fn main() -> Result<(), synod_build::Error> {
    synod_build::compile(&["proto/counter.proto"], &["proto"])
}
