//! Names the purpose of each request.

use std::sync::Arc;

use crate::ids::SlotId;
use crate::time::Time;

/// The purpose of a request. A late answer whose request no slot awaits is dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Purpose {
    Grant {
        sent: Time,
    },
    Open,
    Renew,
    Verify {
        subject: Option<(SlotId, i64)>,
    },
    Probe {
        sent: Time,
    },
    /// Reads leaders' keys, by their create revision.
    Check {
        subjects: Vec<(SlotId, i64)>,
    },
    /// Checks whether a slot whose watch was refused may read.
    Permission {
        slot: SlotId,
    },
    Join {
        slot: SlotId,
    },
    List {
        slot: SlotId,
        sent: Time,
    },
    Remove {
        key: Arc<[u8]>,
    },
    /// Confirms that no newer version than the candidate's led its election.
    Claim {
        slot: SlotId,
    },
    Proclaim {
        slot: SlotId,
        key: Arc<[u8]>,
        /// The calls that the write answers.
        tickets: Vec<u64>,
    },
    Revoke {
        lease: i64,
    },
    Sweep {
        lease: i64,
    },
    Take {
        slot: SlotId,
    },
    /// Deletes several keys at once.
    Release {
        keys: Vec<Arc<[u8]>>,
    },
    /// Concerns the session's challenges, or those of others.
    Challenges(Concern),
}

/// The purpose of a request about challenges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Concern {
    /// Puts the session's anchor.
    Anchor {
        anchor: Arc<[u8]>,
    },
    CleanRead,
    /// Deletes all challenges of the session.
    Answer,
    /// Challenges or condemns a suspect.
    Suspect {
        suspect: i64,
    },
    /// Deletes a key of a session whose anchor is gone.
    Absence {
        suspect: i64,
        key: Arc<[u8]>,
    },
    /// Reads the anchor of a session ahead, or how much of its lease is left.
    Elder {
        lease: i64,
    },
    /// Revokes the lease of a session that was condemned, as a courtesy.
    Revoke,
}
