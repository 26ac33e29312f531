//! Tests the metrics: exactly those of docs/metrics.md, with correct values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use eldest::metrics::{RENEWAL_BUCKETS, describe};
use eldest::{Announcement, Session, SessionOptions};
use eldest_fixtures::metrics::documented;
use eldest_http::Node;
use eldest_testing::{Etcd, MemoryEtcd, Proxy, eventually};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::caller::get;
use crate::stage::{Result, SOON, Server, Standing, answers, options};

/// The one recorder for all tests of this program; each test has identities of its own.
static RECORDER: LazyLock<PrometheusHandle> = LazyLock::new(|| {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(
            Matcher::Full("eldest_renewal_duration_seconds".to_owned()),
            &RENEWAL_BUCKETS,
        )
        .expect("buckets");
    let handle = builder.install_recorder().expect("the only one");
    describe();
    handle
});

/// Returns the value of the one sample that has all these labels.
fn sample(page: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let labels: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
    let mut lines = page.lines().filter(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with('{'))
            && labels.iter().all(|label| line.contains(label.as_str()))
    });
    let line = lines.next()?;
    assert!(lines.next().is_none(), "{name} {labels:?} twice");
    line.rsplit(' ').next()?.parse().ok()
}

/// Waits until the value of a sample satisfies the condition.
async fn becomes(name: &str, labels: &[(&str, &str)], wanted: impl Fn(f64) -> bool) -> Result<f64> {
    Ok(eventually(SOON, format!("{name} {labels:?}"), async || {
        sample(&RECORDER.render(), name, labels).filter(|value| wanted(*value))
    })
    .await?)
}

/// Waits until a counter is at least one.
async fn counted(name: &str, labels: &[(&str, &str)]) -> Result<f64> {
    becomes(name, labels, |count| count >= 1.0).await
}

#[expect(clippy::float_cmp, reason = "whole numbers, exactly")]
fn is(wanted: f64) -> impl Fn(f64) -> bool {
    move |value| value == wanted
}

#[tokio::test]
async fn leading_rank_and_terms_are_shown_as_they_change() -> Result {
    LazyLock::force(&RECORDER);
    let etcd = MemoryEtcd::start();
    // A session within the process has a wall clock of its own.
    let a = Session::connect([etcd.listen("127.0.0.1:0").await?], options("metrics-a")).await?;
    let a = Standing::of(a).await?;
    answers(a.server.at, "/leader", 200).await?;
    let b = Standing::start(&etcd, "metrics-b").await?;
    let [of_a, of_b] =
        ["metrics-a", "metrics-b"].map(|name| [("identity", name), ("election", "team/e")]);
    becomes("eldest_leading", &of_a, is(1.0)).await?;
    becomes("eldest_leading", &of_b, is(0.0)).await?;
    becomes("eldest_rank", &of_a, is(1.0)).await?;
    becomes("eldest_rank", &of_b, is(2.0)).await?;
    becomes("eldest_terms_started_total", &of_a, is(1.0)).await?;
    let wall = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)?
        .as_secs_f64();
    becomes("eldest_term_began_timestamp_seconds", &of_a, |began| {
        (0.0..30.0).contains(&(wall - began))
    })
    .await?;
    becomes(
        "eldest_lease_deadline_timestamp_seconds",
        &of_a[..1],
        |deadline| (30.0..60.0).contains(&(deadline - wall)),
    )
    .await?;
    let answer = crate::caller::post(a.server.at, "/v1/elections/team%2Fe/step_down").await?;
    assert_eq!(answer.status, 200);
    becomes("eldest_leading", &of_b, is(1.0)).await?;
    becomes("eldest_leading", &of_a, is(0.0)).await?;
    becomes("eldest_rank", &of_a, is(2.0)).await?;
    becomes("eldest_term_began_timestamp_seconds", &of_a, is(0.0)).await?;
    let ended = [of_a[0], of_a[1], ("reason", "stepped_down")];
    becomes("eldest_terms_ended_total", &ended, is(1.0)).await?;
    b.stop().await?;
    becomes("eldest_rank", &of_b, is(0.0)).await?;
    becomes("eldest_terms_started_total", &of_a, is(2.0)).await?;
    Ok(())
}

