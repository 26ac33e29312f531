//! Tests what a route shows: the leader through hand-overs, without a lease, and the end of its session.

use std::time::Duration;

use eldest::{Session, SessionOptions};
use eldest_route::{ErrorKind, Http, RouteExt, Routed};
use eldest_testing::{Etcd, eventually};

use crate::stage::{Done, Node, Result, SOON, ask, observer, request};

#[tokio::test]
async fn an_observer_without_a_lease_follows_the_leader_and_reaches_it() -> Result {
    let etcd = Etcd::start().await?;
    let done = Done::default();
    let (session, route) = observer(&etcd).await?;
    assert_eq!(
        route
            .wait(Duration::from_millis(50))
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::NoLeader
    );
    let client = Routed::new(route.clone(), Http::new());
    let early = tokio::spawn(async move { ask(&client, request("GET", "/who")?).await });
    let first = Node::start(&etcd, "first", &done).await?;
    assert_eq!(
        early.await??,
        (200, "first".to_owned()),
        "it waited for a leader"
    );
    let second = Node::start(&etcd, "second", &done).await?;
    second.waits().await?;
    let leases = etcd.client().await.leases().await?.leases().len();
    assert_eq!(leases, 2, "those of the candidates");

    let to = route.wait(SOON).await?;
    assert_eq!(
        (to.identity(), to.address()),
        ("first", Some(&*first.at.to_string()))
    );
    assert!(route.age().is_some_and(|age| age < SOON));
    first.election.step_down().await?;
    let changed = async || route.destination().filter(|to| to.identity() == "second");
    let to = eventually(SOON, "the route follows", changed).await?;
    assert_eq!(
        Some(to.fencing_token()),
        second
            .election
            .leader()
            .await?
            .map(|leader| leader.create_revision())
    );
    let client = Routed::new(route.clone(), Http::new());
    assert_eq!(ask(&client, request("POST", "/orders/7")?).await?.0, 200);
    assert_eq!(done.times("7"), 1);
    for node in [first, second] {
        node.end().await?;
    }
    session.close().await?;
    Ok(())
}

#[tokio::test]
async fn a_route_ends_with_its_session() -> Result {
    let etcd = Etcd::start().await?;
    let (session, route) = observer(&etcd).await?;
    session.close().await?;
    eventually(SOON, "the route ends", async || {
        let ended = route.wait(SOON).await.unwrap_err().kind() == ErrorKind::NoView;
        ended.then_some(())
    })
    .await?;
    session
        .election("team/e")?
        .route()
        .await
        .expect_err("it is closed");
    Ok(())
}

#[tokio::test]
async fn the_address_may_be_an_item_of_the_metadata() -> Result {
    let etcd = Etcd::start().await?;
    let session =
        eldest::Session::connect([etcd.endpoint()], eldest::SessionOptions::new("a")).await?;
    let election = session.election("team/e")?;
    let me = eldest::Announcement::default()
        .with_address("a:1")
        .with_metadata("grpc", "a:2");
    let _candidate = election.clone().announcement(me).campaign().await?;
    let route = election.route().await?;
    assert_eq!(route.wait(SOON).await?.address(), Some("a:1"));
    assert_eq!(
        route
            .clone()
            .by_metadata("grpc")
            .wait(SOON)
            .await?
            .address(),
        Some("a:2")
    );
    let none = Routed::new(route.by_metadata("admin"), Http::new());
    let error = ask(&none, request("GET", "/")?).await.unwrap_err();
    assert!(error.to_string().contains("announces none"), "{error}");
    Ok(())
}

#[tokio::test]
async fn the_watch_ends_with_the_last_route() -> Result {
    let etcd = Etcd::start().await?;
    let (session, _route) = observer(&etcd).await?;
    let watches = async || etcd.metric("etcd_debugging_mvcc_watcher_total").await as u64;
    let become_so_many = async |wanted| {
        let are = async || (watches().await == wanted).then_some(());
        eventually(SOON, format!("{wanted} watches"), are).await
    };
    become_so_many(1).await?;
    let another = session.election("team/other")?.route().await?;
    let clone = another.clone();
    drop(another);
    become_so_many(2).await?;
    drop(clone);
    become_so_many(1).await?;
    Ok(())
}

#[tokio::test]
async fn a_route_that_etcd_refuses_says_so_and_recovers() -> Result {
    let etcd = Etcd::start().await?;
    let node = Node::start(&etcd, "first", &Done::default()).await?;
    let session =
        eldest::Session::connect([etcd.endpoint()], eldest::SessionOptions::new("a")).await?;
    // Others share the name under another count: a refusal that ends when they leave.
    let (two, three) = (
        session.partitions("p", 2)?,
        node.session.partitions("p", 3)?,
    );
    let mut member = three.join().await?;
    let route = two.route().await?.to_partition(0);
    eventually(SOON, "it is refused", async || {
        let error = route.wait(SOON).await.err()?;
        (error.kind() == ErrorKind::NoView && std::error::Error::source(&error).is_some())
            .then_some(())
    })
    .await?;
    member.leave().await?;
    let error = async || {
        route
            .wait(Duration::from_millis(50))
            .await
            .err()
            .filter(|e| e.kind() == ErrorKind::NoLeader)
    };
    eventually(SOON, "it recovers", error).await?;
    node.end().await
}

#[tokio::test]
async fn route_goes_to_a_leader_only_once_it_serves() -> Result {
    let etcd = Etcd::start().await?;
    let (session, route) = observer(&etcd).await?;
    let leader = Session::connect([etcd.endpoint()], SessionOptions::new("leader")).await?;
    let election = leader.election("team/e")?.serving_within(SOON);
    let leadership = election.campaign().await?.elected().await?;
    let early = route.wait(Duration::from_millis(300)).await;
    assert_eq!(early.unwrap_err().kind(), ErrorKind::NoLeader);
    leadership.serving().await?;
    let to = route.wait(SOON).await?;
    assert_eq!(to.fencing_token(), leadership.fencing_token());
    leadership.resign().await?;
    eventually(SOON, "nobody leads", async || {
        route.destination().is_none().then_some(())
    })
    .await?;
    leader.close().await?;
    Ok(session.close().await?)
}
