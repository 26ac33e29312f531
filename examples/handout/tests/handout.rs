//! Tests that the job is completed although leaders and workers die at the worst moments, and that each result counts
//! once.
#![allow(clippy::disallowed_methods)] // tests run in real time

mod common;

use std::collections::BTreeSet;
use std::process::Stdio;

use eldest::{ErrorKind, Leadership};
use eldest_handout_example::leader::{self, Job};
use eldest_handout_example::{ELECTION, JOB, Sum, WORKERS, worker};
use eldest_testing::{Etcd, Proxy, crash, eventually};
use tokio::process::Command;
use tokio::time::timeout;

use common::{LONG, Node, Result, SUM, add, judge, pieces};

/// Hands a first piece to each of these workers.
async fn begun(leadership: &Leadership, workers: &[&str]) -> Result<Job> {
    let job = leader::split(leadership, &pieces()).await?;
    let present: Vec<String> = workers.iter().map(|name| (*name).to_owned()).collect();
    leader::hand_out(leadership, &job, &present).await?;
    Ok(leader::read(leadership).await?.ok_or("a job")?)
}

/// Lets the worker with that name do all the pieces that it was handed.
async fn does_its_pieces(node: &Node, name: &str) -> Result<usize> {
    let mut etcd = node.etcd.clone();
    let handed = worker::handed_to(&mut etcd, name).await?;
    let pieces = handed.len();
    for piece in handed {
        let result = add(piece.piece.numbers.clone()).await;
        assert!(worker::hand_in(&mut etcd, piece, result).await?);
    }
    Ok(pieces)
}

/// Checks that the job is completed by that leader and that worker, and that each result counts once.
async fn is_completed(etcd: &Etcd, leader: &Node, worker: &Node) -> Result {
    let working = worker.works();
    assert_eq!(leader.completes().await?, SUM);
    working.abort();
    judge(etcd).await?;
    Ok(())
}

#[tokio::test]
async fn without_faults_each_piece_is_done_once() -> Result {
    let etcd = Etcd::start().await?;
    let [a, b, c] = nodes(&etcd).await?;
    let working = [a.works(), b.works(), c.works()];
    assert_eq!(a.completes().await?, SUM);
    assert_eq!(b.completes().await?, SUM, "a later leader reads it");
    working.iter().for_each(tokio::task::JoinHandle::abort);
    let counted = judge(&etcd).await?;
    assert!(
        counted.values().all(|piece| piece.attempt == 1),
        "{counted:?}"
    );
    Ok(())
}

async fn nodes(etcd: &Etcd) -> Result<[Node; 3]> {
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(Node::start(etcd, name).await?);
    }
    nodes.try_into().map_err(|_| "three nodes".into())
}

