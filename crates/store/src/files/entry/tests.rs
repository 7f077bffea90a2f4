//! Tests.

use proptest::prelude::*;

use super::super::samples::{any_bootstrap, bootstrap, entries, head, promise};
use super::*;

fn encoded(entries: &[Entry]) -> Vec<u8> {
    let (first, rest) = encode(entries).expect("entries that can be written");
    assert!(rest.is_empty(), "one batch is enough");
    first
}

/// The order of a batch: heads first.
fn in_order(entries: &[Entry]) -> Vec<Entry> {
    let mut entries = entries.to_vec();
    entries.sort_by_key(|entry| !matches!(entry, Entry::Op(RegistryOp::Head { .. })));
    entries
}

#[test]
fn the_form_is_the_one_that_was_published() {
    let life = Incarnation::new(300).expect("a life");
    let batch = encoded(&[promise(7, 2, Some("a")), promise(8, 0, None), Entry::Incarnation(life)]);
    assert_eq!(batch[0], 1, "the version");
    assert_eq!(batch[5..], [1, 7, 2, 1, b'a', 1, 8, 0, 0, 6, 0xAC, 2]);
    assert_eq!(batch[1..5], checksum(&batch[5..]).to_le_bytes());
}

#[test]
fn a_large_batch_is_split_with_its_heads_first() {
    let value = vec![7; VALUE_BYTES_MAX];
    let learned: Vec<Entry> =
        (0..100).flat_map(|slot| [promise(slot, 3, None), head(slot, 2, 1, &value)]).collect();
    let (first, rest) = encode(&learned).expect("batches");
    assert_eq!(rest.len(), 1, "1.6 MiB fit into two batches");
    assert!(first.len() <= BATCH_BYTES_MAX && rest[0].len() <= BATCH_BYTES_MAX);
    let is_head = |entry: &Entry| matches!(entry, Entry::Op(RegistryOp::Head { .. }));
    assert!(decode(&first).expect("a batch").iter().all(is_head), "no promise before the last head");
    let both = [decode(&first).expect("a batch"), decode(&rest[0]).expect("a batch")].concat();
    assert_eq!(both, in_order(&learned));
}

#[test]
fn what_could_not_be_read_back_is_refused() {
    let long = |bytes, max| Err(EntryRefusal::TooLong { bytes, max });
    let value = vec![0; VALUE_BYTES_MAX + 1];
    assert_eq!(encode(&[head(0, 1, 1, &value)]), long(VALUE_BYTES_MAX + 1, VALUE_BYTES_MAX));
    let text = "x".repeat(TAKEOVER_BYTES_MAX + 1);
    assert_eq!(encode(&[Entry::Takeover(text)]), long(TAKEOVER_BYTES_MAX + 1, TAKEOVER_BYTES_MAX));
    let huge = BootstrapState { archive: Some("x".repeat(1 << 20)), ..bootstrap("n", 1) };
    assert!(matches!(encode(&[Entry::Bootstrap(huge)]), Err(EntryRefusal::TooLong { .. })));
    let mut unsorted = bootstrap("n", 1);
    unsorted
        .nodes
        .insert(0, BootstrapNode { node: NodeId::new("b").expect("a name"), ..unsorted.nodes[0].clone() });
    assert_eq!(encode(&[Entry::Bootstrap(unsorted)]), Err(EntryRefusal::Unchecked));
}

#[test]
fn a_number_has_one_form() {
    let batch = |entries: &[u8]| seal([&empty_batch(), entries].concat());
    let overlong = decode(&batch(&[INCARNATION, 0x81, 0])).expect_err("a zero behind");
    assert_eq!(overlong, DecodeError { offset: 6, problem: DecodeProblem::Number("number") });
    let wide = [&[INCARNATION][..], &[0xFF; 9], &[2]].concat();
    assert_eq!(decode(&batch(&wide)).expect_err("65 bits").problem, DecodeProblem::Number("number"));
    let zero = decode(&batch(&[INCARNATION, 0])).expect_err("no life");
    assert_eq!(zero.problem, DecodeProblem::Number("incarnation"));
    let kind = decode(&batch(&[99])).expect_err("no such kind");
    assert_eq!(kind, DecodeError { offset: 5, problem: DecodeProblem::Kind(99) });
}

#[test]
fn a_later_version_is_told_apart_from_damage() {
    let mut batch = encoded(&[promise(1, 1, None)]);
    batch[0] = 2;
    let later = DecodeProblem::LaterVersion { version: 2, known: 1 };
    assert_eq!(decode(&batch), Err(DecodeError { offset: 0, problem: later }));
}

proptest! {
    #[test]
    fn what_is_written_is_read(entries in entries(20)) {
        prop_assert_eq!(decode(&encoded(&entries)), Ok(in_order(&entries)));
    }

    #[test]
    fn every_beginning_of_a_cluster_is_read_as_it_was(state in any_bootstrap()) {
        let entry = Entry::Bootstrap(state);
        prop_assert_eq!(decode(&encoded(std::slice::from_ref(&entry))), Ok(vec![entry]));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_an_error(entries in entries(5)) {
        let batch = encoded(&entries);
        for length in 0..batch.len() {
            // Without its entries a batch is one of none; its checksum then says that they are missing.
            prop_assert!(decode(&batch[..length]).is_err(), "cut at {}", length);
        }
        for bit in 0..8 * batch.len() {
            let mut flipped = batch.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&flipped).is_err(), "bit {}", bit);
        }
    }

    /// With a checksum that fits, so that all of the decoder is reached: what is read is what would be written.
    #[test]
    fn no_bytes_make_it_panic_and_what_is_read_has_one_form(
        entries in entries(5),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut batch = encoded(&entries);
        for (index, byte) in changes {
            if batch.len() > HEADER_BYTES {
                let place = HEADER_BYTES + index.index(batch.len() - HEADER_BYTES);
                batch[place] = byte;
            }
        }
        let batch = seal(batch);
        if let Ok(read) = decode(&batch)
            && let Ok((again, rest)) = encode(&read)
            && in_order(&read) == read
        {
            prop_assert!(rest.is_empty());
            prop_assert_eq!(again, batch);
        }
    }
}
