//! Says what a session was configured to.

use std::sync::Arc;
use std::time::Duration;

use crate::evacuation::Homes;
use crate::lease::Trust;

/// The configuration of a session.
#[derive(Debug, Clone)]
pub struct Config {
    /// The time to live that is asked for.
    pub ttl: Duration,
    /// How long a renewal may be trusted.
    pub trust: Trust,
    /// The longest that work may go on after its term ended.
    pub grace: Duration,
    /// The longest that a request may take.
    pub request_timeout: Duration,
    /// A key of the namespace that is read when no other will do; it need not exist.
    pub probe_key: Arc<[u8]>,
    /// Where the marks of evacuated data centres are, and how announcements tell of data centres.
    pub homes: Homes,
    /// [`LONG_QUEUE`](crate::candidate::LONG_QUEUE), unless long queues are to be looked at with few candidates.
    pub long_queue: usize,
    /// Operations in one transaction, until etcd takes fewer: [`BATCH`](crate::BATCH), unless small batches are to be
    /// looked at with few partitions.
    pub batch: usize,
}
