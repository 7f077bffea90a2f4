//! The many ways to spoil an input.
//!
//! Each change is small and blind; what makes them find anything is that the engine keeps those that reached something
//! new and changes them again.

use fastrand::Rng;

use crate::coverage;
use crate::fields::{self, push_varint, varint};

/// What changes are made of, besides chance.
pub(crate) struct Mutator<'a> {
    /// Words that mean something to the target.
    pub(crate) tokens: &'a [Vec<u8>],
    /// Longest input, in bytes.
    pub(crate) bytes_max: usize,
    /// Whether the integers that the target compared may be used.
    pub(crate) uses_comparisons: bool,
}

impl Mutator<'_> {
    /// Changes `input` once or a few times. `other` is an input to take parts from.
    pub(crate) fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Rng) {
        for _ in 0..1 << random.u32(..4) {
            // A target may read some bytes before its message begins.
            let prefix = random.usize(..=2).min(input.len());
            let edited = (random.u8(..3) == 0).then(|| {
                fields::edit(&input[prefix..], random, &mut |content, random| {
                    self.change(content, other, random);
                })
            });
            match edited.flatten() {
                Some(edited) => drop(input.splice(prefix.., edited)),
                None => self.change(input, other, random),
            }
            input.truncate(self.bytes_max);
        }
    }

    fn change(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Rng) {
        if input.is_empty() {
            return self.insert(input, other, random);
        }
        let at = random.usize(..input.len());
        match random.u8(..16) {
            0 => input[at] ^= 1 << random.u32(..8),
            1 => input[at] = random.u8(..),
            2 => input[at] = input[at].wrapping_add(random.u8(1..=16)).wrapping_sub(8),
            3 | 4 => overwrite(input, at, &integer(random)),
            5 | 6 => {
                let mut number = Vec::new();
                let rest = (input.len() - at) as u64;
                let (value, bytes) = varint(&input[at..]).unwrap_or((0, 1));
                push_varint(&mut number, varied(value, rest, random));
                input.splice(at..at + bytes, number);
            }
            7 | 8 => drop(input.drain(range(at, input.len(), random))),
            9 => {
                let part = input[range(at, input.len(), random)].to_vec();
                let times = if random.u8(..8) == 0 { random.usize(1..64) } else { 1 };
                let to = random.usize(..=input.len());
                input.splice(to..to, part.repeat(times));
            }
            10 => {
                // What follows `at` is replaced by what follows some place of the other input.
                let from = random.usize(..=other.len());
                input.truncate(at);
                input.extend(&other[from..]);
            }
            11 => {
                if let Some(token) = self.token(random) {
                    overwrite(input, at, token);
                }
            }
            12 | 13 if self.uses_comparisons => replace_compared(input, random),
            _ => self.insert(input, other, random),
        }
    }

    fn insert(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Rng) {
        let mut part = Vec::new();
        match random.u8(..6) {
            0 => part.extend(&random.u64(..).to_le_bytes()[..random.usize(1..8)]),
            1 => part.resize(random.usize(1..64), random.u8(..)),
            2 => part = integer(random),
            3 if !other.is_empty() => {
                part.extend(&other[range(random.usize(..other.len()), other.len(), random)]);
            }
            4 => part.extend(self.token(random).into_iter().flatten()),
            _ => {
                let content = self.token(random).map_or(&other[..other.len().min(8)], Vec::as_slice);
                fields::delimited(&mut part, u64::from(random.u8(1..10)) << 3 | 2, content);
            }
        }
        let at = random.usize(..=input.len());
        input.splice(at..at, part);
    }

    fn token(&self, random: &mut Rng) -> Option<&Vec<u8>> {
        (!self.tokens.is_empty()).then(|| &self.tokens[random.usize(..self.tokens.len())])
    }
}

/// Puts a constant that the target compared with, or a neighbour of it, in the place of what it compared: as plain bytes of either order, or as varint.
fn replace_compared(input: &mut Vec<u8>, random: &mut Rng) {
    let Some((to, from)) = coverage::comparison(random.usize(..)) else { return };
    let to = to.wrapping_add(random.u64(..3)).wrapping_sub(1);
    let (mut from_varint, mut to_varint) = (Vec::new(), Vec::new());
    push_varint(&mut from_varint, from);
    push_varint(&mut to_varint, to);
    let width = 1 << random.u32(..4);
    let (needle, replacement) = match random.u8(..3) {
        0 => (from.to_le_bytes()[..width].to_vec(), to.to_le_bytes()[..width].to_vec()),
        1 => (from.to_be_bytes()[8 - width..].to_vec(), to.to_be_bytes()[8 - width..].to_vec()),
        _ => (from_varint, to_varint),
    };
    let places: Vec<usize> = input
        .windows(needle.len())
        .enumerate()
        .filter_map(|(at, window)| (window == needle).then_some(at))
        .take(PLACES_MAX)
        .collect();
    if !places.is_empty() {
        let at = places[random.usize(..places.len())];
        input.splice(at..at + needle.len(), replacement);
    }
}

fn overwrite(input: &mut Vec<u8>, at: usize, part: &[u8]) {
    let end = (at + part.len()).min(input.len());
    input.splice(at..end, part.iter().copied());
}

/// A stretch from `at` on, mostly a short one.
fn range(at: usize, length: usize, random: &mut Rng) -> std::ops::Range<usize> {
    let longest = if random.u8(..4) == 0 { length - at } else { (length - at).min(16) };
    at..at + random.usize(1..=longest)
}

/// An integer at which code tends to stumble, in one of the usual forms.
fn integer(random: &mut Rng) -> Vec<u8> {
    let value = varied(random.u64(..), random.u64(..300), random);
    let width = 1 << random.u32(..4);
    match random.u8(..3) {
        0 => value.to_le_bytes()[..width].to_vec(),
        1 => value.to_be_bytes()[8 - width..].to_vec(),
        _ => {
            let mut bytes = Vec::new();
            push_varint(&mut bytes, value);
            bytes
        }
    }
}

/// Another number in the place of `value`. `rest` is how many bytes follow, about which lengths like to lie.
fn varied(value: u64, rest: u64, random: &mut Rng) -> u64 {
    let near = random.u64(..3).wrapping_sub(1);
    match random.u8(..6) {
        0 => value.wrapping_add(near),
        1 => rest.wrapping_add(near),
        2 => (1_u64 << random.u32(..64)).wrapping_add(near),
        3 => 0_u64.wrapping_sub(random.u64(..3)),
        4 => i64::from(i32::MIN).cast_unsigned().wrapping_add(near),
        _ => random.u64(..16),
    }
}

const PLACES_MAX: usize = 64;
