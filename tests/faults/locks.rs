//! Tests the holder of a lock that loses etcd: it stops before the next one begins.

use std::time::Duration;

use eldest::{ErrorKind, LostReason, Session};
use eldest_testing::history::What;
use eldest_testing::{Etcd, Proxy, eventually};

use crate::stage::{ELECTION, Result, SOON, Stage, deadline, grace, options, seconds};

const TTL: Duration = seconds(3);

/// A lock's keys are those of an election with its name, so the stage's eye sees them.
#[tokio::test]
async fn holder_without_answers_stops_before_the_next_one_begins() -> Result {
    const FAULT: &str = "answers lost";
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let a = Session::connect([proxy.endpoint()], options("a", TTL)).await?;
    let b = Session::connect([etcd.endpoint()], options("b", TTL)).await?;
    let (ours, theirs) = (a.lock(ELECTION)?, b.lock(ELECTION)?);
    let guard = ours.acquire().await?;
    let first = stage.elected("a", &guard);
    let next = tokio::spawn(async move { theirs.acquire().await });
    stage.await_candidate("b").await?;

    stage.fault("a", FAULT);
    proxy.hold_responses();
    let broken = stage.now();
    let lost = first.is_lost(TTL + seconds(5)).await?;
    let end = first.deadline();
    assert!(end <= deadline(broken, TTL), "no later than etcd promised");
    assert!(
        lost >= end.saturating_sub(grace(TTL)) && lost < end,
        "notified at {lost:?}, valid until {end:?}"
    );
    assert_eq!(guard.lost_reason(), Some(LostReason::LeaseExpiring));
    first.record_loss(&stage.recorder);

    // The holder ignores its cancelled token; the next one begins when the old validity has certainly ended.
    let next = tokio::time::timeout(TTL + SOON, next).await???;
    let second = stage.elected("b", &next);
    assert!(second.elected_at > end, "before the first one's end");
    assert!(first.last_valid() < end && !guard.is_valid());
    assert!(second.token() > first.token());
    let refused = guard.txn([]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LeadershipLost);

    // The late release deletes its own key at most.
    proxy.heal();
    stage.healed("a", FAULT);
    stage.recorder.record("a", ELECTION, What::Left);
    guard.release().await?;
    stage.queue(&["b"], SOON).await?;
    assert!(next.is_valid());
    stage.recorder.record("b", ELECTION, What::Left);
    next.release().await?;
    let again = ours.acquire().await?;
    let third = stage.elected("a", &again);
    eventually(SOON, "it is sampled", async || {
        (third.last_valid() > Duration::ZERO).then_some(())
    })
    .await?;
    drop(again);
    stage.queue(&[], SOON).await?;
    let report = stage.judge(3, 1).await?;
    assert_eq!(report.counts.deleted_early, 0, "{report}");
    Ok(())
}
