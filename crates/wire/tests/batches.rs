//! Messages go into batches and come out again: all of them, in order, in both dialects.
//!
//! A second opinion comes from [`BatchA`] and [`BatchB`], which declare the disputed field with the type that a Go node
//! of the respective dialect declares it with.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;
use synod_wire::actor::Pid;
use synod_wire::limits::{BATCH_MESSAGES_SENT_MAX, FRAME_BYTES_SENT_MAX};
use synod_wire::remote::MessageEnvelope;
use synod_wire::{BatchBuilder, Dialect, Envelope, Frame, PidRef, Push, Serializer, UnsendableMessage};

const OWN: &str = "127.0.0.1:9090";

/// A frame with a batch as a Go node of dialect A declares it.
#[derive(Clone, PartialEq, Message)]
struct FrameA {
    #[prost(message, tag = "1")]
    batch: Option<BatchA>,
}

#[derive(Clone, PartialEq, Message)]
struct BatchA {
    #[prost(string, repeated, tag = "1")]
    type_names: Vec<String>,
    #[prost(message, repeated, tag = "2")]
    targets: Vec<Pid>,
    #[prost(message, repeated, tag = "3")]
    envelopes: Vec<MessageEnvelope>,
    #[prost(message, repeated, tag = "4")]
    senders: Vec<Pid>,
}

/// A frame with a batch as a Go node of dialect B declares it.
#[derive(Clone, PartialEq, Message)]
struct FrameB {
    #[prost(message, tag = "1")]
    batch: Option<BatchB>,
}

#[derive(Clone, PartialEq, Message)]
struct BatchB {
    #[prost(string, repeated, tag = "1")]
    type_names: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    targets: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    envelopes: Vec<MessageEnvelope>,
    #[prost(message, repeated, tag = "4")]
    senders: Vec<Pid>,
}

/// An envelope that owns what it points to.
#[derive(Clone, Debug, PartialEq)]
struct Letter {
    target: Pid,
    sender: Option<Pid>,
    type_name: String,
    serializer: Serializer,
    payload: Bytes,
    headers: BTreeMap<String, String>,
}

impl Letter {
    fn plain(id: &str, payload: usize) -> Self {
        Self {
            target: PidRef::new(OWN, id).to_pid(),
            sender: None,
            type_name: "test.Letter".into(),
            serializer: Serializer::Protobuf,
            payload: vec![7; payload].into(),
            headers: BTreeMap::new(),
        }
    }

    fn envelope(&self) -> Envelope<'_> {
        Envelope {
            target: PidRef::from(&self.target),
            sender: self.sender.as_ref().map(PidRef::from),
            type_name: &self.type_name,
            serializer: self.serializer,
            payload: self.payload.clone(),
            headers: (!self.headers.is_empty()).then_some(&self.headers),
        }
    }

    /// What the node at [`OWN`] reads of it. Dialect B does not say which address was meant.
    fn received(&self, dialect: Dialect) -> Envelope<'_> {
        let mut envelope = self.envelope();
        if dialect == Dialect::B {
            envelope.target.address = OWN;
        }
        envelope
    }
}

fn letters(count: usize, payload_bytes: usize) -> impl Strategy<Value = Vec<Letter>> {
    // Few distinct names, so that the tables are shared; some of them strange.
    let id = prop_oneof!["[a-c]", "future\\$[0-9a-z]{1,3}", "\\PC{1,12}"];
    let address = prop_oneof!["10\\.0\\.0\\.[1-3]:8080", Just(OWN.to_owned())];
    let request_id = prop_oneof![Just(0), 1..3_u32, any::<u32>()];
    let pid = (address, id, request_id).prop_map(|(address, id, request_id)| Pid { address, id, request_id });
    let serializer = prop_oneof![Just(Serializer::Protobuf), Just(Serializer::Json)];
    let headers = prop::collection::btree_map("[a-z]{0,3}", "\\PC{0,5}", 0..3);
    let letter = (pid.clone(), prop::option::of(pid), "test\\.[A-C]", serializer, 0..=payload_bytes, headers)
        .prop_map(|(target, sender, type_name, serializer, payload, headers)| Letter {
            target,
            sender,
            type_name,
            serializer,
            payload: vec![7; payload].into(),
            headers,
        });
    prop::collection::vec(letter, 1..count)
}

