//! Defines the lanes: requests that share a connection, and the tickets that name a lane's connection.
#![allow(
    clippy::exhaustive_enums,
    reason = "for crates that pin the exact version"
)]

use std::sync::Arc;

use super::endpoint::Place;

/// Requests that share a connection. Renewals have their own, so that a burst of events does not delay them; so have
/// the watches of observers, so that these delay no hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// The lease, and the reads that verify its renewals.
    Lease,
    /// Watches and reads of observers.
    Observers,
    /// Everything else.
    Data,
}

impl Lane {
    /// All lanes, beginning with the one that every session uses.
    pub(super) const ALL: [Lane; 3] = [Lane::Data, Lane::Lease, Lane::Observers];

    pub(super) fn name(self) -> &'static str {
        match self {
            Lane::Lease => "lease",
            Lane::Observers => "observers",
            Lane::Data => "data",
        }
    }
}

/// Names the connection that a request used, so that its failure does not count against a later connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) lane: Lane,
    pub(super) at: Arc<Place>,
    pub(super) generation: u64,
}

impl Ticket {
    /// Returns the endpoint's URL.
    pub(super) fn url(&self) -> &str {
        self.at.url()
    }
}
