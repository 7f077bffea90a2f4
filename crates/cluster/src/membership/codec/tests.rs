use proptest::prelude::*;
use prost::Message as _;
use synod_core::id::{AUTHORITY_BYTES_MAX, INCARNATION_MAX, NODE_ID_BYTES_MAX};
use synod_core::membership::{
    GossipBody, GossipSender, MembershipDelta, MembershipVersion, NodeRecord, NodeStatus, QuarantineReason,
    Refusal, Refutation, Standing, ViewDigest,
};
use synod_core::{Authority, Incarnation, MemberId, NodeId};
use synod_wire::limits::FRAME_BYTES_SENT_MAX;
use synod_wire::membership as wire;
use synod_wire::membership::message::{Body, Sender};
use synod_wire::{Counted, names};

use super::*;

// ---- What is written is read ----

fn nodes() -> impl Strategy<Value = NodeId> {
    prop_oneof!["[a-z][a-z0-9._-]{0,12}", Just("n".repeat(NODE_ID_BYTES_MAX))]
        .prop_map(|name| NodeId::new(&name).unwrap())
}

fn authorities() -> impl Strategy<Value = Authority> {
    let longest = format!("{}:65535", "h".repeat(AUTHORITY_BYTES_MAX - 6));
    prop_oneof![
        ("[a-z][a-z0-9.-]{0,12}", 1..=u16::MAX).prop_map(|(host, port)| format!("{host}:{port}")),
        (any::<[u16; 8]>(), 1..=u16::MAX)
            .prop_map(|(parts, port)| format!("[{}]:{port}", std::net::Ipv6Addr::from(parts))),
        Just(longest),
    ]
    .prop_map(|text| Authority::new(&text).unwrap())
}

fn incarnations() -> impl Strategy<Value = Incarnation> {
    prop_oneof![1..5_u64, 1..=INCARNATION_MAX, Just(INCARNATION_MAX)]
        .prop_map(|number| Incarnation::new(number).unwrap())
}

fn members() -> impl Strategy<Value = MemberId> {
    (nodes(), incarnations()).prop_map(|(node, incarnation)| MemberId::new(node, incarnation))
}

fn statuses() -> impl Strategy<Value = NodeStatus> {
    prop::sample::select(NodeStatus::ALL.to_vec())
}

fn records() -> impl Strategy<Value = NodeRecord> {
    (members(), authorities(), statuses(), any::<u32>()).prop_map(|(member, authority, status, refuted)| {
        NodeRecord { member, authority, status, refutation: Refutation(refuted) }
    })
}

fn versions() -> impl Strategy<Value = MembershipVersion> {
    prop_oneof![0..5_u64, any::<u64>()].prop_map(MembershipVersion::new)
}

fn deltas() -> impl Strategy<Value = MembershipDelta> {
    (versions(), versions(), prop::collection::vec(records(), 0..20)).prop_map(|(one, other, records)| {
        let mut known = std::collections::BTreeSet::new();
        let records = records.into_iter().filter(|record| known.insert(record.member.node.clone()));
        MembershipDelta::new(one.min(other), one.max(other), records.collect()).unwrap()
    })
}

fn views() -> impl Strategy<Value = ViewDigest> {
    let seen = prop_oneof![prop::collection::vec(any::<u64>(), 0..4), Just(vec![u64::MAX; SEEN_WORDS_MAX]),];
    (versions(), any::<u128>(), seen).prop_map(|(version, digest, seen)| ViewDigest { version, digest, seen })
}

fn standings() -> impl Strategy<Value = Standing> {
    (0..=MEMBERS_MAX, nodes()).prop_map(|(reachable, lowest)| Standing { reachable, lowest })
}

fn reasons() -> impl Strategy<Value = MembershipError> {
    let words = || prop_oneof!["\\PC{0,20}", Just("w".repeat(DETAIL_BYTES_MAX))];
    let quarantines = prop_oneof![
        members().prop_map(QuarantineReason::Dead),
        words().prop_map(QuarantineReason::InvalidAssociation),
        words().prop_map(QuarantineReason::Requested),
    ];
    prop_oneof![
        (authorities(), members(), members()).prop_map(|(authority, held_by, requested_by)| {
            MembershipError::AuthorityConflict { authority, held_by, requested_by }
        }),
        (members(), statuses())
            .prop_map(|(member, status)| MembershipError::DeadIncarnation { member, status }),
        Just(MembershipError::GossipDisabled),
        (members(), authorities(), authorities()).prop_map(|(member, held_at, requested_at)| {
            MembershipError::IdentityConflict { member, held_at, requested_at }
        }),
        (members(), statuses(), statuses())
            .prop_map(|(member, from, to)| MembershipError::InvalidTransition { member, from, to }),
        authorities().prop_map(|authority| MembershipError::NotAMember { authority }),
        nodes().prop_map(|node| MembershipError::NotOneself { node }),
        (0..=MEMBERS_MAX).prop_map(|reachable| MembershipError::Outranked { reachable }),
        (authorities(), quarantines)
            .prop_map(|(authority, reason)| MembershipError::Quarantined { authority, reason }),
        (members(), incarnations())
            .prop_map(|(member, known)| MembershipError::StaleIncarnation { member, known }),
        (nodes(), 0..=MEMBERS_MAX)
            .prop_map(|(node, members_max)| MembershipError::TableFull { node, members_max }),
        Just(MembershipError::UnresolvedConflict),
        nodes().prop_map(|node| MembershipError::UnknownNode { node }),
    ]
}

