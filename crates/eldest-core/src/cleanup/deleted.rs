//! Remembers the partitions' keys whose deletion was requested, so that an old view misleads no member.

use std::collections::BTreeMap;
use std::sync::Arc;

/// What a view's showing a partition's key under our lease, or none, means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Nobody asked for it to go.
    Standing,
    /// It is asked to go, and the view may not have come so far.
    Going,
    /// It was gone for certain: a restore of etcd has brought it back.
    Back,
}

/// A partition's key that was asked to go under this lease.
#[derive(Debug, Clone, Copy, Default)]
struct Deletion {
    /// The newest create revision that was asked to go.
    created: i64,
    /// The revision at which etcd confirmed that it is gone.
    gone_at: Option<i64>,
}

impl Deletion {
    fn ask(&mut self, create_revision: i64) {
        // Until etcd confirms it the key is among the removals, so the earlier date misleads nobody.
        self.created = self.created.max(create_revision);
    }

    /// What a view at the revision `seen` says by showing a key that was created then.
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

/// The keys of partitions that were asked to go under this lease. Views that are behind still show them, also to a member
/// that is new in this session.
#[derive(Debug, Default)]
pub(super) struct Deleted {
    keys: BTreeMap<Arc<[u8]>, Deletion>,
}

impl Deleted {
    /// The key is asked to go.
    pub(super) fn ask(&mut self, key: Arc<[u8]>, create_revision: i64) {
        self.keys.entry(key).or_default().ask(create_revision);
    }

    /// etcd confirms at `revision` that the key is gone.
    pub(super) fn confirm(&mut self, key: &[u8], revision: i64) {
        if let Some(deletion) = self.keys.get_mut(key) {
            deletion.gone_at = Some(revision);
        }
    }

    /// What a view at the revision `seen` says by showing a key that was created then.
    pub(super) fn shown(&self, key: &[u8], created: i64, seen: i64) -> Shown {
        let deletion = self.keys.get(key);
        deletion.map_or(Shown::Standing, |deletion| deletion.shown(created, seen))
    }

    /// The lease is gone, and every key of it.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
    }
}
