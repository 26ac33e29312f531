//! An etcd with users: which permissions suffice, what their absence looks like, and that passwords stay secret.
#![allow(clippy::disallowed_methods)] // tests run in real time

mod capture;

use std::time::Duration;

use capture::Logs;
use eldest::{
    Announcement, BoxError, CancellationToken, Candidate, ErrorKind, Leadership, LostReason,
    Session, SessionOptions, Status,
};
use eldest_testing::{Etcd, eventually};
use etcd_client::{
    Client, ConnectOptions, GetOptions, Permission, PermissionType, RoleRevokePermissionOptions,
    TxnOp,
};
use futures::StreamExt;
use tokio::time::timeout;

type Result<T = ()> = std::result::Result<T, BoxError>;

const TTL: Duration = Duration::from_secs(4);

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Found nowhere else, so that it can be searched for.
const PASSWORD: &str = "canary-5e1d0f";
const OTHER_PASSWORD: &str = "canary-77ab3c";
const CANARY: &str = "canary";

/// An etcd on which `me` and `other` may read and write below `ns/`, and `onlooker` may read there; with a client of
/// its root.
struct Guarded {
    etcd: Etcd,
    root: Client,
}

impl Guarded {
    async fn start(args: &[&str]) -> Result<Self> {
        // The cheapest hash: it is not what is tested.
        let mut builder = Etcd::builder().arg("--bcrypt-cost=4");
        for arg in args {
            builder = builder.arg(*arg);
        }
        let etcd = builder.start().await?;
        let mut client = etcd.client().await;
        let users = [
            ("root", "root", None),
            ("me", "writer", Some(PermissionType::Readwrite)),
            ("other", "writer_too", Some(PermissionType::Readwrite)),
            ("onlooker", "reader", Some(PermissionType::Read)),
        ];
        for (user, role, permission) in users {
            client.user_add(user, PASSWORD, None).await?;
            client.role_add(role).await?;
            if let Some(kind) = permission {
                let below = Permission::new(kind, "ns/").with_prefix();
                client.role_grant_permission(role, below).await?;
            }
            client.user_grant_role(user, role).await?;
        }
        client.auth_enable().await?;
        let root = ConnectOptions::new().with_user("root", PASSWORD);
        let root = Client::connect([etcd.endpoint()], Some(root)).await?;
        Ok(Self { etcd, root })
    }

    fn options(user: &str, password: &str) -> SessionOptions {
        SessionOptions::new(user)
            .namespace("ns")
            .ttl(TTL)
            .connect_options(ConnectOptions::new().with_user(user, password))
    }

    async fn session(&self, user: &str) -> eldest::Result<Session> {
        Session::connect([self.etcd.endpoint()], Self::options(user, PASSWORD)).await
    }

    /// Its session, candidate and leadership; `other` stands behind it.
    async fn leading(&self, user: &str) -> Result<(Session, Candidate, Leadership)> {
        let session = self.session(user).await?;
        let mut candidate = session.election("jobs")?.campaign().await?;
        let leadership = timeout(LONG, candidate.elected()).await??;
        Ok((session, candidate, leadership))
    }

    async fn waiting(&self, user: &str) -> Result<(Session, Candidate)> {
        let session = self.session(user).await?;
        let candidate = session.election("jobs")?.campaign().await?;
        Ok((session, candidate))
    }

    /// No key and no lease, whoever they might be of.
    async fn nothing_is_left(&mut self) -> Result {
        let all = GetOptions::new().with_all_keys().with_keys_only();
        let keys = self.root.get("", Some(all)).await?;
        assert!(keys.kvs().is_empty(), "left: {:?}", keys.kvs());
        let leases = self.root.leases().await?;
        assert_eq!(leases.leases().len(), 0, "no lease is left");
        Ok(())
    }

    async fn logins(&self) -> f64 {
        let ok = r#"grpc_server_handled_total{grpc_method="Authenticate",grpc_code="OK"}"#;
        self.etcd.metric(ok).await
    }
}

