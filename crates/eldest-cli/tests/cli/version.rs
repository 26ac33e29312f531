//! Tests `eldest version`, and the versions that `eldest status` shows.

use eldest_fixtures::text::has;
use eldest_testing::Etcd;

use crate::common::{NOT_DONE, Result, at, node, ran, run};

#[tokio::test]
async fn mark_of_the_newest_version_is_shown_and_removed() -> Result {
    let etcd = Etcd::start().await?;
    let a = node(&etcd, "a").await?;
    let show = ["version", "jobs", "--output", "json"];
    let none = run(at(&etcd, &show)).await?.done().json();
    assert!(none["newest_version"].is_null(), "{none}");
    let nothing = ran(&etcd, "version jobs --remove").await?;
    nothing.failed(NOT_DONE, &["jobs has no mark of a version"]);

    let election = a.election("jobs")?.require_version("1.10".parse()?);
    let leadership = election.campaign().await?.elected().await?;
    let shown = run(at(&etcd, &show)).await?.done().json();
    assert_eq!(shown["newest_version"], "1.10");
    assert_eq!(shown["led_by"], "a");
    assert_eq!(shown["mark_removed"], false);
    let text = ran(&etcd, "version jobs").await?;
    assert_eq!(text.done().stdout.trim(), "jobs: 1.10, first led by a");
    let status = ran(&etcd, "status jobs").await?;
    let status = status.text();
    has(status, &["VERSION", "1.10"]);

    let removed = ran(&etcd, "version jobs --remove").await?;
    assert_eq!(
        removed.done().stdout.trim(),
        "removed: jobs: 1.10, first led by a"
    );
    assert!(election.version_mark().await?.is_none() && leadership.is_valid());
    Ok(())
}

/// The roster names the eldest candidate as the leader, which would hide that nobody leads.
#[tokio::test]
async fn status_and_step_down_name_the_version_for_which_a_candidate_may_not_lead() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (node(&etcd, "a").await?, node(&etcd, "b").await?);
    let newer = a.election("jobs")?.require_version("2.0".parse()?);
    let leadership = newer.campaign().await?.elected().await?;
    let older = b.election("jobs")?.require_version("1.9".parse()?);
    let _candidate = older.campaign().await?;
    let refused = ran(&etcd, "step-down jobs").await?;
    let why = [
        "nobody else could",
        "older versions than 2.0, which led",
        "b",
    ];
    refused.failed(NOT_DONE, &why);
    assert!(leadership.is_valid());
    let why = "b holds back: version 2.0 has led, and b has 1.9, so nobody leads";
    let shown = ran(&etcd, "status jobs").await?;
    let text = shown.text();
    assert!(text.contains("a leads with token"), "{text}");
    leadership.resign().await?;
    for args in [&["status", "jobs"][..], &["status", "--summary"]] {
        let shown = run(at(&etcd, args)).await?;
        let text = shown.text();
        assert!(text.contains(why) && !text.contains("leads with"), "{text}");
    }
    ran(&etcd, "version jobs --remove").await?.done();
    let shown = ran(&etcd, "status jobs").await?;
    let text = shown.text();
    assert!(text.contains("b leads with token"), "{text}");
    Ok(())
}
