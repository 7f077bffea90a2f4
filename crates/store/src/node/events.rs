//! What happens to slots and objects, told on the event stream of the cluster.

use std::time::Duration;

use synod_cluster::{EventStream, MonotonicClock};
use synod_core::TimerInstant;
use synod_core::membership::ClusterEvent;
use tokio::sync::broadcast;

/// Publishes what comes, until its source ends. A node comes to hundreds of slots at once: what happens within a short
/// while is one event, so that nobody who listens to the stream for other things is crowded out.
pub(super) async fn publish<E: Clone>(
    mut source: broadcast::Receiver<E>,
    stream: EventStream,
    clock: MonotonicClock,
    to_event: impl Fn(Vec<E>, TimerInstant) -> ClusterEvent,
) {
    use broadcast::error::{RecvError, TryRecvError};
    loop {
        let first = match source.recv().await {
            Ok(event) => event,
            Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return,
        };
        let observed_at = clock.now();
        tokio::time::sleep(GATHERED).await;
        let mut events = vec![first];
        loop {
            match source.try_recv() {
                Ok(event) => events.push(event),
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        stream.publish(to_event(events, observed_at));
    }
}

/// How long events are gathered.
const GATHERED: Duration = Duration::from_millis(10);
