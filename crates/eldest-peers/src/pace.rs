//! Defines how often signs of life are sent, and after which silence a session is suspected.
//!
//! `lead` is how long a session may lead after a clean read. Another session announces it, so each result has bounds.

use std::time::Duration;

/// The time limit of a connection attempt, of a hello, and of the first reply.
pub(crate) const FIRST_REPLY: Duration = Duration::from_secs(1);
/// How often an asker says that it still asks.
pub(crate) const ASKING_EVERY: Duration = Duration::from_secs(5);
/// The longest silence of an asker. Its host may have died without closing the connection.
pub(crate) const ASKER_GONE: Duration = Duration::from_secs(15);

/// Returns the time from one sign of life to the next.
pub(crate) fn sign_every(lead: Duration) -> Duration {
    (lead / 5).clamp(Duration::from_millis(10), Duration::from_millis(200))
}

/// Returns the silence after which a session is suspected.
pub(crate) fn silence(lead: Duration) -> Duration {
    (lead / 3).clamp(Duration::from_millis(20), Duration::from_millis(500))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_longer_than_the_pause_between_signs() {
        let leads = [0, 1, 50, 400, 1_000, 3_500, u64::MAX].map(Duration::from_millis);
        for lead in leads {
            assert!(sign_every(lead) * 3 <= silence(lead) * 2, "{lead:?}");
        }
        let fast = Duration::from_millis(400);
        assert_eq!(sign_every(fast), Duration::from_millis(80));
        assert_eq!(silence(fast), fast / 3);
        let steady = Duration::from_millis(3_500);
        assert_eq!(sign_every(steady), Duration::from_millis(200));
        assert_eq!(silence(steady), Duration::from_millis(500));
    }
}
