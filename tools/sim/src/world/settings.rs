//! Holds how the sessions of a world are configured.

use std::time::Duration;

use super::home::homes;
use eldest_core::candidate::LONG_QUEUE;
use eldest_core::lease::Trust;
use eldest_core::{BATCH, Config};

/// How sessions are configured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) ttl: Duration,
    pub(crate) grace: Duration,
    pub(crate) margin: Duration,
    /// The timeout of a request.
    pub(crate) timeout: Duration,
    pub(crate) drift_ppm: u32,
    /// With more candidates than this beside it, one is to follow its predecessor.
    pub(crate) long_queue: usize,
    /// So many partitions are taken or released in one transaction.
    pub(crate) batch: usize,
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
        }
    }

    /// A verified renewal may extend the belief once for each of a session's keys, until the turn of the one that is
    /// gone has come.
    pub(super) fn ttl_and_turns(&self, turns: u32) -> Duration {
        self.ttl + self.ttl / 3 * turns
    }
}