#[tokio::test]
async fn read_and_write_below_the_namespace_suffices_for_everything() -> Result {
    let mut guarded = Guarded::start(&[]).await?;
    let (me, mut elder, leadership) = guarded.leading("me").await?;
    let (other, mut younger) = guarded.waiting("other").await?;
    let election = me.election("jobs")?;
    let mut observer = election.observe().await?;
    let first = timeout(LONG, observer.next()).await?.expect("goes on")?;
    assert_eq!(first.leader().map(eldest::Member::identity), Some("me"));

    let put = TxnOp::put("ns/state", "1", None);
    leadership.txn([put]).await?;
    leadership.txn([TxnOp::delete("ns/state", None)]).await?;
    let announcement = Announcement::new("me").address("10.0.0.1:80");
    leadership.proclaim(announcement).await?;
    younger.proclaim("the other").await?;
    let roster = election.roster().await?;
    let value = String::from_utf8_lossy(roster.members()[0].value()).into_owned();
    assert!(value.contains("10.0.0.1:80"), "{value}");
    assert_eq!(roster.members()[1].identity(), "the other");

    // Renewals and their verification.
    let valid_until = leadership.valid_until().since_boot();
    eventually(LONG, "renewed", async || {
        (leadership.valid_until().since_boot() > valid_until).then_some(())
    })
    .await?;

    // A lost key, and the way back.
    guarded.root.delete(leadership.key(), None).await?;
    timeout(LONG, leadership.lost().cancelled()).await?;
    drop(leadership);
    let second = timeout(LONG, younger.elected()).await??;
    second.resign().await?;
    let third = timeout(LONG, elder.elected()).await??;
    third.resign().await?;

    // Conditions on a whole prefix are reads of it.
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
    partition.txn([TxnOp::get("ns/state", None)]).await?;
    drop(partition);
    timeout(LONG, member.leave()).await??;

    let shutdown = CancellationToken::new();
    let more = other.election("more")?;
    let run = more.run(shutdown.clone(), |leadership| {
        shutdown.cancel();
        async move {
            leadership.lost().cancelled().await;
            Ok(())
        }
    });
    timeout(LONG, run).await??;
    me.close().await?;
    other.close().await?;
    guarded.nothing_is_left().await
}

#[tokio::test]
async fn who_may_only_read_looks_on_and_is_refused_as_a_candidate() -> Result {
    let (logs, _guard) = Logs::capture();
    let mut guarded = Guarded::start(&[]).await?;
    let (me, _elder, leadership) = guarded.leading("me").await?;
    let onlooker = guarded.session("onlooker").await?;
    let election = onlooker.election("jobs")?;
    let leader = election.leader().await?.expect("somebody leads");
    assert_eq!(leader.create_revision(), leadership.fencing_token());
    let mut observer = election.observe().await?;
    let first = timeout(LONG, observer.next()).await?.expect("goes on")?;
    assert_eq!(first.leader(), Some(&leader));

    let refused = timeout(LONG, election.campaign()).await?;
    let refused = refused.expect_err("it may not write");
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    assert!(
        refused.to_string().contains("permission denied"),
        "{refused}"
    );
    let denied = [("identity", "onlooker"), ("class", "Denied")];
    logs.one("eldest::election", "join failed", &denied);
    let shutdown = CancellationToken::new();
    let run = election.run(shutdown, |_| async { Ok(()) });
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
    onlooker.close().await?;
    me.close().await?;
    guarded.nothing_is_left().await
}

