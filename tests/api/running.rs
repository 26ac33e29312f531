//! Tests `Election::run`: work while leading, under every order of the events that can end it.

use std::fmt;
use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{
    Result, Running, SOON, WHILE, elected, in_memory, join_election, key_exists, keys, session,
    soon, stays, until_lost,
};
use eldest::{BoxError, CancellationToken, Leadership, LostReason, Status};
use eldest_testing::eventually;
use futures::FutureExt;
use tokio::sync::{mpsc, oneshot};

#[derive(Debug, PartialEq)]
pub(crate) struct Broken(pub(crate) u8);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken {}", self.0)
    }
}

impl std::error::Error for Broken {}

#[tokio::test(start_paused = true)]
async fn the_value_of_the_work_is_handed_back() -> Result {
    async fn work(leadership: Leadership) -> std::result::Result<i64, Broken> {
        Ok(leadership.fencing_token())
    }
    let etcd = in_memory();
    let session = session(&etcd, "a").await?;
    let election = session.election("e")?;
    let token = soon("run", election.run(pending::<()>(), work)).await?;
    assert_eq!(token, election.term().map(|term| term.fencing_token()));
    // So is the value of work that ended because its token was cancelled, or after it resigned.
    let shutdown = CancellationToken::new();
    let stopped = election.run(shutdown.clone(), async |leadership| {
        shutdown.cancel();
        leadership.lost().cancelled().await;
        Ok::<_, BoxError>("stopped")
    });
    assert_eq!(soon("run", stopped).await?, Some("stopped"));
    let resigned = election.run(pending::<()>(), async |leadership| {
        leadership.resign().await?;
        Ok::<_, BoxError>("resigned")
    });
    assert_eq!(soon("run", resigned).await?, Some("resigned"));
    assert_eq!(keys(&mut etcd.client().await, "eldest/").await, []);
    // After the term, an error of the work ends the run as well.
    let fails = election.run(pending::<()>(), async |leadership| {
        leadership.resign().await?;
        Err::<(), BoxError>(Broken(3).into())
    });
    assert_eq!(soon("run", fails).await?, None);
    // Without running work there is no value.
    let (_other, _, mut elder) = join_election(&etcd, "b").await?;
    let _leads = elected(&mut elder).await?;
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    assert_eq!(soon("run", election.run(shutdown, work)).await?, None);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn resigning_from_outside_ends_leading_and_waiting_runs() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (a, b) = (session(&etcd, "a").await?, session(&etcd, "b").await?);
    let (leads, waits) = (a.election("e")?, b.election("e")?);
    soon("nothing to resign", leads.resign()).await?;
    let (report, mut reported) = mpsc::unbounded_channel();
    let reader = client.clone();
    let mut leader = Running::start(&leads, move |leadership| {
        let (report, mut reader) = (report.clone(), reader.clone());
        async move {
            leadership.lost().cancelled().await;
            let exists =
                key_exists(&mut reader, leadership.key(), leadership.fencing_token()).await;
            Ok(report.send(exists)?)
        }
    });
    let term = leader.term().await;
    assert!(leads.is_leader());
    let waiting = Running::start(&waits, until_lost);
    let is_behind = |status: &Status| matches!(status, Status::Waiting { .. });
    soon("b waits", waits.subscribe().wait_for(is_behind)).await?;
    soon("b resigns", waits.resign()).await?;
    assert_eq!(keys(&mut client, "eldest/").await.len(), 1);
    waiting.end().await?;

    soon("a resigns", leads.resign()).await?;
    assert_eq!(
        reported.recv().await,
        Some(true),
        "the key existed until the work had ended"
    );
    assert!(!leads.is_leader());
    assert_eq!(term.lost_reason(), Some(LostReason::Resigned));
    assert_eq!(keys(&mut client, "eldest/").await, []);
    leader.end().await?;
    assert!(matches!(leads.status(), Status::Ended { .. }));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn stepping_down_from_outside_passes_the_lead_and_rejoins() -> Result {
    let etcd = in_memory();
    let (a, b) = (session(&etcd, "a").await?, session(&etcd, "b").await?);
    let (first, second) = (a.election("e")?, b.election("e")?);
    let mut leader = Running::start(&first, until_lost);
    let term = leader.term().await;
    let mut next = Running::start(&second, until_lost);
    let is_behind = |status: &Status| matches!(status, Status::Waiting { .. });
    soon("b waits", second.subscribe().wait_for(is_behind)).await?;
    soon("b does not lead", second.step_down()).await?;
    stays(WHILE, "no work while waiting", async || {
        next.terms.is_empty()
    })
    .await?;
    soon("a steps down", first.step_down()).await?;
    assert_eq!(term.lost_reason(), Some(LostReason::SteppedDown));
    let successor = next.term().await;
    assert!(successor.fencing_token() > term.fencing_token());
    soon("a waits", first.subscribe().wait_for(is_behind)).await?;
    assert!(!first.is_leader() && second.is_leader());
    next.stop().await?;
    leader.term().await;
    leader.stop().await
}

#[tokio::test(start_paused = true)]
async fn no_node_is_leader_in_the_grace_period_of_a_valid_term() -> Result {
    let etcd = in_memory();
    let session = session(&etcd, "a").await?;
    let election = session.election("e")?;
    assert_eq!(
        (election.status(), election.is_leader()),
        (Status::Idle, false)
    );
    let mut status = election.subscribe();
    let (go_on, finish) = oneshot::channel::<()>();
    let mut finish = Some(finish);
    let shutdown = CancellationToken::new();
    let run = election.spawn(shutdown.clone(), move |leadership: Leadership| {
        let finish = finish.take();
        async move {
            leadership.lost().cancelled().await;
            if let Some(finish) = finish {
                let _ = finish.await;
            }
            Ok::<_, BoxError>(())
        }
    });
    let leading = |status: &Status| matches!(status, Status::Leading { .. });
    soon("it leads", status.wait_for(leading)).await?;
    assert!(election.is_leader());
    shutdown.cancel();
    let ending = |status: &Status| matches!(status, Status::Ending { .. });
    soon("it is asked to stop", status.wait_for(ending)).await?;
    let term = election.term().expect("it led");
    assert!(term.is_valid() && !election.is_leader());
    drop(go_on);
    let over = |status: &Status| matches!(status, Status::Ended { .. });
    soon("it is over", status.wait_for(over)).await?;
    soon("run", run).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_spawned_run_is_stopped_awaited_and_outlives_its_handle() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let session = session(&etcd, "a").await?;
    let election = session.election("e")?;
    let leads = || async {
        let term = eventually(SOON, "it leads", async || {
            election.term().filter(eldest::Term::is_valid)
        });
        term.await
    };
    let run = election.spawn(pending::<()>(), until_lost);
    leads().await?;
    run.stop();
    assert_eq!(soon("run", run).await?, Some(()));
    assert_eq!(keys(&mut client, "eldest/").await, []);

    let shutdown = CancellationToken::new();
    drop(election.spawn(shutdown.clone(), until_lost));
    let term = leads().await?;
    shutdown.cancel();
    soon("the term ends", term.lost().cancelled()).await;

    let fails = election.spawn(
        pending::<()>(),
        async |_| -> std::result::Result<(), Broken> { panic!("broken") },
    );
    let panic = soon("run", AssertUnwindSafe(fails).catch_unwind()).await;
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"broken"));
    assert_eq!(keys(&mut client, "eldest/").await, []);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn work_is_called_again_after_each_lost_term_and_calls_never_overlap() -> Result {
    // Complaints 13 and 17.
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let session = session(&etcd, "a").await?;
    let at_work = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (counter, highest) = (Arc::clone(&at_work), Arc::clone(&most));
    let (works, mut calls) = (client.clone(), 0);
    let mut running = Running::start(&session.election("e")?, move |leadership| {
        calls += 1;
        let failing = calls % 2 == 0;
        let (counter, highest) = (Arc::clone(&counter), Arc::clone(&highest));
        let mut client = works.clone();
        async move {
            highest.fetch_max(counter.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            leadership.lost().cancelled().await;
            // Takes longer to finish than a rejoin.
            for _ in 0..50 {
                client.get("something to wait for", None).await?;
            }
            counter.fetch_sub(1, Ordering::SeqCst);
            // Neither result ends the run, because the term was over.
            if failing {
                Err(Broken(1).into())
            } else {
                Ok(())
            }
        }
    });
    let mut last = 0;
    for _ in 0..5 {
        let term = running.term().await;
        assert!(term.fencing_token() > last);
        last = term.fencing_token();
        client.delete(term.key(), None).await?;
    }
    let term = running.term().await;
    running.shutdown.cancel();
    running.end().await?;
    assert_eq!(most.load(Ordering::SeqCst), 1);
    assert_eq!(at_work.load(Ordering::SeqCst), 0);
    assert!(!key_exists(&mut client, term.key(), term.fencing_token()).await);
    Ok(())
}
