//! Writes a candidate's value into its key, and answers the calls that wait for it.

use std::sync::Arc;

use super::Machine;
use crate::action::{Action, Answer, Ask, Class, SlotId};
use crate::candidate::{Announcements, Candidacy};
use crate::facts::Entry;
use crate::purpose::Purpose;
use crate::queue::Own;
use crate::time::Time;
use crate::timers::Timer;

impl Machine {
    /// Replaces what the candidate announces, now and after every rejoin.
    pub fn proclaim(&mut self, slot: SlotId, value: Arc<[u8]>, ticket: u64) {
        let Some(candidate) = self.candidate(slot) else {
            self.answer_proclaims([ticket], false);
            return;
        };
        candidate.value = value;
        if candidate.own().is_none() {
            // It will be announced with the key.
            self.answer_proclaims([ticket], true);
            return;
        }
        candidate.announcements().wait(ticket);
        self.announce(slot);
    }

    /// The candidate's key stands with another value than a caller was told.
    pub(super) fn owe_announcement(&mut self, slot: SlotId) {
        if let Some(candidate) = self.candidate(slot) {
            candidate.announcements().owe();
        }
        self.announce(slot);
    }

    /// A write failed.
    fn announce_owed_later(&mut self, slot: SlotId, class: Class, now: Time) {
        let announcements = self.candidate(slot).map(Candidacy::announcements);
        if let Some(failures) = announcements.and_then(Announcements::failed) {
            let at = now.after(self.pace.pause(failures, class));
            self.out.set_timer(at, Timer::Announcement(slot));
        }
    }

    /// The pause after a failed write is over.
    pub(super) fn announce_owed(&mut self, slot: SlotId) {
        let due = |candidate: &mut Candidacy| candidate.announcements().is_due();
        if self.candidate(slot).is_some_and(due) {
            self.announce(slot);
        }
    }

    /// Writes the candidate's value into its key, after the write under way.
    pub(super) fn announce(&mut self, slot: SlotId) {
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let own = candidate.own().cloned();
        let (value, mod_revision) = (Arc::clone(&candidate.value), candidate.announced_at);
        let Some(tickets) = candidate.announcements().begin() else {
            return;
        };
        let Some(own) = own else {
            self.answer_proclaims(tickets, true);
            return;
        };
        let key = Arc::clone(&own.key);
        let purpose = Purpose::Proclaim { slot, key, tickets };
        let ask = Ask::Proclaim {
            own,
            mod_revision,
            value,
        };
        self.out.ask(purpose, ask);
        if let Some(candidate) = self.candidate(slot) {
            candidate.announcements().sent();
        }
    }

    pub(super) fn proclaimed(
        &mut self,
        now: Time,
        slot: SlotId,
        key: &[u8],
        tickets: Vec<u64>,
        answer: Answer,
    ) {
        if let Some(candidate) = self.candidate(slot) {
            candidate.announcements().answered();
        }
        if let Answer::Failed(trouble) = &answer {
            self.announce_owed_later(slot, trouble.class, now);
        }
        match answer {
            Answer::Proclaimed { held: Some(at), .. } => {
                if let Some(candidate) = self.candidate(slot) {
                    candidate.announced_at = at;
                    candidate.announcements().written();
                }
                self.answer_proclaims(tickets, true);
            }
            Answer::Proclaimed { held: None, entry } => match self.candidate(slot) {
                Some(candidate)
                    if candidate
                        .own()
                        .is_some_and(|own| is_ours(own, entry.as_ref())) =>
                {
                    // An earlier write, of which no answer is known, came first.
                    candidate.announced_at = entry.map_or(0, |entry| entry.mod_revision);
                    candidate.announcements().repeat(tickets);
                }
                _ => self.answer_proclaims(tickets, false),
            },
            Answer::Failed(trouble) if tickets.is_empty() => {
                self.out.note_failure("proclaim", key, trouble);
            }
            Answer::Failed(trouble) => {
                for ticket in tickets {
                    let result = Err(trouble.clone());
                    self.out.act(Action::Proclaimed { ticket, result });
                }
            }
            _ => {}
        }
        let follows = |candidate: &mut Candidacy| candidate.announcements().follows();
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

/// Whether that is still our key, though with another value than we wrote last.
fn is_ours(own: &Own, entry: Option<&Entry>) -> bool {
    entry.is_some_and(|entry| own.is(entry) && entry.lease == own.lease)
}
