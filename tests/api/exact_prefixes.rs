//! Tests elections at the exact prefixes that other programs chose.

use eldest::{ErrorKind, Status};

use crate::common::{Result, elected, in_memory, keys, only_key, options, session, soon, status};

const PREFIX: &str = "/golem/shard-manager/leader";

#[tokio::test(start_paused = true)]
async fn keys_lie_right_below_the_exact_prefix() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let a = session(&etcd, "a").await?;
    let election = a.election_at(PREFIX)?;
    assert_eq!(election.name(), PREFIX);
    assert_eq!(election.prefix(), format!("{PREFIX}/"));
    let mut candidate = soon("campaign", election.campaign()).await?;
    let leadership = elected(&mut candidate).await?;
    let key = only_key(&mut client, "").await;
    assert_eq!(key.path, format!("{PREFIX}/{:x}", key.lease));
    assert_eq!(leadership.name(), PREFIX);
    assert!(a.election_at(PREFIX)?.is_leader(), "another handle of it");
    soon("resign", leadership.resign()).await?;
    assert_eq!(keys(&mut client, "").await, []);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn sessions_of_any_namespace_meet_at_an_exact_prefix() -> Result {
    let etcd = in_memory();
    let a = session(&etcd, "a").await?;
    let other = |namespace: &str| options("b").namespace(namespace);
    let b = etcd.session(other("other")).await?;
    let c = etcd.session(other("/")).await?;
    let mut first = soon("campaign", a.election_at(PREFIX)?.campaign()).await?;
    let _leadership = elected(&mut first).await?;
    let second = soon("campaign", b.election_at(PREFIX)?.campaign()).await?;
    status(&second, |s| matches!(s, Status::Waiting { ahead: 1, .. })).await?;
    let within = c.election_at(PREFIX)?;
    assert_eq!(
        within.name(),
        PREFIX.trim_start_matches('/'),
        "its namespace is the slash"
    );
    let third = soon("campaign", within.campaign()).await?;
    status(&third, |s| matches!(s, Status::Waiting { ahead: 2, .. })).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_exact_prefix_within_the_namespace_is_the_election_of_that_name() -> Result {
    let etcd = in_memory();
    let a = session(&etcd, "a").await?;
    let _candidate = soon("campaign", a.election("x")?.campaign()).await?;
    let exact = a.election_at("eldest/x")?;
    assert_eq!((exact.name(), exact.prefix()), ("x", "eldest/x/"));
    let error = exact.campaign().await.expect_err("it is a candidate");
    assert_eq!(error.kind(), ErrorKind::AlreadyCampaigning, "{error}");
    assert_ne!(exact.status(), Status::Idle);
    Ok(())
}
