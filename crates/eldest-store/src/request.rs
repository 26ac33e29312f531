//! Defines requests and their answers as plain data.

use crate::{Bytes, KeyValue, Keys};

/// A read of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// The keys.
    pub keys: Keys,
    /// The revision to read at; 0 or less means the present one.
    pub revision: i64,
    /// The selected mod revisions.
    pub modified: Within,
    /// The selected create revisions.
    pub created: Within,
    /// The order; `None` if the request names an unknown one, which etcd refuses.
    pub sort: Option<Sort>,
    /// The maximum number of keys in the answer; 0 or less means all.
    pub limit: i64,
    /// The parts of the keys in the answer.
    pub page: Page,
}

/// The least and the greatest revision that are selected; 0 means no bound.
pub type Within = (i64, i64);

/// The parts of the keys in the answer to a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Page {
    /// Keys with their values.
    #[default]
    Whole,
    /// Keys without their values.
    KeysOnly,
    /// The number of keys alone.
    CountOnly,
}

/// The order of the keys in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sort {
    /// The value that is compared.
    pub by: By,
    /// True if the greatest value comes first.
    pub descending: bool,
}

/// The part of a key by which an answer is sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(
    missing_docs,
    reason = "the names are those of the fields of `KeyValue`"
)]
pub enum By {
    #[default]
    Key,
    Version,
    CreateRevision,
    ModRevision,
    Value,
}

/// A write of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// The full key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// The lease that the key is bound to; 0 for none.
    pub lease: i64,
    /// True if the key keeps its value; the request must have none.
    pub keeps_value: bool,
    /// True if the key keeps its lease; the request must have none.
    pub keeps_lease: bool,
    /// True if the answer has the former key.
    pub former: bool,
}

/// A deletion of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delete {
    /// The keys.
    pub keys: Keys,
    /// True if the answer has the former keys.
    pub former: bool,
}

/// A transaction, which is applied at one revision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Txn {
    /// The comparisons. If all hold, `success` is applied, and otherwise `failure`.
    pub compare: Vec<Compare>,
    /// The operations if all comparisons hold.
    pub success: Vec<Op>,
    /// The operations if a comparison does not hold.
    pub failure: Vec<Op>,
}

/// An operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the requests")]
pub enum Op {
    Range(Range),
    Put(Put),
    Delete(Delete),
    Txn(Txn),
    /// An operation without a request, which etcd refuses.
    Missing,
}

/// A comparison. It holds if it holds for each of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compare {
    /// The keys. If none of them exists, numbers are compared with 0.
    pub keys: Keys,
    /// The required relation between the key's value and the operand.
    pub relation: Relation,
    /// The operand.
    pub operand: Operand,
}

/// A relation between two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say all")]
pub enum Relation {
    Equal,
    NotEqual,
    Less,
    Greater,
}

/// The value with which a part of a key is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the names are those of the fields of `KeyValue`"
)]
pub enum Operand {
    Version(i64),
    CreateRevision(i64),
    ModRevision(i64),
    Lease(i64),
    Value(Bytes),
}

/// The answer to a read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ranged {
    /// The store's revision at the read.
    pub revision: i64,
    /// The keys.
    pub found: Vec<KeyValue>,
    /// True if the limit left out keys.
    pub more: bool,
    /// The number of existing keys in the range, whatever the other conditions are.
    pub count: usize,
}

/// The answer to a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutDone {
    /// The revision of the write.
    pub revision: i64,
    /// The former key, if the request asks for it.
    pub former: Option<KeyValue>,
}

/// The answer to a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeleteDone {
    /// The revision of the deletion, or of the store if no key was deleted.
    pub revision: i64,
    /// The number of deleted keys.
    pub deleted: usize,
    /// The former keys, if the request asks for them.
    pub former: Vec<KeyValue>,
}

/// The answer to an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the requests")]
pub enum OpDone {
    Range(Ranged),
    Put(PutDone),
    Delete(DeleteDone),
    Txn(TxnDone),
}

/// The answer to a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TxnDone {
    /// The revision of the writes, or of the reads if there are no writes.
    pub revision: i64,
    /// True if all comparisons held.
    pub succeeded: bool,
    /// The answers to the applied operations.
    pub results: Vec<OpDone>,
}

impl Range {
    /// Reads these keys with their values at the present revision.
    pub fn of(keys: Keys) -> Self {
        Range {
            keys,
            revision: 0,
            modified: (0, 0),
            created: (0, 0),
            sort: Some(Sort::default()),
            limit: 0,
            page: Page::Whole,
        }
    }
}

impl Compare {
    /// Compares create revisions.
    pub fn created(keys: Keys, relation: Relation, revision: i64) -> Self {
        Compare {
            keys,
            relation,
            operand: Operand::CreateRevision(revision),
        }
    }
}

impl Op {
    /// Reads these keys.
    pub fn read(keys: Keys) -> Self {
        Op::Range(Range::of(keys))
    }

    /// Writes the key with this value under this lease.
    pub fn put(key: &Bytes, value: &Bytes, lease: i64) -> Self {
        Op::Put(Put {
            key: Bytes::clone(key),
            value: Bytes::clone(value),
            lease,
            keeps_value: false,
            keeps_lease: false,
            former: false,
        })
    }

    /// Deletes these keys.
    pub fn delete(keys: Keys) -> Self {
        Op::Delete(Delete {
            keys,
            former: false,
        })
    }
}

impl Txn {
    /// Returns the branch that is applied.
    pub(crate) fn branch(&self, succeeded: bool) -> &[Op] {
        if succeeded {
            &self.success
        } else {
            &self.failure
        }
    }

    fn ops(&self) -> impl Iterator<Item = &Op> {
        self.success.iter().chain(&self.failure)
    }

    /// Returns true if the transaction, whichever branches it takes, writes nothing.
    pub fn reads_only(&self) -> bool {
        self.ops().all(|op| match op {
            Op::Range(_) => true,
            Op::Txn(inner) => inner.reads_only(),
            _ => false,
        })
    }

    /// Returns true if any branch may put something.
    pub fn puts(&self) -> bool {
        self.ops().any(|op| match op {
            Op::Put(_) => true,
            Op::Txn(inner) => inner.puts(),
            _ => false,
        })
    }
}
