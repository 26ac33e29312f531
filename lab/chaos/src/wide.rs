//! Describes distant data centres: their distance, the quality of the links, and the nodes' configuration for it.

use std::time::Duration;

use crate::wire::Way;

/// A data centre for each server of etcd, at this distance from one another.
#[derive(Debug, Clone)]
pub struct Wide {
    /// The round trip.
    pub round_trip: Duration,
    /// The deviation from the delay in one direction, up or down.
    pub jitter: Duration,
    /// The share of packets that are lost, from 0 to 1.
    pub loss: f64,
    /// True if the nodes are configured for that distance, and not by their TTL alone.
    pub preset: bool,
    /// True if each node has a server in its own data centre.
    pub near: bool,
    /// How long no fault is made after the plan is done.
    pub quiet: Duration,
    /// How often the leader is asked to end, and killed, if those are the faults.
    pub rounds: usize,
    /// Decides which packets are lost. Two runs lose different ones, because the times of packets vary.
    pub seed: u64,
}

impl Wide {
    /// Returns nodes that are configured for the distance, and a quiet minute at the end.
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
