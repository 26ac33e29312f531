//! Handles the user's commands, external changes of the lease, and the messages of the watch stream.

use std::sync::Arc;

use super::{Core, Slot};
use crate::action::{CandidateAction, FinalState, Note, RequestError, SlotId, TermId, WatchId};
use crate::candidate::{Candidacy, CandidateConfig, End, Phase};
use crate::cleanup::Parting;
use crate::kv::{Change, Header, Reach};
use crate::reason::{EndReason, LostReason};
use crate::time::Time;
use crate::timers::Timer;
use crate::watch::Observer;

impl Core {
    /// Returns `true` if that candidacy still counts: it has not left, and is not about to.
    pub fn is_candidate(&self, slot: SlotId) -> bool {
        let candidate = self.slots.candidate(slot);
        candidate.is_some_and(Candidacy::is_candidate)
    }

    /// Starts a candidacy.
    pub fn campaign(
        &mut self,
        now: Time,
        slot: SlotId,
        prefix: Arc<[u8]>,
        value: Arc<[u8]>,
        config: CandidateConfig,
    ) {
        self.expire(now);
        if self.rooms.closing {
            self.rooms.out.notify_candidate(CandidateAction::Ended {
                slot,
                reason: EndReason::SessionClosed,
                error: None,
            });
            return;
        }
        let candidate = Candidacy::new(prefix, value, config);
        self.slots
            .insert(slot, Slot::Candidate(Box::new(candidate)));
        self.hall(now).watch_marks(slot);
        self.tenure(now).keep_lease();
        if let Some(mut seat) = self.hall(now).seat(slot) {
            seat.queue_join();
            seat.report_status();
        }
    }

    /// Replaces what the candidate announces, now and after every rejoin.
    pub fn proclaim(&mut self, now: Time, slot: SlotId, value: Arc<[u8]>, ticket: u64) {
        match self.hall(now).seat(slot) {
            Some(mut seat) => seat.proclaim(value, ticket),
            None => self.rooms.out.answer_proclaims([ticket], false),
        }
        // The new announcement may name another data centre.
        self.hall(now).watch_marks(slot);
        self.close_if_done(now);
    }

    /// Starts an observer.
    pub fn observe(&mut self, now: Time, slot: SlotId, prefix: Arc<[u8]>, reach: Reach) {
        self.expire(now);
        if self.rooms.closing {
            return;
        }
        let observer = Observer::new(slot, prefix, reach, now);
        self.slots.insert(slot, Slot::Observer(Box::new(observer)));
        self.hall(now).watch_slot(slot);
        self.hall(now).want_read(slot);
        self.rooms.watches.probe_later(now, &mut self.rooms.out);
    }

    /// Ends an observer.
    pub fn unobserve(&mut self, slot: SlotId) {
        if matches!(self.slots.get(&slot), Some(Slot::Observer(_))) {
            self.rooms.forget(&mut self.slots, slot);
        }
    }

    /// Gives up the candidate's place. A running term does not end, but no other will follow it.
    pub fn leave(&mut self, now: Time, slot: SlotId, reason: EndReason) {
        self.expire(now);
        self.hall(now).holdings(slot).give_up(reason);
        if let Some(mut seat) = self.hall(now).seat(slot) {
            seat.leave(reason);
            if self.hall(now).finish(slot) {
                self.close_if_done(now);
            }
        }
    }

    /// Ends a term for its leader: by resigning or stepping down (its work is done), because its work failed,
    /// stalled or does not serve, or by shutting down (its work winds up).
    pub fn end_by_leader(&mut self, now: Time, slot: SlotId, term: TermId, reason: LostReason) {
        self.expire(now);
        if let Some(mut seat) = self.hall(now).seat(slot) {
            seat.end_by_leader(term, reason);
        }
    }

    /// Records that the term's work has ended, or the leadership was dropped: its key may go now. The transaction that
    /// deletes the key saves `state`, and an [`Action::Left`](crate::action::Action::Left) reports the outcome.
    pub fn work_joined(
        &mut self,
        now: Time,
        slot: SlotId,
        term: TermId,
        mut state: Option<FinalState>,
    ) {
        self.expire(now);
        if let Some(mut seat) = self.hall(now).seat(slot) {
            seat.work_joined(term, &mut state);
            if self.hall(now).finish(slot) {
                self.close_if_done(now);
            }
        }
        if state.is_some() {
            self.rooms.out.act(Parting::came_late(term));
        }
    }

    /// Sets whether the candidate must not join again after a term: because its node is unhealthy, or its work
    /// continues.
    pub fn hold_back(&mut self, now: Time, slot: SlotId, held: bool) {
        self.expire(now);
        if let Some(mut seat) = self.hall(now).seat(slot) {
            seat.hold_back(held);
        }
    }

    /// Returns `true` if the key of that term is certainly gone.
    pub fn is_released(&self, slot: SlotId, term: TermId) -> bool {
        let Some(candidate) = self.slots.candidate(slot) else {
            return true;
        };
        let key = self.rooms.lease.id().map(|lease| candidate.key(lease));
        match candidate.phase() {
            Phase::Leading { term: present, .. }
            | Phase::Ending {
                own: Some(_),
                term: present,
                ..
            } => *present != term,
            _ => key.is_none_or(|key| !self.rooms.removals.contains(&key)),
        }
    }

