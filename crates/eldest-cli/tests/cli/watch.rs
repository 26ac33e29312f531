//! Tests `eldest watch`.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use eldest::{Session, SessionOptions};
use eldest_fixtures::program::Program;
use eldest_fixtures::wait::until;
use eldest_testing::{Etcd, Proxy, eventually};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{DONE, Node, Result, SOON, at, join, node, placed, put};

/// Asserts that the next events are these, each with its candidate; returns them.
async fn says(watch: &mut Node, wanted: &[&str]) -> Result<Vec<Value>> {
    let mut events = Vec::new();
    for wanted in wanted {
        let event = watch.json().await?;
        let who = event["candidate"]["identity"].as_str().unwrap_or("nobody");
        let said = format!("{} {who}", event["event"].as_str().unwrap_or_default());
        assert_eq!(said, *wanted, "{event}");
        events.push(event);
    }
    Ok(events)
}

#[tokio::test]
async fn every_change_is_an_object_with_the_time_that_nobody_led() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (placed(&etcd, "a").await?, node(&etcd, "b").await?);
    let mut first = join(&a, "jobs").await?;
    let mut watch = Node::start("watch", at(&etcd, &["watch", "jobs", "--output", "json"]))?;
    let now = says(&mut watch, &["standing a", "leader a"]).await?;
    assert_eq!(now[1]["election"], "jobs");
    assert_eq!(now[1]["candidate"]["address"], "a:80");
    assert!(now[1]["vacant_for_ms"].is_null(), "{now:?}");

    let mut second = join(&b, "jobs").await?;
    says(&mut watch, &["joined b"]).await?;
    second.proclaim("b2").await?;
    says(&mut watch, &["announced b2"]).await?;
    first.leave().await?;
    let handed_over = says(&mut watch, &["left a", "leader b2"]).await?;
    let at_once = handed_over[1]["vacant_for_ms"].is_null();
    assert!(at_once, "{handed_over:?}");
    let [old, new] = [&now[1], &handed_over[1]].map(|it| &it["candidate"]["fencing_token"]);
    assert!(old.as_i64() < new.as_i64(), "{old} and {new}");

    second.leave().await?;
    says(&mut watch, &["left b2", "vacant nobody"]).await?;
    let empty = std::time::Instant::now();
    let _again = join(&a, "jobs").await?;
    let back = says(&mut watch, &["joined a", "leader a"]).await?;
    let vacant = back[1]["vacant_for_ms"].as_u64().ok_or("how long")?;
    let most = (empty.elapsed() + SOON).as_millis();
    assert!(u128::from(vacant) <= most, "{vacant}");

    watch.signal(Signal::INT);
    assert_eq!(watch.end().await?.code(), Some(DONE));
    assert_eq!(watch.log(), "");
    Ok(())
}

/// Asserts that the next line is this, after a time.
async fn writes(watch: &mut Node, wanted: &str) -> Result {
    let line = watch.line().await?;
    let (time, rest) = line.split_once("  ").ok_or("two columns")?;
    assert_eq!(rest, wanted);
    assert!(time.starts_with("20") && time.ends_with('Z'), "{line}");
    Ok(())
}

#[tokio::test]
async fn each_change_vacancy_and_block_is_a_line_for_people() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let mut watch = Node::start("watch", at(&etcd, &["watch", "jobs"]))?;
    writes(&mut watch, "vacant").await?;
    put(&mut client, "eldest/jobs/immortal", "gone long ago").await?;
    writes(&mut watch, "joined     gone long ago at rank 1").await?;
    let blocked = "blocked    by the key eldest/jobs/immortal, which has no lease";
    writes(&mut watch, blocked).await?;
    let a = node(&etcd, "a").await?;
    let _candidate = join(&a, "jobs").await?;
    writes(&mut watch, "joined     a at rank 2").await?;
    client.delete("eldest/jobs/immortal", None).await?;
    writes(&mut watch, "left       gone long ago").await?;
    let leads = watch.line().await?;
    let leader = a.election("jobs")?.leader().await?.ok_or("a leader")?;
    let token = leader.create_revision();
    let said = format!("  leads      a with token {token}; nobody led for ");
    assert!(leads.contains(&said) && leads.ends_with(" s"), "{leads}");
    watch.close().await
}

