//! Tests the choice of the endpoint, and the change to the next one.

use super::*;
use eldest_core::txn::{Op, Txn};

#[tokio::test]
async fn after_a_dead_endpoint_the_second_call_succeeds() {
    let etcd = Etcd::start().await;
    let dead = format!("http://127.0.0.1:{}", free_port());
    let pool = pool(&[&dead, &etcd.endpoint]);

    let failure = pool.list(b"ns/e/", Reach::Children).await.unwrap_err();
    assert_eq!((failure.class, failure.ambiguous), (Class::Retry, false));
    assert_eq!(failure.endpoint, dead);
    assert!(failure.message.contains("refused"), "{failure}");
    pool.list(b"ns/e/", Reach::Children).await.unwrap();
    assert_eq!(pool.endpoint(Lane::Data), etcd.endpoint);

    // The other lane detects it by itself.
    assert_eq!(pool.endpoint(Lane::Lease), dead);
    let id = fresh_id();
    assert!(!pool.grant_as(id, 30).await.unwrap_err().ambiguous);
    pool.grant_as(id, 30).await.unwrap();
    pool.keepalive(id).await.unwrap().renew().await.unwrap();
}

#[tokio::test]
async fn failures_of_one_connection_move_the_lane_once() {
    let etcd = Etcd::start().await;
    let dead = || format!("http://127.0.0.1:{}", free_port());
    let pool = pool(&[&dead(), &etcd.endpoint, &dead()]);
    let calls = (0..10).map(|_| pool.list(b"ns/e/", Reach::Children));
    let answers = futures::future::join_all(calls).await;
    assert!(answers.iter().any(Result::is_err));
    assert_eq!(pool.endpoint(Lane::Data), etcd.endpoint);
}

#[tokio::test]
async fn a_stopped_etcd_costs_one_timeout_and_the_next_call_goes_elsewhere() {
    let stopped = Etcd::start().await;
    let other = Etcd::start().await;
    let limit = Duration::from_secs(1);
    let pool = pool_with(
        &[&stopped.endpoint, &other.endpoint],
        ConnectOptions::new(),
        limit,
    );
    let before = pool.probe(b"k").await.unwrap();

    stopped.pause();
    let begun = Instant::now();
    let failure = pool.list(b"ns/e/", Reach::Children).await.unwrap_err();
    let took = begun.elapsed();
    assert!(took >= limit && took < limit * 2, "{took:?}");
    assert_eq!((failure.class, failure.ambiguous), (Class::Retry, true));
    assert_eq!(failure.endpoint, stopped.endpoint);
    let after = pool.probe(b"k").await.unwrap();
    assert_ne!(before.cluster, after.cluster);
    assert_eq!(pool.endpoint(Lane::Data), other.endpoint);
}

#[tokio::test]
async fn with_one_endpoint_the_client_connects_to_it_again() {
    let etcd = Etcd::start().await;
    let limit = Duration::from_millis(500);
    let pool = pool_with(&[&etcd.endpoint], ConnectOptions::new(), limit);
    let (_, first) = pool.client(Lane::Data).await.unwrap();
    pool.probe(b"k").await.unwrap();
    assert_eq!(pool.client(Lane::Data).await.unwrap().1, first);
    etcd.pause();
    assert!(pool.probe(b"k").await.is_err());
    etcd.resume();
    soon("an answer", async {
        while pool.probe(b"k").await.is_err() {}
    })
    .await;
    let (_, second) = pool.client(Lane::Data).await.unwrap();
    assert_ne!(second, first);

    // A late failure of the first connection does not count against the second.
    pool.report(
        &first,
        &RequestError::new(Class::Retry, "late", &etcd.endpoint),
    );
    assert_eq!(pool.client(Lane::Data).await.unwrap().1, second);
}

#[tokio::test]
async fn connecting_counts_against_the_timeout_and_sends_nothing() {
    let etcd = Etcd::start().await;
    let limit = Duration::from_millis(500);
    let endpoints = ["http://hangs:1", etcd.endpoint.as_str()];
    let pool = pool_with(&endpoints, ConnectOptions::new(), limit);
    let begun = Instant::now();
    // Ten calls, of which one connects; none waits for longer than its own timeout.
    let calls = (0..10).map(|_| pool.probe(b"k"));
    for failure in futures::future::join_all(calls).await {
        if let Err(failure) = failure {
            assert_eq!((failure.class, failure.ambiguous), (Class::Retry, false));
        }
    }
    assert!(begun.elapsed() < limit * 3, "{:?}", begun.elapsed());
    assert_eq!(pool.endpoint(Lane::Data), etcd.endpoint);
    soon("an answer", async {
        while pool.probe(b"k").await.is_err() {}
    })
    .await;
    assert_eq!(pool.endpoint(Lane::Data), etcd.endpoint);
}

