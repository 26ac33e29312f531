//! Tests that members own partitions in proportion to the capacities that they announce.

use eldest::{Announcement, ErrorKind};
use eldest_testing::eventually;

use super::membership::next;
use super::{Running, partitions, until_lost};
use crate::common::{Result, SOON, in_memory};

#[tokio::test(start_paused = true)]
async fn a_member_changes_its_capacity_by_a_new_announcement() -> Result {
    let etcd = in_memory();
    let (_a, first) = partitions(&etcd, "a", 12).await?;
    let (_b, second) = partitions(&etcd, "b", 12).await?;
    let mut a = Running::start(&first, until_lost);
    a.owns(12).await?;
    let mut member = second.join().await?;
    let capacity = |capacity| Announcement::default().with_capacity(capacity);
    member.proclaim(capacity(3)).await?;
    let mut held = Vec::new();
    while held.len() < 9 {
        held.push(next(&mut member).await?);
    }
    a.owns(3).await?;
    let refused = member.proclaim(capacity(0)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.to_string().contains("from 1 to 1000"), "{refused}");
    member.proclaim(capacity(1)).await?;
    eventually(SOON, "it gives up three", async || {
        held.retain(|partition| !partition.lost().is_cancelled());
        (held.len() == 6).then_some(())
    })
    .await?;
    a.owns(6).await?;
    drop(held);
    member.leave().await?;
    a.owns(12).await?;
    a.shutdown.cancel();
    Ok(a.end().await?)
}
