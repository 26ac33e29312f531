//! Tests many keys in one transaction, each under a condition of its own.

use super::*;

fn keys(numbers: impl IntoIterator<Item = u32>) -> Vec<Arc<[u8]>> {
    let key = |n| Arc::from(format!("ns/p/o-{n}").as_bytes());
    numbers.into_iter().map(key).collect()
}

#[tokio::test]
async fn free_partitions_are_taken_and_owned_ones_left_alone() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let lease = fresh_id();
    pool.grant_as(lease, 30).await.unwrap();
    let member = pool
        .join(b"ns/p/m-1", b"a", lease, b"ns/p/", Admission::default())
        .await
        .unwrap();
    let member_key = (&b"ns/p/m-1"[..], member.header.revision);
    let first = keys([1]);
    let (header, taken) = pool.take(member_key, b"a", lease, &first).await.unwrap();
    assert_eq!(taken, Some(vec![true]));

    let all = keys(0..127);
    let (second, taken) = pool.take(member_key, b"b", lease, &all).await.unwrap();
    assert_eq!(second.revision, header.revision + 1);
    let expected: Vec<bool> = (0..127).map(|n| n != 1).collect();
    assert_eq!(taken, Some(expected));
    let (_, kept) = pool.read(Lane::Data, &first[0]).await.unwrap();
    let kept = kept.unwrap();
    assert_eq!(
        (&*kept.value, kept.create_revision),
        (&b"a"[..], header.revision)
    );
    let (_, new) = pool.read(Lane::Data, &all[5]).await.unwrap();
    let new = new.unwrap();
    assert_eq!((new.create_revision, new.lease), (second.revision, lease));

    // One of the keys has another create revision: it stays, and the others are deleted.
    let doomed: Vec<_> = all
        .iter()
        .map(|key| (Arc::clone(key), second.revision))
        .collect();
    pool.release(&doomed).await.unwrap();
    let left = pool.list(b"ns/p/", Reach::Children).await.unwrap().entries;
    let left: Vec<_> = left.iter().map(|entry| &*entry.key).collect();
    assert_eq!(left, [&b"ns/p/m-1"[..], b"ns/p/o-1"]);
}

#[tokio::test]
async fn without_its_member_key_no_partition_is_taken() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let lease = fresh_id();
    pool.grant_as(lease, 30).await.unwrap();
    let (_, taken) = pool
        .take((b"ns/p/m-1", 7), b"a", lease, &keys(0..3))
        .await
        .unwrap();
    assert_eq!(taken, None);
    assert_eq!(
        pool.list(b"ns/p/", Reach::Children).await.unwrap().entries,
        []
    );
}

/// Returns the key and prefix of candidate `1` of election `n`.
fn candidate(n: usize) -> (String, String) {
    (format!("ns/e{n}/1"), format!("ns/e{n}/"))
}

fn join((key, prefix): &(String, String), lease: i64, admission: Admission) -> Join {
    Join {
        key: key.as_bytes().into(),
        value: b"v"[..].into(),
        lease,
        prefix: prefix.as_bytes().into(),
        admission,
    }
}

fn refs(joins: &[Join]) -> Vec<&Join> {
    joins.iter().collect()
}

#[tokio::test]
async fn lock_writes_no_key_beside_a_candidate_that_joined_meanwhile() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let lease = fresh_id();
    pool.grant_as(lease, 30).await.unwrap();
    let add_key = async |key: &[u8], value: &[u8]| {
        let joined = pool.join(key, value, lease, b"ns/l/", Admission::default());
        joined.await.unwrap();
    };
    let admission = Admission {
        only_locks: true,
        ..Admission::default()
    };
    let lock = join(&("ns/l/2".into(), "ns/l/".into()), lease, admission);
    add_key(b"ns/l/1", b" of a lock").await;
    // The first request has found the other lock alone.
    add_key(b"ns/l/3", b"of a candidate").await;
    assert!(!pool.join_behind(&lock, 16).await.unwrap().created);
    let (_, candidate) = pool.read(Lane::Data, b"ns/l/3").await.unwrap();
    let revision = candidate.unwrap().create_revision;
    pool.release(&[(b"ns/l/3"[..].into(), revision)])
        .await
        .unwrap();
    assert!(pool.join_behind(&lock, 16).await.unwrap().created);
}

