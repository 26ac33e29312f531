//! Tests an election's state, the stream of its changes, and stepping down on request.

use eldest::{Announcement, Endpoint, Session};
use eldest_http::Node;
use eldest_testing::{EtcdCluster, MemoryEtcd, Proxy};
use serde_json::json;

use crate::caller::{Events, get, post};
use crate::stage::{Result, Server, Standing, answers, options};

const E: &str = "/v1/elections/team/e";

#[tokio::test]
async fn an_election_is_shown_with_its_roster_leader_tokens_and_terms() -> Result {
    let etcd = MemoryEtcd::start();
    let me = Announcement::new("a")
        .with_address("10.0.0.1:80")
        .with_data_center("dc1")
        .with_metadata("zone", "z");
    let a = Standing::with(&etcd, options("a").announcement(me)).await?;
    let b = Standing::start(&etcd, "b").await?;
    answers(a.server.at, "/leader", 200).await?;
    let mut events = Events::follow(b.server.at, &format!("{E}/events")).await?;
    events
        .until("both are seen", |state| {
            state["roster"].as_array().is_some_and(|all| all.len() == 2)
        })
        .await?;
    let shown = get(b.server.at, E).await?.json();
    let token = a.election.term().expect("it leads").fencing_token();
    assert_eq!(shown["leader"], shown["roster"][0]);
    for (place, wanted) in [
        ("/leader/identity", json!("a")),
        ("/leader/fencing_token", json!(token)),
        ("/leader/address", json!("10.0.0.1:80")),
        ("/leader/data_center", json!("dc1")),
        ("/leader/metadata/zone", json!("z")),
        ("/leader/rank", json!(1)),
        ("/roster/1/identity", json!("b")),
        ("/own/rank", json!(2)),
        ("/own/role", json!("follower")),
        ("/own/session", json!("live")),
    ] {
        assert_eq!(shown.pointer(place), Some(&wanted), "{place}: {shown}");
    }
    let first = &shown["leader"];
    assert!(first["since_unix_ms"].is_u64() && first["lease_id"].is_string());
    let terms = shown["terms"].as_array();
    let last = terms.and_then(|terms| terms.last()).expect("one was seen");
    assert_eq!(last["fencing_token"], token);
    assert!(last["ended_unix_ms"].is_null(), "{last}");

    let all = get(b.server.at, "/v1/elections").await?.json();
    assert_eq!(all["elections"][0]["election"], "team/e");
    a.stop().await?;
    let state = events
        .until("b leads and sees it", |state| {
            state["own"]["role"] == "leader" && state["leader"]["identity"] == "b"
        })
        .await?;
    let terms = state["terms"].as_array().expect("terms");
    let [.., before, now] = &terms[..] else {
        panic!("{state}")
    };
    assert_eq!(before["fencing_token"], token);
    assert!(before["ended_unix_ms"].is_u64() && now["began_unix_ms"].is_u64());
    assert_eq!(now["identity"], "b");
    Ok(())
}

#[tokio::test]
async fn events_begin_with_the_state_show_vacancies_and_end_with_the_session() -> Result {
    let etcd = MemoryEtcd::start();
    let a = Standing::start(&etcd, "a").await?;
    let session = etcd.session(options("observer")).await?;
    let server = Server::plain(Node::new().observes(&session.election("team/e")?)).await?;
    answers(server.at, "/ready", 200).await?;
    let mut events = Events::follow(server.at, &format!("{E}/events")).await?;
    let first = events.next().await?.expect("a state");
    assert_eq!(first["own"]["role"], "observer");
    assert_eq!(first["leader"]["identity"], "a");
    a.stop().await?;
    let vacant = events
        .until("nobody stands", |state| state["leader"].is_null())
        .await?;
    assert_eq!(vacant["roster"], json!([]));
    session.close().await?;
    while events.next().await?.is_some() {}
    Ok(())
}

/// The page treats a node that is silent for twelve seconds as stopped or cut off.
#[tokio::test]
async fn follower_of_events_receives_signs_of_life_without_changes() -> Result {
    let etcd = MemoryEtcd::start();
    let a = Standing::start(&etcd, "a").await?;
    answers(a.server.at, "/leader", 200).await?;
    let mut events = Events::follow(a.server.at, &format!("{E}/events")).await?;
    for _ in 0..2 {
        let begun = std::time::Instant::now();
        events.alive().await?;
        assert!(begun.elapsed() < std::time::Duration::from_secs(10));
    }
    Ok(())
}

