//! Tests the move of a lane to a preferred endpoint: its requests, its streams, and the conditions under which it
//! stays.

use eldest_core::time::Time;

use super::*;
use crate::nearness::Nearness;

const KEY: &[u8] = b"ns/~";

/// Records measurements by which the second endpoint is preferred.
fn prefer_the_second(pool: &Pool) {
    let mut nearness = Nearness::new([false; 2], Time::ZERO, || 0);
    for _ in 0..2 {
        for (at, ms) in [(0, 40), (1, 1)] {
            nearness.probed(at, Time::ZERO, Some(Duration::from_millis(ms)), 0);
        }
    }
    pool.nearness(|known| *known = nearness);
}

fn used(pool: &Pool) -> [String; 3] {
    [Lane::Data, Lane::Lease, Lane::Observers].map(|lane| pool.endpoint(lane))
}

#[tokio::test]
async fn renewals_continue_on_a_stream_that_was_opened_before_the_lane_moved() {
    let etcd = Etcd::start().await;
    let [first, second] = etcd.two_endpoints();
    let pool = pool(&[&first, &second]);
    let granted = pool.grant(60).await.unwrap();
    let mut keepalive = pool.keepalive(granted.id).await.unwrap();
    keepalive.renew().await.unwrap();
    pool.probe(KEY).await.unwrap();
    assert_eq!(keepalive.endpoint(), first);

    prefer_the_second(&pool);
    pool.follow_all(KEY).await;
    assert_eq!(
        used(&pool),
        [&*second; 3].map(str::to_owned),
        "an unused lane moves as well"
    );
    assert_eq!(keepalive.endpoint(), first, "between two renewals");
    keepalive.renew().await.unwrap();
    assert_eq!(keepalive.endpoint(), second);
    keepalive.renew().await.unwrap();
    assert_eq!(pool.grant(60).await.unwrap().ttl, Duration::from_secs(60));
}

#[tokio::test]
async fn a_renewal_under_way_is_answered_on_its_own_stream() {
    let etcd = Etcd::start().await;
    let [first, second] = etcd.two_endpoints();
    let pool = pool(&[&first, &second]);
    let granted = pool.grant(60).await.unwrap();
    let mut keepalive = pool.keepalive(granted.id).await.unwrap();
    pool.probe(KEY).await.unwrap();
    prefer_the_second(&pool);
    let (renewed, ()) = tokio::join!(keepalive.renew(), pool.follow_all(KEY));
    assert_eq!(renewed.unwrap().ttl, Duration::from_secs(60));
    for _ in 0..2 {
        keepalive.renew().await.unwrap();
    }
    assert_eq!(keepalive.endpoint(), second);
}

#[tokio::test]
async fn stream_at_an_endpoint_that_the_lane_left_is_not_used() {
    let etcd = Etcd::start().await;
    let [first, second] = etcd.two_endpoints();
    let pool = pool(&[&first, &second]);
    let granted = pool.grant(60).await.unwrap();
    let mut keepalive = pool.keepalive(granted.id).await.unwrap();
    pool.probe(KEY).await.unwrap();
    prefer_the_second(&pool);
    pool.follow_all(KEY).await;
    pool.leave(Lane::Lease, "test");
    keepalive.renew().await.unwrap();
    assert_eq!(keepalive.endpoint(), first);
}

#[tokio::test]
async fn renewals_stay_on_their_stream_if_the_preferred_endpoint_opens_none() {
    let (mut etcd, mut other) = (Etcd::start().await, Etcd::start().await);
    let pool = pool(&[&etcd.endpoint, &other.endpoint]);
    let granted = pool.grant(60).await.unwrap();
    let mut keepalive = pool.keepalive(granted.id).await.unwrap();
    let before = pool.ticket(Lane::Lease);
    let second = pool.places(|places| Arc::clone(&places.all()[1]));
    pool.switch(&before, &second, None).ok().unwrap();
    other.kill();
    keepalive.renew().await.unwrap();
    assert_eq!(keepalive.endpoint(), etcd.endpoint);
    etcd.kill();
}

