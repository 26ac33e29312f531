//! Applies the user's commands to a candidate or an observer, up to the closing of the session.

use std::sync::Arc;

use super::{Machine, Slot};
use crate::action::{Action, SlotId, TermId};
use crate::candidate::{Afterwards, Candidacy, End, Manner, Phase};
use crate::facts::Reach;
use crate::lease::Closing;
use crate::reason::{EndReason, LostReason};
use crate::time::Time;
use crate::timers::Timer;
use crate::watch::Onlooker;

impl Machine {
    /// Whether that candidacy still counts as one: it has not left, and is not about to.
    pub fn stands(&self, slot: SlotId) -> bool {
        let Some(Slot::Candidate(candidate)) = self.slots.get(&slot) else {
            return false;
        };
        let stands = candidate.looks() && (candidate.wanted || candidate.own().is_some());
        // The work of partitions goes on after a member has left.
        stands || candidate.is_member()
    }

    /// Stands as a candidate.
    pub fn campaign(
        &mut self,
        now: Time,
        slot: SlotId,
        prefix: Arc<[u8]>,
        value: Arc<[u8]>,
        manner: Manner,
    ) {
        self.expire(now);
        if self.closing {
            self.out.act(Action::Ended {
                slot,
                reason: EndReason::SessionClosed,
                trouble: None,
            });
            return;
        }
        let candidate = Candidacy::new(prefix, value, manner);
        self.slots
            .insert(slot, Slot::Candidate(Box::new(candidate)));
        self.keep_lease(now);
        self.queue_join(slot, now);
        self.tell(slot);
    }

    /// Looks on.
    pub fn observe(&mut self, now: Time, slot: SlotId, prefix: Arc<[u8]>, reach: Reach) {
        self.expire(now);
        if self.closing {
            return;
        }
        let onlooker = Onlooker::new(slot, prefix, reach, now);
        self.slots.insert(slot, Slot::Onlooker(Box::new(onlooker)));
        self.watch_slot(slot);
        self.want_read(slot, now);
        self.watches.probe_later(now, &mut self.out);
    }

    /// Nobody looks on any more.
    pub fn unobserve(&mut self, slot: SlotId) {
        if matches!(self.slots.get(&slot), Some(Slot::Onlooker(_))) {
            self.forget(slot);
        }
    }

    /// The candidate gives up its place. A term that runs is not ended; it will not be followed by another.
    pub fn leave(&mut self, now: Time, slot: SlotId, reason: EndReason) {
        self.expire(now);
        self.give_up_partitions(slot, reason, now);
        let lease = self.lease.id();
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        candidate.wanted = false;
        match candidate.phase().clone() {
            Phase::Joining { request: None, .. } => {
                let uncertain = candidate.uncertain;
                let key = lease.map(|lease| candidate.key(lease));
                candidate.enter(Phase::Leaving { reason });
                match key {
                    // It may stand, or the one before it is not gone yet.
                    Some(key) if uncertain || self.removals.contains(&key) => {
                        self.remove(now, &key, None, Some(slot));
                    }
                    _ => self.finish(slot, now),
                }
            }
            Phase::Waiting { own } => {
                candidate.enter(Phase::Leaving { reason });
                self.remove(now, &own.key, Some(own.create_revision), Some(slot));
            }
            // The answer decides; until then the key may or may not stand, and nobody else may join by it.
            Phase::Joining {
                request: Some((_, lease)),
                ..
            } => {
                let key = candidate.key(lease);
                self.removals.hold(key, slot, now);
            }
            Phase::Leading { .. } | Phase::Leaving { .. } => {}
            Phase::Ending {
                own,
                term,
                reason: lost,
                cutoff,
                next: _,
            } => {
                candidate.enter(Phase::Ending {
                    own,
                    term,
                    reason: lost,
                    cutoff,
                    next: Afterwards::Leave(reason),
                });
            }
        }
        self.tell(slot);
    }

    /// The leader ends its term: resigning or stepping down (its work is done), shutting down (its work winds up), or
    /// because its work stalled.
    pub fn end_by_leader(&mut self, now: Time, slot: SlotId, term: TermId, reason: LostReason) {
        self.expire(now);
        let leaves = matches!(reason, LostReason::Resigned | LostReason::Shutdown);
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        match candidate.phase().clone() {
            Phase::Leading { term: t, .. } if t == term => {}
            // It was lost before the leader's word arrived, which still means that no other term is to follow.
            Phase::Ending {
                own,
                term: t,
                reason: lost,
                cutoff,
                next: Afterwards::Rejoin,
            } if t == term && leaves => {
                candidate.wanted = false;
                let next = Afterwards::Leave(match reason {
                    LostReason::Resigned => EndReason::Resigned,
                    _ => EndReason::Shutdown,
                });
                candidate.enter(Phase::Ending {
                    own,
                    term,
                    reason: lost,
                    cutoff,
                    next,
                });
                return;
            }
            _ => return,
        }
        candidate.wanted &= !leaves;
        let end = match reason {
            LostReason::Resigned | LostReason::SteppedDown => End::Void,
            LostReason::Stalled => End::Brief,
            _ => End::Fading,
        };
        self.end_term(slot, now, reason, end);
    }

