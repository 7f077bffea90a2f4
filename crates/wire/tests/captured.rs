//! The bytes of a Go node, as it wrote them itself.
//!
//! `interop/go/cmd/capture` lets protoactor-go of either dialect talk to a stand-in and keeps what it says. Unlike the
//! vectors of `golden.rs`, nothing here was written by hand, so a mistake in our reading of Go's sources cannot hide in
//! both places. Every vector is read completely and compared; ours are the same bytes wherever we would say the same.
//!
//! The Rust node is `rustA` at 127.0.0.1:9090, the Go node is `goA` at 127.0.0.1:8080.

use std::collections::BTreeMap;
use std::fmt::Debug;

use bytes::Bytes;
use prost::Message;
use synod_wire::actor::{DeadLetterResponse, Pid, PoisonPill, Stop, Terminated, TerminatedReason};
use synod_wire::actor::{Touch, Touched, Watch};
use synod_wire::cluster::{
    ActivationRequest, ActivationResponse, ActorStatistics, ClusterIdentity, ClusterTopology, GossipKeyValue,
    GossipMemberState, GossipRequest, GossipResponse, GossipState, Member, MemberHeartbeat,
};
use synod_wire::remote::connect_request::ConnectionType;
use synod_wire::remote::{ConnectResponse, RemoteMessage, ServerConnection};
use synod_wire::{BatchBuilder, Dialect, Envelope, Frame, Payload, PidRef, Push, names, payload};

const RUST: &str = "127.0.0.1:9090";
const GO: &str = "127.0.0.1:8080";

#[test]
fn dialect_a_is_understood_and_spoken() {
    check_all(Dialect::A, include_str!("../../../interop/go/golden-a.txt"));
}

#[test]
fn dialect_b_is_understood_and_spoken() {
    check_all(Dialect::B, include_str!("../../../interop/go/golden-b.txt"));
}

fn check_all(dialect: Dialect, captured: &str) {
    let mut names = Vec::new();
    for line in captured.lines() {
        let (name, digits) = line.split_once(' ').unwrap();
        check(dialect, name, &hex(digits));
        names.push(name);
    }
    names.sort_unstable();
    assert_eq!(names, NAMES, "each vector once, in either dialect");
}

