//! Tests sessions that are abandoned, against a real etcd.

use std::time::{Duration, Instant};

use eldest::{Session, SessionOptions};
use eldest_testing::{ErrorKind, Etcd, crash, crashable_session};
use tokio::time::timeout;

use crate::Result;

const TTL: Duration = Duration::from_secs(2);
/// etcd searches for expired leases each half second, after its own election timeout of a second; the rest is for a
/// busy machine.
const TAKEOVER: Duration = Duration::from_secs(5);

fn options(identity: &str) -> SessionOptions {
    SessionOptions::new(identity).ttl(TTL)
}

#[tokio::test]
async fn a_crashed_leader_leaves_its_key_until_the_lease_has_run_out() -> Result {
    let etcd = Etcd::start().await?;
    let first = crashable_session([etcd.endpoint()], options("a")).await?;
    let mut leads = first.election("jobs")?.campaign().await?;
    let leadership = leads.elected().await?;
    let second = Session::connect([etcd.endpoint()], options("b")).await?;
    let mut waits = second.election("jobs")?.campaign().await?;
    let begun = Instant::now();
    crash(&first)?;
    let deletions = etcd.metric("etcd_mvcc_delete_total").await;
    let revocations = etcd.metric(REVOKED).await;
    drop((leads, first));
    let next = timeout(TTL + TAKEOVER, waits.elected()).await??;
    assert!(!leadership.is_valid());
    assert!(next.fencing_token() > leadership.fencing_token());
    // The last renewal was at most a third of the TTL ago.
    assert!(begun.elapsed() + Duration::from_millis(100) > TTL * 2 / 3);
    assert_eq!(etcd.get(leadership.key()).await?, None);
    assert_eq!(etcd.metric(REVOKED).await, revocations, "nobody asked");
    assert!(etcd.metric("etcd_mvcc_delete_total").await > deletions);
    second.close().await?;
    Ok(())
}

/// The number of calls of `LeaseRevoke`, from any caller.
const REVOKED: &str = r#"grpc_server_handled_total{grpc_method="LeaseRevoke"}"#;

#[tokio::test]
async fn session_connected_without_the_crate_cannot_crash() -> Result {
    let etcd = Etcd::start().await?;
    let session = Session::connect([etcd.endpoint()], options("a")).await?;
    let refused = crash(&session).expect_err("its tasks are the runtime's");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    session.close().await?;
    Ok(())
}
