//! Applies the writes of one transaction: everything in it shares one revision.

use super::Store;
use crate::request::{Delete, DeleteDone, Op, OpDone, Put, PutDone};
use crate::{Bytes, Event, KeyValue, Keys};

/// One transaction that writes. All its writes share one revision.
pub(super) struct Writer<'s> {
    store: &'s mut Store,
    events: Vec<Event>,
}

impl<'s> Writer<'s> {
    pub(super) fn new(store: &'s mut Store) -> Self {
        Writer {
            store,
            events: Vec::new(),
        }
    }

    /// Returns the revision of the next write.
    fn next(&self) -> i64 {
        self.store.revision + 1
    }

    /// Returns the revision of the next read, which sees the writes of this transaction.
    fn view(&self) -> i64 {
        self.store.revision + i64::from(!self.events.is_empty())
    }

    pub(super) fn end(self) -> i64 {
        if !self.events.is_empty() {
            self.store.revision += 1;
            let revision = self.store.revision;
            self.store.log.insert(revision, self.events.into());
        }
        self.store.revision
    }

    fn write(&mut self, key: &Bytes, kv: Option<KeyValue>) {
        let revision = self.next();
        let lease = self.store.get(key).map_or(0, |was| was.lease);
        if let Some(lease) = self.store.leases.get_mut(&lease) {
            lease.keys.remove(key);
        }
        self.events.push(match &kv {
            Some(kv) => {
                if let Some(lease) = self.store.leases.get_mut(&kv.lease) {
                    lease.keys.insert(Bytes::clone(key));
                }
                Event::Put(kv.clone())
            }
            None => Event::Delete {
                key: Bytes::clone(key),
                revision,
            },
        });
        match self.store.keys.get_mut(key) {
            Some(versions) => versions.push((revision, kv)),
            None => drop(
                self.store
                    .keys
                    .insert(Bytes::clone(key), vec![(revision, kv)]),
            ),
        }
    }

    pub(super) fn put(&mut self, request: &Put) -> PutDone {
        let revision = self.next();
        let former = self.store.get(&request.key).cloned();
        let was = former.as_ref();
        let kv = KeyValue {
            key: Bytes::clone(&request.key),
            create_revision: was.map_or(revision, |was| was.create_revision),
            mod_revision: revision,
            version: was.map_or(0, |was| was.version) + 1,
            value: match was.filter(|_| request.keeps_value) {
                Some(was) => Bytes::clone(&was.value),
                None => Bytes::clone(&request.value),
            },
            lease: match was.filter(|_| request.keeps_lease) {
                Some(was) => was.lease,
                None => request.lease,
            },
        };
        self.write(&request.key, Some(kv));
        PutDone {
            revision,
            former: former.filter(|_| request.former),
        }
    }

    pub(super) fn remove(&mut self, keys: &Keys) -> Vec<KeyValue> {
        let gone = self.store.select(keys, self.view());
        let gone: Vec<KeyValue> = gone.cloned().collect();
        for kv in &gone {
            self.write(&kv.key, None);
        }
        gone
    }

    pub(super) fn delete(&mut self, request: &Delete) -> DeleteDone {
        let gone = self.remove(&request.keys);
        DeleteDone {
            revision: self.view(),
            deleted: gone.len(),
            former: if request.former { gone } else { Vec::new() },
        }
    }

    /// Carries out one operation that is no transaction.
    pub(super) fn operation(&mut self, op: &Op) -> Option<OpDone> {
        match op {
            Op::Range(range) => Some(OpDone::Range(self.store.read(range, self.view()))),
            Op::Put(put) => Some(OpDone::Put(self.put(put))),
            Op::Delete(delete) => Some(OpDone::Delete(self.delete(delete))),
            Op::Txn(_) | Op::Missing => None,
        }
    }
}
