//! Tests what `eldest run` logs of an outage, and of the loss of its program's lock alone.

use eldest_fixtures::wait::until;

use crate::stage::{ELECTION, Result, SOON, Stage, TTL};

/// The election and the lock of the program have one session each.
#[tokio::test]
async fn outage_is_logged_for_one_session_and_not_as_dropped_work() -> Result {
    let stage = Stage::new().await?;
    // This program is killed at the deadline.
    let mut a = stage.worker("a", "stubborn", &["--no-cgroup"])?;
    let worker = stage.next_worker(0).await?;
    stage.etcd.pause();
    stage.nothing_of(worker.token, TTL + SOON).await?;
    // The key cannot be deleted until etcd answers, so the work waits for longer than it may.
    until(TTL + SOON, "the loss", async || {
        a.log().contains("lease lost")
    })
    .await?;
    stage.etcd.resume();
    stage.next_worker(worker.token).await?;
    a.stop().await?;
    let log = a.log();
    let lines = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    assert_eq!(lines("lease lost"), 1, "{log}");
    assert_eq!(lines(" WARN eldest::election: term ended"), 1, "{log}");
    for fault in [
        "the lock of the program was lost",
        "stepped_down",
        "work failed after",
        "~run",
    ] {
        assert_eq!(lines(fault), 0, "{fault}: {log}");
    }
    // On a machine so busy that the keeper kills the program too late, the work really was dropped.
    let late = log.contains("the keeper did not end the program in time");
    assert!(late || !log.contains("work dropped at"), "{log}");
    for line in log.lines() {
        assert!(line.matches("identity=").count() <= 1, "{line}");
    }
    stage.judge().await?;
    Ok(())
}

#[tokio::test]
async fn loss_of_the_lock_alone_is_logged_and_brings_a_new_token() -> Result {
    let stage = Stage::new().await?;
    let mut a = stage.worker("a", "", &["--no-cgroup"])?;
    let worker = stage.next_worker(0).await?;
    for (key, _) in stage.keys(&format!("eldest/~run/{ELECTION}/")).await? {
        stage.client().await.delete(key, None).await?;
    }
    stage.next_worker(worker.token).await?;
    a.stop().await?;
    let log = a.log();
    let lines = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    assert_eq!(lines("the lock of the program was lost"), 1, "{log}");
    assert_eq!(lines("reason=\"stepped_down\""), 1, "{log}");
    stage.judge().await?;
    Ok(())
}
