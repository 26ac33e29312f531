//! Announces a candidate's value in its own key: one write at a time, so that the newest value is the last one.
//!
//! Every write demands the mod revision that the key had when it was sent. A write whose answer was lost, and which arrives
//! after a newer one, changes nothing. Whoever announces while no key stands is told that the value goes with the next key.
//! If that key stands with an older value, because a join was under way, the write that follows is repeated until it is
//! done.

use std::sync::Arc;

use super::action::{Action, Answer, Ask, Class, SlotId};
use super::candidacy::{Candidacy, Purpose};
use super::machine::{Machine, Timer};
use super::time::Time;
use super::view::Own;
use crate::facts::Entry;

/// The writes of one candidate's value.
#[derive(Debug, Clone, Default)]
pub(crate) struct Proclaims {
    /// A write is under way; the next one waits for its answer.
    under_way: bool,
    /// The calls that the next write answers.
    waiting: Vec<u64>,
    /// The value changed since the write under way was sent.
    again: bool,
    /// A caller was told that the value goes with the key, and the key stood with another one.
    owed: bool,
    /// Writes that failed since it is owed.
    failures: u32,
}

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
        candidate.proclaims().waiting.push(ticket);
        self.announce(slot);
    }

    /// The candidate's key stands with another value than a caller was told.
    pub(super) fn owe_announcement(&mut self, slot: SlotId) {
        if let Some(candidate) = self.candidate(slot) {
            candidate.proclaims().owed = true;
        }
        self.announce(slot);
    }

    /// A write failed.
    fn announce_owed_later(&mut self, slot: SlotId, class: Class, now: Time) {
        let Some(proclaims) = self.candidate(slot).map(Candidacy::proclaims) else {
            return;
        };
        if proclaims.owed {
            proclaims.failures += 1;
            let failures = proclaims.failures;
            let at = now.after(self.pause(failures, class));
            self.timers.set(at, Timer::Announcement(slot));
        }
    }

    /// The pause after a failed write is over.
    pub(super) fn announce_owed(&mut self, slot: SlotId) {
        let owed = |candidate: &mut Candidacy| {
            let proclaims = candidate.proclaims();
            proclaims.owed && !proclaims.under_way
        };
        if self.candidate(slot).is_some_and(owed) {
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
        let proclaims = candidate.proclaims();
        if proclaims.under_way {
            proclaims.again = true;
            return;
        }
        proclaims.again = false;
        let tickets = std::mem::take(&mut proclaims.waiting);
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
        self.ask(purpose, ask);
        if let Some(candidate) = self.candidate(slot) {
            candidate.proclaims().under_way = true;
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
            candidate.proclaims().under_way = false;
        }
        if let Answer::Failed(trouble) = &answer {
            self.announce_owed_later(slot, trouble.class, now);
        }
        match answer {
            Answer::Proclaimed { held: Some(at), .. } => {
                if let Some(candidate) = self.candidate(slot) {
                    candidate.announced_at = at;
                    let proclaims = candidate.proclaims();
                    proclaims.owed &= proclaims.again;
                    proclaims.failures = 0;
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
                    let proclaims = candidate.proclaims();
                    proclaims.waiting.extend(tickets);
                    proclaims.again = true;
                }
                _ => self.answer_proclaims(tickets, false),
            },
            Answer::Failed(trouble) if tickets.is_empty() => {
                self.fail_request("proclaim", key, trouble);
            }
            Answer::Failed(trouble) => {
                for ticket in tickets {
                    let result = Err(trouble.clone());
                    self.act(Action::Proclaimed { ticket, result });
                }
            }
            _ => {}
        }
        let again = |candidate: &mut Candidacy| candidate.proclaims().again;
        if self.candidate(slot).is_some_and(again) {
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
            self.act(Action::Proclaimed { ticket, result });
        }
    }
}

impl Proclaims {
    /// The candidate is forgotten: the calls that nothing will answer.
    pub(super) fn unanswered(self) -> Vec<u64> {
        self.waiting
    }
}

/// Whether that is still our key, though with another value than we wrote last.
fn is_ours(own: &Own, entry: Option<&Entry>) -> bool {
    entry.is_some_and(|entry| own.is(entry) && entry.lease == own.lease)
}
