//! Builds an [`Env`] from closures: a test replaces some parts of the machine, and keeps the others.
#![allow(clippy::disallowed_methods)] // the tests' clock and timers
#![allow(missing_docs)] // fields are named as the methods of `Env` are
#![allow(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "for crates that pin the exact version"
)]

use std::io;
use std::net::IpAddr;
use std::sync::Weak;
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions, Error};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::system::random;
use super::{Env, Service, Watched};
use eldest_core::time::Time;

/// A method of [`Env`] with one argument.
type Method<A, T> = Box<dyn Fn(A) -> T + Send + Sync>;
type Done<T = ()> = BoxFuture<'static, T>;

/// The implementation of each method of [`Env`].
pub struct Scripted {
    pub now: Box<dyn Fn() -> Time + Send + Sync>,
    pub unix_time: Box<dyn Fn() -> Duration + Send + Sync>,
    pub sleep: Method<Duration, Done>,
    pub wake_at: Method<Time, Done>,
    pub spawn: Method<Done, ()>,
    pub random: Box<dyn Fn() -> u64 + Send + Sync>,
    pub connect: Method<(String, ConnectOptions), Done<Result<Client, Error>>>,
    pub addresses: Method<String, Done<io::Result<Vec<IpAddr>>>>,
    pub services: Method<String, Done<io::Result<Vec<Service>>>>,
    pub watch: Method<Weak<dyn Watched>, ()>,
    pub rewatch: Box<dyn Fn() + Send + Sync>,
}

impl Scripted {
    /// Makes a machine with a clock that starts now, tokio's timers and tasks, and real connections, but without a
    /// watchdog.
    pub fn real() -> Self {
        let begun = Instant::now();
        let now = move || Time::ZERO.after(Duration::from_secs(1) + begun.elapsed());
        let sleep = |duration| async move { tokio::time::sleep(duration).await }.boxed();
        Self {
            now: Box::new(now),
            sleep: Box::new(sleep),
            wake_at: Box::new(move |at: Time| sleep(at.since(now()))),
            spawn: Box::new(|task| drop(tokio::spawn(task))),
            random: Box::new(random),
            connect: Box::new(|(endpoint, options)| {
                async move { Client::connect([endpoint], Some(options)).await }.boxed()
            }),
            ..Self::still()
        }
    }

    /// Makes a machine on which nothing happens: its clock shows the origin, no wait ends, and no task runs.
    pub fn still() -> Self {
        Self {
            now: Box::new(|| Time::ZERO),
            unix_time: Box::new(|| Duration::ZERO),
            sleep: Box::new(|_| std::future::pending().boxed()),
            wake_at: Box::new(|_| std::future::pending().boxed()),
            spawn: Box::new(drop),
            random: Box::new(|| 0),
            connect: Box::new(|_| std::future::pending().boxed()),
            addresses: Box::new(|_| std::future::pending().boxed()),
            services: Box::new(|_| std::future::pending().boxed()),
            watch: Box::new(drop),
            rewatch: Box::new(|| ()),
        }
    }
}

impl Env for Scripted {
    fn now(&self) -> Time {
        (self.now)()
    }

    fn unix_time(&self) -> Duration {
        (self.unix_time)()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        (self.sleep)(duration)
    }

    fn wake_at(&self, at: Time) -> BoxFuture<'static, ()> {
        (self.wake_at)(at)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        (self.spawn)(task);
    }

    fn random(&self) -> u64 {
        (self.random)()
    }

    fn connect(
        &self,
        endpoint: String,
        options: ConnectOptions,
    ) -> BoxFuture<'static, Result<Client, Error>> {
        (self.connect)((endpoint, options))
    }

    fn addresses(&self, host: String) -> Done<io::Result<Vec<IpAddr>>> {
        (self.addresses)(host)
    }

    fn read(&self, file: std::path::PathBuf) -> Done<io::Result<Vec<u8>>> {
        Box::pin(async move { std::fs::read(file) })
    }

    fn services(&self, name: String) -> Done<io::Result<Vec<Service>>> {
        (self.services)(name)
    }

    fn watch(&self, watched: Weak<dyn Watched>) {
        (self.watch)(watched);
    }

    fn rewatch(&self) {
        (self.rewatch)();
    }
}
