//! Executes a schedule in every term of a node: waits, records that a due time begins, runs the work, records its end.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex as SyncMutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Mutex;

use super::journal::{Journal, Lost, Place};
use super::moment::{Moment, invalid};
use super::plan::{CatchUp, Delivery, Plan, Step};
use super::record::{Progress, Record};
use super::times::Schedule;
use crate::election::{Election, Leadership, Runner, Shutdown, Work};
use crate::error::{BoxError, Error, Result};

/// The longest time between two readings of the wall clock, which may be set meanwhile.
const TICK: Duration = Duration::from_secs(1);
/// The largest number of due times that are caught up.
const MOST: usize = 1000;

/// A schedule that the leader of an election executes. It comes from [`Election::every`] or [`Runner::every`].
///
/// **Guaranteed**: the due times are begun one after the other, each later than the one before, across all hand-overs.
/// With [`Delivery::AtMostOnce`], none is begun twice. With [`Delivery::AtLeastOnce`], one that was begun is repeated
/// until the work has returned `Ok` and etcd has recorded that. Before the work begins, a transaction that is fenced by
/// the term records the due time in etcd. **Not guaranteed**: that work ends in time if its leader is paused for longer
/// than its term. As in [`Election::run`], the work watches [`Term::lost`](crate::Term::lost) and fences what must
/// never happen twice.
///
/// The record is the key `<namespace>/~schedule/<election>`, without a lease. It survives all terms and sessions. If it
/// is lost or restored from a backup, so is the memory of what was run. All nodes of an election need the same schedule
/// and the same rules; an election has one schedule. To change it, give the nodes another one: it continues after the
/// last due time of the old one.
///
/// # Clocks
///
/// - The leader's wall clock decides what is due. Its offset from the true time is the offset of the work.
/// - If the clock jumps forward, the due times that it passed are missed, and the [catch-up rule](CatchUp) applies. The
///   leader reads the clock once a second.
/// - If the clock jumps back, or the next leader's clock is behind, no due time up to the last recorded one is run
///   again. The schedule waits until the clock has passed it, and logs a warning.
/// - A leader whose clock is far in the future makes the schedule wait for that long. Correct the clock, delete the
///   record, and let the leader step down.
/// - While the machine is suspended, nothing is run; on waking, the term is over in most cases, and the next leader
///   catches up.
///
/// Leadership does not depend on wall clocks.
#[must_use = "a schedule does nothing until it is run"]
pub struct Every<'a> {
    runner: Runner<'a>,
    plan: Plan,
}

impl Election {
    /// Returns a schedule of which each due time is run by one node: the one that leads.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = eldest::Session::connect([etcd.endpoint()], eldest::SessionOptions::new("node-a")).await?;
    /// # let shutdown = eldest::CancellationToken::new();
    /// # let stop = shutdown.clone();
    /// # async fn bill(_until: std::time::SystemTime) -> Result<(), eldest::BoxError> { Ok(()) }
    /// use std::time::Duration;
    /// use eldest::{CatchUp, Delivery, Due, Schedule};
    ///
    /// session
    ///     .election("billing/hourly")?
    ///     .every(Schedule::interval(Duration::from_millis(500))?)
    ///     .delivery(Delivery::AtLeastOnce) // by default at most once
    ///     .catch_up(CatchUp::All(24)) // by default the latest
    ///     .run(shutdown, |due: Due| {
    /// #       stop.cancel();
    ///         async move { bill(due.at()).await }
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn every<'a>(&self, schedule: Schedule) -> Every<'a> {
        self.runner().every(schedule)
    }
}

impl<'a> Runner<'a> {
    /// Returns a schedule as [`Election::every`] does, with this runner's options.
    ///
    /// While the leader waits for a due time, the schedule sends the heartbeats of a [stall
    /// timeout](Runner::stall_timeout). While the work of a due time runs, the work sends them.
    pub fn every(self, schedule: Schedule) -> Every<'a> {
        let plan = Plan {
            schedule,
            delivery: Delivery::default(),
            catch_up: CatchUp::default(),
        };
        Every { runner: self, plan }
    }
}

