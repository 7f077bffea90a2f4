//! Two readers, one meaning: batches are read by hand for speed, and this is what holds that to prost.
//!
//! The reference is the straightforward reader: prost decodes the whole frame, and every envelope is looked up in its
//! tables. Frames are made in every form that protobuf allows (fields in any order, repeated, unknown ones between
//! them, batches in pieces), and from noise. The same is asked of the writer: its bytes are those of prost.

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;
use synod_wire::actor::Pid;
use synod_wire::remote::remote_message::MessageType;
use synod_wire::remote::{MessageBatch, MessageEnvelope, MessageHeader, RemoteMessage};
use synod_wire::{
    BatchBuilder, Dialect, Envelope, EnvelopeError, Frame, FrameError, PidRef, Push, Serializer, Table,
};

const OWN: &str = "127.0.0.1:9090";

// ---- Frames in every form ----

/// An unknown field of any kind that is not a group.
fn unknown() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        (16..2000_u32, any::<u64>()).prop_map(|(number, value)| [key(number, 0), varint(value)].concat()),
        (16..2000_u32, any::<[u8; 8]>())
            .prop_map(|(number, value)| [key(number, 1), value.to_vec()].concat()),
        (16..2000_u32, prop::collection::vec(any::<u8>(), 0..6))
            .prop_map(|(number, value)| delimited(number, &value)),
        (16..2000_u32, any::<[u8; 4]>())
            .prop_map(|(number, value)| [key(number, 5), value.to_vec()].concat()),
    ]
}

/// An unknown field that is a group, with a field inside.
fn group() -> impl Strategy<Value = Vec<u8>> {
    (16..2000_u32, any::<u64>())
        .prop_map(|(number, value)| [key(number, 3), key(1, 0), varint(value), key(number, 4)].concat())
}

/// These fields in any order, each any number of times, with unknown ones between them.
fn shuffled(fields: Vec<BoxedStrategy<Vec<u8>>>, most: usize) -> BoxedStrategy<Vec<u8>> {
    let field = prop_oneof![8 => prop::strategy::Union::new(fields), 1 => unknown()];
    prop::collection::vec(field, 0..most).prop_map(|fields| fields.concat()).boxed()
}

/// An integer, most often one below `usual`.
fn number(field: u32, usual: u8) -> BoxedStrategy<Vec<u8>> {
    // Numbers in more bytes than they need, and with more bits than their type has, are read all the same.
    let values = prop_oneof![
        20 => (0..usual).prop_map(|value| varint(value.into())),
        1 => any::<u64>().prop_map(varint),
        1 => any::<i32>().prop_map(|value| varint(i64::from(value).cast_unsigned())),
        2 => (0..usual).prop_map(|value| vec![0x80 | value, 0x80, 0x00]),
    ];
    values.prop_map(move |value| [key(field, 0), value].concat()).boxed()
}

fn text(field: u32, pattern: &'static str) -> BoxedStrategy<Vec<u8>> {
    pattern.prop_map(move |text| delimited(field, text.as_bytes())).boxed()
}

fn message(field: u32, content: BoxedStrategy<Vec<u8>>) -> BoxedStrategy<Vec<u8>> {
    content.prop_map(move |content| delimited(field, &content)).boxed()
}

fn pids() -> BoxedStrategy<Vec<u8>> {
    shuffled(vec![text(1, "h:[12]"), text(2, "\\PC{0,3}"), number(3, 9)], 5)
}

fn senders() -> BoxedStrategy<Vec<u8>> {
    let with_group = (pids(), group()).prop_map(|(pid, group)| [pid, group].concat());
    prop_oneof![9 => pids(), 1 => with_group].boxed()
}

fn headers() -> BoxedStrategy<Vec<u8>> {
    let entry = shuffled(vec![text(1, "[a-c]?"), text(2, "\\PC{0,3}")], 4);
    shuffled(vec![message(1, entry)], 4)
}

fn envelopes() -> BoxedStrategy<Vec<u8>> {
    let fields = vec![
        number(1, 3),
        message(2, prop::collection::vec(any::<u8>(), 0..20).boxed()),
        number(3, 3),
        number(4, 4),
        number(5, 2),
        message(6, headers()),
        number(7, 9),
        number(8, 9),
    ];
    shuffled(fields, 9)
}

