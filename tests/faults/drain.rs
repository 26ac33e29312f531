//! Tests a rolling restart as docs/rolling-restart.md describes it: three nodes, one change of leader.

use std::time::Duration;

use eldest_testing::Etcd;

use crate::stage::{Node, Result, SOON, Stage, millis, seconds};

/// A TTL so long that no change waits for an expiry: every change is a hand-over.
const TTL: Duration = seconds(30);
/// The longest hand-over: a deletion and its watch event, each of which may take a request timeout.
const HAND_OVER: Duration = millis(3000);

#[tokio::test]
async fn draining_followers_first_costs_one_change_of_leader_and_no_gap() -> Result {
    // Complaint: a restart of all nodes moved the leadership with every one of them.
    let etcd = Etcd::start().await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let start = async |name| stage.node(name, &[etcd.endpoint()]).await;
    let (a, b, c) = (start("a").await?, start("b").await?, start("c").await?);
    let first = a.elected(SOON).await?;
    // Each node ends as by SIGTERM, the last of the queue first, and joins before the next one ends.
    let mut restarted: Vec<Node> = Vec::new();
    for (name, node) in [("c", c), ("b", b), ("a", a)] {
        node.stop().await?;
        restarted.push(start(name).await?);
    }
    // The first node to restart leads, the last one is at the back.
    stage.queue(&["c", "b", "a"], SOON).await?;
    let second = restarted[0].elected(SOON).await?;
    let lost = first.lost_at().ok_or("its term is over")?;
    let gap = second.elected_at.saturating_sub(lost);
    assert!(gap <= HAND_OVER, "nobody led for {gap:?}");
    let terms = restarted.iter().map(|node| node.terms().len());
    assert_eq!(terms.collect::<Vec<_>>(), [1, 0, 0], "one change");
    for node in restarted.into_iter().rev() {
        node.stop().await?;
    }
    assert_eq!(stage.leases().await?, [0; 0]);
    stage.judge(2, 0).await?;
    Ok(())
}
