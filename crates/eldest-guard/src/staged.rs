//! Provides machines for tests, and an etcd that does not answer.
#![allow(clippy::disallowed_methods, reason = "tests run in real time")]

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use eldest_core::error::{Class, RequestError};
use eldest_core::time::Time;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use crate::{Claim, Etcd, Extent, Machine, Proof, Proven, Release, Report, Unproven};

/// The machine on which the test runs.
pub(crate) struct Real;

impl Machine for Real {
    fn now(&self) -> Time {
        Time::from_nanos(eldest_process::clock::now())
    }

    fn unix_time(&self) -> Duration {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.unwrap_or_default()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        async move { tokio::time::sleep(duration).await }.boxed()
    }

    fn wake_at(&self, at: Time) -> BoxFuture<'static, ()> {
        async move {
            while Real.now() < at {
                Real.sleep(at.since(Real.now())).await;
            }
        }
        .boxed()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        drop(tokio::spawn(task));
    }

    fn random(&self) -> u64 {
        RandomState::new().hash_one(self.now().as_nanos())
    }

    fn measure(&self, _: Report) {}
}

/// A machine on which each wait takes only the time of its clock, and no task runs.
#[derive(Default)]
pub(crate) struct Scripted(Arc<AtomicU64>);

impl Machine for Scripted {
    fn now(&self) -> Time {
        Time::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn unix_time(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let clock = Arc::clone(&self.0);
        let nanos = eldest_process::clock::nanos(duration);
        async move {
            clock.fetch_add(nanos, Ordering::Relaxed);
        }
        .boxed()
    }

    fn wake_at(&self, _: Time) -> BoxFuture<'static, ()> {
        std::future::pending().boxed()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        drop(task);
    }

    fn random(&self) -> u64 {
        0
    }

    fn measure(&self, _: Report) {}
}

/// An etcd that does not answer.
pub(crate) struct Deaf;

fn failure() -> RequestError {
    RequestError::new(Class::Retry, "no etcd listens here", "")
}

impl Etcd for Deaf {
    fn prove<'a>(&'a self, _: Claim<'a>) -> BoxFuture<'a, Result<Proven, Unproven>> {
        let unknown = "nothing is known".to_owned();
        let failure = failure();
        ready(Err(Unproven::Unknown { unknown, failure })).boxed()
    }

    fn revoke<'a>(
        &'a self,
        _: &'a Proof,
        _: &'a str,
        _: Extent,
    ) -> BoxFuture<'a, Result<Release, RequestError>> {
        ready(Err(failure())).boxed()
    }

    fn request_timeout(&self) -> Duration {
        Duration::from_secs(1)
    }
}
