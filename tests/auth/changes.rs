//! Tests a leader whose token, role or password changes.

use std::pin::pin;

use eldest::{Credentials, ErrorKind, LostReason, Op, Session, Status};
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
    let dashboard = guarded.session("observer").await?;
    let mut observer = dashboard.election("jobs")?.observe().await?;
    let (logins, begin) = (
        guarded.logins().await,
        leadership.valid_until().since_boot(),
    );
    let several = TTL;
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
    for session in [me, other, dashboard] {
        session.close().await?;
    }
    let root = ConnectOptions::new().with_user("root", PASSWORD);
    guarded.root = Client::connect([guarded.etcd.endpoint()], Some(root)).await?;
    guarded.nothing_is_left().await
}

/// Checks that a leader whose right is taken away stops before the next one leads, and is a candidate again once the right
/// is given back.
async fn loses_its_right(
    class: &str,
    takes: impl AsyncFnOnce(&mut Client) -> Result,
    gives_back: impl AsyncFnOnce(&mut Client) -> Result,
) -> Result {
    let (logs, _guard) = Logs::capture();
    let mut guarded = Guarded::start(&[]).await?;
    let (me, elder, leadership) = guarded.leading("me").await?;
    let (other, mut younger) = guarded.waiting("other").await?;
    takes(&mut guarded.root).await?;
    let second = timeout(LONG, younger.elected()).await??;
    assert!(!leadership.is_valid(), "two leaders at a time");
    assert!(leadership.lost().is_cancelled());
    assert_eq!(leadership.lost_reason(), Some(LostReason::LeaseExpiring));
    assert!(second.fencing_token() > leadership.fencing_token());
    // The log gives the reason for the missing renewals.
    let why = [("identity", "me"), ("class", class)];
    let failed = logs.of("eldest::session", "renewal failed", &why);
    assert!(!failed.is_empty(), "{logs:?}");
    let ended = [("identity", "me"), ("reason", "lease_expiring")];
    logs.one("eldest::election", "term ended", &ended);
    drop(leadership);

    gives_back(&mut guarded.root).await?;
    let mut status = elder.subscribe();
    let behind = Status::waiting(1);
    timeout(LONG, status.wait_for(|s| *s == behind)).await??;
    second.resign().await?;
    me.close().await?;
    other.close().await?;
    assert!(
        !logs.contain(CANARY),
        "leaked secret: a password in the log"
    );
    guarded.nothing_is_left().await
}

#[tokio::test]
async fn leader_whose_role_is_revoked_stops_before_the_next_one_leads() -> Result {
    let revoke = async |root: &mut Client| {
        root.user_revoke_role("me", "writer").await?;
        Ok(())
    };
    let grant = async |root: &mut Client| {
        root.user_grant_role("me", "writer").await?;
        Ok(())
    };
    loses_its_right("Denied", revoke, grant).await
}

#[tokio::test]
async fn changed_password_ends_the_term_and_the_old_one_returns_the_node() -> Result {
    let change = |password: &'static str| {
        async move |root: &mut Client| {
            root.user_change_password("me", password).await?;
            Ok(())
        }
    };
    loses_its_right("Auth", change(OTHER_PASSWORD), change(PASSWORD)).await
}

