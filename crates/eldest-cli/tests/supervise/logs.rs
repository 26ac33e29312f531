//! Tests what `eldest run` logs of an outage.

use eldest_testing::eventually;

use crate::stage::{Result, SOON, Stage, TTL};

/// The election and the lock of the program have a session each.
#[tokio::test]
async fn an_outage_is_logged_for_one_of_both_sessions_and_no_work_is_said_to_be_dropped() -> Result
{
    let stage = Stage::new().await?;
    let mut a = stage.node("a", "", &["--no-cgroup"])?;
    let worker = stage.next_worker(0).await?;
    stage.etcd.pause();
    stage.nothing_of(worker.token, TTL + SOON).await?;
    // Its key cannot be deleted until etcd answers: its work waits for that longer than it may.
    eventually(TTL + SOON, "the loss", async || {
        a.log().contains("lease lost").then_some(())
    })
    .await?;
    stage.etcd.resume();
    stage.next_worker(worker.token).await?;
    a.stop().await?;
    let log = a.log();
    let lines = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    assert_eq!(lines("lease lost"), 1, "{log}");
    let lost = log.lines().filter(|line| {
        line.contains(" WARN eldest::election: term ended")
            || line.contains("the lock of the program was lost")
    });
    assert_eq!(lost.count(), 1, "{log}");
    for fault in ["work dropped at", "work failed after", "~run"] {
        assert_eq!(lines(fault), 0, "{fault}: {log}");
    }
    for line in log.lines() {
        assert!(line.matches("identity=").count() <= 1, "{line}");
    }
    stage.judge().await?;
    Ok(())
}
