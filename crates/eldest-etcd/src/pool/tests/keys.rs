//! Tests how candidates are registered, read and removed.

use etcd_client::{Txn, TxnOp};

use super::*;
use eldest_core::kv::Entry;

fn key_names(entries: &[Entry]) -> Vec<String> {
    let name = |entry: &Entry| String::from_utf8_lossy(&entry.key).into_owned();
    entries.iter().map(name).collect()
}

/// Writes keys without a lease, 100 to a transaction.
async fn fill(pool: &Pool, keys: impl IntoIterator<Item = String>) {
    let keys: Vec<String> = keys.into_iter().collect();
    for chunk in keys.chunks(100) {
        let puts: Vec<TxnOp> = chunk
            .iter()
            .map(|key| TxnOp::put(key.as_str(), "v", None))
            .collect();
        pool.txn(Txn::new().and_then(puts)).await.unwrap();
    }
}

#[tokio::test]
async fn the_first_join_creates_the_key_and_the_second_finds_it() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let lease = fresh_id();
    pool.grant_as(lease, 30).await.unwrap();
    fill(&pool, ["ns/e/0".to_owned()]).await;

    let first = pool
        .join(b"ns/e/1", b"a", lease, b"ns/e/", Admission::default())
        .await
        .unwrap();
    assert!(first.created);
    assert_eq!(key_names(&first.entries), ["ns/e/0", "ns/e/1"]);
    let own = &first.entries[1];
    assert_eq!(own.create_revision, first.header.revision);
    assert_eq!(own.mod_revision, first.header.revision);
    assert_eq!(own.lease, lease);
    assert_eq!(&*own.value, b"a");
    assert_eq!(first.entries[0].lease, 0);

    let second = pool
        .join(b"ns/e/1", b"b", lease, b"ns/e/", Admission::default())
        .await
        .unwrap();
    assert!(!second.created);
    assert_eq!(second.entries, first.entries);
    assert_eq!(second.header, first.header);
}

#[tokio::test]
async fn a_join_is_refused_if_another_candidate_joined_after_a_revision() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let lease = fresh_id();
    pool.grant_as(lease, 30).await.unwrap();
    let join = async |key: &'static str, created_after: i64| {
        let admission = Admission {
            none_after: Some(created_after),
            ..Admission::default()
        };
        let joined = pool.join(key.as_bytes(), b"a", lease, b"ns/e/", admission);
        joined.await.unwrap()
    };
    // A neighbouring prefix does not count.
    fill(&pool, ["ns/f/0", "ns/e", "ns/d/9"].map(String::from)).await;
    let first = join("ns/e/1", 0).await;
    assert!(first.created, "nobody stands");
    let second = join("ns/e/2", 0).await;
    assert!(!second.created && second.other.is_none());
    assert_eq!(key_names(&second.entries), ["ns/e/1"]);
    assert!(!join("ns/e/2", first.header.revision - 1).await.created);
    assert!(join("ns/e/2", first.header.revision).await.created);
    let third = join("ns/e/3", first.header.revision).await;
    assert!(!third.created, "the second is younger");
    // A key that is written again has not joined again.
    pool.txn(Txn::new().and_then([TxnOp::put("ns/e/1", "b", None)]))
        .await
        .unwrap();
    assert!(join("ns/e/3", third.header.revision).await.created);
}

#[tokio::test]
async fn a_lock_joins_only_where_all_keys_are_locks() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let lease = fresh_id();
    pool.grant_as(lease, 30).await.unwrap();
    let join = async |prefix: &str, number: u8, value: &str| {
        let admission = Admission {
            only_locks: true,
            ..Admission::default()
        };
        let key = format!("{prefix}{number}");
        let joined = pool.join(
            key.as_bytes(),
            value.as_bytes(),
            lease,
            prefix.as_bytes(),
            admission,
        );
        joined.await.unwrap()
    };
    assert!(join("ns/l/", 1, " {}").await.created, "nothing stands");
    let second = join("ns/l/", 2, "").await;
    assert!(second.created, "behind a lock");
    assert_eq!(key_names(&second.entries), ["ns/l/1", "ns/l/2"]);
    assert!(
        join("ns/l/", 3, " x").await.created,
        "behind one that writes nothing"
    );
    assert!(!join("ns/l/", 3, " x").await.created, "it stands already");
    for value in ["{}", "node-a", "\u{ff}"] {
        let name = format!("ns/{value}/");
        let key = format!("{name}0");
        pool.txn(Txn::new().and_then([TxnOp::put(key.clone(), value, None)]))
            .await
            .unwrap();
        let refused = join(&name, 1, " {}").await;
        assert!(!refused.created && refused.other.is_none(), "{value}");
        assert_eq!(
            key_names(&refused.entries),
            [&*key],
            "the refusal shows the present keys"
        );
    }
}

