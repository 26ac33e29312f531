//! Tests sessions: connecting, options, the one lease, states, and how they end.

use std::time::{Duration, Instant};

use crate::common::{
    OnPort, Result, SOON, Store, WHILE, elected, in_memory, join_election, keys, leases,
    nothing_under, options, session, short, soon, stays,
};
use eldest::{EndReason, Endpoint, ErrorKind, LostReason, Session, SessionState, Status};
use eldest_testing::{Etcd, eventually};
use futures::StreamExt;

// ---- connecting

#[cfg(unix)]
#[tokio::test]
async fn an_etcd_that_does_not_answer_is_reported_with_its_endpoint() -> Result {
    let etcd = Etcd::start().await?;
    etcd.pause();
    let patience = Duration::from_millis(400);
    let connecting = etcd.session(options("a").connect_timeout(patience));
    let error = soon("an error", connecting)
        .await
        .expect_err("it is paused");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(&etcd.address()), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_lazy_session_waits_for_etcd_and_works_once_it_comes() -> Result {
    let mut etcd = Etcd::start().await?;
    etcd.kill();
    let session = Session::connect_lazy([etcd.endpoint()], options("a"))?;
    let election = session.election("e")?;
    let campaign = tokio::spawn(async move { election.campaign().await });
    let state = session.state();
    stays(WHILE, "waiting for etcd", async || {
        matches!(*state.borrow(), SessionState::Connecting) && !campaign.is_finished()
    })
    .await?;
    etcd.restart().await?;
    let mut candidate = soon("campaign", campaign).await??;
    assert!(elected(&mut candidate).await?.is_valid());
    Ok(())
}

#[tokio::test]
async fn options_that_cannot_work_are_refused_on_connecting() -> Result {
    let refused = [
        (options("a").ttl(Duration::from_secs(1)), "ttl"),
        (options("a").margin(Duration::from_secs(60)), "margin"),
        (
            options("a").request_timeout(Duration::ZERO),
            "request_timeout",
        ),
        (
            options("a").connect_timeout(Duration::ZERO),
            "connect_timeout",
        ),
        (options("a").clock_drift_ppm(200_000), "clock_drift_ppm"),
    ];
    for (options, named) in refused {
        let error = Session::connect_lazy(["http://127.0.0.1:1"], options).expect_err(named);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(named), "{error}");
    }
    let none: [&str; 0] = [];
    let error = Session::connect_lazy(none, options("a")).expect_err("no endpoint");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let error = Session::connect_lazy(["not an endpoint"], options("a")).expect_err("nonsense");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    Ok(())
}

