//! Runs a node's work in a separate task, and returns how it ended.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::thread;

use futures::FutureExt;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::shutdown::{Shutdown, cancel_on};
use crate::error::{Error, Result};
use eldest_etcd::runtime::SharedEnv;

/// The handle of work that runs in a separate task. Awaiting it returns what [`Election::run`](crate::Election::run)
/// returns.
///
/// A panic of the work resumes where the handle is awaited. Dropping the handle leaves the task running, until its
/// shutdown or the end of the session.
///
/// # Errors
///
/// As [`Election::run`](crate::Election::run); `Closed` also if the runtime shut down.
///
/// # Cancellation safety
///
/// Cancel safe: if a wait is dropped, awaiting `&mut handle` again returns the result. After the handle has returned
/// its result, do not await it again.
#[must_use = "only the handle reports how the work ended"]
pub struct RunHandle<T> {
    stop: CancellationToken,
    result: oneshot::Receiver<thread::Result<Result<Option<T>>>>,
}

/// Runs a future in a task of the session, with a token that `shutdown` and the returned handle cancel.
pub fn spawn<S, K, T, R>(
    env: &SharedEnv,
    shutdown: S,
    run: impl FnOnce(CancellationToken) -> R,
) -> RunHandle<T>
where
    S: Shutdown<K>,
    S::Signal: Send + 'static,
    T: Send + 'static,
    R: Future<Output = Result<Option<T>>> + Send + 'static,
{
    let (shutdown, signal) = shutdown.into_parts();
    let stop = shutdown.child_token();
    let run = run(stop.clone());
    let (done, result) = oneshot::channel();
    let task = async move {
        let run = cancel_on(signal, &shutdown, run);
        let _ = done.send(AssertUnwindSafe(run).catch_unwind().await);
    };
    env.spawn(task.boxed());
    RunHandle { stop, result }
}

impl<T> RunHandle<T> {
    /// Tells the work to stop, as its shutdown signal does. To wait until the work has stopped, await the handle.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}

impl<T> Future for RunHandle<T> {
    type Output = Result<Option<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match ready!(self.result.poll_unpin(cx)) {
            Ok(Ok(result)) => Poll::Ready(result),
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => Poll::Ready(Err(Error::closed())),
        }
    }
}

impl<T> fmt::Debug for RunHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunHandle").finish_non_exhaustive()
    }
}