#[tokio::test]
async fn a_join_is_refused_if_a_key_exists_beside_its_prefix() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let lease = fresh_id();
    pool.grant_as(lease, 30).await.unwrap();
    let join = async |key: &'static str, prefix: &'static str| {
        let admission = Admission {
            nothing_else_in: Some(b"ns/s/"[..].into()),
            ..Admission::default()
        };
        let joined = pool.join(key.as_bytes(), b"a", lease, prefix.as_bytes(), admission);
        joined.await.unwrap()
    };
    fill(&pool, ["ns/r/3/1", "ns/t/3/1", "ns/s"].map(String::from)).await;
    assert!(join("ns/s/2/1", "ns/s/2/").await.created);
    let again = join("ns/s/2/2", "ns/s/2/").await;
    assert!(again.created && again.other.is_none(), "beside its like");
    for (key, prefix) in [
        ("ns/s/1/3", "ns/s/1/"),
        ("ns/s/20/3", "ns/s/20/"),
        ("ns/s/3/3", "ns/s/3/"),
    ] {
        let refused = join(key, prefix).await;
        assert!(!refused.created && refused.entries.is_empty(), "{key}");
        assert_eq!(refused.other.as_deref(), Some(&b"ns/s/2/1"[..]));
    }
}

#[tokio::test]
async fn a_join_with_an_unknown_lease_says_so() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let failure = pool
        .join(b"ns/e/1", b"a", fresh_id(), b"ns/e/", Admission::default())
        .await
        .unwrap_err();
    assert_eq!(failure.class, Class::LeaseGone, "{failure}");
    assert_eq!(pool.read(Lane::Data, b"ns/e/1").await.unwrap().1, None);
}

#[tokio::test]
async fn more_candidates_than_a_page_are_read_whole() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let name = |n: i32| format!("ns/e/{n:05}");
    fill(&pool, (0..1300).map(name)).await;
    // Neighbours and deeper keys, some of them at the beginning of pages.
    fill(&pool, (500..520).map(|n| format!("{}/x", name(n)))).await;
    fill(
        &pool,
        ["ns/d/1", "ns/e", "ns/e/", "ns/f/1"].map(String::from),
    )
    .await;

    let listed = pool.list(b"ns/e/", Reach::Children).await.unwrap();
    assert_eq!(
        key_names(&listed.entries),
        (0..1300).map(name).collect::<Vec<_>>()
    );

    let lease = fresh_id();
    pool.grant_as(lease, 30).await.unwrap();
    let joined = pool
        .join(b"ns/e/99999", b"a", lease, b"ns/e/", Admission::default())
        .await
        .unwrap();
    assert!(joined.created);
    assert_eq!(joined.entries.len(), 1301);
    assert_eq!(joined.entries[..1300], listed.entries);
    let own = &joined.entries[1300];
    assert_eq!(
        (&*own.key, own.create_revision),
        (&b"ns/e/99999"[..], joined.header.revision)
    );

    // Keys of one transaction share their create revision, so the seventh hundred begins here.
    let seventh = listed.entries[600].create_revision;
    let older = pool.older(b"ns/e/", seventh).await.unwrap();
    assert_eq!(
        key_names(&older.entries),
        (0..600).map(name).collect::<Vec<_>>()
    );
    assert_eq!(older.header.revision, joined.header.revision);
    let first = listed.entries[0].create_revision;
    assert_eq!(pool.older(b"ns/e/", first).await.unwrap().entries, []);
    assert_eq!(pool.older(b"ns/e/", 1).await.unwrap().entries, []);
}

#[tokio::test]
async fn all_pages_show_the_same_revision() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    fill(&pool, (1000..2500).map(|n| format!("ns/e/{n}"))).await;
    fill(&pool, ["ns/e/0".to_owned()]).await;

    // One key moves from the first page to the last and back, in one transaction each time.
    let moving = tokio::spawn({
        let pool = Arc::clone(&pool);
        async move {
            let (mut there, mut here) = ("ns/e/0", "ns/e/9");
            loop {
                let ops = [TxnOp::delete(there, None), TxnOp::put(here, "v", None)];
                pool.txn(Txn::new().and_then(ops)).await.unwrap();
                std::mem::swap(&mut there, &mut here);
            }
        }
    });
    let mut revisions = Vec::new();
    for _ in 0..40 {
        let listed = pool.list(b"ns/e/", Reach::Children).await.unwrap();
        assert_eq!(listed.entries.len(), 1501);
        assert!(
            listed
                .entries
                .iter()
                .all(|e| e.mod_revision <= listed.header.revision)
        );
        revisions.push(listed.header.revision);
    }
    moving.abort();
    revisions.dedup();
    assert!(revisions.len() > 10, "nothing moved meanwhile");
}

