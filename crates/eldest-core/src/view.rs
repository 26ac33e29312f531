//! Determines a candidate's place by a gap-free watch of the whole prefix, or of the candidate's own key and its
//! nearest predecessors.
//!
//! A view starts from a read at some revision and a watch 'from now'. etcd reports at which revision the watch was
//! created, after registering it, so everything later is delivered. A watch created at or before the read's revision
//! leaves no gap; otherwise the prefix is read once more. An observer's view counts only a read that began after that
//! report.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::action::{RequestId, WatchId};
use super::roster::Roster;
use crate::facts::{Change, Entry, Reach, is_direct_child};

/// A candidate's own key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    pub key: Arc<[u8]>,
    pub create_revision: i64,
    pub lease: i64,
}

/// What became of our own key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// As we wrote it.
    Ours,
    /// Deleted, or deleted and created anew by somebody.
    Gone,
    /// Same key, but bound to another lease or none.
    Overwritten,
}

impl Own {
    pub fn is(&self, entry: &Entry) -> bool {
        self.key == entry.key && self.create_revision == entry.create_revision
    }

    /// What one event says about our key.
    pub fn fate(&self, change: &Change) -> Fate {
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
    pub fn read(&self, entry: Option<&Entry>) -> Fate {
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
pub enum Place {
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
pub struct Watcher {
    pub id: WatchId,
    /// The revision it was created at, once etcd said so.
    pub created: Option<i64>,
}

impl Watcher {
    pub fn new(id: WatchId) -> Self {
        Self { id, created: None }
    }

    /// Nothing after `revision` can be missed.
    fn covers(&self, revision: i64) -> bool {
        self.created.is_some_and(|created| created <= revision)
    }
}

/// Every key of the prefix, kept by one watch.
#[derive(Debug, Clone)]
pub struct PrefixView {
    pub watcher: Option<Watcher>,
    pub list: Option<RequestId>,
    roster: Roster,
    synced: bool,
    /// Nothing else reads the prefix: it is read beside opening the watch, which also tells whether that is permitted.
    onlooker: bool,
    /// The watch was opened, and the prefix not read since.
    eager: bool,
    /// The join under way, which reads the prefix.
    joining: Option<RequestId>,
    /// The request whose answer the roster is from.
    read_by: RequestId,
    /// What the watch told since the read under way was begun; earlier events are part of what it will show.
    kept_back: Vec<Change>,
}

impl PrefixView {
    /// A candidate's view; its join reads the prefix.
    pub fn new(prefix: Arc<[u8]>) -> Self {
        Self {
            watcher: None,
            list: None,
            roster: Roster::new(prefix, Reach::Children),
            synced: false,
            onlooker: false,
            eager: false,
            joining: None,
            read_by: 0,
            kept_back: Vec::new(),
        }
    }

    /// An onlooker's view; its first read also tells whether looking is permitted.
    pub fn onlooker(prefix: Arc<[u8]>, reach: Reach) -> Self {
        Self {
            onlooker: true,
            eager: true,
            roster: Roster::new(Arc::clone(&prefix), reach),
            ..Self::new(prefix)
        }
    }

    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Every watcher that stands for this view.
    pub fn watchers(&self) -> Vec<WatchId> {
        self.watcher.iter().map(|watcher| watcher.id).collect()
    }

    /// The watch is gone; what we knew may be old.
    pub fn unwatched(&mut self) {
        self.watcher = None;
        self.list = None;
        self.synced = false;
        self.eager = self.onlooker;
    }

    /// A list was begun, or the one under way is over.
    pub fn set_list(&mut self, list: Option<RequestId>) {
        if list.is_some() && self.joining.is_none() {
            self.kept_back.clear();
        }
        self.list = list;
    }

    /// A join was begun, which reads the prefix. The view waits for that read, whatever it knew: the key before this one may
    /// have been lost because etcd was restored, and then what was known is the former store's.
    pub fn join_begun(&mut self, request: RequestId) {
        if self.list.is_none() {
            self.kept_back.clear();
        }
        self.synced = false;
        self.joining = Some(request);
    }

    /// A join was answered, whatever became of it.
    pub fn join_over(&mut self, request: RequestId) {
        self.joining.take_if(|join| *join == request);
    }

    /// The watch stands since `revision`.
    pub fn created(&mut self, revision: i64) {
        if let Some(watcher) = &mut self.watcher {
            watcher.created = Some(revision);
        }
        // etcd may have been restored after that read, and even have come as far again. A candidate learns of a restore by
        // its key and its lease; an onlooker has neither.
        if self.onlooker {
            self.read_by = 0;
            self.list = None;
        }
        self.sync();
    }

    /// A full read of the prefix, the answer to `request`.
    pub fn snapshot(&mut self, request: RequestId, revision: i64, entries: Vec<Entry>) {
        if self.synced && revision <= self.roster.revision() {
            return;
        }
        self.eager = false;
        self.read_by = self.read_by.max(request);
        // Unsynced, nothing was applied since the last snapshot, so even an older read is a true state. Nothing is decided
        // by it: what syncs a view was begun after its watch, and shows no less than the session knew then.
        self.roster.replace(revision, entries);
        self.sync();
    }

    /// Only another read can close the gap.
    pub fn wants_list(&self) -> bool {
        let watched = self.watcher.is_some_and(|w| w.created.is_some());
        !self.synced && self.list.is_none() && (watched || self.eager)
    }

    /// Events of the watch, in order. Calls `at` with the roster after each revision.
    pub fn changes(&mut self, changes: Vec<Change>, mut at: impl FnMut(&Roster)) {
        if self.synced {
            self.apply(changes, &mut at);
        } else if self.list.is_some() || self.joining.is_some() {
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
        // A read begun before its watch was asked for may be of a store that was exchanged since.
        let covered = self
            .watcher
            .is_some_and(|w| w.covers(known) && w.id < self.read_by as WatchId);
        if !self.synced && known > 0 && covered {
            self.synced = true;
            let kept_back = std::mem::take(&mut self.kept_back);
            self.apply(kept_back, &mut |_| {});
        }
    }

    /// Whether more than `long` stand beside `own`, and it is not the next to lead.
    pub fn is_too_wide(&self, own: &Own, long: usize) -> bool {
        self.roster.len() > long + 1 && matches!(self.place(own, 1), Place::Behind(2..))
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

/// A candidate before us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    pub key: Arc<[u8]>,
    pub create_revision: i64,
    pub watcher: Option<Watcher>,
}

impl Neighbour {
    fn age(&self) -> (i64, Arc<[u8]>) {
        (self.create_revision, Arc::clone(&self.key))
    }

    /// Whether that key is there no more, by what was not known at `known_at`.
    fn is_gone(&self, changes: &[Change], known_at: i64) -> Option<i64> {
        let gone = changes.iter().find(|change| {
            change.key() == &*self.key
                && change.revision() > known_at
                && match change {
                    Change::Delete { .. } => true,
                    Change::Put(entry) => entry.create_revision != self.create_revision,
                }
        });
        gone.map(Change::revision)
    }
}

/// Our own key, our predecessor's and the one's before it, each kept by a watch; of the older ones only what the last
/// read said.
///
/// A long queue costs every candidate one message per change of its *neighbours*. When the predecessor goes and
/// it was the last of the cached older set, nothing older is alive; otherwise one linearizable read tells. The herald is
/// there so that this read is not in the way: when it goes, our turn may be next, and who is older is read in advance.
#[derive(Debug, Clone)]
pub struct PredecessorView {
    prefix: Arc<[u8]>,
    pub own: Option<Watcher>,
    pub predecessor: Option<Neighbour>,
    /// The one before the predecessor. Nothing depends on it but the time at which is read.
    pub herald: Option<Neighbour>,
    pub read: Option<RequestId>,
    /// Watchers no longer needed, for the machine to cancel.
    pub discarded: Vec<WatchId>,
    /// Keys older than ours. Several that one transaction put share a create revision.
    older: BTreeSet<(i64, Arc<[u8]>)>,
    /// The eldest, if it has no lease.
    blocker: Option<Arc<[u8]>>,
    known_at: i64,
    /// The last time that a neighbour went: an older read still shows it.
    gone_at: i64,
    own_fate: Fate,
    stale: bool,
    /// What is known still holds; a read shall tell more.
    early: bool,
}

impl PredecessorView {
    pub fn new(prefix: Arc<[u8]>) -> Self {
        Self {
            prefix,
            own: None,
            predecessor: None,
            herald: None,
            read: None,
            discarded: Vec::new(),
            older: BTreeSet::new(),
            blocker: None,
            known_at: 0,
            gone_at: 0,
            own_fate: Fate::Gone,
            stale: true,
            early: false,
        }
    }

    fn neighbours(&mut self) -> impl Iterator<Item = &mut Neighbour> {
        self.predecessor.iter_mut().chain(self.herald.iter_mut())
    }

    /// All watches are gone; what we knew may be old.
    pub fn unwatched(&mut self) {
        self.own = None;
        for neighbour in self.neighbours() {
            neighbour.watcher = None;
        }
        self.read = None;
        self.discarded.clear();
        self.stale = true;
    }

    /// Every watcher that stands for this view.
    pub fn watchers(&self) -> Vec<WatchId> {
        let neighbours = self.predecessor.iter().chain(&self.herald);
        let neighbours = neighbours.filter_map(|neighbour| neighbour.watcher.as_ref());
        let standing = self.own.iter().chain(neighbours).map(|w| w.id);
        standing.chain(self.discarded.iter().copied()).collect()
    }

    /// The keys that are to be watched and are not: our own, and those before us.
    pub fn unwatched_keys(&self, own: Option<Arc<[u8]>>) -> Vec<Arc<[u8]>> {
        let own = own.filter(|_| self.own.is_none());
        let neighbours = self.predecessor.iter().chain(&self.herald);
        let neighbours = neighbours.filter(|neighbour| neighbour.watcher.is_none());
        own.into_iter()
            .chain(neighbours.map(|neighbour| Arc::clone(&neighbour.key)))
            .collect()
    }

    /// A watch of that key was asked for.
    pub fn watched(&mut self, key: &[u8], watcher: Watcher) {
        for neighbour in self.neighbours() {
            if &*neighbour.key == key {
                neighbour.watcher = Some(watcher);
                return;
            }
        }
        self.own = Some(watcher);
    }

    /// A linearizable read of every key at least as old as ours.
    pub fn snapshot(&mut self, revision: i64, entries: &[Entry], own: &Own) {
        if revision < self.known_at.max(self.gone_at) {
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
        self.early = false;
        self.follow();
    }

    /// A watch stands since `revision`; if that is later than what we know, there may be a gap.
    pub fn created(&mut self, watch: WatchId, revision: i64) {
        let decides = self.own.iter_mut().chain(
            self.predecessor
                .iter_mut()
                .filter_map(|p| p.watcher.as_mut()),
        );
        for watcher in decides {
            if watcher.id == watch {
                watcher.created = Some(revision);
                if revision > self.known_at {
                    self.stale = true;
                }
            }
        }
        // If the herald went in a gap, there is no read in advance.
        let herald = self.herald.as_mut().and_then(|h| h.watcher.as_mut());
        if let Some(watcher) = herald.filter(|watcher| watcher.id == watch) {
            watcher.created = Some(revision);
        }
    }

    /// Only another read can tell, or it tells more.
    pub fn wants_read(&self) -> bool {
        let standing = |w: Option<&Watcher>| w.is_some_and(|w| w.created.is_some());
        let watched = standing(self.own.as_ref())
            && self
                .predecessor
                .as_ref()
                .is_none_or(|p| standing(p.watcher.as_ref()));
        self.read.is_none() && watched && (self.stale || self.early)
    }

    /// Events on our own key are judged by [`Own::fate`]; here only the neighbours' count.
    pub fn changes(&mut self, changes: &[Change]) {
        let known_at = self.known_at;
        let gone = |neighbour: &Neighbour| neighbour.is_gone(changes, known_at);
        if let Some(at) = self.herald.as_ref().and_then(gone)
            && let Some(herald) = self.herald.take()
        {
            self.older.remove(&herald.age());
            self.discard(&herald);
            self.gone_at = self.gone_at.max(at);
            // Those before it may have left unseen.
            self.early = self.older.len() > 1;
        }
        if let Some(at) = self.predecessor.as_ref().and_then(gone)
            && let Some(predecessor) = self.predecessor.take()
        {
            self.older.remove(&predecessor.age());
            self.discard(&predecessor);
            self.gone_at = self.gone_at.max(at);
            // Older ones may have left unseen: ask, rather than walk the chain.
            self.stale |= !self.older.is_empty();
        }
    }

    fn discard(&mut self, neighbour: &Neighbour) {
        self.discarded
            .extend(neighbour.watcher.map(|watcher| watcher.id));
    }

    /// Turns to the two youngest of the older keys; what is watched already goes on being watched.
    fn follow(&mut self) {
        let mut followed = [self.predecessor.take(), self.herald.take()];
        let mut wanted = self
            .older
            .iter()
            .rev()
            .map(|(create_revision, key)| Neighbour {
                key: Arc::clone(key),
                create_revision: *create_revision,
                watcher: None,
            });
        let mut next = || {
            let wanted = wanted.next()?;
            let same = |followed: &&mut Option<Neighbour>| {
                followed.as_ref().is_some_and(|f| {
                    (f.create_revision, &f.key) == (wanted.create_revision, &wanted.key)
                })
            };
            let followed = followed.iter_mut().find(same).and_then(Option::take);
            Some(followed.unwrap_or(wanted))
        };
        (self.predecessor, self.herald) = (next(), next());
        for neighbour in followed.into_iter().flatten() {
            self.discard(&neighbour);
        }
        // It was the herald until now, whose gaps did not count.
        let watcher = self.predecessor.as_ref().and_then(|p| p.watcher);
        let created = watcher.and_then(|watcher| watcher.created);
        self.stale |= created.is_some_and(|created| created > self.known_at);
    }

    /// A key without a lease at the head of the queue, when that was last read.
    pub fn blocker(&self) -> Option<&Arc<[u8]>> {
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
    pub fn blocker(&self) -> Option<&Entry> {
        let first = self.synced.then(|| self.roster.eldest()).flatten();
        first.filter(|entry| entry.lease == 0)
    }
}

/// How a candidate looks at the queue.
#[derive(Debug, Clone)]
pub enum View {
    Prefix(PrefixView),
    Predecessor(PredecessorView),
}

impl View {
    /// `seats` of the eldest are first; who follows the predecessor alone knows of one.
    pub fn place(&self, own: &Own, seats: usize) -> Place {
        match self {
            View::Prefix(view) => view.place(own, seats),
            View::Predecessor(view) => view.place(),
        }
    }

    /// Whether the watch has told everything up to now, as far as the stream is not behind.
    pub fn is_current(&self) -> bool {
        match self {
            View::Prefix(view) => view.is_synced(),
            View::Predecessor(view) => !view.stale,
        }
    }

    /// Every watcher that stands for it.
    pub fn watchers(&self) -> Vec<WatchId> {
        match self {
            View::Prefix(view) => view.watchers(),
            View::Predecessor(view) => view.watchers(),
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
        view.join_begun(2);
        view
    }

    fn queue() -> Vec<Entry> {
        vec![entry("e/a", 3, 9), entry("e/b", 4, 8), entry("e/me", 10, 1)]
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
    fn read_begun_before_its_watch_was_asked_for_does_not_count() {
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
    fn onlooker_reads_again_when_its_watch_stands_at_an_earlier_revision_than_its_read() {
        let mut view = PrefixView::onlooker(PREFIX.into(), Reach::Children);
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
    fn read_that_is_older_than_the_own_key_tells_no_place() {
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
    fn events_are_kept_for_a_read_and_for_a_join_whichever_was_begun_first() {
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
    fn onlooker_does_not_wait_for_a_read_that_was_under_way_when_its_watch_stood() {
        let mut view = PrefixView::onlooker(PREFIX.into(), Reach::Children);
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
    fn predecessor_whose_key_is_another_one_is_gone() {
        let mut view = following();
        view.changes(&[Change::Put(entry("e/b", 12, 8))]);
        assert_eq!(view.place(), Place::Unknown);
        assert!(view.wants_read());
    }

    #[test]
    fn when_the_herald_goes_a_read_in_advance_tells_who_is_older() {
        let mut view = PredecessorView::new(PREFIX.into());
        let (a, b, c) = (entry("e/a", 3, 9), entry("e/b", 4, 8), entry("e/c", 5, 7));
        let me = entry("e/me", 10, 1);
        view.snapshot(10, &[a, b, c.clone(), me.clone()], &own(10));
        let keys = view.unwatched_keys(Some(own(10).key));
        assert_eq!(
            keys,
            [b"e/me", b"e/c ", b"e/b "].map(|k| k.trim_ascii().into())
        );
        for (id, key) in (1..).zip(keys) {
            view.watched(&key, Watcher::new(id));
            view.created(id, 10);
        }
        view.changes(&[delete("e/b", 12)]);
        assert_eq!(view.place(), Place::Behind(2), "what was known still holds");
        assert!(view.wants_read());
        view.snapshot(11, &queue(), &own(10));
        assert!(view.wants_read(), "that read was begun before");
        view.snapshot(12, &[c, me], &own(10));
        assert!(!view.wants_read());
        assert_eq!(view.discarded, [3]);
        view.changes(&[delete("e/c", 13)]);
        assert_eq!(view.place(), Place::First, "without another read");
    }

    #[test]
    fn a_herald_that_becomes_the_predecessor_is_read_about_if_its_watch_stands_too_late() {
        for (created, gap) in [(10, false), (11, false), (12, true)] {
            let mut view = following();
            let herald = view.unwatched_keys(None);
            assert_eq!(herald, [(*b"e/a").into()]);
            view.watched(&herald[0], Watcher::new(3));
            view.created(3, created);
            assert_eq!(view.place(), Place::Behind(2), "nothing depends on it yet");
            view.changes(&[delete("e/b", 11)]);
            view.snapshot(11, &[entry("e/a", 3, 9), entry("e/me", 10, 1)], &own(10));
            assert!(view.unwatched_keys(None).is_empty(), "its watch is kept");
            assert_eq!(view.place() == Place::Unknown, gap, "created at {created}");
        }
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
