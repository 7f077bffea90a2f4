//! MurmurHash3 (x64, 128 bits, seed 0), of which the first 64 bits are protoactor-go's topology hash.
//!
//! Written here because it must be exactly what Go peers compute, and must do without std.

/// The first 64 bits of the hash of `bytes`.
pub(crate) fn murmur3_64(bytes: &[u8]) -> u64 {
    let (mut h1, mut h2) = (0_u64, 0_u64);
    let (blocks, tail) = bytes.as_chunks::<BLOCK_BYTES>();
    for block in blocks {
        h1 = (h1 ^ scramble_first(word(&block[..8]))).rotate_left(27).wrapping_add(h2);
        h1 = h1.wrapping_mul(5).wrapping_add(0x52dc_e729);
        h2 = (h2 ^ scramble_second(word(&block[8..]))).rotate_left(31).wrapping_add(h1);
        h2 = h2.wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    let (low, high) = tail.split_at(tail.len().min(8));
    h1 ^= scramble_first(word(low));
    h2 ^= scramble_second(word(high));

    h1 ^= bytes.len() as u64;
    h2 ^= bytes.len() as u64;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    finish(h1).wrapping_add(finish(h2))
}

/// Up to eight bytes as a little-endian number.
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

const fn scramble_first(word: u64) -> u64 {
    word.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2)
}

const fn scramble_second(word: u64) -> u64 {
    word.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1)
}

const fn finish(mut hash: u64) -> u64 {
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

const BLOCK_BYTES: usize = 16;
const C1: u64 = 0x87c3_7b91_1142_53d5;
const C2: u64 = 0x4cf5_ad43_2745_937f;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;

    #[test]
    fn the_hashes_are_those_of_protoactor_go() {
        let ten: String = (0..10).map(|number| format!("memberId-{number}")).collect();
        let cases = [
            ("", 0),
            ("hello", 14_688_674_573_012_802_306),
            ("hello, world", 3_760_413_751_763_713_166),
            ("memberId-0", 13_904_886_588_237_684_160),
            ("memberId-0memberId-1", 13_857_135_146_043_484_892),
            ("abc", 13_012_657_714_217_449_575),
            (ten.as_str(), 14_571_330_695_358_440_529),
        ];
        for (text, hash) in cases {
            assert_eq!(murmur3_64(text.as_bytes()), hash, "{text:?}");
        }
    }
}
