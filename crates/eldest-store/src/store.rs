//! Stores keys, their history and the keys of leases, and applies each request to them.

mod writer;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::request::{
    By, Compare, Delete, DeleteDone, Op, OpDone, Operand, Page, Put, PutDone, Range, Ranged,
    Relation, Sort, Txn, TxnDone, Within,
};
use crate::{Bytes, Event, KeyValue, Keys, Refusal};
use writer::Writer;

/// One key at one revision; `None` if it was deleted there.
type Version = (i64, Option<KeyValue>);

/// The state that all members agree on.
#[derive(Debug, Clone)]
pub struct Store {
    revision: i64,
    compacted: i64,
    keys: BTreeMap<Bytes, Vec<Version>>,
    log: BTreeMap<i64, Arc<[Event]>>,
    leases: BTreeMap<i64, Lease>,
}

/// A lease that was granted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lease {
    /// The TTL, which each renewal restores.
    pub ttl: Duration,
    /// The time at which the lease expires, by the clock of the store's caller.
    pub expires: Duration,
    /// The keys of the lease.
    pub keys: BTreeSet<Bytes>,
}

impl Lease {
    /// Starts the countdown again, and returns the TTL.
    pub fn renew(&mut self, now: Duration) -> Duration {
        self.expires = now + self.ttl;
        self.ttl
    }

    /// Returns true if the countdown has ended.
    pub fn is_expired(&self, now: Duration) -> bool {
        self.expires <= now
    }
}

impl Default for Store {
    fn default() -> Self {
        Store {
            revision: 1,
            compacted: -1,
            keys: BTreeMap::new(),
            log: BTreeMap::new(),
            leases: BTreeMap::new(),
        }
    }
}

impl Store {
    /// Returns the revision of the last write, or 1.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns the first revision whose history is kept, or -1 if all of it is.
    pub fn compacted(&self) -> i64 {
        self.compacted
    }

    /// Returns the leases by their ids.
    pub fn leases(&self) -> &BTreeMap<i64, Lease> {
        &self.leases
    }

    /// Returns the leases whose countdown has ended. Only a revocation ends them.
    pub fn expired(&self, now: Duration) -> impl Iterator<Item = i64> {
        let expired = self.leases.iter();
        let expired = expired.filter(move |(_, lease)| lease.is_expired(now));
        expired.map(|(id, _)| *id)
    }

    /// Returns the changes after `after` up to `until`, by revision, the latest last.
    pub fn changes(
        &self,
        after: i64,
        until: i64,
    ) -> impl DoubleEndedIterator<Item = (i64, &Arc<[Event]>)> {
        let range = after + 1..(until + 1).max(after + 1);
        self.log.range(range).map(|(at, events)| (*at, events))
    }

    /// Returns the key as it was at that revision.
    pub fn at(&self, key: &[u8], revision: i64) -> Option<&KeyValue> {
        version(self.keys.get(key)?, revision)
    }

    /// Returns the key as it is now.
    pub fn get(&self, key: &[u8]) -> Option<&KeyValue> {
        let (_, kv) = self.keys.get(key)?.last()?;
        kv.as_ref()
    }