#[tokio::test]
async fn evacuation_is_shown_while_it_is_in_force() -> Result {
    LazyLock::force(&RECORDER);
    let etcd = MemoryEtcd::start();
    let me = Announcement::default().with_data_center("metrics-dc1");
    let a = Standing::with(&etcd, options("metrics-e").announcement(me)).await?;
    let identity = ("identity", "metrics-e");
    for data_center in ["metrics-dc1", "metrics-dc2"] {
        let labels = [identity, ("data_center", data_center)];
        a.session.evacuate(data_center).await?;
        becomes("eldest_evacuated", &labels, is(1.0)).await?;
        a.session.lift(data_center).await?;
        becomes("eldest_evacuated", &labels, is(0.0)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn renewals_reconnects_and_switches_are_counted() -> Result {
    LazyLock::force(&RECORDER);
    let etcd = Etcd::start().await?;
    let proxies = [
        Proxy::start(etcd.endpoint()).await?,
        Proxy::start(etcd.endpoint()).await?,
    ];
    let options = SessionOptions::new("metrics-c")
        .ttl(Duration::from_secs(3))
        .request_timeout(Duration::from_millis(300))
        .grace(Duration::from_millis(300));
    let session = Session::connect(proxies.each_ref().map(Proxy::endpoint), options).await?;
    let mut candidate = session.election("e")?.campaign().await?;
    let _leadership = candidate.elected().await?;
    let identity = ("identity", "metrics-c");
    let verified = [identity, ("outcome", "verified")];
    let before = counted("eldest_renewals_total", &verified).await?;
    let count = "eldest_renewal_duration_seconds_count";
    becomes(count, &[identity], |measured| measured >= before).await?;
    let page = RECORDER.render();
    let all = sample(
        &page,
        "eldest_renewal_duration_seconds_bucket",
        &[identity, ("le", "+Inf")],
    );
    assert_eq!(all, sample(&page, count, &[identity]));
    assert!(sample(&page, "eldest_watch_reconnects_total", &[identity]).is_none());
    proxies.iter().for_each(Proxy::cut);
    counted("eldest_watch_reconnects_total", &[identity]).await?;
    for lane in ["lease", "data"] {
        counted("eldest_endpoint_switches_total", &[("lane", lane)]).await?;
    }
    counted("eldest_renewals_total", &[identity, ("outcome", "failed")]).await?;
    proxies.iter().for_each(Proxy::heal);
    becomes("eldest_renewals_total", &verified, |count| count > before).await?;
    proxies.iter().for_each(Proxy::cut);
    let lost = [identity, ("reason", "lease_expiring")];
    counted("eldest_leases_lost_total", &lost).await?;
    eventually(SOON, "a failed request", async || {
        let page = RECORDER.render();
        let mut lines = page.lines().filter(|line| line.contains("metrics-c"));
        let failed = lines.any(|line| line.starts_with("eldest_requests_failed_total{"));
        failed.then_some(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn metrics_page_shows_leadership_by_the_clock() -> Result {
    LazyLock::force(&RECORDER);
    let etcd = MemoryEtcd::start();
    let session = etcd.session(options("metrics-d")).await?;
    let election = session.election("e")?;
    let without = Server::plain(Node::new().works_in(&election)).await?;
    let answer = get(without.at, "/metrics").await?;
    answer.refused(404, "no_metrics");

    let node = Node::new()
        .works_in(&election)
        .metrics(|| RECORDER.render());
    let server = Server::plain(node).await?;
    let leading = async || -> Result<Option<f64>> {
        let answer = get(server.at, "/metrics").await?;
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.header("content-type"),
            Some("text/plain; version=0.0.4; charset=utf-8")
        );
        let labels = [("identity", "metrics-d"), ("election", "e")];
        Ok(sample(&answer.body, "eldest_leading", &labels))
    };
    assert_eq!(leading().await?, Some(0.0), "before it ever stood");
    let mut candidate = election.campaign().await?;
    let leadership = candidate.elected().await?;
    assert_eq!(leading().await?, Some(1.0));
    leadership.resign().await?;
    assert_eq!(leading().await?, Some(0.0));
    Ok(())
}

/// The measured names are read from the two files that record metrics.
#[test]
fn the_table_lists_exactly_what_the_library_measures() {
    let mut measured = BTreeMap::new();
    for source in [
        include_str!("../../../../src/metrics.rs"),
        include_str!("../../../eldest-etcd/src/metrics.rs"),
    ] {
        let (described, recorded) = source.split_once("mod recorders {").expect("the calls");
        for kind in ["counter", "gauge", "histogram"] {
            for call in recorded.split(&format!(" {kind}!(")).skip(1) {
                let (name, labels) = measurement(call);
                assert!(
                    described.contains(&format!("\"{name}\"")),
                    "{name} has no help text"
                );
                measured.insert(name, (kind.to_owned(), labels));
            }
        }
    }
    assert_eq!(measured, documented());
}

/// Returns the name and the labels in a call of the facade.
fn measurement(call: &str) -> (String, BTreeSet<String>) {
    let call = call.split(");").next().expect("a part");
    let literals: Vec<&str> = call.split('"').collect();
    let (name, rest) = (literals[1], &literals[2..]);
    // In the source, an arrow follows each label.
    let labels = rest
        .windows(2)
        .filter(|pair| pair[1].trim_start().starts_with("=>"));
    (
        name.to_owned(),
        labels.map(|pair| pair[0].to_owned()).collect(),
    )
}

#[tokio::test]
async fn lookups_of_endpoints_are_counted_by_their_source_and_outcome() -> Result {
    LazyLock::force(&RECORDER);
    let etcd = Etcd::start().await?;
    let endpoints = [
        etcd.endpoint(),
        etcd.endpoint()
            .replace("http://127.0.0.1", "dns+http://localhost"),
        "dns+http://etcd.invalid:2379".to_owned(),
    ];
    let options = SessionOptions::new("metrics-lookups").follow_members();
    let _session = Session::connect(endpoints, options).await?;
    for (source, outcome) in [
        ("dns", "answered"),
        ("dns", "failed"),
        ("members", "answered"),
    ] {
        let labels = [
            ("identity", "metrics-lookups"),
            ("source", source),
            ("outcome", outcome),
        ];
        counted("eldest_endpoint_lookups_total", &labels).await?;
    }
    Ok(())
}
