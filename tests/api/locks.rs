//! Tests locks: the queue between and within sessions, abandoned waits, and how a lock is lost.

use std::time::Duration;

use crate::common::{
    OnPort, Result, Store, WHILE, behind_a_proxy, held, identities, in_memory, key_exists, keys,
    leases, nothing_under, only_key, options, queue_of, revision, session, soon, stays,
};
use eldest::{ErrorKind, Lock, LockGuard, LostReason, Op, Session};
use eldest_testing::Etcd;
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use futures::FutureExt;
use tokio::task::JoinHandle;

const PREFIX: &str = "eldest/l/";

/// Makes the lock "l" of a new session.
async fn lock(etcd: &impl Store, identity: &str) -> Result<(Session, Lock)> {
    let session = session(etcd, identity).await?;
    let lock = session.lock("l")?;
    Ok((session, lock))
}

async fn acquire(lock: &Lock) -> Result<LockGuard> {
    Ok(soon("the lock", lock.acquire()).await?)
}

/// Starts a task that waits for the lock.
fn waiting(lock: &Lock) -> JoinHandle<eldest::Result<LockGuard>> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.acquire().await })
}

// ---- the queue

#[tokio::test(start_paused = true)]
async fn sessions_hold_a_lock_in_the_order_of_asking_and_tokens_rise() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, first) = lock(&etcd, "a").await?;
    let guard = acquire(&first).await?;
    let key = only_key(&mut client, "").await;
    assert_eq!(
        key.path,
        format!("{PREFIX}{:x}", key.lease),
        "etcd's recipe"
    );
    assert_eq!(key.created, guard.fencing_token());
    assert_eq!((guard.key(), guard.name()), (key.path.as_bytes(), "l"));
    let (mut sessions, mut waiters) = (Vec::new(), Vec::new());
    for (number, name) in ["b", "c", "d"].into_iter().enumerate() {
        let (session, lock) = lock(&etcd, name).await?;
        waiters.push(waiting(&lock));
        queue_of(&mut client, PREFIX, number + 2).await?;
        sessions.push(session);
    }
    let order = first.roster().await?;
    assert_eq!(identities(&order), ["a", "b", "c", "d"]);
    let mut token = guard.fencing_token();
    let mut guard = guard;
    for (number, waiter) in waiters.into_iter().enumerate() {
        assert!(!waiter.is_finished(), "{number} waits while another holds");
        assert!(guard.is_valid());
        soon("release", guard.release()).await?;
        guard = held(waiter).await?;
        assert!(guard.fencing_token() > token, "tokens rise");
        token = guard.fencing_token();
    }
    soon("release", guard.release()).await?;
    assert!(keys(&mut client, PREFIX).await.is_empty());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_refused_where_another_session_has_election_candidates() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let a = session(&etcd, "a").await?;
    let election = a.election("l")?;
    let mut candidate = election.campaign().await?;
    let leadership = soon("elected", candidate.elected()).await?;
    let (_b, other) = lock(&etcd, "b").await?;
    for shared in [other.clone(), other.shared()] {
        let waited = soon("refused", shared.acquire()).await.unwrap_err();
        assert_eq!(waited.kind(), ErrorKind::NameInUse, "{waited}");
        let tried = shared.try_acquire().await.unwrap_err();
        assert_eq!(tried.kind(), ErrorKind::NameInUse, "{tried}");
        assert!(tried.to_string().contains("below eldest/l/"), "{tried}");
    }
    assert_eq!(keys(&mut client, PREFIX).await.len(), 1, "the candidate's");
    assert!(leadership.is_valid());
    drop(leadership);
    candidate.leave().await?;
    let guard = acquire(&other).await?;
    // A reader of the queue sees the holder.
    assert_eq!(identities(&other.roster().await?), ["b"]);
    // An election that begins while the name is a lock waits for it, as it does for etcdctl's.
    let mut late = election.campaign().await?;
    assert!(late.elected().now_or_never().is_none());
    soon("release", guard.release()).await?;
    assert!(soon("elected", late.elected()).await?.is_valid());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn tasks_of_one_session_queue_locally_and_starve_no_other() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, ours) = lock(&etcd, "a").await?;
    let (_b, theirs) = lock(&etcd, "b").await?;
    let guard = acquire(&ours).await?;
    // Requested first within our session; but a session has one place in etcd's queue at a time.
    let second = waiting(&ours);
    tokio::task::yield_now().await;
    let third = waiting(&ours);
    let other = waiting(&theirs);
    queue_of(&mut client, PREFIX, 2).await?;
    drop(guard);
    let guard = held(other).await?;
    stays(WHILE, "one of ours waits behind theirs", async || {
        keys(&mut client, PREFIX).await.len() <= 2 && !second.is_finished()
    })
    .await?;
    drop(guard);
    let guard = held(second).await?;
    assert!(!third.is_finished(), "first come, first served");
    drop(guard);
    drop(held(third).await?);
    nothing_under(&mut client, PREFIX).await
}

