//! Defines a leadership, which releases its term however its holder drops it: work is awaited first, then the key is
//! released.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::checkpoint::{self, Checkpoint, State, Store};
use crate::driver::{Command, Parting};
use crate::error::{Error, ErrorKind, Result};
use crate::session::{Handle, SessionShared};
use crate::state::{Announcement, Term};
use eldest_core::action::{FinalState, SlotId, TermId};
use eldest_core::reason::LostReason;
use eldest_etcd::runtime::Watched;

/// The right to act as leader for one term. It dereferences to its [`Term`], which has the checks and the fencing.
///
/// Dropping it, or a panic that unwinds through it, releases the key at once: the next eldest leads within
/// milliseconds, not after the TTL. Drop it only when the work has ended. Tasks of [`Leadership::spawn`] are awaited
/// first, in the background. Work that cannot be awaited here needs [`Leadership::hold_until_stopped`].
///
/// Holding the value does not keep the leadership: if the term ends, the key is deleted at the frozen deadline at the
/// latest.
#[must_use = "dropping a leadership ends it"]
pub struct Leadership {
    claim: Arc<Claim>,
    /// The watch over this leader, which the watchdog holds weakly.
    _watch: Option<Arc<dyn Watched>>,
}

/// Reports the progress of a part of a leader's work. It comes from [`Leadership::heartbeats`], and does not hold the
/// leadership.
#[derive(Debug, Clone)]
pub struct Heartbeats(Term);

impl Heartbeats {
    /// Reports progress, as [`Leadership::heartbeat`] does.
    pub fn beat(&self) {
        self.0.shared.beat();
    }
}

/// Releases the key when its last holder drops it.
pub(crate) struct Claim {
    handle: Handle,
    slot: SlotId,
    since: Duration,
    id: TermId,
    term: Term,
    tasks: Mutex<Tasks>,
    sent: Sent,
    /// Made for the first checkpoint, because few of thousands of elections have one.
    store: OnceLock<Box<Store>>,
}

/// The messages about a term that the driver has received. Each is sent once, however often a user asks.
#[derive(Default)]
struct Sent {
    /// One bit for each reason to end.
    reasons: AtomicU32,
    /// Set when the work has ended: true if the term left a state.
    joined: OnceLock<bool>,
}

/// The tasks of a term. A term that is released takes no more of them.
#[derive(Default)]
struct Tasks {
    /// Made for the first task, because few of thousands of elections have one.
    started: Option<Started>,
    closed: bool,
}

/// Tasks that were started, and the token that stops them.
#[derive(Clone, Default)]
struct Started {
    running: TaskTracker,
    stop: CancellationToken,
}

impl Leadership {
    pub(crate) fn new(claim: Claim) -> Self {
        Self {
            claim: Arc::new(claim),
            _watch: None,
        }
    }

    /// Keeps the watch for as long as the leadership.
    pub(super) fn watched_by(self, watch: Arc<dyn Watched>) -> Self {
        Self {
            _watch: Some(watch),
            ..self
        }
    }

    pub(crate) fn shared(&self) -> &SessionShared {
        &self.claim.handle.shared
    }

    /// Returns a claim that keeps the key until it is dropped as well.
    pub(crate) fn claim(&self) -> Arc<Claim> {
        Arc::clone(&self.claim)
    }

    /// Returns a view of the term, for everything that acts for the leader. The view does not hold the leadership.
    pub fn term(&self) -> Term {
        self.claim.term.clone()
    }

    /// Reports that the work makes progress.
    ///
    /// With a [stall timeout](crate::Runner::stall_timeout), the term ends when heartbeats are missing for that long.
    /// Call it where a piece of work *is done*, not from a separate task that would continue while the work hangs.
    ///
    /// It costs one read of the clock and an atomic write, from any thread.
    pub fn heartbeat(&self) {
        self.claim.term.shared.beat();
    }

    /// Returns a handle that reports heartbeats, for parts of the work that do not hold the leadership.
    pub fn heartbeats(&self) -> Heartbeats {
        Heartbeats(self.term())
    }

