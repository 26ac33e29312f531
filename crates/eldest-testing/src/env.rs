//! Provides a session's environment in the time of the tokio runtime, which a test may pause, and ends the whole
//! environment at once.
#![allow(clippy::disallowed_methods)] // this is a place that makes timers and tasks
#![cfg_attr(not(feature = "memory"), allow(unreachable_pub))] // the simulator of the whole library has it with that feature

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use eldest::CancellationToken;
use eldest::sim::{Env, Time, Watched};
use etcd_client::{Client, ConnectOptions, Error};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The wall clock's first moment in all simulations: the first second of 2020.
const EPOCH: Duration = Duration::from_secs(1_577_836_800);
/// The first reading of a clock: a deadline may lie a little before it.
const FIRST: Duration = Duration::from_secs(100);

type Connecting = BoxFuture<'static, Result<Client, Error>>;

/// The environment of one session: tokio's timers and tasks, and a clock, a source of random numbers and a network of
/// the caller's choice.
pub struct TokioEnv {
    runtime: Handle,
    clock: Box<dyn Fn() -> Time + Send + Sync>,
    /// The seconds of this clock in one second of tokio's clock.
    rate: f64,
    random: Box<dyn Fn() -> u64 + Send + Sync>,
    connect: Box<dyn Fn(String, ConnectOptions) -> Connecting + Send + Sync>,
    watchdog: Arc<Watchdog>,
    life: CancellationToken,
}

impl TokioEnv {
    /// Makes the environment of the current runtime, with its clock and with random numbers of the machine.
    pub fn new(
        connect: impl Fn(String, ConnectOptions) -> Connecting + Send + Sync + 'static,
    ) -> Arc<Self> {
        let clock = clock();
        let now = move || Time::ZERO.after(FIRST + clock());
        Self::with_clock(now, 1.0, || fastrand::u64(..), connect)
    }

    /// Makes an environment with a clock that runs at another rate than tokio's.
    pub fn with_clock(
        clock: impl Fn() -> Time + Clone + Send + Sync + 'static,
        rate: f64,
        random: impl Fn() -> u64 + Send + Sync + 'static,
        connect: impl Fn(String, ConnectOptions) -> Connecting + Send + Sync + 'static,
    ) -> Arc<Self> {
        let env = Arc::new(Self {
            runtime: Handle::current(),
            clock: Box::new(clock.clone()),
            rate,
            random: Box::new(random),
            connect: Box::new(connect),
            watchdog: Arc::default(),
            life: CancellationToken::new(),
        });
        let guard = guard(Arc::downgrade(&env.watchdog), clock, rate);
        env.runtime.spawn(guard);
        env
    }
}

/// Returns a clock that counts the time since this call, paused or not, for any thread.
pub(crate) fn clock() -> impl Fn() -> Duration + Clone + Send + Sync + 'static {
    let (runtime, begun) = (Handle::current(), Instant::now());
    move || {
        let _inside = runtime.enter();
        begun.elapsed()
    }
}

/// Does the work of the watchdog's thread.
async fn guard(watchdog: Weak<Watchdog>, clock: impl Fn() -> Time, rate: f64) {
    while let Some(watchdog) = watchdog.upgrade() {
        let now = clock();
        let wait = match watchdog.fire_due(now) {
            Some(due) => due.since(now).div_f64(rate),
            None => Duration::from_secs(1),
        };
        tokio::select! {
            biased;
            () = watchdog.changed.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

impl Env for TokioEnv {
    fn now(&self) -> Time {
        (self.clock)()
    }

    fn unix_time(&self) -> Duration {
        EPOCH + Duration::from_nanos(self.now().as_nanos())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let duration = duration.div_f64(self.rate);
        let runtime = self.runtime.clone();
        async move {
            // The timer is created at the first poll, on the waiting thread's runtime if there is one.
            let sleep = {
                let _inside = Handle::try_current().is_err().then(|| runtime.enter());
                tokio::time::sleep(duration)
            };
            sleep.await;
        }
        .boxed()
    }

    fn wake_at(&self, at: Time) -> BoxFuture<'static, ()> {
        // Tests never suspend the machine.
        self.sleep(at.since(self.now()))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        let life = self.life.clone();
        let task = async move { life.run_until_cancelled(task).await };
        drop(self.runtime.spawn(task));
    }

    fn random(&self) -> u64 {
        (self.random)()
    }

    fn connect(&self, endpoint: String, options: ConnectOptions) -> Connecting {
        if self.life.is_cancelled() {
            return refused();
        }
        let (runtime, connecting) = (self.runtime.clone(), (self.connect)(endpoint, options));
        async move {
            // The connection needs a task, which a caller outside of every runtime cannot start.
            match Handle::try_current() {
                Ok(_) => connecting.await,
                Err(_) => match runtime.spawn(connecting).await {
                    Ok(connected) => connected,
                    Err(gone) => Err(Error::IoError(io::Error::other(gone))),
                },
            }
        }
        .boxed()
    }

    fn watch(&self, watched: Weak<dyn Watched>) {
        self.watchdog.watch(watched);
    }

    fn rewatch(&self) {
        self.watchdog.changed.notify_one();
    }

    fn crash(&self) -> bool {
        self.life.cancel();
        true
    }
}

/// Returns a connection that is refused.
pub(crate) fn refused() -> Connecting {
    let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
    std::future::ready(Err(Error::IoError(refused))).boxed()
}

/// A watchdog that fires due deadlines whenever [`Watchdog::fire_due`] is called.
#[derive(Default)]
pub(crate) struct Watchdog {
    watched: Mutex<Vec<Watch>>,
    changed: Notify,
}

struct Watch {
    watched: Weak<dyn Watched>,
    fired: Option<Time>,
}

impl Watchdog {
    fn lock(&self) -> MutexGuard<'_, Vec<Watch>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn watch(&self, watched: Weak<dyn Watched>) {
        let fired = None;
        self.lock().push(Watch { watched, fired });
        self.changed.notify_one();
    }

    /// Fires due deadlines, and returns when to call it again.
    pub(crate) fn fire_due(&self, now: Time) -> Option<Time> {
        let mut next = None;
        let mut due_now = Vec::new();
        self.lock().retain_mut(|watch| {
            let Some(watched) = watch.watched.upgrade() else {
                return false;
            };
            match watched.due() {
                Some(due) if watch.fired == Some(due) => {}
                Some(due) if due <= now => {
                    watch.fired = Some(due);
                    due_now.push(watched);
                }
                Some(due) => next = Some(next.map_or(due, |next: Time| next.min(due))),
                None => {}
            }
            true
        });
        let again = !due_now.is_empty();
        for watched in due_now {
            watched.fire(now);
        }
        // Firing may have moved another deadline.
        if again { Some(now) } else { next }
    }
}

impl fmt::Debug for TokioEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioEnv").finish_non_exhaustive()
    }
}
