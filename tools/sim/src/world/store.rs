//! Models etcd as one store in virtual time, with revisions, leases, transactions and changes of leader.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use eldest_core::action::{Admission, Answer, Ask, Class, Join, Joined, Listed, RequestError};
use eldest_core::kv::{Change, Entry, Header, Reach, is_elected};
use eldest_core::queue::Own;
use eldest_core::time::Time;
use eldest_core::txn::{Op, Transacted, Txn, When};

pub(crate) type Key = Arc<[u8]>;

/// The longest time that a change of etcd's leader takes; every TTL starts again with that much more.
pub(crate) const ELECTION: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub(crate) ttl: Duration,
    pub(crate) expires: Time,
}

#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(crate) cluster: u64,
    pub(crate) term: u64,
    pub(crate) revision: i64,
    pub(crate) keys: BTreeMap<Key, Entry>,
    pub(crate) leases: BTreeMap<i64, Lease>,
    /// The time before which no lease expires.
    none_before: Time,
    /// The changes that watchers have not received yet, in order.
    pub(crate) news: Vec<Change>,
    /// The last changes that watchers received.
    pub(crate) history: VecDeque<Change>,
    /// The time since which no majority can be reached: nothing is read linearizably, written or expired.
    pub(crate) headless: Option<Time>,
    /// The maximum number of operations in one transaction.
    pub(crate) most_operations: usize,
    /// True if etcd has no space: nothing is put or granted.
    pub(crate) full: bool,
}

/// The default of etcd's `--max-txn-ops`.
const MOST_OPERATIONS: usize = 128;

/// The number of changes that are kept for watches that begin in the past.
const HISTORY: usize = 64;

/// A write of a revision.
pub(crate) enum Write {
    Put { key: Key, value: Key, lease: i64 },
    Delete { key: Key },
}

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

/// Returns the number of operations of a transaction, or of its conditions if these are more.
fn operations(ask: &Ask) -> usize {
    match ask {
        Ask::Check { keys } => keys.len(),
        // Each key has a transaction of its own within it.
        Ask::Take { keys, .. } => keys.len() + 1,
        Ask::Release { keys } if keys.len() > 1 => keys.len() + 1,
        _ => 1,
    }
}

/// Returns true if etcd refuses the request for want of space, whichever branch of a transaction it would take.
pub(super) fn puts(ask: &Ask) -> bool {
    match ask {
        Ask::Grant { .. } | Ask::Join(_) | Ask::Take { .. } | Ask::Proclaim { .. } => true,
        Ask::Transact(txn) => txn.then.iter().any(|op| matches!(op, Op::Put { .. })),
        _ => false,
    }
}

pub(crate) fn exists() -> Answer {
    Answer::Failed(RequestError::new(Class::Retry, EXISTS, "").unsent())
}

/// The error of etcd for a lease id in use.
pub(crate) const EXISTS: &str = "etcdserver: lease already exists";

impl Store {
    pub(crate) fn new() -> Self {
        Self {
            cluster: 7,
            term: 2,
            revision: 1,
            keys: BTreeMap::new(),
            leases: BTreeMap::new(),
            none_before: Time::ZERO,
            news: Vec::new(),
            history: VecDeque::new(),
            headless: None,
            most_operations: MOST_OPERATIONS,
            full: false,
        }
    }

    pub(crate) fn header(&self) -> Header {
        Header {
            cluster: self.cluster,
            member: 1,
            revision: self.revision,
            term: self.term,
        }
    }

    /// Makes all writes in one revision; changes nothing if no write has an effect.
    pub(crate) fn write(&mut self, writes: impl IntoIterator<Item = Write>) {
        let revision = self.revision + 1;
        let mut changed = false;
        for write in writes {
            match write {
                Write::Put { key, value, lease } => {
                    let create_revision =
                        self.keys.get(&key).map_or(revision, |e| e.create_revision);
                    let entry = Entry {
                        key: Arc::clone(&key),
                        value,
                        create_revision,
                        mod_revision: revision,
                        lease,
                    };
                    self.keys.insert(key, entry.clone());
                    self.news.push(Change::Put(entry));
                    changed = true;
                }
                Write::Delete { key } => {
                    if self.keys.remove(&key).is_some() {
                        self.news.push(Change::Delete { key, revision });
                        changed = true;
                    }
                }
            }
        }
        if changed {
            self.revision = revision;
        }
    }

