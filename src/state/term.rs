//! Decides by one clock comparison, on any thread, whether a term is still valid.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, ErrorKind, Result};
use crate::etcd::{Guard, Op, Pool, TxnOutcome};
use crate::runtime::{SharedEnv, Watched};
use eldest_core::reason::LostReason;
use eldest_core::time::Time;

/// Set in a deadline's word once the deadline can no longer be extended.
const FROZEN: u64 = 1 << 63;

/// Until when one lease is believed in, without a break; shared by every term that began under it.
///
/// Its deadline only moves later, and only while it is not frozen; once anybody saw it pass, it is frozen for
/// ever, so no check that said "no" is ever followed by one that says "yes".
#[derive(Debug)]
pub(crate) struct LeaseDeadline {
    /// etcd's id of the lease.
    lease: i64,
    word: AtomicU64,
    over: CancellationToken,
}

impl LeaseDeadline {
    pub(crate) fn until(lease: i64, deadline: Time) -> Arc<Self> {
        Arc::new(Self {
            lease,
            word: AtomicU64::new(deadline.as_nanos()),
            over: CancellationToken::new(),
        })
    }

    pub(crate) fn lease(&self) -> i64 {
        self.lease
    }

    pub(crate) fn deadline(&self) -> Time {
        Time::from_nanos(self.word.load(Ordering::Acquire) & !FROZEN)
    }

    fn is_frozen(&self) -> bool {
        self.word.load(Ordering::Acquire) & FROZEN != 0
    }

    /// Moves the deadline later. False: it is frozen, and whoever wanted to extend it must begin a new one.
    pub(crate) fn extend(&self, deadline: Time) -> bool {
        let later = |word: u64| (word & FROZEN == 0).then(|| word.max(deadline.as_nanos()));
        self.word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, later)
            .is_ok()
    }

    /// No extension from here on; every term under it is told.
    pub(crate) fn end(&self) {
        self.word.fetch_or(FROZEN, Ordering::AcqRel);
        self.over.cancel();
    }

    /// [`LeaseDeadline::end`] if the deadline has passed by `now`. False: it has not, perhaps because it was just extended.
    fn end_by(&self, now: Time) -> bool {
        // Looked at and ended in one step: no extension comes between.
        let passed = |word: u64| (word & !FROZEN <= now.as_nanos()).then_some(word | FROZEN);
        let ended = self
            .word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, passed)
            .is_ok();
        if ended {
            self.over.cancel();
        }
        ended
    }
}

/// The deadline of the session's present lease, watched by the watchdog.
#[derive(Debug)]
pub(crate) struct LeaseDeadlines {
    present: Mutex<Option<Arc<LeaseDeadline>>>,
    grace: Duration,
}

impl LeaseDeadlines {
    pub(crate) fn new(grace: Duration) -> Arc<Self> {
        Arc::new(Self {
            present: Mutex::new(None),
            grace,
        })
    }

    /// The longest that work may go on after its term ended.
    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }

    pub(crate) fn present(&self) -> Option<Arc<LeaseDeadline>> {
        self.present
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn begin(&self, lease: i64, deadline: Time) -> Arc<LeaseDeadline> {
        let lease_deadline = LeaseDeadline::until(lease, deadline);
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        *present = Some(Arc::clone(&lease_deadline));
        lease_deadline
    }

    pub(crate) fn end(&self) {
        let present = self
            .present
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(lease_deadline) = present {
            lease_deadline.end();
        }
    }
}

impl Watched for LeaseDeadlines {
    fn due(&self) -> Option<Time> {
        self.present()
            .filter(|lease_deadline| !lease_deadline.is_frozen())
            .map(|lease_deadline| lease_deadline.deadline().before(self.grace))
    }

    fn fire(&self, now: Time) {
        if let Some(lease_deadline) = self.present() {
            // Extended this moment, it names another due time.
            lease_deadline.end_by(now.after(self.grace));
        }
    }
}

