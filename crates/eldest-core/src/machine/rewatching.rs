//! Opens one watch again that etcd refused or cancelled, and leaves the other watches of the stream alone.

use super::{Machine, Slot};
use crate::action::{Action, Answer, Ask, Class, Note, SlotId, Trouble, WatchId};
use crate::pause::LONGEST_PAUSE;
use crate::purpose::Purpose;
use crate::time::Time;
use crate::timers::Timer;

/// The losses of one slot's watches.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rewatch {
    /// Losses that followed each other closely.
    failures: u32,
    /// When the last watch was lost.
    lost_at: Time,
    /// Nothing is watched for the slot until its timer fires.
    pub(super) waits: bool,
}

impl Machine {
    /// etcd does not create this watch.
    pub fn watch_refused(&mut self, now: Time, watch: WatchId, trouble: Trouble) {
        self.expire(now);
        self.stream.silent = None;
        self.stream.opened.get_or_insert(now);
        let Some(slot) = self.watches.get(&watch).copied() else {
            return;
        };
        let class = trouble.class;
        let prefix = self.prefix_of(slot);
        self.out.note_failure("watch", &prefix, trouble);
        self.watch_again_later(slot, watch, class, now);
        // etcd judges a watch by the token with which the stream was opened, and 3.4 calls an expired token "permission
        // denied". A read under today's token tells the two cases apart.
        if class == Class::Denied {
            self.out
                .ask(Purpose::Permission { slot }, Ask::Probe { key: prefix });
        }
    }

    /// etcd cancelled one watch, as it does with those that are so far behind that what they miss was compacted.
    pub fn watch_canceled(&mut self, now: Time, watch: WatchId, reason: String) {
        self.expire(now);
        if let Some(slot) = self.watches.get(&watch).copied() {
            self.out.note(Note::WatchLost { why: reason });
            self.watch_again_later(slot, watch, Class::Retry, now);
        }
    }

    /// What the slot knows may be old, so it watches and reads anew after a pause of its own.
    fn watch_again_later(&mut self, slot: SlotId, gone: WatchId, class: Class, now: Time) {
        self.watches.remove(&gone);
        self.stream.unconfirmed.remove(&gone);
        let others = self.slots.get(&slot).map(Slot::watchers);
        for watch in others.unwrap_or_default() {
            self.unwatch(watch);
        }
        self.slot_unwatched(slot);
        let lost = self.rewatching.entry(slot).or_default();
        if now.since(lost.lost_at) >= LONGEST_PAUSE * 2 {
            lost.failures = 0;
        }
        lost.failures += 1;
        (lost.lost_at, lost.waits) = (now, true);
        let failures = lost.failures;
        let at = now.after(self.pace.pause(failures, class));
        self.out.set_timer(at, Timer::Rewatch(slot));
    }

    /// The pause after the loss of the slot's watch is over.
    pub(super) fn rewatch(&mut self, slot: SlotId, now: Time) {
        if let Some(lost) = self.rewatching.get_mut(&slot)
            && std::mem::take(&mut lost.waits)
        {
            self.watch_slot(slot);
            self.want_read(slot, now);
        }
    }

    /// Whether a read of what etcd does not let us watch is permitted.
    pub(super) fn permission_told(&mut self, slot: SlotId, answer: Answer, now: Time) {
        let waits = self.rewatching.get(&slot).is_some_and(|lost| lost.waits);
        match answer {
            Answer::Read { .. } if waits => {
                let why = "a watch was refused, and a read of the same keys was not".to_owned();
                self.out.note(Note::WatchLost { why });
                self.restart_watches(now, false);
            }
            Answer::Failed(trouble) if trouble.class == Class::Denied => {
                if let Some(Slot::Onlooker(_)) = self.slots.get(&slot) {
                    self.out.act(Action::ObserveFailed { slot, trouble });
                    self.forget(slot);
                }
            }
            _ => {}
        }
    }
}