    pub(crate) fn put(&mut self, key: &Key, value: &[u8], lease: i64) {
        self.write([Write::Put {
            key: Arc::clone(key),
            value: value.into(),
            lease,
        }]);
    }

    pub(crate) fn delete(&mut self, key: &Key) {
        self.write([Write::Delete {
            key: Arc::clone(key),
        }]);
    }

    /// Revokes the lease; returns true if there was such a lease.
    pub(crate) fn revoke(&mut self, lease: i64) -> bool {
        let known = self.leases.remove(&lease).is_some();
        let keys = self.keys_of(lease);
        if known {
            self.write(keys.into_iter().map(|key| Write::Delete { key }));
        }
        known
    }

    pub(crate) fn keys_of(&self, lease: i64) -> Vec<Key> {
        let bound = self.keys.values().filter(|e| e.lease == lease);
        bound.map(|e| Arc::clone(&e.key)).collect()
    }

    /// Returns the changes since the last call, which belong to the history from now on.
    pub(crate) fn publish(&mut self) -> Vec<Change> {
        let news = std::mem::take(&mut self.news);
        self.history.extend(news.iter().cloned());
        let beyond = self.history.len().saturating_sub(HISTORY);
        self.history.drain(..beyond);
        news
    }

    /// Returns when the next lease expires, if that is not after `until`.
    pub(crate) fn next_expiry(&mut self, until: Time) -> Option<Time> {
        if self.headless.is_some() || self.none_before > until {
            return None;
        }
        let next = self.leases.values().map(|l| l.expires).min();
        self.none_before = next.unwrap_or(Time::MAX);
        next.filter(|next| *next <= until)
    }

    pub(crate) fn expire(&mut self, now: Time) {
        for id in self.due(now) {
            self.revoke(id);
        }
    }

    pub(crate) fn due(&self, now: Time) -> Vec<i64> {
        let due = self.leases.iter().filter(|(_, l)| l.expires <= now);
        due.map(|(id, _)| *id).collect()
    }

    /// Makes another member the leader; every lease starts again.
    pub(crate) fn change_leader(&mut self, now: Time) {
        self.term += 1;
        self.none_before = Time::ZERO;
        for lease in self.leases.values_mut() {
            lease.expires = now.after(lease.ttl + ELECTION);
        }
    }

    /// Returns the direct children of a prefix in the order of their keys.
    pub(crate) fn children(&self, prefix: &[u8]) -> Vec<Entry> {
        self.below(prefix, Reach::Children)
    }

