//! Tells from which revision on a watch of the session's stream misses nothing, and what is to be watched.

use std::sync::Arc;

use crate::ids::WatchId;

/// A watcher on the session's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watcher {
    /// The number of the watch.
    pub id: WatchId,
    /// The revision it was created at, once etcd said so.
    pub created: Option<i64>,
}

impl Watcher {
    /// A watch that was asked for.
    pub fn new(id: WatchId) -> Self {
        Self { id, created: None }
    }

    /// Nothing after `revision` can be missed.
    pub(super) fn covers(&self, revision: i64) -> bool {
        self.created.is_some_and(|created| created <= revision)
    }
}

/// The changes to the watches of one view.
#[derive(Debug, Default)]
pub struct Watching {
    /// The watchers that are not needed any more.
    pub discarded: Vec<WatchId>,
    /// The keys without a watch that need one; true: everything under the key is watched.
    pub wanted: Vec<(Arc<[u8]>, bool)>,
}
