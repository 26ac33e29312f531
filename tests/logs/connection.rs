//! Tests the log lines of outages, late renewals and endpoints.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use eldest::internal::{Env as _, System};
use eldest::sim::Scripted;
use eldest::{Candidate, LostReason, Session, SessionOptions};
use eldest_testing::{Etcd, EtcdCluster, Proxy, eventually};
use etcd_client::Client;
use futures::FutureExt;
use tokio::time::timeout;
use tracing::Level;

use super::{ELECTION, ETCD, LONG, Result, SESSION, capture, elected_again, options};
use crate::capture::{Line, Logs};

/// Starts a leader behind a proxy, and a client that bypasses it.
async fn behind_a_proxy(
    etcd: &Etcd,
    options: SessionOptions,
) -> Result<(Proxy, Client, Candidate, eldest::Leadership)> {
    let proxy = Proxy::start(etcd.address()).await?;
    let session = Session::connect([proxy.endpoint()], options).await?;
    let mut candidate = session.election("jobs")?.campaign().await?;
    let leadership = timeout(LONG, candidate.elected()).await??;
    Ok((proxy, etcd.client().await, candidate, leadership))
}

#[tokio::test]
async fn failed_renewals_and_the_end_of_trust_are_logged() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let (proxy, mut client, mut candidate, leadership) =
        behind_a_proxy(&etcd, options("a")).await?;
    proxy.hold();
    timeout(LONG, leadership.lost().cancelled()).await?;
    assert_eq!(leadership.lost_reason(), Some(LostReason::LeaseExpiring));
    client.lease_revoke(leadership.term().lease_id()).await?;
    eventually(LONG, "the term's end is logged", async || {
        (!logs.of(ELECTION, "term ended", &[]).is_empty()).then_some(())
    })
    .await?;
    let ended = logs.one(ELECTION, "term ended", &[("reason", "lease_expiring")]);
    assert_eq!(ended.level, Level::WARN);
    let failed = logs.of(SESSION, "renewal failed", &[("class", "Retry")]);
    assert!(!failed.is_empty(), "{logs:?}");
    assert!(failed.iter().all(|line| line.level == Level::WARN));
    assert!(
        failed[0].field("why").contains(&proxy.endpoint()),
        "{failed:?}"
    );
    let lost = logs.of(SESSION, "lease lost", &[("reason", "lease_expiring")]);
    assert_eq!(lost.len(), 1);
    proxy.heal();
    drop(leadership);
    let _again = elected_again(&mut candidate).await?;
    // The old lease's expiry is the same loss and is not logged again.
    assert_eq!(logs.of(SESSION, "lease granted", &[]).len(), 2);
    assert_eq!(logs.of(SESSION, "lease lost", &[]).len(), 1);
    Ok(())
}

/// Checks that the end is logged like the beginning, and that no later line reports the outage as lasting.
fn is_the_end(logs: &Logs, what: &str, over: &Line) -> Result {
    assert_eq!(over.level, Level::WARN);
    let lasted = |line: &Line| line.field("lasted").trim_end_matches('s').parse::<f64>();
    for goes_on in logs.of(SESSION, "still failing", &[("what", what)]) {
        assert!(lasted(&goes_on)? <= lasted(over)?, "{goes_on:?}, {over:?}");
    }
    Ok(())
}