fn dialects() -> impl Strategy<Value = Dialect> {
    prop_oneof![Just(Dialect::A), Just(Dialect::B)]
}

proptest! {
    #[test]
    fn what_goes_into_a_batch_comes_out_of_it(dialect in dialects(), letters in letters(40, 60)) {
        let mut builder = BatchBuilder::new(dialect);
        for letter in &letters {
            prop_assert_eq!(builder.push(&letter.envelope()), Ok(Push::Added));
        }
        let promised = builder.frame_bytes();
        let bytes = builder.finish_frame().unwrap();
        prop_assert_eq!(bytes.len(), promised);
        prop_assert!(builder.is_empty());

        let Frame::Batch(batch) = Frame::decode(bytes).unwrap() else { panic!("not a batch") };
        prop_assert_eq!(batch.dialect(), Some(dialect));
        let opened: Vec<_> = batch.envelopes(OWN).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(opened, letters.iter().map(|letter| letter.received(dialect)).collect::<Vec<_>>());
    }

    #[test]
    fn a_go_node_reads_the_targets_that_were_meant(letters in letters(20, 20)) {
        let frame = |dialect| {
            let batches = BatchBuilder::split(dialect, letters.iter().map(Letter::envelope));
            assert_eq!(batches.refused, []);
            batches.frames[0].clone()
        };

        let a = FrameA::decode(frame(Dialect::A)).unwrap().batch.unwrap();
        let b = FrameB::decode(frame(Dialect::B)).unwrap().batch.unwrap();
        for (position, letter) in letters.iter().enumerate() {
            let target = &a.targets[usize::try_from(a.envelopes[position].target).unwrap()];
            prop_assert_eq!((&target.address, &target.id), (&letter.target.address, &letter.target.id));
            prop_assert_eq!(target.request_id, 0);
            prop_assert_eq!(&b.targets[usize::try_from(b.envelopes[position].target).unwrap()], &letter.target.id);
        }
        // No name stands in a table twice.
        prop_assert!(all_distinct(a.targets.iter().map(|pid| (&pid.address, &pid.id))));
        prop_assert!(all_distinct(a.senders.iter().map(|pid| (&pid.address, &pid.id))));
        prop_assert!(all_distinct(b.targets.iter()));
        prop_assert!(all_distinct(b.type_names.iter()));

        // And what a Go node would write from the same tables reads the same here.
        let by_a = (Dialect::A, FrameA { batch: Some(a) }.encode_to_vec());
        let by_b = (Dialect::B, FrameB { batch: Some(b) }.encode_to_vec());
        for (dialect, bytes) in [by_a, by_b] {
            let Frame::Batch(batch) = Frame::decode(bytes.into()).unwrap() else { panic!("not a batch") };
            let opened: Vec<_> = batch.envelopes(OWN).collect::<Result<_, _>>().unwrap();
            prop_assert_eq!(opened, letters.iter().map(|letter| letter.received(dialect)).collect::<Vec<_>>());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn splitting_keeps_order_and_size(dialect in dialects(), letters in letters(12, 2_000_000)) {
        let batches = BatchBuilder::split(dialect, letters.iter().map(Letter::envelope));
        prop_assert_eq!(batches.refused, []);
        let mut opened = Vec::new();
        let mut sizes = Vec::new();
        for bytes in batches.frames {
            prop_assert!(bytes.len() <= FRAME_BYTES_SENT_MAX);
            sizes.push(bytes.len());
            let Frame::Batch(batch) = Frame::decode(bytes).unwrap() else { panic!("not a batch") };
            opened.extend(batch.envelopes(OWN).map(|envelope| envelope.unwrap().payload));
        }
        // Order over all targets is order for each of them.
        prop_assert_eq!(opened, letters.iter().map(|letter| letter.payload.clone()).collect::<Vec<_>>());
        // No cut was needless: two neighbours never fit into one frame, give or take the names they share.
        prop_assert!(sizes.windows(2).all(|pair| pair[0] + pair[1] > FRAME_BYTES_SENT_MAX - 4096));
    }
}

#[test]
fn a_frame_is_filled_to_the_last_byte() {
    for dialect in [Dialect::A, Dialect::B] {
        // The largest message that fits is found by looking at what a smaller one needs.
        let mut builder = BatchBuilder::new(dialect);
        let near = Letter::plain("x", FRAME_BYTES_SENT_MAX - 1000);
        assert_eq!(builder.push(&near.envelope()), Ok(Push::Added));
        let room = FRAME_BYTES_SENT_MAX - builder.frame_bytes();
        let largest = Letter::plain("x", near.payload.len() + room);

        let mut builder = BatchBuilder::new(dialect);
        assert_eq!(builder.push(&largest.envelope()), Ok(Push::Added));
        assert_eq!(builder.frame_bytes(), FRAME_BYTES_SENT_MAX);

        // A full frame takes nothing more and stays as it is.
        assert_eq!(builder.push(&Letter::plain("x", 0).envelope()), Ok(Push::Full));
        assert_eq!(builder.push(&Letter::plain("x", FRAME_BYTES_SENT_MAX).envelope()), Ok(Push::Full));
        assert_eq!(builder.finish_frame().unwrap().len(), FRAME_BYTES_SENT_MAX);

        // One byte more fits into no frame, and says so once the frame is its own.
        let frame_bytes = FRAME_BYTES_SENT_MAX + 1;
        let too_large = Letter::plain("x", largest.payload.len() + 1);
        assert_eq!(builder.push(&too_large.envelope()), Err(UnsendableMessage::TooLarge { frame_bytes }));
        assert_eq!(builder.finish_frame(), None);
    }
}

#[test]
fn a_batch_has_no_more_messages_than_one_of_go() {
    let letter = Letter::plain("x", 0);
    let letters = std::iter::repeat_n(letter.envelope(), 2 * BATCH_MESSAGES_SENT_MAX + 1);
    let sizes: Vec<usize> = BatchBuilder::split(Dialect::B, letters)
        .frames
        .into_iter()
        .map(|frame| match Frame::decode(frame) {
            Ok(Frame::Batch(batch)) => batch.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(sizes, [BATCH_MESSAGES_SENT_MAX, BATCH_MESSAGES_SENT_MAX, 1]);
}

#[test]
fn a_refused_message_costs_only_itself() {
    let letters = [
        Letter::plain("a", 1),
        Letter::plain("b", FRAME_BYTES_SENT_MAX),
        Letter::plain("", 2),
        Letter::plain("c", 3),
    ];
    let batches = BatchBuilder::split(Dialect::B, letters.iter().map(Letter::envelope));
    assert_eq!(batches.refused.iter().map(|(position, _)| *position).collect::<Vec<_>>(), [1, 2]);

    let mut ids = Vec::new();
    for frame in batches.frames {
        let Ok(Frame::Batch(batch)) = Frame::decode(frame) else { panic!("not a batch") };
        ids.extend(batch.envelopes(OWN).map(|envelope| envelope.unwrap().target.id.to_owned()));
    }
    assert_eq!(ids, ["a", "c"]);
}

#[test]
fn an_id_that_would_be_taken_for_a_pid_is_not_sent() {
    let letter = Letter::plain("\n\u{1}x", 0);
    let refused = UnsendableMessage::AmbiguousTarget { id: letter.target.id.clone() };
    assert_eq!(BatchBuilder::new(Dialect::B).push(&letter.envelope()), Err(refused));
    // Inside a PID nothing can be mistaken.
    assert_eq!(BatchBuilder::new(Dialect::A).push(&letter.envelope()), Ok(Push::Added));
}

fn all_distinct<T: Ord>(items: impl Iterator<Item = T>) -> bool {
    let mut items: Vec<T> = items.collect();
    items.sort();
    items.windows(2).all(|pair| pair[0] != pair[1])
}
