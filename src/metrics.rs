//! Reports the library's metrics through the facade of the crate [`metrics`](https://docs.rs/metrics).
//!
//! This module needs the feature `metrics`. The recorder that the program installs receives the metrics; without the
//! feature every report compiles to nothing. `docs/metrics.md` in the repository lists every metric, its labels and
//! what to do about it. Install the recorder before the first session, then call [`describe`], which gives the recorder
//! the help texts.

use std::time::Duration;

use eldest_core::reason::LostReason;

/// The upper bounds, in seconds, for a histogram of `eldest_renewal_duration_seconds`: from a renewal on the same
/// machine to one that took the longest request timeouts.
#[cfg(feature = "metrics")]
pub const RENEWAL_BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
];

/// The upper bounds, in seconds, for a histogram of `eldest_agent_release_duration_seconds`.
#[cfg(feature = "metrics")]
pub const RELEASE_BUCKETS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0,
];

/// Gives the installed recorder the help texts of all metrics.
#[cfg(feature = "metrics")]
pub fn describe() {
    use ::metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
    describe_agent();
    describe_places();
    describe_gauge!(
        "eldest_term_began_timestamp_seconds",
        Unit::Seconds,
        "The time at which this node's term began, by the wall clock, or 0 while it does not lead."
    );
    describe_counter!(
        "eldest_terms_started_total",
        "Terms in which this node led the election."
    );
    describe_counter!(
        "eldest_terms_ended_total",
        "Ends of terms in which this node led, by reason."
    );
    describe_gauge!(
        "eldest_lease_deadline_timestamp_seconds",
        Unit::Seconds,
        "The time until which the lease is trusted if no renewal succeeds, by the wall clock."
    );
    describe_counter!(
        "eldest_leases_lost_total",
        "Leases that were lost or no longer trusted, by reason."
    );
    describe_counter!(
        "eldest_renewals_total",
        "Renewals of the lease, by outcome: verified, refused or failed."
    );
    describe_histogram!(
        "eldest_renewal_duration_seconds",
        Unit::Seconds,
        "Time from sending a renewal until it was verified, in seconds."
    );
    describe_counter!(
        "eldest_requests_failed_total",
        "Other requests to etcd that failed and are repeated, by kind of request."
    );
    describe_counter!(
        "eldest_watch_reconnects_total",
        "Watch streams that broke or stalled, and were opened again."
    );
    describe_gauge!(
        "eldest_guarded",
        "1 while a guard guards the session's lease, else 0."
    );
    describe_gauge!(
        "eldest_evacuated",
        "1 while the data centre is evacuated, as the session sees it, else 0."
    );
    describe_challenges();
    eldest_etcd::describe_metrics();
}

/// Describes the metrics of challenges, as [`describe`] does.
#[cfg(feature = "metrics")]
fn describe_challenges() {
    use ::metrics::{describe_counter, describe_gauge};
    describe_counter!(
        "eldest_challenges_total",
        "Steps of challenges, by kind: suspected, sent, refuted, condemned, received, answered or lost."
    );
    describe_gauge!(
        "eldest_challenges_silent",
        "Sessions ahead of this one that give no sign of life."
    );
}

/// Describes a node's place in each election, as [`describe`] does.
#[cfg(feature = "metrics")]
fn describe_places() {
    use ::metrics::describe_gauge;
    describe_gauge!(
        "eldest_leading",
        "1 while this node leads the election, else 0."
    );
    describe_gauge!(
        "eldest_serving",
        "1 while this node leads the election and serves, else 0."
    );
    describe_gauge!(
        "eldest_warm",
        "1 while this node waits in the election and is warm, else 0."
    );
    describe_gauge!(
        "eldest_rank",
        "This node's place in the election's queue: 1 is the eldest, 0 is no place."
    );
}

/// Describes the metrics of `eldest agent`, as [`describe`] does.
#[cfg(feature = "metrics")]
fn describe_agent() {
    use ::metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
    describe_gauge!("eldest_agent_sessions", "Sessions that this agent guards.");
    describe_counter!(
        "eldest_agent_releases_total",
        "Leases of dead processes, by outcome: released, gone, unproven, or failed for an attempt that is repeated."
    );
    describe_histogram!(
        "eldest_agent_release_duration_seconds",
        Unit::Seconds,
        "Time from the death of a process until etcd confirmed that its keys are deleted, in seconds."
    );
    describe_counter!(
        "eldest_agent_refusals_total",
        "Sessions and leases that this agent refused to guard."
    );
}

/// Wraps each call of the facade in one function.
#[cfg(feature = "metrics")]
mod recorders {
    use ::metrics::{counter, gauge, histogram};

    use super::{Duration, LostReason};

    pub(crate) fn leading(identity: &str, election: &str, leads: bool, serves: bool) {
        let value = |holds| if holds { 1.0 } else { 0.0 };
        gauge!("eldest_leading", "identity" => identity.to_owned(), "election" => election.to_owned())
            .set(value(leads));
        gauge!("eldest_serving", "identity" => identity.to_owned(), "election" => election.to_owned())
            .set(value(serves));
    }

    pub(crate) fn warm(identity: &str, election: &str, is_warm: bool) {
        let value = if is_warm { 1.0 } else { 0.0 };
        gauge!("eldest_warm", "identity" => identity.to_owned(), "election" => election.to_owned())
            .set(value);
    }

    /// Reports a candidate's place, and if it leads and serves. `rank`: 1 for a leader, 0 for a node without a place in
    /// the queue.
    pub(crate) fn standing(
        identity: &str,
        election: &str,
        (leads, serves): (bool, bool),
        rank: usize,
    ) {
        leading(identity, election, leads, serves);
        gauge!("eldest_rank", "identity" => identity.to_owned(), "election" => election.to_owned())
            .set(rank as f64);
    }

