//! Determines a candidate's place by watches of its own key and of its nearest predecessors.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::own::{Fate, Own};
use super::place::{Place, excludes, place_behind};
use super::watcher::Watcher;
use crate::ids::{RequestId, WatchId};
use crate::kv::{Change, Entry, is_direct_child};

/// A candidate ahead of us.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Neighbour {
    key: Arc<[u8]>,
    create_revision: i64,
    watcher: Option<Watcher>,
}

impl Neighbour {
    fn age(&self) -> (i64, Arc<[u8]>) {
        (self.create_revision, Arc::clone(&self.key))
    }

    /// Returns the revision at which the key was deleted, if an event after `known_at` shows that.
    fn gone_at(&self, change: &Change, known_at: i64) -> Option<i64> {
        let is_gone = change.key() == &*self.key
            && change.revision() > known_at
            && match change {
                Change::Delete { .. } => true,
                Change::Put(entry) => entry.create_revision != self.create_revision,
            };
        is_gone.then(|| change.revision())
    }
}

/// A view of our own key, our predecessor's and the one before it, each kept by a watch; of the older ones the view has
/// only the last read.
///
/// A long queue costs every candidate one message per change of its *neighbours*. If the predecessor disappears and it
/// was the last of the known older keys, no older key is alive; otherwise one linearizable read decides. The second
/// predecessor keeps this read out of the hand-over: when it disappears, our turn may be next, and the older keys are
/// read in advance.
#[derive(Debug, Clone)]
pub struct PredecessorView {
    prefix: Arc<[u8]>,
    own: Option<Watcher>,
    predecessor: Option<Neighbour>,
    /// The candidate ahead of the predecessor. It decides only when the queue is read in advance.
    second_predecessor: Option<Neighbour>,
    read: Option<RequestId>,
    /// Watches that are no longer needed, for the core to cancel.
    discarded: Vec<WatchId>,
    /// Keys that are older than ours and exclude it. Keys of one transaction share a create revision.
    older: BTreeSet<(i64, Arc<[u8]>)>,
    /// The two youngest of the older keys at the last read.
    nearest: Vec<Entry>,
    /// The eldest key, if it has no lease.
    blocker: Option<Arc<[u8]>>,
    known_at: i64,
    /// The last revision at which a neighbour was deleted: an older read still shows it.
    gone_at: i64,
    own_fate: Fate,
    stale: bool,
    /// True if a read is only wanted in advance: the known state is still valid.
    early: bool,
}

impl PredecessorView {
    /// Makes a view that has seen nothing yet.
    pub fn new(prefix: Arc<[u8]>) -> Self {
        Self {
            prefix,
            own: None,
            predecessor: None,
            second_predecessor: None,
            read: None,
            discarded: Vec::new(),
            older: BTreeSet::new(),
            nearest: Vec::new(),
            blocker: None,
            known_at: 0,
            gone_at: 0,
            own_fate: Fate::Gone,
            stale: true,
            early: false,
        }
    }

    fn neighbours(&mut self) -> impl Iterator<Item = &mut Neighbour> {
        self.predecessor
            .iter_mut()
            .chain(self.second_predecessor.iter_mut())
    }

    /// Records that all watches are gone, so the view may be outdated.
    pub fn unwatched(&mut self) {
        self.own = None;
        for neighbour in self.neighbours() {
            neighbour.watcher = None;
        }
        self.read = None;
        self.discarded.clear();
        self.stale = true;
    }

    /// Returns every watch of this view.
    pub fn watchers(&self) -> Vec<WatchId> {
        let neighbours = self.predecessor.iter().chain(&self.second_predecessor);
        let neighbours = neighbours.filter_map(|neighbour| neighbour.watcher.as_ref());
        let standing = self.own.iter().chain(neighbours).map(|w| w.id);
        standing.chain(self.discarded.iter().copied()).collect()
    }

    /// Returns the keys that must be watched and are not: our own, and those ahead of us.
    pub fn unwatched_keys(&self, own: Option<Arc<[u8]>>) -> Vec<Arc<[u8]>> {
        let own = own.filter(|_| self.own.is_none());
        let neighbours = self.predecessor.iter().chain(&self.second_predecessor);
        let neighbours = neighbours.filter(|neighbour| neighbour.watcher.is_none());
        own.into_iter()
            .chain(neighbours.map(|neighbour| Arc::clone(&neighbour.key)))
            .collect()
    }

