//! Computes the deadline until which a lease can be trusted, and decides which renewals extend it.
//!
//! `deadline = S + TTL * (1 - rho) - margin`, where S is read before the request is enqueued. etcd restarts
//! the TTL when it processes the request, which is after S, so the key cannot expire before S + TTL of
//! etcd's clock. An acknowledgement does not pass through raft, so a deposed etcd leader may send one for a
//! lease that the new leader already counts down; therefore it counts only after a linearizable answer,
//! begun after it, from the same raft term and cluster.

use std::time::Duration;

use crate::kv::Header;
use crate::time::Time;

/// How late a task may be that drops work at its deadline; then the key goes anyway.
const MOST_LATE: Duration = Duration::from_millis(250);

/// The safety subtracted from the TTL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trust {
    /// The fixed safety margin.
    pub margin: Duration,
    /// The bound on the relative rate of our clock and etcd's, in parts per million.
    pub drift_ppm: u32,
}

impl Trust {
    /// Returns when a key goes although its work continues: a little after another task dropped that work at `cutoff`,
    /// and still within the margin for which etcd keeps the key.
    pub(crate) fn release_at(self, cutoff: Time) -> Time {
        cutoff.after((self.margin / 2).min(MOST_LATE))
    }

    /// Returns how long another session waits until a deadline of that length has passed, whenever it began before and
    /// however the clocks drift.
    pub(crate) fn outlasts(self, length: Duration) -> Duration {
        let drift = length.mul_f64(f64::from(self.drift_ppm) / 1e6);
        length.saturating_add(drift).saturating_add(self.margin)
    }

    /// Returns the time until which a lease may be trusted after a renewal sent at `sent`.
    pub fn deadline(self, sent: Time, ttl: Duration) -> Time {
        let drift = ttl.mul_f64(f64::from(self.drift_ppm) / 1e6);
        sent.after(ttl.saturating_sub(drift).saturating_sub(self.margin))
    }
}

/// A number in the order of everything that this process sent and received. Unlike [`Time`], no two are equal.
pub type Step = u64;

#[derive(Debug, Clone, Copy)]
struct Acknowledged {
    received: Step,
    deadline: Time,
    term: u64,
    cluster: u64,
}

/// The meaning of a linearizable answer for the last acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No acknowledgement waits, or the read was begun before it: the answer shows nothing.
    Nothing,
    /// The renewal counts; the lease may be trusted until the given time.
    Accepted(Time),
    /// Another raft term or cluster: the acknowledgement came from a deposed leader, or may have.
    Refused,
}

/// The deadline of one lease.
#[derive(Debug, Clone)]
pub struct LeaseClock {
    trust: Trust,
    deadline: Time,
    cluster: u64,
    waiting: Option<Acknowledged>,
}

impl LeaseClock {
    /// Starts with a grant, which needs no further proof because it passes through raft.
    pub fn granted(trust: Trust, sent: Time, ttl: Duration, header: Header) -> Self {
        Self {
            trust,
            deadline: trust.deadline(sent, ttl),
            cluster: header.cluster,
            waiting: None,
        }
    }

    /// Returns the time until which the lease may be trusted.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Records the acknowledgement of a renewal sent at `sent`. It replaces one that still waits.
    pub fn acknowledged(&mut self, received: Step, sent: Time, ttl: Duration, header: Header) {
        self.waiting = Some(Acknowledged {
            received,
            deadline: self.trust.deadline(sent, ttl),
            term: header.term,
            cluster: header.cluster,
        });
    }

