//! Digests for the client of the tests.

use s3s::crypto::{Checksum as _, Md5, Sha256};

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update(bytes);
    hasher.finalize()
}

pub fn md5(bytes: &[u8]) -> [u8; 16] {
    let mut hasher = Md5::new();
    hasher.update(bytes);
    hasher.finalize()
}

pub fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut block = [0; 64];
    match key.len() {
        0..=64 => block[..key.len()].copy_from_slice(key),
        _ => block[..32].copy_from_slice(&sha256(key)),
    }
    let inner = [&block.map(|byte| byte ^ 0x36)[..], message].concat();
    sha256(&[&block.map(|byte| byte ^ 0x5c)[..], &sha256(&inner)].concat())
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn base64(bytes: &[u8]) -> String {
    base64_simd::STANDARD.encode_to_string(bytes)
}
