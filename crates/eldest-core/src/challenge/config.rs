//! Defines the settings of a session that allows challenges, and the announcement of its anchor.

use std::sync::Arc;
use std::time::Duration;

use crate::lease::Trust;

/// The anchor of a session, as the keys of its candidates announce it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    /// The anchor's full key.
    pub anchor: Arc<[u8]>,
    /// The anchor's create revision. A key with another one is not the announced anchor.
    pub create_revision: i64,
}

/// The settings of a session that allows challenges.
#[derive(Debug, Clone)]
pub struct ChallengeConfig {
    /// The prefix of the namespace's anchors, which ends in `~session/`.
    pub sessions: Arc<[u8]>,
    /// How long the session may lead after the sending of a clean read, before drift and margin.
    pub lead: Duration,
    /// The margin, and the bound on the drift of clocks.
    pub trust: Trust,
    /// How long before its end a term's token is cancelled.
    pub grace: Duration,
    /// The time from one clean read to the next.
    pub interval: Duration,
    /// The address at which others reach the session.
    pub address: Arc<[u8]>,
    /// Adds the anchor to the value that a candidate announces.
    pub announce: fn(&[u8], &Announced) -> Arc<[u8]>,
    /// Returns the anchor that a candidate's value announces.
    pub announced: fn(&[u8]) -> Option<Announced>,
}

/// Returns how long a request by which sessions challenge each other, or read whether they are challenged, may take: so
/// that one may be lost if the session may lead for `lead` after it.
pub fn read_timeout(lead: Duration, request_timeout: Duration) -> Duration {
    (lead / 4).min(request_timeout)
}
