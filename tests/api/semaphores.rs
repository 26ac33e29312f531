//! Tests semaphores: several sessions hold permits at once, never more than there are, and all agree on the capacity.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::common::{
    OnPort, Result, SOON, Store, WHILE, held, identities, in_memory, key_exists, keys,
    nothing_under, options, queue_of, revision, session, soon, stays,
};
use eldest::{ErrorKind, Op, Permit, Semaphore, Session};
use eldest_testing::{Etcd, Proxy};
use etcd_client::Client;
use tokio::task::JoinHandle;

const PREFIX: &str = "eldest/~semaphore/s/";

/// Makes the semaphore "s" of a new session.
async fn semaphore(etcd: &impl Store, name: &str, capacity: usize) -> Result<(Session, Semaphore)> {
    let session = session(etcd, name).await?;
    let semaphore = session.semaphore("s", capacity)?;
    Ok((session, semaphore))
}

async fn acquire(semaphore: &Semaphore) -> Result<Permit> {
    Ok(soon("a permit", semaphore.acquire()).await?)
}

fn waiting(semaphore: &Semaphore) -> JoinHandle<eldest::Result<Permit>> {
    let semaphore = semaphore.clone();
    tokio::spawn(async move { semaphore.acquire().await })
}

#[tokio::test(start_paused = true)]
async fn permits_are_granted_in_the_order_of_asking_up_to_the_capacity() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, a) = semaphore(&etcd, "a", 2).await?;
    let (_b, b) = semaphore(&etcd, "b", 2).await?;
    let (_c, c) = semaphore(&etcd, "c", 2).await?;
    let (first, second) = (acquire(&a).await?, acquire(&b).await?);
    assert!(first.is_valid() && second.is_valid());
    let third = waiting(&c);
    queue_of(&mut client, PREFIX, 3).await?;
    let fourth = waiting(&a);
    queue_of(&mut client, PREFIX, 4).await?;
    let roster = a.roster().await?;
    assert_eq!(identities(&roster), ["a", "b", "c", "a"]);
    stays(WHILE, "two hold", async || {
        !third.is_finished() && !fourth.is_finished()
    })
    .await?;
    // Whichever permit is released, the next eldest gets it.
    soon("release", second.release()).await?;
    let third = held(third).await?;
    assert!(first.is_valid() && third.is_valid() && !fourth.is_finished());
    drop(first);
    let fourth = held(fourth).await?;
    assert!(fourth.fencing_token() > third.fencing_token());
    third.txn([Op::put("x", "3")]).await?;
    drop((third, fourth));
    nothing_under(&mut client, PREFIX).await
}

