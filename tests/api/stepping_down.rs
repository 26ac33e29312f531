//! Tests stepping down: the next eldest leads, and the node rejoins behind all waiting candidates.

use std::time::Duration;

use crate::common::{
    Result, Running, WHILE, elected, in_memory, join_election, key_exists, keys, options, queue,
    session, soon, stays, until_lost,
};
use eldest::{CancellationToken, ErrorKind, LostReason};

#[tokio::test(start_paused = true)]
async fn stepping_down_rejoins_at_the_back_and_the_next_eldest_leads() -> Result {
    // Complaint: leadership could be handed over only by leaving, and only to the next node.
    let etcd = in_memory();
    let (_a, election, mut a) = join_election(&etcd, "a").await?;
    let (_b, _, mut b) = join_election(&etcd, "b").await?;
    let (_c, _, mut c) = join_election(&etcd, "c").await?;
    let first = elected(&mut a).await?;
    soon("step down", first.step_down()).await?;
    assert!(!first.is_valid() && first.lost().is_cancelled());
    assert_eq!(first.lost_reason(), Some(LostReason::SteppedDown));
    let second = elected(&mut b).await?;
    queue(&election, &["b", "c", "a"]).await?;
    soon("step down", second.step_down()).await?;
    let third = elected(&mut c).await?;
    queue(&election, &["c", "a", "b"]).await?;
    soon("resign", third.resign()).await?;
    assert!(elected(&mut a).await?.fencing_token() > third.fencing_token());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn step_down_returns_once_the_key_is_gone_and_is_repeatable() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, _, mut a) = join_election(&etcd, "a").await?;
    let first = elected(&mut a).await?;
    soon("step down", first.step_down()).await?;
    let (key, created) = (first.key().to_vec(), first.fencing_token());
    assert!(!key_exists(&mut client, &key, created).await);
    let second = elected(&mut a).await?;
    soon("again", first.step_down()).await?;
    let error = soon("resign", first.resign()).await.expect_err("too late");
    assert_eq!(error.kind(), ErrorKind::LeadershipLost, "{error}");
    drop(first);
    assert!(second.is_valid(), "the next term has nothing to do with it");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn run_rejoins_when_work_that_stepped_down_has_ended() -> Result {
    let etcd = in_memory();
    let patient = options("a").grace(Duration::from_secs(10));
    let a = etcd.session(patient).await?;
    let (stepped, mut down) = tokio::sync::mpsc::unbounded_channel();
    let finish = CancellationToken::new();
    let finished = finish.clone();
    let mut first = true;
    let mut running = Running::start(&a.election("e")?, move |leadership| {
        let steps_down = std::mem::take(&mut first);
        let (stepped, finished) = (stepped.clone(), finished.clone());
        async move {
            if !steps_down {
                return until_lost(leadership).await;
            }
            leadership.step_down().await?;
            let _ = stepped.send(());
            // The work reported that it was done, and then takes a little longer.
            finished.cancelled().await;
            Ok(())
        }
    });
    let term = running.term().await;
    soon("it steps down", down.recv()).await;
    stays(WHILE, "it does not stand meanwhile", async || {
        keys(&mut etcd.client().await, "eldest/").await.is_empty()
    })
    .await?;
    finish.cancel();
    assert!(running.term().await.fencing_token() > term.fencing_token());
    running.stop().await
}

#[tokio::test(start_paused = true)]
async fn run_shut_down_after_a_step_down_ends_at_once() -> Result {
    let etcd = in_memory();
    let a = session(&etcd, "a").await?;
    let mut running = Running::start(&a.election("e")?, async |leadership| {
        leadership.step_down().await?;
        std::future::pending().await
    });
    let term = running.term().await;
    soon("it steps down", term.lost().cancelled()).await;
    let (_b, election, _candidate) = join_election(&etcd, "b").await?;
    queue(&election, &["b"]).await?;
    running.stop().await?;
    queue(&election, &["b"]).await
}
