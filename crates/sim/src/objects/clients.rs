//! Clients: each asks for one thing at a time, of a node that may be the primary.

use std::collections::BTreeMap;
use std::time::Duration;

use synod_core::objects::{
    Condition, EntryAnswer, EntryError, EntryHead, EntryName, EntryOperation, EntryRequest,
};
use synod_core::slots::{SlotEpoch, SlotId, Tag};

use super::disk::DiskOp;
use super::world::{Happening, World, written_in};
use crate::history::{Ask, Request, Said};

#[derive(Default)]
pub(super) struct Client {
    /// How many things it has done.
    turn: u64,
    /// Whom it asked.
    asked: usize,
    /// Who last served it for each slot. It often goes there again, whatever has happened since.
    served_by: BTreeMap<SlotId, usize>,
    /// The last that it saw of each key.
    seen: BTreeMap<EntryName, Option<Tag>>,
}

/// A request that a coordinator has not answered.
pub(super) struct OpenRequest {
    pub(super) client: usize,
    pub(super) deadline: Duration,
    pub(super) kind: OpenKind,
}

pub(super) enum OpenKind {
    Entry { name: EntryName, number: usize },
    Listing { slot: SlotId, page: Vec<(EntryName, EntryHead)>, began: Duration },
}

impl World {
    /// A client asks for something, unless they are at rest.
    pub(super) fn ask(&mut self, client: usize) {
        if self.is_quiet {
            return;
        }
        let name = self.keys[self.rng.usize(..self.keys.len())].clone();
        let slot = self.slot_of(&name);
        let replicas = self.replicas(slot);
        let habit = self.clients[client].served_by.get(&slot).copied().filter(|_| self.rng.bool());
        let node = match self.rng.u32(..10) {
            0 => replicas[self.rng.usize(..replicas.len())],
            _ => habit.unwrap_or_else(|| self.epochs[&slot].1),
        };
        if self.rng.u32(..12) == 0 {
            self.clients[client].turn += 1;
            let turn = self.clients[client].turn;
            let delay = self.client_delay();
            self.schedule(delay, Happening::List { node, client, slot, began: self.now });
            return self.schedule(PATIENCE_MAX + delay, Happening::GoOn { client, turn });
        }
        let seen = self.clients[client].seen.get(&name).copied();
        let expected = seen.filter(|_| self.rng.bool());
        let ask = match self.rng.u32(..100) {
            0..45 => Ask::Read,
            45..85 => {
                self.values += 1;
                Ask::Write { value: self.values, expected }
            }
            // Only what is there is deleted.
            _ => Ask::Delete { expected: expected.filter(Option::is_some) },
        };
        let least = if self.rng.u32(..4) == 0 { 20 } else { 500 };
        let patience = Duration::from_millis(self.rng.u64(least..1500));
        self.send_request(client, &name, ask, node, patience);
    }

    /// Asks `node` for something, and waits for the answer for a while.
    pub(super) fn send_request(
        &mut self,
        client: usize,
        name: &EntryName,
        ask: Ask,
        node: usize,
        patience: Duration,
    ) {
        let requests = self.histories.entry(name.clone()).or_default();
        let number = requests.len();
        requests.push(Request { ask, said: Said::Unknown, began: self.now, ended: None, given: None });
        self.report.requests += 1;
        self.clients[client].turn += 1;
        self.clients[client].asked = node;
        let turn = self.clients[client].turn;
        let delay = self.client_delay();
        self.schedule(delay, Happening::Arrive { node, client, name: name.clone(), number, patience });
        self.schedule(PATIENCE_MAX + delay, Happening::GoOn { client, turn });
    }

    /// A request arrives at a node.
    pub(super) fn take_request(
        &mut self,
        node: usize,
        client: usize,
        name: EntryName,
        number: usize,
        patience: Duration,
    ) {
        let now = self.time();
        let ask = self.histories[&name][number].ask;
        let uses_etag = self.rng.bool();
        let condition = |expected: Option<Option<Tag>>| match expected {
            None => Condition::Any,
            Some(None) => Condition::Absent,
            Some(Some(tag)) => match self.tagged.get(&(name.clone(), tag)) {
                Some((_, value)) if uses_etag => Condition::EtagIn([value.to_string().into()].into()),
                _ => Condition::TagIs(tag),
            },
        };
        let content = |value: u64| [value.to_le_bytes(), (number as u64).to_le_bytes()].concat().into();
        let operation = match ask {
            Ask::Read => EntryOperation::Read,
            Ask::Write { value, expected } => EntryOperation::Write {
                condition: condition(expected),
                etag: value.to_string().into(),
                content: content(value),
            },
            Ask::Delete { expected } => {
                EntryOperation::Delete { condition: condition(expected), content: content(0) }
            }
        };
        self.next_id += 1;
        let id = self.next_id;
        let deadline = self.now + patience;
        let Some(process) = &mut self.nodes[node].process else {
            // Nobody listens there: nothing was sent.
            return self.answer(client, &name, number, Said::Refused);
        };
        let kind = OpenKind::Entry { name: name.clone(), number };
        process.requests.insert(id, OpenRequest { client, deadline, kind });
        let request = EntryRequest { id, name, operation, expires_at: now + patience };
        let outcome = process.machine.handle_request(now, request);
        self.perform(node, outcome);
    }

