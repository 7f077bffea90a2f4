//! What is written is read back, and nothing that a peer sends makes a node fall over.

use proptest::prelude::*;
use synod_core::slots::{BootstrapNode, HeadRank, Pace, Replication};

use super::*;

const OWN: ClusterId = ClusterId::new(7);

fn slots() -> impl Strategy<Value = SlotId> {
    (0..16_384u16).prop_map(SlotId::new)
}

fn epochs() -> impl Strategy<Value = SlotEpoch> {
    (0..=EPOCH_MAX).prop_map(SlotEpoch::new)
}

fn tags() -> impl Strategy<Value = Tag> {
    (epochs(), any::<u64>()).prop_map(|(epoch, sequence)| Tag { epoch, sequence })
}

fn ranks() -> impl Strategy<Value = HeadRank> {
    (epochs(), tags()).prop_map(|(accepted, tag)| HeadRank { accepted, tag })
}

fn heads() -> impl Strategy<Value = Head> {
    let value = prop::collection::vec(any::<u8>(), 0..40);
    (ranks(), value).prop_map(|(rank, value)| Head {
        tag: rank.tag,
        accepted: rank.accepted,
        value: value.into(),
    })
}

fn names() -> impl Strategy<Value = NodeId> {
    "[a-z][a-z0-9.-]{0,11}".prop_map(|name| NodeId::new(&name).expect("a name"))
}

fn asks() -> impl Strategy<Value = Vec<(SlotId, SlotEpoch)>> {
    prop::collection::vec((slots(), epochs()), 0..5)
}

fn records() -> impl Strategy<Value = SlotRecord> {
    let nodes = || prop::collection::vec(names(), 0..4);
    let cause = prop::sample::select(ElectionCause::ALL.to_vec());
    (slots(), epochs(), names(), nodes(), any::<u64>(), nodes(), cause).prop_map(
        |(slot, epoch, primary, replicas, at, granted_by, cause)| SlotRecord {
            slot,
            epoch,
            primary,
            replicas,
            state: SlotState::Stable,
            updated_at: HlcTimestamp::from_bits(at),
            granted_by,
            cause,
        },
    )
}

fn members() -> impl Strategy<Value = MemberId> {
    (names(), 1..1_000_000u64)
        .prop_map(|(node, life)| MemberId::new(node, Incarnation::new(life).expect("a life")))
}

fn nodes() -> impl Strategy<Value = NodeRecord> {
    (members(), 1..u16::MAX, any::<u64>(), any::<bool>(), any::<u64>()).prop_map(
        |(member, port, instance, leaving, at)| NodeRecord {
            member,
            address: Authority::new(&format!("host:{port}")).expect("an address"),
            instance,
            leaving,
            heartbeat: HlcTimestamp::from_bits(at),
        },
    )
}

fn grants() -> impl Strategy<Value = SlotMessage> {
    let granted = (slots(), epochs(), prop::option::of(ranks())).prop_map(|(slot, epoch, stored)| Grant {
        slot,
        epoch,
        stored,
    });
    let reason = prop::sample::select(RefusalReason::ALL.to_vec());
    let refused = (slots(), epochs(), epochs(), reason).prop_map(|(slot, asked, promised, reason)| Refusal {
        slot,
        asked,
        promised,
        reason,
    });
    (prop::collection::vec(granted, 0..4), prop::collection::vec(refused, 0..4))
        .prop_map(|(granted, refused)| SlotMessage::Grants { granted, refused })
}

fn messages() -> impl Strategy<Value = SlotMessage> {
    let promise = (slots(), epochs(), prop::option::of(heads())).prop_map(|(slot, promised, head)| Promise {
        slot,
        promised,
        head,
    });
    let delta = (
        prop::collection::vec(records(), 0..4),
        prop::collection::vec(nodes(), 0..4),
        prop::collection::vec(0..BUCKETS as u8, 0..4),
    );
    prop_oneof![
        asks().prop_map(|asks| SlotMessage::Sound { asks }),
        asks().prop_map(|asks| SlotMessage::Willing { asks }),
        (asks(), any::<bool>()).prop_map(|(asks, endorsed)| SlotMessage::AskGrants { asks, endorsed }),
        grants(),
        asks().prop_map(|slots| SlotMessage::AskHeads { slots }),
        prop::collection::vec((slots(), heads()), 0..4).prop_map(|heads| SlotMessage::Heads { heads }),
        asks().prop_map(|slots| SlotMessage::HandOver { slots }),
        asks().prop_map(|slots| SlotMessage::Claims { slots }),
        (prop::collection::vec(slots(), 0..4), any::<u64>())
            .prop_map(|(slots, asker)| SlotMessage::AskPromises { slots, asker }),
        (any::<u64>(), prop::collection::vec(promise, 0..4))
            .prop_map(|(asker, promises)| SlotMessage::Promises { asker, promises }),
        (slots(), epochs(), heads()).prop_map(|(slot, epoch, head)| SlotMessage::Store { slot, epoch, head }),
        (slots(), epochs(), tags()).prop_map(|(slot, epoch, tag)| SlotMessage::Stored { slot, epoch, tag }),
        (slots(), epochs(), any::<u64>()).prop_map(|(slot, epoch, nonce)| SlotMessage::Confirm {
            slot,
            epoch,
            nonce
        }),
        (slots(), epochs(), any::<u64>()).prop_map(|(slot, epoch, nonce)| SlotMessage::Confirmed {
            slot,
            epoch,
            nonce
        }),
        (slots(), epochs(), epochs()).prop_map(|(slot, epoch, promised)| SlotMessage::Stale {
            slot,
            epoch,
            promised
        }),
        (prop::collection::vec(any::<u64>(), 0..64), any::<u64>())
            .prop_map(|(slots, nodes)| SlotMessage::Digest { slots, nodes }),
        delta.prop_map(|(records, nodes, wanted)| SlotMessage::Delta { records, nodes, wanted }),
    ]
}

