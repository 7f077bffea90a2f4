//! The one door by which topologies reach the cluster core.
//!
//! While the cluster runs, a task reads the event stream and applies every topology update it finds there. It never
//! publishes what it read; only a failure to apply is news, and carries the time of the update that failed. The core
//! is locked for the moment of applying, never while the task waits or publishes.

use std::sync::{Arc, Mutex};

use synod_core::Authority;
use synod_core::membership::{ClusterEvent, Member};
use tokio::task::JoinHandle;

use crate::core::{AlreadyStarted, ClusterCore, ClusterMode, TopologyListener};
use crate::event_stream::{Delivery, EventStream, Subscription};
use crate::lock;
use crate::metrics::{ClusterMetrics, EventSummary, MetricsError};

/// Feeds a [`ClusterCore`] from an [`EventStream`], between start and shutdown. Dropping it ends the feeding.
#[derive(Debug)]
pub struct ClusterExtension {
    stream: EventStream,
    core: Arc<Mutex<ClusterCore>>,
    feeding: Option<JoinHandle<()>>,
}

impl ClusterExtension {
    /// An extension that is not started, for a core that is not started.
    #[must_use]
    pub fn new(stream: EventStream, core: ClusterCore) -> Self {
        Self { stream, core: Arc::new(Mutex::new(core)), feeding: None }
    }

    /// Starts the core and, if that succeeds, subscribes it to the stream.
    ///
    /// Only what is published from now on is applied: the recent events may belong to an earlier run. So this comes
    /// before the start of whatever publishes topologies.
    ///
    /// # Errors
    /// Refused while started; nothing is subscribed then.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(&mut self, mode: ClusterMode) -> Result<(), AlreadyStarted> {
        lock(&self.core).start(mode)?;
        self.end_feeding();
        let subscription = self.stream.subscribe_live();
        self.feeding = Some(tokio::spawn(feed(subscription, self.stream.clone(), Arc::clone(&self.core))));
        Ok(())
    }

    /// Unsubscribes, then shuts the core down. Harmless when it is not started.
    pub async fn shutdown(&mut self) {
        if let Some(feeding) = self.end_feeding() {
            // The subscription is gone when the task is; that it was cancelled is no news.
            drop(feeding.await);
        }
        lock(&self.core).shutdown();
    }

    /// Adds someone who is told of every applied topology.
    pub fn add_listener(&self, listener: Box<dyn TopologyListener>) {
        lock(&self.core).add_listener(listener);
    }

    /// As what the node takes part; `None` before the start and after the node stopped.
    #[must_use]
    pub fn mode(&self) -> Option<ClusterMode> {
        lock(&self.core).mode()
    }

    /// The members of the last applied topology, in node order.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        lock(&self.core).members().to_vec()
    }

    /// The quarantined addresses, in order.
    #[must_use]
    pub fn blocked(&self) -> Vec<Authority> {
        lock(&self.core).blocked().cloned().collect()
    }

    /// The numbers now.
    ///
    /// # Errors
    /// Metrics are switched off.
    pub fn metrics(&self) -> Result<ClusterMetrics, MetricsError> {
        lock(&self.core).metrics()
    }

    /// The core, for whoever answers questions about it while the node runs.
    pub(crate) fn core(&self) -> Arc<Mutex<ClusterCore>> {
        Arc::clone(&self.core)
    }

    fn end_feeding(&mut self) -> Option<JoinHandle<()>> {
        let feeding = self.feeding.take()?;
        // The task holds neither a lock nor a half-applied update where it can be interrupted.
        feeding.abort();
        Some(feeding)
    }
}

impl Drop for ClusterExtension {
    fn drop(&mut self) {
        drop(self.end_feeding());
    }
}

/// Applies what comes, until the stream ends or the node stops.
async fn feed(mut subscription: Subscription, stream: EventStream, core: Arc<Mutex<ClusterCore>>) {
    while let Some(delivery) = subscription.recv().await {
        match delivery {
            Delivery::Missed(events) => {
                lock(&core).observe_missed(events);
                // Every update carries all members, so the next one makes up for those that were lost.
                tracing::warn!(
                    events,
                    "cluster events were missed; the next topology update repairs the view"
                );
            }
            Delivery::Event(event) => {
                EventSummary::of(&event).log();
                lock(&core).tally(&event);
                match &*event {
                    ClusterEvent::Shutdown { .. } => {
                        drop(subscription);
                        lock(&core).shutdown();
                        return;
                    }
                    ClusterEvent::TopologyUpdated { update } => {
                        let result = lock(&core).try_apply_topology(update);
                        if let Err(reason) = result {
                            tracing::warn!(%reason, "a topology update was not applied");
                            let observed_at = update.observed_at;
                            stream.publish(ClusterEvent::TopologyApplyFailed { reason, observed_at });
                        }
                    }
                    other => lock(&core).observe(other),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
