//! Reads the keys of leaders that no watch covers, after every verified renewal.
//!
//! The read that verifies a renewal reads one key. A session that leads many elections reads each key once in many
//! renewals, and a watch reports changes of the others in between. While the watch is broken, every renewal would
//! extend a term whose key was deleted. So all unwatched keys are read at once.

use std::sync::Arc;

use crate::action::Ask;
use crate::ids::SlotId;
use crate::outbox::Outbox;
use crate::purpose::Purpose;

/// How many keys one transaction reads, if etcd accepts as many operations: a value may have 32 KiB, and an answer 4
/// MiB.
const KEYS: usize = 64;

/// The reads of leaders' keys.
#[derive(Debug, Default)]
pub(crate) struct KeyChecks {
    under_way: usize,
}

impl KeyChecks {
    /// Returns true if such reads are in flight.
    pub(crate) fn are_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// Reads the given keys, each with its slot and create revision.
    pub(crate) fn start(&mut self, unwatched: &[(SlotId, i64, Arc<[u8]>)], out: &mut Outbox) {
        for part in unwatched.chunks(out.batch().min(KEYS)) {
            let keys = part.iter().map(|(.., key)| Arc::clone(key)).collect();
            let subjects = part.iter().map(|(slot, created, _)| (*slot, *created));
            let subjects = subjects.collect();
            self.under_way += 1;
            out.ask(Purpose::Check { subjects }, Ask::Check { keys });
        }
    }

    /// Records that one of the reads is answered, with any result.
    pub(crate) fn answered(&mut self) {
        self.under_way -= 1;
    }
}
