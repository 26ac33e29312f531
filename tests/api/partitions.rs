//! Shared partitions: who owns what, what work is begun and ended, and what onlookers see.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{
    Probe, Result, SOON, WHILE, keys, leases, nothing_under, options, session, short, soon, stays,
};
use eldest::etcd_client::TxnOp;
use eldest::{
    Announcement, CancellationToken, ErrorKind, LostReason, Member, Membership, Partition,
    Partitions, Session, Term,
};
use eldest_testing::{Etcd, eventually};
use futures::StreamExt;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const PREFIX: &str = "eldest/~partitions/billing/";

/// A member that runs in a task of its own and tells every term of its work.
struct Running {
    shutdown: CancellationToken,
    begun: mpsc::UnboundedReceiver<(u32, Term)>,
    task: JoinHandle<eldest::Result<()>>,
    terms: BTreeMap<u32, Term>,
}

impl Running {
    fn start<W, F>(partitions: &Partitions, mut work: W) -> Self
    where
        W: FnMut(Partition) -> F + Send + 'static,
        F: Future<Output = Result> + Send + 'static,
    {
        let (told, begun) = mpsc::unbounded_channel();
        let (partitions, shutdown) = (partitions.clone(), CancellationToken::new());
        let stop = shutdown.clone();
        let task = tokio::spawn(async move {
            let work = move |partition: Partition| {
                let _ = told.send((partition.number(), partition.term()));
                work(partition)
            };
            partitions.run(stop, work).await
        });
        Self {
            shutdown,
            begun,
            task,
            terms: BTreeMap::new(),
        }
    }

    /// The partitions that it owns now.
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
        eventually(SOON, format!("{count} are owned"), async || {
            Some(self.owned()).filter(|owned| owned.len() == count)
        })
        .await
    }

    async fn end(self) -> eldest::Result<()> {
        soon("run returns", self.task).await.expect("no panic")
    }
}

async fn until_lost(partition: Partition) -> Result {
    partition.lost().cancelled().await;
    Ok(())
}

async fn partitions(etcd: &Etcd, identity: &str, count: u32) -> Result<(Session, Partitions)> {
    let session = session(etcd, identity).await?;
    let partitions = session.partitions("billing", count)?;
    Ok((session, partitions))
}

async fn next(member: &mut Membership) -> Result<Partition> {
    Ok(soon("a partition", member.owned()).await?)
}

#[tokio::test]
async fn work_is_begun_once_for_each_partition_and_ended_before_its_key_goes() -> Result {
    let etcd = Etcd::start().await?;
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
    assert_eq!(term.election(), "billing/17");
    assert_eq!(term.key(), format!("{PREFIX}200/o-17").as_bytes());
    running.shutdown.cancel();
    running.end().await?;
    assert!(!term.is_valid());
    assert_eq!(term.lost_reason(), Some(LostReason::Shutdown));
    assert_eq!(keys(&mut client, PREFIX).await, [], "when run has returned");
    Ok(())
}

#[tokio::test]
async fn who_joins_is_given_its_share_and_who_leaves_leaves_it() -> Result {
    let etcd = Etcd::start().await?;
    let (_a, first) = partitions(&etcd, "a", 12).await?;
    let (_b, second) = partitions(&etcd, "b", 12).await?;
    let mut a = Running::start(&first, until_lost);
    a.owns(12).await?;
    let before = a.terms.clone();
    let mut b = Running::start(&second, until_lost);
    let moved = b.owns(6).await?;
    let kept = a.owns(6).await?;
    assert!(moved.is_disjoint(&kept));
    for number in &kept {
        assert!(before[number].is_valid(), "{number} did not move");
    }
    for number in &moved {
        assert_eq!(before[number].lost_reason(), Some(LostReason::Reassigned));
        assert!(b.terms[number].fencing_token() > before[number].fencing_token());
    }
    b.shutdown.cancel();
    b.end().await?;
    a.owns(12).await?;
    for number in &kept {
        assert!(before[number].is_valid(), "{number} did not move");
    }
    Ok(())
}

