//! What waits to be gossiped, and what has been heard already.
//!
//! A datagram that is sent once may be lost, one that is sent for ever is a flood. [`GossipQueue`] sends each message a few
//! times, those first that were sent least. Who hears a message for the first time passes it on, so that all hear it though
//! nobody told all; [`SeenWindow`] knows which time is the first.

use std::collections::VecDeque;

use bytes::Bytes;

/// Messages that are to be sent a bounded number of times, at most [`GossipQueue::MESSAGES_MAX`] of them.
#[derive(Debug, Default)]
pub(super) struct GossipQueue {
    /// Messages by how often they were sent.
    tiers: Vec<VecDeque<Bytes>>,
}

impl GossipQueue {
    /// The most messages that wait. Beyond, the one that was sent most often makes room.
    pub(super) const MESSAGES_MAX: usize = 1024;

    /// What a datagram needs for a message beside its bytes: its kind and its length.
    const MESSAGE_OVERHEAD: usize = 8;

    /// Queues a message. `false` when one had to go for it before it was sent as often as it should: one that was sent
    /// already if there is one, else this one.
    pub(super) fn push(&mut self, message: Bytes) -> bool {
        let is_full = self.tiers.iter().map(VecDeque::len).sum::<usize>() >= Self::MESSAGES_MAX;
        if is_full {
            let Some(most_sent) = self.tiers.iter_mut().skip(1).rev().find(|tier| !tier.is_empty()) else {
                return false;
            };
            most_sent.pop_front();
        }
        if self.tiers.is_empty() {
            self.tiers.push(VecDeque::new());
        }
        self.tiers[0].push_back(message);
        !is_full
    }

    /// Takes what fits into so many datagrams with that room each, every message once. One that was taken `transmits_max`
    /// times is not kept.
    pub(super) fn take(&mut self, datagrams: usize, room: usize, transmits_max: usize) -> Vec<Vec<Bytes>> {
        let mut rooms = vec![room; datagrams];
        let mut taken = vec![Vec::new(); datagrams];
        self.tiers.resize_with(self.tiers.len().max(transmits_max), VecDeque::new);
        // What was taken moves up only when all tiers have been looked at, or it would be taken again from the next.
        let mut chosen: Vec<VecDeque<Bytes>> = Vec::with_capacity(self.tiers.len());
        for tier in &mut self.tiers {
            let mut fits = VecDeque::new();
            for _ in 0..tier.len() {
                let Some(message) = tier.pop_front() else { break };
                let bytes = message.len() + Self::MESSAGE_OVERHEAD;
                match rooms.iter().position(|room| bytes <= *room) {
                    Some(datagram) => {
                        rooms[datagram] -= bytes;
                        taken[datagram].push(message.clone());
                        fits.push_back(message);
                    }
                    None => tier.push_back(message),
                }
            }
            chosen.push(fits);
        }
        for (sent, fits) in chosen.into_iter().enumerate() {
            if sent + 1 < transmits_max {
                self.tiers[sent + 1].extend(fits);
            }
        }
        taken.retain(|messages| !messages.is_empty());
        taken
    }
}

/// Which of the latest 1024 numbers of a sequence have been seen. Older ones count as seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SeenWindow {
    /// One above the highest number seen.
    end: u64,
    /// One bit for each of the numbers below `end`, at its remainder.
    bits: [u64; WORDS],
}

impl SeenWindow {
    /// Marks a number. `true` when that is the first time.
    pub(super) fn mark(&mut self, number: u64) -> bool {
        if number >= self.end {
            if number - self.end >= SPAN {
                self.bits = [0; WORDS];
            } else {
                (self.end..number).for_each(|skipped| self.set(skipped, false));
            }
            self.end = number.saturating_add(1);
            self.set(number, true);
            return true;
        }
        if self.end - number > SPAN {
            return false;
        }
        let is_new = self.bits[word(number)] & bit(number) == 0;
        self.set(number, true);
        is_new
    }

    fn set(&mut self, number: u64, seen: bool) {
        let word = &mut self.bits[word(number)];
        *word = if seen { *word | bit(number) } else { *word & !bit(number) };
    }
}