/// What every handle of one term shares.
pub(crate) struct TermState {
    pub(crate) env: SharedEnv,
    pub(crate) pool: Arc<Pool>,
    pub(crate) lease_deadline: Arc<LeaseDeadline>,
    pub(crate) election: Arc<str>,
    pub(crate) key: Arc<[u8]>,
    pub(crate) token: i64,
    /// Valid no longer than this, whatever the lease; nanoseconds, only ever lowered.
    until: AtomicU64,
    /// Work is dropped then; nanoseconds, only ever lowered.
    cutoff: AtomicU64,
    reason: OnceLock<LostReason>,
    /// The driver has told of the end.
    told: AtomicBool,
    /// The watchdog must hear of an earlier end of the work.
    guarded: AtomicBool,
    /// Its `Leadership` was handed to somebody who acts.
    taken_up: AtomicBool,
    /// Nanoseconds; the last sign of life of the work.
    beat: AtomicU64,
    lost: CancellationToken,
}

impl TermState {
    pub(crate) fn new(
        env: SharedEnv,
        pool: Arc<Pool>,
        lease_deadline: Arc<LeaseDeadline>,
        election: Arc<str>,
        key: Arc<[u8]>,
        token: i64,
    ) -> Arc<Self> {
        Arc::new(Self {
            lost: lease_deadline.over.child_token(),
            taken_up: AtomicBool::new(false),
            beat: AtomicU64::new(env.now().as_nanos()),
            env,
            pool,
            lease_deadline,
            election,
            key,
            token,
            until: AtomicU64::new(u64::MAX),
            cutoff: AtomicU64::new(u64::MAX),
            reason: OnceLock::new(),
            told: AtomicBool::new(false),
            guarded: AtomicBool::new(false),
        })
    }

