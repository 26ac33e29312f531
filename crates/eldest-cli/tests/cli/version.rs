//! Tests `eldest version`, and the versions that `eldest status` shows.

use eldest_fixtures::text::has;
use eldest_testing::Etcd;
use serde_json::json;

use crate::common::{NOT_DONE, Result, fails, node, object, ran};

#[tokio::test]
async fn mark_of_the_newest_version_is_shown_and_removed() -> Result {
    let etcd = Etcd::start().await?;
    let a = node(&etcd, "a").await?;
    let none = object(&etcd, "version jobs").await?;
    assert!(none["newest_version"].is_null(), "{none}");
    let nothing = "jobs has no mark of a version";
    fails(&etcd, "version jobs --remove", NOT_DONE, &[nothing]).await?;

    let election = a.election("jobs")?.require_version("1.10".parse()?);
    let leadership = election.campaign().await?.elected().await?;
    let shown = object(&etcd, "version jobs").await?;
    assert_eq!(
        shown,
        json!({ "election": "jobs", "newest_version": "1.10", "led_by": "a", "mark_removed": false })
    );
    let mark = "jobs: 1.10, first led by a\n";
    assert_eq!(ran(&etcd, "version jobs").await?.text(), mark);
    let status = ran(&etcd, "status jobs").await?;
    let status = status.text();
    has(status, &["VERSION", "1.10"]);

    let removed = ran(&etcd, "version jobs --remove").await?;
    assert_eq!(removed.text(), format!("removed: {mark}"));
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
    let why = [
        "nobody else could",
        "older versions than 2.0, which led",
        "b",
    ];
    fails(&etcd, "step-down jobs", NOT_DONE, &why).await?;
    assert!(leadership.is_valid());
    let why = "b holds back: version 2.0 has led, and b has 1.9, so nobody leads";
    has(
        ran(&etcd, "status jobs").await?.text(),
        &["a leads with token"],
    );
    leadership.resign().await?;
    for line in ["status jobs", "status --summary"] {
        let shown = ran(&etcd, line).await?;
        let text = shown.text();
        assert!(text.contains(why) && !text.contains("leads with"), "{text}");
    }
    ran(&etcd, "version jobs --remove").await?.done();
    has(
        ran(&etcd, "status jobs").await?.text(),
        &["b leads with token"],
    );
    Ok(())
}
