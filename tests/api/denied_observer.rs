//! An onlooker that may not look is told so.

use std::time::Duration;

use eldest::etcd_client::{Client, ConnectOptions, Permission};
use eldest::testing::Etcd;
use eldest::{BoxError, ErrorKind, Session, SessionOptions};
use futures::StreamExt;

const PASSWORD: &str = "canary-51c8";

/// An etcd on which `me` may read and write below `ours/billing/` only, and be told whether etcd answers.
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
async fn an_onlooker_without_permission_gets_it_as_an_item_of_the_stream() -> Result<(), BoxError> {
    let etcd = guarded().await?;
    let options = SessionOptions::new("me")
        .namespace("ours")
        .connect_options(ConnectOptions::new().with_user("me", PASSWORD));
    let session = Session::connect([etcd.endpoint()], options).await?;
    let mut changes = session.election("payroll")?.observe().await?;
    let item = tokio::time::timeout(Duration::from_secs(10), changes.next()).await?;
    let error = item.ok_or("the stream ended without a word")?.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(changes.next().await.is_none());
    Ok(())
}
