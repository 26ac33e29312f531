//! Tests a runtime that is blocked, and an etcd that is full.

use std::time::Duration;

use eldest::{ErrorKind, LostReason, Session};
use eldest_testing::{Etcd, eventually};
use etcd_client::{AlarmAction, AlarmOptions, AlarmType, CompactionOptions, ResponseHeader};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::stage::{
    ELECTION, Node, Result, SOON, Stage, Work, deadline, grace, millis, options, seconds,
};

/// A task blocks the only thread of the leader's runtime.
#[tokio::test]
async fn leader_with_a_blocked_runtime_is_notified_by_the_watchdog() -> Result {
    const TTL: Duration = seconds(3);
    const BLOCKED: &str = "runtime blocked";
    let etcd = Etcd::start().await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    // Never dropped, because a drop would wait for the blocked thread.
    let mut one_thread = Builder::new_multi_thread();
    let runtime = one_thread.worker_threads(1).enable_all().build()?;
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    let connecting = Session::connect([etcd.endpoint()], options("a", TTL));
    let session = runtime.spawn(connecting).await??;
    let a = {
        let _context = runtime.enter();
        Node::of(&stage, session, Work::UntilLost)?
    };
    let first = a.elected(SOON).await?;
    let b = stage.node("b", &[etcd.endpoint()]).await?;
    stage.fault("a", BLOCKED);
    let (unblock, wait) = std::sync::mpsc::channel::<()>();
    let (blocks, blocked) = oneshot::channel();
    runtime.spawn(async move {
        let _ = blocks.send(());
        // Once the sender is gone, returns at once.
        let _ = wait.recv();
    });
    blocked.await?;
    let broken = stage.now();

    let lost = first.is_lost(TTL + SOON).await?;
    let end = first.deadline();
    assert!(end <= deadline(broken, TTL));
    let warning = end.saturating_sub(grace(TTL));
    assert!(
        lost >= warning && lost < end,
        "notified at {lost:?}, which is not from {warning:?} to {end:?}"
    );
    assert_eq!(first.reason(), Some(LostReason::LeaseExpiring));
    let second = b.elected(TTL + SOON).await?;
    assert!(second.elected_at > end);
    assert!(
        second.elected_at <= broken + TTL + millis(3500),
        "a late takeover"
    );
    assert!(first.last_valid() < end);

    drop(unblock);
    stage.healed("a", BLOCKED);
    stage.queue(&["b", "a"], SOON).await?;
    b.stop().await?;
    a.elected(SOON).await?;
    a.stop().await?;
    assert!(!first.term.is_valid());
    stage.judge(3, 1).await?;
    Ok(())
}

#[tokio::test]
async fn full_etcd_keeps_its_leader_refuses_a_join_and_lets_run_wait() -> Result {
    const TTL: Duration = seconds(3);
    let builder = Etcd::builder().arg("--quota-backend-bytes=8000000");
    let etcd = builder.start().await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let a = stage.node("a", &[etcd.endpoint()]).await?;
    let led = a.elected(SOON).await?;
    let mut client = stage.client.clone();
    let filler = vec![b'x'; 1_000_000];
    stage.fault("", "no space");
    let mut revision = 0;
    let full = loop {
        match client.put("filler", filler.clone(), None).await {
            Ok(put) => revision = put.header().map_or(0, ResponseHeader::revision),
            Err(error) => break error.to_string(),
        }
        assert!(revision < 1000, "never full");
    };
    assert!(full.contains("database space exceeded"), "{full}");

    // One session that is new to etcd, and needs a lease; and one that has its lease.
    let session = Session::connect([etcd.endpoint()], options("b", TTL)).await?;
    let election = session.election(ELECTION)?;
    let error = tokio::time::timeout(SOON, election.campaign()).await?;
    let error = error.expect_err("a clear error");
    assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
    let c = Node::start(&stage, "c", &[etcd.endpoint()]).await?;

    // The leader continues beyond its deadline before the fault.
    let broken = stage.now();
    eventually(TTL * 3, "the lease is renewed all the same", async || {
        assert!(!led.lost.is_cancelled(), "lost: {:?}", led.reason());
        (led.deadline() > deadline(broken, TTL) + TTL / 2).then_some(())
    })
    .await?;
    assert_eq!(stage.keys().await.len(), 1);
    assert!(!c.has_ended(), "run gave up");

    let physical = Some(CompactionOptions::new().with_physical());
    client.compact(revision, physical).await?;
    client.defragment().await?;
    let alarms = client.alarm(AlarmAction::Get, AlarmType::Nospace, None);
    for alarm in alarms.await?.alarms() {
        let mut member = AlarmOptions::new();
        member.with_member(alarm.member_id());
        let disarmed = client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(member));
        disarmed.await?;
    }
    stage.queue(&["a", "c"], SOON).await?;
    stage.healed("", "no space");
    // The refused request left nothing behind that blocks the next attempt.
    let b = Node::of(&stage, session, Work::UntilLost)?;
    stage.queue(&["a", "c", "b"], SOON).await?;
    for node in [a, c, b] {
        node.elected(SOON).await?;
        node.stop().await?;
    }
    assert_eq!(stage.leases().await?, [0; 0]);
    stage.judge(3, 1).await?;
    Ok(())
}
