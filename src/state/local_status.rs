//! Shares the status of the session's own candidate with every handle of the same election.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::status::Status;
use super::term::Term;
use crate::util::Told;
use eldest_core::action::{SlotId, TermId};

/// What the session's candidate in one election is. At most one stands at a time; a later one replaces it.
pub(crate) type Own = Told<State>;

/// See [`Own`].
#[derive(Debug, Clone, Default)]
pub struct State {
    slot: Option<SlotId>,
    /// `None`: the session has not stood in this election.
    pub status: Option<Status>,
    /// The last term that began, which may be over.
    pub held: Option<Held>,
}

/// A term, and what the core calls it.
#[derive(Debug, Clone)]
pub struct Held {
    /// The term.
    pub term: Term,
    pub(crate) id: (SlotId, TermId),
}

/// One candidate's hand on what is told of its session.
pub(crate) struct Pen {
    own: Arc<Own>,
    slot: SlotId,
}

impl Pen {
    pub(crate) fn new(own: Arc<Own>, slot: SlotId) -> Self {
        Self { own, slot }
    }

    /// From now on it is this candidate that is told of.
    pub(crate) fn take(&self) {
        self.own.change(|state| {
            state.slot = Some(self.slot);
            state.status = Some(Status::Joining);
            true
        });
    }

    pub(crate) fn status(&self, status: Status) {
        self.write(|state| state.status = Some(status));
    }

    pub(crate) fn elected(&self, term: Term, id: TermId) {
        let id = (self.slot, id);
        self.write(|state| state.held = Some(Held { term, id }));
    }

    /// A candidate that is on its way out says nothing of the one after it.
    fn write(&self, change: impl FnOnce(&mut State)) {
        self.own.change(|state| {
            let ours = state.slot == Some(self.slot);
            if ours {
                change(state);
            }
            ours
        });
    }
}

/// Of all elections that a session has handles of. The names are copies: one that is shared is one in use.
#[derive(Debug, Default)]
pub(crate) struct Owns(Mutex<HashMap<Box<str>, Weak<Own>>>);

impl Owns {
    /// The one that all handles of that name share.
    pub(crate) fn of(&self, name: &str) -> Arc<Own> {
        let mut owns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = owns.get(name).and_then(Weak::upgrade) {
            return own;
        }
        // Now and then only: ten thousand elections are not to cost ten thousand times ten thousand steps.
        if owns.len() == owns.capacity() {
            owns.retain(|_, own| own.strong_count() > 0);
        }
        let own = Arc::new(Own::new(State::default()));
        owns.insert(name.into(), Arc::downgrade(&own));
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_on_its_way_out_says_nothing_of_the_next_one() {
        let own = Arc::new(Own::new(State::default()));
        let [first, second] = [1, 2].map(|slot| Pen::new(Arc::clone(&own), slot));
        first.status(Status::Joining);
        assert_eq!(own.get().status, None, "it has not been accepted");
        first.take();
        let waiting = Status::Waiting { rank: 1, ahead: 0 };
        first.status(waiting);
        assert_eq!(own.get().status, Some(waiting));
        second.take();
        let watching = own.watch();
        first.status(waiting);
        assert!(!watching.has_changed().unwrap(), "it was no change");
        assert_eq!(own.get().status, Some(Status::Joining));
    }

    #[test]
    fn handles_of_one_name_share_it_for_as_long_as_one_lives() {
        let owns = Owns::default();
        let own = owns.of("e");
        assert!(Arc::ptr_eq(&own, &owns.of("e")));
        Pen::new(Arc::clone(&own), 1).take();
        drop(own);
        assert_eq!(owns.of("e").get().status, None);
        for number in 0..1000 {
            owns.of(&number.to_string());
        }
        let kept = owns.0.lock().unwrap().len();
        assert!(kept < 100, "{kept} are kept though nobody has them");
    }
}