// ---- abandoned waits

#[tokio::test(start_paused = true)]
async fn dropped_wait_leaves_no_key_and_frees_its_place() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, first) = lock(&etcd, "a").await?;
    let (_b, second) = lock(&etcd, "b").await?;
    let guard = acquire(&first).await?;
    let given_up = waiting(&second);
    queue_of(&mut client, PREFIX, 2).await?;
    given_up.abort();
    queue_of(&mut client, PREFIX, 1).await?;
    assert!(key_exists(&mut client, guard.key(), guard.fencing_token()).await);
    // A wait within the session has no key to delete, and does not keep the turn.
    let local = waiting(&first);
    tokio::task::yield_now().await;
    local.abort();
    let next = waiting(&first);
    drop(guard);
    drop(held(next).await?);
    nothing_under(&mut client, PREFIX).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_dropped_at_any_moment_leaves_nothing() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let (_a, first) = lock(&etcd, "a").await?;
    let (_b, second) = lock(&etcd, "b").await?;
    for pause in 0..40 {
        let guard = if pause % 2 == 0 {
            Some(acquire(&first).await?)
        } else {
            None
        };
        let limit = Duration::from_micros(100 * pause);
        drop(soon("an answer", second.acquire_timeout(limit)).await?);
        drop(guard);
    }
    nothing_under(&mut client, PREFIX).await?;
    // No task was left with a turn that it never returns.
    drop(acquire(&first).await?);
    drop(acquire(&second).await?);
    Ok(())
}

#[tokio::test]
async fn a_limited_wait_ends_in_time_without_etcd() -> Result {
    let (etcd, proxy) = behind_a_proxy().await?;
    let options = options("a").request_timeout(Duration::from_millis(500));
    let session = Session::connect([proxy.endpoint()], options).await?;
    let lock = session.lock("l")?;
    proxy.hold();
    let waited = lock.acquire_timeout(WHILE);
    assert!(soon("the end of the wait", waited).await?.is_none());
    // Another lock: the key of the first may still exist, and its turn with it.
    assert!(soon("an answer", lock.try_acquire()).await?.is_none());
    let other = session.lock("m")?;
    let tried = soon("an answer", other.try_acquire()).await;
    assert_eq!(tried.unwrap_err().kind(), ErrorKind::Unavailable);
    // Once etcd has had its time to answer, nobody may conclude that others hold the lock.
    let long = session.lock("long")?;
    let waited = soon("an answer", long.acquire_timeout(Duration::from_secs(3))).await;
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::Unavailable);
    let set = session.lock_all(["first", "second"])?;
    let waited = soon("an answer", set.acquire_timeout(Duration::from_secs(3))).await;
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::Unavailable);
    proxy.heal();
    let mut client = etcd.client().await;
    drop((acquire(&lock).await?, acquire(&other).await?));
    nothing_under(&mut client, "eldest/").await
}

// ---- trying

