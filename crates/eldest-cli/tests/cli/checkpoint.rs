//! Tests `eldest checkpoint`.

use eldest_fixtures::text::has;
use eldest_testing::Etcd;
use serde_json::json;

use crate::common::{NOT_DONE, Result, fails, join, node, object, put, ran};

/// The exit code of a failure that has no code of its own.
const FAILED: i32 = 1;
const KEY: &str = "eldest/~checkpoint/jobs/leader";

#[tokio::test]
async fn checkpoint_is_shown_and_removed() -> Result {
    let etcd = Etcd::start().await?;
    let a = node(&etcd, "a").await?;
    let none = "jobs has no checkpoint";
    fails(&etcd, "checkpoint jobs", NOT_DONE, &[none]).await?;
    let mut candidate = join(&a, "jobs").await?;
    let leadership = candidate.elected().await?;
    let token = leadership.fencing_token();
    leadership.checkpoint("41\n").await?;
    let during = format!("saved by a during the term, token {token}");
    has(ran(&etcd, "checkpoint jobs").await?.text(), &[&during]);
    leadership.resign_with("42").await?;

    let saved = json!({
        "fencing_token": token, "identity": "a", "is_final": true, "bytes": 2, "state": "42",
    });
    let mut all = json!({ "name": "jobs", "partition": null, "removed": false, "saved": saved });
    assert_eq!(object(&etcd, "checkpoint jobs").await?, all);
    all["removed"] = json!(true);
    assert_eq!(object(&etcd, "checkpoint jobs --remove").await?, all);
    fails(&etcd, "checkpoint jobs --remove", NOT_DONE, &[none]).await
}

#[tokio::test]
async fn checkpoint_of_a_partition_is_named_by_its_number_and_the_count() -> Result {
    let etcd = Etcd::start().await?;
    let a = node(&etcd, "a").await?;
    let mut member = a.partitions("shards", 2)?.join().await?;
    let partition = member.owned().await?;
    partition.checkpoint([0xff]).await?;
    let of = partition.number();
    let line = format!("checkpoint shards --of-partition {of}/2");
    has(ran(&etcd, &line).await?.text(), &["1 bytes, not text"]);
    Ok(())
}

#[tokio::test]
async fn checkpoint_that_cannot_be_read_can_be_removed() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    put(&mut client, KEY, "by hand").await?;
    fails(&etcd, "checkpoint jobs", FAILED, &[KEY, "cannot be read"]).await?;
    ran(&etcd, "checkpoint jobs --remove").await?.done();
    assert!(client.get(KEY, None).await?.kvs().is_empty());
    Ok(())
}
