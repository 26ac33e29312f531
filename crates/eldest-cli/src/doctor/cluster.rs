//! Examines the cluster as a whole: its members and its clock, the user's permissions, and whether a node's options
//! suit it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use eldest::operator::{Endpoint, EtcdMember, EtcdMemberStatus, Times};
use eldest::{EndpointReason, ErrorKind, Queue, QueueKind, SessionOptions};

use super::endpoint::Report;
use super::findings::Findings;
use super::versions;
use crate::connection::Connection;
use crate::distance::{Distance, chosen};
use crate::view;
use eldest_http::contract::command::Level;

/// The subject of findings about members and their versions.
const MEMBERS: &str = "members";
/// The check and subject of findings about keys without a lease.
const BLOCKED: (&str, &str) = ("elections", "blocked");

/// A cluster of etcd of which some members answer.
pub(crate) struct Patient<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) options: &'a SessionOptions,
    /// The times of a session with these options, if it allows challenges.
    pub(crate) challenged: Option<Times>,
    pub(crate) answering: &'a [(&'a Endpoint, Report)],
    pub(crate) below: &'a str,
    /// The grace period, if one is given.
    pub(crate) grace: Option<Duration>,
}

impl Patient<'_> {
    /// Returns an endpoint that answers reads as well, if there is one.
    pub(super) fn one(&self) -> &Endpoint {
        let mut good = self.answering.iter();
        let good = good.find(|(_, report)| {
            let lost = report
                .status
                .as_ref()
                .is_some_and(|status| status.leader == 0);
            report.slowest.is_some() && !lost
        });
        good.or(self.answering.first()).map_or_else(
            || unreachable!("there is one that answers"),
            |(endpoint, _)| *endpoint,
        )
    }

    fn statuses(&self) -> impl Iterator<Item = &EtcdMemberStatus> {
        let reports = self.answering.iter();
        reports.filter_map(|(_, report)| report.status.as_ref())
    }

    /// Reports versions, and whether the endpoints belong to one cluster and cover it completely.
    pub(crate) async fn members(&self, findings: &mut Findings) {
        self.versions(findings);
        let clusters: BTreeSet<u64> = self.statuses().map(|status| status.cluster).collect();
        if clusters.len() > 1 {
            let message = format!(
                "the endpoints belong to {} different clusters",
                clusters.len()
            );
            let remedy = "name the members of one cluster: an election exists in one cluster";
            findings.bad(Level::Fail, (MEMBERS, "cluster"), message, remedy);
        }
        let mut urls: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
        for (endpoint, report) in self.answering {
            if let Some(status) = &report.status {
                urls.entry(status.member).or_default().push(endpoint.url());
            }
        }
        for urls in urls.values().filter(|urls| urls.len() > 1) {
            let message = format!("{} are the same member", urls.join(" and "));
            let remedy =
                "name each member once: a second endpoint helps only if it is another member";
            findings.bad(Level::Warn, (MEMBERS, "endpoints"), message, remedy);
        }
        let anonymous = |(_, report): &(&Endpoint, Report)| report.status.is_none();
        let anonymous = self.answering.iter().any(anonymous);
        let note = match self.one().members().await {
            Ok(_) if anonymous => {
                "not compared with the endpoints, because some do not report their identity"
                    .to_owned()
            }
            Ok(members) => return all_asked(&members, &urls, findings),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                "only root may list the members of this etcd".to_owned()
            }
            Err(error) => format!("not listed: {}", error.report()),
        };
        findings.note(MEMBERS, "members", note);
    }

    /// Reports the known flaws of the members' versions.
    fn versions(&self, findings: &mut Findings) {
        let statuses = self.statuses();
        let versions: BTreeSet<&str> = statuses.map(|status| status.version.as_str()).collect();
        for version in versions {
            let flaws = versions::flaws(version, self.connection.has_user());
            if flaws.is_empty() {
                let message = format!("etcd {version} has no known problem");
                findings.ok(MEMBERS, "version", message);
            }
            for (level, what, remedy) in flaws {
                let message = format!("{version}: {what}");
                findings.bad(level, (MEMBERS, "version"), message, remedy);
            }
        }
    }

    /// Reports which endpoint a node here uses, why, and how far away all endpoints are.
    pub(super) fn nearest(&self, distances: &[Option<Distance>], findings: &mut Findings) {
        const ABOUT: (&str, &str) = (MEMBERS, "nearest");
        let listed = &self.connection.endpoints;
        let own = self.connection.data_center.as_deref();
        let names: BTreeSet<&str> = listed
            .iter()
            .filter_map(|one| one.data_center.as_deref())
            .collect();
        match (own, names.first()) {
            (Some(own), Some(_)) if !names.contains(own) => {
                let message = format!("no endpoint is in the data centre {own:?} of --data-center");
                let remedy = format!("name its members in --endpoints, as {own}=URL");
                findings.bad(Level::Warn, ABOUT, message, remedy);
            }
            (None, Some(name)) => {
                let message = format!(
                    "--endpoints names the data centre {name:?}, so a node needs --data-center"
                );
                let remedy = "give --data-center as the node does";
                findings.bad(Level::Warn, ABOUT, message, remedy);
            }
            _ => {}
        }
        let Some((used, why)) = chosen(self.connection, distances) else {
            return;
        };
        if listed.len() < 2 {
            return;
        }
        let why = match why {
            EndpointReason::OwnDataCenter => "it is in the node's data centre",
            EndpointReason::Nearest => "no other that answers is clearly nearer",
            EndpointReason::PreferredFailed => "a preferred one does not answer",
            _ => "too little is measured",
        };
        let all = listed.iter().zip(distances).map(|(one, distance)| {
            let far = distance.map_or("no answer".to_owned(), |it| format!("{:.1?}", it.median));
            format!("{one} {far}")
        });
        let all: Vec<String> = all.collect();
        let message = format!(
            "a node here uses {}: {why}; round trips: {}",
            listed[used].url,
            all.join(", ")
        );
        findings.ok(ABOUT.0, ABOUT.1, message);
    }

    /// Checks that etcd's clock runs as fast as ours. The time that it shows does not matter.
    pub(crate) async fn clock(&self, findings: &mut Findings, span: Duration) {
        const ABOUT: (&str, &str) = ("clock", "clock");
        if span.is_zero() {
            return;
        }
        let rate = match self.one().clock_rate(span).await {
            Ok(Some(rate)) => rate,
            Ok(None) => {
                findings.note(
                    ABOUT.0,
                    ABOUT.1,
                    "not comparable: etcd changed its leader, or answers too slowly",
                );
                return;
            }
            Err(error) => {
                findings.note(
                    ABOUT.0,
                    ABOUT.1,
                    format!("not compared: {}", error.report()),
                );
                return;
            }
        };
        let bound = i64::from(self.connection.clock_drift_ppm);
        let message = format!(
            "the clock of etcd's leader runs {:+} to {:+} ppm faster than this machine's; {bound} either way are allowed",
            rate.low_ppm, rate.high_ppm
        );
        if rate.low_ppm > bound || rate.high_ppm < -bound {
            let remedy = "correct the clock of this machine or of etcd's leader: leases could end while nodes still trust them";
            findings.bad(Level::Fail, ABOUT, message, remedy);
        } else if rate.high_ppm - rate.low_ppm > 20 * bound {
            findings.note(
                ABOUT.0,
                ABOUT.1,
                format!("{message}; compare longer, with --clock 30s"),
            );
        } else {
            findings.ok(ABOUT.0, ABOUT.1, message);
        }
    }

    /// Checks that the user may do everything that a node does.
    pub(crate) async fn permissions(&self, findings: &mut Findings, observer: bool) {
        const ABOUT: (&str, &str) = ("permissions", "permissions");
        let Some(place) = self.connection.place(self.below) else {
            let message =
                "the namespace is empty: name the election or prefix that the node will use";
            findings.note(ABOUT.0, ABOUT.1, message);
            return;
        };
        let may = match self.one().permissions(self.below).await {
            Ok(may) => may,
            Err(error) if error.kind() == ErrorKind::Unauthenticated => {
                let remedy = "give --user and its password";
                findings.bad(
                    Level::Fail,
                    ABOUT,
                    format!("etcd requires a user: {}", error.report()),
                    remedy,
                );
                return;
            }
            Err(error) => {
                let remedy = "see the findings above";
                findings.bad(
                    Level::Fail,
                    ABOUT,
                    format!("not known: {}", error.report()),
                    remedy,
                );
                return;
            }
        };
        let needed = if observer { "read" } else { "readwrite" };
        let grant = format!("etcdctl role grant-permission ROLE {needed} {place} --prefix");
        if !may.read {
            let message = format!("this user may not read all below {place}");
            findings.bad(Level::Fail, ABOUT, message, grant);
        } else if !may.write && !observer {
            let message = format!(
                "this user may read, but not write all below {place}: it can observe, but not become a candidate"
            );
            findings.bad(Level::Fail, ABOUT, message, grant);
        } else {
            let can = if may.write { "read and write" } else { "read" };
            findings.ok(
                ABOUT.0,
                ABOUT.1,
                format!("this user may {can} all below {place}"),
            );
        }
        self.user(findings);
    }

    /// Checks that etcd knows the user, or accepts requests without one.
    fn user(&self, findings: &mut Findings) {
        const ABOUT: (&str, &str) = ("permissions", "permissions");
        if !self.connection.has_user() {
            findings.note(
                ABOUT.0,
                ABOUT.1,
                "no user was given, and none is required: everybody who reaches this etcd may do everything",
            );
        } else if !self.one().is_as_user() {
            let message = "a user is given, but etcd has authentication disabled: everybody who reaches it may do everything";
            let remedy = "enable it with `etcdctl auth enable`, or leave out --user";
            findings.bad(Level::Warn, ABOUT, message, remedy);
        }
    }

    /// Checks that nothing blocks an election.
    pub(crate) async fn blocked(&self, findings: &mut Findings) {
        if self.connection.place(self.below).is_none() {
            return;
        }
        let overview = match self.connection.observer().await {
            Ok(session) => session
                .overview(self.below)
                .await
                .map_err(anyhow::Error::from),
            Err(error) => Err(error),
        };
        // The permission check has already reported why it cannot be read.
        let Ok(overview) = overview else {
            return;
        };
        let queues = overview.queues();
        let mut blocked = 0;
        for queue in queues {
            let name = queue.name();
            let (first, partitions) = match queue.partition_map() {
                None => (queue.roster().blocker(), Vec::new()),
                Some(map) => (None, map.blocked().collect()),
            };
            let first = first.map(|key| (name.to_owned(), key));
            let partition = |(number, key)| (format!("partition {number} of {name}"), key);
            for (what, key) in first
                .into_iter()
                .chain(partitions.into_iter().map(partition))
            {
                blocked += 1;
                let key = view::key_of(key);
                let message = format!(
                    "{what} is blocked by the key {key}, which has no lease and so never expires"
                );
                let remedy = match queue.kind() {
                    QueueKind::Election => format!("eldest evict {name} --candidate {key}"),
                    _ => format!("etcdctl del {key}"),
                };
                let remedy = format!("if no program needs the key: {remedy}");
                findings.bad(Level::Fail, BLOCKED, message, remedy);
            }
            blocked += will_block(queue, findings);
        }
        if blocked == 0 {
            findings.ok(
                BLOCKED.0,
                BLOCKED.1,
                format!("none of {} is blocked, or will be", queues.len()),
            );
        }
    }
}

