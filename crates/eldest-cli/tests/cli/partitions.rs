//! Tests `eldest partitions`.

use std::time::Duration;

use eldest::Session;
use eldest_fixtures::text::has;
use eldest_testing::{Etcd, eventually};
use etcd_client::{GetOptions, KeyValue};
use serde_json::{Value, json};

use crate::common::{NOT_DONE, Result, SOON, USAGE, fails, has_values, object, placed, plain, ran};

const FORGET_B: &str = "partitions billing --forget node-b";

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
    assert_eq!(plain(all.text())[0], "PARTITION OWNER ADDRESS TOKEN");
    for partition in 0..4 {
        let token = token(partition).ok_or("owned")?;
        let row = format!("{partition} node-a node-a:80 {token}");
        let mut rows = all.text().lines().skip(1);
        let words = rows.nth(partition as usize).map(str::split_whitespace);
        assert!(words.ok_or("a row")?.eq(row.split(' ')), "{all:?}");
    }
    let line = "partitions billing --count 4 --of user-1";
    let found = object(&etcd, line).await?;
    let partition = shards.partition_for("user-1");
    let wanted = [
        ("/partitions/0/partition", json!(partition)),
        ("/partitions/0/owner/fencing_token", json!(token(partition))),
        ("/members/0/owned_count", json!(4)),
    ];
    has_values(&found, &wanted);
    assert_eq!(found["partitions"].as_array().map(Vec::len), Some(1));
    let other = ["8 partitions", "others share 4"];
    fails(&etcd, "partitions billing --count 8", USAGE, &other).await?;
    member.leave().await?;
    let nobody = ["\"billing\"", "--count"];
    fails(&etcd, "partitions billing", USAGE, &nobody).await?;
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
    let there = ["\"node-b\"", "that member is there"];
    fails(&etcd, FORGET_B, NOT_DONE, &there).await?;
    second.leave().await?;

    let text = ran(&etcd, "partitions billing").await?;
    let text = text.text();
    assert_eq!(text.matches("- (kept for node-b)").count(), 2, "{text}");
    let said = "node-b is absent and keeps 2 partitions for 1h0m more; `eldest partitions billing --forget node-b` ends that";
    has(text, &[said]);
    let shown = object(&etcd, "partitions billing").await?;
    let wanted = [
        ("/absent/0/identity", json!("node-b")),
        ("/absent/0/kept_count", json!(2)),
        ("/absent/0/kept_for_ms", json!(3_600_000)),
    ];
    has_values(&shown, &wanted);
    let left = shown["absent"][0]["lease_left_ms"].as_u64();
    let left = left.ok_or("read")?;
    assert!((3_500_000..=3_700_000).contains(&left), "{left}");
    let partitions = shown["partitions"].as_array().ok_or("a list")?;
    let kept = partitions.iter().filter(|one| one["kept_for"] == "node-b");
    assert_eq!(kept.count(), 2);

    let other = ["\"node-c\"", "shares are kept for node-b"];
    let forget = "partitions billing --forget node-c";
    fails(&etcd, forget, NOT_DONE, &other).await?;
    assert_eq!(object(&etcd, FORGET_B).await?["forgotten"], "node-b");
    fails(&etcd, FORGET_B, NOT_DONE, &["no share is kept"]).await
}
