//! Tests which permissions suffice, and the errors without them.

use std::sync::Arc;
use std::time::Duration;

use eldest::{
    Announcement, CancellationToken, Challenges, EndpointStatus, ErrorKind, Op, Session,
    SessionOptions,
};
use eldest_testing::{Proxy, eventually};
use etcd_client::{Permission, PermissionType, RoleRevokePermissionOptions};
use tokio::time::timeout;

use super::{Guarded, LONG, OTHER_PASSWORD, PASSWORD, Result};
use crate::capture::Logs;

#[tokio::test]
async fn read_and_write_below_the_namespace_suffices_for_everything() -> Result {
    let mut guarded = Guarded::start(&[]).await?;
    let (me, mut elder, leadership) = guarded.leading("me").await?;
    let (other, mut younger) = guarded.waiting("other").await?;
    let election = me.election("jobs")?;
    let mut observer = election.observe().await?;
    let first = timeout(LONG, observer.next()).await?.expect("goes on")?;
    assert_eq!(first.leader().map(eldest::Member::identity), Some("me"));

    let put = Op::put("ns/state", "1");
    leadership.txn([put]).await?;
    leadership.txn([Op::delete("ns/state")]).await?;
    let announcement = Announcement::new("me").with_address("10.0.0.1:80");
    leadership.proclaim(announcement).await?;
    younger.proclaim("the other").await?;
    let roster = election.roster().await?;
    let value = String::from_utf8_lossy(roster.members()[0].value()).into_owned();
    assert!(value.contains("10.0.0.1:80"), "{value}");
    assert_eq!(roster.members()[1].identity(), "the other");

    // Renewals and their verification need no further permission.
    let valid_until = leadership.valid_until().since_boot();
    eventually(LONG, "renewed", async || {
        (leadership.valid_until().since_boot() > valid_until).then_some(())
    })
    .await?;

    // A lost key, and the rejoin.
    guarded.root.delete(leadership.key(), None).await?;
    timeout(LONG, leadership.lost().cancelled()).await?;
    drop(leadership);
    let second = timeout(LONG, younger.elected()).await??;
    second.resign().await?;
    let third = timeout(LONG, elder.elected()).await??;
    third.resign().await?;

    // Conditions on a whole prefix need permission to read it.
    let (lock, semaphore) = (me.lock("l")?, me.semaphore("s", 2)?);
    let guard = timeout(LONG, lock.try_acquire()).await??.ok_or("free")?;
    let permit = timeout(LONG, semaphore.acquire()).await??;
    let another = timeout(LONG, semaphore.try_acquire()).await??;
    another.ok_or("one is free")?.release().await?;
    permit.release().await?;
    guard.release().await?;

    let partitions = me.partitions("p", 3)?;
    let mut member = timeout(LONG, partitions.join()).await??;
    let partition = timeout(LONG, member.owned()).await??;
    assert_eq!(partitions.map().await?.members().len(), 1);
    partition.txn([Op::get("ns/state")]).await?;
    drop(partition);
    timeout(LONG, member.leave()).await??;

    let shutdown = CancellationToken::new();
    let more = other.election("more")?;
    let run = more.run(shutdown.clone(), |leadership| {
        shutdown.cancel();
        async move {
            leadership.lost().cancelled().await;
            Ok::<_, eldest::BoxError>(())
        }
    });
    timeout(LONG, run).await??;
    me.close().await?;
    other.close().await?;
    guarded.nothing_is_left().await
}

