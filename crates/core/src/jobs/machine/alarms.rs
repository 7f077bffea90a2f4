//! What happens by itself when its time comes.

use super::{Effects, JobQueue};
use crate::jobs::effects::EventKind;
use crate::jobs::id::{GatewayId, JobId};
use crate::jobs::job::{JobState, What};
use crate::jobs::timers::Alarm;

impl JobQueue {
    /// Handles the alarms that are due, in their order, as many as one frame may.
    pub(super) fn let_alarms_go_off(&mut self, effects: &mut Effects) {
        for _ in 0..self.limits.alarms_per_frame_max {
            match self.timers.pop_due(self.time_ms) {
                None => break,
                Some((_, Alarm::Expiry(job))) => self.expire_waiting(job, effects),
                Some((at_ms, Alarm::Queue(place))) => self.look_after_queue(place, at_ms, effects),
                Some((_, Alarm::Gateway(gateway))) => self.look_after_gateway(gateway),
                Some((_, Alarm::Job(job))) => match self.jobs.get(job).map(|job| job.state) {
                    Some(JobState::Reserved { .. }) => self.time_out(job, effects),
                    Some(JobState::Delayed { .. }) => self.end_delay(job, effects),
                    _ => {}
                },
            }
        }
    }

    /// Sets the alarm of a queue, if it must go off earlier than it would. One that goes off too early finds that out.
    pub(super) fn set_alarm(&mut self, place: u32) {
        let queue = &mut self.queues[place];
        let Some(at_ms) = queue.next_alarm(self.limits.queue_idle_ms) else {
            return;
        };
        if queue.alarm_ms.is_none_or(|set_ms| at_ms < set_ms) {
            if let Some(before_ms) = queue.alarm_ms.replace(at_ms) {
                self.timers.clear(before_ms, Alarm::Queue(place));
            }
            self.timers.set(at_ms, Alarm::Queue(place));
        }
    }

    fn expire_waiting(&mut self, job: JobId, effects: &mut Effects) {
        if let Some(place) = self.jobs.get(job).map(|job| job.queue) {
            self.expire(job, effects);
            self.settle(place, effects);
        }
    }

    fn end_delay(&mut self, id: JobId, effects: &mut Effects) {
        let (index, now_ms) = (self.index, self.time_ms);
        let mut place = None;
        self.change(id, |job| {
            job.state = JobState::Ready;
            job.remember(index, now_ms, What::Ready, None);
            place = Some(job.queue);
        });
        if let Some(place) = place {
            self.emit(id, EventKind::Ready, effects);
            self.settle(place, effects);
        }
    }

    fn look_after_queue(&mut self, place: u32, at_ms: u64, effects: &mut Effects) {
        let now_ms = self.time_ms;
        let queue = &mut self.queues[place];
        queue.alarm_ms = None;
        // An alarm may have been left where it was when what it was for went away. What comes later has to wait for its turn,
        // even within this frame.
        if queue.next_alarm(self.limits.queue_idle_ms).is_none_or(|next_ms| next_ms > at_ms) {
            self.set_alarm(place);
            return;
        }
        queue.refill(now_ms);
        if queue.pause.and_then(|pause| pause.until_ms).is_some_and(|until_ms| until_ms <= now_ms) {
            queue.pause = None;
        }
        for _ in 0..KEYS_PER_ALARM_MAX {
            let Some((until_ms, key)) = queue.dedupe_due.pop_first() else {
                break;
            };
            if until_ms > now_ms {
                queue.dedupe_due.insert((until_ms, key));
                break;
            }
            queue.dedupe.remove(&key);
            self.dedupe_keys -= 1;
        }
        let idle_ms = self.limits.queue_idle_ms;
        if queue.idle_since_ms.is_some_and(|since_ms| since_ms.saturating_add(idle_ms) <= now_ms) {
            // Their place may be given to another queue, whose jobs they are not.
            self.finished.retain(|job| job.queue != place);
            self.queues.remove(place);
        } else {
            self.settle(place, effects);
        }
    }

    fn look_after_gateway(&mut self, id: GatewayId) {
        let Some(gateway) = self.gateways.get_mut(&id) else {
            return;
        };
        let until_ms = gateway.seen_ms.saturating_add(self.limits.gateway_idle_ms);
        if until_ms <= self.time_ms {
            self.gateways.remove(&id);
        } else {
            gateway.alarm_ms = until_ms;
            self.timers.set(until_ms, Alarm::Gateway(id));
        }
    }
}

/// How many dedupe keys one alarm forgets. It goes off again for the others.
const KEYS_PER_ALARM_MAX: usize = 256;
