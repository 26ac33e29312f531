//! Defines the common parts of single slots: the keys of candidates, and the ways in which a term ends.

use std::sync::Arc;

use super::action::{SlotId, WatchId};
use super::candidacy::Candidacy;
use super::machine::{Machine, Slot};

/// How a term ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The key stands and may be believed in until the frozen deadline.
    Fading,
    /// The key stands and may be believed in for the grace period, which ends before the frozen deadline.
    Brief,
    /// The key is no longer ours, or the leader says that its work is done.
    Void,
}

/// `<prefix><lease in lower-case hex>`, as in etcd's own election recipe.
pub fn key_of(prefix: &[u8], lease: i64) -> Arc<[u8]> {
    let mut key = prefix.to_vec();
    key.extend_from_slice(format!("{lease:x}").as_bytes());
    key.into()
}

/// `<prefix><lease in lower-case hex>-<number>`: a semaphore knows several keys of one session.
pub fn numbered_key_of(prefix: &[u8], lease: i64, number: u64) -> Arc<[u8]> {
    let mut key = key_of(prefix, lease).to_vec();
    key.extend_from_slice(format!("-{number}").as_bytes());
    key.into()
}

impl Slot {
    /// Every watcher that stands for it.
    pub(super) fn watchers(&self) -> Vec<WatchId> {
        match self {
            Slot::Candidate(candidate) => candidate.view.watchers(),
            Slot::Onlooker(onlooker) => onlooker.view.watchers(),
        }
    }
}

impl Machine {
    pub(super) fn candidate(&mut self, slot: SlotId) -> Option<&mut Candidacy> {
        match self.slots.get_mut(&slot) {
            Some(Slot::Candidate(candidate)) => Some(candidate),
            _ => None,
        }
    }
}
