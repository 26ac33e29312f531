//! Gives candidates and onlookers one face: what stands in a slot watches and reads.

use std::sync::Arc;

use super::Core;
use crate::candidate::{Candidacy, Seat};
use crate::ids::{RequestId, SlotId, WatchId};
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
            Slot::Candidate(candidate) => candidate.view.watchers(),
            Slot::Onlooker(onlooker) => onlooker.watchers(),
        }
    }

    /// The read under way.
    pub(super) fn read(&self) -> Option<RequestId> {
        match self {
            Slot::Candidate(candidate) => candidate.view.read(),
            Slot::Onlooker(onlooker) => onlooker.read(),
        }
    }

    /// A read was begun, or the one under way is over.
    pub(super) fn set_read(&mut self, read: Option<RequestId>) {
        match self {
            Slot::Candidate(candidate) => candidate.view.set_read(read),
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
    /// Lends the candidate in that slot the parts of the session that its rules may change.
    pub(super) fn seat(&mut self, slot: SlotId, now: Time) -> Option<Seat<'_>> {
        let Some(Slot::Candidate(me)) = self.slots.get_mut(&slot) else {
            return None;
        };
        Some(Seat {
            slot,
            now,
            me,
            config: &self.config,
            pace: self.pace,
            closing: self.closing,
            stood_once: &mut self.stood_once,
            lease: &mut self.lease,
            joins: &mut self.joins,
            lists: &mut self.lists,
            watches: &mut self.watches,
            removals: &mut self.removals,
            evacuation: &self.evacuation,
            out: &mut self.out,
        })
    }

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
