//! Sessions whose random numbers are the same, as those of a machine and its clone may be.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use eldest::etcd_client::{Client, ConnectOptions, Error};
use eldest::sim::{Env, Time, Watched};
use eldest::testing::{Etcd, eventually};
use eldest::{Session, Status};
use futures::future::BoxFuture;

use crate::common::{Result, SOON, WHILE, elected, leases, options, soon, stays};

/// Real time, whose first random numbers are the same for everybody.
struct Twin {
    begun: Instant,
    /// How many numbers are still the same.
    same: AtomicUsize,
}

impl Twin {
    fn session(etcd: &Etcd, identity: &str, same: usize) -> impl Future<Output = Result<Session>> {
        let twin = Twin {
            begun: Instant::now(),
            same: same.into(),
        };
        let options = options(identity).env(Arc::new(twin));
        let endpoint = etcd.endpoint();
        async move { Ok(Session::connect([endpoint], options).await?) }
    }
}

impl Env for Twin {
    fn now(&self) -> Time {
        Time::ZERO.after(Duration::from_secs(1) + self.begun.elapsed())
    }

    fn unix_time(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(async move { tokio::time::sleep(duration).await })
    }

    fn wake_at(&self, at: Time) -> BoxFuture<'static, ()> {
        self.sleep(at.since(self.now()))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        drop(tokio::spawn(task));
    }

    fn random(&self) -> u64 {
        let fewer = |left: usize| left.checked_sub(1);
        let same = self
            .same
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
        same.map_or_else(|_| fastrand::u64(..), |_| 4711 << 1)
    }

    fn connect(
        &self,
        endpoint: String,
        options: ConnectOptions,
    ) -> BoxFuture<'static, std::result::Result<Client, Error>> {
        Box::pin(async move { Client::connect([endpoint], Some(options)).await })
    }

    fn watch(&self, _: Weak<dyn Watched>) {}

    fn rewatch(&self) {}
}

#[tokio::test]
async fn a_lease_of_the_same_id_is_left_alone_and_another_id_is_drawn() -> Result {
    let etcd = Etcd::start().await?;
    let first = Twin::session(&etcd, "first", 1).await?;
    let mut of_first = soon("campaign", first.election("one")?.campaign()).await?;
    let leadership = elected(&mut of_first).await?;

    let second = Twin::session(&etcd, "second", 3).await?;
    let mut of_second = soon("campaign", second.election("another")?.campaign()).await?;
    let beside = elected(&mut of_second).await?;

    let mut client = etcd.client().await;
    stays(WHILE, "two leaders of two elections", async || {
        leadership.is_valid() && beside.is_valid()
    })
    .await?;
    assert_eq!(leases(&mut client).await, 2);
    Ok(())
}

#[tokio::test]
async fn a_session_that_only_draws_a_taken_id_waits_and_ends_no_lease() -> Result {
    let etcd = Etcd::start().await?;
    let first = Twin::session(&etcd, "first", 1).await?;
    let mut of_first = soon("campaign", first.election("one")?.campaign()).await?;
    let leadership = elected(&mut of_first).await?;

    let second = Twin::session(&etcd, "second", usize::MAX).await?;
    let election = second.election("another")?;
    let campaign = tokio::spawn(async move { election.campaign().await });
    let refused = async || {
        let refused = etcd.metric(REFUSED).await;
        (refused >= 4.0).then_some(())
    };
    eventually(SOON, "four refused grants", refused).await?;
    assert!(leadership.is_valid() && !campaign.is_finished());
    assert_eq!(leases(&mut etcd.client().await).await, 1);

    // The id is free again when the first session has given it back.
    drop(leadership);
    first.close().await?;
    let candidate = soon("campaign", campaign).await??;
    let leads = |status: &Status| matches!(status, Status::Leading { .. });
    crate::common::status(&candidate, leads).await?;
    Ok(())
}

/// How often etcd said "lease already exists".
const REFUSED: &str = "grpc_server_handled_total{grpc_code=\"FailedPrecondition\",grpc_method=\"LeaseGrant\",grpc_service=\"etcdserverpb.Lease\",grpc_type=\"unary\"}";
