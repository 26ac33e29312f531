//! Tests nodes that lead on behalf of other programs: the answers of each node over time.

use eldest_fixtures::hang::{closed, freeze, idle};
use eldest_fixtures::http::{answers, ask, get, post, send};
use eldest_fixtures::text::has;
use rustix::process::Signal;

use crate::shared::{Result, SOON, Stage};

const STEP_DOWN: &str = "/v1/elections/team%2Fe/step_down";

#[tokio::test]
async fn second_node_leads_when_the_first_resigns() -> Result {
    let stage = Stage::new().await?;
    let a = stage
        .node(
            "60s",
            "a",
            &["--announce", "address=10.0.0.1:80", "--locks", "jobs/"],
        )
        .await?;
    answers(a.at, "/leader", 200).await?;
    let b = stage.node("60s", "b", &[]).await?;
    let observer = stage.node("60s", "c", &["--observe"]).await?;
    for (node, leader, follower) in [(&a, 200, 503), (&b, 503, 200), (&observer, 503, 200)] {
        assert_eq!(get(node.at, "/leader").await?.status, leader);
        assert_eq!(get(node.at, "/primary").await?.status, leader);
        assert_eq!(get(node.at, "/follower").await?.status, follower);
    }
    let seen = get(observer.at, "/v1/elections/team%2Fe").await?.json();
    assert_eq!(seen["roster"].as_array().map(Vec::len), Some(2), "{seen}");
    assert_eq!(seen["leader"]["identity"], "a");
    assert_eq!(seen["leader"]["address"], "10.0.0.1:80");
    let lock = r#"{"owner":"x"}"#;
    for (node, name, refusal) in [
        (&observer, "jobs/1", "no_locks"),
        (&a, "x", "name_not_allowed"),
    ] {
        let path = format!("/v1/locks/{name}");
        let refused = send(node.at, "POST", &path, lock).await?;
        assert_eq!(refused.problem(), refusal);
    }
    let held = send(a.at, "POST", "/v1/locks/jobs/1", lock).await?;
    assert_eq!(held.status, 201, "{held:?}");
    let first = get(a.at, "/leader").await?.json()["fencing_token"].as_i64();

    assert_eq!(post(a.at, STEP_DOWN).await?.status, 200);
    answers(b.at, "/leader", 200).await?;
    assert_eq!(get(a.at, "/leader").await?.status, 503);
    let second = get(b.at, "/leader").await?.json()["fencing_token"].as_i64();
    assert!(first < second && first.is_some(), "{first:?} {second:?}");
    for node in [observer, a, b] {
        node.close().await?;
    }
    Ok(())
}

#[tokio::test]
async fn stopping_node_reports_its_end_first_and_answers_until_it_has_left() -> Result {
    let stage = Stage::new().await?;
    let mut a = stage.node("60s", "a", &["--grace", "2s"]).await?;
    answers(a.at, "/leader", 200).await?;
    let mut b = stage.node("60s", "b", &["--grace", "10s"]).await?;
    a.signal(Signal::TERM);
    answers(a.at, "/leader", 503).await?;
    let winding_up = get(a.at, "/leader").await?.json();
    assert_eq!(winding_up["role"], "ending", "{winding_up}");
    // A caller with an earlier positive answer may still act, so no node leads.
    assert_eq!(get(b.at, "/leader").await?.status, 503);
    answers(b.at, "/leader", 200).await?;
    assert_eq!(a.end().await?.code(), Some(0), "{}", a.log());
    let roster = get(b.at, "/v1/elections/team%2Fe").await?.json();
    assert_eq!(
        roster["roster"].as_array().map(Vec::len),
        Some(1),
        "{roster}"
    );
    // A second signal makes the node stop without waiting for callers.
    let begun = std::time::Instant::now();
    b.signal(Signal::TERM);
    answers(b.at, "/leader", 503).await?;
    b.signal(Signal::TERM);
    b.end().await?;
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(10),
        "the grace period is 10 s"
    );
    Ok(())
}

#[tokio::test]
async fn second_signal_does_not_wait_for_a_silent_etcd() -> Result {
    let stage = Stage::new().await?;
    // The node would wait for etcd as long as its lease lasts.
    let mut node = stage.node("60s", "a", &[]).await?;
    answers(node.at, "/leader", 200).await?;
    stage.etcd.pause();
    node.signal(Signal::TERM);
    answers(node.at, "/leader", 503).await?;
    node.signal(Signal::TERM);
    let ended = node.end().await;
    stage.etcd.resume();
    assert_eq!(ended?.code(), Some(0), "{}", node.log());
    Ok(())
}

#[tokio::test]
async fn a_node_that_runs_a_program_answers_whether_it_leads() -> Result {
    let stage = Stage::new().await?;
    let mut nodes = Vec::new();
    for name in ["a", "b"] {
        let program = "echo token=$ELDEST_HTTP_TOKEN; exec sleep 1000";
        let token = [("ELDEST_HTTP_TOKEN", "canary")];
        let node = stage.runner("10s", name, program, &token).await?;
        nodes.push(node);
        answers(nodes[0].at, "/leader", 200).await?;
    }
    let [a, b] = [&nodes[0], &nodes[1]];
    let led = get(a.at, "/leader").await?.json();
    assert!(led["fencing_token"].is_i64() && led["valid_for_ms"].is_u64());
    assert!(
        led["may_act_for_ms"].is_null(),
        "nobody would keep it: {led}"
    );
    assert_eq!(get(b.at, "/leader").await?.status, 503);
    assert_eq!(post(a.at, STEP_DOWN).await?.problem(), "token_needed");
    let token = "Authorization: Bearer canary\r\nContent-Length: 0\r\n";
    assert_eq!(ask(a.at, "POST", STEP_DOWN, token).await?.status, 200);
    answers(b.at, "/leader", 200).await?;
    assert_eq!(get(a.at, "/leader").await?.status, 503);
    // The node is a candidate again, at the back of the queue.
    answers(a.at, "/ready", 200).await?;
    let page = get(a.at, "/metrics").await?.body;
    has(
        &page,
        &["# HELP eldest_terms_started_total", "eldest_leading{"],
    );
    let output = a.output();
    assert_eq!(output, "token=\n", "the program does not receive the token");
    for node in &mut nodes {
        node.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn node_that_wakes_after_its_deadline_answers_first_that_it_does_not_lead() -> Result {
    let stage = Stage::new().await?;
    let a = stage.node("2s", "a", &["--grace", "200ms"]).await?;
    answers(a.at, "/leader", 200).await?;
    let b = stage.node("60s", "b", &[]).await?;
    freeze(&a.child)?;
    // The kernel accepts requests meanwhile; they are answered as soon as the process continues.
    let request = "GET /leader HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let asked = [idle(a.at, request).await?, idle(a.at, request).await?];
    answers(b.at, "/leader", 200).await?;
    a.signal(Signal::CONT);
    for stream in asked {
        let answer = closed(stream, SOON).await?;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    }
    b.close().await?;
    a.close().await
}
