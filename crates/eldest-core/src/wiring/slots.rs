//! Gives candidates and onlookers one face: what stands in a slot watches and reads.

use std::sync::Arc;

use super::Core;
use crate::action::Ask;
use crate::candidate::Candidacy;
use crate::ids::{RequestId, SlotId, WatchId};
use crate::queue::{Watcher, Watching};
use crate::time::Time;
use crate::watch::Onlooker;

/// The content of a slot of the session.
#[derive(Debug, Clone)]
pub(super) enum Slot {
    Candidate(Box<Candidacy>),
    Onlooker(Box<Onlooker>),
}

impl Slot {
    pub(super) fn candidate(&self) -> Option<&Candidacy> {
        match self {
            Slot::Candidate(candidate) => Some(candidate),
            Slot::Onlooker(_) => None,
        }
    }

    /// Returns its prefix.
    pub(super) fn prefix(&self) -> &Arc<[u8]> {
        match self {
            Slot::Candidate(candidate) => candidate.prefix(),
            Slot::Onlooker(onlooker) => onlooker.prefix(),
        }
    }

    /// Every watcher that stands for it.
    pub(super) fn watchers(&self) -> Vec<WatchId> {
        match self {
            Slot::Candidate(candidate) => candidate.watchers(),
            Slot::Onlooker(onlooker) => onlooker.watchers(),
        }
    }

    /// Returns the watches to open and to cancel for it.
    pub(super) fn watching(&mut self) -> Watching {
        match self {
            Slot::Candidate(candidate) => candidate.watching(),
            Slot::Onlooker(onlooker) => {
                let key = onlooker.unwatched_prefix();
                let wanted = key.map(|key| (key, true)).into_iter().collect();
                Watching {
                    discarded: Vec::new(),
                    wanted,
                }
            }
        }
    }

    /// A watch of that key was asked for.
    pub(super) fn watched(&mut self, key: &[u8], watcher: Watcher) {
        match self {
            Slot::Candidate(candidate) => candidate.watched(key, watcher),
            Slot::Onlooker(onlooker) => onlooker.watched(watcher),
        }
    }

    /// Returns true if only a read can close a gap.
    pub(super) fn wants_read(&self) -> bool {
        match self {
            Slot::Candidate(candidate) => candidate.wants_read(),
            Slot::Onlooker(onlooker) => onlooker.wants_read(),
        }
    }

    /// The read to be sent now. An error says from when on.
    pub(super) fn next_read(&self, now: Time) -> Option<Result<Ask, Time>> {
        match self {
            Slot::Candidate(candidate) => candidate.next_read().map(Ok),
            Slot::Onlooker(onlooker) => onlooker.next_read(now),
        }
    }

    /// The read under way.
    pub(super) fn read(&self) -> Option<RequestId> {
        match self {
            Slot::Candidate(candidate) => candidate.read(),
            Slot::Onlooker(onlooker) => onlooker.read(),
        }
    }

    /// A read was begun, or the one under way is over.
    pub(super) fn set_read(&mut self, read: Option<RequestId>) {
        match self {
            Slot::Candidate(candidate) => candidate.set_read(read),
            Slot::Onlooker(onlooker) => onlooker.set_read(read),
        }
    }

    /// Forgets what was read so far: another store answers now.
    pub(super) fn store_changed(&mut self) {
        match self {
            Slot::Candidate(candidate) => candidate.store_changed(),
            Slot::Onlooker(onlooker) => onlooker.store_changed(),
        }
    }
}

impl Core {
    pub(super) fn candidate(&mut self, slot: SlotId) -> Option<&mut Candidacy> {
        match self.slots.get_mut(&slot) {
            Some(Slot::Candidate(candidate)) => Some(candidate),
            _ => None,
        }
    }

    /// Returns the prefix of the slot.
    pub(super) fn prefix_of(&self, slot: SlotId) -> Arc<[u8]> {
        let prefix = self.slots.get(&slot).map(Slot::prefix);
        prefix.cloned().unwrap_or_default()
    }

    pub(super) fn slot_ids(&self) -> Vec<SlotId> {
        self.slots.keys().copied().collect()
    }
}
