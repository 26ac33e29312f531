//! Tests `eldest partitions`.

use std::time::Duration;

use eldest::Session;
use eldest_testing::{Etcd, eventually};
use etcd_client::{GetOptions, KeyValue};
use serde_json::{Value, json};

use crate::common::{NOT_DONE, Result, SOON, USAGE, at, placed, ran, run, words};

#[tokio::test]
async fn owners_are_a_table_and_the_owner_of_a_key_one_line() -> Result {
    let etcd = Etcd::start().await?;
    let a = placed(&etcd, "node-a").await?;
    let shards = a.partitions("billing", 4)?;
    let mut member = shards.join().await?;
    eventually(SOON, "all are owned", async || {
        let map = shards.map().await.ok()?;
        (map.unowned().count() == 0).then_some(())
    })
    .await?;
    let map = shards.map().await?;
    let token = |at: u32| map.owner(at).map(|owner| owner.fencing_token());
    let all = ran(&etcd, "partitions billing").await?;
    let lines: Vec<Vec<&str>> = all
        .done()
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0], ["PARTITION", "OWNER", "ADDRESS", "TOKEN"]);
    assert_eq!(lines.len(), 5);
    for partition in 0..4 {
        let token = token(partition).ok_or("owned")?.to_string();
        let wanted = [&*partition.to_string(), "node-a", "node-a:80", &token];
        assert_eq!(lines[partition as usize + 1], wanted);
    }
    for name in ["user-1", "user-2", "user-3"] {
        let line = format!("partitions billing --count 4 --of {name} --output json");
        let found = run(at(&etcd, &words(&line))).await?.done().json();
        let partition = shards.partition_for(name);
        assert_eq!(found["partitions"].as_array().map(Vec::len), Some(1));
        let one = &found["partitions"][0];
        assert_eq!(one["partition"], partition, "{name}");
        assert_eq!(one["owner"]["fencing_token"], json!(token(partition)));
        assert_eq!(found["members"][0]["owned_count"], 4);
    }
    let other = ran(&etcd, "partitions billing --count 8").await?;
    other.failed(USAGE, &["8 partitions", "others share 4"]);
    member.leave().await?;
    let nobody = ran(&etcd, "partitions billing").await?;
    nobody.failed(USAGE, &["\"billing\"", "--count"]);
    let free = ran(&etcd, "partitions billing --count 2").await?;
    assert_eq!(free.text().lines().count(), 3);
    Ok(())
}

#[tokio::test]
async fn share_of_an_absent_member_is_shown_and_forgotten() -> Result {
    let etcd = Etcd::start().await?;
    let a = placed(&etcd, "node-a").await?;
    let b = placed(&etcd, "node-b").await?;
    let keep = Duration::from_secs(3600);
    let shards = |session: &Session| {
        let partitions = session.partitions("billing", 4);
        partitions.map(|partitions| partitions.keep_share_for(keep))
    };
    let (of_a, of_b) = (shards(&a)?, shards(&b)?);
    let (_first, mut second) = (of_a.join().await?, of_b.join().await?);
    let mut client = etcd.client().await;
    eventually(SOON, "the record of node-b lists two", async || {
        let range = GetOptions::new().with_prefix();
        let records = client.get("eldest/~partitions/billing/4/k-", Some(range));
        let records = records.await.ok()?;
        let listed = |kv: &KeyValue| {
            let value: Value = serde_json::from_slice(kv.value()).unwrap_or_default();
            let text = value["partitions"].as_str().unwrap_or_default();
            let pair = text
                .split_once('-')
                .and_then(|(from, to)| Some(to.parse::<u32>().ok()? - from.parse::<u32>().ok()?));
            value["identity"] == "node-b" && (pair == Some(1) || text.contains(','))
        };
        records.kvs().iter().any(listed).then_some(())
    })
    .await?;
    let forget = |name| ["partitions", "billing", "--forget", name];
    let there = run(at(&etcd, &forget("node-b"))).await?;
    there.failed(NOT_DONE, &["\"node-b\"", "that member is there"]);
    second.leave().await?;

    let text = ran(&etcd, "partitions billing").await?;
    let text = text.text();
    assert_eq!(text.matches("- (kept for node-b)").count(), 2, "{text}");
    let said = "node-b is absent and keeps 2 partitions for 1h0m more; `eldest partitions billing --forget node-b` ends that";
    assert!(text.contains(said), "{text}");
    let args = ["partitions", "billing", "--output", "json"];
    let shown = run(at(&etcd, &args)).await?.done().json();
    let absent = &shown["absent"][0];
    assert_eq!(absent["identity"], "node-b");
    assert_eq!(absent["kept_count"], 2);
    assert_eq!(absent["kept_for_ms"], 3_600_000);
    let left = absent["lease_left_ms"].as_u64().ok_or("read")?;
    assert!((3_500_000..=3_700_000).contains(&left), "{left}");
    let partitions = shown["partitions"].as_array().ok_or("a list")?;
    let kept = partitions.iter().filter(|one| one["kept_for"] == "node-b");
    assert_eq!(kept.count(), 2);

    let other = run(at(&etcd, &forget("node-c"))).await?;
    other.failed(NOT_DONE, &["\"node-c\"", "shares are kept for node-b"]);
    let args = [&forget("node-b")[..], &["--output", "json"]].concat();
    let forgotten = run(at(&etcd, &args)).await?.done().json();
    assert_eq!(forgotten["forgotten"], "node-b");
    let again = run(at(&etcd, &forget("node-b"))).await?;
    again.failed(NOT_DONE, &["no share is kept"]);
    Ok(())
}
