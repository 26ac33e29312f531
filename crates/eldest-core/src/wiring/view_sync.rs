//! Opens and renews a slot's watches and reads, and passes their results to the candidate or observer in it.

use super::asserted;
use super::hall::Hall;
use super::slots::Slot;
use crate::action::{Action, Answer, Class, Listed, RequestError};
use crate::challenge::CHALLENGED;
use crate::evacuation::MARKS;
use crate::ids::{RequestId, SlotId, WatchId};
use crate::kv::{Change, Header};
use crate::purpose::Purpose;
use crate::time::Time;
use crate::timers::Timer;

impl Hall<'_> {
    /// Opens the missing watches of the slot.
    pub(super) fn watch_slot(&mut self, slot: SlotId) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Observer(o)) => o.watch(&mut self.rooms.watches, &mut self.rooms.out),
            Some(Slot::Candidate(_)) => {
                if let Some(mut seat) = self.seat(slot) {
                    seat.watch();
                }
            }
            None if slot == CHALLENGED => self.watch_challenges(),
            None => {}
        }
    }

    /// Handles a broken stream: the slot's view may be outdated.
    pub(super) fn slot_unwatched(&mut self, slot: SlotId) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Observer(o)) => o.unwatched(self.rooms.watches.as_of(), &mut self.rooms.out),
            Some(Slot::Candidate(c)) => c.view.unwatched(),
            None if slot == CHALLENGED => self.rooms.challenges.reads.set_watch(None),
            None => {}
        }
    }

    pub(super) fn slot_watched(&mut self, slot: SlotId, watch: WatchId, revision: i64) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Observer(o)) => {
                o.created(revision, self.rooms.watches.as_of(), &mut self.rooms.out);
                self.marks_seen(slot);
                self.want_read(slot);
            }
            Some(Slot::Candidate(c)) => {
                c.view.created(watch, revision);
                self.review_candidate(slot);
            }
            None if slot == CHALLENGED => self.challenges_watched(revision),
            None => {}
        }
    }

    pub(super) fn slot_changed(&mut self, slot: SlotId, changes: Vec<Change>) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Observer(o)) => {
                o.changed(changes, self.rooms.watches.as_of(), &mut self.rooms.out);
                self.marks_seen(slot);
            }
            Some(Slot::Candidate(c)) => {
                let taken = cfg!(debug_assertions).then(|| asserted::taken_keys(slot, c, &changes));
                let partitions = self.seat(slot).map(|mut s| s.changed(changes));
                for (partition, fate) in partitions.into_iter().flatten() {
                    if let Some(mut seat) = self.seat(partition) {
                        seat.key_lost(fate);
                    }
                }
                debug_assert!(
                    taken
                        .into_iter()
                        .flatten()
                        .all(|(slot, own)| !self.slots.leads_by(slot, &own)),
                    "nobody leads by a key that an event takes away"
                );
                self.review_candidate(slot);
            }
            None if slot == CHALLENGED => self.challenges_changed(&changes),
            None => {}
        }
    }

    /// Reads what the slot's view needs, or waits until fewer reads are in flight.
    pub(super) fn want_read(&mut self, slot: SlotId) {
        if let Some(mut seat) = self.seat(slot) {
            seat.want_read();
        } else if let Some(Slot::Observer(o)) = self.slots.get(&slot)
            && o.wants_read()
            && self.rooms.lists.enter(slot)
            && self.start_list(slot)
        {
            self.rooms.lists.sent();
        }
    }

    pub(super) fn start_list(&mut self, slot: SlotId) -> bool {
        let next = match self.slots.get(&slot) {
            Some(Slot::Observer(o)) => o.next_read(self.now),
            _ => return self.seat(slot).is_some_and(|mut s| s.start_list()),
        };
        match next {
            Some(Ok(ask)) => {
                let request = self.rooms.out.ask(
                    Purpose::List {
                        slot,
                        sent: self.now,
                    },
                    ask,
                );
                self.slots.set_read(slot, Some(request));
                true
            }
            Some(Err(at)) => {
                self.rooms.out.set_timer(at, Timer::Slot(slot));
                false
            }
            None => false,
        }
    }

    /// Applies the answer to a read. Returns its header if it shows that another store answers.
    pub(super) fn listed(
        &mut self,
        slot: SlotId,
        request: RequestId,
        sent: Time,
        answer: Answer,
    ) -> Option<Header> {
        // A read begun before the watch broke proves nothing about the present watch. A refusal still proves that
        // reading is not permitted, which is also why the watch was refused.
        let refused = matches!(self.slots.get(&slot), Some(Slot::Observer(_)))
            && matches!(&answer, Answer::Failed(error) if error.class == Class::Denied);
        if self.slots.get(&slot).and_then(Slot::read) != Some(request) && !refused {
            return None;
        }
        debug_assert!(
            refused || self.slots.get(&slot).and_then(Slot::read) == Some(request),
            "a view takes the answer to the read that it waits for"
        );
        match answer {
            Answer::Listed(Listed { header, entries }) => {
                self.slots.set_read(slot, None);
                let other = match self.slots.get(&slot) {
                    Some(Slot::Observer(o)) => o.saw_otherwise(header.revision, &entries),
                    _ => self.seat(slot).is_some_and(|s| s.leads_behind(&entries)),
                };
                if other {
                    return Some(header);
                }
                if let Some(Slot::Observer(o)) = self.slots.get_mut(&slot) {
                    let (request, read) = ((request, sent), (header.revision, entries));
                    o.snapshot(
                        request,
                        read,
                        self.rooms.watches.as_of(),
                        &mut self.rooms.out,
                    );
                    self.marks_seen(slot);
                    self.want_read(slot);
                } else if let Some(mut seat) = self.seat(slot) {
                    seat.take_snapshot((request, false), header.revision, entries);
                    self.holdings(slot).rebalance_soon();
                    self.review_others(slot);
                }
            }
            Answer::Failed(error) => self.list_failed(slot, request, error),
            _ => {}
        }
        None
    }

    fn list_failed(&mut self, slot: SlotId, request: RequestId, error: RequestError) {
        if slot == MARKS && error.class == Class::Denied && self.give_up_marks() {
            return;
        }
        // No caller waits for the marks, so the session retries until it can read them.
        if matches!(error.class, Class::Denied | Class::Invalid)
            && slot != MARKS
            && let Some(Slot::Observer(_)) = self.slots.get(&slot)
        {
            self.rooms.out.act(Action::ObserveFailed { slot, error });
            self.rooms.forget(self.slots, slot);
            return;
        }
        let class = error.class;
        let prefix = self.slots.prefix_of(slot);
        self.rooms.out.note_failure("list", &prefix, error);
        let not_before = match self.slots.get_mut(&slot) {
            Some(Slot::Observer(o)) => Some(o.read_failed(self.now, class, self.rooms.pace)),
            _ => self.seat(slot).map(|mut seat| seat.read_failed(class)),
        };
        if let Some(not_before) = not_before {
            // The read counts as in flight until then, so that no other code starts it.
            let timer = Timer::Relist(slot, request);
            self.rooms.out.set_timer(not_before, timer);
        }
    }

    /// Reads again after the pause that followed a failed read.
    pub(super) fn relist(&mut self, slot: SlotId, request: RequestId) {
        if self.slots.get(&slot).and_then(Slot::read) == Some(request) {
            self.slots.set_read(slot, None);
            self.want_read(slot);
        }
    }
}
