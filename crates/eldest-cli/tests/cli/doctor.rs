//! Tests `eldest doctor`.

use std::process::Command;
use std::time::Duration;

use eldest_fixtures::grpc_proxy::GrpcProxy;
use eldest_fixtures::text::has;
use eldest_fixtures::tls::TlsEtcd;
use eldest_testing::{Etcd, Proxy};
use etcd_client::{AlarmAction, AlarmType, Client};
use serde_json::Value;

use crate::common::{
    DONE, Ended, Result, SICK, UNAVAILABLE, at, eldest, join, keys, leases, node, put, ran, run,
};

/// Returns the findings of one check, as (level, message, remedy).
pub(crate) fn found(ended: &Ended, check: &str) -> Vec<(String, String, String)> {
    let report = ended.json();
    let findings = report["findings"].as_array().expect("findings").iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    findings
        .filter(|finding| finding["check"] == check)
        .map(|f| (text(&f["level"]), text(&f["detail"]), text(&f["remedy"])))
        .collect()
}

impl Ended {
    /// Asserts that the report has a finding of this check and level, with this message and remedy.
    #[track_caller]
    pub(crate) fn finds(&self, what: &str, message: &str, remedy: &str) {
        let (check, level) = what.split_once(' ').expect("a check and a level");
        let all = found(self, check);
        let mut fits = all
            .iter()
            .filter(|(l, m, r)| l == level && m.contains(message) && r.contains(remedy));
        assert!(
            fits.next().is_some(),
            "{what} {message:?} {remedy:?} is not in {all:?}"
        );
    }
}

/// Returns the grace period in milliseconds that the report suggests, if it suggests one.
fn shorter_grace(ended: &Ended) -> Option<u64> {
    let all = found(ended, "ttl").into_iter();
    let mut suggested = all.filter_map(|(.., remedy)| {
        let (_, grace) = remedy.split_once("--grace ")?;
        grace.split_once("ms")?.0.parse().ok()
    });
    suggested.next()
}

/// Runs the doctor without the comparison of the clocks and the pings, which take seconds.
pub(crate) async fn examine(command: Command) -> Result<Ended> {
    examine_with(command, &["--clock", "0s"]).await
}

/// Runs the doctor with options that no other command has.
pub(crate) async fn examine_with(mut command: Command, more: &[&str]) -> Result<Ended> {
    command.args(["doctor", "--output", "json", "--log", "off"]);
    command.args(more);
    run(command).await
}

async fn revision(client: &mut Client) -> Result<i64> {
    let answer = client.get("nothing", None).await?;
    Ok(answer.header().ok_or("a header")?.revision())
}

#[tokio::test]
async fn a_healthy_etcd_passes_and_is_left_as_it_was() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let a = node(&etcd, "a").await?;
    let _candidate = join(&a, "jobs").await?;
    let before = (keys(&mut client).await?, revision(&mut client).await?);
    let mut command = eldest(&["--endpoints", &etcd.endpoint()]);
    command.args(["--request-timeout", "5s", "--ttl", "60s"]);
    command.args(["--clock-drift-ppm", "100000"]);
    let report = examine_with(command, &[]).await?;
    report.done();
    let version = format!("etcd {}", etcd.version());
    for (what, message) in [
        ("reachable ok", &*version),
        ("latency ok", "median of 20"),
        ("round_trip ok", "away (median of 10 round trips)"),
        ("request_timeout ok", "5s; six round trips of"),
        ("members ok", "the only member was asked"),
        ("members note", "one member cannot lose one"),
        ("ttl ok", "60s;"),
        ("ttl ok", "two answers of 5.0s"),
        ("ttl ok", "the margin 2s and the grace period 10s"),
        ("clock ok", "ppm"),
        (
            "permissions ok",
            "this user may read and write all below eldest/",
        ),
        ("pings ok", "accepts the pings of a session, every 6s"),
        ("blocked ok", "none of 1 is blocked"),
    ] {
        report.finds(what, message, "");
    }
    assert!(found(&report, "nearest").is_empty(), "there is no choice");
    let after = (keys(&mut client).await?, revision(&mut client).await?);
    assert_eq!(after, before);
    leases(&mut client, 1).await?;
    Ok(())
}

#[tokio::test]
async fn people_get_a_block_for_each_thing_and_a_sum() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    put(&mut client, "eldest/jobs/immortal", "old").await?;
    let report = ran(&etcd, "doctor --clock 0s --ttl 60s").await?;
    assert_eq!(report.code, SICK, "{report:?}");
    let lines: Vec<&str> = report.stdout.lines().collect();
    assert_eq!(lines[0], etcd.endpoint());
    assert!(lines[1].starts_with("  ok    etcd 3."), "{lines:?}");
    let failure = lines.iter().position(|line| line.starts_with("  FAIL"));
    let failure = failure.ok_or("a failure")?;
    assert_eq!(
        lines[failure..failure + 2],
        [
            "  FAIL  jobs is blocked by the key eldest/jobs/immortal, which has no lease and so never expires",
            "        -> if no program needs the key: eldest evict jobs --candidate eldest/jobs/immortal",
        ]
    );
    assert_eq!(lines[failure + 2], "guard");
    let sum = lines.last().ok_or("no sum")?;
    assert!(sum.starts_with("1 must be changed, "), "{sum}");
    Ok(())
}

