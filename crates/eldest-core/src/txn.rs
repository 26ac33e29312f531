//! Describes a transaction of etcd as plain data: its conditions, and the operations of its two branches.

use std::sync::Arc;

use crate::kv::{Entry, Header};

/// A transaction, which etcd applies at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Txn {
    /// The conditions. If all hold, etcd applies `then`, and otherwise `otherwise`.
    pub when: Vec<When>,
    /// The operations if all conditions hold.
    pub then: Vec<Op>,
    /// The operations if a condition does not hold.
    pub otherwise: Vec<Op>,
}

/// A condition on a key. An absent key has the revision 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum When {
    /// The key has that create revision.
    Created(Arc<[u8]>, i64),
    /// The key has another create revision.
    NotCreated(Arc<[u8]>, i64),
    /// The key was last written at that revision.
    Written(Arc<[u8]>, i64),
}

/// An operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Writes a key under a lease.
    Put {
        /// The key.
        key: Arc<[u8]>,
        /// Its value.
        value: Arc<[u8]>,
        /// The lease that it is bound to.
        lease: i64,
    },
    /// Reads a key.
    Read(Arc<[u8]>),
    /// Reads all keys with that prefix.
    ReadBelow(Arc<[u8]>),
    /// Deletes a key.
    Delete(Arc<[u8]>),
    /// Deletes all keys with that prefix.
    DeleteBelow(Arc<[u8]>),
}

/// The result of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transacted {
    /// The header of the answer. Its revision is that of the writes, if there were any.
    pub header: Header,
    /// True if all conditions held.
    pub held: bool,
    /// The keys that each read of the applied branch found, in the order of the reads.
    pub found: Vec<Vec<Entry>>,
}

impl Transacted {
    /// Returns the key that the read with that number found.
    pub(crate) fn entry(&self, read: usize) -> Option<&Entry> {
        self.found.get(read)?.first()
    }
}
