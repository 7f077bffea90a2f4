//! What is to be said to the leader, in messages of a sensible size.

use std::collections::VecDeque;

use synod_wire::queue as wire;

use super::Wish;
use crate::access::Question;

/// Messages to the leader.
#[derive(Default)]
pub(super) struct Outbox {
    messages: VecDeque<wire::Request>,
    /// About how many bytes the last message has.
    last_bytes: usize,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn pop(&mut self) -> Option<wire::Request> {
        self.messages.pop_front()
    }

    pub(super) fn command(&mut self, sequence: u64, op: wire::command::Op) {
        let bytes = match &op {
            wire::command::Op::Submit(submit) => submit.body.len() + submit.queue.len(),
            wire::command::Op::SessionOpen(open) => 16 * open.held.len(),
            _ => 0,
        };
        let command = wire::Command { sequence, op: Some(op) };
        self.message(bytes + 32).commands.push(command);
    }

    pub(super) fn pull(&mut self, id: u64, wish: &Wish) {
        let queues: Vec<String> = wish.queues.iter().map(|queue| queue.as_str().to_owned()).collect();
        let bytes = queues.iter().map(String::len).sum::<usize>() + 32;
        let (session, ttr_ms, waits) = (wish.session.get(), wish.ttr_ms, wish.waits);
        self.message(bytes).pulls.push(wire::Pull { id, session, queues, count: 1, ttr_ms, waits });
    }

    pub(super) fn withdraw(&mut self, id: u64) {
        self.message(10).withdrawn.push(id);
    }

    pub(super) fn question(&mut self, id: u64, question: &Question) {
        // Questions are plain records, which can always be written.
        let question = serde_json::to_vec(question).unwrap_or_default();
        self.message(question.len()).queries.push(wire::Query { id, question: question.into() });
    }

    /// Has something said, so that the leader knows that somebody is there.
    pub(super) fn ping(&mut self) {
        self.message(0);
    }

    /// The message that takes so many bytes more.
    fn message(&mut self, bytes: usize) -> &mut wire::Request {
        if self.messages.is_empty() || self.last_bytes + bytes > MESSAGE_BYTES {
            self.messages.push_back(wire::Request::default());
            self.last_bytes = 0;
        }
        self.last_bytes += bytes;
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }
}

/// About how many bytes a message has, unless one thing alone has more.
const MESSAGE_BYTES: usize = 128 << 10;
