//! Carries out what the core decides.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::Driver;
use crate::error::Error;
use crate::metrics;
use crate::state::{LeaseView, SessionState};
use eldest_core::action::{Action, Condition, SlotId, TermId};

impl Driver {
    pub(super) fn act(&mut self) {
        while let Some(action) = self.machine.action() {
            match action {
                Action::Ask { request, ask } => self.io.ask(request, ask),
                Action::HangUp => self.io.hang_up(),
                Action::Watch { watch, key, prefix } => self.io.watch(watch, &key, prefix),
                Action::Unwatch { watch } => self.io.unwatch(watch),
                Action::Progress => self.io.progress(),
                Action::HangUpWatches { elsewhere } => self.io.hang_up_watches(elsewhere),
                Action::Trust { deadline, fresh } => self.trust(deadline, fresh),
                Action::Distrust => self.lease_deadlines.end(),
                Action::Proclaimed { ticket, result } => {
                    if let Some(reply) = self.proclaims.remove(&ticket) {
                        drop(reply.send(result.map_err(|t| Error::from_trouble(&t))));
                    }
                }
                // Observers have a task of their own.
                Action::Observed { .. }
                | Action::ObserveFailed { .. }
                | Action::Synced { .. }
                | Action::Unsynced { .. }
                | Action::Confirmed { .. } => {}
                Action::Session(condition) => self.condition(condition),
                Action::Note(note) => self.note(&note),
                of_candidate @ (Action::Elected { .. }
                | Action::Taken { .. }
                | Action::TermEnded { .. }
                | Action::Registered { .. }
                | Action::Standing { .. }
                | Action::Ended { .. }) => self.candidate_action(of_candidate),
            }
        }
        self.io.flush();
        let (machine, releases) = (&self.machine, &mut self.releases);
        let done = |(slot, term, reply): &mut (SlotId, TermId, oneshot::Sender<()>)| {
            reply.is_closed() || machine.is_released(*slot, *term)
        };
        for (.., reply) in releases.extract_if(.., done) {
            let _ = reply.send(());
        }
    }

    /// Tells a candidate what became of it.
    fn candidate_action(&mut self, action: Action) {
        match action {
            Action::Elected {
                slot,
                term,
                key,
                token,
            } => self.elected(slot, term, key, token),
            Action::Taken {
                member,
                partition,
                slot,
            } => {
                let candidate = self.candidates.get(&member);
                if let Some(candidate) = candidate.map(|candidate| candidate.partition(partition)) {
                    self.candidates.insert(slot, Box::new(candidate));
                }
            }
            Action::TermEnded {
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
            Action::Registered { slot } => {
                if let Some(candidate) = self.candidates.get_mut(&slot) {
                    candidate.registered(Ok(()));
                }
            }
            Action::Standing { slot, standing } => {
                if let Some(candidate) = self.candidates.get_mut(&slot) {
                    candidate.standing(&self.identity, standing);
                }
            }
            Action::Ended {
                slot,
                reason,
                trouble,
            } => {
                if let Some(candidate) = self.candidates.remove(&slot) {
                    if self.standing.get(&candidate.prefix) == Some(&slot) {
                        self.standing.remove(&candidate.prefix);
                    }
                    candidate.ended(&self.identity, reason, trouble.as_ref());
                }
            }
            // The others are no candidate's.
            _ => {}
        }
    }

    fn trust(&mut self, deadline: eldest_core::time::Time, fresh: bool) {
        let left = deadline.since(self.env.now());
        metrics::trusted(&self.identity, self.env.unix_time(), left);
        if fresh {
            self.lease_deadlines.begin(deadline);
            self.env.rewatch();
            return;
        }
        let extended = self
            .lease_deadlines
            .present()
            .is_some_and(|lease_deadline| lease_deadline.extend(deadline));
        if !extended {
            // The watchdog, or somebody's check, was faster than this renewal: what it ended stays ended.
            let now = self.env.now();
            self.machine.distrusted(now);
        }
    }

    fn elected(&mut self, slot: SlotId, term: TermId, key: Arc<[u8]>, token: i64) {
        let Some(lease_deadline) = self.lease_deadlines.present() else {
            return;
        };
        if let Some(candidate) = self.candidates.get_mut(&slot) {
            let (env, pool) = (Arc::clone(&self.env), Arc::clone(&self.pool));
            candidate.elected(
                &self.identity,
                (slot, term),
                (env, pool),
                lease_deadline,
                key,
                token,
            );
        }
    }

    fn condition(&mut self, condition: Condition) {
        let identity = &*self.identity;
        match condition {
            Condition::Lost { reason } => {
                metrics::lease_lost(identity, reason);
                tracing::warn!(target: "eldest::session", identity, reason = reason.as_str(), "lease lost");
            }
            Condition::Closed => {
                tracing::info!(target: "eldest::session", identity, "session closed");
            }
            _ => {
                tracing::debug!(target: "eldest::session", identity, ?condition, "session state");
            }
        }
        let state = match condition {
            Condition::Connecting => SessionState::Connecting,
            Condition::Ready => SessionState::Ready,
            Condition::Live { lease } => match self.lease_deadlines.present() {
                Some(lease_deadline) => {
                    SessionState::Live(LeaseView::new(lease, lease_deadline, Arc::clone(&self.env)))
                }
                None => return,
            },
            Condition::Lost { reason } => SessionState::Lost { reason },
            Condition::Closed => SessionState::Closed,
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
