//! Opens and renews a slot's watches and reads, and feeds their results into what stands there.

use super::{Core, Slot, asserted};
use crate::action::{Action, Answer, Class, Listed, RequestError};
use crate::evacuation::MARKS;
use crate::ids::{RequestId, SlotId, WatchId};
use crate::kv::Change;
use crate::purpose::Purpose;
use crate::time::Time;
use crate::timers::Timer;

impl Core {
    /// Opens the watches that the slot needs and does not have.
    pub(super) fn watch_slot(&mut self, slot: SlotId, now: Time) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => o.watch(&mut self.rooms.watches, &mut self.rooms.out),
            Some(Slot::Candidate(_)) => {
                if let Some(mut seat) = self.seat(slot, now) {
                    seat.watch();
                }
            }
            None => {}
        }
    }

    /// The stream broke: what the slot knows may be old.
    pub(super) fn slot_unwatched(&mut self, slot: SlotId) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => o.unwatched(self.rooms.watches.as_of(), &mut self.rooms.out),
            Some(Slot::Candidate(c)) => c.view.unwatched(),
            None => {}
        }
    }

    pub(super) fn slot_watched(&mut self, slot: SlotId, watch: WatchId, revision: i64, now: Time) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => {
                o.created(revision, self.rooms.watches.as_of(), &mut self.rooms.out);
                self.marks_seen(slot, now);
                self.want_read(slot, now);
            }
            Some(Slot::Candidate(c)) => {
                c.view.created(watch, revision);
                self.look(slot, now);
            }
            None => {}
        }
    }

    pub(super) fn slot_changed(&mut self, slot: SlotId, changes: Vec<Change>, now: Time) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => {
                o.changed(changes, self.rooms.watches.as_of(), &mut self.rooms.out);
                self.marks_seen(slot, now);
            }
            Some(Slot::Candidate(c)) => {
                let taken = cfg!(debug_assertions).then(|| asserted::taken_keys(slot, c, &changes));
                let partitions = self.seat(slot, now).map(|mut s| s.changed(changes));
                for (partition, fate) in partitions.into_iter().flatten() {
                    if let Some(mut seat) = self.seat(partition, now) {
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
                self.look(slot, now);
            }
            None => {}
        }
    }

    pub(super) fn want_read(&mut self, slot: SlotId, now: Time) {
        match self.slots.get(&slot) {
            Some(Slot::Onlooker(o)) => {
                if o.wants_read() && self.rooms.lists.enter(slot) && self.start_list(slot, now) {
                    self.rooms.lists.sent();
                }
            }
            Some(Slot::Candidate(_)) => {
                if let Some(mut seat) = self.seat(slot, now) {
                    seat.want_read();
                }
            }
            None => {}
        }
    }

    pub(super) fn start_list(&mut self, slot: SlotId, now: Time) -> bool {
        let next = match self.slots.get(&slot) {
            Some(Slot::Onlooker(o)) => o.next_read(now),
            _ => return self.seat(slot, now).is_some_and(|mut s| s.start_list()),
        };
        match next {
            Some(Ok(ask)) => {
                let request = self.rooms.out.ask(Purpose::List { slot, sent: now }, ask);
                self.set_read(slot, Some(request));
                true
            }
            Some(Err(at)) => {
                self.rooms.out.set_timer(at, Timer::Slot(slot));
                false
            }
            None => false,
        }
    }

    fn set_read(&mut self, slot: SlotId, read: Option<RequestId>) {
        if let Some(slot) = self.slots.get_mut(&slot) {
            slot.set_read(read);
        }
    }

    pub(super) fn listed(
        &mut self,
        now: Time,
        slot: SlotId,
        request: RequestId,
        sent: Time,
        answer: Answer,
    ) {
        // A read begun before the watch broke proves nothing about the watch that stands now. A refusal still
        // proves that looking is not permitted, and is what refused the watch too.
        let refused = matches!(self.slots.get(&slot), Some(Slot::Onlooker(_)))
            && matches!(&answer, Answer::Failed(error) if error.class == Class::Denied);
        if self.slots.get(&slot).and_then(Slot::read) != Some(request) && !refused {
            return;
        }
        debug_assert!(
            refused || self.slots.get(&slot).and_then(Slot::read) == Some(request),
            "a view takes the answer to the read that it waits for"
        );
        match answer {
            Answer::Listed(Listed { header, entries }) => {
                self.set_read(slot, None);
                let other = match self.slots.get(&slot) {
                    Some(Slot::Onlooker(o)) => o.saw_otherwise(header.revision, &entries),
                    _ => self
                        .seat(slot, now)
                        .is_some_and(|s| s.leads_behind(&entries)),
                };
                if other {
                    self.store_exchanged(now, header);
                    return;
                }
                if let Some(Slot::Onlooker(o)) = self.slots.get_mut(&slot) {
                    let (request, read) = ((request, sent), (header.revision, entries));
                    o.snapshot(
                        request,
                        read,
                        self.rooms.watches.as_of(),
                        &mut self.rooms.out,
                    );
                    self.marks_seen(slot, now);
                    self.want_read(slot, now);
                } else if let Some(mut seat) = self.seat(slot, now) {
                    seat.take_snapshot((request, false), header.revision, entries);
                    self.holdings(slot, now).rebalance_soon();
                }
            }
            Answer::Failed(error) => self.list_failed(slot, now, request, error),
            _ => {}
        }
    }

    fn list_failed(&mut self, slot: SlotId, now: Time, request: RequestId, error: RequestError) {
        if slot == MARKS && error.class == Class::Denied && self.give_up_marks(now) {
            return;
        }
        // Nobody waits for the marks: they are looked for until they can be read.
        if matches!(error.class, Class::Denied | Class::Invalid)
            && slot != MARKS
            && let Some(Slot::Onlooker(_)) = self.slots.get(&slot)
        {
            self.rooms.out.act(Action::ObserveFailed { slot, error });
            self.forget(slot);
            return;
        }
        let class = error.class;
        let prefix = self.slots.prefix_of(slot);
        self.rooms.out.note_failure("list", &prefix, error);
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => {
                let not_before = o.read_failed(now, class, self.rooms.pace);
                // The list stays 'under way' until then, so that nothing else starts it.
                let timer = Timer::Relist(slot, request);
                self.rooms.out.set_timer(not_before, timer);
            }
            Some(Slot::Candidate(_)) => {
                if let Some(mut seat) = self.seat(slot, now) {
                    seat.read_failed(request, class);
                }
            }
            None => {}
        }
    }

    /// The pause after a failed list is over.
    pub(super) fn relist(&mut self, slot: SlotId, request: RequestId, now: Time) {
        if self.slots.get(&slot).and_then(Slot::read) == Some(request) {
            self.set_read(slot, None);
            self.want_read(slot, now);
        }
    }
}
