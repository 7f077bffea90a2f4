//! Counters from a `.proto` file, on whole nodes over real sockets.

use std::collections::BTreeSet;
use std::time::Duration;

use counter::{AddRequest, Counter, CounterClient, ErrorReason, Total, settle, start};
use synod::cluster::Cluster;
use synod::cluster::grains::{CallError, GrainService, RetryPolicy};

const PATIENCE: Duration = Duration::from_secs(20);

fn counter(node: &Cluster, identity: &str) -> CounterClient {
    let retry = RetryPolicy::Fixed { retries: 50, delay: Duration::from_millis(10) };
    node.grain::<Counter>(identity).expect("running").with_timeout(PATIENCE).with_retry(retry)
}

#[tokio::test(flavor = "multi_thread")]
async fn both_nodes_call_the_counters_of_the_file() {
    let first = start("first", None).await.expect("a node on loopback");
    let second = start("second", Some(&first)).await.expect("a node on loopback");
    tokio::time::timeout(PATIENCE, settle(&[&first, &second])).await.expect("in time");
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
