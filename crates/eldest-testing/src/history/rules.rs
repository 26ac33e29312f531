//! Holds the settings that a history is checked against: TTL, timeouts, slack, expected nodes and allowed growth.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Resources;

/// The settings of a check. A plain value with a builder; every duration is real time.
#[must_use = "rules do nothing until a history is checked against them"]
#[derive(Debug, Clone)]
pub struct Rules {
    pub(super) ttl: Duration,
    pub(super) election_timeout: Duration,
    pub(super) takeover_slack: Duration,
    pub(super) observer_lag: Duration,
    pub(super) live: BTreeSet<String>,
    pub(super) stopped_counts_as_leading: bool,
    pub(super) allowed_growth: Resources,
}

impl Rules {
    /// Makes rules for sessions whose leases have that TTL.
    ///
    /// # Default
    ///
    /// The election timeout is 1 s (etcd's own default), the takeover slack 3.5 s, and the observer's lag 0.5 s. No
    /// node is expected to be live, a stopped process does not count as leading, and no growth is allowed.
    pub fn new(ttl: Duration) -> Self {
        Rules {
            ttl,
            election_timeout: Duration::from_secs(1),
            takeover_slack: Duration::from_millis(3500),
            observer_lag: Duration::from_millis(500),
            live: BTreeSet::new(),
            stopped_counts_as_leading: false,
            allowed_growth: Resources::default(),
        }
    }

    /// Sets etcd's election timeout, after which its members choose a new leader among themselves.
    pub fn election_timeout(mut self, timeout: Duration) -> Self {
        self.election_timeout = timeout;
        self
    }

    /// Sets how much longer a takeover may take than TTL and election timeout.
    pub fn takeover_slack(mut self, slack: Duration) -> Self {
        self.takeover_slack = slack;
        self
    }

    /// Sets how much later than a node the independent watcher may stamp the same change. Zero in simulated time.
    pub fn observer_lag(mut self, lag: Duration) -> Self {
        self.observer_lag = lag;
        self
    }

    /// Sets the nodes that take part from the first event on, until they leave, are killed or are stopped. Others take
    /// part from their [`What::Joined`](super::What::Joined) or [`What::Elected`](super::What::Elected) on.
    pub fn live<N: Into<String>>(mut self, nodes: impl IntoIterator<Item = N>) -> Self {
        self.live = nodes.into_iter().map(Into::into).collect();
        self
    }

    /// Makes it a violation that another node leads between the last check before a stop and the first check after it.
    /// Use it only for tests whose stops are shorter than the rest of the lease: otherwise no implementation can meet
    /// it.
    pub fn stopped_counts_as_leading(mut self, yes: bool) -> Self {
        self.stopped_counts_as_leading = yes;
        self
    }

    /// Sets how much more than at the baseline a node may hold at the end.
    pub fn allowed_growth(mut self, growth: Resources) -> Self {
        self.allowed_growth = growth;
        self
    }

    /// Returns the longest vacancy without a fault.
    pub(super) fn takeover_bound(&self) -> Duration {
        self.ttl + self.election_timeout + self.takeover_slack
    }
}
