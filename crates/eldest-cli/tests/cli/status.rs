//! Tests `eldest status`.

use std::time::Duration;

use eldest::{Session, SessionOptions};
use eldest_testing::{Etcd, Proxy, eventually};
use serde_json::json;

use crate::common::{
    Result, SOON, UNAVAILABLE, USAGE, at, eldest, join, node, placed, put, ran, run,
};

#[tokio::test]
async fn roster_is_a_table_by_age_with_the_leader_marked() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (placed(&etcd, "node-a").await?, node(&etcd, "node-b").await?);
    let _first = join(&a, "billing/scheduler").await?;
    let _second = join(&b, "billing/scheduler").await?;
    let token = {
        let leader = a.election("billing/scheduler")?.leader().await?;
        leader.ok_or("a leader")?.create_revision()
    };
    let shown = ran(&etcd, "status billing/scheduler").await?;
    let lines: Vec<&str> = shown.text().lines().collect();
    let title = format!("billing/scheduler: node-a leads with token {token}, 1 waiting");
    assert_eq!(lines[0], title);
    let words =
        |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    assert_eq!(
        lines[1],
        "RANK  IDENTITY  ADDRESS    DATA CENTRE  AGE  LEASE LEFT  TOKEN"
    );
    let first = words(lines[2]);
    assert_eq!(
        first[..4],
        ["*1", "node-a", "node-a:80", "dc1"],
        "{lines:?}"
    );
    assert!(first[4].ends_with('s'), "its age: {lines:?}");
    assert_eq!(first[6..], ["of", "60s", &token.to_string()], "{lines:?}");
    let second = words(lines[3]);
    assert_eq!(second[..4], ["2", "node-b", "-", "-"], "{lines:?}");
    assert!(
        second[4].ends_with('s'),
        "its age, though it announces nothing: {lines:?}"
    );
    assert_eq!(lines.len(), 4);
    Ok(())
}

/// Creates a candidate, a holder or a blocking key of each kind, which exist until the returned value is dropped.
async fn one_of_each(etcd: &Etcd) -> Result<impl Sized + use<>> {
    let (a, b) = (placed(etcd, "node-a").await?, node(etcd, "node-b").await?);
    let elections = (
        join(&a, "billing/scheduler").await?,
        join(&a, "billinghouse").await?,
        join(&b, "other").await?,
    );
    let guard = b.lock("billing/run")?.acquire().await?;
    let permit = b.semaphore("billing/mail", 2)?.acquire().await?;
    let shards = a.partitions("billing", 4)?.join().await?;
    let mut client = etcd.client().await;
    put(&mut client, "eldest/billing/stuck/somebody", "left behind").await?;
    let owned = async || {
        let map = a.partitions("billing", 4).ok()?.map().await.ok()?;
        (map.unowned().count() == 0).then_some(())
    };
    eldest_testing::eventually(crate::common::SOON, "all are owned", owned).await?;
    Ok((elections, guard, permit, shards, a, b))
}

async fn each_has_a_line_in_the_summary(etcd: &Etcd) -> Result {
    let summary = ran(etcd, "status --summary").await?;
    let lines: Vec<&str> = summary.text().lines().collect();
    assert_eq!(lines.len(), 8, "{lines:?}");
    for (name, part) in [
        ("billinghouse", "node-a leads"),
        (
            "billing/stuck",
            "BLOCKED by the key eldest/billing/stuck/somebody",
        ),
        ("billing/mail (semaphore of 2)", "1 of 2 held, 0 waiting"),
        ("billing (4 partitions)", "1 member"),
    ] {
        let mut of_name = lines.iter().filter(|line| line.starts_with(name));
        let is_shown = of_name.next().is_some_and(|line| line.contains(part));
        assert!(is_shown, "{name}: {part}: {lines:?}");
    }
    Ok(())
}

