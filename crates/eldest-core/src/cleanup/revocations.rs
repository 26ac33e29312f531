//! Revokes leases, and retries until etcd confirms it or the leases have expired.

use std::time::Duration;

use crate::action::{Answer, Ask, Class, RequestError};
use crate::ids::RequestId;
use crate::outbox::Outbox;
use crate::pause::Pace;
use crate::purpose::Purpose;
use crate::time::Time;
use crate::timers::Timer;

/// A lease that must go. It expires by itself at `until`; after that no request is needed.
#[derive(Debug, Clone)]
struct Revocation {
    lease: i64,
    request: Option<RequestId>,
    failures: u32,
    not_before: Time,
    until: Time,
}

/// The leases that must go.
#[derive(Debug)]
pub(crate) struct Revocations {
    leases: Vec<Revocation>,
    pace: Pace,
}

impl Revocations {
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            leases: Vec::new(),
            pace,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Returns true if that lease must go.
    pub(crate) fn contains(&self, lease: i64) -> bool {
        self.leases.iter().any(|r| r.lease == lease)
    }

    /// Returns true if the answer to a revocation is awaited.
    pub(crate) fn await_answer(&self) -> bool {
        self.leases.iter().any(|r| r.request.is_some())
    }

    /// Adds a lease that must go, from `not_before` on. Without a revocation, it expires a TTL later.
    pub(crate) fn add(
        &mut self,
        now: Time,
        (lease, ttl): (i64, Duration),
        not_before: Time,
        out: &mut Outbox,
    ) {
        let until = now.after(ttl * 2);
        out.set_timer(not_before, Timer::Revocations);
        self.leases.push(Revocation {
            lease,
            request: None,
            failures: 0,
            not_before,
            until,
        });
        self.start(now, out);
    }

    /// Sends the revocations that are due.
    pub(crate) fn start(&mut self, now: Time, out: &mut Outbox) {
        self.leases.retain(|r| r.request.is_some() || now < r.until);
        for revocation in &mut self.leases {
            if revocation.request.is_none() && now >= revocation.not_before {
                debug_assert!(
                    now < revocation.until,
                    "a lease that has expired by itself is not revoked"
                );
                let lease = revocation.lease;
                let request = out.ask(Purpose::Revoke { lease }, Ask::Revoke { lease });
                revocation.request = Some(request);
            }
        }
    }

    /// Handles the answer to a revocation.
    pub(crate) fn answered(&mut self, now: Time, lease: i64, answer: Answer, out: &mut Outbox) {
        match answer {
            Answer::Failed(error) if error.class != Class::LeaseGone => {
                self.retry(now, lease, error, out);
            }
            _ => self.leases.retain(|r| r.lease != lease),
        }
    }

    fn retry(&mut self, now: Time, lease: i64, error: RequestError, out: &mut Outbox) {
        let Some(revocation) = self.leases.iter_mut().find(|r| r.lease == lease) else {
            return;
        };
        debug_assert_ne!(
            error.class,
            Class::LeaseGone,
            "a lease that is gone is not revoked again"
        );
        revocation.failures += 1;
        revocation.request = None;
        let pause = self.pace.pause(revocation.failures, error.class);
        let not_before = now.after(pause);
        revocation.not_before = not_before;
        out.set_timer(not_before, Timer::Revocations);
        out.note_failure("revoke", &[], error);
    }
}
