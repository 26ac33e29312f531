//! Chooses between the two ways in which a candidate views the queue: the whole prefix, or its neighbours.

use std::sync::Arc;

use super::own::Own;
use super::place::{Place, excludes};
use super::predecessor_view::PredecessorView;
use super::prefix_view::PrefixView;
use super::watcher::{Watcher, Watching};
use crate::ids::{RequestId, WatchId};
use crate::kv::{Change, Entry};

/// A candidate's view of the queue.
#[derive(Debug, Clone)]
pub enum View {
    /// Shows all keys below the prefix.
    Prefix(PrefixView),
    /// Shows the candidate's own key and the two keys ahead of it.
    Predecessor(PredecessorView),
}

impl View {
    /// Returns the place of `own`. With a capacity, that many of the eldest are first; a view of the predecessor always
    /// has the capacity one.
    pub fn place(&self, own: &Own, capacity: usize) -> Place {
        match self {
            View::Prefix(view) => view.place(own, capacity),
            View::Predecessor(view) => view.place(),
        }
    }

    /// Returns `false` if the view shows that `own` is not among the eldest.
    pub(crate) fn may_be_first(&self, own: &Own, capacity: usize) -> bool {
        match self {
            View::Prefix(view) => view.may_be_first(own, capacity),
            View::Predecessor(view) => view.may_be_first(),
        }
    }

    /// Returns true if the watch has delivered everything up to now, unless the stream is behind.
    pub fn is_current(&self) -> bool {
        match self {
            View::Prefix(view) => view.is_synced(),
            View::Predecessor(view) => view.is_current(),
        }
    }

    /// Returns the keys of a lease that the view shows; a view of the predecessor shows those right ahead.
    pub(crate) fn of_lease(&self, lease: i64) -> Vec<&Entry> {
        let of_lease = |entry: &&Entry| entry.lease == lease;
        match self {
            View::Prefix(view) => view.roster().in_order().filter(of_lease).collect(),
            View::Predecessor(view) => view.ahead().filter(of_lease).collect(),
        }
    }

    /// Returns at most that many keys that are older than `own` and exclude it, eldest first; a view of the predecessor
    /// shows those right ahead.
    pub(crate) fn ahead(&self, own: &Own, most: usize) -> Vec<&Entry> {
        match self {
            View::Prefix(view) => {
                let older = view.roster().in_order();
                let older = older.take_while(|entry| entry.create_revision < own.create_revision);
                let older = older.filter(|entry| excludes(&entry.key, &own.key));
                older.take(most).collect()
            }
            View::Predecessor(view) => {
                let mut ahead: Vec<_> = view.ahead().collect();
                ahead.sort_by_key(|entry| entry.create_revision);
                ahead
            }
        }
    }

    /// Returns every watch of the view.
    pub fn watchers(&self) -> Vec<WatchId> {
        match self {
            View::Prefix(view) => view.watchers(),
            View::Predecessor(view) => view.watchers(),
        }
    }

    /// Returns the watches to open and to cancel. `own` is the candidate's own key.
    pub fn watching(&mut self, own: Option<Arc<[u8]>>) -> Watching {
        match self {
            View::Prefix(view) => Watching {
                discarded: Vec::new(),
                wanted: view
                    .unwatched_prefix()
                    .map(|key| (key, true))
                    .into_iter()
                    .collect(),
            },
            View::Predecessor(view) => {
                let keys = view.unwatched_keys(own).into_iter();
                Watching {
                    discarded: view.take_discarded(),
                    wanted: keys.map(|key| (key, false)).collect(),
                }
            }
        }
    }

    /// Records that a watch of the key was requested.
    pub fn watched(&mut self, key: &[u8], watcher: Watcher) {
        match self {
            View::Prefix(view) => view.watched(watcher),
            View::Predecessor(view) => view.watched(key, watcher),
        }
    }

    /// Records that all watches are gone, so the view may be outdated.
    pub fn unwatched(&mut self) {
        match self {
            View::Prefix(view) => view.unwatched(),
            View::Predecessor(view) => view.unwatched(),
        }
    }

    /// Records that a watch exists since `revision`.
    pub fn created(&mut self, watch: WatchId, revision: i64) {
        match self {
            View::Prefix(view) => view.created(revision),
            View::Predecessor(view) => view.created(watch, revision),
        }
    }

    /// Applies the events of a watch, in order.
    pub fn changes(&mut self, changes: impl IntoIterator<Item = Change>) {
        match self {
            View::Prefix(view) => view.changes(changes, |_| {}),
            View::Predecessor(view) => view.changes(changes),
        }
    }

    /// Returns the read in flight.
    pub fn read(&self) -> Option<RequestId> {
        match self {
            View::Prefix(view) => view.list(),
            View::Predecessor(view) => view.read(),
        }
    }

    /// Records that a read began, or that the one in flight is over.
    pub fn set_read(&mut self, read: Option<RequestId>) {
        match self {
            View::Prefix(view) => view.set_list(read),
            View::Predecessor(view) => view.set_read(read),
        }
    }

    /// Applies the answer to the read `request`: every key, or every key at least as old as `own`.
    pub fn snapshot(
        &mut self,
        request: RequestId,
        revision: i64,
        entries: Vec<Entry>,
        own: Option<&Own>,
    ) {
        match (self, own) {
            (View::Prefix(view), _) => view.snapshot(request, revision, entries),
            (View::Predecessor(view), Some(own)) => view.snapshot(revision, &entries, own),
            (View::Predecessor(_), None) => {}
        }
    }

    /// Records that a join began, which reads the prefix.
    pub fn join_begun(&mut self, request: RequestId) {
        if let View::Prefix(view) = self {
            view.join_begun(request);
        }
    }

    /// Records that a join was answered, with any result.
    pub fn join_over(&mut self, request: RequestId) {
        if let View::Prefix(view) = self {
            view.join_over(request);
        }
    }
}
