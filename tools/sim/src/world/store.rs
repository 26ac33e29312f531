//! Models etcd in virtual time: the store of `eldest-store`, the ends of its leases, and changes of leader.

pub(crate) mod limits;
mod requests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use eldest_core::action::{Answer, Class, RequestError};
use eldest_core::kv::{Change, Entry, Header, Reach};
use eldest_core::time::Time;
use eldest_store::{Event, KeyValue, Keys, Lease, Op, Refusal};
use limits::Limits;
use requests::always;

pub(crate) type Key = Arc<[u8]>;

/// The longest time that a change of etcd's leader takes; every TTL starts again with that much more.
pub(crate) const ELECTION: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(crate) cluster: u64,
    pub(crate) term: u64,
    state: eldest_store::Store,
    /// The time before which no lease expires.
    none_before: Time,
    /// The revision up to which watchers have received all changes.
    published: i64,
    /// The number of changes in the history, or more.
    kept: usize,
    /// The revision at which the data was last replaced. No watch begins before it.
    restored: i64,
    /// The time since which no majority can be reached: nothing is read linearizably, written or expired.
    pub(crate) headless: Option<Time>,
    pub(crate) limits: Limits,
    /// How many faults leave etcd no space: until the last of them ends, nothing is put or granted.
    pub(crate) full: usize,
}

/// The number of changes that are kept for watches that begin in the past.
const HISTORY: usize = 64;

/// Returns the error for a request that is not permitted.
pub(crate) fn denied() -> RequestError {
    RequestError::new(Class::Denied, "model", "")
}

pub(crate) fn failed(class: Class, ambiguous: bool) -> Answer {
    Answer::Failed(RequestError {
        ambiguous,
        ..RequestError::new(class, format!("model: {class:?}"), "")
    })
}

/// Returns etcd's refusal as the core receives it.
fn refused(refusal: Refusal) -> Answer {
    let class = match refusal {
        Refusal::LeaseNotFound => Class::LeaseGone,
        Refusal::NoSpace => Class::Full,
        Refusal::LeaseExists => {
            let in_use = RequestError::new(Class::Retry, refusal.to_string(), "");
            return Answer::Failed(in_use.unsent());
        }
        _ => Class::Invalid,
    };
    failed(class, false)
}

/// Returns true if etcd refused a lease because its id is in use.
pub(crate) fn is_in_use(error: &RequestError) -> bool {
    error.message == Refusal::LeaseExists.to_string()
}

fn entry(kv: &KeyValue) -> Entry {
    Entry {
        key: Arc::clone(&kv.key),
        value: Arc::clone(&kv.value),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        lease: kv.lease,
    }
}

fn change(event: &Event) -> Change {
    match event {
        Event::Put(kv) => Change::Put(entry(kv)),
        Event::Delete { key, revision } => Change::Delete {
            key: Arc::clone(key),
            revision: *revision,
        },
    }
}

/// Returns the time as the store counts it.
fn counted(now: Time) -> Duration {
    now.since(Time::ZERO)
}

fn one(key: &Key) -> Keys {
    Keys::One(Arc::clone(key))
}

impl Default for Store {
    fn default() -> Self {
        let state = eldest_store::Store::default();
        Self {
            cluster: 7,
            term: 2,
            published: state.revision(),
            kept: 0,
            restored: state.revision(),
            state,
            none_before: Time::ZERO,
            headless: None,
            limits: Limits::default(),
            full: 0,
        }
    }
}

impl Store {
    pub(crate) fn revision(&self) -> i64 {
        self.state.revision()
    }

    pub(crate) fn header(&self) -> Header {
        Header {
            cluster: self.cluster,
            member: 1,
            revision: self.revision(),
            term: self.term,
        }
    }

    /// Skips so many revisions.
    pub(crate) fn bump(&mut self, by: i64) {
        self.state.bump(by);
    }

    /// Replaces the data by a backup, whose revisions continue `bump` later, under another leader. No watch begins in
    /// the backup's past.
    pub(crate) fn restore(&mut self, now: Time, backup: &Store, bump: i64) {
        let (term, full) = (self.term, self.full);
        *self = Store {
            term,
            full,
            limits: std::mem::take(&mut self.limits),
            headless: None,
            ..backup.clone()
        };
        self.bump(bump);
        self.published = self.revision();
        self.restored = self.revision();
        self.change_leader(now);
    }

