//! Tests how `Election::run` ends its work and releases its key: on shutdown, on loss, on panic, when it is dropped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{
    CountOnDrop, Probe, Result, Running, SOON, WHILE, elected, in_memory, key_exists, keys,
    nothing_under, session, short, soon, stays, until_lost,
};
use crate::running::Broken;
use eldest::{CancellationToken, ErrorKind, Leadership, LostReason};
use eldest_testing::{Etcd, eventually};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::mpsc;

/// Makes work that ignores its token; counts how many of its futures are dropped.
fn never_ends(
    dropped: &Arc<AtomicUsize>,
) -> impl FnMut(Leadership) -> BoxFuture<'static, Result> + use<> {
    let dropped = Arc::clone(dropped);
    move |leadership| {
        let guard = CountOnDrop(Arc::clone(&dropped));
        async move {
            let _held = (guard, leadership);
            std::future::pending().await
        }
        .boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_notifies_and_awaits_the_work_before_the_key_goes() -> Result {
    // Complaint 16.
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let session = session(&etcd, "a").await?;
    let finish = CancellationToken::new();
    let (reasons, mut reported) = mpsc::unbounded_channel();
    let finished = finish.clone();
    let mut running = Running::start(&session.election("e")?, move |leadership| {
        let (reasons, finished) = (reasons.clone(), finished.clone());
        async move {
            leadership.lost().cancelled().await;
            let _ = reasons.send(leadership.lost_reason());
            finished.cancelled().await;
            Err(Broken(2).into())
        }
    });
    let term = running.term().await;
    running.shutdown.cancel();
    let reason = soon("the work is notified", reported.recv()).await;
    assert_eq!(reason, Some(Some(LostReason::Shutdown)));
    stays(
        WHILE,
        "the key exists while the work winds up",
        async || {
            term.is_valid()
                && key_exists(&mut client, term.key(), term.fencing_token()).await
                && !running.task.is_finished()
        },
    )
    .await?;
    finish.cancel();
    running.end().await?;
    assert!(!key_exists(&mut client, term.key(), term.fencing_token()).await);
    assert!(!term.is_valid());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn work_that_ignores_its_token_is_dropped_at_the_frozen_deadline() -> Result {
    // Complaint 18.
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let session = etcd.session(short("a")).await?;
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut running = Running::start(&session.election("e")?, never_ends(&dropped));
    let term = running.term().await;
    running.shutdown.cancel();
    soon("the token", term.lost().cancelled()).await;
    let frozen = term.valid_until().since_boot();
    let begun = tokio::time::Instant::now();
    let left = term.valid_until().time_left();
    eventually(SOON, "the work is dropped", async || {
        assert!(
            term.valid_until().since_boot() <= frozen,
            "renewals extend it no more"
        );
        (dropped.load(Ordering::SeqCst) == 1).then_some(())
    })
    .await?;
    assert!(
        begun.elapsed() + Duration::from_millis(100) >= left,
        "it had its time"
    );
    running.end().await?;
    assert!(!term.is_valid());
    assert!(!key_exists(&mut client, term.key(), term.fencing_token()).await);
    // The session and its lease live on.
    let mut again = soon("campaign", session.election("e")?.campaign()).await?;
    assert!(elected(&mut again).await?.is_valid());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn work_that_ignores_its_lost_key_is_dropped_and_called_again() -> Result {
    // Complaint 18.
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let session = session(&etcd, "a").await?;
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut running = Running::start(&session.election("e")?, never_ends(&dropped));
    let first = running.term().await;
    client.delete(first.key(), None).await?;
    let second = running.term().await;
    assert_eq!(dropped.load(Ordering::SeqCst), 1, "the first call is over");
    assert!(second.fencing_token() > first.fencing_token());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_run_drops_the_work_first_and_then_releases() -> Result {
    // Complaint 16.
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let session = session(&etcd, "a").await?;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (endpoint, probes) = (etcd.endpoint(), Arc::clone(&seen));
    let mut running = Running::start(&session.election("e")?, move |leadership| {
        let probe = Probe::new(&endpoint, leadership.key(), &probes);
        async move {
            // The leadership is dropped before the rest of the work.
            let _work = probe;
            let _held = leadership;
            std::future::pending().await
        }
    });
    running.term().await;
    running.task.abort();
    assert!(
        soon("the task", running.task)
            .await
            .expect_err("aborted")
            .is_cancelled()
    );
    nothing_under(&mut client, "eldest/").await?;
    assert_eq!(
        *seen.lock().expect("no panic"),
        [true],
        "the key existed while the work was dropped"
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn leadership_dropped_inside_work_keeps_the_key_until_it_has_ended() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let session = session(&etcd, "a").await?;
    let finish = CancellationToken::new();
    let finished = finish.clone();
    let mut running = Running::start(&session.election("e")?, move |leadership| {
        drop(leadership);
        let finished = finished.clone();
        async move {
            finished.cancelled().await;
            Ok(())
        }
    });
    let term = running.term().await;
    stays(WHILE, "the key exists while the work runs", async || {
        term.is_valid() && key_exists(&mut client, term.key(), term.fencing_token()).await
    })
    .await?;
    finish.cancel();
    running.end().await?;
    assert_eq!(keys(&mut client, "eldest/").await, []);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_session_closes_ends_its_work_and_says_so() -> Result {
    let etcd = in_memory();
    let session = session(&etcd, "a").await?;
    let mut running = Running::start(&session.election("e")?, until_lost);
    let term = running.term().await;
    soon("close", session.close()).await?;
    assert_eq!(term.lost_reason(), Some(LostReason::SessionClosed));
    let error = running.end().await.expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Closed);
    Ok(())
}
