//! Keeps a candidate's view of the queue, by watches and reads.

use std::sync::Arc;

use super::config::WatchScope;
use super::phase::Phase;
use super::seat::Seat;
use super::{Role, new_view};
use crate::action::{Ask, Class};
use crate::ids::{RequestId, SlotId, WatchId};
use crate::kv::{Change, Entry, Reach};
use crate::purpose::Purpose;
use crate::queue::{Fate, Place, PredecessorView, PrefixView, View, ahead, place_in};
use crate::time::Time;

impl Seat<'_> {
    /// Opens the missing watches of the candidate, and closes those that it no longer needs.
    pub(crate) fn watch(&mut self) {
        if self.me.leaving().is_some() || self.me.owner_of().is_some() {
            return;
        }
        let own = self.me.own().map(|own| Arc::clone(&own.key));
        let watching = self.me.view.watching(own);
        self.close_watches(watching.discarded);
        for (key, prefix) in watching.wanted {
            let slot = self.slot;
            let watcher = self.watches.open(slot, Arc::clone(&key), prefix, self.out);
            if let Some(watcher) = watcher {
                self.me.view.watched(&key, watcher);
            }
        }
    }

    pub(super) fn close_watches(&mut self, watches: Vec<WatchId>) {
        for watch in watches {
            self.watches.close(watch, self.out);
        }
    }

    /// Replaces the view for a new key: its place has other neighbours.
    pub(super) fn renew_view(&mut self) {
        let narrow = self.me.config.watch_scope == WatchScope::Predecessor;
        if narrow || matches!(self.me.view, View::Predecessor(_)) {
            let fresh = new_view(&self.me.prefix, self.me.config.watch_scope);
            let before = std::mem::replace(&mut self.me.view, fresh);
            self.close_watches(before.watchers());
        }
    }

    /// Applies events of a watch, in order. Events of its own key, and of the partitions that it owns, are handled even
    /// while a gap is being closed. Returns the fate of each partition whose key is lost.
    pub(crate) fn changed(&mut self, changes: Vec<Change>) -> Vec<(SlotId, Fate)> {
        let me = &mut *self.me;
        let own = me.phase.own();
        let (mut fate, mut partitions) = (Fate::Ours, Vec::new());
        let mut judged = changes.into_iter().inspect(|change| {
            if fate == Fate::Ours
                && let Some(own) = own
            {
                fate = own.fate(change);
            }
            if let Role::Member(member) = &mut me.role {
                partitions.extend(member.judge(&me.prefix, change));
            }
        });
        me.view.changes(&mut judged);
        // A view with a gap may leave events, which are judged nevertheless.
        judged.for_each(drop);
        self.key_lost(fate);
        partitions
    }

    /// Reads the queue if only a read can close a gap. Reads of candidates that wait for their turn come first. A
    /// leader's read finds the candidates behind it. Until then, each renewal also checks its key, and such reads must
    /// delay no join.
    pub(crate) fn want_read(&mut self) {
        if !self.wants_read() {
            return;
        }
        let is_next = if self.me.is_leading() {
            let (slot, idle) = (self.slot, self.joins.is_idle());
            self.lists.enter_last(slot, idle)
        } else {
            self.lists.enter(self.slot)
        };
        if is_next && self.start_list() {
            self.lists.sent();
        }
    }

    /// Returns true if only a read can close a gap. A join in flight reads the prefix anyway.
    fn wants_read(&self) -> bool {
        match self.me.phase {
            Phase::Joining { .. } | Phase::Leaving { .. } => false,
            _ => self.next_read().is_some(),
        }
    }

    /// Returns the read that the view wants.
    fn next_read(&self) -> Option<Ask> {
        let prefix = Arc::clone(&self.me.prefix);
        match (&self.me.view, self.me.own()) {
            (View::Prefix(view), _) if view.wants_list() => Some(Ask::List {
                prefix,
                reach: Reach::Children,
            }),
            (View::Predecessor(view), Some(own)) if view.wants_read() => Some(Ask::Older {
                prefix,
                create_revision: own.create_revision,
            }),
            _ => None,
        }
    }

    /// Sends the read that the view wants, if it still does.
    pub(crate) fn start_list(&mut self) -> bool {
        let (slot, sent) = (self.slot, self.now);
        let Some(ask) = self.next_read() else {
            return false;
        };
        let request = self.out.ask(Purpose::List { slot, sent }, ask);
        self.me.view.set_read(Some(request));
        true
    }

    /// Handles a failed read. Returns when the next one may be sent.
    pub(crate) fn read_failed(&mut self, class: Class) -> Time {
        self.me.failures += 1;
        self.now.after(self.pace.pause(self.me.failures, class))
    }

    /// Returns true if a read shows its key behind others that are older, though it leads. Within one store no older
    /// key can appear, so a restore has brought them back, and their owners may lead too.
    pub(crate) fn leads_behind(&self, entries: &[Entry]) -> bool {
        let Phase::Leading { own, .. } = &self.me.phase else {
            return false;
        };
        let place = place_in(entries, own, self.me.capacity());
        self.me.leads() && matches!(place, Place::Behind(_))
    }

    /// Applies the answer to `request`: a read, or a join that read the prefix and put the key. If the number of older
    /// keys makes the queue long, a new candidate follows its neighbours.
    pub(crate) fn take_snapshot(
        &mut self,
        (request, joined): (RequestId, bool),
        revision: i64,
        mut entries: Vec<Entry>,
    ) {
        self.me.failures = 0;
        let own = self.me.own().cloned();
        if matches!(self.me.role, Role::Present) && !self.me.has_neighbours() {
            // The member waits for no other, so no other key is watched.
            entries.retain(|entry| own.as_ref().is_some_and(|own| own.key == entry.key));
        }
        // A read that shows the key first is proof by itself: no older key can appear, whatever the capacity.
        let first = own
            .as_ref()
            .filter(|_| self.me.leads())
            .is_some_and(|own| place_in(&entries, own, self.me.capacity()) == Place::First);
        let auto = joined && self.me.config.watch_scope == WatchScope::Auto;
        match (&mut self.me.view, &own) {
            (View::Prefix(_), Some(own))
                if auto && ahead(&entries, own) > self.config.long_queue =>
            {
                self.follow_predecessor(revision, &entries);
            }
            (view, own) => view.snapshot(request, revision, entries, own.as_ref()),
        }
        // The event of the key's end may have arrived before this answer.
        let stands = own.is_none_or(|own| !self.me.shows_gone(&own));
        // A candidate that may have to give way first reads the candidates behind it.
        let first = first && stands && !self.is_in_the_way();
        let may_lead = first && self.lease.deadlines().leads_until().is_some();
        if may_lead
            && let Phase::Waiting { own } = self.me.phase.clone()
            && self.is_admitted(&own)
        {
            self.lead(own);
        }
        self.review_place();
    }

    /// Makes the candidate follow its neighbours from now on, if the queue has become long and the candidate is not the
    /// next to lead.
    pub(super) fn follow_if_long(&mut self) {
        let (Phase::Waiting { own }, WatchScope::Auto, View::Prefix(view)) =
            (&self.me.phase, self.me.config.watch_scope, &self.me.view)
        else {
            return;
        };
        if !view.is_too_wide(own, self.config.long_queue) {
            return;
        }
        let roster = view.roster();
        debug_assert!(
            roster.ahead_of(own.create_revision) > 1,
            "the next to lead keeps its view of the whole queue"
        );
        let (revision, entries) = (roster.revision(), roster.in_order().cloned());
        let entries: Vec<_> = entries.collect();
        self.follow_predecessor(revision, &entries);
    }

    /// Makes a member of a large group watch everyone when it has become one of the two eldest, because these watch the
    /// youngest for signs of life.
    pub(super) fn follow_youngest_if_eldest(&mut self) {
        let is_eldest = match (&self.me.phase, &self.me.view) {
            (Phase::Waiting { own }, View::Predecessor(_)) if self.me.has_neighbours() => {
                matches!(self.me.place(own), Place::First | Place::Behind(1))
            }
            _ => false,
        };
        if is_eldest {
            self.follow_everyone();
        }
    }

    /// Makes the candidate watch the whole queue from now on.
    pub(super) fn follow_everyone(&mut self) {
        let everyone = View::Prefix(PrefixView::new(Arc::clone(&self.me.prefix)));
        let before = std::mem::replace(&mut self.me.view, everyone);
        self.close_watches(before.watchers());
    }

    /// Makes the candidate watch only its neighbours from now on. `entries` is the whole queue; a read closes the gap
    /// before the new watches.
    fn follow_predecessor(&mut self, revision: i64, entries: &[Entry]) {
        if let Some(own) = self.me.own() {
            let mut following = PredecessorView::new(Arc::clone(&self.me.prefix));
            following.snapshot(revision, entries, own);
            let before = std::mem::replace(&mut self.me.view, View::Predecessor(following));
            self.close_watches(before.watchers());
        }
    }
}
