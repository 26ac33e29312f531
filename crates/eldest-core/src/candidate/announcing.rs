//! Writes a candidate's value into its key, and answers the calls that wait for it.

use std::sync::Arc;

use super::seat::Seat;
use crate::action::{Answer, Ask};
use crate::kv::Entry;
use crate::purpose::Purpose;
use crate::timers::Timer;

impl Seat<'_> {
    /// Replaces what the candidate announces, now and after every rejoin.
    pub(crate) fn proclaim(&mut self, value: Arc<[u8]>, ticket: u64) {
        self.me.value = value;
        let stands = self.me.own().is_some();
        if stands {
            self.me.announcements().wait(ticket);
        }
        self.set_aside();
        if stands {
            self.announce();
        } else {
            // The next key will have the value.
            self.out.answer_proclaims([ticket], true);
        }
    }

    /// Writes an owed value, after the pause that followed a failed write.
    pub(crate) fn announce_owed(&mut self) {
        if self.me.announcements().is_due() {
            self.announce();
        }
    }

    /// Writes the candidate's value into its key, after the write in flight.
    pub(super) fn announce(&mut self) {
        let Some(tickets) = self.me.announcements().begin() else {
            return;
        };
        let Some(own) = self.me.own().cloned() else {
            self.out.answer_proclaims(tickets, true);
            return;
        };
        self.me.announcements().sent();
        let (slot, key) = (self.slot, Arc::clone(&own.key));
        let ask = Ask::Proclaim {
            own,
            mod_revision: self.me.announced_at,
            value: self.challenges.announce(self.me.value()),
        };
        self.out.ask(Purpose::Proclaim { slot, key, tickets }, ask);
    }

    /// Applies the answer to a write of the candidate's value.
    pub(crate) fn proclaimed(&mut self, key: &[u8], tickets: Vec<u64>, answer: Answer) {
        self.me.announcements().answered();
        let tickets = match &answer {
            Answer::Proclaimed { held: Some(at), .. } => {
                self.me.announced_at = *at;
                self.me.announcements().written();
                tickets
            }
            Answer::Proclaimed { held: None, entry } => self.overtaken(entry.as_ref(), tickets),
            Answer::Failed(error) => {
                if let Some(failures) = self.me.announcements().failed() {
                    let at = self.now.after(self.pace.pause(failures, error.class));
                    self.out.set_timer(at, Timer::Announcement(self.slot));
                }
                tickets
            }
            _ => tickets,
        };
        self.out.answer_write(key, tickets, answer);
        if self.me.announcements().follows() {
            self.announce();
        }
    }

    /// Handles a key that differs from the expected one. If it is still ours, an earlier write without an answer came
    /// first, and the next write answers these calls; otherwise the calls are returned.
    fn overtaken(&mut self, entry: Option<&Entry>, tickets: Vec<u64>) -> Vec<u64> {
        match (self.me.own(), entry) {
            (Some(own), Some(entry)) if own.is(entry) && entry.lease == own.lease => {
                self.me.announced_at = entry.mod_revision;
                self.me.announcements().repeat(tickets);
                Vec::new()
            }
            _ => tickets,
        }
    }
}
