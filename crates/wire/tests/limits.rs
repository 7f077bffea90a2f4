//! Every bound holds: what reaches it is read, what passes it by one is refused with the error that names it.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use synod_wire::actor::Pid;
use synod_wire::cluster::{
    ClusterTopology, DeliverBatchRequestTransport, GossipMap, GossipRequest, GossipResponse,
    GrainErrorResponse, GrainRequest, MemberHeartbeat, NotifyAboutFailingSubscribersRequest,
    PubSubAutoRespondBatchTransport, PubSubBatchTransport, Subscribers,
};
use synod_wire::limits::{
    ACTOR_ID_BYTES_MAX, ADDRESS_BYTES_MAX, ENVELOPE_HEADER_BYTES_MAX, ENVELOPE_HEADERS_MAX,
    FRAME_BYTES_RECEIVED_MAX, MEMBER_ID_BYTES_MAX, PAYLOAD_BYTES_MAX, TYPE_NAME_BYTES_MAX,
};
use synod_wire::remote::{
    ConnectResponse, MessageBatch, MessageEnvelope, MessageHeader, RemoteMessage, ServerConnection,
};
use synod_wire::{
    BatchBuilder, Counted, Dialect, Envelope, EnvelopeError, EnvelopeFault, Frame, FrameError, Payload,
    PayloadError, PidRef, Push, Text, TextFault, UnsendableMessage, membership, payload,
};

const OWN: &str = "127.0.0.1:9090";

#[test]
fn everything_counted_has_a_bound_that_holds() {
    for what in Counted::ALL {
        for (place, attempt) in attempts(what) {
            assert_ne!(attempt(what.max()), Some(what), "{what:?} in {place} at the bound");
            assert_eq!(attempt(what.max() + 1), Some(what), "{what:?} in {place} above the bound");
        }
    }
}

/// Reads a message with so many elements and returns of what there were too many.
type Attempt = Box<dyn Fn(usize) -> Option<Counted>>;

/// All places where `what` is counted.
fn attempts(what: Counted) -> Vec<(&'static str, Attempt)> {
    // The path of field numbers to the list, and one element of it.
    match what {
        Counted::Envelopes => vec![frame(&[1, 3], b"")],
        Counted::TypeNames => vec![frame(&[1, 1], b"")],
        Counted::Targets => vec![frame(&[1, 2], b"")],
        Counted::Senders => vec![frame(&[1, 4], b"")],
        Counted::Headers => vec![frame(&[1, 3, 6, 1], b"")],
        Counted::BlockedMembers => vec![frame(&[2, 2, 3], b"x"), message::<ClusterTopology>(&[5], b"")],
        Counted::GossipMembers => {
            vec![message::<GossipRequest>(&[1, 1], b""), message::<GossipResponse>(&[1, 1], b"")]
        }
        Counted::GossipValues => {
            vec![message::<GossipRequest>(&[1, 1, 2, 1], b""), message::<GossipResponse>(&[1, 1, 2, 1], b"")]
        }
        Counted::GossipMapItems => vec![message::<GossipMap>(&[1], b"")],
        Counted::TopologyMembers => vec![
            message::<ClusterTopology>(&[2], b""),
            message::<ClusterTopology>(&[3], b""),
            message::<ClusterTopology>(&[4], b""),
        ],
        Counted::MemberKinds => {
            vec![message::<ClusterTopology>(&[2, 4], b""), message::<MemberHeartbeat>(&[1, 1], b"")]
        }
        Counted::PublishedMessages => vec![
            message::<PubSubBatchTransport>(&[2], b""),
            message::<PubSubAutoRespondBatchTransport>(&[2], b""),
            message::<DeliverBatchRequestTransport>(&[2, 2], b""),
        ],
        Counted::PublishedTypeNames => vec![
            message::<PubSubBatchTransport>(&[1], b""),
            message::<PubSubAutoRespondBatchTransport>(&[1], b""),
            message::<DeliverBatchRequestTransport>(&[2, 1], b""),
        ],
        Counted::Subscribers => vec![
            message::<Subscribers>(&[1], b""),
            message::<DeliverBatchRequestTransport>(&[1, 1], b""),
            message::<NotifyAboutFailingSubscribersRequest>(&[1], b""),
        ],
        Counted::GrainErrorDetails => vec![message::<GrainErrorResponse>(&[3], b"")],
        Counted::MembershipRecords => vec![
            message::<membership::Message>(&[8, 3, 3], b""),
            message::<membership::Message>(&[13, 1, 3], b""),
            message::<membership::Message>(&[15, 1, 3], b""),
        ],
        other => panic!("no test counts {other}"),
    }
}

