//! Stores keys, their history and the keys of leases, and applies each request to them.

mod writer;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use etcd_client::SortTarget;
use tonic::Status;

use super::errors;
use super::range::Keys;
use crate::memory::proto::{
    Compare, CompareTarget, DeleteRequest, DeleteResponse, Event, Header, KeyValue, PutRequest,
    PutResponse, RangeRequest, RangeResponse, Request, RequestOp, Response, ResponseOp,
    TargetUnion, TxnRequest, TxnResponse,
};
use writer::Writer;

/// One key at one revision; `None` if it was deleted there.
type Version = (i64, Option<KeyValue>);

/// The state that all members agree on.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    revision: i64,
    compacted: i64,
    keys: BTreeMap<Vec<u8>, Vec<Version>>,
    log: BTreeMap<i64, Arc<[Event]>>,
    leases: BTreeMap<i64, Lease>,
    /// The leases that were granted or have ended since the last call of `take_moved`.
    moved: Vec<i64>,
}

/// A lease that was granted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Lease {
    /// The TTL in seconds.
    pub(crate) ttl: i64,
    /// The keys of the lease.
    pub(crate) keys: BTreeSet<Vec<u8>>,
}

impl Default for Store {
    fn default() -> Self {
        Store {
            revision: 1,
            compacted: -1,
            keys: BTreeMap::new(),
            log: BTreeMap::new(),
            leases: BTreeMap::new(),
            moved: Vec::new(),
        }
    }
}

impl Store {
    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    pub(crate) fn compacted(&self) -> i64 {
        self.compacted
    }

    pub(crate) fn leases(&self) -> &BTreeMap<i64, Lease> {
        &self.leases
    }

    /// Takes the leases that were granted or have ended since the last call.
    pub(crate) fn take_moved(&mut self) -> Vec<i64> {
        std::mem::take(&mut self.moved)
    }

    /// Returns the changes after `after` up to `until`, by revision.
    pub(crate) fn changes(
        &self,
        after: i64,
        until: i64,
    ) -> impl Iterator<Item = (i64, &Arc<[Event]>)> {
        let range = after + 1..(until + 1).max(after + 1);
        self.log.range(range).map(|(at, events)| (*at, events))
    }

    /// Returns the key as it was at that revision.
    pub(crate) fn at(&self, key: &[u8], revision: i64) -> Option<&KeyValue> {
        version(self.keys.get(key)?, revision)
    }

    fn select(&self, keys: &Keys, revision: i64) -> Vec<&KeyValue> {
        if keys.is_empty() {
            return Vec::new();
        }
        self.keys
            .range::<[u8], _>(keys.bounds())
            .filter_map(|(_, versions)| version(versions, revision))
            .collect()
    }

    /// Reads at the view's revision, or at the earlier one that the request names.
    pub(crate) fn range(&self, request: &RangeRequest, view: i64) -> Result<RangeResponse, Status> {
        self.readable(request.revision, view)?;
        let mut answer = self.read(request, view);
        answer.header = Some(revision_alone(view));
        Ok(answer)
    }

    fn readable(&self, revision: i64, view: i64) -> Result<(), Status> {
        if revision > view {
            Err(errors::future_revision())
        } else if revision > 0 && revision < self.compacted {
            Err(errors::compacted())
        } else {
            Ok(())
        }
    }

    fn read(&self, request: &RangeRequest, view: i64) -> RangeResponse {
        let at = if request.revision > 0 {
            request.revision
        } else {
            view
        };
        let keys = Keys::new(&request.key, &request.range_end);
        let found = self.select(&keys, at);
        let count = found.len() as i64;
        if request.count_only {
            return RangeResponse {
                count,
                ..RangeResponse::default()
            };
        }
        let within = |value, min, max| (min == 0 || value >= min) && (max == 0 || value <= max);
        let mut found: Vec<&KeyValue> = found
            .into_iter()
            .filter(|kv| {
                let (min, max) = (request.min_mod_revision, request.max_mod_revision);
                let create = (request.min_create_revision, request.max_create_revision);
                within(kv.mod_revision, min, max) && within(kv.create_revision, create.0, create.1)
            })
            .collect();
        sort(&mut found, request.sort_order, request.sort_target);
        let limit = usize::try_from(request.limit).unwrap_or(0);
        let more = limit > 0 && found.len() > limit;
        if more {
            found.truncate(limit);
        }
        let kvs = found.into_iter().map(|kv| {
            let mut kv = kv.clone();
            if request.keys_only {
                kv.value.clear();
                // From 3.7 on etcd reads the key alone, unless it has to sort by value.
                if request.sort_target != SortTarget::Value as i32 {
                    kv.lease = 0;
                }
            }
            kv
        });
        RangeResponse {
            kvs: kvs.collect(),
            more,
            count,
            ..RangeResponse::default()
        }
    }

