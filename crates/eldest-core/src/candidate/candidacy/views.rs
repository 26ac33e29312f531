//! Keeps a candidate's view of the queue, by watches and reads.

use std::sync::Arc;

use super::{Candidacy, Role, new_view};
use crate::action::{Ask, Class};
use crate::candidate::config::WatchScope;
use crate::candidate::phase::Phase;
use crate::cleanup::Shown;
use crate::ids::{RequestId, SlotId, WatchId};
use crate::kv::{Change, Entry, Reach};
use crate::partitions::{Share, Wants, partition_key};
use crate::pause::Pace;
use crate::queue::{
    Fate, Own, Place, PredecessorView, PrefixView, View, Watcher, Watching, ahead, place_in,
};
use crate::time::Time;

impl Candidacy {
    /// Every watcher that stands for it.
    pub(crate) fn watchers(&self) -> Vec<WatchId> {
        self.view.watchers()
    }

    /// Returns the watches to open and to cancel for it.
    pub(crate) fn watching(&mut self) -> Watching {
        if !self.watches() {
            return Watching::default();
        }
        let own = self.own().map(|own| Arc::clone(&own.key));
        self.view.watching(own)
    }

    /// A watch of that key was asked for.
    pub(crate) fn watched(&mut self, key: &[u8], watcher: Watcher) {
        self.view.watched(key, watcher);
    }

    /// The stream broke: what is known may be old.
    pub(crate) fn unwatched(&mut self) {
        self.view.unwatched();
    }

    /// A watch stands since `revision`.
    pub(crate) fn created(&mut self, watch: WatchId, revision: i64) {
        self.view.created(watch, revision);
    }

    /// Returns true if its view shows everything up to now, as far as the stream is not behind.
    pub(crate) fn is_current(&self) -> bool {
        self.view.is_current()
    }

    /// Events of a watch, in order. What they say of its own key, and of the partitions that it owns: both are judged on
    /// every event, even while a gap is being closed.
    pub(crate) fn changed(&mut self, changes: Vec<Change>) -> (Fate, Vec<(SlotId, Fate)>) {
        let fate = self.own().and_then(|own| {
            let mut fates = changes.iter().map(|change| own.fate(change));
            fates.find(|fate| *fate != Fate::Ours)
        });
        let partitions = match &mut self.role {
            Role::Member(member) => member.judge(&self.prefix, &changes),
            _ => Vec::new(),
        };
        self.view.changes(changes);
        (fate.unwrap_or(Fate::Ours), partitions)
    }

    /// Returns true if only a read can close a gap. A join under way reads the prefix anyway.
    pub(crate) fn wants_read(&self) -> bool {
        match self.phase {
            Phase::Joining { .. } | Phase::Leaving { .. } => false,
            _ => self.next_read().is_some(),
        }
    }

