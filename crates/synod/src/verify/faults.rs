//! What is done to nodes that must survive it.
//!
//! One thing at a time, so that a majority is always there, but for the outages: then all nodes die at once, and only what
//! is on their disks is left.

use std::time::{Duration, Instant};

use anstream::eprintln;

use super::nodes::Nodes;

/// What was done.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(super) struct Faults {
    /// Nodes that were killed alone.
    pub(super) kills: u32,
    /// Nodes that were frozen for a while.
    pub(super) pauses: u32,
    /// How often all were killed at once.
    pub(super) outages: u32,
    /// Nodes that ended though nobody killed them. They were started again.
    pub(super) revived: u32,
}

/// Does one thing after the other until it is time.
pub(super) async fn strike(
    nodes: &mut Nodes,
    rng: &mut fastrand::Rng,
    until: Instant,
) -> Result<Faults, String> {
    let began = Instant::now();
    let mut faults = Faults::default();
    let say = |what: &str| eprintln!("{:>6.1} s  {what}", began.elapsed().as_secs_f64());
    while Instant::now() < until {
        faults.revived += nodes.revive().map_err(|error| error.to_string())?;
        let leader = nodes.until_served().await?;
        tokio::time::sleep(Duration::from_millis(rng.u64(200..1_200))).await;
        // Mostly the leader: whoever follows is missed less.
        let is_leader = rng.u8(..4) > 0;
        let follower = (leader + rng.usize(1..nodes.count())) % nodes.count();
        let node = if is_leader { leader } else { follower };
        let role = if is_leader { "the leader" } else { "a follower" };
        let name = nodes.name(node).to_owned();
        let struck = match rng.u8(..10) {
            0 => {
                faults.outages += 1;
                say("kill -9 of all nodes");
                outage(nodes, rng).await
            }
            1..=3 => {
                faults.pauses += 1;
                let millis = rng.u64(200..3_000);
                say(&format!("SIGSTOP of {name}, {role}, for {millis} ms"));
                pause(nodes, node, Duration::from_millis(millis)).await
            }
            _ => {
                faults.kills += 1;
                say(&format!("kill -9 of {name}, {role}"));
                kill(nodes, node, Duration::from_millis(rng.u64(..1_500))).await
            }
        };
        struck.map_err(|error| error.to_string())?;
    }
    Ok(faults)
}

async fn kill(nodes: &mut Nodes, node: usize, down: Duration) -> std::io::Result<()> {
    nodes.kill(node)?;
    tokio::time::sleep(down).await;
    nodes.start(node)
}

async fn pause(nodes: &mut Nodes, node: usize, frozen: Duration) -> std::io::Result<()> {
    nodes.signal(node, "STOP")?;
    tokio::time::sleep(frozen).await;
    nodes.signal(node, "CONT")
}

async fn outage(nodes: &mut Nodes, rng: &mut fastrand::Rng) -> std::io::Result<()> {
    let first = rng.usize(..nodes.count());
    let all = || (0..nodes.count()).map(|node| (first + node) % nodes.count());
    let order: Vec<usize> = all().collect();
    for node in &order {
        nodes.kill(*node)?;
    }
    for node in &order {
        tokio::time::sleep(Duration::from_millis(rng.u64(..300))).await;
        nodes.start(*node)?;
    }
    Ok(())
}