#[tokio::test]
async fn a_member_that_does_not_answer_is_distinguished_from_the_others() -> Result {
    let (etcd, mut dead) = (Etcd::start().await?, Etcd::start().await?);
    dead.kill();
    let endpoints = format!("{},{}", etcd.endpoint(), dead.endpoint());
    let report = examine(eldest(&["--endpoints", &endpoints])).await?;
    assert_eq!(report.code, SICK, "{report:?}");
    report.finds("reachable ok", "etcd's leader", "");
    let message = &dead.endpoint();
    report.finds("reachable fail", message, "remove it from --endpoints");
    let report = examine(eldest(&["--endpoints", &dead.endpoint()])).await?;
    assert_eq!(report.code, UNAVAILABLE, "{report:?}");
    Ok(())
}

#[tokio::test]
async fn endpoints_are_compared_with_the_members_and_with_each_other() -> Result {
    let cluster = Etcd::builder().start_cluster(3).await?;
    let all = cluster.endpoints();
    let some = format!("{},{}", all[0], all[1]);
    let report = examine(eldest(&["--endpoints", &some])).await?;
    report.finds("members warn", &all[2], "name every member");
    let proxy = Proxy::start(all[0].trim_start_matches("http://")).await?;
    let twice = format!("{},{}", all.join(","), proxy.endpoint());
    let report = examine(eldest(&["--endpoints", &twice])).await?;
    report.finds("members ok", "all members were asked: 3", "");
    report.finds("endpoints warn", "are the same member", "once");
    let other = Etcd::start().await?;
    let mixed = format!("{},{}", all[0], other.endpoint());
    let report = examine(eldest(&["--endpoints", &mixed])).await?;
    assert_eq!(report.code, SICK, "{report:?}");
    report.finds("cluster fail", "2 different clusters", "one cluster");
    Ok(())
}

#[tokio::test]
async fn a_member_without_a_quorum_and_a_full_database_are_reported() -> Result {
    let mut cluster = Etcd::builder().start_cluster(2).await?;
    let survivor = cluster.endpoints()[0].clone();
    cluster.member(1).kill();
    eldest_testing::eventually(crate::common::SOON, "no leader", async || {
        let mut client = cluster.members()[0].client().await;
        let status = client.status().await.ok()?;
        (status.leader() == 0).then_some(())
    })
    .await?;
    let report = examine(eldest(&["--endpoints", &survivor])).await?;
    assert_eq!(report.code, SICK, "{report:?}");
    report.finds("leader fail", "knows no leader", "restart enough members");

    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let status = client.status().await?;
    let member = status.header().ok_or("a header")?.member_id();
    let mut options = etcd_client::AlarmOptions::new();
    options.with_member(member);
    client
        .alarm(AlarmAction::Activate, AlarmType::Nospace, Some(options))
        .await?;
    let report = examine(at(&etcd, &[])).await?;
    assert_eq!(report.code, SICK, "{report:?}");
    report.finds("alarms fail", "nobody can join", "alarm disarm");
    report.finds("ttl fail", "no lease was granted", "");
    Ok(())
}

/// Starts an etcd that elects its leader slowly.
async fn slow_etcd() -> Result<Etcd> {
    let slow = Etcd::builder().heartbeat(Duration::from_millis(500));
    let slow = slow.election_timeout(Duration::from_secs(5));
    Ok(slow.start().await?)
}

#[tokio::test]
async fn unsuitable_ttl_is_reported_with_a_suitable_one() -> Result {
    let slow = slow_etcd().await?;
    let report = examine(at(&slow, &["--ttl", "4s"])).await?;
    report.finds("ttl warn", "grants no lease below 8s", "--ttl 8s");
    let short = found(&report, "ttl")
        .into_iter()
        .find(|(_, m, _)| m.contains("is short"));
    let (_, _, remedy) = short.ok_or("the floor")?;
    let floor = remedy
        .trim_start_matches("--ttl ")
        .split(' ')
        .next()
        .ok_or("a TTL")?;
    let report = examine(at(&slow, &["--ttl", floor])).await?;
    let mut ttl = found(&report, "ttl").into_iter();
    assert!(ttl.all(|(level, ..)| level != "fail"), "{report:?}");
    // The measured times vary from run to run; the remedy adds a request timeout that grows with the TTL.
    let longer = format!("{}s", floor.trim_end_matches('s').parse::<u64>()? * 2);
    let report = examine(at(&slow, &["--ttl", &longer])).await?;
    report.finds("ttl ok", &format!("{longer};"), "");
    Ok(())
}

