//! Defines the phases of a candidate, their order, and the ways in which a term ends.

use crate::ids::{RequestId, TermId};
use crate::queue::Own;
use crate::reason::{EndReason, LostReason};
use crate::time::Time;

/// The phases of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// We have no key, as far as we know. Left when a join is answered, or by leaving.
    Joining {
        /// The join in flight and the lease it uses.
        request: Option<(RequestId, i64)>,
        /// The earliest time of the next attempt.
        not_before: Time,
    },
    /// The key exists. Left when no older candidate is alive, when the key or lease is lost, or by leaving.
    Waiting {
        /// The key.
        own: Own,
    },
    /// We lead. Left when the term ends for any reason.
    Leading {
        /// The key.
        own: Own,
        /// The number of the term.
        term: TermId,
    },
    /// The term is over. Left when its work has ended; the key is released then, or at `cutoff` if that comes first.
    Ending {
        /// The key, unless it was lost.
        own: Option<Own>,
        /// The number of the term.
        term: TermId,
        /// Why it ended.
        reason: LostReason,
        /// The time at which work is dropped.
        cutoff: Time,
        /// The next step.
        next: Afterwards,
    },
    /// No longer a candidate; waits until the key is certainly gone.
    Leaving {
        /// Why the candidacy ends.
        reason: EndReason,
    },
}

impl Phase {
    /// Returns our key, while we hold one and may still act on it.
    pub(super) fn own(&self) -> Option<&Own> {
        match self {
            Self::Waiting { own } | Self::Leading { own, .. } => Some(own),
            Self::Ending { own, .. } => own.as_ref(),
            Self::Joining { .. } | Self::Leaving { .. } => None,
        }
    }

    /// Returns true if a candidate in this phase may enter `next`. A term ends before another one begins, and its key
    /// is released or lost before another join; a candidate that leaves does not rejoin.
    pub(super) fn may_become(&self, next: &Self) -> bool {
        match (self, next) {
            (Self::Leaving { .. }, _)
            | (Self::Joining { .. }, Self::Ending { .. })
            | (Self::Waiting { .. }, Self::Waiting { .. } | Self::Ending { .. })
            | (Self::Leading { .. }, Self::Joining { .. } | Self::Waiting { .. })
            | (Self::Leading { .. }, Self::Leading { .. } | Self::Leaving { .. })
            | (Self::Ending { .. }, Self::Waiting { .. } | Self::Leading { .. }) => false,
            (Self::Waiting { own: before }, Self::Leading { own, .. }) => own == before,
            (
                Self::Leading { term, .. } | Self::Ending { term, .. },
                Self::Ending { own, term: of, .. },
            ) => of == term && (own.is_none() || own.as_ref() == self.own()),
            _ => true,
        }
    }
}

/// The next step after the end of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Afterwards {
    /// A new key, at the end of the queue.
    Rejoin,
    /// The candidacy ends.
    Leave(EndReason),
}

/// How a term ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The key exists and may be trusted until the frozen deadline.
    Fading,
    /// The key exists, and no clean read lets the session lead beyond the deadline of the last one.
    Lapsed,
    /// The key exists and may be trusted for the grace period, which ends before the frozen deadline.
    Brief,
    /// The key is no longer ours, or the leader reports that its work is done.
    Void,
}