    /// Removes the history before that revision.
    pub(crate) fn compact(&mut self, revision: i64) -> Result<(), Status> {
        if revision <= self.compacted {
            return Err(errors::compacted());
        }
        if revision > self.revision {
            return Err(errors::future_revision());
        }
        self.compacted = revision;
        self.log = self.log.split_off(&revision);
        for versions in self.keys.values_mut() {
            let last = versions.iter().rposition(|(at, _)| *at <= revision);
            versions.drain(..last.unwrap_or(0));
        }
        self.keys.retain(|_, versions| {
            let gone = matches!(&versions[..], [(at, None)] if *at <= revision);
            !gone
        });
        Ok(())
    }

    pub(crate) fn grant(&mut self, id: i64, ttl: i64) -> Result<(), Status> {
        if self.leases.contains_key(&id) {
            return Err(errors::lease_exists());
        }
        let keys = BTreeSet::new();
        self.leases.insert(id, Lease { ttl, keys });
        self.moved.push(id);
        Ok(())
    }

    /// Ends a lease, and deletes its keys in one revision.
    pub(crate) fn revoke(&mut self, id: i64) -> Result<(), Status> {
        let lease = self.leases.remove(&id).ok_or_else(errors::lease_not_found);
        let keys = lease?.keys;
        self.moved.push(id);
        let mut writer = Writer::new(self);
        for key in keys {
            writer.remove(&Keys::One(key));
        }
        writer.end();
        Ok(())
    }

    pub(crate) fn put(&mut self, request: &PutRequest) -> Result<PutResponse, Status> {
        self.may_put(request)?;
        let mut writer = Writer::new(self);
        let answer = writer.put(request);
        writer.end();
        Ok(answer)
    }

    pub(crate) fn delete(&mut self, request: &DeleteRequest) -> DeleteResponse {
        let mut writer = Writer::new(self);
        let answer = writer.delete(request);
        writer.end();
        answer
    }

    fn may_put(&self, request: &PutRequest) -> Result<(), Status> {
        if request.lease != 0 && !self.leases.contains_key(&request.lease) {
            return Err(errors::lease_not_found());
        }
        let kept = request.ignore_value || request.ignore_lease;
        if kept && self.at(&request.key, self.revision).is_none() {
            return Err(errors::key_not_found());
        }
        Ok(())
    }

    pub(crate) fn txn(&mut self, request: &TxnRequest) -> Result<TxnResponse, Status> {
        let mut path = Vec::new();
        self.compare(request, self.revision, &mut path);
        self.may(request, self.revision, &mut path.iter().copied())?;
        let mut writer = Writer::new(self);
        let mut answer = run(request, &mut path.into_iter(), &mut |op| {
            writer.operation(op)
        });
        let revision = writer.end();
        answer.header = Some(revision_alone(revision));
        Ok(answer)
    }

    /// Carries out a transaction that [`reads_only`], as of the view.
    pub(crate) fn read_txn(&self, request: &TxnRequest, view: i64) -> Result<TxnResponse, Status> {
        let mut path = Vec::new();
        self.compare(request, view, &mut path);
        self.may(request, view, &mut path.iter().copied())?;
        let mut answer = run(request, &mut path.into_iter(), &mut |op| match op {
            Request::RequestRange(range) => {
                Some(Response::ResponseRange(self.range_in_txn(range, view)))
            }
            _ => None,
        });
        answer.header = Some(revision_alone(view));
        Ok(answer)
    }

    /// Carries out a read within a transaction.
    fn range_in_txn(&self, range: &RangeRequest, view: i64) -> RangeResponse {
        let mut answer = self.read(range, view);
        answer.header = Some(revision_alone(view));
        answer
    }

    /// Decides which branches are taken, in the order of the transactions, before any operation is carried out.
    fn compare(&self, request: &TxnRequest, view: i64, path: &mut Vec<bool>) {
        let holds = request
            .compare
            .iter()
            .all(|compare| self.holds(compare, view));
        path.push(holds);
        for op in branch(request, holds) {
            if let Some(Request::RequestTxn(inner)) = &op.request {
                self.compare(inner, view, path);
            }
        }
    }

    fn holds(&self, compare: &Compare, view: i64) -> bool {
        let keys = Keys::new(&compare.key, &compare.range_end);
        let found = self.select(&keys, view);
        if found.is_empty() {
            // A missing key has no value, not an empty one.
            return compare.target != CompareTarget::Value as i32
                && holds_for(compare, &KeyValue::default());
        }
        found.into_iter().all(|kv| holds_for(compare, kv))
    }

