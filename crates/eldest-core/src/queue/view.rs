//! Chooses between the two ways in which a candidate looks at the queue: the whole prefix, or its neighbours.

use super::own::Own;
use super::place::Place;
use super::predecessor_view::PredecessorView;
use super::prefix_view::PrefixView;
use crate::ids::WatchId;

/// How a candidate looks at the queue.
#[derive(Debug, Clone)]
pub enum View {
    Prefix(PrefixView),
    Predecessor(PredecessorView),
}

impl View {
    /// `seats` of the eldest are first; who follows the predecessor alone knows of one.
    pub fn place(&self, own: &Own, seats: usize) -> Place {
        match self {
            View::Prefix(view) => view.place(own, seats),
            View::Predecessor(view) => view.place(),
        }
    }

    /// Whether the watch has told everything up to now, as far as the stream is not behind.
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
}
