//! Deletes keys by compare-and-delete, and retries until etcd confirms that they are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::deleted::{Deleted, Shown};
use super::names::is_one_of_many;
use super::parting::Parting;
use crate::action::{Answer, Ask, Class, Note, RequestError};
use crate::ids::{RequestId, SlotId};
use crate::outbox::Outbox;
use crate::pause::Pace;
use crate::purpose::Purpose;
use crate::time::Time;
use crate::timers::Timer;

/// A key that must go. While it is listed here it is never ours again: no join uses its path.
#[derive(Debug, Clone)]
struct Removal {
    /// The create revision that the deletion compares; unknown after a join whose answer was lost: then the key is read
    /// first.
    create_revision: Option<i64>,
    request: Option<RequestId>,
    failures: u32,
    not_before: Time,
    /// The candidate whose join is in flight: the removal does not start before its answer, and another candidate that
    /// requests it meanwhile waits. If the key went too early, another join could use its path while that join may
    /// still arrive.
    held_by: Option<SlotId>,
    waiting: Vec<SlotId>,
    /// The state that goes with the key. A box, because few of thousands of removals have one.
    parting: Option<Box<Parting>>,
}

impl Removal {
    fn new(create_revision: Option<i64>, now: Time) -> Self {
        Self {
            create_revision,
            request: None,
            failures: 0,
            not_before: now,
            held_by: None,
            waiting: Vec::new(),
            parting: None,
        }
    }
}

/// Keys that may go in batches. While one batch is in flight, the next one is gathered.
#[derive(Debug, Default)]
struct Releases {
    waiting: BTreeSet<Arc<[u8]>>,
    under_way: bool,
}

/// All keys that must go, and the candidates that wait for them.
#[derive(Debug)]
pub(crate) struct Removals {
    keys: BTreeMap<Arc<[u8]>, Removal>,
    /// The time at which the removal of each key is retried. An entry is ignored if its key is gone by then, or waits
    /// for longer.
    due: BTreeSet<(Time, Arc<[u8]>)>,
    /// The number of keys for which each candidate waits.
    waits: BTreeMap<SlotId, usize>,
    releases: Releases,
    deleted: Deleted,
    pace: Pace,
}