    /// Processes a linearizable answer to a request begun at `begun`.
    pub fn confirm(&mut self, begun: Step, header: Header) -> Verdict {
        let Some(ack) = self.waiting.filter(|ack| begun > ack.received) else {
            return Verdict::Nothing;
        };
        self.waiting = None;
        let same_leader = ack.term == header.term && ack.cluster == header.cluster;
        debug_assert!(self.waiting.is_none(), "an acknowledgement is judged once");
        if !same_leader || header.cluster != self.cluster {
            return Verdict::Refused;
        }
        debug_assert!(
            ack.received < begun,
            "only a read begun after an acknowledgement confirms it"
        );
        debug_assert_eq!(
            (ack.term, ack.cluster, self.cluster),
            (header.term, header.cluster, header.cluster),
            "only a read of the same raft term and cluster confirms a renewal"
        );
        self.deadline = self.deadline.max(ack.deadline);
        Verdict::Accepted(self.deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRUST: Trust = Trust {
        margin: Duration::from_millis(500),
        drift_ppm: 1000,
    };
    const TTL: Duration = Duration::from_secs(10);

    fn at(seconds: f64) -> Time {
        Time::ZERO.after(Duration::from_secs_f64(seconds))
    }

    fn header(term: u64) -> Header {
        Header {
            cluster: 1,
            member: 1,
            revision: 1,
            term,
        }
    }

    fn clock() -> LeaseClock {
        LeaseClock::granted(TRUST, at(0.0), TTL, header(3))
    }

    #[test]
    fn the_deadline_counts_from_the_send_instant_less_drift_and_margin() {
        assert_eq!(clock().deadline(), at(9.49));
    }

    #[test]
    fn another_session_waits_for_longer_than_a_deadline_lasts() {
        let waits = TRUST.outlasts(TTL);
        assert_eq!(waits, Duration::from_millis(10_510), "drift and margin");
        assert!(TRUST.deadline(at(0.0), TTL).after(TRUST.margin * 2) < at(0.0).after(waits));
    }

    #[test]
    fn an_acknowledgement_alone_extends_nothing() {
        let mut c = clock();
        c.acknowledged(1, at(3.0), TTL, header(3));
        assert_eq!(c.deadline(), at(9.49));
    }

    #[test]
    fn a_later_read_of_the_same_term_accepts_the_renewal() {
        let mut c = clock();
        c.acknowledged(1, at(3.0), TTL, header(3));
        assert_eq!(c.confirm(2, header(3)), Verdict::Accepted(at(12.49)));
    }

    #[test]
    fn a_read_of_another_term_refuses_it() {
        let mut c = clock();
        c.acknowledged(1, at(3.0), TTL, header(3));
        assert_eq!(c.confirm(2, header(4)), Verdict::Refused);
        assert_eq!(c.deadline(), at(9.49));
        assert_eq!(
            c.confirm(3, header(3)),
            Verdict::Nothing,
            "a refused one is gone"
        );
    }

    #[test]
    fn a_read_of_another_cluster_refuses_it() {
        let mut c = clock();
        let other = Header {
            cluster: 2,
            ..header(3)
        };
        c.acknowledged(1, at(3.0), TTL, other);
        assert_eq!(c.confirm(2, other), Verdict::Refused);
    }

    #[test]
    fn a_read_begun_before_the_acknowledgement_proves_nothing() {
        let mut c = clock();
        c.acknowledged(5, at(3.0), TTL, header(3));
        assert_eq!(c.confirm(4, header(3)), Verdict::Nothing);
        assert_eq!(c.confirm(6, header(3)), Verdict::Accepted(at(12.49)));
    }

    proptest! {
        /// The trust never reaches the earliest instant at which etcd may expire the lease, for any delays and any
        /// clock rate within the bound.
        #[test]
        fn the_deadline_is_before_the_expiry_for_any_delay_and_rate(
            delay_ms in 0u64..20_000, rate_ppm in -900i64..=900, ttl_s in 2u64..300,
        ) {
            let ttl = Duration::from_secs(ttl_s);
            let mut c = LeaseClock::granted(TRUST, at(0.0), ttl, header(3));
            c.acknowledged(1, at(0.0), ttl, header(3));
            c.confirm(2, header(3));
            // etcd processed the request `delay` after we read our clock at 0; our clock runs at rate_ppm.
            let expiry_real = (delay_ms as f64) / 1e3 + ttl_s as f64;
            let expiry_ours = expiry_real * (1.0 + rate_ppm as f64 / 1e6);
            prop_assert!(c.deadline().since(Time::ZERO).as_secs_f64() < expiry_ours);
        }
    }
}
