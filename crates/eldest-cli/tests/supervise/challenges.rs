//! Tests that a frozen node is succeeded long before its leases end, if it allows challenges: its election and the lock of
//! its program are freed at once.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::processes::signal;
use crate::stage::{Node, Result, Stage};

/// A TTL that no step of the tests waits for: each step fails before.
const TTL: Duration = Duration::from_secs(60);
/// The time to answer, so long that a busy machine answers in time.
const TIME: Duration = Duration::from_secs(3);
/// How long a node is silent until another one suspects it.
const SILENCE: Duration = Duration::from_millis(500);
/// The time between requests, of the start of a program, and of a busy machine. Two challenges, one after the other, would
/// need another [`TIME`].
const REST: Duration = Duration::from_secs(2);

fn node(stage: &Stage, name: &str) -> Result<Node> {
    let time = format!("{}s", TIME.as_secs());
    let listen = ["--challenges-listen", "127.0.0.1:0", "--restart"];
    let options = [&["--challenges", &time], &listen[..]].concat();
    stage.patient_worker(TTL, name, "", &options)
}

#[tokio::test]
async fn frozen_node_is_succeeded_long_before_its_leases_end() -> Result {
    let stage = Stage::new().await?;
    let mut first = node(&stage, "a")?;
    let began = stage.next_worker(0).await?;
    let mut second = node(&stage, "b")?;
    stage.has_candidate("b").await?;
    let (keeper, program) = first.running().ok_or("the program runs")?;
    let frozen = Instant::now();
    for pid in [first.pid(), keeper] {
        signal(pid, Signal::STOP);
    }
    // A frozen program would be found by the next one.
    signal(program, Signal::KILL);
    let next = stage.next_worker(began.token).await?;
    let took = frozen.elapsed();
    assert!(next.token > began.token);
    // Both sessions are challenged at once. The challenger adds a margin of D/20, and the bound of the clocks' drift.
    let most = SILENCE + TIME + TIME / 10 + REST;
    assert!(took < most, "{took:?}: each session took its own time");
    // The frozen processes wake after the end of their terms.
    for pid in [keeper, first.pid()] {
        signal(pid, Signal::CONT);
    }
    stage
        .nothing_of(began.token, Duration::from_secs(10))
        .await?;
    second.stop().await?;
    first.stop().await?;
    stage.judge().await?;
    Ok(())
}
