//! Shares the status of the session's own candidate with every handle of the same election.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::term::Term;
use crate::util::LazyWatch;
use eldest_core::action::{SlotId, TermId};
use eldest_core::status::Status;
use tokio::sync::watch;

/// The state of the session's own candidate in one election. A later candidate replaces an earlier one.
#[derive(Debug)]
pub(crate) struct LocalStatus {
    state: LazyWatch<LocalState>,
    /// The status alone, for users to watch.
    status: LazyWatch<Status>,
}

impl LocalStatus {
    fn new() -> Self {
        Self {
            state: LazyWatch::new(LocalState::default()),
            status: LazyWatch::new(Status::Idle),
        }
    }

    pub(crate) fn get(&self) -> LocalState {
        self.state.get()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<LocalState> {
        self.state.watch()
    }

    pub(crate) fn watch_status(&self) -> watch::Receiver<Status> {
        self.status.watch()
    }

    fn change(&self, change: impl FnOnce(&mut LocalState) -> bool) {
        let mut status = None;
        self.state.change(|state| {
            let changed = change(state);
            status = state.status.filter(|_| changed);
            changed
        });
        if let Some(status) = status {
            self.status
                .change(|shown| std::mem::replace(shown, status) != status);
        }
    }
}

/// The state that every handle of an election shares about the session's own candidate.
#[derive(Debug, Clone, Default)]
pub struct LocalState {
    pub(crate) slot: Option<SlotId>,
    /// The candidate's status; `None`: the session has not been a candidate in this election.
    pub status: Option<Status>,
    /// The last term that began, which may be over.
    pub held: Option<Held>,
}

/// A term, with the core's ids for it.
#[derive(Debug, Clone)]
pub struct Held {
    /// The term.
    pub term: Term,
    pub(crate) id: (SlotId, TermId),
}

/// One candidate's right to write the shared state.
pub(crate) struct LocalStatusWriter {
    local: Arc<LocalStatus>,
    slot: SlotId,
}

impl LocalStatusWriter {
    pub(crate) fn new(local: Arc<LocalStatus>, slot: SlotId) -> Self {
        Self { local, slot }
    }

    /// Makes this candidate the one whose status is reported from now on.
    pub(crate) fn take(&self) {
        self.local.change(|state| {
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

    /// Applies the change, unless a later candidate has replaced this one.
    fn write(&self, change: impl FnOnce(&mut LocalState)) {
        self.local.change(|state| {
            let ours = state.slot == Some(self.slot);
            if ours {
                change(state);
            }
            ours
        });
    }
}

/// The shared state of all elections of which the session has handles, by their prefixes.
#[derive(Debug, Default)]
pub(crate) struct LocalStatuses(Mutex<HashMap<Box<str>, Weak<LocalStatus>>>);

impl LocalStatuses {
    /// Returns the state that all handles of the election share.
    pub(crate) fn of(&self, prefix: &str) -> Arc<LocalStatus> {
        let mut local_statuses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(local) = local_statuses.get(prefix).and_then(Weak::upgrade) {
            return local;
        }
        // Rarely, because ten thousand elections must not cost ten thousand times ten thousand steps.
        if local_statuses.len() == local_statuses.capacity() {
            local_statuses.retain(|_, local| local.strong_count() > 0);
        }
        let local = Arc::new(LocalStatus::new());
        local_statuses.insert(prefix.into(), Arc::downgrade(&local));
        local
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaving_candidate_does_not_change_the_status_of_the_next_one() {
        let local = Arc::new(LocalStatus::new());
        let [first, second] = [1, 2].map(|slot| LocalStatusWriter::new(Arc::clone(&local), slot));
        first.status(Status::Joining);
        assert_eq!(local.get().status, None, "it has not been accepted");
        first.take();
        let waiting = Status::waiting(0);
        first.status(waiting);
        assert_eq!(local.get().status, Some(waiting));
        second.take();
        let watching = local.watch();
        first.status(waiting);
        assert!(!watching.has_changed().unwrap(), "it was no change");
        assert_eq!(local.get().status, Some(Status::Joining));
    }

    #[test]
    fn handles_of_one_election_share_its_status_while_one_lives() {
        let local_statuses = LocalStatuses::default();
        let local = local_statuses.of("e");
        assert!(Arc::ptr_eq(&local, &local_statuses.of("e")));
        LocalStatusWriter::new(Arc::clone(&local), 1).take();
        drop(local);
        assert_eq!(local_statuses.of("e").get().status, None);
        for number in 0..1000 {
            local_statuses.of(&number.to_string());
        }
        let kept = local_statuses.0.lock().unwrap().len();
        assert!(kept < 100, "{kept} are kept though nobody has them");
    }
}
