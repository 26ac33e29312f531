//! Obtains, renews and verifies the session's lease, and decides when to stop trusting it and when to abandon it.

use std::sync::Arc;
use std::time::Duration;

use super::clock::Trust;
use super::deadlines::{Deadlines, Extended};
use super::renewal::{Lease, Next, Outcome};
use crate::action::{Action, Answer, Ask, Class, Note, RequestError, SessionState};
use crate::ids::{RequestId, SlotId};
use crate::kv::Header;
use crate::outbox::Outbox;
use crate::pause::{LONGEST_PAUSE, Pace, pause};
use crate::purpose::Purpose;
use crate::reason::LostReason;
use crate::time::Time;
use crate::timers::Timer;

/// After a lost join, the loss of a leader's key or a challenge, the lease's keys are swept once in this many verified
/// renewals.
const SWEEP_EVERY: u32 = 3;
/// After the keepalive stream was opened, the keys are swept after the first verified renewal and after this one.
const SWEEPS: u32 = 4;

/// The session's lease. Each state ends with the answer or at the time that it names.
#[derive(Debug, Clone)]
enum Holding {
    /// No candidate needed a lease yet, or the last grant failed and will be repeated.
    None {
        not_before: Time,
    },
    Granting,
    Held(Box<Lease>),
    /// Revoked for good; never left.
    Closed,
}

/// The settings of a session's lease.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseConfig {
    pub(crate) ttl: Duration,
    pub(crate) trust: Trust,
    /// How long before the deadline the lease stops being trusted.
    pub(crate) grace: Duration,
    pub(crate) request_timeout: Duration,
    /// The grace period of clean reads, if the session leads only by them.
    pub(crate) lead_grace: Option<Duration>,
}

/// The session's lease, and the state of the session that follows from it.
#[derive(Debug)]
pub(crate) struct LeaseKeeper {
    config: LeaseConfig,
    pace: Pace,
    holding: Holding,
    grant_failures: u32,
    deadlines: Deadlines,
    state: SessionState,
    /// The slot whose key was last read to verify a renewal.
    verified_slot: SlotId,
    /// The key to read if the session has no key.
    probe_key: Arc<[u8]>,
    /// True if etcd reports that the lease is gone.
    gone: bool,
    /// The number of verified renewals since an answer to a join was lost, a leader's key was removed or another session
    /// was challenged; `None` if that never happened under this lease.
    suspicion: Option<u32>,
    /// The number of verified renewals until the last sweep that follows the opening of the keepalive stream. The store
    /// may have been restored to a state in which a former key of ours exists.
    sweeps: u32,
}

impl LeaseKeeper {
    pub(crate) fn new(config: LeaseConfig, probe_key: Arc<[u8]>) -> Self {
        Self {
            config,
            pace: Pace::new(config.request_timeout),
            holding: Holding::None {
                not_before: Time::ZERO,
            },
            grant_failures: 0,
            deadlines: Deadlines::new(config.grace, config.lead_grace),
            state: SessionState::Connecting,
            verified_slot: 0,
            probe_key,
            gone: false,
            suspicion: None,
            sweeps: 0,
        }
    }

