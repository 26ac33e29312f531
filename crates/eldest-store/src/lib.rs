//! Models the store of etcd 3.7 as a state machine: keys with their history, leases, transactions and compaction.
//!
//! [`Store`] takes requests as plain data, applies them at once and returns their answers. It counts down its leases by the
//! times that its callers pass. It reads no clock, sends nothing and never waits. Its callers decide when a request arrives,
//! which member answers, and when a lease that has expired is revoked.
//!
//! This crate is a part of the library `eldest` and follows its version; nothing here is covered by semver.

mod check;
mod keys;
mod refusal;
mod request;
mod store;

use std::sync::Arc;

pub use keys::Keys;
pub use refusal::Refusal;
pub use request::{
    By, Compare, Delete, DeleteDone, Op, OpDone, Operand, Page, Put, PutDone, Range, Ranged,
    Relation, Sort, Txn, TxnDone, Within,
};
pub use store::{Lease, Store};

/// The bytes of a key or a value, which copies share.
pub type Bytes = Arc<[u8]>;

/// A key at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// The full key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// The revision of the creation.
    pub create_revision: i64,
    /// The revision of the last write.
    pub mod_revision: i64,
    /// The number of writes since the creation.
    pub version: i64,
    /// The lease that the key is bound to; 0 for none.
    pub lease: i64,
}

/// A change of a key, as watches report it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The key was written.
    Put(KeyValue),
    /// The key was deleted, or its lease ended.
    Delete {
        /// The full key.
        key: Bytes,
        /// The revision of the deletion.
        revision: i64,
    },
}

impl Event {
    /// Returns the changed key.
    pub fn key(&self) -> &Bytes {
        match self {
            Event::Put(kv) => &kv.key,
            Event::Delete { key, .. } => key,
        }
    }

    /// Returns the revision of the change.
    pub fn revision(&self) -> i64 {
        match self {
            Event::Put(kv) => kv.mod_revision,
            Event::Delete { revision, .. } => *revision,
        }
    }
}