impl Every<'_> {
    /// Sets what happens to a due time whose run was interrupted; [`Delivery::AtMostOnce`] by default.
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.plan.delivery = delivery;
        self
    }

    /// Sets what happens to due times that passed while no leader worked; [`CatchUp::Latest`] by default.
    pub fn catch_up(mut self, catch_up: CatchUp) -> Self {
        self.plan.catch_up = catch_up;
        self
    }

    /// Joins the election as a candidate, and runs `work` at each due time while this node leads, until `shutdown`.
    ///
    /// Terms begin, are lost and end as in [`Election::run`]; the due time's work is that call's work. Two calls of
    /// `work` never overlap, neither on one node nor, if the work heeds its token, on two. Due times that pass while
    /// the work runs are missed, and the [catch-up rule](CatchUp) applies to them.
    ///
    /// Work that returns `Ok` while its token is not cancelled has finished its due time. If it returns `Ok` or an
    /// error later, or is dropped, the run was interrupted, and the [delivery](Delivery) decides.
    ///
    /// Nothing is due before the first leader has recorded that the schedule begins. When a schedule has no further due
    /// time, the leader waits for `shutdown`.
    ///
    /// # Errors
    ///
    /// As [`Election::run`], with `Work` for an error of the work: this node leaves the election, and another one
    /// leads. Return `Ok` to give up a due time that cannot succeed. `InvalidInput` also if [`CatchUp::All`] is out of
    /// bounds, if the election is not within the session's namespace
    /// ([`Session::election_at`](crate::Session::election_at)), or if the record in etcd cannot be read.
    /// `PermissionDenied`, `Rejected`: etcd refused to read or write the record.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the call drops the work and releases the key, in that order. A due time whose work was dropped is
    /// interrupted.
    pub async fn run<S, K, W, F, E>(self, shutdown: S, work: W) -> Result<()>
    where
        S: Shutdown<K>,
        W: Work<Due, F>,
        F: Future<Output = Result<(), E>>,
        E: Into<BoxError>,
    {
        let Self { runner, plan } = self;
        if let CatchUp::All(most) = plan.catch_up
            && !(1..=MOST).contains(&most)
        {
            return Err(invalid(format!(
                "CatchUp::All is {most}; it must be from 1 to {MOST}"
            )));
        }
        let executor = Executor {
            place: Place::of(runner.election())?,
            tick: runner
                .stall_limit()
                .map_or(TICK, |limit| TICK.min(limit / 4)),
            plan,
            refused: SyncMutex::default(),
        };
        // Never contended: no two terms overlap.
        let work = Mutex::new(work);
        let (executor, work) = (&executor, &work);
        let led = runner
            .serving_at_once()
            .run(shutdown, |leadership| async move {
                executor.term(leadership, &mut *work.lock().await).await
            })
            .await;
        match executor.refused() {
            Some(error) => Err(error),
            None => led.map(drop),
        }
    }
}

impl fmt::Debug for Every<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Every")
            .field("election", self.runner.election())
            .field("schedule", &self.plan.schedule)
            .field("delivery", &self.plan.delivery)
            .field("catch_up", &self.plan.catch_up)
            .finish_non_exhaustive()
    }
}

/// One due time of a schedule. It dereferences to the [`Leadership`] of its term, which has the token, the heartbeat
/// and the fencing.
///
/// Tasks of [`Leadership::spawn`] may outlive the call of the work. A due time is finished when that call returns.
#[derive(Debug)]
pub struct Due {
    leadership: Arc<Leadership>,
    at: Moment,
    again: bool,
}

impl Due {
    /// Returns the due time, which may have passed long ago. It identifies the run: use it as the key of the work's
    /// writes.
    pub fn at(&self) -> SystemTime {
        self.at.to_system()
    }

