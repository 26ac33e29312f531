//! Provides the machine on which the tests run.
#![allow(clippy::disallowed_methods, reason = "tests run in real time")]

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use eldest_core::time::Time;
use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::Machine;

/// The machine on which the test runs, with a clock that the test can put forward.
#[derive(Default)]
pub(crate) struct Staged {
    ahead: AtomicU64,
    never_wakes: bool,
}

impl Staged {
    /// Returns a machine whose timers never end.
    pub(crate) fn without_timers() -> Self {
        Self {
            never_wakes: true,
            ..Self::default()
        }
    }

    /// Puts the clock forward. Timers do not notice.
    pub(crate) fn put_forward(&self, by: Duration) {
        self.ahead.fetch_add(by.as_secs(), Ordering::Relaxed);
    }
}

impl Machine for Staged {
    fn now(&self) -> Time {
        static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
        let ahead = Duration::from_secs(self.ahead.load(Ordering::Relaxed));
        Time::ZERO.after(ORIGIN.elapsed() + ahead)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        if self.never_wakes {
            return futures::future::pending().boxed();
        }
        async move { tokio::time::sleep(duration).await }.boxed()
    }

    fn random(&self) -> u64 {
        fastrand::u64(..)
    }

    fn refuses_connections(&self, _error: &std::io::Error) {}
}

/// Returns the result of a step of a test, which must come within 20 s.
pub(crate) async fn soon<F: Future>(step: F) -> F::Output {
    let result = tokio::time::timeout(Duration::from_secs(20), step).await;
    result.expect("the step takes too long")
}

/// Runs a task until the returned handle is aborted or the test ends.
pub(crate) fn spawn(
    task: impl Future<Output = ()> + Send + 'static,
) -> tokio::task::JoinHandle<()> {
    tokio::spawn(task)
}