    /// Returns `true` as [`Core::is_released`] does. Otherwise a [`CandidateAction`] of this candidate follows when the
    /// key is gone.
    pub fn await_release(&mut self, slot: SlotId, term: TermId) -> bool {
        if self.is_released(slot, term) {
            return true;
        }
        // The slot also waits for the deletion, if it is in flight.
        let lease = self.rooms.lease.id();
        if let Some((candidate, lease)) = self.slots.candidate_mut(slot).zip(lease) {
            let key = candidate.key(lease);
            self.rooms.removals.wait(&key, slot);
        }
        false
    }

    /// Ends every term, leaves every election and revokes the lease.
    pub fn close(&mut self, now: Time) {
        self.expire(now);
        if self.rooms.closing {
            return;
        }
        self.rooms.closing = true;
        self.rooms
            .out
            .set_timer(now.after(self.rooms.config.ttl * 2), Timer::GiveUp);
        for slot in self.slots.ids() {
            match self.slots.get_mut(&slot) {
                Some(Slot::Observer(_)) => self.rooms.forget(&mut self.slots, slot),
                Some(Slot::Candidate(candidate)) => match candidate.phase() {
                    Phase::Leading { .. } => {
                        if let Some(mut seat) = self.hall(now).seat(slot) {
                            seat.end_term(LostReason::SessionClosed, End::Fading);
                        }
                        self.leave(now, slot, EndReason::SessionClosed);
                    }
                    // Waiting keys go with the lease, in one request. Members' keys go first, because other members
                    // wait for that.
                    Phase::Waiting { .. } if !candidate.is_member() => {
                        if let Some(mut seat) = self.hall(now).seat(slot) {
                            seat.leave_with_lease();
                        }
                        if self.hall(now).finish(slot) {
                            self.close_if_done(now);
                        }
                    }
                    _ => self.leave(now, slot, EndReason::SessionClosed),
                },
                None => {}
            }
        }
        self.close_if_done(now);
    }

    /// Revokes the lease of a closing session when every term has ended, and then closes the session.
    pub(super) fn close_if_done(&mut self, now: Time) {
        self.tenure(now).withdraw_if_done();
        if !self.rooms.closing {
            return;
        }
        let mut candidates = self.slots.values().filter_map(Slot::candidate);
        let busy = candidates.any(Candidacy::needs_lease);
        if busy || !self.rooms.removals.is_empty() {
            return;
        }
        debug_assert!(
            self.rooms.removals.is_empty(),
            "a session closes when its keys are gone"
        );
        debug_assert!(
            self.candidates().all(|(_, c)| c.own().is_none()),
            "a session closes when nobody acts by its keys"
        );
        let lease = self.rooms.lease.id();
        if let Some(lease) = self.rooms.lease.close(&mut self.rooms.out) {
            let (out, lost) = (&mut self.rooms.out, (lease.id(), lease.ttl()));
            self.revocations.add(now, lost, now, out);
        } else if self.revocations.is_empty() && !self.rooms.lease.is_granting() {
            self.rooms.lease.closed(&mut self.rooms.out);
        }
        debug_assert!(
            lease.is_none_or(|lease| self.revocations.contains(lease)),
            "a session that closes revokes its lease"
        );
    }

    /// Holds a lease from now on, even without a candidate, and replaces it when it is lost.
    pub fn always_keep_lease(&mut self, now: Time) {
        self.expire(now);
        self.keeps_lease = true;
        self.tenure(now).keep_lease();
    }

    /// Ends the terms whose time has come; called before any other input is handled.
    pub(super) fn expire(&mut self, now: Time) {
        self.tenure(now).expire();
    }

    /// Records that the watchdog, or a check past the deadline, stopped trusting the lease first.
    pub fn distrusted(&mut self, now: Time) {
        if self.rooms.lease.deadlines().trusted().is_some() {
            self.tenure(now).distrust();
        }
    }

    /// Records that etcd created the watch: every change after the header's revision follows.
    pub fn watch_created(&mut self, now: Time, watch: WatchId, header: Header) {
        self.expire(now);
        self.hall(now).created(watch, header);
        self.close_if_done(now);
    }

    /// Applies events of one watch, in order, from a member in that raft term.
    pub fn watch_events(&mut self, now: Time, watch: WatchId, term: u64, changes: Vec<Change>) {
        self.expire(now);
        self.hall(now).events(watch, term, changes);
        self.close_if_done(now);
    }

    /// Records that every watch of the stream has delivered everything up to the header's revision.
    pub fn watch_progress(&mut self, header: Header) {
        self.rooms.watches.progress(header, &mut self.rooms.out);
    }

    /// Opens the stream again, because it broke for the given reason, or without one because the session moved to another
    /// endpoint on purpose.
    pub fn watch_lost(&mut self, now: Time, why: Option<String>) {
        self.expire(now);
        if let Some(why) = why {
            self.rooms.out.note(Note::WatchLost { why });
        }
        self.hall(now).restart_watches(false);
    }

    /// Handles etcd's refusal to create this watch.
    pub fn watch_refused(&mut self, now: Time, watch: WatchId, error: RequestError) {
        self.expire(now);
        self.hall(now).refused(watch, error);
    }

    /// Handles the end of one watch. etcd cancels watches that are so far behind that their next changes were
    /// compacted.
    pub fn watch_canceled(&mut self, now: Time, watch: WatchId, reason: String) {
        self.expire(now);
        self.hall(now).canceled(watch, reason);
    }
}