    /// Returns the watches that are no longer needed, to be cancelled.
    pub fn take_discarded(&mut self) -> Vec<WatchId> {
        std::mem::take(&mut self.discarded)
    }

    /// Returns the read in flight.
    pub fn read(&self) -> Option<RequestId> {
        self.read
    }

    /// Records that a read began, or that the one in flight is over.
    pub fn set_read(&mut self, read: Option<RequestId>) {
        self.read = read;
    }

    /// Records that a watch of that key was requested.
    pub fn watched(&mut self, key: &[u8], watcher: Watcher) {
        for neighbour in self.neighbours() {
            if &*neighbour.key == key {
                neighbour.watcher = Some(watcher);
                return;
            }
        }
        self.own = Some(watcher);
    }

    /// Processes a linearizable read of every key at least as old as ours.
    pub fn snapshot(&mut self, revision: i64, entries: &[Entry], own: &Own) {
        if revision < self.known_at.max(self.gone_at) {
            return;
        }
        debug_assert!(
            self.known_at <= revision && self.gone_at <= revision,
            "a view never goes back"
        );
        self.known_at = revision;
        self.own_fate = own.read(entries.iter().find(|e| e.key == own.key));
        let older = |entry: &&Entry| {
            entry.create_revision < own.create_revision
                && is_direct_child(&self.prefix, &entry.key)
                && excludes(&entry.key, &own.key)
        };
        let older = entries.iter().filter(older);
        let eldest = older.clone().min_by_key(|entry| entry.create_revision);
        self.blocker = eldest
            .filter(|entry| entry.lease == 0)
            .map(|entry| Arc::clone(&entry.key));
        self.older = older
            .clone()
            .map(|entry| (entry.create_revision, Arc::clone(&entry.key)))
            .collect();
        let youngest: Vec<_> = self.older.iter().rev().take(2).collect();
        let is_near = |entry: &&Entry| {
            let mut youngest = youngest.iter();
            youngest.any(|(created, key)| (*created, key) == (entry.create_revision, &entry.key))
        };
        self.nearest = older.filter(is_near).cloned().collect();
        self.stale = false;
        self.early = false;
        self.follow();
    }

