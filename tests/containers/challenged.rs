//! Tests that a frozen node of the demo is succeeded within a moment, if the nodes allow challenges.

use std::time::{Duration, SystemTime};

use eldest_testing::eventually;

use crate::composed::{Composed, Line, compose};
use crate::lab::Result;
use crate::walker::PATIENCE;

/// The time to answer in deploy/compose-challenges.yml.
const TIME: Duration = Duration::from_millis(400);
/// The rest of a takeover: requests, and the start of a program. Two challenges, one after the other, would need another
/// [`TIME`].
const REST: Duration = Duration::from_millis(250);
/// The number of attempts. A busy machine can be too slow for one, but hardly each time.
const FREEZES: usize = 5;

/// Returns the last node that began to work after that time.
async fn worker(demo: &Composed, after: SystemTime) -> Result<Line> {
    let begun = eventually(PATIENCE, "a node works", async || {
        let said = demo.said().await.ok()?;
        let mut begun = said.lines.into_iter().rev();
        begun.find(|line| line.token().is_some() && line.at > after)
    });
    Ok(begun.await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_node_is_succeeded_within_a_second_with_challenges() -> Result {
    let mut demo = Composed::new(&compose('1')?, "challenged").await?;
    demo.extend("deploy/compose-challenges.yml");
    demo.run("docker-compose up -d")?;
    demo.find()?;
    // A third of the time to notice the silence, then the time itself with its margin and the bound of drift.
    let most = TIME / 3 + TIME + TIME / 10 + REST;
    let mut all = Vec::new();
    let mut leader = worker(&demo, SystemTime::UNIX_EPOCH).await?;
    for _ in 0..FREEZES {
        eventually(PATIENCE, "three nodes are in line", async || {
            let queue = demo.queue().await.ok()?;
            (queue.len() == 3).then_some(())
        })
        .await?;
        demo.freeze(&leader.node)?;
        let frozen = SystemTime::now();
        let next = worker(&demo, leader.at).await?;
        let took = next.at.duration_since(frozen).unwrap_or_default();
        assert!(next.token() > leader.token(), "{leader:?}, then {next:?}");
        demo.run(&format!("docker-compose unpause {}", leader.node))?;
        println!("{} succeeded {} after {took:?}", next.node, leader.node);
        if next.node != leader.node && took <= most {
            return Ok(());
        }
        all.push(took);
        leader = next;
    }
    Err(format!("a frozen node is succeeded after {all:?}, at most {most:?} each").into())
}
