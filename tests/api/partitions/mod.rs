//! Tests shared partitions: their owners, and when work on them begins and ends.

mod capacities;
mod checkpoints;
mod keeping;
mod membership;
mod observers;
mod spread;
mod stalls;
mod warming;
mod withdrawing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use eldest::{
    CancellationToken, ErrorKind, LostReason, Op, Partition, PartitionRunner, Partitions, Session,
    Term,
};
use eldest_testing::{Etcd, eventually};
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::common::{
    Probe, Result, SOON, Store, WHILE, in_memory, keys, leases, nothing_under, session, soon, stays,
};

const PREFIX: &str = "eldest/~partitions/billing/";

/// A member that runs in a separate task and reports every term of its work.
struct Running {
    shutdown: CancellationToken,
    begun: mpsc::UnboundedReceiver<(u32, Term)>,
    task: JoinHandle<eldest::Result<Option<()>>>,
    terms: BTreeMap<u32, Term>,
}

impl Running {
    fn start<W, F>(partitions: &Partitions, work: W) -> Self
    where
        W: FnMut(Partition) -> F + Send + 'static,
        F: Future<Output = Result> + Send + 'static,
    {
        Self::with(partitions.runner(), work)
    }

    fn with<W, F>(runner: PartitionRunner<'static>, mut work: W) -> Self
    where
        W: FnMut(Partition) -> F + Send + 'static,
        F: Future<Output = Result> + Send + 'static,
    {
        let (starts, begun) = mpsc::unbounded_channel();
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let task = tokio::spawn(async move {
            let work = move |partition: Partition| {
                let _ = starts.send((partition.number(), partition.term()));
                work(partition)
            };
            runner.run(stop, work).await
        });
        Self {
            shutdown,
            begun,
            task,
            terms: BTreeMap::new(),
        }
    }

    /// Returns the partitions that the member owns now.
    fn owned(&mut self) -> BTreeSet<u32> {
        while let Ok((number, term)) = self.begun.try_recv() {
            if let Some(earlier) = self.terms.insert(number, term.clone()) {
                assert!(!earlier.is_valid(), "{number} was begun twice");
                assert!(earlier.fencing_token() < term.fencing_token());
            }
        }
        let valid = self.terms.iter().filter(|(_, term)| term.is_valid());
        valid.map(|(number, _)| *number).collect()
    }

    async fn owns(&mut self, count: usize) -> Result<BTreeSet<u32>> {
        Ok(eventually(SOON, format!("{count} are owned"), async || {
            Some(self.owned()).filter(|owned| owned.len() == count)
        })
        .await?)
    }

    async fn end(self) -> eldest::Result<()> {
        let ended = soon("run returns", self.task).await.expect("no panic");
        ended.map(drop)
    }
}

async fn until_lost(partition: Partition) -> Result {
    partition.lost().cancelled().await;
    Ok(())
}

async fn partitions(
    etcd: &impl Store,
    identity: &str,
    count: u32,
) -> Result<(Session, Partitions)> {
    let session = session(etcd, identity).await?;
    let partitions = session.partitions("billing", count)?;
    Ok((session, partitions))
}

#[tokio::test(start_paused = true)]
async fn work_begins_once_a_partition_and_ends_before_its_key_goes() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_session, partitions) = partitions(&etcd, "a", 200).await?;
    let mut running = Running::start(&partitions, until_lost);
    assert_eq!(running.owns(200).await?, (0..200).collect());
    assert_eq!(
        keys(&mut client, PREFIX).await.len(),
        201,
        "a key of its own"
    );
    stays(WHILE, "nothing is begun again", async || {
        running.begun.is_empty()
    })
    .await?;
    let term = running.terms[&17].clone();
    assert_eq!(term.name(), "billing/17");
    assert_eq!(term.key(), format!("{PREFIX}200/o-17").as_bytes());
    running.shutdown.cancel();
    running.end().await?;
    assert!(!term.is_valid());
    assert_eq!(term.lost_reason(), Some(LostReason::Shutdown));
    assert_eq!(keys(&mut client, PREFIX).await, [], "when run has returned");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn work_that_fails_ends_the_run_after_all_other_work() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_session, partitions) = partitions(&etcd, "a", 6).await?;
    let ended = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&ended);
    let run = partitions.run(CancellationToken::new(), move |partition| {
        let counted = Arc::clone(&counted);
        async move {
            if partition.number() == 3 {
                return Err::<(), eldest::BoxError>("broken".into());
            }
            partition.lost().cancelled().await;
            *counted.lock().expect("no panic") += 1;
            Ok(())
        }
    });
    let error = soon("run", run).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Work);
    assert!(error.report().to_string().contains("broken"), "{error}");
    assert_eq!(keys(&mut client, PREFIX).await, []);
    // The member may run again.
    let run = partitions.run(CancellationToken::new(), async |_| {
        Ok::<_, eldest::BoxError>(())
    });
    soon("run", run).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn panic_of_one_partition_unwinds_after_the_others_have_ended() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_session, partitions) = partitions(&etcd, "a", 4).await?;
    for in_the_call in [false, true] {
        let ended = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&ended);
        let running = Running::start(&partitions, move |partition| {
            let (number, seen) = (partition.number(), Arc::clone(&seen));
            assert!(!in_the_call || number < 3, "on purpose");
            async move {
                assert_ne!(number, 3, "on purpose");
                partition.lost().cancelled().await;
                tokio::task::yield_now().await;
                seen.lock().expect("no panic").push(number);
                Ok(())
            }
        });
        let panic = soon("run", running.task).await.unwrap_err();
        assert!(panic.is_panic());
        let ended: BTreeSet<u32> = ended.lock().expect("no panic").drain(..).collect();
        assert_eq!(ended, BTreeSet::from([0, 1, 2]));
        assert_eq!(keys(&mut client, PREFIX).await, []);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_dropped_drops_the_work_and_then_the_keys() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let (_session, partitions) = partitions(&etcd, "a", 3).await?;
    let existed = Arc::new(Mutex::new(Vec::new()));
    let (endpoint, seen) = (etcd.endpoint(), Arc::clone(&existed));
    let mut running = Running::start(&partitions, move |partition| {
        let probe = Probe::new(&endpoint, partition.key(), &seen);
        async move {
            partition.lost().cancelled().await;
            drop(probe);
            Ok(())
        }
    });
    running.owns(3).await?;
    running.task.abort();
    nothing_under(&mut client, PREFIX).await?;
    assert_eq!(*existed.lock().expect("no panic"), [true; 3]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn work_that_ignores_its_token_is_dropped_and_its_partition_moves() -> Result {
    let etcd = in_memory();
    let (_a, first) = partitions(&etcd, "a", 4).await?;
    let (_b, second) = partitions(&etcd, "b", 4).await?;
    let mut a = Running::start(&first, |partition| async move {
        let _held = partition;
        std::future::pending().await
    });
    a.owns(4).await?;
    let mut b = Running::start(&second, until_lost);
    b.owns(2).await?;
    a.owns(2).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn partition_whose_key_is_deleted_is_retaken_with_a_larger_token() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_session, partitions) = partitions(&etcd, "a", 4).await?;
    let mut running = Running::start(&partitions, until_lost);
    running.owns(4).await?;
    let term = running.terms[&1].clone();
    client.delete(term.key(), None).await?;
    soon("lost", term.lost().cancelled()).await;
    assert_eq!(term.lost_reason(), Some(LostReason::KeyDeleted));
    let again = eventually(SOON, "taken again", async || {
        running.owned();
        let token = running.terms[&1].fencing_token();
        (token > term.fencing_token()).then_some(token)
    })
    .await?;
    assert!(again > term.fencing_token());
    // A late write of the old term is refused.
    let late = term.txn([Op::put("out", "late")]).await;
    assert_eq!(late.unwrap_err().kind(), ErrorKind::LeadershipLost);
    let guard = Compare::create_revision(term.key(), CompareOp::Equal, term.fencing_token());
    let txn = Txn::new()
        .when([guard])
        .and_then([TxnOp::put("out", "late", None)]);
    assert!(!client.txn(txn).await?.succeeded());
    running.terms[&1].txn([Op::put("out", "1")]).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_key_in_the_way_is_shown_and_left_alone() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    client.put(format!("{PREFIX}4/o-2"), "stuck", None).await?;
    let (_session, partitions) = partitions(&etcd, "a", 4).await?;
    let mut running = Running::start(&partitions, until_lost);
    assert_eq!(running.owns(3).await?, [0, 1, 3].into());
    let map = partitions.map().await?;
    assert!(map.owner(2).is_none());
    assert_eq!(map.unowned().collect::<Vec<_>>(), [2]);
    let blocked: Vec<_> = map.blocked().collect();
    assert_eq!(blocked.len(), 1);
    let (number, key) = blocked[0];
    assert_eq!((number, key.value()), (2, &b"stuck"[..]));
    assert_eq!(key.key(), format!("{PREFIX}4/o-2").as_bytes());
    client.delete(format!("{PREFIX}4/o-2"), None).await?;
    running.owns(4).await?;
    assert_eq!(partitions.map().await?.blocked().count(), 0);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_session_that_closes_hands_its_partitions_over() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (a, first) = partitions(&etcd, "a", 10).await?;
    let (_b, second) = partitions(&etcd, "b", 10).await?;
    let mut running = Running::start(&first, until_lost);
    running.owns(10).await?;
    let mut other = Running::start(&second, until_lost);
    other.owns(5).await?;
    soon("closed", a.close()).await?;
    other.owns(10).await?;
    let ended = running.end().await.unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Closed);
    assert_eq!(leases(&mut client).await, 1);
    Ok(())
}