    fn below(&self, prefix: &[u8], reach: Reach) -> Vec<Entry> {
        let range = (Bound::Included(prefix), Bound::Unbounded);
        let all = self.keys.range::<[u8], _>(range).map(|(_, entry)| entry);
        let all = all.take_while(|e| e.key.starts_with(prefix));
        all.filter(|e| reach.covers(prefix, &e.key))
            .cloned()
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

    pub(crate) fn renew(&mut self, now: Time, lease: i64) -> Option<Duration> {
        let lease = self.leases.get_mut(&lease)?;
        lease.expires = now.after(lease.ttl);
        // The time is earlier than before if etcd's leader has just changed.
        self.none_before = self.none_before.min(lease.expires);
        Some(lease.ttl)
    }

    pub(crate) fn holds(&self, key: &[u8], create_revision: i64) -> bool {
        self.keys
            .get(key)
            .is_some_and(|e| e.create_revision == create_revision)
    }

    fn other(&self, prefix: &[u8], admission: &Admission) -> Option<Key> {
        let all = admission.nothing_else_in.as_ref()?;
        let mut others = self.keys.keys();
        others
            .find(|key| key.starts_with(all) && !key.starts_with(prefix))
            .cloned()
    }

    /// Returns true if the key is absent, and no key below its prefix is too new.
    pub(super) fn admits(&self, key: &[u8], prefix: &[u8], admission: &Admission) -> bool {
        let mut below = self.keys.values().filter(|e| e.key.starts_with(prefix));
        let barred = admission.only_locks && below.any(|e| is_elected(&e.value));
        !self.keys.contains_key(key) && !barred && !self.newer(prefix, admission)
    }

    fn newer(&self, prefix: &[u8], admission: &Admission) -> bool {
        let Some(revision) = admission.none_after else {
            return false;
        };
        let mut below = self.keys.values().filter(|e| e.key.starts_with(prefix));
        below.any(|e| e.create_revision > revision)
    }

    /// Carries out a request, unless it has more operations than etcd is configured for. `lease` is that of the
    /// keepalive stream on which the request came, or the one to be granted.
    pub(crate) fn perform(&mut self, now: Time, ask: &Ask, lease: Option<i64>) -> Answer {
        if operations(ask) > self.most_operations {
            return failed(Class::Invalid, false);
        }
        if self.full && puts(ask) {
            return failed(Class::Backoff, false);
        }
        match ask {
            Ask::Grant { ttl } => self.grant(now, lease.unwrap_or_default(), *ttl),
            Ask::Open { lease } => match self.renew(now, *lease) {
                Some(_) => Answer::Opened,
                None => failed(Class::LeaseGone, false),
            },
            Ask::Renew => Answer::Renewed {
                ttl: lease.and_then(|l| self.renew(now, l)).unwrap_or_default(),
                header: self.header(),
            },
            Ask::Check { keys } => Answer::Checked {
                header: self.header(),
                entries: keys.iter().map(|key| self.keys.get(key).cloned()).collect(),
            },
            Ask::Verify { key } | Ask::Probe { key } | Ask::Find { key } => Answer::Read {
                header: self.header(),
                entry: self.keys.get(key).cloned(),
            },
            Ask::Join(join) => self.join(join),
            Ask::List { prefix, reach } => self.listed(self.below(prefix, *reach)),
            Ask::Older {
                prefix,
                create_revision,
            } => {
                let mut entries = self.children(prefix);
                entries.retain(|e| e.create_revision <= *create_revision);
                self.listed(entries)
            }
            Ask::Delete {
                key,
                create_revision,
            } => self.release(&[(Arc::clone(key), *create_revision)]),
            Ask::Release { keys } => self.release(keys),
            Ask::Take {
                member,
                value,
                keys,
            } => self.take(member, value, keys),
            Ask::Proclaim {
                own,
                mod_revision,
                value,
            } => self.proclaim(own, *mod_revision, value),
            Ask::Revoke { lease } => {
                self.revoke(*lease);
                Answer::Revoked
            }
            Ask::Sweep { lease } => Answer::Swept {
                keys: self.keys_of(*lease),
            },
            Ask::TimeLeft { lease } => self.time_left(now, *lease),
            Ask::Transact(txn) => self.transact(txn),
        }
    }

    /// Returns how much of a lease is left, in whole seconds.
    fn time_left(&self, now: Time, lease: i64) -> Answer {
        let lease = self.leases.get(&lease);
        let left = lease.map_or(0, |lease| lease.expires.since(now).as_secs());
        Answer::TimeLeft {
            granted: lease.map_or(Duration::ZERO, |lease| lease.ttl),
            left: Duration::from_secs(left),
        }
    }

    fn grant(&mut self, now: Time, lease: i64, ttl: Duration) -> Answer {
        if self.leases.contains_key(&lease) {
            return exists();
        }
        let expires = now.after(ttl);
        self.leases.insert(lease, Lease { ttl, expires });
        self.none_before = self.none_before.min(expires);
        let header = self.header();
        Answer::Granted { lease, ttl, header }
    }

    fn join(&mut self, join: &Join) -> Answer {
        let (prefix, admission) = (&join.prefix, &join.admission);
        let other = self.other(prefix, admission);
        let created = other.is_none() && self.admits(&join.key, prefix, admission);
        if created && !self.leases.contains_key(&join.lease) {
            return failed(Class::LeaseGone, false);
        }
        if created {
            self.put(&join.key, &join.value, join.lease);
        }
        Answer::Joined(Joined {
            header: self.header(),
            created,
            entries: self.children(prefix),
            other,
        })
    }

    /// Applies a transaction at one revision.
    fn transact(&mut self, txn: &Txn) -> Answer {
        let created = |key: &Key| self.keys.get(key).map_or(0, |e| e.create_revision);
        let written = |key: &Key| self.keys.get(key).map_or(0, |e| e.mod_revision);
        let held = txn.when.iter().all(|when| match when {
            When::Created(key, revision) => created(key) == *revision,
            When::NotCreated(key, revision) => created(key) != *revision,
            When::Written(key, revision) => written(key) == *revision,
        });
        let ops = if held { &txn.then } else { &txn.otherwise };
        let (mut writes, mut found) = (Vec::new(), Vec::new());
        for op in ops {
            match op {
                Op::Put { lease, .. } if !self.leases.contains_key(lease) => {
                    return failed(Class::LeaseGone, false);
                }
                Op::Put { key, value, lease } => writes.push(Write::Put {
                    key: Arc::clone(key),
                    value: Arc::clone(value),
                    lease: *lease,
                }),
                Op::Read(key) => found.push(self.keys.get(key).cloned().into_iter().collect()),
                Op::ReadBelow(prefix) => found.push(self.below(prefix, Reach::Everything)),
                Op::Delete(key) => writes.push(Write::Delete {
                    key: Arc::clone(key),
                }),
                Op::DeleteBelow(prefix) => {
                    let keys = self.below(prefix, Reach::Everything).into_iter();
                    writes.extend(keys.map(|entry| Write::Delete { key: entry.key }));
                }
            }
        }
        self.write(writes);
        let header = self.header();
        Answer::Transacted(Transacted {
            header,
            held,
            found,
        })
    }

    fn listed(&self, entries: Vec<Entry>) -> Answer {
        let header = self.header();
        Answer::Listed(Listed { header, entries })
    }

    /// Deletes those of the keys that still have their create revision.
    fn release(&mut self, keys: &[(Key, i64)]) -> Answer {
        let held = keys.iter().filter(|(k, created)| self.holds(k, *created));
        let deletes = held.map(|(key, _)| Write::Delete {
            key: Arc::clone(key),
        });
        self.write(deletes.collect::<Vec<_>>());
        let header = self.header();
        Answer::Deleted { header }
    }

    /// Puts those of the keys that are absent, if the member's own key exists.
    fn take(&mut self, member: &Own, value: &Key, keys: &[Key]) -> Answer {
        if !self.holds(&member.key, member.create_revision) {
            let header = self.header();
            return Answer::Taken {
                header,
                taken: None,
            };
        }
        let absent = |key: &Key| !self.keys.contains_key(key);
        let taken: Vec<_> = keys.iter().map(absent).collect();
        if !self.leases.contains_key(&member.lease) && taken.contains(&true) {
            return failed(Class::LeaseGone, false);
        }
        let absent = keys.iter().zip(&taken).filter(|(_, taken)| **taken);
        let puts = absent.map(|(key, _)| Write::Put {
            key: Arc::clone(key),
            value: Arc::clone(value),
            lease: member.lease,
        });
        self.write(puts);
        Answer::Taken {
            header: self.header(),
            taken: Some(taken),
        }
    }

    fn proclaim(&mut self, own: &Own, mod_revision: i64, value: &[u8]) -> Answer {
        let entry = self.keys.get(&own.key);
        let held = entry
            .is_some_and(|e| own.is(e) && e.lease == own.lease && e.mod_revision == mod_revision);
        if held {
            self.put(&own.key, value, own.lease);
            let held = Some(self.revision);
            return Answer::Proclaimed { held, entry: None };
        }
        let entry = entry.cloned();
        Answer::Proclaimed { held: None, entry }
    }
}