fn check(dialect: Dialect, name: &str, bytes: &Bytes) {
    match name {
        "frame_connect_request" => {
            let connection = ServerConnection {
                member_id: "goA".into(),
                address: GO.into(),
                block_list: Vec::new(),
                runtime: String::new(),
                call_schemas: Vec::new(),
            };
            let frame = Frame::Connect(ConnectionType::ServerConnection(connection.clone()));
            control_frame(bytes, &RemoteMessage::connect(connection).unwrap(), &frame);
        }
        "frame_connect_response" | "frame_connect_response_blocked" => {
            let response = ConnectResponse {
                member_id: "goA".into(),
                blocked: name == "frame_connect_response_blocked",
                runtime: String::new(),
                call_schemas: Vec::new(),
            };
            let frame = Frame::Connected(response.clone());
            control_frame(bytes, &RemoteMessage::connected(response).unwrap(), &frame);
        }
        "frame_disconnect_request" => control_frame(bytes, &RemoteMessage::disconnect(), &Frame::Disconnect),

        "frame_batch_activation_request" => {
            let hello = ClusterIdentity { identity: "abc".into(), kind: "Hello".into() };
            let request = ActivationRequest {
                cluster_identity: Some(hello),
                request_id: String::new(),
                topology_hash: 0,
            };
            let envelope = to(names::ACTOR_PARTITION_ACTIVATOR, names::ACTIVATION_REQUEST, &request);
            batch(dialect, bytes, &envelope.with_sender(PidRef::new(GO, "future$1")));
        }
        "frame_batch_tell" => {
            // A message of an application: a `StringValue` is its text as field 1.
            let text = Bytes::from_static(b"\x0a\x02hi");
            let envelope = Envelope::new(PidRef::new(RUST, "x"), "google.protobuf.StringValue", text);
            batch(dialect, bytes, &envelope);
        }
        "frame_batch_request_ids" => {
            let mut envelope = to("x", names::TOUCH, &Touch {});
            envelope.target.request_id = 11;
            let sender = PidRef { request_id: 300, ..PidRef::new(GO, "y") };
            batch(dialect, bytes, &envelope.with_sender(sender));
        }
        "frame_batch_header" => {
            let headers = BTreeMap::from([("trace".to_owned(), "1".to_owned())]);
            let envelope = Envelope { headers: Some(&headers), ..to("x", names::TOUCH, &Touch {}) };
            batch(dialect, bytes, &envelope);
        }
        "frame_batch_dead_letter_response" => {
            // Only the newer dialect says who could not be found.
            let target = (dialect == Dialect::B).then(|| pid(GO, "nope"));
            batch(dialect, bytes, &to("x", names::DEAD_LETTER_RESPONSE, &DeadLetterResponse { target }));
        }
        "frame_batch_watch" => {
            batch(dialect, bytes, &to("x", names::WATCH, &Watch { watcher: Some(pid(GO, "$5")) }));
        }
        "frame_batch_stop" => batch(dialect, bytes, &to("x", names::STOP, &Stop {})),
        "frame_batch_poison" => batch(dialect, bytes, &to("x", names::POISON_PILL, &PoisonPill {})),

        "watch" => message(bytes, &Watch { watcher: Some(pid(GO, "$5")) }),
        "terminated" => {
            let why = TerminatedReason::NotFound.into();
            message(bytes, &Terminated { who: Some(pid(RUST, "x")), why });
        }
        "dead_letter_response" => message(bytes, &DeadLetterResponse { target: Some(pid(RUST, "nope")) }),
        "dead_letter_response_without_target" => message(bytes, &DeadLetterResponse { target: None }),
        "touched" => message(bytes, &Touched { who: Some(pid(RUST, "x")) }),
        "member" => {
            let kinds = ["Hello", names::KIND_TOPIC];
            let rust = member("rustA", 9090, &kinds);
            assert_eq!(Member::decode(bytes.clone()), Ok(rust.clone()));
            assert_eq!(rust.encode_to_vec(), *bytes);
        }
        "topology" => message(bytes, &topology_of_ten()),
        "gossip_request_with_heartbeat" => gossip_with_heartbeat(dialect, bytes),
        "gossip_request_with_left" => {
            let left = payload::encode_any(&()).unwrap();
            message(bytes, &gossip(names::GOSSIP_KEY_LEFT, left));
        }
        "gossip_response" => message(bytes, &GossipResponse { state: None }),
        "activation_response" => {
            let pid = Some(pid(GO, "partition-activator/abc$1"));
            message(bytes, &ActivationResponse { pid, failed: false, topology_hash: 0 });
        }
        "activation_response_failed" => {
            message(bytes, &ActivationResponse { pid: None, failed: true, topology_hash: 0 });
        }
        _ => panic!("nothing is known about {name}"),
    }
}

fn gossip_with_heartbeat(dialect: Dialect, bytes: &Bytes) {
    let (key, actor_count) = match dialect {
        Dialect::A => (names::GOSSIP_KEY_HEARTBEAT_OLD, BTreeMap::new()),
        Dialect::B => (
            names::GOSSIP_KEY_HEARTBEAT,
            BTreeMap::from([("Hello".to_owned(), 3), (names::KIND_TOPIC.to_owned(), 0)]),
        ),
    };
    let heartbeat = MemberHeartbeat { actor_statistics: Some(ActorStatistics { actor_count }) };

    // Go writes both halves of a map entry even if the count is 0, we leave it out: the same meaning in fewer bytes. So
    // the value is taken as Go wrote it; what is around it is compared to the byte.
    let request = payload::decode::<GossipRequest>(bytes.clone()).unwrap();
    let value = request.state.as_ref().unwrap().members["goA"].values[key].value.clone().unwrap();
    assert_eq!(payload::decode_any::<MemberHeartbeat>(&value), Ok(heartbeat.clone()));
    let ours = payload::encode_any(&heartbeat).unwrap();
    assert_eq!(ours.type_url, value.type_url);
    assert_eq!(ours == value, dialect == Dialect::A);
    message(bytes, &gossip(key, value));
}

