//! Tests the replacement of the list of endpoints at run time.

use super::*;
use crate::relist::Refused;

const KEY: &[u8] = b"ns/~";

/// Starts the background task of a session, which moves the lanes.
fn kept_near(pool: Arc<Pool>) -> Arc<Pool> {
    pool.keep_near(KEY.into(), tracing::Span::none());
    pool
}

async fn set(pool: &Pool, endpoints: &[&str]) -> Result<Result<(), String>, RequestError> {
    let endpoints = endpoints.iter().map(Endpoint::from).collect();
    let endpoints = pool.checked(endpoints).unwrap();
    let set = pool.set_endpoints(endpoints, KEY);
    soon("the list is tried, and every lane follows it", set).await
}

fn listed(pool: &Pool) -> Vec<String> {
    let seen = pool.endpoints_seen();
    let seen = seen.borrow();
    seen.iter().map(|one| one.url().to_owned()).collect()
}

#[tokio::test]
async fn lanes_leave_a_removed_endpoint_without_a_failed_request_or_renewal() {
    let etcd = Etcd::start().await;
    let [first, second] = etcd.two_endpoints();
    let pool = kept_near(pool(&[&first]));
    let granted = pool.grant(60).await.unwrap();
    let mut keepalive = pool.keepalive(granted.id).await.unwrap();
    keepalive.renew().await.unwrap();
    let (_sender, mut watched) = pool
        .watch(Lane::Data, (1, b"ns/".to_vec(), true))
        .await
        .unwrap();
    watched.next().await.unwrap();

    let other = async { set(&pool, &[&second]).await.unwrap().unwrap() };
    let requests = async {
        for _ in 0..50 {
            pool.probe(KEY).await.unwrap();
            keepalive.renew().await.unwrap();
        }
    };
    tokio::join!(other, requests);
    assert_eq!(listed(&pool), [&*second]);
    for lane in Lane::ALL {
        assert_eq!(pool.endpoint(lane), second);
    }
    keepalive.renew().await.unwrap();
    assert_eq!(keepalive.endpoint(), second);
    let moved = soon("the watch stream ends", watched.next()).await;
    assert_eq!(moved.unwrap(), WatchMessage::Moved);
}

#[tokio::test]
async fn endpoints_that_stay_keep_their_connections_and_measurements() {
    let etcd = Etcd::start().await;
    let [first, second] = etcd.two_endpoints();
    let pool = kept_near(pool(&[&first, &second]));
    pool.measure(&[0, 1]).await;
    let (_, before) = pool.client(Lane::Data).await.unwrap();
    let measured = pool.nearness(|known| known.round_trip(1)).unwrap();

    let dead = format!("http://127.0.0.1:{}", free_port());
    set(&pool, &[&dead, &second, &first])
        .await
        .unwrap()
        .unwrap();
    assert_eq!(listed(&pool), [&*dead, &*second, &*first]);
    assert_eq!(pool.client(Lane::Data).await.unwrap().1, before);
    assert_eq!(
        pool.nearness(|known| known.round_trip(1)),
        Some(measured),
        "under its old number"
    );
    let seen = pool.endpoints_seen();
    let failing: Vec<_> = seen
        .borrow()
        .iter()
        .map(EndpointStatus::is_failing)
        .collect();
    assert_eq!(
        failing,
        [true, false, false],
        "what did not answer is the last resort"
    );
}

/// The lane has moved on after a failure, and the stream is still at the old endpoint.
#[tokio::test]
async fn stream_left_behind_at_a_removed_endpoint_ends() {
    let etcd = Etcd::start().await;
    let [first, second] = etcd.two_endpoints();
    let pool = kept_near(pool(&[&first, &second]));
    let watch = || pool.watch(Lane::Data, (1, b"ns/".to_vec(), true));
    let (_sender, mut left) = watch().await.unwrap();
    left.next().await.unwrap();
    pool.leave(Lane::Data, "test");
    let (_sender, mut stays) = watch().await.unwrap();
    stays.next().await.unwrap();
    assert_eq!(left.next().now_or_never(), None);

    set(&pool, &[&second]).await.unwrap().unwrap();
    let moved = soon("it ends", left.next()).await;
    assert_eq!(moved.unwrap(), WatchMessage::Moved);
    assert_eq!(
        stays.next().now_or_never(),
        None,
        "the connection in use is untouched"
    );
}

