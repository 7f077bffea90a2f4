//! What the library of the bucket may bring along.

/// Two libraries of cryptography in one process would each have to be chosen, kept up to date and trusted, and the others need
/// compilers of other languages.
#[test]
fn ring_is_the_only_library_of_cryptography() {
    let lock = include_str!("../../../Cargo.lock");
    let has = |name: &str| lock.lines().any(|line| line == format!("name = \"{name}\""));
    assert!(has("ring") && has("rustls"));
    for name in ["aws-lc-rs", "aws-lc-sys", "openssl", "openssl-sys", "native-tls"] {
        assert!(!has(name), "{name}");
    }
}
