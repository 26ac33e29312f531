//! Says where a candidate stands.

use eldest_core::reason::{EndReason, LostReason};

/// Where a candidate stands.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Its key is on its way into etcd, for the first time or after it was lost.
    Joining,
    /// Its key stands in the queue.
    Waiting {
        /// Its place; 1 is next to lead, or about to.
        rank: usize,
        /// How many older candidates there are. When only the predecessor is followed: how many there were at the
        /// last read.
        ahead: usize,
    },
    /// It leads.
    Leading {
        /// The term's fencing token.
        fencing_token: i64,
    },
    /// Its term is over, its work is not; it stands again once that has ended.
    Ending {
        /// Why the term ended.
        reason: LostReason,
    },
    /// It is a candidate no more.
    Ended {
        /// Why.
        reason: EndReason,
    },
}

impl Status {
    /// The variant's name in lower case, as HTTP and the log say it: `joining`, `waiting`, `leading`, `ending`, `ended`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Joining => "joining",
            Status::Waiting { .. } => "waiting",
            Status::Leading { .. } => "leading",
            Status::Ending { .. } => "ending",
            Status::Ended { .. } => "ended",
        }
    }
}
