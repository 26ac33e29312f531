//! Tests members that prepare for partitions before they own them, and owners that serve until then, also before they leave.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use eldest::{
    Announcement, BoxError, ComingPartition, ErrorKind, LostReason, Partition, PartitionRunner,
    Term,
};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use super::{PREFIX, Running, partitions, until_lost};
use crate::common::{Result, SOON, Store, WHILE, in_memory, keys, options, session, soon, stays};

/// How long the owners in this file wait; far below the TTL of [`options`].
const LIMIT: Duration = Duration::from_secs(30);
const COUNT: u32 = 4;

/// The steps of a member, each with its partition: `prepares`, `stops`, `works`.
type Steps = mpsc::UnboundedReceiver<(&'static str, u32)>;

/// A member whose preparations end when the test says so.
struct Member {
    running: Running,
    steps: Steps,
    /// Each permit lets one preparation return.
    prepared: Arc<Semaphore>,
}

impl Member {
    async fn start(etcd: &impl Store, identity: &str, count: u32) -> Result<Self> {
        Self::with(etcd, identity, count, |runner| runner).await
    }

    /// Starts a member that hands over its partitions before it leaves.
    async fn handing_over(etcd: &impl Store, identity: &str, within: Duration) -> Result<Self> {
        Self::with(etcd, identity, COUNT, |r| r.hand_over_within(within)).await
    }

    async fn with(
        etcd: &impl Store,
        identity: &str,
        count: u32,
        option: impl FnOnce(PartitionRunner<'static>) -> PartitionRunner<'static>,
    ) -> Result<Self> {
        let session = session(etcd, identity).await?;
        let shards = session.partitions("billing", count)?.warm_within(LIMIT);
        let (say, steps) = mpsc::unbounded_channel();
        let prepared = Arc::new(Semaphore::new(0));
        let (says, permits) = (say.clone(), Arc::clone(&prepared));
        let runner = shards.runner().prepare(move |coming: ComingPartition| {
            let (say, permits) = (says.clone(), Arc::clone(&permits));
            async move {
                let number = coming.number();
                say.send(("prepares", number))?;
                let stopped = coming.stopped();
                if let Some(permit) = stopped.run_until_cancelled(permits.acquire()).await {
                    permit?.forget();
                } else {
                    // The work on the partition does not begin before the preparation has ended.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    say.send(("stops", number))?;
                }
                Ok::<_, BoxError>(())
            }
        });
        let running = Running::with(option(runner), move |partition| {
            let _ = say.send(("works", partition.number()));
            until_lost(partition)
        });
        Ok(Self {
            running,
            steps,
            prepared,
        })
    }

    /// Waits for so many steps of that kind, and returns their partitions.
    async fn does(&mut self, step: &str, times: usize) -> BTreeSet<u32> {
        let mut numbers = BTreeSet::new();
        for _ in 0..times {
            let (done, number) = soon(step, self.steps.recv()).await.expect("it runs");
            assert_eq!(done, step, "{number}");
            assert!(numbers.insert(number), "{number} twice");
        }
        numbers
    }
}

/// Starts a member that owns everything and one that prepares for its half.
async fn owner_and_next(etcd: &impl Store) -> Result<(Member, Member, BTreeSet<u32>)> {
    let mut a = Member::start(etcd, "a", COUNT).await?;
    a.running.owns(COUNT as usize).await?;
    a.does("works", COUNT as usize).await;
    let mut b = Member::start(etcd, "b", COUNT).await?;
    let coming = b.does("prepares", COUNT as usize / 2).await;
    Ok((a, b, coming))
}

#[tokio::test(start_paused = true)]
async fn owner_serves_until_the_next_owner_is_ready() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (mut a, mut b, coming) = owner_and_next(&etcd).await?;
    let before = a.running.terms.clone();
    stays(LIMIT / 2, "the owner serves", async || {
        before.values().all(Term::is_serving)
    })
    .await?;
    assert_eq!(keys(&mut client, PREFIX).await.len(), 6, "no key of b's");
    b.prepared.add_permits(1);
    let first = b.does("works", 1).await;
    assert_eq!(a.running.owns(3).await?.len(), 3, "the other is kept");
    b.prepared.add_permits(1);
    let second = b.does("works", 1).await;
    assert_eq!(&first | &second, coming);
    for number in &coming {
        let old = &before[number];
        assert_eq!(old.lost_reason(), Some(LostReason::Reassigned));
        b.running.owned();
        assert!(b.running.terms[number].fencing_token() > old.fencing_token());
    }
    // When a leaves, nothing is kept back.
    a.running.shutdown.cancel();
    a.running.end().await?;
    b.does("works", 2).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn partition_moves_unprepared_at_the_limit_and_its_preparation_ends_first() -> Result {
    let etcd = in_memory();
    let begun = Instant::now();
    let (mut a, mut b, coming) = owner_and_next(&etcd).await?;
    stays(LIMIT * 9 / 10, "the owner serves", async || {
        a.running.owned().len() == COUNT as usize
    })
    .await?;
    let (mut stopped, mut works) = (BTreeSet::new(), BTreeSet::new());
    while works != coming {
        let (step, number) = soon("it moves", b.steps.recv()).await.expect("it runs");
        if step == "stops" {
            stopped.insert(number);
        } else {
            assert!(stopped.contains(&number), "{step} {number}");
            works.insert(number);
        }
    }
    assert!(begun.elapsed() >= LIMIT, "{:?}", begun.elapsed());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn failed_preparation_ends_the_wait_for_its_partition_alone() -> Result {
    let etcd = in_memory();
    let mut a = Member::start(&etcd, "a", COUNT).await?;
    a.running.owns(COUNT as usize).await?;
    let (_b, second) = partitions(&etcd, "b", COUNT).await?;
    let (say, mut coming) = mpsc::unbounded_channel();
    let runner = second.runner().prepare(move |partition: ComingPartition| {
        let is_first = say.send(partition.number()).is_ok() && partition.number() == 2;
        async move {
            if is_first {
                return Err("the disk is full".into());
            }
            partition.stopped().cancelled().await;
            Ok::<_, BoxError>(())
        }
    });
    let mut b = Running::with(runner, until_lost);
    let two = [coming.recv().await, coming.recv().await];
    assert_eq!(two, [Some(2), Some(3)]);
    assert_eq!(b.owns(1).await?, [2].into());
    stays(LIMIT / 2, "the other one is kept", async || {
        b.owned().len() == 1
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_preparing_unwinds_after_the_other_work_has_ended() -> Result {
    let etcd = in_memory();
    let mut a = Member::start(&etcd, "a", COUNT).await?;
    a.running.owns(COUNT as usize).await?;
    let (_b, second) = partitions(&etcd, "b", COUNT).await?;
    for in_the_call in [false, true] {
        let (say, mut stopped) = mpsc::unbounded_channel();
        let runner = second.runner().prepare(move |coming: ComingPartition| {
            let (number, say) = (coming.number(), say.clone());
            assert!(!in_the_call || number < 3, "it panics");
            async move {
                assert_ne!(number, 3, "it panics");
                coming.stopped().cancelled().await;
                say.send(number)?;
                Ok::<_, BoxError>(())
            }
        });
        let b = Running::with(runner, until_lost);
        let ended = soon("run ends", b.task).await;
        assert!(ended.expect_err("it panicked").is_panic());
        assert_eq!(stopped.recv().await, Some(2), "{in_the_call}");
    }
    stays(WHILE, "a owns all", async || a.running.owned().len() == 4).await
}

#[tokio::test(start_paused = true)]
async fn member_that_leaves_or_expects_a_partition_no_longer_stops_to_prepare() -> Result {
    let etcd = in_memory();
    let (mut a, mut b, coming) = owner_and_next(&etcd).await?;
    // A third member halves what is coming to b.
    let mut c = Member::start(&etcd, "c", COUNT).await?;
    let gone = b.does("stops", 1).await;
    assert_eq!(c.does("prepares", 1).await, gone);
    b.running.shutdown.cancel();
    let left = b.does("stops", 1).await;
    assert_eq!(&gone | &left, coming);
    b.running.end().await?;
    // Now c has b's place, and a new wait for the partition that b had.
    assert_eq!(c.does("prepares", 1).await, left);
    c.prepared.add_permits(2);
    assert_eq!(c.does("works", 2).await, coming);
    assert_eq!(a.running.owned().len(), 2);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn member_prepares_for_at_most_64_partitions_at_a_time() -> Result {
    let etcd = in_memory();
    let mut a = Member::start(&etcd, "a", 200).await?;
    a.running.owns(200).await?;
    let mut b = Member::start(&etcd, "b", 200).await?;
    let first = b.does("prepares", 64).await;
    tokio::time::sleep(WHILE).await;
    assert!(b.steps.try_recv().is_err(), "no more than 64");
    b.prepared.add_permits(100);
    let mut all = first;
    while let Ok(Some((step, number))) = tokio::time::timeout(SOON, b.steps.recv()).await {
        assert_ne!(step, "stops", "{number}");
        all.insert(number);
        if b.running.owned().len() == 100 {
            break;
        }
    }
    assert_eq!(b.running.owned(), all);
    assert_eq!(a.running.owned().len(), 100);
    Ok(())
}

/// An option of a runner.
type Configure = fn(PartitionRunner<'static>) -> PartitionRunner<'static>;

#[tokio::test(start_paused = true)]
async fn limit_or_announcement_that_cannot_be_used_is_refused_with_the_rule() -> Result {
    let etcd = in_memory();
    let session = session(&etcd, "a").await?;
    let day = Duration::from_secs(24 * 60 * 60);
    for limit in [Duration::ZERO, day + Duration::from_millis(1)] {
        let shards = session.partitions("billing", COUNT)?.warm_within(limit);
        let error = shards.join().await.expect_err("the limit is refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(&format!("{limit:?}")), "{error}");
    }
    let short = || Announcement::new("b");
    let long = || short().with_metadata("m", "x".repeat(32 * 1024 - 400));
    let at_once: Configure = |runner| runner.hand_over_within(Duration::ZERO);
    let hands_over: Configure = |runner| runner.hand_over_within(LIMIT);
    let prepares: Configure = |runner| runner.prepare(async |_: ComingPartition| Result::Ok(()));
    for (announcement, configure, rule) in [
        (short(), at_once, "hand_over_within is 0ns"),
        ("b".into(), hands_over, "do not set `hand_over_within`"),
        (long(), hands_over, "allowed with `hand_over_within`"),
        ("b".into(), prepares, "do not set `prepare`"),
        (long(), prepares, "allowed with `prepare`"),
    ] {
        let options = options("b").announcement(announcement);
        let shards = etcd.session(options).await?.partitions("billing", COUNT)?;
        let never = std::future::pending::<()>();
        let work = async |_: Partition| Ok::<(), BoxError>(());
        let error = soon(rule, configure(shards.runner()).run(never, work)).await;
        let error = error.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(rule), "{error}");
    }
    Ok(())
}

/// Starts a member that owns everything, hands it over before it leaves, and is about to leave; and one that prepares for it.
async fn leaving_and_next(etcd: &impl Store, within: Duration) -> Result<(Member, Member)> {
    let mut a = Member::handing_over(etcd, "a", within).await?;
    a.running.owns(COUNT as usize).await?;
    let mut b = Member::handing_over(etcd, "b", within).await?;
    let half = COUNT as usize / 2;
    b.does("prepares", half).await;
    b.prepared.add_permits(half);
    b.does("works", half).await;
    a.running.owns(half).await?;
    a.running.shutdown.cancel();
    b.does("prepares", half).await;
    Ok((a, b))
}

#[tokio::test(start_paused = true)]
async fn leaving_member_serves_until_the_next_owners_are_ready_and_then_leaves() -> Result {
    let etcd = in_memory();
    let begun = Instant::now();
    let (mut a, mut b) = leaving_and_next(&etcd, LIMIT).await?;
    let before = a.running.terms.clone();
    stays(LIMIT / 2, "the leaving member serves", async || {
        a.running.owned().len() == COUNT as usize / 2
    })
    .await?;
    b.prepared.add_permits(1);
    let first = b.does("works", 1).await;
    a.running.owns(1).await?;
    b.prepared.add_permits(1);
    let second = b.does("works", 1).await;
    for number in &first | &second {
        let reason = before[&number].lost_reason();
        assert_eq!(reason, Some(LostReason::Reassigned), "{number}");
    }
    a.running.end().await?;
    assert!(begun.elapsed() < LIMIT, "the limit did not end it");
    assert_eq!(b.running.owns(COUNT as usize).await?.len(), 4);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn leaving_member_leaves_at_the_limit_with_what_it_owns() -> Result {
    let etcd = in_memory();
    // Far below the time for which an owner waits for the next one to be ready.
    let within = LIMIT / 10;
    let (a, mut b) = leaving_and_next(&etcd, within).await?;
    let asked = Instant::now();
    a.running.end().await?;
    assert!(asked.elapsed() >= within / 2, "{:?}", asked.elapsed());
    assert!(asked.elapsed() < LIMIT / 2, "{:?}", asked.elapsed());
    // The rest moves as from any member that leaves.
    let mut works = BTreeSet::new();
    while works.len() < 2 {
        let (step, number) = soon("it moves", b.steps.recv()).await.expect("it runs");
        if step == "works" {
            works.insert(number);
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn member_hands_nothing_over_while_no_other_member_takes_partitions() -> Result {
    let etcd = in_memory();
    let mut alone = Member::handing_over(&etcd, "a", LIMIT).await?;
    alone.running.owns(COUNT as usize).await?;
    let begun = Instant::now();
    alone.running.shutdown.cancel();
    alone.running.end().await?;
    assert!(begun.elapsed() < LIMIT / 4, "{:?}", begun.elapsed());

    // Both leave at the same time.
    let mut a = Member::handing_over(&etcd, "a", LIMIT).await?;
    a.running.owns(COUNT as usize).await?;
    let b = Member::handing_over(&etcd, "b", LIMIT).await?;
    a.running.shutdown.cancel();
    b.running.shutdown.cancel();
    let begun = Instant::now();
    a.running.end().await?;
    b.running.end().await?;
    assert!(begun.elapsed() < LIMIT / 4, "{:?}", begun.elapsed());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn preparation_reads_the_checkpoint_that_the_present_owner_saved_last() -> Result {
    let etcd = in_memory();
    let (_a, first) = partitions(&etcd, "a", 2).await?;
    let (says, mut said) = mpsc::unbounded_channel();
    let mut a = Running::start(&first.warm_within(LIMIT), move |partition: Partition| {
        let says = says.clone();
        async move {
            partition.checkpoint("first").await?;
            partition.checkpoint("second").await?;
            says.send(partition.number())?;
            partition.lost().cancelled().await;
            Ok(partition.checkpoint("third").await?)
        }
    });
    a.owns(2).await?;
    for _ in 0..2 {
        soon("it saves", said.recv()).await.expect("it runs");
    }
    let (_b, second) = partitions(&etcd, "b", 2).await?;
    let (say, mut read) = mpsc::unbounded_channel();
    let says = say.clone();
    let runner = second.runner().prepare(move |coming: ComingPartition| {
        let says = says.clone();
        async move {
            let last = coming.last_checkpoint().await?.ok_or("it has none")?;
            says.send(("prepares", last.identity() == "a", last.into_value()))?;
            Ok::<_, BoxError>(())
        }
    });
    let mut b = Running::with(runner, move |partition: Partition| {
        let say = say.clone();
        async move {
            let last = partition.last_checkpoint().await?.ok_or("it has none")?;
            say.send(("works", last.identity() == "a", last.into_value()))?;
            until_lost(partition).await
        }
    });
    b.owns(1).await?;
    let prepared = soon("it is prepared", read.recv()).await;
    assert_eq!(prepared, Some(("prepares", true, b"second".into())));
    let begun = soon("its work begins", read.recv()).await;
    assert_eq!(begun, Some(("works", true, b"third".into())));
    Ok(())
}
