//! Who is behind a session: what its client calls itself, for those who look after the queue.
//!
//! The name is not part of the replicated state. It came with the stream, and the leader knows it for as long as the session
//! speaks on that stream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use synod_core::jobs::SessionId;

/// Names by session. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faces(Arc<Mutex<HashMap<SessionId, Arc<str>>>>);

impl Faces {
    /// A session speaks on a stream of this name. Without one there is nothing to show.
    pub(super) fn insert(&self, session: SessionId, name: &Arc<str>) {
        let mut names = self.lock();
        match name.is_empty() {
            true => names.remove(&session),
            false => names.insert(session, Arc::clone(name)),
        };
    }

    pub(super) fn remove(&self, session: SessionId) {
        self.lock().remove(&session);
    }

    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    /// What the client of a session calls itself, if that is known.
    pub(crate) fn of(&self, session: SessionId) -> Option<Arc<str>> {
        self.lock().get(&session).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name as it is shown: no longer than this, and without what a terminal would take for a command.
pub(crate) fn shown(name: &str) -> Arc<str> {
    name.chars().filter(|letter| !letter.is_control()).take(NAME_LETTERS_MAX).collect::<String>().into()
}

/// Longest name that is remembered.
const NAME_LETTERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_to_what_can_be_shown() {
        assert_eq!(&*shown("mail\u{1b}[2J sender"), "mail[2J sender");
        assert_eq!(shown(&"n".repeat(1_000_000)).len(), NAME_LETTERS_MAX);
    }

    #[test]
    fn a_session_has_the_name_of_its_stream() {
        let (faces, session) = (Faces::default(), SessionId::new(1));
        faces.insert(session, &"mail".into());
        assert_eq!(faces.of(session).as_deref(), Some("mail"));
        // It came back on a stream without a name.
        faces.insert(session, &"".into());
        assert_eq!(faces.of(session), None);
    }
}