/// Counts the warnings for 25 elections, whose requests all fail again and again.
#[tokio::test]
async fn an_outage_is_logged_in_few_lines_that_name_the_elections() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let session = Session::connect([proxy.endpoint()], options("a")).await?;
    let (mut candidates, mut leaders) = (Vec::new(), Vec::new());
    for number in 0..25 {
        let name = format!("jobs-{number:02}");
        let mut candidate = session.election(name)?.campaign().await?;
        leaders.push(elected_again(&mut candidate).await?);
        candidates.push(candidate);
    }
    // On a busy machine, a renewal may have failed while some were not elected yet.
    logs.forget();
    proxy.cut();
    timeout(LONG, leaders[0].lost().cancelled()).await?;
    // The deletion of their keys is retried again and again.
    drop(leaders);
    let delete = [("what", "delete"), ("class", "Retry")];
    let first_line = async |message, fields: &[(&str, &str)]| {
        eventually(LONG, format!("{message}: {fields:?}"), async || {
            let lines = logs.of(SESSION, message, fields);
            lines.into_iter().next()
        })
        .await
    };
    let summary = first_line("still failing", &delete).await?;
    assert_eq!(summary.level, Level::WARN);
    let failures: u64 = summary.field("failures").parse()?;
    assert!(failures > 25, "each failed more than once: {summary:?}");
    let names = "jobs-00, jobs-01, jobs-02, jobs-03, jobs-04 and 20 more";
    assert_eq!(summary.field("elections"), names);
    // Requests in flight when the connection broke fail for a reason of their own.
    let one_for_each_reason = |message, fields: &[(&str, &str)]| {
        let lines = logs.of(SESSION, message, fields);
        let reasons: BTreeSet<&str> = lines.iter().map(|line| line.field("why")).collect();
        assert!(
            reasons.len() == lines.len() && !lines.is_empty(),
            "{lines:?}"
        );
        lines
    };
    for first in one_for_each_reason("request failed", &delete) {
        assert!(first.field("elections").starts_with("jobs-"), "{first:?}");
    }
    for renewal in one_for_each_reason("renewal failed", &[]) {
        let names = renewal.field("elections");
        assert!(names.ends_with("and 20 more"), "{renewal:?}");
    }
    // One line at once, and one for every 10 s of less than 30.
    for what in ["delete", "renewal", "watch stream", "join", "list"] {
        let lines = logs.of(SESSION, "still failing", &[("what", what)]).len();
        assert!(lines <= 3, "{lines} lines for {what}");
    }
    proxy.heal();
    for what in ["renewal", "delete"] {
        let over = first_line("no longer failing", &[("what", what)]).await?;
        is_the_end(&logs, what, &over)?;
    }
    let renewed = logs.of(SESSION, "renewed", &[("identity", "a")]);
    assert!(renewed.iter().all(|line| line.level == Level::TRACE) && !renewed.is_empty());
    let late = logs.of(SESSION, "renewed late", &[]);
    assert_eq!(late.len(), 0, "the terms were over: {late:?}");
    Ok(())
}

#[tokio::test]
async fn a_late_renewal_is_logged_with_the_time_left() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    // A renewal counts as late in the 2.7 s before the token falls.
    let request_timeout = Duration::from_millis(2700);
    let options = SessionOptions::new("a")
        .ttl(Duration::from_secs(9))
        .request_timeout(request_timeout)
        .margin(Duration::from_millis(50))
        .grace(Duration::from_millis(500));
    let (proxy, _, _candidate, leadership) = behind_a_proxy(&etcd, options).await?;
    let valid_until = leadership.valid_until().since_boot();
    proxy.hold();
    let late = Duration::from_millis(2900);
    eventually(LONG, "it is late", async || {
        (leadership.valid_until().time_left() < late).then_some(())
    })
    .await?;
    proxy.heal();
    eventually(LONG, "renewed", async || {
        (leadership.valid_until().since_boot() > valid_until).then_some(())
    })
    .await?;
    assert_eq!(leadership.lost_reason(), None);
    let lines = logs.of(SESSION, "renewed late", &[("identity", "a")]);
    let [line] = &lines[..] else {
        panic!("once: {logs:?}");
    };
    assert_eq!(line.level, Level::WARN);
    assert!(line.field("left").ends_with('s'), "a duration: {line:?}");
    Ok(())
}