#[tokio::test]
async fn everything_is_a_line_of_a_summary_and_below_a_prefix_one_object() -> Result {
    let etcd = Etcd::start().await?;
    let _held = one_of_each(&etcd).await?;
    each_has_a_line_in_the_summary(&etcd).await?;
    let shown = ran(&etcd, "status billing --output json").await?;
    let status = shown.done().json();
    assert_eq!(status["namespace"], "eldest");
    let standings = status["queues"].as_array().ok_or("queues")?;
    let rows = standings.iter();
    let rows = rows.map(|s| {
        json!([
            s["kind"],
            s["name"],
            s["leader"]["identity"],
            s["blocked_by"]
        ])
    });
    let blocker = "eldest/billing/stuck/somebody";
    assert_eq!(
        rows.collect::<Vec<_>>(),
        [
            json!(["election", "billing/run", "node-b", null]),
            json!(["election", "billing/scheduler", "node-a", null]),
            json!(["election", "billing/stuck", null, blocker]),
            json!(["semaphore", "billing/mail", null, null]),
            json!(["partitions", "billing", null, null]),
        ],
        "and not billinghouse, nor other"
    );
    for member in standings
        .iter()
        .filter_map(|s| s["roster"].as_array())
        .flatten()
    {
        let ours = member["lease_id"].is_string();
        assert_eq!(member["since_unix_ms"].is_u64(), ours, "{member}");
    }
    let leader = &standings[1]["roster"][0];
    assert_eq!(leader["has_turn"], true);
    assert_eq!(leader["address"], "node-a:80");
    assert_eq!(leader["metadata"], json!({"zone": "z1"}));
    assert_eq!(leader["lease_ttl_ms"], 60_000);
    let left = leader["lease_left_ms"].as_u64().ok_or("its lease")?;
    assert!((1..=60_000).contains(&left), "{left}");
    let key = leader["key"].as_str().ok_or("its key")?;
    let lease = leader["lease_id"].as_str().ok_or("its lease")?;
    assert_eq!(key, format!("eldest/billing/scheduler/{lease}"));
    assert_eq!(standings[2]["roster"][0]["lease_id"], json!(null));
    assert_eq!(standings[2]["roster"][0]["has_turn"], false);
    assert_eq!(standings[3]["capacity"], 2);
    assert_eq!(standings[3]["roster"][0]["has_turn"], true);
    let shards = &standings[4];
    assert_eq!(shards["partition_count"], json!(4));
    assert_eq!(shards["unowned_partitions"], json!([]));
    assert_eq!(shards["roster"][0]["partitions"], json!([0, 1, 2, 3]));
    assert_eq!(shards["roster"][0]["partition_capacity"], 1);
    assert_eq!(leader["partition_capacity"], json!(null));
    Ok(())
}

/// The command starts after the term began, so the time comes from the leader's announcement.
#[tokio::test]
async fn time_since_the_election_is_shown_from_the_first_renewal_of_the_term() -> Result {
    let etcd = Etcd::start().await?;
    let options = SessionOptions::new("a").ttl(Duration::from_secs(3));
    let session = Session::connect([etcd.endpoint()], options).await?;
    let _led = join(&session, "billing").await?;
    for args in [&["status", "billing"][..], &["status", "--summary"]] {
        let shown = eventually(SOON, "how long it leads", async || {
            let shown = run(at(&etcd, args)).await.ok()?.done().stdout.clone();
            shown.contains("leads for ").then_some(shown)
        })
        .await?;
        let line = shown.lines().find(|line| line.contains("leads for "));
        let line = line.ok_or("a line")?;
        let (_, length) = line.split_once("leads for ").ok_or("a length")?;
        assert!(length.ends_with('s') && length.len() < 4, "{line}");
    }
    let shown = ran(&etcd, "status --output json").await?;
    let leader = &shown.done().json()["queues"][0]["leader"];
    assert!(leader["leads_since_unix_ms"].as_u64() >= leader["since_unix_ms"].as_u64());
    Ok(())
}

