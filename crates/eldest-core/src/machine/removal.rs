//! Removes what the session left in etcd: deletes keys by compare-and-delete, revokes leases, and retries until etcd
//! confirms it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Machine, Slot};
use crate::action::{Answer, Ask, Class, Note, RequestId, SlotId, Trouble};
use crate::candidate::Phase;
use crate::facts::Entry;
use crate::partitions::Shown;
use crate::purpose::Purpose;
use crate::time::Time;
use crate::timers::Timer;

/// A key that must go. While it stands here it is never ours again: no join uses its path.
#[derive(Debug, Clone)]
pub(crate) struct Removal {
    /// Compared on deleting; unknown after a join whose answer was lost: then the key is looked for first.
    create_revision: Option<i64>,
    request: Option<RequestId>,
    failures: u32,
    not_before: Time,
    /// Not to be started before this candidate's join, which is under way, is answered; whoever else asks meanwhile
    /// waits. Gone too early, the key would be free for another join while that one may still come.
    held_by: Option<SlotId>,
    waiting: Vec<SlotId>,
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
        }
    }
}

/// A partition's key that was asked to go under this lease.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Deleted {
    /// The newest create revision that was asked to go.
    created: i64,
    /// The revision at which etcd confirmed that it is gone.
    gone_at: Option<i64>,
}

impl Deleted {
    fn ask(&mut self, create_revision: i64) {
        // Until etcd confirms it the key is among the removals, so the earlier date misleads nobody.
        self.created = self.created.max(create_revision);
    }

    /// What a view at the revision `seen` says by showing a key that was created then.
    pub(super) fn shown(self, created: i64, seen: i64) -> Shown {
        if created > self.created {
            Shown::Standing
        } else if self.gone_at.is_some_and(|gone| seen >= gone) {
            Shown::Back
        } else {
            Shown::Going
        }
    }
}

/// All keys that must go, and the candidates that wait for them.
#[derive(Debug, Clone, Default)]
pub struct Removals {
    keys: BTreeMap<Arc<[u8]>, Removal>,
    /// For how many keys each candidate waits.
    waits: BTreeMap<SlotId, usize>,
}

impl Removals {
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        self.keys.contains_key(key)
    }

    fn get(&self, key: &[u8]) -> Option<&Removal> {
        self.keys.get(key)
    }

    fn get_mut(&mut self, key: &[u8]) -> Option<&mut Removal> {
        self.keys.get_mut(key)
    }

    fn insert(&mut self, key: Arc<[u8]>, create_revision: Option<i64>, now: Time) -> &mut Removal {
        let removal = self.keys.entry(key);
        removal.or_insert_with(|| Removal::new(create_revision, now))
    }

    /// The candidate waits until the key is gone. Whether the key must go at all.
    fn wait(&mut self, key: &[u8], slot: SlotId) -> bool {
        let Some(removal) = self.keys.get_mut(key) else {
            return false;
        };
        if !removal.waiting.contains(&slot) {
            removal.waiting.push(slot);
            *self.waits.entry(slot).or_default() += 1;
        }
        true
    }

    fn awaited_by(&self, slot: SlotId) -> bool {
        self.waits.contains_key(&slot)
    }

    /// The key is gone. The candidates that waited for it.
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

    /// Nobody waits for any key any more. The candidates that waited, each once for every key.
    fn release_all(&mut self) -> Vec<SlotId> {
        self.waits.clear();
        let removals = self.keys.values_mut();
        let waiting = removals.flat_map(|removal| {
            removal.held_by = None;
            std::mem::take(&mut removal.waiting)
        });
        waiting.collect()
    }
}

/// Keys that may go in batches. While one is under way, the next one is gathered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Releases {
    waiting: BTreeSet<Arc<[u8]>>,
    under_way: bool,
}

/// A lease that must go. It expires by itself at `until`; after that nobody need be asked.
#[derive(Debug, Clone)]
pub struct Revocation {
    lease: i64,
    request: Option<RequestId>,
    failures: u32,
    not_before: Time,
    until: Time,
}

impl Machine {
    /// Deletes `key` if it was created at that revision, for as long as it takes. `slot` waits for it.
    pub fn remove(
        &mut self,
        now: Time,
        key: &Arc<[u8]>,
        create_revision: Option<i64>,
        slot: Option<SlotId>,
    ) {
        let removal = self.removals.insert(Arc::clone(key), create_revision, now);
        if removal.held_by == slot {
            removal.held_by = None;
        }
        removal.create_revision = removal.create_revision.max(create_revision);
        if let Some(slot) = slot {
            self.removals.wait(key, slot);
        }
        self.start_removal(key, now);
    }