/// Examines a member until it answers every read in time: on a busy machine, the report is about a read without an
/// answer.
async fn examine_answering(args: &[&str]) -> Result<Ended> {
    loop {
        let report = examine(eldest(args)).await?;
        let latencies = found(&report, "latency");
        if latencies.iter().all(|(level, ..)| level != "fail") {
            return Ok(report);
        }
    }
}

#[tokio::test]
async fn slow_answers_are_reported_with_the_timeout_that_they_need() -> Result {
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    proxy.delay(Duration::from_millis(150));
    let endpoint = proxy.endpoint();
    let report = examine_answering(&["--endpoints", &endpoint, "--ttl", "10s"]).await?;
    let message = "the request timeout is 500ms";
    report.finds("latency warn", message, "--request-timeout");
    let message = "--request-timeout 500ms is short";
    report.finds("request_timeout warn", message, "");
    report.finds("ttl warn", "--ttl 10s is short", "");
    let advice = advised(&report)?;
    assert!(
        (300..400).contains(&advice.trim_end_matches("ms").parse::<u32>()?),
        "{advice}"
    );
    let both = "instead of --request-timeout and --ttl: a request timeout of 2.";
    report.finds("ttl warn", "", both);
    // The measured times do not grow with the timeout, and the advice covers all that were measured.
    let longer = format!("{}ms", advice.trim_end_matches("ms").parse::<u32>()? + 50);
    let report = examine_answering(&["--endpoints", &endpoint, "--round-trip", &longer]).await?;
    for check in ["latency", "request_timeout", "ttl"] {
        report.finds(&format!("{check} ok"), "", "");
        assert_eq!(found(&report, check).len(), 1, "{report:?}");
    }
    Ok(())
}

/// Returns the `--round-trip` that the findings about the request timeout advise.
fn advised(report: &Ended) -> Result<String> {
    let mut findings = found(report, "request_timeout").into_iter();
    let (.., remedy) = findings.next().ok_or("a finding")?;
    let value = remedy.strip_prefix("--round-trip ").ok_or(remedy.clone())?;
    let end = value.find([' ', ':']).ok_or(remedy.clone())?;
    Ok(value[..end].to_owned())
}

#[tokio::test]
async fn time_to_answer_challenges_is_compared_with_reads_and_etcds_election_timeout() -> Result {
    let etcd = Etcd::start().await?;
    let challenged = |time| ["--ttl", "30s", "--challenges", time];
    let report = examine(at(&etcd, &challenged("20s"))).await?;
    report.finds("answer_within ok", "20s; a read may take", "");
    report.finds("challenges_port note", "no port", "");
    let report = examine(at(&etcd, &["--ttl", "30s"])).await?;
    assert_eq!(found(&report, "answer_within"), []);

    let slow = slow_etcd().await?;
    let report = examine(at(&slow, &challenged("4s"))).await?;
    report.finds("answer_within note", "ends terms: --challenges ", "");
    Ok(())
}

#[tokio::test]
async fn advertised_port_for_signs_of_life_is_tried() -> Result {
    let etcd = Etcd::start().await?;
    let examined = async |listen: &str, advertised: Option<&str>| {
        let mut args = vec!["--challenges", "steady", "--challenges-listen", listen];
        args.extend(
            advertised
                .iter()
                .flat_map(|at| ["--challenges-advertise", at]),
        );
        examine(at(&etcd, &args)).await
    };
    let report = examined("127.0.0.1:0", None).await?;
    report.finds("challenges_port ok", "leads to", "");
    let other = std::net::TcpListener::bind("127.0.0.1:0")?;
    let place = other.local_addr()?.to_string();
    let report = examined(&place, None).await?;
    report.finds("challenges_port ok", "accepts connections", "");
    let free = std::net::TcpListener::bind("127.0.0.1:0")?;
    let listen = free.local_addr()?.to_string();
    drop(free);
    let report = examined(&listen, Some(&place)).await?;
    report.finds(
        "challenges_port warn",
        "leads elsewhere",
        "correct --challenges-advertise",
    );
    drop(other);
    let report = examined(&listen, Some(&place)).await?;
    report.finds("challenges_port warn", "cannot hear this one", "");
    report.finds("challenges_port note", "a second session", "");
    Ok(())
}