#[tokio::test]
async fn onlookers_see_which_partition_is_with_whom_and_how_to_reach_it() -> Result {
    let etcd = Etcd::start().await?;
    let (_eye, seen) = partitions(&etcd, "eye", 8).await?;
    let map = seen.map().await?;
    assert_eq!((map.members().len(), map.unowned().count()), (0, 8));
    let mut changes = seen.observe().await?;
    let first = soon("the first state", changes.next())
        .await
        .expect("open")?;
    assert_eq!(first.unowned().count(), 8);

    let mut members = Vec::new();
    for (name, address) in [("a", "10.0.0.1:80"), ("b", "10.0.0.2:80")] {
        let announcement = Announcement::new(name).address(address);
        let options = options(name).announce(announcement);
        let session = Session::connect([etcd.endpoint()], options).await?;
        let running = Running::start(&session.partitions("billing", 8)?, until_lost);
        members.push((session, running));
        eventually(SOON, format!("{name} is a member"), async || {
            let map = seen.map().await.ok()?;
            let there = map.members().iter().any(|m| m.identity() == name);
            (there && map.unowned().next().is_none()).then_some(())
        })
        .await?;
    }
    let even = async {
        loop {
            let map = changes.next().await.expect("open").expect("permitted");
            let loads = map.members().iter();
            let loads: Vec<_> = loads.map(|m| map.partitions_of(m).count()).collect();
            if loads == [4, 4] {
                return map;
            }
        }
    };
    let map = soon("even", even).await;
    assert_eq!(map.count(), 8);
    assert!(map.revision() > first.revision());
    for (number, of) in map.iter() {
        let (_, owner) = &mut members[usize::from(of.identity() == "b")];
        // The key stands before its owner has heard of it.
        eventually(SOON, format!("{number} has its work"), async || {
            owner.owned().contains(&number).then_some(())
        })
        .await?;
        let address = format!("10.0.0.{}:80", 1 + u8::from(of.identity() == "b"));
        assert_eq!(of.address(), Some(&*address));
        let member = of.member().expect("is there");
        assert_eq!(member.lease_id(), of.lease_id());
        let token = owner.terms[&number].fencing_token();
        assert_eq!(of.fencing_token(), token);
    }
    let names: Vec<_> = map.members().iter().map(Member::identity).collect();
    assert_eq!(names, ["a", "b"], "the longest-standing first");
    assert!(map.owner(8).is_none());
    Ok(())
}

#[tokio::test]
async fn another_count_is_refused_until_nobody_shares_the_first() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let (a, first) = partitions(&etcd, "a", 8).await?;
    let error = a.partitions("billing", 16).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CountMismatch);
    assert!(error.to_string().contains("shares 8"), "{error}");
    let mut member = first.join().await?;
    let partition = next(&mut member).await?;

    let (_b, second) = partitions(&etcd, "b", 16).await?;
    let error = soon("refused", second.join()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CountMismatch);
    let message = error.to_string();
    assert!(
        message.contains("16 partitions were asked for"),
        "{message}"
    );
    assert!(message.contains("share 8"), "{message}");
    let run = second.run(CancellationToken::new(), until_lost);
    let error = soon("refused", run).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CountMismatch);
    assert_eq!(keys(&mut client, &format!("{PREFIX}16/")).await, []);

    // Not even the key of one partition whose work winds up may stand beside another count.
    let own = only_member(&mut client).await;
    client.delete(own, None).await?;
    let error = soon("refused", second.join()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CountMismatch);
    drop(partition);
    soon("left", member.leave()).await?;
    let _member = soon("joined", second.join()).await?;
    Ok(())
}

async fn only_member(client: &mut eldest::etcd_client::Client) -> String {
    let members = keys(client, &format!("{PREFIX}8/m-")).await;
    assert_eq!(members.len(), 1);
    members[0].path.clone()
}