#[tokio::test]
async fn a_switched_endpoint_is_logged_with_both_names() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let (one, two) = (
        Proxy::start(etcd.address()).await?,
        Proxy::start(etcd.address()).await?,
    );
    let endpoints = [one.endpoint(), two.endpoint()];
    let session = Session::connect(&endpoints, options("a")).await?;
    let mut candidate = session.election("jobs")?.campaign().await?;
    let leadership = timeout(LONG, candidate.elected()).await??;
    one.cut();
    for lane in ["lease", "data"] {
        let switched = eventually(LONG, format!("the {lane} lane is switched"), async || {
            let lines = logs.of(ETCD, "endpoint switched", &[("lane", lane)]);
            lines.into_iter().next()
        })
        .await?;
        assert_eq!(switched.level, Level::WARN);
        assert!(switched.says(&[("from", &endpoints[0]), ("to", &endpoints[1])]));
        assert!(!switched.field("why").is_empty());
        assert_eq!(
            switched.within,
            ["session"],
            "whose endpoint, is in the span"
        );
    }
    let lost = logs.of(SESSION, "watch lost", &[("identity", "a")]);
    assert!(!lost.is_empty(), "{logs:?}");
    assert!(leadership.is_valid(), "and nothing else happened");
    Ok(())
}

#[tokio::test]
async fn a_name_that_is_not_found_is_logged_once() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let asked = Arc::new(AtomicUsize::new(0));
    let lookups = Arc::clone(&asked);
    let system = System::new().expect("in a runtime");
    let (clock, alarm) = (system.clone(), system);
    let env = Scripted {
        now: Box::new(move || clock.now()),
        wake_at: Box::new(move |at| alarm.wake_at(at)),
        addresses: Box::new(move |_| {
            lookups.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Err(io::ErrorKind::NotFound.into())).boxed()
        }),
        ..Scripted::real()
    };
    let endpoints = [etcd.endpoint(), "dns+http://etcd.test:1".to_owned()];
    let session = Session::connect(endpoints, options("a").env(Arc::new(env))).await?;
    eventually(LONG, "it is looked up again and again", async || {
        (asked.load(Ordering::SeqCst) > 2).then_some(())
    })
    .await?;
    session.close().await?;
    let name = [("name", "dns+http://etcd.test:1")];
    let line = logs.one(ETCD, "name not looked up", &name);
    assert_eq!(line.level, Level::WARN);
    Ok(())
}

/// A member that lost its majority may have an outdated list.
#[tokio::test]
async fn list_of_a_member_without_a_majority_is_not_followed() -> Result {
    let logs = capture();
    let mut cluster = EtcdCluster::start(3).await?;
    cluster.leader().await;
    for member in 1..3 {
        cluster.member(member).stop().await?;
    }
    let last = &cluster.endpoints()[0];
    let _session = Session::connect_lazy([last], options("a").follow_members())?;
    let line = eventually(LONG, "the list of the last member is refused", async || {
        let lines = logs.of(ETCD, "member list not followed", &[]);
        lines
            .into_iter()
            .find(|line| line.field("why").contains(last))
    })
    .await?;
    assert_eq!(line.level, Level::WARN);
    Ok(())
}

/// Each session would use its nearest cluster, and there would be two leaders.
#[tokio::test]
async fn an_endpoint_of_another_cluster_is_logged_once() -> Result {
    let logs = capture();
    let (one, other) = (Etcd::start().await?, Etcd::start().await?);
    let session = Session::connect([one.endpoint(), other.endpoint()], options("a")).await?;
    let message = "endpoint not used";
    eventually(LONG, "it is logged", async || {
        (!logs.of(ETCD, message, &[]).is_empty()).then_some(())
    })
    .await?;
    let line = logs.one(ETCD, message, &[]);
    assert_eq!(line.level, Level::WARN);
    let used = session.endpoints().borrow().clone();
    let used = used.iter().find(|one| one.requests().is_some());
    let used = used.map(eldest::EndpointStatus::url).unwrap_or_default();
    let unused = [one.endpoint(), other.endpoint()];
    let unused = unused.iter().find(|url| *url != used).ok_or("another")?;
    let why = format!("{unused}: it belongs to another cluster than {used}");
    assert_eq!(line.field("why"), why);
    Ok(())
}
