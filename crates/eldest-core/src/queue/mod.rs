//! Keeps the queue of an election, and determines a candidate's place in it.

mod entries;
mod own;
mod place;
mod predecessor_view;
mod prefix_view;
mod roster;
#[cfg(test)]
mod samples;
mod view;
mod watcher;

pub use entries::Queue;
pub use own::{Fate, Own};
pub(crate) use place::SHARED;
pub use place::{Place, ahead, excludes, is_shared, place_behind, place_in};
pub use predecessor_view::PredecessorView;
pub use prefix_view::PrefixView;
pub use roster::Roster;
pub use view::View;
pub use watcher::{Watcher, Watching};
