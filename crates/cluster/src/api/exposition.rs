//! Numbers in the text format of Prometheus, version 0.0.4.
//!
//! A family is one `# HELP` line, one `# TYPE` line and its samples, all together and only once.

use std::fmt::{Display, Write};
use std::time::Duration;

use synod_core::grains::LatencyHistogram;
use synod_core::pubsub::PubSubCounts;

use crate::grains::Grains;
use crate::metrics::{ClusterMetrics, EventCount};
use crate::pubsub::PubSub;
use crate::remote::Remote;

/// A text that grows family by family.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// Begins a family of values that go up and down.
    pub fn gauge(&mut self, name: &str, help: &str) {
        self.family(name, "gauge", help);
    }

    /// A gauge with a single value.
    pub fn one_gauge(&mut self, name: &str, help: &str, value: u64) {
        self.gauge(name, help);
        self.sample(name, &[], value);
    }

    /// Counters by name, help and value, each a family `<prefix>_<name>_total`.
    pub fn counters(&mut self, prefix: &str, counters: &[(&str, &str, u64)]) {
        for (name, help, value) in counters {
            let name = format!("{prefix}_{name}_total");
            self.family(&name, "counter", help.trim());
            self.sample(&name, &[], value);
        }
    }

    /// Begins a family of values that only rise.
    pub fn counter(&mut self, name: &str, help: &str) {
        self.family(name, "counter", help);
    }

    /// One sample of the family at hand.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            self.push(format_args!("{before}{label}=\"{}\"", escaped(text, true)));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        self.push(format_args!("{end} {value}\n"));
    }

    /// Everything about grains.
    pub(crate) fn grains(&mut self, grains: &Grains) {
        let name = "synod_grain_activations";
        self.gauge(name, "Grains that run on this node, by kind.");
        for (kind, count) in grains.activation_counts() {
            self.sample(name, &[("kind", &kind)], count);
        }
        let calls = grains.call_counts();
        let counters = [
            ("accepted", "Calls that were taken on.", calls.accepted),
            ("rejected", "Calls that were not taken on.", calls.rejected),
            ("completed", "Calls that were answered, errors of grains included.", calls.completed),
            ("answered_with_error", "Calls that were answered with an error.", calls.grain_errors),
            ("failed", "Calls that failed for good.", calls.failed),
            ("dropped", "Calls that made room for newer ones.", calls.dropped),
            ("timed_out", "Calls whose time was over.", calls.timed_out),
            ("cancelled", "Calls whose caller lost interest.", calls.cancelled),
            ("retried", "Attempts beyond the first of each call.", calls.retries),
            ("slow", "Calls that took longer than they should.", calls.slow),
            ("late", "Answers and failures for calls that were over.", calls.late),
        ];
        self.counters("synod_grain_calls", &counters);
        let cache = grains.cache_counts();
        let counters = [
            ("hits", "Grains whose place was remembered.", cache.hits),
            ("misses", "Grains whose place was not remembered.", cache.misses),
            ("drops", "Remembered places that were dropped.", cache.drops),
        ];
        self.counters("synod_grain_cache", &counters);
        let missed = grains.broadcasts_missed();
        let counters = [("missed", "Broadcasts that listeners of this node were too slow for.", missed)];
        self.counters("synod_broadcasts", &counters);
        let handovers = grains.handover_counts();
        let counters = [
            (
                "claimed",
                "Grains that previous hosts were asked for before they started here.",
                handovers.claimed,
            ),
            ("missed", "Grains that started here though a previous host had not answered.", handovers.missed),
            ("yielded", "Grains that were yielded to another member.", handovers.yielded),
            ("duplicates", "Grains that ran here and elsewhere at the same time.", handovers.duplicates),
            ("states_dropped", "States of grains that were lost.", handovers.snapshots_dropped),
        ];
        self.counters("synod_grain_handover", &counters);
        let (name, help) =
            ("synod_grain_call_duration_seconds", "How long answered calls of this node took.");
        self.histogram(name, help, &grains.latencies());
    }

    /// Everything about the applied topology, and how soon all members know of a change.
    pub(crate) fn cluster(&mut self, numbers: &ClusterMetrics, convergence: &LatencyHistogram) {
        let (name, help) = ("synod_cluster_members", "Members in the last applied topology.");
        self.one_gauge(name, help, numbers.members as u64);
        let (name, help) = ("synod_cluster_quarantined_addresses", "Addresses that are kept out.");
        self.one_gauge(name, help, numbers.quarantined as u64);
        let counters = [
            ("topology_updates", "Topology updates that were applied.", numbers.topology_updates),
            ("topology_failures", "Topology updates that were refused.", numbers.topology_failures),
            ("status_changes", "Changes of a member's state that were observed.", numbers.status_changes),
            ("late_changes", "Changes that were not confirmed in time.", numbers.late_changes),
            ("events_missed", "Events that came faster than they were taken in.", numbers.events_missed),
        ];
        self.counters("synod_cluster", &counters);
        let (name, help) =
            ("synod_cluster_convergence_seconds", "How long changes took until they were confirmed.");
        self.histogram(name, help, convergence);
    }

    /// Everything about connections.
    pub(crate) fn remote(&mut self, remote: &Remote) {
        let (name, help) = ("synod_remote_processes", "Actors and other processes.");
        self.one_gauge(name, help, remote.process_count() as u64);
        self.one_gauge("synod_remote_peers", "Peers that are known.", remote.peer_count() as u64);
        let (name, help) = ("synod_remote_pending_requests", "Requests that wait for an answer.");
        self.one_gauge(name, help, remote.pending_requests() as u64);
        self.counters("synod_remote", &remote.counters().described());
    }

    /// What was published on the event stream.
    pub(crate) fn events<'a>(&mut self, events: impl Iterator<Item = &'a EventCount>) {
        let name = "synod_events_total";
        self.family(name, "counter", "Events of this node, by family, kind and result.");
        for EventCount { family, kind, result, count } in events {
            let labels = [("family", family.as_str()), ("kind", kind), ("result", result.as_str())];
            self.sample(name, &labels, count);
        }
    }

    fn histogram(&mut self, name: &str, help: &str, durations: &LatencyHistogram) {
        self.family(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for limit in BUCKETS {
            let bound = limit.as_secs_f64().to_string();
            self.sample(&bucket, &[("le", &bound)], durations.count_within(limit));
        }
        self.sample(&bucket, &[("le", "+Inf")], durations.count());
        self.sample(&format!("{name}_sum"), &[], durations.sum().as_secs_f64());
        self.sample(&format!("{name}_count"), &[], durations.count());
    }

    /// All samples on one line, for a log. Of histograms only sum and count.
    pub(crate) fn one_line(&self) -> String {
        let samples = self.text.lines().filter(|line| !line.starts_with('#') && !line.contains("_bucket{"));
        samples.collect::<Vec<_>>().join(", ")
    }

    /// Everything about topics.
    pub(super) fn pubsub(&mut self, pubsub: &PubSub) {
        let all = pubsub.counts();
        let counters = [
            ("published", "Messages that topics of this node took.", all.published),
            ("refused", "Batches that topics of this node did not take.", all.refused),
            ("forwarded", "Messages sent to nodes of subscribers, again ones included.", all.forwarded),
            ("acknowledged", "Messages that subscribers acknowledged.", all.delivered),
            ("delayed", "Messages kept because their subscriber could not be reached.", all.delayed),
            ("dropped", "Messages that were given up.", all.dropped),
            ("redelivered", "Messages that were sent again.", all.redelivered),
            ("timeouts", "Deliveries that got no answer in time.", all.timeouts),
            ("failures", "Deliveries that failed otherwise.", all.failures),
        ];
        self.counters("synod_pubsub", &counters);
        let topics = pubsub.topic_counts();
        self.one_gauge("synod_pubsub_topics", "Topics that run on this node.", topics.len() as u64);
        let families: [(&str, &str, CountOf); 4] = [
            ("published", "Messages that a topic took.", |counts| counts.published),
            ("delayed", "Messages that a topic kept for whom it could not reach.", |counts| counts.delayed),
            ("dropped", "Messages that a topic gave up.", |counts| counts.dropped),
            ("redelivered", "Messages that a topic sent again.", |counts| counts.redelivered),
        ];
        for (name, help, count_of) in families {
            let name = format!("synod_pubsub_topic_{name}_total");
            self.family(&name, "counter", help);
            // Whoever reads this keeps every label for ever, so there must not be too many.
            for (topic, counts) in topics.iter().take(TOPICS_MAX) {
                self.sample(&name, &[("topic", topic.as_str())], count_of(counts));
            }
        }
    }

    /// The whole text.
    pub(crate) fn finish(self) -> String {
        self.text
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.push(format_args!("# HELP {name} {}\n# TYPE {name} {kind}\n", escaped(help, false)));
    }

    fn push(&mut self, text: std::fmt::Arguments<'_>) {
        self.text.write_fmt(text).expect("a string takes everything");
    }
}

/// A backslash and the end of a line are escaped everywhere, quotes in labels only.
fn escaped(text: &str, is_label: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if is_label { text.replace('"', "\\\"") } else { text }
}

type CountOf = fn(&PubSubCounts) -> u64;

/// Most topics with numbers of their own; all are in the sums.
const TOPICS_MAX: usize = 1000;
/// What the answer calls itself.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Upper bounds of the buckets of durations.
const BUCKETS: [Duration; 13] = [
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(5),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_label_holds_it_stays_one_label_of_one_line() {
        let mut text = Exposition::default();
        text.gauge("a", "one\nline, one \\ and \"quotes\"");
        text.sample("a", &[("b", "x\"y\\z\nw"), ("c", "")], 1);
        let expected = "# HELP a one\\nline, one \\\\ and \"quotes\"\n# TYPE a gauge\na{b=\"x\\\"y\\\\z\\nw\",c=\"\"} 1\n";
        assert_eq!(text.finish(), expected);
    }
}
