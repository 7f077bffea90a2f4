//! The settings of the hints, checked once, and the timings that follow from them.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use synod_core::NodeId;

/// Settings of [`Hints`](super::Hints). The timings should be the same at all nodes of a cluster.
#[derive(Clone)]
pub struct HintsConfig {
    /// The name of this node.
    pub node: NodeId,
    /// A random number drawn by this process, which tells two processes of one name apart.
    pub instance: u64,
    /// Which life of the name this is, raised at every start.
    pub incarnation: u64,
    /// Where to listen, by TCP and by UDP. The port must not be 0, for others have to know it.
    pub bind: SocketAddr,
    /// The address by which other nodes reach [`bind`](Self::bind). A real address and port.
    pub advertise: SocketAddr,
    /// The id of the cluster, 1 to 128 bytes. Nodes of other clusters are refused.
    pub label: String,
    /// Every other node of the cluster: its name, and `host:port` of its [`advertise`](Self::advertise). Nodes with other
    /// names are refused. At most 1024.
    pub peers: Vec<(NodeId, String)>,
    /// How often small payloads are sent to a few nodes. Shorter spreads them sooner and sends more datagrams. 10 ms to
    /// 10 s.
    pub gossip_interval: Duration,
    /// To how many nodes at once. 1 to 16.
    pub fanout: usize,
    /// Within which time a node that vanished is down for the others, if they can be trusted to answer as fast as that.
    /// From 3 s on it is given up after 2 to 3 s, below 3 s all timings shrink in proportion: sooner, and sooner wrong
    /// about a node that is only slow. 300 ms to 60 s.
    pub suspect_timeout: Duration,
    /// How often all that is known of the nodes is compared with one of them. 100 ms to one hour.
    pub full_sync_interval: Duration,
    /// How often nodes that are not online are called again. 100 ms to one hour.
    pub rejoin_interval: Duration,
    /// The key by which everything is encrypted and authenticated (AES-256-GCM), the same at all nodes. Without it
    /// everybody who reaches the port can say anything.
    pub secret: Option<[u8; 32]>,
}

impl HintsConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), HintsConfigError> {
        let require = |field, holds, rule| if holds { Ok(()) } else { Err(HintsConfigError { field, rule }) };
        require("bind", self.bind.port() != 0, "must have a port")?;
        let is_reachable = self.advertise.port() != 0 && !self.advertise.ip().is_unspecified();
        require("advertise", is_reachable, "must be an address and a port that others can connect to")?;
        let label_fits = (1..=LABEL_BYTES_MAX).contains(&self.label.len());
        require("label", label_fits, "must be 1 to 128 bytes")?;
        let mut names = BTreeSet::from([&self.node]);
        let are_others = self.peers.iter().all(|(node, _)| names.insert(node));
        require("peers", are_others, "must name every other node once, and not this one")?;
        require("peers", self.peers.len() <= PEERS_MAX, "must be at most 1024")?;
        require("fanout", (1..=16).contains(&self.fanout), "must be 1 to 16")?;
        let milliseconds = |value: Duration, min, max| {
            (Duration::from_millis(min)..=Duration::from_millis(max)).contains(&value)
        };
        let gossip = milliseconds(self.gossip_interval, 10, 10_000);
        require("gossip_interval", gossip, "must be 10 ms to 10 s")?;
        let suspect = milliseconds(self.suspect_timeout, 300, 60_000);
        require("suspect_timeout", suspect, "must be 300 ms to 60 s")?;
        let full_sync = milliseconds(self.full_sync_interval, 100, 3_600_000);
        require("full_sync_interval", full_sync, "must be 100 ms to one hour")?;
        let rejoin = milliseconds(self.rejoin_interval, 100, 3_600_000);
        require("rejoin_interval", rejoin, "must be 100 ms to one hour")
    }

    pub(super) fn timing(&self) -> Timing {
        // In thousandths of the timings that give a node up after 2 to 3 s.
        let scale =
            u32::try_from(self.suspect_timeout.min(FULL_SUSPECT_TIMEOUT).as_millis() / 3).unwrap_or(1000);
        let scaled = |full: Duration| full * scale / 1000;
        Timing {
            probe_interval: scaled(Duration::from_millis(500)),
            probe_timeout: scaled(Duration::from_millis(200)),
            // A large payload has to pass within this time, so it does not shrink as far as the rest.
            stream_timeout: scaled(Duration::from_secs(1)).max(Duration::from_millis(500)),
            dead_memory: (self.suspect_timeout * 10).min(Duration::from_secs(30)),
        }
    }
}

