//! Tests watch streams.

use super::*;
use eldest_core::kv::{Change, Header};

async fn put(pool: &Pool, key: &[u8], value: &[u8], lease: i64) -> Joined {
    let joined = pool.join(key, value, lease, b"ns/e/", Admission::default());
    joined.await.unwrap()
}

async fn next(receiver: &mut WatchReceiver) -> WatchMessage {
    soon("a watch message", receiver.next()).await.unwrap()
}

fn create(id: i64, key: &[u8], prefix: bool) -> WatchRequest {
    let key = key.to_vec();
    WatchRequest::Create { id, key, prefix }
}

#[tokio::test]
async fn a_stream_carries_several_watches_from_creation_to_cancellation() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let lease = fresh_id();
    pool.grant_as(lease, 30).await.unwrap();
    let first = put(&pool, b"ns/e/1", b"a", lease).await.header;
    let base = first.revision;
    // Messages name the cluster, the member and the raft term, as answers do.
    let later = |writes| Header {
        revision: base + writes,
        ..first
    };

    let (mut sender, mut receiver) = pool
        .watch(Lane::Data, (1, b"ns/e/".to_vec(), true))
        .await
        .unwrap();
    let created = WatchMessage::Created {
        id: 1,
        header: first,
    };
    assert_eq!(next(&mut receiver).await, created);

    // A prefix watch shows a put with all its facts.
    let second = put(&pool, b"ns/e/2", b"b", lease).await;
    let own = second.entries[1].clone();
    let put = WatchMessage::Events {
        id: 1,
        header: later(1),
        changes: vec![Change::Put(own)],
    };
    assert_eq!(next(&mut receiver).await, put);

    // A second watch, of one key only.
    sender.send(create(2, b"ns/e/1", false)).await.unwrap();
    let created = WatchMessage::Created {
        id: 2,
        header: later(1),
    };
    assert_eq!(next(&mut receiver).await, created);
    pool.delete(b"ns/e/2", base + 1).await.unwrap();
    let deleted = |id, key: &[u8], writes| WatchMessage::Events {
        id,
        header: later(writes),
        changes: vec![Change::Delete {
            key: key.into(),
            revision: base + writes,
        }],
    };
    assert_eq!(next(&mut receiver).await, deleted(1, b"ns/e/2", 2));

    sender.send(WatchRequest::Progress).await.unwrap();
    let progress = WatchMessage::Progress { header: later(2) };
    assert_eq!(next(&mut receiver).await, progress);

    sender.send(WatchRequest::Cancel { id: 1 }).await.unwrap();
    let WatchMessage::Canceled {
        id: 1,
        compact_revision: 0,
        ..
    } = next(&mut receiver).await
    else {
        panic!("not cancelled");
    };
    pool.delete(b"ns/e/1", base).await.unwrap();
    assert_eq!(next(&mut receiver).await, deleted(2, b"ns/e/1", 3));
}

#[tokio::test]
async fn all_keys_of_a_revoked_lease_go_in_one_message() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let lease = fresh_id();
    pool.grant_as(lease, 30).await.unwrap();
    for n in 0..5 {
        put(&pool, format!("ns/e/{n}").as_bytes(), b"a", lease).await;
    }
    let (_sender, mut receiver) = pool
        .watch(Lane::Data, (7, b"ns/e/".to_vec(), true))
        .await
        .unwrap();
    let WatchMessage::Created { id: 7, header } = next(&mut receiver).await else {
        panic!("not created");
    };
    pool.revoke(lease).await.unwrap();
    let WatchMessage::Events { id: 7, changes, .. } = next(&mut receiver).await else {
        panic!("no events");
    };
    assert_eq!(changes.len(), 5);
    for change in changes {
        assert!(matches!(change, Change::Delete { .. }));
        assert_eq!(change.revision(), header.revision + 1);
    }
}

#[tokio::test]
async fn reused_watch_id_is_refused_and_the_stream_continues() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let (mut sender, mut receiver) = pool
        .watch(Lane::Data, (1, b"ns/e/".to_vec(), true))
        .await
        .unwrap();
    next(&mut receiver).await;
    sender.send(create(1, b"ns/f/", true)).await.unwrap();
    let WatchMessage::Refused { id: 1, failure } = next(&mut receiver).await else {
        panic!("not refused");
    };
    assert_eq!(failure.class, Class::Invalid, "{failure}");
    sender.send(create(2, b"ns/f/", true)).await.unwrap();
    let created = next(&mut receiver).await;
    assert!(
        matches!(created, WatchMessage::Created { id: 2, .. }),
        "{created:?}"
    );
}

#[tokio::test]
async fn the_end_of_a_stream_sends_the_lane_elsewhere() {
    let mut etcd = Etcd::start().await;
    let other = Etcd::start().await;
    let pool = pool(&[&etcd.endpoint, &other.endpoint]);
    let (mut sender, mut receiver) = pool
        .watch(Lane::Data, (1, b"ns/e/".to_vec(), true))
        .await
        .unwrap();
    next(&mut receiver).await;
    etcd.kill();
    let failure = soon("the end", receiver.next()).await.unwrap_err();
    assert_eq!(
        (failure.class, failure.ambiguous),
        (Class::Retry, true),
        "{failure}"
    );
    assert_eq!(pool.endpoint(Lane::Data), other.endpoint);
    assert_eq!(pool.endpoint(Lane::Lease), etcd.endpoint);

    // Further failures of the dead stream do not move the lane again.
    let _ = sender.send(WatchRequest::Progress).await;
    let _ = soon("another end", receiver.next()).await.unwrap_err();
    assert_eq!(pool.endpoint(Lane::Data), other.endpoint);
    let (_sender, mut receiver) = pool
        .watch(Lane::Data, (1, b"ns/e/".to_vec(), true))
        .await
        .unwrap();
    assert!(matches!(
        next(&mut receiver).await,
        WatchMessage::Created { id: 1, .. }
    ));
}

/// Takes 25 s: etcd cuts a quiet connection at the fourth ping.
#[tokio::test]
async fn a_stream_that_etcd_cuts_for_its_pings_names_the_setting() {
    let etcd = Etcd::start_with(&["--grpc-keepalive-min-time", "1h"]).await;
    let pool = etcd.pool();
    let (_sender, mut receiver) = pool
        .watch(Lane::Data, (1, b"ns/e/".to_vec(), true))
        .await
        .unwrap();
    next(&mut receiver).await;
    let cut = tokio::time::timeout(PING_EVERY * 6, receiver.next());
    let failure = cut.await.expect("it is cut").unwrap_err();
    let remedy = "start etcd with --grpc-keepalive-min-time of 5s";
    assert!(failure.message.contains(remedy), "{failure}");
}
