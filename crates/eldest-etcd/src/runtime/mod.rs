//! Abstracts time, timers, tasks, randomness, names and connections, so that the library runs unchanged on a real
//! machine or in simulated time.

mod alarm;
mod boottime;
mod clock;
mod dns;
mod scripted;
mod system;
mod watchdog;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions};
use futures::future::{BoxFuture, Either, select};

use eldest_core::time::Time;

pub use dns::Service;
pub use system::System;
pub use {clock::Clock, scripted::Scripted};

/// Everything that the library takes from its surroundings.
pub trait Env: Send + Sync + 'static {
    /// Returns the time of the deadline clock. It must never go back and must count every pause of the machine.
    fn now(&self) -> Time;
    /// Returns the time since the Unix epoch, for announcements and schedules. It never decides a leadership.
    fn unix_time(&self) -> Duration;
    /// Completes after `duration`, by a timer that may stand still while the machine is suspended. For pauses and the
    /// limits of requests; waits for a deadline use [`Env::wake_at`].
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
    /// Completes when the deadline clock shows `at`, promptly even if the machine was suspended meanwhile.
    fn wake_at(&self, at: Time) -> BoxFuture<'static, ()>;
    /// Runs a task in the background.
    fn spawn(&self, task: BoxFuture<'static, ()>);
    /// Returns a random number that the system draws at this call, so that a clone of this machine draws another.
    fn random(&self) -> u64;
    /// Makes a client for one endpoint.
    fn connect(
        &self,
        endpoint: String,
        options: ConnectOptions,
    ) -> BoxFuture<'static, Result<Client, etcd_client::Error>>;
    /// Returns the addresses of a host, from the system's resolver. An environment without a resolver returns an error.
    fn addresses(&self, _host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
    /// Connects to a host and port without TLS, sends the bytes, and returns the first bytes of the answer: 16 at most,
    /// and none if the connection is closed before. An environment without a network returns an error.
    fn greet(
        &self,
        _place: (String, u16),
        _greeting: &'static [u8],
    ) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
    /// Returns the SRV records of a name; none if there is no such name. An environment without a resolver for them
    /// returns an error.
    fn services(&self, _name: String) -> BoxFuture<'static, io::Result<Vec<Service>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
    /// Reads a small file. An environment without files returns an error.
    fn read(&self, _file: PathBuf) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
    /// Fires `watched` when it is due, even if every worker of the runtime is blocked. Registration ends when the last
    /// strong reference is dropped.
    fn watch(&self, watched: Weak<dyn Watched>);
    /// Makes the watchdog check all due times again, after one became *earlier* (a later one needs no call).
    fn rewatch(&self);
    /// Stops all tasks where they are and makes no more connections, as the end of the process would. Returns false if
    /// this environment cannot.
    fn crash(&self) -> bool {
        false
    }
}

/// A deadline that must be kept even if no task runs.
pub trait Watched: Send + Sync {
    /// Returns when to fire, if at all. Called on the watchdog's thread; must be quick and must not block.
    fn due(&self) -> Option<Time>;
    /// Called on the watchdog's thread at or after [`Watched::due`]; must be quick and must not block. Called once for
    /// each due time; the next call follows when `due` returns another one.
    fn fire(&self, now: Time);
}

/// A shared handle to the environment.
pub type SharedEnv = Arc<dyn Env>;

/// Returns the answer of `future`, or `None` if `limit` passes first. A future that is ready at once always answers.
pub async fn timeout<F: Future>(env: &dyn Env, limit: Duration, future: F) -> Option<F::Output> {
    first(future, env.sleep(limit)).await
}

/// Returns the answer of `future`, or `None` if the deadline clock shows `end` first.
pub async fn until<F: Future>(env: &dyn Env, end: Time, future: F) -> Option<F::Output> {
    first(future, env.wake_at(end)).await
}

async fn first<F: Future>(future: F, end: BoxFuture<'static, ()>) -> Option<F::Output> {
    match select(pin!(future), end).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(((), _)) => None,
    }
}
