//! Tests sets of locks: all or none, in one transaction or one after another, without a circle of waiting tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{
    Result, SOON, Store, held, in_memory, keys, nothing_under, queue_of, session, soon,
};
use eldest::{ErrorKind, LockGuard, LockSet, LockSetGuard, Op, Session};
use eldest_testing::{MemoryEtcd, eventually};
use etcd_client::Client;
use tokio::task::JoinHandle;

/// Makes the set of the locks "a" and "b" of a new session.
async fn set(etcd: &impl Store, identity: &str) -> Result<(Session, LockSet)> {
    let session = session(etcd, identity).await?;
    let set = session.lock_all(["b", "a"])?;
    Ok((session, set))
}

/// One session holds the lock "b", and another one has the set of "a" and "b".
struct Scene {
    _etcd: MemoryEtcd,
    client: Client,
    _sessions: [Session; 2],
    taken: LockGuard,
    set: LockSet,
}

impl Scene {
    async fn new() -> Result<Self> {
        let etcd = in_memory();
        let (holder, _) = set(&etcd, "a").await?;
        let taken = soon("the lock", holder.lock("b")?.acquire()).await?;
        let (session, set) = set(&etcd, "b").await?;
        Ok(Self {
            client: etcd.client().await,
            _etcd: etcd,
            _sessions: [holder, session],
            taken,
            set,
        })
    }

    /// Starts a task that waits for the lock "b" and holds "a".
    async fn waits(&mut self) -> Result<JoinHandle<eldest::Result<LockSetGuard>>> {
        let waiter = waiting(&self.set);
        queue_of(&mut self.client, "eldest/b/", 2).await?;
        Ok(waiter)
    }
}

fn waiting(set: &LockSet) -> JoinHandle<eldest::Result<LockSetGuard>> {
    let set = set.clone();
    tokio::spawn(async move { set.acquire().await })
}

#[tokio::test(start_paused = true)]
async fn free_locks_are_taken_in_one_transaction_and_fence_together() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_session, set) = set(&etcd, "a").await?;
    let names: Vec<&str> = set.locks().iter().map(eldest::Lock::name).collect();
    assert_eq!(names, ["a", "b"]);
    let guard = soon("the locks", set.acquire()).await?;
    let [a, b] = &keys(&mut client, "eldest/").await[..] else {
        unreachable!("two keys");
    };
    assert_eq!(a.created, b.created, "put by one transaction");
    let tokens: Vec<i64> = guard.guards().iter().map(|g| g.fencing_token()).collect();
    assert_eq!(tokens, [a.created, b.created]);
    guard.txn([Op::put("written", "1")]).await?;
    soon("release", guard.release()).await?;
    nothing_under(&mut client, "eldest/").await
}

#[tokio::test(start_paused = true)]
async fn transaction_is_refused_once_one_key_of_the_set_is_gone() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_session, set) = set(&etcd, "a").await?;
    let guard = soon("the locks", set.acquire()).await?;
    let last = guard.guards().last().ok_or("two locks")?.key().to_vec();
    // etcd receives the deletion first, and the transaction before the session knows of it.
    let (deleted, refused) = tokio::join!(
        client.delete(&*last, None),
        guard.txn([Op::put("written", "1")])
    );
    deleted?;
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FenceLost, "{error}");
    assert!(error.to_string().contains("eldest/b/"), "{error}");
    assert!(keys(&mut client, "written").await.is_empty());
    soon("one is lost", guard.first_lost()).await;
    assert!(!guard.is_valid());
    assert!(guard.guards()[0].is_valid(), "the other is held");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn trying_a_set_of_which_one_is_taken_holds_none() -> Result {
    let mut scene = Scene::new().await?;
    assert!(scene.set.try_acquire().await?.is_none());
    assert_eq!(
        keys(&mut scene.client, "eldest/").await.len(),
        1,
        "the holder's"
    );
    let limit = Duration::from_secs(1);
    assert!(scene.set.acquire_timeout(limit).await?.is_none());
    queue_of(&mut scene.client, "eldest/", 1).await?;
    soon("release", scene.taken.release()).await?;
    assert!(scene.set.try_acquire().await?.is_some());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_set_that_waits_is_held_once_the_last_lock_is_free() -> Result {
    let mut scene = Scene::new().await?;
    let waiter = scene.waits().await?;
    assert!(!waiter.is_finished());
    let lost = keys(&mut scene.client, "eldest/a/").await.remove(0);
    // The lock that it holds already is lost: it begins again.
    scene.client.delete(&*lost.path, None).await?;
    let again = eventually(SOON, "the first lock is taken again", async || {
        let found = keys(&mut scene.client, "eldest/a/").await.pop()?;
        (found.created != lost.created).then_some(found.created)
    })
    .await?;
    soon("release", scene.taken.release()).await?;
    let guard = held(waiter).await?;
    assert!(guard.is_valid());
    assert_eq!(guard.guards()[0].fencing_token(), again);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_for_a_set_gives_up_every_lock() -> Result {
    let mut scene = Scene::new().await?;
    let waiter = scene.waits().await?;
    waiter.abort();
    queue_of(&mut scene.client, "eldest/", 1).await
}

#[tokio::test(start_paused = true)]
async fn tasks_with_overlapping_sets_never_overlap_and_all_get_their_turn() -> Result {
    const ROUNDS: usize = 20;
    let names = ["a", "b", "c"];
    let etcd = in_memory();
    let holders: Arc<[AtomicUsize; 3]> = Arc::default();
    let mut tasks = Vec::new();
    for number in 0..6 {
        let session = session(&etcd, &format!("node-{number}")).await?;
        // Each node leaves out one lock, and half of them name the others in reverse.
        let mut wanted: Vec<usize> = (0..names.len()).filter(|at| *at != number % 3).collect();
        if number < 3 {
            wanted.reverse();
        }
        let set = session.lock_all(wanted.iter().map(|at| names[*at]))?;
        let holders = Arc::clone(&holders);
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let guard = set.acquire().await?;
                for at in &wanted {
                    assert_eq!(holders[*at].fetch_add(1, Ordering::SeqCst), 0, "{at}");
                }
                tokio::task::yield_now().await;
                for at in &wanted {
                    holders[*at].fetch_sub(1, Ordering::SeqCst);
                }
                guard.release().await?;
            }
            drop(session);
            Ok::<_, eldest::Error>(())
        }));
    }
    for task in tasks {
        soon("every round is over", task).await??;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn sets_that_cannot_be_held_are_refused_at_the_door() -> Result {
    let etcd = in_memory();
    let session = session(&etcd, "a").await?;
    let none: [&str; 0] = [];
    for (names, rule) in [
        (&none[..], "at least one name"),
        (&["a", "b", "a"], "\"a\" twice"),
        (&["a", "a/b"], "a/b"),
    ] {
        let error = session.lock_all(names).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(rule), "{error}");
    }
    // A refused set does not keep its names.
    session.election("a")?;
    Ok(())
}
