use synod_core::membership::{GossipBody, GossipSender, NodeRecord, QuarantineReason};
use synod_core::{Incarnation, MemberId, NodeId};

use super::*;
use crate::testing::soon;

#[tokio::test(start_paused = true)]
async fn messages_arrive_in_order_and_wake_the_receiver() {
    let network = InMemoryNetwork::default();
    let (mut a, mut b) = (attach(&network, 1), attach(&network, 2));
    let ready = b.inbound_ready();
    let waiting = tokio::spawn(async move { ready.notified().await });
    a.send(heartbeat(1, 1, 2, 7)).expect("taken");
    a.send(heartbeat(1, 1, 2, 8)).expect("taken");
    soon(waiting).await.expect("the receiver is woken");
    assert_eq!(b.poll_inbound(), [heartbeat(1, 1, 2, 7).message, heartbeat(1, 1, 2, 8).message]);
    assert_eq!(b.poll_inbound(), []);
}

#[test]
fn what_cannot_be_taken_is_a_typed_error_that_names_the_target() {
    let network = InMemoryNetwork::new(1).expect("a capacity in range");
    let (mut a, mut b) = (attach(&network, 1), attach(&network, 2));

    // Nobody lives there.
    let target = authority(3);
    assert_eq!(a.send(heartbeat(1, 1, 3, 1)), Err(GossipTransportError::Unreachable { target }));

    // The mailbox is full until it is emptied.
    let target = authority(2);
    a.send(heartbeat(1, 1, 2, 1)).expect("taken");
    assert_eq!(
        a.send(heartbeat(1, 1, 2, 2)),
        Err(GossipTransportError::QueueFull { target: target.clone() })
    );
    assert_eq!(b.poll_inbound().len(), 1);
    a.send(heartbeat(1, 1, 2, 3)).expect("taken");

    // A cut road leads nowhere, in both directions, until it is mended.
    network.disconnect(&authority(2), &authority(1));
    assert_eq!(
        a.send(heartbeat(1, 1, 2, 4)),
        Err(GossipTransportError::Unreachable { target: target.clone() })
    );
    assert_eq!(
        b.send(heartbeat(2, 1, 1, 1)),
        Err(GossipTransportError::Unreachable { target: authority(1) })
    );
    network.reconnect(&authority(1), &authority(2));
    b.send(heartbeat(2, 1, 1, 1)).expect("taken");

    // A dropped transport is gone.
    drop(b);
    assert_eq!(a.send(heartbeat(1, 1, 2, 5)), Err(GossipTransportError::Unreachable { target }));
}

#[test]
fn a_quarantined_address_is_refused_in_both_directions_until_it_is_released() {
    let network = InMemoryNetwork::default();
    let (mut a, mut b) = (attach(&network, 1), attach(&network, 2));
    let reason = QuarantineReason::Requested("test".into());
    a.apply_quarantine(&QuarantineEvent::Quarantined { authority: authority(2), reason });

    let target = authority(2);
    assert_eq!(a.send(heartbeat(1, 1, 2, 1)), Err(GossipTransportError::Quarantined { target }));
    b.send(heartbeat(2, 9, 1, 1)).expect("the sender cannot know");
    assert_eq!((a.poll_inbound(), network.refused_total()), (vec![], 1));

    a.apply_quarantine(&QuarantineEvent::Cleared { authority: authority(2) });
    a.send(heartbeat(1, 1, 2, 1)).expect("released");
    b.send(heartbeat(2, 9, 1, 2)).expect("released");
    assert_eq!((a.poll_inbound().len(), network.refused_total()), (1, 1));
}

#[test]
fn a_verdict_on_one_life_does_not_silence_its_address() {
    let network = InMemoryNetwork::default();
    let (mut a, mut b) = (attach(&network, 1), attach(&network, 2));
    let reason = QuarantineReason::Dead(member(2, 4));
    a.apply_quarantine(&QuarantineEvent::Quarantined { authority: authority(2), reason });
    b.send(heartbeat(2, 4, 1, 1)).expect("taken");
    b.send(heartbeat(2, 5, 1, 1)).expect("taken");
    // Membership refuses the dead life and tells it why; a later one is somebody new.
    assert_eq!(a.poll_inbound(), [heartbeat(2, 4, 1, 1).message, heartbeat(2, 5, 1, 1).message]);
    a.send(heartbeat(1, 1, 2, 1)).expect("the way back is open");
}

#[test]
fn an_address_has_one_mailbox_at_a_time() {
    let network = InMemoryNetwork::default();
    let first = attach(&network, 1);
    assert_eq!(network.attach(&authority(1)).err(), Some(AttachError { authority: authority(1) }));
    drop(first);
    assert!(!network.is_attached(&authority(1)));
    let _second = attach(&network, 1);
    assert!(network.is_attached(&authority(1)));
}

#[test]
fn a_mailbox_without_room_is_refused() {
    for mailbox_capacity in [0, MAILBOX_CAPACITY_MAX + 1] {
        let error = InMemoryNetwork::new(mailbox_capacity).err();
        assert_eq!(error, Some(InMemoryNetworkConfigError { mailbox_capacity }));
    }
}

fn attach(network: &InMemoryNetwork, number: u16) -> InMemoryTransport {
    network.attach(&authority(number)).expect("a free address")
}

fn authority(number: u16) -> Authority {
    Authority::new(&format!("node{number}:{}", 8400 + number)).expect("an authority")
}

fn member(number: u16, incarnation: u64) -> MemberId {
    let node = NodeId::new(&format!("node{number}")).expect("a name");
    MemberId::new(node, Incarnation::new(incarnation).expect("an incarnation"))
}

fn heartbeat(from: u16, incarnation: u64, to: u16, sequence: u64) -> GossipOutbound {
    let record = NodeRecord::joining(member(from, incarnation), authority(from));
    let message =
        GossipMessage { sender: GossipSender::Member(record), body: GossipBody::Heartbeat { sequence } };
    GossipOutbound { target: authority(to), message }
}
