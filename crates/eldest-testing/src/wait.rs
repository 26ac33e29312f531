//! Polls a condition until it yields a value, and fails after a deadline.
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::time::Duration;

use super::error::{Error, ErrorKind, Result};

/// Polls `condition` every 5 ms until it returns a value. Fails after `deadline`, also if one poll takes too long.
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
    let answer = tokio::time::timeout(deadline, async {
        loop {
            if let Some(answer) = condition().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    answer.await.map_err(|_| {
        Error::new(
            ErrorKind::TimedOut,
            format!("not within {deadline:?}: {what}"),
        )
    })
}