#[tokio::test]
async fn leader_that_steps_down_rejoins_behind_the_others() -> Result {
    let etcd = MemoryEtcd::start();
    let a = Standing::start(&etcd, "a").await?;
    answers(a.server.at, "/leader", 200).await?;
    let b = Standing::start(&etcd, "b").await?;
    let observer = Server::plain(Node::new().observes(&a.election)).await?;
    for at in [b.server.at, observer.at] {
        let answer = post(at, &format!("{E}/step_down")).await?;
        answer.refused(409, "not_leading");
    }
    let token = a.election.term().expect("it leads").fencing_token();
    let step_down = async |query: &str| {
        let path = format!("{E}/step_down?{query}");
        post(a.server.at, &path).await
    };
    for query in [
        "fencing_token=0",
        "fencing_token=x",
        "fencing_token=",
        "token=1",
        &format!("fencing_token=0{token}"),
        &format!("fencing_token=%2B{token}"),
    ] {
        step_down(query).await?.refused(400, "bad_query");
    }
    let [own, other] = [token, token + 1].map(|token| format!("fencing_token={token}"));
    step_down(&other).await?.refused(409, "another_term");
    assert_eq!(get(a.server.at, "/leader").await?.status, 200);
    let answer = step_down(&own).await?;
    let wanted = json!({ "fencing_token": token, "released": true });
    assert_eq!((answer.status, answer.json()), (200, wanted));
    answers(b.server.at, "/leader", 200).await?;
    answers(a.server.at, "/ready", 200).await?;
    let mut events = Events::follow(a.server.at, &format!("{E}/events")).await?;
    let state = events
        .until("a is behind b", |state| state["own"]["rank"] == 2)
        .await?;
    assert_eq!(state["own"]["role"], "follower");
    step_down(&own).await?.refused(409, "not_leading");
    Ok(())
}

#[tokio::test]
async fn one_connection_carries_the_events_of_all_elections() -> Result {
    let etcd = MemoryEtcd::start();
    let session = etcd.session(options("a")).await?;
    let (stood, seen) = (session.election("stood")?, session.election("seen")?);
    let server = Server::plain(Node::new().works_in(&stood).observes(&seen)).await?;
    let mut events = Events::follow(server.at, "/v1/events").await?;
    let mut first = [
        events.next().await?.expect("a state")["election"].clone(),
        events.next().await?.expect("another")["election"].clone(),
    ];
    first.sort_by_key(ToString::to_string);
    assert_eq!(first, ["seen", "stood"], "each at once");
    let mut candidate = stood.campaign().await?;
    events
        .until("it leads", |state| {
            state["election"] == "stood" && state["own"]["role"] == "leader"
        })
        .await?;
    candidate.leave().await?;
    session.close().await?;
    while events.next().await?.is_some() {}
    Ok(())
}

#[tokio::test]
async fn events_show_a_failing_endpoint_and_its_replacement() -> Result {
    let cluster = EtcdCluster::start(2).await?;
    cluster.leader().await;
    let members = cluster.endpoints();
    let (near, far) = (
        Proxy::start(&members[0]).await?,
        Proxy::start(&members[1]).await?,
    );
    let endpoints = [
        Endpoint::new(near.endpoint()).data_center("eu"),
        Endpoint::new(far.endpoint()).data_center("us"),
    ];
    // Renewals notice the failure within a third of the TTL.
    let options = options("a").ttl(std::time::Duration::from_secs(6));
    let session = Session::connect(endpoints, options.data_center("eu")).await?;
    let election = session.election("team/e")?;
    let server = Server::plain(Node::new().works_in(&election)).await?;
    let mut events = Events::follow(server.at, &format!("{E}/events")).await?;
    let _candidate = election.campaign().await?;
    let state = events
        .until("the data centre's own endpoint is used", |state| {
            let first = &state["endpoints"][0];
            ["data", "lease", "observers"]
                .iter()
                .all(|lane| first[lane] == "own_data_center")
        })
        .await?;
    assert_eq!(state["endpoints"][0]["endpoint"], near.endpoint());
    assert_eq!(state["endpoints"][0]["data_center"], "eu");
    assert_eq!(state["endpoints"][1]["data_center"], "us");
    near.cut();
    events
        .until("the other endpoint is used", |state| {
            let (first, second) = (&state["endpoints"][0], &state["endpoints"][1]);
            first["failing"] == true
                && first["lease"].is_null()
                && second["failing"] == false
                && second["lease"] == "preferred_failed"
        })
        .await?;
    near.heal();
    let state = events
        .until("the first one is used again", |state| {
            state["endpoints"][0]["lease"] == "own_data_center"
        })
        .await?;
    let round_trip = state["endpoints"][0]["round_trip_seconds"].as_f64();
    assert!(round_trip > Some(0.0), "{state}");
    Ok(())
}