    /// Announces that this leader serves: it can answer requests from now on. Returns once etcd has the announcement, so
    /// every node that reads afterwards sees it.
    ///
    /// Call it in an election with [`Election::serving_within`](crate::Election::serving_within), as soon as the leader
    /// is ready. It meets that limit, and lasts until the term ends. In an election without a limit, a leader serves as
    /// soon as it leads, and the call returns at once. It may be called any number of times.
    ///
    /// The call waits while etcd is out of reach or overloaded; add a timeout if it should give up.
    ///
    /// # Errors
    ///
    /// `LeadershipLost`: the term has ended, so the leader does not serve. `PermissionDenied`, `Unauthenticated`,
    /// `Rejected`: etcd refused the announcement; the session tries again with each renewal. `Closed`: the session was
    /// closed.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: the leader serves, and the session continues to announce it.
    pub async fn serving(&self) -> Result<()> {
        let claim = &self.claim;
        announce_serving(&claim.handle, claim.slot, &claim.term).await
    }

    /// Runs a task that belongs to the term: the key is released only after the task has ended.
    ///
    /// The task should watch [`Term::lost`]. At the frozen deadline, it is dropped. A task that comes too late is never
    /// polled: from the moment the term's token is cancelled or the term is given back, another node may lead.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # let mut candidate = session.election("billing/scheduler")?.campaign().await?;
    /// use std::time::Duration;
    ///
    /// let leadership = candidate.elected().await?;
    /// let term = leadership.term();
    /// leadership.spawn(async move {
    ///     let lost = term.lost();
    ///     while !lost.is_cancelled() {
    ///         // ... one piece of work ...
    ///         tokio::time::sleep(Duration::from_millis(10)).await;
    ///     }
    /// })?;
    /// leadership.resign().await?; // cancels the token, awaits the task, deletes the key
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `LeadershipLost`: the term has ended. The task was dropped.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        if self.claim.term.shared.is_lost() || !self.is_valid() {
            return Err(self.ended("no task was started"));
        }
        self.claim.start(task)
    }

    /// Keeps the key until `stopped` completes, and until the frozen deadline at most. Then it releases the key, and
    /// returns once etcd has confirmed that the key is gone.
    ///
    /// It serves a service whose work runs elsewhere and can only be asked to stop, for example behind an election
    /// trait. `stopped` belongs to the term as a task of [`Leadership::spawn`] does: it may await [`Term::lost`], tell
    /// the service to stop, and complete when the service says that it has stopped. If it completes while the term is
    /// valid, the leader steps down. Call it as soon as the node leads, so that no early return of the caller releases
    /// the key beside the work.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # let election = session.election("billing/scheduler")?;
    /// let leadership = election.campaign().await?.elected().await?;
    /// let lost = leadership.lost();
    /// # let (stepped_down, stopping) = tokio::sync::oneshot::channel();
    /// # let (has_stopped, stopped) = tokio::sync::oneshot::channel();
    /// # tokio::spawn(async move { stopping.await.map(|()| has_stopped.send(())) });
    /// # let resigning = tokio::spawn(async move { election.resign().await });
    /// leadership
    ///     .hold_until_stopped(async move {
    ///         lost.cancelled().await;
    ///         let _ = stepped_down.send(()); // the service begins to stop
    ///         let _ = stopped.await; // and says that it has
    ///     })
    ///     .await?;
    /// # resigning.await??;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Leadership::step_down`]. `LeadershipLost`: the leadership was given back before; the future was dropped.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: if the call is dropped, the term ends. The key is released in the background, not before `stopped`
    /// completes or the frozen deadline passes.
    pub async fn hold_until_stopped(
        self,
        stopped: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let (ended, end) = oneshot::channel::<()>();
        self.claim.start(async move {
            stopped.await;
            drop(ended);
        })?;
        let lost = self.lost();
        // The first of the two begins the end of the term; `step_down` awaits the other.
        let _ = lost.run_until_cancelled(end).await;
        self.step_down().await
    }

    /// Replaces this leader's whole announcement (at most 32 KiB), now and after every rejoin. The term and its token
    /// stay the same.
    ///
    /// If calls overlap, the value of the last call stays, even if answers are lost or late.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the announcement is too large, or cannot say whether the leader
    /// [serves](crate::Election::serving_within). `FenceLost`: the key no longer belongs to this leader.
    /// `Unavailable` and others: etcd did not store or did not confirm the announcement; the next key will have it.
    ///
    /// # Cancellation safety
    ///
    /// If the call is dropped midway, etcd may or may not have the announcement; the next key will have it.
    pub async fn proclaim(&self, announcement: impl Into<Announcement>) -> Result<()> {
        let claim = &self.claim;
        proclaim(
            &claim.handle,
            claim.slot,
            claim.since,
            &announcement.into(),
            ErrorKind::FenceLost,
        )
        .await
    }

    /// Gives up the leadership and the candidacy, and returns once etcd has confirmed that the key is gone.
    ///
    /// With this call, the caller states that the work has ended: validity ends at once. Tasks of [`Leadership::spawn`]
    /// are awaited until the frozen deadline and then dropped; only after that is the key released.
    ///
    /// # Errors
    ///
    /// `Unavailable`: etcd did not confirm within four request timeouts. The deletion is repeated in the background,
    /// and this call may be repeated. `LeadershipLost`: the leader had already [stepped down](Leadership::step_down).
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: resigning continues in the background.
    pub async fn resign(&self) -> Result<()> {
        let claim = &self.claim;
        if self.lost_reason() == Some(LostReason::SteppedDown) {
            return Err(Error::new(
                ErrorKind::LeadershipLost,
                "the leader stepped down and has joined again; leave through the candidate",
            ));
        }
        claim.give_back(LostReason::Resigned).await?;
        claim.handle.ended(claim.slot).await
    }

    /// Resigns as [`Leadership::resign`] does, and leaves the state of the work, at most 64 KiB, to the next leader.
    ///
    /// The transaction that deletes the key saves the state, so the next leader's
    /// [`last_checkpoint`](Leadership::last_checkpoint) returns it, and says that it is
    /// [final](Checkpoint::is_final). If etcd does not answer, the session repeats the transaction; the call
    /// waits until the frozen deadline at most. If etcd refuses the state, or an attempt fails after that deadline, the
    /// key goes without the state.
    ///
    /// Work that is asked to stop may call it too: from the moment the token is cancelled until the frozen deadline,
    /// the key stays for the work. So a node that shuts down hands its state over:
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{CancellationToken, Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # let election = session.election("billing/scheduler")?;
    /// # let shutdown = CancellationToken::new();
    /// # let stop = shutdown.clone();
    /// election
    ///     .run_mut(shutdown, async |leadership| {
    ///         let mut next = match leadership.last_checkpoint().await? {
    ///             Some(last) => String::from_utf8_lossy(last.value()).parse()?,
    ///             None => 0_u64,
    ///         };
    ///         let lost = leadership.lost();
    ///         while !lost.is_cancelled() {
    ///             next += 1; // ... one piece of work ...
    /// #           stop.cancel();
    /// #           lost.cancelled().await;
    ///         }
    ///         leadership.step_down_with(next.to_string()).await?;
    ///         Ok::<_, eldest::BoxError>(())
    ///     })
    ///     .await?;
    /// # let candidate = session.election("billing/scheduler")?.campaign().await?.elected().await?;
    /// # let last = candidate.last_checkpoint().await?.expect("a state was left");
    /// # assert!(last.is_final() && last.value() == b"1");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the state is too large, or the election is at an [exact prefix](crate::Session::election_at);
    /// nothing has happened. All other errors come after the leader has resigned, and the first one is returned.
    /// `FenceLost`, `LeadershipLost`: the key was gone or given back without a state, or the frozen deadline had passed,
    /// so no state was saved. `Ambiguous`: no answer came, so etcd may or may not have saved it, or may still save it
    /// together with the deletion of the key; or an earlier call, perhaps a dropped one, gave the key back with its own
    /// state, which etcd may or may not have saved. Others: etcd refused it, or as [`Leadership::resign`].
    ///
    /// # Cancellation safety
    ///
    /// If the call is dropped midway, etcd may or may not have the state; resigning continues in the background.
    pub async fn resign_with(&self, state: impl AsRef<[u8]>) -> Result<()> {
        let (store, state) = self.claim.state(state.as_ref(), true)?;
        let left = self
            .claim
            .leave(LostReason::Resigned, store.leave(state))
            .await;
        left.and(self.resign().await)
    }

    /// Gives up the leadership and joins at the end of the queue. Returns once etcd has confirmed that the key is
    /// gone.
    ///
    /// As with [`Leadership::resign`], the caller states that the work has ended: validity ends at once, and tasks of
    /// [`Leadership::spawn`] are awaited until the frozen deadline before the key is released. Then the next eldest
    /// leads, and this node waits behind all other candidates; if there are none, it leads again. The call does not wait
    /// for a [warm](crate::Election::warm_within) successor, because the work has ended: [`Election::step_down`](crate::Election::step_down) does,
    /// while the work goes on.
    ///
    /// Await [`Candidate::elected`](crate::Candidate::elected) for its next turn. Work of
    /// [`Election::run`](crate::Election::run) returns instead, and is called again at its next turn. A candidate that
    /// was dropped, or has left, does not join again.
    ///
    /// # Why there is no hand-over to a chosen node
    ///
    /// A hand-over would contradict the rule that the eldest leads. Every node, and every program that follows etcd's
    /// own recipe, finds the leader by that rule. Nor could two candidates swap places safely: keys that are created in
    /// one transaction share a create revision, so both candidates would lead. To make a certain node lead, start it
    /// before the others, or let the nodes ahead of it resign, restart or step down until its turn comes. Let a node
    /// campaign only once it is ready to lead.
    ///
    /// # Errors
    ///
    /// `Unavailable`: etcd did not confirm within four request timeouts. The deletion is repeated in the background,
    /// and this call may be repeated. `Closed`: the session was closed.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: stepping down continues in the background once the `Leadership` is dropped.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # let other = Session::connect([etcd.endpoint()], SessionOptions::new("node-b")).await?;
    /// # let mut candidate = session.election("billing/scheduler")?.campaign().await?;
    /// # let mut next = other.election("billing/scheduler")?.campaign().await?;
    /// let leadership = candidate.elected().await?;
    /// leadership.step_down().await?;
    /// let behind = next.elected().await?; // another node's candidate, which waited
    /// # assert!(behind.is_valid() && !leadership.is_valid());
    /// # behind.resign().await?;
    /// let again = candidate.elected().await?; // its next turn
    /// assert!(again.fencing_token() > leadership.fencing_token());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn step_down(&self) -> Result<()> {
        let claim = &self.claim;
        claim.give_back(LostReason::SteppedDown).await?;
        claim.handle.released(claim.slot, claim.id).await
    }

    /// Steps down as [`Leadership::step_down`] does, and leaves the state of the work to the next leader, as
    /// [`Leadership::resign_with`] does.
    ///
    /// # Errors
    ///
    /// As [`Leadership::resign_with`], and [`Leadership::step_down`].
    ///
    /// # Cancellation safety
    ///
    /// If the call is dropped midway, etcd may or may not have the state; stepping down continues in the background
    /// once the `Leadership` is dropped.
    pub async fn step_down_with(&self, state: impl AsRef<[u8]>) -> Result<()> {
        let (store, state) = self.claim.state(state.as_ref(), true)?;
        let left = self
            .claim
            .leave(LostReason::SteppedDown, store.leave(state))
            .await;
        left.and(self.step_down().await)
    }

    /// Saves the state of the work during the term, at most 64 KiB, in case the term ends without a [last
    /// word](Leadership::resign_with), as in a crash. It replaces the last checkpoint.
    ///
    /// The write is fenced by this term's token: once another node leads, no checkpoint of this leader is stored any
    /// more. Checkpoints of one term are stored in the order of the calls.
    ///
    /// The checkpoint is the key `<namespace>/~checkpoint/<name>/leader`, without a lease: it outlives all nodes, and
    /// no candidate sees it. `eldest checkpoint NAME --remove` removes it. A restored backup of etcd brings back an old
    /// checkpoint, so work that was done since is repeated; make such work idempotent.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the state is too large, or the election is at an [exact prefix](crate::Session::election_at).
    /// `LeadershipLost`, `FenceLost`: the term is over, and nothing was stored. `Ambiguous`: no answer came, so etcd may or may not have stored it; save it again, or a later one.
    /// Others: etcd refused it.
    ///
    /// # Cancellation safety
    ///
    /// If the call is dropped midway, etcd may or may not have the checkpoint; the next one replaces it in any case.
    pub async fn checkpoint(&self, state: impl AsRef<[u8]>) -> Result<()> {
        let (store, state) = self.claim.state(state.as_ref(), false)?;
        store.save(&self.claim.term, state).await
    }

    /// Reads the last checkpoint of this election, which this leader or an earlier one saved. `None`: nobody has saved
    /// one.
    ///
    /// The read is fenced: no write of an earlier leader can follow it.
    ///
    /// # Errors
    ///
    /// As [`Term::txn`]; `InvalidInput`: the checkpoint was not written by this library. After any other error, the
    /// read may be repeated.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it only reads.
    pub async fn last_checkpoint(&self) -> Result<Option<Checkpoint>> {
        self.claim.store()?.last(&self.claim.term).await
    }
}