    /// Returns the keys as they were at that revision, in their order.
    pub fn select<'s>(
        &'s self,
        keys: &Keys,
        revision: i64,
    ) -> impl Iterator<Item = &'s KeyValue> + use<'s> {
        let range = (!keys.is_empty()).then(|| self.keys.range::<[u8], _>(keys.bounds()));
        let range = range.into_iter().flatten();
        range.filter_map(move |(_, versions)| version(versions, revision))
    }

    /// Reads at the view's revision, or at the earlier one that the request names.
    ///
    /// # Errors
    ///
    /// The revision is compacted, or later than the view.
    pub fn range(&self, request: &Range, view: i64) -> Result<Ranged, Refusal> {
        self.readable(request.revision, view)?;
        Ok(self.read(request, view))
    }

    fn readable(&self, revision: i64, view: i64) -> Result<(), Refusal> {
        if revision > view {
            Err(Refusal::FutureRevision)
        } else if revision > 0 && revision < self.compacted {
            Err(Refusal::Compacted)
        } else {
            Ok(())
        }
    }

    fn read(&self, request: &Range, view: i64) -> Ranged {
        let at = if request.revision > 0 {
            request.revision
        } else {
            view
        };
        let mut found: Vec<&KeyValue> = self.select(&request.keys, at).collect();
        let count = found.len();
        if request.page == Page::CountOnly {
            found.clear();
        }
        let within =
            |value, (min, max): Within| (min == 0 || value >= min) && (max == 0 || value <= max);
        found.retain(|kv| {
            within(kv.mod_revision, request.modified) && within(kv.create_revision, request.created)
        });
        let sort = request.sort.unwrap_or_default();
        sort.apply(&mut found);
        let limit = usize::try_from(request.limit).unwrap_or(0);
        let more = limit > 0 && found.len() > limit;
        if more {
            found.truncate(limit);
        }
        let mut found: Vec<KeyValue> = found.into_iter().cloned().collect();
        if request.page == Page::KeysOnly {
            for kv in &mut found {
                kv.value = Bytes::default();
                // From 3.7 on etcd reads the key alone, unless it has to sort by value.
                if sort.by != By::Value {
                    kv.lease = 0;
                }
            }
        }
        Ranged {
            revision: view,
            found,
            more,
            count,
        }
    }

    /// Removes the history before that revision.
    ///
    /// # Errors
    ///
    /// The revision is compacted already, or later than the present one.
    pub fn compact(&mut self, revision: i64) -> Result<(), Refusal> {
        if revision <= self.compacted {
            return Err(Refusal::Compacted);
        }
        if revision > self.revision {
            return Err(Refusal::FutureRevision);
        }
        self.compacted = revision;
        self.log = self.log.split_off(&revision);
        self.keys.retain(|_, versions| {
            let last = versions.iter().rposition(|(at, _)| *at <= revision);
            versions.drain(..last.unwrap_or(0));
            !matches!(&versions[..], [(at, None)] if *at <= revision)
        });
        Ok(())
    }

    /// Skips so many revisions, as the restore of a snapshot does with `--bump-revision`.
    pub fn bump(&mut self, by: i64) {
        self.revision += by;
    }

    /// Grants a lease, and starts its countdown.
    ///
    /// # Errors
    ///
    /// The id is in use.
    pub fn grant(&mut self, now: Duration, id: i64, ttl: Duration) -> Result<(), Refusal> {
        if self.leases.contains_key(&id) {
            return Err(Refusal::LeaseExists);
        }
        let lease = Lease {
            ttl,
            expires: now + ttl,
            keys: BTreeSet::new(),
        };
        self.leases.insert(id, lease);
        Ok(())
    }

    /// Starts the countdown of a lease again. Returns its TTL, or `None` if there is no such lease.
    pub fn renew(&mut self, now: Duration, id: i64) -> Option<Duration> {
        self.leases.get_mut(&id).map(|lease| lease.renew(now))
    }

    /// Starts the countdown of every lease again, `longer` than its TTL, as a new leader of etcd does.
    pub fn renew_all(&mut self, now: Duration, longer: Duration) {
        for lease in self.leases.values_mut() {
            lease.renew(now + longer);
        }
    }

    /// Ends a lease, and deletes its keys in one revision.
    ///
    /// # Errors
    ///
    /// There is no such lease.
    pub fn revoke(&mut self, id: i64) -> Result<(), Refusal> {
        let lease = self.leases.remove(&id).ok_or(Refusal::LeaseNotFound)?;
        let mut writer = Writer::new(self);
        for key in lease.keys {
            writer.remove(&Keys::One(key));
        }
        writer.end();
        Ok(())
    }

    /// Writes a key.
    ///
    /// # Errors
    ///
    /// The lease does not exist, or there is nothing to keep.
    pub fn put(&mut self, request: &Put) -> Result<PutDone, Refusal> {
        self.may_put(request)?;
        let mut writer = Writer::new(self);
        let answer = writer.put(request);
        writer.end();
        Ok(answer)
    }

    /// Deletes keys.
    pub fn delete(&mut self, request: &Delete) -> DeleteDone {
        let mut writer = Writer::new(self);
        let answer = writer.delete(request);
        writer.end();
        answer
    }

    fn may_put(&self, request: &Put) -> Result<(), Refusal> {
        if request.lease != 0 && !self.leases.contains_key(&request.lease) {
            return Err(Refusal::LeaseNotFound);
        }
        let kept = request.keeps_value || request.keeps_lease;
        if kept && self.get(&request.key).is_none() {
            return Err(Refusal::KeyNotFound);
        }
        Ok(())
    }

    /// Applies a transaction.
    ///
    /// # Errors
    ///
    /// An operation of a taken branch is refused; nothing is applied then.
    pub fn txn(&mut self, request: &Txn) -> Result<TxnDone, Refusal> {
        let path = self.path(request, self.revision)?;
        let mut writer = Writer::new(self);
        let mut answer = run(request, &mut path.into_iter(), &mut |op| {
            writer.operation(op)
        });
        answer.revision = writer.end();
        Ok(answer)
    }

    /// Carries out a transaction that [`reads only`](Txn::reads_only), as of the view.
    ///
    /// # Errors
    ///
    /// A revision of a taken branch is compacted, or later than the view.
    pub fn read_txn(&self, request: &Txn, view: i64) -> Result<TxnDone, Refusal> {
        let path = self.path(request, view)?;
        let mut answer = run(request, &mut path.into_iter(), &mut |op| match op {
            Op::Range(range) => Some(OpDone::Range(self.read(range, view))),
            _ => None,
        });
        answer.revision = view;
        Ok(answer)
    }

    /// Returns the branches that are taken, in the order of the transactions, unless one of them is refused.
    fn path(&self, request: &Txn, view: i64) -> Result<Vec<bool>, Refusal> {
        let mut path = Vec::new();
        self.compare(request, view, &mut path);
        self.may(request, view, &mut path.iter().copied())?;
        Ok(path)
    }

    /// Decides which branches are taken before any operation is carried out.
    fn compare(&self, request: &Txn, view: i64, path: &mut Vec<bool>) {
        let all = &mut request.compare.iter();
        let holds = all.all(|compare| self.holds(compare, view));
        path.push(holds);
        for op in request.branch(holds) {
            if let Op::Txn(inner) = op {
                self.compare(inner, view, path);
            }
        }
    }

    fn holds(&self, compare: &Compare, view: i64) -> bool {
        let mut found = self.select(&compare.keys, view).peekable();
        if found.peek().is_none() {
            return compare.holds_for(None);
        }
        found.all(|kv| compare.holds_for(Some(kv)))
    }

    /// Refuses operations that can be judged only once the branch is known.
    fn may(
        &self,
        request: &Txn,
        view: i64,
        path: &mut dyn Iterator<Item = bool>,
    ) -> Result<(), Refusal> {
        let taken = path.next().unwrap_or_default();
        for op in request.branch(taken) {
            match op {
                Op::Range(range) => {
                    self.readable(range.revision, view)?;
                    // Within a transaction a negative revision does not mean the present one.
                    if range.revision < 0 && range.revision < self.compacted {
                        return Err(Refusal::Compacted);
                    }
                }
                Op::Put(put) => self.may_put(put)?,
                Op::Txn(inner) => self.may(inner, view, path)?,
                Op::Delete(_) | Op::Missing => {}
            }
        }
        Ok(())
    }
}

