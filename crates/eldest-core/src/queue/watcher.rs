//! Records the revision from which a watch of the session's stream misses no change, and which watches a view needs.

use std::sync::Arc;

use crate::ids::WatchId;

/// A watch on the session's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watcher {
    /// The number of the watch.
    pub id: WatchId,
    /// The revision at which the watch was created, once etcd reported it.
    pub created: Option<i64>,
}

impl Watcher {
    /// Makes a watch that was requested.
    pub fn new(id: WatchId) -> Self {
        Self { id, created: None }
    }

    /// Returns true if the watch delivers every change after `revision`.
    pub(super) fn covers(&self, revision: i64) -> bool {
        self.created.is_some_and(|created| created <= revision)
    }
}

/// The changes to the watches of one view.
#[derive(Debug, Default)]
pub struct Watching {
    /// The watches that are no longer needed.
    pub discarded: Vec<WatchId>,
    /// The keys that need a watch and have none; true: the key is a prefix.
    pub wanted: Vec<(Arc<[u8]>, bool)>,
}
