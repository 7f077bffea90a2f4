//! What a broken or hostile peer sends, and the error that says so.
//!
//! A frame that cannot be understood is refused as a whole. An envelope that cannot be delivered costs only itself: each
//! test of one puts a good envelope behind the bad one and expects it to arrive.

use bytes::Bytes;
use prost::Message;
use synod_wire::actor::{DeadLetterResponse, Pid, Terminated, Unwatch, Watch};
use synod_wire::cluster::{
    ActivationRequest, DeliverBatchRequestTransport, GossipMemberState, GossipRequest, GossipResponse,
    GossipState, MemberHeartbeat, NotifyAboutFailingSubscribersRequest, PubSubAutoRespondBatchTransport,
    PubSubBatchTransport, PubSubEnvelope, SubscribeRequest, SubscriberDeliveryReport, SubscriberIdentity,
    Subscribers, UnsubscribeRequest,
};
use synod_wire::remote::connect_request::ConnectionType;
use synod_wire::remote::remote_message::MessageType;
use synod_wire::remote::{
    ClientConnection, ConnectRequest, ConnectResponse, MessageBatch, MessageEnvelope, RemoteMessage,
    ServerConnection,
};
use synod_wire::{
    Dialect, DialectError, EnvelopeError, EnvelopeFault, Frame, FrameError, Payload, PayloadError, Table,
    Text, TextFault, payload,
};

const OWN: &str = "127.0.0.1:9090";

// ---- Frames ----

#[test]
fn bytes_that_are_no_message() {
    assert_eq!(Frame::decode(Bytes::from_static(&[0x0a, 0x05, 0x00])), Err(FrameError::Malformed));
    assert_eq!(Frame::decode(Bytes::from_static(&[0xff; 20])), Err(FrameError::Malformed));
}

#[test]
fn a_message_of_another_type() {
    // The batch is a number, and a type name is not UTF-8.
    for bytes in [&[0x08, 0x01][..], &[0x0a, 0x03, 0x0a, 0x01, 0xff]] {
        let error = Frame::decode(Bytes::copy_from_slice(bytes)).unwrap_err();
        assert!(matches!(error, FrameError::Undecodable(_)), "{error:?}");
    }
}

#[test]
fn a_frame_of_no_known_kind() {
    assert_eq!(Frame::decode(Bytes::new()), Err(FrameError::Unknown));
    assert_eq!(Frame::decode(Bytes::from_static(&[0x7a, 0x01, 0x78])), Err(FrameError::Unknown));
}

#[test]
fn handshakes_without_names() {
    let connect = |connection_type| decode(&MessageType::ConnectRequest(ConnectRequest { connection_type }));
    assert_eq!(connect(None), Err(FrameError::Anonymous));

    let nameless = FrameError::Handshake(TextFault::Empty { what: Text::MemberId });
    let client = ConnectionType::ClientConnection(ClientConnection::default());
    assert_eq!(connect(Some(client)), Err(nameless.clone()));
    assert_eq!(decode(&MessageType::ConnectResponse(ConnectResponse::default())), Err(nameless.clone()));

    let server = ServerConnection {
        member_id: "m".into(),
        address: "h:1".into(),
        block_list: Vec::new(),
        runtime: String::new(),
        call_schemas: Vec::new(),
    };
    for (server, error) in [
        (ServerConnection { member_id: String::new(), ..server.clone() }, nameless.clone()),
        (ServerConnection { block_list: vec![String::new()], ..server.clone() }, nameless.clone()),
        (
            ServerConnection { address: String::new(), ..server },
            FrameError::Handshake(TextFault::Empty { what: Text::MemberAddress }),
        ),
    ] {
        assert_eq!(connect(Some(ConnectionType::ServerConnection(server.clone()))), Err(error.clone()));
        // The same is refused before it is sent.
        assert_eq!(RemoteMessage::connect(server), Err(error));
    }
    assert_eq!(RemoteMessage::connected(ConnectResponse::default()), Err(nameless));
}

