//! Remembers the partitions' keys whose deletion was requested, so that an old view misleads no member.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::kv::keys_below;

/// The meaning of a partition's key under our lease, or of its absence, in a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// No deletion of the key was requested.
    Standing,
    /// The deletion was requested, and the view may be older than it.
    Going,
    /// The key was gone for certain: a restore of etcd has brought it back.
    Back,
}

/// A partition's key whose deletion was requested under this lease.
#[derive(Debug, Clone, Copy, Default)]
struct Deletion {
    /// The newest create revision whose deletion was requested.
    created: i64,
    /// The revision at which etcd confirmed that it is gone.
    gone_at: Option<i64>,
}

impl Deletion {
    fn ask(&mut self, create_revision: i64) {
        // The key stays among the removals until etcd confirms its deletion, so the earlier revision misleads no
        // member.
        self.created = self.created.max(create_revision);
    }

    /// Interprets a key, created at the revision `created`, in a view at the revision `seen`.
    fn shown(self, created: i64, seen: i64) -> Shown {
        if created > self.created {
            Shown::Standing
        } else if self.gone_at.is_some_and(|gone| seen >= gone) {
            Shown::Back
        } else {
            Shown::Going
        }
    }
}

/// The keys of partitions whose deletion was requested under this lease. Outdated views still show them, also to a
/// member that is new in this session.
#[derive(Debug, Default)]
pub(super) struct Deleted {
    keys: BTreeMap<Arc<[u8]>, Deletion>,
    /// The newest create revision of a forgotten deletion. An older key of this lease without a holder may also have
    /// been meant to go, so no member adopts it.
    forgotten: i64,
}

impl Deleted {
    /// Records that the deletion of the key was requested.
    pub(super) fn ask(&mut self, key: Arc<[u8]>, create_revision: i64) {
        self.keys.entry(key).or_default().ask(create_revision);
    }

    /// Records that etcd confirmed at `revision` that the key is gone.
    pub(super) fn confirm(&mut self, key: &[u8], revision: i64) {
        if let Some(deletion) = self.keys.get_mut(key) {
            deletion.gone_at = Some(revision);
        }
    }

    /// Interprets a key, created at the revision `created`, in a view at the revision `seen`.
    pub(super) fn shown(&self, key: &[u8], created: i64, seen: i64) -> Shown {
        match self.keys.get(key) {
            Some(deletion) => deletion.shown(created, seen),
            None if created <= self.forgotten => Shown::Back,
            None => Shown::Standing,
        }
    }

    /// Forgets the individual keys below that prefix.
    pub(super) fn forget_below(&mut self, prefix: &[u8]) {
        let below: Vec<_> = keys_below(&self.keys, prefix).cloned().collect();
        for key in below {
            let deletion = self.keys.remove(&key).unwrap_or_default();
            self.forgotten = self.forgotten.max(deletion.created);
        }
    }

    /// Returns true if no key below that prefix is remembered.
    pub(super) fn knows_nothing_below(&self, prefix: &[u8]) -> bool {
        keys_below(&self.keys, prefix).next().is_none()
    }

    /// Forgets all keys, because they are gone with the lease.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgotten_deletion_is_never_taken_for_a_foreign_one() {
        let mut deleted = Deleted::default();
        for (key, created) in [("p/1", 5), ("p/2", 6), ("q/1", 4)] {
            deleted.ask(key.as_bytes().into(), created);
            deleted.confirm(key.as_bytes(), 9);
        }
        assert_eq!(deleted.shown(b"p/2", 6, 8), Shown::Going);
        deleted.forget_below(b"p/");
        assert_eq!(deleted.keys.len(), 1);
        assert_eq!(deleted.shown(b"p/2", 6, 8), Shown::Back);
        assert_eq!(deleted.shown(b"p/2", 7, 8), Shown::Standing, "a newer one");
        assert_eq!(deleted.shown(b"q/1", 4, 8), Shown::Going);
        deleted.clear();
        assert_eq!(
            deleted.shown(b"p/2", 6, 8),
            Shown::Standing,
            "another lease"
        );
    }
}
