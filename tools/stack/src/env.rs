//! Provides a node's surroundings in simulated time: its watchdog, and its own clock, which may be off and run fast or
//! slow.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use eldest::sim::{Env, Time, Watched};
use etcd_client::{Client, ConnectOptions};
use fastrand::Rng;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::Notify;

use crate::net;

/// Where the wall clocks of all simulations begin: the first second of 2020.
const EPOCH: Duration = Duration::from_secs(1_577_836_800);

/// The surroundings of the session of one turmoil host.
pub struct SimEnv {
    clock: Clock,
    rng: Mutex<Rng>,
    watchdog: Arc<Watchdog>,
}

/// A host's clock.
#[derive(Debug)]
struct Clock {
    /// What it shows at the simulation's beginning.
    offset: Duration,
    /// Its seconds in one of the simulation's.
    rate: f64,
    /// The latest reading, for the time after the simulation.
    latest: AtomicU64,
}

impl Clock {
    fn now(&self) -> Time {
        if let Some(elapsed) = turmoil::sim_elapsed() {
            let shown = self.offset + elapsed.mul_f64(self.rate);
            let nanos = u64::try_from(shown.as_nanos()).unwrap_or(u64::MAX);
            self.latest.fetch_max(nanos, Ordering::Relaxed);
        }
        Time::from_nanos(self.latest.load(Ordering::Relaxed))
    }

    /// That much by this clock, in the simulation's time.
    fn true_time(&self, duration: Duration) -> Duration {
        duration.div_f64(self.rate)
    }
}

#[derive(Default)]
struct Watchdog {
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

    /// Fires what is due, and says when to look again.
    fn look(&self, now: Time) -> Option<Time> {
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

impl SimEnv {
    /// For the turmoil host on which it is called. `drift_ppm`: how much faster its clock runs, in parts per million.
    pub fn new(seed: u64, offset: Duration, drift_ppm: i32) -> Self {
        let env = SimEnv {
            clock: Clock {
                offset,
                rate: 1.0 + f64::from(drift_ppm) / 1e6,
                latest: AtomicU64::new(0),
            },
            rng: Mutex::new(Rng::with_seed(seed)),
            watchdog: Arc::default(),
        };
        env.guard();
        env
    }

    /// Stands for the watchdog's thread: a task of the host.
    fn guard(&self) {
        let watchdog = Arc::downgrade(&self.watchdog);
        let clock = Clock {
            offset: self.clock.offset,
            rate: self.clock.rate,
            latest: AtomicU64::new(0),
        };
        tokio::spawn(async move {
            while let Some(watchdog) = watchdog.upgrade() {
                let now = clock.now();
                let wait = match watchdog.look(now) {
                    Some(due) => clock.true_time(due.since(now)),
                    None => Duration::from_secs(1),
                };
                tokio::select! {
                    biased;
                    () = watchdog.changed.notified() => {}
                    () = tokio::time::sleep(wait) => {}
                }
            }
        });
    }
}

impl Env for SimEnv {
    fn now(&self) -> Time {
        self.clock.now()
    }

    fn unix_time(&self) -> Duration {
        EPOCH + Duration::from_nanos(self.clock.now().as_nanos())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let duration = self.clock.true_time(duration);
        async move { tokio::time::sleep(duration).await }.boxed()
    }

    fn wake_at(&self, at: Time) -> BoxFuture<'static, ()> {
        // Nothing stands still in the simulation but all of a host.
        self.sleep(at.since(self.now()))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        drop(tokio::spawn(task));
    }

    fn random(&self) -> u64 {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        rng.u64(..)
    }

    fn connect(
        &self,
        endpoint: String,
        options: ConnectOptions,
    ) -> BoxFuture<'static, Result<Client, etcd_client::Error>> {
        net::connect(endpoint, options).boxed()
    }

    fn watch(&self, watched: Weak<dyn Watched>) {
        let fired = None;
        self.watchdog.lock().push(Watch { watched, fired });
        self.watchdog.changed.notify_one();
    }

    fn rewatch(&self) {
        self.watchdog.changed.notify_one();
    }
}