#[tokio::test]
async fn connecting_continues_after_its_first_request_has_ended() {
    let etcd = Etcd::start().await;
    let limit = Duration::from_secs(1);
    // Like a password check on a busy etcd: longer than any request waits.
    let (connects, env) = slow(limit * 19 / 10);
    let one = [etcd.endpoint.as_str()];
    let pool = pool_in(env, &one, ConnectOptions::new(), limit);
    let failure = pool.probe(b"k").await.unwrap_err();
    assert_eq!((failure.class, failure.ambiguous), (Class::Retry, false));
    soon("an answer", async {
        while pool.probe(b"k").await.is_err() {}
    })
    .await;
    assert_eq!(connects.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_attempt_that_leads_to_nothing_is_repeated_after_a_while() {
    let limit = Duration::from_millis(50);
    let (connects, env) = slow(Duration::ZERO);
    let pool = pool_in(env, &["http://hangs:1"], ConnectOptions::new(), limit);
    let connects = || connects.load(Ordering::SeqCst);
    pool.probe(b"k").await.unwrap_err();
    assert_eq!(connects(), 1);
    soon("a second attempt", async {
        while connects() == 1 {
            pool.probe(b"k").await.unwrap_err();
        }
    })
    .await;
}

#[tokio::test]
async fn unusable_endpoints_are_refused_on_connecting() {
    let refusal = |endpoints: &[&str]| {
        let endpoints: Vec<_> = endpoints.iter().map(ToString::to_string).collect();
        let options = ConnectOptions::new();
        Pool::new(Arc::new(Scripted::still()), &endpoints, options, TIMEOUT).err()
    };
    assert_eq!(
        refusal(&["http://127.0.0.1:2379", "http://[::1]:2379/"]),
        None
    );
    assert_eq!(refusal(&["http://etcd"]), None);
    assert!(refusal(&[]).is_some());
    assert_eq!(refusal(&["127.0.0.1:2379", "etcd.example:2379"]), None);
    for (endpoint, why) in [
        ("", "empty"),
        ("etcd:port", "port"),
        ("ftp://etcd:2379", "http or https"),
        ("http://", "empty"),
        ("http://:2379", "host"),
        ("http://etcd:port", "port"),
        ("http://etcd:", "port"),
        ("http://etcd:65536", "port"),
        ("http://etcd:2379/path", "host and port"),
        ("http://a:2379,http://b:2379", "comma"),
        ("http://etcd:2379?a=b", "host and port"),
        ("http://me:canary@etcd:2379", "credentials"),
    ] {
        let refusal = refusal(&["http://etcd:2379", endpoint]).expect(endpoint);
        assert!(refusal.contains(why), "{endpoint}: {refusal}");
        assert!(!refusal.contains("canary"), "{refusal}");
    }
    let https = refusal(&["https://etcd:2379"]);
    if cfg!(any(feature = "tls-ring", feature = "tls-aws-lc")) {
        assert_eq!(https, None);
    } else {
        assert!(https.unwrap().contains("feature `tls`"));
    }
}

#[tokio::test]
async fn challenges_have_a_timeout_of_their_own() {
    let etcd = Etcd::start().await;
    let (limit, challenge) = (Duration::from_secs(5), Duration::from_millis(500));
    let (env, access) = (Arc::new(Scripted::real()), ConnectOptions::new());
    let pool = Pool::new(env, [&*etcd.endpoint], access, limit).unwrap();
    let pool = pool.with_challenge_timeout(challenge);
    let read = Txn {
        when: Vec::new(),
        then: vec![Op::Read(b"k".to_vec().into())],
        otherwise: Vec::new(),
    };
    pool.grant(30).await.unwrap();
    pool.transact(&read).await.unwrap();
    etcd.pause();
    let begun = Instant::now();
    let failure = pool.transact(&read).await.unwrap_err();
    let took = begun.elapsed();
    assert!(took >= challenge && took < limit, "{took:?}");
    assert_eq!(failure.message, "no answer within 500ms");
}