impl fmt::Debug for HintsConfig {
    /// Everything but the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HintsConfig")
            .field("node", &self.node)
            .field("instance", &self.instance)
            .field("incarnation", &self.incarnation)
            .field("bind", &self.bind)
            .field("advertise", &self.advertise)
            .field("label", &self.label)
            .field("peers", &self.peers)
            .field("is_encrypted", &self.secret.is_some())
            .finish_non_exhaustive()
    }
}

/// A setting is out of range. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hints.{field} {rule}")]
pub struct HintsConfigError {
    /// The field.
    pub field: &'static str,
    /// What it must be.
    pub rule: &'static str,
}

/// What the detector of failures is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timing {
    pub(super) probe_interval: Duration,
    pub(super) probe_timeout: Duration,
    pub(super) stream_timeout: Duration,
    /// How long a dead node is remembered and gossiped to.
    pub(super) dead_memory: Duration,
}

pub(super) const LABEL_BYTES_MAX: usize = 128;
const PEERS_MAX: usize = 1024;
const FULL_SUSPECT_TIMEOUT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> HintsConfig {
        HintsConfig {
            node: "a".parse().unwrap(),
            instance: 7,
            incarnation: 1,
            bind: "0.0.0.0:7946".parse().unwrap(),
            advertise: "10.0.0.1:7946".parse().unwrap(),
            label: "cluster".into(),
            peers: vec![("b".parse().unwrap(), "b.example:7946".into())],
            gossip_interval: Duration::from_millis(200),
            fanout: 3,
            suspect_timeout: Duration::from_secs(5),
            full_sync_interval: Duration::from_secs(30),
            rejoin_interval: Duration::from_secs(5),
            secret: Some([42; 32]),
        }
    }

    #[test]
    fn each_setting_has_a_range_and_is_named_when_it_is_out_of_it() {
        assert_eq!(sound().validate(), Ok(()));
        let cases = [
            (HintsConfig { bind: "0.0.0.0:0".parse().unwrap(), ..sound() }, "bind"),
            (HintsConfig { advertise: "0.0.0.0:7946".parse().unwrap(), ..sound() }, "advertise"),
            (HintsConfig { advertise: "[::1]:0".parse().unwrap(), ..sound() }, "advertise"),
            (HintsConfig { label: String::new(), ..sound() }, "label"),
            (HintsConfig { label: "x".repeat(129), ..sound() }, "label"),
            (HintsConfig { peers: vec![("a".parse().unwrap(), "a:1".into())], ..sound() }, "peers"),
            (HintsConfig { fanout: 0, ..sound() }, "fanout"),
            (HintsConfig { gossip_interval: Duration::ZERO, ..sound() }, "gossip_interval"),
            (HintsConfig { suspect_timeout: Duration::from_millis(299), ..sound() }, "suspect_timeout"),
            (HintsConfig { full_sync_interval: Duration::ZERO, ..sound() }, "full_sync_interval"),
            (HintsConfig { rejoin_interval: Duration::from_secs(3601), ..sound() }, "rejoin_interval"),
        ];
        for (config, name) in cases {
            assert_eq!(config.validate().map_err(|error| error.field), Err(name));
        }
    }

    #[test]
    fn a_shorter_suspect_timeout_shrinks_the_timings_and_a_longer_one_leaves_them() {
        let timing = |milliseconds| {
            HintsConfig { suspect_timeout: Duration::from_millis(milliseconds), ..sound() }.timing()
        };
        assert_eq!(timing(60_000).probe_interval, Duration::from_millis(500));
        assert_eq!(timing(3_000).probe_interval, Duration::from_millis(500));
        assert_eq!(timing(1_500).probe_interval, Duration::from_millis(250));
        assert_eq!(timing(300).probe_interval, Duration::from_millis(50));
        assert_eq!(timing(300).probe_timeout, Duration::from_millis(20));
        assert_eq!(timing(300).stream_timeout, Duration::from_millis(500));
    }

    #[test]
    fn the_secret_is_not_printed() {
        assert!(!format!("{:?}", sound()).contains("42"));
    }
}
