//! Paces the watches of a slot that etcd refused or cancelled, and leaves the other watches of the stream alone.

use std::collections::BTreeMap;

use crate::action::Class;
use crate::ids::SlotId;
use crate::pause::{LONGEST_PAUSE, Pace};
use crate::time::Time;

/// The losses of one slot's watches.
#[derive(Debug, Clone, Copy, Default)]
struct Rewatch {
    /// The number of losses that followed each other closely.
    failures: u32,
    /// The time at which the last watch was lost.
    lost_at: Time,
    /// True if the slot has no watch until its timer fires.
    waits: bool,
}

/// The losses of watches, by slot.
#[derive(Debug)]
pub(super) struct Rewatching {
    slots: BTreeMap<SlotId, Rewatch>,
    pace: Pace,
}

impl Rewatching {
    pub(super) fn new(pace: Pace) -> Self {
        Self {
            slots: BTreeMap::new(),
            pace,
        }
    }

    /// Records that a watch is lost. Returns when to watch the slot again.
    pub(super) fn lost(&mut self, slot: SlotId, class: Class, now: Time) -> Time {
        let lost = self.slots.entry(slot).or_default();
        if now.since(lost.lost_at) >= LONGEST_PAUSE * 2 {
            lost.failures = 0;
        }
        lost.failures += 1;
        (lost.lost_at, lost.waits) = (now, true);
        now.after(self.pace.pause(lost.failures, class))
    }

    /// Returns true if the slot has no watch.
    pub(super) fn waits(&self, slot: SlotId) -> bool {
        self.slots.get(&slot).is_some_and(|lost| lost.waits)
    }

    /// Ends the pause of the slot. Returns whether it waited.
    pub(super) fn is_over(&mut self, slot: SlotId) -> bool {
        let lost = self.slots.get_mut(&slot);
        lost.is_some_and(|lost| std::mem::take(&mut lost.waits))
    }

    /// Ends all pauses, because the stream is restarted.
    pub(super) fn restarted(&mut self) {
        for lost in self.slots.values_mut() {
            lost.waits = false;
        }
    }

    pub(super) fn forget(&mut self, slot: SlotId) {
        self.slots.remove(&slot);
    }
}
