//! Hides how a candidate knows its place: by a gap-free watch of the whole prefix, or of its predecessor only.
//!
//! A view starts from a read at some revision and a watch 'from now'. etcd reports at which revision the watch
//! was created, after registering it, so everything later is delivered: a watch created at or before the
//! read's revision leaves no gap; otherwise the prefix is read once more.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::action::{RequestId, WatchId};
use super::roster::Roster;
use crate::facts::{Change, Entry, Reach, is_direct_child};

/// A candidate's own key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Own {
    pub(crate) key: Arc<[u8]>,
    pub(crate) create_revision: i64,
    pub(crate) lease: i64,
}

/// What became of our own key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// As we wrote it.
    Ours,
    /// Deleted, or deleted and created anew by somebody.
    Gone,
    /// Same key, but bound to another lease or none.
    Overwritten,
}

impl Own {
    /// What one event says about our key.
    pub(crate) fn fate(&self, change: &Change) -> Fate {
        if change.key() != &*self.key {
            return Fate::Ours;
        }
        match change {
            Change::Delete { revision, .. } if *revision > self.create_revision => Fate::Gone,
            Change::Put(entry) if entry.mod_revision > self.create_revision => self.compare(entry),
            _ => Fate::Ours,
        }
    }

    /// What a read of our key says. The create revision is compared, not the existence.
    pub(crate) fn read(&self, entry: Option<&Entry>) -> Fate {
        entry.map_or(Fate::Gone, |entry| self.compare(entry))
    }

    fn compare(&self, entry: &Entry) -> Fate {
        if entry.create_revision != self.create_revision {
            Fate::Gone
        } else if entry.lease != self.lease {
            Fate::Overwritten
        } else {
            Fate::Ours
        }
    }
}

/// A candidate's place, as far as its view can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Not to be told now.
    Unknown,
    /// Nothing older is alive, or fewer than there are seats.
    First,
    /// So many older keys, at most.
    Behind(usize),
    /// Our key is not there.
    Lost(Fate),
}

/// A watcher on the session's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Watcher {
    pub(crate) id: WatchId,
    /// The revision it was created at, once etcd said so.
    pub(crate) created: Option<i64>,
}

impl Watcher {
    pub(crate) fn new(id: WatchId) -> Self {
        Self { id, created: None }
    }

    /// Nothing after `revision` can be missed.
    fn covers(&self, revision: i64) -> bool {
        self.created.is_some_and(|created| created <= revision)
    }
}

/// Every key of the prefix, kept by one watch.
#[derive(Debug, Clone)]
pub(crate) struct PrefixView {
    pub(crate) watcher: Option<Watcher>,
    pub(crate) list: Option<RequestId>,
    roster: Roster,
    synced: bool,
    /// Nothing else reads the prefix: it is read beside opening the watch, which also tells whether that is permitted.
    onlooker: bool,
    /// The watch was opened, and the prefix not read since.
    eager: bool,
    kept_back: Vec<Change>,
}

impl PrefixView {
    /// A candidate's view; its join reads the prefix.
    pub(crate) fn new(prefix: Arc<[u8]>) -> Self {
        Self {
            watcher: None,
            list: None,
            roster: Roster::new(prefix, Reach::Children),
            synced: false,
            onlooker: false,
            eager: false,
            kept_back: Vec::new(),
        }
    }

    /// An onlooker's view; its first read also tells whether looking is permitted.
    pub(crate) fn onlooker(prefix: Arc<[u8]>, reach: Reach) -> Self {
        Self {
            onlooker: true,
            eager: true,
            roster: Roster::new(Arc::clone(&prefix), reach),
            ..Self::new(prefix)
        }
    }

    pub(crate) fn roster(&self) -> &Roster {
        &self.roster
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.synced
    }

    /// The watch is gone; what we knew may be old.
    pub(crate) fn unwatched(&mut self) {
        self.watcher = None;
        self.list = None;
        self.synced = false;
        self.eager = self.onlooker;
        self.kept_back.clear();
    }

    /// The watch stands since `revision`.
    pub(crate) fn created(&mut self, revision: i64) {
        if let Some(watcher) = &mut self.watcher {
            watcher.created = Some(revision);
        }
        self.sync();
    }

    /// A full read of the prefix.
    pub(crate) fn snapshot(&mut self, revision: i64, entries: Vec<Entry>) {
        if self.synced && revision <= self.roster.revision() {
            return;
        }
        self.eager = false;
        // Unsynced, nothing was applied since the last snapshot, so even an older read is a true state;
        // but never go back behind what was decided on.
        if revision >= self.roster.revision() {
            self.roster.replace(revision, entries);
        }
        self.sync();
    }