#[tokio::test]
async fn read_only_user_observes_and_is_refused_as_a_candidate() -> Result {
    let (logs, _guard) = Logs::capture();
    let mut guarded = Guarded::start(&[]).await?;
    let (me, _elder, leadership) = guarded.leading("me").await?;
    let dashboard = guarded.session("observer").await?;
    let election = dashboard.election("jobs")?;
    let leader = election.leader().await?.expect("somebody leads");
    assert_eq!(leader.create_revision(), leadership.fencing_token());
    let mut observer = election.observe().await?;
    let first = timeout(LONG, observer.next()).await?.expect("goes on")?;
    assert_eq!(first.leader(), Some(&leader));

    let refused = timeout(LONG, election.campaign()).await?;
    let refused = refused.expect_err("it may not write");
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    assert!(
        refused.report().to_string().contains("permission denied"),
        "{refused}"
    );
    let denied = [("identity", "observer"), ("class", "Denied")];
    logs.one("eldest::election", "join failed", &denied);
    let shutdown = CancellationToken::new();
    let run = election.run(shutdown, |_| async { Ok::<_, eldest::BoxError>(()) });
    let refused = timeout(LONG, run).await?.expect_err("it may not write");
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    assert_eq!(
        election.roster().await?.members().len(),
        1,
        "nothing was put"
    );

    leadership.resign().await?;
    let vacant = timeout(LONG, observer.next()).await?.expect("goes on")?;
    assert!(vacant.is_vacant(), "it still looks on");
    drop(observer);
    dashboard.close().await?;
    me.close().await?;
    guarded.nothing_is_left().await
}

#[tokio::test]
async fn a_wrong_password_or_namespace_is_reported_on_connecting() -> Result {
    let mut guarded = Guarded::start(&[]).await?;
    let endpoint = guarded.etcd.endpoint();
    let wrong = Guarded::options("me", OTHER_PASSWORD);
    let refused = Session::connect([&endpoint], wrong)
        .await
        .expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Unauthenticated, "{refused}");
    let nobody = SessionOptions::new("nobody").namespace("ns");
    let refused = Session::connect([&endpoint], nobody)
        .await
        .expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Unauthenticated, "{refused}");
    let elsewhere = Guarded::options("me", PASSWORD).namespace("elsewhere");
    let refused = Session::connect([&endpoint], elsewhere)
        .await
        .expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");

    // A lazy session receives the error at its first request.
    let lazy = Session::connect_lazy([&endpoint], Guarded::options("me", OTHER_PASSWORD))?;
    let election = lazy.election("jobs")?;
    let campaign = timeout(LONG, election.campaign()).await?;
    let refused = campaign.expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Unauthenticated, "{refused}");
    let refused = election.leader().await.expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Unauthenticated, "{refused}");
    drop(lazy);
    guarded.nothing_is_left().await
}

/// Complaint: a token that expired during a blocking campaign ended the campaign. Joins share transactions, and etcd
/// refuses a transaction as a whole.
#[tokio::test]
async fn forbidden_election_spoils_none_that_is_joined_beside_it() -> Result {
    const N: usize = 20;
    const BAD: usize = 7;
    let mut guarded = Guarded::start(&[]).await?;
    guarded.root.user_add("some", PASSWORD, None).await?;
    guarded.root.role_add("some").await?;
    guarded.root.user_grant_role("some", "some").await?;
    for number in (0..N).filter(|number| *number != BAD) {
        let below = format!("ns/{number}/");
        let below = Permission::new(PermissionType::Readwrite, below).with_prefix();
        guarded.root.role_grant_permission("some", below).await?;
    }
    // The session reads this key to check that etcd answers.
    let probe = Permission::new(PermissionType::Read, "ns/~").with_prefix();
    guarded.root.role_grant_permission("some", probe).await?;
    let session = guarded.session("some").await?;
    let lead = async |number: usize| -> Result<_> {
        let mut candidate = session.election(number.to_string())?.campaign().await?;
        let leadership = candidate.elected().await?;
        Ok((candidate, leadership))
    };
    // Provides a lease, so that all other joins are sent at once.
    let mut leaders = vec![timeout(LONG, lead(0)).await??];
    let all = futures::future::join_all((1..N).map(lead));
    for (number, result) in (1..N).zip(timeout(LONG, all).await?) {
        match result {
            Ok(one) => {
                assert_ne!(number, BAD);
                leaders.push(one);
            }
            Err(error) => {
                let error = error.downcast::<eldest::Error>()?;
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
                assert_eq!(number, BAD, "{error}");
            }
        }
    }
    assert_eq!(leaders.len(), N - 1);
    let resigned = leaders.iter().map(|(_, leadership)| leadership.resign());
    timeout(LONG, futures::future::try_join_all(resigned)).await??;
    session.close().await?;
    guarded.nothing_is_left().await
}