#[tokio::test]
async fn leader_that_may_no_longer_write_stops_before_another_leads() -> Result {
    let mut guarded = Guarded::start(&[]).await?;
    let (me, elder, leadership) = guarded.leading("me").await?;
    let (other, mut younger) = guarded.waiting("other").await?;
    let below = RoleRevokePermissionOptions::new().with_prefix();
    let root = &mut guarded.root;
    root.role_revoke_permission("writer", "ns/", Some(below))
        .await?;
    let read = Permission::read("ns/").with_prefix();
    root.role_grant_permission("writer", read).await?;
    // Versions of etcd differ in whether they still renew its lease; in either case two never lead.
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

/// The leader resigns right after a role was added, after which etcd accepts no older token.
#[tokio::test]
async fn token_older_than_the_roles_costs_no_candidacy() -> Result {
    let folder = tempfile::tempdir()?;
    let key = folder.path().join("key");
    std::fs::write(&key, "the key by which tokens are signed")?;
    let tokens = format!(
        "--auth-token=jwt,sign-method=HS256,priv-key={0},pub-key={0},ttl=5m",
        key.display()
    );
    let mut guarded = Guarded::start(&[&tokens]).await?;
    let (me, _elder, leadership) = guarded.leading("me").await?;
    let (other, mut younger) = guarded.waiting("other").await?;
    let lock = other.lock("beside")?;

    guarded.root.role_add("unrelated").await?;
    leadership.resign().await?;
    let second = timeout(LONG, younger.elected()).await??;
    // The first requests of their kinds since the role was added.
    let held = timeout(LONG, lock.acquire()).await??;
    other.election("jobs")?.roster().await?;
    let third = me.election("jobs")?.campaign().await?;
    guarded.root.role_delete("unrelated").await?;
    let beside = me.lock("another")?.try_acquire().await?;
    assert!(beside.is_some(), "who asks once is not refused either");
    guarded.root.role_add("unrelated").await?;
    second.txn([Op::delete("ns/nothing")]).await?;

    drop((held, beside, third));
    second.resign().await?;
    me.close().await?;
    other.close().await?;
    // Root's token is too old as well.
    let root = ConnectOptions::new().with_user("root", PASSWORD);
    guarded.root = Client::connect([guarded.etcd.endpoint()], Some(root)).await?;
    guarded.nothing_is_left().await
}

/// While a password is rotated, new requests of the session wait as well.
#[tokio::test]
async fn a_rotated_password_is_read_from_its_file_and_no_candidacy_ends() -> Result {
    let (logs, _guard) = Logs::capture();
    let mut guarded = Guarded::start(&[]).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("password");
    std::fs::write(&file, PASSWORD)?;
    let options = Guarded::options("me", PASSWORD).credentials(Credentials::from_file("me", &file));
    let me = Session::connect([guarded.etcd.endpoint()], options).await?;
    let mut candidate = me.election("jobs")?.campaign().await?;
    let leadership = timeout(LONG, candidate.elected()).await??;

    guarded
        .root
        .user_change_password("me", OTHER_PASSWORD)
        .await?;
    let lock = me.lock("beside")?;
    let mut waits = pin!(lock.acquire());
    let refused = async {
        let auth = [("class", "Auth")];
        eventually(LONG, "the refusal is logged", async || {
            (!logs.of("eldest::election", "join failed", &auth).is_empty()).then_some(())
        })
        .await
    };
    tokio::select! {
        acquired = &mut waits => panic!("with a refused password: {acquired:?}"),
        logged = refused => logged?,
    }
    let refused = me.lock("asked for once")?.try_acquire().await;
    let refused = refused.expect_err("a single attempt returns the refusal");
    assert_eq!(refused.kind(), ErrorKind::Unauthenticated, "{refused}");

    std::fs::write(&file, OTHER_PASSWORD)?;
    drop(timeout(LONG, waits).await??);
    drop(leadership);
    assert!(
        !logs.contain(CANARY),
        "leaked secret: a password in the log"
    );
    me.close().await?;
    guarded.nothing_is_left().await
}

#[tokio::test]
async fn leader_survives_authentication_being_disabled_and_enabled_again() -> Result {
    let (logs, _guard) = Logs::capture();
    let mut guarded = Guarded::start(&["--auth-token=simple"]).await?;
    let (me, _elder, leadership) = guarded.leading("me").await?;
    let (other, mut younger) = guarded.waiting("other").await?;
    let renewed_for = async |time| {
        let begin = leadership.valid_until().since_boot();
        eventually(LONG, "renewed for a while", async || {
            assert_eq!(leadership.lost_reason(), None, "{logs:?}");
            (leadership.valid_until().since_boot() > begin + time).then_some(())
        })
        .await
    };
    guarded.root.auth_disable().await?;
    renewed_for(TTL).await?;
    // A node that starts only now.
    let late = guarded.session("me").await?;
    late.lock("beside")?.acquire().await?.release().await?;
    let without = [("user", "me")];
    logs.one(
        "eldest::etcd",
        "etcd has authentication disabled: connecting without the user",
        &without,
    );

    let mut root = guarded.etcd.client().await;
    root.auth_enable().await?;
    renewed_for(TTL).await?;
    late.lock("beside")?.acquire().await?.release().await?;
    leadership.resign().await?;
    let second = timeout(LONG, younger.elected()).await??;
    second.resign().await?;
    for session in [me, other, late] {
        session.close().await?;
    }
    let root = ConnectOptions::new().with_user("root", PASSWORD);
    guarded.root = Client::connect([guarded.etcd.endpoint()], Some(root)).await?;
    guarded.nothing_is_left().await
}
