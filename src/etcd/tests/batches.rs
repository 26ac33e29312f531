//! Many keys in one transaction, each under a condition of its own.

use super::*;

fn keys(numbers: impl IntoIterator<Item = u32>) -> Vec<Arc<[u8]>> {
    let key = |n| Arc::from(format!("ns/p/o-{n}").as_bytes());
    numbers.into_iter().map(key).collect()
}

#[tokio::test]
async fn what_is_absent_is_taken_and_what_stands_is_left_alone() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let lease = fresh_id();
    pool.grant(lease, 30).await.unwrap();
    let member = pool
        .join(b"ns/p/m-1", b"a", lease, b"ns/p/", Unless::default())
        .await
        .unwrap();
    let guard = (&b"ns/p/m-1"[..], member.header.revision);
    let first = keys([1]);
    let (header, taken) = pool.take(guard, b"a", lease, &first).await.unwrap();
    assert_eq!(taken, Some(vec![true]));

    let all = keys(0..127);
    let (second, taken) = pool.take(guard, b"b", lease, &all).await.unwrap();
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

    // One of them has another create revision: it stays, the others go.
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
async fn without_its_member_nothing_is_taken() {
    let etcd = Etcd::start().await;
    let pool = etcd.pool();
    let lease = fresh_id();
    pool.grant(lease, 30).await.unwrap();
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