    /// Reports a new term. `now` is the wall clock.
    pub(crate) fn elected(identity: &str, election: &str, now: Duration) {
        term_began(identity, election, now);
        counter!("eldest_terms_started_total", "identity" => identity.to_owned(), "election" => election.to_owned())
            .increment(1);
    }

    fn term_began(identity: &str, election: &str, since: Duration) {
        gauge!(
            "eldest_term_began_timestamp_seconds",
            "identity" => identity.to_owned(), "election" => election.to_owned()
        )
        .set(since.as_secs_f64());
    }

    pub(crate) fn term_ended(identity: &str, election: &str, reason: LostReason) {
        term_began(identity, election, Duration::ZERO);
        counter!(
            "eldest_terms_ended_total",
            "identity" => identity.to_owned(), "election" => election.to_owned(), "reason" => reason.as_str()
        )
        .increment(1);
    }

    /// Reports a verified renewal. `now` is the wall clock, `left` the time until the deadline.
    pub(crate) fn trusted(identity: &str, now: Duration, left: Duration) {
        gauge!("eldest_lease_deadline_timestamp_seconds", "identity" => identity.to_owned())
            .set(now.saturating_add(left).as_secs_f64());
    }

    pub(crate) fn lease_lost(identity: &str, reason: LostReason) {
        counter!("eldest_leases_lost_total", "identity" => identity.to_owned(), "reason" => reason.as_str())
            .increment(1);
    }

    pub(crate) fn renewed(identity: &str, took: Duration) {
        renewal(identity, "verified");
        histogram!("eldest_renewal_duration_seconds", "identity" => identity.to_owned())
            .record(took.as_secs_f64());
    }

    pub(crate) fn renewal(identity: &str, outcome: &'static str) {
        counter!("eldest_renewals_total", "identity" => identity.to_owned(), "outcome" => outcome)
            .increment(1);
    }

    pub(crate) fn request_failed(identity: &str, what: &'static str) {
        counter!("eldest_requests_failed_total", "identity" => identity.to_owned(), "what" => what)
            .increment(1);
    }

    pub(crate) fn watch_lost(identity: &str) {
        counter!("eldest_watch_reconnects_total", "identity" => identity.to_owned()).increment(1);
    }

    pub(crate) fn guarded(identity: &str, guarded: bool) {
        let value = if guarded { 1.0 } else { 0.0 };
        gauge!("eldest_guarded", "identity" => identity.to_owned()).set(value);
    }

    pub(crate) fn evacuated(identity: &str, data_center: &str, evacuated: bool) {
        let value = if evacuated { 1.0 } else { 0.0 };
        gauge!("eldest_evacuated", "identity" => identity.to_owned(), "data_center" => data_center.to_owned())
            .set(value);
    }

    pub(crate) fn challenge(identity: &str, kind: &'static str) {
        counter!("eldest_challenges_total", "identity" => identity.to_owned(), "kind" => kind)
            .increment(1);
    }

    pub(crate) fn silent(identity: &str, sessions: usize) {
        gauge!("eldest_challenges_silent", "identity" => identity.to_owned()).set(sessions as f64);
    }

    /// Reports counters that are still 0, so that their first rise is visible.
    pub(crate) fn agent_started() {
        agent_sessions(0);
        counter!("eldest_agent_refusals_total").increment(0);
        for outcome in ["released", "gone", "unproven", "failed"] {
            counter!("eldest_agent_releases_total", "outcome" => outcome).increment(0);
        }
    }

    pub(crate) fn agent_sessions(count: usize) {
        gauge!("eldest_agent_sessions").set(count as f64);
    }

    pub(crate) fn agent_released(outcome: &'static str) {
        counter!("eldest_agent_releases_total", "outcome" => outcome).increment(1);
    }

    pub(crate) fn agent_took(took: Duration) {
        histogram!("eldest_agent_release_duration_seconds").record(took.as_secs_f64());
    }

    pub(crate) fn agent_refused() {
        counter!("eldest_agent_refusals_total").increment(1);
    }
}

#[cfg(not(feature = "metrics"))]
mod recorders {
    use super::{Duration, LostReason};

    pub(crate) fn leading(_: &str, _: &str, _: bool, _: bool) {}
    pub(crate) fn warm(_: &str, _: &str, _: bool) {}
    pub(crate) fn standing(_: &str, _: &str, _: (bool, bool), _: usize) {}
    pub(crate) fn elected(_: &str, _: &str, _: Duration) {}
    pub(crate) fn term_ended(_: &str, _: &str, _: LostReason) {}
    pub(crate) fn trusted(_: &str, _: Duration, _: Duration) {}
    pub(crate) fn lease_lost(_: &str, _: LostReason) {}
    pub(crate) fn renewed(_: &str, _: Duration) {}
    pub(crate) fn renewal(_: &str, _: &'static str) {}
    pub(crate) fn request_failed(_: &str, _: &'static str) {}
    pub(crate) fn watch_lost(_: &str) {}
    pub(crate) fn guarded(_: &str, _: bool) {}
    pub(crate) fn evacuated(_: &str, _: &str, _: bool) {}
    pub(crate) fn challenge(_: &str, _: &'static str) {}
    pub(crate) fn silent(_: &str, _: usize) {}
    pub(crate) fn agent_started() {}
    pub(crate) fn agent_sessions(_: usize) {}
    pub(crate) fn agent_released(_: &'static str) {}
    pub(crate) fn agent_took(_: Duration) {}
    pub(crate) fn agent_refused() {}
}

pub(crate) use recorders::*;