/// Newer versions check more permissions than older ones; the report must match what is then allowed.
#[tokio::test]
async fn operators_check_permissions_without_side_effects() -> Result {
    use eldest::operator::{Endpoint, Permissions, evict};
    let mut guarded = Guarded::start(&[]).await?;
    let (me, mut candidate, leadership) = guarded.leading("me").await?;
    let endpoint = |user: &str| {
        let options = Guarded::options(user, PASSWORD);
        Endpoint::new(guarded.etcd.endpoint(), options)
    };
    let may = |read, write| Permissions { read, write };
    assert_eq!(endpoint("me")?.permissions("").await?, may(true, true));
    let dashboard = endpoint("observer")?;
    assert_eq!(dashboard.permissions("jobs").await?, may(true, false));
    assert!(leadership.is_valid(), "its key stands");
    let status = dashboard.status().await?;
    assert_eq!(status.version, guarded.etcd.version());
    dashboard.read_time().await?;
    match dashboard.members().await {
        Ok(members) => assert_eq!(members.len(), 1),
        Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}"),
    }
    assert!(dashboard.shortest_ttl().await? >= Duration::from_secs(2));

    let seen = guarded.session("observer").await?;
    let overview = seen.overview("").await?;
    let queue = overview.election("jobs").ok_or("it stands")?;
    let leader = queue.roster().leader().ok_or("a leader")?;
    assert!(seen.lease_time(leader.lease_id()).await?.is_some());
    let error = evict(&seen, leader).await.expect_err("it may only read");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    leadership.resign().await?;
    candidate.leave().await?;
    me.close().await?;
    guarded.nothing_is_left().await
}

/// A password check costs etcd 60 ms and more of a processor.
#[tokio::test]
async fn endpoints_are_measured_without_a_check_of_the_password() -> Result {
    let guarded = Guarded::start(&[]).await?;
    let proxy = || Proxy::start(guarded.etcd.address());
    let (near, far) = (proxy().await?, proxy().await?);
    far.delay(Duration::from_millis(30));
    let logins = async |endpoints: &[String]| -> Result<f64> {
        let before = guarded.logins().await;
        let session = Session::connect(endpoints, Guarded::options("me", PASSWORD)).await?;
        let mut candidate = session.election("jobs")?.campaign().await?;
        let leadership = timeout(LONG, candidate.elected()).await??;
        let mut measured = session.endpoints();
        let all = |known: &Arc<[EndpointStatus]>| {
            known.len() == 1 || known.iter().all(|one| one.round_trip().is_some())
        };
        timeout(LONG, measured.wait_for(all)).await??;
        let after = guarded.logins().await;
        drop(leadership);
        session.close().await?;
        Ok(after - before)
    };
    let unmeasured = logins(&[near.endpoint()]).await?;
    assert!(unmeasured > 0.0, "the session itself has a user");
    let measured = logins(&[near.endpoint(), far.endpoint()]).await?;
    assert!(
        measured <= unmeasured,
        "{measured} checks instead of {unmeasured}"
    );
    Ok(())
}