fn messages() -> impl Strategy<Value = GossipMessage> {
    let senders =
        prop_oneof![records().prop_map(GossipSender::Member), authorities().prop_map(GossipSender::Client)];
    let verdicts = || prop::option::of(records());
    let bodies = prop_oneof![
        (versions(), views(), prop::option::of(deltas()))
            .prop_map(|(version, view, delta)| GossipBody::Ack { version, view, delta }),
        any::<u64>().prop_map(|sequence| GossipBody::Heartbeat { sequence }),
        Just(GossipBody::Join),
        (verdicts(), standings()).prop_map(|(verdict, standing)| GossipBody::Probe { verdict, standing }),
        versions().prop_map(|after| GossipBody::Pull { after }),
        (deltas(), views()).prop_map(|(delta, view)| GossipBody::Push { delta, view }),
        (reasons(), verdicts(), standings()).prop_map(|(reason, verdict, standing)| {
            GossipBody::Refused(Refusal { reason, verdict, standing })
        }),
        (deltas(), views()).prop_map(|(delta, view)| GossipBody::Welcome { delta, view }),
    ];
    (senders, bodies).prop_map(|(sender, body)| GossipMessage { sender, body })
}

proptest! {
    #[test]
    fn what_is_written_is_read(message in messages()) {
        let bytes = encode(&message).unwrap();
        prop_assert_eq!(decode(bytes), Ok(message));
    }

    #[test]
    fn noise_is_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        refused_or_equal(bytes);
    }

    // Noise rarely has the right version; a good message with a stretch of it replaced has.
    #[test]
    fn spoilt_messages_are_read_or_refused_without_a_panic(
        message in messages(),
        start in any::<prop::sample::Index>(),
        removed in 0..4_usize,
        inserted in prop::collection::vec(any::<u8>(), 0..4),
    ) {
        let mut bytes = encode(&message).unwrap().to_vec();
        let start = start.index(bytes.len());
        let end = (start + removed).min(bytes.len());
        bytes.splice(start..end, inserted);
        refused_or_equal(bytes);
    }
}

/// Whatever is read can be written and is then the same; whatever is not can be told.
fn refused_or_equal(bytes: Vec<u8>) {
    match decode(bytes.into()) {
        Ok(message) => assert_eq!(decode(encode(&message).unwrap()), Ok(message)),
        Err(error) => {
            assert!(error.to_string().ends_with("dropped") || error.to_string().ends_with("changed"));
        }
    }
}

// ---- The form of the bytes ----

#[test]
fn a_heartbeat_letter_by_letter() {
    // Version 1; member b#3 at h:1, up, one refutation; heartbeat 300.
    let golden = [
        b"\x08\x01".as_slice(),
        b"\x12\x10\x0a\x05\x0a\x01b\x10\x03\x12\x03h:1\x18\x02\x20\x01",
        b"\x4a\x03\x08\xac\x02",
    ]
    .concat();
    let record = NodeRecord {
        member: MemberId::new(NodeId::new("b").unwrap(), Incarnation::new(3).unwrap()),
        authority: Authority::new("h:1").unwrap(),
        status: NodeStatus::Up,
        refutation: Refutation(1),
    };
    let message =
        GossipMessage { sender: GossipSender::Member(record), body: GossipBody::Heartbeat { sequence: 300 } };
    assert_eq!(encode(&message).unwrap(), golden);
    assert_eq!(decode(golden.into()), Ok(message));
}

#[test]
fn the_name_says_that_go_has_no_such_type() {
    assert!(names::MEMBERSHIP_MESSAGE.starts_with(names::SYNOD_PREFIX));
}

