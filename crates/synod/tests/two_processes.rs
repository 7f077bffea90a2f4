//! Grains across two processes: this one, and a quickstart that it starts, joins and kills.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use synod::cluster::grains::GrainKind;
use synod::cluster::quickstart::{COUNTER_ADD, COUNTER_KIND, COUNTER_WHERE, Counter, demo_membership};
use synod::cluster::remote::RemoteConfig;
use synod::cluster::{Cluster, ClusterConfig, ClusterProvider, Delivery};

const OWN: &str = "outsider";
const PATIENCE: Duration = Duration::from_secs(60);
const COUNTERS: usize = 30;

/// A quickstart in a process of its own, which ends with this value.
struct Quickstart {
    process: Child,
    addresses: Vec<String>,
}

impl Quickstart {
    /// Returns when the tour is over and the cluster is up.
    fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_synod"))
            .args(["quickstart", "--nodes", "2", "--no-api"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut lines = BufReader::new(process.stderr.take().expect("its words")).lines();
        let mut addresses = Vec::new();
        while let Some(Ok(line)) = lines.next() {
            if let Some(address) =
                line.split_whitespace().nth(1).filter(|word| word.starts_with("127.0.0.1:"))
            {
                addresses.push(address.to_owned());
            }
            if line.contains("Ctrl-C") {
                break;
            }
        }
        assert_eq!(addresses.len(), 2, "the addresses of both nodes");
        Self { process, addresses }
    }
}

impl Drop for Quickstart {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

async fn join(seeds: &[String]) -> Cluster {
    let remote = RemoteConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    let mut config = ClusterConfig::new(OWN.parse().expect("a name"), remote);
    // As impatient as the quickstart itself.
    config.membership = demo_membership(3);
    config.membership.seeds.extend(seeds.iter().map(|seed| seed.parse().expect("an address")));
    config.kinds.push(GrainKind::new(COUNTER_KIND, |_| Counter::new(OWN)));
    let mut node = Cluster::new(config).expect("valid settings");
    node.start_member().await.expect("a node on loopback");
    node
}

/// Waits until this node deals with so many members that host counters.
async fn until_members(node: &Cluster, count: usize) {
    let mut events = node.events().subscribe();
    let hosts =
        || node.roster().iter().filter(|member| member.kinds.iter().any(|kind| kind == COUNTER_KIND)).count();
    let settled = async {
        while hosts() != count || node.roster().len() != count {
            assert!(matches!(events.recv().await, Some(Delivery::Event(_) | Delivery::Missed(_))));
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("in time");
}

/// Adds one to every counter, and says where they run.
async fn count(node: &Cluster) -> (Vec<u64>, BTreeSet<String>) {
    let (mut sums, mut places) = (Vec::new(), BTreeSet::new());
    for number in 0..COUNTERS {
        let grain = node.grain_ref(COUNTER_KIND, &format!("shared-{number}")).expect("running");
        let grain = grain.with_timeout(PATIENCE);
        sums.push(grain.call::<u64>(COUNTER_ADD, &1_u64).await.expect("a sum"));
        places.insert(grain.call::<String>(COUNTER_WHERE, &()).await.expect("a name"));
    }
    (sums, places)
}

#[tokio::test(flavor = "multi_thread")]
async fn grains_live_in_both_processes_and_survive_the_death_of_one() {
    let other = tokio::task::spawn_blocking(Quickstart::start).await.expect("a quickstart");
    let node = join(&other.addresses).await;
    until_members(&node, 3).await;
    let (sums, places) = count(&node).await;
    assert_eq!(sums, [1; COUNTERS]);
    assert_eq!(places.into_iter().collect::<Vec<_>>(), ["node-1", "node-2", OWN], "each member hosts some");
    assert_eq!(count(&node).await.0, [2; COUNTERS], "the same activations");

    drop(other);
    until_members(&node, 1).await;
    let (sums, places) = count(&node).await;
    assert_eq!(places.into_iter().collect::<Vec<_>>(), [OWN]);
    assert!(sums.iter().all(|sum| [1, 3].contains(sum)), "{sums:?}");
    assert!(sums.contains(&1) && sums.contains(&3), "what lived here went on, what lived there began anew");
}