#[tokio::test]
async fn a_wrong_password_or_namespace_is_told_on_connecting() -> Result {
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

    // A lazy session learns of it at its first request.
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

/// Complaint: a token that expired during a blocking campaign ended it.
/// Joins share transactions, and etcd refuses such a one as a whole.
#[tokio::test]
async fn one_election_that_is_not_permitted_spoils_none_that_is_joined_beside_it() -> Result {
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
    // What is asked for to learn that etcd answers.
    let probe = Permission::new(PermissionType::Read, "ns/~").with_prefix();
    guarded.root.role_grant_permission("some", probe).await?;
    let session = guarded.session("some").await?;
    let lead = async |number: usize| -> Result<_> {
        let mut candidate = session.election(number.to_string())?.campaign().await?;
        let leadership = candidate.elected().await?;
        Ok((candidate, leadership))
    };
    // So that there is a lease, and all others are asked for at once.
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
    let put = TxnOp::put("ns/state", "1", None);
    leadership.txn([put]).await?;
    leadership.txn([TxnOp::delete("ns/state", None)]).await?;
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
    let behind = Status::Waiting { rank: 2, ahead: 1 };
    let mut status = candidate.status();
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
    let put = TxnOp::put("ns/state", "1", None);
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
    assert!(!logs.contain(CANARY), "a password in the log");
    guarded.nothing_is_left().await
}

#[tokio::test]
async fn a_password_is_in_no_log_line_no_error_and_no_debug_output() -> Result {
    let (logs, _guard) = Logs::capture();
    #[cfg(feature = "metrics")]
    let metrics = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder()?;
    // Tokens that expire, so that it is sent again and again.
    let guarded = Guarded::start(&["--auth-token-ttl=1"]).await?;
    let endpoint = guarded.etcd.endpoint();
    let options = Guarded::options("me", PASSWORD);
    let mut shown = vec![format!("{options:?}")];
    let session = Session::connect([&endpoint], options).await?;
    let election = session.election("jobs")?;
    let mut observer = election.observe().await?;
    let mut candidate = election.campaign().await?;
    let leadership = timeout(LONG, candidate.elected()).await??;
    let (logins, begin) = (
        guarded.logins().await,
        leadership.valid_until().since_boot(),
    );
    eventually(LONG, "renewed", async || {
        (leadership.valid_until().since_boot() > begin + TTL).then_some(())
    })
    .await?;
    assert!(guarded.logins().await > logins, "it was sent again");
    let roster = timeout(LONG, observer.next()).await?.expect("goes on")?;
    shown.extend([
        format!("{session:?} {:?}", session.state()),
        format!("{:?}", session.state().borrow().clone()),
        format!("{election:?} {observer:?} {roster:?} {candidate:?}"),
        format!("{:?} {leadership:?}", candidate.status()),
        format!("{:?} {:?}", leadership.term(), leadership.valid_until()),
        format!(
            "{:?}",
            Session::connect_lazy([&endpoint], Guarded::options("me", PASSWORD))?
        ),
    ]);

    let mut errors = Vec::new();
    let wrong = Guarded::options("me", OTHER_PASSWORD);
    errors.extend(Session::connect([&endpoint], wrong).await.err());
    let in_url = format!("http://me:{PASSWORD}@{}", guarded.etcd.address());
    let plain = SessionOptions::new("me").namespace("ns");
    errors.extend(Session::connect_lazy([in_url], plain).err());
    let elsewhere = Guarded::options("me", PASSWORD).namespace("elsewhere");
    errors.extend(Session::connect([&endpoint], elsewhere).await.err());
    let nowhere = Guarded::options("me", PASSWORD).connect_timeout(Duration::from_millis(300));
    errors.extend(
        Session::connect(["http://127.0.0.1:1"], nowhere)
            .await
            .err(),
    );
    errors.extend(election.campaign().await.err());
    leadership.resign().await?;
    errors.extend(leadership.txn([]).await.err());
    errors.extend(candidate.elected().await.err());
    assert_eq!(errors.len(), 7, "{errors:?}");
    for error in errors {
        shown.push(format!("{error} {error:?} {error:#?}"));
    }
    session.close().await?;
    #[cfg(feature = "metrics")]
    {
        let page = metrics.render();
        for measured in ["eldest_renewals_total", "eldest_terms_started_total"] {
            assert!(page.contains(measured), "{measured} is missing in {page}");
        }
        shown.push(page);
    }
    for text in shown {
        assert!(!text.contains(CANARY), "{text}");
    }
    assert!(!logs.contain(CANARY), "a password in the log");
    // It would have been found: the library below us logs what it sends, and so do we.
    assert!(
        logs.lines()
            .iter()
            .any(|line| line.level == tracing::Level::TRACE)
    );
    assert!(logs.contain("lease granted"));
    Ok(())
}

/// Newer versions ask for more than older ones; what is told is what is then allowed.
#[tokio::test]
async fn operators_are_told_what_a_user_may_do_without_its_being_done() -> Result {
    use eldest::operator::{Endpoint, Permissions, evict};
    let mut guarded = Guarded::start(&[]).await?;
    let (me, mut candidate, leadership) = guarded.leading("me").await?;
    let endpoint = |user: &str| {
        let options = Guarded::options(user, PASSWORD);
        Endpoint::new(guarded.etcd.endpoint(), options)
    };
    let may = |read, write| Permissions { read, write };
    assert_eq!(endpoint("me")?.permissions("").await?, may(true, true));
    let onlooker = endpoint("onlooker")?;
    assert_eq!(onlooker.permissions("jobs").await?, may(true, false));
    assert!(leadership.is_valid(), "its key stands");
    let status = onlooker.status().await?;
    assert_eq!(status.version, guarded.etcd.version());
    onlooker.read_time().await?;
    match onlooker.members().await {
        Ok(members) => assert_eq!(members.len(), 1),
        Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}"),
    }
    assert!(onlooker.shortest_ttl().await? >= Duration::from_secs(2));

    let seen = guarded.session("onlooker").await?;
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
