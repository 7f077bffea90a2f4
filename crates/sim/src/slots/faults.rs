//! What is done to the nodes, their disks and the network.

use std::time::Duration;

use synod_core::slots::{SlotRegistry, Standing};

use super::Mistake;
use super::node::{Disk, Process};
use super::world::{FAST_DISK, Happening, STORY, World, member};

impl World {
    /// Starts a node with what is on its disk.
    pub(super) fn start(&mut self, node: usize) {
        if self.nodes[node].process.is_some() {
            return;
        }
        let now = self.time();
        let is_first = self.nodes[node].life == 0;
        if !is_first && !self.is_healed && self.may_lose_disk(node) && self.rng.u32(..4) == 0 {
            self.say(Some(node), "disk", "its disk is lost".to_owned());
            self.report.disks_lost += 1;
            self.nodes[node].disk = Disk::default();
            self.note_lost_disk(node);
        } else if self.config.mistake == Some(Mistake::ForgetPromises) && !self.is_healed {
            self.nodes[node].disk.forget_some(&mut self.rng);
        }
        self.nodes[node].life += 1;
        let member = member(node, self.nodes[node].life);
        let bootstrap = self.bootstrap.clone();
        let address = bootstrap.node(&member.node).and_then(|one| one.peer().ok()).expect("an address");
        let day = 1_700_000_000_000u64.saturating_add_signed(self.nodes[node].clock_offset);
        let restored = self.nodes[node].disk.read();
        let (instance, seed) = (self.rng.u64(..), self.rng.u64(..));
        self.say(Some(node), "start", format!("it starts as {member}"));
        let config = self.registry_config.clone();
        let (registry, outcome) = SlotRegistry::start(
            member.clone(),
            address,
            instance,
            bootstrap,
            config,
            restored,
            day,
            seed,
            now,
        )
        .expect("settings of the simulator are sound");
        self.nodes[node].process = Some(Process {
            member,
            registry,
            wake_at: None,
            unwritten: Default::default(),
            being_written: 0,
            frozen: None,
            requests: Default::default(),
            is_leaving: false,
            dies_in: None,
        });
        self.check_memory(node);
        self.perform(node, outcome);
    }

    /// The process is gone. Of what the disk was writing a part may be there.
    pub(super) fn crash(&mut self, node: usize) {
        let Some(process) = self.nodes[node].process.take() else { return };
        self.report.crashes += 1;
        self.say(Some(node), "crash", "it is killed".to_owned());
        let batch = process.unwritten.into_iter().take(process.being_written);
        let ops: Vec<_> = batch.flat_map(|outcome| outcome.persist).collect();
        let whole = if ops.is_empty() { 0 } else { self.rng.usize(..=ops.len()) };
        ops[..whole].iter().for_each(|op| self.write(node, op));
        self.detectors[node].forget();
    }

    pub(super) fn crash_for_a_while(&mut self, node: usize) {
        self.crash(node);
        let away = match self.rng.u32(..3) {
            0 => self.rng.u64(10..500),
            1 => self.rng.u64(500..3000),
            _ => self.rng.u64(3000..10_000),
        };
        self.schedule(Duration::from_millis(away), Happening::Start { node });
    }

