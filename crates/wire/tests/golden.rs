//! The bytes of a Go node, letter by letter.
//!
//! Every vector was written out by hand from the field numbers of protoactor-go, in the order in which Go writes them.
//! Each is decoded and compared, and encoded and compared: a change of a field number, a name or a default shows here
//! before it shows in a cluster.
//!
//! The Rust node is `rustA` at 127.0.0.1:9090, the Go node is `goA` at 127.0.0.1:8080.

use std::collections::BTreeMap;
use std::fmt::Debug;

use bytes::Bytes;
use prost::Message;
use synod_wire::actor::{DeadLetterResponse, Pid, Terminated, TerminatedReason, Watch};
use synod_wire::cluster::{
    ActivationRequest, ActivationResponse, ActorStatistics, ClusterIdentity, GossipKeyValue,
    GossipMemberState, GossipRequest, GossipResponse, GossipState, GrainRequest, Member, MemberHeartbeat,
};
use synod_wire::remote::connect_request::ConnectionType;
use synod_wire::remote::{ConnectResponse, RemoteMessage, ServerConnection};
use synod_wire::{BatchBuilder, Dialect, Envelope, Frame, Payload, PidRef, Push, names, payload};

const RUST: &str = "127.0.0.1:9090";
const GO: &str = "127.0.0.1:8080";

#[test]
fn connect_request() {
    let connection = ServerConnection {
        member_id: "rustA".into(),
        address: RUST.into(),
        block_list: Vec::new(),
        runtime: String::new(),
        call_schemas: Vec::new(),
    };
    control_frame(
        "121912170a057275737441120e3132372e302e302e313a39303930",
        &RemoteMessage::connect(connection.clone()).unwrap(),
        &Frame::Connect(ConnectionType::ServerConnection(connection)),
    );
}

#[test]
fn connect_request_with_block_list_of_dialect_b() {
    let connection = ServerConnection {
        member_id: "rustA".into(),
        address: RUST.into(),
        block_list: vec!["dead1".into()],
        runtime: String::new(),
        call_schemas: Vec::new(),
    };
    control_frame(
        "1220121e0a057275737441120e3132372e302e302e313a393039301a056465616431",
        &RemoteMessage::connect(connection.clone()).unwrap(),
        &Frame::Connect(ConnectionType::ServerConnection(connection)),
    );
}

#[test]
fn connect_response() {
    let response = ConnectResponse {
        member_id: "goA".into(),
        blocked: false,
        runtime: String::new(),
        call_schemas: Vec::new(),
    };
    control_frame(
        "1a051203676f41",
        &RemoteMessage::connected(response.clone()).unwrap(),
        &Frame::Connected(response),
    );
}

#[test]
fn connect_response_to_a_blocked_peer() {
    let response = ConnectResponse {
        member_id: "goA".into(),
        blocked: true,
        runtime: String::new(),
        call_schemas: Vec::new(),
    };
    control_frame(
        "1a071203676f411801",
        &RemoteMessage::connected(response.clone()).unwrap(),
        &Frame::Connected(response),
    );
}

#[test]
fn disconnect_request() {
    control_frame("2200", &RemoteMessage::disconnect(), &Frame::Disconnect);
}

#[test]
fn batch_of_dialect_a() {
    batch_with_activation_request(
        Dialect::A,
        "0a720a19636c75737465722e41637469766174696f6e5265717565737412250a0e3132372e302e302e313a39303930121370617274\
         6974696f6e2d616374697661746f721a12120e0a0c0a03616263120548656c6c6f2001221a0a0e3132372e302e302e313a38303830\
         12086675747572652431",
    );
}

#[test]
fn batch_of_dialect_b() {
    batch_with_activation_request(
        Dialect::B,
        "0a600a19636c75737465722e41637469766174696f6e526571756573741213706172746974696f6e2d616374697661746f721a1212\
         0e0a0c0a03616263120548656c6c6f2001221a0a0e3132372e302e302e313a3830383012086675747572652431",
    );
}

#[test]
fn activation_request() {
    message("0a0c0a03616263120548656c6c6f", &hello_activation());
}

#[test]
fn activation_response() {
    message(
        "0a2b0a0e3132372e302e302e313a393039301219706172746974696f6e2d616374697661746f722f6162632431",
        &ActivationResponse {
            pid: Some(pid(RUST, "partition-activator/abc$1")),
            failed: false,
            topology_hash: 0,
        },
    );
}

#[test]
fn activation_response_that_failed() {
    message("1001", &ActivationResponse { pid: None, failed: true, topology_hash: 0 });
}

#[test]
fn grain_request() {
    message(
        "12070a05576f726c64",
        &GrainRequest {
            method_index: 0,
            message_data: Bytes::from_static(b"\x0a\x05World"),
            message_type_name: String::new(),
        },
    );
}

