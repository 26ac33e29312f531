//! Schedules the renewals of a lease: one is in flight at a time, each one is verified, and a broken keepalive stream
//! is reopened at once.

use std::time::Duration;

use super::clock::{LeaseClock, Step, Trust, Verdict};
use crate::ids::RequestId;
use crate::kv::Header;
use crate::pause::pause;
use crate::time::Time;

/// The keepalive stream. Each state ends with the answer that it waits for, or at its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// There is no stream; left at `next_at`.
    Closed,
    /// Left when the stream is open or failed.
    Opening(RequestId),
    /// The stream is open; left at `next_at`.
    Idle,
    /// Left by the acknowledgement, or its failure.
    Renewing { request: RequestId, sent: Time },
    /// Left by the linearizable read, or its failure.
    Verifying { request: RequestId },
    /// There is no stream; a read checks whether etcd answers. Left by its answer, or its failure.
    Sounding(RequestId),
}

/// The next request to etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Open the keepalive stream.
    Open,
    /// Send the renewal.
    Renew,
    /// Verify the renewal.
    Verify,
}

/// The result of an acknowledgement or its verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to report.
    None,
    /// The lease is trusted until this time.
    Extended(Time),
    /// The acknowledgement did not count; retry at once, and with pauses after several refusals.
    Refused,
    /// etcd reports that the lease is gone.
    Gone,
}

/// A lease that etcd granted.
#[derive(Debug, Clone)]
pub struct Lease {
    id: i64,
    ttl: Duration,
    request_timeout: Duration,
    clock: LeaseClock,
    link: Link,
    next_at: Time,
    renewed: Time,
    failures: u32,
    refusals: u32,
    /// The time since which etcd answers and every renewal is refused.
    refused_since: Option<Time>,
    /// True if the lease is not trusted: it is then renewed only after an answer of etcd. Renewals that arrive without
    /// any answer would keep our keys in the queue, and all candidates behind them waiting, for as long as the network
    /// is broken.
    doubted: bool,
    /// True if a read was answered since the last failure.
    heard: bool,
}

/// How many refusals in a row are retried at once. Later ones are paced, so that a cluster with racing raft terms is
/// not flooded.
const QUICK_REFUSALS: u32 = 3;

impl Lease {
    /// Makes the state of a new grant, requested at `sent`.
    pub fn granted(
        id: i64,
        ttl: Duration,
        trust: Trust,
        request_timeout: Duration,
        sent: Time,
        header: Header,
    ) -> Self {
        Self {
            id,
            ttl,
            request_timeout,
            clock: LeaseClock::granted(trust, sent, ttl, header),
            link: Link::Closed,
            next_at: sent.after(ttl / 3),
            renewed: sent,
            failures: 0,
            refusals: 0,
            refused_since: None,
            doubted: false,
            heard: false,
        }
    }

    /// Returns the lease's id.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Returns the time to live that etcd chose.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the time until which the lease may be trusted.
    pub fn deadline(&self) -> Time {
        self.clock.deadline()
    }

    /// Returns when the last renewal that counts was sent.
    pub fn renewed(&self) -> Time {
        self.renewed
    }

    /// Returns when the next request is due, unless an answer is awaited.
    pub fn next_at(&self) -> Option<Time> {
        matches!(self.link, Link::Closed | Link::Idle).then_some(self.next_at)
    }

    /// Starts the due request, under the number `request`.
    pub fn start(&mut self, now: Time, request: RequestId) -> Option<Next> {
        if now < self.next_at {
            return None;
        }
        match self.link {
            Link::Closed if self.doubted && !self.heard => {
                self.link = Link::Sounding(request);
                Some(Next::Verify)
            }
            Link::Closed => {
                debug_assert!(
                    self.heard || !self.doubted,
                    "a doubted lease is renewed only after etcd has answered"
                );
                self.link = Link::Opening(request);
                Some(Next::Open)
            }
            Link::Idle => {
                self.link = Link::Renewing { request, sent: now };
                Some(Next::Renew)
            }
            _ => None,
        }
    }

    /// Records that the stream is open. The lease is renewed at once, because the client drops the stream's first
    /// answer.
    pub fn opened(&mut self, now: Time, request: RequestId) {
        if self.link == Link::Opening(request) {
            self.link = Link::Idle;
            self.next_at = now;
        }
    }

    /// Records an acknowledgement; `verify` is the id of the read that follows it.
    pub fn acknowledged(
        &mut self,
        request: RequestId,
        received: Step,
        ttl: Duration,
        header: Header,
        verify: RequestId,
    ) -> (Outcome, Option<Next>) {
        let Link::Renewing {
            request: awaited,
            sent,
        } = self.link
        else {
            return (Outcome::None, None);
        };
        if awaited != request {
            return (Outcome::None, None);
        }
        if ttl.is_zero() {
            self.link = Link::Closed;
            return (Outcome::Gone, None);
        }
        debug_assert_eq!(
            request, awaited,
            "an acknowledgement counts for its own renewal"
        );
        debug_assert!(!ttl.is_zero(), "a lease without a TTL is gone");
        self.clock.acknowledged(received, sent, ttl, header);
        self.renewed = sent;
        self.link = Link::Verifying { request: verify };
        (Outcome::None, Some(Next::Verify))
    }

