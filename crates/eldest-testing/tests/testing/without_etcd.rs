//! Tests leaderships that a test makes up, and the etcd in memory at a port. The tests under a paused clock are in
//! `memory.rs`.

use std::time::Duration;

use eldest::{ErrorKind, LostReason, Session, SessionOptions};
use eldest_testing::{MemoryEtcd, fake_leadership};
use tokio::time::timeout;

use crate::Result;

const TTL: Duration = Duration::from_secs(10);
/// The time within which every awaited event must happen.
const SOON: Duration = Duration::from_secs(60);

fn options(identity: &str) -> SessionOptions {
    SessionOptions::new(identity).ttl(TTL)
}

#[tokio::test]
async fn a_fake_term_is_extended_and_runs_out_by_its_own_clock() {
    let (leadership, control) = fake_leadership("jobs", 7);
    assert_eq!((leadership.name(), leadership.fencing_token()), ("jobs", 7));
    let lost = leadership.lost();
    control.advance(Duration::from_secs(7));
    assert!(control.extend(TTL));
    control.advance(Duration::from_secs(7));
    assert!(leadership.is_valid() && !lost.is_cancelled());
    // The grace period begins.
    control.advance(Duration::from_secs(1));
    assert!(leadership.is_valid() && lost.is_cancelled());
    assert_eq!(leadership.lost_reason(), Some(LostReason::LeaseExpiring));
    assert!(!control.extend(TTL), "it came too late");
    control.advance(Duration::from_secs(2));
    assert!(!leadership.is_valid());
}

#[test]
fn fake_term_can_be_read_without_a_runtime() {
    let (leadership, control) = fake_leadership("jobs", 7);
    control.expire();
    assert!(!leadership.is_valid());
    assert_eq!(leadership.lost_reason(), Some(LostReason::LeaseExpiring));
}

#[test]
fn each_reason_ends_a_fake_term_as_it_ends_a_real_one() {
    let grace = Duration::from_secs(2);
    for (reason, valid_for) in [
        (LostReason::LeaseExpiring, grace),
        (LostReason::Stalled, grace),
        (LostReason::Reassigned, grace),
        (LostReason::Evacuated, grace),
        (LostReason::Ordered, grace),
        (LostReason::Shutdown, TTL),
        (LostReason::SessionClosed, TTL),
        (LostReason::RuntimeGone, TTL),
        (LostReason::LeaseLost, Duration::ZERO),
        (LostReason::KeyDeleted, Duration::ZERO),
        (LostReason::KeyOverwritten, Duration::ZERO),
        (LostReason::StoreChanged, Duration::ZERO),
        (LostReason::Resigned, Duration::ZERO),
        (LostReason::SteppedDown, Duration::ZERO),
    ] {
        let (leadership, control) = fake_leadership("jobs", 7);
        let term = leadership.term();
        control.lose(reason);
        assert!(term.lost().is_cancelled(), "{reason}");
        assert_eq!(term.lost_reason(), Some(reason));
        assert_eq!(term.valid_until().time_left(), valid_for, "{reason}");
        control.lose(LostReason::LeaseLost);
        assert_eq!(term.lost_reason(), Some(reason), "the first reason stands");
        control.expire();
        assert!(!term.is_valid(), "{reason}");
    }
}

#[tokio::test]
async fn a_fake_leader_resigns_after_its_tasks_and_writes_nowhere() -> Result {
    let (leadership, _control) = fake_leadership("jobs", 7);
    let written = leadership.txn([eldest::Op::put("a", "b")]).await;
    assert_eq!(
        written.expect_err("there is no etcd").kind(),
        ErrorKind::Unavailable
    );
    leadership.proclaim("at 10.0.0.1").await?;
    let (lost, (done, ended)) = (leadership.lost(), tokio::sync::oneshot::channel());
    leadership.spawn(async move {
        lost.cancelled().await;
        done.send(()).expect("awaited");
    })?;
    timeout(SOON, leadership.resign()).await??;
    ended.await?;
    assert!(!leadership.is_valid());
    assert_eq!(leadership.lost_reason(), Some(LostReason::Resigned));
    let (leadership, _control) = fake_leadership("jobs", 8);
    timeout(SOON, leadership.step_down()).await??;
    assert_eq!(leadership.lost_reason(), Some(LostReason::SteppedDown));
    Ok(())
}

#[tokio::test]
async fn a_service_that_connects_by_itself_finds_the_memory_at_a_port() -> Result {
    let etcd = MemoryEtcd::start();
    let endpoint = etcd.listen("127.0.0.1:0").await?;
    let session = Session::connect([&endpoint], options("a")).await?;
    let leadership = session
        .election("jobs")?
        .campaign()
        .await?
        .elected()
        .await?;
    let beside = etcd.session(options("b")).await?;
    let leader = beside.election("jobs")?.leader().await?;
    assert_eq!(leader.expect("a leads").identity(), "a");
    leadership.resign().await?;
    session.close().await?;
    let taken = endpoint.trim_start_matches("http://");
    let refused = etcd.listen(taken).await.expect_err("the port is taken");
    assert_eq!(refused.kind(), eldest_testing::ErrorKind::Machine);
    Ok(())
}