#[tokio::test(start_paused = true)]
async fn each_permit_of_a_session_has_a_key_of_its_own() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, a) = semaphore(&etcd, "a", 3).await?;
    assert_eq!((a.name(), a.capacity()), ("s", 3));
    assert_eq!(a.prefix(), "eldest/~semaphore/s/3/");
    let permits = [acquire(&a).await?, acquire(&a).await?, acquire(&a).await?];
    let keys = keys(&mut client, "").await;
    assert_eq!(keys.len(), 3, "one for each");
    for key in &keys {
        let own = format!("eldest/~semaphore/s/3/{:x}-", key.lease);
        assert!(key.path.starts_with(&own), "{key:?}");
        assert_eq!(key.lease, keys[0].lease);
    }
    for permit in permits {
        assert!(key_exists(&mut client, permit.key(), permit.fencing_token()).await);
        assert!(permit.is_valid());
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn another_capacity_is_refused_while_the_first_is_used() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, two) = semaphore(&etcd, "a", 2).await?;
    let permit = acquire(&two).await?;
    for capacity in [1, 3, 20] {
        let (session, other) = semaphore(&etcd, "b", capacity).await?;
        for error in [
            soon("error", other.acquire()).await.unwrap_err(),
            soon("error", other.try_acquire()).await.unwrap_err(),
            soon("error", other.acquire_timeout(SOON))
                .await
                .unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::CapacityMismatch, "{error}");
            let message = error.to_string();
            assert!(
                message.contains(&format!("capacity {capacity} was")),
                "{error}"
            );
            assert!(message.contains("of capacity 2"), "{error}");
        }
        assert_eq!(keys(&mut client, PREFIX).await.len(), 1, "nothing was put");
        soon("close", session.close()).await?;
    }
    assert!(permit.is_valid());
    // Within one session, another capacity is refused without a request.
    let (session, _other) = semaphore(&etcd, "c", 5).await?;
    let error = session.semaphore("s", 4).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CapacityMismatch, "{error}");

    soon("release", permit.release()).await?;
    let (_d, three) = semaphore(&etcd, "d", 3).await?;
    drop(acquire(&three).await?);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn trying_takes_a_free_permit_and_writes_nothing_if_none_is() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, a) = semaphore(&etcd, "a", 2).await?;
    let (_b, b) = semaphore(&etcd, "b", 2).await?;
    let first = soon("answer", a.try_acquire())
        .await?
        .expect("both are free");
    let second = soon("answer", b.try_acquire()).await?.expect("one is free");
    let (_c, c) = semaphore(&etcd, "c", 2).await?;
    // The session's lease exists.
    let waited = c.acquire_timeout(WHILE);
    assert!(soon("timeout", waited).await?.is_none());
    queue_of(&mut client, PREFIX, 2).await?;
    let before = revision(&mut client).await?;
    for full in [&a, &b, &c] {
        assert!(soon("answer", full.try_acquire()).await?.is_none());
    }
    let after = revision(&mut client).await?;
    assert_eq!(before, after, "nothing was written");
    soon("release", first.release()).await?;
    let third = soon("answer", c.try_acquire()).await?.expect("one is free");
    assert!(second.is_valid() && third.is_valid());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_holders_than_permits() -> Result {
    const CAPACITY: usize = 3;
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let (now, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let (mut sessions, mut tasks) = (Vec::new(), Vec::new());
    for name in ["a", "b", "c"] {
        let (session, semaphore) = semaphore(&etcd, name, CAPACITY).await?;
        sessions.push(session);
        for task in 0..5 {
            let semaphore = semaphore.clone();
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            tasks.push(tokio::spawn(async move {
                for turn in 0..4 {
                    let permit = if (task + turn) % 3 == 0 {
                        let Some(permit) = semaphore.try_acquire().await? else {
                            continue;
                        };
                        permit
                    } else {
                        semaphore.acquire().await?
                    };
                    let holders = now.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(holders, Ordering::SeqCst);
                    assert!(permit.is_valid());
                    for _ in 0..20 {
                        tokio::task::yield_now().await;
                    }
                    now.fetch_sub(1, Ordering::SeqCst);
                    if turn % 2 == 0 {
                        permit.release().await?;
                    }
                }
                Ok::<_, eldest::Error>(())
            }));
        }
    }
    let crowd = stays(WHILE, "no session has more keys than permits", async || {
        keys(&mut client, PREFIX).await.len() <= CAPACITY * 3
    });
    crowd.await?;
    for task in tasks {
        soon("all turns", task).await??;
    }
    let most = most.load(Ordering::SeqCst);
    assert!(most <= CAPACITY as i64, "{most} held at once");
    assert!(most > 1, "and more than one");
    nothing_under(&mut client, PREFIX).await
}

#[tokio::test]
async fn rejoining_waiter_gets_an_error_if_the_capacity_changed() -> Result {
    let etcd = OnPort::start().await?;
    let mut client = etcd.client().await;
    let (_a, a) = semaphore(&etcd, "a", 2).await?;
    let (_c, c) = semaphore(&etcd, "c", 3).await?;
    let proxy = Proxy::start(etcd.endpoint()).await?;
    let session = Session::connect([proxy.endpoint()], options("b")).await?;
    let b = session.semaphore("s", 2)?;
    let permits = [acquire(&a).await?, acquire(&a).await?];
    let waiter = waiting(&b);
    queue_of(&mut client, PREFIX, 3).await?;
    proxy.hold();
    let lease = youngest_lease(&mut client).await?;
    client.lease_revoke(lease).await?;
    drop(permits);
    nothing_under(&mut client, PREFIX).await?;
    let permit = acquire(&c).await?;
    proxy.heal();
    let error = soon("error", waiter).await?.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CapacityMismatch, "{error}");
    assert!(error.to_string().contains("of capacity 3"), "{error}");
    assert!(permit.is_valid());
    queue_of(&mut client, PREFIX, 1).await
}

/// Returns the lease of the youngest key.
async fn youngest_lease(client: &mut Client) -> Result<i64> {
    let keys = keys(client, PREFIX).await;
    let youngest = keys.iter().max_by_key(|key| key.created);
    Ok(youngest.ok_or("a key")?.lease)
}