    /// A client wants a page of a slot: it is read from the disk, and shown when it is settled.
    pub(super) fn take_list(&mut self, node: usize, client: usize, slot: SlotId, began: Duration) {
        let epoch = self.nodes[node].process.as_ref().and_then(|process| process.machine.serves(slot));
        match epoch {
            Some(epoch) => self.look(node, DiskOp::Page { client, slot, epoch, began }),
            None => self.next_turn(client),
        }
    }

    pub(super) fn settle_page(
        &mut self,
        node: usize,
        client: usize,
        slot: SlotId,
        epoch: SlotEpoch,
        began: Duration,
        page: Vec<(EntryName, EntryHead)>,
    ) {
        let now = self.time();
        self.next_id += 1;
        let id = self.next_id;
        let patience = Duration::from_millis(self.rng.u64(300..1500));
        let entries = page.iter().map(|(name, head)| (name.clone(), head.rank())).collect();
        let deadline = self.now + patience;
        let Some(process) = &mut self.nodes[node].process else { return };
        let kind = OpenKind::Listing { slot, page, began };
        process.requests.insert(id, OpenRequest { client, deadline, kind });
        let outcome = process.machine.handle_settle(now, id, entries, vec![(slot, epoch)], now + patience);
        self.perform(node, outcome);
    }

    /// The coordinator of a node answers.
    pub(super) fn answered(&mut self, node: usize, id: u64, answer: Result<EntryAnswer, EntryError>) {
        let Some(process) = &mut self.nodes[node].process else { return };
        let Some(OpenRequest { client, kind, .. }) = process.requests.remove(&id) else {
            return self.fail(format!("n{node} answered a request twice, or one that nobody made"));
        };
        let (name, number) = match kind {
            OpenKind::Entry { name, number } => (name, number),
            OpenKind::Listing { slot, page, began } => {
                if answer == Ok(EntryAnswer::Settled) {
                    self.note_page(slot, &page, began);
                }
                return self.next_turn(client);
            }
        };
        let found = |head: Option<EntryHead>| Said::Found(head.map(|head| (head.tag, written_in(&head).0)));
        let said = match answer {
            Ok(EntryAnswer::Written(tag)) => Said::Written(tag),
            Ok(EntryAnswer::Found(head) | EntryAnswer::Refused(head)) => found(head),
            Ok(EntryAnswer::NothingDeleted) => Said::Found(None),
            Err(EntryError::Indeterminate) => Said::Unknown,
            Err(_) => Said::Refused,
            Ok(EntryAnswer::Settled) => {
                return self.fail(format!("n{node} answered a request as if it were a listing"));
            }
        };
        self.answer(client, &name, number, said);
    }

    /// What a listing showed, as if every key of the slot had been read.
    fn note_page(&mut self, slot: SlotId, page: &[(EntryName, EntryHead)], began: Duration) {
        self.report.listed += 1;
        let ended = Some(self.now);
        for name in self.keys.iter().filter(|name| name.slot(self.config.slots) == slot) {
            let head = page.iter().find(|(listed, head)| listed == name && !head.is_deleted);
            let said = Said::Found(head.map(|(_, head)| (head.tag, written_in(head).0)));
            let request = Request { ask: Ask::Read, said, began, ended, given: None };
            self.histories.entry(name.clone()).or_default().push(request);
        }
    }

    /// What was said counts even if the client never hears it.
    fn answer(&mut self, client: usize, name: &EntryName, number: usize, said: Said) {
        if let Some(request) = self.histories.get_mut(name).and_then(|all| all.get_mut(number)) {
            request.said = said;
        }
        let delay = self.client_delay();
        self.schedule(delay, Happening::Answered { client, name: name.clone(), number });
    }

    pub(super) fn take_answer(&mut self, client: usize, name: &EntryName, number: usize) {
        let now = self.now;
        let slot = self.slot_of(name);
        let Some(request) = self.histories.get_mut(name).and_then(|all| all.get_mut(number)) else { return };
        request.ended = Some(now);
        let (ask, said) = (request.ask, request.said);
        let waiting = &mut self.clients[client];
        match (said, ask) {
            (Said::Written(tag), _) => {
                self.report.written += 1;
                let is_deleted = matches!(ask, Ask::Delete { .. });
                waiting.seen.insert(name.clone(), Some(tag).filter(|_| !is_deleted));
            }
            (Said::Found(found), _) => {
                self.report.read += 1;
                waiting.seen.insert(name.clone(), found.map(|(tag, _)| tag));
            }
            (Said::Refused | Said::Unknown, _) => {}
        }
        match said {
            Said::Written(_) | Said::Found(_) => waiting.served_by.insert(slot, waiting.asked),
            Said::Refused | Said::Unknown => waiting.served_by.remove(&slot),
        };
        self.next_turn(client);
    }

    /// A client has waited long enough, or has its answer.
    pub(super) fn go_on(&mut self, client: usize, turn: u64) {
        if self.clients.get(client).is_some_and(|one| one.turn == turn) {
            self.next_turn(client);
        }
    }

    fn next_turn(&mut self, client: usize) {
        let Some(waiting) = self.clients.get_mut(client) else { return };
        waiting.turn += 1;
        let pause = Duration::from_millis(self.rng.u64(2..120));
        self.schedule(pause, Happening::Ask { client });
    }

    fn client_delay(&mut self) -> Duration {
        Duration::from_micros(self.rng.u64(100..3000))
    }
}

/// How long a client waits, at most, for an answer that it may never have.
const PATIENCE_MAX: Duration = Duration::from_millis(2500);
