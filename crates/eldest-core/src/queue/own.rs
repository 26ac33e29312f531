//! Compares a candidate's own key with what etcd shows: still ours, gone, or overwritten.

use std::sync::Arc;

use crate::kv::{Change, Entry};

/// A candidate's own key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    /// The full key.
    pub key: Arc<[u8]>,
    /// The create revision; a key with another one is not ours.
    pub create_revision: i64,
    /// The lease that it is bound to.
    pub lease: i64,
}

/// The fate of our own key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The key is as we wrote it.
    Ours,
    /// The key was deleted, or deleted and created again by another client.
    Gone,
    /// The key is the same, but bound to another lease or none.
    Overwritten,
}

impl Own {
    /// Returns true if the entry is exactly this key.
    pub fn is(&self, entry: &Entry) -> bool {
        self.key == entry.key && self.create_revision == entry.create_revision
    }

    /// Returns our key's fate by one event.
    pub fn fate(&self, change: &Change) -> Fate {
        if change.key() != &*self.key {
            return Fate::Ours;
        }
        match change {
            Change::Delete { revision, .. } if *revision > self.create_revision => Fate::Gone,
            Change::Put(entry) if entry.mod_revision > self.create_revision => self.compare(entry),
            _ => Fate::Ours,
        }
    }

    /// Returns our key's fate by a read. The create revision is compared, not the existence.
    pub fn read(&self, entry: Option<&Entry>) -> Fate {
        entry.map_or(Fate::Gone, |entry| self.compare(entry))
    }

    fn compare(&self, entry: &Entry) -> Fate {
        if entry.create_revision != self.create_revision {
            Fate::Gone
        } else if entry.lease != self.lease {
            Fate::Overwritten
        } else {
            Fate::Ours
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{delete, entry, own};
    use super::*;

    /// A watch that begins late repeats the events of an earlier key at our path.
    #[test]
    fn events_older_than_our_key_leave_it() {
        for change in [Change::Put(entry("e/me", 5, 0)), delete("e/me", 7)] {
            assert_eq!(own(10).fate(&change), Fate::Ours);
        }
    }

    #[test]
    fn a_key_without_our_lease_is_overwritten() {
        let mut foreign = entry("e/me", 10, 0);
        foreign.mod_revision = 13;
        assert_eq!(own(10).fate(&Change::Put(foreign)), Fate::Overwritten);
    }
}