fn version(versions: &[Version], revision: i64) -> Option<&KeyValue> {
    let (_, kv) = versions.iter().rev().find(|(at, _)| *at <= revision)?;
    kv.as_ref()
}

/// Carries out the operations of the taken branches in their order; `operation` does all but the transactions within.
fn run(
    request: &Txn,
    path: &mut dyn Iterator<Item = bool>,
    operation: &mut dyn FnMut(&Op) -> Option<OpDone>,
) -> TxnDone {
    let succeeded = path.next().unwrap_or_default();
    let mut results = Vec::new();
    for op in request.branch(succeeded) {
        results.extend(match op {
            Op::Txn(inner) => Some(OpDone::Txn(run(inner, path, operation))),
            op => operation(op),
        });
    }
    TxnDone {
        revision: 0,
        succeeded,
        results,
    }
}

impl Compare {
    /// Compares with a key, or with an absent one, whose numbers are 0 and which has no value.
    fn holds_for(&self, kv: Option<&KeyValue>) -> bool {
        let number = |is: fn(&KeyValue) -> i64, operand: &i64| kv.map_or(0, is).cmp(operand);
        let order = match &self.operand {
            Operand::Version(version) => number(|kv| kv.version, version),
            Operand::CreateRevision(revision) => number(|kv| kv.create_revision, revision),
            Operand::ModRevision(revision) => number(|kv| kv.mod_revision, revision),
            Operand::Lease(lease) => number(|kv| kv.lease, lease),
            Operand::Value(value) => match kv {
                Some(kv) => kv.value.cmp(value),
                None => return false,
            },
        };
        match self.relation {
            Relation::Equal => order.is_eq(),
            Relation::NotEqual => order.is_ne(),
            Relation::Less => order.is_lt(),
            Relation::Greater => order.is_gt(),
        }
    }
}

impl Sort {
    /// Sorts keys, which are in their order, stably.
    fn apply(self, found: &mut [&KeyValue]) {
        let by = |a: &KeyValue, b: &KeyValue| -> Ordering {
            match self.by {
                By::Key => a.key.cmp(&b.key),
                By::Version => a.version.cmp(&b.version),
                By::CreateRevision => a.create_revision.cmp(&b.create_revision),
                By::ModRevision => a.mod_revision.cmp(&b.mod_revision),
                By::Value => a.value.cmp(&b.value),
            }
        };
        if self.descending {
            found.sort_by(|a, b| by(b, a));
        } else if self.by != By::Key {
            found.sort_by(|a, b| by(a, b));
        }
    }
}
