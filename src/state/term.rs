//! Defines a term: one clock comparison decides, on any thread, whether it is still valid.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::deadlines::TermDeadline;
use crate::error::{Error, ErrorKind, Result};
use eldest_core::reason::LostReason;
use eldest_core::time::Time;
use eldest_etcd::runtime::SharedEnv;
use eldest_etcd::{Fence, Op, Pool, TxnOutcome};

/// The leader does not serve yet.
const UNREADY: u8 = 0;
/// The leader said that it serves, and etcd has not confirmed that announcement.
const SAID: u8 = 1;
/// The leader serves, and has nothing to announce.
const SERVES: u8 = 2;

/// The state that every handle of one term shares.
pub(crate) struct TermState {
    pub(crate) env: SharedEnv,
    pub(crate) pool: Arc<Pool>,
    pub(crate) deadline: TermDeadline,
    pub(crate) election: Arc<str>,
    pub(crate) key: Arc<[u8]>,
    pub(crate) token: i64,
    /// The latest time until which the term is valid, whatever its deadline; nanoseconds, only ever lowered.
    until: AtomicU64,
    /// The time at which work is dropped; nanoseconds, only ever lowered.
    cutoff: AtomicU64,
    reason: OnceLock<LostReason>,
    /// True once the driver has reported the end of the term.
    reported: AtomicBool,
    /// True if the watchdog must learn of an earlier end of the work.
    guarded: AtomicBool,
    /// True once the term's `Leadership` was handed to a caller.
    taken_up: AtomicBool,
    /// True if interrupted work does not count as a fault, because it has nothing to finish.
    interruptible: AtomicBool,
    /// [`UNREADY`], [`SAID`] or [`SERVES`]; only ever raised, once the term is shared.
    serving: AtomicU8,
    /// The time of the work's last heartbeat; nanoseconds.
    beat: AtomicU64,
    lost: CancellationToken,
    /// The term's span, until the term is over. The work keeps it open for longer.
    span: Mutex<Option<Box<Span>>>,
}

impl TermState {
    pub(crate) fn new(
        env: SharedEnv,
        pool: Arc<Pool>,
        deadline: TermDeadline,
        election: Arc<str>,
        key: Arc<[u8]>,
        token: i64,
    ) -> Arc<Self> {
        Arc::new(Self {
            lost: deadline.over().child_token(),
            taken_up: AtomicBool::new(false),
            interruptible: AtomicBool::new(false),
            serving: AtomicU8::new(SERVES),
            beat: AtomicU64::new(env.now().as_nanos()),
            env,
            pool,
            deadline,
            election,
            key,
            token,
            until: AtomicU64::new(u64::MAX),
            cutoff: AtomicU64::new(u64::MAX),
            reason: OnceLock::new(),
            reported: AtomicBool::new(false),
            guarded: AtomicBool::new(false),
            span: Mutex::default(),
        })
    }

    /// Keeps the span of the term, if a subscriber records it.
    pub(crate) fn set_span(&self, span: Option<Box<Span>>) {
        *self.span.lock().unwrap_or_else(PoisonError::into_inner) = span;
    }

    /// Returns the span of the term, for its work.
    pub(crate) fn span(&self) -> Span {
        let span = self.span.lock().unwrap_or_else(PoisonError::into_inner);
        span.as_deref().map_or_else(Span::none, Span::clone)
    }

    /// Ends the span, or leaves its end to the work.
    pub(crate) fn end_span(&self, reason: LostReason) {
        let span = self
            .span
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(span) = span {
            span.record("reason", reason.as_str());
        }
    }

    /// Records that a caller acts under the term from now on.
    pub(crate) fn take_up(&self) {
        self.taken_up.store(true, Ordering::Relaxed);
    }

