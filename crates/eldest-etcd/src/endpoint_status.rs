//! Shows users the status of each endpoint, and reports it as metrics.

use std::sync::Arc;
use std::time::Duration;

use super::endpoint::Place;
use super::lane::Lane;
use super::nearness::EndpointReason;
use super::places::Places;
use eldest_core::time::Time;

/// The status of one of a session's endpoints, as far as the session knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointStatus {
    url: String,
    data_center: Option<String>,
    round_trip: Option<Duration>,
    failing: bool,
    lanes: Vec<(Lane, EndpointReason)>,
}

impl EndpointStatus {
    /// Returns the endpoint's URL, with its scheme.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the endpoint's data centre, if it was named.
    pub fn data_center(&self) -> Option<&str> {
        self.data_center.as_deref()
    }

    /// Returns the shortest of the last measured round trips, or `None` if none was.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Returns `true` if a request or a probe failed at the endpoint, and no probe was answered since.
    pub fn is_failing(&self) -> bool {
        self.failing
    }

    /// Returns why the renewals of the lease use this endpoint, or `None` if they use another one.
    pub fn renewals(&self) -> Option<EndpointReason> {
        self.reason(Lane::Lease)
    }

    /// Returns why observers use this endpoint, or `None` if they use another one.
    pub fn observers(&self) -> Option<EndpointReason> {
        self.reason(Lane::Observers)
    }

    /// Returns why all other requests use this endpoint, or `None` if they use another one.
    pub fn requests(&self) -> Option<EndpointReason> {
        self.reason(Lane::Data)
    }

    /// Returns `true` if each lane uses one of these endpoints.
    pub(super) fn show_every_lane(statuses: &[Self]) -> bool {
        let shown = |lane: Lane| statuses.iter().any(|status| status.reason(lane).is_some());
        Lane::ALL.into_iter().all(shown)
    }

    fn reason(&self, lane: Lane) -> Option<EndpointReason> {
        let found = self.lanes.iter().find(|(used_by, _)| *used_by == lane);
        found.map(|(_, why)| *why)
    }
}

/// Returns the status of each endpoint; `used`: the number of each lane's endpoint.
pub(super) fn all(places: &Places, used: [(Lane, usize); 3], now: Time) -> Vec<EndpointStatus> {
    let nearness = &places.nearness;
    let status = |place: &Arc<Place>| {
        let at = place.number;
        let here = used.iter().filter(|(_, used)| *used == at);
        EndpointStatus {
            url: place.endpoint.url.clone(),
            data_center: place.endpoint.data_center.clone(),
            round_trip: nearness.round_trip(at),
            failing: nearness.is_failing(at),
            lanes: here
                .map(|(lane, _)| (*lane, nearness.why(at, now)))
                .collect(),
        }
    };
    places.all().iter().map(status).collect()
}

/// Reports the statuses as metrics of the session with the given identity.
pub(super) fn measure(identity: &str, statuses: &[EndpointStatus]) {
    for status in statuses {
        if let Some(round_trip) = status.round_trip {
            crate::metrics::round_trip(identity, &status.url, round_trip);
        }
        for lane in Lane::ALL {
            let uses = status.reason(lane).is_some();
            crate::metrics::endpoint_used(identity, &status.url, lane.name(), uses);
        }
    }
}

/// Reports that no lane uses the endpoints, which were removed from the list.
pub(super) fn forget(identity: &str, urls: &[String]) {
    for url in urls {
        for lane in Lane::ALL {
            crate::metrics::endpoint_used(identity, url, lane.name(), false);
        }
    }
}
