//! The letter box of an actor: bounded, in order, with a slot at the top for what concerns the actor itself.
//!
//! The reader takes everything that is there at once and works through it before it looks again, so a burst of a thousand
//! messages costs one lock on either side.

use std::collections::VecDeque;

use super::config::RemoteConfig;
use super::process::{Letter, SystemMessage};

#[derive(Debug, Default)]
pub(super) struct Mailbox {
    letters: VecDeque<Letter>,
    bytes: usize,
    /// Most actors have none in all their life.
    system: Option<Box<SystemQueue>>,
}

/// What overtakes letters.
#[derive(Debug, Default)]
struct SystemQueue(VecDeque<SystemMessage>);

impl Mailbox {
    /// Swaps the letters that wait into `taken`, which must be empty.
    pub(super) fn take(&mut self, taken: &mut VecDeque<Letter>) {
        std::mem::swap(&mut self.letters, taken);
        self.bytes = 0;
    }

    /// The next thing that overtakes letters.
    pub(super) fn take_system(&mut self) -> Option<SystemMessage> {
        self.system.as_mut()?.0.pop_front()
    }

    pub(super) fn has_system(&self) -> bool {
        self.system.as_ref().is_some_and(|system| !system.0.is_empty())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.letters.is_empty() && !self.has_system()
    }

    /// Takes letters from the front of `letters`, as many as there is room for.
    pub(super) fn deliver(&mut self, letters: &mut VecDeque<Letter>, bounds: &RemoteConfig) {
        let was_empty = self.letters.is_empty();
        let (mut fit, mut bytes) = (0, self.bytes);
        let room = bounds.mailbox_messages_max - self.letters.len();
        for letter in letters.iter().take(room) {
            let more = bytes + letter.message.queue_bytes();
            // One letter always fits, however large: it was bounded when it was read.
            if more > bounds.mailbox_bytes_max && !(was_empty && fit == 0) {
                break;
            }
            bytes = more;
            fit += 1;
        }
        self.bytes = bytes;
        if was_empty && fit == letters.len() {
            std::mem::swap(&mut self.letters, letters);
        } else {
            self.letters.extend(letters.drain(..fit));
        }
    }

    pub(super) fn tell(&mut self, message: SystemMessage) {
        // Beyond the bound only what ends the actor gets through; the rest is a peer's flood.
        let SystemQueue(system) = &mut **self.system.get_or_insert_default();
        if system.len() < SYSTEM_MAX || message == SystemMessage::Stop {
            if message == SystemMessage::Stop {
                system.retain(|waiting| *waiting != SystemMessage::Stop);
            }
            system.push_back(message);
        }
    }
}

/// Most messages about the actor itself that wait.
const SYSTEM_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::message::Message;
    use super::*;
    use synod_wire::actor::Touch;

    fn letters(count: u32) -> VecDeque<Letter> {
        (0..count).map(|request_id| Letter { request_id, message: Message::new(&Touch {}) }).collect()
    }

    fn bounds(messages: usize, bytes: usize) -> RemoteConfig {
        let config = RemoteConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        RemoteConfig { mailbox_messages_max: messages, mailbox_bytes_max: bytes, ..config }
    }

    #[test]
    fn it_takes_what_fits_in_order_and_leaves_the_rest() {
        let (mut mailbox, bounds) = (Mailbox::default(), bounds(3, usize::MAX));
        let mut five = letters(5);
        mailbox.deliver(&mut five, &bounds);
        assert_eq!(five.iter().map(|letter| letter.request_id).collect::<Vec<_>>(), [3, 4]);
        mailbox.deliver(&mut five, &bounds);
        assert_eq!(five.len(), 2, "full");
        let mut taken = VecDeque::new();
        mailbox.take(&mut taken);
        assert_eq!(taken.iter().map(|letter| letter.request_id).collect::<Vec<_>>(), [0, 1, 2]);
        mailbox.deliver(&mut five, &bounds);
        assert_eq!(five.len(), 0);
    }

    #[test]
    fn it_is_bounded_by_bytes_and_still_takes_one_that_is_larger() {
        let letter = |bytes: usize| Letter {
            request_id: 0,
            message: Message::raw("test.Large".into(), vec![0; bytes].into()),
        };
        let (mut mailbox, bounds) = (Mailbox::default(), bounds(100, 1000));
        let mut large = VecDeque::from([letter(5000), letter(1)]);
        mailbox.deliver(&mut large, &bounds);
        assert_eq!(large.len(), 1);
        mailbox.take(&mut VecDeque::new());
        let mut several: VecDeque<_> = (0..9).map(|_| letter(200)).collect();
        mailbox.deliver(&mut several, &bounds);
        assert_eq!(several.len(), 6, "three of 200 bytes and what they take besides");
    }

    #[test]
    fn one_end_is_enough() {
        let mut mailbox = Mailbox::default();
        mailbox.tell(SystemMessage::Stop);
        mailbox.tell(SystemMessage::Stop);
        assert_eq!((mailbox.take_system(), mailbox.take_system()), (Some(SystemMessage::Stop), None));
    }
}
