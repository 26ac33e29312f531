//! Notes what a machine tells its node: beliefs, terms, candidacies and observations.

use super::node::{Node, Seat};
use crate::mutant::Mutant;
use eldest_core::action::{Action, Condition, Note, SlotId};
use eldest_core::kv::Entry;
use eldest_core::time::Time;

impl Node {
    /// Actions that only tell.
    pub(crate) fn told(&mut self, action: Action, now: Time, mutant: Option<Mutant>) {
        let extends = mutant == Some(Mutant::ExtendsCancelled);
        match action {
            Action::HangUp => {
                self.generation += 1;
                self.stream = None;
            }
            Action::Trust { deadline, fresh } => {
                let stands = self.trust(deadline, fresh, mutant);
                if !stands {
                    self.machine.distrusted(now);
                }
            }
            Action::Distrust => {
                if !extends && let Some(belief) = self.belief.take() {
                    belief.frozen.set(true);
                }
            }
            Action::TermEnded {
                term,
                reason,
                cutoff,
                valid,
                ..
            } => {
                if let Some(t) = self.terms.iter_mut().find(|t| t.id == term) {
                    if t.reason.replace(reason).is_none() {
                        *self.tally.ended.entry(reason.as_str()).or_default() += 1;
                    }
                    if valid && extends {
                        return;
                    }
                    t.until = t.until.min(if valid { cutoff } else { Time::ZERO });
                    t.cutoff = t.cutoff.min(cutoff);
                }
            }
            Action::Registered { slot } => self.seat_of(slot).registered = true,
            Action::Standing { slot, standing } => self.seat_of(slot).standing = Some(standing),
            Action::Ended {
                slot,
                reason,
                trouble,
            } => {
                let seat = self.seat_of(slot);
                assert!(seat.ended.is_none(), "a candidacy ends once");
                seat.ended = Some((reason, trouble));
            }
            Action::Proclaimed { ticket, result } if self.recording => {
                self.proclaimed.push((ticket, result));
            }
            Action::Observed {
                slot,
                revision,
                entries,
                ..
            } if self.recording => {
                let entries = entries.iter().map(|entry| Entry::clone(entry)).collect();
                self.observed.push((slot, revision, entries));
            }
            Action::ObserveFailed { trouble, .. } => self.observe_failed.push(trouble),
            Action::Synced { slot, as_of } => {
                let complete = self.complete.entry(slot).or_default();
                complete.read(as_of);
                assert!(complete.synced(self.confirmed), "told twice");
            }
            Action::Unsynced { slot } => {
                let complete = self.complete.entry(slot).or_default();
                assert!(complete.unsynced(self.confirmed), "told twice");
            }
            Action::Confirmed { as_of } => {
                assert!(Some(as_of) > self.confirmed, "older than before");
                self.confirmed = Some(as_of);
            }
            Action::Session(condition) => {
                assert!(!self.closed(), "after the end came {condition:?}");
                self.closed = condition == Condition::Closed;
                if self.recording {
                    self.conditions.push(condition);
                }
            }
            Action::Note(note) => {
                self.tally.count(&note);
                match &note {
                    Note::LeaseGranted { lease, .. } => self.leases.push(*lease),
                    Note::Joined {
                        create_revision, ..
                    } => self.joined.push(*create_revision),
                    _ => {}
                }
                if self.recording {
                    self.notes.push(note);
                }
            }
            _ => {}
        }
    }

    fn seat_of(&mut self, slot: SlotId) -> &mut Seat {
        self.seats.entry(slot).or_default()
    }
}