fn bootstrap() -> BootstrapState {
    let node = |name: &str, port| {
        let bind = ([127, 0, 0, 1], port).into();
        BootstrapNode::new(NodeId::new(name).expect("a name"), bind, vec!["disk".into()]).expect("a node")
    };
    let state = BootstrapState {
        initialized_at: HlcTimestamp::from_bits(9),
        initialized_by: NodeId::new("a").expect("a name"),
        namespace: "test".into(),
        nodes: vec![node("a", 9000), node("b", 9010)],
        replication: Replication::default(),
        pace: Pace::default(),
        archive: Some("{}".into()),
        queue: synod_core::slots::QueueLayout { voters: 5, ..Default::default() },
    };
    state.checked().expect("a good state")
}

proptest! {
    #[test]
    fn a_batch_is_read_back_as_it_was_written(from in members(), messages in prop::collection::vec(messages(), 0..6)) {
        let bytes = batch(OWN, &from, &messages).encode_to_vec();
        let read = wire::SlotBatch::decode(&bytes[..]).expect("it was written here");
        prop_assert_eq!(read_batch(OWN, read), Ok((from, messages)));
    }

    #[test]
    fn an_envelope_is_read_back_as_it_was_written(
        records in prop::collection::vec(records(), 0..4),
        nodes in prop::collection::vec(nodes(), 0..4),
    ) {
        let sent = Envelope { cluster: OWN, body: EnvelopeBody::SlotDelta { records, nodes } };
        prop_assert_eq!(read_envelope(OWN, &envelope(&sent)), Ok(sent));
    }

    #[test]
    fn a_damaged_batch_is_an_error_or_another_batch_and_never_a_panic(
        messages in prop::collection::vec(messages(), 1..4),
        at in any::<prop::sample::Index>(),
        flip in 1..=255u8,
    ) {
        let from = MemberId::new(NodeId::new("a").expect("a name"), Incarnation::FIRST);
        let mut bytes = batch(OWN, &from, &messages).encode_to_vec();
        let place = at.index(bytes.len());
        bytes[place] ^= flip;
        if let Ok(read) = wire::SlotBatch::decode(&bytes[..]) {
            drop(read_batch(OWN, read));
        }
        drop(read_envelope(OWN, &bytes));
    }
}

#[test]
fn the_beginning_of_a_cluster_travels_in_an_envelope() {
    let state = bootstrap();
    let cluster = state.cluster_id();
    let sent = Envelope { cluster, body: EnvelopeBody::BootstrapSnapshot(state) };
    assert_eq!(read_envelope(cluster, &envelope(&sent)), Ok(sent));
}

#[test]
fn envelopes_of_other_versions_kinds_and_clusters_are_told_apart() {
    let good = wire::Envelope {
        version: ENVELOPE_VERSION,
        kind: KIND_SLOT_DELTA.into(),
        cluster: cluster_bytes(OWN),
        payload: Bytes::new(),
    };
    let read = |envelope: &wire::Envelope| read_envelope(OWN, &envelope.encode_to_vec());
    assert!(read(&good).is_ok());
    let newer = wire::Envelope { version: 2, ..good.clone() };
    assert_eq!(read(&newer), Err(EnvelopeRefusal::Version { version: 2 }));
    let unknown = wire::Envelope { kind: "moon_phase".into(), ..good.clone() };
    assert_eq!(read(&unknown), Err(EnvelopeRefusal::Kind { kind: "moon_phase".into() }));
    let other = ClusterId::new(8);
    let foreign = wire::Envelope { cluster: cluster_bytes(other), ..good.clone() };
    assert_eq!(read(&foreign), Err(EnvelopeRefusal::Foreign(ForeignCluster { own: OWN, foreign: other })));
    let short = wire::Envelope { cluster: Bytes::from_static(b"x"), ..good };
    assert!(matches!(read(&short), Err(EnvelopeRefusal::Malformed { .. })));
}

#[test]
fn what_does_not_fit_together_is_refused_by_name() {
    let from = MemberId::new(NodeId::new("a").expect("a name"), Incarnation::FIRST);
    let read = |body: Option<Body>| {
        let mut batch = batch(OWN, &from, &[]);
        batch.messages.push(wire::SlotMessage { body });
        read_batch(OWN, batch)
    };
    assert_eq!(read(None), Err(CodecError::Missing("the body of a message")));
    let uneven = wire::Epochs { slots: vec![1, 2], epochs: vec![1] };
    assert!(matches!(read(Some(Body::Sound(uneven))), Err(CodecError::Malformed { field: "epochs", .. })));
    let large = wire::Epochs { slots: vec![70_000], epochs: vec![1] };
    assert!(matches!(read(Some(Body::Claims(large))), Err(CodecError::Malformed { field: "a slot", .. })));
    let endless = wire::Epochs { slots: vec![1], epochs: vec![u64::MAX] };
    assert!(matches!(
        read(Some(Body::Claims(endless))),
        Err(CodecError::Malformed { field: "an epoch", .. })
    ));
    let long = wire::Head {
        tag: Some(wire::Tag::default()),
        value: vec![0; VALUE_BYTES_MAX + 1].into(),
        accepted: 0,
    };
    let store = wire::Store { slot: 1, epoch: 1, head: Some(long) };
    assert!(matches!(read(Some(Body::Store(store))), Err(CodecError::Malformed { field: "a value", .. })));
    let foreign = batch(ClusterId::new(8), &from, &[]);
    assert!(matches!(read_batch(OWN, foreign), Err(CodecError::Foreign(_))));
}
