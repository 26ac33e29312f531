//! Describes data centres that are far apart: how far, how bad the way is, and how the nodes are set up for it.

use std::time::Duration;

use crate::wire::Way;

/// A data centre for each server of etcd, as far from one another as this says.
#[derive(Debug, Clone)]
pub struct Wide {
    /// There and back.
    pub round_trip: Duration,
    /// So much more or less one way.
    pub jitter: Duration,
    /// How many packets are lost, from 0 to 1.
    pub loss: f64,
    /// True if the nodes are set up for that distance, and not by their TTL alone.
    pub preset: bool,
    /// True if each node has a server in its own data centre.
    pub near: bool,
    /// How long nothing else happens when the plan is done.
    pub quiet: Duration,
    /// How often the leader is asked to end, and killed, if those are the faults.
    pub rounds: usize,
    /// Decides which packets are lost. Not twice the same ones: when they come is not up to us.
    pub seed: u64,
}

impl Wide {
    /// Nodes that are set up for it, and a minute in which nothing else happens.
    pub fn new(round_trip: Duration, loss: f64) -> Self {
        Self {
            round_trip,
            jitter: round_trip / 10,
            loss,
            preset: true,
            near: true,
            quiet: Duration::from_secs(60),
            rounds: 1,
            seed: 0,
        }
    }
}

impl From<&Wide> for Way {
    fn from(wide: &Wide) -> Self {
        Self {
            delay: wide.round_trip / 2,
            jitter: wide.jitter,
            loss: wide.loss,
        }
    }
}
