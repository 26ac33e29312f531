//! Applies the writes of one transaction: everything in it shares one revision.

use super::{Store, revision_alone};
use crate::memory::proto::{
    DeleteRequest, DeleteResponse, Event, EventType, KeyValue, PutRequest, PutResponse, Request,
    Response,
};
use crate::memory::server::range::Keys;

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

    fn write(&mut self, key: &[u8], kv: Option<KeyValue>) {
        let revision = self.next();
        let mut lease = 0;
        if let Some(was) = self.store.at(key, revision) {
            lease = was.lease;
        }
        if let Some(lease) = self.store.leases.get_mut(&lease) {
            lease.keys.remove(key);
        }
        let event = match &kv {
            Some(kv) => {
                if let Some(lease) = self.store.leases.get_mut(&kv.lease) {
                    lease.keys.insert(key.to_vec());
                }
                event(EventType::Put, kv.clone())
            }
            None => event(
                EventType::Delete,
                KeyValue {
                    key: key.to_vec(),
                    mod_revision: revision,
                    ..KeyValue::default()
                },
            ),
        };
        self.events.push(event);
        let versions = self.store.keys.entry(key.to_vec()).or_default();
        versions.push((revision, kv));
    }

    pub(super) fn put(&mut self, request: &PutRequest) -> PutResponse {
        let revision = self.next();
        let was = self.store.at(&request.key, self.view()).cloned();
        let kept = was.clone().unwrap_or_default();
        let kv = KeyValue {
            key: request.key.clone(),
            create_revision: was.as_ref().map_or(revision, |was| was.create_revision),
            mod_revision: revision,
            version: kept.version + 1,
            value: if request.ignore_value {
                kept.value
            } else {
                request.value.clone()
            },
            lease: if request.ignore_lease {
                kept.lease
            } else {
                request.lease
            },
        };
        self.write(&request.key, Some(kv));
        PutResponse {
            header: Some(revision_alone(revision)),
            prev_kv: was.filter(|_| request.prev_kv),
        }
    }

    pub(super) fn remove(&mut self, keys: &Keys) -> Vec<KeyValue> {
        let gone = self.store.select(keys, self.view());
        let gone: Vec<KeyValue> = gone.into_iter().cloned().collect();
        for kv in &gone {
            self.write(&kv.key, None);
        }
        gone
    }

    pub(super) fn delete(&mut self, request: &DeleteRequest) -> DeleteResponse {
        let gone = self.remove(&Keys::new(&request.key, &request.range_end));
        DeleteResponse {
            header: Some(revision_alone(self.view())),
            deleted: gone.len() as i64,
            prev_kvs: if request.prev_kv { gone } else { Vec::new() },
        }
    }

    /// Carries out one operation that is no transaction.
    pub(super) fn operation(&mut self, request: &Request) -> Option<Response> {
        match request {
            Request::RequestRange(range) => {
                let view = self.view();
                Some(Response::ResponseRange(
                    self.store.range_in_txn(range, view),
                ))
            }
            Request::RequestPut(put) => Some(Response::ResponsePut(self.put(put))),
            Request::RequestDeleteRange(delete) => {
                Some(Response::ResponseDeleteRange(self.delete(delete)))
            }
            Request::RequestTxn(_) => None,
        }
    }
}

fn event(kind: EventType, kv: KeyValue) -> Event {
    Event {
        r#type: kind as i32,
        kv: Some(kv),
        prev_kv: None,
    }
}