    // ---- keys

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.state.get(key).is_some()
    }

    pub(crate) fn entry(&self, key: &[u8]) -> Option<Entry> {
        self.state.get(key).map(entry)
    }

    pub(crate) fn holds(&self, key: &[u8], create_revision: i64) -> bool {
        let kv = self.state.get(key);
        kv.is_some_and(|kv| kv.create_revision == create_revision)
    }

    fn select(&self, keys: &Keys) -> impl Iterator<Item = &KeyValue> + use<'_> {
        self.state.select(keys, self.revision())
    }

    /// Returns all keys in their order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        self.select(&Keys::From(Key::default())).map(entry)
    }

    /// Returns the direct children of a prefix in the order of their keys.
    pub(crate) fn children(&self, prefix: &[u8]) -> Vec<Entry> {
        self.below(prefix, Reach::Children)
    }

    fn below(&self, prefix: &[u8], reach: Reach) -> Vec<Entry> {
        let all = self.select(&Keys::below(&prefix.into()));
        all.filter(|kv| reach.covers(prefix, &kv.key))
            .map(entry)
            .collect()
    }

    /// Returns the keys below a prefix with their values.
    pub(crate) fn state(&self, prefix: &[u8], reach: Reach) -> BTreeMap<Key, Entry> {
        let below = self.below(prefix, reach).into_iter();
        below.map(|entry| (Arc::clone(&entry.key), entry)).collect()
    }

    /// Returns the direct children, eldest first.
    pub(crate) fn queue(&self, prefix: &[u8]) -> Vec<Entry> {
        let mut queue = self.children(prefix);
        queue.sort_by_key(|e| e.create_revision);
        queue
    }

    /// Returns the oldest direct child.
    pub(super) fn eldest(&self, prefix: &[u8]) -> Option<Entry> {
        let children = self.children(prefix).into_iter();
        children.min_by_key(|e| e.create_revision)
    }

    /// Puts keys in one revision, as another client does. Returns false if etcd has no space for them.
    pub(crate) fn put_each(&mut self, keys: &[&Key], value: &[u8], lease: i64) -> bool {
        let put = |key: &&Key| Op::put(key, &value.into(), lease);
        match self.commit(&always(keys.iter().map(put))) {
            Err(Refusal::NoSpace) => false,
            done => done.map(|_| true).expect("the leases exist"),
        }
    }

    pub(crate) fn put(&mut self, key: &Key, value: &[u8], lease: i64) -> bool {
        self.put_each(&[key], value, lease)
    }

    pub(crate) fn delete(&mut self, key: &Key) {
        self.state.delete(&eldest_store::Delete {
            keys: one(key),
            former: false,
        });
    }

    // ---- watches

    fn changes(&self, after: i64) -> impl DoubleEndedIterator<Item = Change> {
        let events = self.state.changes(after, self.revision());
        events.flat_map(|(_, events)| events.iter().map(change))
    }

    /// Returns the changes since the last call. Removes old history now and then.
    pub(crate) fn publish(&mut self) -> Vec<Change> {
        let news: Vec<_> = self.changes(self.published).collect();
        self.published = self.revision();
        self.kept += news.len();
        if self.kept > 2 * HISTORY {
            let since = self.changes(0).rev().nth(HISTORY);
            // A refusal would mean that the history is short already.
            let _ = since.map(|since| self.state.compact(since.revision()));
            self.kept = HISTORY;
        }
        news
    }

    /// Returns the revisions of the last published changes, at most `most`, the latest first.
    pub(crate) fn past(&self, most: usize) -> Vec<i64> {
        let before = self.changes(self.restored).rev();
        let published = before.filter(|change| change.revision() <= self.published);
        published
            .take(most)
            .map(|change| change.revision())
            .collect()
    }

    /// Returns the published changes after that revision.
    pub(crate) fn published_after(&self, revision: i64) -> impl Iterator<Item = Change> {
        let published = self.published;
        self.changes(revision)
            .take_while(move |change| change.revision() <= published)
    }

    // ---- leases

    /// Revokes the lease; returns true if there was such a lease.
    pub(crate) fn revoke(&mut self, now: Time, lease: i64) -> bool {
        self.limits.end_lease(now, self.keys_of(lease).len());
        self.state.revoke(lease).is_ok()
    }

    /// Returns the leases by their ids.
    pub(crate) fn leases(&self) -> &BTreeMap<i64, Lease> {
        self.state.leases()
    }

    pub(crate) fn keys_of(&self, lease: i64) -> Vec<Key> {
        let lease = self.leases().get(&lease);
        lease.map_or_else(Vec::new, |lease| lease.keys.iter().cloned().collect())
    }

    /// Returns when the next lease expires, if that is not after `until`.
    pub(crate) fn next_expiry(&mut self, until: Time) -> Option<Time> {
        if self.headless.is_some() || self.none_before > until {
            return None;
        }
        let ends = self.leases().values();
        let next = ends.map(|lease| Time::ZERO.after(lease.expires)).min();
        self.none_before = next.unwrap_or(Time::MAX);
        let next = next.map(|next| next.max(self.limits.busy_until()));
        next.filter(|next| *next <= until)
    }

    pub(crate) fn expire(&mut self, now: Time) {
        for id in self.due(now) {
            self.revoke(now, id);
        }
    }

    pub(crate) fn due(&self, now: Time) -> Vec<i64> {
        self.state.expired(counted(now)).collect()
    }

    /// Makes another member the leader; every lease starts again.
    pub(crate) fn change_leader(&mut self, now: Time) {
        self.term += 1;
        self.none_before = Time::ZERO;
        self.state.renew_all(counted(now), ELECTION);
    }

    pub(crate) fn renew(&mut self, now: Time, lease: i64) -> Option<Duration> {
        let ttl = self.state.renew(counted(now), lease)?;
        // The time is earlier than before if etcd's leader has just changed.
        self.none_before = self.none_before.min(now.after(ttl));
        Some(ttl)
    }

    fn grant(&mut self, now: Time, lease: i64, ttl: Duration) -> Answer {
        if self.full > 0 {
            return refused(Refusal::NoSpace);
        }
        if let Err(refusal) = self.state.grant(counted(now), lease, ttl) {
            return refused(refusal);
        }
        self.none_before = self.none_before.min(now.after(ttl));
        let header = self.header();
        Answer::Granted { lease, ttl, header }
    }

    /// Returns how much of a lease is left, in whole seconds.
    fn time_left(&self, now: Time, lease: i64) -> Answer {
        let lease = self.leases().get(&lease);
        let left = lease.map_or(Duration::ZERO, |lease| lease.expires);
        let left = left.saturating_sub(counted(now)).as_secs();
        Answer::TimeLeft {
            granted: lease.map_or(Duration::ZERO, |lease| lease.ttl),
            left: Duration::from_secs(left),
        }
    }
}