#[tokio::test]
async fn empty_namespace_is_no_failure_and_never_shows_the_whole_store() -> Result {
    let etcd = Etcd::start().await?;
    let shown = ran(&etcd, "status jobs").await?;
    let nothing = "there is no candidate in jobs or below it\n";
    assert_eq!(shown.text(), nothing);
    let shown = ran(&etcd, "status jobs --output=json").await?;
    assert_eq!(shown.done().json()["queues"], json!([]));
    assert!(shown.json()["endpoints"].is_null(), "not measured unasked");
    // An operator's machine may be in none of the named data centres.
    let mut command = eldest(&["status"]);
    command.env("ELDEST_ENDPOINTS", format!("eu={}", etcd.endpoint()));
    let shown = run(command).await?;
    assert_eq!(shown.text(), "there is no candidate anywhere\n");

    let mut client = etcd.client().await;
    put(&mut client, "services/jobs/go", "a go service").await?;
    let shown = run(at(&etcd, &["status", "services", "--namespace", ""])).await?;
    assert!(
        shown.text().starts_with("services/jobs: BLOCKED"),
        "{shown:?}"
    );
    let refused = run(at(&etcd, &["status", "--namespace", ""])).await?;
    let rule = "the namespace is empty, so a name is required";
    refused.failed(USAGE, &[rule]);
    Ok(())
}

/// A candidate may choose any name, even one with control characters.
#[tokio::test]
async fn text_of_candidates_is_escaped_for_the_terminal() -> Result {
    let etcd = Etcd::start().await?;
    let evil = node(&etcd, "evil\u{1b}[2J\nfake: root leads").await?;
    let _candidate = join(&evil, "jobs").await?;
    let shown = ran(&etcd, "status").await?;
    assert_eq!(shown.text().lines().count(), 3, "{shown:?}");
    assert!(!shown.stdout.contains('\u{1b}'), "{shown:?}");
    let json = ran(&etcd, "status --output json").await?;
    let name = &json.done().json()["queues"][0]["leader"]["identity"];
    assert_eq!(
        name, "evil\u{1b}[2J\nfake: root leads",
        "programs get it as it is"
    );
    Ok(())
}

#[tokio::test]
async fn without_etcd_the_error_names_the_endpoint_and_has_the_code_unavailable() -> Result {
    let mut etcd = Etcd::start().await?;
    etcd.kill();
    let args = ["status", "--connect-timeout", "200ms"];
    let failed = run(at(&etcd, &args)).await?;
    failed.failed(
        UNAVAILABLE,
        &["no endpoint answered within 200ms", &etcd.endpoint()],
    );
    let mut command = eldest(&args);
    command.args(["--output", "json", "--endpoints", &etcd.endpoint()]);
    let failed = run(command).await?;
    assert_eq!((failed.code, failed.stdout.as_str()), (UNAVAILABLE, ""));
    let error = crate::schema::line(&failed.stderr);
    assert_eq!(error["error"]["exit_code"], UNAVAILABLE);
    assert_eq!(error["error"]["code"], "unavailable");
    Ok(())
}

async fn with_endpoints(more: &[&str]) -> Result<serde_json::Value> {
    let args = ["status", "--etcd", "--output", "json"];
    let shown = run(eldest(&[&args[..], more].concat())).await?;
    Ok(shown.done().json())
}

