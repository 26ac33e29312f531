//! Tests the overview of all keys below a namespace.

use eldest::{ErrorKind, Overview, Queue, QueueKind, Session};
use eldest_testing::eventually;

use crate::common::{Result, SOON, behind_a_proxy, in_memory, options, session, soon};

#[tokio::test(start_paused = true)]
async fn an_overview_distinguishes_elections_semaphores_partitions_and_groups() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (a, b) = (session(&etcd, "a").await?, session(&etcd, "b").await?);
    let _candidates = (
        a.election("x/one")?.campaign().await?,
        b.election("x/one")?.campaign().await?,
        a.election("xy")?.campaign().await?,
        a.election("x/one-more")?.campaign().await?,
    );
    let _permits = (
        a.semaphore("x/s", 2)?.acquire().await?,
        b.semaphore("x/s", 2)?.acquire().await?,
    );
    let _membership = a.partitions("x", 2)?.join().await?;
    let _member = a.group("x/g")?.join().await?;
    client.put("eldest/stray", "below nothing", None).await?;

    let all = a.overview("").await?;
    let names = |overview: &Overview| -> Vec<(String, QueueKind)> {
        let queues = overview.queues().iter();
        let named = queues.map(|queue| (queue.name().to_owned(), queue.kind()));
        named.collect()
    };
    let election = |name: &str| (name.to_owned(), QueueKind::Election);
    let of_others = [
        ("x/s".to_owned(), QueueKind::Semaphore { capacity: 2 }),
        ("x".to_owned(), QueueKind::Partitions { count: 2 }),
        ("x/g".to_owned(), QueueKind::Group),
    ];
    let mut wanted = vec![election("x/one"), election("x/one-more"), election("xy")];
    wanted.extend(of_others);
    assert_eq!(names(&all), wanted);
    wanted.remove(2);
    assert_eq!(names(&a.overview("x").await?), wanted);
    assert_eq!(names(&a.overview("x/one").await?), [election("x/one")]);
    assert_eq!(names(&a.overview("nobody").await?), []);

    let one = all.election("x/one").ok_or("it is there")?;
    let roster = a.election("x/one")?.roster().await?;
    assert_eq!(one.roster().members(), roster.members());
    let turns = |queue: &Queue| -> Vec<bool> {
        let members = queue.roster().members().iter();
        members.map(|member| queue.has_turn(member)).collect()
    };
    assert_eq!(turns(one), [true, false]);
    let mut queues = all.queues().iter();
    let semaphore = queues.find(|queue| queue.name() == "x/s");
    assert_eq!(semaphore.map(turns), Some(vec![true, true]));
    let group = all.queues().last().ok_or("the group")?;
    assert_eq!((turns(group), group.roster().leader()), (vec![false], None));
    let map = all.queues().iter().find_map(Queue::partition_map);
    assert_eq!(map.map(|map| map.members().len()), Some(1));
    Ok(())
}

/// More than a page of keys; another key is put between the reads of two pages. All keys are of one revision.
#[tokio::test(start_paused = true)]
async fn a_large_namespace_is_read_whole_at_one_revision() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    for batch in 0..10 {
        let puts = (0..120).map(|n| {
            let key = format!("eldest/x/{batch}/{n}");
            etcd_client::TxnOp::put(key, "somebody", None)
        });
        let txn = etcd_client::Txn::new().and_then(puts.collect::<Vec<_>>());
        client.txn(txn).await?;
    }
    client
        .put("eldest/~semaphore/x/s/3/1f-1", "later", None)
        .await?;
    let a = session(&etcd, "a").await?;
    let overview = a.overview("x").await?;
    assert_eq!(overview.queues().len(), 11);
    let members = overview
        .queues()
        .iter()
        .map(|queue| queue.roster().members().len());
    assert_eq!(members.sum::<usize>(), 1201);
    assert_eq!(
        overview.revision(),
        crate::common::revision(&mut client).await?
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_overview_never_reads_the_whole_store() -> Result {
    let etcd = in_memory();
    for namespace in ["", "/"] {
        let whole = etcd.session(options("a").namespace(namespace)).await?;
        let error = whole.overview("").await.expect_err("too much");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let _candidate = whole.election("x/one")?.campaign().await?;
        let overview = whole.overview("x").await?;
        assert_eq!(overview.queues().len(), 1);
        assert_eq!(overview.queues()[0].name(), "x/one");
    }
    let a = session(&etcd, "a").await?;
    for below in ["/x", "x/", "x//y", "~semaphore"] {
        let error = a.overview(below).await.expect_err("no name");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{below}: {error}");
    }
    Ok(())
}

/// The connection breaks during the first request, and the second is answered.
#[tokio::test]
async fn an_overview_is_retried_after_a_broken_connection() -> Result {
    let (etcd, proxy) = behind_a_proxy().await?;
    let a = session(&etcd, "a").await?;
    let _candidate = a.election("e")?.campaign().await?;
    let observer = options("observer").connect_timeout(SOON);
    let observer = Session::connect([proxy.endpoint()], observer).await?;
    // The first request is in flight when its connection breaks.
    proxy.hold_requests();
    let asked = tokio::spawn({
        let observer = observer.clone();
        async move {
            let overview = observer.overview("").await;
            overview.map(|overview| overview.queues().len())
        }
    });
    let under_way = async || (proxy.held_requests() > 0).then_some(());
    eventually(SOON, "the question is under way", under_way).await?;
    proxy.cut();
    proxy.heal();
    assert_eq!(soon("it is answered", asked).await??, 1);
    Ok(())
}
