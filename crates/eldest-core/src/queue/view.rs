//! Chooses between the two ways in which a candidate looks at the queue: the whole prefix, or its neighbours.

use std::sync::Arc;

use super::own::Own;
use super::place::Place;
use super::predecessor_view::PredecessorView;
use super::prefix_view::PrefixView;
use super::watcher::{Watcher, Watching};
use crate::ids::{RequestId, WatchId};
use crate::kv::{Change, Entry};

/// How a candidate looks at the queue.
#[derive(Debug, Clone)]
pub enum View {
    /// Shows all keys below the prefix.
    Prefix(PrefixView),
    /// Shows the own key and those of the two before it.
    Predecessor(PredecessorView),
}

impl View {
    /// The eldest are first, as many as `capacity`; who follows the predecessor alone knows of one.
    pub fn place(&self, own: &Own, capacity: usize) -> Place {
        match self {
            View::Prefix(view) => view.place(own, capacity),
            View::Predecessor(view) => view.place(),
        }
    }

    /// Returns `false` if what it has seen shows that `own` is not among the eldest.
    pub(crate) fn may_be_first(&self, own: &Own, capacity: usize) -> bool {
        match self {
            View::Prefix(view) => view.may_be_first(own, capacity),
            View::Predecessor(view) => view.may_be_first(),
        }
    }

    /// Returns true if the watch has shown everything up to now, as far as the stream is not behind.
    pub fn is_current(&self) -> bool {
        match self {
            View::Prefix(view) => view.is_synced(),
            View::Predecessor(view) => view.is_current(),
        }
    }

    /// Every watcher that stands for it.
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

    /// A watch of that key was asked for.
    pub fn watched(&mut self, key: &[u8], watcher: Watcher) {
        match self {
            View::Prefix(view) => view.watched(watcher),
            View::Predecessor(view) => view.watched(key, watcher),
        }
    }

    /// All watches are gone; what we knew may be old.
    pub fn unwatched(&mut self) {
        match self {
            View::Prefix(view) => view.unwatched(),
            View::Predecessor(view) => view.unwatched(),
        }
    }

    /// A watch stands since `revision`.
    pub fn created(&mut self, watch: WatchId, revision: i64) {
        match self {
            View::Prefix(view) => view.created(revision),
            View::Predecessor(view) => view.created(watch, revision),
        }
    }

    /// Events of a watch, in order.
    pub fn changes(&mut self, changes: Vec<Change>) {
        match self {
            View::Prefix(view) => view.changes(changes, |_| {}),
            View::Predecessor(view) => view.changes(&changes),
        }
    }

    /// The read under way.
    pub fn read(&self) -> Option<RequestId> {
        match self {
            View::Prefix(view) => view.list(),
            View::Predecessor(view) => view.read(),
        }
    }

    /// A read was begun, or the one under way is over.
    pub fn set_read(&mut self, read: Option<RequestId>) {
        match self {
            View::Prefix(view) => view.set_list(read),
            View::Predecessor(view) => view.set_read(read),
        }
    }

    /// The answer to the read `request`: every key, or every key at least as old as `own`.
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

    /// A join was begun, which reads the prefix.
    pub fn join_begun(&mut self, request: RequestId) {
        if let View::Prefix(view) = self {
            view.join_begun(request);
        }
    }

    /// A join was answered, whatever became of it.
    pub fn join_over(&mut self, request: RequestId) {
        if let View::Prefix(view) = self {
            view.join_over(request);
        }
    }
}
