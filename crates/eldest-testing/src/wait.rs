//! Polls a condition until it yields a value, and fails after a deadline.
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::time::Duration;

use tokio::time::Instant;

use super::error::{Error, ErrorKind, Result};

/// Time between the first polls of a condition.
const SHORTEST: Duration = Duration::from_millis(5);
/// Time between the polls of a condition that takes long to hold: most conditions ask a server, whose answers then cost
/// more of the processor than the rest of the test.
const LONGEST: Duration = Duration::from_millis(25);

/// Polls `condition` until it returns a value: every 5 ms at first, and every 25 ms after it has not held for 0.4 s. Fails
/// after `deadline`, also if one poll takes too long.
///
/// `what` completes the sentence "not within 5 s: ...".
///
/// Call it in the body of a test. In a spawned task, the compiler may fail to see that the future is `Send` ("not
/// general enough"): there, let the task report and the test's body wait.
///
/// ```no_run
/// # async fn example(etcd: eldest_testing::Etcd) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::time::Duration;
/// use eldest_testing::eventually;
///
/// eventually(Duration::from_secs(5), "the put is counted", async || {
///     (etcd.metric("etcd_mvcc_put_total").await >= 1.0).then_some(())
/// })
/// .await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`TimedOut`](ErrorKind::TimedOut): the deadline passed first.
pub async fn eventually<T>(
    deadline: Duration,
    what: impl std::fmt::Display,
    mut condition: impl AsyncFnMut() -> Option<T>,
) -> Result<T> {
    let begun = Instant::now();
    let answer = tokio::time::timeout(deadline, async {
        loop {
            if let Some(answer) = condition().await {
                return answer;
            }
            let pause = (begun.elapsed() / 16).clamp(SHORTEST, LONGEST);
            tokio::time::sleep(pause).await;
        }
    });
    answer.await.map_err(|_| {
        Error::new(
            ErrorKind::TimedOut,
            format!("not within {deadline:?}: {what}"),
        )
    })
}
