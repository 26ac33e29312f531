//! Opens and renews a slot's watches and reads, and feeds their results into the slot's view.

use std::sync::Arc;

use super::{Machine, Slot};
use crate::action::{Action, Answer, Ask, Class, RequestId, SlotId, Trouble, WatchId};
use crate::candidate::{Follow, Phase, Role, new_view};
use crate::facts::{Change, Entry, Reach};
use crate::purpose::Purpose;
use crate::queue::{Fate, Place, PredecessorView, PrefixView, View, ahead, place_in};
use crate::time::Time;
use crate::timers::Timer;

impl Machine {
    /// Opens the watches that the slot's view needs and does not have.
    pub fn watch_slot(&mut self, slot: SlotId) {
        let (prefix, needs) = match self.slots.get(&slot) {
            Some(Slot::Onlooker(o)) => (Arc::clone(&o.prefix), o.view.watcher.is_none()),
            Some(Slot::Candidate(c)) if c.watches() => match &c.view {
                View::Prefix(view) => (Arc::clone(&c.prefix), view.watcher.is_none()),
                View::Predecessor(_) => {
                    self.watch_neighbours(slot);
                    return;
                }
            },
            _ => return,
        };
        if !needs {
            return;
        }
        let watcher = self.watches.open(slot, prefix, true, &mut self.out);
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => o.view.watcher = watcher,
            Some(Slot::Candidate(c)) => {
                if let View::Prefix(view) = &mut c.view {
                    view.watcher = watcher;
                }
            }
            None => {}
        }
    }

    pub(super) fn watch_neighbours(&mut self, slot: SlotId) {
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let own = candidate.own().map(|own| Arc::clone(&own.key));
        let View::Predecessor(view) = &mut candidate.view else {
            return;
        };
        let discarded = std::mem::take(&mut view.discarded);
        let keys = view.unwatched_keys(own);
        for watch in discarded {
            self.watches.close(watch, &mut self.out);
        }
        for key in keys {
            let Some(watcher) = self
                .watches
                .open(slot, Arc::clone(&key), false, &mut self.out)
            else {
                continue;
            };
            let view = self.candidate(slot).map(|candidate| &mut candidate.view);
            if let Some(View::Predecessor(view)) = view {
                view.watched(&key, watcher);
            }
        }
    }

    /// What was read so far was another store's.
    pub fn forget_store(&mut self, slot: SlotId) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => {
                o.view = PrefixView::onlooker(Arc::clone(&o.prefix), o.reach);
                o.shown = 0;
            }
            Some(Slot::Candidate(c)) => {
                c.view = new_view(&c.prefix, c.manner.follow);
                c.free_at = 0;
                if let Role::Member(member) = &mut c.role {
                    member.store_changed();
                }
            }
            None => {}
        }
    }

    /// The stream broke: what the slot knows may be old.
    pub fn slot_unwatched(&mut self, slot: SlotId) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => {
                o.view.unwatched();
                if o.complete.unsynced(self.watches.as_of()) {
                    self.out.act(Action::Unsynced { slot });
                }
            }
            Some(Slot::Candidate(c)) => match &mut c.view {
                View::Prefix(view) => view.unwatched(),
                View::Predecessor(view) => view.unwatched(),
            },
            None => {}
        }
    }

    pub fn slot_watched(&mut self, slot: SlotId, watch: WatchId, revision: i64, now: Time) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => {
                o.view.created(revision);
                self.show(slot);
                self.want_read(slot, now);
            }
            Some(Slot::Candidate(c)) => {
                match &mut c.view {
                    View::Prefix(view) => view.created(revision),
                    View::Predecessor(view) => view.created(watch, revision),
                }
                self.look(slot, now);
            }
            None => {}
        }
    }

    pub fn slot_changed(&mut self, slot: SlotId, changes: Vec<Change>, now: Time) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => {
                let mut shown = Vec::new();
                o.view.changes(changes, |roster| {
                    shown.push((roster.revision(), roster.copy()));
                });
                if let Some((revision, _)) = shown.last() {
                    o.shown = *revision;
                }
                let as_of = o.complete.as_of(self.watches.as_of()).unwrap_or_default();
                for (revision, entries) in shown {
                    self.out.act(Action::Observed {
                        slot,
                        revision,
                        entries,
                        as_of,
                    });
                }
            }
            Some(Slot::Candidate(c)) => {
                // Our own key is judged on every event, even while a gap is being closed.
                let fate = c.own().and_then(|own| {
                    changes
                        .iter()
                        .map(|change| own.fate(change))
                        .find(|fate| *fate != Fate::Ours)
                });
                let partitions = match &mut c.role {
                    Role::Member(member) => member.judge(&c.prefix, &changes),
                    _ => Vec::new(),
                };
                match &mut c.view {
                    View::Prefix(view) => view.changes(changes, |_| {}),
                    View::Predecessor(view) => view.changes(&changes),
                }
                if let Some(fate) = fate {
                    self.key_lost(slot, fate, now);
                }
                for (partition, fate) in partitions {
                    self.key_lost(partition, fate, now);
                }
                self.look(slot, now);
            }
            None => {}
        }
    }

    /// The queue may have become so long that whoever is not next to lead shall hear of its neighbours alone.
    pub(super) fn follow_if_long(&mut self, slot: SlotId) {
        let long = self.config.long_queue;
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let (Phase::Waiting { own }, Follow::Auto, View::Prefix(view)) =
            (candidate.phase(), candidate.manner.follow, &candidate.view)
        else {
            return;
        };
        if !view.is_too_wide(own, long) {
            return;
        }
        let roster = view.roster();
        let (revision, entries) = (roster.revision(), roster.in_order().cloned());
        let entries: Vec<_> = entries.collect();
        self.follow_predecessor(slot, revision, &entries);
    }

    /// From now on the candidate hears of its neighbours alone. `entries` is the whole queue; what the new watches may
    /// have missed is read for.
    fn follow_predecessor(&mut self, slot: SlotId, revision: i64, entries: &[Entry]) {
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let Some(own) = candidate.own().cloned() else {
            return;
        };
        let mut following = PredecessorView::new(Arc::clone(&candidate.prefix));
        following.snapshot(revision, entries, &own);
        let before = std::mem::replace(&mut candidate.view, View::Predecessor(following));
        for watch in before.watchers() {
            self.watches.close(watch, &mut self.out);
        }
    }

    /// Tells an onlooker what is known, once it is known without a gap.
    pub(super) fn show(&mut self, slot: SlotId) {
        let Some(Slot::Onlooker(o)) = self.slots.get_mut(&slot) else {
            return;
        };
        if !o.view.is_synced() {
            return;
        }
        let roster = o.view.roster();
        let confirmed = self.watches.as_of();
        let synced = o.complete.synced(confirmed);
        let as_of = o.complete.as_of(confirmed).unwrap_or_default();
        if roster.revision() > o.shown {
            o.shown = roster.revision();
            let revision = roster.revision();
            let entries = roster.copy();
            self.out.act(Action::Observed {
                slot,
                revision,
                entries,
                as_of,
            });
        }
        // After the state, so that nobody takes an older one for complete.
        if synced {
            self.out.act(Action::Synced { slot, as_of });
        }
    }

    pub fn want_read(&mut self, slot: SlotId, now: Time) {
        let wants = match self.slots.get(&slot) {
            Some(Slot::Onlooker(o)) => o.view.wants_list(),
            Some(Slot::Candidate(c)) => match (c.phase(), &c.view) {
                // A join under way reads the prefix anyway.
                (Phase::Joining { .. } | Phase::Leaving { .. }, _) => false,
                (_, View::Prefix(view)) => view.wants_list(),
                (_, View::Predecessor(view)) => c.own().is_some() && view.wants_read(),
            },
            None => false,
        };
        if wants {
            self.queue_list(slot, now);
        }
    }

    pub fn start_list(&mut self, slot: SlotId, now: Time) -> bool {
        let ask = match self.slots.get(&slot) {
            Some(Slot::Onlooker(o)) if o.view.wants_list() => {
                if now < o.not_before {
                    let at = o.not_before;
                    self.out.set_timer(at, Timer::Slot(slot));
                    return false;
                }
                Ask::List {
                    prefix: Arc::clone(&o.prefix),
                    reach: o.reach,
                }
            }
            Some(Slot::Candidate(c)) => match (&c.view, c.own()) {
                (View::Prefix(view), _) if view.wants_list() => Ask::List {
                    prefix: Arc::clone(&c.prefix),
                    reach: Reach::Children,
                },
                (View::Predecessor(view), Some(own)) if view.wants_read() => Ask::Older {
                    prefix: Arc::clone(&c.prefix),
                    create_revision: own.create_revision,
                },
                _ => return false,
            },
            _ => return false,
        };
        let request = self.out.ask(Purpose::List { slot, sent: now }, ask);
        self.set_list(slot, Some(request));
        true
    }

    pub(super) fn set_list(&mut self, slot: SlotId, request: Option<RequestId>) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => o.view.set_list(request),
            Some(Slot::Candidate(c)) => match &mut c.view {
                View::Prefix(view) => view.set_list(request),
                View::Predecessor(view) => view.read = request,
            },
            None => {}
        }
    }

    pub fn listed(
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
            && matches!(&answer, Answer::Failed(trouble) if trouble.class == Class::Denied);
        if self.list_of(slot) != Some(request) && !refused {
            return;
        }
        match answer {
            Answer::Listed { header, entries } => {
                self.set_list(slot, None);
                let other = self.leads_behind_elders(slot, &entries)
                    || self.saw_otherwise(slot, header.revision, &entries);
                if other {
                    self.store_exchanged(now, header);
                    return;
                }
                if let Some(Slot::Onlooker(o)) = self.slots.get_mut(&slot) {
                    o.complete.read(sent);
                }
                self.take_snapshot(slot, request, header.revision, entries, false, now);
            }
            Answer::Failed(trouble) => self.list_failed(slot, now, request, trouble),
            _ => {}
        }
    }

    /// Whether a read shows a leader's key behind others that are older. Within one store nothing older can come to be, so
    /// a restore has brought them back, and their owners may lead too.
    fn leads_behind_elders(&self, slot: SlotId, entries: &[Entry]) -> bool {
        let Some(Slot::Candidate(candidate)) = self.slots.get(&slot) else {
            return false;
        };
        let Phase::Leading { own, .. } = candidate.phase() else {
            return false;
        };
        let place = place_in(entries, own, candidate.seats());
        candidate.leads() && matches!(place, Place::Behind(_))
    }

    /// Whether a read contradicts what an onlooker saw: etcd was restored, and has come as far again since. Nothing but the
    /// keys tells then.
    fn saw_otherwise(&self, slot: SlotId, revision: i64, entries: &[Entry]) -> bool {
        match self.slots.get(&slot) {
            Some(Slot::Onlooker(o)) => o.view.roster().contradicts(revision, entries),
            _ => false,
        }
    }

    pub(super) fn list_failed(
        &mut self,
        slot: SlotId,
        now: Time,
        request: RequestId,
        trouble: Trouble,
    ) {
        if matches!(trouble.class, Class::Denied | Class::Invalid)
            && let Some(Slot::Onlooker(_)) = self.slots.get(&slot)
        {
            self.out.act(Action::ObserveFailed { slot, trouble });
            self.forget(slot);
            return;
        }
        let class = trouble.class;
        let prefix = self.prefix_of(slot);
        self.out.note_failure("list", &prefix, trouble);
        let failures = match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => {
                o.failures += 1;
                o.failures
            }
            Some(Slot::Candidate(c)) => {
                c.failures += 1;
                c.failures
            }
            None => return,
        };
        let not_before = now.after(self.pace.pause(failures, class));
        if let Some(Slot::Onlooker(o)) = self.slots.get_mut(&slot) {
            o.not_before = not_before;
        }
        // The list stays 'under way' until then, so that nothing else starts it.
        self.out.set_timer(not_before, Timer::Relist(slot, request));
    }

    /// The pause after a failed list is over.
    pub fn relist(&mut self, slot: SlotId, request: RequestId, now: Time) {
        if self.list_of(slot) == Some(request) {
            self.set_list(slot, None);
            self.want_read(slot, now);
        }
    }

    pub(super) fn list_of(&self, slot: SlotId) -> Option<RequestId> {
        match self.slots.get(&slot)? {
            Slot::Onlooker(o) => o.view.list,
            Slot::Candidate(c) => match &c.view {
                View::Prefix(view) => view.list,
                View::Predecessor(view) => view.read,
            },
        }
    }

    pub(super) fn take_snapshot(
        &mut self,
        slot: SlotId,
        request: RequestId,
        revision: i64,
        entries: Vec<Entry>,
        joined: bool,
        now: Time,
    ) {
        let long = self.config.long_queue;
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => {
                o.failures = 0;
                o.view.snapshot(request, revision, entries);
                self.show(slot);
                self.want_read(slot, now);
            }
            Some(Slot::Candidate(c)) => {
                c.failures = 0;
                let own = c.own().cloned();
                // A read that shows our key first is proof by itself: nothing older can come to be, however many seats.
                let first = own
                    .as_ref()
                    .filter(|_| c.leads())
                    .is_some_and(|own| place_in(&entries, own, c.seats()) == Place::First);
                let auto = joined && c.manner.follow == Follow::Auto;
                match (&mut c.view, &own) {
                    (View::Prefix(_), Some(own)) if auto && ahead(&entries, own) > long => {
                        self.follow_predecessor(slot, revision, &entries);
                    }
                    (View::Prefix(view), _) => view.snapshot(request, revision, entries),
                    (View::Predecessor(view), Some(own)) => view.snapshot(revision, &entries, own),
                    (View::Predecessor(_), None) => {}
                }
                let may_lead = first && self.lease.trusted().is_some();
                if may_lead
                    && let Some(Phase::Waiting { own }) =
                        self.candidate(slot).map(|c| c.phase().clone())
                {
                    self.lead(slot, own);
                }
                self.look(slot, now);
            }
            None => {}
        }
    }
}