#[test]
fn other_versions_are_refused_whatever_else_they_say() {
    // A later version in which the sender is a number and the body a group of something unheard of.
    for later in [b"\x08\x02\x10\x07".as_slice(), b"\x08\x02", b"\x10\x07\x42\x01\xff\x08\x02"] {
        let refused = Err(MembershipCodecError::UnknownVersion { version: 2 });
        assert_eq!(decode(Bytes::from_static(later)), refused);
    }
    // Bytes of something else altogether have no version.
    for none in [b"".as_slice(), b"\x12\x00"] {
        let refused = Err(MembershipCodecError::UnknownVersion { version: 0 });
        assert_eq!(decode(Bytes::from_static(none)), refused);
    }
    let told = MembershipCodecError::UnknownVersion { version: 2 }.to_string();
    assert_eq!(told, "a membership message has version 2, this node reads version 1; it was dropped");
}

#[test]
fn fields_of_a_later_synod_are_passed_over() {
    let mut bytes = heartbeat().encode_to_vec();
    bytes.extend(b"\xfa\x07\x03new");
    assert!(decode(bytes.into()).is_ok());
}

// ---- What a broken peer sends ----

#[test]
fn messages_that_lack_something() {
    let lacks = |message: Message, part, field| {
        assert_eq!(read(&message), Err(MembershipCodecError::Missing { part, field }));
    };
    lacks(Message { sender: None, ..heartbeat() }, MessagePart::Sender, "a member or a client");
    lacks(Message { body: None, ..heartbeat() }, MessagePart::Body, "a known kind of message");
    let nameless = wire::Record { member: None, ..up("a") };
    lacks(from(nameless.clone()), MessagePart::Sender, "a member");
    lacks(saying(Body::Ack(wire::Ack::default())), MessagePart::Body, "the view");
    for body in [Body::Push, Body::Welcome] {
        let (delta, view) = (Some(wire::Delta::default()), Some(wire::Digest::default()));
        let without_view = wire::View { delta: delta.clone(), view: None };
        lacks(saying(body(without_view)), MessagePart::Body, "the view");
        lacks(saying(body(wire::View { delta: None, view })), MessagePart::Body, "the changes");
    }
    lacks(saying(Body::Probe(wire::Probe::default())), MessagePart::Body, "the standing");
    let verdict = Some(nameless);
    lacks(saying(Body::Probe(wire::Probe { verdict, ..probe() })), MessagePart::Verdict, "a member");
    lacks(saying(refused(None)), MessagePart::Reason, "a known reason");
    let unexplained = wire::Quarantined { authority: "h:1".into(), reason: None };
    lacks(
        saying(refused(Some(wire::refusal::Reason::Quarantined(unexplained)))),
        MessagePart::Reason,
        "a known reason of a quarantine",
    );
    let dead = wire::refusal::Reason::DeadIncarnation(wire::DeadIncarnation::default());
    lacks(saying(refused(Some(dead))), MessagePart::Reason, "a member");
}

#[test]
fn names_addresses_lives_and_states_that_are_none() {
    let part = MessagePart::Sender;
    let member = |node: &str, incarnation| Some(wire::Member { node: node.into(), incarnation });
    let cases = [
        (
            wire::Record { member: member("", 1), ..up("a") },
            MembershipCodecError::Node { part, source: NodeIdError::Empty },
        ),
        (
            wire::Record { member: member(&"n".repeat(NODE_ID_BYTES_MAX + 1), 1), ..up("a") },
            MembershipCodecError::Node {
                part,
                source: NodeIdError::TooLong { bytes: NODE_ID_BYTES_MAX + 1 },
            },
        ),
        (
            wire::Record { member: member("a", 0), ..up("a") },
            MembershipCodecError::Incarnation { part, source: IncarnationError::Zero },
        ),
        (
            wire::Record { member: member("a", INCARNATION_MAX + 1), ..up("a") },
            MembershipCodecError::Incarnation {
                part,
                source: IncarnationError::TooLarge { value: INCARNATION_MAX + 1 },
            },
        ),
        (
            wire::Record { authority: "h".into(), ..up("a") },
            MembershipCodecError::Authority { part, source: AuthorityError::MissingPort },
        ),
        (
            wire::Record { authority: "h".repeat(AUTHORITY_BYTES_MAX + 1), ..up("a") },
            MembershipCodecError::Authority {
                part,
                source: AuthorityError::TooLong { bytes: AUTHORITY_BYTES_MAX + 1 },
            },
        ),
        (wire::Record { status: 0, ..up("a") }, MembershipCodecError::Status { part, status: 0 }),
        (wire::Record { status: 7, ..up("a") }, MembershipCodecError::Status { part, status: 7 }),
        (wire::Record { status: -1, ..up("a") }, MembershipCodecError::Status { part, status: -1 }),
    ];
    for (record, error) in cases {
        assert_eq!(read(&from(record)), Err(error));
    }
    let client = Message { sender: Some(Sender::Client("h".into())), ..heartbeat() };
    let source = AuthorityError::MissingPort;
    assert_eq!(read(&client), Err(MembershipCodecError::Authority { part, source }));

    // The same in a list names the place in the list.
    let records = vec![up("a"), wire::Record { status: 9, ..up("b") }];
    let error = read(&push(wire::Delta { from: 0, to: 2, records }, Bytes::new())).unwrap_err();
    assert_eq!(error, MembershipCodecError::Status { part: MessagePart::Record(1), status: 9 });
    assert_eq!(
        error.to_string(),
        "a membership message has the unknown status 9 in record 1; it was dropped"
    );
}

