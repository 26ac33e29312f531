//! What views of a term say once its holder has let go of it.
#![cfg(feature = "testing")]
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::time::Duration;

use eldest::testing::{Etcd, eventually};
use eldest::{LostReason, Session, SessionOptions};

#[tokio::test(flavor = "multi_thread")]
async fn a_view_is_not_valid_once_the_leadership_was_dropped_within_its_grace() {
    let etcd = Etcd::start().await.unwrap();
    // Most of the TTL is grace, so that the drop certainly falls into it.
    let options = SessionOptions::new("a")
        .ttl(Duration::from_secs(20))
        .grace(Duration::from_secs(10));
    let session = Session::connect([etcd.endpoint()], options).await.unwrap();
    let mut candidate = session.election("e").unwrap().campaign().await.unwrap();
    let leadership = candidate.elected().await.unwrap();
    let term = leadership.term();
    etcd.pause();
    let lost = term.lost();
    tokio::time::timeout(Duration::from_secs(20), lost.cancelled())
        .await
        .unwrap();
    assert_eq!(term.lost_reason(), Some(LostReason::LeaseExpiring));
    assert!(term.is_valid(), "the grace has only begun");
    drop(leadership);
    etcd.resume();
    let mut client = etcd.client().await;
    let key = term.key().to_vec();
    eventually(Duration::from_secs(5), "the key is gone", async || {
        let gone = client.get(key.clone(), None).await.ok()?;
        gone.kvs().is_empty().then_some(())
    })
    .await
    .unwrap();
    assert!(!term.is_valid(), "somebody else may lead by now");
}
