//! What happens to the nodes of a simulation.

use std::collections::BTreeMap;
use std::time::Duration;

use super::world::{NODES, World};

/// How often each kind of thing was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    pub(super) counts: BTreeMap<&'static str, u32>,
}

impl Faults {
    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }
}

/// What is to be mended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mend {
    /// A node is started again.
    Start(usize),
    /// Workers are.
    StartWorkers,
    /// These can hear each other again.
    Repair(String, String),
    /// What was said between these arrives at last.
    Release(String, String),
}

/// Does things to a world for a while, then mends everything.
pub(super) fn strike(world: &mut World, length: Duration) -> Faults {
    let mut striker = Striker {
        world,
        faults: Faults::default(),
        mends: Vec::new(),
        expected: [false; NODES],
        has_lost_disk: false,
    };
    let end = striker.world.sim.elapsed() + length;
    let mut next = striker.world.sim.elapsed();
    while striker.world.sim.elapsed() < end {
        if striker.world.sim.elapsed() >= next {
            striker.draw();
            next = striker.world.sim.elapsed() + Duration::from_millis(striker.world.rng.u64(100..1_200));
        }
        striker.step();
    }
    for (_, mend) in std::mem::take(&mut striker.mends) {
        striker.mend(mend);
    }
    // Ends that are still to come, of disks that were to fail.
    for node in 0..NODES {
        striker.crash(node, 0);
        striker.world.sim.bounce(striker.world.nodes[node].name.as_str());
    }
    striker.faults
}

struct Striker<'a> {
    world: &'a mut World,
    faults: Faults,
    /// With the times at which it is done.
    mends: Vec<(Duration, Mend)>,
    /// Nodes that are to end by themselves.
    expected: [bool; NODES],
    has_lost_disk: bool,
}

