//! Defines the configuration of a session.

use std::sync::Arc;
use std::time::Duration;

use crate::challenge::ChallengeConfig;
use crate::evacuation::Homes;
use crate::lease::Trust;

/// The configuration of a session.
#[derive(Debug, Clone)]
pub struct Config {
    /// The requested time to live.
    pub ttl: Duration,
    /// How long a renewal may be trusted.
    pub trust: Trust,
    /// The longest time for which work may continue after its term ended.
    pub grace: Duration,
    /// The longest that a request may take.
    pub request_timeout: Duration,
    /// A key of the namespace that is read if there is no better one; it need not exist.
    pub probe_key: Arc<[u8]>,
    /// The prefix of the marks of evacuated data centres, and the functions that read data centres from announcements.
    pub homes: Homes,
    /// The length of a long queue: [`LONG_QUEUE`](crate::candidate::LONG_QUEUE), except in tests of long queues with
    /// few candidates.
    pub long_queue: usize,
    /// The number of operations in one transaction, until etcd accepts only fewer: [`BATCH`](crate::BATCH), except in
    /// tests of small batches with few partitions.
    pub batch: usize,
    /// The settings of a session that allows challenges; `None` if it leads by its lease alone.
    pub challenges: Option<ChallengeConfig>,
}
