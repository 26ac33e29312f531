//! Many tasks that call one session without a pause do not delay the renewals of its lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{Result, SOON, elected, nothing_under, short, soon};
use eldest::{Candidate, Leadership, Session};
use eldest_testing::{Etcd, eventually};
use futures::FutureExt;
use tokio::sync::Mutex;
use tokio::task::{JoinSet, yield_now};

const TASKS: u64 = 200;
const TTL: Duration = Duration::from_secs(4);
/// So many TTLs a term must survive.
const TTLS: u32 = 2;

/// Two floods at once would compete for the processor, which etcd needs too.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// A leader of the election "e".
async fn leader(etcd: &Etcd) -> Result<(Session, Candidate, Leadership)> {
    let session = Session::connect([etcd.endpoint()], short("a").ttl(TTL)).await?;
    let mut candidate = soon("campaign", session.election("e")?.campaign()).await?;
    let leadership = elected(&mut candidate).await?;
    Ok((session, candidate, leadership))
}

/// Waits until renewals have moved the deadline by several TTLs.
async fn survives(leadership: &Leadership) -> Result {
    let until = leadership.valid_until().since_boot() + TTLS * TTL;
    Ok(
        eventually(SOON, "the deadline moved by several TTLs", async || {
            assert_eq!(leadership.lost_reason(), None, "the flood cost the lease");
            (leadership.valid_until().since_boot() >= until).then_some(())
        })
        .await?,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_campaigns_leaves_the_lease_alone() -> Result {
    let _alone = ONE_AT_A_TIME.lock().await;
    let etcd = Etcd::start().await?;
    let (session, _candidate, leadership) = leader(&etcd).await?;
    let calls = Arc::new(AtomicU64::new(0));
    let mut flood = JoinSet::new();
    for _ in 0..TASKS {
        let (election, calls) = (session.election("e")?, Arc::clone(&calls));
        flood.spawn(async move {
            loop {
                // The session stands in this election already, so the driver refuses at once.
                assert!(election.campaign().await.is_err());
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    survives(&leadership).await?;
    assert!(flood.try_join_next().is_none(), "every task still floods");
    assert!(calls.load(Ordering::Relaxed) > 10 * TASKS, "it was a flood");
    flood.shutdown().await;
    Ok(leadership.resign().await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_every_other_call_leaves_the_lease_alone() -> Result {
    let _alone = ONE_AT_A_TIME.lock().await;
    let etcd = Etcd::start().await?;
    let (session, candidate, leadership) = leader(&etcd).await?;
    let leadership = Arc::new(leadership);
    let candidate = Arc::new(candidate);
    let mut flood = JoinSet::new();
    for number in 0..TASKS {
        let election = session.election("e")?;
        let other = session.election(format!("other/{}", number % 8))?;
        let lock = session.lock(format!("lock/{}", number % 8))?;
        let (leadership, candidate) = (Arc::clone(&leadership), Arc::clone(&candidate));
        flood.spawn(async move {
            loop {
                match number % 6 {
                    0 => assert!(candidate.subscribe().has_changed().is_ok()),
                    1 => drop(leadership.proclaim("a").await),
                    2 => drop(election.observe().await),
                    3 => drop(
                        election
                            .observe()
                            .await
                            .map(|mut o| o.next().now_or_never()),
                    ),
                    4 => drop(lock.try_acquire().await),
                    // Given up before the driver has seen it.
                    _ => drop(other.campaign().now_or_never()),
                }
                yield_now().await;
            }
        });
    }
    survives(&leadership).await?;
    assert!(flood.try_join_next().is_none(), "every task still floods");
    flood.shutdown().await;
    soon("resign", leadership.resign()).await?;
    drop((candidate, leadership));
    soon("close", session.close()).await?;
    nothing_under(&mut etcd.client().await, "").await
}
