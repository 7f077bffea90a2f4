//! Targets in `synod-cluster`: what nodes say about themselves and each other.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::{Message, Name};
use synod_cluster::automanaged::decode_health;
use synod_cluster::gossiper::codec as gossip;
use synod_cluster::grains::codec as grains;
use synod_cluster::grains::generated::json;
use synod_cluster::membership::codec as membership;
use synod_cluster::pubsub::codec as pubsub;
use synod_cluster::remote::{self, TypeName};
use synod_core::grains::{ClaimId, ClusterIdentity, GrainHost, GrainSnapshot, RelocationRecord};
use synod_core::membership::{GossipBody, GossipMessage, GossipSender};
use synod_wire::cluster::{
    GossipKeyValue, GossipMemberState, GossipState, PubSubBatchTransport, PubSubEnvelope,
};
use synod_wire::payload;

/// The gossip state of a peer. Whatever could be read is written and read as the same, and never harms a Go node.
pub(super) fn gossip_state(input: &[u8]) {
    let Ok(state) = GossipState::decode(input) else { return };
    let entries: usize = state.members.values().map(|member| member.values.len()).sum();
    let decoded = gossip::decode_state(state);
    let read: usize = decoded.state.members().map(|(_, entries)| entries.len()).sum();
    assert_eq!(read + decoded.undecodable, entries, "every entry is read or counted");
    let written = gossip::encode_state(&decoded.state);
    assert!(
        written.members.values().all(|member| !member.values.is_empty()),
        "Go dies of a member without values"
    );
    let again = gossip::decode_state(written);
    assert_eq!((again.state, again.undecodable), (decoded.state, 0));
}

