//! Defines what the exchange takes from its machine, so that a test can script it.

use std::io;
use std::time::Duration;

use eldest_core::time::Time;
use futures::future::{BoxFuture, Either, select};

/// The time and the randomness of a session.
pub trait Machine: Send + Sync + 'static {
    /// Returns the time of the deadline clock, which never goes back and counts every pause of the machine.
    fn now(&self) -> Time;
    /// Completes after `duration`, by a timer that may stand still while the machine is suspended.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
    /// Returns a random number, from which pauses get their jitter.
    fn random(&self) -> u64;
    /// Takes the first of several refusals of the system to accept connections at the port.
    fn refuses_connections(&self, error: &io::Error);
}

/// Returns the answer of `future`, or `None` if `limit` passes first. A future that is ready at once always answers.
pub(crate) async fn timeout<F: Future>(
    machine: &dyn Machine,
    limit: Duration,
    future: F,
) -> Option<F::Output> {
    match select(std::pin::pin!(future), machine.sleep(limit)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(((), _)) => None,
    }
}