fn batches() -> BoxedStrategy<Vec<u8>> {
    let ids = || text(2, "[a-z$/]{0,4}");
    let pids = || message(2, pids());
    let whole_pids = || message(2, Just([delimited(1, b"h:1"), delimited(2, b"x")].concat()).boxed());
    let fields = |targets: Vec<BoxedStrategy<Vec<u8>>>| {
        let rest = [text(1, "test\\.[A-C]|"), message(3, envelopes()), message(3, envelopes())];
        let rest = rest.into_iter().chain([message(4, senders())]);
        shuffled(targets.into_iter().chain(rest).collect(), 24)
    };
    // Tables with enough in them that most envelopes find what they point to, before or behind the rest.
    let with_tables = |target: Vec<u8>, fields: BoxedStrategy<Vec<u8>>| {
        let sender = [delimited(1, b"h:2"), delimited(2, b"s")].concat();
        let tables = [delimited(1, b"test.A"), target, delimited(4, &sender)].concat().repeat(3);
        (any::<bool>(), fields).prop_map(move |(before, fields)| {
            if before { [&*tables, &*fields].concat() } else { [&*fields, &*tables].concat() }
        })
    };
    let pid = delimited(2, &[delimited(2, b"y"), delimited(1, b"h:3")].concat());
    // A batch keeps to one dialect; now and then one does not.
    prop_oneof![
        5 => with_tables(delimited(2, b"x"), fields(vec![ids()])),
        5 => with_tables(pid, fields(vec![whole_pids()])),
        1 => fields(vec![ids()]),
        1 => fields(vec![pids()]),
        1 => fields(vec![ids(), pids()]),
    ]
    .boxed()
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let others = prop_oneof![
        text(3, "\\PC{0,3}"),
        message(2, shuffled(vec![text(2, "")], 2)),
        Just(delimited(4, b"")).boxed(),
    ];
    prop_oneof![
        8 => (prop::option::of(unknown()), batches(), prop::option::of(unknown())).prop_map(|(before, batch, after)| {
            [before.unwrap_or_default(), delimited(1, &batch), after.unwrap_or_default()].concat()
        }),
        // In pieces, and between other kinds of frames.
        2 => prop::collection::vec(prop_oneof![3 => message(1, batches()), 1 => others], 0..4)
            .prop_map(|fields| fields.concat()),
    ]
}

