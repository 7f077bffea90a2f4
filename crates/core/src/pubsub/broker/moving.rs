//! What a topic takes along when it moves to another node.

use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::super::config::{PartitionPolicy, TopicOptions};
use super::super::log::Log;
use super::super::outcome::{DropReason, PubSubOutcome, Subscriber};
use super::{Existence, PubSubBroker};
use crate::deadline::DeadlineQueue;
use crate::time::TimerInstant;

/// A topic between two activations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicSnapshot<P> {
    /// What it was created with; `None` if nobody did.
    pub created: Option<TopicOptions>,
    /// Everybody who subscribes, and how many of `messages`, from the end, each has not had.
    pub subscribers: Vec<(Subscriber, u64)>,
    /// What somebody has not had, in order.
    pub messages: Vec<KeptMessage<P>>,
}

/// A message that somebody has not had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptMessage<P> {
    /// The message.
    pub payload: P,
    /// Its size.
    pub bytes: usize,
    /// How long it has been kept. Clocks differ between nodes, ages do not.
    pub age: Duration,
}

impl<P> Default for TopicSnapshot<P> {
    fn default() -> Self {
        Self { created: None, subscribers: Vec::new(), messages: Vec::new() }
    }
}

impl<P: Clone> PubSubBroker<P> {
    /// Packs up: everything that the next activation needs, with at most so many bytes of messages. The oldest stay
    /// behind, and count as dropped. This activation sends nothing any more.
    pub fn pack_up(&mut self, bytes_max: usize, now: TimerInstant) -> (TopicSnapshot<P>, PubSubOutcome<P>) {
        let mut out = PubSubOutcome::default();
        // Whether what is on its way arrives, nobody here will learn.
        let everyone: Vec<_> = self.subscribers.keys().cloned().collect();
        self.start_over(&everyone);
        self.flights.clear();
        while self.log.bytes() + self.log.len() * MESSAGE_OVERHEAD_BYTES > bytes_max {
            self.log.pop();
        }
        self.skip_lost(DropReason::Moved, &mut out);
        let messages = self.log.entries().map(|(payload, bytes, published_at)| KeptMessage {
            payload: payload.clone(),
            bytes,
            age: now.saturating_since(published_at),
        });
        let end = self.log.end();
        let subscribers = mem::take(&mut self.subscribers).into_iter();
        let subscribers = subscribers.map(|(who, state)| (who, end.saturating_sub(state.next)));
        let snapshot = TopicSnapshot {
            created: self.created(),
            subscribers: subscribers.collect(),
            messages: messages.collect(),
        };
        self.log = Log::new();
        self.alarms = DeadlineQueue::new();
        (snapshot, self.finish(out))
    }

    /// Goes on where an earlier activation packed up. To be called before anything is published here. Actors on nodes
    /// that are no members any more are given the time of a node that left.
    pub fn restore(&mut self, snapshot: TopicSnapshot<P>, now: TimerInstant) -> PubSubOutcome<P> {
        let mut out = PubSubOutcome::default();
        let TopicSnapshot { created, subscribers, messages } = snapshot;
        if let Some(options) = created {
            self.existence = Existence::Created;
            self.config.set_options(options);
        }
        let subscribers: Vec<_> = subscribers
            .into_iter()
            .take(self.config.subscribers_max.saturating_sub(self.subscribers.len()))
            .filter(|(subscriber, _)| !self.subscribers.contains_key(subscriber))
            .collect();
        if self.log.len() == 0 {
            let mut needs: Vec<_> = subscribers.iter().map(|(_, needed)| *needed).collect();
            needs.sort_unstable();
            let count = messages.len() as u64;
            for (following, message) in (0..count).rev().zip(messages) {
                // Who needs the last n messages needs this one if fewer than n follow it.
                let needed_by = needs.len() - needs.partition_point(|needed| *needed <= following);
                let KeptMessage { payload, bytes, age } = message;
                self.log.push(payload, bytes, needed_by, now.saturating_sub(age));
            }
        }
        let kept = self.log.len() as u64;
        for (subscriber, needed) in subscribers {
            if let Subscriber::Actor(pid) = &subscriber
                && self.has_roster
                && !self.members.iter().any(|member| member.authority == *pid.authority())
            {
                self.leave_node(pid.authority(), now);
            }
            self.enter(subscriber, needed.min(kept));
        }
        // Nobody needs what comes before the first that somebody needs.
        self.log.release(0, 0);
        self.trim(&mut out);
        if self.config.partition == PartitionPolicy::Drop {
            self.drop_unreachable(&mut out);
        }
        let everyone = self.subscribers.keys().cloned().collect();
        self.advance(everyone, now, &mut out);
        self.finish(out)
    }
}

/// What a message takes besides its content.
const MESSAGE_OVERHEAD_BYTES: usize = 64;
