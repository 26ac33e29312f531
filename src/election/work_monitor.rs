//! Detects that a leader's work sends no heartbeat, does not serve in time or outlives its term, even while all threads
//! of the runtime are blocked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::leadership::Claim;
use eldest_core::reason::LostReason;
use eldest_core::time::Time;
use eldest_etcd::runtime::Watched;

/// The value of a limit that is not set.
const NONE: u64 = u64::MAX;
/// How long the log line of an abort may take. Its writer may wait for a lock that is never released.
const LAST_WORDS: Duration = Duration::from_millis(20);

/// The watch over one term's work. The watchdog's thread keeps it for as long as `run` holds it.
pub(crate) struct WorkMonitor {
    claim: Arc<Claim>,
    grace: Duration,
    /// The longest time without a heartbeat of the work; nanoseconds.
    silence: AtomicU64,
    /// The longest time without an `Ok` of the health check; nanoseconds.
    illness: AtomicU64,
    /// The time of the last `Ok` of the health check; nanoseconds.
    well: AtomicU64,
    /// The time at which the term ends if its leader does not serve; nanoseconds.
    serve_by: AtomicU64,
    /// True if the process ends when the work outlives the term.
    aborts: bool,
    /// True while no work runs, because it has not begun or has ended.
    ended: AtomicBool,
}

impl WorkMonitor {
    /// Starts the watch. `start` is how long the work may take to begin.
    pub(crate) fn start(
        claim: Arc<Claim>,
        grace: Duration,
        start: Option<Duration>,
        aborts: bool,
    ) -> Arc<Self> {
        let shared = &claim.term().shared;
        shared.guard_by_watchdog();
        shared.beat();
        let env = Arc::clone(&shared.env);
        let monitor = Arc::new(Self {
            grace,
            silence: AtomicU64::new(nanos(start)),
            illness: AtomicU64::new(NONE),
            well: AtomicU64::new(0),
            serve_by: AtomicU64::new(NONE),
            aborts,
            ended: AtomicBool::new(true),
            claim,
        });
        let watched: Arc<dyn Watched> = Arc::clone(&monitor) as Arc<dyn Watched>;
        env.watch(Arc::downgrade(&watched));
        monitor
    }

    /// Returns the term's claim.
    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Sets the limits from the beginning of the work on.
    pub(crate) fn work_begins(&self, silence: Option<Duration>, illness: Option<Duration>) {
        let shared = &self.claim.term().shared;
        shared.beat();
        self.healthy();
        self.illness.store(nanos(illness), Ordering::Release);
        self.silence.store(nanos(silence), Ordering::Release);
        self.ended.store(false, Ordering::Release);
        shared.env.rewatch();
    }

    /// Sets the limit within which the leader must serve, from now on.
    pub(crate) fn serve_within(&self, limit: Duration) {
        let env = &self.claim.term().shared.env;
        let by = env.now().after(limit);
        self.serve_by.store(by.as_nanos(), Ordering::Release);
        env.rewatch();
    }

    /// Records an `Ok` of the health check.
    pub(crate) fn healthy(&self) {
        let now = self.claim.term().shared.env.now();
        self.well.fetch_max(now.as_nanos(), Ordering::AcqRel);
    }

    /// Records that the work and its tasks have ended.
    pub(crate) fn work_ended(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Ends the term as stalled, unless it is over.
    pub(crate) fn stall(&self, now: Time) {
        self.end(now, LostReason::Stalled);
    }

    fn end(&self, now: Time, reason: LostReason) {
        let shared = &self.claim.term().shared;
        if !shared.is_lost() {
            // The driver first: it must receive the reason before it learns that the work ended, or the term would
            // count as resigned. If the driver is gone, the lease is not renewed and the term is over anyway.
            drop(self.claim.end(reason));
            shared.stall(reason, now.after(self.grace));
        }
    }

    /// Returns the time at which the term ends if its leader does not serve before.
    fn serves_by(&self) -> Option<Time> {
        let by = self.serve_by.load(Ordering::Acquire);
        let waits = by != NONE && !self.claim.term().shared.serves();
        waits.then(|| Time::from_nanos(by))
    }

    /// Returns the time at which the term ends if no heartbeat comes before.
    fn stalls_at(&self) -> Option<Time> {
        let limit = |limit: &AtomicU64, since: Time| {
            let limit = limit.load(Ordering::Acquire);
            (limit != NONE).then(|| since.after(Duration::from_nanos(limit)))
        };
        let beat = self.claim.term().shared.last_beat();
        let well = Time::from_nanos(self.well.load(Ordering::Acquire));
        let stalls = [limit(&self.silence, beat), limit(&self.illness, well)];
        stalls.into_iter().flatten().min()
    }

    /// Returns the time at which the process ends if the work does not end before.
    fn aborts_at(&self) -> Option<Time> {
        let works = !self.ended.load(Ordering::Acquire);
        (self.aborts && works).then(|| self.claim.term().shared.cutoff())
    }
}

impl Watched for WorkMonitor {
    fn due(&self) -> Option<Time> {
        let lost = self.claim.term().shared.is_lost();
        let [stalls, serves] = [self.stalls_at(), self.serves_by()].map(|at| at.filter(|_| !lost));
        let due = [stalls, serves, self.aborts_at()];
        due.into_iter().flatten().min()
    }

    fn fire(&self, now: Time) {
        let shared = &self.claim.term().shared;
        if self.stalls_at().is_some_and(|at| now >= at) {
            self.stall(now);
        }
        if self.serves_by().is_some_and(|at| now >= at) {
            self.end(now, LostReason::NotServing);
        }
        if self.aborts_at().is_some_and(|at| now >= at) {
            abort(&shared.election, shared.token);
        }
    }
}

fn nanos(limit: Option<Duration>) -> u64 {
    limit.map_or(NONE, |limit| {
        u64::try_from(limit.as_nanos()).unwrap_or(NONE)
    })
}

/// Logs the reason and ends the process.
fn abort(election: &Arc<str>, token: i64) -> ! {
    let election = Arc::clone(election);
    let (said, listening) = std::sync::mpsc::channel();
    let words = move || {
        tracing::error!(target: "eldest::election", election = &*election, token, "work outlived its term: the process aborts");
        let _ = said.send(());
    };
    if std::thread::Builder::new().spawn(words).is_ok() {
        let _ = listening.recv_timeout(LAST_WORDS);
    }
    std::process::abort()
}
