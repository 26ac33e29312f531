//! Tests `eldest status`.

use std::time::Duration;

use eldest::{Session, SessionOptions};
use eldest_fixtures::text::has;
use eldest_testing::{Etcd, Proxy, eventually};
use serde_json::{Value, json};

use crate::common::{
    Result, SOON, UNAVAILABLE, USAGE, at, eldest, has_values, join, node, object, placed, plain,
    put, ran, run,
};

/// The unit tests of the rendering have the numbers.
#[tokio::test]
async fn roster_is_a_table_by_age_with_the_leader_marked() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (placed(&etcd, "node-a").await?, node(&etcd, "node-b").await?);
    let _first = join(&a, "billing/scheduler").await?;
    let _second = join(&b, "billing/scheduler").await?;
    let leader = a.election("billing/scheduler")?.leader().await?;
    let token = leader.ok_or("a leader")?.create_revision().to_string();
    let shown = ran(&etcd, "status billing/scheduler").await?;
    assert_eq!(
        plain(shown.text()),
        [
            "billing/scheduler: node-a leads with token #, # waiting",
            "RANK IDENTITY ADDRESS DATA CENTRE AGE LEASE LEFT TOKEN",
            "*# node-a node-a:# dc# #s #s of #s #",
            "# node-b - - #s #s of #s #",
        ]
    );
    let row = shown.text().lines().nth(2).unwrap_or_default();
    has(shown.text(), &[&format!("token {token},"), " of 60s "]);
    assert!(row.ends_with(&format!(" {token}")), "{row}");
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
    eventually(SOON, "all are owned", owned).await?;
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
    let standings = status["queues"].as_array().ok_or("queues")?;
    let row = |s: &Value| {
        json!([
            s["kind"],
            s["name"],
            s["leader"]["identity"],
            s["blocked_by"]
        ])
    };
    let blocker = "eldest/billing/stuck/somebody";
    assert_eq!(
        standings.iter().map(row).collect::<Vec<_>>(),
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
    let left = leader["lease_left_ms"].as_u64().ok_or("its lease")?;
    assert!((1..=60_000).contains(&left), "{left}");
    let lease = leader["lease_id"].as_str().ok_or("its lease")?;
    let key = format!("eldest/billing/scheduler/{lease}");
    let wanted = [
        ("/namespace", json!("eldest")),
        ("/queues/1/roster/0/key", json!(key)),
        ("/queues/1/roster/0/has_turn", json!(true)),
        ("/queues/1/roster/0/address", json!("node-a:80")),
        ("/queues/1/roster/0/metadata", json!({ "zone": "z1" })),
        ("/queues/1/roster/0/lease_ttl_ms", json!(60_000)),
        ("/queues/1/roster/0/partition_capacity", Value::Null),
        ("/queues/2/roster/0/lease_id", Value::Null),
        ("/queues/2/roster/0/has_turn", json!(false)),
        ("/queues/3/capacity", json!(2)),
        ("/queues/3/roster/0/has_turn", json!(true)),
        ("/queues/4/partition_count", json!(4)),
        ("/queues/4/unowned_partitions", json!([])),
        ("/queues/4/roster/0/partitions", json!([0, 1, 2, 3])),
        ("/queues/4/roster/0/partition_capacity", json!(1)),
    ];
    has_values(&status, &wanted);
    Ok(())
}

/// The command starts after the term began, so the time comes from the leader's announcement.
#[tokio::test]
async fn time_since_the_election_is_shown_from_the_first_renewal_of_the_term() -> Result {
    let etcd = Etcd::start().await?;
    let options = SessionOptions::new("a").ttl(Duration::from_secs(3));
    let session = Session::connect([etcd.endpoint()], options).await?;
    let _led = join(&session, "billing").await?;
    for line in ["status billing", "status --summary"] {
        eventually(SOON, "how long it leads", async || {
            let shown = plain(ran(&etcd, line).await.ok()?.text());
            shown
                .iter()
                .any(|line| line.ends_with("leads for #s"))
                .then_some(())
        })
        .await?;
    }
    let leader = &object(&etcd, "status").await?["queues"][0]["leader"];
    assert!(leader["leads_since_unix_ms"].as_u64() >= leader["since_unix_ms"].as_u64());
    Ok(())
}