#[tokio::test]
async fn leader_that_serves_and_candidate_that_is_warm_are_lines() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (node(&etcd, "a").await?, node(&etcd, "b").await?);
    let limit = Duration::from_secs(600);
    let ready = |session: &Session| -> Result<_> {
        let election = session.election("jobs")?;
        Ok(election.serving_within(limit).warm_within(limit))
    };
    let mut first = ready(&a)?.campaign().await?;
    let leadership = first.elected().await?;
    let second = ready(&b)?;
    let _candidate = second.campaign().await?;
    let mut watch = Node::start("watch", at(&etcd, &["watch", "jobs"]))?;
    for _ in ["a", "b"] {
        watch.line().await?;
    }
    let token = leadership.fencing_token();
    let leads = format!("leads      a with token {token} (not serving yet)");
    writes(&mut watch, &leads).await?;
    leadership.serving().await?;
    writes(&mut watch, "serves     a").await?;
    second.set_warm(true).await?;
    writes(&mut watch, "warm       b at rank 2").await?;
    second.set_warm(false).await?;
    writes(&mut watch, "cold       b at rank 2").await
}

/// As with `| head -1`: nothing changes any more, so no write can fail.
#[tokio::test]
async fn watch_ends_when_its_reader_is_gone_though_nothing_changes() -> Result {
    let etcd = Etcd::start().await?;
    let mut watch = Program::start(&mut at(&etcd, &["watch", "jobs"]))?;
    let mut lines = BufReader::new(watch.0.stdout.take().ok_or("a pipe")?).lines();
    lines.next().ok_or("a line")??;
    drop(lines);
    until(SOON, "it ends", async || {
        watch.lives().is_ok_and(|lives| !lives)
    })
    .await?;
    assert_eq!(watch.0.wait()?.code(), Some(DONE));
    Ok(())
}

#[tokio::test]
async fn watch_survives_an_outage_and_reports_missed_changes() -> Result {
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let a = node(&etcd, "a").await?;
    let mut first = join(&a, "jobs").await?;
    let mut command = at(
        &etcd,
        &["watch", "jobs", "--output", "json", "--log", "off"],
    );
    command.env("ELDEST_ENDPOINTS", proxy.endpoint());
    let mut watch = Node::start("watch", command)?;
    says(&mut watch, &["standing a", "leader a"]).await?;
    proxy.cut();
    first.leave().await?;
    let b = node(&etcd, "b").await?;
    let _second = join(&b, "jobs").await?;
    proxy.heal();
    says(&mut watch, &["joined b", "left a", "leader b"]).await?;
    Ok(())
}

/// A leader announces when its term began a third of the TTL later.
#[tokio::test]
async fn leaders_own_time_of_election_is_no_announcement() -> Result {
    let etcd = Etcd::start().await?;
    let options = SessionOptions::new("a").ttl(Duration::from_secs(15));
    let a = Session::connect([etcd.endpoint()], options).await?;
    let election = a.election("jobs")?;
    let mut candidate = election.campaign().await?;
    let _leadership = candidate.elected().await?;
    let mut watch = Node::start("watch", at(&etcd, &["watch", "jobs", "--output", "json"]))?;
    says(&mut watch, &["standing a", "leader a"]).await?;
    eventually(SOON, "it tells", async || {
        let roster = election.roster().await.ok()?;
        roster.leader()?.leads_since().map(drop)
    })
    .await?;
    candidate.proclaim("a2").await?;
    says(&mut watch, &["announced a2"]).await?;
    Ok(())
}
