//! Applies the user's commands to a candidate or an observer, up to the closing of the session.

use std::sync::Arc;

use super::{Core, Slot};
use crate::action::{CandidateAction, SlotId, TermId};
use crate::candidate::{Candidacy, CandidateConfig, End, Phase};
use crate::kv::Reach;
use crate::lease::Closing;
use crate::reason::{EndReason, LostReason};
use crate::time::Time;
use crate::timers::Timer;
use crate::watch::Onlooker;

impl Core {
    /// Returns `true` if that candidacy still counts: it has not left, and is not about to.
    pub fn stands(&self, slot: SlotId) -> bool {
        let candidate = self.slots.candidate(slot);
        candidate.is_some_and(Candidacy::stands)
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
            self.rooms.out.tell(CandidateAction::Ended {
                slot,
                reason: EndReason::SessionClosed,
                error: None,
            });
            return;
        }
        let candidate = Candidacy::new(prefix, value, config);
        self.slots
            .insert(slot, Slot::Candidate(Box::new(candidate)));
        self.watch_marks(slot, now);
        self.keep_lease(now);
        if let Some(mut seat) = self.seat(slot, now) {
            seat.queue_join();
            seat.tell();
        }
    }

    /// Replaces what the candidate announces, now and after every rejoin.
    pub fn proclaim(&mut self, now: Time, slot: SlotId, value: Arc<[u8]>, ticket: u64) {
        match self.seat(slot, now) {
            Some(mut seat) => seat.proclaim(value, ticket),
            None => self.rooms.out.answer_proclaims([ticket], false),
        }
        // Its data centre may be another one.
        self.watch_marks(slot, now);
    }

    /// Starts an observer.
    pub fn observe(&mut self, now: Time, slot: SlotId, prefix: Arc<[u8]>, reach: Reach) {
        self.expire(now);
        if self.rooms.closing {
            return;
        }
        let onlooker = Onlooker::new(slot, prefix, reach, now);
        self.slots.insert(slot, Slot::Onlooker(Box::new(onlooker)));
        self.watch_slot(slot, now);
        self.want_read(slot, now);
        self.rooms.watches.probe_later(now, &mut self.rooms.out);
    }

    /// Ends an observer.
    pub fn unobserve(&mut self, slot: SlotId) {
        if matches!(self.slots.get(&slot), Some(Slot::Onlooker(_))) {
            self.forget(slot);
        }
    }

    /// Gives up the candidate's place. A running term is not ended, but no other will follow it.
    pub fn leave(&mut self, now: Time, slot: SlotId, reason: EndReason) {
        self.expire(now);
        self.holdings(slot, now).give_up(reason);
        if let Some(mut seat) = self.seat(slot, now) {
            seat.leave(reason);
            self.finish(slot, now);
        }
    }

    /// Ends a term for its leader: by resigning or stepping down (its work is done), because its work failed or
    /// stalled, or by shutting down (its work winds up).
    pub fn end_by_leader(&mut self, now: Time, slot: SlotId, term: TermId, reason: LostReason) {
        self.expire(now);
        if let Some(mut seat) = self.seat(slot, now) {
            seat.end_by_leader(term, reason);
        }
    }

    /// Records that the term's work has ended, or the leadership was dropped: its key may go now.
    pub fn work_joined(&mut self, now: Time, slot: SlotId, term: TermId) {
        self.expire(now);
        if let Some(mut seat) = self.seat(slot, now) {
            seat.work_joined(term);
            self.finish(slot, now);
        }
    }

    /// Sets whether the candidate must not join again after a term: because its node is unhealthy, or its work
    /// continues.
    pub fn hold_back(&mut self, now: Time, slot: SlotId, held: bool) {
        self.expire(now);
        if let Some(mut seat) = self.seat(slot, now) {
            seat.hold_back(held);
        }
    }

    /// Returns `true` if the key of that term is certainly gone.
    pub fn is_released(&self, slot: SlotId, term: TermId) -> bool {
        let Some(candidate) = self.slots.candidate(slot) else {
            return true;
        };
        let key = self.rooms.lease.id().map(|lease| candidate.key(lease));
        match candidate.holds_key_of(term) {
            Some(holds) => !holds,
            None => key.is_none_or(|key| !self.rooms.removals.contains(&key)),
        }
    }

    /// Returns `true` as [`Core::is_released`] does. Otherwise a [`CandidateAction`] of this candidate follows when the
    /// key is gone.
    pub fn await_release(&mut self, slot: SlotId, term: TermId) -> bool {
        if self.is_released(slot, term) {
            return true;
        }
        // The slot waits for the deletion too, if it is under way.
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
                Some(Slot::Onlooker(_)) => self.forget(slot),
                Some(Slot::Candidate(candidate)) => match candidate.phase() {
                    Phase::Leading { .. } => {
                        if let Some(mut seat) = self.seat(slot, now) {
                            seat.end_term(LostReason::SessionClosed, End::Fading);
                        }
                        self.leave(now, slot, EndReason::SessionClosed);
                    }
                    // Waiting keys go with the lease, in one request. Members' go first: the others wait for that.
                    Phase::Waiting { .. } if !candidate.is_member() => {
                        if let Some(mut seat) = self.seat(slot, now) {
                            seat.leave_with_lease();
                        }
                        self.finish(slot, now);
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
        match self.rooms.lease.close(&mut self.rooms.out) {
            Closing::Held(lease) => self.revoke(now, lease.id(), lease.ttl(), now),
            Closing::None if self.revocations.is_empty() => {
                self.rooms.lease.closed(&mut self.rooms.out)
            }
            Closing::Granting | Closing::None => {}
        }
        debug_assert!(
            lease.is_none_or(|lease| self.revocations.contains(lease)),
            "a session that closes revokes its lease"
        );
    }

    /// The candidacy is over and nothing of it is left.
    pub(super) fn finish(&mut self, slot: SlotId, now: Time) {
        let candidate = self.slots.candidate(slot);
        let Some(reason) = candidate.and_then(Candidacy::leaving) else {
            return;
        };
        if self.rooms.removals.is_awaited_by(slot) || !self.holdings(slot, now).nothing_left() {
            return;
        }
        let Some(candidate) = self.slots.candidate_mut(slot) else {
            return;
        };
        if let Some(member) = candidate.member() {
            member.check_forgotten();
        }
        let owner = candidate.owner_of();
        let (error, former) = candidate.finish();
        self.forget(slot);
        if let Some(former) = former {
            self.remove(now, &former.key, Some(former.create_revision), None);
        }
        self.rooms.out.tell(CandidateAction::Ended {
            slot,
            reason,
            error,
        });
        if let Some((member, partition)) = owner {
            self.holdings(member, now).let_go(partition);
            self.finish(member, now);
            self.holdings(member, now).rebalance_soon();
        }
        self.close_if_done(now);
    }
}