const fn word(number: u64) -> usize {
    (number / 64 % WORDS as u64) as usize
}

const fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

const WORDS: usize = 16;
const SPAN: u64 = 64 * WORDS as u64;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Takes one datagram with room for messages of these lengths.
    fn take(queue: &mut GossipQueue, lengths: &[usize], transmits_max: usize) -> Vec<Bytes> {
        let room = lengths.iter().map(|length| length + GossipQueue::MESSAGE_OVERHEAD).sum();
        queue.take(1, room, transmits_max).into_iter().flatten().collect()
    }

    #[test]
    fn each_message_is_sent_as_often_as_allowed_and_the_least_sent_first() {
        let mut queue = GossipQueue::default();
        assert!(queue.push(Bytes::from_static(b"old")));
        assert_eq!(take(&mut queue, &[3], 3), ["old"]);
        assert!(queue.push(Bytes::from_static(b"new")));
        // Room for one: the new one was sent less.
        assert_eq!(take(&mut queue, &[5], 3), ["new"]);
        assert_eq!(take(&mut queue, &[3, 3], 3), ["old", "new"]);
        assert_eq!(take(&mut queue, &[3, 3], 3), ["old", "new"]);
        assert_eq!(take(&mut queue, &[3, 3], 3), [""; 0]);
    }

    #[test]
    fn a_round_has_several_datagrams_and_sends_nothing_twice() {
        let mut queue = GossipQueue::default();
        for message in [&b"one"[..], b"two", b"three"] {
            queue.push(Bytes::from_static(message));
        }
        let room = 2 * (3 + GossipQueue::MESSAGE_OVERHEAD);
        assert_eq!(queue.take(3, room, 2), [vec!["one", "two"], vec!["three"]]);
        assert_eq!(queue.take(1, room, 2), [["one", "two"]]);
        assert_eq!(queue.take(3, room, 2), [["three"]]);
        assert!(queue.take(3, room, 2).is_empty());
    }

    #[test]
    fn what_does_not_fit_waits_and_holds_up_nothing_smaller() {
        let mut queue = GossipQueue::default();
        queue.push(Bytes::from_static(b"large"));
        queue.push(Bytes::from_static(b"small"));
        queue.push(Bytes::from_static(b"s"));
        assert_eq!(take(&mut queue, &[1], 1), ["s"]);
        assert_eq!(take(&mut queue, &[5, 5], 1), ["large", "small"]);
    }

    #[test]
    fn a_full_queue_gives_up_what_was_sent_before_what_was_not() {
        let mut queue = GossipQueue::default();
        queue.push(Bytes::from_static(b"sent"));
        assert_eq!(take(&mut queue, &[4], 2), ["sent"]);
        for _ in 1..GossipQueue::MESSAGES_MAX {
            assert!(queue.push(Bytes::from_static(b"new")));
        }
        assert!(!queue.push(Bytes::from_static(b"newer")), "`sent` had to go");
        assert!(!queue.push(Bytes::from_static(b"refused")));
        let taken = queue.take(1, usize::MAX, 2).remove(0);
        assert_eq!(taken.len(), GossipQueue::MESSAGES_MAX);
        assert!(!taken.contains(&Bytes::from_static(b"sent")));
        assert!(taken.contains(&Bytes::from_static(b"newer")));
    }

    #[test]
    fn a_number_is_new_once_in_whatever_order_numbers_come() {
        let mut window = SeenWindow::default();
        let mut seen = BTreeSet::new();
        // Steps that go back and forth, over the edges of words and of the whole window.
        let mut number = 0_u64;
        for step in 0..20_000_u64 {
            number = (number + step * 37) % (1 + step);
            let highest = seen.last().copied().unwrap_or(0).max(number);
            if highest - number < SPAN {
                assert_eq!(window.mark(number), seen.insert(number), "step {step}, number {number}");
            } else {
                assert!(!window.mark(number), "step {step}: {number} is out of the window");
            }
        }
        assert!(window.mark(u64::MAX - 1));
        assert!(!window.mark(u64::MAX - 1));
        assert!(!window.mark(5));
    }
}
