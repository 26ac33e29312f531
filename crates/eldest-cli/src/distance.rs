//! Measures the round trips from this machine to the endpoints, and says which of them a node here would use.

use std::time::Duration;

use eldest::EndpointReason;
use eldest::operator::{Endpoint, preferred};

use crate::connection::Connection;

/// The number of round trips that are measured to each endpoint.
pub(crate) const SAMPLES: usize = 10;

/// How far away an endpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Distance {
    pub(crate) median: Duration,
    pub(crate) worst: Duration,
}

impl Distance {
    /// Measures an endpoint; returns `None` if the member does not answer.
    pub(crate) async fn to(endpoint: &Endpoint) -> Option<Self> {
        let mut all = endpoint.round_trips(SAMPLES).await.ok()?;
        all.sort_unstable();
        Some(Self {
            median: *all.get(all.len() / 2)?,
            worst: *all.last()?,
        })
    }
}

/// Returns the endpoint that a node with these options uses, and why. `distances` are those of all endpoints.
pub(crate) fn chosen(
    connection: &Connection,
    distances: &[Option<Distance>],
) -> Option<(usize, EndpointReason)> {
    let own = |name: &Option<String>| name.is_some() && *name == connection.data_center;
    let all = connection.endpoints.iter().zip(distances);
    preferred(all.map(|(one, distance)| (own(&one.data_center), distance.map(|it| it.median))))
}
