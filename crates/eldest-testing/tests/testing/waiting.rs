//! Tests that `eventually` polls often enough to be quick, and so seldom that waiting costs little.

use std::time::Duration;

use eldest_testing::{ErrorKind, eventually};
use tokio::time::Instant;

/// Polls a condition that never holds, and returns the times of the polls.
async fn polls(deadline: Duration) -> Vec<Duration> {
    let (begun, mut polls) = (Instant::now(), Vec::new());
    let late = eventually(deadline, "never", async || {
        polls.push(begun.elapsed());
        None::<()>
    });
    let late = late.await.expect_err("it never holds");
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    polls
}

#[tokio::test(start_paused = true)]
async fn a_condition_is_polled_often_at_first_and_rarely_later() {
    let polls = polls(Duration::from_secs(10)).await;
    let within = |time| polls.iter().filter(|at| **at < time).count();
    let early = within(Duration::from_millis(80));
    assert!((14..=16).contains(&early), "{early}");
    let later = polls.len() - within(Duration::from_secs(9));
    assert!((38..=40).contains(&later), "{later}");
}
