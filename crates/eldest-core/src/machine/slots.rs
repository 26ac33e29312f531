//! Finds what stands in a slot.

use super::{Machine, Slot};
use crate::action::{SlotId, WatchId};
use crate::candidate::Candidacy;

impl Slot {
    /// Every watcher that stands for it.
    pub(super) fn watchers(&self) -> Vec<WatchId> {
        match self {
            Slot::Candidate(candidate) => candidate.view.watchers(),
            Slot::Onlooker(onlooker) => onlooker.view.watchers(),
        }
    }
}

impl Machine {
    pub(super) fn candidate(&mut self, slot: SlotId) -> Option<&mut Candidacy> {
        match self.slots.get_mut(&slot) {
            Some(Slot::Candidate(candidate)) => Some(candidate),
            _ => None,
        }
    }
}
