//! Obtains, renews and verifies the session's lease, and decides when to stop trusting it and when to give it up.

use std::sync::Arc;

use super::{Holding, Machine, Slot};
use crate::action::{Action, Answer, Ask, Class, Condition, Note, RequestId, SlotId, Trouble};
use crate::facts::Header;
use crate::lease::{Lease, Next, Outcome};
use crate::pause::{LONGEST_PAUSE, pause};
use crate::purpose::Purpose;
use crate::reason::LostReason;
use crate::time::Time;
use crate::timers::Timer;

/// After a lost join, or the loss of a leader's key, the lease's keys are swept every so many verified renewals.
const SWEEP_EVERY: u32 = 3;
/// After the keepalive stream was opened, they are swept after the first verified renewal and after this one.
const SWEEPS: u32 = 4;

impl Machine {
    /// Grants, opens, renews: whatever is due.
    pub fn keep_lease(&mut self, now: Time) {
        match &mut self.holding {
            Holding::Granting | Holding::Closed => {}
            Holding::None { not_before } => {
                let not_before = *not_before;
                if self.closing || !self.wants_lease() {
                    return;
                }
                if now < not_before {
                    self.out.set_timer(not_before, Timer::Grant);
                    return;
                }
                self.holding = Holding::Granting;
                let ttl = self.config.ttl;
                self.out
                    .ask(Purpose::Grant { sent: now }, Ask::Grant { ttl });
            }
            Holding::Held(lease) => {
                let request = self.out.last_id() + 1;
                let id = lease.id();
                if let Some(next) = lease.start(now, request) {
                    self.out.next_id();
                    match next {
                        Next::Open => {
                            self.out
                                .ask_as(request, Purpose::Open, Ask::Open { lease: id })
                        }
                        Next::Renew => self.out.ask_as(request, Purpose::Renew, Ask::Renew),
                        Next::Verify => self.verify(request),
                    }
                }
                self.set_renewal_timer();
            }
        }
    }

    pub(super) fn wants_lease(&self) -> bool {
        self.slots
            .values()
            .any(|slot| matches!(slot, Slot::Candidate(c) if c.looks()))
    }

    pub(super) fn set_renewal_timer(&mut self) {
        if let Some(at) = self.lease().and_then(Lease::next_at) {
            self.out.set_timer(at, Timer::Renewal);
        }
    }

    /// Whatever failed, nothing is revoked: only an answer makes a lease ours, and the id may be somebody else's. A lease
    /// that was granted all the same has no keys and expires by itself.
    pub(super) fn granted(&mut self, now: Time, sent: Time, answer: Answer) {
        match answer {
            Answer::Granted { lease, ttl, header } => {
                let lease = Lease::granted(
                    lease,
                    ttl,
                    self.config.trust,
                    self.config.request_timeout,
                    sent,
                    header,
                );
                self.out.note(Note::LeaseGranted {
                    lease: lease.id(),
                    ttl,
                });
                let deadline = lease.deadline();
                self.holding = Holding::Held(Box::new(lease));
                self.set_renewal_timer();
                self.trust(now, deadline);
                self.close_if_done(now);
            }
            Answer::Failed(trouble) => {
                self.grant_failures += 1;
                let pause = self.pace.pause(self.grant_failures, trouble.class);
                let not_before = now.after(pause);
                self.holding = Holding::None { not_before };
                self.out.set_timer(not_before, Timer::Grant);
                self.out.note(Note::RequestFailed {
                    what: "grant",
                    about: Arc::default(),
                    trouble: trouble.clone(),
                });
                for slot in self.slot_ids() {
                    self.refuse_if_new(slot, &trouble, now);
                }
                self.close_if_done(now);
            }
            _ => {}
        }
    }

    /// The lease may be believed in until `deadline`.
    pub(super) fn trust(&mut self, now: Time, deadline: Time) {
        if now >= deadline.before(self.config.grace) {
            return;
        }
        let fresh = self.trusted.is_none();
        self.trusted = Some(deadline);
        self.last_deadline = deadline;
        self.out
            .set_timer(deadline.before(self.config.grace), Timer::Trust);
        self.out.act(Action::Trust { deadline, fresh });
        if let Some(lease) = self.lease().map(Lease::id) {
            self.set_condition(Condition::Live { lease });
        }
        if fresh {
            for slot in self.slot_ids() {
                self.look(slot, now);
            }
        }
    }

    pub(super) fn renewed(&mut self, now: Time, request: RequestId, answer: Answer) {
        let received = self.out.last_id();
        let verify = received + 1;
        let Holding::Held(lease) = &mut self.holding else {
            return;
        };
        match answer {
            Answer::Opened => {
                lease.opened(now, request);
                self.sweeps = SWEEPS;
                self.keep_lease(now);
            }
            Answer::Renewed { ttl, header } => {
                match lease.acknowledged(request, received, ttl, header, verify) {
                    (Outcome::Gone, _) => self.lose_lease(now, LostReason::LeaseLost),
                    (_, Some(Next::Verify)) => {
                        self.out.next_id();
                        self.verify(verify);
                    }
                    _ => {}
                }
            }
            // About this lease: the stream of an earlier one may answer late.
            Answer::Failed(trouble)
                if trouble.class == Class::LeaseGone && lease.awaits(request) =>
            {
                self.lose_lease(now, LostReason::LeaseLost);
            }
            Answer::Failed(trouble) if lease.failed(now, request) => {
                self.renewal_failed(now, trouble);
            }
            _ => {}
        }
    }

    /// The keepalive stream, or the read that follows a renewal on its connection, failed.
    fn renewal_failed(&mut self, now: Time, trouble: Trouble) {
        self.out.act(Action::HangUp);
        self.out.note(Note::RenewalFailed { trouble });
        self.keep_lease(now);
    }