impl Deref for Leadership {
    type Target = Term;

    fn deref(&self) -> &Term {
        &self.claim.term
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&self.claim.term).finish()
    }
}

impl Claim {
    /// Makes the claim of a candidate that joined at `since`, counted from 1970.
    pub(crate) fn new(
        handle: Handle,
        slot: SlotId,
        since: Duration,
        id: TermId,
        term: Term,
    ) -> Self {
        Self {
            handle,
            slot,
            since,
            id,
            term,
            tasks: Mutex::default(),
            sent: Sent::default(),
            store: OnceLock::new(),
        }
    }

    /// Returns the store of the term's checkpoints. An election at an exact prefix has none: its key could be that of
    /// another election of the namespace.
    fn store(&self) -> Result<&Store> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let (namespace, name) = (
            self.handle.shared.settings.namespace_prefix(),
            self.term.name(),
        );
        let prefix = format!("{namespace}{name}/");
        if !self.term.key().starts_with(prefix.as_bytes()) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "the election {name} has an exact prefix, and only elections of a namespace have checkpoints"
                ),
            ));
        }
        let store = || Box::new(Store::new(checkpoint::key_of_leader(&namespace, name)));
        Ok(self.store.get_or_init(store))
    }

    /// Names the key of the term's checkpoints, which is otherwise that of the election's leader.
    pub(crate) fn keep_checkpoints_at(&self, key: String) {
        let _ = self.store.set(Box::new(Store::new(key)));
    }

    /// Encodes a state of this term's work, and returns it with the store for it. Refuses a state that cannot be saved.
    fn state(&self, value: &[u8], is_final: bool) -> Result<(&Store, State)> {
        let store = self.store()?;
        let by = &self.handle.shared.settings.identity;
        Ok((store, State::new(&self.term, by, value, is_final)?))
    }

    /// Ends the term, awaits its tasks, and gives its key back with their state.
    async fn leave(&self, reason: LostReason, state: FinalState) -> Result<()> {
        self.end_work(reason).await?;
        let (reply, left) = oneshot::channel();
        // Work that was dropped at the frozen deadline is missing in the state.
        let in_time = self.term.shared.env.now() < self.term.shared.cutoff();
        if !in_time || !self.release(Some(Parting { state, reply }))? {
            return Err(match self.sent.joined.get() {
                Some(true) => checkpoint::left_before(),
                _ => self.term.ended("nothing was saved"),
            });
        }
        match self.term.until_cutoff(left).await {
            Some(Ok(left)) => checkpoint::settle(&self.term, left),
            _ => Err(checkpoint::unanswered()),
        }
    }

    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a task that the key waits for, unless the term is released.
    fn start(&self, task: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let mut tasks = self.tasks();
        if tasks.closed {
            return Err(self.term.ended("no task was started"));
        }
        let started = tasks.started.get_or_insert_default();
        let (stop, term) = (started.stop.clone(), self.term.clone());
        // Counted before the lock is released: a later caller that releases the term awaits the task.
        let task = started.running.track_future(async move {
            // The task ends by itself, because the holder may keep a term that is lost.
            let done = term.until_cutoff(task);
            let _ = stop.run_until_cancelled(done).await;
        });
        drop(tasks);
        self.handle.shared.env.spawn(task.boxed());
        Ok(())
    }

    /// Takes no more tasks from now on. Returns those that run.
    fn close(&self) -> Option<Started> {
        let mut tasks = self.tasks();
        tasks.closed = true;
        let started = tasks.started.as_ref();
        started.filter(|tasks| !tasks.running.is_empty()).cloned()
    }

    pub(crate) fn term(&self) -> &Term {
        &self.term
    }

    /// Ends the term for its holder's reason. The token is cancelled when the driver has processed it.
    pub(crate) fn end(&self, reason: LostReason) -> Result<()> {
        let bit = 1 << reason as u32;
        if self.sent.reasons.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
            return Ok(());
        }
        let (slot, term) = (self.slot, self.id);
        self.handle.send(Command::End { slot, term, reason })
    }

    /// Ends the term, awaits its tasks and reports that they have ended.
    async fn give_back(&self, reason: LostReason) -> Result<()> {
        self.end_work(reason).await?;
        self.joined()
    }

    /// Ends the term and awaits its tasks. Without tasks it waits for nothing, so the driver receives this message and
    /// the next one at once: first the token, then the key.
    async fn end_work(&self, reason: LostReason) -> Result<()> {
        let tasks = self.close();
        self.end(reason)?;
        if let Some(tasks) = tasks {
            self.term.lost().cancelled().await;
            tasks.join(&self.term).await;
        }
        Ok(())
    }

    /// Reports that the work has ended: the key may go, so no view of the term may act any more.
    pub(crate) fn joined(&self) -> Result<()> {
        self.release(None).map(drop)
    }

    /// Reports, as [`Claim::joined`] does, that the key may go, together with a state. Returns `false` if the key was
    /// released before, without this state.
    fn release(&self, state: Option<Parting>) -> Result<bool> {
        self.term.shared.give_back();
        if self.sent.joined.set(state.is_some()).is_err() {
            return Ok(false);
        }
        let (slot, term) = (self.slot, self.id);
        let joined = Command::Joined { slot, term, state };
        self.handle.send(joined).map(|()| true)
    }

    /// Waits for the term's tasks, and drops them at the frozen deadline. The caller must have cancelled the token.
    pub(crate) async fn join_tasks(&self) {
        if let Some(tasks) = self.close() {
            tasks.join(&self.term).await;
        }
    }
}