#[tokio::test]
async fn names_and_counts_that_cannot_be_are_refused_for_every_kind() -> Result {
    let session = Session::connect_lazy(["http://127.0.0.1:1"], options("a"))?;
    // Only elections and locks share their names.
    let _elections = session.election("a")?;
    let _permits = session.semaphore("a", 2)?;
    let _shards = session.partitions("a", 8)?;
    let _members = session.group("a")?;
    for (name, rule) in [("", "empty"), ("a/b", "nests with \"a\""), ("~x", "'~'")] {
        for refused in [
            session.election(name).map(drop),
            session.lock(name).map(drop),
            session.lock_all([name]).map(drop),
            session.semaphore(name, 2).map(drop),
            session.partitions(name, 8).map(drop),
            session.group(name).map(drop),
        ] {
            let error = refused.expect_err(name);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.to_string().contains(rule), "{error}");
        }
    }
    for (refused, rule) in [
        (session.lock("a").map(drop), "for an election; a lock"),
        (
            session.election_at("eldest/~x/s").map(drop),
            "level such as",
        ),
        (session.election_at("eldest").map(drop), "nests with"),
        (session.semaphore("s", 0).map(drop), "from 1 to 1024"),
        (session.semaphore("s", 1025).map(drop), "from 1 to 1024"),
        (session.partitions("p", 0).map(drop), "from 1 to 65536"),
        (session.partitions("p", 65_537).map(drop), "from 1 to 65536"),
    ] {
        let error = refused.expect_err(rule);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(rule), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn data_centers_that_would_have_no_effect_are_refused_by_name() -> Result {
    let endpoint = |url: &str, name: &str| match name {
        "" => Endpoint::new(url),
        name => Endpoint::new(url).data_center(name),
    };
    let refusal = |own: &str, endpoints: &[(&str, &str)]| {
        let endpoints = endpoints.iter().map(|(url, name)| endpoint(url, name));
        let options = match own {
            "" => options("a"),
            own => options("a").data_center(own),
        };
        let refused = Session::connect_lazy(endpoints, options).err()?;
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
        Some(refused.to_string())
    };
    let (one, other) = ("http://127.0.0.1:1", "http://127.0.0.1:2");
    let long = "x".repeat(257);
    for (own, endpoints, named) in [
        ("eu", vec![(one, "")], "no endpoint names its data centre"),
        ("", vec![(one, "eu")], "SessionOptions::data_center"),
        (
            "eu",
            vec![(one, "eu"), (one, "us")],
            "named twice, in two data centres",
        ),
        ("eu", vec![(one, "e\nu")], "control characters"),
        ("eu", vec![(one, &*long)], "257 bytes"),
        (&*long, vec![(one, "eu")], "257 bytes"),
    ] {
        let refused = refusal(own, &endpoints).expect(named);
        assert!(refused.contains(named), "{refused}");
    }
    // A data centre without a member of its own is allowed, and so is a member without a data centre.
    assert_eq!(refusal("asia", &[(one, "eu"), (other, "")]), None);
    assert_eq!(refusal("eu", &[(one, "eu"), (one, "eu")]), None);
    Ok(())
}

// ---- the lease

#[tokio::test(start_paused = true)]
async fn all_elections_of_a_session_share_one_lease() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let session = session(&etcd, "a").await?;
    assert_eq!(leases(&mut client).await, 0, "nobody campaigns yet");
    let mut candidates = Vec::new();
    for number in 0..20 {
        let election = session.election(format!("e{number}"))?;
        candidates.push(soon("campaign", election.campaign()).await?);
    }
    let state = session.state().borrow().clone();
    let SessionState::Live(lease) = state else {
        panic!("{state:?}");
    };
    assert!(lease.time_left() <= Duration::from_secs(60));
    assert!(lease.time_left() > Duration::from_secs(10));
    let standing = keys(&mut client, "eldest/").await;
    assert_eq!(standing.len(), 20);
    assert!(standing.iter().all(|key| key.lease == lease.lease_id()));
    assert_eq!(leases(&mut client).await, 1);
    Ok(())
}