#[tokio::test]
async fn too_long_grace_period_is_reported_with_a_suitable_one() -> Result {
    let etcd = Etcd::start().await?;
    let args = ["--ttl", "10s", "--clock", "0s", "--grace"];
    let report = examine_with(at(&etcd, &[]), &[&args[..], &["4500ms"]].concat()).await?;
    report.finds("ttl warn", "the grace period 4.5s", "or --grace ");
    let mut suggested = shorter_grace(&report).ok_or("a grace period")?;
    // A run that finds etcd slower than the one before suggests a shorter one again.
    for _ in 0..5 {
        let grace = format!("{suggested}ms");
        let report = examine_with(at(&etcd, &[]), &[&args[..], &[&grace]].concat()).await?;
        let Some(shorter) = shorter_grace(&report) else {
            report.finds("ttl ok", "10s; a renewal may be", "");
            return Ok(());
        };
        assert!(shorter < suggested, "{shorter} after {suggested}");
        suggested = shorter;
    }
    Err("each run suggests a shorter grace period".into())
}

#[tokio::test]
async fn the_endpoint_that_a_node_here_uses_is_reported_with_the_reason() -> Result {
    let cluster = Etcd::builder().start_cluster(2).await?;
    let (far, near) = (
        Proxy::start(&cluster.endpoints()[0]).await?,
        Proxy::start(&cluster.endpoints()[1]).await?,
    );
    far.delay(Duration::from_millis(60));
    let plain = format!("{},{}", far.endpoint(), near.endpoint());
    let named = format!("eu={},us={}", far.endpoint(), near.endpoint());
    let nearest = async |endpoints: &str, place: &str, what: &str, message: &str, remedy: &str| {
        let mut args = vec!["--endpoints", endpoints];
        if !place.is_empty() {
            args.extend(["--data-center", place]);
        }
        let report = examine(eldest(&args)).await?;
        report.finds(what, message, remedy);
        Result::Ok(report)
    };
    let uses = |who: &Proxy, why: &str| format!("a node here uses {}: {why}", who.endpoint());
    nearest(&plain, "", "nearest ok", &uses(&near, "no other"), "").await?;
    let own = uses(&far, "it is in the node's data centre");
    let report = nearest(&named, "eu", "nearest ok", &own, "").await?;
    let (_, message, _) = found(&report, "nearest").remove(0);
    let title = format!("round trips: eu={} ", far.endpoint());
    let listed = message.split(&title).last();
    let distance = listed.and_then(|it| it.split_once("ms,"));
    let (distance, near_too) = distance.ok_or(message.clone())?;
    // The proxy delays both ways by 60 ms.
    assert!(distance.parse::<f64>()? >= 120.0, "{message}");
    has(near_too, &[&format!("us={}", near.endpoint())]);
    far.cut();
    let other = uses(&near, "a preferred one does not answer");
    nearest(&named, "eu", "nearest ok", &other, "").await?;
    let unknown = "the data centre \"asia\"";
    nearest(&named, "asia", "nearest warn", unknown, "asia=URL").await?;
    let missing = "a node needs --data-center";
    nearest(&named, "", "nearest warn", missing, "give --data-center").await?;
    Ok(())
}

#[tokio::test]
async fn the_grpc_proxy_of_etcd_must_be_replaced_by_the_members() -> Result {
    let etcd = Etcd::start().await?;
    let proxy = GrpcProxy::start(&etcd.address(), &["--advertise-client-url="])?;
    let ended = examine(eldest(&["--endpoints", &proxy.endpoint()])).await?;
    assert_eq!(ended.code, SICK, "{ended:?}");
    let message = "etcd's gRPC proxy";
    ended.finds("direct fail", message, "members of etcd");
    Ok(())
}

#[tokio::test]
async fn etcd_that_closes_connections_because_of_pings_is_reported_with_the_remedy() -> Result {
    let strict = Etcd::builder().arg("--grpc-keepalive-min-time=7s");
    let strict = strict.start().await?;
    // etcd does not count pings where it serves gRPC and HTTP at one address behind TLS.
    let sealed = TlsEtcd::start_open(&["--grpc-keepalive-min-time=7s"]).await?;
    // The limit is just below the pause between a session's pings.
    let lenient = Etcd::builder().arg("--grpc-keepalive-min-time=5900ms");
    let lenient = lenient.start().await?;
    let ca = sealed.file("ca.pem").display().to_string();
    let over_tls = eldest(&["--endpoints", &sealed.endpoint, "--cacert", &ca]);
    let (cut, kept_over_tls, kept) = tokio::try_join!(
        examine_with(at(&strict, &[]), &[]),
        examine_with(over_tls, &[]),
        examine_with(at(&lenient, &[]), &[]),
    )?;
    let remedy = "--grpc-keepalive-min-time of 5s";
    cut.finds("pings warn", &strict.endpoint(), remedy);
    assert_eq!(cut.code, DONE, "{cut:?}");
    for report in [kept, kept_over_tls] {
        report.finds("pings ok", "", "");
    }
    Ok(())
}
