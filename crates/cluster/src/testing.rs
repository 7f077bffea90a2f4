//! What the tests of several modules share: names, patience, and a way to read a stream.
//!
//! Tests run in virtual time. Whatever they wait for either happens or fails the test; nothing hangs.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use synod_core::membership::ClusterEvent;
use synod_core::{Authority, Incarnation, MemberId, NodeId};

use crate::event_stream::{Delivery, Subscription};

/// Awaits something that must happen.
pub(crate) async fn soon<F: Future>(awaited: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(300), awaited).await.expect("it never happened")
}

/// Lets the other tasks run until `condition` holds.
pub(crate) async fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never happened");
}

/// The next event that is `wanted`; those before it are skipped.
pub(crate) async fn wait_for(
    events: &mut Subscription,
    wanted: impl Fn(&ClusterEvent) -> bool,
) -> Arc<ClusterEvent> {
    loop {
        match soon(events.recv()).await {
            Some(Delivery::Event(event)) if wanted(&event) => return event,
            Some(Delivery::Event(_)) => {}
            other => panic!("waiting for an event, got {other:?}"),
        }
    }
}

/// Every event that is there.
pub(crate) fn drain(events: &mut Subscription) -> Vec<Arc<ClusterEvent>> {
    let deliveries = std::iter::from_fn(|| events.try_recv());
    deliveries
        .map(|delivery| match delivery {
            Delivery::Event(event) => event,
            Delivery::Missed(events) => panic!("{events} events were missed"),
        })
        .collect()
}

pub(crate) fn member(node: &str, incarnation: u64) -> MemberId {
    MemberId::new(name(node), Incarnation::new(incarnation).expect("an incarnation"))
}

pub(crate) fn name(node: &str) -> NodeId {
    NodeId::new(node).expect("a name")
}

pub(crate) fn authority(node: &str) -> Authority {
    Authority::new(&format!("{node}:8401")).expect("an authority")
}
