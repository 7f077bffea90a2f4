//! Carries out what an applied frame leads to.

use std::collections::HashMap;
use std::sync::Arc;

use synod_core::jobs::{Delivery, Effects, Refusal, Reply, SessionId};
use synod_wire::queue as wire;
use tokio::time::Instant;

use super::{Admission, Keeper, Origin, Reign, StreamId, Wish, due_at};
use crate::jobs::{Carried, Jobs};
use crate::raft::Applied;
use crate::wire::{write_delivery, write_held, write_outcome};

/// What each stream is to hear of one frame.
#[derive(Default)]
struct Mail(HashMap<StreamId, wire::Response>);

impl Mail {
    fn to(&mut self, stream: StreamId) -> &mut wire::Response {
        self.0.entry(stream).or_default()
    }

    fn send(self, reign: &Reign) {
        for (stream, response) in self.0 {
            if let Some(stream) = reign.streams.get(&stream) {
                // A stream that has just ended is told about in a note.
                drop(stream.out.send(Ok(response)));
            }
        }
    }
}

impl Keeper {
    /// Carries out what a frame leads to: replies, deliveries, and what they lead to in turn.
    pub(super) fn carry(&mut self, applied: Applied<Carried>) {
        let Some(reign) = &mut self.reign else { return };
        let Some((origins, packed_at)) = reign.origins.pop_front() else { return };
        let Applied { index, output: Carried { effects, time_ms, next_due_ms } } = applied;
        let Effects { replies, deliveries, revocations, events, ready, .. } = effects;
        reign.plan_tick(packed_at, time_ms, next_due_ms);
        let mut mail = Mail::default();
        // Who asked for the command at each place, for the deliveries that belong to it.
        let asked: Vec<Option<(StreamId, u64, u64)>> = origins.iter().map(Origin::asks).collect();
        let mut again = Vec::new();
        for (origin, reply) in origins.into_iter().zip(replies) {
            match origin {
                Origin::Desk => {}
                Origin::Open { stream, reply: to } => {
                    let gateway = reign.streams.get(&stream).map(|stream| stream.gateway);
                    let since =
                        gateway.and_then(|known| self.group.read(|jobs| jobs.queue().gateway_since(known)));
                    reign.let_in(stream, to, &reply, since);
                }
                Origin::Stream { stream, sequence } => {
                    reign.answer(stream, sequence, index, reply, &mut mail);
                }
                Origin::Session { stream, sequence, session, held } => {
                    if let Ok(Reply::Opened { is_resumed }) = &reply {
                        reign.bind(session, stream);
                        if *is_resumed {
                            again.push((session, stream, held));
                        }
                    }
                    reign.answer(stream, sequence, index, reply, &mut mail);
                }
                Origin::SessionEnd { stream, sequence, session } => {
                    if reply.is_ok() {
                        reign.unbind(session, stream);
                    }
                    reign.answer(stream, sequence, index, reply, &mut mail);
                }
                Origin::Pull { stream, wish } => match reply {
                    Ok(Reply::Pulled(held)) if held.is_empty() && wish.waits => {
                        reign.parked.insert(stream, wish);
                    }
                    reply => mail.to(stream).pull_ends.push(end_of(&wish, &reply)),
                },
            }
        }
        for delivery in deliveries {
            let by = delivery.pulled_by.and_then(|position| *asked.get(position as usize)?);
            reign.deliver(delivery, by, &mut mail);
        }
        for (session, stream, held) in again {
            // What was given to the worker before, and never reached it.
            let missed: Vec<Delivery> = self.group.read(|jobs| {
                let queue = jobs.queue();
                let assigned = queue.held_by(session).into_iter().filter(|assigned| !held.contains(assigned));
                assigned.filter_map(|assigned| queue.delivery(assigned)).collect()
            });
            let missed = missed.into_iter().map(|delivery| write_delivery(delivery, 0, 0));
            mail.to(stream).deliveries.extend(missed);
        }
        for revocation in revocations {
            if let Some(stream) = reign.sessions.get(&revocation.session) {
                mail.to(*stream).revocations.push(wire::Revocation {
                    session: revocation.session.get(),
                    held: Some(write_held(revocation.job, revocation.fence)),
                });
            }
        }
        mail.send(reign);
        for queue in ready {
            let count =
                self.group.read(|jobs: &Jobs| jobs.queue().queue(&queue).map_or(0, |queue| queue.ready));
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            for (stream, wish) in reign.parked.wake(&queue, count) {
                reign.packer.push_pull(stream, wish);
            }
        }
        if !events.is_empty() && self.events.receiver_count() > 0 {
            // Nobody may be listening by now.
            drop(self.events.send(Arc::new(events)));
        }
    }
}

impl Reign {
    /// Sees to it that a frame comes when something happens by itself.
    fn plan_tick(&mut self, packed_at: Instant, time_ms: u64, next_due_ms: Option<u64>) {
        self.tick_at = due_at(packed_at, time_ms, next_due_ms);
    }

