//! Targets in `synod-cluster`: what nodes say about themselves and each other.

use bytes::Bytes;
use prost::Message;
use synod_cluster::automanaged::decode_health;
use synod_cluster::gossiper::codec as gossip;
use synod_cluster::membership::codec as membership;
use synod_core::membership::{GossipBody, GossipMessage, GossipSender};
use synod_wire::cluster::{GossipKeyValue, GossipMemberState, GossipState};

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