    /// Reads a live key of ours, another each time; leaders' keys and waiting ones alike.
    pub(super) fn verify(&mut self, request: RequestId) {
        let after = self.verified_slot;
        let chosen = self
            .slots
            .range(after + 1..)
            .chain(self.slots.range(..=after))
            .find_map(|(id, slot)| match slot {
                Slot::Candidate(c) => c
                    .own()
                    .map(|own| (*id, own.create_revision, Arc::clone(&own.key))),
                Slot::Onlooker(_) => None,
            });
        let (subject, key) = match chosen {
            Some((slot, revision, key)) => {
                self.verified_slot = slot;
                (Some((slot, revision)), key)
            }
            None => (None, Arc::clone(&self.config.probe_key)),
        };
        self.out
            .ask_as(request, Purpose::Verify { subject }, Ask::Verify { key });
    }

    /// Any linearizable answer may verify the last acknowledgement.
    pub(super) fn confirm(&mut self, now: Time, begun: RequestId, header: Header) {
        let Holding::Held(lease) = &mut self.holding else {
            return;
        };
        let before = lease.deadline();
        match lease.confirm(now, begun, header) {
            Outcome::Extended(deadline) => {
                let (left, took) = (before.since(now), now.since(lease.renewed()));
                // A renewal after the end of the belief is late for nothing: its terms are over.
                if self.trusted.is_some()
                    && left
                        < self
                            .config
                            .grace
                            .saturating_add(self.config.request_timeout)
                {
                    self.out.note(Note::RenewedLate { left });
                }
                self.out.note(Note::Renewed { took });
                self.set_renewal_timer();
                // Not when it was granted: one that is lost at once must not be granted in a tight loop.
                self.grant_failures = 0;
                self.trust(now, deadline);
                self.count_renewal();
                self.check_unwatched();
            }
            Outcome::Refused => {
                self.out.note(Note::RenewalRefused);
                self.set_renewal_timer();
                self.abandon_if_hopeless(now);
            }
            Outcome::None | Outcome::Gone => {}
        }
    }

    pub(super) fn verified(
        &mut self,
        now: Time,
        request: RequestId,
        subject: Option<(SlotId, i64)>,
        answer: Answer,
    ) {
        match answer {
            Answer::Read { header, entry } => {
                if let Holding::Held(lease) = &mut self.holding {
                    lease.verified(now, request);
                }
                self.keep_lease(now);
                if let Some((slot, create_revision)) = subject {
                    self.own_key_read(slot, create_revision, entry.as_ref(), now);
                }
                self.compare_stream(now, header.revision);
            }
            Answer::Failed(trouble) => {
                if let Holding::Held(lease) = &mut self.holding
                    && lease.failed(now, request)
                {
                    self.renewal_failed(now, trouble);
                }
            }
            _ => {}
        }
    }

    /// A lease whose renewals are done and always refused would keep our keys, and so everybody behind them, waiting
    /// for ever: let it go after a TTL of that. Time in which etcd was not heard does not count, for whoever waits
    /// keeps its seniority through that.
    fn abandon_if_hopeless(&mut self, now: Time) {
        if self.trusted.is_none()
            && let Some(lease) = self.lease()
            && let Some(since) = lease.refused_since()
            && now.since(since) > lease.ttl()
        {
            self.lose_lease(now, LostReason::LeaseLost);
        }
    }

    /// The lease is gone, or given up: its keys with it.
    pub fn lose_lease(&mut self, now: Time, reason: LostReason) {
        if self.lease().is_none() {
            return;
        }
        // Not `None` before it is revoked: a closing session would count as closed meanwhile.
        let Holding::Held(lease) = std::mem::replace(&mut self.holding, Holding::Granting) else {
            return;
        };
        self.out.act(Action::HangUp);
        self.suspicion = None;
        self.sweeps = 0;
        let trusted = self.trusted.take().is_some();
        for slot in self.slot_ids() {
            self.lease_lost(slot, reason, now);
        }
        if trusted {
            self.out.act(Action::Distrust);
        }
        let waiting = self.removals.lease_lost();
        self.release_waiting(waiting, now);
        // etcd may not know yet that it is gone, and an abandoned one lives on: nothing of it may stay behind.
        // If it has it after all, as a restored store does, its keys stay for as long as work may go on under them.
        let working = |slot: &Slot| matches!(slot, Slot::Candidate(c) if c.is_ending());
        let not_before = if self.slots.values().any(working) {
            now.after(self.config.grace)
        } else {
            now
        };
        self.revoke(now, lease.id(), lease.ttl(), not_before);
        self.set_condition(Condition::Lost { reason });
        // A lease that is lost as soon as it is granted must not be granted in a tight loop.
        if now.since(lease.renewed()) < lease.ttl() / 3 {
            self.grant_failures += 1;
        }
        let not_before = now.after(pause(self.grant_failures, LONGEST_PAUSE));
        self.holding = Holding::None { not_before };
        self.keep_lease(now);
    }

    pub(super) fn count_renewal(&mut self) {
        // At once, and once more when the terms have ended whose keys a restore took away.
        let mut due = matches!(self.sweeps, 1 | SWEEPS);
        self.sweeps = self.sweeps.saturating_sub(1);
        if let Some(count) = &mut self.suspicion {
            *count += 1;
            due |= count.is_multiple_of(SWEEP_EVERY);
        }
        if due && let Some(lease) = self.lease().map(Lease::id) {
            self.out.ask(Purpose::Sweep { lease }, Ask::Sweep { lease });
        }
    }
}