    /// Declares that interrupted work does not count as a fault, because it has nothing to finish.
    pub(crate) fn interruptible(&self) {
        self.interruptible.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_interruptible(&self) -> bool {
        self.interruptible.load(Ordering::Relaxed)
    }

    pub(crate) fn is_taken_up(&self) -> bool {
        self.taken_up.load(Ordering::Relaxed)
    }

    /// Ends the term on behalf of the driver. Returns `true` at the first call.
    pub(crate) fn end(&self, reason: LostReason, cutoff: Time, valid: bool) -> bool {
        self.limit_to(reason, cutoff, valid);
        if self.guarded.load(Ordering::Acquire) {
            self.env.rewatch();
        }
        !self.reported.swap(true, Ordering::AcqRel)
    }

    /// Ends the term on behalf of the watchdog; the driver reports the end later.
    pub(crate) fn stall(&self, reason: LostReason, cutoff: Time) {
        self.limit_to(reason, cutoff, true);
    }

    /// Makes the new term wait until its leader says that it serves.
    pub(crate) fn begin_unready(&self) {
        self.serving.store(UNREADY, Ordering::Release);
    }

    /// Records that the leader serves from now on. Returns `true` at the first call.
    pub(crate) fn serve(&self) -> bool {
        self.serving.fetch_max(SAID, Ordering::AcqRel) == UNREADY
    }

    /// Records that etcd has the announcement that the leader serves.
    pub(crate) fn confirm_serving(&self) {
        self.serving.fetch_max(SERVES, Ordering::AcqRel);
    }

    /// Returns `true` if the leader serves, and etcd has that announcement if there is one.
    pub(crate) fn has_announced_serving(&self) -> bool {
        self.serving.load(Ordering::Acquire) == SERVES
    }

    pub(crate) fn serves(&self) -> bool {
        self.serving.load(Ordering::Acquire) != UNREADY
    }

    /// Returns `true` if the leader serves, and etcd has not confirmed that announcement.
    pub(crate) fn owes_serving(&self) -> bool {
        self.serving.load(Ordering::Acquire) == SAID
    }

    /// Sets the reason, then the limits, then cancels the token. The first reason stays.
    fn limit_to(&self, reason: LostReason, cutoff: Time, valid: bool) {
        let _ = self.reason.set(reason);
        let until = if valid { cutoff.as_nanos() } else { 0 };
        self.until.fetch_min(until, Ordering::AcqRel);
        self.cutoff.fetch_min(cutoff.as_nanos(), Ordering::AcqRel);
        self.lost.cancel();
    }

    /// Makes the watchdog check again when the term ends, because a watched deadline depends on it.
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
        let reason = self.reason.get().copied();
        // The watchdog cancels without waiting for the driver's reason; it has only one.
        reason.or_else(|| self.is_lost().then_some(LostReason::LeaseExpiring))
    }

    /// Ends validity because the holder released the term: its key may be deleted from now on.
    pub(crate) fn give_back(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// Returns the time at which work is dropped. It is far away while the term is not over.
    pub(crate) fn cutoff(&self) -> Time {
        Time::from_nanos(self.cutoff.load(Ordering::Acquire)).min(self.deadline.time())
    }

    /// Completes at the frozen deadline. The caller must have cancelled the token: until then, the deadline moves.
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
        Time::from_nanos(self.until.load(Ordering::Acquire)).min(self.deadline.time())
    }

    fn is_valid(&self) -> bool {
        loop {
            // The clock is read last, so that a pause before the reading is seen; only a later pause is not.
            let until = Time::from_nanos(self.until.load(Ordering::Acquire));
            let deadline = self.deadline.time();
            let now = self.env.now();
            if now < until.min(deadline) {
                return true;
            }
            // If the deadline was extended while the clock was read, it has not passed: check again.
            if now < deadline || self.deadline.end_by(now) {
                return false;
            }
        }
    }
}

/// A view of one term of leadership: it shows whether the term is valid, and fences writes.
///
/// A view is cheap to clone and to pass to everything that acts for the leader. It does not hold the leadership: when
/// the [`Leadership`](crate::Leadership) ends, all views of its term are invalid.
///
/// # How a term ends
///
/// Every term ends in the same order, whatever the reason:
///
/// 1. [`Term::lost`] is cancelled and the deadline is frozen, so that no later renewal extends it.
/// 2. The work is awaited.
/// 3. Work that continues is dropped at the frozen deadline.
/// 4. The key is deleted. The deletion is repeated until etcd confirms it.
///
/// [`Election::run`](crate::Election::run) does all of this. In a program that controls each step itself,
/// [`Leadership::spawn`](crate::Leadership::spawn) does it for the tasks of a leader.
///
/// | what ends the term | the term stays valid | work is dropped |
/// |---|---|---|
/// | [no renewal was verified in time](LostReason::LeaseExpiring) | for the [grace period](crate::SessionOptions::grace) | at the end of validity |
/// | the work [stalled](LostReason::Stalled), its node is unhealthy ([`Runner`](crate::Runner)), or the leader does [not serve in time](LostReason::NotServing) | for the grace period, or until the last deadline if that is earlier | at the end of validity |
/// | [shutdown](LostReason::Shutdown), [the session closes](LostReason::SessionClosed), [the runtime is gone](LostReason::RuntimeGone) | until the last deadline, less than a TTL away | at the end of validity |
/// | the [data centre is evacuated](LostReason::Evacuated), or the leader is [ordered to step down](LostReason::Ordered) | for the grace period, or until the last deadline if that is earlier | at the end of validity |
/// | the [partition goes to another member](LostReason::Reassigned), or its member leaves | for the grace period, or until the last deadline if that is earlier | at the end of validity |
/// | the [key](LostReason::KeyDeleted) or [lease](LostReason::LeaseLost) is gone, the key is [overwritten](LostReason::KeyOverwritten), or [etcd is another cluster](LostReason::StoreChanged) | no longer | after the grace period, or at the last deadline if that is earlier |
/// | the leader [resigns](crate::Leadership::resign), [steps down](crate::Leadership::step_down) or drops its [`Leadership`](crate::Leadership), or its work [fails](LostReason::WorkFailed) | no longer | as in the line above (tasks of [`Leadership::spawn`](crate::Leadership::spawn)) |
///
/// After the reasons in the first, second, fourth and sixth line, and after stepping down, the node joins the queue
/// again, at the end. After a failure of its work, it leaves, unless [`OnError`](crate::OnError) says to join again.
/// After a stall, or if it did not serve, it joins only when its work has ended and its health check returns `Ok`. Work that blocks a thread
/// cannot be dropped: only [`Term::is_valid`] and fencing hold it back, or the end of its process
/// ([`OnOverrun::Abort`](crate::OnOverrun::Abort)).
#[derive(Clone)]
pub struct Term {
    pub(crate) shared: Arc<TermState>,
}

