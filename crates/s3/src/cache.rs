//! What was read a moment ago, so that not every request asks the store for its bucket and its access key.
//!
//! What is kept is at most [`KEPT_FOR`] old. What is not there is never kept: whoever creates a bucket finds it at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lock;

/// Values by name, for a moment.
pub(crate) struct Cache<T>(Mutex<Kept<T>>);

struct Kept<T> {
    values: HashMap<String, (Instant, Arc<T>)>,
    /// How often something was forgotten: what was read before that must not be kept after it.
    forgotten: u64,
}

/// Says that a value is about to be read.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    forgotten: u64,
}

impl<T> Cache<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Kept { values: HashMap::new(), forgotten: 0 }))
    }

    /// The value, or the leave to read it.
    pub(crate) fn get(&self, name: &str, now: Instant) -> Result<Arc<T>, Reading> {
        let kept = lock(&self.0);
        match kept.values.get(name) {
            Some((read, value)) if now.saturating_duration_since(*read) < KEPT_FOR => Ok(Arc::clone(value)),
            _ => Err(Reading { forgotten: kept.forgotten }),
        }
    }

    /// The leave to read, whatever is kept.
    pub(crate) fn reading(&self) -> Reading {
        Reading { forgotten: lock(&self.0).forgotten }
    }

    /// Keeps what was read.
    pub(crate) fn keep(&self, name: &str, value: &Arc<T>, reading: Reading, now: Instant) {
        let mut kept = lock(&self.0);
        if kept.forgotten != reading.forgotten {
            return;
        }
        if kept.values.len() >= KEPT_MAX && !kept.values.contains_key(name) {
            kept.values.retain(|_, (read, _)| now.saturating_duration_since(*read) < KEPT_FOR);
            if kept.values.len() >= KEPT_MAX {
                return;
            }
        }
        kept.values.insert(name.to_owned(), (now, Arc::clone(value)));
    }

    /// Forgets a value that is about to change or has changed.
    pub(crate) fn forget(&self, name: &str) {
        let mut kept = lock(&self.0);
        kept.forgotten += 1;
        kept.values.remove(name);
    }
}

/// How long a value is kept.
const KEPT_FOR: Duration = Duration::from_secs(1);
/// How many values are kept.
const KEPT_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_kept_for_a_moment_and_not_beyond_a_change() {
        let cache = Cache::new();
        let start = Instant::now();
        let Err(reading) = cache.get("a", start) else { panic!("nothing is there yet") };
        cache.keep("a", &Arc::new(1), reading, start);
        assert_eq!(cache.get("a", start).ok().as_deref(), Some(&1));
        assert!(cache.get("a", start + KEPT_FOR).is_err());

        // Whoever read before a change does not keep what was before it.
        let Err(reading) = cache.get("b", start) else { panic!("nothing is there yet") };
        cache.forget("b");
        cache.keep("b", &Arc::new(2), reading, start);
        assert!(cache.get("b", start).is_err());
    }

    #[test]
    fn there_is_room_for_so_many_and_no_more() {
        let cache = Cache::new();
        let start = Instant::now();
        for number in 0..KEPT_MAX + 10 {
            let name = number.to_string();
            if let Err(reading) = cache.get(&name, start) {
                cache.keep(&name, &Arc::new(number), reading, start);
            }
        }
        assert_eq!(lock(&cache.0).values.len(), KEPT_MAX);
        let Err(reading) = cache.get("later", start + KEPT_FOR) else { panic!("nothing is there yet") };
        cache.keep("later", &Arc::new(0), reading, start + KEPT_FOR);
        assert_eq!(lock(&cache.0).values.len(), 1);
    }
}
