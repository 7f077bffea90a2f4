//! Grains that count: the service of `proto/counter.proto`, and one way to host it.

use std::error::Error;
use std::time::Duration;

use synod::cluster::grains::{GrainContext, GrainError};
use synod::cluster::remote::RemoteConfig;
use synod::cluster::{Cluster, ClusterConfig, ClusterProvider};
use synod::core::grains::PlacementHash;

/// What the build script made of `proto/counter.proto`.
pub mod generated {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/counter.rs"));
}

pub use generated::{AddRequest, Counter, CounterClient, CounterGrain, ErrorReason, Total};

/// A counter that forgets its total when it is unloaded.
#[derive(Debug)]
pub struct InMemory {
    total: i64,
    node: String,
}

impl InMemory {
    /// A counter at zero that lives on `node`.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Self { total: 0, node: node.to_owned() }
    }
}

impl CounterGrain for InMemory {
    async fn add(&mut self, _: &mut GrainContext, request: AddRequest) -> Result<Total, GrainError> {
        let total = self.total.checked_add(request.amount);
        let total = total.ok_or_else(|| ErrorReason::TooMuch.error("the total would be too large"))?;
        if total < 0 {
            return Err(ErrorReason::Overdrawn.error(format!("the total would be {total}")));
        }
        self.total = total;
        Ok(Total { value: total, node: self.node.clone() })
    }

    async fn current(&mut self, _: &mut GrainContext) -> Result<Total, GrainError> {
        Ok(Total { value: self.total, node: self.node.clone() })
    }

    async fn reset(&mut self, _: &mut GrainContext) -> Result<(), GrainError> {
        self.total = 0;
        Ok(())
    }
}

/// A node on this machine that hosts counters, alone or in the cluster that `seed` is in.
///
/// # Errors
/// The node cannot start.
pub async fn start(name: &'static str, seed: Option<&Cluster>) -> Result<Cluster, Box<dyn Error>> {
    let listen = RemoteConfig::new(([127, 0, 0, 1], 0).into());
    let mut config = ClusterConfig::new(name.parse()?, listen);
    config.kinds.push(Counter::kind(|_identity| InMemory::new(name)));
    // Spreads better over ports of one machine. With Go nodes in the cluster it has to stay as it is.
    config.grains.activation.placement = PlacementHash::Synod;
    let known = seed.and_then(Cluster::remote).map(|remote| remote.authority().clone());
    config.membership.seeds.extend(known);
    let mut node = Cluster::new(config)?;
    node.start_member().await?;
    Ok(node)
}

/// Waits until all of `nodes` know what each of them hosts. Before that, two of them may take themselves for the home of
/// the same counter.
pub async fn settle(nodes: &[&Cluster]) {
    for node in nodes {
        while node.roster().iter().filter(|member| !member.kinds.is_empty()).count() < nodes.len() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