fn frame(path: &'static [u8], element: &'static [u8]) -> (&'static str, Attempt) {
    let attempt = move |count| match Frame::decode(list(path, element, count)) {
        Err(FrameError::TooMany { what, max }) if max == what.max() => Some(what),
        _ => None,
    };
    ("a frame", Box::new(attempt))
}

fn message<M: Payload>(path: &'static [u8], element: &'static [u8]) -> (&'static str, Attempt) {
    let attempt = move |count| match payload::decode::<M>(list(path, element, count)) {
        Err(PayloadError::TooMany { what, max, .. }) if max == what.max() => Some(what),
        _ => None,
    };
    (M::NAME, Box::new(attempt))
}

/// A message with `count` elements in the list at the end of `path`.
fn list(path: &[u8], element: &[u8], count: usize) -> Bytes {
    let (last, outer) = path.split_last().unwrap();
    let content = field(*last, element).repeat(count);
    outer.iter().rev().fold(content, |content, number| field(*number, &content)).into()
}

fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encode_length_delimiter(content.len(), &mut bytes).unwrap();
    bytes.extend(content);
    bytes
}

#[test]
fn a_list_too_long_for_peers_is_not_sent_either() {
    let what = Counted::GrainErrorDetails;
    let error = |details: usize| GrainErrorResponse {
        metadata: (0..details).map(|detail| (detail.to_string(), String::new())).collect(),
        ..GrainErrorResponse::default()
    };
    assert!(payload::encode(&error(what.max())).is_ok());
    let type_name = "cluster.GrainErrorResponse".to_owned();
    let refused = PayloadError::TooMany { type_name, what, max: what.max() };
    assert_eq!(payload::encode(&error(what.max() + 1)), Err(refused));

    // The same for the block list of a handshake.
    let what = Counted::BlockedMembers;
    let connect = |blocked| {
        let block_list = vec!["m".to_owned(); blocked];
        RemoteMessage::connect(ServerConnection {
            member_id: "m".into(),
            address: OWN.into(),
            block_list,
            runtime: String::new(),
            call_schemas: Vec::new(),
        })
    };
    assert!(connect(what.max()).is_ok());
    assert_eq!(connect(what.max() + 1), Err(FrameError::TooMany { what, max: what.max() }));
}

#[test]
fn frame_bytes() {
    // An unknown field fills the frame: what is in it does not matter, only how much of it.
    let padded = |bytes: usize| {
        let overhead = field(15, &vec![0; bytes - 8]).len() - (bytes - 8);
        let frame = field(15, &vec![0; bytes - overhead]);
        assert_eq!(frame.len(), bytes);
        Frame::decode(frame.into())
    };
    assert_eq!(padded(FRAME_BYTES_RECEIVED_MAX), Err(FrameError::Unknown));
    let (bytes, max) = (FRAME_BYTES_RECEIVED_MAX + 1, FRAME_BYTES_RECEIVED_MAX);
    assert_eq!(padded(bytes), Err(FrameError::TooLarge { bytes, max }));
}