    fn let_in(
        &mut self,
        stream: StreamId,
        to: tokio::sync::oneshot::Sender<Option<Admission>>,
        reply: &Result<Reply, Refusal>,
        since: Option<u64>,
    ) {
        match (reply, since.zip(self.streams.get(&stream))) {
            (Ok(_), Some((since, known))) => {
                let under_way = Arc::clone(&known.under_way);
                let admission = Admission { stream, under_way, term: self.term, since };
                if to.send(Some(admission)).is_err() {
                    self.streams.remove(&stream);
                }
            }
            (Err(refusal), _) => {
                let status = tonic::Status::resource_exhausted(refusal.to_string());
                if let Some(refused) = self.streams.remove(&stream) {
                    drop(refused.out.send(Err(status)));
                }
            }
            // It has ended already, and its gateway was closed with it.
            _ => {
                self.streams.remove(&stream);
                drop(to.send(None));
            }
        }
    }

    fn answer(
        &self,
        stream: StreamId,
        sequence: u64,
        index: u64,
        reply: Result<Reply, Refusal>,
        mail: &mut Mail,
    ) {
        if let Some(known) = self.streams.get(&stream) {
            known.answered();
            mail.to(stream).outcomes.push(write_outcome(sequence, index, reply));
        }
    }

    /// A session speaks on this stream from now on.
    fn bind(&mut self, session: SessionId, stream: StreamId) {
        self.orphans.remove(&session);
        let Some(known) = self.streams.get_mut(&stream) else {
            // The stream went while the session was opened: it ends the same way.
            self.packer.push(Origin::Desk, synod_core::jobs::Op::SessionClose { session }.into());
            return;
        };
        known.sessions.insert(session);
        self.faces.insert(session, &known.name);
        if let Some(before) = self.sessions.insert(session, stream)
            && before != stream
            && let Some(before) = self.streams.get_mut(&before)
        {
            before.sessions.remove(&session);
        }
    }

    /// A session was closed by this stream, which may well stay.
    fn unbind(&mut self, session: SessionId, stream: StreamId) {
        if self.sessions.get(&session) == Some(&stream) {
            self.sessions.remove(&session);
            self.faces.remove(session);
        }
        if let Some(known) = self.streams.get_mut(&stream) {
            known.sessions.remove(&session);
        }
    }

    fn deliver(&self, delivery: Delivery, by: Option<(StreamId, u64, u64)>, mail: &mut Mail) {
        let to = match by {
            Some(asked) => Some(asked),
            None => self.sessions.get(&delivery.session).map(|stream| (*stream, 0, 0)),
        };
        // Without a stream it waits in the state, and is told when the session comes back.
        if let Some((stream, reserved_by, pulled_by)) = to {
            mail.to(stream).deliveries.push(write_delivery(delivery, reserved_by, pulled_by));
        }
    }
}

impl Origin {
    /// For a command that asks for jobs: the stream, and the number of the command or of the wish.
    const fn asks(&self) -> Option<(StreamId, u64, u64)> {
        match self {
            Self::Stream { stream, sequence } => Some((*stream, *sequence, 0)),
            Self::Pull { stream, wish } => Some((*stream, 0, wish.id)),
            Self::Open { .. } | Self::Session { .. } | Self::SessionEnd { .. } | Self::Desk => None,
        }
    }
}

fn end_of(wish: &Wish, reply: &Result<Reply, Refusal>) -> wire::PullEnd {
    let (count, refusal) = match reply {
        Ok(Reply::Pulled(held)) => (u32::try_from(held.len()).unwrap_or(u32::MAX), 0),
        Ok(_) => (0, 0),
        Err(refusal) => (0, u32::from(refusal.number()) + 1),
    };
    wire::PullEnd { id: wish.id, count, refusal }
}

/// Delivers what an entry will lead to if it becomes the next one, where a simulation has planted that.
#[cfg(test)]
pub(super) fn deliver_early(group: &crate::raft::Group<Jobs>, reign: &mut Reign, entry: &bytes::Bytes) {
    use crate::simulation::planted::{Mistake, is_planted};

    if !is_planted(Mistake::EarlyDelivery) {
        return;
    }
    let status = group.status();
    if reign.under_way.is_empty() {
        let next = status.last.map_or(0, |last| last + 1);
        let is_known = status.last == status.applied;
        reign.ahead = is_known.then(|| (next, group.read(|jobs| jobs.queue().clone())));
    }
    let Some((next, queue)) = &mut reign.ahead else { return };
    let mut effects = Effects::new();
    let frame = synod_core::jobs::Frame::decode(entry.clone()).expect("it was packed just now");
    queue.apply(*next, &frame, &mut effects).expect("it is the next one");
    *next += 1;
    let mut mail = Mail::default();
    for delivery in effects.deliveries {
        reign.deliver(delivery, None, &mut mail);
    }
    mail.send(reign);
}