impl Term {
    /// Returns `true` while this node may act as leader.
    ///
    /// The check is one read of the clock and one comparison, without a lock or an allocation, so it suits every hot
    /// path. Once it has returned `false`, it never returns `true` again. It returns `false` at [`Term::valid_until`]
    /// at the latest, before etcd can give the leadership to another node. No check can see a pause that comes *after*
    /// it: fence what must never happen twice, by [`Term::txn`] or the [`Term::fencing_token`].
    pub fn is_valid(&self) -> bool {
        self.shared.is_valid()
    }

    /// Returns `true` while this node may act as leader and serves: its leader called
    /// [`Leadership::serving`](crate::Leadership::serving) in this term, or the election has no
    /// [limit](crate::Election::serving_within) for that.
    ///
    /// Once it has returned `true`, it returns `true` until the term ends. Other nodes see the same a moment later, as
    /// [`Member::is_serving`](crate::Member::is_serving).
    pub fn is_serving(&self) -> bool {
        self.shared.serves() && self.is_valid()
    }

    /// Returns a token that is cancelled when the term ends.
    ///
    /// If no renewal is verified in time, the token is cancelled one grace period before validity ends. If the key was
    /// deleted or the leader resigned, validity ends together with the token ([all cases](Term#how-a-term-ends)). A
    /// plain OS thread cancels the token even if every worker of the runtime is blocked. Cancelling the returned token
    /// affects nothing else.
    pub fn lost(&self) -> CancellationToken {
        self.shared.lost.child_token()
    }

    /// Polls the work of a term until it completes, and after the loss of the term until the frozen deadline at most.
    /// Returns `None` if the work was still running then; this call drops it.
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

