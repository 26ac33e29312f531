//! Keys, revisions and changes as etcd says them: plain types that the core and the etcd edge share, so that neither imports the other.

use std::sync::Arc;

/// What every answer of etcd says about itself.
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

/// One key as it stands in etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The full key.
    pub key: Arc<[u8]>,
    /// Its value.
    pub value: Arc<[u8]>,
    /// Revision of the creation: the seniority and the fencing token.
    pub create_revision: i64,
    /// Revision of the last write.
    pub mod_revision: i64,
    /// The lease the key is bound to; 0 for none.
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
    /// The key that changed.
    pub fn key(&self) -> &[u8] {
        match self {
            Change::Put(entry) => &entry.key,
            Change::Delete { key, .. } => key,
        }
    }

    /// The revision of the change.
    pub fn revision(&self) -> i64 {
        match self {
            Change::Put(entry) => entry.mod_revision,
            Change::Delete { revision, .. } => *revision,
        }
    }
}

/// Which keys below a prefix count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Reach {
    /// Those exactly one level below it: candidates, members, owners.
    #[default]
    Children,
    /// All, for whoever must see that others use another number as the next level.
    Everything,
}

impl Reach {
    /// Whether `key` counts.
    pub fn covers(self, prefix: &[u8], key: &[u8]) -> bool {
        match self {
            Reach::Children => is_direct_child(prefix, key),
            Reach::Everything => key.len() > prefix.len() && key.starts_with(prefix),
        }
    }
}

/// Whether `key` lies exactly one level below `prefix` (which ends in `/`).
///
/// etcd's own election recipe counts every key under the prefix, so every direct child counts here too,
/// whatever its shape; deeper keys belong to somebody else.
pub fn is_direct_child(prefix: &[u8], key: &[u8]) -> bool {
    key.strip_prefix(prefix)
        .is_some_and(|rest| !rest.is_empty() && !rest.contains(&b'/'))
}
