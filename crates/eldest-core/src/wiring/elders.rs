//! Follows the sessions ahead of this one's candidates, and suspects those that give no sign of life in other ways.

use std::time::Duration;

use super::hall::Hall;
use crate::action::{Answer, RequestId};
use crate::candidate::keys_ahead;
use crate::challenge::{Standing, read_timeout};
use crate::ids::SlotId;

impl Hall<'_> {
    /// Reviews which sessions are ahead of that candidate. Every event calls this, so a known session is not looked up
    /// again in its key's value.
    pub(super) fn review_elders(&mut self, slot: SlotId) {
        if self.rooms.challenges.config().is_none() {
            return;
        }
        let own = self.rooms.lease.id();
        let keys = match self.slots.candidate(slot) {
            Some(candidate) => keys_ahead(candidate),
            None => Some(Vec::new()),
        };
        let Some(keys) = keys else {
            return;
        };
        let mut standings = Vec::with_capacity(keys.len());
        for (entry, is_first) in keys {
            let lease = entry.lease;
            if Some(lease) == own {
                continue;
            }
            if !self.rooms.challenges.elders.contains(lease) {
                let Some(announced) = self.rooms.challenges.announced_by(entry) else {
                    continue;
                };
                self.rooms.challenges.elders.add(lease, announced);
                self.rooms.challenges.suspects.set_left(lease, false);
            }
            standings.push(Standing {
                lease,
                first: is_first.then_some(entry.create_revision),
            });
        }
        let at = (slot, self.now);
        let elders = &mut self.rooms.challenges.elders;
        for lease in elders.place(at, &standings, &mut self.rooms.out) {
            self.rooms.challenges.suspects.set_left(lease, true);
            self.end_if_left(lease);
        }
        for lease in self.rooms.challenges.elders.of_slot(slot) {
            debug_assert_ne!(Some(lease), own, "no session is ahead of itself");
            self.read_elder(lease);
        }
    }

    fn read_elder(&mut self, lease: i64) {
        let elders = &mut self.rooms.challenges.elders;
        elders.read(lease, self.now, &mut self.rooms.out);
    }

    /// Records that signs of life of the session are overdue, or have arrived.
    pub(super) fn set_silent(&mut self, lease: i64, is_silent: bool) {
        self.rooms.challenges.elders.set_silent(lease, is_silent);
        self.read_elder(lease);
    }

    /// Handles a due time of an elder: to read its anchor or its lease, or to challenge it because nothing shows whether
    /// it leads.
    pub(super) fn elder_due(&mut self, lease: i64) {
        self.read_elder(lease);
        let (elders, out) = (&mut self.rooms.challenges.elders, &mut self.rooms.out);
        if elders.take_unproven(lease, self.now, out) {
            self.suspect(lease);
        }
    }

    /// Returns how long an elder's renewal may be late beside the usual second: short, because a wrong suspicion costs two
    /// small writes.
    fn patience(&self) -> Duration {
        let config = &self.rooms.config;
        let lead = config
            .challenges
            .as_ref()
            .map_or(Duration::MAX, |it| it.lead);
        read_timeout(lead, config.request_timeout) * 2
    }

    /// Applies the answer to a read of an elder's anchor, or of its lease.
    pub(super) fn elder_read(&mut self, lease: i64, request: RequestId, answer: Answer) {
        let (now, pace) = (self.now, self.rooms.pace);
        let patience = self.patience();
        let (elders, out) = (&mut self.rooms.challenges.elders, &mut self.rooms.out);
        if !elders.answered(lease, request) {
            return;
        }
        match answer {
            Answer::Read { entry, .. } => {
                if elders.anchor_read(lease, entry.as_ref()) {
                    self.elder_due(lease);
                } else {
                    self.suspect(lease);
                }
            }
            Answer::TimeLeft { granted, left } => {
                let term = (granted, left);
                let is_overdue = elders.lease_read((lease, now), term, patience, out);
                if is_overdue {
                    self.suspect(lease);
                    self.challenge_now(lease);
                }
            }
            Answer::Failed(error) => {
                let pause = pace.pause(elders.failed(lease), error.class);
                out.note_failure("read elder", &[], error);
                elders.read_at(lease, now.after(pause), out);
            }
            _ => {}
        }
    }

    /// Repeats a read that another store answered.
    pub(super) fn read_elder_again(&mut self, lease: i64, request: RequestId) {
        let (elders, out) = (&mut self.rooms.challenges.elders, &mut self.rooms.out);
        if elders.answered(lease, request) {
            elders.read_at(lease, self.now, out);
        }
    }
}
