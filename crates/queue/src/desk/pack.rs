//! Packs commands into frames.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use synod_core::jobs::{Command, Frame, Op};
use tokio::time::Instant;

use super::{Origin, StreamId, Wish};

/// Commands that wait to be packed, and the clock of the frames.
pub(super) struct Packer {
    waiting: VecDeque<(Origin, Command)>,
    waiting_bytes: usize,
    wants_tick: bool,
    /// When the frame before was packed, to the millisecond that it told.
    last_frame: Instant,
}

impl Packer {
    /// For a reign that begins now: its first frame says that no time has passed.
    pub(super) fn new(now: Instant) -> Self {
        Self { waiting: VecDeque::new(), waiting_bytes: 0, wants_tick: false, last_frame: now }
    }

    pub(super) fn push(&mut self, origin: Origin, command: Command) {
        self.waiting_bytes += cost(&command.op);
        self.waiting.push_back((origin, command));
    }

    pub(super) fn push_pull(&mut self, stream: StreamId, wish: Wish) {
        let op = Op::Pull {
            session: wish.session,
            queues: wish.queues.clone(),
            count: wish.count,
            ttr_ms: wish.ttr_ms,
        };
        self.push(Origin::Pull { stream, wish }, op.into());
    }

    /// Has a frame made even if there is nothing to do, so that time passes.
    pub(super) const fn ask_for_tick(&mut self) {
        self.wants_tick = true;
    }

    /// Whether more may be handed in.
    pub(super) fn has_room(&self) -> bool {
        self.waiting_bytes < WAITING_BYTES_MAX
    }

    /// The time of the frame that was packed last.
    pub(super) const fn last_frame(&self) -> Instant {
        self.last_frame
    }

    /// The next frame as bytes, and who asked for its commands; `None` when there is nothing to do.
    pub(super) fn pack(&mut self, now: Instant, wall_ms: u64) -> Option<(Bytes, Vec<Origin>)> {
        if self.waiting.is_empty() && !self.wants_tick {
            return None;
        }
        self.wants_tick = false;
        let dt_ms =
            u32::try_from(now.saturating_duration_since(self.last_frame).as_millis()).unwrap_or(u32::MAX);
        self.last_frame += Duration::from_millis(dt_ms.into());
        let mut bytes = 0;
        let count = self.waiting.iter().take(COMMANDS_MAX).take_while(|(_, command)| {
            bytes += cost(&command.op);
            bytes <= FRAME_BYTES_MAX
        });
        // A command that is larger than a frame rides alone.
        let count = count.count().max(1).min(self.waiting.len());
        let (mut commands, mut origins) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut packed = 0;
        for (origin, command) in self.waiting.drain(..count) {
            packed += cost(&command.op);
            commands.push(command);
            origins.push(origin);
        }
        self.waiting_bytes -= packed;
        let mut entry = Vec::with_capacity(packed + 32);
        Frame { dt_ms, wall_ms, commands }.encode(&mut entry);
        Some((entry.into(), origins))
    }
}

/// About how many bytes a command takes.
pub(super) fn cost(op: &Op) -> usize {
    let own = match op {
        Op::Submit(submit) => submit.body.len() + submit.queue.as_str().len(),
        Op::Credit { queues, .. } | Op::Pull { queues, .. } => {
            queues.iter().map(|queue| queue.as_str().len() + 1).sum()
        }
        _ => 0,
    };
    own + COMMAND_OVERHEAD
}

/// Most commands of a frame.
const COMMANDS_MAX: usize = 1_024;
/// About how many bytes a frame has at most, unless one command alone has more.
const FRAME_BYTES_MAX: usize = 256 << 10;
/// What a command takes besides its body.
const COMMAND_OVERHEAD: usize = 48;
/// When so much waits, streams have to wait too.
const WAITING_BYTES_MAX: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use synod_core::jobs::{QueueName, Submit};

    use super::*;

    fn submit(bytes: usize) -> Command {
        Op::Submit(Submit::new(QueueName::new("q").expect("name"), vec![0; bytes])).into()
    }

    fn decoded(packer: &mut Packer, now: Instant) -> Option<Frame> {
        packer.pack(now, 7).map(|(entry, origins)| {
            let frame = Frame::decode(entry).expect("frame");
            assert_eq!(frame.commands.len(), origins.len());
            frame
        })
    }

    #[tokio::test(start_paused = true)]
    async fn frames_tell_all_the_time_that_passes() {
        let start = Instant::now();
        let mut packer = Packer::new(start);
        assert!(packer.pack(start, 0).is_none(), "nothing to do");
        packer.ask_for_tick();
        assert_eq!(decoded(&mut packer, start).map(|frame| frame.dt_ms), Some(0));
        let mut told = 0;
        for step in 1..=10_u32 {
            packer.push(Origin::Desk, submit(1));
            let now = start + Duration::from_micros(700) * step;
            told += decoded(&mut packer, now).expect("frame").dt_ms;
        }
        assert_eq!(told, 7, "what is less than a millisecond is told later");
    }

    #[tokio::test(start_paused = true)]
    async fn frames_are_bounded_and_nothing_is_lost() {
        let now = Instant::now();
        let mut packer = Packer::new(now);
        for _ in 0..3_000 {
            packer.push(Origin::Desk, submit(10));
        }
        packer.push(Origin::Desk, submit(FRAME_BYTES_MAX));
        packer.push(Origin::Desk, submit(10));
        let mut sizes = Vec::new();
        while let Some(frame) = decoded(&mut packer, now) {
            sizes.push(frame.commands.len());
        }
        assert_eq!(sizes, [1_024, 1_024, 952, 1, 1]);
        assert_eq!(packer.waiting_bytes, 0);
    }
}
