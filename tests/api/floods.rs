//! Many tasks that call one session without a pause do not delay the renewals of its lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{Result, SOON, elected, nothing_under, short, soon};
use eldest::Session;
use eldest_testing::{Etcd, eventually};
use futures::FutureExt;
use tokio::task::{JoinSet, yield_now};

const TASKS: u64 = 210;
const TTL: Duration = Duration::from_secs(4);

/// One flood of all calls: a second one beside it would compete for the processors, which etcd needs too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_calls_leaves_the_lease_alone() -> Result {
    let etcd = Etcd::start().await?;
    let session = Session::connect([etcd.endpoint()], short("a").ttl(TTL)).await?;
    let mut candidate = soon("campaign", session.election("e")?.campaign()).await?;
    let leadership = Arc::new(elected(&mut candidate).await?);
    let candidate = Arc::new(candidate);
    let calls = Arc::new(AtomicU64::new(0));
    let mut flood = JoinSet::new();
    for number in 0..TASKS {
        let election = session.election("e")?;
        let other = session.election(format!("other/{}", number % 8))?;
        let lock = session.lock(format!("lock/{}", number % 8))?;
        let (leadership, candidate) = (Arc::clone(&leadership), Arc::clone(&candidate));
        let calls = Arc::clone(&calls);
        flood.spawn(async move {
            loop {
                match number % 7 {
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
                    5 => drop(other.campaign().now_or_never()),
                    // The session stands in this election already, so the driver refuses at once.
                    _ => assert!(election.campaign().await.is_err()),
                }
                calls.fetch_add(1, Ordering::Relaxed);
                yield_now().await;
            }
        });
    }
    // The first lease time is over then, so it has been renewed.
    let until = leadership.valid_until().since_boot() + TTL;
    eventually(SOON, "the deadline moved by a TTL", async || {
        assert_eq!(leadership.lost_reason(), None, "the flood cost the lease");
        (leadership.valid_until().since_boot() >= until).then_some(())
    })
    .await?;
    assert!(flood.try_join_next().is_none(), "every task still floods");
    assert!(calls.load(Ordering::Relaxed) > 10 * TASKS, "it was a flood");
    flood.shutdown().await;
    soon("resign", leadership.resign()).await?;
    drop((candidate, leadership));
    soon("close", session.close()).await?;
    nothing_under(&mut etcd.client().await, "").await
}