#[tokio::test]
async fn session_that_allows_challenges_needs_the_permission_to_answer_them() -> Result {
    let mut guarded = Guarded::start(&[]).await?;
    let endpoint = guarded.etcd.endpoint();
    let connect = async |user| {
        let options = Guarded::options(user, PASSWORD).challenges(Challenges::steady());
        Session::connect([endpoint.as_str()], options).await
    };
    let error = connect("observer").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("ns/~session/"), "{error}");
    guarded.nothing_is_left().await?;

    let me = connect("me").await?;
    let mut candidate = me.election("jobs")?.campaign().await?;
    let leadership = timeout(LONG, candidate.elected()).await??;
    let valid_until = leadership.valid_until().since_boot();
    eventually(LONG, "read cleanly", async || {
        (leadership.valid_until().since_boot() > valid_until).then_some(())
    })
    .await?;
    me.close().await?;
    guarded.nothing_is_left().await
}

/// The session goes on renewing its lease, so that its key would keep the place for ever. Nobody behind it challenges it.
#[tokio::test]
async fn session_that_may_not_read_its_anchor_lets_others_lead() -> Result {
    let (logs, _guard) = Logs::capture();
    let mut guarded = Guarded::start(&[]).await?;
    let anchors = |kind| Permission::new(kind, "ns/~session/").with_prefix();
    let others = Permission::new(PermissionType::Readwrite, "ns/").with_range_end("ns/~session/");
    let all = RoleRevokePermissionOptions::new().with_prefix();
    let (root, both) = (&mut guarded.root, anchors(PermissionType::Readwrite));
    root.role_revoke_permission("writer", "ns/", Some(all))
        .await?;
    root.role_grant_permission("writer", others).await?;
    root.role_grant_permission("writer", both.clone()).await?;

    let (first, leader, leadership) = guarded.leading("other").await?;
    let time = Duration::from_secs(1);
    let options = Guarded::options("me", PASSWORD).challenges(Challenges::answer_within(time));
    let me = Session::connect([guarded.etcd.endpoint()], options).await?;
    let candidate = me.election("jobs")?.campaign().await?;
    let (last, mut next) = guarded.waiting("other").await?;
    let write = anchors(PermissionType::Write);
    guarded.root.role_grant_permission("writer", write).await?;
    let line = "this session may not read its anchor, so others lead: let its user read and write below ~session/";
    let granted = logs.one("eldest::session", "lease granted", &[("identity", "me")]);
    let anchor = format!("~session/{}", granted.field("lease"));
    eventually(LONG, "it steps back when it is first", async || {
        let lines = logs.of("eldest::session", line, &[("anchor", &*anchor)]);
        (lines.len() == 1).then_some(())
    })
    .await?;
    drop((leader, leadership));
    first.close().await?;
    let leadership = timeout(LONG, next.elected()).await??;

    guarded.root.role_grant_permission("writer", both).await?;
    let election = last.election("jobs")?;
    eventually(LONG, "it stands again", async || {
        let roster = election.roster().await.ok()?;
        (roster.members().len() == 2).then_some(())
    })
    .await?;
    assert!(leadership.is_valid());
    drop((leadership, candidate));
    me.close().await?;
    last.close().await?;
    guarded.nothing_is_left().await
}

#[tokio::test]
async fn state_that_its_leader_may_not_write_keeps_no_key() -> Result {
    let mut guarded = Guarded::start(&[]).await?;
    let (_me, _elder, leadership) = guarded.leading("me").await?;
    let (_other, mut younger) = guarded.waiting("other").await?;
    let candidates = Permission::read_write("ns/jobs/").with_prefix();
    guarded
        .root
        .role_grant_permission("writer", candidates)
        .await?;
    let below = RoleRevokePermissionOptions::new().with_prefix();
    guarded
        .root
        .role_revoke_permission("writer", "ns/", Some(below))
        .await?;

    let refused = timeout(LONG, leadership.step_down_with("7")).await?;
    let refused = refused.expect_err("it may not write the state");
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
    let next = timeout(LONG, younger.elected()).await??;
    assert!(next.last_checkpoint().await?.is_none());
    Ok(())
}
