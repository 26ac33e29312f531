//! Saves the state that a term leaves, in the transaction that deletes the term's key.

use crate::action::{Action, Class, FinalState, Left, RequestError};
use crate::ids::TermId;
use crate::time::Time;
use crate::txn::Transacted;

/// A state that waits to be saved. Each attempt to delete the term's key carries it, until etcd confirms or refuses it,
/// or an attempt fails after the cutoff.
#[derive(Debug, Clone)]
pub(crate) struct Parting {
    term: TermId,
    state: FinalState,
    /// The end of the term's work at the latest. Nobody awaits the state any longer.
    cutoff: Time,
    /// True if an attempt had no answer.
    is_open: bool,
}

impl Parting {
    pub(crate) fn new(term: TermId, state: FinalState, cutoff: Time) -> Self {
        Self {
            term,
            state,
            cutoff,
            is_open: false,
        }
    }

    pub(super) fn state(&self) -> FinalState {
        self.state.clone()
    }

    /// Records that the result of an attempt is unknown.
    pub(super) fn leave_open(&mut self) {
        self.is_open = true;
    }

    /// Handles a failed attempt. Takes a state that etcd refuses, or that is not saved by the cutoff, out of the
    /// removal, and returns the report.
    pub(super) fn failed(
        parting: &mut Option<Box<Self>>,
        error: &RequestError,
        now: Time,
    ) -> Option<Action> {
        let is_refused = matches!(error.class, Class::Denied | Class::Invalid | Class::Full);
        let is_refused = is_refused && !error.ambiguous;
        let refused = parting.take_if(|parting| {
            parting.is_open |= error.ambiguous;
            // The state may be the cause of the failure, and while the key stands, nobody else leads.
            is_refused || now >= parting.cutoff
        })?;
        let (error, is_open) = (error.clone(), refused.is_open);
        Some(refused.report(Left::Refused { error, is_open }))
    }

    /// Returns the report about a transaction that etcd answered.
    pub(super) fn answered(self, done: &Transacted) -> Action {
        let (found, is_open) = (done.entry(0).cloned(), self.is_open);
        self.report(if done.held {
            Left::Saved
        } else {
            Left::KeyGone { found, is_open }
        })
    }

    /// Returns the report about a state whose term had no key left.
    pub(crate) fn came_late(term: TermId) -> Action {
        let (found, is_open) = (None, false);
        let left = Left::KeyGone { found, is_open };
        Action::Left { term, left }
    }

    fn report(self, left: Left) -> Action {
        let term = self.term;
        Action::Left { term, left }
    }
}
