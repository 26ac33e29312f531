//! Tests the age that an observing node reports, while etcd answers and while it does not.

use std::time::{Duration, Instant};

use eldest::{Session, SessionOptions};
use eldest_http::Node;
use eldest_testing::{MemoryEtcd, eventually};

use crate::caller::{Events, get};
use crate::stage::{Result, SOON, Server, Standing, answers};

/// A TTL within which a probe is sent three times.
const TTL: Duration = Duration::from_secs(2);
const SEEN: &str = "/v1/elections/seen";

async fn observer(etcd: &MemoryEtcd) -> Result<Session> {
    let options = SessionOptions::new("observer").ttl(TTL);
    Ok(etcd.session(options).await?)
}

#[tokio::test]
async fn observing_node_is_not_ready_while_etcd_does_not_answer() -> Result {
    let etcd = MemoryEtcd::start();
    let session = observer(&etcd).await?;
    let server = Server::plain(Node::new().observes(&session.election("seen")?)).await?;
    answers(server.at, "/ready", 200).await?;
    let mut events = Events::follow(server.at, &format!("{SEEN}/events")).await?;
    for _ in 0..2 {
        events
            .until("it is fresh", |state| state["stale"] == false)
            .await?;
        etcd.pause();
        let paused = Instant::now();
        answers(server.at, "/ready", 503).await?;
        // The last confirmed read was sent before the pause began.
        let took = paused.elapsed();
        assert!(took < TTL + Duration::from_secs(1), "{took:?}");
        let ready = get(server.at, "/ready").await?.json();
        assert_eq!(ready["elections"]["seen"], false);
        let reason = ready["reasons"]["seen"].as_str().expect("a reason");
        assert!(reason.starts_with("last heard from etcd "), "{reason}");
        let state = get(server.at, SEEN).await?.json();
        assert!(state["age_ms"].as_u64() >= Some(2000), "{state}");
        assert_eq!(state["stale"], true);
        assert_eq!(state["roster"], serde_json::json!([]));
        let state = events
            .until("it is stale", |state| state["stale"] == true)
            .await?;
        assert!(state["age_ms"].as_u64() >= Some(2000), "{state}");
        etcd.resume();
        answers(server.at, "/ready", 200).await?;
        assert_eq!(
            get(server.at, "/ready").await?.json()["reasons"],
            serde_json::json!({})
        );
    }
    Ok(())
}

/// The state and its history contradict neither `/leader` nor the log of the node.
#[tokio::test]
async fn node_shows_the_end_of_its_term_by_its_clock() -> Result {
    let etcd = MemoryEtcd::start();
    let a = Standing::with(&etcd, SessionOptions::new("a").ttl(TTL)).await?;
    let mut events = Events::follow(a.server.at, "/v1/elections/team%2Fe/events").await?;
    let led = events
        .until("a leads", |state| state["leader"]["identity"] == "a")
        .await?;
    let token = &led["leader"]["fencing_token"];
    etcd.pause();
    let over = events
        .until("its term is over", |state| {
            state["own"]["role"] == "follower"
        })
        .await?;
    answers(a.server.at, "/leader", 503).await?;
    assert_eq!(over["roster"][0]["fencing_token"], *token, "etcd is silent");
    assert!(over["leader"].is_null(), "{over}");
    let stale = events
        .until("it is stale", |state| state["stale"] == true)
        .await?;
    for state in [&over, &stale] {
        let last = state["terms"].as_array().and_then(|terms| terms.last());
        let last = last.expect("a term");
        assert_eq!(last["fencing_token"], *token);
        assert_eq!(last["ended_by_own_clock"], true, "{state}");
        assert!(last["ended_unix_ms"].is_u64(), "{state}");
    }
    etcd.resume();
    let again = events
        .until("a leads again", |state| {
            let leader = &state["leader"];
            leader["identity"] == "a" && leader["fencing_token"] != *token
        })
        .await?;
    let terms = again["terms"].as_array().expect("terms");
    let [.., before, now] = &terms[..] else {
        panic!("{again}")
    };
    assert_eq!(before["ended_by_own_clock"], true, "{again}");
    assert!(before["ended_unix_ms"].as_u64() < now["began_unix_ms"].as_u64());
    Ok(())
}

#[tokio::test]
async fn bound_of_staleness_never_is_shorter_than_between_two_probes() -> Result {
    let etcd = MemoryEtcd::start();
    let session = observer(&etcd).await?;
    let election = session.election("seen")?;
    let long = Node::new().observes(&election).stale_after(10 * TTL);
    let short = Node::new().stale_after(Duration::ZERO).observes(&election);
    let (long, short) = (Server::plain(long).await?, Server::plain(short).await?);
    for server in [&long, &short] {
        answers(server.at, "/ready", 200).await?;
    }
    let begun = Instant::now();
    while begun.elapsed() < TTL {
        assert_eq!(get(short.at, "/ready").await?.status, 200);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    etcd.pause();
    answers(short.at, "/ready", 503).await?;
    eventually(SOON, "it is older than a TTL", async || {
        let state = get(long.at, SEEN).await.ok()?.json();
        (state["age_ms"].as_u64() > Some(2500)).then_some(())
    })
    .await?;
    assert_eq!(get(long.at, "/ready").await?.status, 200);
    etcd.resume();
    answers(short.at, "/ready", 200).await?;
    Ok(())
}
