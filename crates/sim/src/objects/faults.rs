//! What is done to the nodes, their disks, their slots and the network.

use std::time::Duration;

use synod_core::objects::{ObjectConfig, ObjectCoordinator, SlotFence};
use synod_core::slots::{SlotEpoch, SlotId, Tag};

use super::ObjectMistake;
use super::disk::Disk;
use super::world::{FAST_DISK, Happening, Process, STORY, World};

impl World {
    /// Starts a node with what is on its disk.
    pub(super) fn start(&mut self, node: usize) {
        if self.nodes[node].process.is_some() {
            return;
        }
        if self.config.mistake == Some(ObjectMistake::ForgetFence) && self.nodes[node].life > 0 {
            for fence in self.nodes[node].disk.fences.values_mut() {
                fence.fence = SlotEpoch::ZERO;
            }
        }
        self.nodes[node].life += 1;
        let disk = &self.nodes[node].disk;
        let unlearned = self.stores(node).into_iter().filter(|slot| !disk.is_learned(*slot)).collect();
        let config = ObjectConfig {
            // No two lives of a node ask the same question.
            instance: self.nodes[node].life << 32,
            resend_interval: Duration::from_millis(self.rng.u64(20..200)),
            heal_interval: Duration::from_secs(self.rng.u64(1..5)),
            heal_patience: Duration::from_secs(1),
            comparisons_max: if self.rng.bool() { 1 } else { 32 },
            repairs_max: if self.rng.bool() { 1 } else { 64 },
            requests_max: if self.rng.u32(..4) == 0 { 4 } else { 4096 },
            unsettled_max: if self.rng.u32(..4) == 0 { 2 } else { 4096 },
        };
        let (name, bootstrap, now) = (self.nodes[node].name.clone(), self.bootstrap.clone(), self.time());
        self.say(Some(node), "start", format!("it starts, without a memory of {unlearned:?}"));
        let (machine, outcome) = ObjectCoordinator::new(name, bootstrap, config, unlearned, now);
        self.nodes[node].process = Some(Process {
            machine,
            wake_at: None,
            queue: Default::default(),
            being_written: 0,
            frozen: None,
            requests: Default::default(),
        });
        self.perform(node, outcome);
    }

    /// The process is gone. Of the transactions under way the first few may be there; nobody has heard of them.
    pub(super) fn crash(&mut self, node: usize) {
        let Some(process) = self.nodes[node].process.take() else { return };
        self.report.crashes += 1;
        self.say(Some(node), "crash", "it is killed".to_owned());
        let whole = if process.being_written == 0 { 0 } else { self.rng.usize(..=process.being_written) };
        for op in process.queue.iter().take(whole) {
            self.commit(node, op);
        }
    }

    fn crash_for_a_while(&mut self, node: usize) {
        self.crash(node);
        let most = if self.rng.bool() { 200 } else { 2500 };
        let away = Duration::from_millis(self.rng.u64(5..most));
        self.schedule(away, Happening::Start { node });
    }

    /// The disk is lost, or something on it is damaged and it is replaced.
    fn replace_disk(&mut self, node: usize) {
        if !self.may_lose_disk() {
            return;
        }
        self.crash_for_a_while(node);
        self.say(Some(node), "disk", "its disk is lost".to_owned());
        self.report.disks_lost += 1;
        self.nodes[node].disk = Disk::default();
        if self.config.mistake == Some(ObjectMistake::SkipLearning) {
            for slot in self.stores(node) {
                let fence = SlotFence { is_learned: true, ..SlotFence::default() };
                self.nodes[node].disk.fences.insert(slot, fence);
            }
        }
    }