#[tokio::test]
async fn a_watch_stream_of_a_lane_that_moved_says_so() {
    let etcd = Etcd::start().await;
    let [first, second] = etcd.two_endpoints();
    let pool = pool(&[&first, &second]);
    let watch = || pool.watch(Lane::Data, (1, b"ns/".to_vec(), true));
    let (_sender, mut receiver) = watch().await.unwrap();
    let created = receiver.next().await.unwrap();
    assert!(matches!(created, WatchMessage::Created { .. }));
    prefer_the_second(&pool);
    pool.follow_all(KEY).await;
    let moved = soon("the stream ends", receiver.next()).await;
    assert_eq!(moved.unwrap(), WatchMessage::Moved);
    // The next stream is at the new endpoint, and stays.
    let (_sender, mut receiver) = watch().await.unwrap();
    let created = receiver.next().await.unwrap();
    assert!(matches!(created, WatchMessage::Created { .. }));
    assert_eq!(receiver.next().now_or_never(), None);
}

#[tokio::test]
async fn a_member_of_another_cluster_is_never_moved_to() {
    let (etcd, other) = (Etcd::start().await, Etcd::start().await);
    let pool = pool(&[&etcd.endpoint, &other.endpoint]);
    pool.probe(KEY).await.unwrap();
    pool.grant(60).await.unwrap();
    prefer_the_second(&pool);
    pool.follow_all(KEY).await;
    assert_eq!(used(&pool), [&*etcd.endpoint; 3].map(str::to_owned));
    let now = Time::ZERO.after(Duration::from_secs(3));
    assert_eq!(
        pool.nearness(|known| known.better_than(0, now)),
        None,
        "not again at once"
    );
}

#[tokio::test]
async fn an_endpoint_that_answers_no_reads_is_not_moved_to() {
    let (etcd, other) = (Etcd::start().await, Etcd::start().await);
    let limit = Duration::from_millis(300);
    let endpoints = [&*etcd.endpoint, &*other.endpoint];
    let pool = pool_with(&endpoints, ConnectOptions::new(), limit);
    let (_, before) = pool.client(Lane::Data).await.unwrap();
    other.pause();
    prefer_the_second(&pool);
    pool.follow_all(KEY).await;
    let (_, after) = pool.client(Lane::Data).await.unwrap();
    assert_eq!(after, before, "the connection in use is untouched");
}

#[tokio::test]
async fn a_probed_member_of_another_cluster_counts_as_failing() {
    let (etcd, other) = (Etcd::start().await, Etcd::start().await);
    let second = etcd.two_endpoints()[1].clone();
    let pool = pool(&[&etcd.endpoint, &other.endpoint, &second]);
    pool.measure(&[0, 1, 2]).await;
    let failing = [0, 1, 2].map(|at| pool.nearness(|known| known.is_failing(at)));
    assert_eq!(failing, [false, true, false]);
    // So a failure skips it.
    pool.leave(Lane::Data, "test");
    assert_eq!(pool.endpoint(Lane::Data), second);
}

/// The background task computes probes while failures move the lanes, on other threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_and_probes_take_their_locks_in_one_order() {
    const TIMES: usize = 20_000;
    let pool = pool(&["http://127.0.0.1:1", "http://127.0.0.1:2"]);
    // Separate threads: the runtime would wait for its own ones, even if they never end.
    let (ended, mut both) = tokio::sync::mpsc::unbounded_channel();
    let start = |act: fn(&Pool)| {
        let (pool, ended) = (Arc::clone(&pool), ended.clone());
        let runtime = tokio::runtime::Handle::current();
        std::thread::spawn(move || {
            let _inside = runtime.enter();
            (0..TIMES).for_each(|_| act(&pool));
            ended.send(()).unwrap();
        })
    };
    start(|pool| pool.leave(Lane::Lease, "test"));
    start(|pool| {
        pool.next_probe();
        pool.due_probes();
        pool.publish();
    });
    for _ in 0..2 {
        soon("both end", both.recv()).await.unwrap();
    }
}
