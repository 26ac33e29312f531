//! Reads the keys of leaders that no watch vouches for, after every verified renewal.
//!
//! The read that verifies a renewal looks at one key. A session that leads many elections would look at each of them once in
//! many renewals, and a watch tells in between what becomes of the others. While that is broken, every renewal would move the
//! deadline of a term whose key somebody deleted. So the keys that are not watched are read all at once.

use std::sync::Arc;

use crate::action::Ask;
use crate::ids::SlotId;
use crate::outbox::Outbox;
use crate::purpose::Purpose;

/// Keys in one transaction, if etcd takes as many operations: a value may have 32 KiB, and an answer 4 MiB.
const KEYS: usize = 64;

/// The reads of leaders' keys.
#[derive(Debug, Default)]
pub(crate) struct KeyChecks {
    under_way: usize,
}

impl KeyChecks {
    /// Returns true if such reads are under way.
    pub(crate) fn are_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// Reads these keys, each with its slot and create revision.
    pub(crate) fn start(&mut self, unwatched: &[(SlotId, i64, Arc<[u8]>)], out: &mut Outbox) {
        for part in unwatched.chunks(out.batch().min(KEYS)) {
            let keys = part.iter().map(|(.., key)| Arc::clone(key)).collect();
            let subjects = part.iter().map(|(slot, created, _)| (*slot, *created));
            let subjects = subjects.collect();
            self.under_way += 1;
            out.ask(Purpose::Check { subjects }, Ask::Check { keys });
        }
    }

    /// One of them is answered, whatever became of it.
    pub(crate) fn answered(&mut self) {
        self.under_way -= 1;
    }
}