#[tokio::test]
async fn joins_share_a_transaction_and_nothing_else() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let lease = fresh_id();
    pool.grant_as(lease, 30).await.unwrap();
    // The first election has no other candidate, the second its own key, the third more keys than one answer holds, the
    // fourth a candidate that its admission refuses.
    let candidates: Vec<_> = (0..4).map(candidate).collect();
    let put_candidate = async |key: &str, prefix: &str| {
        let (key, prefix) = (key.as_bytes(), prefix.as_bytes());
        let joined = pool.join(key, b"o", lease, prefix, Admission::default());
        joined.await.unwrap().header.revision
    };
    let mine = put_candidate("ns/e1/1", "ns/e1/").await;
    for n in 100..140 {
        put_candidate(&format!("ns/e2/{n}"), "ns/e2/").await;
    }
    let other = put_candidate("ns/e3/0", "ns/e3/").await;
    let alone = Admission {
        none_after: Some(other - 1),
        ..Admission::default()
    };
    let all = |n: usize| {
        if n == 3 {
            alone.clone()
        } else {
            Admission::default()
        }
    };
    let joins: Vec<_> = candidates
        .iter()
        .enumerate()
        .map(|(n, candidate)| join(candidate, lease, all(n)))
        .collect();

    let registered = pool.join_each(&refs(&joins)).await.unwrap();
    let mut joined = Vec::new();
    for one in registered {
        joined.push(pool.finish(one).await.unwrap());
    }
    let created: Vec<_> = joined.iter().map(|joined| joined.created).collect();
    assert_eq!(created, [true, false, true, false]);
    for joined in &joined {
        assert_eq!(joined.header.revision, other + 1, "one revision");
    }
    let revisions = |n: usize| {
        let entries = joined[n].entries.iter();
        entries.map(|e| e.create_revision).collect::<Vec<_>>()
    };
    assert_eq!(revisions(0), [other + 1]);
    assert_eq!(revisions(1), [mine]);
    assert_eq!(revisions(2).len(), 41, "read to the end");
    assert!(revisions(2).contains(&(other + 1)));
    assert_eq!(revisions(3), [other]);
}

#[tokio::test]
async fn sixty_four_joins_fit_etcds_limit_with_room_to_spare() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let lease = fresh_id();
    pool.grant_as(lease, 30).await.unwrap();
    let of = |n| (0..n).map(candidate).collect::<Vec<_>>();
    let beside = Admission {
        none_after: Some(0),
        ..Admission::default()
    };
    let (fit, many) = (of(64), of(127));
    let joins: Vec<_> = fit
        .iter()
        .map(|one| join(one, lease, beside.clone()))
        .collect();
    let joined = pool.join_each(&refs(&joins)).await.unwrap();
    for one in joined {
        assert!(pool.finish(one).await.unwrap().created);
    }
    let joins: Vec<_> = many
        .iter()
        .map(|one| join(one, lease, beside.clone()))
        .collect();
    let refused = pool.join_each(&refs(&joins)).await.map(drop).unwrap_err();
    assert_eq!(refused.class, Class::Invalid, "{refused}");
    // One lease that is gone fails all joins, and no key is put.
    let two = [candidate(200), candidate(201)];
    let gone = [
        join(&two[0], lease, beside.clone()),
        join(&two[1], fresh_id(), beside),
    ];
    let gone = pool.join_each(&refs(&gone)).await;
    let gone = gone.map(drop).unwrap_err();
    assert_eq!(gone.class, Class::LeaseGone);
    let listed = pool.list(b"ns/e200/", Reach::Children).await.unwrap();
    assert_eq!(listed.entries, []);
}
