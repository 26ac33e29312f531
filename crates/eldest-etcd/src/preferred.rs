//! Returns the endpoint that a session would use after it has measured all, for programs that measure by themselves.

use std::time::Duration;

use super::lane::Lane;
use super::nearness::{EndpointReason, Nearness};
use eldest_core::time::Time;

/// Returns the endpoint that a session uses, and why, once it knows these round trips; `None`: there is no endpoint.
///
/// Each endpoint is given with whether it is in the session's data centre, and the round trip to it, if it answers.
/// With a single endpoint, the session uses it even if it does not answer.
pub fn preferred(
    endpoints: impl IntoIterator<Item = (bool, Option<Duration>)>,
) -> Option<(usize, EndpointReason)> {
    let (own, round_trips): (Vec<bool>, Vec<Option<Duration>>) = endpoints.into_iter().unzip();
    let now = Time::ZERO;
    let mut nearness = Nearness::new(own, now, || 0);
    // A session moves after two probes.
    for _ in 0..2 {
        for (at, round_trip) in round_trips.iter().enumerate() {
            nearness.probed(at, now, *round_trip, 0);
        }
    }
    let mut used = nearness.first();
    if round_trips.get(used)?.is_none() {
        used = nearness.failed(Lane::Data, used, now, 0);
    }
    while let Some(better) = nearness.better_than(used, now) {
        used = better;
    }
    Some((used, nearness.why(used, now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(endpoints: &[(bool, Option<u64>)]) -> Option<(usize, EndpointReason)> {
        let endpoints = endpoints.iter();
        preferred(endpoints.map(|(own, ms)| (*own, ms.map(Duration::from_millis))))
    }

    #[test]
    fn the_choice_is_that_of_a_session() {
        assert_eq!(chosen(&[]), None);
        let (far, near, down) = ((false, Some(40)), (false, Some(1)), (false, None));
        let own = (true, Some(40));
        for (endpoints, used, why) in [
            (&[far][..], 0, EndpointReason::Only),
            (&[down], 0, EndpointReason::Only),
            (&[far, near], 1, EndpointReason::Nearest),
            (&[down, far, near], 2, EndpointReason::Nearest),
            (&[near, own, far], 1, EndpointReason::OwnDataCenter),
            (
                &[far, (true, None), near],
                2,
                EndpointReason::PreferredFailed,
            ),
            (
                &[(false, Some(12)), (false, Some(10))],
                0,
                EndpointReason::Nearest,
            ),
        ] {
            assert_eq!(chosen(endpoints), Some((used, why)), "{endpoints:?}");
        }
    }
}
