//! Tests tasks of a term: the key waits for them, and none begins when another node may lead.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{
    Probe, Result, SOON, Store, WHILE, elected, in_memory, join_election, key_exists,
    nothing_under, options, soon, stays,
};
use eldest::{ErrorKind, Leadership, LostReason};
use eldest_testing::{Etcd, eventually};
use tokio::sync::oneshot;

#[tokio::test(start_paused = true)]
async fn tasks_of_the_term_are_joined_before_the_key_goes() -> Result {
    // Complaint 16.
    let etcd = in_memory();
    let mut client = etcd.client().await;
    for resigns in [true, false] {
        let slow = options("a").grace(Duration::from_secs(10));
        let session = etcd.session(slow).await?;
        let mut a = soon("campaign", session.election("e")?.campaign()).await?;
        let leadership = elected(&mut a).await?;
        let (finish, finished) = oneshot::channel::<()>();
        let (notice, hears) = oneshot::channel();
        let lost = leadership.lost();
        leadership.spawn(async move {
            lost.cancelled().await;
            let _ = notice.send(());
            let _ = finished.await;
        })?;
        let term = leadership.term();
        let ending = tokio::spawn(async move {
            if resigns {
                leadership.resign().await
            } else {
                drop(leadership);
                Ok(())
            }
        });
        soon("the task is notified", hears).await?;
        stays(WHILE, "the key exists while the task runs", async || {
            key_exists(&mut client, term.key(), term.fencing_token()).await
        })
        .await?;
        finish.send(()).expect("the task waits");
        soon("the end", ending).await??;
        nothing_under(&mut client, "eldest/e/").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_ignore_the_token_are_dropped_at_the_frozen_deadline() -> Result {
    // Complaint 18.
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let grace = Duration::from_millis(700);
    let session = etcd.session(options("a").grace(grace)).await?;
    let mut a = soon("campaign", session.election("e")?.campaign()).await?;
    let leadership = elected(&mut a).await?;
    let dropped = Arc::new(AtomicBool::new(false));
    let guard = SetOnDrop(Arc::clone(&dropped));
    leadership.spawn(async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    })?;
    let (key, token) = (leadership.key().to_vec(), leadership.fencing_token());
    let begun = Instant::now();
    drop(leadership);
    eventually(SOON, "the key goes", async || {
        (!key_exists(&mut client, &key, token).await).then_some(())
    })
    .await?;
    assert!(
        begun.elapsed() >= grace,
        "the task had its time: {:?}",
        begun.elapsed()
    );
    eventually(SOON, "the task is dropped", async || {
        dropped.load(Ordering::SeqCst).then_some(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_dropped_before_the_key_goes_when_the_holder_panics() -> Result {
    let etcd = Etcd::start().await?;
    let (_a, _, mut a) = join_election(&etcd, "a").await?;
    let leadership = elected(&mut a).await?;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let probe = Probe::new(&etcd.endpoint(), leadership.key(), &seen);
    let lost = leadership.lost();
    leadership.spawn(async move {
        let _probe = probe;
        lost.cancelled().await;
    })?;
    let work = tokio::spawn(async move {
        assert!(!leadership.is_valid(), "on purpose");
    });
    assert!(
        soon("the panic", work)
            .await
            .expect_err("panics")
            .is_panic()
    );
    let mut client = etcd.client().await;
    nothing_under(&mut client, "eldest/").await?;
    assert_eq!(*seen.lock().expect("no panic"), [true]);
    Ok(())
}

/// Spawns a task in a term that has ended. The task fails the test if it is ever polled.
async fn takes_no_task(leadership: &Leadership, how: &str) {
    let (polled, dropped) = oneshot::channel();
    let task = async move {
        let _ = polled.send(());
        std::future::pending::<()>().await;
    };
    let refused = leadership.spawn(task).expect_err(how);
    assert_eq!(refused.kind(), ErrorKind::LeadershipLost, "{how}");
    soon(how, dropped).await.expect_err("dropped unpolled");
}

#[tokio::test(start_paused = true)]
async fn no_task_begins_on_a_term_that_has_ended() -> Result {
    let etcd = in_memory();
    let (a, election, mut of_a) = join_election(&etcd, "a").await?;
    let (_b, _, mut of_b) = join_election(&etcd, "b").await?;

    let stepped_down = elected(&mut of_a).await?;
    stepped_down.step_down().await?;
    let successor = elected(&mut of_b).await?;
    takes_no_task(&stepped_down, "it stepped down").await;
    drop(stepped_down);
    successor.step_down().await?;

    let deleted = elected(&mut of_a).await?;
    assert!(etcd.delete(deleted.key()).await?);
    soon("the token", deleted.lost().cancelled()).await;
    takes_no_task(&deleted, "its key was deleted").await;
    drop(deleted);
    drop(elected(&mut of_b).await?);

    let ended_outside = elected(&mut of_a).await?;
    let stepping_down = tokio::spawn(async move { election.step_down().await });
    soon("the token", ended_outside.lost().cancelled()).await;
    takes_no_task(&ended_outside, "it steps down from outside").await;
    drop(ended_outside);
    soon("step down", stepping_down).await??;

    let closed = elected(&mut of_a).await?;
    let closing = tokio::spawn(async move { a.close().await });
    soon("the token", closed.lost().cancelled()).await;
    assert!(closed.is_valid(), "its work may wind up");
    takes_no_task(&closed, "its session closes").await;
    drop(closed);
    Ok(soon("close", closing).await??)
}

/// A task spawned at any moment of a resignation either ends before the key goes, or never begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_spawned_during_the_resignation_is_awaited_or_refused() -> Result {
    let etcd = eldest_testing::MemoryEtcd::start();
    let (_a, election, _) = join_election(&etcd, "a").await?;
    let (mut awaited, mut refused) = (0, 0);
    for _ in 0..100 {
        election.resign().await?;
        let leadership = Arc::new(elected(&mut election.campaign().await?).await?);
        let (ends, mut over) = oneshot::channel();
        let racing = Arc::clone(&leadership);
        let spawning = std::thread::spawn(move || {
            racing.spawn(async move {
                tokio::task::yield_now().await;
                let _ = ends.send(());
            })
        });
        soon("resign", leadership.resign()).await?;
        let gone = over.try_recv();
        match spawning.join().expect("no panic") {
            Ok(()) => {
                gone.expect("the key waited for the task");
                awaited += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::LeadershipLost);
                gone.expect_err("never polled");
                refused += 1;
            }
        }
    }
    assert_eq!(awaited + refused, 100);
    Ok(())
}

// ---- work that runs elsewhere

#[tokio::test(start_paused = true)]
async fn the_key_is_held_until_the_service_says_that_it_has_stopped() -> Result {
    let etcd = in_memory();
    for dropped in [false, true] {
        let (_a, election, mut of_a) = join_election(&etcd, "a").await?;
        let (_b, _, mut of_b) = join_election(&etcd, "b").await?;
        let leadership = elected(&mut of_a).await?;
        let (term, lost) = (leadership.term(), leadership.lost());
        let (begins_to_stop, stopping) = oneshot::channel();
        let (says, stopped) = oneshot::channel::<()>();
        let holding = tokio::spawn(leadership.hold_until_stopped(async move {
            lost.cancelled().await;
            let _ = begins_to_stop.send(());
            let _ = stopped.await;
        }));
        // The task has been polled by then.
        tokio::task::yield_now().await;
        let ending = if dropped {
            holding.abort();
            None
        } else {
            Some(tokio::spawn(async move { election.resign().await }))
        };
        soon("the service stops", stopping).await?;
        let mut client = etcd.client().await;
        stays(WHILE, "the key stands", async || {
            key_exists(&mut client, term.key(), term.fencing_token()).await
        })
        .await?;
        says.send(()).expect("it is awaited");
        assert!(elected(&mut of_b).await?.is_valid());
        if let Some(resigning) = ending {
            soon("the release", holding).await??;
            soon("resign", resigning).await??;
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_service_that_stops_by_itself_steps_down() -> Result {
    let etcd = in_memory();
    let (_a, _, mut of_a) = join_election(&etcd, "a").await?;
    let (_b, _, mut of_b) = join_election(&etcd, "b").await?;
    let leadership = elected(&mut of_a).await?;
    let term = leadership.term();
    soon("the release", leadership.hold_until_stopped(async {})).await?;
    assert_eq!(term.lost_reason(), Some(LostReason::SteppedDown));
    assert!(elected(&mut of_b).await?.is_valid());
    Ok(())
}

struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
