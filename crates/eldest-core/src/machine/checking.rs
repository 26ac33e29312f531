//! Reads the keys of leaders that no watch vouches for, after every verified renewal.
//!
//! The read that verifies a renewal looks at one key. A session that leads many elections would look at each of them once in
//! many renewals, and a watch tells in between what becomes of the others. While that is broken, every renewal would move the
//! deadline of a term whose key somebody deleted. So the keys that are not watched are read all at once.

use std::sync::Arc;

use super::{Machine, Slot};
use crate::action::{Answer, Ask, SlotId};
use crate::candidate::{Candidacy, Phase, Role};
use crate::purpose::Purpose;
use crate::time::Time;

/// Keys in one transaction; etcd takes 128 operations unless it is configured otherwise.
const KEYS: usize = 64;

impl Machine {
    /// Reads the keys of leaders that are not watched, unless such reads are under way.
    pub(super) fn check_unwatched(&mut self) {
        if self.checks > 0 {
            return;
        }
        let unwatched: Vec<_> = self
            .slots
            .iter()
            .filter_map(|(slot, candidate)| match candidate {
                Slot::Candidate(candidate) => self.unwatched_key(*slot, candidate),
                Slot::Onlooker(_) => None,
            })
            .collect();
        for part in unwatched.chunks(KEYS) {
            let keys = part.iter().map(|(.., key)| Arc::clone(key)).collect();
            let subjects = part.iter().map(|(slot, created, _)| (*slot, *created));
            let subjects = subjects.collect();
            self.checks += 1;
            self.out
                .ask(Purpose::Check { subjects }, Ask::Check { keys });
        }
    }

    /// The key of a leader whose view cannot tell whether it stands, with its create revision.
    fn unwatched_key(
        &self,
        slot: SlotId,
        candidate: &Candidacy,
    ) -> Option<(SlotId, i64, Arc<[u8]>)> {
        let Phase::Leading { own, .. } = candidate.phase() else {
            return None;
        };
        let view = match candidate.role {
            // A member's view shows the keys of its partitions.
            Role::Owner { member, .. } => match self.slots.get(&member) {
                Some(Slot::Candidate(member)) => Some(&member.view),
                _ => None,
            },
            _ => Some(&candidate.view),
        };
        let watched = view.is_some_and(crate::queue::View::is_current);
        (!watched).then(|| (slot, own.create_revision, Arc::clone(&own.key)))
    }

    pub(super) fn checked(&mut self, now: Time, subjects: &[(SlotId, i64)], answer: Answer) {
        // What was not answered is asked for again after the next renewal.
        if let Answer::Checked { entries, .. } = answer {
            for ((slot, created), entry) in subjects.iter().zip(entries) {
                self.own_key_read(*slot, *created, entry.as_ref(), now);
            }
        }
    }
}
