//! Defines the parts of a fenced transaction and etcd's answers to it, without types of `etcd_client`.

mod convert;

use std::fmt;
use std::str::Utf8Error;
use std::sync::Arc;

pub(super) use convert::{fenced, outcome};

/// The condition that a term's key still exists, as plain data; `Term::fence` returns it.
///
/// The key still exists if its create revision equals the term's fencing token. That is one comparison in the
/// transaction of any client, and one [`Condition`] of an [`Op::when`].
#[must_use = "a fence does nothing until a transaction uses it"]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    key: Arc<[u8]>,
    create_revision: i64,
}

impl Fence {
    /// Makes the fence of a term.
    #[doc(hidden)]
    pub fn new(key: Arc<[u8]>, create_revision: i64) -> Self {
        Self {
            key,
            create_revision,
        }
    }

    /// Returns the term's key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the create revision that the key must have: the term's fencing token.
    pub fn create_revision(&self) -> i64 {
        self.create_revision
    }
}

/// A comparison of etcd's value with the value of a [`Condition`].
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// etcd's value is equal.
    Equal,
    /// etcd's value is different.
    NotEqual,
    /// etcd's value is less.
    Less,
    /// etcd's value is greater.
    Greater,
}

/// A condition on a key, for the operations of [`Op::when`].
///
/// A key that does not exist has version, revisions and lease 0; a comparison of its value is never true.
#[must_use = "a condition does nothing until a transaction uses it"]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    key: Vec<u8>,
    comparison: Comparison,
    target: Target,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Version(i64),
    CreateRevision(i64),
    ModRevision(i64),
    Lease(i64),
    Value(Vec<u8>),
}

impl Condition {
    fn new(key: impl Into<Vec<u8>>, comparison: Comparison, target: Target) -> Self {
        Self {
            key: key.into(),
            comparison,
            target,
        }
    }

    /// Compares how often the key was written since it was created; 0 if it does not exist.
    pub fn version(key: impl Into<Vec<u8>>, comparison: Comparison, version: i64) -> Self {
        Self::new(key, comparison, Target::Version(version))
    }

    /// Compares the revision at which the key was created; 0 if it does not exist.
    pub fn create_revision(key: impl Into<Vec<u8>>, comparison: Comparison, revision: i64) -> Self {
        Self::new(key, comparison, Target::CreateRevision(revision))
    }

    /// Compares the revision at which the key was last written; 0 if it does not exist.
    pub fn mod_revision(key: impl Into<Vec<u8>>, comparison: Comparison, revision: i64) -> Self {
        Self::new(key, comparison, Target::ModRevision(revision))
    }

    /// Compares the lease that the key is bound to; 0 if there is none.
    pub fn lease(key: impl Into<Vec<u8>>, comparison: Comparison, lease_id: i64) -> Self {
        Self::new(key, comparison, Target::Lease(lease_id))
    }

    /// Compares the value, byte by byte.
    pub fn value(
        key: impl Into<Vec<u8>>,
        comparison: Comparison,
        value: impl Into<Vec<u8>>,
    ) -> Self {
        Self::new(key, comparison, Target::Value(value.into()))
    }
}

impl From<Fence> for Condition {
    fn from(fence: Fence) -> Self {
        Self::create_revision(&*fence.key, Comparison::Equal, fence.create_revision)
    }
}

/// One operation of a fenced transaction; see `Term::txn`.
#[must_use = "an operation does nothing until a transaction uses it"]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Put {
        key: Vec<u8>,
        value: Vec<u8>,
        lease_id: i64,
    },
    Get {
        key: Vec<u8>,
        prefix: bool,
    },
    Delete {
        key: Vec<u8>,
        prefix: bool,
    },
    When {
        conditions: Vec<Condition>,
        then: Vec<Op>,
        otherwise: Vec<Op>,
    },
}

