//! Determines a candidate's place by a gap-free watch of the whole prefix.
//!
//! A view starts from a read at some revision and a watch 'from now'. etcd reports at which revision the watch was
//! created, after registering it, so everything later is delivered. A watch created at or before the read's revision
//! leaves no gap; otherwise the prefix is read once more. An observer's view counts only a read that began after that
//! report.

use std::sync::Arc;

use super::own::{Fate, Own};
use super::place::{Place, excludes, is_shared, place_behind};
use super::roster::Roster;
use super::watcher::Watcher;
use crate::ids::{RequestId, WatchId};
use crate::kv::{Change, Entry, Reach};

/// Every key of the prefix, kept by one watch.
#[derive(Debug, Clone)]
pub struct PrefixView {
    watcher: Option<Watcher>,
    /// The read in flight.
    list: Option<RequestId>,
    roster: Roster,
    synced: bool,
    /// True for an observer, for which no join reads the prefix: it is read while the watch is opened, which also shows
    /// whether that is permitted.
    observer: bool,
    /// True if the watch was opened, and the prefix was not read since.
    eager: bool,
    /// The join in flight, which reads the prefix.
    joining: Option<RequestId>,
    /// The request whose answer the roster shows.
    read_by: RequestId,
    /// The events since the read in flight began; its answer will include earlier events.
    kept_back: Vec<Change>,
}

impl PrefixView {
    /// Makes a candidate's view; its join reads the prefix.
    pub fn new(prefix: Arc<[u8]>) -> Self {
        Self {
            watcher: None,
            list: None,
            roster: Roster::new(prefix, Reach::Children),
            synced: false,
            observer: false,
            eager: false,
            joining: None,
            read_by: 0,
            kept_back: Vec::new(),
        }
    }

    /// Makes an observer's view; its first read also shows whether reading is permitted.
    pub fn observer(prefix: Arc<[u8]>, reach: Reach) -> Self {
        Self {
            observer: true,
            eager: true,
            roster: Roster::new(Arc::clone(&prefix), reach),
            ..Self::new(prefix)
        }
    }

    /// Returns everything that the view has seen.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Returns `true` if the watch has no gap since the last read.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Returns every watch of this view.
    pub fn watchers(&self) -> Vec<WatchId> {
        self.watcher.iter().map(|watcher| watcher.id).collect()
    }

    /// Returns the view's prefix, if no watch of it was requested.
    pub fn unwatched_prefix(&self) -> Option<Arc<[u8]>> {
        let unwatched = self.watcher.is_none();
        unwatched.then(|| Arc::clone(self.roster.prefix()))
    }

    /// Records that the watch of the prefix was requested.
    pub fn watched(&mut self, watcher: Watcher) {
        self.watcher = Some(watcher);
    }

    /// Returns the read in flight.
    pub fn list(&self) -> Option<RequestId> {
        self.list
    }

    /// Records that the watch is gone, so the view may be outdated.
    pub fn unwatched(&mut self) {
        self.watcher = None;
        self.list = None;
        self.synced = false;
        self.eager = self.observer;
    }

    /// Records that a read began, or that the one in flight is over.
    pub fn set_list(&mut self, list: Option<RequestId>) {
        if list.is_some() && self.joining.is_none() {
            self.kept_back.clear();
        }
        self.list = list;
    }

    /// Records that a join began, which reads the prefix. The view waits for that read, whatever it showed: the former
    /// key may have been lost because etcd was restored, and then the view belongs to the former store.
    pub fn join_begun(&mut self, request: RequestId) {
        if self.list.is_none() {
            self.kept_back.clear();
        }
        self.synced = false;
        self.joining = Some(request);
    }

    /// Records that a join was answered, with any result.
    pub fn join_over(&mut self, request: RequestId) {
        self.joining.take_if(|join| *join == request);
    }

    /// Records that the watch exists since `revision`.
    pub fn created(&mut self, revision: i64) {
        if let Some(watcher) = &mut self.watcher {
            watcher.created = Some(revision);
        }
        // etcd may have been restored after that read, and even have reached the same revision again. A candidate
        // detects a restore by its key and its lease; an observer has neither.
        if self.observer {
            self.read_by = 0;
            self.list = None;
        }
        self.sync();
    }

    /// Processes a full read of the prefix, the answer to `request`.
    pub fn snapshot(&mut self, request: RequestId, revision: i64, entries: Vec<Entry>) {
        if self.synced && revision <= self.roster.revision() {
            return;
        }
        debug_assert!(
            !self.synced || self.roster.revision() < revision,
            "a complete view never goes back"
        );
        self.eager = false;
        self.read_by = self.read_by.max(request);
        // While the view is not synced, no event was applied since the last snapshot, so even an older read is a true
        // state. No decision depends on it: a read that syncs a view began after its watch, and is not older than what
        // the session knew then.
        self.roster.replace(revision, entries);
        self.sync();
    }

