//! Tests that a node which leads is found by others only once its leader serves.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use eldest::{Announcement, LostReason};
use eldest_http::{ForwardToLeader, OnlyWhileLeader};
use eldest_testing::{MemoryEtcd, eventually};
use tokio::time::timeout;

use crate::caller::{Answer, exactly, get, post};
use crate::stage::{GRACE, Result, SOON, Standing, listen, options};

const SERVING: &str = "/v1/elections/team%2Fe/serving";
/// A limit that no test reaches.
const LONG: Duration = Duration::from_secs(60 * 60);

/// Starts a node beside a program that must say within the limit that it is ready, and waits until the node leads.
async fn leading(etcd: &MemoryEtcd, limit: Duration) -> Result<(Standing, i64)> {
    let session = etcd.session(options("a")).await?;
    let election = session.election("team/e")?.serving_within(limit);
    let beside = Standing::as_candidate(session, election).await?;
    let token = eventually(SOON, "it leads", async || {
        let own = get(beside.server.at, "/leader").await.ok()?.json();
        let token = own["fencing_token"].as_i64();
        token.filter(|_| own["role"] == "leader")
    })
    .await?;
    Ok((beside, token))
}

#[tokio::test]
async fn node_is_no_leader_for_others_before_its_program_serves() -> Result {
    let etcd = MemoryEtcd::start();
    let (beside, token) = leading(&etcd, LONG).await?;
    let at = beside.server.at;
    let own = get(at, "/leader").await?;
    assert_eq!((own.status, &own.json()["serving"]), (503, &false.into()));
    assert!(own.json()["may_act_for_ms"].is_u64(), "it may get ready");
    assert_eq!(get(at, "/follower").await?.status, 503);
    assert_eq!(get(at, "/ready").await?.status, 200, "it takes part");
    let answer = post(at, &format!("{SERVING}?fencing_token={}", token + 1)).await?;
    answer.refused(409, "another_term");
    assert_eq!(get(at, "/leader").await?.status, 503);
    for _ in 0..2 {
        let said = post(at, &format!("{SERVING}?fencing_token={token}")).await?;
        let wanted = serde_json::json!({ "fencing_token": token, "announced": true });
        assert_eq!((said.status, said.json()), (200, wanted));
    }
    let own = get(at, "/leader").await?;
    assert_eq!((own.status, &own.json()["serving"]), (200, &true.into()));
    let leader = beside.election.leader().await?;
    assert!(leader.is_some_and(|leader| leader.is_serving()));
    eventually(SOON, "the state shows it", async || {
        let state = get(at, "/v1/elections/team%2Fe").await.ok()?.json();
        (state["leader"]["serving"] == true && state["own"]["serving"] == true).then_some(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn node_whose_program_does_not_serve_in_time_leaves_after_its_promised_time() -> Result {
    let etcd = MemoryEtcd::start();
    let (beside, _) = leading(&etcd, GRACE * 2).await?;
    let term = beside.election.term().ok_or("a term")?;
    let other = etcd.session(options("b")).await?;
    let mut rival = other.election("team/e")?.campaign().await?;
    let mut last = Instant::now();
    let promises = async {
        while term.lost_reason().is_none() {
            let asked = Instant::now();
            if get(beside.server.at, "/leader").await?.json()["may_act_for_ms"].is_u64() {
                last = asked;
            }
        }
        Ok::<_, eldest::BoxError>(())
    };
    let (elected, asked) = tokio::join!(timeout(SOON, rival.elected()), promises);
    asked?;
    let led = elected??;
    assert!(last.elapsed() >= GRACE, "a caller may still act");
    assert_eq!(term.lost_reason(), Some(LostReason::NotServing));
    assert!(led.is_valid());
    Ok(())
}

/// Requests the work of a service, which the description of nodes does not have.
async fn work_at(at: SocketAddr) -> Result<Answer> {
    let request = format!("GET /work HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    exactly(at, &request).await
}

/// A request to either layer waits, or is refused, until the leader serves.
#[tokio::test]
async fn layers_pass_requests_to_the_leader_once_it_serves() -> Result {
    let etcd = MemoryEtcd::start();
    let work = || Router::new().route("/work", axum::routing::get(async || "done"));
    let leader = etcd.session(options("leader")).await?;
    let election = leader.election("team/e")?.serving_within(LONG);
    let front = listen(work().layer(OnlyWhileLeader::new(&election))).await?;
    let me = Announcement::default().with_address(front.to_string());
    let election = election.announcement(me);
    let other = etcd.session(options("other")).await?;
    let layer = ForwardToLeader::new(&other.election("team/e")?).await?;
    let back = listen(work().layer(layer)).await?;

    let leadership = election.campaign().await?.elected().await?;
    let refused = work_at(front).await?;
    refused.refused(503, "not_leader");
    assert!(
        refused.body.contains("does not serve yet"),
        "{}",
        refused.body
    );
    let waiting = tokio::spawn(work_at(back));
    assert_eq!(work_at(front).await?.status, 503);
    assert!(!waiting.is_finished());
    leadership.serving().await?;
    assert_eq!(work_at(front).await?.status, 200);
    let answer = timeout(SOON, waiting).await???;
    assert_eq!((answer.status, &*answer.body), (200, "done"));
    leadership.resign().await?;
    leader.close().await?;
    other.close().await?;
    Ok(())
}
