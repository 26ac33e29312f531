//! Tests work that returns an error: what others learn of it, and whether the node rejoins.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{
    Result, SOON, elected, in_memory, join_election, nothing_under, session, soon,
};
use crate::running::Broken;
use eldest::{CancellationToken, EndReason, ErrorKind, LostReason, OnError, Status, Term};
use eldest_testing::eventually;
use tokio::sync::mpsc;
use tokio::time::Instant;

fn has_failed(status: &Status) -> bool {
    matches!(
        status,
        Status::Ended {
            reason: EndReason::WorkFailed,
            ..
        }
    )
}

#[tokio::test(start_paused = true)]
async fn node_whose_work_fails_leaves_and_its_status_says_why() -> Result {
    let etcd = in_memory();
    let a = session(&etcd, "a").await?;
    let election = a.election("e")?;
    let mut status = election.subscribe();
    let (starts, mut terms) = mpsc::unbounded_channel();
    let run = election.spawn(CancellationToken::new(), move |leadership| {
        let starts = starts.clone();
        async move {
            let _ = starts.send(leadership.term());
            Err::<(), _>(Broken(1))
        }
    });
    // A program may drop the handle, and never read the result of the work.
    let failed = soon("the end", status.wait_for(has_failed)).await?;
    assert!(has_failed(&failed) && has_failed(&election.status()));
    drop(failed);
    let term: Term = soon("the term", terms.recv()).await.expect("it led");
    assert_eq!(term.lost_reason(), Some(LostReason::WorkFailed));
    assert!(!term.is_valid());
    let error = soon("the handle", run).await.expect_err("the work failed");
    assert_eq!(error.kind(), ErrorKind::Work);
    let source = std::error::Error::source(&error).ok_or("a source")?;
    assert_eq!(source.downcast_ref(), Some(&Broken(1)));
    assert!(error.report().to_string().contains(&Broken(1).to_string()));
    nothing_under(&mut etcd.client().await, "eldest/e/").await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_node_that_rejoins_waits_a_growing_pause_and_another_leads_meanwhile() -> Result {
    let etcd = in_memory();
    let a = session(&etcd, "a").await?;
    let (stop, begun) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
    let (ends, mut ended) = mpsc::unbounded_channel();
    let runner = a.election("e")?.runner().on_error(OnError::Rejoin);
    let run = tokio::spawn(runner.run(stop.clone(), move |leadership| {
        let (turn, ends) = (begun.fetch_add(1, Ordering::SeqCst), ends.clone());
        async move {
            if turn == 4 {
                return Ok(turn);
            }
            let _ = ends.send((leadership.term(), Instant::now()));
            Err(Broken(turn as u8))
        }
    }));
    let mut last: Option<Instant> = None;
    for turn in 0..4 {
        let (term, at): (Term, _) = soon("a term", ended.recv()).await.expect("it leads");
        if let Some(before) = last.replace(at) {
            let pause = Duration::from_millis(100 << turn);
            let waited = at - before;
            assert!(
                waited >= pause && waited < pause * 2,
                "turn {turn}: {waited:?}"
            );
        }
        soon("the token", term.lost().cancelled()).await;
        assert_eq!(term.lost_reason(), Some(LostReason::WorkFailed));
    }
    // Another node leads during the pause, and the failed one waits behind it.
    let (_b, _, mut of_b) = join_election(&etcd, "b").await?;
    let between = elected(&mut of_b).await?;
    eventually(SOON, "it queues behind", async || {
        let roster = a.election("e").ok()?.roster().await.ok()?;
        (roster.members().len() == 2).then_some(())
    })
    .await?;
    between.resign().await?;
    assert_eq!(soon("the run", run).await??, Some(4));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_node_in_its_pause_can_be_stopped_and_can_resign() -> Result {
    let etcd = in_memory();
    for resigns in [true, false] {
        let a = session(&etcd, "a").await?;
        let election = a.election("e")?;
        let stop = CancellationToken::new();
        let (failures, mut failed) = mpsc::unbounded_channel();
        let runner = election.runner().on_error(OnError::Rejoin);
        let run = tokio::spawn(runner.run(stop.clone(), move |_leadership| {
            let _ = failures.send(());
            async { Err::<(), _>(Broken(1)) }
        }));
        // Fails so often that the pause is longer than the rest of the test.
        for _ in 0..7 {
            soon("a failure", failed.recv()).await.expect("it leads");
        }
        let begun = Instant::now();
        if resigns {
            soon("resign", election.resign()).await?;
        } else {
            stop.cancel();
        }
        assert_eq!(soon("the run", run).await??, None);
        assert!(begun.elapsed() < Duration::from_secs(2));
        if !resigns {
            assert_eq!(election.status(), Status::ended(EndReason::Shutdown));
        }
        nothing_under(&mut etcd.client().await, "eldest/e/").await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_fails_rejoins_as_a_leader_does() -> Result {
    let etcd = in_memory();
    let (_b, _, mut of_b) = join_election(&etcd, "b").await?;
    let leads = elected(&mut of_b).await?;
    let a = session(&etcd, "a").await?;
    let election = a.election("e")?;
    let mut status = election.subscribe();
    let (stop, calls) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
    let (called, waiting) = (Arc::clone(&calls), election.clone());
    let runner = election.runner().on_error(OnError::Rejoin);
    let runner = runner.follow(move |_following| {
        let call = called.fetch_add(1, Ordering::SeqCst);
        let mut status = waiting.subscribe();
        async move {
            let is_candidate = |status: &Status| matches!(status, Status::Waiting { .. });
            status.wait_for(is_candidate).await?;
            if call < 2 {
                return Err(Broken(1).into());
            }
            std::future::pending::<Result>().await
        }
    });
    let run = tokio::spawn(runner.run(stop.clone(), async |_leadership| Result::Ok(())));
    soon("it leaves", status.wait_for(has_failed)).await?;
    eventually(SOON, "the third call", async || {
        (calls.load(Ordering::SeqCst) == 3).then_some(())
    })
    .await?;
    stop.cancel();
    soon("the run", run).await??;
    assert!(leads.is_valid());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_member_whose_work_fails_joins_again() -> Result {
    let etcd = in_memory();
    let a = session(&etcd, "a").await?;
    let stop = CancellationToken::new();
    let (starts, mut terms) = mpsc::unbounded_channel();
    let partitions = a.partitions("billing", 1)?;
    let runner = partitions.runner().on_error(OnError::Rejoin);
    let run = tokio::spawn(runner.run(stop.clone(), move |partition| {
        let _ = starts.send(partition.term());
        async { Err::<(), _>(Broken(1)) }
    }));
    let term: Term = soon("a term", terms.recv()).await.expect("it owns");
    soon("the token", term.lost().cancelled()).await;
    assert_eq!(term.lost_reason(), Some(LostReason::WorkFailed));
    soon("the next term", terms.recv()).await.expect("it joins");
    stop.cancel();
    assert_eq!(soon("the run", run).await??, None);
    nothing_under(&mut etcd.client().await, "eldest/~partitions/billing/").await
}