    /// Returns `true` if only another read can close the gap.
    pub fn wants_list(&self) -> bool {
        let watched = self.watcher.is_some_and(|w| w.created.is_some());
        !self.synced && self.list.is_none() && (watched || self.eager)
    }

    /// Applies events of the watch, in order. Calls `at` with the roster after each revision.
    pub fn changes(
        &mut self,
        changes: impl IntoIterator<Item = Change>,
        mut at: impl FnMut(&Roster),
    ) {
        if self.synced {
            self.apply(changes, &mut at);
        } else if self.list.is_some() || self.joining.is_some() {
            self.kept_back.extend(changes);
        }
    }

    fn apply(&mut self, changes: impl IntoIterator<Item = Change>, at: &mut impl FnMut(&Roster)) {
        let mut open: Option<(i64, bool)> = None;
        for change in changes {
            let revision = change.revision();
            if let Some((last, touched)) = open
                && last != revision
            {
                self.roster.reached(last);
                if touched {
                    at(&self.roster);
                }
                open = None;
            }
            let touched = self.roster.apply(change);
            open = Some((revision, touched || open.is_some_and(|(_, t)| t)));
        }
        if let Some((last, touched)) = open {
            self.roster.reached(last);
            if touched {
                at(&self.roster);
            }
        }
    }

    fn sync(&mut self) {
        let known = self.roster.revision();
        // A read begun before its watch was requested may come from a store that was exchanged since.
        let covered = self
            .watcher
            .is_some_and(|w| w.covers(known) && w.id < self.read_by as WatchId);
        if !self.synced && known > 0 && covered {
            self.synced = true;
            let kept_back = std::mem::take(&mut self.kept_back);
            self.apply(kept_back, &mut |_| {});
        }
    }

    /// Returns `true` if there are more than `long` candidates beside `own`, and `own` is not the next to lead.
    pub fn is_too_wide(&self, own: &Own, long: usize) -> bool {
        self.roster.len() > long + 1 && matches!(self.place(own, 1), Place::Behind(2..))
    }

    pub(super) fn place(&self, own: &Own, capacity: usize) -> Place {
        if !self.synced {
            return Place::Unknown;
        }
        if self.roster.revision() < own.create_revision {
            return Place::Unknown;
        }
        match own.read(self.roster.get(&own.key)) {
            Fate::Ours => place_behind(self.ahead(own), capacity),
            lost => Place::Lost(lost),
        }
    }

    /// Returns `false` if the view shows that `own` is not among the eldest.
    pub(super) fn may_be_first(&self, own: &Own, capacity: usize) -> bool {
        self.roster.revision() >= own.create_revision
            && own.read(self.roster.get(&own.key)) == Fate::Ours
            && self.ahead(own) < capacity
    }

    fn ahead(&self, own: &Own) -> usize {
        if !is_shared(&own.key) {
            // Every older key excludes a writer, and these are counted without reading each.
            return self.roster.ahead_of(own.create_revision);
        }
        let older = self.roster.in_order();
        let older = older.take_while(|entry| entry.create_revision < own.create_revision);
        older.filter(|entry| excludes(&entry.key, &own.key)).count()
    }

