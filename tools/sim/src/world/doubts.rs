//! Holds which sessions a node suspects or asks for signs of life, and which anchors other clients deleted.

use std::collections::{BTreeMap, BTreeSet};

use super::store::Key;
use eldest_core::time::Time;

/// The sessions that a node suspects, or asks for signs of life, by their leases.
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    pub(super) suspected: BTreeSet<i64>,
    /// Sessions that are suspected until then, whether they are silent or not.
    pub(super) falsely: BTreeMap<i64, Time>,
    /// The time since which the session has been the first in a queue without leading there.
    pub(super) idle_since: Option<Time>,
    /// The sessions that the node asks for signs of life, by their leases.
    pub(super) asks: Vec<i64>,
    /// True if the session no longer allows challenges.
    pub(crate) withdrawn: bool,
}

/// The anchors of all sessions.
#[derive(Debug, Default)]
pub(crate) struct Anchors {
    /// The create revision of each anchor. A key that is put again in its place is another anchor.
    pub(super) put: BTreeMap<Key, i64>,
    /// The leases whose anchor another client deleted, and the time until which the last clean read before that lets
    /// their session lead.
    pub(super) deleted: BTreeMap<i64, Time>,
}