impl Started {
    /// Waits for the tasks, and drops them at the term's frozen deadline. The caller must have cancelled the token.
    async fn join(&self, term: &Term) {
        self.running.close();
        if term.until_cutoff(self.running.wait()).await.is_none() {
            self.stop.cancel();
            self.running.wait().await;
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(tasks) = self.close() else {
            drop(self.joined());
            return;
        };
        // Tasks of the term still run: the same order as ever, in the background. After a lost term the candidate
        // rejoins.
        if self.term.lost_reason().is_none() {
            drop(self.end(LostReason::Resigned));
        }
        let (slot, id) = (self.slot, self.id);
        let (handle, term) = (self.handle.clone(), self.term.clone());
        let env = Arc::clone(&self.handle.shared.env);
        env.spawn(
            async move {
                term.lost().cancelled().await;
                tasks.join(&term).await;
                term.shared.give_back();
                drop(handle.send(Command::Joined {
                    slot,
                    term: id,
                    state: None,
                }));
            }
            .boxed(),
        );
    }
}

/// Passes a new announcement to the driver and waits for etcd.
pub(crate) async fn proclaim(
    handle: &Handle,
    slot: SlotId,
    since: Duration,
    announcement: &Announcement,
    gone: ErrorKind,
) -> Result<()> {
    let value = handle.encode(announcement, since)?;
    let (reply, done) = oneshot::channel();
    let proclaim = Command::Proclaim { slot, value, reply };
    handle.call(proclaim).await?;
    match done.await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(Error::new(
            gone,
            "nothing was announced: the key no longer belongs to this session",
        )),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(Error::closed()),
    }
}