#[tokio::test]
async fn measured_endpoints_are_shown_with_the_preferred_one_and_the_reason() -> Result {
    let etcd = Etcd::start().await?;
    let (near, far) = (
        Proxy::start(etcd.address()).await?,
        Proxy::start(etcd.address()).await?,
    );
    far.delay(std::time::Duration::from_millis(60));
    let endpoints = format!(
        "us={},eu={},http://127.0.0.1:1",
        near.endpoint(),
        far.endpoint()
    );
    let shown = with_endpoints(&["--endpoints", &endpoints, "--data-center", "eu"]).await?;
    let measured = shown["endpoints"].as_array().ok_or("endpoints")?;
    let rows = measured.iter();
    let rows = rows.map(|one| {
        json!([
            one["endpoint"],
            one["data_center"],
            one["failing"],
            one["preferred"]
        ])
    });
    assert_eq!(
        rows.collect::<Vec<_>>(),
        [
            json!([near.endpoint(), "us", false, null]),
            json!([far.endpoint(), "eu", false, "own_data_center"]),
            json!(["http://127.0.0.1:1", null, true, null]),
        ]
    );
    let seconds = |at: usize| measured[at]["round_trip_seconds"].as_f64();
    assert!(
        seconds(0) < Some(0.12) && seconds(1) >= Some(0.12),
        "{measured:?}"
    );
    assert!(measured[1]["worst_round_trip_seconds"].as_f64() >= seconds(1));
    assert_eq!(seconds(2), None);
    let args = [
        "status",
        "--etcd",
        "--endpoints",
        &endpoints,
        "--data-center",
        "eu",
    ];
    let text = run(eldest(&args)).await?.done().stdout.clone();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = text.lines().skip(2).map(words).collect();
    assert_eq!(lines[0], "ENDPOINT DATA CENTRE ROUND TRIP WORST USED");
    assert!(
        lines[1].ends_with(" -") && lines[2].ends_with(" own_data_center"),
        "{text}"
    );
    assert_eq!(lines[3], "http://127.0.0.1:1 - no answer no answer -");
    let plain = format!("{},{}", far.endpoint(), near.endpoint());
    let shown = with_endpoints(&["--endpoints", &plain]).await?;
    assert_eq!(shown["endpoints"][1]["preferred"], "nearest");
    Ok(())
}

#[tokio::test]
async fn challenged_and_condemned_sessions_are_shown_with_their_challengers() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let leased = |lease| Some(etcd_client::PutOptions::new().with_lease(lease));
    for lease in [0x7e, 0x7f] {
        let id = etcd_client::LeaseGrantOptions::new().with_id(lease);
        client.lease_grant(60, Some(id)).await?;
    }
    // No session answers for these keys.
    let anchor = "eldest/~session/7f";
    let put = client.put(anchor, "4000000 ", leased(0x7f)).await?;
    let revision = put.header().ok_or("a header")?.revision();
    let of_a = json!({
        "identity": "node-a", "since_unix_ms": 1,
        "anchor": {"key": anchor, "create_revision": revision},
    });
    client
        .put("eldest/e/7f", of_a.to_string(), leased(0x7f))
        .await?;
    let of_b = json!({"identity": "node-b", "since_unix_ms": 2});
    client
        .put("eldest/e/7e", of_b.to_string(), leased(0x7e))
        .await?;
    let challenge = format!("{anchor}/challenges/7e");
    let shown = async || -> Result<(String, serde_json::Value)> {
        let text = ran(&etcd, "status").await?.done().stdout.clone();
        let all = ran(&etcd, "status --output json").await?.done().json();
        let queue = &all["queues"][0];
        assert_eq!(queue["leader"], queue["roster"][0]);
        let of = |member: &serde_json::Value| json!([member["challenged_by"], member["condemned"]]);
        Ok((
            text,
            json!([of(&queue["roster"][0]), of(&queue["roster"][1])]),
        ))
    };
    let nothing = json!([null, null]);
    let (text, states) = shown().await?;
    assert!(!text.contains("CHALLENGED"), "{text}");
    assert_eq!(states, json!([[[], false], nothing]));

    client.put(&*challenge, "", leased(0x7e)).await?;
    let (text, states) = shown().await?;
    let said = "node-a is CHALLENGED by node-b: it loses its place unless it answers";
    assert!(text.ends_with(&format!("{said}\n")), "{text}");
    let by = json!([{"identity": "node-b", "lease_id": "7e"}]);
    assert_eq!(states, json!([[by, false], nothing]));

    client.delete(challenge, None).await?;
    client.delete(anchor, None).await?;
    let (text, states) = shown().await?;
    assert!(text.contains("node-a is CONDEMNED"), "{text}");
    assert_eq!(states, json!([[[], true], nothing]));
    Ok(())
}
