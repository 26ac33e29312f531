//! Examines one member of etcd: its state, its free space and its latency.

use std::time::Duration;

use eldest::ErrorKind;
use eldest::operator::{Endpoint, EtcdMemberStatus};

use super::findings::Findings;
use crate::distance::{Distance, SAMPLES};
use eldest_http::contract::command::Level;

/// The number of reads that are timed.
const READS: usize = 20;

/// The remedy for a learner.
const PROMOTE: &str = "promote it, or remove it from --endpoints";

/// The answers of a member.
#[derive(Debug)]
pub(crate) struct Report {
    /// The status; `None` if the member reports it to root alone.
    pub(crate) status: Option<EtcdMemberStatus>,
    /// The slowest read, if all were answered.
    pub(crate) slowest: Option<Duration>,
    /// The round trips to the member, if all were answered.
    pub(crate) distance: Option<Distance>,
}

/// The result of asking an endpoint.
#[derive(Debug)]
pub(crate) enum Said {
    /// The member's state.
    Report(Report),
    /// The member did not answer.
    Nothing,
    /// The member answered wrongly: it refuses the user or a certificate, speaks another protocol, or is a learner.
    Refusal,
    /// etcd's gRPC proxy answered, which is not a member.
    Proxy,
}

impl Said {
    /// Returns how far away the member is, if it answers.
    pub(crate) fn distance(&self) -> Option<Distance> {
        match self {
            Said::Report(report) => report.distance,
            Said::Nothing | Said::Refusal | Said::Proxy => None,
        }
    }
}

/// Returns the findings about a member, and what it answered.
pub(crate) async fn examine(endpoint: &Endpoint) -> (Findings, Said) {
    let mut findings = Findings::default();
    let about = endpoint.url();
    let status = match endpoint.status().await {
        Ok(status) => Some(status),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => None,
        Err(error) => {
            if error.kind() == ErrorKind::Proxied {
                let remedy = "name the members of etcd themselves in --endpoints";
                findings.bad(
                    Level::Fail,
                    (about, "direct"),
                    error.report().to_string(),
                    remedy,
                );
                return (findings, Said::Proxy);
            }
            let message = error.report().to_string();
            let (remedy, said) = match remedy(endpoint, &error).await {
                Some(remedy) => (remedy, Said::Refusal),
                None => (
                    "start it, repair the network to it, or remove it from --endpoints",
                    Said::Nothing,
                ),
            };
            findings.bad(Level::Fail, (about, "reachable"), message, remedy);
            return (findings, said);
        }
    };
    if let Some(status) = &status {
        findings.ok(about, "reachable", who(status));
        state(status, about, &mut findings);
        room(status, about, &mut findings);
    } else {
        findings.ok(about, "reachable", "it answers");
        let message = "its version and state are unknown: etcd 3.4 reports them only to root";
        findings.note(about, "version", message);
    }
    // A learner answers no reads; that was already reported.
    let slowest = if status.as_ref().is_some_and(|status| status.learner) {
        None
    } else {
        latency(endpoint, &mut findings).await
    };
    let distance = Distance::to(endpoint).await;
    if let Some(Distance { median, worst }) = distance {
        let message =
            format!("{median:.1?} away (median of {SAMPLES} round trips), at most {worst:.1?}");
        findings.ok(about, "round_trip", message);
    }
    let report = Report {
        status,
        slowest,
        distance,
    };
    (findings, Said::Report(report))
}

/// Returns the remedy for a member that answers wrongly; `None` if it does not answer.
async fn remedy(endpoint: &Endpoint, error: &eldest::Error) -> Option<&'static str> {
    if error
        .report()
        .to_string()
        .contains("not supported for learner")
    {
        return Some(PROMOTE);
    }
    match error.kind() {
        ErrorKind::Unauthenticated => Some("correct --user and its password"),
        ErrorKind::CertificateRefused => Some(
            "correct --cacert, --cert or --key, or let etcd's certificate name this host: the reason says which side refused which",
        ),
        _ => endpoint.misnamed().await,
    }
}

fn who(status: &EtcdMemberStatus) -> String {
    let role = match status.leader {
        0 => "without a leader",
        leader if leader == status.member => "etcd's leader",
        _ if status.learner => "a learner",
        _ => "a follower",
    };
    let (version, member) = (&status.version, status.member);
    format!("etcd {version}, member {member:x}, {role}")
}

fn state(status: &EtcdMemberStatus, about: &str, findings: &mut Findings) {
    if status.leader == 0 {
        findings.bad(
            Level::Fail,
            (about, "leader"),
            "this member knows no leader: most members are down, or unreachable from it",
            "restart enough members",
        );
    }
    if status.learner {
        findings.bad(
            Level::Warn,
            (about, "learner"),
            "this member is a learner, which answers no linearizable reads",
            PROMOTE,
        );
    }
    for complaint in &status.errors {
        // "no leader" has already been reported.
        if complaint.contains("NOSPACE") {
            findings.bad(
                Level::Fail,
                (about, "alarms"),
                "the database is full: leaders keep their places, but nobody can join",
                "compact and defragment, then `etcdctl alarm disarm`; raise --quota-backend-bytes if it fills again",
            );
        } else if !complaint.contains("no leader") {
            let remedy = "see the member's log, and `etcdctl alarm list`";
            findings.bad(Level::Fail, (about, "alarms"), complaint.as_str(), remedy);
        }
    }
}

fn room(status: &EtcdMemberStatus, about: &str, findings: &mut Findings) {
    // The default quota of etcd; before 3.6 etcd does not report its quota.
    const DEFAULT_QUOTA: u64 = 2 << 30;
    let quota = if status.quota == 0 {
        DEFAULT_QUOTA
    } else {
        status.quota
    };
    if status.size > quota / 5 * 4 {
        let (size, used) = (status.size >> 20, status.size_in_use >> 20);
        let message = format!(
            "the database has {size} MiB ({used} in use) of {} MiB",
            quota >> 20
        );
        let remedy = "compact and defragment before it is full and nobody can join";
        findings.bad(Level::Warn, (about, "size"), message, remedy);
    }
}

async fn latency(endpoint: &Endpoint, findings: &mut Findings) -> Option<Duration> {
    let about = endpoint.url();
    // The first read also connects, so it is not counted.
    let mut times = Vec::with_capacity(READS);
    for attempt in 0..=READS {
        match endpoint.read_time().await {
            Ok(_) if attempt == 0 => {}
            Ok(time) => times.push(time),
            // The permission check reports this error.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::Unauthenticated
                ) =>
            {
                findings.note(
                    about,
                    "latency",
                    format!("not measured: {}", error.report()),
                );
                return None;
            }
            Err(error) => {
                let remedy = "check the load, the disk and the network of this member, or set a longer --request-timeout";
                let message = format!("a read was not answered: {}", error.report());
                findings.bad(Level::Fail, (about, "latency"), message, remedy);
                return None;
            }
        }
    }
    times.sort_unstable();
    let (median, slowest) = (times.get(times.len() / 2)?, times.last()?);
    let limit = endpoint.request_timeout();
    let message = format!(
        "answers reads in {median:.1?} (median of {READS}), at most {slowest:.1?}; the request timeout is {limit:?}"
    );
    if *slowest > limit / 2 {
        let remedy = "set a longer --request-timeout, and with it a longer --ttl";
        findings.bad(Level::Warn, (about, "latency"), message, remedy);
    } else {
        findings.ok(about, "latency", message);
    }
    Some(*slowest)
}
