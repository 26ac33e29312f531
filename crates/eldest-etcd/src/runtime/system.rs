//! Implements [`Env`] on the real machine, with a clock that counts every pause, and with tokio's timers and tasks.
//!
//! In a normal build, only this file reads the machine's clocks.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::sync::Weak;
use std::time::{Duration, SystemTime};

use etcd_client::{Client, ConnectOptions};
use futures::FutureExt;
use futures::future::{BoxFuture, select};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

#[cfg(feature = "srv")]
use super::Service;
use super::boottime::now;
use super::{Env, Watched, dns, watchdog};
use eldest_core::time::Time;

/// The real clock, tokio, and one watchdog thread for the whole process.
#[derive(Debug, Clone)]
pub struct System {
    handle: Handle,
}

/// The error outside of a tokio runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRuntime;

impl std::fmt::Display for NoRuntime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "no tokio runtime here: call this from async code, or after `Runtime::enter`, \
             on a runtime with time and I/O enabled",
        )
    }
}

impl std::error::Error for NoRuntime {}

impl System {
    /// Uses the current runtime for all later tasks.
    ///
    /// # Errors
    /// The caller is not in a tokio runtime.
    pub fn new() -> Result<Self, NoRuntime> {
        match Handle::try_current() {
            Ok(handle) => Ok(Self { handle }),
            Err(_) => Err(NoRuntime),
        }
    }
}

impl Env for System {
    fn now(&self) -> Time {
        now()
    }

    #[allow(clippy::disallowed_methods)] // the one place that reads the wall clock
    fn unix_time(&self) -> Duration {
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
    }

    #[allow(clippy::disallowed_methods)] // the one place that makes tokio's timers
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        // The timer is made at the first poll, by the thread that waits. Outside of every runtime, the watchdog's
        // thread wakes it.
        async move {
            match Handle::try_current() {
                Ok(_) => tokio::time::sleep(duration).await,
                Err(_) => watchdog::wake_at(now().after(duration)).await,
            }
        }
        .boxed()
    }

    fn wake_at(&self, at: Time) -> BoxFuture<'static, ()> {
        // The runtime's timer as well, because the system may have refused to start the watchdog's thread.
        let sleep = self.sleep(at.since(now()));
        async move {
            select(watchdog::wake_at(at), sleep).await;
            // The sleep may be early by a rounding, or have stood still: the clock decides.
            watchdog::wake_at(at).await;
        }
        .boxed()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        drop(self.handle.spawn(task));
    }

    fn random(&self) -> u64 {
        random()
    }

    fn connect(
        &self,
        endpoint: String,
        options: ConnectOptions,
    ) -> BoxFuture<'static, Result<Client, etcd_client::Error>> {
        let session = self.handle.clone();
        let connecting = async move { Client::connect([endpoint], Some(options)).await };
        async move {
            if Handle::try_current().is_ok() {
                return connecting.await;
            }
            // The connection needs a task, which a caller outside of every runtime cannot start.
            let gone = |error| Err(etcd_client::Error::IoError(io::Error::other(error)));
            let connected = AbortOnDropHandle::new(session.spawn(connecting)).await;
            connected.unwrap_or_else(gone)
        }
        .boxed()
    }

    fn addresses(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let found = self.handle.spawn_blocking(move || dns::addresses(&host));
        async move { found.await.unwrap_or_else(|error| Err(error.into())) }.boxed()
    }

    fn greet(
        &self,
        place: (String, u16),
        greeting: &'static [u8],
    ) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        let greeted = async move {
            let mut connection = TcpStream::connect(place).await?;
            connection.write_all(greeting).await?;
            let mut answer = [0; 16];
            let length = connection.read(&mut answer).await?;
            Ok(answer[..length].to_vec())
        };
        let greeted = AbortOnDropHandle::new(self.handle.spawn(greeted));
        async move { greeted.await.unwrap_or_else(|error| Err(error.into())) }.boxed()
    }

    #[cfg(feature = "srv")]
    fn services(&self, name: String) -> BoxFuture<'static, io::Result<Vec<Service>>> {
        async move { dns::services(&name).await }.boxed()
    }

    fn read(&self, file: std::path::PathBuf) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        // On a thread for blocking calls: the file may lie on a disk that sleeps.
        let read = self.handle.spawn_blocking(move || std::fs::read(file));
        async move { read.await.unwrap_or_else(|error| Err(error.into())) }.boxed()
    }

    fn watch(&self, watched: Weak<dyn Watched>) {
        watchdog::watch(watched);
    }

    fn rewatch(&self) {
        watchdog::rewatch();
    }
}

/// Draws from the kernel, because a generator of our own would have the same state in every clone of a machine.
pub(super) fn random() -> u64 {
    // The kernel never refuses after it has booted.
    getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(now().as_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::timeout;

    #[test]
    fn outside_a_runtime_the_error_says_what_is_missing() {
        let error = System::new().expect_err("there is no runtime here");
        assert!(error.to_string().contains("tokio runtime"), "{error}");
    }

    #[tokio::test]
    async fn a_clone_with_the_same_seed_draws_other_numbers() {
        let system = System::new().expect("in a runtime");
        let drawn = [7, 7].map(|state| {
            fastrand::seed(state);
            system.random()
        });
        assert_ne!(drawn[0], drawn[1]);
    }

    #[tokio::test]
    async fn the_clock_advances_by_at_least_the_sleep() {
        let system = System::new().expect("in a runtime");
        let before = system.now();
        system.sleep(Duration::from_millis(20)).await;
        assert!(system.now().since(before) >= Duration::from_millis(20));
    }

    #[tokio::test]
    async fn timer_never_wakes_early_and_a_past_time_is_ready() {
        let system = System::new().expect("in a runtime");
        let at = system.now().after(Duration::from_millis(20));
        system.wake_at(at).await;
        assert!(system.now() >= at);
        assert_eq!(system.wake_at(at).now_or_never(), Some(()));
    }

    #[tokio::test]
    async fn the_clock_is_the_one_that_all_processes_share() {
        use eldest_process::clock;
        let system = System::new().expect("in a runtime");
        let before = clock::now();
        let now = system.now().as_nanos();
        assert!((before..=clock::now()).contains(&now));
    }

    #[test]
    fn a_task_is_spawned_from_a_thread_without_a_runtime() {
        let runtime = tokio::runtime::Runtime::new().expect("runtime");
        let guard = runtime.enter();
        let system = System::new().expect("entered");
        drop(guard);
        let (done, wait) = std::sync::mpsc::channel();
        system.spawn(async move { done.send(()).expect("waited for") }.boxed());
        wait.recv_timeout(Duration::from_secs(5)).expect("ran");
    }

    #[tokio::test]
    async fn a_timeout_lets_a_ready_answer_through_and_ends_an_endless_wait() {
        let system = System::new().expect("in a runtime");
        let ready = timeout(&system, Duration::ZERO, std::future::ready(7)).await;
        assert_eq!(ready, Some(7));
        let limit = Duration::from_millis(5);
        let endless = timeout(&system, limit, std::future::pending::<()>()).await;
        assert_eq!(endless, None);
    }
}