/// The hash was computed by Go.
fn topology_of_ten() -> ClusterTopology {
    let members: Vec<_> = (0..10).map(|i| member(&format!("memberId-{i}"), 9000 + i, &["Hello"])).collect();
    ClusterTopology {
        topology_hash: 14_571_330_695_358_440_529,
        joined: vec![members[9].clone()],
        members,
        left: vec![member("gone", 9100, &["Hello"])],
        blocked: Vec::new(),
    }
}

// ---- What the checks have in common ----

fn control_frame(bytes: &Bytes, message: &RemoteMessage, frame: &Frame) {
    assert_eq!(Frame::decode(bytes.clone()).as_ref(), Ok(frame));
    assert_eq!(message.encode_to_vec(), *bytes);
}

fn batch(dialect: Dialect, bytes: &Bytes, envelope: &Envelope<'_>) {
    let Frame::Batch(batch) = Frame::decode(bytes.clone()).unwrap() else { panic!("not a batch") };
    assert_eq!(batch.dialect(), Some(dialect));
    assert_eq!(batch.envelopes(RUST).collect::<Vec<_>>(), [Ok(envelope.clone())]);

    let mut builder = BatchBuilder::new(dialect);
    assert_eq!(builder.push(envelope), Ok(Push::Added));
    assert_eq!(builder.finish_frame().unwrap(), *bytes);
}

fn message<M: Payload + PartialEq + Debug>(bytes: &Bytes, message: &M) {
    assert_eq!(payload::decode::<M>(bytes.clone()).as_ref(), Ok(message));
    assert_eq!(payload::encode(message).as_ref(), Ok(bytes));
}

fn to<'a, M: Payload>(id: &'a str, type_name: &'a str, message: &M) -> Envelope<'a> {
    Envelope::new(PidRef::new(RUST, id), type_name, payload::encode(message).unwrap())
}

fn gossip(key: &str, value: prost_types::Any) -> GossipRequest {
    let entry = GossipKeyValue {
        sequence_number: 7,
        value: Some(value),
        local_timestamp_unix_milliseconds: 1_700_000_000_000,
    };
    let values = BTreeMap::from([(key.to_owned(), entry)]);
    let members = BTreeMap::from([("goA".to_owned(), GossipMemberState { values })]);
    GossipRequest { state: Some(GossipState { members }), member_id: "rustA".into() }
}

fn member(id: &str, port: i32, kinds: &[&str]) -> Member {
    let kinds = kinds.iter().map(|&kind| kind.to_owned()).collect();
    Member { host: "127.0.0.1".into(), port, id: id.into(), kinds }
}

fn pid(address: &str, id: &str) -> Pid {
    PidRef::new(address, id).to_pid()
}

fn hex(text: &str) -> Bytes {
    let digits: Vec<u8> =
        text.chars().map(|digit| u8::try_from(digit.to_digit(16).unwrap()).unwrap()).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

const NAMES: [&str; 24] = [
    "activation_response",
    "activation_response_failed",
    "dead_letter_response",
    "dead_letter_response_without_target",
    "frame_batch_activation_request",
    "frame_batch_dead_letter_response",
    "frame_batch_header",
    "frame_batch_poison",
    "frame_batch_request_ids",
    "frame_batch_stop",
    "frame_batch_tell",
    "frame_batch_watch",
    "frame_connect_request",
    "frame_connect_response",
    "frame_connect_response_blocked",
    "frame_disconnect_request",
    "gossip_request_with_heartbeat",
    "gossip_request_with_left",
    "gossip_response",
    "member",
    "terminated",
    "topology",
    "touched",
    "watch",
];
