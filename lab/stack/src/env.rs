//! Provides a node's environment in simulated time: its own clock may be wrong and run fast or slow.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use eldest::sim::Time;
use eldest_testing::internal::TokioEnv;
use fastrand::Rng;
use futures::FutureExt;

use crate::net;

/// A host's clock. Clones show the same.
#[derive(Debug, Clone)]
struct Clock {
    /// The time that it shows at the simulation's beginning.
    offset: Duration,
    /// Its seconds in one second of the simulation.
    rate: f64,
    /// The latest reading, for the time after the simulation.
    latest: Arc<AtomicU64>,
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
}

/// Returns the environment for the session of the turmoil host on which it is called. Its clock runs faster by
/// `drift_ppm` parts per million.
pub fn sim_env(seed: u64, offset: Duration, drift_ppm: i32) -> Arc<TokioEnv> {
    let rate = 1.0 + f64::from(drift_ppm) / 1e6;
    let latest = Arc::default();
    let clock = Clock {
        offset,
        rate,
        latest,
    };
    let rng = Mutex::new(Rng::with_seed(seed));
    let random = move || {
        let mut rng = rng.lock().unwrap_or_else(PoisonError::into_inner);
        rng.u64(..)
    };
    let connect = |endpoint, options| net::connect(endpoint, options).boxed();
    TokioEnv::with_clock(move || clock.now(), rate, random, connect)
}
