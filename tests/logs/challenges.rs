//! Tests the log lines of challenges, of the challenger and of the challenged session.

use std::time::Duration;

use eldest::{Challenges, Session, internal};
use eldest_testing::{MemoryEtcd, crash};
use etcd_client::DeleteOptions;
use tokio::time::{sleep, timeout};
use tracing::Level;

use super::{LONG, Result, SESSION, capture, options};

/// The time to answer, shorter than the TTL.
const TIME: Duration = Duration::from_secs(2);

async fn session(etcd: &MemoryEtcd, name: &str) -> Result<Session> {
    let challenges = Challenges::answer_within(TIME);
    Ok(etcd.session(options(name).challenges(challenges)).await?)
}

#[tokio::test(start_paused = true)]
async fn each_step_of_a_challenge_is_logged() -> Result {
    let logs = capture();
    let etcd = MemoryEtcd::start();
    let [a, b] = [session(&etcd, "a").await?, session(&etcd, "b").await?];
    let mut first = a.election("jobs")?.campaign().await?;
    let leads = timeout(LONG, first.elected()).await??;
    let mut second = b.election("jobs")?.campaign().await?;
    let granted = logs.one(SESSION, "lease granted", &[("identity", "b")]);
    let suspect = format!("{:x}", leads.lease_id());
    let of_b = [("identity", "b"), ("lease", &*suspect)];

    // The suspicion is wrong: it is refuted again and again, and the third answer is a warning.
    internal::suspect(&b, leads.lease_id(), true)?;
    sleep(TIME * 20).await;
    let suspected = logs.one(SESSION, "session suspected", &of_b);
    assert_eq!(suspected.level, Level::DEBUG);
    let sent = logs.of(SESSION, "session challenged", &of_b);
    let wait = TIME.mul_f64(1.001) + TIME / 20;
    assert!(sent.len() >= 3, "{logs:?}");
    assert!(sent[0].says(&[("wait", &format!("{wait:?}"))]), "{sent:?}");
    let hint =
        "a session answers challenges, and gives no sign of life: let this node reach its port";
    assert_eq!(logs.one(SESSION, hint, &of_b).level, Level::WARN);
    let received = logs.of(SESSION, "challenged", &[("identity", "a")]);
    let by = ("by", granted.field("lease"));
    assert!(received[0].says(&[by]), "{received:?}");
    assert!(leads.is_valid());
    internal::suspect(&b, leads.lease_id(), false)?;

    internal::suspect(&b, leads.lease_id(), true)?;
    crash(&a)?;
    let next = timeout(LONG, second.elected()).await??;
    let condemned = logs.one(SESSION, "silent session condemned", &of_b);
    assert_eq!(condemned.level, Level::WARN);

    logs.forget();
    let all = DeleteOptions::new().with_prefix();
    let mut client = etcd.client().await;
    client.delete("eldest/~session/", Some(all)).await?;
    timeout(LONG, next.lost().cancelled()).await?;
    let condemned = logs.one(
        SESSION,
        "condemned by another session",
        &[("identity", "b")],
    );
    assert_eq!(condemned.level, Level::WARN);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn challenges_that_come_often_are_logged_every_ten_seconds() -> Result {
    let logs = capture();
    let etcd = MemoryEtcd::start();
    let [a, b] = [session(&etcd, "a").await?, session(&etcd, "b").await?];
    let mut first = a.election("jobs")?.campaign().await?;
    let leads = timeout(LONG, first.elected()).await??;
    let _second = b.election("jobs")?.campaign().await?;
    let received = || logs.of(SESSION, "challenged", &[("identity", "a")]).len();
    for _ in 0..8 {
        for is_silent in [true, false] {
            internal::suspect(&b, leads.lease_id(), is_silent)?;
            sleep(TIME / 4).await;
        }
    }
    assert_eq!(received(), 1, "{logs:?}");
    sleep(TIME * 5).await;
    internal::suspect(&b, leads.lease_id(), true)?;
    sleep(TIME).await;
    assert_eq!(received(), 2, "{logs:?}");
    Ok(())
}
