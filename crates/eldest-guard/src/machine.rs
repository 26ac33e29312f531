//! Defines what a guard takes from its machine, so that a test can script it.

use std::time::Duration;

use eldest_core::time::Time;
use futures::future::BoxFuture;

/// The time, the tasks and the measurements of a guard.
pub trait Machine: Send + Sync + 'static {
    /// Returns the time of the deadline clock, which never goes back and counts every pause of the machine.
    fn now(&self) -> Time;
    /// Returns the time since the Unix epoch.
    fn unix_time(&self) -> Duration;
    /// Completes after `duration`, by a timer that may stand still while the machine is suspended.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
    /// Completes when the deadline clock shows `at`, promptly even if the machine was suspended meanwhile.
    fn wake_at(&self, at: Time) -> BoxFuture<'static, ()>;
    /// Runs a task in the background.
    fn spawn(&self, task: BoxFuture<'static, ()>);
    /// Returns a random number that the system draws at this call.
    fn random(&self) -> u64;
    /// Measures what the guard reports.
    fn measure(&self, report: Report);
}

/// An event that a guard reports for measurement.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// The guard has started.
    Started,
    /// The guard guards that number of sessions.
    Sessions(usize),
    /// The guard refused a session or a lease.
    Refused,
    /// An attempt to delete the keys of a lease ended so, in one word.
    Released(&'static str),
    /// The keys of a lease were deleted that long after the end of their process.
    Took(Duration),
}

/// Returns the answer of `future`, or `None` if `limit` passes first. A future that is ready at once always answers.
#[cfg(target_os = "linux")]
pub(crate) async fn timeout<F: Future>(
    machine: &dyn Machine,
    limit: Duration,
    future: F,
) -> Option<F::Output> {
    use futures::future::{Either, select};
    match select(std::pin::pin!(future), machine.sleep(limit)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(((), _)) => None,
    }
}
