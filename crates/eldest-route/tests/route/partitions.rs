//! Tests that each request reaches the owner of its key's partition.

use std::collections::BTreeMap;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use eldest::{Announcement, CancellationToken, PartitionMembership, Session, SessionOptions};
use eldest_http::{Limits, serve};
use eldest_route::{Direct, Error, ErrorKind, Http, RouteExt, Routed};
use eldest_testing::{Etcd, eventually};
use http::Request;
use http_body_util::{BodyExt, Full};
use tokio::net::TcpListener;
use tower::ServiceExt;

use crate::stage::{Result, SOON, TTL};

const COUNT: u32 = 8;

/// Runs a member that answers with its identity, and keeps each partition that it owns.
async fn member(etcd: &Etcd, identity: &str, stop: &CancellationToken) -> Result<Session> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let me = Announcement::default().with_address(listener.local_addr()?.to_string());
    let options = SessionOptions::new(identity).ttl(TTL).announcement(me);
    let session = Session::connect([etcd.endpoint()], options).await?;
    let own = identity.to_owned();
    let app = Router::new().route("/", get(async || own));
    tokio::spawn(serve(
        listener,
        app,
        Limits::default(),
        CancellationToken::new(),
    ));
    let membership: PartitionMembership = session.partitions("p", COUNT)?.join().await?;
    let stop = stop.clone();
    tokio::spawn(async move {
        let mut membership = membership;
        while let Some(Ok(partition)) = stop.run_until_cancelled(membership.owned()).await {
            tokio::spawn(async move {
                partition.lost().cancelled().await;
                drop(partition);
            });
        }
        membership.leave().await
    });
    Ok(session)
}

async fn whole(session: &Session, members: usize) -> Result {
    let partitions = session.partitions("p", COUNT)?;
    let settled = async || {
        let map = partitions.map().await.ok()?;
        let mut all = map.members().iter();
        let each = all.all(|member| map.partitions_of(member).count() > 0);
        (map.members().len() == members && each && map.unowned().count() == 0).then_some(())
    };
    Ok(eventually(SOON, "each has an owner", settled).await?)
}

/// Returns the identity of the node that answers for the key.
async fn ask<D: Direct>(client: &Routed<Http, D>, key: &str) -> Result<String> {
    let request = Request::get("/")
        .header("customer", key)
        .body(Full::<Bytes>::default())?;
    let answer = client.clone().oneshot(request).await?;
    let body = answer.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn a_request_reaches_the_owner_of_its_key_and_the_next_owner() -> Result {
    let etcd = Etcd::start().await?;
    let (one, other) = (CancellationToken::new(), CancellationToken::new());
    let a = member(&etcd, "a", &one).await?;
    whole(&a, 1).await?;
    let observer = Session::connect([etcd.endpoint()], SessionOptions::new("o").ttl(TTL)).await?;
    let partitions = observer.partitions("p", COUNT)?;
    let routes = partitions.route().await?;
    let by_key = routes.by_key(|parts| {
        parts
            .headers
            .get("customer")
            .map(|key| key.as_bytes().to_vec())
    });
    let client = Routed::new(by_key, Http::new());
    assert_eq!(ask(&client, "4711").await?, "a");

    let _b = member(&etcd, "b", &other).await?;
    whole(&a, 2).await?;
    let map = partitions.map().await?;
    eventually(SOON, "the routes follow", async || {
        routes
            .map()
            .filter(|seen| seen.revision() >= map.revision())
    })
    .await?;
    let mut answered = BTreeMap::new();
    for key in 0..40 {
        let key = key.to_string();
        let owner = map
            .owner(partitions.partition_for(&key))
            .ok_or("an owner")?;
        assert_eq!(
            routes
                .to(&key)
                .destination()
                .ok_or("an owner")?
                .fencing_token(),
            owner.fencing_token()
        );
        let identity = ask(&client, &key).await?;
        assert_eq!(identity, owner.identity(), "{key}");
        *answered.entry(identity).or_insert(0) += 1;
    }
    assert_eq!(answered.len(), 2, "{answered:?}");

    one.cancel();
    whole(&observer, 1).await?;
    for key in 0..8 {
        assert_eq!(ask(&client, &key.to_string()).await?, "b");
    }
    let nobody = client
        .clone()
        .oneshot(Request::get("/").body(Full::<Bytes>::default())?)
        .await;
    let error: Error = nobody.err().ok_or("it has no key")?;
    assert_eq!(error.kind(), ErrorKind::NoKey);
    other.cancel();
    Ok(())
}
