//! Carries out what the core decides.

use std::sync::Arc;

use super::announcing::{Answer, Said};
use super::candidate_state::Won;
use super::{Driver, spans};
use crate::error::Error;
use crate::metrics;
use crate::state::{LeaseView, SessionState, keep_anchor, share};
use eldest_core::action::{self, Action, Ask, CandidateAction, Join, SlotId, TermId};
use eldest_core::evacuation::MARKS;
use eldest_core::lease::Lease;
use eldest_core::time::Time;

/// The number of terms whose beginning is announced with each renewal.
const BEGINNINGS: usize = 16;

impl Driver {
    pub(super) fn act(&mut self) {
        while let Some(mut action) = self.core.action() {
            if let Action::Ask { ask, .. } = &mut action {
                self.asks(ask);
            }
            let Some(action) = self.io.act(action) else {
                continue;
            };
            match action {
                Action::Trust { deadline, fresh } => self.trust(deadline, fresh),
                Action::Distrust => self.deadlines.end(),
                Action::Lead { deadline, fresh } => self.lead(deadline, fresh),
                Action::LeadNoLonger => self.deadlines.end_reads(),
                Action::Proclaimed { ticket, result } => {
                    if let Some((reply, serves)) = self.proclaims.remove(&ticket) {
                        if let (Some(term), Ok(true)) = (serves, &result) {
                            term.confirm_serving();
                        }
                        drop(reply.send(result.map_err(|t| Error::from_request(&t))));
                    }
                }
                Action::Left { term, left } => {
                    if let Some(reply) = self.partings.remove(&term) {
                        let _ = reply.send(left);
                    }
                }
                Action::Observed {
                    slot: MARKS,
                    entries,
                    ..
                } => {
                    let lease = self.lease_id();
                    self.marks.seen(&self.identity, lease, &entries);
                }
                Action::Session(state) => self.session_state(state),
                Action::Note(note) => self.note(&note),
                Action::Candidate(action) => self.candidate_action(action),
                // The other actions concern observers, which have a task of their own.
                _ => {}
            }
        }
        self.ask_elders();
        self.io.flush();
        self.won.drain(..).for_each(Won::hand_over);
        let core = &self.core;
        self.releases
            .answer(|slot, term| core.is_released(slot, term));
    }

    /// Asks other sessions for signs of life, if others are ahead now.
    fn ask_elders(&mut self) {
        if let (Some(peers), Some(elders)) = (&self.peers, self.core.take_elders()) {
            peers.ask(elders);
        }
    }

    /// Prepares a request before it is sent.
    fn asks(&mut self, ask: &mut Ask) {
        match ask {
            Ask::Join(join) => self.joins(join),
            Ask::Open { .. } | Ask::Renew => {
                let span = spans::renewal(&self.identity, self.lease_id());
                self.io.begin_renewal(span);
            }
            _ => {}
        }
    }

    /// Reports to a candidate what happened to it.
    fn candidate_action(&mut self, action: CandidateAction) {
        self.releases.changed(action.slot());
        match action {
            // Callers are notified at the end of the turn.
            CandidateAction::Released { .. } => {}
            CandidateAction::Elected {
                slot,
                term,
                key,
                token,
            } => self.elected(slot, term, key, token),
            CandidateAction::Taken {
                member,
                partition,
                slot,
            } => {
                let candidate = self.candidates.get(&member);
                if let Some(candidate) = candidate.map(|candidate| candidate.partition(partition)) {
                    self.candidates.insert(slot, Box::new(candidate));
                }
            }
            CandidateAction::Coming { slot, partitions } => {
                if let Some(candidate) = self.candidates.get(&slot) {
                    candidate.coming(partitions);
                }
            }
            CandidateAction::TermEnded {
                slot,
                term,
                reason,
                cutoff,
                valid,
            } => {
                if let Some(candidate) = self.candidates.get_mut(&slot) {
                    candidate.term_ended(&self.identity, term, reason, cutoff, valid);
                }
            }
            CandidateAction::Registered { slot } => {
                if let Some(candidate) = self.candidates.get_mut(&slot) {
                    candidate.registered();
                }
            }
            CandidateAction::Status { slot, status } => {
                if let Some(candidate) = self.candidates.get_mut(&slot) {
                    candidate.status(&self.identity, status);
                }
            }
            CandidateAction::Ended {
                slot,
                reason,
                error,
            } => {
                if let Some(candidate) = self.candidates.remove(&slot) {
                    if self.standing.get(&candidate.prefix) == Some(&slot) {
                        self.standing.remove(&candidate.prefix);
                    }
                    candidate.ended(&self.identity, reason, error.as_ref());
                }
            }
        }
    }

    fn lease_id(&self) -> i64 {
        self.core.lease().map_or(0, Lease::id)
    }

