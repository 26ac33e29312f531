//! Tests sessions whose random numbers are the same, as those of a machine and its clone may be.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use eldest::sim::Scripted;
use eldest::{Session, Status};
use eldest_testing::{Etcd, eventually};

use crate::common::{Result, SOON, Store, WHILE, elected, in_memory, leases, options, soon, stays};

/// Connects a session whose first `same` random numbers are the same for all.
async fn session(etcd: &impl Store, identity: &str, same: usize) -> Result<Session> {
    let left = AtomicUsize::new(same);
    let fewer = |left: usize| left.checked_sub(1);
    let random = move || {
        let same = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
        same.map_or_else(|_| fastrand::u64(..), |_| 4711 << 1)
    };
    let twin = Scripted {
        random: Box::new(random),
        ..Scripted::real()
    };
    let options = options(identity).env(Arc::new(twin));
    Ok(etcd.session(options).await?)
}

#[tokio::test(start_paused = true)]
async fn taken_lease_id_is_left_alone_and_another_is_drawn() -> Result {
    let etcd = in_memory();
    let first = session(&etcd, "first", 1).await?;
    let mut of_first = soon("campaign", first.election("one")?.campaign()).await?;
    let leadership = elected(&mut of_first).await?;

    let second = session(&etcd, "second", 3).await?;
    let mut of_second = soon("campaign", second.election("another")?.campaign()).await?;
    let beside = elected(&mut of_second).await?;

    let mut client = etcd.client().await;
    stays(WHILE, "two leaders of two elections", async || {
        leadership.is_valid() && beside.is_valid()
    })
    .await?;
    assert_eq!(leases(&mut client).await, 2);
    Ok(())
}

#[tokio::test]
async fn session_that_draws_only_taken_ids_waits_and_ends_no_lease() -> Result {
    let etcd = Etcd::start().await?;
    let first = session(&etcd, "first", 1).await?;
    let mut of_first = soon("campaign", first.election("one")?.campaign()).await?;
    let leadership = elected(&mut of_first).await?;

    let second = session(&etcd, "second", usize::MAX).await?;
    let election = second.election("another")?;
    let campaign = tokio::spawn(async move { election.campaign().await });
    let refused = async || {
        let refused = etcd.metric(REFUSED).await;
        (refused >= 4.0).then_some(())
    };
    eventually(SOON, "four refused grants", refused).await?;
    assert!(leadership.is_valid() && !campaign.is_finished());
    assert_eq!(leases(&mut etcd.client().await).await, 1);

    // The id is free again when the first session has revoked its lease.
    drop(leadership);
    first.close().await?;
    let candidate = soon("campaign", campaign).await??;
    let leads = |status: &Status| matches!(status, Status::Leading { .. });
    crate::common::status(&candidate, leads).await?;
    Ok(())
}

/// The metric that counts how often etcd returned "lease already exists".
const REFUSED: &str = "grpc_server_handled_total{grpc_code=\"FailedPrecondition\",grpc_method=\"LeaseGrant\",grpc_service=\"etcdserverpb.Lease\",grpc_type=\"unary\"}";