    /// No join may use `key` until it was removed: one of `slot`, which has left, is still under way, and if it
    /// succeeds its key must go, whoever else would find it. [`Machine::remove`] for that slot follows for certain.
    pub fn hold(&mut self, key: Arc<[u8]>, slot: SlotId, now: Time) {
        self.removals.insert(key, None, now).held_by = Some(slot);
    }

    /// Whether `slot` must wait until `key` is gone.
    pub fn awaits_removal(&mut self, key: &[u8], slot: SlotId) -> bool {
        self.removals.wait(key, slot)
    }

    pub(super) fn is_awaiting_removal(&self, slot: SlotId) -> bool {
        self.removals.awaited_by(slot)
    }

    fn start_removal(&mut self, key: &Arc<[u8]>, now: Time) {
        let Some(removal) = self.removals.get(key) else {
            return;
        };
        if removal.held_by.is_some() || removal.request.is_some() || now < removal.not_before {
            return;
        }
        let key = Arc::clone(key);
        if removal.create_revision.is_some() && is_shared(&key) {
            self.releases.waiting.insert(key);
            self.start_releases();
            return;
        }
        let purpose = Purpose::Remove {
            key: Arc::clone(&key),
        };
        let ask = match removal.create_revision {
            Some(create_revision) => Ask::Delete {
                key: Arc::clone(&key),
                create_revision,
            },
            None => Ask::Find {
                key: Arc::clone(&key),
            },
        };
        let request = self.out.ask(purpose, ask);
        if let Some(removal) = self.removals.get_mut(&key) {
            removal.request = Some(request);
        }
    }

    pub fn start_removals(&mut self, now: Time) {
        let keys: Vec<_> = self.removals.keys.keys().cloned().collect();
        for key in keys {
            self.start_removal(&key, now);
        }
    }

    pub fn removed(&mut self, now: Time, key: &Arc<[u8]>, request: RequestId, answer: Answer) {
        let Some(removal) = self.removals.get_mut(key) else {
            return;
        };
        if removal.request != Some(request) {
            return;
        }
        removal.request = None;
        match answer {
            Answer::Deleted { header } => {
                if let Some(deleted) = self.deleted.get_mut(key) {
                    deleted.gone_at = Some(header.revision);
                }
                self.removal_done(key, now);
            }
            Answer::Read { entry, .. } => {
                let stray = entry.filter(|e| self.is_stray(e, now));
                self.found(key, stray.map(|e| e.create_revision), now);
            }
            Answer::Failed(trouble) => {
                self.removal_failed(key, trouble.class, now);
                self.out.note_failure("delete", key, trouble);
            }
            _ => {}
        }
    }

    /// What was looked for stands since that revision, or does not stand.
    fn found(&mut self, key: &Arc<[u8]>, create_revision: Option<i64>, now: Time) {
        if create_revision.is_some() {
            self.out.note(Note::OrphanFound {
                key: Arc::clone(key),
            });
        }
        // Somebody may have asked meanwhile for one that it knows.
        let known = self.removals.get_mut(key).and_then(|removal| {
            removal.create_revision = removal.create_revision.max(create_revision);
            removal.create_revision
        });
        if known.is_some() {
            self.start_removal(key, now);
        } else {
            self.removal_done(key, now);
        }
    }

    /// Put under our lease, and not what a candidate stands by: that is released when its work has ended, not looked for.
    fn is_stray(&self, entry: &Entry, now: Time) -> bool {
        let held = self.slots.values().any(|slot| match slot {
            Slot::Candidate(c) => {
                c.own().is_some_and(|own| own.is(entry))
                    || c.holder_of(entry)
                        .is_some_and(|slot| self.winds_up(slot, now))
                    || c.taking().any(|key| key == entry.key)
            }
            Slot::Onlooker(_) => false,
        });
        !held && self.entry_is_ours(entry)
    }

    /// Whether work of a term that is over may go on. Work that is overdue keeps no key.
    fn winds_up(&self, slot: SlotId, now: Time) -> bool {
        match self.slots.get(&slot) {
            Some(Slot::Candidate(candidate)) => match *candidate.phase() {
                Phase::Ending { cutoff, .. } => now < self.release_at(cutoff),
                _ => false,
            },
            _ => false,
        }
    }

