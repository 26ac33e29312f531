//! Defines keys, revisions and changes of etcd, as plain types that the core and `etcd/` share without importing each
//! other.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// The header of every answer of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The cluster that answered.
    pub cluster: u64,
    /// The member that answered.
    pub member: u64,
    /// The store's revision when the answer was made.
    pub revision: i64,
    /// The raft term when the answer was made.
    pub term: u64,
}

/// A key as it is in etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The full key.
    pub key: Arc<[u8]>,
    /// Its value.
    pub value: Arc<[u8]>,
    /// The revision of its creation: the seniority and the fencing token.
    pub create_revision: i64,
    /// The revision of its last write.
    pub mod_revision: i64,
    /// The lease that the key is bound to; 0 for none.
    pub lease: i64,
}

/// One event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The key was written.
    Put(Entry),
    /// The key was deleted or expired.
    Delete {
        /// The full key.
        key: Arc<[u8]>,
        /// The revision of the deletion.
        revision: i64,
    },
}

impl Change {
    /// Returns the changed key.
    pub fn key(&self) -> &[u8] {
        match self {
            Change::Put(entry) => &entry.key,
            Change::Delete { key, .. } => key,
        }
    }

    /// Returns the revision of the change.
    pub fn revision(&self) -> i64 {
        match self {
            Change::Put(entry) => entry.mod_revision,
            Change::Delete { revision, .. } => *revision,
        }
    }
}

/// Selects keys below a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Reach {
    /// The keys exactly one level below the prefix: candidates, members, owners.
    #[default]
    Children,
    /// All keys, for reads that must detect another number in the next level.
    Everything,
}

impl Reach {
    /// Returns `true` if `key` is selected.
    pub fn covers(self, prefix: &[u8], key: &[u8]) -> bool {
        match self {
            Reach::Children => is_direct_child(prefix, key),
            Reach::Everything => key.len() > prefix.len() && key.starts_with(prefix),
        }
    }
}

/// Returns `true` if `key` lies exactly one level below `prefix` (which ends in `/`).
///
/// etcd's own election recipe counts every key under the prefix, so every direct child counts here too, whatever its
/// form; deeper keys belong to other queues.
pub fn is_direct_child(prefix: &[u8], key: &[u8]) -> bool {
    key.strip_prefix(prefix)
        .is_some_and(|rest| !rest.is_empty() && !rest.contains(&b'/'))
}

/// Returns the keys of a map that begin with `prefix`.
pub(crate) fn keys_below<'a, V>(
    keys: &'a BTreeMap<Arc<[u8]>, V>,
    prefix: &'a [u8],
) -> impl Iterator<Item = &'a Arc<[u8]>> {
    let from = (Bound::Included(prefix), Bound::Unbounded);
    let keys = keys.range::<[u8], _>(from).map(|(key, _)| key);
    keys.take_while(move |key| key.starts_with(prefix))
}

/// The smallest value of an election's candidate: its announcement begins with a visible character.
pub const ELECTED: &[u8] = b"!";

/// The first byte of the value of a lock's key, before the announcement. `etcdctl lock` and Go's mutex write nothing at
/// all.
pub const LOCK: &[u8] = b" ";

/// Returns true if the value belongs to a candidate of an election, and not to a lock.
pub fn is_elected(value: &[u8]) -> bool {
    value >= ELECTED
}
