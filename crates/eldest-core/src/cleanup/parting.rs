//! Saves the state that a term leaves, in the transaction that deletes the term's key.

use crate::action::{Action, Class, FinalState, Left, RequestError};
use crate::ids::TermId;
use crate::txn::Transacted;

/// A state that waits to be saved. Each attempt to delete the term's key carries it, until etcd confirms or refuses it.
#[derive(Debug, Clone)]
pub(crate) struct Parting {
    term: TermId,
    state: FinalState,
    /// True if an attempt had no answer.
    is_open: bool,
}

impl Parting {
    pub(crate) fn new(term: TermId, state: FinalState) -> Self {
        Self {
            term,
            state,
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

    /// Handles a failed attempt. Takes a state that etcd refuses out of the removal, and returns the report.
    pub(super) fn failed(parting: &mut Option<Box<Self>>, error: &RequestError) -> Option<Action> {
        if let Some(parting) = parting {
            parting.is_open |= error.ambiguous;
        }
        let is_refused = matches!(error.class, Class::Denied | Class::Invalid | Class::Full);
        let refused = parting.take_if(|_| is_refused && !error.ambiguous)?;
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
    pub(crate) fn came_late(self) -> Action {
        self.report(Left::KeyGone {
            found: None,
            is_open: false,
        })
    }

    fn report(self, left: Left) -> Action {
        let term = self.term;
        Action::Left { term, left }
    }
}