impl Op {
    /// Writes a value. Afterwards, the key is bound to no lease.
    pub fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        Self::put_with_lease(key, value, 0)
    }

    /// Writes a value, and binds the key to a lease: etcd deletes the key when the lease ends.
    pub fn put_with_lease(
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        lease_id: i64,
    ) -> Self {
        Self(Kind::Put {
            key: key.into(),
            value: value.into(),
            lease_id,
        })
    }

    /// Reads one key. In a fenced transaction, no later leader had changed it by then.
    pub fn get(key: impl Into<Vec<u8>>) -> Self {
        let key = key.into();
        Self(Kind::Get { key, prefix: false })
    }

    /// Reads all keys that begin with `prefix`, in order. etcd refuses answers of more than a few megabytes.
    pub fn get_prefix(prefix: impl Into<Vec<u8>>) -> Self {
        let key = prefix.into();
        Self(Kind::Get { key, prefix: true })
    }

    /// Deletes one key.
    pub fn delete(key: impl Into<Vec<u8>>) -> Self {
        let key = key.into();
        Self(Kind::Delete { key, prefix: false })
    }

    /// Deletes all keys that begin with `prefix`.
    pub fn delete_prefix(prefix: impl Into<Vec<u8>>) -> Self {
        let key = prefix.into();
        Self(Kind::Delete { key, prefix: true })
    }

    /// Applies `then` if all conditions are true, otherwise `otherwise`, as a transaction within the fenced one.
    ///
    /// A write compares the value that it builds on in this way:
    ///
    /// ```
    /// use eldest::{Comparison, Condition, Op};
    ///
    /// // Counts up from 41, only if nobody wrote the counter since it was read at that mod revision.
    /// let (value, mod_revision) = (41, 1207);
    /// let unchanged = Condition::mod_revision("billing/count", Comparison::Equal, mod_revision);
    /// let count = Op::when([unchanged], [Op::put("billing/count", (value + 1).to_string())], []);
    /// # let _ = count;
    /// ```
    pub fn when(
        conditions: impl Into<Vec<Condition>>,
        then: impl Into<Vec<Op>>,
        otherwise: impl Into<Vec<Op>>,
    ) -> Self {
        Self(Kind::When {
            conditions: conditions.into(),
            then: then.into(),
            otherwise: otherwise.into(),
        })
    }
}

/// The result of a fenced transaction; see `Term::txn`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxnOutcome {
    revision: i64,
    results: Vec<OpResult>,
}

impl TxnOutcome {
    /// Returns etcd's revision when the transaction was applied: the mod revision of all keys that it wrote.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns the result of each operation, in order.
    pub fn results(&self) -> &[OpResult] {
        &self.results
    }

    /// Returns all keys that the operations read, in order, including those of operations within [`Op::when`].
    ///
    /// For one [`Op::get`] it is the key, or nothing if the key does not exist.
    pub fn found(&self) -> impl Iterator<Item = &KeyValue> {
        let mut all = Vec::new();
        collect(&self.results, &mut all);
        all.into_iter()
    }

    /// Returns `true` if the conditions of every [`Op::when`] were true, including nested ones.
    pub fn all_held(&self) -> bool {
        self.results.iter().all(OpResult::all_held)
    }
}

fn collect<'a>(results: &'a [OpResult], all: &mut Vec<&'a KeyValue>) {
    for result in results {
        match result {
            OpResult::Found { entries } => all.extend(entries),
            OpResult::When { results, .. } => collect(results, all),
            OpResult::Put | OpResult::Deleted { .. } => {}
        }
    }
}

/// The result of one operation of a fenced transaction.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpResult {
    /// A write.
    Put,
    /// A deletion.
    #[non_exhaustive]
    Deleted {
        /// The number of deleted keys.
        count: u64,
    },
    /// A read.
    #[non_exhaustive]
    Found {
        /// The keys that exist, in order.
        entries: Vec<KeyValue>,
    },
    /// A choice between operations.
    #[non_exhaustive]
    When {
        /// True if all conditions were true.
        held: bool,
        /// The results of the chosen operations.
        results: Vec<OpResult>,
    },
}

impl OpResult {
    fn all_held(&self) -> bool {
        match self {
            OpResult::When { held, results } => *held && results.iter().all(OpResult::all_held),
            OpResult::Put | OpResult::Deleted { .. } | OpResult::Found { .. } => true,
        }
    }
}

/// A key of etcd with its value.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyValue {
    key: Vec<u8>,
    value: Vec<u8>,
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    lease_id: i64,
}

impl KeyValue {
    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the value.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Returns the value as text.
    ///
    /// # Errors
    ///
    /// The value is not UTF-8.
    pub fn value_str(&self) -> Result<&str, Utf8Error> {
        std::str::from_utf8(&self.value)
    }

    /// Returns the revision at which the key was created.
    pub fn create_revision(&self) -> i64 {
        self.create_revision
    }

    /// Returns the revision at which the key was last written; [`Condition::mod_revision`] compares it.
    pub fn mod_revision(&self) -> i64 {
        self.mod_revision
    }

    /// Returns how often the key was written since it was created; at least 1.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// Returns the lease that the key is bound to; 0 if there is none.
    pub fn lease_id(&self) -> i64 {
        self.lease_id
    }
}

impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValue")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("value", &String::from_utf8_lossy(&self.value))
            .field("create_revision", &self.create_revision)
            .field("mod_revision", &self.mod_revision)
            .field("version", &self.version)
            .field("lease_id", &self.lease_id)
            .finish()
    }
}
