//! Tests the etcd in memory as users' tests have it: within one process, under tokio's paused clock.
#![allow(clippy::disallowed_methods)] // tokio's clock is the one that is paused

use std::time::Duration;

use eldest::{
    BoxError, Candidate, ErrorKind, LostReason, Member, PartitionMap, Session, SessionOptions,
    SessionState, Status,
};
use eldest_testing::{MemoryEtcd, crash};
use tokio::time::{Instant, timeout};

type Result<T = ()> = std::result::Result<T, BoxError>;

const TTL: Duration = Duration::from_secs(10);
/// How often etcd searches for expired leases.
const EXPIRY: Duration = Duration::from_millis(500);
/// The limit of the paused clock within which every awaited event must happen.
const SOON: Duration = Duration::from_secs(60);

fn options(identity: &str) -> SessionOptions {
    SessionOptions::new(identity).ttl(TTL)
}

async fn join(etcd: &MemoryEtcd, identity: &str) -> Result<(Session, Candidate)> {
    let session = etcd.session(options(identity)).await?;
    let candidate = session.election("jobs")?.campaign().await?;
    Ok((session, candidate))
}

#[tokio::test(start_paused = true)]
async fn the_eldest_leads_in_memory_and_the_next_follows_at_once() -> Result {
    let etcd = MemoryEtcd::start();
    let (first, mut leads) = join(&etcd, "a").await?;
    let (second, mut waits) = join(&etcd, "b").await?;
    let leadership = leads.elected().await?;
    let ahead = match waits.status() {
        Status::Waiting { ahead, .. } => ahead,
        other => panic!("{other:?}"),
    };
    assert_eq!(ahead, 1);
    let roster = second.election("jobs")?.roster().await?;
    let names: Vec<_> = roster.members().iter().map(Member::identity).collect();
    assert_eq!(names, ["a", "b"]);
    let begun = Instant::now();
    leadership.resign().await?;
    let next = timeout(SOON, waits.elected()).await??;
    assert!(begun.elapsed() < Duration::from_secs(1), "no TTL passed");
    assert!(next.fencing_token() > leadership.fencing_token());
    next.txn([eldest::Op::put("jobs-done", "1")]).await?;
    assert_eq!(etcd.get("jobs-done").await?.as_deref(), Some(&b"1"[..]));
    first.close().await?;
    second.close().await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_term_in_memory_is_renewed_a_hundred_times() -> Result {
    let etcd = MemoryEtcd::start();
    let (_session, mut candidate) = join(&etcd, "a").await?;
    let leadership = candidate.elected().await?;
    tokio::time::sleep(TTL * 34).await;
    assert!(leadership.is_valid());
    assert_eq!(leadership.lost_reason(), None);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_paused_memory_is_an_outage_that_ends_terms_in_time() -> Result {
    let etcd = MemoryEtcd::start();
    let (_session, mut candidate) = join(&etcd, "a").await?;
    let leadership = candidate.elected().await?;
    etcd.pause();
    let refused = etcd.get("a").await.expect_err("it is paused");
    assert_eq!(refused.kind(), eldest_testing::ErrorKind::Unreachable);
    timeout(TTL, leadership.lost().cancelled()).await?;
    assert_eq!(leadership.lost_reason(), Some(LostReason::LeaseExpiring));
    drop(leadership);
    etcd.resume();
    let again = timeout(SOON, candidate.elected()).await??;
    assert!(again.is_valid());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn leader_in_memory_learns_that_its_key_was_deleted() -> Result {
    let etcd = MemoryEtcd::start();
    let (_session, mut candidate) = join(&etcd, "a").await?;
    let leadership = candidate.elected().await?;
    assert!(etcd.delete(leadership.key()).await?);
    assert!(!etcd.delete(leadership.key()).await?, "it is gone");
    timeout(SOON, leadership.lost().cancelled()).await?;
    assert_eq!(leadership.lost_reason(), Some(LostReason::KeyDeleted));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn locks_semaphores_and_partitions_are_served_from_memory() -> Result {
    let etcd = MemoryEtcd::start();
    let one = etcd.session(options("a")).await?;
    let two = etcd.session(options("b")).await?;
    let guard = one.lock("invoices")?.acquire().await?;
    assert!(two.lock("invoices")?.try_acquire().await?.is_none());
    guard.release().await?;
    let guard = two.lock("invoices")?.try_acquire().await?;
    assert!(guard.is_some_and(|guard| guard.is_valid()));
    let permit = one.semaphore("workers", 1)?.acquire().await?;
    assert!(two.semaphore("workers", 1)?.try_acquire().await?.is_none());
    permit.release().await?;
    let _members = [
        one.partitions("shards", 4)?.join().await?,
        two.partitions("shards", 4)?.join().await?,
    ];
    let mut maps = one.partitions("shards", 4)?.observe().await?;
    let balanced = |map: &PartitionMap| {
        let shares = map.members().iter().map(|m| map.partitions_of(m).count());
        shares.eq([2, 2])
    };
    timeout(SOON, async {
        while !balanced(&maps.next().await.expect("it goes on")?) {}
        Ok::<_, eldest::Error>(())
    })
    .await??;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn next_candidate_in_memory_leads_when_a_crashed_leaders_lease_expires() -> Result {
    let etcd = MemoryEtcd::start();
    let (first, mut leads) = join(&etcd, "a").await?;
    let leadership = leads.elected().await?;
    let (_second, mut waits) = join(&etcd, "b").await?;
    let begun = Instant::now();
    crash(&first)?;
    timeout(SOON, leadership.lost().cancelled()).await?;
    assert_eq!(leadership.lost_reason(), Some(LostReason::RuntimeGone));
    assert!(leadership.is_valid(), "it has not noticed more than that");
    let stale = leadership.txn([eldest::Op::put("a", "b")]).await;
    let stale = stale.expect_err("nothing is sent any more").kind();
    assert_eq!(stale, ErrorKind::Unavailable);
    drop(leads); // which sends no message
    let next = timeout(SOON, waits.elected()).await??;
    let waited = begun.elapsed();
    assert!(!leadership.is_valid());
    assert!(next.is_valid());
    // The last renewal was at most a third of the TTL ago.
    assert!(waited + EXPIRY > TTL * 2 / 3, "{waited:?}");
    assert!(waited <= TTL + EXPIRY * 2, "{waited:?}");
    assert!(matches!(*first.state().borrow(), SessionState::Closed));
    first.close().await?;
    Ok(())
}