#[test]
fn changes_that_contradict_themselves() {
    let backwards = wire::Delta { from: 3, to: 2, records: Vec::new() };
    let (from, to) = (MembershipVersion::new(3), MembershipVersion::new(2));
    let error = DeltaError::Backwards { from, to };
    assert_eq!(read(&push(backwards, Bytes::new())), Err(MembershipCodecError::Delta(error)));

    let twice = wire::Delta { from: 0, to: 2, records: vec![up("a"), up("a")] };
    let error = DeltaError::DuplicateNode { node: NodeId::new("a").unwrap() };
    assert_eq!(read(&push(twice, Bytes::new())), Err(MembershipCodecError::Delta(error)));
}

// ---- Bounds ----

#[test]
fn records_are_counted_before_they_are_read() {
    let delta = |records: usize| wire::Delta {
        from: 0,
        to: 1,
        records: (0..records).map(|node| up(&format!("{node:0>NODE_ID_BYTES_MAX$}"))).collect(),
    };
    // The largest welcome has the longest names and addresses and all bits, and still fits into a frame.
    let mut largest = delta(DELTA_RECORDS_MAX);
    for record in &mut largest.records {
        record.authority = format!("{}:65535", "h".repeat(AUTHORITY_BYTES_MAX - 6));
        record.refutation = u32::MAX;
        record.member.as_mut().unwrap().incarnation = INCARNATION_MAX;
    }
    let message = read(&push(largest, vec![0xff; SEEN_WORDS_MAX * WORD_BYTES].into())).unwrap();
    assert!(encode(&message).unwrap().len() < FRAME_BYTES_SENT_MAX / 2);

    let too_many = |what: Counted| {
        let type_name = names::MEMBERSHIP_MESSAGE.to_owned();
        Err(MembershipCodecError::Payload(PayloadError::TooMany { type_name, what, max: what.max() }))
    };
    let refused = too_many(Counted::MembershipRecords);
    assert_eq!(read(&push(delta(DELTA_RECORDS_MAX + 1), Bytes::new())), refused);
    // Two halves that protobuf would join are counted together, and so are empty records.
    let half = push(delta(DELTA_RECORDS_MAX / 2 + 1), Bytes::new()).encode_to_vec();
    assert_eq!(decode([&*half, &half].concat().into()), refused);
    let hollow = wire::Delta { records: vec![wire::Record::default(); DELTA_RECORDS_MAX + 1], ..delta(0) };
    assert_eq!(read(&push(hollow, Bytes::new())), refused);
}

#[test]
fn seen_bits_are_whole_words_and_no_more_than_members() {
    let seen = |bytes: usize| read(&push(wire::Delta::default(), vec![1; bytes].into())).map(|_| ());
    assert_eq!(seen(0), Ok(()));
    assert_eq!(seen(SEEN_WORDS_MAX * WORD_BYTES), Ok(()));
    for bytes in [1, 7, 9, SEEN_WORDS_MAX * WORD_BYTES + WORD_BYTES, SEEN_WORDS_MAX * WORD_BYTES + 1] {
        assert_eq!(seen(bytes), Err(MembershipCodecError::Seen { bytes }));
    }

    let view = ViewDigest { version: MembershipVersion::ZERO, digest: 0, seen: vec![0; SEEN_WORDS_MAX + 1] };
    let body = GossipBody::Ack { version: MembershipVersion::ZERO, view, delta: None };
    let bytes = (SEEN_WORDS_MAX + 1) * WORD_BYTES;
    assert_eq!(encode(&said_by_a_client(body)), Err(MembershipCodecError::Seen { bytes }));
}

