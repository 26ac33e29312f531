//! Tests the messages of `eldest run` and `eldest lock` on a terminal while they wait.

use eldest_testing::Etcd;

use crate::common::{DONE, Result, at, join, node, ran};
use crate::terminal::Terminal;

#[tokio::test]
async fn on_a_terminal_a_waiting_node_prints_its_rank_and_the_first_candidate() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (node(&etcd, "a").await?, node(&etcd, "b").await?);
    let mut first = join(&a, "jobs").await?;
    let leads = first.elected().await?;
    let mut second = join(&b, "jobs").await?;
    let held = a.lock("backup")?.acquire().await?;
    let mut run_one = Terminal::start(at(&etcd, &["run", "jobs", "--", "true"]), 24, 120)?;
    let mut lock_one = Terminal::start(at(&etcd, &["lock", "backup", "--", "true"]), 24, 120)?;
    run_one
        .shows("its rank", |s| {
            s.contains("waiting for jobs: rank 3, a leads")
        })
        .await?;
    lock_one
        .shows("its rank", |s| {
            s.contains("waiting for the lock \"backup\": rank 2, a holds it")
        })
        .await?;
    second.leave().await?;
    run_one
        .shows("its new rank", |s| {
            s.contains("waiting for jobs: rank 2, a leads")
        })
        .await?;
    leads.resign().await?;
    held.release().await?;
    assert_eq!((run_one.end().await?, lock_one.end().await?), (DONE, DONE));

    // Without a terminal nothing is written, because the logs contain it.
    let _held = a.lock("backup")?.acquire().await?;
    let ended = ran(&etcd, "lock backup --wait 3s --log off -- true");
    let ended = ended.await?;
    assert!(!ended.stderr.contains("waiting for"), "{ended:?}");
    Ok(())
}
