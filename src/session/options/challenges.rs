//! Defines how long a session may answer nothing before others take over, and the times that follow from it.

use std::time::Duration;

use super::invalid;
use crate::error::Result;
use eldest_core::lease::Trust;

/// The shortest time to answer: below it, ordinary delays of a busy machine end terms.
const SHORTEST: Duration = Duration::from_millis(200);
/// The longest time from one clean read to the next.
const INTERVAL: Duration = Duration::from_millis(300);

/// How long a session may answer nothing before the sessions that wait behind it take over.
///
/// The time D runs from the last read by which the session has seen that no other session challenges it. The session
/// leads for D less clock drift and D / 20 after it sent that read. It sends one at least every D / 3, and at least
/// every 0.3 s. A session that challenges it waits for D with clock drift and D / 20 more.
///
/// | preset | D | a silent leader is succeeded, counted from the suspicion | ends terms when etcd's own leader changes |
/// |---|---|---|---|
/// | [`Challenges::steady`] | 4 s | after 4.2 s | no, if etcd elects another one within 2 s |
/// | [`Challenges::fast`] | 0.4 s | after 0.42 s | yes |
#[must_use = "challenges are allowed by `SessionOptions::challenges`"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Challenges {
    answer_within: Duration,
}

impl Challenges {
    /// Allows 4 s, which suits most clusters: a change of etcd's own leader costs no leadership.
    pub fn steady() -> Self {
        Self::answer_within(Duration::from_secs(4))
    }

    /// Allows 0.4 s, for etcd within a few milliseconds. Each change of etcd's own leader ends terms.
    pub fn fast() -> Self {
        Self::answer_within(Duration::from_millis(400))
    }

    /// Allows that time: at least 0.2 s, and less than the TTL.
    pub fn answer_within(time: Duration) -> Self {
        Self {
            answer_within: time,
        }
    }

    pub(super) fn time(self) -> Duration {
        self.answer_within
    }

    /// Returns the default of the grace period.
    pub(super) fn grace(self) -> Duration {
        self.answer_within / 10
    }

    /// Returns the longest default of the request timeout: two requests fit between two reads.
    pub(super) fn request_timeout(self) -> Duration {
        self.answer_within / 4
    }

    pub(super) fn interval(self) -> Duration {
        (self.answer_within / 3).min(INTERVAL)
    }

    pub(super) fn trust(self, drift_ppm: u32) -> Trust {
        Trust {
            margin: self.answer_within / 20,
            drift_ppm,
        }
    }

    /// Checks that the time fits the session's other times, and that one read may be lost without losing the
    /// leadership.
    pub(super) fn check(
        self,
        ttl: Duration,
        (request_timeout, grace, drift_ppm): (Duration, Duration, u32),
    ) -> Result<()> {
        let time = self.answer_within;
        if time < SHORTEST || time >= ttl {
            return Err(invalid(format!(
                "challenges must be answered within {time:?}; that time must be at least {SHORTEST:?}, and less than the \
                 ttl = {ttl:?}, after which a silent leader is succeeded anyway"
            )));
        }
        let (interval, margin) = (self.interval(), time / 20);
        let trusted = time.saturating_sub(time.mul_f64(f64::from(drift_ppm) / 1e6));
        let needed = interval + request_timeout * 2 + grace + margin;
        if needed > trusted {
            return Err(invalid(format!(
                "one lost read would cost the leadership: with challenges that must be answered within {time:?}, the \
                 interval of reads + 2 * request_timeout + grace + a twentieth of that time = {interval:?} + 2 * \
                 {request_timeout:?} + {grace:?} + {margin:?} = {needed:?} must be at most that time less clock drift = \
                 {trusted:?}"
            )));
        }
        Ok(())
    }
}