    /// Records that a watch exists since `revision`; if that is later than the view, there may be a gap.
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
        // If the second predecessor was deleted in a gap, there is no read in advance.
        let second_predecessor = self
            .second_predecessor
            .as_mut()
            .and_then(|h| h.watcher.as_mut());
        if let Some(watcher) = second_predecessor.filter(|watcher| watcher.id == watch) {
            watcher.created = Some(revision);
        }
    }

    /// Returns `true` if another read is needed, or would show more.
    pub fn wants_read(&self) -> bool {
        let standing = |w: Option<&Watcher>| w.is_some_and(|w| w.created.is_some());
        let watched = standing(self.own.as_ref())
            && self
                .predecessor
                .as_ref()
                .is_none_or(|p| standing(p.watcher.as_ref()));
        self.read.is_none() && watched && (self.stale || self.early)
    }

    /// Applies events to the neighbours; [`Own::fate`] judges events on our own key.
    pub fn changes(&mut self, changes: impl IntoIterator<Item = Change>) {
        let (mut gone_at, mut second_gone_at) = (None, None);
        for change in changes {
            let gone = |neighbour: &Neighbour| neighbour.gone_at(&change, self.known_at);
            gone_at = gone_at.or_else(|| self.predecessor.as_ref().and_then(gone));
            second_gone_at =
                second_gone_at.or_else(|| self.second_predecessor.as_ref().and_then(gone));
        }
        if let Some(at) = second_gone_at
            && let Some(second_predecessor) = self.second_predecessor.take()
        {
            self.older.remove(&second_predecessor.age());
            self.discard(&second_predecessor);
            self.gone_at = self.gone_at.max(at);
            // Older keys may have been deleted unseen.
            self.early = self.older.len() > 1;
        }
        if let Some(at) = gone_at
            && let Some(predecessor) = self.predecessor.take()
        {
            self.older.remove(&predecessor.age());
            self.discard(&predecessor);
            self.gone_at = self.gone_at.max(at);
            // Older keys may have been deleted unseen: read them all, instead of checking one after the other.
            self.stale |= !self.older.is_empty();
        }
    }

    fn discard(&mut self, neighbour: &Neighbour) {
        self.discarded
            .extend(neighbour.watcher.map(|watcher| watcher.id));
    }

    /// Follows the two youngest of the older keys; existing watches are kept.
    fn follow(&mut self) {
        let mut followed = [self.predecessor.take(), self.second_predecessor.take()];
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
        (self.predecessor, self.second_predecessor) = (next(), next());
        for neighbour in followed.into_iter().flatten() {
            self.discard(&neighbour);
        }
        // The predecessor was the second predecessor until now, whose gaps did not count.
        let watcher = self.predecessor.as_ref().and_then(|p| p.watcher);
        let created = watcher.and_then(|watcher| watcher.created);
        self.stale |= created.is_some_and(|created| created > self.known_at);
    }

    /// Returns the keys right ahead that were there at the last read, and are not known to be gone.
    pub(super) fn ahead(&self) -> impl Iterator<Item = &Entry> {
        let nearest = self.nearest.iter();
        nearest.filter(|entry| {
            let age = (entry.create_revision, Arc::clone(&entry.key));
            self.older.contains(&age)
        })
    }

    /// Returns a key without a lease at the head of the queue, at the last read.
    pub fn blocker(&self) -> Option<&Arc<[u8]>> {
        self.blocker.as_ref().filter(|_| !self.older.is_empty())
    }

    /// Returns `true` if the watches have delivered everything up to now, unless the stream is behind.
    pub(super) fn is_current(&self) -> bool {
        !self.stale
    }

    /// Returns `false` if the view shows that our key is not the eldest. A stale view does not show this: it may have
    /// ignored the read by which the candidate leads, because that read was older than a neighbour's deletion.
    pub(super) fn may_be_first(&self) -> bool {
        self.stale || (self.own_fate == Fate::Ours && self.older.is_empty())
    }

    pub(super) fn place(&self) -> Place {
        if self.stale {
            return Place::Unknown;
        }
        if self.own_fate != Fate::Ours {
            return Place::Lost(self.own_fate);
        }
        place_behind(self.older.len(), 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{PREFIX, delete, entry, own, queue};
    use super::*;

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
    fn view_is_outdated_when_the_stream_breaks() {
        let mut view = following();
        view.unwatched();
        assert_eq!(view.place(), Place::Unknown);
    }

    #[test]
    fn predecessor_leaving_does_not_show_that_we_are_first() {
        let mut view = following();
        view.changes([delete("e/b", 11)]);
        assert_eq!(view.place(), Place::Unknown);
        assert!(view.wants_read());
        view.snapshot(11, &[entry("e/a", 3, 9), entry("e/me", 10, 1)], &own(10));
        assert_eq!(view.place(), Place::Behind(1));
        assert_eq!(view.discarded, [2]);
    }

    /// The predecessor's key was deleted and put again before the read, and a late watch still shows the deletion.
    #[test]
    fn event_that_the_read_shows_already_leaves_the_predecessor() {
        let mut view = following();
        view.changes([delete("e/b", 7)]);
        assert_eq!(view.place(), Place::Behind(2));
        assert!(!view.wants_read());
    }

    #[test]
    fn predecessor_whose_key_is_another_one_is_gone() {
        let mut view = following();
        view.changes([Change::Put(entry("e/b", 12, 8))]);
        assert_eq!(view.place(), Place::Unknown);
        assert!(view.wants_read());
    }

    #[test]
    fn when_the_second_predecessor_goes_the_queue_is_read_ahead() {
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
        view.changes([delete("e/b", 12)]);
        assert_eq!(view.place(), Place::Behind(2), "what was known still holds");
        assert!(view.wants_read());
        view.snapshot(11, &queue(), &own(10));
        assert!(view.wants_read(), "that read was begun before");
        view.snapshot(12, &[c, me], &own(10));
        assert!(!view.wants_read());
        assert_eq!(view.discarded, [3]);
        view.changes([delete("e/c", 13)]);
        assert_eq!(view.place(), Place::First, "without another read");
    }

    #[test]
    fn late_watch_of_the_new_predecessor_wants_a_read() {
        for (created, gap) in [(10, false), (11, false), (12, true)] {
            let mut view = following();
            let second_predecessor = view.unwatched_keys(None);
            assert_eq!(second_predecessor, [(*b"e/a").into()]);
            view.watched(&second_predecessor[0], Watcher::new(3));
            view.created(3, created);
            assert_eq!(view.place(), Place::Behind(2), "nothing depends on it yet");
            view.changes([delete("e/b", 11)]);
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
        view.changes([delete("e/a", 11)]);
        assert!(!view.wants_read());
        assert_eq!(view.place(), Place::First);
    }

    #[test]
    fn predecessor_watch_that_starts_too_late_wants_a_read() {
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
