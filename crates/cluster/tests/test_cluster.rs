//! Whole clusters in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use synod_cluster::grains::{CallError, GrainContext, GrainError, GrainSnapshot, RetryPolicy};
use synod_cluster::{TestCluster, TestClusterBuilder, TestClusterError, grain};
use tokio::time::Instant;

/// Counts.
#[grain]
trait Counter {
    async fn add(&mut self, number: u64) -> Result<u64, GrainError>;
    /// The address of the node where it runs.
    async fn place(&mut self) -> Result<String, GrainError>;
}

#[derive(Default)]
struct InMemory {
    sum: u64,
}

impl CounterGrain for InMemory {
    async fn add(&mut self, _: &mut GrainContext, number: u64) -> Result<u64, GrainError> {
        self.sum += number;
        Ok(self.sum)
    }

    async fn place(&mut self, context: &mut GrainContext) -> Result<String, GrainError> {
        Ok(context.own().address().to_owned())
    }

    async fn activate(
        &mut self,
        _: &mut GrainContext,
        snapshot: Option<GrainSnapshot>,
    ) -> Result<(), GrainError> {
        self.sum = snapshot.map_or(0, |snapshot| snapshot.version);
        Ok(())
    }

    async fn deactivate(&mut self, _: &mut GrainContext) -> Option<GrainSnapshot> {
        Some(GrainSnapshot { version: self.sum, bytes: Arc::from([]) })
    }
}

fn builder() -> TestClusterBuilder {
    TestCluster::builder().kind(Counter::kind(|_| InMemory::default()))
}

fn counter(cluster: &TestCluster, node: usize, identity: &str) -> CounterClient {
    cluster.node(node).grain::<Counter>(identity).expect("a name")
}

/// A counter that runs on `node`, asked from there.
async fn counter_on(cluster: &TestCluster, node: usize) -> String {
    let authority = cluster.authority(node);
    for number in 0..1000 {
        let identity = format!("counter-{number}");
        if counter(cluster, node, &identity).place().await.expect("settled") == authority.as_str() {
            return identity;
        }
    }
    panic!("no counter lives on node {node}");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_forms_and_every_node_calls_every_grain_in_virtual_time() {
    let (real, virtually) = (std::time::Instant::now(), Instant::now());
    let cluster = builder().nodes(3).seed(7).start().await.expect("it settles");
    let mut places = std::collections::BTreeSet::new();
    for number in 0..30 {
        let identity = format!("counter-{number}");
        for node in 0..3 {
            assert_eq!(counter(&cluster, node, &identity).add(1).await, Ok(node as u64 + 1));
        }
        places.insert(counter(&cluster, 0, &identity).place().await.expect("it runs"));
    }
    assert_eq!(places.len(), 3, "each node hosts some");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    cluster.settled().await.expect("an hour later, too");
    eprintln!("{:?} in {:?}", virtually.elapsed(), real.elapsed());
    assert!(virtually.elapsed() > Duration::from_secs(3600));
}