#[tokio::test]
async fn delete_of_an_old_revision_never_removes_a_recreated_key() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let lease = fresh_id();
    pool.grant_as(lease, 30).await.unwrap();
    let join = || pool.join(b"ns/e/1", b"a", lease, b"ns/e/", Admission::default());
    let first = join().await.unwrap().header.revision;
    let gone = pool.delete(b"ns/e/1", first).await.unwrap();
    assert_eq!(gone.revision, first + 1);
    let second = join().await.unwrap().header.revision;

    // The first delete arrives a second time.
    let header = pool.delete(b"ns/e/1", first).await.unwrap();
    assert_eq!(header.revision, second);
    let (_, entry) = pool.read(Lane::Lease, b"ns/e/1").await.unwrap();
    assert_eq!(entry.unwrap().create_revision, second);

    pool.delete(b"ns/e/1", second).await.unwrap();
    let (header, entry) = pool.read(Lane::Lease, b"ns/e/1").await.unwrap();
    assert_eq!((header.revision, entry), (second + 1, None));
}

#[tokio::test]
async fn several_keys_are_read_at_one_revision() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let lease = fresh_id();
    pool.grant_as(lease, 30).await.unwrap();
    for name in ["ns/a/1", "ns/c/1"] {
        let prefix = &name.as_bytes()[..5];
        pool.join(name.as_bytes(), b"v", lease, prefix, Admission::default())
            .await
            .unwrap();
    }
    let keys = [b"ns/c/1", b"ns/b/1", b"ns/a/1"].map(|key| Arc::from(&key[..]));
    let (header, entries) = pool.read_each(Lane::Data, &keys).await.unwrap();
    let found: Vec<_> = entries
        .iter()
        .map(|entry| {
            entry
                .as_ref()
                .map(|e| (&*e.key, e.create_revision, e.lease))
        })
        .collect();
    let at = header.revision;
    assert_eq!(
        found,
        [
            Some((&b"ns/c/1"[..], at, lease)),
            None,
            Some((&b"ns/a/1"[..], at - 1, lease))
        ]
    );
}

#[tokio::test]
async fn a_proclamation_changes_the_value_of_our_own_key_only() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let (lease, other) = (fresh_id(), fresh_id());
    pool.grant_as(lease, 30).await.unwrap();
    pool.grant_as(other, 30).await.unwrap();
    let created = pool
        .join(b"ns/e/1", b"a", lease, b"ns/e/", Admission::default())
        .await
        .unwrap();
    let token = created.header.revision;

    let proclaim = async |token, lease, mod_revision, value: &[u8]| {
        let key = (&b"ns/e/1"[..], token, lease);
        pool.proclaim(key, mod_revision, value).await.unwrap()
    };
    assert_eq!(proclaim(token, lease, token, b"b").await, Ok(token + 1));
    for (token, lease, mod_revision) in [
        (token + 1, lease, token + 1),
        (token, other, token + 1),
        // Sent before the last announcement was answered, and applied late.
        (token, lease, token),
    ] {
        let stands = proclaim(token, lease, mod_revision, b"c").await;
        let stands = stands.unwrap_err().expect("the key stands");
        assert_eq!(*stands.value, *b"b");
    }
    let (_, entry) = pool.read(Lane::Data, b"ns/e/1").await.unwrap();
    let entry = entry.unwrap();
    assert_eq!(&*entry.value, b"b");
    assert_eq!((entry.create_revision, entry.lease), (token, lease));
    assert_eq!(entry.mod_revision, token + 1);
}

#[tokio::test]
async fn a_request_that_is_too_large_is_invalid() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let value = vec![0; 3 << 20];
    let failure = pool
        .join(b"ns/e/1", &value, 0, b"ns/e/", Admission::default())
        .await
        .unwrap_err();
    assert_eq!(failure.class, Class::Invalid, "{failure}");
    assert_eq!(failure.endpoint, etcd.endpoint);
}

#[tokio::test]
async fn candidates_beyond_the_default_message_size_are_read() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let value = vec![7; 1 << 20];
    for n in 0..6 {
        let key = format!("ns/e/{n}");
        pool.join(key.as_bytes(), &value, 0, b"ns/none/", Admission::default())
            .await
            .unwrap();
    }
    assert_eq!(
        pool.list(b"ns/e/", Reach::Children)
            .await
            .unwrap()
            .entries
            .len(),
        6
    );
}
