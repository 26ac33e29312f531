//! Stores a candidate's claim to lead with its version: whether its transaction is in flight, waits, or has held.

use crate::evacuation::Mark;
use crate::ids::RequestId;
use crate::queue::Own;
use crate::time::Time;
use crate::version::Version;

/// A candidate's claim to lead with its version.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Claim {
    pub(super) state: State,
    /// The mark that the last failed transaction found; the default if there was none.
    pub(super) found: Mark,
    /// How many transactions in a row have failed, or have found a newer version.
    pub(super) failures: u32,
    /// The version for which the candidate was last reported to hold back.
    pub(super) reported: Option<Version>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Unmade,
    /// The transaction is in flight. It compares the mark's last write, and the create revision of the candidate's key.
    Sent {
        request: RequestId,
        written: i64,
        created: i64,
    },
    /// No transaction is sent before that time.
    Paused(Time),
    /// The transaction has held while the key with that create revision existed, and left that mark. Or the candidate leads by
    /// that key without a version, and has read that mark.
    Won { created: i64, mark: Mark },
}

impl Claim {
    /// Returns true if etcd has confirmed that the candidate may lead by that key.
    pub(super) fn is_won_by(&self, own: &Own) -> bool {
        matches!(self.state, State::Won { created, .. } if created == own.create_revision)
    }

    /// Returns true if the candidate waits for an answer, or for a pause to end.
    pub(super) fn waits(&self, now: Time) -> bool {
        match self.state {
            State::Sent { .. } => true,
            State::Paused(until) => now < until,
            State::Unmade | State::Won { .. } => false,
        }
    }

    /// Returns the mark that the last transaction found or left; the default if there was none. A mark that a former key's
    /// transaction left does not count, because the mark may be another one by now.
    pub(super) fn mark(&self, own: Option<&Own>) -> Mark {
        match self.state {
            State::Won { mark, .. } if own.is_some_and(|own| self.is_won_by(own)) => mark,
            _ => self.found,
        }
    }

    /// Ends a pause, because the mark may have changed.
    pub(super) fn resume(&mut self) {
        if matches!(self.state, State::Paused(_)) {
            self.state = State::Unmade;
        }
    }
}