/// Sends a command that announces something, and waits for etcd. Repeats it while etcd is out of reach.
pub(super) async fn announced(
    handle: &Handle,
    command: impl Fn(oneshot::Sender<Result<bool>>) -> Command,
) -> Result<bool> {
    loop {
        let (reply, done) = oneshot::channel();
        handle.call(command(reply)).await?;
        match done.await {
            Ok(Err(error)) if error.is_transient() => {
                let pause = handle.shared.settings.request_timeout;
                handle.shared.env.sleep(pause).await;
            }
            Ok(answer) => return answer,
            Err(_) => return Err(Error::closed()),
        }
    }
}

/// Announces that the leader serves in that term, and waits for etcd. Repeats the request while etcd is out of reach.
pub(crate) async fn announce_serving(handle: &Handle, slot: SlotId, term: &Term) -> Result<()> {
    let lost = term.lost();
    let announced = lost.run_until_cancelled(async {
        if term.shared.has_announced_serving() {
            return Ok(term.is_valid());
        }
        let token = term.fencing_token();
        announced(handle, |reply| Command::Serve { slot, token, reply }).await
    });
    match announced.await {
        Some(Ok(true)) if !lost.is_cancelled() => Ok(()),
        Some(Err(error)) => Err(error),
        _ => Err(term.ended("the leader does not serve")),
    }
}
