//! Defines the status of a candidate and the state of a session, in the types that users of the library read.

use std::fmt;

use crate::reason::{EndReason, LostReason};

/// The status of a candidate.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(tag = "status", rename_all = "snake_case")
)]
pub enum Status {
    /// The session has not been a candidate in this election.
    Idle,
    /// The candidate's key is being written to etcd, for the first time or after it was lost.
    Joining,
    /// The candidate's key is in the queue.
    #[non_exhaustive]
    Waiting {
        /// The place in the queue, counted from 1. The candidate in place 1 is the next to lead, or is about to lead.
        rank: usize,
        /// The number of older candidates. If the candidate only follows its predecessor, this is the number at the
        /// last read.
        ahead: usize,
    },
    /// The member's key is in a group, which has no leader.
    Present,
    /// The candidate leads.
    #[non_exhaustive]
    Leading {
        /// The term's fencing token.
        fencing_token: i64,
    },
    /// The candidate's term is over, but its work is not. The candidate joins again once the work has ended.
    #[non_exhaustive]
    Ending {
        /// Why the term ended.
        reason: LostReason,
    },
    /// The candidacy has ended.
    #[non_exhaustive]
    Ended {
        /// Why the candidacy ended.
        reason: EndReason,
    },
}

impl Status {
    /// Makes the status of a candidate behind that many others.
    #[doc(hidden)]
    pub const fn waiting(ahead: usize) -> Self {
        Status::Waiting {
            rank: ahead + 1,
            ahead,
        }
    }

    /// Makes the status of a leader with that token.
    #[doc(hidden)]
    pub const fn leading(fencing_token: i64) -> Self {
        Status::Leading { fencing_token }
    }

    /// Makes the status of a term that ended for that reason.
    #[doc(hidden)]
    pub const fn ending(reason: LostReason) -> Self {
        Status::Ending { reason }
    }

    /// Makes the status of a candidacy that ended for that reason.
    #[doc(hidden)]
    pub const fn ended(reason: EndReason) -> Self {
        Status::Ended { reason }
    }

    /// Returns the variant's name in lower case, as HTTP and the log show it: `idle`, `joining`, `waiting`, `present`,
    /// `leading`, `ending`, `ended`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Idle => "idle",
            Status::Joining => "joining",
            Status::Waiting { .. } => "waiting",
            Status::Present => "present",
            Status::Leading { .. } => "leading",
            Status::Ending { .. } => "ending",
            Status::Ended { .. } => "ended",
        }
    }
}

impl fmt::Display for Status {
    /// Writes a summary: `waiting, rank 2`, `leading, token 4711`, `ended: resigned`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())?;
        match self {
            Status::Waiting { rank, .. } => write!(f, ", rank {rank}"),
            Status::Leading { fencing_token } => write!(f, ", token {fencing_token}"),
            Status::Ending { reason } => write!(f, ": {reason}"),
            Status::Ended { reason } => write!(f, ": {reason}"),
            Status::Idle | Status::Joining | Status::Present => Ok(()),
        }
    }
}

/// The state of a session. The core, which reads no clock, knows a lease by its id; the library shows its users a view
/// of it with the time left.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState<L = i64> {
    /// etcd has not answered yet.
    Connecting,
    /// The session is connected, and has no lease because nothing campaigned yet.
    Ready,
    /// The session trusts its lease.
    Live(L),
    /// The lease is lost, or no renewal could be verified in time. The session requests a new one.
    #[non_exhaustive]
    Lost {
        /// Why the lease was lost.
        reason: LostReason,
    },
    /// The session was closed, or its runtime is gone.
    Closed,
}

/// The part of a lease that [`SessionState::as_str`] needs.
#[doc(hidden)]
pub trait Trusted {
    /// Returns `true` if the session trusts the lease at this moment.
    fn is_trusted(&self) -> bool;
}

impl<L: Trusted> SessionState<L> {
    /// Returns the state at this moment in one word, as HTTP shows it: `connecting`, `ready`, `live`, `lost`, `closed`.
    /// A lease whose deadline has passed is `lost`.
    pub fn as_str(&self) -> &'static str {
        match self {
            SessionState::Connecting => "connecting",
            SessionState::Ready => "ready",
            SessionState::Live(lease) if lease.is_trusted() => "live",
            SessionState::Live(_) | SessionState::Lost { .. } => "lost",
            SessionState::Closed => "closed",
        }
    }
}

impl<L: Trusted> fmt::Display for SessionState<L> {
    /// Writes the word of [`as_str`](SessionState::as_str), with the reason of a loss: `lost: lease_expiring`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())?;
        match self {
            SessionState::Lost { reason } => write!(f, ": {reason}"),
            _ => Ok(()),
        }
    }
}

/// Writes an object: `state` as in [`as_str`](SessionState::as_str), with the `lease` of a session that has one, or the
/// `reason` of its loss.
#[cfg(feature = "serde")]
impl<L: Trusted + serde::Serialize> serde::Serialize for SessionState<L> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;

        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("state", self.as_str())?;
        match self {
            SessionState::Live(lease) => map.serialize_entry("lease", lease)?,
            SessionState::Lost { reason } => map.serialize_entry("reason", reason)?,
            SessionState::Connecting | SessionState::Ready | SessionState::Closed => {}
        }
        map.end()
    }
}

impl SessionState {
    /// Makes the state of a session that lost its lease for that reason.
    #[doc(hidden)]
    pub const fn lost(reason: LostReason) -> Self {
        SessionState::Lost { reason }
    }

    /// Returns the same state with the value of `lease` in place of the lease's id, or `None` if `lease` returns
    /// `None`.
    pub fn try_map<L>(self, lease: impl FnOnce(i64) -> Option<L>) -> Option<SessionState<L>> {
        Some(match self {
            SessionState::Connecting => SessionState::Connecting,
            SessionState::Ready => SessionState::Ready,
            SessionState::Live(id) => SessionState::Live(lease(id)?),
            SessionState::Lost { reason } => SessionState::Lost { reason },
            SessionState::Closed => SessionState::Closed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_shown_in_a_few_words() {
        for (status, words) in [
            (Status::Joining, "joining"),
            (Status::waiting(1), "waiting, rank 2"),
            (Status::leading(4711), "leading, token 4711"),
            (Status::ending(LostReason::Stalled), "ending: stalled"),
            (Status::ended(EndReason::Left), "ended: left"),
        ] {
            assert_eq!(status.to_string(), words);
            assert!(words.starts_with(status.as_str()));
        }
    }
}