#[test]
fn no_cluster_has_more_members_than_there_may_be() {
    let members = MEMBERS_MAX + 1;
    let wire_members = u32::try_from(members).unwrap();
    let too_many = |part| Err(MembershipCodecError::TooManyMembers { part, members });

    let standing = Some(wire::Standing { reachable: wire_members, lowest: "a".into() });
    let probe = saying(Body::Probe(wire::Probe { standing, ..probe() }));
    assert_eq!(read(&probe), too_many(MessagePart::Standing));
    let outranked = wire::refusal::Reason::Outranked(wire_members);
    assert_eq!(read(&saying(refused(Some(outranked)))), too_many(MessagePart::Reason));
    let full = wire::TableFull { node: "a".into(), members_max: wire_members };
    let full = wire::refusal::Reason::TableFull(full);
    assert_eq!(read(&saying(refused(Some(full)))), too_many(MessagePart::Reason));

    // Nor is it said.
    let lowest = NodeId::new("a").unwrap();
    let standing = Standing { reachable: members, lowest: lowest.clone() };
    let body = GossipBody::Probe { verdict: None, standing };
    assert_eq!(encode(&said_by_a_client(body)).err(), too_many(MessagePart::Standing).err());
    let standing = Standing { reachable: 1, lowest };
    let reason = MembershipError::Outranked { reachable: members };
    let body = GossipBody::Refused(Refusal { reason, verdict: None, standing });
    assert_eq!(encode(&said_by_a_client(body)).err(), too_many(MessagePart::Reason).err());
}

#[test]
fn a_long_explanation_is_cut_when_sent_and_refused_when_received() {
    let quarantined = |words: String| {
        wire::refusal::Reason::Quarantined(wire::Quarantined {
            authority: "h:1".into(),
            reason: Some(wire::quarantined::Reason::Requested(words)),
        })
    };
    assert!(read(&saying(refused(Some(quarantined("w".repeat(DETAIL_BYTES_MAX)))))).is_ok());
    let bytes = DETAIL_BYTES_MAX + 1;
    let too_long = MembershipCodecError::DetailTooLong { bytes };
    assert_eq!(read(&saying(refused(Some(quarantined("w".repeat(bytes)))))), Err(too_long));

    // A letter of two bytes that would straddle the bound is left out as a whole.
    let words = format!("w{}", "\u{e9}".repeat(DETAIL_BYTES_MAX));
    let reason = MembershipError::Quarantined {
        authority: Authority::new("h:1").unwrap(),
        reason: QuarantineReason::InvalidAssociation(words.clone()),
    };
    let standing = Standing { reachable: 1, lowest: NodeId::new("a").unwrap() };
    let refusal = GossipBody::Refused(Refusal { reason, verdict: None, standing });
    match decode(encode(&said_by_a_client(refusal)).unwrap()).unwrap().body {
        GossipBody::Refused(Refusal {
            reason: MembershipError::Quarantined { reason: QuarantineReason::InvalidAssociation(cut), .. },
            ..
        }) => assert_eq!(cut, words[..DETAIL_BYTES_MAX - 1]),
        other => panic!("{other:?}"),
    }
}

// ---- What the tests have in common ----

fn read(message: &Message) -> Result<GossipMessage, MembershipCodecError> {
    decode(message.encode_to_vec().into())
}

fn saying(body: Body) -> Message {
    Message { version: VERSION, sender: Some(Sender::Member(up("me"))), body: Some(body) }
}

fn from(record: wire::Record) -> Message {
    Message { sender: Some(Sender::Member(record)), ..heartbeat() }
}

fn heartbeat() -> Message {
    saying(Body::Heartbeat(wire::Heartbeat { sequence: 1 }))
}

fn push(delta: wire::Delta, seen: Bytes) -> Message {
    let view = wire::Digest { seen, ..wire::Digest::default() };
    saying(Body::Push(wire::View { delta: Some(delta), view: Some(view) }))
}

fn probe() -> wire::Probe {
    let standing = Some(wire::Standing { reachable: 1, lowest: "a".into() });
    wire::Probe { verdict: None, standing }
}

fn refused(reason: Option<wire::refusal::Reason>) -> Body {
    Body::Refused(wire::Refusal { verdict: None, standing: probe().standing, reason })
}

fn up(node: &str) -> wire::Record {
    wire::Record {
        member: Some(wire::Member { node: node.into(), incarnation: 1 }),
        authority: "h:1".into(),
        status: wire::Status::Up.into(),
        refutation: 0,
    }
}

fn said_by_a_client(body: GossipBody) -> GossipMessage {
    GossipMessage { sender: GossipSender::Client(Authority::new("h:1").unwrap()), body }
}