    fn trust(&mut self, deadline: Time, fresh: bool) {
        let left = deadline.since(self.env.now());
        metrics::trusted(&self.identity, self.env.unix_time(), left);
        if fresh {
            self.deadlines.begin(self.lease_id(), deadline);
            self.env.rewatch();
            return;
        }
        let extended = self
            .deadlines
            .lease()
            .is_some_and(|lease_deadline| lease_deadline.extend(deadline));
        if !extended {
            // The watchdog or a caller's check ended the term before this renewal: it stays ended.
            let now = self.env.now();
            self.core.distrusted(now);
            return;
        }
        self.visit_terms();
    }

    /// Lets the session lead until `deadline`, by a clean read.
    fn lead(&mut self, deadline: Time, fresh: bool) {
        if fresh {
            self.deadlines.begin_reads(deadline);
            self.env.rewatch();
        } else if !self.deadlines.extend_reads(deadline) {
            // The watchdog or a caller's check ended the terms before this read: they stay ended.
            let now = self.env.now();
            self.core.challenges(now).lead_no_longer();
        }
    }

    /// Visits each candidate after a renewal: warns of a term that no caller has taken up, and announces when terms
    /// began, and that their leaders serve if etcd has not confirmed that. The announcements follow a renewal, so that a short term costs no request and no hand-over waits. They are
    /// a few at a time, because a session may lead thousands of elections.
    fn visit_terms(&mut self) {
        let before = self.env.now().before(self.deadlines.grace());
        let mut beginnings = Vec::new();
        for (slot, candidate) in &mut self.candidates {
            candidate.warn_if_unclaimed(&self.identity, before);
            if beginnings.len() < BEGINNINGS
                && let Some(beginning) = candidate.announcing.beginning()
            {
                beginnings.push((*slot, beginning));
            }
        }
        for (slot, (said, reply)) in beginnings {
            self.proclaim(slot, said, reply);
        }
    }

    /// Makes a key that replaces another one announce when it joined. A member that is set aside, which is rare, keeps
    /// the time of its first key.
    fn joins(&mut self, join: &mut Join) {
        let slot = self.standing.get(&join.prefix).copied();
        let candidate = slot.and_then(|slot| Some((slot, self.candidates.get_mut(&slot)?)));
        let Some((slot, candidate)) = candidate.filter(|_| !share(&join.value).aside) else {
            return;
        };
        if let Some(value) = candidate.rejoin(self.env.unix_time()) {
            join.value = keep_anchor(Arc::clone(&value), &join.value);
            // There is no key, so nothing is written, and no caller waits for an answer.
            let now = self.env.now();
            self.core.proclaim(now, slot, value, 0);
        }
    }

    /// Replaces what a candidate announces, and answers the caller once etcd has answered.
    pub(super) fn proclaim(&mut self, slot: SlotId, said: Said, reply: Answer) {
        self.tickets += 1;
        self.proclaims.insert(self.tickets, (reply, said.serves));
        let now = self.env.now();
        self.core.proclaim(now, slot, said.value, self.tickets);
    }

    /// Replaces what a candidate announces; `None`: nothing is announced.
    pub(super) fn answer_with(
        &mut self,
        slot: SlotId,
        said: crate::error::Result<Option<Said>>,
        reply: Answer,
    ) {
        match said {
            Ok(Some(said)) => self.proclaim(slot, said, reply),
            Ok(None) => drop(reply.send(Ok(false))),
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    fn elected(&mut self, slot: SlotId, term: TermId, key: Arc<[u8]>, token: i64) {
        let Some(deadline) = self.deadlines.term() else {
            return;
        };
        if let Some(candidate) = self.candidates.get_mut(&slot) {
            let (env, pool) = (Arc::clone(&self.env), Arc::clone(&self.pool));
            self.won.push(candidate.elected(
                &self.identity,
                (slot, term),
                (env, pool),
                deadline,
                key,
                token,
            ));
        }
    }

    fn session_state(&mut self, state: action::SessionState) {
        let identity = &*self.identity;
        if let action::SessionState::Lost { reason, .. } = &state {
            metrics::lease_lost(identity, *reason);
        }
        // A lease that is no longer trusted may later turn out to be gone: that is the same loss.
        let was_lost = matches!(*self.state.borrow(), SessionState::Lost { .. });
        match state {
            action::SessionState::Lost { reason, .. } if !was_lost => {
                tracing::warn!(target: "eldest::session", identity, reason = reason.as_str(), "lease lost");
            }
            action::SessionState::Closed => {
                tracing::info!(target: "eldest::session", identity, "session closed");
            }
            _ => {
                tracing::debug!(target: "eldest::session", identity, ?state, "session state");
            }
        }
        let view = |lease| {
            let lease_deadline = self.deadlines.lease()?;
            Some(LeaseView::new(lease, lease_deadline, Arc::clone(&self.env)))
        };
        let Some(state) = state.try_map(view) else {
            return;
        };
        self.closed = matches!(state, SessionState::Closed);
        self.state.send_replace(state);
        if self.closed {
            self.pool.hang_up();
            for closer in self.closers.drain(..) {
                let _ = closer.send(());
            }
        }
    }
}