#[tokio::test]
async fn a_leader_dies_after_it_handed_pieces_out() -> Result {
    let etcd = Etcd::start().await?;
    let [a, b, c] = nodes(&etcd).await?;
    let (_candidate, leadership) = a.leads().await?;
    begun(&leadership, &["b", "c"]).await?;
    crash(&a.session)?;
    let (sum, ()) = tokio::try_join!(b.completes(), async {
        // Both workers do the pieces that the dead leader handed them, while no node leads.
        assert_eq!(does_its_pieces(&b, "b").await?, 1);
        assert_eq!(does_its_pieces(&c, "c").await?, 1);
        drop((b.works(), c.works()));
        Ok(())
    })?;
    assert_eq!(sum, SUM);
    let counted = judge(&etcd).await?;
    assert!(
        counted.values().all(|piece| piece.attempt == 1),
        "{counted:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_leader_dies_between_writing_a_result_and_counting_it() -> Result {
    let etcd = Etcd::start().await?;
    let [a, b, c] = nodes(&etcd).await?;
    let (_candidate, leadership) = a.leads().await?;
    begun(&leadership, &["b", "c"]).await?;
    assert_eq!(does_its_pieces(&b, "b").await?, 1);
    crash(&a.session)?;
    is_completed(&etcd, &b, &c).await
}

/// The old leader does not learn that its key is gone, and its requests still reach etcd.
#[tokio::test]
async fn a_leader_that_was_overtaken_writes_nothing() -> Result {
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let a = Node::at(&proxy.endpoint(), &etcd, "a").await?;
    let (b, c) = (
        Node::start(&etcd, "b").await?,
        Node::start(&etcd, "c").await?,
    );
    let (_candidate, old) = a.leads().await?;
    begun(&old, &["b", "c"]).await?;
    assert_eq!(does_its_pieces(&b, "b").await?, 1);
    let read = leader::read(&old).await?.ok_or("a job")?;

    proxy.hold_responses();
    assert!(etcd.delete(old.key()).await?);
    let (candidate, new) = b.leads().await?;
    assert_eq!(does_its_pieces(&c, "c").await?, 1);
    let job = leader::read(&new).await?.ok_or("a job")?;
    let job = leader::count(&new, job).await?;
    assert_eq!(job.sum.counted, 2);

    let (present, pieces) = (["d".to_owned()], pieces());
    let (handed_out, counted, split) = tokio::join!(
        leader::hand_out(&old, &read, &present),
        leader::count(&old, read.clone()),
        leader::split(&old, &pieces),
    );
    for written in [handed_out, counted.map(drop), split.map(drop)] {
        let error = written.expect_err("it has no answer");
        let kind = error
            .downcast_ref::<eldest::Error>()
            .map(eldest::Error::kind);
        assert_eq!(kind, Some(ErrorKind::Ambiguous), "it was not sent: {error}");
    }
    drop((new, candidate));
    is_completed(&etcd, &b, &c).await
}

#[tokio::test]
async fn a_dead_workers_piece_is_handed_out_again() -> Result {
    let etcd = Etcd::start().await?;
    let [a, b, c] = nodes(&etcd).await?;
    let dies = c.session.group(WORKERS)?.join().await?;
    let (sum, ()) = tokio::try_join!(a.completes(), async {
        eventually(LONG, "it has a piece", async || {
            let handed = worker::handed_to(&mut c.etcd.clone(), "c").await.ok()?;
            (handed.len() == 1).then_some(())
        })
        .await?;
        crash(&c.session)?;
        drop(b.works());
        Ok(())
    })?;
    assert_eq!(sum, SUM);
    drop(dies);
    let counted = judge(&etcd).await?;
    let twice: Vec<_> = counted
        .values()
        .filter(|piece| piece.attempt == 2)
        .collect();
    assert_eq!(twice.len(), 1, "{counted:?}");
    assert!(
        counted
            .values()
            .all(|piece| piece.worker.as_deref() == Some("b"))
    );
    Ok(())
}

/// The first worker was wrongly considered dead, so both have done the piece.
#[tokio::test]
async fn only_the_last_worker_of_a_piece_writes_its_result() -> Result {
    let etcd = Etcd::start().await?;
    let [a, b, c] = nodes(&etcd).await?;
    let (mut candidate, leadership) = a.leads().await?;
    let job = begun(&leadership, &["b"]).await?;
    let (mut of_b, mut of_c) = (b.etcd.clone(), c.etcd.clone());
    let first = worker::handed_to(&mut of_b, "b")
        .await?
        .pop()
        .ok_or("a piece")?;
    leader::hand_out(&leadership, &job, &["c".to_owned()]).await?;
    let second = worker::handed_to(&mut of_c, "c")
        .await?
        .pop()
        .ok_or("a piece")?;
    assert_eq!(
        (second.piece.attempt, &second.piece.numbers),
        (2, &first.piece.numbers)
    );

    // Its result would count twice, or replace a right one, if it were accepted.
    let late = worker::hand_in(&mut of_b, first.clone(), 1_000_000).await?;
    assert!(!late, "the first attempt counts before the second");
    assert!(worker::hand_in(&mut of_c, second.clone(), 45).await?);
    let late = worker::hand_in(&mut of_b, first, 1_000_000).await?;
    assert!(!late, "the first attempt counts after the second");
    let again = worker::hand_in(&mut of_c, second, 45).await?;
    assert!(!again, "one result counts twice");

    drop(leadership);
    candidate.leave().await?;
    is_completed(&etcd, &b, &c).await
}

/// The worker writes its result after the leader has read the piece, and before the leader hands it to another worker.
#[tokio::test]
async fn a_result_that_meets_the_next_hand_out_is_kept() -> Result {
    let etcd = Etcd::start().await?;
    let [a, b, c] = nodes(&etcd).await?;
    let (mut candidate, leadership) = a.leads().await?;
    let job = begun(&leadership, &["b"]).await?;
    assert_eq!(does_its_pieces(&b, "b").await?, 1);
    leader::hand_out(&leadership, &job, &["c".to_owned()]).await?;
    let job = leader::read(&leadership).await?.ok_or("a job")?;
    let job = leader::count(&leadership, job).await?;
    assert_eq!((job.sum.counted, job.sum.sum), (1, 45));
    drop(leadership);
    candidate.leave().await?;
    is_completed(&etcd, &b, &c).await
}

/// The leader's process is killed in the middle of the job.
#[tokio::test]
async fn three_processes_count_the_primes_though_one_is_killed_while_it_leads() -> Result {
    let etcd = Etcd::start().await?;
    let start = |name: &str| {
        Command::new(env!("CARGO_BIN_EXE_eldest-handout-example"))
            .env("NAME", name)
            .env("ETCD_ENDPOINTS", etcd.endpoint())
            .env("TTL_SECONDS", "2")
            .env("WORK_MILLIS", "20")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    };
    let mut leads = start("a")?;
    eventually(LONG, "the first pieces are counted", async || {
        let job = etcd.get(JOB).await.ok()??;
        let sum: Sum = serde_json::from_slice(&job).ok()?;
        (sum.counted > 3).then_some(())
    })
    .await?;
    let others = [start("b")?, start("c")?];
    leads.kill().await?;
    for other in others {
        let ended = timeout(LONG, other.wait_with_output()).await??;
        let said = String::from_utf8(ended.stdout)?;
        assert!(ended.status.success(), "{said}");
        assert!(said.contains("78498 primes below 1000000"), "{said}");
    }
    Ok(())
}

/// The leader does not learn whether its requests were applied.
#[tokio::test]
async fn a_leader_without_answers_continues_in_a_later_term() -> Result {
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let a = Node::at(&proxy.endpoint(), &etcd, "a").await?;
    let c = Node::start(&etcd, "c").await?;
    let member = c.session.group(WORKERS)?.join().await?;
    let (sum, ()) = tokio::try_join!(a.completes(), async {
        let mut etcd_of_c = c.etcd.clone();
        let first = eventually(LONG, "it has a piece", async || {
            let handed = worker::handed_to(&mut etcd_of_c, "c").await.ok()?;
            handed.into_iter().next()
        })
        .await?;
        let before = first.piece.leader;
        proxy.hold_responses();
        assert!(worker::hand_in(&mut etcd_of_c, first, 45).await?);
        let election = c.session.election(ELECTION)?;
        eventually(LONG, "the term is over", async || {
            let leader = election.leader().await.ok()?;
            leader
                .is_none_or(|leader| leader.create_revision() != before)
                .then_some(())
        })
        .await?;
        proxy.heal();
        drop(member);
        drop(c.works());
        Ok(())
    })?;
    assert_eq!(sum, SUM);
    let counted = judge(&etcd).await?;
    let leaders: BTreeSet<_> = counted.values().map(|piece| piece.leader).collect();
    assert!(leaders.len() >= 2, "{counted:?}");
    Ok(())
}