#[tokio::test]
async fn what_cannot_be_shared_is_refused_at_the_door() -> Result {
    let etcd = Etcd::start().await?;
    let session = session(&etcd, "a").await?;
    for (name, count, rule) in [
        ("billing", 0, "is 0; it must be from 1 to 65536"),
        ("billing", 65_537, "is 65537; it must be from 1 to 65536"),
        ("", 8, "empty"),
        ("a//b", 8, "'//'"),
        ("~a", 8, "begin with '~'"),
    ] {
        let error = session.partitions(name, count).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(rule), "{error}");
    }
    let partitions = session.partitions("billing", 8)?;
    let _election = session.election("billing")?; // names of their own
    let nested = session.partitions("billing/eu", 8).unwrap_err();
    assert!(
        nested.to_string().contains("nests with \"billing\""),
        "{nested}"
    );
    let _member = partitions.join().await?;
    let again = soon("refused", partitions.join()).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyCampaigning);
    Ok(())
}

#[tokio::test]
async fn work_that_fails_ends_the_run_after_all_other_work() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let (_session, partitions) = partitions(&etcd, "a", 6).await?;
    let ended = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&ended);
    let run = partitions.run(CancellationToken::new(), move |partition| {
        let counted = Arc::clone(&counted);
        async move {
            if partition.number() == 3 {
                return Err("broken".into());
            }
            partition.lost().cancelled().await;
            *counted.lock().expect("no panic") += 1;
            Ok(())
        }
    });
    let error = soon("run", run).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Work);
    assert!(error.to_string().contains("broken"), "{error}");
    assert_eq!(keys(&mut client, PREFIX).await, []);
    // And it may run again.
    let run = partitions.run(CancellationToken::new(), async |_| Ok(()));
    soon("run", run).await?;
    Ok(())
}

