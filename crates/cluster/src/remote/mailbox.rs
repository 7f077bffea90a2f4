//! The letter box of an actor: bounded, in order, with a slot at the top for what concerns the actor itself.
//!
//! The reader takes everything that is there at once and works through it without touching the lock again, so a burst
//! of a thousand messages costs one lock and one wake-up on either side.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::process::{Letter, Process, ProcessEnded, SystemMessage};
use crate::lock;

#[derive(Debug)]
pub(super) struct Mailbox {
    contents: Mutex<Contents>,
    messages_max: usize,
    bytes_max: usize,
    /// Set when `system` has something, so that the reader need not lock between two letters.
    system_waits: AtomicBool,
    arrived: Notify,
    room: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Contents {
    letters: VecDeque<Letter>,
    bytes: usize,
    system: VecDeque<SystemMessage>,
    closed: bool,
}

impl Mailbox {
    pub(super) fn new(messages_max: usize, bytes_max: usize) -> Self {
        Self {
            contents: Mutex::default(),
            messages_max,
            bytes_max,
            system_waits: AtomicBool::new(false),
            arrived: Notify::new(),
            room: Arc::new(Notify::new()),
        }
    }

    /// Swaps the letters that wait into `taken`, which must be empty. Waits until there is something of either sort.
    pub(super) async fn take(&self, taken: &mut VecDeque<Letter>) {
        loop {
            {
                let mut contents = lock(&self.contents);
                if !contents.letters.is_empty() || !contents.system.is_empty() {
                    std::mem::swap(&mut contents.letters, taken);
                    contents.bytes = 0;
                    break;
                }
            }
            self.arrived.notified().await;
        }
        if !taken.is_empty() {
            self.room.notify_waiters();
        }
    }

    /// The next thing that overtakes letters.
    pub(super) fn take_system(&self) -> Option<SystemMessage> {
        if !self.system_waits.load(Ordering::Acquire) {
            return None;
        }
        let mut contents = lock(&self.contents);
        let message = contents.system.pop_front();
        self.system_waits.store(!contents.system.is_empty(), Ordering::Release);
        message
    }

    /// Takes no more, and gives back what was not read.
    pub(super) fn close(&self) -> (VecDeque<Letter>, VecDeque<SystemMessage>) {
        let mut contents = lock(&self.contents);
        contents.closed = true;
        let rest = (std::mem::take(&mut contents.letters), std::mem::take(&mut contents.system));
        drop(contents);
        self.room.notify_waiters();
        rest
    }
}

impl Process for Mailbox {
    fn deliver(&self, letters: &mut VecDeque<Letter>) -> Result<(), ProcessEnded> {
        let mut contents = lock(&self.contents);
        if contents.closed {
            return Err(ProcessEnded);
        }
        let was_empty = contents.letters.is_empty();
        let (mut fit, mut bytes) = (0, contents.bytes);
        let room = self.messages_max - contents.letters.len();
        for letter in letters.iter().take(room) {
            let more = bytes + letter.message.queue_bytes();
            // One letter always fits, however large: it was bounded when it was read.
            if more > self.bytes_max && !(was_empty && fit == 0) {
                break;
            }
            bytes = more;
            fit += 1;
        }
        contents.bytes = bytes;
        if was_empty && fit == letters.len() {
            std::mem::swap(&mut contents.letters, letters);
        } else {
            contents.letters.extend(letters.drain(..fit));
        }
        let wake = was_empty && !contents.letters.is_empty();
        drop(contents);
        if wake {
            self.arrived.notify_one();
        }
        Ok(())
    }

    fn tell(&self, message: SystemMessage) -> Result<(), ProcessEnded> {
        let mut contents = lock(&self.contents);
        if contents.closed {
            return Err(ProcessEnded);
        }
        // Beyond the bound only what ends the actor gets through; the rest is a peer's flood.
        if contents.system.len() < SYSTEM_MAX || message == SystemMessage::Stop {
            if message == SystemMessage::Stop {
                contents.system.retain(|waiting| *waiting != SystemMessage::Stop);
            }
            contents.system.push_back(message);
            self.system_waits.store(true, Ordering::Release);
        }
        drop(contents);
        self.arrived.notify_one();
        Ok(())
    }

    fn room(&self) -> Option<Arc<Notify>> {
        Some(Arc::clone(&self.room))
    }
}

/// Most messages about the actor itself that wait.
const SYSTEM_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::super::message::Message;
    use super::*;
    use synod_wire::actor::Touch;

    fn letters(count: u32) -> VecDeque<Letter> {
        (0..count).map(|request_id| Letter { request_id, message: Message::new(&Touch {}) }).collect()
    }

    #[tokio::test]
    async fn it_takes_what_fits_in_order_and_leaves_the_rest() {
        let mailbox = Mailbox::new(3, usize::MAX);
        let mut five = letters(5);
        assert_eq!(mailbox.deliver(&mut five), Ok(()));
        assert_eq!(five.iter().map(|letter| letter.request_id).collect::<Vec<_>>(), [3, 4]);
        assert_eq!((mailbox.deliver(&mut five), five.len()), (Ok(()), 2), "full");
        let room = mailbox.room().expect("it can be full");
        let has_room = room.notified();
        let mut taken = VecDeque::new();
        mailbox.take(&mut taken).await;
        has_room.await;
        assert_eq!(taken.iter().map(|letter| letter.request_id).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!((mailbox.deliver(&mut five), five.len()), (Ok(()), 0));
    }

    #[tokio::test]
    async fn it_is_bounded_by_bytes_and_still_takes_one_that_is_larger() {
        let letter = |bytes: usize| Letter {
            request_id: 0,
            message: Message::raw("test.Large".into(), vec![0; bytes].into()),
        };
        let mailbox = Mailbox::new(100, 1000);
        let mut large = VecDeque::from([letter(5000), letter(1)]);
        assert_eq!((mailbox.deliver(&mut large), large.len()), (Ok(()), 1));
        let mut taken = VecDeque::new();
        mailbox.take(&mut taken).await;
        let mut several: VecDeque<_> = (0..9).map(|_| letter(200)).collect();
        assert_eq!(mailbox.deliver(&mut several), Ok(()));
        assert_eq!(several.len(), 6, "three of 200 bytes and what they take besides");
    }

    #[tokio::test]
    async fn what_concerns_the_actor_overtakes_and_the_end_gives_everything_back() {
        let mailbox = Mailbox::new(3, usize::MAX);
        mailbox.deliver(&mut letters(2)).expect("open");
        mailbox.tell(SystemMessage::Stop).expect("open");
        mailbox.tell(SystemMessage::Stop).expect("open");
        assert_eq!(mailbox.take_system(), Some(SystemMessage::Stop));
        assert_eq!(mailbox.take_system(), None, "one end is enough");
        let (letters_left, _) = mailbox.close();
        assert_eq!(letters_left.len(), 2);
        assert_eq!(mailbox.deliver(&mut letters(1)), Err(ProcessEnded));
        assert_eq!(mailbox.tell(SystemMessage::Stop), Err(ProcessEnded));
    }
}
