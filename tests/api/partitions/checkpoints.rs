//! Tests that the next owner of a partition continues at the last checkpoint, which no earlier owner replaces.

use eldest::{Op, Partition};
use eldest_testing::eventually;

use super::membership::next;
use super::partitions;
use crate::common::{Result, SOON, in_memory, keys};

const CHECKPOINT: &str = "eldest/~checkpoint/billing/1/0";

/// Returns the existing keys.
async fn left(client: &mut etcd_client::Client) -> Vec<String> {
    let all = keys(client, "eldest/").await;
    all.into_iter().map(|key| key.path).collect()
}

/// Returns the state that the partition's last checkpoint holds.
async fn saved(partition: &Partition) -> Result<Option<Vec<u8>>> {
    let last = partition.last_checkpoint().await?;
    Ok(last.map(eldest::Checkpoint::into_value))
}

#[tokio::test(start_paused = true)]
async fn the_next_owner_reads_what_the_last_one_saved() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (session, first) = partitions(&etcd, "a", 1).await?;
    let mut member = first.join().await?;
    let partition = next(&mut member).await?;
    assert_eq!(saved(&partition).await?, None);
    for value in ["1", "2", ""] {
        partition.checkpoint(value).await?;
        assert_eq!(saved(&partition).await?.as_deref(), Some(value.as_bytes()));
    }
    partition.checkpoint(vec![0xff; 64 * 1024]).await?;
    drop(partition);
    member.leave().await?;
    session.close().await?;
    assert_eq!(left(&mut client).await, [CHECKPOINT], "without a lease");

    let (session, second) = partitions(&etcd, "b", 1).await?;
    let mut member = second.join().await?;
    let partition = next(&mut member).await?;
    assert_eq!(saved(&partition).await?, Some(vec![0xff; 64 * 1024]));
    partition.checkpoint("b").await?;
    drop(partition);
    member.leave().await?;
    let overview = session.overview("").await?;
    assert_eq!(
        overview.queues().len(),
        0,
        "nobody competes for a checkpoint"
    );
    session.close().await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_replaced_checkpoint_does_not_stop_the_owners_next_one() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_session, partitions) = partitions(&etcd, "a", 1).await?;
    let mut member = partitions.join().await?;
    let partition = next(&mut member).await?;
    partition.checkpoint("1").await?;
    // As if etcd applied an earlier attempt of this owner late.
    partition.txn([Op::put(CHECKPOINT, "0")]).await?;
    partition.checkpoint("2").await?;
    assert_eq!(saved(&partition).await?.as_deref(), Some(&b"2"[..]));
    client.delete(CHECKPOINT, None).await?;
    partition.checkpoint("3").await?;
    assert_eq!(saved(&partition).await?.as_deref(), Some(&b"3"[..]));
    drop(partition);
    member.leave().await?;
    eventually(SOON, "only the checkpoint is left", async || {
        (left(&mut client).await == [CHECKPOINT]).then_some(())
    })
    .await?;
    Ok(())
}