#[tokio::test]
async fn a_panic_of_one_partitions_work_goes_on_after_the_others_have_ended() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let (_session, partitions) = partitions(&etcd, "a", 4).await?;
    let running = Running::start(&partitions, |partition| async move {
        assert_ne!(partition.number(), 2, "on purpose");
        partition.lost().cancelled().await;
        Ok(())
    });
    let panic = soon("run", running.task).await.unwrap_err();
    assert!(panic.is_panic());
    assert_eq!(keys(&mut client, PREFIX).await, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_dropped_drops_the_work_and_then_the_keys() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let (_session, partitions) = partitions(&etcd, "a", 3).await?;
    let stood = Arc::new(Mutex::new(Vec::new()));
    let (endpoint, seen) = (etcd.endpoint(), Arc::clone(&stood));
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
    assert_eq!(*stood.lock().expect("no panic"), [true; 3]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_stand_until_the_work_has_ended_when_partitions_move() -> Result {
    let etcd = Etcd::start().await?;
    let (_a, first) = partitions(&etcd, "a", 4).await?;
    let (_b, second) = partitions(&etcd, "b", 4).await?;
    let stood = Arc::new(Mutex::new(Vec::new()));
    let (endpoint, seen) = (etcd.endpoint(), Arc::clone(&stood));
    let mut a = Running::start(&first, move |partition| {
        let probe = Probe::new(&endpoint, partition.key(), &seen);
        async move {
            partition.lost().cancelled().await;
            drop(probe);
            Ok(())
        }
    });
    a.owns(4).await?;
    let mut b = Running::start(&second, until_lost);
    b.owns(2).await?;
    assert_eq!(*stood.lock().expect("no panic"), [true; 2]);
    Ok(())
}

#[tokio::test]
async fn work_that_ignores_its_token_is_dropped_and_its_partition_moves() -> Result {
    let etcd = Etcd::start().await?;
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

#[tokio::test]
async fn a_partition_whose_key_somebody_deletes_is_taken_again_with_a_larger_token() -> Result {
    let etcd = Etcd::start().await?;
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
    // What the old term would still write is refused.
    let late = term.txn([TxnOp::put("out", "late", None)]).await;
    assert_eq!(late.unwrap_err().kind(), ErrorKind::LeadershipLost);
    let txn = eldest::etcd_client::Txn::new()
        .when([term.guard()])
        .and_then([TxnOp::put("out", "late", None)]);
    assert!(!client.txn(txn).await?.succeeded());
    running.terms[&1]
        .txn([TxnOp::put("out", "1", None)])
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_key_in_the_way_is_shown_and_left_alone() -> Result {
    let etcd = Etcd::start().await?;
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

#[tokio::test]
async fn onlookers_with_another_count_are_told_so_until_nobody_shares_the_first() -> Result {
    let etcd = Etcd::start().await?;
    let (_a, first) = partitions(&etcd, "a", 8).await?;
    let (_eye, other) = partitions(&etcd, "eye", 16).await?;
    let mut changes = other.observe().await?;
    let state = soon("a state", changes.next()).await.expect("open")?;
    assert_eq!(state.unowned().count(), 16, "nobody shares any");

    let mut member = first.join().await?;
    let error = other.map().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CountMismatch);
    let message = error.to_string();
    assert!(
        message.contains("16 partitions were asked for, but others share 8"),
        "{message}"
    );
    let error = soon("a change", changes.next())
        .await
        .expect("open")
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CountMismatch);
    assert_eq!(first.map().await?.members().len(), 1);

    soon("left", member.leave()).await?;
    assert_eq!(other.map().await?.members().len(), 0);
    let _member = soon("joined", other.join()).await?;
    let joined = async {
        loop {
            match changes.next().await.expect("open") {
                Ok(map) if map.members().len() == 1 => return,
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::CountMismatch),
            }
        }
    };
    soon("it goes on", joined).await;
    Ok(())
}

#[tokio::test]
async fn step_by_step_partitions_are_handed_out_and_given_back() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let (_session, partitions) = partitions(&etcd, "a", 2).await?;
    let mut member = partitions.join().await?;
    let (one, two) = (next(&mut member).await?, next(&mut member).await?);
    assert_eq!([one.number(), two.number()], [0, 1]);
    let term = one.term();
    drop(one);
    let again = next(&mut member).await?;
    assert_eq!(again.number(), 0, "balance still wants it here");
    assert!(again.fencing_token() > term.fencing_token() && !term.is_valid());
    // What it never handed out goes with it, what it did when it is dropped.
    let ended = CancellationToken::new();
    let told = ended.clone();
    two.spawn(async move { told.cancelled().await });
    let leaving = tokio::spawn(async move {
        let left = member.leave().await;
        (left, member)
    });
    soon("told", again.lost().cancelled()).await;
    drop(again);
    drop(two);
    eventually(SOON, "the task keeps one key", async || {
        let left = keys(&mut client, PREFIX).await;
        (left.len() == 1).then_some(())
    })
    .await?;
    ended.cancel();
    let (left, mut member) = soon("left", leaving).await?;
    left?;
    assert_eq!(keys(&mut client, PREFIX).await, []);
    let error = soon("ended", member.owned()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ended);
    Ok(())
}

#[tokio::test]
async fn a_membership_that_is_dropped_or_never_came_to_be_leaves_nothing() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let (session, partitions) = partitions(&etcd, "a", 300).await?;
    for patience in [0, 1, 5, 20] {
        let join = partitions.join();
        let joined = tokio::time::timeout(Duration::from_millis(patience), join).await;
        drop(joined);
        eventually(SOON, "can join again", async || {
            let joined = partitions.join().await;
            joined.ok().map(drop)
        })
        .await?;
    }
    nothing_under(&mut client, PREFIX).await?;
    session.close().await?;
    assert_eq!(leases(&mut client).await, 0);
    Ok(())
}

#[tokio::test]
async fn a_session_that_closes_hands_its_partitions_over() -> Result {
    let etcd = Etcd::start().await?;
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

#[tokio::test]
async fn a_lease_that_is_revoked_costs_the_partitions_and_they_come_back() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let session = Session::connect([etcd.endpoint()], short("a")).await?;
    let partitions = session.partitions("billing", 6)?;
    let mut running = Running::start(&partitions, until_lost);
    running.owns(6).await?;
    let before = running.terms.clone();
    let lease = keys(&mut client, PREFIX).await[0].lease;
    client.lease_revoke(lease).await?;
    eventually(SOON, "all were lost", async || {
        before.values().all(|term| !term.is_valid()).then_some(())
    })
    .await?;
    running.owns(6).await?;
    let keys = keys(&mut client, PREFIX).await;
    assert!(keys.len() == 7 && keys.iter().all(|key| key.lease != lease));
    Ok(())
}
