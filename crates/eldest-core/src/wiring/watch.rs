//! Passes the messages of the watch stream to the slots that it watches for.

use super::hall::Hall;
use super::slots::{Rooms, Slot};
use crate::action::{Action, Answer, Ask, Class, Note, RequestError};
use crate::challenge::CHALLENGED;
use crate::evacuation::MARKS;
use crate::ids::{SlotId, WatchId};
use crate::kv::{Change, Header};
use crate::purpose::Purpose;
use crate::time::Time;

impl Hall<'_> {
    /// Records that etcd created the watch: every change after the header's revision follows.
    pub(super) fn created(&mut self, watch: WatchId, header: Header) {
        let Rooms { watches, out, .. } = &mut *self.rooms;
        watches.created(self.now, watch, header, out);
        if let Some(slot) = watches.slot(watch) {
            self.slot_watched(slot, watch, header.revision);
        }
    }

    /// Applies events of one watch, in order, from a member in that raft term.
    pub(super) fn events(&mut self, watch: WatchId, term: u64, changes: Vec<Change>) {
        let Rooms { watches, out, .. } = &mut *self.rooms;
        if let Some(last) = changes.last() {
            watches.changed(self.now, last.revision(), term, out);
        }
        if let Some(slot) = watches.slot(watch) {
            self.slot_changed(slot, changes);
        }
    }

    /// Handles etcd's refusal to create this watch.
    pub(super) fn refused(&mut self, watch: WatchId, error: RequestError) {
        self.rooms.watches.refused(self.now);
        let Some(slot) = self.rooms.watches.slot(watch) else {
            return;
        };
        let class = error.class;
        let prefix = self.slots.prefix_of(slot);
        // The read of the marks is refused as well. Its failure is reported instead, if the session needs the marks.
        if slot != MARKS || class != Class::Denied {
            self.rooms.out.note_failure("watch", &prefix, error);
        }
        self.watch_again_later(slot, watch, class);
        // etcd judges a watch by the token with which the stream was opened, and 3.4 calls an expired token "permission
        // denied". A read with the present token distinguishes the two cases.
        if class == Class::Denied && slot != CHALLENGED {
            let ask = Ask::Probe { key: prefix };
            self.rooms.out.ask(Purpose::Permission { slot }, ask);
        }
    }

    /// Handles the end of one watch. etcd cancels watches that are so far behind that their next changes were
    /// compacted.
    pub(super) fn canceled(&mut self, watch: WatchId, reason: String) {
        if let Some(slot) = self.rooms.watches.slot(watch) {
            self.rooms.out.note(Note::WatchLost { why: reason });
            self.watch_again_later(slot, watch, Class::Retry);
        }
    }

    /// Handles the answer to a probe that was sent at `sent`.
    pub(super) fn probed(&mut self, sent: Time, header: Header) {
        let Rooms { watches, out, .. } = &mut *self.rooms;
        if watches.probed(self.now, sent, header, out) {
            self.restart_watches(true);
        }
    }

    /// Compares the stream with a linearizable read.
    pub(super) fn compare_stream(&mut self, header: Header) {
        let Rooms { watches, out, .. } = &mut *self.rooms;
        if watches.compare(self.now, header, out) {
            self.restart_watches(true);
        }
    }

    pub(super) fn restart_watches(&mut self, elsewhere: bool) {
        self.rooms
            .watches
            .restart(self.now, elsewhere, &mut self.rooms.out);
        for slot in self.slots.ids() {
            self.slot_unwatched(slot);
        }
        self.slot_unwatched(CHALLENGED);
        self.restart_suspicions();
    }

    /// Opens the watches again, after the pause that followed a broken stream.
    pub(super) fn open_watches(&mut self) {
        if self.rooms.watches.is_up_again(self.now) {
            for slot in self.slots.ids() {
                self.watch_slot(slot);
                self.want_read(slot);
            }
            self.watch_slot(CHALLENGED);
        }
    }

    /// Watches and reads again after a pause of the slot, because its view may be outdated.
    fn watch_again_later(&mut self, slot: SlotId, gone: WatchId, class: Class) {
        self.rooms.watches.gone(gone);
        let others = self.slots.get(&slot).map(Slot::watchers);
        for watch in others.unwrap_or_default() {
            self.rooms.watches.close(watch, &mut self.rooms.out);
        }
        self.slot_unwatched(slot);
        self.rooms
            .watches
            .watch_later(slot, class, self.now, &mut self.rooms.out);
    }

    /// Watches the slot again, after the pause that followed the loss of its watch.
    pub(super) fn rewatch(&mut self, slot: SlotId) {
        if self.rooms.watches.watch_again(slot) {
            self.watch_slot(slot);
            self.want_read(slot);
        }
    }

    /// Sends a probe: a read with which the observers' watches are compared, and which shows how fresh their views are.
    pub(super) fn probe(&mut self) {
        let last = self.rooms.watches.probe_due();
        if let Some((slot, key)) = self.slots.probed_after(last) {
            self.rooms
                .watches
                .probe(self.now, slot, key, &mut self.rooms.out);
        }
    }

    /// Applies the answer that shows whether we may read the keys that etcd does not let us watch.
    pub(super) fn permission_answered(&mut self, slot: SlotId, answer: Answer) {
        let waits = self.rooms.watches.waits(slot);
        match answer {
            Answer::Read { .. } if waits => {
                let why = "etcd refused a watch, but not a read of the same keys".to_owned();
                self.rooms.out.note(Note::WatchLost { why });
                self.restart_watches(false);
            }
            Answer::Failed(error) if error.class == Class::Denied && slot == MARKS => {
                self.give_up_marks();
            }
            Answer::Failed(error) if error.class == Class::Denied => {
                if let Some(Slot::Observer(_)) = self.slots.get(&slot) {
                    self.rooms.out.act(Action::ObserveFailed { slot, error });
                    self.rooms.forget(self.slots, slot);
                }
            }
            _ => {}
        }
    }
}