    /// Returns the lease that is held, trusted or not.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        match &self.holding {
            Holding::Held(lease) => Some(lease),
            _ => None,
        }
    }

    /// Returns the lease's id.
    pub(crate) fn id(&self) -> Option<i64> {
        self.lease().map(Lease::id)
    }

    /// Returns the id of a lease that may be trusted.
    pub(crate) fn trusted_id(&self) -> Option<i64> {
        self.deadlines.trusted().and(self.id())
    }

    /// Returns both deadlines.
    pub(crate) fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }

    /// Lends both deadlines, so that the time for which clean reads let the session lead can end. The keeper alone moves
    /// them, and ends the trust in the lease.
    pub(crate) fn deadlines_mut(&mut self) -> &mut Deadlines {
        &mut self.deadlines
    }

    /// Lets the session lead until `deadline`, by a clean read.
    pub(crate) fn lead(&mut self, now: Time, deadline: Time, out: &mut Outbox) {
        if let Some(Extended { ends, fresh }) = self.deadlines.lead(now, deadline) {
            out.set_timer(ends, Timer::Trust);
            out.act(Action::Lead { deadline, fresh });
        }
    }

    /// Grants, opens or renews, as is due. `wanted`: a candidate needs a lease. Returns the number of the read that
    /// must verify a renewal, if one is due.
    pub(crate) fn keep(
        &mut self,
        now: Time,
        wanted: impl FnOnce() -> bool,
        out: &mut Outbox,
    ) -> Option<RequestId> {
        match &mut self.holding {
            Holding::Granting | Holding::Closed => None,
            Holding::None { not_before } => {
                let not_before = *not_before;
                if !wanted() {
                    return None;
                }
                if now < not_before {
                    out.set_timer(not_before, Timer::Grant);
                    return None;
                }
                self.holding = Holding::Granting;
                let ttl = self.config.ttl;
                out.ask(Purpose::Grant { sent: now }, Ask::Grant { ttl });
                None
            }
            Holding::Held(lease) => {
                let request = out.last_id() + 1;
                let id = lease.id();
                let next = lease.start(now, request);
                if next.is_some() {
                    out.next_id();
                }
                match next {
                    Some(Next::Open) => {
                        out.ask_as(request, Purpose::Open, Ask::Open { lease: id });
                    }
                    Some(Next::Renew) => out.ask_as(request, Purpose::Renew, Ask::Renew),
                    Some(Next::Verify) | None => {}
                }
                self.set_renewal_timer(out);
                (next == Some(Next::Verify)).then_some(request)
            }
        }
    }

    fn set_renewal_timer(&self, out: &mut Outbox) {
        if let Some(at) = self.lease().and_then(Lease::next_at) {
            out.set_timer(at, Timer::Renewal);
        }
    }

    /// Takes a lease that etcd granted, requested at `sent`, and trusts it unless its time is over already.
    pub(crate) fn granted(
        &mut self,
        now: Time,
        sent: Time,
        (lease, ttl, header): (i64, Duration, Header),
        out: &mut Outbox,
    ) {
        let lease = Lease::granted(
            lease,
            ttl,
            self.config.trust,
            self.config.request_timeout,
            sent,
            header,
        );
        out.note(Note::LeaseGranted {
            lease: lease.id(),
            ttl,
        });
        debug_assert!(
            matches!(self.holding, Holding::Granting),
            "a session holds one lease at a time"
        );
        let deadline = lease.deadline();
        self.holding = Holding::Held(Box::new(lease));
        self.set_renewal_timer(out);
        self.trust(now, deadline, out);
    }

    /// Handles a failed grant without a revocation: only an answer makes a lease ours, and the id may belong to another
    /// session. A lease that was granted nevertheless has no keys and expires by itself.
    pub(crate) fn grant_failed(&mut self, now: Time, error: RequestError, out: &mut Outbox) {
        self.grant_failures += 1;
        let pause = self.pace.pause(self.grant_failures, error.class);
        let not_before = now.after(pause);
        debug_assert!(
            now < not_before || self.grant_failures == 1,
            "grants that fail again and again are paced"
        );
        self.holding = Holding::None { not_before };
        out.set_timer(not_before, Timer::Grant);
        out.note_failure("grant", &[], error);
    }

    /// Trusts the lease until `deadline`, if more than the grace period is left.
    fn trust(&mut self, now: Time, deadline: Time, out: &mut Outbox) {
        let Some(Extended { ends, fresh }) = self.deadlines.trust(now, deadline) else {
            return;
        };
        debug_assert!(
            self.keeps_margin(deadline),
            "a deadline leaves the margin and the drift of what etcd granted"
        );
        out.set_timer(ends, Timer::Trust);
        out.act(Action::Trust { deadline, fresh });
        if let Some(lease) = self.id() {
            self.set_state(SessionState::Live(lease), out);
        }
    }

    /// Returns true if the lease cannot expire before `deadline` plus a margin, counted from the sending of its last
    /// renewal.
    fn keeps_margin(&self, deadline: Time) -> bool {
        let Some(lease) = self.lease() else {
            return false;
        };
        let Trust { margin, drift_ppm } = self.config.trust;
        let drift = lease.ttl().mul_f64(f64::from(drift_ppm) / 1e6);
        let sent = lease.renewed();
        deadline <= sent || deadline.after(margin + drift) <= sent.after(lease.ttl())
    }

    /// Returns true if an unknown key may exist under this lease.
    pub(crate) fn is_suspicious(&self) -> bool {
        self.suspicion.is_some()
    }

    /// Returns true if an answer about the lease is awaited.
    pub(crate) fn awaits_answer(&self) -> bool {
        match &self.holding {
            Holding::Granting => true,
            Holding::Held(lease) => lease.next_at().is_none(),
            Holding::None { .. } | Holding::Closed => false,
        }
    }

    /// Stops trusting the lease; a verified renewal restores the trust.
    pub(crate) fn distrust(&mut self) {
        self.deadlines.distrust();
        if let Holding::Held(lease) = &mut self.holding {
            lease.doubt();
        }
    }

    /// Reports that the lease is no longer trusted. The reasons of terms must be reported before, because this cancels
    /// the remaining ones.
    pub(crate) fn report_distrust(&mut self, out: &mut Outbox) {
        debug_assert!(
            self.deadlines.trusted().is_none() && self.lease().is_none_or(Lease::is_doubted),
            "a lease that is no longer trusted is doubted until a renewal is verified"
        );
        out.act(Action::Distrust);
        let reason = LostReason::LeaseExpiring;
        self.set_state(SessionState::Lost { reason }, out);
    }

    /// Applies the answer to a renewal, or to the opening of the keepalive stream. Returns the number of the read that
    /// must verify the renewal. The lease may be gone, or another request may be due.
    pub(crate) fn renewed(
        &mut self,
        now: Time,
        request: RequestId,
        answer: Answer,
        out: &mut Outbox,
    ) -> Option<RequestId> {
        let received = out.last_id();
        let verify = received + 1;
        let Holding::Held(lease) = &mut self.holding else {
            return None;
        };
        match answer {
            Answer::Opened => {
                lease.opened(now, request);
                self.sweeps = SWEEPS;
            }
            Answer::Renewed { ttl, header } => {
                let before = lease.deadline();
                let acknowledged = lease.acknowledged(request, received, ttl, header, verify);
                debug_assert_eq!(
                    lease.deadline(),
                    before,
                    "an acknowledgement alone extends nothing"
                );
                match acknowledged {
                    (Outcome::Gone, _) => self.set_gone(),
                    (_, Some(Next::Verify)) => return Some(out.next_id()),
                    _ => {}
                }
            }
            // The answer must be about this lease: the stream of an earlier one may answer late.
            Answer::Failed(error) if error.class == Class::LeaseGone && lease.awaits(request) => {
                self.set_gone();
            }
            Answer::Failed(error) => self.renewal_failed(now, request, error, out),
            _ => {}
        }
        None
    }

    /// Records a failure of the keepalive stream, or of the read that follows a renewal on its connection.
    pub(crate) fn renewal_failed(
        &mut self,
        now: Time,
        request: RequestId,
        error: RequestError,
        out: &mut Outbox,
    ) {
        if let Holding::Held(lease) = &mut self.holding
            && lease.failed(now, request)
        {
            out.act(Action::HangUp);
            out.note(Note::RenewalFailed { error });
        }
    }

    /// Returns the slot whose key was last read to verify a renewal, so that the next read takes another one.
    pub(crate) fn verified_slot(&self) -> SlotId {
        self.verified_slot
    }

    /// Reads a key of ours that exists, a leader's or a waiting one; `chosen` is one with its slot and create revision.
    pub(crate) fn verify(
        &mut self,
        request: RequestId,
        chosen: Option<(SlotId, i64, Arc<[u8]>)>,
        out: &mut Outbox,
    ) {
        let (subject, key) = match chosen {
            Some((slot, revision, key)) => {
                self.verified_slot = slot;
                (Some((slot, revision)), key)
            }
            None => (None, Arc::clone(&self.probe_key)),
        };
        out.ask_as(request, Purpose::Verify { subject }, Ask::Verify { key });
    }

    /// Records a key that we are certainly permitted to read.
    pub(crate) fn may_read(&mut self, key: &Arc<[u8]>) {
        self.probe_key = Arc::clone(key);
    }

    /// Records that the verifying read is answered, after [`LeaseKeeper::confirm`] has judged it.
    pub(crate) fn verified(&mut self, now: Time, request: RequestId) {
        if let Holding::Held(lease) = &mut self.holding {
            lease.verified(now, request);
        }
    }

    /// Lets a linearizable answer to a request begun at `begun` verify the last acknowledgement. Returns true if it
    /// does. A lease whose renewals etcd has refused for too long counts as gone.
    pub(crate) fn confirm(
        &mut self,
        now: Time,
        begun: RequestId,
        header: Header,
        out: &mut Outbox,
    ) -> bool {
        let Holding::Held(lease) = &mut self.holding else {
            return false;
        };
        let before = lease.deadline();
        match lease.confirm(now, begun, header) {
            Outcome::Extended(deadline) => {
                debug_assert!(before <= deadline, "a deadline only moves forward");
                debug_assert!(!lease.is_doubted(), "a verified renewal ends the doubt");
                let (left, took) = (before.since(now), now.since(lease.renewed()));
                let LeaseConfig {
                    grace,
                    request_timeout,
                    ..
                } = self.config;
                // A renewal of a lease that is no longer trusted cannot be late: its terms are over.
                if self.deadlines.trusted().is_some()
                    && left < grace.saturating_add(request_timeout)
                {
                    out.note(Note::RenewedLate { left });
                }
                out.note(Note::Renewed { took });
                self.set_renewal_timer(out);
                // The count is not reset on a grant, because a lease that is lost at once must not be granted in a
                // tight loop.
                self.grant_failures = 0;
                self.trust(now, deadline, out);
                true
            }
            Outcome::Refused => {
                out.note(Note::RenewalRefused);
                self.set_renewal_timer(out);
                if self.is_hopeless(now) {
                    self.set_gone();
                }
                false
            }
            Outcome::None | Outcome::Gone => false,
        }
    }

    /// Returns true if etcd has processed and refused the renewals for a TTL. Such a lease would keep our keys, and all
    /// candidates behind them, waiting for ever, so it must be abandoned. Time without an answer of etcd does not
    /// count, because a waiting candidate keeps its seniority through that.
    fn is_hopeless(&self, now: Time) -> bool {
        if self.deadlines.trusted().is_none()
            && let Some(lease) = self.lease()
            && let Some(since) = lease.refused_since()
        {
            return now.since(since) > lease.ttl();
        }
        false
    }

    /// Counts a verified renewal: the lease's keys are swept after some of them.
    pub(crate) fn count_renewal(&mut self, out: &mut Outbox) {
        // At once, and once more after the end of the terms whose keys a restore removed.
        let mut due = matches!(self.sweeps, 1 | SWEEPS);
        self.sweeps = self.sweeps.saturating_sub(1);
        if let Some(count) = &mut self.suspicion {
            *count += 1;
            due |= count.is_multiple_of(SWEEP_EVERY);
        }
        if due && let Some(lease) = self.id() {
            out.ask(Purpose::Sweep { lease }, Ask::Sweep { lease });
        }
    }

    /// Records that an unknown key may exist under this lease: from now on its keys are swept regularly.
    pub(crate) fn suspect(&mut self) {
        self.suspicion.get_or_insert(0);
    }

    /// Requests another sweep, because the last one was not complete.
    pub(crate) fn sweep_again(&mut self) {
        self.sweeps = self.sweeps.max(1);
    }

    /// Records that the lease is gone, or must be abandoned.
    pub(crate) fn set_gone(&mut self) {
        self.gone = self.lease().is_some();
    }

    /// Returns true if the lease is gone, and its dependents are not informed yet.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Takes a lease that is gone or abandoned, and whether it was trusted. No lease is granted before
    /// [`LeaseKeeper::lost`].
    pub(crate) fn lose(&mut self, out: &mut Outbox) -> Option<(Box<Lease>, bool)> {
        self.lease()?;
        // Not `None` before the lease is revoked: a closing session would count as closed meanwhile.
        let Holding::Held(lease) = std::mem::replace(&mut self.holding, Holding::Granting) else {
            return None;
        };
        out.act(Action::HangUp);
        self.gone = false;
        self.suspicion = None;
        self.sweeps = 0;
        let trusted = self.deadlines.distrust();
        Some((lease, trusted))
    }

    /// Records that all dependents of the lease are informed of its loss: another lease may be granted.
    pub(crate) fn lost(&mut self, now: Time, lease: &Lease, reason: LostReason, out: &mut Outbox) {
        self.set_state(SessionState::Lost { reason }, out);
        debug_assert!(
            self.deadlines.trusted().is_none(),
            "a lost lease is not trusted"
        );
        debug_assert!(
            self.lease().is_none(),
            "a session holds one lease at a time"
        );
        // A lease that is lost as soon as it is granted must not be granted in a tight loop.
        if now.since(lease.renewed()) < lease.ttl() / 3 {
            self.grant_failures += 1;
        }
        let not_before = now.after(pause(self.grant_failures, LONGEST_PAUSE));
        self.holding = Holding::None { not_before };
    }

    /// Returns true if the answer to the grant is awaited.
    pub(crate) fn is_granting(&self) -> bool {
        matches!(self.holding, Holding::Granting)
    }

    /// Returns the lease to revoke, when a closing session no longer needs it. No lease is granted from now on.
    pub(crate) fn close(&mut self, out: &mut Outbox) -> Option<Box<Lease>> {
        if self.is_granting() {
            return None;
        }
        let Holding::Held(lease) = std::mem::replace(&mut self.holding, Holding::Closed) else {
            return None;
        };
        out.act(Action::HangUp);
        self.deadlines.distrust();
        Some(lease)
    }

    /// Revokes the lease of a closing session that has waited long enough. Unconfirmed deletions are completed with the
    /// lease: now if etcd can be reached, otherwise when it expires without renewals.
    pub(crate) fn give_up(&mut self, out: &mut Outbox) {
        if let Holding::Held(lease) = std::mem::replace(&mut self.holding, Holding::Closed) {
            let lease = lease.id();
            out.ask(Purpose::Revoke { lease }, Ask::Revoke { lease });
        }
        self.closed(out);
    }

    /// Reports that the session is closed.
    pub(crate) fn closed(&mut self, out: &mut Outbox) {
        self.set_state(SessionState::Closed, out);
    }

    /// Records that etcd answered.
    pub(crate) fn connected(&mut self, out: &mut Outbox) {
        if self.state == SessionState::Connecting {
            self.set_state(SessionState::Ready, out);
        }
    }

    fn set_state(&mut self, state: SessionState, out: &mut Outbox) {
        if self.state != state {
            self.state = state;
            out.act(Action::Session(state));
        }
    }
}
