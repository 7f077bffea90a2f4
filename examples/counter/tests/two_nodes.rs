//! Counters from a `.proto` file, on whole nodes over real sockets.

use std::collections::BTreeSet;
use std::time::Duration;

use counter::{AddRequest, Counter, CounterClient, ErrorReason, InMemory, Total};
use synod::cluster::grains::{CallError, GrainService, RetryPolicy};
use synod::cluster::remote::RemoteConfig;
use synod::cluster::{Cluster, ClusterConfig, ClusterProvider};

const PATIENCE: Duration = Duration::from_secs(20);

async fn start(name: &'static str, seed: Option<&Cluster>) -> Cluster {
    let listen = RemoteConfig::new(([127, 0, 0, 1], 0).into());
    let mut config = ClusterConfig::new(name.parse().expect("a name"), listen);
    config.kinds.push(Counter::kind(|_| InMemory::new(name)));
    let known = seed.and_then(Cluster::remote).map(|remote| remote.authority().clone());
    config.membership.seeds.extend(known);
    let mut node = Cluster::new(config).expect("valid settings");
    node.start_member().await.expect("a node on loopback");
    node
}

fn counter(node: &Cluster, identity: &str) -> CounterClient {
    let retry = RetryPolicy::Fixed { retries: 50, delay: Duration::from_millis(10) };
    node.grain::<Counter>(identity).expect("running").with_timeout(PATIENCE).with_retry(retry)
}

#[tokio::test(flavor = "multi_thread")]
async fn both_nodes_call_the_counters_of_the_file() {
    let first = start("first", None).await;
    let second = start("second", Some(&first)).await;
    let settled = async {
        for node in [&first, &second] {
            while node.roster().len() != 2 || node.roster().iter().any(|member| member.kinds.is_empty()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("in time");
    assert_eq!(Counter::KIND, "Counter");

    let mut hosts = BTreeSet::new();
    for number in 0..20 {
        let name = format!("user:{number}");
        let total = counter(&first, &name).add(AddRequest { amount: 40 }).await.expect("a total");
        let node = total.node;
        let expected = |value| Ok(Total { value, node: node.clone() });
        assert_eq!(counter(&second, &name).add(AddRequest { amount: 2 }).await, expected(42));
        assert_eq!(counter(&first, &name).current().await, expected(42));

        let refused = counter(&second, &name).add(AddRequest { amount: -43 }).await;
        let error = refused.expect_err("not that much was counted");
        assert!(ErrorReason::Overdrawn.caused(&error), "{error}");
        assert!(!ErrorReason::TooMuch.caused(&error), "{error}");
        assert!(matches!(&error, CallError::Grain(error) if error.reason == "OVERDRAWN"), "{error}");

        assert_eq!(counter(&second, &name).reset().await, Ok(()));
        assert_eq!(counter(&first, &name).current().await, expected(0));
        hosts.insert(node);
    }
    assert_eq!(Vec::from_iter(hosts), ["first", "second"], "calls went both ways");
}
