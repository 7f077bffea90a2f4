//! Targets in `synod-wire`: everything that a peer can send.

use std::collections::BTreeMap;
use std::fmt::Debug;

use bytes::Bytes;
use prost::Message;
use prost_types::Any;
use synod_wire::remote::remote_message::MessageType;
use synod_wire::remote::{ConnectRequest, MessageBatch, MessageEnvelope, RemoteMessage};
use synod_wire::{
    BatchBuilder, Dialect, Envelope, Frame, FrameError, Payload, PayloadError, PidRef, Serializer,
    UnsendableMessage, actor, cluster, names, payload, remote,
};

use crate::seeds;

/// A frame, and every envelope of it.
pub(super) fn frame(input: &[u8]) {
    match Frame::decode(Bytes::copy_from_slice(input)) {
        Ok(Frame::Batch(batch)) => {
            let envelopes = batch.envelopes(OWN);
            assert_eq!(envelopes.len(), batch.len());
            for envelope in envelopes {
                match envelope {
                    Ok(envelope) => assert!(!envelope.target.id.is_empty() && !envelope.type_name.is_empty()),
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
        }
        Ok(_) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// What is read can be sent on in either dialect, and is then read as the same.
pub(super) fn round_trip(input: &[u8]) {
    let Ok(frame) = Frame::decode(Bytes::copy_from_slice(input)) else { return };
    let again = |message: RemoteMessage| Frame::decode(message.encode_to_vec().into());
    match &frame {
        Frame::Batch(batch) => {
            let envelopes: Vec<_> = batch.envelopes(OWN).flatten().collect();
            for dialect in [Dialect::A, Dialect::B] {
                send_on(&envelopes, dialect, batch.dialect());
            }
        }
        Frame::Connect(connection) => {
            let request = ConnectRequest { connection_type: Some(connection.clone()) };
            assert_eq!(again(MessageType::ConnectRequest(request).into()).as_ref(), Ok(&frame));
        }
        Frame::Connected(response) => {
            let message = RemoteMessage::connected(response.clone()).expect("it was accepted");
            assert_eq!(again(message).as_ref(), Ok(&frame));
        }
        Frame::Disconnect => assert_eq!(again(RemoteMessage::disconnect()), Ok(Frame::Disconnect)),
    }
}

fn send_on(envelopes: &[Envelope<'_>], dialect: Dialect, received: Option<Dialect>) {
    let sent = BatchBuilder::split(dialect, envelopes.iter().cloned());
    for (_, error) in &sent.refused {
        // Only an id that arrived inside a PID can look like one.
        let is_ambiguous = matches!(error, UnsendableMessage::AmbiguousTarget { .. });
        assert!(is_ambiguous && (dialect, received) == (Dialect::B, Some(Dialect::A)), "{error}");
    }
    let refused: Vec<usize> = sent.refused.iter().map(|(position, _)| *position).collect();
    let mut expected =
        envelopes.iter().enumerate().filter(|(position, _)| refused.binary_search(position).is_err());
    for frame in sent.frames {
        let Ok(Frame::Batch(batch)) = Frame::decode(frame) else { panic!("what was sent is no batch") };
        assert_eq!(batch.dialect(), Some(dialect));
        for read in batch.envelopes(OWN) {
            let (_, envelope) = expected.next().expect("no more envelopes than were sent");
            let mut envelope = envelope.clone();
            if dialect == Dialect::B {
                envelope.target.address = OWN;
            }
            assert_eq!(read, Ok(envelope));
        }
    }
    assert_eq!(expected.next(), None, "an envelope was lost");
}

/// Targets of a batch, one after the other with a length before each. The dialect is that of the batch, and what is
/// taken for a PID is what a protobuf decoder reads.
pub(super) fn dialect(input: &[u8]) {
    let (mut targets, mut rest) = (Vec::new(), input);
    // More would only take longer: each target is looked at by itself.
    while let Some((length, behind)) = rest.split_first().filter(|_| targets.len() < 64) {
        let (target, behind) = behind.split_at(behind.len().min((*length).into()));
        targets.push(Bytes::copy_from_slice(target));
        rest = behind;
    }
    let dialect = Dialect::of_targets(&targets);

    let envelope = |target| MessageEnvelope { target: target as i32, ..MessageEnvelope::default() };
    let frame = RemoteMessage::from(MessageBatch {
        type_names: vec![names::TOUCH.into()],
        envelopes: (0..targets.len()).map(envelope).collect(),
        targets: targets.clone(),
        ..MessageBatch::default()
    });
    match Frame::decode(frame.encode_to_vec().into()) {
        Ok(Frame::Batch(batch)) => {
            assert_eq!(dialect, Ok(batch.dialect()));
            for (opened, target) in batch.envelopes(OWN).zip(&targets) {
                let Ok(opened) = opened else { continue };
                let pid = match batch.dialect() {
                    Some(Dialect::A) => actor::Pid::decode(target.clone()).expect("it was taken for a PID"),
                    _ => PidRef::new("", str::from_utf8(target).expect("it was taken for text")).to_pid(),
                };
                let address = if pid.address.is_empty() { OWN } else { &pid.address };
                assert_eq!((opened.target.address, opened.target.id), (address, pid.id.as_str()));
            }
        }
        Err(FrameError::Dialect(error)) => assert_eq!(dialect, Err(error)),
        other => panic!("{other:?}"),
    }

    for target in targets.iter().filter(|target| !target.is_empty()) {
        let Ok(id) = String::from_utf8(target.to_vec()) else { continue };
        let target = Some(actor::Pid { id, ..actor::Pid::default() });
        let is_pid =
            Dialect::of_targets(&[target.as_ref().map_or(Bytes::new(), |pid| pid.id.clone().into())]);
        let was_misread = Dialect::was_misread(&actor::DeadLetterResponse { target });
        assert_eq!(was_misread, is_pid == Ok(Some(Dialect::A)));
    }
}

/// A message of the type that the first byte chooses.
pub(super) fn payload(input: &[u8]) {
    let Some((chosen, bytes)) = input.split_first() else { return };
    PAYLOADS[usize::from(*chosen) % PAYLOADS.len()](bytes);
}

/// A gossip value: only the type that it says it is will read it.
pub(super) fn any(input: &[u8]) {
    let Ok(any) = Any::decode(input) else { return };
    let readers = ANYS.iter().filter(|read| read(&any)).count();
    assert!(readers <= 1, "{readers} types read a {}", any.type_url);
}

/// What is read can be written and read again, and is the same.
fn read_payload<M: Payload + PartialEq + Debug>(bytes: &[u8]) {
    let message = match payload::decode::<M>(Bytes::copy_from_slice(bytes)) {
        Ok(message) => message,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    match payload::encode(&message) {
        Ok(written) => assert_eq!(payload::decode::<M>(written).as_ref(), Ok(&message)),
        // A Go node may gossip about a member without values, and must not be sent one.
        Err(PayloadError::EmptyMember { .. }) => {}
        Err(error) => panic!("{error}: {message:?}"),
    }
}

/// Whether a gossip value is of this type.
fn read_any<M: Payload + PartialEq + Debug>(any: &Any) -> bool {
    match payload::decode_any::<M>(any) {
        Ok(message) => {
            assert!(any.type_url.ends_with(&M::full_name()));
            if let Ok(written) = payload::encode_any(&message) {
                assert_eq!(payload::decode_any::<M>(&written), Ok(message));
            }
            true
        }
        Err(PayloadError::WrongType { .. }) => false,
        Err(error) => {
            assert!(any.type_url.ends_with(&M::full_name()) && !error.to_string().is_empty());
            true
        }
    }
}

macro_rules! payloads {
    ($($message:ty => $name:ident),* $(,)?) => {
        const PAYLOADS: &[fn(&[u8])] = &[$(read_payload::<$message>),*];
        const ANYS: &[fn(&Any) -> bool] = &[$(read_any::<$message>),*];
        /// The names of the messages that are fuzzed.
        pub const PAYLOAD_NAMES: &[&str] = &[$(names::$name),*];
    };
}

payloads!(
    actor::Watch => WATCH,
    actor::Unwatch => UNWATCH,
    actor::Terminated => TERMINATED,
    actor::Stop => STOP,
    actor::PoisonPill => POISON_PILL,
    actor::Touch => TOUCH,
    actor::Touched => TOUCHED,
    actor::DeadLetterResponse => DEAD_LETTER_RESPONSE,
    remote::ActorPidRequest => ACTOR_PID_REQUEST,
    remote::ActorPidResponse => ACTOR_PID_RESPONSE,
    cluster::GossipRequest => GOSSIP_REQUEST,
    cluster::GossipResponse => GOSSIP_RESPONSE,
    cluster::GossipMap => GOSSIP_MAP,
    cluster::ClusterTopology => CLUSTER_TOPOLOGY,
    cluster::MemberHeartbeat => MEMBER_HEARTBEAT,
    cluster::ActivationRequest => ACTIVATION_REQUEST,
    cluster::ActivationResponse => ACTIVATION_RESPONSE,
    cluster::ActivationTerminated => ACTIVATION_TERMINATED,
    cluster::GrainRequest => GRAIN_REQUEST,
    cluster::GrainResponse => GRAIN_RESPONSE,
    cluster::GrainErrorResponse => GRAIN_ERROR_RESPONSE,
    cluster::Initialize => INITIALIZE,
    cluster::Acknowledge => ACKNOWLEDGE,
    cluster::Subscribers => SUBSCRIBERS,
    cluster::SubscribeRequest => SUBSCRIBE_REQUEST,
    cluster::SubscribeResponse => SUBSCRIBE_RESPONSE,
    cluster::UnsubscribeRequest => UNSUBSCRIBE_REQUEST,
    cluster::UnsubscribeResponse => UNSUBSCRIBE_RESPONSE,
    cluster::PubSubBatchTransport => PUB_SUB_BATCH_TRANSPORT,
    cluster::DeliverBatchRequestTransport => DELIVER_BATCH_REQUEST_TRANSPORT,
    cluster::PubSubAutoRespondBatchTransport => PUB_SUB_AUTO_RESPOND_BATCH_TRANSPORT,
    cluster::PublishResponse => PUBLISH_RESPONSE,
    cluster::NotifyAboutFailingSubscribersRequest => NOTIFY_ABOUT_FAILING_SUBSCRIBERS_REQUEST,
    cluster::NotifyAboutFailingSubscribersResponse => NOTIFY_ABOUT_FAILING_SUBSCRIBERS_RESPONSE,
    () => EMPTY,
);

// ---- Seeds ----

/// The golden vectors, and batches with everything that an envelope can have.
pub(super) fn frames() -> Vec<Vec<u8>> {
    let headers = BTreeMap::from([("trace".to_owned(), "1".to_owned()), ("b".to_owned(), String::new())]);
    let sender = PidRef { request_id: 9, ..PidRef::new(PEER, "future$1") };
    let touch = Envelope::new(PidRef::new(OWN, "greeter"), names::TOUCH, Bytes::new()).with_sender(sender);
    let stop = Envelope::new(PidRef::new(OWN, "old"), names::STOP, Bytes::new());
    let json = Envelope {
        serializer: Serializer::Json,
        headers: Some(&headers),
        payload: Bytes::from_static(b"{}"),
        ..stop.clone()
    };
    let mut frames = seeds::golden();
    for dialect in [Dialect::A, Dialect::B] {
        for messages in [vec![touch.clone()], vec![touch.clone(), stop.clone(), json.clone(), touch.clone()]]
        {
            frames.extend(BatchBuilder::split(dialect, messages).frames.iter().map(|frame| frame.to_vec()));
        }
    }
    frames
}

/// Targets of dialect A, of dialect B, and of both.
pub(super) fn target_tables() -> Vec<Vec<u8>> {
    let pid = PidRef { request_id: 3, ..PidRef::new(PEER, "x") }.to_pid().encode_to_vec();
    let table = |targets: &[&[u8]]| {
        targets.iter().flat_map(|target| [&[target.len() as u8], *target].concat()).collect()
    };
    vec![table(&[&pid, b""]), table(&[b"greeter", b"", b"$pubsub-delivery"]), table(&[b"greeter", &pid])]
}

/// Every golden vector as every type: those that fit are found out by trying.
pub(super) fn payloads() -> Vec<Vec<u8>> {
    let types = 0..PAYLOADS.len();
    let golden = seeds::golden();
    types
        .flat_map(|chosen| golden.iter().map(move |bytes| [&[chosen as u8], bytes.as_slice()].concat()))
        .collect()
}

/// Every golden vector as every type.
pub(super) fn anys() -> Vec<Vec<u8>> {
    let golden = seeds::golden();
    let any = |name: &&str, value: &Vec<u8>| Any {
        type_url: format!("{}{name}", names::TYPE_URL_PREFIX),
        value: value.clone(),
    };
    PAYLOAD_NAMES
        .iter()
        .flat_map(|name| golden.iter().map(move |value| any(name, value).encode_to_vec()))
        .collect()
}

const OWN: &str = "127.0.0.1:9090";
const PEER: &str = "127.0.0.1:8080";
