//! Says where a candidate stands and how a session is doing, in the types that users of the library read.

use std::fmt;

use crate::reason::{EndReason, LostReason};

/// Where a candidate stands.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(tag = "status", rename_all = "snake_case")
)]
pub enum Status {
    /// The session has not stood in this election.
    Idle,
    /// Its key is on its way into etcd, for the first time or after it was lost.
    Joining,
    /// Its key stands in the queue.
    #[non_exhaustive]
    Waiting {
        /// Its place; 1 is next to lead, or about to.
        rank: usize,
        /// How many older candidates there are. When only the predecessor is followed: how many there were at the
        /// last read.
        ahead: usize,
    },
    /// Its key stands in a group, of which nobody leads.
    Present,
    /// It leads.
    #[non_exhaustive]
    Leading {
        /// The term's fencing token.
        fencing_token: i64,
    },
    /// Its term is over, its work is not; it stands again once that has ended.
    #[non_exhaustive]
    Ending {
        /// Why the term ended.
        reason: LostReason,
    },
    /// It is a candidate no more.
    #[non_exhaustive]
    Ended {
        /// Why.
        reason: EndReason,
    },
}

impl Status {
    /// It waits behind so many others.
    #[doc(hidden)]
    pub const fn waiting(ahead: usize) -> Self {
        Status::Waiting {
            rank: ahead + 1,
            ahead,
        }
    }

    /// It leads with that token.
    #[doc(hidden)]
    pub const fn leading(fencing_token: i64) -> Self {
        Status::Leading { fencing_token }
    }

    /// Its term ended for that reason.
    #[doc(hidden)]
    pub const fn ending(reason: LostReason) -> Self {
        Status::Ending { reason }
    }

    /// It is a candidate no more.
    #[doc(hidden)]
    pub const fn ended(reason: EndReason) -> Self {
        Status::Ended { reason }
    }

    /// The variant's name in lower case, as HTTP and the log say it: `idle`, `joining`, `waiting`, `present`,
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
    /// In a few words: `waiting, rank 2`, `leading, token 4711`, `ended: resigned`.
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

/// How a session is doing. The core, which reads no clock, knows a lease by its id; the library shows its users a view of
/// it that tells the time left.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState<L = i64> {
    /// etcd has not answered yet.
    Connecting,
    /// Connected; there is no lease, for nobody campaigned yet.
    Ready,
    /// The lease is believed in.
    Live(L),
    /// The lease is lost, or no renewal could be verified in time; a new one is on its way.
    #[non_exhaustive]
    Lost {
        /// Why.
        reason: LostReason,
    },
    /// The session was closed, or its runtime is gone.
    Closed,
}

/// What [`SessionState::as_str`] asks of a lease.
#[doc(hidden)]
pub trait Believed {
    /// Whether it is believed in at this moment.
    fn is_believed(&self) -> bool;
}

impl<L: Believed> SessionState<L> {
    /// The state at this moment in one word, as HTTP says it: `connecting`, `ready`, `live`, `lost`, `closed`. A lease whose
    /// deadline has passed is `lost`.
    pub fn as_str(&self) -> &'static str {
        match self {
            SessionState::Connecting => "connecting",
            SessionState::Ready => "ready",
            SessionState::Live(lease) if lease.is_believed() => "live",
            SessionState::Live(_) | SessionState::Lost { .. } => "lost",
            SessionState::Closed => "closed",
        }
    }
}

impl<L: Believed> fmt::Display for SessionState<L> {
    /// As [`as_str`](SessionState::as_str), with the reason of a loss: `lost: lease_expiring`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())?;
        match self {
            SessionState::Lost { reason } => write!(f, ": {reason}"),
            _ => Ok(()),
        }
    }
}

/// An object: `state` as [`as_str`](SessionState::as_str) says it, with the `lease` of a session that has one, or the
/// `reason` of its loss.
#[cfg(feature = "serde")]
impl<L: Believed + serde::Serialize> serde::Serialize for SessionState<L> {
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
    /// The session lost its lease for that reason.
    #[doc(hidden)]
    pub const fn lost(reason: LostReason) -> Self {
        SessionState::Lost { reason }
    }

    /// The same with something else in the place of the lease's id; `None` if there is no such thing.
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
    fn a_status_is_told_in_a_few_words() {
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
