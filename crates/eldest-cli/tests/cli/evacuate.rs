//! Tests `eldest evacuate`.

use eldest::{Announcement, Candidate, LostReason, Session, SessionOptions};
use eldest_fixtures::text::has;
use eldest_testing::Etcd;
use serde_json::Value;

use crate::common::{Result, SOON, USAGE, at, has_values, join, keys, object, plain, ran, run};

async fn session_in(etcd: &Etcd, identity: &str, data_center: &str) -> Result<Session> {
    let here = Announcement::default().with_data_center(data_center);
    let options = SessionOptions::new(identity).announcement(here);
    Ok(Session::connect([etcd.endpoint()], options).await?)
}

/// Joins the election "jobs" from that data centre.
async fn join_from(etcd: &Etcd, identity: &str, data_center: &str) -> Result<(Session, Candidate)> {
    let session = session_in(etcd, identity, data_center).await?;
    let candidate = join(&session, "jobs").await?;
    Ok((session, candidate))
}

#[tokio::test]
async fn leader_of_an_evacuated_data_center_resigns_and_the_order_is_listed() -> Result {
    let etcd = Etcd::start().await?;
    let (_a, mut a) = join_from(&etcd, "a", "dc1").await?;
    let (_b, mut b) = join_from(&etcd, "b", "dc2").await?;
    let first = a.elected().await?;
    let order = ["evacuate", "dc1", "--for", "2h", "--by", "ops"];
    let order = [&order[..], &["--reason", "new switches"]].concat();
    let ended = run(at(&etcd, &order)).await?;
    assert_eq!(
        ended.done().stdout,
        "dc1 is evacuated for 2h0m; 1 key announces this data centre\n"
    );
    tokio::time::timeout(SOON, first.lost().cancelled()).await?;
    assert_eq!(first.lost_reason(), Some(LostReason::Evacuated));
    drop(first);
    let second = tokio::time::timeout(SOON, b.elected()).await??;

    let status = ran(&etcd, "status").await?;
    let line = status.text().lines().next().unwrap_or_default();
    assert!(line.starts_with("evacuated: dc1 for 1h59m more"), "{line}");
    assert!(line.ends_with(", by ops: new switches"), "{line}");
    let list = ran(&etcd, "evacuate --list").await?;
    let rows = plain(list.text());
    assert!(rows.len() == 2 && rows[0].starts_with("DATA CENTRE"));
    has(list.text(), &["dc1", "in 1h59m", "ops", "new switches"]);

    for (line, said) in [
        ("evacuate dc1 --lift", "dc1 is no longer evacuated\n"),
        ("evacuate dc1 --lift", "dc1 was not evacuated\n"),
        ("evacuate --list", "no data centre is evacuated\n"),
    ] {
        assert_eq!(ran(&etcd, line).await?.text(), said);
    }
    assert!(second.is_valid(), "nobody moves back");
    Ok(())
}

#[tokio::test]
async fn each_form_writes_the_orders_in_force_as_json() -> Result {
    let etcd = Etcd::start().await?;
    let json = async |line: &str| {
        let line = format!("--namespace team/a {line}");
        object(&etcd, &line).await
    };
    let one = json("evacuate dc1 --by ops").await?;
    let wanted = [
        ("/lifted", Value::Null),
        ("/evacuations/0/data_center", "dc1".into()),
        ("/evacuations/0/by", "ops".into()),
        ("/evacuations/0/until_unix_ms", Value::Null),
    ];
    has_values(&one, &wanted);
    let two = json("evacuate dc2 --for 60s").await?;
    let order = &two["evacuations"][1];
    let (since, until) = (
        order["since_unix_ms"].as_u64(),
        order["until_unix_ms"].as_u64(),
    );
    assert_eq!(until, since.map(|since| since + 60_000));
    assert!(order["by"].is_string(), "{order}");
    let marks = ["dc1", "dc2"].map(|name| format!("team/a/~evacuated/{name}"));
    assert_eq!(keys(&mut etcd.client().await).await?, marks);
    let other = ran(&etcd, "evacuate --list").await?;
    assert_eq!(other.text(), "no data centre is evacuated\n");
    let list = json("evacuate --list").await?;
    assert_eq!(list["evacuations"], two["evacuations"]);
    let lifted = json("evacuate dc2 --lift").await?;
    assert_eq!(&lifted["lifted"], order);
    for shown in [lifted, json("status").await?] {
        assert_eq!(shown["evacuations"], one["evacuations"]);
    }
    Ok(())
}

#[tokio::test]
async fn invalid_order_is_refused_and_control_characters_are_not_shown() -> Result {
    let etcd = Etcd::start().await?;
    let too_short = "the evacuation is to last 1s; it must last from 5s";
    for (args, part) in [
        (&["dc1", "--for", "1s"][..], too_short),
        (&["dc1", "--for", "745h"], "from 5s to 31 days"),
        (&["", "--for", "5s"], "the data centre's name has 0 bytes"),
        (&["dc\n1"], "must not contain control characters"),
    ] {
        let args = [&["evacuate"], args].concat();
        run(at(&etcd, &args)).await?.failed(USAGE, &[part]);
    }
    assert!(keys(&mut etcd.client().await).await?.is_empty());

    let order = ["evacuate", "d1", "--reason", "a\u{1b}[31mb\nc"];
    let ended = run(at(&etcd, &order)).await?;
    let said = "d1 is evacuated until it is lifted; no node announces this data centre now\n";
    assert_eq!(ended.text(), said);
    for args in [&["evacuate", "--list"][..], &["status"]] {
        let shown = run(at(&etcd, args)).await?;
        let shown = shown.text();
        assert!(shown.contains("a\u{fffd}[31mb\u{fffd}c"), "{shown:?}");
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
    }
    Ok(())
}

#[tokio::test]
async fn leader_that_stays_is_named_with_the_reason() -> Result {
    let etcd = Etcd::start().await?;
    let session = async |identity, at| session_in(&etcd, identity, at).await;
    let (a, b) = (session("a", "dc1").await?, session("b", "dc2").await?);
    let newer = a.election("jobs")?.require_version("2.0".parse()?);
    let leadership = newer.campaign().await?.elected().await?;
    let older = b.election("jobs")?.require_version("1.9".parse()?);
    let _waits = older.campaign().await?;
    let alone = a.election("reports")?.campaign().await?.elected().await?;
    let lock = a.lock("cron")?;
    let _held = lock.acquire().await?;

    let text = ran(&etcd, "evacuate dc1").await?;
    let lines: Vec<&str> = text.text().lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[1].starts_with("jobs: a leads on: "), "{lines:?}");
    has(lines[1], &["older versions than 2.0, which led: b"]);
    assert_eq!(lines[2], "reports: a leads on: there is no other candidate");
    let staying = object(&etcd, "evacuate dc1").await?["staying"].take();
    assert_eq!(staying.as_array().map(Vec::len), Some(2), "{staying}");
    assert_eq!(staying[0]["election"], "jobs");
    assert_eq!(staying[0]["leader"], "a");
    assert!(leadership.is_valid() && alone.is_valid());

    let c = session("c", "dc2").await?;
    let _newest = c
        .election("jobs")?
        .require_version("2.0".parse()?)
        .campaign()
        .await?;
    tokio::time::timeout(SOON, leadership.lost().cancelled()).await?;
    Ok(())
}