#[test]
fn payload_bytes() {
    // In an envelope.
    let open = |bytes: usize| {
        open(|batch| batch.envelopes[0].message_data = vec![0; bytes].into()).map(|payload| payload.len())
    };
    assert_eq!(open(PAYLOAD_BYTES_MAX), Ok(PAYLOAD_BYTES_MAX));
    let bytes = PAYLOAD_BYTES_MAX + 1;
    assert_eq!(open(bytes), Err(EnvelopeError::PayloadTooLarge { bytes }));

    // In the decoder of payloads, which may be called with bytes from elsewhere, and in the encoder.
    let request =
        |data: usize| GrainRequest { message_data: vec![0; data].into(), ..GrainRequest::default() };
    let overhead = request(PAYLOAD_BYTES_MAX).encoded_len() - PAYLOAD_BYTES_MAX;
    let largest = request(PAYLOAD_BYTES_MAX - overhead);
    assert_eq!(payload::decode(payload::encode(&largest).unwrap()), Ok(largest));
    let too_large = request(PAYLOAD_BYTES_MAX - overhead + 1);
    let error = PayloadError::TooLarge { type_name: "cluster.GrainRequest".into(), bytes };
    assert_eq!(payload::encode(&too_large), Err(error.clone()));
    assert_eq!(payload::decode::<GrainRequest>(too_large.encode_to_vec().into()), Err(error));
}

/// Puts a name into a batch.
type Change = fn(&mut MessageBatch, String);

#[test]
fn names_in_envelopes() {
    let cases: [(Text, usize, Change); 5] = [
        (Text::TypeName, TYPE_NAME_BYTES_MAX, |batch, name| batch.type_names[0] = name),
        (Text::TargetId, ACTOR_ID_BYTES_MAX, |batch, id| batch.targets[0] = id.into()),
        (Text::TargetAddress, ADDRESS_BYTES_MAX, |batch, address| {
            batch.targets[0] = PidRef::new(&address, "x").to_pid().encode_to_vec().into();
        }),
        (Text::SenderId, ACTOR_ID_BYTES_MAX, |batch, id| batch.senders[0].id = id),
        (Text::SenderAddress, ADDRESS_BYTES_MAX, |batch, address| batch.senders[0].address = address),
    ];
    for (what, max, set) in cases {
        assert_eq!(what.bytes_max(), max);
        assert_eq!(open(|batch| set(batch, "n".repeat(max))), Ok(Bytes::new()), "{what} at the bound");
        let fault = EnvelopeFault::Text(TextFault::TooLong { what, bytes: max + 1, max });
        assert_eq!(open(|batch| set(batch, "n".repeat(max + 1))), Err(EnvelopeError::Invalid(fault)));
    }
}

#[test]
fn names_in_envelopes_that_are_sent() {
    let long = |max: usize| "n".repeat(max + 1);
    let (name, id, address) = (long(TYPE_NAME_BYTES_MAX), long(ACTOR_ID_BYTES_MAX), long(ADDRESS_BYTES_MAX));
    let good = || Envelope::new(PidRef::new(OWN, "x"), "test.A", Bytes::new());
    for (what, envelope) in [
        (Text::TypeName, Envelope { type_name: &name, ..good() }),
        (Text::TargetId, Envelope { target: PidRef::new(OWN, &id), ..good() }),
        (Text::TargetAddress, Envelope { target: PidRef::new(&address, "x"), ..good() }),
        (Text::SenderId, good().with_sender(PidRef::new(OWN, &id))),
        (Text::SenderAddress, good().with_sender(PidRef::new(&address, "x"))),
    ] {
        let max = what.bytes_max();
        let fault = EnvelopeFault::Text(TextFault::TooLong { what, bytes: max + 1, max });
        for dialect in [Dialect::A, Dialect::B] {
            let pushed = BatchBuilder::new(dialect).push(&envelope);
            assert_eq!(pushed, Err(UnsendableMessage::Invalid(fault.clone())));
        }
    }
}

