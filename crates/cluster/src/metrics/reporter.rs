//! Numbers for the log, once per interval.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use crate::api::ApiSources;

/// Writes the numbers of a node to the log. Dropping it ends that.
pub(crate) struct Reporter(JoinHandle<()>);

impl Reporter {
    /// The first line comes after one interval.
    pub(crate) fn start(interval: Duration, sources: ApiSources) -> Self {
        Self(tokio::spawn(report(interval, sources)))
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn report(interval: Duration, sources: ApiSources) {
    let mut ticks = tokio::time::interval_at(Instant::now() + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // Without numbers nobody starts a reporter.
        let Ok(text) = sources.exposition() else { return };
        tracing::info!(target: "synod::metrics", node = %sources.node, "{}", text.one_line());
    }
}