    pub(super) fn thaw(&mut self, node: usize, life: u64) {
        if self.nodes[node].life != life {
            return;
        }
        self.nodes[node].awake_until = self.now + Duration::from_secs(3);
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

    /// The oracle hands out an epoch.
    pub(super) fn hold_election(&mut self) {
        if self.is_healed {
            for slot in self.bootstrap.slots() {
                if self.primary(slot).is_none() {
                    self.elect(slot);
                }
            }
            return self.schedule(Duration::from_secs(3), Happening::Oracle);
        }
        let slot = SlotId::new(self.rng.u16(..self.config.slots));
        let is_vacant = self.primary(slot).is_none();
        if is_vacant && self.rng.u32(..3) == 0 || self.rng.u32(..15) == 0 {
            self.elect(slot);
        }
        let pause = Duration::from_millis(self.rng.u64(10..150));
        self.schedule(pause, Happening::Oracle);
    }

    fn elect(&mut self, slot: SlotId) {
        let replicas = self.replicas(slot);
        let is_up = |node: &usize| self.nodes[*node].process.as_ref().is_some_and(|one| one.frozen.is_none());
        let up: Vec<usize> = replicas.iter().copied().filter(is_up).collect();
        let chosen = if up.is_empty() || self.rng.u32(..10) == 0 && !self.is_healed { replicas } else { up };
        let node = chosen[self.rng.usize(..chosen.len())];
        let (last, before) = self.epochs[&slot];
        let epoch = last + 1;
        self.epochs.insert(slot, (epoch, node));
        self.report.elections += 1;
        self.say(None, "elect", format!("n{node} is the primary of slot {slot} in epoch {epoch}"));
        let epoch = SlotEpoch::new(epoch);
        let late = if self.rng.u32(..20) == 0 { 1000 } else { 20 };
        let delay = Duration::from_millis(self.rng.u64(..late));
        if self.is_healed || self.rng.u32(..20) > 0 {
            self.schedule(delay, Happening::Elected { node, slot, epoch });
        }
        // The one before hears of it late, or by the replicas alone.
        if before != node && self.rng.u32(..3) == 0 {
            let delay = Duration::from_millis(self.rng.u64(..1500));
            self.schedule(delay, Happening::Deposed { node: before, slot, epoch });
        }
    }

    /// Every node looks for old tombstones now and then. And no request waits for too long.
    pub(super) fn sweep_tombstones(&mut self) {
        let now = self.time();
        for node in 0..self.nodes.len() {
            let Some(process) = self.nodes[node].process.as_ref().filter(|one| one.frozen.is_none()) else {
                continue;
            };
            let slack = Duration::from_millis(5);
            if process.requests.values().any(|open| open.deadline + slack < self.now) {
                self.fail(format!("n{node} did not answer a request in time"));
                return;
            }
            let serving: Vec<(SlotId, SlotEpoch)> = process.machine.serving().collect();
            for (slot, _) in serving {
                let is_old = |name: &synod_core::objects::EntryName, tag: Tag| {
                    self.tagged.get(&(name.clone(), tag)).is_some_and(|(at, _)| *at + OLD < self.now)
                };
                let heads = self.nodes[node].disk.heads(slot);
                let old = heads.filter(|(name, head)| head.is_deleted && is_old(name, head.tag));
                let old: Vec<_> = old.map(|(name, head)| (name.clone(), head.tag)).collect();
                if !old.is_empty() {
                    self.with_machine(node, |machine| machine.handle_old_tombstones(now, slot, old));
                }
            }
        }
        self.schedule(Duration::from_millis(300), Happening::Sweep);
    }

    pub(super) fn strike(&mut self) {
        if self.now >= STORY || self.is_healed {
            return;
        }
        let node = self.rng.usize(..self.nodes.len());
        let other = self.rng.usize(..self.nodes.len());
        let life = self.nodes[node].life;
        let is_up = self.nodes[node].process.as_ref().is_some_and(|one| one.frozen.is_none());
        match self.rng.u32(..18) {
            0..=2 if is_up => self.crash_for_a_while(node),
            3 if is_up => self.replace_disk(node),
            4 | 5 if is_up && self.now >= self.nodes[node].awake_until => {
                let time = Duration::from_millis(self.rng.u64(50..1500));
                if let Some(process) = &mut self.nodes[node].process {
                    process.frozen = Some(Vec::new());
                    self.say(Some(node), "pause", format!("it is frozen for {time:?}"));
                    self.schedule(time, Happening::Thaw { node, life });
                }
            }
            6 => {
                let group: Vec<_> = (0..self.nodes.len()).filter(|_| self.rng.u32(..3) == 0).collect();
                self.say(None, "partition", format!("cut off: {group:?}"));
                self.network.partition(&[group]);
            }
            7 => {
                self.say(None, "partition", format!("n{node} does not reach n{other}"));
                self.network.cut(node, other);
            }
            8 => {
                self.say(Some(node), "partition", "it hears nobody".to_owned());
                self.network.deafen(node);
            }
            9 => {
                self.say(Some(node), "partition", "nobody hears it".to_owned());
                self.network.silence(node);
            }
            10 => {
                let loss = self.rng.f64() * 0.3;
                self.say(None, "network", format!("{:.0} % of messages are lost", loss * 100.0));
                self.network.set_loss(loss);
            }
            11 => {
                let most = Duration::from_millis(self.rng.u64(2..300));
                self.say(Some(node), "disk", format!("its disk takes up to {most:?}"));
                self.nodes[node].disk_delay_max = most;
            }
            12 => self.damage_parts(node),
            13..=15 => {
                // Both are heard by others, so both can find a majority.
                self.say(None, "partition", format!("n{node} and n{other} do not hear each other"));
                self.network.cut(node, other);
                self.network.cut(other, node);
            }
            _ => self.heal_network(),
        }
        let pause = Duration::from_millis(self.rng.u64(10..500));
        self.schedule(pause, Happening::Fault);
    }

    /// The parts of something are damaged, until they are fetched again.
    fn damage_parts(&mut self, node: usize) {
        let until = self.now + Duration::from_millis(self.rng.u64(100..2000));
        let disk = &mut self.nodes[node].disk;
        let contents = disk.entries.values().flat_map(|entries| entries.values());
        let contents: Vec<_> = contents.map(|head| head.content.to_vec()).collect();
        if let Some(content) = contents.get(self.rng.usize(..contents.len().max(1))) {
            disk.missing.insert(content.clone(), until);
            self.say(Some(node), "disk", "parts are damaged".to_owned());
        }
    }

    fn heal_network(&mut self) {
        self.say(None, "heal", "the network is whole".to_owned());
        self.network.heal();
        self.network.set_loss(self.config.network.loss);
    }

    /// Ends every fault, starts everybody, and lets clients rest.
    pub(super) fn heal(&mut self) {
        self.say(None, "heal", "everything is healed".to_owned());
        (self.is_healed, self.is_quiet) = (true, true);
        self.network.heal();
        self.strays = 0.0;
        for node in 0..self.nodes.len() {
            self.nodes[node].disk_delay_max = FAST_DISK;
            let life = self.nodes[node].life;
            self.thaw(node, life);
            self.start(node);
        }
    }

    /// One disk at a time: everybody else still knows all that the one who loses it may have fenced and stored.
    fn may_lose_disk(&self) -> bool {
        let is_allowed = matches!(self.config.mistake, None | Some(ObjectMistake::SkipLearning));
        is_allowed
            && self.bootstrap.replica_count() > 1
            && (0..self.nodes.len())
                .all(|node| self.stores(node).into_iter().all(|slot| self.nodes[node].disk.is_learned(slot)))
    }
}

/// After so long a tombstone may be forgotten: longer than any message is under way that was sent before it, with all that
/// may be sent again, and than any node is frozen.
const OLD: Duration = Duration::from_secs(5);
