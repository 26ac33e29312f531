//! Tests locks with readers and writers: readers share, writers exclude all, and the longest-waiting is first.

use std::time::Duration;

use crate::common::{
    Result, Store, WHILE, foreign, held, in_memory, nothing_under, queue_of, session, soon, stays,
};
use eldest::{Lock, LockGuard, Session};
use eldest_testing::MemoryEtcd;
use tokio::task::JoinHandle;

const PREFIX: &str = "eldest/l/";

/// Makes the lock "l" of a new session, for writers.
async fn lock(etcd: &impl Store, identity: &str) -> Result<(Session, Lock)> {
    let session = session(etcd, identity).await?;
    let lock = session.lock("l")?;
    Ok((session, lock))
}

async fn acquire(lock: &Lock) -> Result<LockGuard> {
    Ok(soon("the lock", lock.acquire()).await?)
}

async fn release(guard: LockGuard) -> Result {
    Ok(soon("release", guard.release()).await?)
}

fn waiting(lock: &Lock) -> JoinHandle<eldest::Result<LockGuard>> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.acquire().await })
}

async fn waits(waiter: &JoinHandle<eldest::Result<LockGuard>>, what: &str) -> Result {
    stays(WHILE, what, async || !waiter.is_finished()).await
}

/// Checks the order of two readers, a writer behind them and readers behind that, each by its own handle.
async fn readers_share_and_a_writer_excludes(etcd: &MemoryEtcd, locks: [&Lock; 4]) -> Result {
    let mut client = etcd.client().await;
    let [first, second, third, fourth] = locks;
    let one = acquire(&first.shared()).await?;
    let two = acquire(&second.shared()).await?;
    assert!(one.is_shared() && one.is_valid() && two.is_valid());
    let writer = waiting(third);
    queue_of(&mut client, PREFIX, 3).await?;
    let reader = waiting(&fourth.shared());
    waits(&reader, "it waits for the waiting writer").await?;
    assert!(
        soon("an attempt", fourth.shared().try_acquire())
            .await?
            .is_none()
    );
    release(one).await?;
    waits(&writer, "it waits for the other reader").await?;
    release(two).await?;
    let writer = held(writer).await?;
    assert!(!writer.is_shared());
    waits(&reader, "it waits for the writer").await?;
    let token = writer.fencing_token();
    release(writer).await?;
    let many: Vec<_> = (0..20).map(|_| waiting(&fourth.shared())).collect();
    let reader = held(reader).await?;
    assert!(reader.fencing_token() > token);
    for other in many {
        let other = held(other).await?;
        assert!(other.is_valid() && reader.is_valid());
    }
    release(reader).await?;
    nothing_under(&mut client, PREFIX).await
}

#[tokio::test(start_paused = true)]
async fn readers_of_several_sessions_share_and_wait_behind_a_waiting_writer() -> Result {
    let etcd = in_memory();
    let (_a, first) = lock(&etcd, "a").await?;
    let (_b, second) = lock(&etcd, "b").await?;
    let (_c, third) = lock(&etcd, "c").await?;
    let (_d, fourth) = lock(&etcd, "d").await?;
    readers_share_and_a_writer_excludes(&etcd, [&first, &second, &third, &fourth]).await
}

#[tokio::test(start_paused = true)]
async fn tasks_of_one_session_share_and_exclude_in_the_same_order() -> Result {
    let etcd = in_memory();
    let (_a, lock) = lock(&etcd, "a").await?;
    readers_share_and_a_writer_excludes(&etcd, [&lock; 4]).await
}

#[tokio::test(start_paused = true)]
async fn a_program_that_knows_of_no_readers_is_a_writer() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, lock) = lock(&etcd, "a").await?;
    let reader = acquire(&lock.shared()).await?;
    let key = String::from_utf8(reader.key().to_vec())?;
    let expected = format!("{PREFIX}{:x}-shared-", reader.lease_id());
    assert!(key.starts_with(&expected), "{key}");
    let other = format!("{PREFIX}beef");
    foreign(&mut client, &other, "").await?;
    let behind = waiting(&lock.shared());
    queue_of(&mut client, PREFIX, 3).await?;
    waits(&behind, "it waits for the foreign key").await?;
    assert!(reader.is_valid());
    client.delete(&*other, None).await?;
    assert!(held(behind).await?.is_valid());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn try_share_succeeds_beside_readers_and_writes_nothing_behind_a_writer() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, first) = lock(&etcd, "a").await?;
    let (_b, second) = lock(&etcd, "b").await?;
    let attempt = async |lock: &Lock| soon("an attempt", lock.try_acquire()).await;
    let one = attempt(&first.shared()).await?.ok_or("it is free")?;
    let two = attempt(&second.shared()).await?.ok_or("readers hold it")?;
    assert!(attempt(&second).await?.is_none());
    release(one).await?;
    release(two).await?;
    let writer = attempt(&first).await?.ok_or("it is free")?;
    assert!(attempt(&second.shared()).await?.is_none());
    let little = Duration::from_millis(100);
    let waited = soon("the limit", second.shared().acquire_timeout(little)).await?;
    assert!(waited.is_none());
    queue_of(&mut client, PREFIX, 1).await?;
    release(writer).await
}

#[tokio::test(start_paused = true)]
async fn a_roster_and_an_overview_show_readers_and_writers() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (a, first) = lock(&etcd, "a").await?;
    let (_b, second) = lock(&etcd, "b").await?;
    let (_c, third) = lock(&etcd, "c").await?;
    let _one = acquire(&first.shared()).await?;
    let _two = acquire(&second.shared()).await?;
    let _writer = waiting(&third);
    queue_of(&mut client, PREFIX, 3).await?;
    let _reader = waiting(&first.shared());
    queue_of(&mut client, PREFIX, 4).await?;
    let roster = first.roster().await?;
    let shared = roster.members().iter().map(eldest::Member::is_shared);
    assert_eq!(shared.collect::<Vec<_>>(), [true, true, false, true]);
    let overview = a.overview("l").await?;
    let [queue] = overview.queues() else {
        panic!("{overview:?}");
    };
    let turns = queue.roster().members().iter();
    let turns: Vec<_> = turns.map(|member| queue.has_turn(member)).collect();
    assert_eq!(turns, [true, true, false, false]);
    Ok(())
}