    /// Returns a key without a lease at the head: it belongs to no live candidate and never expires, so no candidate
    /// can lead.
    pub fn blocker(&self) -> Option<&Entry> {
        let first = self.synced.then(|| self.roster.eldest()).flatten();
        first.filter(|entry| entry.lease == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{PREFIX, delete, entry, own, queue};
    use super::*;

    fn watched(created: i64) -> PrefixView {
        let mut view = PrefixView::new(PREFIX.into());
        view.watcher = Some(Watcher::new(1));
        view.created(created);
        view.join_begun(2);
        view
    }

    #[test]
    fn a_watch_created_before_the_read_leaves_no_gap() {
        let mut view = watched(9);
        view.snapshot(2, 10, queue());
        assert!(!view.wants_list());
        assert_eq!(view.place(&own(10), 1), Place::Behind(2));
    }

    #[test]
    fn a_watch_created_after_the_read_wants_the_prefix_read_again() {
        let mut view = watched(12);
        view.snapshot(2, 10, queue());
        assert!(view.wants_list());
        assert_eq!(
            view.place(&own(10), 1),
            Place::Unknown,
            "a delete at 11 would have been missed"
        );
        view.snapshot(3, 12, queue());
        assert_eq!(view.place(&own(10), 1), Place::Behind(2));
    }

    #[test]
    fn events_are_kept_only_while_a_read_is_under_way() {
        let mut view = watched(9);
        view.join_over(2);
        view.changes(vec![delete("e/a", 11)], |_| {});
        assert!(view.kept_back.is_empty());
        view.set_list(Some(3));
        view.changes(vec![delete("e/b", 12)], |_| {});
        view.set_list(Some(4));
        assert!(view.kept_back.is_empty(), "the later read shows it");
    }

    #[test]
    fn read_begun_before_its_watch_was_requested_does_not_count() {
        let mut view = watched(9);
        view.unwatched();
        view.watcher = Some(Watcher::new(5));
        view.created(9);
        view.snapshot(2, 10, queue());
        assert_eq!(view.place(&own(10), 1), Place::Unknown);
        assert!(view.wants_list());
        view.snapshot(6, 10, queue());
        assert_eq!(view.place(&own(10), 1), Place::Behind(2));
    }

    #[test]
    fn read_of_a_join_replaces_what_was_known_before_the_join() {
        let mut view = watched(9);
        let mut former = queue();
        former.push(entry("e/former", 8, 7));
        view.snapshot(2, 12, former);
        view.join_begun(3);
        assert_eq!(view.place(&own(10), 1), Place::Unknown);
        view.changes(vec![delete("e/b", 13)], |_| {});
        view.snapshot(3, 12, queue());
        assert_eq!(view.place(&own(10), 1), Place::Behind(1));
    }

    #[test]
    fn observer_reads_again_when_its_watch_starts_below_the_read_revision() {
        let mut view = PrefixView::observer(PREFIX.into(), Reach::Children);
        view.watcher = Some(Watcher::new(1));
        view.set_list(Some(2));
        view.set_list(None);
        view.snapshot(2, 10, queue());
        view.created(9);
        assert!(!view.is_synced(), "that read may be of a former store");
        assert!(view.wants_list());
        view.snapshot(3, 10, queue());
        assert!(view.is_synced());
    }

    #[test]
    fn read_older_than_our_own_key_shows_no_place() {
        let mut view = watched(3);
        view.snapshot(2, 4, vec![entry("e/a", 3, 9), entry("e/b", 4, 8)]);
        assert_eq!(view.place(&own(10), 1), Place::Unknown);
    }

    #[test]
    fn complete_view_takes_no_read_that_is_older_than_itself() {
        let mut view = watched(9);
        view.snapshot(2, 10, queue());
        view.changes(vec![delete("e/a", 12)], |_| {});
        view.snapshot(3, 11, queue());
        assert_eq!(view.place(&own(10), 1), Place::Behind(1));
    }

    #[test]
    fn events_are_kept_for_a_read_and_a_join_in_either_order() {
        let (read, join) = (2, 3);
        for read_first in [true, false] {
            let mut view = PrefixView::new(PREFIX.into());
            view.watcher = Some(Watcher::new(1));
            view.created(9);
            if read_first {
                view.set_list(Some(read));
            } else {
                view.join_begun(join);
            }
            view.changes(vec![delete("e/a", 11)], |_| {});
            if read_first {
                view.join_begun(join);
            } else {
                view.set_list(Some(read));
            }
            view.snapshot(read, 10, queue());
            assert_eq!(view.place(&own(10), 1), Place::Behind(1), "{read_first}");
        }
    }

    #[test]
    fn observer_does_not_wait_for_a_read_begun_before_its_watch() {
        let mut view = PrefixView::observer(PREFIX.into(), Reach::Children);
        view.watcher = Some(Watcher::new(1));
        view.set_list(Some(2));
        view.created(9);
        assert!(view.wants_list(), "etcd may be restored before it answers");
    }

    #[test]
    fn events_that_arrive_before_the_read_are_applied_after_it() {
        let mut view = watched(9);
        view.changes(vec![delete("e/a", 11), delete("e/b", 9)], |_| {});
        assert_eq!(view.place(&own(10), 1), Place::Unknown);
        view.snapshot(2, 10, queue());
        assert_eq!(
            view.place(&own(10), 1),
            Place::Behind(1),
            "the event at 9 is part of the read"
        );
    }

    #[test]
    fn the_middle_candidate_leaving_does_not_make_the_third_leader() {
        // Complaint 9.
        let mut view = watched(9);
        view.snapshot(2, 10, queue());
        view.changes(vec![delete("e/b", 11)], |_| {});
        assert_eq!(view.place(&own(10), 1), Place::Behind(1));
        view.changes(vec![delete("e/a", 12)], |_| {});
        assert_eq!(view.place(&own(10), 1), Place::First);
    }

    #[test]
    fn all_events_of_one_revision_are_decided_on_together() {
        let mut view = watched(9);
        view.snapshot(2, 10, queue());
        let mut seen = Vec::new();
        view.changes(
            vec![delete("e/a", 11), delete("e/me", 11), delete("e/b", 12)],
            |r| seen.push((r.revision(), r.in_order().count())),
        );
        assert_eq!(seen, [(11, 1), (12, 0)]);
        assert_eq!(view.place(&own(10), 1), Place::Lost(Fate::Gone));
    }

    #[test]
    fn a_key_deleted_and_recreated_is_not_ours() {
        let mut view = watched(9);
        view.snapshot(2, 10, queue());
        let mut again = entry("e/me", 12, 1);
        again.mod_revision = 12;
        assert_eq!(own(10).fate(&Change::Put(again.clone())), Fate::Gone);
        view.changes(vec![Change::Put(again)], |_| {});
        assert_eq!(view.place(&own(10), 1), Place::Lost(Fate::Gone));
    }
}
