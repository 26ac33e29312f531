//! Tests an etcd that accepts few operations in a transaction: everything works, in more transactions.

use std::time::Duration;

use crate::common::{Result, in_memory, keys, short, soon};
use eldest::{LostReason, Session};
use eldest_testing::MemoryEtcd;
use futures::future::try_join_all;

/// More than any transaction of the library has operations.
const MANY: usize = 150;

async fn session_with(etcd: &MemoryEtcd, most: usize) -> Result<Session> {
    etcd.limit_operations(most);
    Ok(etcd.session(short("a")).await?)
}

async fn leads(session: &Session, elections: usize) -> Result<Vec<eldest::Leadership>> {
    let leads = (0..elections).map(async |number| {
        let election = session.election(format!("e{number}"))?;
        Result::Ok(election.campaign().await?.elected().await?)
    });
    soon("leading everywhere", try_join_all(leads)).await
}

#[tokio::test(start_paused = true)]
async fn any_limit_from_three_upwards_is_enough() -> Result {
    for most in (3..=9).chain([16, 31, 64, 128]) {
        // Enough for several transactions.
        let many = (3 * most).min(MANY);
        let etcd = in_memory();
        let session = session_with(&etcd, most).await?;
        let leaderships = leads(&session, many).await?;
        let lock = soon("a lock", session.lock("l")?.acquire()).await?;
        let readers = session.lock("readers")?.shared();
        let (one, two) = (readers.acquire().await?, readers.acquire().await?);
        let permits = session.semaphore("s", 2)?;
        let permit = soon("a permit", permits.acquire()).await?;
        let mut group = soon("a group", session.group("g")?.join()).await?;
        let mut member = session
            .partitions("p", u32::try_from(many)?)?
            .join()
            .await?;
        let mut owned = Vec::new();
        for _ in 0..many {
            owned.push(soon("a partition", member.owned()).await?);
        }
        owned[7].checkpoint("7").await?;
        let last = owned[7].last_checkpoint().await?;
        assert_eq!(last.ok_or("saved above")?.value(), b"7");
        drop(owned);
        soon("leaving", member.leave()).await?;
        soon("leaving", group.leave()).await?;
        drop((lock, one, two, permit));
        let resigning = leaderships.iter().map(eldest::Leadership::resign);
        soon("resigning", try_join_all(resigning)).await?;
        soon("close", session.close()).await?;
        let left = keys(&mut etcd.client().await, "eldest/").await;
        let checkpoint = |path: &str| path.contains("~checkpoint");
        assert!(
            left.iter().all(|key| checkpoint(&key.path)),
            "{most}: {left:?}"
        );
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_deleted_key_is_noticed_within_a_ttl_without_watch_events() -> Result {
    for most in [3, 10, 63, 128] {
        let etcd = in_memory();
        let session = session_with(&etcd, most).await?;
        let leaderships = leads(&session, 70).await?;
        etcd.stall_watches(true);
        // Waits until the session has noticed the lower limit.
        tokio::time::sleep(Duration::from_secs(6)).await;
        let last = leaderships.last().expect("70 lead");
        assert!(etcd.delete(last.key()).await?);
        let ttl = Duration::from_secs(3);
        tokio::time::timeout(ttl, last.lost().cancelled()).await?;
        assert_eq!(last.lost_reason(), Some(LostReason::KeyDeleted));
        let others = leaderships.iter().filter(|l| !l.lost().is_cancelled());
        assert_eq!(others.count(), 69, "{most}");
    }
    Ok(())
}
