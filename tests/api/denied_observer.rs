//! Tests that an observer without permission receives an error.

use std::time::Duration;

use eldest::{BoxError, Credentials, ErrorKind, Session, SessionOptions};
use eldest_testing::{Etcd, eventually};
use etcd_client::{Client, Permission};

const PASSWORD: &str = "canary-51c8";

/// Starts an etcd on which `me` may read and write below `ours/billing/` only, and may check whether etcd answers.
async fn guarded() -> Result<Etcd, BoxError> {
    let etcd = Etcd::builder().arg("--bcrypt-cost=4").start().await?;
    let mut client: Client = etcd.client().await;
    client.user_add("root", PASSWORD, None).await?;
    client.role_add("root").await?;
    client.user_grant_role("root", "root").await?;
    client.user_add("me", PASSWORD, None).await?;
    client.role_add("mine").await?;
    for prefix in ["ours/billing/", "ours/~/"] {
        let permission = Permission::read_write(prefix).with_prefix();
        client.role_grant_permission("mine", permission).await?;
    }
    client.user_grant_role("me", "mine").await?;
    client.auth_enable().await?;
    Ok(etcd)
}

#[tokio::test]
async fn forbidden_observers_leave_the_streams_of_their_session_open() -> Result<(), BoxError> {
    const TIMES: usize = 20;
    let etcd = guarded().await?;
    let options = SessionOptions::new("me")
        .namespace("ours")
        .credentials(Credentials::new("me", PASSWORD));
    let session = Session::connect([etcd.endpoint()], options).await?;
    let allowed = session.election("billing/x")?;
    let mut candidate = allowed.campaign().await?;
    let leadership = candidate.elected().await?;
    let mut changes = allowed.observe().await?;
    let next = async |changes: &mut eldest::Observer| {
        tokio::time::timeout(Duration::from_secs(10), changes.next()).await
    };
    let first = next(&mut changes).await?.ok_or("ended")??;
    assert_eq!(first.members().len(), 1);
    let opened = r#"grpc_server_started_total{grpc_method="Watch",grpc_type="bidi_stream"}"#;
    let before = etcd.metric(opened).await;
    assert!(before >= 1.0, "{before}");
    let forbidden = session.election("payroll")?;
    for _ in 0..TIMES {
        let mut refused = forbidden.observe().await?;
        let error = next(&mut refused).await?.ok_or("ended")?.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(next(&mut refused).await?.is_none(), "the stream ends");
    }
    // The permitted ones continue, on their existing streams.
    leadership.resign().await?;
    assert!(next(&mut changes).await?.ok_or("ended")??.is_vacant());
    let streams = etcd.metric(opened).await - before;
    assert!(streams < 1.0, "{streams} streams opened again");
    session.close().await?;
    Ok(())
}

#[tokio::test]
async fn observer_that_may_read_one_election_alone_stays_fresh() -> Result<(), BoxError> {
    const TTL: Duration = Duration::from_secs(2);
    let etcd = Etcd::builder().arg("--bcrypt-cost=4").start().await?;
    let mut client: Client = etcd.client().await;
    for (user, role) in [("root", "root"), ("narrow", "one")] {
        client.user_add(user, PASSWORD, None).await?;
        client.role_add(role).await?;
        client.user_grant_role(user, role).await?;
    }
    let permission = Permission::read("ours/billing/x/").with_prefix();
    client.role_grant_permission("one", permission).await?;
    client.auth_enable().await?;
    let options = SessionOptions::new("narrow")
        .ttl(TTL)
        .namespace("ours")
        .credentials(Credentials::new("narrow", PASSWORD));
    let session = Session::connect_lazy([etcd.endpoint()], options)?;
    let mut changes = session.election("billing/x")?.observe().await?;
    let first = tokio::time::timeout(Duration::from_secs(10), changes.next()).await?;
    let first = first.ok_or("ended")??;
    eventually(Duration::from_secs(20), "two TTLs pass", async || {
        let age = changes.age()?;
        assert!(age < TTL, "{age:?}");
        (first.as_of()?.age() > 2 * TTL).then_some(())
    })
    .await?;
    session.close().await?;
    Ok(())
}