    /// Lets a linearizable answer to a request begun at `begun` verify the last acknowledgement.
    pub fn confirm(&mut self, now: Time, begun: Step, header: Header) -> Outcome {
        match self.clock.confirm(begun, header) {
            Verdict::Nothing => Outcome::None,
            Verdict::Accepted(deadline) => {
                self.failures = 0;
                self.refusals = 0;
                self.refused_since = None;
                self.doubted = false;
                self.next_at = self.renewed.after(self.ttl / 3).max(now);
                Outcome::Extended(deadline)
            }
            Verdict::Refused => {
                self.refusals += 1;
                self.refused_since.get_or_insert(now);
                self.next_at = if self.refusals <= QUICK_REFUSALS {
                    now
                } else {
                    now.after(self.request_timeout / 2)
                };
                debug_assert!(
                    self.next_at <= now.after(self.request_timeout / 2),
                    "a refused renewal is repeated soon"
                );
                debug_assert!(
                    now < self.next_at || QUICK_REFUSALS >= self.refusals,
                    "renewals that are refused again and again are paced"
                );
                Outcome::Refused
            }
        }
    }

    /// Records that the verifying read is answered, after [`Lease::confirm`] has judged it.
    pub fn verified(&mut self, now: Time, request: RequestId) {
        if self.link == (Link::Verifying { request }) {
            self.link = Link::Idle;
        } else if self.link == Link::Sounding(request) {
            self.link = Link::Closed;
            self.heard = true;
            self.next_at = now;
        }
    }

    /// Stops trusting this lease; a verified renewal restores the trust.
    pub fn doubt(&mut self) {
        self.doubted = true;
        self.heard = false;
    }

    /// Returns true if the trust in the lease has ended, and no renewal was verified since.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted
    }

    /// Returns the time since which etcd answers and every renewal is refused.
    pub fn refused_since(&self) -> Option<Time> {
        self.refused_since
    }

    /// Returns true if this lease waits for the answer to `request`.
    pub fn awaits(&self, request: RequestId) -> bool {
        match self.link {
            Link::Opening(r)
            | Link::Renewing { request: r, .. }
            | Link::Verifying { request: r }
            | Link::Sounding(r) => r == request,
            Link::Closed | Link::Idle => false,
        }
    }

    /// Handles a failure of the stream or the read: reopens the stream at another endpoint, at once and then ever more
    /// slowly. Returns whether the stream must be dropped.
    pub fn failed(&mut self, now: Time, request: RequestId) -> bool {
        if !self.awaits(request) {
            return false;
        }
        debug_assert!(
            self.awaits(request),
            "only the failure of the request under way breaks the stream"
        );
        self.link = Link::Closed;
        self.heard = false;
        self.refused_since = None;
        self.failures += 1;
        self.next_at = now.after(pause(self.failures, self.request_timeout));
        debug_assert!(
            now < self.next_at || self.failures == 1,
            "a stream that fails again and again is paced"
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(6);
    const TIMEOUT: Duration = Duration::from_millis(300);
    /// A renewal of the session's former lease, whose answer may still arrive.
    const FORMER: RequestId = 7;
    const OPEN: RequestId = 20;
    const RENEWAL: RequestId = 21;
    const VERIFY: RequestId = 30;
    const HEADER: Header = Header {
        cluster: 1,
        member: 1,
        revision: 1,
        term: 3,
    };

    /// Makes a lease that awaits the acknowledgement of [`RENEWAL`]; returns the sending time as well.
    fn renewing() -> (Lease, Time) {
        let trust = Trust {
            margin: TIMEOUT,
            drift_ppm: 1000,
        };
        let mut lease = Lease::granted(1, TTL, trust, TIMEOUT, Time::ZERO, HEADER);
        let now = Time::ZERO.after(TTL / 3);
        assert_eq!(lease.start(now, OPEN), Some(Next::Open));
        lease.opened(now, OPEN);
        assert_eq!(lease.start(now, RENEWAL), Some(Next::Renew));
        (lease, now)
    }

    /// Checks that the acknowledgement of the renewal counts, and that its verification moves the deadline.
    fn check_renewal_counts((mut lease, sent): (Lease, Time)) {
        let before = lease.deadline();
        let (_, next) = lease.acknowledged(RENEWAL, VERIFY - 1, TTL, HEADER, VERIFY);
        assert_eq!(next, Some(Next::Verify));
        let extended = lease.confirm(sent, VERIFY, HEADER);
        assert_eq!(extended, Outcome::Extended(before.after(TTL / 3)));
    }

    /// The acknowledgement shows neither that this lease was renewed nor that it is gone.
    #[test]
    fn an_acknowledgement_of_another_renewal_does_not_count() {
        for ttl in [TTL, Duration::ZERO] {
            let (mut lease, now) = renewing();
            let before = lease.deadline();
            let answer = lease.acknowledged(FORMER, VERIFY - 1, ttl, HEADER, VERIFY);
            assert_eq!(answer, (Outcome::None, None), "TTL {ttl:?}");
            assert_eq!(lease.confirm(now, VERIFY, HEADER), Outcome::None);
            assert_eq!(lease.deadline(), before);
            check_renewal_counts((lease, now));
        }
    }

    #[test]
    fn a_failure_of_another_renewal_does_not_break_the_stream() {
        let (mut lease, now) = renewing();
        assert!(!lease.failed(now, FORMER), "the stream is not hung up");
        assert!(lease.awaits(RENEWAL));
        check_renewal_counts((lease, now));
    }
}