#[tokio::test]
async fn session_state_goes_from_connecting_to_closed() -> Result {
    let etcd = OnPort::start().await?;
    let session = Session::connect_lazy([etcd.endpoint()], options("a"))?;
    let mut state = session.state();
    assert!(matches!(
        *state.borrow_and_update(),
        SessionState::Connecting
    ));
    let election = session.election("e")?;
    let observer = election.observe().await?;
    soon(
        "ready",
        state.wait_for(|s| matches!(s, SessionState::Ready)),
    )
    .await?;
    let candidate = soon("campaign", election.campaign()).await?;
    soon(
        "live",
        state.wait_for(|s| matches!(s, SessionState::Live(_))),
    )
    .await?;
    drop((observer, candidate));
    soon("close", session.close()).await?;
    assert!(matches!(*state.borrow(), SessionState::Closed));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn view_of_a_lease_that_was_revoked_shows_no_time_left() -> Result {
    let etcd = in_memory();
    let session = etcd.session(short("a")).await?;
    let _candidate = soon("campaign", session.election("e")?.campaign()).await?;
    let mut state = session.state();
    let SessionState::Live(lease) = state.borrow().clone() else {
        unreachable!("a leading session has a lease");
    };
    assert!(!lease.time_left().is_zero());
    let mut client = etcd.client().await;
    client.lease_revoke(lease.lease_id()).await?;
    let lost = state.wait_for(|state| match state {
        SessionState::Live(present) => present.lease_id() != lease.lease_id(),
        state => matches!(state, SessionState::Lost { .. }),
    });
    soon("the loss is noticed", lost).await?;
    assert_eq!(lease.time_left(), Duration::ZERO);
    Ok(())
}

// ---- the end

#[tokio::test(start_paused = true)]
async fn closing_leaves_nothing_and_may_be_repeated() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_other, _, mut leader) = join_election(&etcd, "other").await?;
    let _leads = elected(&mut leader).await?;
    let (session, election, mut waiting) = join_election(&etcd, "a").await?;
    let mine = session.election("mine")?;
    let mut leading = soon("campaign", mine.campaign()).await?;
    drop(elected(&mut leading).await?);
    let mut again = soon("campaign", mine.campaign()).await?;
    let leadership = elected(&mut again).await?;
    let observer = election.observe().await?;

    let term = leadership.term();
    let lost = term.lost();
    let holds = tokio::spawn(async move {
        leadership.lost().cancelled().await;
    });
    soon("close", session.close()).await?;
    soon("the holder", holds).await?;
    assert!(lost.is_cancelled() && !term.is_valid());
    assert_eq!(term.lost_reason(), Some(LostReason::SessionClosed));
    assert_eq!(keys(&mut client, "eldest/mine/").await, []);
    assert_eq!(keys(&mut client, "eldest/e/").await.len(), 1, "the other's");
    assert_eq!(leases(&mut client).await, 1, "the other's");

    soon("close again", session.close()).await?;
    let ended = |c: &eldest::Candidate| c.status();
    let closed = Status::ended(EndReason::SessionClosed);
    assert_eq!((ended(&waiting), ended(&again)), (closed, closed));
    let error = soon("elected", waiting.elected())
        .await
        .expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Closed);
    let error = soon("campaign", election.campaign())
        .await
        .expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Closed);
    let error = election.observe().await.expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Closed);
    let rest = soon("the observer's end", observer.collect::<Vec<_>>()).await;
    assert!(rest.iter().all(std::result::Result::is_ok));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_closes_the_session_in_the_background() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (session, election, mut candidate) = join_election(&etcd, "a").await?;
    let leadership = elected(&mut candidate).await?;
    let mut state = session.state();
    drop((session, election, candidate));
    stays(WHILE, "a leadership keeps its session alive", async || {
        leadership.is_valid() && keys(&mut client, "eldest/").await.len() == 1
    })
    .await?;
    drop(leadership);
    soon(
        "closed",
        state.wait_for(|s| matches!(s, SessionState::Closed)),
    )
    .await?;
    assert_eq!(keys(&mut client, "eldest/").await, []);
    assert_eq!(leases(&mut client).await, 0);
    Ok(())
}

#[tokio::test]
async fn when_the_runtime_goes_tokens_are_cancelled_and_keys_expire() -> Result {
    let etcd = OnPort::start().await?;
    let mut client = etcd.client().await;
    let endpoint = etcd.endpoint().to_owned();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let leading = runtime.spawn(async move {
        let session = Session::connect([endpoint], short("a")).await?;
        let mut candidate = session.election("e")?.campaign().await?;
        let leadership = candidate.elected().await?;
        Ok::<_, eldest::Error>((session, candidate, leadership))
    });
    let (session, candidate, leadership) = soon("leading", leading).await??;
    assert!(leadership.is_valid());
    let begun = Instant::now();
    runtime.shutdown_background();
    soon("the token", leadership.lost().cancelled()).await;
    assert_eq!(leadership.lost_reason(), Some(LostReason::RuntimeGone));
    let mut state = session.state();
    let closed = state.wait_for(|s| matches!(s, SessionState::Closed));
    soon("closed", closed).await?;
    let error = leadership.resign().await.expect_err("nobody to do it");
    assert_eq!(error.kind(), ErrorKind::Closed);
    soon("close is no error", session.close()).await?;
    let term = leadership.term();
    drop((candidate, leadership));
    nothing_under(&mut client, "eldest/").await?;
    assert!(!term.is_valid(), "not while somebody else may lead");
    let bound = Duration::from_millis(3000 + 500) + SOON / 4;
    assert!(
        begun.elapsed() < bound,
        "gone within the TTL and etcd's half second"
    );
    Ok(())
}

#[tokio::test]
async fn close_without_etcd_returns_an_error_and_retries() -> Result {
    let mut etcd = Etcd::start().await?;
    let session = etcd.session(short("a")).await?;
    let candidate = soon("campaign", session.election("e")?.campaign()).await?;
    etcd.kill();
    let error = soon("close", session.close())
        .await
        .expect_err("etcd is away");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    drop(candidate);
    etcd.restart().await?;
    let mut client = etcd.client().await;
    Ok(eventually(SOON, "nothing left", async || {
        (keys(&mut client, "eldest/").await.is_empty() && leases(&mut client).await == 0)
            .then_some(())
    })
    .await?)
}
