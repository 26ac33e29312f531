//! Holds the configuration of a world's sessions.

use std::time::Duration;

use super::home::homes;
use eldest_core::candidate::LONG_QUEUE;
use eldest_core::lease::Trust;
use eldest_core::{BATCH, Config};

/// The configuration of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) ttl: Duration,
    pub(crate) grace: Duration,
    pub(crate) margin: Duration,
    /// The timeout of a request.
    pub(crate) timeout: Duration,
    pub(crate) drift_ppm: u32,
    /// The number of other candidates above which a candidate follows its predecessor.
    pub(crate) long_queue: usize,
    /// The number of partitions that are taken or released in one transaction.
    pub(crate) batch: usize,
    /// How long a clean read lets a session lead; zero for sessions that allow no challenges.
    pub(crate) lead: Duration,
    /// True if challenges have no margin beside the bound on the drift of clocks.
    pub(crate) tight: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self::FAST
    }
}

impl Settings {
    /// The library's defaults at 2 s, the shortest TTL that it allows.
    pub(crate) const FAST: Settings = Settings {
        ttl: Duration::from_secs(2),
        grace: Duration::from_millis(400),
        margin: Duration::from_millis(100),
        timeout: Duration::from_millis(300),
        drift_ppm: 1000,
        long_queue: LONG_QUEUE,
        batch: BATCH,
        lead: Duration::ZERO,
        tight: false,
    };

    /// Returns the configuration of a session with these settings.
    pub(crate) fn config(self) -> Config {
        Config {
            ttl: self.ttl,
            trust: Trust {
                margin: self.margin,
                drift_ppm: self.drift_ppm,
            },
            grace: self.grace,
            request_timeout: self.timeout,
            probe_key: (*b"probe").into(),
            homes: homes(),
            long_queue: self.long_queue,
            batch: self.batch,
            challenges: self.challenges(),
        }
    }

    /// Returns the longest trust after a deletion: a verified renewal may extend it once for each of a session's keys,
    /// until the deleted one is checked.
    pub(super) fn ttl_and_turns(&self, turns: u32) -> Duration {
        self.ttl + self.ttl / 3 * turns
    }
}