    /// The answer was another store's, and proves nothing about the key.
    pub(super) fn remove_again(&mut self, key: &Arc<[u8]>, request: RequestId, now: Time) {
        self.remove_later(key, request, Class::Retry, now);
    }

    /// That request did not remove the key: another one will, after a pause.
    fn remove_later(&mut self, key: &Arc<[u8]>, request: RequestId, class: Class, now: Time) {
        if let Some(removal) = self.removals.get_mut(key)
            && removal.request == Some(request)
        {
            removal.request = None;
            self.removal_failed(key, class, now);
        }
    }

    fn removal_failed(&mut self, key: &[u8], class: Class, now: Time) {
        let failures = match self.removals.get_mut(key) {
            Some(removal) => {
                removal.failures += 1;
                removal.failures
            }
            None => return,
        };
        let not_before = now.after(self.pace.pause(failures, class));
        if let Some(removal) = self.removals.get_mut(key) {
            removal.not_before = not_before;
        }
        self.out.set_timer(not_before, Timer::Removals);
    }

    fn start_releases(&mut self) {
        if self.releases.under_way {
            return;
        }
        let mut keys = Vec::new();
        while keys.len() < self.out.batch()
            && let Some(key) = self.releases.waiting.pop_first()
        {
            let removal = self.removals.get(&key).filter(|r| r.request.is_none());
            keys.extend(removal.and_then(|r| Some((key, r.create_revision?))));
        }
        if keys.is_empty() {
            return;
        }
        let purpose = Purpose::Release {
            keys: keys.iter().map(|(key, _)| Arc::clone(key)).collect(),
        };
        let asked = keys.clone();
        let request = self.out.ask(purpose, Ask::Release { keys });
        self.releases.under_way = true;
        for (key, create_revision) in asked {
            if let Some(removal) = self.removals.get_mut(&key) {
                removal.request = Some(request);
            }
            self.deleted.entry(key).or_default().ask(create_revision);
        }
    }

    pub(super) fn released(
        &mut self,
        now: Time,
        keys: &[Arc<[u8]>],
        request: RequestId,
        answer: Answer,
    ) {
        self.releases.under_way = false;
        if let Answer::Failed(trouble) = answer {
            self.out.smaller_batches(trouble.class, keys.len());
            for key in keys {
                self.remove_later(key, request, trouble.class, now);
            }
            self.out.note_failure(
                "delete",
                keys.first().map_or(&[][..], |key| &**key),
                trouble,
            );
        } else {
            for key in keys {
                self.removed(now, key, request, answer.clone());
            }
        }
        self.start_releases();
    }

    pub(super) fn release_again(&mut self, keys: &[Arc<[u8]>], request: RequestId, now: Time) {
        self.releases.under_way = false;
        for key in keys {
            self.remove_again(key, request, now);
        }
        self.start_releases();
    }

    fn removal_done(&mut self, key: &[u8], now: Time) {
        let waiting = self.removals.done(key);
        self.release_waiting(waiting, now);
        if is_shared(key) {
            self.may_be_taken_again(key, now);
        }
    }

    /// The lease is gone and every key of it: nobody need wait. What was asked to go goes on being asked for, for
    /// a key that somebody wrote over is not bound to the lease any more.
    pub fn removals_moot(&mut self, now: Time) {
        let waiting = self.removals.release_all();
        self.removals
            .keys
            .retain(|_, r| r.create_revision.is_some());
        self.deleted.clear();
        self.release_waiting(waiting, now);
    }

    fn release_waiting(&mut self, waiting: Vec<SlotId>, now: Time) {
        for slot in waiting {
            let Some(Slot::Candidate(candidate)) = self.slots.get(&slot) else {
                continue;
            };
            match candidate.phase() {
                Phase::Leaving { .. } => self.finish(slot, now),
                Phase::Joining { .. } => {
                    self.tidy(slot, now);
                    self.queue_join(slot, now);
                }
                _ => {}
            }
        }
        self.close_if_done(now);
    }