/// A frame with one stretch of it replaced, or cut off.
fn spoilt() -> impl Strategy<Value = Vec<u8>> {
    let inserted = prop_oneof![prop::collection::vec(any::<u8>(), 0..4), group()];
    (frames(), any::<prop::sample::Index>(), 0..4_usize, inserted, any::<bool>()).prop_map(
        |(mut bytes, start, removed, inserted, inside)| {
            if bytes.is_empty() {
                return inserted;
            }
            let start = start.index(bytes.len());
            let end = (start + removed).min(bytes.len());
            // Of the same length, so that the lengths around it stay true, or not.
            if inside && inserted.len() >= end - start {
                bytes[start..end].copy_from_slice(&inserted[..end - start]);
            } else {
                bytes.splice(start..end, inserted);
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_form_of_a_batch_means_what_prost_says(bytes in frames()) {
        let (ours, reference) = both(bytes);
        // Nothing here is a group where groups are refused, so that whatever prost reads is read.
        prop_assert_eq!(ours, reference);
    }

    #[test]
    fn spoilt_frames_mean_what_prost_says_or_nothing(bytes in spoilt()) {
        let (ours, reference) = both(bytes);
        if ours.is_ok() {
            prop_assert_eq!(ours, reference);
        } else {
            prop_assert!(reference.is_err() || ours == Err(FrameError::Malformed));
        }
    }

    #[test]
    fn noise_means_what_prost_says_or_nothing(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        for bytes in [bytes.clone(), delimited(1, &bytes), delimited(1, &delimited(3, &bytes))] {
            let (ours, reference) = both(bytes);
            if ours.is_ok() {
                prop_assert_eq!(ours, reference);
            }
        }
    }
}

#[test]
fn a_known_field_of_another_type_is_refused_wherever_it_is() {
    // The way to each message inside a frame, and the types of its fields in the order of their numbers.
    // The map of headers is left out: prost reads a map without looking at its type, and so it is read here.
    let messages: [(&[u32], &[u32]); 5] = [
        (&[], &[2, 2, 2, 2]),
        (&[1], &[2, 2, 2, 2]),
        (&[1, 3], &[0, 2, 0, 0, 0, 2, 0, 0]),
        (&[1, 3, 6, 1], &[2, 2]),
        (&[1, 4], &[2, 2, 0]),
    ];
    for (path, kinds) in messages {
        for (number, kind) in (1..).zip(kinds) {
            let values = [(0, vec![0]), (1, vec![0; 8]), (2, vec![0]), (5, vec![0; 4])];
            for (other, value) in values.into_iter().filter(|(other, _)| other != kind) {
                let field = [key(number, other), value].concat();
                let frame = path.iter().rev().fold(field, |content, number| delimited(*number, &content));
                let (ours, reference) = both(frame);
                assert!(
                    matches!(ours, Err(FrameError::Undecodable(_))),
                    "{path:?} {number} as {other}: {ours:?}"
                );
                assert_eq!(ours, reference);
            }
        }
    }
    let map = delimited(1, &delimited(3, &delimited(6, &[0x08, 0x00])));
    let (ours, reference) = both(map);
    assert_eq!(ours, reference);
}

#[test]
fn groups_are_refused_where_they_were_and_skipped_elsewhere() {
    let group = [0x9b, 0x01, 0x9c, 0x01];
    let envelope = delimited(3, &group);
    let frames = [group.to_vec(), delimited(1, &group), delimited(1, &envelope)];
    for frame in frames {
        assert_eq!(Frame::decode(frame.into()), Err(FrameError::Malformed));
    }
    let sender = [delimited(1, b"h:1"), delimited(2, b"x"), group.to_vec()].concat();
    let batch =
        [delimited(1, b"t"), delimited(2, b"y"), vec![0x1a, 2, 0x20, 1], delimited(4, &sender)].concat();
    let (ours, reference) = both(delimited(1, &batch));
    assert_eq!(ours, reference);
    assert_eq!(ours.unwrap().unwrap().envelopes.len(), 1);
}

// ---- The reference ----

/// What was read of a batch.
#[derive(Debug, PartialEq)]
struct Read {
    dialect: Option<Dialect>,
    entries: [usize; 3],
    envelopes: Vec<Result<OwnedEnvelope, EnvelopeError>>,
}

/// An envelope, with its names and their places.
type OwnedEnvelope = (MessageEnvelope, String, Pid, Option<Pid>, [usize; 3]);

/// What this crate and what prost read; `None` when it is not a batch.
fn both(bytes: Vec<u8>) -> (Result<Option<Read>, FrameError>, Result<Option<Read>, FrameError>) {
    let bytes = Bytes::from(bytes);
    (ours(bytes.clone()), reference(bytes))
}

fn ours(bytes: Bytes) -> Result<Option<Read>, FrameError> {
    let Frame::Batch(batch) = Frame::decode(bytes)? else { return Ok(None) };
    let envelopes = batch.placed_envelopes(OWN).map(|opened| {
        opened.map(|(places, envelope)| {
            let fields = MessageEnvelope {
                type_id: places.type_name as i32,
                message_data: envelope.payload.clone(),
                target: places.target as i32,
                sender: places.sender.map_or(0, |sender| 1 + sender as i32),
                serializer_id: envelope.serializer.id(),
                message_header: envelope
                    .headers
                    .map(|headers| MessageHeader { header_data: headers.clone() }),
                target_request_id: envelope.target.request_id,
                sender_request_id: envelope.sender.map_or(0, |sender| sender.request_id),
            };
            let places = [places.type_name, places.target, places.sender.map_or(0, |sender| 1 + sender)];
            let sender = envelope.sender.map(PidRef::to_pid);
            (fields, envelope.type_name.to_owned(), envelope.target.to_pid(), sender, places)
        })
    });
    let envelopes: Vec<_> = envelopes.collect();
    // Without places it is the same.
    assert!(
        batch
            .envelopes(OWN)
            .map(Result::err)
            .eq(envelopes.iter().map(|opened| opened.as_ref().err().cloned()))
    );
    assert_eq!(envelopes.len(), batch.len());
    let entries = [Table::TypeNames, Table::Targets, Table::Senders].map(|table| batch.entries(table));
    Ok(Some(Read { dialect: batch.dialect(), entries, envelopes }))
}

fn reference(bytes: Bytes) -> Result<Option<Read>, FrameError> {
    let frame = RemoteMessage::decode(bytes.clone())?;
    let Some(MessageType::MessageBatch(batch)) = frame.message_type else {
        // Only batches are read by hand.
        return Frame::decode(bytes).map(|_| None);
    };
    let dialect = Dialect::of_targets(&batch.targets)?;
    let entries = [batch.type_names.len(), batch.targets.len(), batch.senders.len()];
    let envelopes = batch.envelopes.iter().map(|envelope| open(&batch, dialect, envelope)).collect();
    Ok(Some(Read { dialect, entries, envelopes }))
}

fn open(
    batch: &MessageBatch,
    dialect: Option<Dialect>,
    envelope: &MessageEnvelope,
) -> Result<OwnedEnvelope, EnvelopeError> {
    let place = |table, index: i32, first: i32, entries: usize| {
        let position = usize::try_from(i64::from(index) - i64::from(first));
        let position = position.map_err(|_| EnvelopeError::NegativeIndex { table, index })?;
        let inside = position < entries;
        inside.then_some(position).ok_or(EnvelopeError::IndexOutOfRange { table, index, entries })
    };
    let type_name = place(Table::TypeNames, envelope.type_id, 0, batch.type_names.len())?;
    let target = place(Table::Targets, envelope.target, 0, batch.targets.len())?;
    let sender = match envelope.sender {
        0 => None,
        index => Some(place(Table::Senders, index, 1, batch.senders.len())?),
    };
    let id = envelope.serializer_id;
    Serializer::from_id(id).ok_or(EnvelopeError::UnknownSerializer { id })?;

    let places = [type_name, target, sender.map_or(0, |sender| 1 + sender)];
    let target = &batch.targets[target];
    let mut target = match dialect {
        Some(Dialect::A) => Pid::decode(target.clone()).unwrap(),
        _ => Pid { id: String::from_utf8(target.to_vec()).unwrap(), ..Pid::default() },
    };
    if target.address.is_empty() {
        target.address = OWN.to_owned();
    }
    target.request_id = envelope.target_request_id;
    let sender =
        sender.map(|sender| Pid { request_id: envelope.sender_request_id, ..batch.senders[sender].clone() });
    let type_name = batch.type_names[type_name].clone();
    // What is checked of texts is the same for everything that is sent, so a builder has the last word on them.
    let mut fields = envelope.clone();
    fields.message_header = fields.message_header.filter(|header| !header.header_data.is_empty());
    if sender.is_none() {
        fields.sender_request_id = 0;
    }
    let sent = Envelope {
        target: PidRef::from(&target),
        sender: sender.as_ref().map(PidRef::from),
        type_name: &type_name,
        serializer: Serializer::Protobuf,
        payload: Bytes::new(),
        headers: fields.message_header.as_ref().map(|header| &header.header_data),
    };
    match BatchBuilder::new(Dialect::A).push(&sent) {
        Ok(Push::Added) => Ok((fields, type_name, target, sender, places)),
        Err(synod_wire::UnsendableMessage::Invalid(fault)) => Err(EnvelopeError::Invalid(fault)),
        other => panic!("{other:?}"),
    }
}

// ---- The writer ----

proptest! {
    #[test]
    fn what_is_written_is_what_prost_writes(
        older in any::<bool>(),
        letters in prop::collection::vec(
            (
                ("h:[12]", "[a-z]{1,2}", 0..300_u32),
                prop::option::of(("h:[12]", "[a-z]{1,2}", any::<u32>())),
                "test\\.[A-Z]",
                prop::collection::vec(any::<u8>(), 0..200),
                prop::collection::btree_map("[a-c]?", "\\PC{0,3}", 0..3),
                any::<bool>(),
            ),
            1..200,
        ),
    ) {
        let mut builder = BatchBuilder::new(if older { Dialect::A } else { Dialect::B });
        // Twice, so that the second batch finds what the first left behind.
        for letters in [&letters[letters.len() / 2..], &letters[..]] {
            for (target, sender, type_name, payload, headers, json) in letters {
                let pid = |(address, id, request_id): &(String, String, u32)| {
                    Pid { address: address.clone(), id: id.clone(), request_id: *request_id }
                };
                let (target, sender) = (pid(target), sender.as_ref().map(pid));
                let envelope = Envelope {
                    target: PidRef::from(&target),
                    sender: sender.as_ref().map(PidRef::from),
                    type_name,
                    serializer: if *json { Serializer::Json } else { Serializer::Protobuf },
                    payload: Bytes::copy_from_slice(payload),
                    headers: Some(headers),
                };
                prop_assert_eq!(builder.push(&envelope), Ok(Push::Added));
            }
            prop_assert_eq!(builder.len(), letters.len());
            let promised = builder.frame_bytes();
            let frame = builder.finish_frame().unwrap();
            prop_assert_eq!(frame.len(), promised);
            prop_assert_eq!(builder.frame_bytes(), 0);
            prop_assert_eq!(RemoteMessage::decode(frame.clone()).unwrap().encode_to_vec(), &frame[..]);

            // No name stands in a table twice, however many there are.
            let Some(MessageType::MessageBatch(mut batch)) = RemoteMessage::decode(frame).unwrap().message_type else {
                panic!("not a batch")
            };
            let entries = (batch.targets.len(), batch.type_names.len(), batch.senders.len());
            batch.targets.sort();
            batch.targets.dedup();
            batch.type_names.sort();
            batch.type_names.dedup();
            batch.senders.sort_by(|one, other| (&one.address, &one.id).cmp(&(&other.address, &other.id)));
            batch.senders.dedup();
            prop_assert_eq!(entries, (batch.targets.len(), batch.type_names.len(), batch.senders.len()));
        }
    }
}

// ---- Protobuf by hand ----

fn varint(value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(value, &mut bytes);
    bytes
}

fn key(number: u32, kind: u32) -> Vec<u8> {
    varint(u64::from(number << 3 | kind))
}

fn delimited(number: u32, content: &[u8]) -> Vec<u8> {
    [key(number, 2), varint(content.len() as u64), content.to_vec()].concat()
}