/// A membership message.
pub(super) fn membership_message(input: &[u8]) {
    match membership::decode(Bytes::copy_from_slice(input)) {
        Ok(message) => {
            let written = membership::encode(&message).expect("what was read can be written");
            assert_eq!(membership::decode(written), Ok(message));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The answer of a health endpoint.
pub(super) fn health(input: &[u8]) {
    match decode_health(input) {
        Ok(report) => {
            let written = report.encode();
            assert_eq!(decode_health(&written), Ok(report));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// What a typed call between Rust nodes carries, read as something with every form that JSON has.
pub(super) fn json_argument(input: &[u8]) {
    match json::argument::<Document>(Bytes::copy_from_slice(input)) {
        Ok(document) => {
            let written = json::reply(&document).expect("what was read can be written");
            assert_eq!(json::argument(written.payload), Ok(document));
        }
        Err(error) => {
            assert_eq!(error.reason, "INVALID_ARGUMENT");
            assert!(!error.message.is_empty() && error.metadata.contains_key("argument"));
        }
    }
}

type Document = BTreeMap<String, Vec<(Option<i64>, bool, String)>>;

/// The state of a grain on its way to its next host.
pub(super) fn relocation(input: &[u8]) {
    let message = remote::Message::raw(TypeName::from(RELOCATION), Bytes::copy_from_slice(input));
    if let Some(record) = grains::read_relocation(&message) {
        let written = grains::write_relocation(&record);
        assert_eq!(written.type_name.as_str(), RELOCATION);
        assert_eq!(grains::read_relocation(&written).as_ref(), Some(&record));
    }
}

/// A batch of published messages. Whatever passes the check is unpacked to the last message, and packed as the same.
pub(super) fn batch(input: &[u8]) {
    match payload::decode::<PubSubBatchTransport>(Bytes::copy_from_slice(input)) {
        Ok(PubSubBatchTransport { type_names, envelopes }) => {
            let payloads: Vec<Bytes> =
                envelopes.iter().map(|envelope| envelope.message_data.clone()).collect();
            let names: Vec<&String> = envelopes
                .iter()
                .map(|envelope| &type_names[usize::try_from(envelope.type_id).expect("checked")])
                .collect();
            let messages = pubsub::unpack(&type_names, envelopes.clone());
            assert_eq!(messages.len(), envelopes.len(), "no message is lost");
            for ((message, name), payload) in messages.iter().zip(names).zip(payloads) {
                assert_eq!((message.type_name.as_str(), &message.payload), (name.as_str(), &payload));
            }
            let (type_names, envelopes) = pubsub::pack(&messages);
            let again = pubsub::unpack(&type_names, envelopes);
            let parts = |message: &remote::Message| {
                (message.type_name.clone(), message.serializer, message.payload.clone())
            };
            assert!(again.iter().map(parts).eq(messages.iter().map(parts)));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub(super) fn json_arguments() -> Vec<Vec<u8>> {
    let texts = [
        "{}",
        r#"{"a":[[1,true,"x"],[null,false,"\u00e9\n"]],"b":[]}"#,
        r#"{"a":[[-9223372036854775808,true,""]]}"#,
        "[[]]",
        "null",
    ];
    // Field 1 of the envelope is the text.
    texts.map(|text| Bytes::from_static(text.as_bytes()).encode_to_vec()).into()
}

pub(crate) fn relocations() -> Vec<Vec<u8>> {
    let host = |name: &str| GrainHost {
        id: format!("{name}#1").parse().expect("a member"),
        authority: format!("{name}:8401").parse().expect("an address"),
    };
    let record = RelocationRecord {
        grain: ClusterIdentity::new("Counter", "user:123").expect("a name"),
        from: host("n001"),
        stopped: vec!["n001:8401/partition-activator/user:123$1".parse().expect("a PID")],
        snapshot: Some(GrainSnapshot { version: 4_000_000_000, bytes: [1, 2, 3].into() }),
        claim: Some(ClaimId { claimer: host("n002").id, number: 3 }),
        before: vec![host("n003")],
        went: Some(host("n004")),
        is_leaving: true,
    };
    vec![grains::write_relocation(&record).payload.into()]
}

pub(crate) fn batches() -> Vec<Vec<u8>> {
    let envelope = |type_id, serializer_id, text: &'static [u8]| PubSubEnvelope {
        type_id,
        message_data: Bytes::from_static(text),
        serializer_id,
    };
    let batch = PubSubBatchTransport {
        type_names: vec!["shop.Order".to_owned(), String::full_name()],
        envelopes: vec![envelope(0, 0, b"\x08\x01"), envelope(1, 0, b"\x0a\x01a"), envelope(0, 1, b"{}")],
    };
    vec![batch.encode_to_vec(), PubSubBatchTransport::default().encode_to_vec()]
}

const RELOCATION: &str = "synod.grains.Relocation";

pub(super) fn gossip_states() -> Vec<Vec<u8>> {
    let value = prost_types::Any { type_url: "type.googleapis.com/x.Y".into(), value: vec![1, 2, 3] };
    let entry = GossipKeyValue {
        sequence_number: 7,
        value: Some(value),
        local_timestamp_unix_milliseconds: 1_700_000_000_000,
    };
    let member = |keys: &[&str]| GossipMemberState {
        values: keys.iter().map(|key| ((*key).to_owned(), entry.clone())).collect(),
    };
    let members = [("a#1", &["heartbeat", "left"][..]), ("goA", &["topology"])];
    let state = GossipState { members: members.map(|(id, keys)| (id.to_owned(), member(keys))).into() };
    vec![state.encode_to_vec(), GossipState::default().encode_to_vec()]
}

pub(super) fn membership_messages() -> Vec<Vec<u8>> {
    let authority = "127.0.0.1:8401".parse().expect("an address");
    let bodies = [GossipBody::Heartbeat { sequence: 9 }, GossipBody::Join];
    let message = |body| GossipMessage { sender: GossipSender::Client(authority), body };
    let [heartbeat, join] = bodies;
    let client = message(heartbeat);
    let joining = GossipMessage { body: join, ..client.clone() };
    [client, joining].iter().filter_map(|message| membership::encode(message).ok()).map(Into::into).collect()
}

pub(super) fn reports() -> Vec<Vec<u8>> {
    let go = br#"{"id":"7gJoHJcjzQ2VxuFwudHCpp","address":"127.0.0.1","auto_manage_port":6331,"port":8081,"kinds":["Calculator","prototopic"],"cluster_name":"my-cluster"}"#;
    let synod = br#"{"id":"a#1","address":"::1","auto_manage_port":1,"port":65535,"kinds":[],"cluster_name":"c","runtime":"synod"}"#;
    vec![go.to_vec(), synod.to_vec()]
}