    /// Only another read can close the gap.
    pub(crate) fn wants_list(&self) -> bool {
        let watched = self.watcher.is_some_and(|w| w.created.is_some());
        !self.synced && self.list.is_none() && (watched || self.eager)
    }

    /// Events of the watch, in order. Calls `at` with the roster after each revision.
    pub(crate) fn changes(&mut self, changes: Vec<Change>, mut at: impl FnMut(&Roster)) {
        if self.synced {
            self.apply(changes, &mut at);
        } else {
            self.kept_back.extend(changes);
        }
    }

    fn apply(&mut self, changes: Vec<Change>, at: &mut impl FnMut(&Roster)) {
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
        if !self.synced && known > 0 && self.watcher.is_some_and(|w| w.covers(known)) {
            self.synced = true;
            let kept_back = std::mem::take(&mut self.kept_back);
            self.apply(kept_back, &mut |_| {});
        }
    }

    fn place(&self, own: &Own, seats: usize) -> Place {
        if !self.synced {
            return Place::Unknown;
        }
        if self.roster.revision() < own.create_revision {
            return Place::Unknown;
        }
        match own.read(self.roster.get(&own.key)) {
            Fate::Ours => match self.roster.ahead_of(own.create_revision) {
                ahead if ahead < seats => Place::First,
                ahead => Place::Behind(ahead),
            },
            lost => Place::Lost(lost),
        }
    }
}

/// The one candidate before us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Predecessor {
    pub(crate) key: Arc<[u8]>,
    pub(crate) create_revision: i64,
    pub(crate) watcher: Option<Watcher>,
}

/// Our own key and our predecessor's, each kept by a watch; of the older ones only what the last read said.
///
/// A long queue costs every candidate one message per change of its *neighbour*. When the predecessor goes and
/// it was the last of the cached older set, nothing older is alive; otherwise one linearizable read tells.
#[derive(Debug, Clone)]
pub(crate) struct PredecessorView {
    prefix: Arc<[u8]>,
    pub(crate) own: Option<Watcher>,
    pub(crate) predecessor: Option<Predecessor>,
    pub(crate) read: Option<RequestId>,
    /// Watchers no longer needed, for the machine to cancel.
    pub(crate) discarded: Vec<WatchId>,
    older: BTreeMap<i64, Arc<[u8]>>,
    /// The eldest, if it has no lease.
    blocker: Option<Arc<[u8]>>,
    known_at: i64,
    own_fate: Fate,
    stale: bool,
}

impl PredecessorView {
    pub(crate) fn new(prefix: Arc<[u8]>) -> Self {
        Self {
            prefix,
            own: None,
            predecessor: None,
            read: None,
            discarded: Vec::new(),
            older: BTreeMap::new(),
            blocker: None,
            known_at: 0,
            own_fate: Fate::Gone,
            stale: true,
        }
    }

    /// All watches are gone; what we knew may be old.
    pub(crate) fn unwatched(&mut self) {
        self.own = None;
        if let Some(predecessor) = &mut self.predecessor {
            predecessor.watcher = None;
        }
        self.read = None;
        self.discarded.clear();
        self.stale = true;
    }

    /// Every watcher that stands for this view.
    pub(crate) fn watchers(&self) -> Vec<WatchId> {
        let neighbour = self.predecessor.as_ref().and_then(|p| p.watcher);
        let standing = self.own.iter().chain(neighbour.iter()).map(|w| w.id);
        standing.chain(self.discarded.iter().copied()).collect()
    }

    /// A linearizable read of every key at least as old as ours.
    pub(crate) fn snapshot(&mut self, revision: i64, entries: &[Entry], own: &Own) {
        if revision < self.known_at {
            return;
        }
        self.known_at = revision;
        self.own_fate = own.read(entries.iter().find(|e| e.key == own.key));
        let older = |entry: &&Entry| {
            entry.create_revision < own.create_revision && is_direct_child(&self.prefix, &entry.key)
        };
        let older = entries.iter().filter(older);
        let eldest = older.clone().min_by_key(|entry| entry.create_revision);
        self.blocker = eldest
            .filter(|entry| entry.lease == 0)
            .map(|entry| Arc::clone(&entry.key));
        self.older = older
            .map(|entry| (entry.create_revision, Arc::clone(&entry.key)))
            .collect();
        self.stale = false;
        self.follow();
    }

