//! What makes a command count once: each gateway numbers its commands, and the results of the latest are remembered.
//!
//! A gateway that does not know what became of a command, because its leader went down, sends it again with the same
//! number, and gets the first result. A number that fell out of the window is refused: it may have been done.

use alloc::collections::VecDeque;

use super::effects::{Refusal, Reply};

/// One gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gateway {
    /// The highest number seen.
    pub(super) highest: u64,
    /// The results of the numbers up to it, the highest last; `None` where the command has not come yet.
    pub(super) results: VecDeque<Option<Result<Reply, Refusal>>>,
    /// Results of numbers up to this one may have been forgotten. A window that grows does not bring them back.
    pub(super) forgotten: u64,
    /// The entry of the log that opened it. One that was forgotten and comes again has another one.
    pub(super) opened_at: u64,
    /// The queue time of the last command.
    pub(super) seen_ms: u64,
    /// When its alarm goes off. It looks whether the gateway was silent since, so that commands need not move it.
    pub(super) alarm_ms: u64,
}

/// What is known of a number.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known<'a> {
    /// It has not come yet.
    New,
    /// It has, and this was the result.
    Done(&'a Result<Reply, Refusal>),
    /// It fell out of the window.
    TooOld,
}

impl Gateway {
    /// What is known of a number.
    pub(super) fn look_up(&self, sequence: u64, window: u32) -> Known<'_> {
        if sequence > self.highest {
            return Known::New;
        }
        let behind = self.highest - sequence;
        if sequence <= self.forgotten || behind >= u64::from(window) {
            return Known::TooOld;
        }
        let place =
            usize::try_from(behind).ok().and_then(|behind| self.results.len().checked_sub(behind + 1));
        match place.and_then(|place| self.results.get(place)) {
            // Nothing there was forgotten, so it never came.
            None | Some(None) => Known::New,
            Some(Some(result)) => Known::Done(result),
        }
    }

    /// Remembers the result of a number that is new.
    pub(super) fn record(&mut self, sequence: u64, window: u32, result: Result<Reply, Refusal>) {
        let window = window as usize;
        if sequence > self.highest {
            let gap = usize::try_from(sequence - self.highest - 1).unwrap_or(usize::MAX).min(window);
            self.results.extend(core::iter::repeat_n(None, gap));
            self.results.push_back(Some(result));
            self.highest = sequence;
        } else {
            let behind = usize::try_from(self.highest - sequence).unwrap_or(usize::MAX);
            while self.results.len() <= behind && self.results.len() < window {
                self.results.push_front(None);
            }
            let place = self.results.len().checked_sub(behind.saturating_add(1));
            if let Some(slot) = place.and_then(|place| self.results.get_mut(place)) {
                *slot = Some(result);
            }
        }
        while self.results.len() > window {
            self.results.pop_front();
        }
        if self.results.len() == window {
            self.forgotten = self.forgotten.max(self.highest.saturating_sub(window as u64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::JobId;

    fn done(number: u64) -> Result<Reply, Refusal> {
        Ok(Reply::Submitted { job: JobId::new(number) })
    }

    #[test]
    fn a_number_counts_once_while_it_is_in_the_window() {
        let mut gateway = Gateway::default();
        for number in [1, 2, 5, 4, 6] {
            assert_eq!(gateway.look_up(number, 4), Known::New);
            gateway.record(number, 4, done(number));
        }
        assert_eq!(gateway.look_up(2, 4), Known::TooOld);
        assert_eq!(gateway.look_up(3, 4), Known::New, "it never came");
        for number in [4, 5, 6] {
            assert_eq!(gateway.look_up(number, 4), Known::Done(&done(number)));
        }
        assert_eq!(gateway.look_up(0, 4), Known::TooOld, "numbers start from 1");
    }

    #[test]
    fn a_number_before_the_first_one_that_came_is_new() {
        let mut gateway = Gateway::default();
        gateway.record(3, 4, done(3));
        assert_eq!(gateway.look_up(1, 4), Known::New);
        gateway.record(1, 4, done(1));
        assert_eq!(gateway.look_up(1, 4), Known::Done(&done(1)));
        assert_eq!(gateway.look_up(2, 4), Known::New);
        assert_eq!(gateway.look_up(3, 4), Known::Done(&done(3)));
    }

    #[test]
    fn a_leap_forgets_no_more_than_it_must_and_takes_no_more_room() {
        let mut gateway = Gateway::default();
        gateway.record(1, 4, done(1));
        gateway.record(u64::MAX, 4, done(9));
        assert_eq!(gateway.results.len(), 4);
        assert_eq!(gateway.look_up(1, 4), Known::TooOld);
        assert_eq!(gateway.look_up(u64::MAX - 1, 4), Known::New);
        assert_eq!(gateway.look_up(u64::MAX, 4), Known::Done(&done(9)));
    }

    #[test]
    fn a_window_that_grows_does_not_make_old_numbers_new() {
        let mut gateway = Gateway::default();
        for number in 1..=6 {
            gateway.record(number, 2, done(number));
        }
        assert_eq!(gateway.look_up(4, 100), Known::TooOld);
        assert_eq!(gateway.look_up(5, 100), Known::Done(&done(5)));
    }
}
