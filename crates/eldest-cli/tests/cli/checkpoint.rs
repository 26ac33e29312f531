//! Tests `eldest checkpoint`.

use eldest_testing::Etcd;
use serde_json::json;

use crate::common::{NOT_DONE, Result, at, join, node, put, ran, run};

/// The exit code of a failure that has no code of its own.
const FAILED: i32 = 1;
const KEY: &str = "eldest/~checkpoint/jobs/leader";

#[tokio::test]
async fn checkpoint_is_shown_and_removed() -> Result {
    let etcd = Etcd::start().await?;
    let a = node(&etcd, "a").await?;
    let none = ran(&etcd, "checkpoint jobs").await?;
    none.failed(NOT_DONE, &["jobs has no checkpoint"]);
    let mut candidate = join(&a, "jobs").await?;
    let leadership = candidate.elected().await?;
    let token = leadership.fencing_token();
    leadership.checkpoint("41\n").await?;
    let shown = ran(&etcd, "checkpoint jobs").await?;
    let during = format!("saved by a during the term, token {token}");
    assert!(shown.text().contains(&during), "{shown:?}");
    leadership.resign_with("42").await?;

    let args = ["checkpoint", "jobs", "--output", "json"];
    let shown = run(at(&etcd, &args)).await?.done().json();
    let saved = json!({
        "fencing_token": token, "identity": "a", "is_final": true, "bytes": 2, "state": "42",
    });
    let mut all = json!({ "name": "jobs", "partition": null, "removed": false, "saved": saved });
    assert_eq!(shown, all);
    let args = ["checkpoint", "jobs", "--remove", "--output", "json"];
    let removed = run(at(&etcd, &args)).await?.done().json();
    all["removed"] = json!(true);
    assert_eq!(removed, all);
    let none = ran(&etcd, "checkpoint jobs --remove").await?;
    none.failed(NOT_DONE, &["jobs has no checkpoint"]);
    Ok(())
}

#[tokio::test]
async fn checkpoint_of_a_partition_is_named_by_its_number_and_the_count() -> Result {
    let etcd = Etcd::start().await?;
    let a = node(&etcd, "a").await?;
    let mut member = a.partitions("shards", 2)?.join().await?;
    let partition = member.owned().await?;
    partition.checkpoint([0xff]).await?;
    let which = format!("{}/2", partition.number());
    let args = ["checkpoint", "shards", "--of-partition", &which];
    let shown = run(at(&etcd, &args)).await?;
    let output = shown.text();
    assert!(output.contains("1 bytes, not text"), "{output}");
    Ok(())
}

#[tokio::test]
async fn checkpoint_that_cannot_be_read_can_be_removed() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    put(&mut client, KEY, "by hand").await?;
    let refused = ran(&etcd, "checkpoint jobs").await?;
    refused.failed(FAILED, &[KEY, "cannot be read"]);
    let removed = ran(&etcd, "checkpoint jobs --remove").await?;
    removed.done();
    assert!(client.get(KEY, None).await?.kvs().is_empty());
    Ok(())
}