    /// A watch stands since `revision`; if that is later than what we know, there may be a gap.
    pub(crate) fn created(&mut self, watch: WatchId, revision: i64) {
        for watcher in self.own.iter_mut().chain(
            self.predecessor
                .iter_mut()
                .filter_map(|p| p.watcher.as_mut()),
        ) {
            if watcher.id == watch {
                watcher.created = Some(revision);
                if revision > self.known_at {
                    self.stale = true;
                }
            }
        }
    }

    /// Only another read can tell.
    pub(crate) fn wants_read(&self) -> bool {
        let standing = |w: Option<&Watcher>| w.is_some_and(|w| w.created.is_some());
        self.stale
            && self.read.is_none()
            && standing(self.own.as_ref())
            && self
                .predecessor
                .as_ref()
                .is_none_or(|p| standing(p.watcher.as_ref()))
    }

    /// Events on our own key are judged by [`Own::fate`]; here only the predecessor's count.
    pub(crate) fn changes(&mut self, changes: &[Change]) {
        let Some(predecessor) = &self.predecessor else {
            return;
        };
        let gone = changes.iter().any(|change| {
            change.key() == &*predecessor.key
                && change.revision() > self.known_at
                && match change {
                    Change::Delete { .. } => true,
                    Change::Put(entry) => entry.create_revision != predecessor.create_revision,
                }
        });
        if gone {
            self.older.remove(&predecessor.create_revision);
            if self.older.is_empty() {
                self.follow();
            } else {
                // Older ones may have left unseen: ask, rather than walk the chain.
                if let Some(watcher) = predecessor.watcher {
                    self.discarded.push(watcher.id);
                }
                self.predecessor = None;
                self.stale = true;
            }
        }
    }

    fn follow(&mut self) {
        let wanted = self
            .older
            .last_key_value()
            .map(|(revision, key)| (*revision, Arc::clone(key)));
        let followed = self
            .predecessor
            .as_ref()
            .map(|p| (p.create_revision, Arc::clone(&p.key)));
        if wanted == followed {
            return;
        }
        if let Some(watcher) = self.predecessor.take().and_then(|p| p.watcher) {
            self.discarded.push(watcher.id);
        }
        self.predecessor = wanted.map(|(create_revision, key)| Predecessor {
            key,
            create_revision,
            watcher: None,
        });
    }

    /// A key without a lease at the head of the queue, when that was last read.
    pub(crate) fn blocker(&self) -> Option<&Arc<[u8]>> {
        self.blocker.as_ref().filter(|_| !self.older.is_empty())
    }

    fn place(&self) -> Place {
        if self.stale {
            return Place::Unknown;
        }
        if self.own_fate != Fate::Ours {
            return Place::Lost(self.own_fate);
        }
        match self.older.len() {
            0 => Place::First,
            ahead => Place::Behind(ahead),
        }
    }
}

impl PrefixView {
    /// A key without a lease at the head: no live candidate, it will never go by itself, and nobody can lead.
    pub(crate) fn blocker(&self) -> Option<&Entry> {
        let first = self.synced.then(|| self.roster.eldest()).flatten();
        first.filter(|entry| entry.lease == 0)
    }
}

/// How a candidate looks at the queue.
#[derive(Debug, Clone)]
pub(crate) enum View {
    Prefix(PrefixView),
    Predecessor(PredecessorView),
}

