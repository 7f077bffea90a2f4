//! No bytes whatsoever make a decoder panic.
//!
//! Plain noise rarely gets past the first field, so two more kinds of bytes are tried: messages of random fields nested
//! in each other, and good frames with something changed in the middle.

use bytes::Bytes;
use proptest::prelude::*;
use synod_wire::{
    BatchBuilder, Dialect, Envelope, Frame, Payload, PidRef, Push, actor, cluster, membership, names,
    payload, remote,
};

const OWN: &str = "127.0.0.1:9090";

fn noise() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

/// Fields with the numbers that the messages use, with content of every kind and further fields inside.
fn nested_fields() -> impl Strategy<Value = Vec<u8>> {
    let varint = any::<i64>().prop_map(|number| {
        let mut bytes = Vec::new();
        prost::encoding::encode_varint(number.cast_unsigned(), &mut bytes);
        bytes
    });
    let leaf = prop_oneof![
        (1..9_u8, varint).prop_map(|(number, value)| [vec![number << 3], value].concat()),
        (1..9_u8, "\\PC{0,8}").prop_map(|(number, text)| delimited(number, text.as_bytes())),
        (1..9_u8, noise()).prop_map(|(number, bytes)| delimited(number, &bytes)),
        (1..9_u8, 0..8_u8, noise())
            .prop_map(|(number, kind, bytes)| [vec![number << 3 | kind], bytes].concat()),
    ];
    leaf.prop_recursive(6, 60, 5, |inner| {
        prop::collection::vec((1..9_u8, inner), 1..5).prop_map(|fields| {
            fields.iter().flat_map(|(number, content)| delimited(*number, content)).collect()
        })
    })
}

/// A good frame of either dialect with one stretch of it replaced.
fn spoilt_frames() -> impl Strategy<Value = Vec<u8>> {
    let spoil = (any::<prop::sample::Index>(), 0..4_usize, prop::collection::vec(any::<u8>(), 0..4));
    (any::<bool>(), prop::collection::vec(spoil, 0..4)).prop_map(|(older, spoils)| {
        let mut bytes = good_frame(if older { Dialect::A } else { Dialect::B });
        for (start, removed, inserted) in spoils {
            let start = start.index(bytes.len());
            let end = (start + removed).min(bytes.len());
            bytes.splice(start..end, inserted);
            if bytes.is_empty() {
                break;
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn noise_panics_nobody(bytes in noise()) {
        read_as_everything(&bytes);
    }

    #[test]
    fn nested_fields_panic_nobody(bytes in nested_fields()) {
        read_as_everything(&bytes);
    }

    #[test]
    fn spoilt_frames_panic_nobody(bytes in spoilt_frames()) {
        read_as_everything(&bytes);
    }
}

fn read_as_everything(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    read_as_frame(bytes.clone());
    // What is inside a frame has less in its way.
    read_as_frame(delimited(1, &bytes).into());
    read_as_frame(delimited(2, &bytes).into());
    read_as_frame(
        delimited(1, &[delimited(2, &bytes), delimited(3, &bytes), delimited(4, &bytes)].concat()).into(),
    );

    read_as::<actor::Watch>(&bytes);
    read_as::<actor::Unwatch>(&bytes);
    read_as::<actor::Terminated>(&bytes);
    read_as::<actor::DeadLetterResponse>(&bytes);
    read_as::<actor::Touched>(&bytes);
    read_as::<remote::ActorPidRequest>(&bytes);
    read_as::<remote::ActorPidResponse>(&bytes);
    read_as::<cluster::GossipRequest>(&bytes);
    read_as::<cluster::GossipResponse>(&bytes);
    read_as::<cluster::GossipMap>(&bytes);
    read_as::<cluster::ClusterTopology>(&bytes);
    read_as::<cluster::MemberHeartbeat>(&bytes);
    read_as::<cluster::ActivationRequest>(&bytes);
    read_as::<cluster::ActivationResponse>(&bytes);
    read_as::<cluster::ActivationTerminated>(&bytes);
    read_as::<cluster::GrainRequest>(&bytes);
    read_as::<cluster::GrainErrorResponse>(&bytes);
    read_as::<cluster::Initialize>(&bytes);
    read_as::<cluster::Subscribers>(&bytes);
    read_as::<cluster::SubscribeRequest>(&bytes);
    read_as::<cluster::UnsubscribeRequest>(&bytes);
    read_as::<cluster::PubSubBatchTransport>(&bytes);
    read_as::<cluster::PubSubAutoRespondBatchTransport>(&bytes);
    read_as::<cluster::DeliverBatchRequestTransport>(&bytes);
    read_as::<cluster::PublishResponse>(&bytes);
    read_as::<cluster::NotifyAboutFailingSubscribersRequest>(&bytes);
    read_as::<membership::Message>(&bytes);
}

fn read_as_frame(bytes: Bytes) {
    match Frame::decode(bytes) {
        Ok(Frame::Batch(batch)) => {
            // Whatever is opened without an error can be sent on, in the dialect in which it came.
            let mut builder = BatchBuilder::new(batch.dialect().unwrap_or_default());
            for envelope in batch.envelopes(OWN).flatten() {
                assert_eq!(builder.push(&envelope), Ok(Push::Added));
            }
        }
        Ok(_) => {}
        // Every error can be told.
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn read_as<M: Payload>(bytes: &Bytes) {
    match payload::decode::<M>(bytes.clone()) {
        Ok(message) => assert!(message.encoded_len() <= 2 * bytes.len() + 64),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn good_frame(dialect: Dialect) -> Vec<u8> {
    let sender = PidRef { request_id: 9, ..PidRef::new("127.0.0.1:8080", "future$1") };
    let touch = Envelope::new(PidRef::new(OWN, "greeter"), names::TOUCH, Bytes::new()).with_sender(sender);
    let stop = Envelope::new(PidRef::new(OWN, "old"), names::STOP, Bytes::new());
    let mut frames = BatchBuilder::split(dialect, [touch, stop]).frames;
    frames.remove(0).to_vec()
}

fn delimited(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encode_length_delimiter(content.len(), &mut bytes).unwrap();
    bytes.extend(content);
    bytes
}
