//! Says what a session was configured to.

use std::sync::Arc;
use std::time::Duration;

use crate::lease::Trust;

/// What a session was configured to.
#[derive(Debug, Clone)]
pub struct Config {
    pub ttl: Duration,
    pub trust: Trust,
    pub grace: Duration,
    pub request_timeout: Duration,
    /// A key of the namespace that is read when no other will do; it need not exist.
    pub probe_key: Arc<[u8]>,
    /// [`LONG_QUEUE`](crate::candidate::LONG_QUEUE), unless long queues are to be looked at with few candidates.
    pub long_queue: usize,
    /// Operations in one transaction, until etcd takes fewer: [`BATCH`](crate::machine::BATCH), unless small batches are to be
    /// looked at with few partitions.
    pub batch: usize,
}
