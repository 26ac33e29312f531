//! Tests `eldest partitions`.

use eldest_testing::{Etcd, eventually};
use serde_json::json;

use crate::common::{Result, SOON, USAGE, at, placed, run};

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
    let all = run(at(&etcd, &["partitions", "billing"])).await?;
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
    for name in ["user-1", "user-2", "user-3", ""] {
        let args = [
            "partitions",
            "billing",
            "--count",
            "4",
            "--of",
            name,
            "--output",
            "json",
        ];
        let found = run(at(&etcd, &args)).await?.done().json();
        let partition = shards.partition_for(name);
        assert_eq!(found["partitions"].as_array().map(Vec::len), Some(1));
        let one = &found["partitions"][0];
        assert_eq!(one["partition"], partition, "{name}");
        assert_eq!(one["owner"]["fencing_token"], json!(token(partition)));
        assert_eq!(found["members"][0]["owned_count"], 4);
    }
    let other = run(at(&etcd, &["partitions", "billing", "--count", "8"])).await?;
    other.failed(USAGE, &["8 partitions", "others share 4"]);
    member.leave().await?;
    let nobody = run(at(&etcd, &["partitions", "billing"])).await?;
    nobody.failed(USAGE, &["\"billing\"", "--count"]);
    let free = run(at(&etcd, &["partitions", "billing", "--count", "2"])).await?;
    assert_eq!(free.done().stdout.lines().count(), 3);
    Ok(())
}
