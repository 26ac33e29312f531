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

impl Txn {
    /// Returns true if the transaction deletes only keys whose revision it compares, and puts only keys that are absent
    /// or whose last write it compares. Keys below a key are deleted while that key exists.
    pub(crate) fn compares_its_writes(&self) -> bool {
        let created = |key: &Arc<[u8]>, is_absent: bool| {
            let compares = |when: &When| match when {
                When::Created(of, revision) => of == key && (*revision == 0) == is_absent,
                When::Written(of, _) => of == key,
                When::NotCreated(..) => false,
            };
            self.when.iter().any(compares)
        };
        let is_above = |when: &When, prefix: &[u8]| match when {
            When::Created(of, revision) => *revision > 0 && prefix.starts_with(of),
            _ => false,
        };
        let is_compared = |op: &Op| match op {
            Op::Put { key, .. } => created(key, true),
            Op::Delete(key) => created(key, false),
            Op::DeleteBelow(prefix) => self.when.iter().any(|when| is_above(when, prefix)),
            Op::Read(_) | Op::ReadBelow(_) => true,
        };
        let reads = |op: &Op| matches!(op, Op::Read(_) | Op::ReadBelow(_));
        self.then.iter().all(is_compared) && self.otherwise.iter().all(reads)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Arc<[u8]> {
        name.as_bytes().into()
    }

    fn compares(when: &[When], then: Op) -> bool {
        let txn = Txn {
            when: when.to_vec(),
            then: vec![then],
            otherwise: Vec::new(),
        };
        txn.compares_its_writes()
    }

    #[test]
    fn each_delete_and_put_needs_a_comparison_of_its_own_key() {
        let (a, b) = (key("a"), key("b"));
        let put = || Op::Put {
            key: key("a"),
            value: Arc::default(),
            lease: 1,
        };
        let created = |key: &Arc<[u8]>, revision| [When::Created(Arc::clone(key), revision)];
        let delete = || Op::Delete(key("a"));
        assert!(compares(&created(&a, 5), delete()));
        assert!(compares(&[When::Written(Arc::clone(&a), 5)], delete()));
        assert!(!compares(&created(&b, 5), delete()));
        assert!(!compares(&[When::NotCreated(Arc::clone(&a), 0)], delete()));
        assert!(compares(&created(&a, 0), put()));
        assert!(compares(&[When::Written(Arc::clone(&a), 5)], put()));
        assert!(!compares(&[When::Written(Arc::clone(&b), 5)], put()));
        assert!(!compares(&created(&a, 5), put()));
        assert!(!compares(&[], put()));
        assert!(compares(&[], Op::Read(a)));
    }

    #[test]
    fn keys_below_another_are_deleted_while_it_exists() {
        let below = || Op::DeleteBelow(key("a/"));
        assert!(compares(&[When::Created(key("a"), 5)], below()));
        assert!(!compares(&[When::Created(key("a"), 0)], below()));
        assert!(!compares(&[When::Created(key("b"), 5)], below()));
    }

    #[test]
    fn transaction_whose_conditions_do_not_hold_only_reads() {
        let txn = Txn {
            when: vec![When::Created(key("a"), 5)],
            then: Vec::new(),
            otherwise: vec![Op::Delete(key("a"))],
        };
        assert!(!txn.compares_its_writes());
    }
}
