//! Tests the requests of operators.

use super::access::{pool_of_user, with_users};
use super::*;

#[tokio::test]
async fn permissions_of_a_user_are_checked_without_side_effects() {
    let (etcd, mut root) = with_users().await;
    root.put("ns/e/1", "kept", None).await.unwrap();
    let before = root.get("ns/e/1", None).await.unwrap();
    let pool = pool_of_user(&etcd, "me");
    let may = |read, write| Permissions { read, write };
    assert_eq!(pool.permissions(b"ns/").await.unwrap(), may(true, true));
    assert_eq!(pool.permissions(b"ns/e/").await.unwrap(), may(true, true));
    // The prefix without its slash also covers keys outside the namespace.
    assert_eq!(pool.permissions(b"ns").await.unwrap(), may(false, false));
    let role = etcd_client::Permission::read("other/").with_prefix();
    root.role_grant_permission("mine", role).await.unwrap();
    let role = etcd_client::Permission::write("other/e").with_prefix();
    root.role_grant_permission("mine", role).await.unwrap();
    assert_eq!(pool.permissions(b"other/").await.unwrap(), may(true, false));
    let failure = etcd.pool().permissions(b"ns/").await.unwrap_err();
    assert_eq!(failure.class, Class::Auth, "{failure}");

    let after = root.get("ns/e/1", None).await.unwrap();
    assert_eq!(after.kvs().len(), 1);
    let revision = |answer: &etcd_client::GetResponse| answer.header().unwrap().revision();
    assert_eq!(revision(&after), revision(&before));
}

#[tokio::test]
async fn only_the_very_key_that_was_seen_is_evicted() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let mut client = etcd.client().await;
    client.put("ns/e/1", "first", None).await.unwrap();
    let seen = pool.below(b"ns/e/", None).await.unwrap().entries.remove(0);
    client.delete("ns/e/1", None).await.unwrap();
    client.put("ns/e/1", "second", None).await.unwrap();
    assert!(!pool.evict(&seen.key, seen.create_revision).await.unwrap());
    let now = pool.below(b"ns/e/", None).await.unwrap().entries.remove(0);
    assert_eq!(&*now.value, b"second");
    assert!(pool.evict(&now.key, now.create_revision).await.unwrap());
    assert_eq!(pool.below(b"ns/e/", None).await.unwrap().entries, []);
}

#[tokio::test]
async fn any_lease_may_be_read() {
    let (etcd, mut root) = with_users().await;
    let lease = root.lease_grant(100, None).await.unwrap().id();
    let bound = etcd_client::PutOptions::new().with_lease(lease);
    root.put("secret/key", "", Some(bound)).await.unwrap();
    let pool = pool_of_user(&etcd, "me");
    let term = pool.lease_term(lease).await.unwrap().unwrap();
    assert_eq!(term.granted, Duration::from_secs(100));
    assert!(
        term.left <= term.granted && !term.left.is_zero(),
        "{term:?}"
    );
    root.lease_revoke(lease).await.unwrap();
    assert_eq!(pool.lease_term(lease).await.unwrap(), None);
}

#[tokio::test]
async fn a_member_reports_its_status_and_the_shortest_lease_is_revoked() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let status = pool.status().await.unwrap();
    assert_eq!(status.leader, status.member);
    assert!(status.version.starts_with("3."), "{status:?}");
    assert!(status.size > 0 && status.errors.is_empty(), "{status:?}");
    let members = pool.members().await.unwrap();
    assert_eq!(members.len(), 1);
    assert_eq!(members[0].id, status.member);
    assert_eq!(members[0].client_urls, std::slice::from_ref(&etcd.endpoint));
    // The election timeout is one second.
    let shortest = pool.shortest_term().await.unwrap();
    assert_eq!(shortest, Duration::from_secs(2));
    let mut client = etcd.client().await;
    assert_eq!(client.leases().await.unwrap().leases().len(), 0);
}