    /// The term's work has ended, or the leadership was dropped: now its key may go.
    pub fn work_joined(&mut self, now: Time, slot: SlotId, term: TermId) {
        self.expire(now);
        let leads =
            |c: &mut Candidacy| matches!(c.phase(), Phase::Leading { term: t, .. } if *t == term);
        if self.candidate(slot).is_some_and(leads) {
            self.end_by_leader(now, slot, term, LostReason::Resigned);
        }
        let closing = self.closing;
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let Phase::Ending {
            own,
            term: ending,
            next,
            ..
        } = candidate.phase().clone()
        else {
            return;
        };
        if ending != term {
            return;
        }
        match next {
            Afterwards::Rejoin if candidate.wanted && !closing => {
                candidate.enter(Phase::Joining {
                    request: None,
                    not_before: now,
                });
                if let Some(own) = own {
                    self.remove(now, &own.key, Some(own.create_revision), Some(slot));
                } else {
                    self.queue_join(slot, now);
                }
            }
            next => {
                let reason = match next {
                    Afterwards::Leave(reason) => reason,
                    Afterwards::Rejoin if closing => EndReason::SessionClosed,
                    Afterwards::Rejoin => EndReason::Left,
                };
                candidate.enter(Phase::Leaving { reason });
                if let Some(own) = own {
                    self.remove(now, &own.key, Some(own.create_revision), Some(slot));
                } else {
                    self.leave_when_removed(slot, now);
                }
            }
        }
        self.tell(slot);
    }

    /// Whether the candidate may join again after a term: not while its node is unhealthy, or its work goes on.
    pub fn hold_back(&mut self, now: Time, slot: SlotId, held: bool) {
        self.expire(now);
        if let Some(candidate) = self.candidate(slot) {
            candidate.held = held;
            if matches!(candidate.phase(), Phase::Joining { request: None, .. }) {
                self.queue_join(slot, now);
            }
        }
    }

    /// Whether the key of that term is gone for certain.
    pub fn is_released(&self, slot: SlotId, term: TermId) -> bool {
        let Some(Slot::Candidate(candidate)) = self.slots.get(&slot) else {
            return true;
        };
        let key = self.lease.id().map(|lease| candidate.key(lease));
        match candidate.phase() {
            Phase::Leading { term: t, .. }
            | Phase::Ending {
                own: Some(_),
                term: t,
                ..
            } => *t != term,
            _ => key.is_none_or(|key| !self.removals.contains(&key)),
        }
    }

    /// The key was released before the work ended; wait for the release if it is still under way.
    pub(super) fn leave_when_removed(&mut self, slot: SlotId, now: Time) {
        let lease = self.lease.id();
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let key = lease.map(|lease| candidate.key(lease));
        let waits = key.is_some_and(|key| self.removals.wait(&key, slot));
        if !waits {
            self.finish(slot, now);
        }
    }

    /// Ends every term, leaves every election and gives the lease back.
    pub fn close(&mut self, now: Time) {
        self.expire(now);
        if self.closing {
            return;
        }
        self.closing = true;
        self.out
            .set_timer(now.after(self.config.ttl * 2), Timer::GiveUp);
        for slot in self.slot_ids() {
            match self.slots.get(&slot) {
                Some(Slot::Onlooker(_)) => self.forget(slot),
                Some(Slot::Candidate(candidate)) => match candidate.phase() {
                    Phase::Leading { .. } => {
                        self.end_term(slot, now, LostReason::SessionClosed, End::Fading);
                        self.leave(now, slot, EndReason::SessionClosed);
                    }
                    // Waiting keys go with the lease, in one request. Members' go first: the others wait for that.
                    Phase::Waiting { .. } if !candidate.is_member() => {
                        if let Some(candidate) = self.candidate(slot) {
                            candidate.enter(Phase::Leaving {
                                reason: EndReason::SessionClosed,
                            });
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

    /// While closing: when every term has ended, the lease goes, and then the session is closed.
    pub fn close_if_done(&mut self, now: Time) {
        if !self.closing {
            return;
        }
        let busy = self.slots.values().any(|slot| match slot {
            Slot::Candidate(c) => match c.phase() {
                // The former key went with its lease, unless somebody wrote over it unseen.
                Phase::Ending { own, .. } => own.is_some() || (c.former.is_some() && !c.is_owner()),
                // It waits for the work of its partitions, whose keys count by themselves.
                Phase::Leaving { .. } if c.is_member() => false,
                _ => true,
            },
            Slot::Onlooker(_) => false,
        });
        if busy || !self.removals.is_empty() {
            return;
        }
        match self.lease.close(&mut self.out) {
            Closing::Held(lease) => self.revoke(now, lease.id(), lease.ttl(), now),
            Closing::None if self.revocations.is_empty() => self.lease.closed(&mut self.out),
            Closing::Granting | Closing::None => {}
        }
    }

    /// The candidacy is over and nothing of it is left.
    pub fn finish(&mut self, slot: SlotId, now: Time) {
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let Phase::Leaving { reason } = *candidate.phase() else {
            return;
        };
        if !self.nothing_left(slot, now) {
            return;
        }
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let role = candidate.role.clone();
        let trouble = candidate.trouble.take();
        let owner = candidate.is_owner();
        let former = candidate.former.take().filter(|_| !owner);
        self.tell(slot);
        self.forget(slot);
        if let Some(former) = former {
            // It went with the lease, unless somebody wrote over it unseen: then it would block the others for ever.
            self.remove(now, &former.key, Some(former.create_revision), None);
        }
        self.out.act(Action::Ended {
            slot,
            reason,
            trouble,
        });
        self.let_go(&role, now);
        self.close_if_done(now);
    }
}