impl Striker<'_> {
    /// Lets a little time pass, with all that it brings.
    fn step(&mut self) {
        self.world.step();
        let now = self.world.sim.elapsed();
        for node in 0..NODES {
            let reason = self.world.nodes[node].ended.take();
            if let Some(reason) = reason {
                assert!(self.expected[node], "{} ended by itself: {reason}", self.world.nodes[node].name);
                self.expected[node] = false;
                self.faults.count("nodes that ended when their disk failed");
                let seed = self.world.rng.u64(..);
                self.crash(node, seed);
                self.mend_after(500, Mend::Start(node));
            }
        }
        if self.world.vanish.replace(false) {
            self.faults.count("workers that vanished");
            self.world.sim.crash("fleeting");
            self.mend_after(300, Mend::StartWorkers);
        }
        let (due, later) = std::mem::take(&mut self.mends).into_iter().partition(|(at, _)| *at <= now);
        self.mends = later;
        for (_, mend) in due {
            self.mend(mend);
        }
    }

    /// One thing more.
    fn draw(&mut self) {
        // Mostly the leader: whoever follows is missed less.
        let any = self.world.rng.usize(..NODES);
        let node = match self.world.leader() {
            Some(leader) if self.world.rng.u8(..4) > 0 => leader,
            _ => any,
        };
        match self.world.rng.u8(..20) {
            0..=4 => self.kill(node),
            5..=7 => self.cut_power(&[node]),
            8 => self.cut_power(&[0, 1, 2]),
            9..=11 => self.isolate(node),
            12 => {
                let other = (node + 1 + self.world.rng.usize(..2)) % NODES;
                self.part(node, other);
            }
            13..=15 => self.freeze(node),
            16 | 17 => self.fail_disk(node),
            18 => self.lose_disk(node),
            _ => {
                self.faults.count("calm");
            }
        }
    }

    /// The process ends; what it wrote is in the hands of the system.
    fn kill(&mut self, node: usize) {
        if self.is_down(node) {
            return;
        }
        self.faults.count("kills");
        self.crash(node, 0);
        self.mend_after(1_500, Mend::Start(node));
    }

    fn cut_power(&mut self, nodes: &[usize]) {
        self.faults.count(if nodes.len() == 1 { "power cuts" } else { "power cuts of all nodes" });
        for node in nodes {
            if !self.is_down(*node) {
                let seed = self.world.rng.u64(1..);
                self.crash(*node, seed);
                self.mend_after(1_000, Mend::Start(*node));
            }
        }
    }

    /// Nobody hears a node, or it hears nobody, or both.
    fn isolate(&mut self, node: usize) {
        self.faults.count("nodes cut off");
        let own = self.world.nodes[node].name.clone();
        let direction = self.world.rng.u8(..4);
        let with_clients = self.world.rng.bool();
        let mut others: Vec<String> = self.world.nodes.iter().map(|node| node.name.clone()).collect();
        others.retain(|other| *other != own);
        if with_clients {
            others.extend(["clients", "workers", "fleeting"].map(ToOwned::to_owned));
        }
        let length = self.world.rng.u64(100..2_500);
        for other in others {
            let (own, other) = (own.as_str(), other.as_str());
            match direction {
                0 => self.world.sim.partition_oneway(own, other),
                1 => self.world.sim.partition_oneway(other, own),
                _ => self.world.sim.partition(own, other),
            }
            self.mend_in(length, Mend::Repair(own.to_owned(), other.to_owned()));
        }
    }

    /// Two nodes do not hear each other.
    fn part(&mut self, one: usize, other: usize) {
        self.faults.count("broken links");
        let (one, other) = (self.world.nodes[one].name.clone(), self.world.nodes[other].name.clone());
        self.world.sim.partition(one.as_str(), other.as_str());
        self.mend_after(2_500, Mend::Repair(one, other));
    }

    /// All that a node says and all that is said to it arrives later, as if it had been paused.
    fn freeze(&mut self, node: usize) {
        self.faults.count("pauses");
        let own = self.world.nodes[node].name.clone();
        let length = self.world.rng.u64(100..2_500);
        let mut others: Vec<String> = self.world.nodes.iter().map(|node| node.name.clone()).collect();
        others.extend(["clients", "workers", "fleeting"].map(ToOwned::to_owned));
        others.retain(|other| *other != own);
        for other in others {
            self.world.sim.hold(own.as_str(), other.as_str());
            self.mend_in(length, Mend::Release(own.clone(), other));
        }
    }

    /// A sync fails soon, or everything from then on.
    fn fail_disk(&mut self, node: usize) {
        if self.is_down(node) || self.expected[node] {
            return;
        }
        self.faults.count("disks that failed");
        self.expected[node] = true;
        let (after, is_once) = (self.world.rng.u64(..20), self.world.rng.bool());
        let disk = self.world.nodes[node].disk.borrow();
        if is_once { disk.fail_one_sync_after(after) } else { disk.fail_after(after) }
    }

    /// A node comes back with nothing. Once, and only when all replicas vote: then the other two have everything.
    fn lose_disk(&mut self, node: usize) {
        if self.has_lost_disk || !self.world.is_whole() {
            return;
        }
        self.has_lost_disk = true;
        self.faults.count("disks that were lost");
        self.world.harvest();
        self.crash(node, 0);
        self.world.nodes[node].lose_disk();
        self.mend_after(500, Mend::Start(node));
    }

    /// Ends a node without a word. With a seed, its power is cut.
    fn crash(&mut self, node: usize, seed: u64) {
        self.world.sim.crash(self.world.nodes[node].name.as_str());
        self.world.nodes[node].running.take();
        self.world.nodes[node].ended.take();
        // Whatever the disk was to do, the next process finds one that works.
        let had_fault = std::mem::take(&mut self.expected[node]);
        if seed != 0 || had_fault {
            self.world.nodes[node].lose_power(seed);
        }
    }

    fn is_down(&self, node: usize) -> bool {
        self.world.nodes[node].running.borrow().is_none()
    }

    fn mend_after(&mut self, millis_max: u64, mend: Mend) {
        let millis = self.world.rng.u64(..millis_max);
        self.mend_in(millis, mend);
    }

    fn mend_in(&mut self, millis: u64, mend: Mend) {
        self.mends.push((self.world.sim.elapsed() + Duration::from_millis(millis), mend));
    }

    fn mend(&mut self, mend: Mend) {
        match mend {
            Mend::Start(node) => self.world.sim.bounce(self.world.nodes[node].name.as_str()),
            Mend::StartWorkers => self.world.sim.bounce("fleeting"),
            Mend::Repair(one, other) => self.world.sim.repair(one.as_str(), other.as_str()),
            Mend::Release(one, other) => self.world.sim.release(one.as_str(), other.as_str()),
        }
    }
}