#[tokio::test]
async fn trying_is_one_transaction_that_writes_only_if_the_lock_is_free() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let (_a, first) = lock(&etcd, "a").await?;
    let (_b, second) = lock(&etcd, "b").await?;
    let txns = "grpc_server_handled_total{grpc_method=\"Txn\"}";
    // The lease and the connections exist.
    drop(acquire(&first).await?);
    drop(acquire(&second).await?);
    nothing_under(&mut client, PREFIX).await?;

    let before = (revision(&mut client).await?, etcd.metric(txns).await);
    let guard = soon("an answer", first.try_acquire()).await?;
    let guard = guard.expect("no candidate");
    assert!(guard.is_valid());
    assert_eq!(guard.fencing_token(), before.0 + 1, "one write");
    let sent = etcd.metric(txns).await;
    assert!(sent - before.1 < 1.5, "one transaction");

    let before = revision(&mut client).await?;
    for lock in [&first, &second] {
        assert!(soon("an answer", lock.try_acquire()).await?.is_none());
    }
    assert_eq!(revision(&mut client).await?, before, "nothing was written");
    let sent = etcd.metric(txns).await - sent;
    assert!(
        sent < 1.5,
        "one transaction, and none of the holder's session"
    );
    let waiter = waiting(&second);
    queue_of(&mut client, PREFIX, 2).await?;
    soon("release", guard.release()).await?;
    let guard = held(waiter).await?;
    assert!(soon("an answer", first.try_acquire()).await?.is_none());
    soon("release", guard.release()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_lock_is_free_for_the_next_try() -> Result {
    let etcd = Etcd::start().await?;
    let (_a, lock) = lock(&etcd, "a").await?;
    for _ in 0..30 {
        let guard = soon("an answer", lock.try_acquire()).await?;
        soon("release", guard.expect("it is free").release()).await?;
    }
    Ok(())
}

// ---- holding and losing

#[tokio::test(start_paused = true)]
async fn a_lock_is_lost_with_its_lease_and_its_release_is_harmless() -> Result {
    // Complaints 1, 3 and 6.
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, first) = lock(&etcd, "a").await?;
    let (_b, second) = lock(&etcd, "b").await?;
    let old = acquire(&first).await?;
    let waiter = waiting(&second);
    queue_of(&mut client, PREFIX, 2).await?;
    let of_session = waiting(&first);
    let lease = client.get(old.key(), None).await?.kvs()[0].lease();
    client.lease_revoke(lease).await?;
    soon("the loss", old.lost().cancelled()).await;
    assert!(!old.is_valid());
    let reason = old.lost_reason().expect("it is lost");
    assert!(
        matches!(reason, LostReason::KeyDeleted | LostReason::LeaseLost),
        "{reason}"
    );
    let new = held(waiter).await?;
    assert!(new.fencing_token() > old.fencing_token());

    // The old holder may no longer write, and no task of its session takes its place before it has dropped its guard.
    let refused = old.txn([Op::put("x", "old")]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LeadershipLost);
    let guard = Compare::create_revision(old.key(), CompareOp::Equal, old.fencing_token());
    let unguarded = Txn::new().when([guard]);
    let unguarded = unguarded.and_then([TxnOp::put("x", "old", None)]);
    assert!(!client.txn(unguarded).await?.succeeded(), "stale");
    assert!(!of_session.is_finished());
    soon("release", old.release()).await?;
    assert!(key_exists(&mut client, new.key(), new.fencing_token()).await);
    assert!(new.is_valid());
    new.txn([Op::put("x", "new")]).await?;
    queue_of(&mut client, PREFIX, 2).await?;
    drop(new);
    drop(held(of_session).await?);
    nothing_under(&mut client, PREFIX).await
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_key_was_deleted_is_lost_and_not_taken_again() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, lock) = lock(&etcd, "a").await?;
    let guard = acquire(&lock).await?;
    client.delete(guard.key(), None).await?;
    soon("the loss", guard.lost().cancelled()).await;
    assert_eq!(guard.lost_reason(), Some(LostReason::KeyDeleted));
    assert!(!guard.is_valid());
    drop(guard);
    stays(WHILE, "no key by itself", async || {
        keys(&mut client, PREFIX).await.is_empty()
    })
    .await?;
    let guard = soon("an answer", lock.try_acquire()).await?;
    assert!(guard.is_some(), "and no turn is kept");
    Ok(())
}

// ---- with the rest of the session

#[tokio::test(start_paused = true)]
async fn locks_and_leadership_share_one_lease_and_close_releases_all() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (session, lock) = lock(&etcd, "a").await?;
    let mut candidate = soon("campaign", session.election("e")?.campaign()).await?;
    let leadership = soon("elected", candidate.elected()).await?;
    let guard = acquire(&lock).await?;
    let waiter = waiting(&lock);
    assert_eq!(leases(&mut client).await, 1);
    assert_eq!(keys(&mut client, "eldest/").await.len(), 2);
    let lost = guard.lost();
    let ended = tokio::spawn(async move {
        lost.cancelled().await;
        let reason = guard.lost_reason();
        assert!(guard.is_valid(), "its work may wind up");
        drop(guard);
        reason
    });
    drop((leadership, candidate));
    soon("close", session.close()).await?;
    let reason = soon("the end", ended).await?;
    assert_eq!(reason, Some(LostReason::SessionClosed));
    assert_eq!(leases(&mut client).await, 0);
    assert!(keys(&mut client, "eldest/").await.is_empty());
    let closed = soon("the error", waiter).await?.unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Closed);
    let closed = soon("an error", lock.try_acquire()).await.unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Closed);
    Ok(())
}

/// The wait for a guard has a time limit of its own, so no caller receives the error that etcd did not answer.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn missing_required_guard_is_named_to_every_caller() -> Result {
    let etcd = OnPort::start().await?;
    let guarded = options("a")
        .request_timeout(Duration::from_millis(250))
        // Longer than an attempt may wait for etcd.
        .connect_timeout(Duration::from_secs(3))
        .guard(eldest::guard::Guard::agent_at("/nowhere/agent.sock"));
    let session = Session::connect_lazy([etcd.endpoint()], guarded)?;
    let (lock, other) = (session.lock("l")?, session.lock("m")?);
    let semaphore = session.semaphore("s", 2)?;
    let (acquired, tried, permit) = soon("an answer", async {
        tokio::join!(lock.acquire(), other.try_acquire(), semaphore.try_acquire())
    })
    .await;
    for error in [acquired.err(), tried.err(), permit.err()] {
        let error = error.ok_or("it was acquired")?;
        assert_eq!(error.kind(), ErrorKind::Unguarded, "{error}");
        assert!(error.to_string().contains("no agent listens"), "{error}");
    }
    assert!(keys(&mut etcd.client().await, "").await.is_empty());
    Ok(())
}