/// Reports the keys of an election that never expire and are not first, and returns their number.
fn will_block(queue: &Queue, findings: &mut Findings) -> usize {
    if queue.kind() != QueueKind::Election {
        return 0;
    }
    let members = queue.roster().members().iter();
    let keys = members.filter(|member| member.lease_id() == 0 && member.rank() > 1);
    keys.map(|key| {
        let (name, rank, key) = (queue.name(), key.rank(), view::key_of(key));
        let message = format!(
            "{name} will be blocked by the key {key}, which has no lease, when the {} before it have ended",
            rank - 1
        );
        let remedy = format!("if no program needs the key: eldest evict {name} --candidate {key}");
        findings.bad(Level::Warn, BLOCKED, message, remedy);
    })
    .count()
}

/// Checks that all members were asked, and that they are enough. `urls`: the endpoints of those that were.
fn all_asked(members: &[EtcdMember], urls: &BTreeMap<u64, Vec<&str>>, findings: &mut Findings) {
    let missing = members
        .iter()
        .filter(|member| !urls.contains_key(&member.id));
    let missing: Vec<String> = missing
        .map(|member| format!("{} ({})", member.name, member.client_urls.join(" ")))
        .collect();
    if missing.is_empty() {
        let count = members.len();
        let all = if count == 1 {
            "the only member was"
        } else {
            "all members were"
        };
        findings.ok(MEMBERS, "members", format!("{all} asked: {count}"));
    } else {
        let message = format!("not asked, or silent: {}", missing.join(", "));
        let remedy = "name every member in --endpoints, so that any of them may fail";
        findings.bad(Level::Warn, (MEMBERS, "members"), message, remedy);
    }
    if members.len() < 3 {
        let few = count(members.len());
        let message = format!("{few} cannot lose one: elections would stop");
        findings.note(MEMBERS, "members", message);
    }
}

fn count(members: usize) -> String {
    if members == 1 {
        "one member".to_owned()
    } else {
        format!("{members} members")
    }
}
