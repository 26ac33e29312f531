//! Tests a leader whose token, role or password changes.

use eldest::{Candidate, ErrorKind, Leadership, LostReason, Op, Status};
use eldest_testing::eventually;
use etcd_client::{Client, ConnectOptions, Permission, RoleRevokePermissionOptions};
use tokio::time::timeout;

use super::{CANARY, Guarded, LONG, OTHER_PASSWORD, PASSWORD, Result, TTL};
use crate::capture::Logs;

#[tokio::test]
async fn leadership_and_place_outlive_many_tokens() -> Result {
    let mut guarded = Guarded::start(&["--auth-token=simple", "--auth-token-ttl=1"]).await?;
    let (me, _elder, leadership) = guarded.leading("me").await?;
    let (other, mut younger) = guarded.waiting("other").await?;
    let onlooker = guarded.session("onlooker").await?;
    let mut observer = onlooker.election("jobs")?.observe().await?;
    let (logins, begin) = (
        guarded.logins().await,
        leadership.valid_until().since_boot(),
    );
    let several = TTL * 2;
    eventually(LONG, "renewed for a while", async || {
        (leadership.valid_until().since_boot() > begin + several).then_some(())
    })
    .await?;
    let fresh = guarded.logins().await - logins;
    assert!(fresh >= 4.0, "tokens did expire: {fresh} new ones");
    assert_eq!(leadership.lost_reason(), None);
    let put = Op::put("ns/state", "1");
    leadership.txn([put]).await?;
    leadership.txn([Op::delete("ns/state")]).await?;
    let token = leadership.fencing_token();

    leadership.resign().await?;
    let next = timeout(LONG, younger.elected()).await??;
    assert!(next.fencing_token() > token);
    let seen = async {
        loop {
            let roster = observer.next().await.expect("goes on")?;
            if roster.leader().is_some_and(|l| l.identity() == "other") {
                return Result::Ok(());
            }
        }
    };
    timeout(LONG, seen).await??;
    next.resign().await?;
    for session in [me, other, onlooker] {
        session.close().await?;
    }
    let root = ConnectOptions::new().with_user("root", PASSWORD);
    guarded.root = Client::connect([guarded.etcd.endpoint()], Some(root)).await?;
    guarded.nothing_is_left().await
}

/// `me` has led and is about to find out that it may not any more: it stops first, then `other` leads.
async fn succeeded(leadership: &Leadership, younger: &mut Candidate) -> Result<Leadership> {
    let second = timeout(LONG, younger.elected()).await??;
    assert!(!leadership.is_valid(), "two leaders at a time");
    assert!(leadership.lost().is_cancelled());
    assert_eq!(leadership.lost_reason(), Some(LostReason::LeaseExpiring));
    assert!(second.fencing_token() > leadership.fencing_token());
    Ok(second)
}

/// Whether it was told why nothing is renewed.
fn told(logs: &Logs, class: &str) {
    let why = [("identity", "me"), ("class", class)];
    let failed = logs.of("eldest::session", "renewal failed", &why);
    assert!(!failed.is_empty(), "{logs:?}");
    let ended = [("identity", "me"), ("reason", "lease_expiring")];
    logs.one("eldest::election", "term ended", &ended);
}

async fn behind(candidate: &Candidate) -> Result {
    let behind = Status::waiting(1);
    let mut status = candidate.subscribe();
    timeout(LONG, status.wait_for(|s| *s == behind)).await??;
    Ok(())
}

#[tokio::test]
async fn a_leader_whose_role_is_revoked_stops_before_the_next_one_leads() -> Result {
    let (logs, _guard) = Logs::capture();
    let mut guarded = Guarded::start(&[]).await?;
    let (me, elder, leadership) = guarded.leading("me").await?;
    let (other, mut younger) = guarded.waiting("other").await?;
    guarded.root.user_revoke_role("me", "writer").await?;
    let second = succeeded(&leadership, &mut younger).await?;
    told(&logs, "Denied");
    drop(leadership);

    guarded.root.user_grant_role("me", "writer").await?;
    behind(&elder).await?;
    second.resign().await?;
    me.close().await?;
    other.close().await?;
    guarded.nothing_is_left().await
}

#[tokio::test]
async fn a_leader_that_may_no_longer_write_stops_before_the_next_one_leads() -> Result {
    let mut guarded = Guarded::start(&[]).await?;
    let (me, elder, leadership) = guarded.leading("me").await?;
    let (other, mut younger) = guarded.waiting("other").await?;
    let below = RoleRevokePermissionOptions::new().with_prefix();
    let root = &mut guarded.root;
    root.role_revoke_permission("writer", "ns/", Some(below))
        .await?;
    let read = Permission::read("ns/").with_prefix();
    root.role_grant_permission("writer", read).await?;
    // Versions of etcd differ in whether they still renew its lease; either way never two lead.
    let put = Op::put("ns/state", "1");
    let refused = leadership.txn([put]).await.expect_err("it may not write");
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
    let write = Permission::read_write("ns/").with_prefix();
    root.role_grant_permission("writer", write).await?;
    if leadership.is_valid() {
        leadership.resign().await?;
    }
    let second = timeout(LONG, younger.elected()).await??;
    assert!(!leadership.is_valid(), "two leaders at a time");
    drop((leadership, elder));
    second.resign().await?;
    me.close().await?;
    other.close().await?;
    guarded.nothing_is_left().await
}

#[tokio::test]
async fn a_changed_password_ends_the_term_and_changed_back_the_node_returns() -> Result {
    let (logs, _guard) = Logs::capture();
    let mut guarded = Guarded::start(&[]).await?;
    let (me, elder, leadership) = guarded.leading("me").await?;
    let (other, mut younger) = guarded.waiting("other").await?;
    let root = &mut guarded.root;
    root.user_change_password("me", OTHER_PASSWORD).await?;
    let second = succeeded(&leadership, &mut younger).await?;
    told(&logs, "Auth");
    drop(leadership);

    guarded.root.user_change_password("me", PASSWORD).await?;
    behind(&elder).await?;
    second.resign().await?;
    me.close().await?;
    other.close().await?;
    assert!(
        !logs.contain(CANARY),
        "leaked secret: a password in the log"
    );
    guarded.nothing_is_left().await
}
