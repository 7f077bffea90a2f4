use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::collection::{btree_map, vec};
use proptest::prelude::{Strategy, any, proptest};
use proptest::{option, prop_assert, prop_assert_eq};
use prost::Message;
use synod_core::gossip::{KEY_BYTES_MAX, MEMBER_ID_BYTES_MAX, TYPE_URL_BYTES_MAX, VALUE_BYTES_MAX};
use synod_wire::payload;

use super::*;

fn entry(sequence: i64, text: &str) -> cluster::GossipKeyValue {
    cluster::GossipKeyValue {
        sequence_number: sequence,
        value: Some(Any { type_url: "test".into(), value: text.into() }),
        local_timestamp_unix_milliseconds: 77,
    }
}

fn wire(entries: Vec<(&str, &str, cluster::GossipKeyValue)>) -> cluster::GossipState {
    let mut state = cluster::GossipState::default();
    for (member, key, entry) in entries {
        state.members.entry(member.into()).or_default().values.insert(key.into(), entry);
    }
    state
}

/// What a Go node stumbles over is never sent: see the list of its quirks.
#[test]
fn a_message_is_what_a_go_node_can_take() {
    let receiver = GossipMemberId::new("receiver").expect("an id");
    let nothing = GossipState::default();
    let request = encode_request(&receiver, &nothing);
    assert_eq!(
        (request.state, request.member_id.as_str()),
        (Some(cluster::GossipState::default()), "receiver")
    );
    assert!(encode_response(&nothing).state.is_some());
    let state = decode_state(wire(vec![("m", "k", entry(1, "x"))])).state;
    let request = encode_request(&receiver, &state);
    let values = &request.state.as_ref().expect("a state").members["m"].values;
    assert_eq!(values["k"].local_timestamp_unix_milliseconds, 0, "time stamps stay at home");
    assert!(payload::encode(&request).is_ok() && payload::encode(&encode_response(&state)).is_ok());
}

/// Field 1 is the state, field 2 the receiver; within an entry 2, 4 and 5.
#[test]
fn the_bytes_are_those_of_go() {
    let state = decode_state(wire(vec![("m", "k", entry(3, "x"))])).state;
    let request = encode_request(&GossipMemberId::new("r").expect("an id"), &state);
    let entry = [&[0x10, 3, 0x22, 9, 0x0a, 4][..], b"test", &[0x12, 1], b"x"].concat();
    let values = [&[0x0a, 1][..], b"k", &[0x12, entry.len() as u8], &entry].concat();
    let member = [&[0x0a, values.len() as u8][..], &values].concat();
    let members = [&[0x0a, 1][..], b"m", &[0x12, member.len() as u8], &member].concat();
    let state = [&[0x0a, members.len() as u8][..], &members].concat();
    let expected = [&[0x0a, state.len() as u8][..], &state, &[0x12, 1], b"r"].concat();
    assert_eq!(request.encode_to_vec(), expected);
}

#[test]
fn every_kind_of_nonsense_costs_one_entry() {
    let long_key = "k".repeat(KEY_BYTES_MAX + 1);
    let long_member = "m".repeat(MEMBER_ID_BYTES_MAX + 1);
    let sized = |type_url: usize, value: usize| cluster::GossipKeyValue {
        value: Some(Any { type_url: "t".repeat(type_url), value: vec![0; value] }),
        ..entry(1, "")
    };
    let bad = vec![
        ("m", "zero", entry(0, "x")),
        ("m", "negative", entry(i64::MIN, "x")),
        ("m", "no value", cluster::GossipKeyValue { value: None, ..entry(1, "") }),
        ("m", "control\n", entry(1, "x")),
        ("m", "", entry(1, "x")),
        ("m", long_key.as_str(), entry(1, "x")),
        ("m", "type", sized(TYPE_URL_BYTES_MAX + 1, 0)),
        ("m", "value", sized(0, VALUE_BYTES_MAX + 1)),
        ("", "k", entry(1, "x")),
        (long_member.as_str(), "k", entry(1, "x")),
        (long_member.as_str(), "l", entry(1, "x")),
    ];
    let count = bad.len();
    let good = ("m", "largest", sized(TYPE_URL_BYTES_MAX, VALUE_BYTES_MAX));
    let mut state = wire(bad.into_iter().chain([good]).collect());
    // A member about which nothing is said is nobody.
    state.members.insert("silent".into(), cluster::GossipMemberState::default());
    let decoded = decode_state(state);
    assert_eq!(decoded.undecodable, count);
    let kept: Vec<_> =
        decoded.state.members().map(|(member, entries)| (member.as_str(), entries.len())).collect();
    assert_eq!(kept, [("m", 1)]);
}

fn text() -> impl Strategy<Value = String> {
    "[a-c\u{0}]{0,3}"
}

fn entries() -> impl Strategy<Value = cluster::GossipState> {
    let value = (text(), vec(any::<u8>(), 0..8)).prop_map(|(type_url, value)| Any { type_url, value });
    let number = proptest::prop_oneof![-2_i64..5, any::<i64>()];
    let entry = (number, option::of(value), any::<i64>()).prop_map(|(sequence_number, value, at)| {
        cluster::GossipKeyValue { sequence_number, value, local_timestamp_unix_milliseconds: at }
    });
    let member = btree_map(text(), entry, 0..5).prop_map(|values| cluster::GossipMemberState { values });
    btree_map(text(), member, 0..5).prop_map(|members| cluster::GossipState { members })
}

fn count(state: &cluster::GossipState) -> usize {
    state.members.values().map(|member| member.values.len()).sum()
}

proptest! {
    /// Whatever was read is written and read as it was, and every entry is either kept or counted.
    #[test]
    fn what_was_read_survives_the_wire(sent in entries()) {
        let decoded = decode_state(sent.clone());
        let written = encode_state(&decoded.state);
        prop_assert_eq!(count(&written) + decoded.undecodable, count(&sent));
        prop_assert!(written.members.values().all(|member| !member.values.is_empty()));
        let request = encode_request(&GossipMemberId::new("r").expect("an id"), &decoded.state);
        let bytes = payload::encode(&request).expect("a sound message");
        let read: cluster::GossipRequest = payload::decode(bytes).expect("a sound message");
        let again = decode_state(read.state.expect("a state"));
        prop_assert_eq!(again, DecodedState { state: decoded.state, undecodable: 0 });
    }

    /// No bytes make the reader stumble.
    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..256)) {
        if let Ok(request) = payload::decode::<cluster::GossipRequest>(Bytes::from(bytes)) {
            let state = request.state.unwrap_or_default();
            let all = count(&state);
            let decoded = decode_state(state);
            let kept: BTreeMap<_, _> = decoded.state.members().collect();
            let kept: usize = kept.values().map(|entries| entries.len()).sum();
            prop_assert_eq!(kept + decoded.undecodable, all);
        }
    }
}