    /// Refuses operations that can be judged only once the branch is known.
    fn may(
        &self,
        request: &TxnRequest,
        view: i64,
        path: &mut dyn Iterator<Item = bool>,
    ) -> Result<(), Status> {
        let taken = path.next().unwrap_or_default();
        for op in branch(request, taken) {
            match &op.request {
                Some(Request::RequestRange(range)) => {
                    self.readable(range.revision, view)?;
                    // Within a transaction a negative revision does not mean the present one.
                    if range.revision < 0 && range.revision < self.compacted {
                        return Err(errors::compacted());
                    }
                }
                Some(Request::RequestPut(put)) => self.may_put(put)?,
                Some(Request::RequestTxn(inner)) => self.may(inner, view, path)?,
                Some(Request::RequestDeleteRange(_)) | None => {}
            }
        }
        Ok(())
    }
}

/// Returns true if the transaction, whichever branches it takes, writes nothing.
pub(crate) fn reads_only(request: &TxnRequest) -> bool {
    let mut ops = request.success.iter().chain(&request.failure);
    ops.all(|op| match &op.request {
        Some(Request::RequestRange(_)) => true,
        Some(Request::RequestTxn(inner)) => reads_only(inner),
        _ => false,
    })
}

/// Returns true if any branch may put something.
pub(crate) fn puts(request: &TxnRequest) -> bool {
    let mut ops = request.success.iter().chain(&request.failure);
    ops.any(|op| match &op.request {
        Some(Request::RequestPut(_)) => true,
        Some(Request::RequestTxn(inner)) => puts(inner),
        _ => false,
    })
}

fn version(versions: &[Version], revision: i64) -> Option<&KeyValue> {
    let (_, kv) = versions.iter().rev().find(|(at, _)| *at <= revision)?;
    kv.as_ref()
}

/// Carries out the operations of the taken branches in their order; `operation` does all but the transactions within.
fn run(
    request: &TxnRequest,
    path: &mut dyn Iterator<Item = bool>,
    operation: &mut dyn FnMut(&Request) -> Option<Response>,
) -> TxnResponse {
    let succeeded = path.next().unwrap_or_default();
    let mut responses = Vec::new();
    for op in branch(request, succeeded) {
        let response = match &op.request {
            Some(Request::RequestTxn(inner)) => {
                let mut answer = run(inner, path, operation);
                answer.header = Some(Header::default());
                Some(Response::ResponseTxn(answer))
            }
            Some(request) => operation(request),
            None => None,
        };
        responses.push(ResponseOp { response });
    }
    TxnResponse {
        header: None,
        succeeded,
        responses,
    }
}

fn branch(request: &TxnRequest, succeeded: bool) -> &[RequestOp] {
    if succeeded {
        &request.success
    } else {
        &request.failure
    }
}

/// Returns a header without a member, because answers within a transaction name none.
fn revision_alone(revision: i64) -> Header {
    Header {
        revision,
        ..Header::default()
    }
}

fn holds_for(compare: &Compare, kv: &KeyValue) -> bool {
    let number = |is: i64, wanted: Option<i64>| is.cmp(&wanted.unwrap_or(0));
    let wanted = compare.target_union.as_ref();
    let order = match CompareTarget::try_from(compare.target) {
        Ok(CompareTarget::Version) => number(
            kv.version,
            wanted.and_then(|wanted| match wanted {
                TargetUnion::Version(version) => Some(*version),
                _ => None,
            }),
        ),
        Ok(CompareTarget::Create) => number(
            kv.create_revision,
            wanted.and_then(|wanted| match wanted {
                TargetUnion::CreateRevision(revision) => Some(*revision),
                _ => None,
            }),
        ),
        Ok(CompareTarget::Mod) => number(
            kv.mod_revision,
            wanted.and_then(|wanted| match wanted {
                TargetUnion::ModRevision(revision) => Some(*revision),
                _ => None,
            }),
        ),
        Ok(CompareTarget::Lease) => number(
            kv.lease,
            wanted.and_then(|wanted| match wanted {
                TargetUnion::Lease(lease) => Some(*lease),
                _ => None,
            }),
        ),
        Ok(CompareTarget::Value) => match wanted {
            Some(TargetUnion::Value(value)) => kv.value.cmp(value),
            _ => kv.value.as_slice().cmp(&[]),
        },
        Err(_) => Ordering::Equal,
    };
    match compare.result {
        0 => order.is_eq(),
        1 => order.is_gt(),
        2 => order.is_lt(),
        3 => order.is_ne(),
        _ => true,
    }
}

/// Sorts stably; without an order, by the target if that is not the key.
fn sort(found: &mut [&KeyValue], order: i32, target: i32) {
    if order == 0 && target == 0 {
        return;
    }
    let by = |a: &KeyValue, b: &KeyValue| match target {
        1 => a.version.cmp(&b.version),
        2 => a.create_revision.cmp(&b.create_revision),
        3 => a.mod_revision.cmp(&b.mod_revision),
        4 => a.value.cmp(&b.value),
        _ => a.key.cmp(&b.key),
    };
    if order == 2 {
        found.sort_by(|a, b| by(b, a));
    } else {
        found.sort_by(|a, b| by(a, b));
    }
}
