//! Clients: each asks for one thing at a time, of whoever some node takes for the primary.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use synod_core::slots::{Answer, Head, RequestError, RequestId, SlotId, Tag};

use super::node::OpenRequest;
use super::world::{Happening, World};
use crate::history::{Ask, Request, Said};

#[derive(Default)]
pub(super) struct Client {
    /// The request it waits for: the slot and the place in its history.
    waits_for: Option<(SlotId, usize)>,
    /// Whom it asked.
    asked: usize,
    /// Where it was told to go with its next request.
    directed: Option<(SlotId, usize)>,
    /// Who last served it for each slot. It often goes there again, whatever has happened since.
    served_by: BTreeMap<SlotId, usize>,
    /// The last tag that it saw of each slot.
    seen: BTreeMap<SlotId, Option<Tag>>,
}

impl World {
    /// A client asks for something, unless they are at rest.
    pub(super) fn ask(&mut self, client: usize) {
        if self.is_quiet {
            return;
        }
        let total = self.config.slots;
        let directed = self.clients[client].directed.take();
        // A few slots are asked for by many clients at once.
        let popular = if self.rng.bool() { total.min(3) } else { total };
        let slot = directed.map_or_else(|| SlotId::new(self.rng.u16(..popular)), |(slot, _)| slot);
        let expected = match self.rng.u32(..4) {
            0 | 1 => Some(self.clients[client].seen.get(&slot).copied().unwrap_or_default()),
            _ => None,
        };
        self.values += 1;
        // Where one client writes and the others only read, nothing keeps a deposed primary from answering them.
        let (reads, has_habits) = match self.reads {
            Some(reads) => (reads, true),
            None if client == 0 => (0.2, false),
            None => (1.0, true),
        };
        let ask =
            if self.rng.f64() < reads { Ask::Read } else { Ask::Write { value: self.values, expected } };
        let habit = self.clients[client].served_by.get(&slot).copied();
        let habit = habit.filter(|_| has_habits && self.rng.u32(..4) > 0);
        let to = directed.map(|(_, node)| node).or(habit).or_else(|| self.route(slot));
        let Some(to) = to else {
            return self.schedule(Duration::from_millis(200), Happening::Ask { client });
        };
        self.send_request(client, slot, ask, to);
    }

    /// Asks `node` for something, and waits for the answer for a while.
    pub(super) fn send_request(&mut self, client: usize, slot: SlotId, ask: Ask, node: usize) {
        let patience = Duration::from_millis(if self.rng.u32(..4) == 0 {
            self.rng.u64(50..800)
        } else {
            self.rng.u64(800..4000)
        });
        let requests = self.histories.entry(slot).or_default();
        let number = requests.len();
        requests.push(Request { ask, said: Said::Unknown, began: self.now, ended: None, given: None });
        self.report.requests += 1;
        self.clients[client].waits_for = Some((slot, number));
        self.clients[client].asked = node;
        let delay = self.client_delay();
        self.schedule(delay, Happening::Request { node, client, slot, number, patience });
        self.schedule(patience + Duration::from_secs(1), Happening::TiredOf { client, slot, number });
    }

    /// A request arrives at a node.
    pub(super) fn take_request(
        &mut self,
        node: usize,
        client: usize,
        slot: SlotId,
        number: usize,
        patience: Duration,
    ) {
        let now = self.time();
        let deadline = self.now + patience;
        let ask = self.histories[&slot][number].ask;
        let Some(process) = &mut self.nodes[node].process else {
            // Nobody listens there: nothing was sent.
            return self.answer(client, slot, number, Said::Refused, None);
        };
        let begun = match ask {
            Ask::Read => process.registry.read(slot, patience, now),
            Ask::Write { value, expected } => {
                let value = Arc::from(value.to_le_bytes().as_slice());
                process.registry.write(slot, expected, value, patience, now)
            }
            Ask::Delete { .. } => unreachable!("a register is not deleted"),
        };
        match begun {
            Ok((id, outcome)) => {
                process.requests.insert(id, OpenRequest { slot, number, client, deadline });
                self.perform(node, outcome);
            }
            Err(error) => {
                let to = match &error {
                    RequestError::NotPrimary { route, .. } => self.index_of(&route.primary),
                    _ => None,
                };
                self.answer(client, slot, number, Said::Refused, to.filter(|to| *to != node));
            }
        }
    }

