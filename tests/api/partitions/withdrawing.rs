//! Tests kept shares that end early: because a lease is revoked, or because the member withdraws what it or its former
//! process kept.

use std::time::Duration;

use eldest::{Partition, PartitionRunner, Session};
use eldest_testing::{crash, eventually};
use etcd_client::Client;
use tokio::time::Instant;

use super::keeping::{
    COUNT, KEEP, Keeper, keeps, listed, recorded, tokens, twice_there, two, valid,
};
use super::{PREFIX, Running};
use crate::common::{Key, Result, SOON, Store, in_memory, keys, short, soon};

/// Returns the keys of one kind that belong to an identity.
async fn of(client: &mut Client, kind: &str, identity: &str) -> Vec<Key> {
    let mut all = keys(client, &format!("{PREFIX}{COUNT}/{kind}-")).await;
    all.retain(|key| key.is_of(identity));
    all
}

#[tokio::test(start_paused = true)]
async fn record_whose_lease_is_revoked_is_written_again_at_once() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, _b, of_b) = two(&etcd, &mut client).await?;
    let lease = of(&mut client, "k", "b").await[0].lease;
    client.lease_revoke(lease).await?;
    assert_eq!(listed(&mut client, "b").await, None);
    let begun = Instant::now();
    recorded(&mut client, "b", &of_b).await?;
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    Ok(())
}

/// The task that keeps the share sees that the member's key is gone, at various times before it compares its record.
#[tokio::test(start_paused = true)]
async fn member_whose_lease_is_revoked_keeps_its_share() -> Result {
    for pause in [0, 100, 195, 200, 205] {
        let etcd = in_memory();
        let mut client = etcd.client().await;
        let (mut a, mut b, of_b) = two(&etcd, &mut client).await?;
        let before = valid(&mut a.running);
        let lease = of(&mut client, "m", "b").await[0].lease;
        etcd.put(format!("{PREFIX}{COUNT}/x"), "x").await?;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        client.lease_revoke(lease).await?;
        eventually(SOON, "it has joined again", async || {
            let members = of(&mut client, "m", "b").await;
            members.first().filter(|member| member.lease != lease)?;
            Some(())
        })
        .await?;
        assert_eq!(b.running.owns(3).await?, of_b, "{pause}");
        let after = valid(&mut a.running);
        assert_eq!(tokens(&after), tokens(&before), "{pause}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn member_whose_work_outlives_its_lease_withdraws_its_share() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let mut a = Keeper::start(&etcd, "a").await?;
    a.running.owns(6).await?;
    let session = etcd.session(short("b")).await?;
    let partitions = session.partitions("billing", COUNT)?.keep_share_for(KEEP);
    let mut member = partitions.join().await?;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(soon("it owns three", member.owned()).await?);
    }
    let of_b = held.iter().map(Partition::number).collect();
    recorded(&mut client, "b", &of_b).await?;
    client.lease_revoke(held[0].term().lease_id()).await?;
    a.running.owns(6).await?;
    held.clear();
    for _ in 0..3 {
        held.push(soon("it owns three again", member.owned()).await?);
    }
    Ok(())
}

/// Starts two members, crashes the second one and runs it again, as `configured`, while its former keys stand.
async fn crashes_and_joins(
    etcd: &impl Store,
    client: &mut Client,
    configured: impl FnOnce(PartitionRunner<'static>) -> PartitionRunner<'static>,
) -> Result<(Keeper, Session, Running)> {
    let (a, b, _) = two(etcd, client).await?;
    crash(&b.session)?;
    b.running.task.abort();
    let (session, again) = keeps(etcd, configured).await?;
    twice_there(client).await?;
    Ok((a, session, again))
}

#[tokio::test(start_paused = true)]
async fn member_that_hands_over_keeps_no_share_of_its_former_process() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let hands_over = |runner: PartitionRunner<'static>| runner.hand_over_within(SOON);
    let (mut a, session, b) = crashes_and_joins(&etcd, &mut client, hands_over).await?;
    b.shutdown.cancel();
    b.end().await?;
    assert!(of(&mut client, "k", "b").await.is_empty());
    session.close().await?;
    a.running.owns(6).await?;
    Ok(())
}
