//! Tests that members own partitions in proportion to the capacities that they announce.

use eldest::{Announcement, ErrorKind};
use eldest_testing::eventually;

use super::membership::next;
use super::{Running, partitions, until_lost};
use crate::common::{Result, SOON, in_memory, options};

#[tokio::test(start_paused = true)]
async fn double_capacity_owns_twice_as_many_and_nothing_else_moves() -> Result {
    let etcd = in_memory();
    let (_a, first) = partitions(&etcd, "a", 12).await?;
    let large = options("b").announcement(Announcement::default().with_capacity(2));
    let large = etcd.session(large).await?;
    let second = large.partitions("billing", 12)?;
    let mut a = Running::start(&first, until_lost);
    a.owns(12).await?;
    let before = a.terms.clone();
    let mut b = Running::start(&second, until_lost);
    b.owns(8).await?;
    for number in a.owns(4).await? {
        assert!(before[&number].is_valid(), "{number} did not move");
    }
    let map = first.map().await?;
    let capacities = map
        .members()
        .iter()
        .map(|member| member.announcement().capacity());
    assert_eq!(capacities.collect::<Vec<_>>(), [1, 2]);
    let (_c, third) = partitions(&etcd, "c", 12).await?;
    let mut c = Running::start(&third, until_lost);
    c.owns(3).await?;
    a.owns(3).await?;
    b.owns(6).await?;
    b.shutdown.cancel();
    b.end().await?;
    a.owns(6).await?;
    c.owns(6).await?;
    for running in [a, c] {
        running.shutdown.cancel();
        running.end().await?;
    }
    Ok(())
}

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

#[tokio::test(start_paused = true)]
async fn a_capacity_out_of_bounds_keeps_the_member_from_joining() -> Result {
    let etcd = in_memory();
    let odd = options("a").announcement(Announcement::default().with_capacity(1001));
    let session = etcd.session(odd).await?;
    let refused = session.partitions("billing", 2)?.join().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(
        refused.to_string().contains("the capacity is 1001"),
        "{refused}"
    );
    Ok(())
}
