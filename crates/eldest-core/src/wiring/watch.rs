//! Wires the watch stream to the slots that it watches for.

use std::sync::Arc;

use super::{Core, Slot};
use crate::action::{Action, Answer, Ask, Class, Note, RequestError};
use crate::evacuation::MARKS;
use crate::ids::{SlotId, WatchId};
use crate::kv::{Change, Header};
use crate::purpose::Purpose;
use crate::time::Time;
use crate::watch::Compared;

impl Core {
    /// etcd created the watch: every change after the header's revision follows.
    pub fn watch_created(&mut self, now: Time, watch: WatchId, header: Header) {
        self.expire(now);
        self.rooms
            .watches
            .created(now, watch, header, &mut self.rooms.out);
        if let Some(slot) = self.rooms.watches.slot(watch) {
            self.slot_watched(slot, watch, header.revision, now);
        }
    }

    /// Events of one watch, in order, from a member in that raft term.
    pub fn watch_events(&mut self, now: Time, watch: WatchId, term: u64, changes: Vec<Change>) {
        self.expire(now);
        if let Some(last) = changes.last() {
            self.rooms
                .watches
                .saw(last.revision(), term, &mut self.rooms.out);
        }
        if let Some(slot) = self.rooms.watches.slot(watch) {
            self.slot_changed(slot, changes, now);
        }
    }

    /// Every watch of the stream has delivered everything up to the header's revision.
    pub fn watch_progress(&mut self, header: Header) {
        self.rooms.watches.progress(header, &mut self.rooms.out);
    }

    /// A probe that was sent at `sent` is answered.
    pub(super) fn probed(&mut self, now: Time, sent: Time, header: Header) {
        let compared = self
            .rooms
            .watches
            .probed(now, sent, header, &mut self.rooms.out);
        self.restart_if_stalled(compared, now);
    }

    /// The stream is compared with a linearizable read.
    pub(super) fn compare_stream(&mut self, now: Time, header: Header) {
        let compared = self.rooms.watches.compare(now, header, &mut self.rooms.out);
        self.restart_if_stalled(compared, now);
    }

    fn restart_if_stalled(&mut self, compared: Compared, now: Time) {
        if compared == Compared::Stalled {
            self.restart_watches(now, true);
        }
    }

    /// The stream broke.
    pub fn watch_lost(&mut self, now: Time, why: String) {
        self.expire(now);
        self.rooms.out.note(Note::WatchLost { why });
        self.restart_watches(now, false);
    }

    /// The session moved to another endpoint on purpose: the stream is to be opened there.
    pub fn watch_moved(&mut self, now: Time) {
        self.expire(now);
        self.restart_watches(now, false);
    }

    pub(super) fn restart_watches(&mut self, now: Time, elsewhere: bool) {
        self.rooms
            .watches
            .restart(now, elsewhere, &mut self.rooms.out);
        for slot in self.slots.ids() {
            self.slot_unwatched(slot);
        }
    }

    /// The pause after the stream broke is over.
    pub(super) fn open_watches(&mut self, now: Time) {
        if self.rooms.watches.is_up_again(now) {
            for slot in self.slots.ids() {
                self.watch_slot(slot, now);
                self.want_read(slot, now);
            }
        }
    }

    /// etcd does not create this watch.
    pub fn watch_refused(&mut self, now: Time, watch: WatchId, error: RequestError) {
        self.expire(now);
        self.rooms.watches.refused(now);
        let Some(slot) = self.rooms.watches.slot(watch) else {
            return;
        };
        let class = error.class;
        let prefix = self.slots.prefix_of(slot);
        // The marks are looked for until they can be read, if the session needs them: the read of them is refused, too.
        if slot != MARKS || class != Class::Denied {
            self.rooms.out.note_failure("watch", &prefix, error);
        }
        self.watch_again_later(slot, watch, class, now);
        // etcd judges a watch by the token with which the stream was opened, and 3.4 calls an expired token "permission
        // denied". A read under today's token tells the two cases apart.
        if class == Class::Denied {
            let ask = Ask::Probe { key: prefix };
            self.rooms.out.ask(Purpose::Permission { slot }, ask);
        }
    }

    /// etcd cancelled one watch, as it does with those that are so far behind that what they miss was compacted.
    pub fn watch_canceled(&mut self, now: Time, watch: WatchId, reason: String) {
        self.expire(now);
        if let Some(slot) = self.rooms.watches.slot(watch) {
            self.rooms.out.note(Note::WatchLost { why: reason });
            self.watch_again_later(slot, watch, Class::Retry, now);
        }
    }

    /// Watches and reads again after a pause of the slot's own, because its view may be old.
    fn watch_again_later(&mut self, slot: SlotId, gone: WatchId, class: Class, now: Time) {
        self.rooms.watches.gone(gone);
        let others = self.slots.get(&slot).map(Slot::watchers);
        for watch in others.unwrap_or_default() {
            self.rooms.watches.close(watch, &mut self.rooms.out);
        }
        self.slot_unwatched(slot);
        self.rooms
            .watches
            .watch_later(slot, class, now, &mut self.rooms.out);
    }

    /// The pause after the loss of the slot's watch is over.
    pub(super) fn rewatch(&mut self, slot: SlotId, now: Time) {
        if self.rooms.watches.watch_again(slot) {
            self.watch_slot(slot, now);
            self.want_read(slot, now);
        }
    }

    /// Onlookers' watches are compared with a read of their own, which also tells how fresh their views are.
    pub(super) fn probe(&mut self, now: Time) {
        let last = self.rooms.watches.probe_due();
        if let Some((slot, key)) = self.probed_next(last) {
            self.rooms
                .watches
                .probe(now, slot, key, &mut self.rooms.out);
        }
    }

    /// The onlooker whose prefix is probed next, if anybody looks on: another each time, and rather one that was permitted to
    /// read it. Nobody needs a permission for anything else.
    fn probed_next(&self, after: SlotId) -> Option<(SlotId, Arc<[u8]>)> {
        let later = self.slots.range(after.saturating_add(1)..);
        let onlookers = later.chain(self.slots.range(..=after));
        let mut onlookers = onlookers.filter_map(|(id, slot)| match slot {
            Slot::Onlooker(onlooker) => Some((*id, onlooker)),
            Slot::Candidate(_) => None,
        });
        let first = onlookers.next()?;
        let permitted = std::iter::once(first).chain(onlookers);
        let permitted = permitted.into_iter().find(|(_, o)| o.is_synced());
        let (id, onlooker) = permitted.unwrap_or(first);
        Some((id, Arc::clone(onlooker.prefix())))
    }

    /// Applies the answer that tells if we may read what etcd does not let us watch.
    pub(super) fn permission_told(&mut self, slot: SlotId, answer: Answer, now: Time) {
        let waits = self.rooms.watches.waits(slot);
        match answer {
            Answer::Read { .. } if waits => {
                let why = "etcd refused a watch, but not a read of the same keys".to_owned();
                self.rooms.out.note(Note::WatchLost { why });
                self.restart_watches(now, false);
            }
            Answer::Failed(error) if error.class == Class::Denied && slot == MARKS => {
                self.give_up_marks(now);
            }
            Answer::Failed(error) if error.class == Class::Denied => {
                if let Some(Slot::Onlooker(_)) = self.slots.get(&slot) {
                    self.rooms.out.act(Action::ObserveFailed { slot, error });
                    self.forget(slot);
                }
            }
            _ => {}
        }
    }
}
