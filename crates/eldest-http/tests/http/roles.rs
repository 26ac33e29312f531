//! Tests the answers for load balancers and orchestrators.

use std::time::{Duration, Instant};

use eldest::{CancellationToken, ErrorKind, LostReason, Session, Status};
use eldest_http::Node;
use eldest_testing::{MemoryEtcd, eventually};

use crate::caller::{ask, get, post};
use crate::stage::{GRACE, Result, SOON, Server, Standing, answers, options};

#[tokio::test]
async fn one_node_leads_and_the_others_follow_until_they_are_next() -> Result {
    let etcd = MemoryEtcd::start();
    let a = Standing::start(&etcd, "a").await?;
    answers(a.server.at, "/leader", 200).await?;
    let b = Standing::start(&etcd, "b").await?;
    for path in ["/leader", "/primary", "/follower"] {
        let led = get(a.server.at, path).await?;
        let followed = get(b.server.at, path).await?;
        let expected = if path == "/follower" {
            (503, 200)
        } else {
            (200, 503)
        };
        assert_eq!((led.status, followed.status), expected, "{path}");
        assert_eq!(led.header("cache-control"), Some("no-store"));
        let (led, followed) = (led.json(), followed.json());
        assert_eq!(led["role"], "leader");
        assert_eq!(followed["role"], "follower");
        assert_eq!(led["election"], "team/e");
        assert_eq!(followed["identity"], "b");
        assert_eq!((&led["rank"], &followed["rank"]), (&1.into(), &2.into()));
        assert_eq!(led["may_act_for_ms"], GRACE.as_millis() as u64);
        let token = a.election.term().expect("it leads").fencing_token();
        assert_eq!(led["fencing_token"], token);
        assert!(followed["fencing_token"].is_null());
    }
    let head = ask(a.server.at, "HEAD", "/leader", "").await?;
    assert_eq!((head.status, &*head.body), (200, ""));

    let at = b.server.at;
    a.stop().await?;
    answers(at, "/leader", 200).await?;
    Ok(())
}

#[tokio::test]
async fn caller_has_a_grace_period_before_another_node_leads() -> Result {
    let etcd = MemoryEtcd::start();
    let a = Standing::start(&etcd, "a").await?;
    let session = etcd.session(options("b")).await?;
    let mut next = session.election("team/e")?.campaign().await?;
    answers(a.server.at, "/leader", 200).await?;
    let at = a.server.at;
    let resign = tokio::spawn(async move { post(at, "/v1/elections/team%2Fe/step_down").await });
    // The callers of a busy service. The last of them that received 200 sent its request at `confirmed`.
    let mut confirmed = Instant::now();
    eventually(SOON, "it says that it leads no more", async || {
        let asked = Instant::now();
        let answer = get(at, "/leader").await.ok()?;
        if answer.status == 200 {
            confirmed = asked;
        }
        (answer.status == 503).then_some(())
    })
    .await?;
    let elected = tokio::time::timeout(SOON, next.elected()).await??;
    let since = confirmed.elapsed();
    assert!(
        since >= GRACE,
        "another led {since:?} after a caller learned that it may act"
    );
    assert_eq!(resign.await??.status, 200);
    let term = a.election.term().expect("it led");
    assert_eq!(term.lost_reason(), Some(LostReason::SteppedDown));
    elected.resign().await?;
    answers(at, "/leader", 200).await?;
    Ok(())
}

