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
    /// Puts the session's anchor.
    Anchor {
        anchor: Arc<[u8]>,
    },
    CleanRead,
}