// ---- Batches ----

#[test]
fn a_batch_in_no_dialect() {
    let mut batch = good_batch();
    batch.targets.push(Bytes::from_static(&[0xc0, 0xff]));
    assert_eq!(receive(&batch), Err(FrameError::Dialect(DialectError::Unknown { position: 1 })));
}

#[test]
fn a_batch_in_both_dialects() {
    let mut batch = good_batch();
    batch.targets.push(Pid { address: OWN.into(), id: "y".into(), request_id: 0 }.encode_to_vec().into());
    assert_eq!(receive(&batch), Err(FrameError::Dialect(DialectError::Mixed { pid: 1, text: 0 })));
}

#[test]
fn a_batch_without_anything_is_just_empty() {
    let Ok(Frame::Batch(batch)) = receive(&MessageBatch::default()) else { panic!("not a batch") };
    assert!(batch.is_empty());
    assert_eq!(batch.dialect(), None::<Dialect>);
}

// ---- Envelopes ----

#[test]
fn indexes_behind_the_end_of_a_table() {
    for index in [1, 2, i32::MAX] {
        let out_of_range = |table, index| EnvelopeError::IndexOutOfRange { table, index, entries: 1 };
        bad_envelope(|envelope| envelope.type_id = index, &out_of_range(Table::TypeNames, index));
        bad_envelope(|envelope| envelope.target = index, &out_of_range(Table::Targets, index));
    }
    // Senders count from 1, so the only one is number 1.
    for index in [2, i32::MAX] {
        let error = EnvelopeError::IndexOutOfRange { table: Table::Senders, index, entries: 1 };
        bad_envelope(|envelope| envelope.sender = index, &error);
    }
}

#[test]
fn indexes_before_the_start_of_a_table() {
    for index in [-1, i32::MIN] {
        let negative = |table| EnvelopeError::NegativeIndex { table, index };
        bad_envelope(|envelope| envelope.type_id = index, &negative(Table::TypeNames));
        bad_envelope(|envelope| envelope.target = index, &negative(Table::Targets));
        bad_envelope(|envelope| envelope.sender = index, &negative(Table::Senders));
    }
}

#[test]
fn indexes_into_tables_that_are_not_there() {
    let batch = MessageBatch { envelopes: vec![MessageEnvelope::default()], ..MessageBatch::default() };
    let error = EnvelopeError::IndexOutOfRange { table: Table::TypeNames, index: 0, entries: 0 };
    assert_eq!(first_fault(&batch), error);
}

#[test]
fn serializers_that_nobody_registered() {
    for id in [2, -1, i32::MAX, i32::MIN] {
        bad_envelope(|envelope| envelope.serializer_id = id, &EnvelopeError::UnknownSerializer { id });
    }
}

#[test]
fn names_that_are_empty() {
    let empty = |what| EnvelopeError::Invalid(EnvelopeFault::Text(TextFault::Empty { what }));

    let mut batch = good_batch();
    batch.type_names[0] = String::new();
    assert_eq!(first_fault(&batch), empty(Text::TypeName));

    let mut batch = good_batch();
    batch.targets[0] = Bytes::new();
    assert_eq!(first_fault(&batch), empty(Text::TargetId));

    // The same in dialect A: an address without an id.
    batch.targets[0] = Pid { address: OWN.into(), ..Pid::default() }.encode_to_vec().into();
    assert_eq!(first_fault(&batch), empty(Text::TargetId));

    let mut batch = good_batch();
    batch.senders[0].id = String::new();
    assert_eq!(first_fault(&batch), empty(Text::SenderId));

    let mut batch = good_batch();
    batch.senders[0].address = String::new();
    assert_eq!(first_fault(&batch), empty(Text::SenderAddress));
}

