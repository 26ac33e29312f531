//! Tests that stalled work loses its partition, and that an unhealthy member owns none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use eldest::{CancellationToken, ErrorKind, LostReason, Partition, PartitionRunner};
use eldest_testing::eventually;

use super::{PREFIX, Running, partitions, until_lost};
use crate::common::{Result, SOON, WHILE, in_memory, keys, soon, stays};

/// Long enough for heartbeats on a busy machine.
const STALL: Duration = Duration::from_secs(2);
const OFTEN: Duration = Duration::from_millis(50);
const LIMIT: Duration = Duration::from_secs(1);

/// Makes the member healthy while `well` is true.
pub(super) fn checked(
    runner: PartitionRunner<'static>,
    well: &Arc<AtomicBool>,
) -> PartitionRunner<'static> {
    let well = Arc::clone(well);
    runner.health_check(OFTEN, LIMIT, move || {
        let is_well = well.load(Ordering::SeqCst);
        async move {
            if is_well {
                Result::Ok(())
            } else {
                Err("the disk is full".into())
            }
        }
    })
}

/// Work that makes progress, except on partition 1.
async fn beats_but_for_1(partition: Partition) -> Result {
    let (lost, heart) = (partition.lost(), partition.heartbeats());
    while !lost.is_cancelled() {
        match partition.number() {
            0 => partition.heartbeat(),
            1 => {}
            _ => heart.beat(),
        }
        tokio::time::sleep(OFTEN).await;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn silent_partition_begins_again_and_the_others_continue() -> Result {
    let etcd = in_memory();
    let (_session, partitions) = partitions(&etcd, "a", 3).await?;
    let mut running = Running::with(partitions.runner().stall_timeout(STALL), beats_but_for_1);
    running.owns(3).await?;
    let first = running.terms.clone();
    soon("it stalls", first[&1].lost().cancelled()).await;
    assert_eq!(first[&1].lost_reason(), Some(LostReason::Stalled));
    let again = eventually(SOON, "it begins again", async || {
        running.owned();
        let term = running.terms[&1].clone();
        (term.fencing_token() > first[&1].fencing_token()).then_some(term)
    })
    .await?;
    assert!(first[&0].is_valid() && first[&2].is_valid());
    soon("it stalls again", again.lost().cancelled()).await;
    assert_eq!(again.lost_reason(), Some(LostReason::Stalled));
    assert!(first[&0].is_valid() && first[&2].is_valid());
    running.shutdown.cancel();
    Ok(running.end().await?)
}

#[tokio::test(start_paused = true)]
async fn an_ill_member_leaves_all_partitions_to_others_until_it_is_well() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, first) = partitions(&etcd, "a", 6).await?;
    let (_b, second) = partitions(&etcd, "b", 6).await?;
    let well = Arc::new(AtomicBool::new(false));
    let runner = checked(first.runner(), &well);
    let mut a = Running::with(runner, until_lost);
    stays(WHILE, "no member", async || {
        keys(&mut client, PREFIX).await.is_empty()
    })
    .await?;
    let mut b = Running::start(&second, until_lost);
    b.owns(6).await?;
    for _ in 0..2 {
        well.store(true, Ordering::SeqCst);
        let owned = a.owns(3).await?;
        b.owns(3).await?;
        let terms: Vec<_> = owned.iter().map(|number| a.terms[number].clone()).collect();
        well.store(false, Ordering::SeqCst);
        b.owns(6).await?;
        for term in terms {
            assert_eq!(term.lost_reason(), Some(LostReason::Stalled));
        }
        // A key of each partition, and of one member.
        assert_eq!(keys(&mut client, PREFIX).await.len(), 7);
    }
    a.shutdown.cancel();
    a.end().await?;
    b.shutdown.cancel();
    Ok(b.end().await?)
}

#[tokio::test(start_paused = true)]
async fn an_unkeepable_limit_is_refused_before_any_work_begins() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_session, partitions) = partitions(&etcd, "a", 2).await?;
    let long = Duration::from_secs(25 * 60 * 60);
    let fit = async || Result::Ok(());
    for (runner, rule) in [
        (partitions.runner().stall_timeout(long), "stall_timeout"),
        (
            partitions.runner().health_check(OFTEN, OFTEN, fit),
            "health_check",
        ),
    ] {
        let refused = runner.run(CancellationToken::new(), until_lost).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        assert!(refused.to_string().contains(rule), "{refused}");
    }
    assert_eq!(keys(&mut client, PREFIX).await, []);
    Ok(())
}