    /// Returns why the term ended, or `None` while it has not.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.shared.reason()
    }

    /// Returns the error of a call that came after the term, with what did not happen.
    pub(crate) fn ended(&self, what: &str) -> Error {
        let reason = self.lost_reason().map_or("expired", LostReason::as_str);
        Error::new(
            ErrorKind::LeadershipLost,
            format!("{what}; the term ended: {reason}"),
        )
    }

    /// Returns the time until which the term is valid if nothing else happens. Every verified renewal moves it later,
    /// until the term ends.
    pub fn valid_until(&self) -> Deadline {
        Deadline {
            at: self.shared.limit(),
            env: Arc::clone(&self.shared.env),
        }
    }

    /// Returns the fencing token: the create revision of the leader's key.
    ///
    /// Within one etcd cluster, every later term of this election has a larger token. A resource that keeps the highest
    /// token it has seen, and refuses lower ones, is safe from old leaders. A new leader writes its token to the
    /// resource first, and only then reads the state.
    ///
    /// A restored backup of etcd lowers its revisions, so tokens are issued again. A running session that notices a
    /// lower revision or raft term, or another cluster id, ends its terms ([`LostReason::StoreChanged`]), logs an error
    /// and joins again. A session that starts afterwards cannot notice. To keep tokens growing, restore with `etcdutl
    /// snapshot restore --bump-revision N --mark-compacted` and an N larger than the number of changes since the
    /// backup. Otherwise let outside resources compare `(epoch, token)`, and raise the epoch by hand after a restore.
    pub fn fencing_token(&self) -> i64 {
        self.shared.token
    }

    /// Returns the leader's key in etcd.
    pub fn key(&self) -> &[u8] {
        &self.shared.key
    }

    /// Returns the id of the lease that the leader's key is bound to.
    ///
    /// If you bind your own key to this lease, etcd deletes the key when the session's lease ends, but not when this
    /// term ends: the lease belongs to the session.
    pub fn lease_id(&self) -> i64 {
        self.shared.deadline.lease()
    }

    /// Returns the name of the election, lock or semaphore. For a partition, it is the name of the partitions, `/` and
    /// the partition's number.
    pub fn name(&self) -> &str {
        &self.shared.election
    }

    /// Returns the condition that this term's key still exists, for your own transactions.
    ///
    /// With an etcd client of any version or language, let the transaction require that the create revision of
    /// [`key`](Self::key) equals the [fencing token](Self::fencing_token). With this library's own operations, use the
    /// fence as a [`Condition`](crate::Condition). With the feature `etcd-client` it converts into that crate's
    /// `Compare`.
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
    pub fn fence(&self) -> Fence {
        Fence::new(Arc::clone(&self.shared.key), self.shared.token)
    }

    /// Applies `operations` in one etcd transaction, on condition that this term's key still exists.
    ///
    /// The transaction is sent at most once, with the session's request timeout. etcd's user needs permission for the
    /// keys of the operations too; etcd accepts at most 128 operations by default.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # let mut candidate = session.election("billing/scheduler")?.campaign().await?;
    /// # let leadership = candidate.elected().await?;
    /// use eldest::{ErrorKind, Op};
    ///
    /// match leadership.txn([Op::put("billing/invoices/next", "4711")]).await {
    ///     Ok(_applied) => {}
    ///     Err(error) => match error.kind() {
    ///         ErrorKind::LeadershipLost | ErrorKind::FenceLost => return Ok(()), // not applied: stop the work
    ///         ErrorKind::Ambiguous => { /* perhaps applied: read back before writing again */ }
    ///         _ => return Err(error.into()), // not applied
    ///     },
    /// }
    /// # assert_eq!(etcd.client().await.get("billing/invoices/next", None).await?.kvs()[0].value(), b"4711");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::LeadershipLost`]: the term was no longer valid. Nothing was sent.
    /// * [`ErrorKind::FenceLost`]: the key no longer exists. Nothing was applied.
    /// * [`ErrorKind::Ambiguous`]: no answer came. etcd may have applied the transaction. It may also apply it later,
    ///   for as long as the term's key exists: a server that was stopped and resumed can pass on requests that it
    ///   received seconds before. So do not only read back; let each write compare the value that it builds on, by
    ///   [`Op::when`]. Once a later term has begun, the fence of this term refuses the old transaction.
    /// * Other kinds: etcd refused the request itself. Nothing was applied.
    ///
    /// # Cancellation safety
    ///
    /// Not cancel safe: if the call is dropped midway, the outcome is unknown, as with `Ambiguous`.
    pub async fn txn(&self, operations: impl Into<Vec<Op>>) -> Result<TxnOutcome> {
        Self::txn_under(&[self], operations.into()).await
    }

    /// Applies `operations` as [`Term::txn`] does, on condition that the keys of all these terms of one session still
    /// exist.
    pub(crate) async fn txn_under(terms: &[&Self], operations: Vec<Op>) -> Result<TxnOutcome> {
        if let Some(ended) = terms.iter().find(|term| !term.is_valid()) {
            return Err(ended.ended("nothing was sent"));
        }
        let Some(first) = terms.first() else {
            return Err(Error::new(ErrorKind::InvalidInput, "no term fences this"));
        };
        let fences = terms.iter().map(|term| term.fence()).collect();
        match first.shared.pool.fenced_txn(fences, operations).await {
            Ok(Some(outcome)) => Ok(outcome),
            Ok(None) => Err(Self::keys_gone(terms)),
            Err(failure) if failure.ambiguous => {
                Err(Error::of_request(ErrorKind::Ambiguous, "", &failure))
            }
            Err(failure) => Err(Error::from_request(&failure)),
        }
    }

    /// Returns the error of a write that etcd did not apply, because one of these terms' keys is gone.
    pub(crate) fn keys_gone(terms: &[&Self]) -> Error {
        let keys = terms.iter().map(|term| {
            let key = String::from_utf8_lossy(&term.shared.key);
            format!(
                "{key} is no longer the key with create revision {}",
                term.shared.token
            )
        });
        let keys: Vec<String> = keys.collect();
        let message = format!("nothing was applied: {}", keys.join(", or "));
        Error::new(ErrorKind::FenceLost, message)
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

/// A point in time at which a promise ends, on the library's deadline clock.
///
/// It converts into [`std::time::Instant`] and [`tokio::time::Instant`], for timers and for other libraries. Those
/// clocks may stop while the machine is suspended, unlike the library's clock, so a converted deadline may be too late
/// after a suspend. Convert again for each wait, and check [`Term::is_valid`] before each action.
#[derive(Clone)]
pub struct Deadline {
    at: Time,
    env: SharedEnv,
}

impl Deadline {
    /// Returns the time until the deadline, or zero once it has passed.
    pub fn time_left(&self) -> Duration {
        self.at.since(self.env.now())
    }

    /// Returns the deadline as time since boot (`CLOCK_BOOTTIME`, on Linux), for comparisons within one machine.
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