#[test]
fn a_pid_without_address_means_the_receiver() {
    let mut batch = good_batch();
    batch.targets[0] = Pid { id: "x".into(), ..Pid::default() }.encode_to_vec().into();
    let Ok(Frame::Batch(batch)) = receive(&batch) else { panic!("not a batch") };
    assert_eq!(batch.dialect(), Some(Dialect::A));
    assert_eq!(batch.envelopes(OWN).next().unwrap().unwrap().target.address, OWN);
}

// ---- Payloads ----

#[test]
fn payloads_that_would_crash_a_go_node() {
    let nobody = Some(SubscriberIdentity { identity: None });
    incomplete(&Watch { watcher: None }, "Watcher");
    incomplete(&Unwatch { watcher: None }, "Watcher");
    incomplete(&Terminated { who: None, why: 0 }, "who");
    incomplete(&GossipRequest { state: None, member_id: "m".into() }, "state");
    incomplete(&ActivationRequest::default(), "cluster_identity");
    incomplete(&SubscribeRequest { subscriber: None }, "the identity of a subscriber");
    incomplete(&SubscribeRequest { subscriber: nobody.clone() }, "the identity of a subscriber");
    incomplete(&UnsubscribeRequest { subscriber: nobody.clone() }, "the identity of a subscriber");
    incomplete(
        &Subscribers { subscribers: vec![SubscriberIdentity::default()] },
        "the identity of a subscriber",
    );
    let report = SubscriberDeliveryReport { subscriber: nobody, status: 1 };
    let notify = NotifyAboutFailingSubscribersRequest { invalid_deliveries: vec![report] };
    incomplete(&notify, "the identity of a subscriber");

    let batch = Some(PubSubBatchTransport::default());
    incomplete(&DeliverBatchRequestTransport { batch, ..Default::default() }, "subscribers");
    let subscribers = Some(Subscribers::default());
    incomplete(&DeliverBatchRequestTransport { subscribers, ..Default::default() }, "batch");
}

#[test]
fn a_gossiped_member_without_values_is_read_but_not_sent() {
    let members = [("m".to_owned(), GossipMemberState::default())].into();
    let request = GossipRequest { state: Some(GossipState { members }), member_id: "n".into() };
    let bytes = Bytes::from(request.encode_to_vec());
    assert_eq!(payload::decode::<GossipRequest>(bytes).as_ref(), Ok(&request));

    let error =
        |type_name: &str| PayloadError::EmptyMember { type_name: type_name.into(), member_id: "m".into() };
    assert_eq!(payload::encode(&request), Err(error("cluster.GossipRequest")));
    let response = GossipResponse { state: request.state };
    assert_eq!(payload::encode(&response), Err(error("cluster.GossipResponse")));
}

#[test]
fn published_messages_outside_their_tables() {
    let published = |type_id, serializer_id| PubSubBatchTransport {
        type_names: vec!["test.A".into(), String::new()],
        envelopes: vec![PubSubEnvelope { type_id, message_data: Bytes::new(), serializer_id }],
    };
    assert!(payload::encode(&published(0, 1)).is_ok());
    for index in [1, 2, -1, i32::MIN, i32::MAX] {
        let type_name = "cluster.PubSubBatchTransport".to_owned();
        both_ways(&published(index, 0), &PayloadError::TypeIndex { type_name, index, entries: 2 });
    }
    for id in [2, -1] {
        let type_name = "cluster.PubSubBatchTransport".to_owned();
        both_ways(&published(0, id), &PayloadError::UnknownSerializer { type_name, id });
    }

    // The same batch on its way to a subscriber, and on its way to a node of subscribers.
    let batch = published(9, 0);
    let type_name = "cluster.DeliverBatchRequestTransport".to_owned();
    let deliver = DeliverBatchRequestTransport {
        subscribers: Some(Subscribers::default()),
        batch: Some(batch.clone()),
        topic: "t".into(),
    };
    both_ways(&deliver, &PayloadError::TypeIndex { type_name, index: 9, entries: 2 });
    let type_name = "cluster.PubSubAutoRespondBatchTransport".to_owned();
    let auto = PubSubAutoRespondBatchTransport { type_names: batch.type_names, envelopes: batch.envelopes };
    both_ways(&auto, &PayloadError::TypeIndex { type_name, index: 9, entries: 2 });
}