    /// Deletes keys of our lease that no candidate owns: left over from a join whose answer was lost, or brought back by a
    /// restore.
    pub fn swept(&mut self, now: Time, lease: i64, answer: Answer) {
        if self.lease().map(crate::lease::Lease::id) != Some(lease) {
            return;
        }
        let keys = match answer {
            Answer::Swept { keys } => keys,
            Answer::Failed(trouble) => {
                self.sweeps = self.sweeps.max(1);
                self.out.note_failure("sweep", &[], trouble);
                return;
            }
            _ => return,
        };
        let mut owned = BTreeSet::new();
        for slot in self.slots.values() {
            if let Slot::Candidate(c) = slot {
                owned.extend(c.may_stand().then(|| c.key(lease)));
            }
        }
        for key in keys {
            // Keys that users bind to the lease have other names.
            if !is_named_by_us(&key, lease) || owned.contains(&key) {
                continue;
            }
            if self.removals.contains(&key) {
                // It may be another key than the one that is asked to go.
                self.sweeps = self.sweeps.max(1);
            } else {
                // The search spares what a member stands by or is taking.
                self.remove(now, &key, None, None);
            }
        }
    }

    /// Takes the lease away from etcd, from `not_before` on; it would go by itself a TTL later.
    pub fn revoke(&mut self, now: Time, lease: i64, ttl: Duration, not_before: Time) {
        let until = now.after(ttl * 2);
        self.out.set_timer(not_before, Timer::Revocations);
        self.revocations().push(Revocation {
            lease,
            request: None,
            failures: 0,
            not_before,
            until,
        });
        self.start_revocations(now);
    }

    pub fn start_revocations(&mut self, now: Time) {
        let mut due = Vec::new();
        self.revocations()
            .retain(|r| r.request.is_some() || now < r.until);
        for (index, revocation) in self.revocations().iter().enumerate() {
            if revocation.request.is_none() && now >= revocation.not_before {
                due.push((index, revocation.lease));
            }
        }
        for (index, lease) in due {
            let request = self
                .out
                .ask(Purpose::Revoke { lease }, Ask::Revoke { lease });
            self.revocations()[index].request = Some(request);
        }
        self.close_if_done(now);
    }

    pub fn revoked(&mut self, now: Time, lease: i64, answer: Answer) {
        match answer {
            Answer::Failed(trouble) if trouble.class != Class::LeaseGone => {
                self.retry_revocation(now, lease, trouble);
            }
            _ => {
                self.revocations().retain(|r| r.lease != lease);
                self.close_if_done(now);
            }
        }
    }

    fn retry_revocation(&mut self, now: Time, lease: i64, trouble: Trouble) {
        let failures = match self.revocations().iter_mut().find(|r| r.lease == lease) {
            Some(r) => {
                r.failures += 1;
                r.failures
            }
            None => return,
        };
        let not_before = now.after(self.pace.pause(failures, trouble.class));
        for r in self.revocations().iter_mut().filter(|r| r.lease == lease) {
            r.request = None;
            r.not_before = not_before;
        }
        self.out.set_timer(not_before, Timer::Revocations);
        self.out.note_failure("revoke", &[], trouble);
    }
}

/// What follows the last slash of a key.
fn name_of(key: &[u8]) -> &[u8] {
    key.rsplit(|byte| *byte == b'/').next().unwrap_or(key)
}

/// Whether the key is one of many that may go at the same time: a partition's.
fn is_shared(key: &[u8]) -> bool {
    name_of(key).starts_with(b"o-")
}

/// Whether a session gives such a name to keys under that lease: of candidates, permits, members or partitions.
fn is_named_by_us(key: &[u8], lease: i64) -> bool {
    let (name, lease) = (name_of(key), format!("{lease:x}"));
    let digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let after_lease = name.strip_prefix(lease.as_bytes());
    let permit = after_lease.and_then(|rest| rest.strip_prefix(b"-"));
    after_lease == Some(b"")
        || permit.is_some_and(digits)
        || name.strip_prefix(b"m-") == Some(lease.as_bytes())
        || name.strip_prefix(b"o-").is_some_and(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_candidates_permits_members_and_partitions_are_named_by_us() {
        for (key, ours) in [
            (&b"ns/e/7f"[..], true),
            (b"ns/s/3/7f-12", true),
            (b"ns/p/9/m-7f", true),
            (b"ns/p/9/o-0", true),
            (b"ns/e/7e", false),
            (b"ns/e/7f-", false),
            (b"ns/e/7f-x", false),
            (b"ns/p/9/m-7e", false),
            (b"ns/p/9/o-x", false),
            (b"services/billing/10.0.0.1:8080", false),
            (b"7f/endpoint", false),
        ] {
            let text = String::from_utf8_lossy(key);
            assert_eq!(is_named_by_us(key, 0x7f), ours, "{text}");
        }
    }
}