#[tokio::test]
async fn empty_namespace_is_no_failure_and_never_shows_the_whole_store() -> Result {
    let etcd = Etcd::start().await?;
    let shown = ran(&etcd, "status jobs").await?;
    let nothing = "there is no candidate in jobs or below it\n";
    assert_eq!(shown.text(), nothing);
    let shown = object(&etcd, "status jobs").await?;
    assert_eq!(shown["queues"], json!([]));
    assert!(shown["endpoints"].is_null(), "not measured unasked");
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
    const NAME: &str = "evil\u{1b}[2J\nfake: root leads";
    let etcd = Etcd::start().await?;
    let evil = node(&etcd, NAME).await?;
    let _candidate = join(&evil, "jobs").await?;
    let shown = ran(&etcd, "status").await?;
    assert_eq!(shown.text().lines().count(), 3, "{shown:?}");
    assert!(!shown.stdout.contains('\u{1b}'), "{shown:?}");
    let status = object(&etcd, "status").await?;
    has_values(&status, &[("/queues/0/leader/identity", json!(NAME))]);
    Ok(())
}

#[tokio::test]
async fn without_etcd_the_error_names_the_endpoint_and_has_the_code_unavailable() -> Result {
    let mut etcd = Etcd::start().await?;
    etcd.kill();
    let args = ["status", "--connect-timeout", "200ms"];
    let failed = run(at(&etcd, &args)).await?;
    let no_answer = "no endpoint answered within 200ms";
    failed.failed(UNAVAILABLE, &[no_answer, &etcd.endpoint()]);
    let mut command = eldest(&args);
    command.args(["--output", "json", "--endpoints", &etcd.endpoint()]);
    let failed = run(command).await?;
    assert_eq!((failed.code, failed.stdout.as_str()), (UNAVAILABLE, ""));
    let error = crate::schema::line(&failed.stderr);
    let wanted = [
        ("/error/exit_code", json!(UNAVAILABLE)),
        ("/error/code", json!("unavailable")),
    ];
    has_values(&error, &wanted);
    Ok(())
}

#[tokio::test]
async fn measured_endpoints_are_shown_with_the_preferred_one_and_the_reason() -> Result {
    const NOWHERE: &str = "http://127.0.0.1:1";
    let etcd = Etcd::start().await?;
    let proxy = || Proxy::start(etcd.address());
    let (near, far) = (proxy().await?, proxy().await?);
    far.delay(Duration::from_millis(60));
    let (near, far) = (near.endpoint(), far.endpoint());
    let endpoints = format!("us={near},eu={far},{NOWHERE}");
    let here = ["--endpoints", &endpoints, "--data-center", "eu"];
    let status = async |more: &[&str]| {
        let shown = run(eldest(&[&["status", "--etcd"], more].concat())).await?;
        Result::Ok(shown.text().to_owned())
    };
    let json = ["--output", "json"];
    let shown = crate::schema::line(&status(&[&here[..], &json].concat()).await?);
    let measured = shown["endpoints"].as_array().ok_or("endpoints")?;
    let row = |one: &Value| {
        json!([
            one["endpoint"],
            one["data_center"],
            one["failing"],
            one["preferred"]
        ])
    };
    assert_eq!(
        measured.iter().map(row).collect::<Vec<_>>(),
        [
            json!([near, "us", false, null]),
            json!([far, "eu", false, "own_data_center"]),
            json!([NOWHERE, null, true, null]),
        ]
    );
    let seconds = |at: usize| measured[at]["round_trip_seconds"].as_f64();
    assert!(
        seconds(0) < Some(0.12) && seconds(1) >= Some(0.12),
        "{measured:?}"
    );
    assert!(measured[1]["worst_round_trip_seconds"].as_f64() >= seconds(1));
    assert_eq!(seconds(2), None);
    let text = status(&here).await?;
    let lines = plain(&text).split_off(2);
    assert_eq!(lines[0], "ENDPOINT DATA CENTRE ROUND TRIP WORST USED");
    assert!(
        lines[1].ends_with(" -") && lines[2].ends_with(" own_data_center"),
        "{text}"
    );
    assert_eq!(lines[3], "http://#.#.#.#:# - no answer no answer -");
    let both = format!("{far},{near}");
    let shown = status(&["--endpoints", &both, "--output", "json"]).await?;
    let shown = crate::schema::line(&shown);
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
    let shown = async || -> Result<(String, Value)> {
        let text = ran(&etcd, "status").await?.text().to_owned();
        let queue = object(&etcd, "status").await?["queues"][0].take();
        assert_eq!(queue["leader"], queue["roster"][0]);
        let of = |member: &Value| json!([member["challenged_by"], member["condemned"]]);
        let both = json!([of(&queue["roster"][0]), of(&queue["roster"][1])]);
        Ok((text, both))
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
