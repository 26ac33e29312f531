//! Defines the handle of an election, with the prefix of its keys and the ways to take part in it.

mod candidate;
mod checkpoint;
mod following;
mod health;
mod leadership;
mod on_error;
mod ordering;
mod rules;
mod run;
mod run_handle;
mod runner;
mod shutdown;
mod versions;
mod warmth;
mod work;
mod work_monitor;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::driver::Command;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::{LeaderChanges, Observer};
use crate::session::{Handle, Session, Use, check_exact, check_name};
use crate::state::{Announcement, Held, LocalStatus, Member, Roster, Status, Term};
use eldest_core::candidate::{CandidateConfig, WatchScope};
use eldest_core::kv::Reach;
use eldest_core::reason::{EndReason, LostReason};
use eldest_core::version::Version;
use eldest_etcd::runtime::timeout;

pub use candidate::Candidate;
pub(crate) use candidate::{Announcer, MemberSays, Opening};
pub use checkpoint::Checkpoint;
pub(crate) use checkpoint::{key_of_leader, prefix_of_partitions};
pub use following::Following;
pub(crate) use health::Health;
pub(crate) use leadership::Claim;
use leadership::announce_serving;
pub use leadership::{Heartbeats, Leadership};
pub(crate) use on_error::warn_of;
pub use on_error::{OnError, Pause};
pub use ordering::StepDown;
pub use rules::OnOverrun;
pub(crate) use rules::Rules;
pub(crate) use rules::validate_limit;
pub(crate) use run::{end_term, late, span_of, unconfirmed};
pub use run_handle::{RunHandle, spawn};
pub use runner::Runner;
pub(crate) use shutdown::cancel_on;
pub use shutdown::{Shutdown, shutdown_signal};
pub use work::Work;
pub(crate) use work::begin;
pub(crate) use work_monitor::WorkMonitor;

/// An election: a prefix in etcd under which each candidate has a key. The candidate with the smallest create revision
/// leads.
///
/// The keys are those of etcd's own election recipe, `<name>/<lease id in hex>`. So Go's `concurrency` package,
/// `etcdctl elect` and the v3election RPC can take part in the same election. Every key exactly one level below the
/// prefix counts as a candidate, whatever program wrote it.
///
/// An election is a cheap handle from [`Session::election`](crate::Session::election); clone it freely.
#[derive(Clone)]
pub struct Election {
    pub(crate) handle: Handle,
    name: Arc<str>,
    prefix: Arc<str>,
    watch_scope: WatchScope,
    announcement: Option<Announcement>,
    /// The limit within which a leader must serve; `None`: it serves as soon as it leads.
    serving_within: Option<Duration>,
    /// How long a leader that is asked to hand over waits for a warm successor; `None`: it does not wait, and candidates
    /// announce no warmth.
    warm_within: Option<Duration>,
    /// The version of this node, below which no candidate leads once this one has led; `None`: versions do not count.
    version: Option<Version>,
    pub(crate) local: Arc<LocalStatus>,
}

impl Session {
    /// Returns the election with that name. Sends nothing.
    ///
    /// The keys are `<namespace>/<name>/<lease id in hex>`. Go services with `clientv3/concurrency`, `etcdctl elect`
    /// and the v3election RPC take part under the name `<namespace>/<name>`, or just `<name>` with an empty
    /// [`namespace`](crate::SessionOptions::namespace).
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the name
    ///
    /// * is empty, begins or ends with `/`, contains `//` or control characters, or is longer than 512 bytes;
    /// * begins with `~`, as this crate's own keys do;
    /// * is in use for a [`Lock`](crate::Lock) of this session; or
    /// * lies inside or around another election or lock of this session that is in use. `a` and `a/b` may not be used
    ///   together, because other programs would count the keys of `a/b` in `a`.
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election> {
        let name = name.as_ref();
        check_name(name)?;
        let shared = self.shared();
        let (name, _) = shared.names.register(name, Use::Election)?;
        let prefix = shared.settings.prefix(&name);
        Ok(Election::new(self.handle().clone(), name, prefix.into()))
    }
}

