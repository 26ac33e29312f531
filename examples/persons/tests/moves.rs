//! Moves partitions of the service while clients read and write: a pod joins, a pod leaves, a pod crashes, and a pod loses
//! its way to etcd. The test starts its own etcd, and runs all pods and the router in this process.
#![allow(clippy::disallowed_methods)] // tests run in real time

mod common;

use std::time::Duration;

use eldest::BoxError;
use eldest_testing::{Etcd, Proxy, crash, crashable_session};

use common::{Clients, Pod, TTL, Town, options};

type Result<T = ()> = std::result::Result<T, BoxError>;

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_and_no_write_is_lost_when_pods_join_and_leave() -> Result {
    let town = Town::start(Etcd::start().await?).await?;
    let a = Pod::start(&town, "a").await?;
    let b = Pod::start(&town, "b").await?;
    town.settled(2).await?;
    let clients = Clients::start(&town);
    clients.answered(500).await?;

    // A pod joins.
    let c = Pod::start(&town, "c").await?;
    town.settled(3).await?;
    c.begun(5).await?;
    assert_eq!(c.status().await?.unprepared, 0, "c prepared for its share");
    clients.answered(500).await?;

    // A pod leaves: the others prepare for its partitions before.
    let of_a = a.status().await?.open;
    let before = [b.status().await?, c.status().await?];
    a.stop().await?;
    town.settled(2).await?;
    let begun = before.iter().map(|pod| pod.prepared).sum::<usize>() + of_a;
    let after = town.prepared([&b, &c], begun).await?;
    for (pod, before) in after.iter().zip(&before) {
        assert_eq!(pod.unprepared, before.unprepared, "each was prepared");
    }
    clients.answered(500).await?;

    let seen = clients.stop().await?;
    assert!(seen.failures.is_empty(), "{:?}", seen.failures);
    seen.check(&town).await?;
    b.stop().await?;
    c.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_write_is_lost_when_a_pod_crashes() -> Result {
    let town = Town::start(Etcd::start().await?).await?;
    let endpoint = [town.etcd.endpoint()];
    let a = Pod::with(async |me| crashable_session(endpoint, options("a", me)).await).await?;
    let b = Pod::start(&town, "b").await?;
    town.settled(2).await?;
    let clients = Clients::start(&town);
    clients.answered(500).await?;

    crash(&a.session)?;
    a.task.abort();
    town.settled(1).await?;
    clients.answered(500).await?;

    // A client whose request failed cannot know whether it was carried out; every other write must be there.
    clients.stop().await?.check(&town).await?;
    b.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_without_answers_from_etcd_stops_before_another_pod_serves() -> Result {
    let town = Town::start(Etcd::start().await?).await?;
    let proxy = Proxy::start(town.etcd.address()).await?;
    let endpoint = [proxy.endpoint()];
    let connect = async |me| eldest::Session::connect(endpoint, options("a", me)).await;
    let a = Pod::with(connect).await?;
    let b = Pod::start(&town, "b").await?;
    town.settled(2).await?;
    let clients = Clients::start(&town);
    clients.answered(500).await?;

    proxy.hold();
    town.settled(1).await?;
    let status = a.status().await?;
    assert_eq!(status.open, 0, "a refuses what b serves");
    clients.answered(500).await?;
    proxy.heal();
    town.settled(2).await?;
    tokio::time::timeout(TTL + Duration::from_secs(30), clients.answered(500)).await??;

    clients.stop().await?.check(&town).await?;
    a.stop().await?;
    b.stop().await
}