#[test]
fn payloads_that_are_not_what_they_are_called() {
    // Cut off in the middle of its state.
    let type_name = "cluster.GossipRequest".to_owned();
    let cut = Bytes::from_static(&[0x0a, 0x09, 0x0a]);
    assert_eq!(payload::decode::<GossipRequest>(cut), Err(PayloadError::Malformed { type_name }));

    // A PID whose address is a number.
    let error =
        payload::decode::<DeadLetterResponse>(Bytes::from_static(&[0x0a, 0x02, 0x08, 0x01])).unwrap_err();
    assert!(matches!(error, PayloadError::Undecodable { .. }), "{error:?}");

    // A gossip value of another type.
    let left = payload::encode_any(&()).unwrap();
    let (type_name, type_url) = ("cluster.MemberHeartbeat".to_owned(), left.type_url.clone());
    let error = PayloadError::WrongType { type_name, type_url };
    assert_eq!(payload::decode_any::<MemberHeartbeat>(&left), Err(error));
    assert_eq!(payload::decode_any::<()>(&left), Ok(()));
}

#[test]
fn errors_say_who_did_what_and_what_became_of_it() {
    let mut batch = good_batch();
    batch.envelopes[0].sender = 5;
    let told = first_fault(&batch).to_string();
    assert_eq!(told, "the peer sent an envelope with sender 5 of 1; the envelope was ignored");
    batch.envelopes[0].sender = 0;
    batch.type_names[0] = String::new();
    let told = first_fault(&batch).to_string();
    assert_eq!(told, "the peer sent an envelope with an empty type name; the envelope was ignored");
}

// ---- What the tests have in common ----

/// Two envelopes of dialect B with a sender each.
fn good_batch() -> MessageBatch {
    MessageBatch {
        type_names: vec!["test.A".into()],
        targets: vec![Bytes::from_static(b"x")],
        envelopes: vec![MessageEnvelope { sender: 1, ..MessageEnvelope::default() }; 2],
        senders: vec![Pid { address: "127.0.0.1:8080".into(), id: "future$1".into(), request_id: 0 }],
    }
}

fn decode(message: &MessageType) -> Result<Frame, FrameError> {
    Frame::decode(RemoteMessage::from(message.clone()).encode_to_vec().into())
}

fn receive(batch: &MessageBatch) -> Result<Frame, FrameError> {
    decode(&MessageType::MessageBatch(batch.clone()))
}

fn first_fault(batch: &MessageBatch) -> EnvelopeError {
    let Ok(Frame::Batch(batch)) = receive(batch) else { panic!("not a batch") };
    batch.envelopes(OWN).next().unwrap().unwrap_err()
}

/// Spoils the first of two good envelopes.
fn bad_envelope(spoil: impl Fn(&mut MessageEnvelope), error: &EnvelopeError) {
    let mut batch = good_batch();
    spoil(&mut batch.envelopes[0]);
    let Ok(Frame::Batch(batch)) = receive(&batch) else { panic!("not a batch") };
    let opened: Vec<_> = batch.envelopes(OWN).collect();
    assert_eq!(opened[0].as_ref(), Err(error));
    assert_eq!(opened[1].as_ref().unwrap().target.id, "x");
}

fn incomplete<M: Payload>(message: &M, field: &'static str) {
    both_ways(message, &PayloadError::Missing { type_name: M::full_name(), field });
}

/// Neither sent nor read.
fn both_ways<M: Payload>(message: &M, error: &PayloadError) {
    assert_eq!(payload::encode(message).as_ref(), Err(error));
    assert_eq!(payload::decode::<M>(message.encode_to_vec().into()).err().as_ref(), Some(error));
}