impl Session {
    /// Returns the election with exactly that prefix, for an election that other programs named. Sends nothing.
    ///
    /// The keys are `<prefix>/<lease id in hex>`; nothing is trimmed or put before it. A prefix within the session's
    /// namespace is the election with the name that follows the namespace: `election_at("eldest/x")` is `election("x")`
    /// of the default namespace, with the same status and the same [name](Election::name). Elsewhere, the whole prefix
    /// is the election's name, in logs and metrics too.
    ///
    /// # What must not be mixed
    ///
    /// * Every key exactly one level below the prefix counts as a candidate. Keep other keys off that level. If the
    ///   oldest key has no lease, it [blocks](Roster::blocker) the election.
    /// * An election and a lock with the same prefix are one queue. Programs that follow etcd's own recipe count the
    ///   keys at every level below the prefix. This session refuses a second use of a prefix, and prefixes that nest,
    ///   including those of its own names. It cannot notice what other sessions and programs do there.
    /// * `/a` and `a` are two elections. Go's `concurrency.NewElection(session, "/a/")` and `etcdctl elect /a/` have
    ///   their keys at `/a//<lease id>`: an election that no prefix here can name.
    ///
    /// The session's user also needs the permission `readwrite` on the prefix `<prefix>/`: if the user may not write
    /// one key of the lease, etcd refuses to renew the lease for all of them.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// let election = session.election_at("/golem/shard-manager/leader")?;
    /// let leadership = election.campaign().await?.elected().await?;
    /// assert!(leadership.key().starts_with(b"/golem/shard-manager/leader/"));
    /// assert!(session.election_at("/golem/shard-manager/leader/").is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the prefix
    ///
    /// * is empty, ends with `/`, contains control characters, or is longer than 1025 bytes;
    /// * lies where this crate keeps other keys (a level `~semaphore`, `~partitions`, `~members`, `~run`, `~guard`,
    ///   `~evacuated`, `~schedule`, `~checkpoint` or `~session`; within the session's namespace any name that begins
    ///   with `~`);
    /// * is in use for a lock of this session, nests with a prefix that is in use, or is the name of another election
    ///   that is in use within the namespace.
    pub fn election_at(&self, prefix: impl AsRef<str>) -> Result<Election> {
        let prefix = prefix.as_ref();
        let shared = self.shared();
        let namespace = shared.settings.namespace_prefix();
        check_exact(prefix, &namespace)?;
        let name = prefix.strip_prefix(&namespace);
        if let Some(name) = name.filter(|name| check_name(name).is_ok()) {
            return self.election(name);
        }
        let (name, _) = shared.names.register_at(prefix)?;
        let prefix = format!("{prefix}/").into();
        Ok(Election::new(self.handle().clone(), name, prefix))
    }
}

impl Election {
    pub(crate) fn new(handle: Handle, name: Arc<str>, prefix: Arc<str>) -> Self {
        let local = handle.shared.local_statuses.of(&prefix);
        Self {
            local,
            handle,
            name,
            prefix,
            watch_scope: WatchScope::default(),
            announcement: None,
            serving_within: None,
            warm_within: None,
            version: None,
        }
    }

    /// Returns the election's name within the session's namespace, or the exact prefix given to
    /// [`Session::election_at`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a new handle of this election's session.
    pub fn session(&self) -> Session {
        Session::of(self.handle.clone())
    }

    /// Returns the prefix of the election's keys, with the final `/`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Sets which part of the queue a candidate watches ([`WatchScope::Auto`] by default), for later campaigns through
    /// this handle.
    pub fn watch_scope(mut self, scope: WatchScope) -> Self {
        self.watch_scope = scope;
        self
    }

    /// Sets the announcement of candidates that campaign through this handle from now on. It replaces the session's
    /// [announcement](crate::SessionOptions::announcement).
    pub fn announcement(mut self, announcement: impl Into<Announcement>) -> Self {
        self.announcement = Some(announcement.into());
        self
    }

    /// Makes a leader serve only once it calls [`Leadership::serving`], for candidates that campaign or run through this
    /// handle from now on. By default, a leader serves as soon as it leads.
    ///
    /// A leader that must first open a database or fill a cache leads long before it can answer requests. With this
    /// option, everything that sends requests to the leader waits until the leader serves: every node sees
    /// [`Member::is_serving`], and this node [`Term::is_serving`]. Use the same option on all nodes of an election.
    ///
    /// If the leader does not serve within `limit`, its term ends as [`NotServing`](crate::LostReason::NotServing), in
    /// the same way as after a [stall](crate::Runner::stall_timeout), and the next eldest leads. The time counts from
    /// the beginning of the leader's work, or from the moment at which [`Candidate::elected`] returned the leadership.
    /// `limit` is more than zero and at most 24 h.
    ///
    /// A [schedule](Election::every) answers no requests, so its leader serves at once.
    ///
    /// The announcement of a candidate then has a field that says in which term it serves. So a plain string cannot be
    /// announced.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{BoxError, CancellationToken, Leadership, Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # let shutdown = CancellationToken::new();
    /// # let stop = shutdown.clone();
    /// # async fn fill_the_cache() {}
    /// # async fn answer_requests(leadership: Leadership, stop: CancellationToken) {
    /// #     stop.cancel();
    /// #     leadership.lost().cancelled().await;
    /// # }
    /// use std::time::Duration;
    ///
    /// let election = session.election("billing/scheduler")?.serving_within(Duration::from_secs(60));
    /// election
    ///     .run_mut(shutdown, async |leadership| {
    ///         fill_the_cache().await;
    ///         leadership.serving().await?; // requests arrive from now on
    /// #       assert!(leadership.is_serving());
    /// #       let leader = session.election("billing/scheduler")?.leader().await?;
    /// #       assert!(leader.is_some_and(|leader| leader.is_serving()));
    ///         answer_requests(leadership, stop.clone()).await;
    ///         Ok::<_, BoxError>(())
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn serving_within(mut self, limit: Duration) -> Self {
        self.serving_within = Some(limit);
        self
    }