    /// Somebody acts under it from now on.
    pub(crate) fn take_up(&self) {
        self.taken_up.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_taken_up(&self) -> bool {
        self.taken_up.load(Ordering::Relaxed)
    }

    /// The driver ends the term. Whether that is news.
    pub(crate) fn end(&self, reason: LostReason, cutoff: Time, valid: bool) -> bool {
        self.limit_to(reason, cutoff, valid);
        if self.guarded.load(Ordering::Acquire) {
            self.env.rewatch();
        }
        !self.told.swap(true, Ordering::AcqRel)
    }

    /// The watchdog ends the term, and leaves it to the driver to tell.
    pub(crate) fn stall(&self, cutoff: Time) {
        self.limit_to(LostReason::Stalled, cutoff, true);
    }

    /// Reason first, then the limits, then the token. Told again, the first reason stands.
    fn limit_to(&self, reason: LostReason, cutoff: Time, valid: bool) {
        let _ = self.reason.set(reason);
        let until = if valid { cutoff.as_nanos() } else { 0 };
        self.until.fetch_min(until, Ordering::AcqRel);
        self.cutoff.fetch_min(cutoff.as_nanos(), Ordering::AcqRel);
        self.lost.cancel();
    }

    /// A watched deadline hangs on the term's: it is looked at again when the term ends.
    pub(crate) fn guard_by_watchdog(&self) {
        self.guarded.store(true, Ordering::Release);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    pub(crate) fn last_beat(&self) -> Time {
        Time::from_nanos(self.beat.load(Ordering::Acquire))
    }

    pub(crate) fn beat(&self) {
        let now = self.env.now().as_nanos();
        self.beat.fetch_max(now, Ordering::AcqRel);
    }

    pub(crate) fn reason(&self) -> Option<LostReason> {
        let told = self.reason.get().copied();
        // The watchdog cancels without waiting for the driver to say why; it has one reason only.
        told.or_else(|| self.is_lost().then_some(LostReason::LeaseExpiring))
    }

    /// The holder gave the term back: its key may go from now on.
    pub(crate) fn give_back(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// When work that goes on is dropped; far away while the term is not over.
    pub(crate) fn cutoff(&self) -> Time {
        Time::from_nanos(self.cutoff.load(Ordering::Acquire)).min(self.lease_deadline.deadline())
    }

    /// Completes at the frozen deadline. The token must have been cancelled: until then the deadline moves.
    async fn until_cutoff(&self) {
        loop {
            let cutoff = self.cutoff();
            if self.env.now() >= cutoff {
                return;
            }
            self.env.wake_at(cutoff).await;
        }
    }

    fn limit(&self) -> Time {
        Time::from_nanos(self.until.load(Ordering::Acquire)).min(self.lease_deadline.deadline())
    }

    fn is_valid(&self) -> bool {
        loop {
            // The clock is read last: a pause before it is seen, only one after it is not.
            let until = Time::from_nanos(self.until.load(Ordering::Acquire));
            let deadline = self.lease_deadline.deadline();
            let now = self.env.now();
            if now < until.min(deadline) {
                return true;
            }
            // Extended while the clock was read, it must not be said to be over: look again.
            if now < deadline || self.lease_deadline.end_by(now) {
                return false;
            }
        }
    }
}

/// A view of one term of leadership: whether it is valid, and how to fence what is written under it.
///
/// Cheap to clone and to pass to everything that acts for the leader. It does not hold the leadership: when the
/// [`Leadership`](crate::Leadership) ends, every view of it says so.
#[derive(Clone)]
pub struct Term {
    pub(crate) shared: Arc<TermState>,
}

impl Term {
    /// Whether this node may act as leader, now: one read of the clock and a comparison, without lock or
    /// allocation, for every hot path.
    ///
    /// Once it said `false` it never says `true` again. It is `false` at the latest at [`Term::valid_until`],
    /// which is before etcd can give the leadership to anybody else. A pause *after* the check cannot be seen by
    /// any check: what must never happen twice needs [`Term::txn`] or the [`Term::fencing_token`] as well.
    pub fn is_valid(&self) -> bool {
        self.shared.is_valid()
    }

    /// A token that is cancelled when the term ends, at the latest the session's grace period before validity does.
    ///
    /// A plain OS thread cancels it even if every worker of the runtime is blocked. Cancelling the returned token
    /// affects nobody else. When somebody deleted the key, or the leader resigned, validity ends with the token.
    pub fn lost(&self) -> CancellationToken {
        self.shared.lost.child_token()
    }

    /// Polls the work of a term until it completes; once the term is lost, until the frozen deadline at the latest. `None`:
    /// it was still running then, and is dropped with this call.
    pub(crate) async fn until_cutoff<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let overdue = async {
            self.shared.lost.cancelled().await;
            self.shared.until_cutoff().await;
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = overdue => None,
        }
    }

    /// Why the term ended; `None` while it has not.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.shared.reason()
    }

    /// Until when the term is valid if nothing else happens; moves later with every verified renewal until the
    /// term ends.
    pub fn valid_until(&self) -> Deadline {
        Deadline {
            at: self.shared.limit(),
            env: Arc::clone(&self.shared.env),
        }
    }

    /// The create revision of the leader's key: strictly larger in every later term of this election, within one
    /// etcd cluster. A resource that refuses a token lower than the highest it has seen is safe from old leaders.
    pub fn fencing_token(&self) -> i64 {
        self.shared.token
    }

    /// The leader's key in etcd.
    pub fn key(&self) -> &[u8] {
        &self.shared.key
    }

    /// The id of the lease that the leader's key is bound to. A key of one's own under it goes when the session's lease
    /// does, but not when this term ends: the lease is the session's.
    pub fn lease_id(&self) -> i64 {
        self.shared.lease_deadline.lease()
    }

    /// The name of the election, lock or semaphore; of a partition, the name of the partitions, `/` and its number.
    pub fn name(&self) -> &str {
        &self.shared.election
    }

    /// "This term's key still stands", as a condition for a transaction of one's own.
    ///
    /// For an etcd client of any version and any language: let the transaction compare that the create revision of
    /// [`key`](Self::key) equals the [fencing token](Self::fencing_token). With this library's own operations, a guard is
    /// a [`Condition`](crate::Condition). With the feature `etcd-client` it converts into that crate's `Compare`.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # let mut candidate = session.election("billing/scheduler")?.campaign().await?;
    /// # let leadership = candidate.elected().await?;
    /// # let mut client = etcd.client().await;
    /// use etcd_client::{Compare, CompareOp, Txn, TxnOp};
    ///
    /// let stands = Compare::create_revision(
    ///     leadership.key(),
    ///     CompareOp::Equal,
    ///     leadership.fencing_token(),
    /// );
    /// let unclaimed = Compare::version("billing/invoices/4711", CompareOp::Equal, 0);
    /// let txn = Txn::new()
    ///     .when([stands, unclaimed])
    ///     .and_then([TxnOp::put("billing/invoices/4711", "node-a", None)]);
    /// let applied = client.txn(txn).await?.succeeded(); // `client` is your own
    /// # assert!(applied);
    /// # Ok(())
    /// # }
    /// ```
    pub fn guard(&self) -> Guard {
        Guard::new(Arc::clone(&self.shared.key), self.shared.token)
    }

    /// Applies `operations` in one etcd transaction, on condition that this term's key still stands.
    ///
    /// Sent at most once, with the session's request timeout. etcd's user needs permission for the keys of the
    /// operations too; etcd takes at most 128 of them by default.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LeadershipLost`]: the term was not valid any more; nothing was sent.
    /// [`ErrorKind::GuardLost`]: etcd refused it; nothing was applied.
    /// [`ErrorKind::Ambiguous`]: no answer came. It may have been applied, and as long as the term's key stands it may
    /// yet be: a server that was stopped passes on what it had received seconds before. So do not only read back, but
    /// let what you write compare what it builds upon, by [`Op::when`]. A later term's guard keeps it out.
    /// Other kinds: etcd refused the request itself; nothing was applied.
    ///
    /// # Cancellation safety
    ///
    /// Not cancel safe: dropped midway, the outcome is unknown as with `Ambiguous`.
    pub async fn txn(&self, operations: impl Into<Vec<Op>>) -> Result<TxnOutcome> {
        let operations = operations.into();
        if !self.is_valid() {
            let reason = self.lost_reason().map_or("expired", LostReason::as_str);
            return Err(Error::new(
                ErrorKind::LeadershipLost,
                format!("nothing was sent; the term ended: {reason}"),
            ));
        }
        match self.shared.pool.fenced_txn(self.guard(), operations).await {
            Ok(Some(outcome)) => Ok(outcome),
            Ok(None) => Err(Error::new(
                ErrorKind::GuardLost,
                format!(
                    "nothing was applied: {} is no longer the key with create revision {}",
                    String::from_utf8_lossy(&self.shared.key),
                    self.shared.token
                ),
            )),
            Err(failure) if failure.ambiguous => {
                Err(Error::of_request(ErrorKind::Ambiguous, "", &failure))
            }
            Err(failure) => Err(Error::from_request(&failure)),
        }
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term")
            .field("election", &self.shared.election)
            .field("fencing_token", &self.shared.token)
            .field("lost_reason", &self.lost_reason())
            .finish_non_exhaustive()
    }
}

/// A point in time after which something is no longer true, by the library's deadline clock.
///
/// It converts into [`std::time::Instant`] and [`tokio::time::Instant`], for timers and for other libraries. Those clocks may
/// stand still while the machine is suspended, and the library's does not: a converted deadline may lie too late after a
/// suspend. So convert anew for each wait, and ask [`Term::is_valid`] before each act.
#[derive(Clone)]
pub struct Deadline {
    at: Time,
    env: SharedEnv,
}

impl Deadline {
    /// How long it is until then; zero once it has passed.
    pub fn time_left(&self) -> Duration {
        self.at.since(self.env.now())
    }

    /// The same point as time since boot (`CLOCK_BOOTTIME`, on Linux), to compare within one machine.
    pub fn since_boot(&self) -> Duration {
        self.at.since(Time::ZERO)
    }
}

impl From<Deadline> for std::time::Instant {
    #[expect(
        clippy::disallowed_methods,
        reason = "a moment of the caller's clock, which decides nothing here"
    )]
    fn from(deadline: Deadline) -> Self {
        Self::now() + deadline.time_left()
    }
}

impl From<Deadline> for tokio::time::Instant {
    #[expect(
        clippy::disallowed_methods,
        reason = "a moment of the caller's clock, which decides nothing here"
    )]
    fn from(deadline: Deadline) -> Self {
        Self::now() + deadline.time_left()
    }
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deadline({:?} left)", self.time_left())
    }
}

#[cfg(test)]
mod tests;
