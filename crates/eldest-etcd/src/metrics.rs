//! Measures endpoints through the facade of the crate `metrics`. Without the feature `metrics` every report compiles to
//! nothing.

use std::time::Duration;

/// Gives the installed recorder the help texts of these metrics.
#[cfg(feature = "metrics")]
pub fn describe() {
    use ::metrics::{Unit, describe_counter, describe_gauge};
    describe_counter!(
        "eldest_endpoint_switches_total",
        "Changes to another endpoint, by lane: lease (renewals), observers or data (everything else)."
    );
    describe_gauge!(
        "eldest_endpoint_used",
        "1 for the endpoint that a lane uses, else 0."
    );
    describe_gauge!(
        "eldest_endpoint_round_trip_seconds",
        Unit::Seconds,
        "Round trip to the endpoint when it was last probed, in seconds."
    );
    describe_counter!(
        "eldest_endpoint_probes_total",
        "Probes of endpoints, by outcome: answered or failed."
    );
    describe_counter!(
        "eldest_endpoint_lookups_total",
        "Lookups of endpoints, by source (dns, srv or members) and outcome (answered or failed)."
    );
}

/// Wraps each call of the facade in one function.
#[cfg(feature = "metrics")]
mod recorders {
    use ::metrics::{counter, gauge};

    use super::Duration;

    pub(crate) fn endpoint_switched(lane: &'static str) {
        counter!("eldest_endpoint_switches_total", "lane" => lane).increment(1);
    }

    pub(crate) fn endpoint_used(identity: &str, endpoint: &str, lane: &'static str, uses: bool) {
        gauge!(
            "eldest_endpoint_used",
            "identity" => identity.to_owned(), "endpoint" => endpoint.to_owned(), "lane" => lane
        )
        .set(if uses { 1.0 } else { 0.0 });
    }

    pub(crate) fn round_trip(identity: &str, endpoint: &str, round_trip: Duration) {
        gauge!(
            "eldest_endpoint_round_trip_seconds",
            "identity" => identity.to_owned(), "endpoint" => endpoint.to_owned()
        )
        .set(round_trip.as_secs_f64());
    }

    pub(crate) fn endpoint_probed(identity: &str, outcome: &'static str) {
        counter!("eldest_endpoint_probes_total", "identity" => identity.to_owned(), "outcome" => outcome)
            .increment(1);
    }

    pub(crate) fn endpoints_looked_up(identity: &str, source: &'static str, outcome: &'static str) {
        counter!(
            "eldest_endpoint_lookups_total",
            "identity" => identity.to_owned(), "source" => source, "outcome" => outcome
        )
        .increment(1);
    }
}

#[cfg(not(feature = "metrics"))]
mod recorders {
    use super::Duration;

    pub(crate) fn endpoint_switched(_: &'static str) {}
    pub(crate) fn endpoint_used(_: &str, _: &str, _: &'static str, _: bool) {}
    pub(crate) fn round_trip(_: &str, _: &str, _: Duration) {}
    pub(crate) fn endpoint_probed(_: &str, _: &'static str) {}
    pub(crate) fn endpoints_looked_up(_: &str, _: &'static str, _: &'static str) {}
}

pub(crate) use recorders::*;