    /// Refuses a limit that cannot be kept.
    fn validate(&self) -> Result<()> {
        if let Some(limit) = self.serving_within {
            validate_limit("serving_within", limit)?;
        }
        self.warm_within.map_or(Ok(()), warmth::validate)
    }

    /// Joins the election as a candidate, and returns once its key is in etcd and its place in the queue is known: its
    /// [status](Candidate::status) is never [`Status::Joining`] then.
    ///
    /// The call retries while etcd cannot be reached; add a timeout if it should give up. A session can campaign again
    /// right after it dropped a candidate: the new candidate joins at the end when the old key is gone.
    ///
    /// # Errors
    ///
    /// `AlreadyCampaigning`: this session has a candidate in this election, or a `Leadership` or a task of
    /// [`Leadership::spawn`] that outlived its candidate. `InvalidInput`: the announcement is too large, or cannot say
    /// whether the leader [serves](Election::serving_within) or the candidate is [warm](Election::warm_within), or name the
    /// [version](Election::require_version), or a limit for these is out of bounds.
    /// `PermissionDenied`, `Unauthenticated`, `Overloaded` (also: out of space), `Rejected`: etcd refused the key. Once
    /// a key of this session was in etcd, the call waits through `Unauthenticated` and `Overloaded`, and logs a
    /// warning. `Unguarded`: the [guard](crate::SessionOptions::guard) that the session requires does not guard its
    /// lease. `Closed`: the session was closed. After an error, nothing is left in etcd.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: if the call is dropped before it completes, the key is deleted in the background.
    pub async fn campaign(&self) -> Result<Candidate> {
        self.join(false).await
    }

    pub(crate) async fn join(&self, persistent: bool) -> Result<Candidate> {
        self.validate()?;
        // Built only when it is needed: thousands of waiting campaigns would each keep it in memory.
        let config = move |_| CandidateConfig {
            watch_scope: self.watch_scope,
            persistent,
            gives_way: true,
            warm_within: self.warm_within.unwrap_or_default(),
            required: self.required(),
            ..CandidateConfig::default()
        };
        let name = Arc::clone(&self.name);
        let local = Some(Arc::clone(&self.local));
        let prefix = self.prefix_bytes();
        let opening = Opening {
            announcement: self.announcement.as_ref(),
            unready: self.serving_within.is_some(),
            prepares: self.warm_within.is_some(),
            version: self.version.as_ref(),
            ..Opening::default()
        };
        let mut candidate =
            Candidate::join(&self.handle, name, prefix, None, local, opening, config).await?;
        // `run` watches the limit from the beginning of the work on.
        candidate.serving_within = self.serving_within.filter(|_| !persistent);
        Ok(candidate)
    }

    /// Returns the status of this session in the election from memory, without asking etcd.
    ///
    /// It covers [`Candidate`]s and [`Election::run`], through every handle of this session. It is [`Status::Idle`] if
    /// the session has not been a candidate since its first handle of this election was made.
    pub fn status(&self) -> Status {
        self.local.get().status.unwrap_or(Status::Idle)
    }