impl View {
    /// `seats` of the eldest are first; who follows the predecessor alone knows of one.
    pub(crate) fn place(&self, own: &Own, seats: usize) -> Place {
        match self {
            View::Prefix(view) => view.place(own, seats),
            View::Predecessor(view) => view.place(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &[u8] = b"e/";

    fn entry(key: &str, create_revision: i64, lease: i64) -> Entry {
        Entry {
            key: key.as_bytes().into(),
            value: (*b"v").into(),
            create_revision,
            mod_revision: create_revision,
            lease,
        }
    }

    fn own(create_revision: i64) -> Own {
        Own {
            key: (*b"e/me").into(),
            create_revision,
            lease: 1,
        }
    }

    fn delete(key: &str, revision: i64) -> Change {
        Change::Delete {
            key: key.as_bytes().into(),
            revision,
        }
    }

    fn watched(created: i64) -> PrefixView {
        let mut view = PrefixView::new(PREFIX.into());
        view.watcher = Some(Watcher::new(1));
        view.created(created);
        view
    }

    fn queue() -> Vec<Entry> {
        vec![entry("e/a", 3, 9), entry("e/b", 4, 8), entry("e/me", 10, 1)]
    }

    #[test]
    fn a_watch_created_before_the_read_leaves_no_gap() {
        let mut view = watched(9);
        view.snapshot(10, queue());
        assert!(!view.wants_list());
        assert_eq!(view.place(&own(10), 1), Place::Behind(2));
    }

    #[test]
    fn a_watch_created_after_the_read_wants_the_prefix_read_again() {
        let mut view = watched(12);
        view.snapshot(10, queue());
        assert!(view.wants_list());
        assert_eq!(
            view.place(&own(10), 1),
            Place::Unknown,
            "a delete at 11 would have been missed"
        );
        view.snapshot(12, queue());
        assert_eq!(view.place(&own(10), 1), Place::Behind(2));
    }

    #[test]
    fn events_that_arrive_before_the_read_are_applied_after_it() {
        let mut view = watched(9);
        view.changes(vec![delete("e/a", 11), delete("e/b", 9)], |_| {});
        assert_eq!(view.place(&own(10), 1), Place::Unknown);
        view.snapshot(10, queue());
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
        view.snapshot(10, queue());
        view.changes(vec![delete("e/b", 11)], |_| {});
        assert_eq!(view.place(&own(10), 1), Place::Behind(1));
        view.changes(vec![delete("e/a", 12)], |_| {});
        assert_eq!(view.place(&own(10), 1), Place::First);
    }

    #[test]
    fn all_events_of_one_revision_are_decided_on_together() {
        let mut view = watched(9);
        view.snapshot(10, queue());
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
        view.snapshot(10, queue());
        let mut again = entry("e/me", 12, 1);
        again.mod_revision = 12;
        assert_eq!(own(10).fate(&Change::Put(again.clone())), Fate::Gone);
        view.changes(vec![Change::Put(again)], |_| {});
        assert_eq!(view.place(&own(10), 1), Place::Lost(Fate::Gone));
    }

    #[test]
    fn a_key_without_our_lease_is_overwritten() {
        let mut foreign = entry("e/me", 10, 0);
        foreign.mod_revision = 13;
        assert_eq!(own(10).fate(&Change::Put(foreign)), Fate::Overwritten);
    }

    fn following() -> PredecessorView {
        let mut view = PredecessorView::new(PREFIX.into());
        view.snapshot(10, &queue(), &own(10));
        view.own = Some(Watcher::new(1));
        view.created(1, 10);
        view.predecessor.as_mut().unwrap().watcher = Some(Watcher::new(2));
        view.created(2, 10);
        view
    }

    #[test]
    fn the_youngest_of_the_older_is_followed() {
        let view = following();
        assert_eq!(&*view.predecessor.as_ref().unwrap().key, b"e/b");
        assert_eq!(view.place(), Place::Behind(2));
        assert!(!view.wants_read());
    }

    #[test]
    fn the_predecessor_leaving_says_nothing_about_those_before_it() {
        let mut view = following();
        view.changes(&[delete("e/b", 11)]);
        assert_eq!(view.place(), Place::Unknown);
        assert!(view.wants_read());
        view.snapshot(11, &[entry("e/a", 3, 9), entry("e/me", 10, 1)], &own(10));
        assert_eq!(view.place(), Place::Behind(1));
        assert_eq!(view.discarded, [2]);
    }

    #[test]
    fn the_last_of_the_older_leaving_makes_us_first_without_a_read() {
        let mut view = PredecessorView::new(PREFIX.into());
        view.snapshot(10, &[entry("e/a", 3, 9), entry("e/me", 10, 1)], &own(10));
        view.own = Some(Watcher::new(1));
        view.predecessor.as_mut().unwrap().watcher = Some(Watcher::new(2));
        view.created(1, 10);
        view.created(2, 9);
        view.changes(&[delete("e/a", 11)]);
        assert!(!view.wants_read());
        assert_eq!(view.place(), Place::First);
    }

    #[test]
    fn a_predecessor_watch_that_stands_too_late_wants_a_read() {
        let mut view = PredecessorView::new(PREFIX.into());
        view.snapshot(10, &queue(), &own(10));
        view.own = Some(Watcher::new(1));
        view.predecessor.as_mut().unwrap().watcher = Some(Watcher::new(2));
        view.created(1, 10);
        view.created(2, 14);
        assert_eq!(view.place(), Place::Unknown);
        assert!(view.wants_read());
    }
}