    pub(super) fn thaw(&mut self, node: usize, life: u64) {
        if self.nodes[node].life != life {
            return;
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        let Some(missed) = process.frozen.take() else { return };
        for request in process.requests.values_mut() {
            request.deadline = request.deadline.max(self.now);
        }
        self.say(Some(node), "resume", format!("it goes on, {} things behind", missed.len()));
        for happening in missed {
            self.happen(happening);
        }
    }

    /// A node that leaves ends when it serves nothing any more, or when its patience ends.
    pub(super) fn exit_if_drained(&mut self, node: usize, life: u64) {
        if self.nodes[node].life != life {
            return;
        }
        let is_drained = self.nodes[node].process.as_ref().is_some_and(|one| one.registry.is_drained());
        if is_drained || self.rng.u32(..10) == 0 {
            self.crash_for_a_while(node);
        } else {
            self.schedule(Duration::from_millis(500), Happening::Exit { node, life });
        }
    }

    pub(super) fn strike(&mut self) {
        if self.now >= STORY || self.is_healed {
            return;
        }
        let node = self.rng.usize(..self.nodes.len());
        let other = self.rng.usize(..self.nodes.len());
        let life = self.nodes[node].life;
        match self.rng.u32(..17) {
            0 => {
                if self.nodes[node].process.is_some() {
                    self.crash_for_a_while(node);
                }
            }
            1..=3 => {
                let after = self.rng.u32(..6);
                if let Some(process) = &mut self.nodes[node].process {
                    process.dies_in = Some(after);
                }
            }
            4 | 5 => {
                let time = Duration::from_millis(self.rng.u64(200..8000));
                if let Some(process) = self.nodes[node].process.as_mut().filter(|one| one.frozen.is_none()) {
                    process.frozen = Some(Vec::new());
                    self.say(Some(node), "pause", format!("it is frozen for {time:?}"));
                    self.schedule(time, Happening::Thaw { node, life });
                }
            }
            6 => {
                let now = self.time();
                if let Some(process) = self.nodes[node].process.as_mut().filter(|one| one.frozen.is_none()) {
                    process.is_leaving = true;
                    let outcome = process.registry.leave(now);
                    self.say(Some(node), "leave", "it leaves".to_owned());
                    self.perform(node, outcome);
                    self.schedule(Duration::from_millis(500), Happening::Exit { node, life });
                }
            }
            7 => {
                let group: Vec<_> = (0..self.nodes.len()).filter(|_| self.rng.u32(..3) == 0).collect();
                self.say(None, "partition", format!("cut off: {group:?}"));
                self.network.partition(&[group]);
            }
            8 => {
                self.say(None, "partition", format!("n{node} does not reach n{other}"));
                self.network.cut(node, other);
            }
            9 => {
                self.say(Some(node), "partition", "it hears nobody".to_owned());
                self.network.deafen(node);
            }
            10 => {
                self.say(Some(node), "partition", "nobody hears it".to_owned());
                self.network.silence(node);
            }
            11 => {
                let loss = self.rng.f64() * 0.3;
                self.say(None, "network", format!("{:.0} % of messages are lost", loss * 100.0));
                self.network.set_loss(loss);
            }
            12 | 13 => {
                let standing = if self.rng.bool() { Standing::Suspect } else { Standing::Failed };
                let until = self.now + Duration::from_millis(self.rng.u64(300..6000));
                // One is wrong, or all are.
                let deceived = if self.rng.bool() { 0..self.nodes.len() } else { node..node + 1 };
                self.say(None, "lie", format!("n{deceived:?} are told that n{other} is {standing}"));
                for node in deceived {
                    self.detectors[node].lie(other, standing, until);
                }
            }
            14 => {
                let most = Duration::from_millis(self.rng.u64(5..600));
                self.say(Some(node), "disk", format!("its disk takes up to {most:?}"));
                self.nodes[node].disk_delay_max = most;
            }
            _ => self.heal_network(),
        }
        let pause = Duration::from_millis(self.rng.u64(20..1200));
        self.schedule(pause, Happening::Fault);
    }

    fn heal_network(&mut self) {
        self.say(None, "heal", "the network is whole".to_owned());
        self.network.heal();
        self.network.set_loss(self.config.network.loss);
    }

    /// Ends every fault, and starts everybody.
    pub(super) fn heal(&mut self) {
        self.say(None, "heal", "everything is healed".to_owned());
        self.is_healed = true;
        self.network.heal();
        self.strays = 0.0;
        for node in 0..self.nodes.len() {
            self.detectors[node].tell_the_truth();
            self.nodes[node].disk_delay_max = FAST_DISK;
            let life = self.nodes[node].life;
            self.thaw(node, life);
            if let Some(process) = &mut self.nodes[node].process {
                process.dies_in = None;
                if process.is_leaving {
                    self.crash(node);
                }
            }
            self.start(node);
        }
    }

    /// One disk at a time: everybody else still knows all that the one who loses it may have promised.
    fn may_lose_disk(&self, node: usize) -> bool {
        self.bootstrap.replica_count() > 1
            && (0..self.nodes.len())
                .all(|one| self.nodes[one].disk.promise_count() == self.stores(one).count())
            && self.config.mistake.is_none()
            && self.nodes[node].process.is_none()
    }
}
