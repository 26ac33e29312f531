//! Records a core's reports to its node: trust, terms, candidacies and observations.

use super::node::{Node, SimCandidate};
use crate::mutant::Mutant;
use eldest_core::action::{Action, CandidateAction, Class, Note, SessionState, SlotId};
use eldest_core::kv::Entry;
use eldest_core::reason::EndReason;
use eldest_core::time::Time;

impl Node {
    /// Records an action that only reports.
    pub(crate) fn note_action(&mut self, action: Action, now: Time, mutant: Option<Mutant>) {
        let extends = mutant == Some(Mutant::ExtendsCancelled);
        self.note_lead(&action, now);
        match action {
            Action::HangUp => {
                self.generation += 1;
                self.stream = None;
            }
            Action::Trust { deadline, fresh } => {
                let stands = self.trust(deadline, fresh, mutant);
                if !stands {
                    self.core.distrusted(now);
                }
            }
            Action::Distrust => {
                if !extends && let Some(belief) = self.belief.take() {
                    belief.frozen.set(true);
                }
            }
            Action::Candidate(action) => self.note_candidate_action(action, extends),
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
            Action::ObserveFailed { slot, error } => {
                // Another observer may have that slot later.
                self.complete.remove(&slot);
                self.observe_failed.push(error);
            }
            Action::Synced { slot, as_of } => {
                let complete = self.complete.entry(slot).or_default();
                complete.read(as_of);
                assert!(complete.synced(self.confirmed), "reported twice");
            }
            Action::Unsynced { slot } => {
                let complete = self.complete.entry(slot).or_default();
                assert!(complete.unsynced(self.confirmed), "reported twice");
            }
            Action::Confirmed { as_of } => {
                assert!(Some(as_of) > self.confirmed, "older than before");
                self.confirmed = Some(as_of);
            }
            Action::Session(state) => {
                assert!(!self.closed(), "after the end came {state:?}");
                self.closed = state == SessionState::Closed;
                if self.recording {
                    self.session_states.push(state);
                }
            }
            Action::Note(note) => self.keep_note(note),
            _ => {}
        }
    }

    /// Moves or ends the deadline of clean reads.
    fn note_lead(&mut self, action: &Action, now: Time) {
        match action {
            Action::Lead { deadline, fresh } => {
                let stands = self.lead(*deadline, *fresh);
                if !stands {
                    self.core.challenges(now).lead_no_longer();
                }
            }
            Action::LeadNoLonger => {
                if let Some(lead) = self.lead.take() {
                    lead.frozen.set(true);
                }
            }
            _ => {}
        }
    }

    fn keep_note(&mut self, note: Note) {
        self.tally.note(&note);
        match &note {
            Note::LeaseGranted { lease, .. } => self.leases.push(*lease),
            Note::Joined {
                create_revision, ..
            } => self.joined.push(*create_revision),
            Note::JoinFailed { slot, .. } => {
                let is_new = self.joined.is_empty();
                self.candidate_of(*slot).failed_new = is_new;
            }
            _ => {}
        }
        if self.recording {
            self.notes.push(note);
        }
    }

    fn note_candidate_action(&mut self, action: CandidateAction, extends: bool) {
        match action {
            CandidateAction::TermEnded {
                term,
                reason,
                cutoff,
                valid,
                ..
            } => {
                if let Some(t) = self.terms.iter_mut().find(|t| t.id == term) {
                    if t.reason.replace(reason).is_none() {
                        self.tally.add(reason.as_str(), 1);
                    }
                    if valid && extends {
                        return;
                    }
                    t.until = t.until.min(if valid { cutoff } else { Time::ZERO });
                    t.cutoff = t.cutoff.min(cutoff);
                }
            }
            CandidateAction::Registered { slot } => self.candidate_of(slot).registered = true,
            CandidateAction::Status { slot, status } => {
                self.candidate_of(slot).status = Some(status);
            }
            CandidateAction::Ended {
                slot,
                reason,
                error,
            } => {
                let has_joined = !self.joined.is_empty();
                let candidate = self.candidate_of(slot);
                let stood_once = has_joined && !candidate.failed_new;
                assert!(candidate.ended.is_none(), "a candidacy ends once");
                if let Some(error) = error.as_ref().filter(|_| reason == EndReason::Refused) {
                    let passes = matches!(error.class, Class::Auth | Class::Backoff | Class::Full);
                    assert!(
                        error.class != Class::Stale
                            && !(passes && stood_once && !candidate.at_once),
                        "a refusal that passes ended a candidacy: {error:?}"
                    );
                }
                candidate.ended = Some((reason, error));
            }
            CandidateAction::Coming { slot, partitions } => {
                self.candidate_of(slot).coming = partitions;
            }
            CandidateAction::Released { slot } => self.candidate_of(slot).releases += 1,
            CandidateAction::Elected { .. } | CandidateAction::Taken { .. } => {}
        }
    }

    fn candidate_of(&mut self, slot: SlotId) -> &mut SimCandidate {
        self.candidates.entry(slot).or_default()
    }
}
