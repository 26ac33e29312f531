//! Tests that the keys of a proven lease are deleted, and no others.

use etcd_client::{GetOptions, PutOptions};

use super::access::{pool_of_user, with_users};
use super::*;
use eldest_guard::{Extent, Proof, Release};

const KEY: &str = "ns/~guard/1";

/// Makes a lease with its proof and `keys` keys of elections.
async fn proven(pool: &Pool, keys: usize) -> Proof {
    let lease = pool.grant_as(fresh_id(), 60).await.unwrap().id;
    let proof = pool
        .put_proof(KEY.to_owned(), lease)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(pool.put_proof(KEY.to_owned(), lease).await.unwrap(), None);
    assert_eq!(pool.proof(KEY, lease).await.unwrap(), Some(proof.clone()));
    assert_eq!(pool.proof(KEY, lease + 1).await.unwrap(), None);
    for number in 0..keys {
        let key = format!("ns/e/{number:04}");
        pool.join(key.as_bytes(), b"a", lease, b"ns/e/", Admission::default())
            .await
            .unwrap();
    }
    proof
}

/// Returns the keys that exist, in their order.
async fn standing(client: &mut Client) -> Vec<String> {
    let all = Some(GetOptions::new().with_all_keys());
    let found = client.get("", all).await.unwrap();
    let key = |kv: &etcd_client::KeyValue| kv.key_str().unwrap().to_owned();
    found.kvs().iter().map(key).collect()
}

async fn release(pool: &Pool, proof: &Proof, extent: Extent) -> Release {
    pool.release_proven(proof, "ns/", extent).await.unwrap()
}

#[tokio::test]
async fn keys_of_a_proven_lease_are_deleted_in_transactions_of_any_size() {
    for etcd in [
        Etcd::start().await,
        Etcd::start_with(&["--max-txn-ops=4"]).await,
    ] {
        let (pool, mut client) = (etcd.pool(), etcd.client().await);
        let proof = proven(&pool, 150).await;
        let released = Release::Released { outside: 0 };
        assert_eq!(release(&pool, &proof, Extent::AllButProof).await, released);
        assert_eq!(standing(&mut client).await, [KEY]);
        assert_eq!(release(&pool, &proof, Extent::AllButProof).await, released);
        assert!(pool.lease_term(proof.lease).await.unwrap().is_some());
        assert_eq!(release(&pool, &proof, Extent::All).await, released);
        assert!(standing(&mut client).await.is_empty());
        assert_eq!(release(&pool, &proof, Extent::All).await, Release::Unproven);
        pool.revoke(proof.lease).await.unwrap();
        assert_eq!(release(&pool, &proof, Extent::All).await, Release::Gone);
    }
}

#[tokio::test]
async fn without_its_proof_under_its_lease_no_key_is_deleted() {
    for case in [
        "deleted",
        "put again",
        "under another lease",
        "without a lease",
    ] {
        let etcd = Etcd::start().await;
        let (pool, mut client) = (etcd.pool(), etcd.client().await);
        let proof = proven(&pool, 2).await;
        let under = |lease| Some(PutOptions::new().with_lease(lease));
        match case {
            "deleted" => drop(client.delete(KEY, None).await.unwrap()),
            "put again" => {
                client.delete(KEY, None).await.unwrap();
                client.put(KEY, "", under(proof.lease)).await.unwrap();
            }
            "under another lease" => {
                let other = pool.grant_as(fresh_id(), 60).await.unwrap().id;
                client.put(KEY, "", under(other)).await.unwrap();
            }
            _ => drop(client.put(KEY, "", None).await.unwrap()),
        }
        let before = standing(&mut client).await;
        for extent in [Extent::AllButProof, Extent::All] {
            let release = release(&pool, &proof, extent).await;
            assert_eq!(release, Release::Unproven, "{case}");
        }
        assert_eq!(standing(&mut client).await, before, "{case}");
    }
}

/// Another user has proven a lease while it had no keys. Then its owner continues.
#[tokio::test]
async fn keys_outside_of_the_namespace_and_of_other_leases_stay() {
    let etcd = Etcd::start().await;
    let (pool, mut client) = (etcd.pool(), etcd.client().await);
    let proof = proven(&pool, 1).await;
    let other = pool.grant_as(fresh_id(), 60).await.unwrap().id;
    for (key, lease) in [
        ("nsx/e/1", proof.lease),
        ("another/e/1", proof.lease),
        ("ns/e/others", other),
        ("ns/e/none", 0),
    ] {
        let under = PutOptions::new().with_lease(lease);
        client.put(key, "", Some(under)).await.unwrap();
    }
    let released = Release::Released { outside: 2 };
    assert_eq!(release(&pool, &proof, Extent::AllButProof).await, released);
    let left = ["another/e/1", "ns/e/none", "ns/e/others", KEY, "nsx/e/1"];
    assert_eq!(standing(&mut client).await, left);
    assert!(pool.lease_term(proof.lease).await.unwrap().is_some());
}

#[tokio::test]
async fn unreadable_key_hides_no_key_that_the_user_may_delete() {
    let (etcd, mut root) = with_users().await;
    let pool = pool_of_user(&etcd, "me");
    let proof = proven(&pool, 3).await;
    let under = PutOptions::new().with_lease(proof.lease);
    root.put("another/e/1", "", Some(under)).await.unwrap();
    let release = release(&pool, &proof, Extent::All).await;
    assert!(matches!(release, Release::Released { .. }), "{release:?}");
    assert_eq!(standing(&mut root).await, ["another/e/1"]);
}