#[test]
fn gossip_request() {
    let heartbeat = MemberHeartbeat { actor_statistics: Some(ActorStatistics::default()) };
    let value = GossipKeyValue {
        sequence_number: 7,
        value: Some(payload::encode_any(&heartbeat).unwrap()),
        local_timestamp_unix_milliseconds: 1_700_000_000_000,
    };
    let values = BTreeMap::from([(names::GOSSIP_KEY_HEARTBEAT.to_owned(), value.clone())]);
    let members = BTreeMap::from([("rustA".to_owned(), GossipMemberState { values })]);
    message(
        "0a560a540a057275737441124b0a490a09686561727462656174123c100722310a2b747970652e676f6f676c65617069732e636f6d\
         2f636c75737465722e4d656d62657248656172746265617412020a002880d095ffbc311203676f41",
        &GossipRequest { state: Some(GossipState { members }), member_id: "goA".into() },
    );

    // The value inside comes back as the message that it is.
    assert_eq!(payload::decode_any::<MemberHeartbeat>(&value.value.unwrap()), Ok(heartbeat));
}

#[test]
fn gossip_response_is_empty() {
    message("", &GossipResponse { state: None });
}

#[test]
fn dead_letter_response() {
    message(
        "0a160a0e3132372e302e302e313a3930393012046e6f7065",
        &DeadLetterResponse { target: Some(pid(RUST, "nope")) },
    );
}

#[test]
fn terminated() {
    message(
        "0a130a0e3132372e302e302e313a393039301201781002",
        &Terminated { who: Some(pid(RUST, "x")), why: TerminatedReason::NotFound.into() },
    );
}

#[test]
fn watch() {
    message("0a140a0e3132372e302e302e313a3830383012022435", &Watch { watcher: Some(pid(GO, "$5")) });
}

#[test]
fn member() {
    let member = Member {
        host: "127.0.0.1".into(),
        port: 9090,
        id: "rustA".into(),
        kinds: vec!["Hello".into(), names::KIND_TOPIC.into()],
    };
    let bytes = hex("0a093132372e302e302e311082471a057275737441220548656c6c6f220a70726f746f746f706963");
    assert_eq!(Member::decode(bytes.clone()), Ok(member.clone()));
    assert_eq!(member.encode_to_vec(), bytes);
}

#[test]
fn map_entries_may_lack_what_is_empty() {
    // Go writes both halves of a map entry; other writers leave out an empty one.
    let bare = payload::decode::<GossipRequest>(hex("0a020a00")).unwrap();
    let members = bare.state.unwrap().members;
    assert_eq!(members, BTreeMap::from([(String::new(), GossipMemberState::default())]));
}

// ---- What the tests have in common ----

fn control_frame(golden: &str, message: &RemoteMessage, frame: &Frame) {
    let bytes = hex(golden);
    assert_eq!(Frame::decode(bytes.clone()).as_ref(), Ok(frame));
    assert_eq!(message.encode_to_vec(), bytes);
}

fn batch_with_activation_request(dialect: Dialect, golden: &str) {
    let bytes = hex(golden);
    let request = Envelope::new(
        PidRef::new(RUST, names::ACTOR_PARTITION_ACTIVATOR),
        names::ACTIVATION_REQUEST,
        payload::encode(&hello_activation()).unwrap(),
    )
    .with_sender(PidRef::new(GO, "future$1"));

    // Reading: the dialect is recognised, and the one envelope has all its names back.
    let Frame::Batch(batch) = Frame::decode(bytes.clone()).unwrap() else { panic!("not a batch") };
    assert_eq!(batch.dialect(), Some(dialect));
    assert_eq!(batch.envelopes(RUST).collect::<Vec<_>>(), [Ok(request.clone())]);

    // Writing: the same bytes as Go.
    let mut builder = BatchBuilder::new(dialect);
    assert_eq!(builder.push(&request), Ok(Push::Added));
    assert_eq!(builder.finish_frame().unwrap(), bytes);
}

fn message<M: Payload + PartialEq + Debug>(golden: &str, message: &M) {
    let bytes = hex(golden);
    assert_eq!(payload::decode::<M>(bytes.clone()).as_ref(), Ok(message));
    assert_eq!(payload::encode(message), Ok(bytes));
}

fn hello_activation() -> ActivationRequest {
    let hello = ClusterIdentity { identity: "abc".into(), kind: "Hello".into() };
    ActivationRequest { cluster_identity: Some(hello), request_id: String::new(), topology_hash: 0 }
}

fn pid(address: &str, id: &str) -> Pid {
    PidRef::new(address, id).to_pid()
}

fn hex(text: &str) -> Bytes {
    let digits: Vec<u8> =
        text.chars().map(|digit| u8::try_from(digit.to_digit(16).unwrap()).unwrap()).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}
