//! Changes that respect the form of protobuf.
//!
//! A random byte in the middle of nested messages mostly breaks a length further out, and the decoder gives up before
//! it comes to anything interesting. Here one field, at any depth, is changed, removed or doubled, and the lengths
//! around it are written anew. Bytes that are not protobuf are left alone.

use fastrand::Rng;

/// Changes one field of the message in `bytes`, with `change` for its content. `None` when it is no message.
pub(crate) fn edit(
    bytes: &[u8],
    random: &mut Rng,
    change: &mut dyn FnMut(&mut Vec<u8>, &mut Rng),
) -> Option<Vec<u8>> {
    edit_at_depth(bytes, random, change, 0)
}

fn edit_at_depth(
    bytes: &[u8],
    random: &mut Rng,
    change: &mut dyn FnMut(&mut Vec<u8>, &mut Rng),
    depth: usize,
) -> Option<Vec<u8>> {
    let fields = split(bytes)?;
    if fields.is_empty() || depth > DEPTH_MAX {
        return None;
    }
    let (mut message, chosen) = (Vec::with_capacity(bytes.len() + 16), random.usize(..fields.len()));
    let other = &fields[random.usize(..fields.len())];
    for (position, field) in fields.iter().enumerate() {
        if position != chosen {
            message.extend(field.whole);
            continue;
        }
        let inner = field.content.filter(|_| random.u8(..4) > 0);
        if let Some(edited) = inner.and_then(|inner| edit_at_depth(inner, random, change, depth + 1)) {
            delimited(&mut message, field.key, &edited);
            continue;
        }
        match (random.u8(..8), field.content) {
            (0, _) => {}
            (1, _) => message.extend(field.whole.repeat(1 + random.usize(1..4))),
            (2, _) => message.extend(other.whole.iter().chain(field.whole)),
            (3, Some(content)) => delimited(&mut message, u64::from(random.u8(1..10)) << 3 | 2, content),
            (_, Some(content)) => {
                let mut content = content.to_vec();
                change(&mut content, random);
                delimited(&mut message, field.key, &content);
            }
            (_, None) => {
                let mut whole = field.whole.to_vec();
                change(&mut whole, random);
                message.extend(whole);
            }
        }
    }
    Some(message)
}

/// Appends a field of length-delimited content.
pub(crate) fn delimited(message: &mut Vec<u8>, key: u64, content: &[u8]) {
    push_varint(message, key);
    push_varint(message, content.len() as u64);
    message.extend(content);
}

/// Appends a number.
pub(crate) fn push_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// The number at the start of `bytes`, and how many bytes it takes.
pub(crate) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (position, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).wrapping_shl(7 * position as u32);
        if byte & 0x80 == 0 {
            return Some((value, position + 1));
        }
    }
    None
}

struct Field<'a> {
    key: u64,
    whole: &'a [u8],
    content: Option<&'a [u8]>,
}

fn split(bytes: &[u8]) -> Option<Vec<Field<'_>>> {
    let (mut fields, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (key, key_bytes) = varint(rest)?;
        let (head, length) = match key & 7 {
            0 => (key_bytes, varint(&rest[key_bytes..])?.1),
            1 => (key_bytes, 8),
            2 => {
                let (length, length_bytes) = varint(&rest[key_bytes..])?;
                (key_bytes + length_bytes, usize::try_from(length).ok()?)
            }
            5 => (key_bytes, 4),
            _ => return None,
        };
        let (whole, behind) = rest.split_at_checked(head.checked_add(length)?)?;
        fields.push(Field { key, whole, content: (key & 7 == 2).then(|| &whole[head..]) });
        rest = behind;
    }
    Some(fields)
}

const DEPTH_MAX: usize = 8;
