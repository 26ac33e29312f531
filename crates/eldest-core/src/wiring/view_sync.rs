//! Opens and renews a slot's watches and reads, and feeds their results into what stands there.

use std::sync::Arc;

use super::{Core, Slot, asserted};
use crate::action::{Action, Answer, Class, Listed, RequestError};
use crate::candidate::{Candidacy, Phase};
use crate::evacuation::MARKS;
use crate::ids::{RequestId, SlotId, WatchId};
use crate::kv::{Change, Entry};
use crate::purpose::Purpose;
use crate::queue::Fate;
use crate::time::Time;
use crate::timers::Timer;

impl Core {
    /// Opens the watches that the slot needs and does not have.
    pub(super) fn watch_slot(&mut self, slot: SlotId) {
        let Some(watching) = self.slots.get_mut(&slot).map(Slot::watching) else {
            return;
        };
        self.close_watches(watching.discarded);
        for (key, prefix) in watching.wanted {
            let out = &mut self.out;
            let watcher = self.watches.open(slot, Arc::clone(&key), prefix, out);
            if let (Some(watcher), Some(slot)) = (watcher, self.slots.get_mut(&slot)) {
                slot.watched(&key, watcher);
            }
        }
    }

    pub(super) fn close_watches(&mut self, watches: Vec<WatchId>) {
        for watch in watches {
            self.watches.close(watch, &mut self.out);
        }
    }

    /// The stream broke: what the slot knows may be old.
    pub(super) fn slot_unwatched(&mut self, slot: SlotId) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => o.unwatched(self.watches.as_of(), &mut self.out),
            Some(Slot::Candidate(c)) => c.unwatched(),
            None => {}
        }
    }

    pub(super) fn slot_watched(&mut self, slot: SlotId, watch: WatchId, revision: i64, now: Time) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => {
                o.created(revision, self.watches.as_of(), &mut self.out);
                self.marks_seen(slot, now);
                self.want_read(slot, now);
            }
            Some(Slot::Candidate(c)) => {
                c.created(watch, revision);
                self.look(slot, now);
            }
            None => {}
        }
    }

    pub(super) fn slot_changed(&mut self, slot: SlotId, changes: Vec<Change>, now: Time) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => {
                o.changed(changes, self.watches.as_of(), &mut self.out);
                self.marks_seen(slot, now);
            }
            Some(Slot::Candidate(c)) => {
                let taken = cfg!(debug_assertions).then(|| asserted::taken_keys(slot, c, &changes));
                let (fate, partitions) = c.changed(changes);
                if fate != Fate::Ours {
                    self.key_lost(slot, fate, now);
                }
                for (partition, fate) in partitions {
                    self.key_lost(partition, fate, now);
                }
                debug_assert!(
                    taken
                        .into_iter()
                        .flatten()
                        .all(|(slot, own)| !self.leads_by(slot, &own)),
                    "nobody leads by a key that an event takes away"
                );
                self.look(slot, now);
            }
            None => {}
        }
    }

    /// The queue may have become so long that whoever is not next to lead shall hear of its neighbours alone.
    pub(super) fn follow_if_long(&mut self, slot: SlotId) {
        let long = self.config.long_queue;
        if let Some(candidate) = self.candidate(slot) {
            let discarded = candidate.follow_if_long(long);
            self.close_watches(discarded);
        }
    }

    pub(super) fn want_read(&mut self, slot: SlotId, now: Time) {
        if self.slots.get(&slot).is_some_and(Slot::wants_read) {
            self.queue_list(slot, now);
        }
    }

    pub(super) fn start_list(&mut self, slot: SlotId, now: Time) -> bool {
        match self.slots.get(&slot).and_then(|slot| slot.next_read(now)) {
            Some(Ok(ask)) => {
                let request = self.out.ask(Purpose::List { slot, sent: now }, ask);
                self.set_read(slot, Some(request));
                true
            }
            Some(Err(at)) => {
                self.out.set_timer(at, Timer::Slot(slot));
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
                    Some(Slot::Candidate(c)) => c.leads_behind(&entries),
                    Some(Slot::Onlooker(o)) => o.saw_otherwise(header.revision, &entries),
                    None => false,
                };
                if other {
                    self.store_exchanged(now, header);
                    return;
                }
                if let Some(Slot::Onlooker(o)) = self.slots.get_mut(&slot) {
                    let (request, read) = ((request, sent), (header.revision, entries));
                    o.snapshot(request, read, self.watches.as_of(), &mut self.out);
                    self.marks_seen(slot, now);
                    self.want_read(slot, now);
                } else {
                    let request = (request, false);
                    self.take_snapshot(slot, request, header.revision, entries, now);
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
            self.out.act(Action::ObserveFailed { slot, error });
            self.forget(slot);
            return;
        }
        let class = error.class;
        let prefix = self.prefix_of(slot);
        self.out.note_failure("list", &prefix, error);
        let not_before = match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => o.read_failed(now, class, self.pace),
            Some(Slot::Candidate(c)) => c.read_failed(now, class, self.pace),
            None => return,
        };
        // The list stays 'under way' until then, so that nothing else starts it.
        let timer = Timer::Relist(slot, request);
        self.out.set_timer(not_before, timer);
    }

    /// The pause after a failed list is over.
    pub(super) fn relist(&mut self, slot: SlotId, request: RequestId, now: Time) {
        if self.slots.get(&slot).and_then(Slot::read) == Some(request) {
            self.set_read(slot, None);
            self.want_read(slot, now);
        }
    }

    /// A candidate's answer to a read, or to a join that read the prefix.
    pub(super) fn take_snapshot(
        &mut self,
        slot: SlotId,
        request: (RequestId, bool),
        revision: i64,
        entries: Vec<Entry>,
        now: Time,
    ) {
        let long = self.config.long_queue;
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let (first, discarded) = candidate.snapshot(request, revision, entries, long);
        self.close_watches(discarded);
        // A candidate that may have to give way looks at the candidates behind it first.
        let first = first && !self.is_in_the_way(slot);
        let may_lead = first && self.lease.trusted().is_some();
        let phase = self.candidate(slot).map(|c| Candidacy::phase(c).clone());
        if may_lead && let Some(Phase::Waiting { own }) = phase {
            self.lead(slot, own, now);
        }
        self.look(slot, now);
    }
}