    /// Returns a channel with the status: the current status at once, then every change. The first `changed()` returns
    /// at once, for the current status. A slow reader sees only the latest status.
    ///
    /// The channel continues from one candidacy to the next, while any handle of this election exists.
    ///
    /// A leader should stop when its status becomes [`Status::Ending`]. Its term is over when another status follows.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{CancellationToken, Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # async fn work(leadership: eldest::Leadership) -> Result<(), eldest::BoxError> {
    /// #     Ok(leadership.lost().cancelled().await)
    /// # }
    /// use eldest::Status;
    ///
    /// let election = session.election("billing/scheduler")?;
    /// let mut status = election.subscribe();
    /// let run = election.spawn(CancellationToken::new(), work);
    /// status.wait_for(|status| matches!(status, Status::Leading { .. })).await?;
    /// assert!(election.is_leader());
    /// run.stop();
    /// status.wait_for(|status| matches!(status, Status::Ended { .. })).await?;
    /// run.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn subscribe(&self) -> watch::Receiver<Status> {
        let mut status = self.local.watch_status();
        status.mark_changed();
        status
    }

    /// Returns `true` while this session leads and its term's [token](Term::lost) is not cancelled. Check it before new
    /// work begins.
    ///
    /// Work that is under way may continue for the [grace period](crate::SessionOptions::grace). For such work, check
    /// [`Term::is_valid`] of [`Election::term`].
    pub fn is_leader(&self) -> bool {
        let term = self.local.get().held.map(|held| held.term);
        term.is_some_and(|term| !term.shared.is_lost() && term.is_valid())
    }

    /// Ends this session's candidacy from outside its work, whether it leads or waits. Returns once etcd has confirmed
    /// that the key is gone, and at once if the session is not a candidate.
    ///
    /// The token of a leader's work is cancelled. The work is awaited, and dropped after the [grace
    /// period](crate::SessionOptions::grace); then [`Election::run`] returns. A program that controls single steps
    /// drops its [`Leadership`] when its work has ended.
    ///
    /// # Errors
    ///
    /// `Unavailable`: etcd did not confirm within the grace period and four request timeouts. The deletion continues in
    /// the background, and this call may be repeated. `Closed`: the session was closed.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: resigning continues in the background.
    pub async fn resign(&self) -> Result<()> {
        let state = self.local.get();
        let Some(slot) = state.slot else {
            return Ok(());
        };
        if let Some(held) = state.held.filter(|held| held.id.0 == slot) {
            self.end(&held, LostReason::Resigned).await?;
        }
        let reason = EndReason::Left;
        self.handle.call(Command::Leave { slot, reason }).await?;
        self.handle.ended_within(slot, self.patience()).await
    }

    /// Ends this session's term from outside its work, and joins at the end of the queue. Returns once etcd has
    /// confirmed that the term's key is gone, and at once if the session does not lead.
    ///
    /// The work ends as after [`Election::resign`]. Then the next eldest leads, and this node waits behind all other
    /// candidates. With [`Election::warm_within`], the leader first leads on until its successor is warm.
    ///
    /// # Errors
    ///
    /// As [`Election::resign`].
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: stepping down continues in the background. A call that is dropped while it waits for a warm successor
    /// has no effect.
    pub async fn step_down(&self) -> Result<()> {
        match self.local.get().held {
            Some(held) if held.term.is_valid() => self.step_down_from(&held).await,
            _ => Ok(()),
        }
    }

    pub(crate) async fn step_down_from(&self, held: &Held) -> Result<()> {
        self.await_warm_successor(&held.term).await;
        self.end(held, LostReason::SteppedDown).await?;
        let (slot, term) = held.id;
        let patience = self.patience();
        self.handle.released_within(slot, term, patience).await
    }

    /// Announces, from outside its work, that the leader serves in that term. The session continues after an error.
    pub(crate) async fn serve(&self, held: &Held) -> Result<()> {
        self.announced_soon(announce_serving(&self.handle, held.id.0, &held.term))
            .await
    }

    /// Waits for an announcement for as long as a few requests take.
    async fn announced_soon(&self, announced: impl Future<Output = Result<()>>) -> Result<()> {
        let patience = self.handle.patience();
        let announced = timeout(&*self.handle.shared.env, patience, announced).await;
        announced.unwrap_or_else(|| {
            let message = format!("etcd did not take the announcement within {patience:?}");
            Err(Error::new(ErrorKind::Unavailable, message))
        })
    }

    /// Sends the end of a term when there is room, because a user may request it any number of times.
    async fn end(&self, held: &Held, reason: LostReason) -> Result<()> {
        let (slot, term) = held.id;
        self.handle.call(Command::End { slot, term, reason }).await
    }

    /// Returns how long to wait for the deletion of a key whose work is awaited first.
    fn patience(&self) -> Duration {
        self.handle.shared.settings.grace + self.handle.patience()
    }

    /// Returns the last term in which this session led, or `None` if it never led. Reads memory, without asking etcd.
    ///
    /// The call returns the term no matter which handle holds the leadership. The term may be over: check
    /// [`Term::is_valid`] at every use.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Election, Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// fn may_act(election: &Election) -> bool {
    ///     election.term().is_some_and(|term| term.is_valid())
    /// }
    ///
    /// let election = session.election("billing/scheduler")?;
    /// assert!(!may_act(&election));
    /// let leadership = election.campaign().await?.elected().await?;
    /// assert!(may_act(&election));
    /// leadership.resign().await?;
    /// assert!(!may_act(&election));
    /// # Ok(())
    /// # }
    /// ```
    pub fn term(&self) -> Option<Term> {
        self.local.get().held.map(|held| held.term)
    }

    /// Reads the leader from etcd, by one linearizable read. Returns `None` if there is no candidate, or if a key
    /// without a lease is in the way ([`Roster::blocker`]).
    ///
    /// # Errors
    ///
    /// `Unavailable`: no endpoint answered within the connect timeout. `PermissionDenied`, `Unauthenticated`,
    /// `Overloaded`: etcd refused the read.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it only reads.
    pub async fn leader(&self) -> Result<Option<Member>> {
        Ok(self.roster().await?.leader().cloned())
    }

    /// Reads all candidates from etcd, eldest first, by one linearizable read.
    ///
    /// # Errors
    ///
    /// As [`Election::leader`].
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it only reads.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// let election = session.election("billing/scheduler")?;
    /// let _candidate = election.campaign().await?;
    /// for member in election.roster().await?.members() {
    ///     println!("{}. {}, token {}", member.rank(), member.identity(), member.create_revision());
    /// #   assert_eq!((member.rank(), member.identity()), (1, "node-a"));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn roster(&self) -> Result<Roster> {
        self.handle
            .shared
            .roster(self.prefix.as_bytes(), Reach::Children)
            .await
    }

    /// Returns a stream of the election's candidates: the current state first, then every change.
    ///
    /// An observer needs no lease, and only the permission to read. While etcd cannot be reached, the stream waits.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let endpoints = [etcd.endpoint()];
    /// use eldest::Announcement;
    /// use futures::StreamExt;
    ///
    /// let me = Announcement::default().with_address("10.0.0.1:8080");
    /// let session = Session::connect(endpoints, SessionOptions::new("node-a").announcement(me)).await?;
    /// let election = session.election("billing/scheduler")?;
    /// let _candidate = election.campaign().await?;
    ///
    /// let mut changes = election.observe().await?;
    /// while let Some(roster) = changes.next().await {
    ///     match roster?.leader() {
    ///         Some(leader) => {
    ///             println!("{} leads at {:?}", leader.identity(), leader.announcement().address());
    /// #           assert_eq!(leader.announcement().address(), Some("10.0.0.1:8080"));
    /// #           break;
    ///         }
    ///         None => println!("nobody leads"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `Closed`: the session was closed. If etcd refuses the watch, the error arrives as an item of the stream.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe, and so is waiting for the stream's next item.
    pub async fn observe(&self) -> Result<Observer> {
        Observer::start(self.handle.clone(), self.prefix_bytes(), Reach::Children).await
    }

    /// Returns a stream of changes of the leader: the current leader first, then each election and each vacancy, once
    /// and in order.
    ///
    /// It watches as [`Election::observe`] does.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # let election = session.election("billing/scheduler")?;
    /// # let _candidate = election.campaign().await?;
    /// use eldest::LeaderChange;
    ///
    /// let mut changes = election.leader_changes().await?;
    /// while let Some(change) = changes.next().await {
    ///     match change? {
    ///         LeaderChange::Elected { leader, .. } => println!("{} leads", leader.identity()),
    ///         LeaderChange::Vacant { .. } => println!("nobody leads"),
    ///         _ => {}
    ///     }
    /// #   break;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Election::observe`].
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe, and so is waiting for the next change.
    pub async fn leader_changes(&self) -> Result<LeaderChanges> {
        Ok(LeaderChanges::new(self.observe().await?))
    }

    fn prefix_bytes(&self) -> Arc<[u8]> {
        self.prefix.as_bytes().into()
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("name", &self.name)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl Error {
    pub(crate) fn already_campaigning(election: &str) -> Self {
        Error::new(
            ErrorKind::AlreadyCampaigning,
            format!(
                "this session is already a candidate in {election:?}; two candidates need two sessions"
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::SessionOptions;

    /// Ten thousand campaigns wait at once. The kernel's work for their memory counts as well.
    #[tokio::test]
    async fn a_campaign_that_waits_takes_little_memory() {
        let endpoints = ["http://127.0.0.1:1"];
        let session = Session::connect_lazy(endpoints, SessionOptions::new("n"));
        let election = session.and_then(|session| session.election("e"));
        let size = size_of_val(&election.expect("an election").campaign());
        assert!(size <= 512, "{size} bytes");
    }
}