impl Removals {
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            keys: BTreeMap::new(),
            due: BTreeSet::new(),
            waits: BTreeMap::new(),
            releases: Releases::default(),
            deleted: Deleted::default(),
            pace,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.keys.contains_key(key)
    }

    /// Interprets a partition's key with the create revision `created`, or its absence, in a view at the revision
    /// `seen`.
    pub(crate) fn shown(&self, key: &[u8], created: Option<i64>, seen: i64) -> Shown {
        match created {
            _ if self.contains(key) => Shown::Going,
            Some(created) => self.deleted.shown(key, created, seen),
            None => Shown::Standing,
        }
    }

    /// Deletes `key` if it has that create revision, and retries until it is gone. `slot` waits for it.
    pub(crate) fn add(
        &mut self,
        now: Time,
        key: &Arc<[u8]>,
        create_revision: Option<i64>,
        slot: Option<SlotId>,
        out: &mut Outbox,
    ) {
        let removal = self.insert(Arc::clone(key), create_revision, now);
        if removal.held_by == slot {
            removal.held_by = None;
        }
        removal.create_revision = removal.create_revision.max(create_revision);
        if let Some(slot) = slot {
            self.wait(key, slot);
        }
        debug_assert!(
            self.keys[key].create_revision >= create_revision,
            "a removal knows the newest key that must go"
        );
        self.start(key, now, out);
    }

    /// Keeps `key` from every join until it was removed. A join of `slot`, which has left, is still in flight: if it
    /// succeeds, its key must go, even if another candidate would find it. [`Removals::add`] for that slot must follow.
    pub(crate) fn hold(&mut self, key: Arc<[u8]>, slot: SlotId, now: Time) {
        self.insert(key, None, now).held_by = Some(slot);
    }

    /// Makes the removal of that key save the state of its term. [`Removals::add`] must follow.
    pub(crate) fn carry(&mut self, key: &Arc<[u8]>, parting: Parting, now: Time) {
        debug_assert!(
            !self.contains(key),
            "a term has its key until it is given back"
        );
        let removal = self.insert(Arc::clone(key), None, now);
        removal.parting = Some(Box::new(parting));
    }

    /// Makes the candidate wait until the key is gone. Returns whether the key must go at all.
    pub(crate) fn wait(&mut self, key: &[u8], slot: SlotId) -> bool {
        let Some(removal) = self.keys.get_mut(key) else {
            return false;
        };
        if !removal.waiting.contains(&slot) {
            removal.waiting.push(slot);
            *self.waits.entry(slot).or_default() += 1;
        }
        true
    }

    /// Returns true if the key must go, and its removal waits for the answer to a join of that candidate.
    pub(crate) fn is_held_by(&self, key: &[u8], slot: SlotId) -> bool {
        let removal = self.keys.get(key);
        removal.is_some_and(|removal| removal.held_by == Some(slot))
    }

    /// Checks, while no request is in flight, that no removal is forgotten: each has a timer.
    pub(crate) fn check_idle(&self) {
        debug_assert!(
            !self.releases.under_way && self.releases.waiting.is_empty(),
            "the next batch of removals begins when the last one is answered"
        );
        for (key, removal) in &self.keys {
            debug_assert_eq!(
                (removal.request, removal.held_by),
                (None, None),
                "a removal waits for a request that is under way"
            );
            debug_assert!(
                self.due.contains(&(removal.not_before, Arc::clone(key))),
                "a removal goes on until etcd confirms it"
            );
        }
    }

    /// Returns true if the candidate waits for any key.
    pub(crate) fn is_awaited_by(&self, slot: SlotId) -> bool {
        self.waits.contains_key(&slot)
    }

    fn insert(&mut self, key: Arc<[u8]>, create_revision: Option<i64>, now: Time) -> &mut Removal {
        let removal = self.keys.entry(key);
        removal.or_insert_with(|| Removal::new(create_revision, now))
    }

    /// Sends the requests that are due.
    pub(crate) fn start_due(&mut self, now: Time, out: &mut Outbox) {
        while let Some(key) = self.next_due(now) {
            self.start(&key, now, out);
        }
    }

    /// Takes a key whose pause is over. No other key is visited, however many wait.
    fn next_due(&mut self, now: Time) -> Option<Arc<[u8]>> {
        let (at, _) = self.due.first()?;
        if *at > now {
            return None;
        }
        self.due.pop_first().map(|(_, key)| key)
    }

    fn start(&mut self, key: &Arc<[u8]>, now: Time, out: &mut Outbox) {
        let Some(removal) = self.keys.get_mut(key) else {
            return;
        };
        if removal.held_by.is_some() || removal.request.is_some() || now < removal.not_before {
            return;
        }
        let key = Arc::clone(key);
        if removal.create_revision.is_some() && is_one_of_many(&key) {
            self.releases.waiting.insert(key);
            self.start_releases(out);
            return;
        }
        debug_assert_eq!(
            (removal.held_by, removal.request),
            (None, None),
            "a key is asked to go once at a time, and not before the join that may put it"
        );
        debug_assert!(
            removal.not_before <= now,
            "removals that fail again and again are paced"
        );
        let purpose = Purpose::Remove {
            key: Arc::clone(&key),
        };
        let ask = match removal.create_revision {
            Some(create_revision) => Ask::Delete {
                key,
                create_revision,
                state: removal.parting.as_ref().map(|parting| parting.state()),
            },
            None => Ask::Find { key },
        };
        removal.request = Some(out.ask(purpose, ask));
    }

    /// Sends the next batch, unless one is in flight.
    pub(crate) fn start_releases(&mut self, out: &mut Outbox) {
        if self.releases.under_way {
            return;
        }
        let mut keys = Vec::new();
        while keys.len() < out.batch()
            && let Some(key) = self.releases.waiting.pop_first()
        {
            let removal = self.keys.get(&key).filter(|r| r.request.is_none());
            keys.extend(removal.and_then(|r| Some((key, r.create_revision?))));
        }
        if keys.is_empty() {
            return;
        }
        let purpose = Purpose::Release {
            keys: keys.iter().map(|(key, _)| Arc::clone(key)).collect(),
        };
        debug_assert!(
            !self.releases.under_way,
            "one batch of removals is under way at a time"
        );
        let asked = keys.clone();
        let request = out.ask(purpose, Ask::Release { keys });
        self.releases.under_way = true;
        for (key, create_revision) in asked {
            if let Some(removal) = self.keys.get_mut(&key) {
                removal.request = Some(request);
            }
            self.deleted.ask(key, create_revision);
        }
    }

    /// Records that the batch in flight is answered, with any result.
    pub(crate) fn release_answered(&mut self) {
        self.releases.under_way = false;
    }

    /// Handles a failed batch. The deletion of each of its keys is retried.
    pub(crate) fn release_failed(
        &mut self,
        now: Time,
        keys: &[Arc<[u8]>],
        request: RequestId,
        error: RequestError,
        out: &mut Outbox,
    ) {
        out.smaller_batches(error.class, keys.len());
        for key in keys {
            self.again(key, request, error.class, now, out);
        }
        let first = keys.first().map_or(&[][..], |key| &**key);
        out.note_failure("delete", first, error);
    }

    /// Handles the answer to a request for the key. `is_stray`: the search found a key that serves no candidate. If the
    /// key is gone now, returns the candidates that waited for it.
    pub(crate) fn answered(
        &mut self,
        now: Time,
        key: &Arc<[u8]>,
        request: RequestId,
        answer: Answer,
        is_stray: bool,
        out: &mut Outbox,
    ) -> Option<Vec<SlotId>> {
        let removal = self.keys.get_mut(key)?;
        if removal.request != Some(request) {
            return None;
        }
        removal.request = None;
        match answer {
            Answer::Deleted { header } => {
                self.deleted.confirm(key, header.revision);
                Some(self.done(key))
            }
            Answer::Read { entry, .. } => {
                let stray = entry.filter(|_| is_stray);
                self.found(key, stray.map(|e| e.create_revision), now, out)
            }
            Answer::Transacted(done) => {
                if let Some(parting) = removal.parting.take() {
                    out.act(parting.answered(&done));
                }
                Some(self.done(key))
            }
            Answer::Failed(error) => {
                if let Some(refused) = Parting::failed(&mut removal.parting, &error, now) {
                    // The key alone may go at once.
                    out.act(refused);
                    self.start(key, now, out);
                } else {
                    self.failed(key, error.class, now, out);
                }
                out.note_failure("delete", key, error);
                None
            }
            _ => None,
        }
    }

    /// Records the result of a search: the key's create revision, or `None` if it does not exist.
    fn found(
        &mut self,
        key: &Arc<[u8]>,
        create_revision: Option<i64>,
        now: Time,
        out: &mut Outbox,
    ) -> Option<Vec<SlotId>> {
        if create_revision.is_some() {
            out.note(Note::OrphanFound {
                key: Arc::clone(key),
            });
        }
        // Another candidate that knows the revision may have requested the removal meanwhile.
        let known = self.keys.get_mut(key).and_then(|removal| {
            removal.create_revision = removal.create_revision.max(create_revision);
            removal.create_revision
        });
        if known.is_none() {
            return Some(self.done(key));
        }
        self.start(key, now, out);
        None
    }

    /// Repeats the removal after a pause, because that request did not remove the key.
    pub(crate) fn again(
        &mut self,
        key: &Arc<[u8]>,
        request: RequestId,
        class: Class,
        now: Time,
        out: &mut Outbox,
    ) {
        if let Some(removal) = self.keys.get_mut(key)
            && removal.request == Some(request)
        {
            removal.request = None;
            if let Some(parting) = &mut removal.parting {
                parting.leave_open();
            }
            self.failed(key, class, now, out);
        }
    }

    fn failed(&mut self, key: &Arc<[u8]>, class: Class, now: Time, out: &mut Outbox) {
        let Some(removal) = self.keys.get_mut(key) else {
            return;
        };
        removal.failures += 1;
        let not_before = now.after(self.pace.pause(removal.failures, class));
        removal.not_before = not_before;
        self.due.insert((not_before, Arc::clone(key)));
        out.set_timer(not_before, Timer::Removals);
    }

    fn done(&mut self, key: &[u8]) -> Vec<SlotId> {
        let waiting = self.keys.remove(key).map(|removal| removal.waiting);
        let waiting = waiting.unwrap_or_default();
        for slot in &waiting {
            if let Some(keys) = self.waits.get_mut(slot) {
                *keys -= 1;
                if *keys == 0 {
                    self.waits.remove(slot);
                }
            }
        }
        waiting
    }

    /// Handles the loss of the lease, and of every key with it: no candidate needs to wait. Requested deletions
    /// continue, because a key that another program overwrote is no longer bound to the lease. Returns the candidates
    /// that waited, each once for every key.
    pub(crate) fn lease_lost(&mut self, now: Time, out: &mut Outbox) -> Vec<SlotId> {
        let known = |removals: &Self| {
            let keys = removals.keys.values();
            keys.filter(|r| r.create_revision.is_some()).count()
        };
        let before = known(self);
        self.waits.clear();
        self.deleted.clear();
        let (mut waiting, mut held) = (Vec::new(), Vec::new());
        for (key, removal) in &mut self.keys {
            waiting.append(&mut removal.waiting);
            held.extend(removal.held_by.take().map(|_| Arc::clone(key)));
        }
        self.keys.retain(|_, r| r.create_revision.is_some());
        debug_assert_eq!(
            known(self),
            before,
            "a key that was asked to go is asked for until etcd confirms it"
        );
        for key in held {
            self.start(&key, now, out);
        }
        waiting
    }

    /// Forgets the deletions below that prefix, because no member of this session is left there. Only one revision of
    /// all its keys is remembered, because a session may share partitions under any number of names.
    pub(crate) fn forget_below(&mut self, prefix: &[u8]) {
        self.deleted.forget_below(prefix);
    }

    /// Returns true if no deleted key below that prefix is remembered.
    pub(crate) fn knows_nothing_below(&self, prefix: &[u8]) -> bool {
        self.deleted.knows_nothing_below(prefix)
    }
}

#[cfg(test)]
mod tests;
