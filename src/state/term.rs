//! Decides by one clock comparison, on any thread, whether a term is still valid.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnResponse};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, ErrorKind, Result};
use crate::etcd::Pool;
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
    word: AtomicU64,
    over: CancellationToken,
}

impl LeaseDeadline {
    pub(crate) fn until(deadline: Time) -> Arc<Self> {
        Arc::new(Self {
            word: AtomicU64::new(deadline.as_nanos()),
            over: CancellationToken::new(),
        })
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

    pub(crate) fn present(&self) -> Option<Arc<LeaseDeadline>> {
        self.present
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn begin(&self, deadline: Time) -> Arc<LeaseDeadline> {
        let lease_deadline = LeaseDeadline::until(deadline);
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

    /// Says that the work makes progress. With a [stall timeout](crate::Runner::stall_timeout) the term ends when this
    /// is not said often enough; without one it changes nothing. Call it where a piece of work has been *done*, not
    /// from a task of its own that would go on while the work hangs.
    ///
    /// One read of the clock and an atomic write, from any thread.
    pub fn heartbeat(&self) {
        self.shared.beat();
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

    /// The name of the election, or of the lock or semaphore.
    pub fn election(&self) -> &str {
        &self.shared.election
    }

    /// "This term's key still stands", as a condition for an etcd transaction of one's own.
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
    /// use eldest::etcd_client::{Compare, CompareOp, Txn, TxnOp};
    ///
    /// let unclaimed = Compare::version("billing/invoices/4711", CompareOp::Equal, 0);
    /// let txn = Txn::new()
    ///     .when([leadership.guard(), unclaimed])
    ///     .and_then([TxnOp::put("billing/invoices/4711", "node-a", None)]);
    /// let applied = client.txn(txn).await?.succeeded(); // `client` is an etcd_client::Client
    /// # assert!(applied);
    /// # Ok(())
    /// # }
    /// ```
    pub fn guard(&self) -> Compare {
        Compare::create_revision(&*self.shared.key, CompareOp::Equal, self.shared.token)
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
    /// let what you write compare what it builds upon, by [`guard`](Self::guard) and a condition of your own, or by a
    /// `TxnOp::txn` with one. A later term's guard keeps it out.
    /// Other kinds: etcd refused the request itself; nothing was applied.
    ///
    /// # Cancellation safety
    ///
    /// Not cancel safe: dropped midway, the outcome is unknown as with `Ambiguous`.
    pub async fn txn(&self, operations: impl Into<Vec<TxnOp>>) -> Result<TxnResponse> {
        let operations = operations.into();
        if !self.is_valid() {
            let reason = self.lost_reason().map_or("expired", LostReason::as_str);
            return Err(Error::new(
                ErrorKind::LeadershipLost,
                format!("nothing was sent; the term ended: {reason}"),
            ));
        }
        let txn = Txn::new().when([self.guard()]).and_then(operations);
        match self.shared.pool.txn(txn).await {
            Ok(answer) if answer.succeeded() => Ok(answer),
            Ok(_) => Err(Error::new(
                ErrorKind::GuardLost,
                format!(
                    "nothing was applied: {} is no longer the key with create revision {}",
                    String::from_utf8_lossy(&self.shared.key),
                    self.shared.token
                ),
            )),
            Err(failure) if failure.may_be_applied => {
                Err(Error::new(ErrorKind::Ambiguous, failure.to_string()))
            }
            Err(failure) => Err(Error::from_failure(&failure)),
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

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deadline({:?} left)", self.time_left())
    }
}

#[cfg(test)]
mod tests;