#[test]
fn names_in_handshakes() {
    let connect = |member: usize, address: usize| {
        RemoteMessage::connect(ServerConnection {
            member_id: "m".repeat(member),
            address: "a".repeat(address),
            block_list: Vec::new(),
            runtime: String::new(),
            call_schemas: Vec::new(),
        })
    };
    let longest = connect(MEMBER_ID_BYTES_MAX, ADDRESS_BYTES_MAX).unwrap();
    assert!(Frame::decode(longest.encode_to_vec().into()).is_ok());

    let too_long = |what: Text| {
        let max = what.bytes_max();
        FrameError::Handshake(TextFault::TooLong { what, bytes: max + 1, max })
    };
    assert_eq!(connect(MEMBER_ID_BYTES_MAX + 1, 1), Err(too_long(Text::MemberId)));
    assert_eq!(connect(1, ADDRESS_BYTES_MAX + 1), Err(too_long(Text::MemberAddress)));

    // Read from the wire, where nobody asked the constructor.
    let response = ConnectResponse {
        member_id: "m".repeat(MEMBER_ID_BYTES_MAX + 1),
        blocked: false,
        runtime: String::new(),
        call_schemas: Vec::new(),
    };
    let bytes = field(3, &response.encode_to_vec());
    assert_eq!(Frame::decode(bytes.into()), Err(too_long(Text::MemberId)));
    let server = ServerConnection {
        member_id: "m".into(),
        address: "a".repeat(ADDRESS_BYTES_MAX + 1),
        block_list: vec![],
        runtime: String::new(),
        call_schemas: Vec::new(),
    };
    let bytes = field(2, &field(2, &server.encode_to_vec()));
    assert_eq!(Frame::decode(bytes.into()), Err(too_long(Text::MemberAddress)));
}

#[test]
fn headers_of_an_envelope() {
    let many = |count: usize| (0..count).map(|name| (format!("{name:03}"), String::new())).collect();
    let large = |bytes: usize| BTreeMap::from([("name".to_owned(), "v".repeat(bytes - 4))]);
    let too_many = EnvelopeFault::TooManyHeaders { headers: ENVELOPE_HEADERS_MAX + 1 };
    let too_large = EnvelopeFault::HeadersTooLarge { bytes: ENVELOPE_HEADER_BYTES_MAX + 1 };
    for (headers, fault) in [
        (many(ENVELOPE_HEADERS_MAX), None),
        (many(ENVELOPE_HEADERS_MAX + 1), Some(too_many)),
        (large(ENVELOPE_HEADER_BYTES_MAX), None),
        (large(ENVELOPE_HEADER_BYTES_MAX + 1), Some(too_large)),
    ] {
        let header = Some(MessageHeader { header_data: headers.clone() });
        let opened = open(|batch| batch.envelopes[0].message_header = header.clone());
        assert_eq!(opened.err(), fault.clone().map(EnvelopeError::Invalid));

        let good = Envelope::new(PidRef::new(OWN, "x"), "test.A", Bytes::new());
        let pushed = BatchBuilder::new(Dialect::B).push(&Envelope { headers: Some(&headers), ..good });
        assert_eq!(pushed, fault.map_or(Ok(Push::Added), |fault| Err(UnsendableMessage::Invalid(fault))));
    }
}

/// Changes a good batch with one envelope, receives it, and returns the payload.
fn open(change: impl Fn(&mut MessageBatch)) -> Result<Bytes, EnvelopeError> {
    let mut batch = MessageBatch {
        type_names: vec!["test.A".into()],
        targets: vec![Bytes::from_static(b"x")],
        envelopes: vec![MessageEnvelope { sender: 1, ..MessageEnvelope::default() }],
        senders: vec![Pid { address: "127.0.0.1:8080".into(), id: "future$1".into(), request_id: 0 }],
    };
    change(&mut batch);
    match Frame::decode(RemoteMessage::from(batch).encode_to_vec().into()) {
        Ok(Frame::Batch(batch)) => batch.envelopes(OWN).next().unwrap().map(|envelope| envelope.payload),
        other => panic!("{other:?}"),
    }
}
