//! Holds the rule that the eldest lead: a candidate's place follows from how many older keys are alive.

use super::own::{Fate, Own};
use crate::kv::Entry;

/// A candidate's place, as far as its view can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Not to be told now.
    Unknown,
    /// Nothing older is alive, or fewer than the capacity.
    First,
    /// So many older keys, at most.
    Behind(usize),
    /// Our key is not there.
    Lost(Fate),
}

/// The rule of every election: the eldest lead, as many of them as the capacity. `ahead` older keys are alive.
pub fn place_behind(ahead: usize, capacity: usize) -> Place {
    if ahead < capacity {
        Place::First
    } else {
        Place::Behind(ahead)
    }
}

/// The place of `own` in a read that shows every key as old as it is.
pub fn place_in(entries: &[Entry], own: &Own, capacity: usize) -> Place {
    match own.read(entries.iter().find(|e| e.key == own.key)) {
        Fate::Ours => place_behind(ahead(entries, own), capacity),
        lost => Place::Lost(lost),
    }
}

/// How many keys of a read are older than `own`.
pub fn ahead(entries: &[Entry], own: &Own) -> usize {
    entries
        .iter()
        .filter(|e| e.create_revision < own.create_revision)
        .count()
}
