//! Writes a candidate's value into its key, and answers the calls that wait for it.

use std::sync::Arc;

use super::{Core, Slot};
use crate::action::{Action, Answer, Ask};
use crate::candidate::Candidacy;
use crate::ids::SlotId;
use crate::purpose::Purpose;
use crate::time::Time;
use crate::timers::Timer;

impl Core {
    /// Replaces what the candidate announces, now and after every rejoin.
    pub fn proclaim(&mut self, now: Time, slot: SlotId, value: Arc<[u8]>, ticket: u64) {
        let stands = match self.slots.get_mut(&slot) {
            Some(Slot::Candidate(candidate)) => {
                let stands = candidate.announce(value, ticket);
                candidate.set_aside(&self.evacuation);
                Some(stands)
            }
            _ => None,
        };
        match stands {
            Some(true) => self.announce(slot),
            // The value will be announced with the key.
            Some(false) => self.answer_proclaims([ticket], true),
            None => self.answer_proclaims([ticket], false),
        }
        // Its data centre may be another one.
        self.watch_marks(slot, now);
    }

    /// The pause after a failed write is over.
    pub(super) fn announce_owed(&mut self, slot: SlotId) {
        let owes = |c: &mut Candidacy| c.owes_announcement();
        if self.candidate(slot).is_some_and(owes) {
            self.announce(slot);
        }
    }

    /// Writes the candidate's value into its key, after the write under way.
    pub(super) fn announce(&mut self, slot: SlotId) {
        let Some((tickets, write)) = self.candidate(slot).and_then(Candidacy::begin_write) else {
            return;
        };
        let Some(write) = write else {
            self.answer_proclaims(tickets, true);
            return;
        };
        let key = Arc::clone(&write.own.key);
        let ask = Ask::Proclaim {
            own: write.own,
            mod_revision: write.mod_revision,
            value: write.value,
        };
        self.out.ask(Purpose::Proclaim { slot, key, tickets }, ask);
    }

    pub(super) fn proclaimed(
        &mut self,
        now: Time,
        slot: SlotId,
        key: &[u8],
        tickets: Vec<u64>,
        answer: Answer,
    ) {
        let pace = self.pace;
        if let Some(candidate) = self.candidate(slot) {
            candidate.write_answered();
            if let Answer::Failed(error) = &answer
                && let Some(at) = candidate.write_failed(now, error.class, pace)
            {
                self.out.set_timer(at, Timer::Announcement(slot));
            }
        }
        match answer {
            Answer::Proclaimed { held: Some(at), .. } => {
                if let Some(candidate) = self.candidate(slot) {
                    candidate.written(at);
                }
                self.answer_proclaims(tickets, true);
            }
            Answer::Proclaimed { held: None, entry } => {
                let unanswered = match self.candidate(slot) {
                    Some(candidate) => candidate.overtaken(entry.as_ref(), tickets),
                    None => Some(tickets),
                };
                self.answer_proclaims(unanswered.into_iter().flatten(), false);
            }
            Answer::Failed(error) if tickets.is_empty() => {
                self.out.note_failure("proclaim", key, error);
            }
            Answer::Failed(error) => {
                for ticket in tickets {
                    let result = Err(error.clone());
                    self.out.act(Action::Proclaimed { ticket, result });
                }
            }
            _ => {}
        }
        let follows = |c: &mut Candidacy| c.write_follows();
        if self.candidate(slot).is_some_and(follows) {
            self.announce(slot);
        }
    }

    /// Answers calls that wait for a write: whether the value is announced, or will be with the next key.
    pub(super) fn answer_proclaims(
        &mut self,
        tickets: impl IntoIterator<Item = u64>,
        announced: bool,
    ) {
        for ticket in tickets {
            let result = Ok(announced);
            self.out.act(Action::Proclaimed { ticket, result });
        }
    }
}
