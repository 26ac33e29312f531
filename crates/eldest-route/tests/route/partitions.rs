//! Tests that each request reaches the owner of its key's partition.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use eldest::{
    Announcement, BoxError, CancellationToken, ComingPartition, Partition, PartitionMembership,
    Partitions, Session, SessionOptions, Term,
};
use eldest_http::{Limits, serve};
use eldest_route::{Direct, Error, ErrorKind, Http, NOT_LEADER, RouteExt, Routed, not_leader};
use eldest_testing::{Etcd, eventually};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use crate::stage::{Done, Result, SOON, TTL};

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

/// The most requests on which a node works at a time, for one partition.
const BUSY: u32 = 1000;

/// A partition that its owner serves, and the room for requests under way.
struct Served {
    term: Term,
    room: Arc<Semaphore>,
}

/// A member that prepares for partitions, serves orders for those that it owns, and drains those that it hands over.
#[derive(Clone)]
struct Shop {
    partitions: Partitions,
    served: Arc<Mutex<BTreeMap<u32, Served>>>,
    /// The terms that began on all nodes.
    begun: Arc<AtomicUsize>,
    done: Done,
}

/// A shop that runs.
struct Open {
    _session: Session,
    shutdown: CancellationToken,
    run: JoinHandle<eldest::Result<Option<()>>>,
}

impl Shop {
    async fn open(
        etcd: &Etcd,
        identity: &str,
        done: &Done,
        begun: &Arc<AtomicUsize>,
    ) -> Result<Open> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let me = Announcement::default().with_address(listener.local_addr()?.to_string());
        let options = SessionOptions::new(identity).ttl(TTL).announcement(me);
        let session = Session::connect([etcd.endpoint()], options).await?;
        let shop = Self {
            partitions: session.partitions("p", COUNT)?.warm_within(SOON),
            served: Arc::default(),
            begun: Arc::clone(begun),
            done: done.clone(),
        };
        let app = Router::new()
            .route("/", post(Self::order))
            .with_state(shop.clone());
        tokio::spawn(serve(
            listener,
            app,
            Limits::default(),
            CancellationToken::new(),
        ));
        let shutdown = CancellationToken::new();
        let stopped = shutdown.clone();
        let run = tokio::spawn(async move {
            let prepare = async |_: ComingPartition| {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Ok::<_, BoxError>(())
            };
            let runner = shop.partitions.runner().prepare(prepare);
            let works = shop.clone();
            runner
                .run(stopped, move |partition| works.clone().work(partition))
                .await
        });
        Ok(Open {
            _session: session,
            shutdown,
            run,
        })
    }

    /// Serves a partition until its term ends; then finishes the orders under way and refuses others.
    async fn work(self, partition: Partition) -> Result {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let room = Arc::new(Semaphore::new(BUSY as usize));
        let served = Served {
            term: partition.term(),
            room: Arc::clone(&room),
        };
        self.served
            .lock()
            .unwrap()
            .insert(partition.number(), served);
        partition.lost().cancelled().await;
        self.served.lock().unwrap().remove(&partition.number());
        let _all = room.acquire_many(BUSY).await?;
        Ok(())
    }

    async fn order(State(shop): State<Self>, headers: HeaderMap) -> Response {
        let order = headers["order"].to_str().unwrap().to_owned();
        let partition = shop.partitions.partition_for(&order);
        let served = {
            let served = shop.served.lock().unwrap();
            let mine = served.get(&partition).filter(|one| one.term.is_valid());
            let room = mine.and_then(|one| Arc::clone(&one.room).try_acquire_owned().ok());
            room.zip(mine.map(|one| one.term.clone()))
        };
        let Some((_room, term)) = served else {
            let refused = [(NOT_LEADER, not_leader("p"))];
            return (StatusCode::SERVICE_UNAVAILABLE, refused).into_response();
        };
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(term.is_valid(), "an order under way ends within its term");
        shop.done.add(order, term.fencing_token());
        StatusCode::OK.into_response()
    }
}

impl Open {
    async fn close(self) -> Result {
        self.shutdown.cancel();
        self.run.await??;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_order_is_lost_or_applied_twice_while_partitions_move() -> Result {
    const SENDERS: usize = 8;
    let etcd = Etcd::start().await?;
    let (done, begun) = (Done::default(), Arc::default());
    let open = async |identity| Shop::open(&etcd, identity, &done, &begun).await;
    let observer = Session::connect([etcd.endpoint()], SessionOptions::new("o").ttl(TTL)).await?;
    let a = open("a").await?;
    whole(&observer, 1).await?;
    let routes = observer.partitions("p", COUNT)?.route().await?;
    let by_order = routes.by_key(|parts| Some(parts.headers.get("order")?.as_bytes().to_vec()));
    let client = Routed::new(by_order, Http::new());
    let all_moved = CancellationToken::new();
    let senders = (0..SENDERS).map(|sender| {
        let (client, all_moved) = (client.clone(), all_moved.clone());
        tokio::spawn(async move {
            let mut sent = 0;
            while sent < 1000 / SENDERS || !all_moved.is_cancelled() {
                let request = Request::post("/")
                    .header("order", format!("{sender}-{sent}"))
                    .body(Full::<Bytes>::default())?;
                let answer = client.clone().oneshot(request).await?;
                assert_eq!(answer.status(), StatusCode::OK);
                sent += 1;
            }
            Result::Ok(sent)
        })
    });
    let senders: Vec<_> = senders.collect();
    // Partitions move as members join, and as they leave.
    for _ in 0..3 {
        let b = open("b").await?;
        whole(&observer, 2).await?;
        let c = open("c").await?;
        whole(&observer, 3).await?;
        b.close().await?;
        whole(&observer, 2).await?;
        c.close().await?;
        whole(&observer, 1).await?;
    }
    all_moved.cancel();
    let mut orders = 0;
    for (sender, task) in senders.into_iter().enumerate() {
        let sent = task.await??;
        for order in 0..sent {
            assert_eq!(
                done.times(&format!("{sender}-{order}")),
                1,
                "{sender}-{order}"
            );
        }
        orders += sent;
    }
    let moves = begun.load(Ordering::Relaxed) - COUNT as usize;
    println!("{orders} orders, {moves} moves");
    assert!(
        orders >= 1000 && moves >= 3 * COUNT as usize,
        "{orders} orders, {moves} moves"
    );
    a.close().await
}