    /// The registry of a node answers.
    pub(super) fn answered(&mut self, node: usize, id: RequestId, answer: Result<Answer, RequestError>) {
        let Some(process) = &mut self.nodes[node].process else { return };
        let Some(OpenRequest { slot, number, client, .. }) = process.requests.remove(&id) else {
            return self.fail(format!("n{node} answered a request twice, or one that nobody made"));
        };
        let mut to = None;
        let said = match answer {
            Ok(Answer::Written { tag }) => Said::Written(tag),
            Ok(Answer::Read { head } | Answer::Differs { head }) => {
                Said::Found(head.map(|head| (head.tag, value_of(&head))))
            }
            Err(RequestError::Indeterminate) => Said::Unknown,
            Err(RequestError::NotPrimary { route, .. }) => {
                to = self.index_of(&route.primary).filter(|to| *to != node);
                Said::Refused
            }
            Err(_) => Said::Refused,
        };
        self.answer(client, slot, number, said, to);
    }

    /// What was said counts even if the client never hears it.
    fn answer(&mut self, client: usize, slot: SlotId, number: usize, said: Said, to: Option<usize>) {
        if let Some(request) = self.histories.get_mut(&slot).and_then(|all| all.get_mut(number)) {
            request.said = said;
        }
        let delay = self.client_delay();
        self.schedule(delay, Happening::Answered { client, slot, number, to });
    }

    pub(super) fn take_answer(&mut self, client: usize, slot: SlotId, number: usize, to: Option<usize>) {
        if self.clients[client].waits_for != Some((slot, number)) {
            return;
        }
        let now = self.now;
        let Some(request) = self.histories.get_mut(&slot).and_then(|all| all.get_mut(number)) else { return };
        request.ended = Some(now);
        let said = request.said;
        let waiting = &mut self.clients[client];
        match said {
            Said::Written(tag) => {
                self.report.written += 1;
                waiting.seen.insert(slot, Some(tag));
            }
            Said::Found(found) => {
                self.report.read += 1;
                waiting.seen.insert(slot, found.map(|(tag, _)| tag));
            }
            Said::Refused => waiting.directed = to.map(|to| (slot, to)),
            Said::Unknown => {}
        }
        match said {
            Said::Written(_) | Said::Found(_) => waiting.served_by.insert(slot, waiting.asked),
            Said::Refused | Said::Unknown => waiting.served_by.remove(&slot),
        };
        self.go_on(client, said == Said::Refused);
    }

    pub(super) fn tire_of(&mut self, client: usize, slot: SlotId, number: usize) {
        if self.clients[client].waits_for == Some((slot, number)) {
            self.go_on(client, false);
        }
    }

    fn go_on(&mut self, client: usize, is_hasty: bool) {
        self.clients[client].waits_for = None;
        let pause = if is_hasty { self.rng.u64(20..150) } else { self.rng.u64(5..400) };
        self.schedule(Duration::from_millis(pause), Happening::Ask { client });
    }

    /// Who serves a slot, by the word of any node.
    fn route(&mut self, slot: SlotId) -> Option<usize> {
        let asked = self.rng.usize(..self.nodes.len());
        let process = self.nodes[asked].process.as_ref().filter(|process| process.frozen.is_none())?;
        let route = process.registry.route(slot)?;
        self.index_of(&route.primary)
    }

    fn client_delay(&mut self) -> Duration {
        Duration::from_micros(self.rng.u64(100..4000))
    }
}

fn value_of(head: &Head) -> u64 {
    head.value.as_ref().try_into().map_or(u64::MAX, u64::from_le_bytes)
}