/// The node cannot promise when work of its own ends, so `may_act_for_ms` is null.
#[tokio::test]
async fn a_node_that_leads_for_its_own_work_promises_nobody_time() -> Result {
    let etcd = MemoryEtcd::start();
    let session = etcd.session(options("a")).await?;
    let election = session.election("e")?;
    let mut candidate = election.campaign().await?;
    let _leadership = candidate.elected().await?;
    let server = Server::plain(Node::new().works_in(&election)).await?;
    let answer = get(server.at, "/leader").await?;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["role"], "leader");
    assert!(answer.json()["may_act_for_ms"].is_null(), "{answer:?}");
    // A node that was to lead on behalf of others cannot promise it either: its session already is a candidate there.
    let (node, leading) = Node::new().lead_on_behalf(&election, CancellationToken::new());
    let refused = leading.await.expect_err("it stands already");
    assert_eq!(refused.kind(), ErrorKind::AlreadyCampaigning);
    let other = Server::plain(node).await?;
    let answer = get(other.at, "/leader").await?;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["role"], "ending");
    assert!(answer.json()["may_act_for_ms"].is_null(), "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn node_leaves_a_grace_period_later_or_at_once_on_request() -> Result {
    let etcd = MemoryEtcd::start();
    // A grace period far beyond any deadline of this test.
    let patient = options("a").grace(Duration::from_secs(15));
    let session = etcd.session(patient).await?;
    let election = session.election("team/e")?;
    let (_node, leading) = Node::new().lead_on_behalf(&election, CancellationToken::new());
    let mut status = election.subscribe();
    let leads = status.wait_for(|status| matches!(status, Status::Leading { .. }));
    tokio::time::timeout(SOON, leads).await??;
    let term = election.term().expect("it leads");
    leading.stop();
    tokio::time::timeout(SOON, term.lost().cancelled()).await?;
    assert!(
        election.roster().await?.leader().is_some(),
        "callers may act"
    );
    let begun = Instant::now();
    leading.stop_at_once();
    tokio::time::timeout(SOON, leading).await??;
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "it waited for callers"
    );
    assert!(election.roster().await?.is_vacant());
    Ok(session.close().await?)
}

#[tokio::test]
async fn with_several_elections_the_request_names_one() -> Result {
    let etcd = MemoryEtcd::start();
    let session = etcd.session(options("a")).await?;
    let (stood, seen) = (session.election("stood")?, session.election("seen")?);
    let mut candidate = stood.campaign().await?;
    let leadership = candidate.elected().await?;
    let node = Node::new().works_in(&stood).observes(&seen);
    let server = Server::plain(node).await?;
    let at = server.at;
    for path in ["/leader", "/follower"] {
        get(at, path).await?.refused(400, "which_election");
        let answer = get(at, &format!("{path}?election=other")).await?;
        answer.refused(404, "no_such_election");
        let answer = get(at, &format!("{path}?election=seen&election=stood")).await?;
        answer.refused(400, "bad_query");
    }
    for (path, status) in [
        ("/leader?election=stood", 200),
        ("/leader?election=%73tood&other=1", 200),
        ("/leader?election=seen", 503),
        ("/follower?election=seen", 200),
    ] {
        assert_eq!(get(at, path).await?.status, status, "{path}");
    }
    leadership.resign().await?;
    assert_eq!(get(at, "/leader?election=stood").await?.status, 503);
    Ok(())
}

#[tokio::test]
async fn node_is_ready_in_its_role_and_live_until_its_session_closes() -> Result {
    let etcd = MemoryEtcd::start();
    let session = etcd.session(options("a")).await?;
    let (stood, seen) = (session.election("stood")?, session.election("seen")?);
    let node = Node::new().works_in(&stood).observes(&seen);
    let server = Server::plain(node).await?;
    let at = server.at;
    answers(at, "/ready?election=seen", 200).await?;
    let answer = get(at, "/ready").await?;
    assert_eq!(answer.status, 503, "it does not stand yet");
    assert_eq!(answer.json()["elections"]["stood"], false);
    assert_eq!(answer.json()["elections"]["seen"], true);
    let mut candidate = stood.campaign().await?;
    answers(at, "/ready", 200).await?;
    candidate.leave().await?;
    answers(at, "/ready", 503).await?;
    assert_eq!(get(at, "/live").await?.status, 200);
    session.close().await?;
    assert_eq!(get(at, "/live").await?.status, 503);
    assert_eq!(get(at, "/ready?election=seen").await?.status, 503);
    Ok(())
}

#[tokio::test]
async fn a_node_that_cannot_reach_etcd_lives_and_is_not_ready() -> Result {
    let session = Session::connect_lazy(["http://127.0.0.1:1"], options("a"))?;
    let election = session.election("e")?;
    for node in [
        Node::new().works_in(&election),
        Node::new().observes(&election),
    ] {
        let server = Server::plain(node).await?;
        for (path, status) in [
            ("/live", 200),
            ("/ready", 503),
            ("/leader", 503),
            ("/follower", 200),
        ] {
            assert_eq!(get(server.at, path).await?.status, status, "{path}");
        }
    }
    Ok(())
}
