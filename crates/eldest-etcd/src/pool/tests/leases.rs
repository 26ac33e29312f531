//! Tests leases, and the pairing of renewals with their answers.

use std::collections::BTreeSet;

use etcd_client::{LeaseTimeToLiveOptions, PutOptions, Txn, TxnOp};

use super::*;

#[tokio::test]
async fn a_lease_is_granted_under_our_id_listed_and_revoked() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let id = fresh_id();
    let granted = pool.grant_as(id, 30).await.unwrap();
    assert_eq!(granted.ttl, Duration::from_secs(30));
    assert_ne!((granted.header.cluster, granted.header.term), (0, 0));
    // The id is taken now: no other session may adopt it.
    let taken = pool.grant_as(id, 30).await.unwrap_err();
    assert_eq!(taken.class, Class::LeaseTaken, "{taken}");

    for key in [b"ns/e/1", b"ns/f/1"] {
        pool.join(key, b"a", id, b"ns/e/", Admission::default())
            .await
            .unwrap();
    }
    let mut found = pool.lease_keys(id, b"ns/").await.unwrap();
    found.sort();
    assert_eq!(found, [b"ns/e/1"[..].into(), b"ns/f/1"[..].into()]);

    assert!(pool.revoke(id).await.unwrap());
    assert!(!pool.revoke(id).await.unwrap(), "it was gone already");
    assert!(pool.lease_keys(id, b"ns/").await.unwrap().is_empty());
    assert_eq!(pool.read(Lane::Data, b"ns/e/1").await.unwrap().1, None);
}

#[tokio::test]
async fn the_term_is_the_one_etcd_chose() {
    let etcd = Etcd::start().await;
    // 1 s is below etcd's minimum.
    let granted = etcd.pool().grant_as(fresh_id(), 1).await.unwrap();
    assert_eq!(granted.ttl, Duration::from_secs(2));
}

#[tokio::test]
async fn renewal_answer_has_the_term_and_a_header_that_a_read_confirms() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let id = fresh_id();
    pool.grant_as(id, 7).await.unwrap();
    let mut keepalive = pool.keepalive(id).await.unwrap();
    for _ in 0..3 {
        let ack = keepalive.renew().await.unwrap();
        assert_eq!(ack.ttl, Duration::from_secs(7));
        let (read, _) = pool.read(Lane::Lease, b"k").await.unwrap();
        assert_eq!(
            (ack.header.cluster, ack.header.term),
            (read.cluster, read.term)
        );
        assert_eq!(
            (ack.header.member, ack.header.revision),
            (read.member, read.revision)
        );
    }
}

#[tokio::test]
async fn a_keepalive_of_an_unknown_lease_says_that_it_is_gone() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let failure = pool.keepalive(fresh_id()).await.err().unwrap();
    assert_eq!(failure.class, Class::LeaseGone, "{failure}");
}

#[tokio::test]
async fn a_lease_revoked_meanwhile_is_acknowledged_with_no_term() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let id = fresh_id();
    pool.grant_as(id, 30).await.unwrap();
    let mut keepalive = pool.keepalive(id).await.unwrap();
    pool.revoke(id).await.unwrap();
    assert_eq!(keepalive.renew().await.unwrap().ttl, Duration::ZERO);
    assert_eq!(keepalive.renew().await.unwrap().ttl, Duration::ZERO);
}

#[tokio::test]
async fn a_keepalive_whose_renewal_was_dropped_is_used_up() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let id = fresh_id();
    pool.grant_as(id, 30).await.unwrap();
    let mut keepalive = pool.keepalive(id).await.unwrap();
    keepalive.renew().await.unwrap();

    // The request is queued at the first poll, and its answer would be taken for the next request's.
    tokio::select! {
        biased;
        answer = keepalive.renew() => panic!("answered without waiting: {answer:?}"),
        () = std::future::ready(()) => {}
    }
    let failure = keepalive.renew().await.unwrap_err();
    assert_eq!((failure.class, failure.ambiguous), (Class::Retry, false));

    let mut keepalive = pool.keepalive(id).await.unwrap();
    assert_eq!(
        keepalive.renew().await.unwrap().ttl,
        Duration::from_secs(30)
    );
}

#[tokio::test]
async fn a_keepalive_whose_renewal_timed_out_is_used_up() {
    let etcd = Etcd::start().await;
    let short = Duration::from_secs(2);
    let pool = pool_with(&[&etcd.endpoint], ConnectOptions::new(), short);
    let id = fresh_id();
    pool.grant_as(id, 30).await.unwrap();
    let mut keepalive = pool.keepalive(id).await.unwrap();
    etcd.pause();
    let failure = soon("a timeout", keepalive.renew()).await.unwrap_err();
    assert_eq!((failure.class, failure.ambiguous), (Class::Retry, true));
    etcd.resume();
    let failure = keepalive.renew().await.unwrap_err();
    assert_eq!((failure.class, failure.ambiguous), (Class::Retry, false));
}

#[tokio::test]
async fn keys_of_a_lease_are_found_where_one_answer_cannot_hold_them() {
    const KEYS: usize = 9000;
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let (id, other) = (fresh_id(), fresh_id());
    let mut client = etcd.client().await;
    for lease in [id, other] {
        pool.grant_as(lease, 300).await.unwrap();
    }
    let long = "x".repeat(500);
    let put = |number: usize, lease| {
        let key = format!("ns/{long}/{number:06}");
        TxnOp::put(key, "", Some(PutOptions::new().with_lease(lease)))
    };
    for first in (0..KEYS).step_by(100) {
        // Every tenth key beside ours belongs to another lease.
        let ours = (first..first + 100).map(|number| put(number, id));
        let others = (first..first + 10).map(|number| put(KEYS + number, other));
        let puts: Vec<_> = ours.chain(others).collect();
        client.txn(Txn::new().and_then(puts)).await.unwrap();
    }
    let mut all = client.lease_client();
    let keys = LeaseTimeToLiveOptions::new().with_keys();
    let refused = all.time_to_live(id, Some(keys)).await;
    assert!(refused.is_err(), "one answer holds them: longer keys");

    for prefix in [&b"ns/"[..], b""] {
        let found = pool.lease_keys(id, prefix).await.unwrap();
        let distinct: BTreeSet<_> = found.iter().collect();
        assert_eq!(
            (found.len(), distinct.len()),
            (KEYS, KEYS),
            "below {prefix:?}"
        );
    }
}
