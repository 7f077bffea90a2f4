//! Counting before decoding.
//!
//! A decoder allocates as it reads, so by the time it has a list whose length could be checked, the memory is spent.
//! This module walks over encoded bytes like a customs officer over a manifest: it knows which fields hold lists and
//! which hold further messages, counts the elements, and touches nothing else. A [`Shape`] is that knowledge for one
//! message type.
//!
//! Counts run over the whole message, not over one list of it: protobuf joins the parts when a field that should occur
//! once occurs again, so a bound per list could be walked around.

use crate::limits::Counted;

/// Where the lists of a message are.
pub struct Shape(pub(crate) &'static [Inside]);

/// A field of a message that is a list, or has one inside.
pub(crate) struct Inside {
    number: u32,
    counted: Option<Counted>,
    shape: Option<&'static Shape>,
}

impl Inside {
    /// Field `number` is a list, or a map, of elements without lists.
    pub(crate) const fn list(number: u32, counted: Counted) -> Self {
        Self { number, counted: Some(counted), shape: None }
    }

    /// Field `number` is a list of messages that have lists inside. For a map it is the shape of its entries.
    pub(crate) const fn list_of(number: u32, counted: Counted, shape: &'static Shape) -> Self {
        Self { number, counted: Some(counted), shape: Some(shape) }
    }

    /// Field `number` is one message that has lists inside.
    pub(crate) const fn one(number: u32, shape: &'static Shape) -> Self {
        Self { number, counted: None, shape: Some(shape) }
    }
}

/// Counts the elements of every list of `bytes` and stops at the first one too many.
pub(crate) fn check(bytes: &[u8], shape: &Shape) -> Result<(), ScanError> {
    if shape.0.is_empty() {
        return Ok(());
    }
    walk(bytes, shape, &mut [0; Counted::ALL.len()])
}

/// What the walk found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScanError {
    /// More elements than [`Counted::max`].
    TooMany(Counted),
    /// These are not the bytes of a protobuf message.
    Malformed,
}

fn walk(bytes: &[u8], shape: &Shape, counts: &mut [usize; Counted::ALL.len()]) -> Result<(), ScanError> {
    // Depth is bounded by the shapes, which are constants and not recursive.
    for field in Fields(bytes) {
        let (number, value) = field.ok_or(ScanError::Malformed)?;
        let (Value::Delimited(content), Some(inside)) =
            (value, shape.0.iter().find(|inside| inside.number == number))
        else {
            continue;
        };
        if let Some(counted) = inside.counted {
            let count = &mut counts[counted as usize];
            *count += 1;
            if *count > counted.max() {
                return Err(ScanError::TooMany(counted));
            }
        }
        if let Some(shape) = inside.shape {
            walk(content, shape, counts)?;
        }
    }
    Ok(())
}

/// The fields of an encoded message in the order of its bytes. `None` as an item means that the bytes are malformed; it
/// is the last one.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

/// The content of one field.
pub(crate) enum Value<'a> {
    /// An integer.
    Varint(u64),
    /// A text, bytes or a message.
    Delimited(&'a [u8]),
    /// Four or eight bytes. No message here has such a field.
    Fixed,
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u32, Value<'a>)>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    // The reader of batches spends its time here; left to itself, the compiler calls this function for every number.
    #[inline(always)]
    fn field(&mut self) -> Option<(u32, Value<'a>)> {
        let key = u32::try_from(self.varint()?).ok()?;
        let number = key >> 3;
        if number == 0 {
            return None;
        }
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let bytes = usize::try_from(self.varint()?).ok()?;
                Value::Delimited(self.take(bytes)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            // Groups left protobuf long before these messages were written; nobody sends them.
            _ => return None,
        };
        Some((number, value))
    }

    #[inline]
    fn varint(&mut self) -> Option<u64> {
        match self.0 {
            // Nearly all keys, lengths and indexes are this short.
            [byte @ ..0x80, rest @ ..] => {
                self.0 = rest;
                Some(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for position in 0..10 {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for a single bit.
            if position == 9 && byte > 1 {
                return None;
            }
            value |= bits << (7 * position);
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    #[inline]
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: Shape = Shape(&[Inside::list(1, Counted::GrainErrorDetails)]);
    const TREE: Shape = Shape(&[Inside::one(2, &LEAF)]);

    #[test]
    fn elements_are_counted_across_repeated_parts() {
        // Two halves of a message that each stay below the bound, which protobuf would join into one.
        let half = [0x0a, 0x00].repeat(Counted::GrainErrorDetails.max() / 2);
        let mut bytes = Vec::new();
        for _ in 0..2 {
            bytes.extend([0x12, 0x80, 0x02]);
            bytes.extend(&half);
        }
        assert_eq!(half.len(), 0x100);
        assert_eq!(check(&bytes, &TREE), Ok(()));

        // One more element, in a third part, is one too many.
        bytes.extend([0x12, 0x02, 0x0a, 0x00]);
        assert_eq!(check(&bytes, &TREE), Err(ScanError::TooMany(Counted::GrainErrorDetails)));
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        for malformed in [
            &[0x12][..],                                                         // no length
            &[0x12, 0x02, 0x00],                                                 // shorter than its length
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], // a length of 2^64 - 1
            &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], // more than 64 bits
            &[0x00, 0x00],                                                       // field 0
            &[0x13, 0x14],                                                       // a group
            &[0x09, 0, 0, 0, 0, 0, 0, 0],                                        // seven of eight bytes
            &[0x0d, 0, 0, 0],                                                    // three of four bytes
        ] {
            assert_eq!(check(malformed, &TREE), Err(ScanError::Malformed), "{malformed:02x?}");
        }
    }

    #[test]
    fn fields_of_other_kinds_are_passed_over() {
        let bytes =
            [0x10, 0x07, 0x19, 0, 0, 0, 0, 0, 0, 0, 0, 0x25, 0, 0, 0, 0, 0x2a, 0x01, 0xff, 0x12, 0x00];
        assert_eq!(check(&bytes, &TREE), Ok(()));
    }
}