#[tokio::test]
async fn members_of_another_cluster_are_refused_even_if_no_endpoint_answers() {
    let (mut etcd, other) = (Etcd::start().await, Etcd::start().await);
    let second = etcd.two_endpoints()[1].clone();
    let limit = Duration::from_millis(500);
    let pool = pool_with(&[&etcd.endpoint], ConnectOptions::new(), limit);
    let pool = kept_near(pool);
    pool.probe(KEY).await.unwrap();
    let why = set(&pool, &[&second, &other.endpoint])
        .await
        .unwrap()
        .unwrap_err();
    assert!(
        why.contains(&other.endpoint) && why.contains("another cluster"),
        "{why}"
    );
    assert_eq!(pool.size(), 1);

    etcd.kill();
    let why = set(&pool, &[&other.endpoint]).await.unwrap().unwrap_err();
    assert!(why.contains("another cluster"), "{why}");
    assert_eq!(pool.in_order(), [Endpoint::from(&etcd.endpoint)]);
}

#[tokio::test]
async fn a_list_of_which_no_endpoint_answers_is_not_used() {
    let (etcd, stopped) = (Etcd::start().await, Etcd::start().await);
    let limit = Duration::from_millis(500);
    let pool = pool_with(&[&etcd.endpoint], ConnectOptions::new(), limit);
    let pool = kept_near(pool);
    let before = pool.client(Lane::Data).await.unwrap().1;
    stopped.pause();
    let dead = format!("http://127.0.0.1:{}", free_port());
    let failure = set(&pool, &[&dead, &stopped.endpoint]).await.unwrap_err();
    assert_eq!((failure.class, &failure.endpoint), (Class::Retry, &dead));
    assert_eq!(pool.in_order(), [Endpoint::from(&etcd.endpoint)]);
    assert_eq!(pool.client(Lane::Data).await.unwrap().1, before);
}

#[tokio::test]
async fn a_list_may_replace_one_that_does_not_answer() {
    let (mut etcd, other) = (Etcd::start().await, Etcd::start().await);
    let [first, second] = other.two_endpoints();
    let dead = format!("http://127.0.0.1:{}", free_port());
    let pool = kept_near(pool(&[&dead]));
    set(&pool, &[&first]).await.unwrap().unwrap();
    pool.probe(KEY).await.unwrap();
    assert_eq!(
        pool.endpoint(Lane::Lease),
        first,
        "a lane that was never used"
    );
    set(&pool, &[&dead, &second]).await.unwrap().unwrap();
    pool.probe(KEY).await.unwrap();
    etcd.kill();
}

#[tokio::test]
async fn late_failure_of_a_removed_endpoint_is_not_counted_against_another() {
    let etcd = Etcd::start().await;
    let [first, second] = etcd.two_endpoints();
    let pool = kept_near(pool(&[&first]));
    let (_, gone) = pool.client(Lane::Data).await.unwrap();
    set(&pool, &[&second]).await.unwrap().unwrap();
    let (_, present) = pool.client(Lane::Data).await.unwrap();
    pool.report(&gone, &RequestError::new(Class::Retry, "late", &first));
    assert_eq!(pool.client(Lane::Data).await.unwrap().1, present);
    let seen = pool.endpoints_seen();
    assert!(!seen.borrow()[0].is_failing());
}

#[tokio::test]
async fn list_without_a_usable_endpoint_is_refused_with_each_cause() {
    let (etcd, other) = (Etcd::start().await, Etcd::start().await);
    let pool = kept_near(pool(&[&etcd.endpoint]));
    pool.probe(KEY).await.unwrap();
    let dead = format!("http://127.0.0.1:{}", free_port());
    let list = [&other.endpoint, &dead].map(Endpoint::from).to_vec();
    let Err(Refused::Silent(failures)) = pool.adopt(list, KEY, false).await else {
        panic!("a list that is of no use");
    };
    let reports = failures.iter().map(|it| (&*it.endpoint, &*it.message));
    let reports: Vec<_> = reports.collect();
    assert_eq!(reports[0].0, dead, "{reports:?}");
    assert_eq!(reports[1].0, other.endpoint, "{reports:?}");
    assert!(reports[1].1.contains("another cluster"), "{reports:?}");
}
