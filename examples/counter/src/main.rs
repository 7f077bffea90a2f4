//! Two nodes in this process, and counters that both of them call.
//!
//! ```sh
//! cargo run -p counter
//! ```

use std::error::Error;
use std::time::Duration;

use counter::{AddRequest, Counter, ErrorReason, InMemory};
use synod::cluster::remote::RemoteConfig;
use synod::cluster::{Cluster, ClusterConfig, ClusterProvider};

#[tokio::main]
#[expect(clippy::print_stdout, reason = "what it is for")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut first = start("first", None).await?;
    let mut second = start("second", Some(&first)).await?;
    second.topology_consensus(Duration::from_secs(10)).await?;

    for number in 0..6 {
        let name = format!("user:{number}");
        first.grain::<Counter>(&name)?.add(AddRequest { amount: 40 }).await?;
        let total = second.grain::<Counter>(&name)?.add(AddRequest { amount: 2 }).await?;
        println!("{name} lives on node {} and has counted to {}", total.node, total.value);
    }

    let refused = first.grain::<Counter>("user:0")?.add(AddRequest { amount: -43 }).await;
    if let Err(error) = refused
        && ErrorReason::Overdrawn.caused(&error)
    {
        println!("user:0 has not enough: {error}");
    }
    second.shutdown(true).await?;
    Ok(first.shutdown(true).await?)
}

/// A node that hosts counters, alone or with the cluster that `seed` is in.
async fn start(name: &'static str, seed: Option<&Cluster>) -> Result<Cluster, Box<dyn Error>> {
    let listen = RemoteConfig::new(([127, 0, 0, 1], 0).into());
    let mut config = ClusterConfig::new(name.parse()?, listen);
    config.kinds.push(Counter::kind(|_identity| InMemory::new(name)));
    let known = seed.and_then(Cluster::remote).map(|remote| remote.authority().clone());
    config.membership.seeds.extend(known);
    let mut node = Cluster::new(config)?;
    node.start_member().await?;
    Ok(node)
}