    /// The read that its view wants.
    pub(crate) fn next_read(&self) -> Option<Ask> {
        let prefix = Arc::clone(&self.prefix);
        match (&self.view, self.own()) {
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

    /// The read under way.
    pub(crate) fn read(&self) -> Option<RequestId> {
        self.view.read()
    }

    /// A read was begun, or the one under way is over.
    pub(crate) fn set_read(&mut self, read: Option<RequestId>) {
        self.view.set_read(read);
    }

    /// A read failed. When the next one may be sent.
    pub(crate) fn read_failed(&mut self, now: Time, class: Class, pace: Pace) -> Time {
        self.failures += 1;
        now.after(pace.pause(self.failures, class))
    }

    /// Returns true if a read shows its key behind others that are older, though it leads. Within one store nothing older can
    /// come to be, so a restore has brought them back, and their owners may lead too.
    pub(crate) fn leads_behind(&self, entries: &[Entry]) -> bool {
        let Phase::Leading { own, .. } = &self.phase else {
            return false;
        };
        let place = place_in(entries, own, self.capacity());
        self.leads() && matches!(place, Place::Behind(_))
    }

    /// The answer to `request`: a read, or a join that read the prefix and put the key. Beyond `long` older keys a new
    /// candidate follows its neighbours. Whether the read shows the key first, which is proof by itself: nothing older can
    /// come to be, whatever the capacity. The watchers that are not needed any more.
    pub(crate) fn snapshot(
        &mut self,
        (request, joined): (RequestId, bool),
        revision: i64,
        mut entries: Vec<Entry>,
        long: usize,
    ) -> (bool, Vec<WatchId>) {
        self.failures = 0;
        let own = self.own().cloned();
        if matches!(self.role, Role::Present) {
            // A present member waits for nobody, so no other key is watched.
            entries.retain(|entry| own.as_ref().is_some_and(|own| own.key == entry.key));
        }
        let first = own
            .as_ref()
            .filter(|_| self.leads())
            .is_some_and(|own| place_in(&entries, own, self.capacity()) == Place::First);
        let auto = joined && self.config.watch_scope == WatchScope::Auto;
        let mut discarded = Vec::new();
        match (&self.view, &own) {
            (View::Prefix(_), Some(own)) if auto && ahead(&entries, own) > long => {
                discarded = self.follow_predecessor(revision, &entries);
            }
            _ => self.view.snapshot(request, revision, entries, own.as_ref()),
        }
        // The event of its end may have come before this answer.
        let stands = own.is_none_or(|own| !self.shows_gone(&own));
        (first && stands, discarded)
    }

    /// If the queue is longer than that and it is not the next to lead, it follows its neighbours from now on. The watchers
    /// that are not needed any more.
    pub(crate) fn follow_if_long(&mut self, long: usize) -> Vec<WatchId> {
        let (Phase::Waiting { own }, WatchScope::Auto, View::Prefix(view)) =
            (&self.phase, self.config.watch_scope, &self.view)
        else {
            return Vec::new();
        };
        if !view.is_too_wide(own, long) {
            return Vec::new();
        }
        let roster = view.roster();
        debug_assert!(
            roster.ahead_of(own.create_revision) > 1,
            "the next to lead keeps its view of the whole queue"
        );
        let (revision, entries) = (roster.revision(), roster.in_order().cloned());
        let entries: Vec<_> = entries.collect();
        self.follow_predecessor(revision, &entries)
    }

    /// From now on the candidate hears of everybody, for it must know who stands behind it. The watchers that are not
    /// needed any more.
    pub(crate) fn follow_everyone(&mut self) -> Vec<WatchId> {
        let everyone = View::Prefix(PrefixView::new(Arc::clone(&self.prefix)));
        std::mem::replace(&mut self.view, everyone).watchers()
    }

    /// From now on the candidate hears of its neighbours alone. `entries` is the whole queue; what the new watches may
    /// have missed is read for. The watchers that are not needed any more.
    fn follow_predecessor(&mut self, revision: i64, entries: &[Entry]) -> Vec<WatchId> {
        let Some(own) = self.own().cloned() else {
            return Vec::new();
        };
        let mut following = PredecessorView::new(Arc::clone(&self.prefix));
        following.snapshot(revision, entries, &own);
        let before = std::mem::replace(&mut self.view, View::Predecessor(following));
        before.watchers()
    }

    /// Returns true if the part of the queue that it has seen permits it to lead by that key.
    pub(crate) fn may_be_first(&self, own: &Own) -> bool {
        self.view.may_be_first(own, self.capacity())
    }

    /// Returns true if its view shows everything up to now, and that key is not there.
    pub(crate) fn shows_gone(&self, own: &Own) -> bool {
        let View::Prefix(view) = &self.view else {
            return false;
        };
        let roster = view.roster();
        let is_judge = view.is_synced() && roster.revision() >= own.create_revision;
        is_judge && own.read(roster.get(&own.key)) != Fate::Ours
    }

    /// Returns true if it knows nothing of a store that was exchanged.
    pub(crate) fn knows_no_store(&self) -> bool {
        self.free_at == 0 && !self.is_current()
    }

    /// A member's: what it is to do, once its view shows everything. `shown` says what it means that a view at that revision
    /// shows a key that was created then, or none.
    pub(crate) fn wants(
        &self,
        share: fn(&[u8]) -> Share,
        shown: impl Fn(&[u8], Option<i64>, i64) -> Shown,
    ) -> Option<Wants> {
        let (Role::Member(member), Phase::Waiting { own }, View::Prefix(view)) =
            (&self.role, &self.phase, &self.view)
        else {
            return None;
        };
        let roster = view.roster();
        let shown = |key: &[u8], created| shown(key, created, roster.revision());
        let complete = view.is_synced();
        complete.then(|| member.wants(&self.prefix, own, roster, share, shown))
    }

    /// A member's: the answer to a take, at `revision`, names a partition. If that was `taken` under `lease`, its key; `Err`
    /// if nobody wants it any more. `believes`: the lease may be believed in.
    pub(crate) fn took(
        &mut self,
        partition: u32,
        (taken, lease): (bool, i64),
        revision: i64,
        believes: bool,
    ) -> Option<Result<Own, Own>> {
        let own = Own {
            key: partition_key(&self.prefix, partition),
            create_revision: revision,
            lease,
        };
        let stands = matches!(self.phase, Phase::Waiting { .. });
        let (Role::Member(member), View::Prefix(view)) = (&mut self.role, &self.view) else {
            return None;
        };
        let seen = view.roster().revision();
        if !taken {
            member.refuse(partition, revision, seen);
            return None;
        }
        // The events of its end may have come before this answer.
        let over = view.is_synced()
            && seen >= revision
            && own.read(view.roster().get(&own.key)) != Fate::Ours;
        if stands && believes && !over {
            Some(Ok(own))
        } else {
            Some(Err(own))
        }
    }

    /// A new key has a new place: what the old one's neighbours do is of no interest. The watchers that are not needed any
    /// more.
    pub(crate) fn renew_view(&mut self) -> Vec<WatchId> {
        let narrow = self.config.watch_scope == WatchScope::Predecessor;
        if matches!(self.view, View::Prefix(_)) && !narrow {
            return Vec::new();
        }
        let watchers = self.view.watchers();
        self.view = new_view(&self.prefix, self.config.watch_scope);
        watchers
    }

    /// Forgets what was read so far: another store answers now.
    pub(crate) fn store_changed(&mut self) {
        self.view = new_view(&self.prefix, self.config.watch_scope);
        self.free_at = 0;
        if let Role::Member(member) = &mut self.role {
            member.store_changed();
        }
    }
}
