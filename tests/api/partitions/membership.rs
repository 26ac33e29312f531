//! Tests a membership whose partitions are taken step by step.

use std::time::Duration;

use eldest::{CancellationToken, ErrorKind, Partition, PartitionMembership};
use eldest_testing::eventually;

use super::{PREFIX, partitions};
use crate::common::{Result, SOON, in_memory, keys, leases, nothing_under, soon};

pub(crate) async fn next(member: &mut PartitionMembership) -> Result<Partition> {
    Ok(soon("a partition", member.owned()).await?)
}

#[tokio::test(start_paused = true)]
async fn step_by_step_partitions_are_handed_out_and_given_back() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_session, partitions) = partitions(&etcd, "a", 2).await?;
    let mut member = partitions.join().await?;
    let (one, two) = (next(&mut member).await?, next(&mut member).await?);
    assert_eq!([one.number(), two.number()], [0, 1]);
    let term = one.term();
    drop(one);
    let again = next(&mut member).await?;
    assert_eq!(again.number(), 0, "balance still wants it here");
    assert!(again.fencing_token() > term.fencing_token() && !term.is_valid());
    // A partition that was never handed out goes with the member; a partition in use goes when it is dropped.
    let ended = CancellationToken::new();
    let finish = ended.clone();
    two.spawn(async move { finish.cancelled().await })?;
    let leaving = tokio::spawn(async move {
        let left = member.leave().await;
        (left, member)
    });
    soon("the loss", again.lost().cancelled()).await;
    let refused = again.spawn(std::future::pending::<()>()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LeadershipLost);
    drop(again);
    drop(two);
    eventually(SOON, "the task keeps one key", async || {
        let left = keys(&mut client, PREFIX).await;
        (left.len() == 1).then_some(())
    })
    .await?;
    ended.cancel();
    let (left, mut member) = soon("left", leaving).await?;
    left?;
    assert_eq!(keys(&mut client, PREFIX).await, []);
    let error = soon("ended", member.owned()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ended);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_dropped_or_unfinished_membership_leaves_nothing() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (session, partitions) = partitions(&etcd, "a", 300).await?;
    for patience in [0, 1, 5, 20] {
        let join = partitions.join();
        let joined = tokio::time::timeout(Duration::from_millis(patience), join).await;
        drop(joined);
        eventually(SOON, "can join again", async || {
            let joined = partitions.join().await;
            joined.ok().map(drop)
        })
        .await?;
    }
    nothing_under(&mut client, PREFIX).await?;
    session.close().await?;
    assert_eq!(leases(&mut client).await, 0);
    Ok(())
}
