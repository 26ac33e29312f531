//! Turns a candidate's place in the queue into leadership, and ends terms.

use std::sync::Arc;
use std::time::Duration;

use super::Core;
use crate::action::{CandidateAction, Note};
use crate::candidate::{Candidacy, End, KeyLost, LeaseLost, Look, Turn};
use crate::evacuation::APART;
use crate::ids::SlotId;
use crate::kv::Entry;
use crate::queue::{Fate, Own};
use crate::reason::LostReason;
use crate::time::Time;
use crate::timers::Timer;

/// How late a task may be that drops work at its deadline, before the key goes all the same.
const MOST_LATE: Duration = Duration::from_millis(250);

impl Core {
    /// Looks again at where the candidate stands; what is missing is asked for.
    pub(super) fn look(&mut self, slot: SlotId, now: Time) {
        self.give_way(slot, now);
        let may_lead = self.lease.trusted().is_some();
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let decided = candidate.look(may_lead);
        debug_assert!(
            candidate.is_current() || !matches!(decided, Look::Lead(_) | Look::Lost(_)),
            "a view with a gap decides nothing"
        );
        match decided {
            Look::Nothing => {}
            Look::Join => self.queue_join(slot, now),
            Look::Lead(own) => self.lead(slot, own, now),
            Look::Lost(fate) => self.key_lost(slot, fate, now),
        }
        self.follow_if_long(slot);
        self.watch_slot(slot);
        self.want_read(slot, now);
        self.tell(slot);
        self.rebalance_soon(slot, now);
    }

    pub(super) fn tell(&mut self, slot: SlotId) {
        if let Some(key) = self.candidate(slot).and_then(Candidacy::blocked) {
            self.out.note(Note::Blocked { slot, key });
        }
        if let Some(status) = self.candidate(slot).and_then(Candidacy::news) {
            self.out.tell(CandidateAction::Status { slot, status });
        }
    }

    pub(super) fn lead(&mut self, slot: SlotId, own: Own, now: Time) {
        self.check_lead(slot, &own, now);
        let term = self.out.next_id();
        let key = Arc::clone(&own.key);
        // The lead has just moved for a mark, so far as is known: it does not move for the next one at once.
        let stays = self.evacuation.changed_lately(now);
        let turn = self.candidate(slot).map(|c| {
            if stays {
                c.stay_until(now.after(APART));
            }
            c.lead(own, term)
        });
        if let Some(Turn::Elected { term, token }) = turn {
            self.out.tell(CandidateAction::Elected {
                slot,
                term,
                key,
                token,
            });
        }
    }

    /// Ends the slot's term, if it leads.
    pub(super) fn end_term(&mut self, slot: SlotId, now: Time, reason: LostReason, end: End) {
        let cutoff = match end {
            End::Fading => self.lease.last_deadline(),
            // No later than the deadline: the belief, and with it every term, ends that long before it.
            End::Brief | End::Void => now.after(self.config.grace),
        };
        let closing = self.closing;
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let turn = candidate.end_term(reason, cutoff, closing);
        if turn != Turn::None {
            let release = self.release_at(cutoff);
            debug_assert!(
                cutoff <= self.lease.last_deadline(),
                "no work goes on beyond the deadline of its term"
            );
            debug_assert!(
                release <= cutoff.after(self.config.trust.margin),
                "a key is released while etcd keeps it for certain"
            );
            self.out.set_timer(release, Timer::Slot(slot));
            self.tell_term_ended(slot, turn, end != End::Void);
            self.tell(slot);
        }
    }

    fn tell_term_ended(&mut self, slot: SlotId, turn: Turn, valid: bool) {
        if let Turn::TermEnded {
            term,
            reason,
            cutoff,
        } = turn
        {
            self.out.tell(CandidateAction::TermEnded {
                slot,
                term,
                reason,
                cutoff,
                valid,
            });
        }
    }

    /// When the key goes although its work goes on: a little after that work was dropped at `cutoff` by another task,
    /// and still within the margin that etcd keeps the key for.
    pub(super) fn release_at(&self, cutoff: Time) -> Time {
        cutoff.after((self.config.trust.margin / 2).min(MOST_LATE))
    }

    /// Our key is gone, or no longer ours.
    pub(super) fn key_lost(&mut self, slot: SlotId, fate: Fate, now: Time) {
        if fate == Fate::Ours {
            return;
        }
        let suspicious = |c: &mut Candidacy| c.is_suspicious(fate);
        if self.candidate(slot).is_some_and(suspicious) {
            self.lease.suspect();
        }
        debug_assert!(
            self.lease.is_suspicious() || !self.candidate(slot).is_some_and(suspicious),
            "after a leader's key was taken away, the lease's keys are swept"
        );
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        match candidate.key_lost(fate, now) {
            KeyLost::Nothing => {}
            KeyLost::EndTerm(reason) => self.end_term(slot, now, reason, End::Void),
            KeyLost::Rejoin(Some(own)) => {
                self.remove(now, &own.key, Some(own.create_revision), Some(slot));
            }
            KeyLost::Rejoin(None) => self.queue_join(slot, now),
            KeyLost::Void(turn) => {
                self.tell_term_ended(slot, turn, false);
                self.close_if_done(now);
            }
        }
        debug_assert!(
            fate != Fate::Gone || self.own(slot).is_none(),
            "nobody acts by a key that is gone"
        );
        self.tell(slot);
    }

    /// The lease is gone, and this candidate's key with it.
    pub(super) fn lease_lost(&mut self, slot: SlotId, reason: LostReason, now: Time) {
        if let Some(candidate) = self.candidate(slot) {
            candidate.remember_former();
        }
        self.end_term(slot, now, reason, End::Void);
        match self.candidate(slot).map(|c| c.lease_lost(now)) {
            Some(LeaseLost::Nothing) => {}
            Some(LeaseLost::Finish) => self.finish(slot, now),
            Some(LeaseLost::Void(turn)) => self.tell_term_ended(slot, turn, false),
            None => return,
        }
        self.check_lease_lost(slot);
        self.tell(slot);
    }

    /// Applies the result of a read of one of our keys.
    pub(super) fn own_key_read(
        &mut self,
        slot: SlotId,
        create_revision: i64,
        entry: Option<&Entry>,
        now: Time,
    ) {
        let own = self.candidate(slot).and_then(|c| c.own().cloned());
        if let Some(own) = own.filter(|own| own.create_revision == create_revision) {
            self.key_lost(slot, own.read(entry), now);
        }
    }
}
