//! What is done to the nodes, and how they hear of each other.

use std::time::Duration;

use synod_core::roster::RosterMember;

use super::GrainScenario;
use super::node::{PLACEMENT, Process, member};
use super::world::{Happening, STORY, World};

impl World {
    pub(super) fn start(&mut self, node: usize) {
        self.lives += 1;
        let process = Process::new(node, self.lives, self.rng.u64(..), self.has_idle);
        let own = process.member.clone();
        self.listed.insert(node, own.clone());
        self.say(Some(node), "start", format!("it starts as {}", own.id));
        self.nodes[node] = Some(process);
        self.changes += 1;
        // Whoever is called before it has found the others takes itself for the whole cluster.
        let first = match self.config.scenario {
            GrainScenario::Moves => self.listed.values().cloned().collect(),
            GrainScenario::Churn => vec![own],
        };
        self.hear(node, self.lives, self.changes, &first);
        self.spread(50, 800);
    }

    /// Tells everybody who is a member, as far as they hear each other; each after a time of its own.
    pub(super) fn spread(&mut self, min_ms: u64, max_ms: u64) {
        self.changes += 1;
        for node in 0..self.nodes.len() {
            let Some(process) = self.nodes[node].as_ref().map(|process| process.number) else { continue };
            let is_near = |other: &usize| self.sides[*other] == self.sides[node];
            let near = self.listed.iter().filter(|(other, _)| is_near(other));
            let members = near.map(|(_, member)| member.clone()).collect();
            let change = self.changes;
            let after = Duration::from_millis(self.rng.u64(min_ms..max_ms));
            self.schedule(after, Happening::Roster { node, process, change, members });
        }
    }

    pub(super) fn strike(&mut self) {
        if self.now >= STORY {
            return;
        }
        let node = self.rng.usize(..self.nodes.len());
        let is_up = self.nodes[node].is_some();
        let up = self.nodes.iter().flatten().filter(|process| !process.is_leaving).count();
        if self.config.scenario == GrainScenario::Moves {
            match is_up {
                // Who knows nobody that stays has nobody to leave its states to.
                true if self.knows_a_stayer(node) => self.leave(node),
                true => {}
                false => self.start(node),
            }
        } else {
            match self.rng.u32(..9) {
                0 | 1 if is_up && up > 1 => {
                    self.say(Some(node), "crash", "it is killed".to_owned());
                    self.end_process(node);
                    self.listed.remove(&node);
                    self.spread(1000, 4000);
                }
                2 if is_up && up > 1 => self.leave(node),
                0..=3 if !is_up => self.start(node),
                4 => {
                    let group: Vec<_> = (0..self.nodes.len()).filter(|_| self.rng.u32(..3) == 0).collect();
                    self.say(None, "partition", format!("cut off: {group:?}"));
                    self.sides =
                        (0..self.nodes.len()).map(|node| usize::from(group.contains(&node))).collect();
                    self.network.partition(&[group]);
                    self.spread(1000, 4000);
                }
                5 => self.network.set_loss(self.rng.f64() * 0.3),
                6 => self.network.deafen(node),
                7 => self.network.silence(node),
                _ => self.heal(),
            }
        }
        let pause = Duration::from_millis(self.rng.u64(200..3000));
        self.schedule(pause, Happening::Fault);
    }

    fn knows_a_stayer(&self, node: usize) -> bool {
        let Some(process) = &self.nodes[node] else { return false };
        self.nodes.iter().enumerate().any(|(other, peer)| {
            let stays = |peer: &Process| !peer.is_leaving && process.roster.contains(&peer.member);
            other != node && peer.as_ref().is_some_and(stays)
        })
    }

    fn leave(&mut self, node: usize) {
        let now = self.time();
        let Some(process) = self.nodes[node].as_mut().filter(|process| !process.is_leaving) else { return };
        process.is_leaving = true;
        let number = process.number;
        let out = process.registry.handle_leave(now);
        self.say(Some(node), "leave", "it leaves".to_owned());
        // Patience ends even if a state could not be delivered.
        self.schedule(Duration::from_secs(5), Happening::Gone { node, process: number });
        self.do_activations(node, out);
    }

    /// Ends every fault of the network. Who was cut off for long enough to be given up begins a new life.
    pub(super) fn heal(&mut self) {
        self.say(None, "heal", "the network is whole".to_owned());
        self.network.heal();
        self.network.set_loss(self.config.network.loss);
        for node in 0..self.nodes.len() {
            if std::mem::take(&mut self.sides[node]) == 0 || self.rng.bool() {
                continue;
            }
            self.lives += 1;
            let member = member(node, self.lives);
            if let Some(process) = &mut self.nodes[node] {
                process.registry.handle_rejoin(member.id.clone());
                process.member = member.clone();
                if let Some(listed) = self.listed.get_mut(&node) {
                    *listed = member;
                }
            }
        }
        self.spread(50, 1500);
    }

    pub(super) fn end_process(&mut self, node: usize) {
        let Some(process) = self.nodes[node].take() else { return };
        for actor in process.actors.values() {
            if let Some(life) = self.notes.lives.get_mut(&actor.number) {
                life.to = Some(self.now);
                life.is_killed = true;
            }
        }
        // What it had just stopped it may not have told anybody.
        for life in self.notes.lives.values_mut() {
            let is_recent = life.to.is_some_and(|to| self.now - to < Duration::from_secs(10));
            life.is_killed |= is_recent && *life.pid.authority() == process.member.authority;
            // Nor passed on what others had told it, unless it took its time to do so.
            life.is_killed |= !process.registry.is_drained()
                && process.untold.get(&life.grain).is_some_and(|held| held.contains(&life.pid));
        }
    }

    pub(super) fn hear(&mut self, node: usize, process: u64, change: u64, members: &[RosterMember]) {
        let now = self.time();
        let Some(running) = self.process(node, process).filter(|running| running.heard < change) else {
            return;
        };
        running.heard = change;
        let before = std::mem::replace(&mut running.roster, members.to_vec());
        drop(running.cache.handle_roster(members, PLACEMENT));
        let out = running.registry.handle_roster(members, now);
        let names: Vec<_> = members.iter().map(|member| member.id.to_string()).collect();
        self.say(Some(node), "roster", names.join(" "));
        self.do_activations(node, out);
        for gone in before {
            if members.iter().all(|member| member.authority != gone.authority)
                && let Some(running) = self.process(node, process)
            {
                let out = running.router.handle_peer_gone(&gone.authority, now);
                self.do_calls(node, out);
            }
        }
    }
}
