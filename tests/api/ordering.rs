//! Tests orders to step down: the addressed leader obeys, no leader stops without a successor, and an order leaves no
//! key.

use std::time::Duration;

use eldest::{
    Announcement, BoxError, CancellationToken, Election, ErrorKind, LostReason, RunHandle, Session,
    Status, StepDown,
};
use etcd_client::PutOptions;

use crate::common::{
    Result, Store, elected, in_memory, keys, leases, options, queue, session, soon,
};

const SECOND: Duration = Duration::from_secs(1);

/// Joins the election "e", with work that ends with its term.
async fn join_election(
    etcd: &impl Store,
    identity: &str,
) -> Result<(Session, Election, RunHandle<()>)> {
    let session = session(etcd, identity).await?;
    let election = session.election("e")?;
    let run = election.spawn(CancellationToken::new(), async |leadership| {
        leadership.lost().cancelled().await;
        Ok::<_, BoxError>(())
    });
    let mut joined = election.subscribe();
    let is_candidate =
        |status: &Status| matches!(status, Status::Leading { .. } | Status::Waiting { .. });
    soon("joins", joined.wait_for(is_candidate)).await?;
    drop(joined);
    Ok((session, election, run))
}

#[tokio::test(start_paused = true)]
async fn the_leader_steps_down_on_any_order_and_the_order_is_removed() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, of_a, _run_a) = join_election(&etcd, "a").await?;
    let (_b, _, _run_b) = join_election(&etcd, "b").await?;
    let ops = session(&etcd, "ops").await?.election("e")?;
    let before = leases(&mut client).await;
    let first = of_a.term().expect("a term");

    let order = StepDown::new().node("a");
    let (former, after) = soon("step down", ops.order_step_down(order)).await?;
    assert_eq!(former.identity(), "a");
    assert_eq!(after.leader().map(eldest::Member::identity), Some("b"));
    assert_eq!(first.lost_reason(), Some(LostReason::Ordered));
    queue(&ops, &["b", "a"]).await?;
    assert!(keys(&mut client, "eldest/~evacuated/").await.is_empty());
    assert_eq!(leases(&mut client).await, before);

    // The lead moves at most once in 5 s.
    let (former, _) = soon("step down", ops.order_step_down(StepDown::new())).await?;
    assert_eq!(former.identity(), "b");
    queue(&ops, &["a", "b"]).await
}

#[tokio::test(start_paused = true)]
async fn impossible_order_fails_with_the_reason_and_changes_nothing() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let session_of_ops = session(&etcd, "ops").await?;
    let ops = session_of_ops.election("e")?;
    let refused = async |order: StepDown, part: &str| {
        let error = soon("refused", ops.order_step_down(order)).await;
        let error = error.expect_err(part);
        assert_eq!(error.kind(), ErrorKind::NotObeyed, "{error}");
        assert!(error.to_string().contains(part), "{part}: {error}");
    };
    refused(StepDown::new(), "nobody leads").await;
    let (_a, of_a, _run_a) = join_election(&etcd, "a").await?;
    refused(
        StepDown::new(),
        "nobody else could: there is no other candidate",
    )
    .await;
    let away = Announcement::default().with_data_center("dc1");
    let b = etcd.session(options("b").announcement(away)).await?;
    let _b = soon("campaign", b.election("e")?.campaign()).await?;
    soon("evacuate", session_of_ops.evacuate("dc1")).await?;
    refused(StepDown::new(), "the others are in evacuated data centres").await;
    soon("lift", session_of_ops.lift("dc1")).await?;
    refused(
        StepDown::new().node("b"),
        "b waits in \"e\" at rank 2; a leads",
    )
    .await;
    refused(
        StepDown::new().node("x"),
        "\"x\" is no candidate of \"e\": there are a, b; a leads",
    )
    .await;
    assert!(of_a.is_leader());
    queue(&ops, &["a", "b"]).await?;
    assert!(keys(&mut client, "eldest/~evacuated/").await.is_empty());

    let lock = session_of_ops.lock("l")?;
    let _held = soon("lock", lock.acquire()).await?;
    let error = session(&etcd, "c").await?.election("l")?;
    let error = error.order_step_down(StepDown::new()).await;
    assert!(error.expect_err("a lock").to_string().contains("is a lock"));
    for within in [Duration::from_millis(999), Duration::from_secs(3601)] {
        let error = ops.order_step_down(StepDown::new().within(within)).await;
        assert_eq!(error.expect_err("a rule").kind(), ErrorKind::InvalidInput);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_order_that_is_not_obeyed_in_time_is_withdrawn() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let lease = client.lease_grant(60, None).await?.id();
    let under = PutOptions::new().with_lease(lease);
    client.put("eldest/e/foreign", "go", Some(under)).await?;
    let (_b, _, _run_b) = join_election(&etcd, "b").await?;
    let ops = session(&etcd, "ops").await?.election("e")?;
    let before = leases(&mut client).await;
    let order = StepDown::new().within(SECOND);
    let error = soon("refused", ops.order_step_down(order)).await;
    let error = error.expect_err("it knows no orders");
    assert_eq!(error.kind(), ErrorKind::NotObeyed, "{error}");
    let message = error.to_string();
    assert!(
        message.contains("go did not step down within 1s, and the order was withdrawn"),
        "{message}"
    );
    assert!(keys(&mut client, "eldest/~evacuated/").await.is_empty());
    assert_eq!(leases(&mut client).await, before);
    queue(&ops, &["go", "b"]).await
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_ordered_to_step_down_may_resign_instead() -> Result {
    let etcd = in_memory();
    let session_of_a = session(&etcd, "a").await?;
    let election = session_of_a.election("e")?;
    let mut candidate = soon("campaign", election.campaign()).await?;
    let leadership = elected(&mut candidate).await?;
    let (_b, _, _run_b) = join_election(&etcd, "b").await?;
    let ops = session(&etcd, "ops").await?.election("e")?;
    let (ordered, resigned) = tokio::join!(ops.order_step_down(StepDown::new()), async {
        leadership.lost().cancelled().await;
        assert!(leadership.is_valid(), "its work may wind up");
        leadership.resign().await
    });
    resigned?;
    ordered?;
    queue(&ops, &["b"]).await
}