    /// Returns `true` if this due time was begun before, and its run was interrupted.
    pub fn is_repeated(&self) -> bool {
        self.again
    }
}

impl Deref for Due {
    type Target = Leadership;

    fn deref(&self) -> &Leadership {
        &self.leadership
    }
}

/// The state that all terms of one call of [`Every::run`] share.
struct Executor {
    place: Place,
    plan: Plan,
    tick: Duration,
    /// The error of the schedule itself, not of the work, that ended the call.
    refused: SyncMutex<Option<Error>>,
}

impl Executor {
    fn refused(&self) -> Option<Error> {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.take()
    }

    /// Keeps an error of the record, so that the caller of `run` receives it unchanged.
    fn refuse(&self, error: Error) -> BoxError {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let text = error.to_string();
        *refused = Some(error);
        text.into()
    }

    /// Runs one term; returns `Ok` when it is over.
    async fn term<W, WF, E>(&self, leadership: Leadership, work: &mut W) -> Result<(), BoxError>
    where
        W: FnMut(Due) -> WF,
        WF: Future<Output = Result<(), E>>,
        E: Into<BoxError>,
    {
        let leadership = Arc::new(leadership);
        let lost = leadership.lost();
        let opened = Journal::open(&self.place, leadership.term()).await;
        let mut journal = match opened.map_err(|error| self.refuse(error))? {
            Ok(journal) => journal,
            Err(Lost) => return Ok(()),
        };
        self.remark(&leadership, journal.record());
        let mut awaited = None;
        while !lost.is_cancelled() {
            leadership.heartbeat();
            let now = self.place.now();
            let (due, again) = match self.plan.next(journal.record(), awaited, now) {
                Step::Wait(due) => {
                    awaited = due;
                    let left = due.map_or(self.tick, |due| due.since(now).min(self.tick));
                    let _ = lost.run_until_cancelled(self.place.env.sleep(left)).await;
                    continue;
                }
                Step::Begin(due) => {
                    let progress = Progress::Finished;
                    self.note(&mut journal, Record { due, progress }).await?;
                    continue;
                }
                Step::Run { due, again } => (due, again),
            };
            awaited = None;
            let progress = Progress::Begun;
            let begun = Record { due, progress };
            if !self.note(&mut journal, begun).await? {
                continue;
            }
            let (election, due_unix_ms) = (leadership.name(), due.0);
            tracing::debug!(target: "eldest::election", election, due_unix_ms, again, "due time begun");
            let at = due;
            let leadership = Arc::clone(&leadership);
            work(Due {
                leadership,
                at,
                again,
            })
            .await
            .map_err(Into::into)?;
            // Work that returns after its token was cancelled has not finished.
            if lost.is_cancelled() {
                break;
            }
            let progress = Progress::Finished;
            self.note(&mut journal, Record { due, progress }).await?;
        }
        Ok(())
    }

    /// Writes the record. Returns `false` if the term is over, or if etcd has another record, which counts then.
    async fn note(&self, journal: &mut Journal<'_>, record: Record) -> Result<bool, BoxError> {
        let written = journal.write(record).await;
        let written = written.map_err(|error| self.refuse(error))?;
        Ok(written.is_ok() && journal.record() == Some(&record))
    }

    /// Logs circumstances at the beginning of a term that an operator may not expect.
    fn remark(&self, leadership: &Leadership, record: Option<&Record>) {
        let Some(&Record { due, progress }) = record else {
            return;
        };
        let (election, due_unix_ms) = (leadership.name(), due.0);
        let now = self.place.now();
        if due > now {
            let ahead = due.since(now);
            tracing::warn!(target: "eldest::election", election, due_unix_ms, ?ahead, "the last due time is ahead of this node's clock; the schedule waits");
        }
        if progress == Progress::Begun {
            let repeated = self.plan.delivery == Delivery::AtLeastOnce;
            tracing::warn!(target: "eldest::election", election, due_unix_ms, repeated, "the run of a due time was interrupted");
        }
    }
}
