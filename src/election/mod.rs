//! Defines the handle of an election: the prefix of its keys, and the ways to take part in it.

mod candidate;
mod following;
mod health;
mod leadership;
mod run;
mod run_handle;
mod runner;
mod shutdown;
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
use eldest_core::reason::LostReason;

pub use candidate::Candidate;
pub use following::Following;
pub(crate) use leadership::Claim;
pub use leadership::{Heartbeats, Leadership};
pub(crate) use run::{late, span_of, unconfirmed};
pub use run_handle::RunHandle;
pub use runner::{NoCheck, NoFollower, OnOverrun, Runner};
pub use shutdown::Shutdown;
pub(crate) use shutdown::cancel_on;
#[cfg(test)]
pub(crate) use work_monitor::WorkMonitor;

/// One election: a prefix in etcd under which every candidate has a key. The smallest create revision leads.
///
/// The keys are those of etcd's own election recipe, `<name>/<lease id in hex>`, so Go's `concurrency` package,
/// `etcdctl elect` and the v3election RPC can stand in the same election. Every key exactly one level below the
/// prefix counts as a candidate, whoever wrote it.
///
/// A cheap handle from [`Session::election`](crate::Session::election); clone it freely.
#[derive(Clone)]
pub struct Election {
    pub(crate) handle: Handle,
    name: Arc<str>,
    prefix: Arc<str>,
    watch_scope: WatchScope,
    announcement: Option<Announcement>,
    pub(crate) local: Arc<LocalStatus>,
}

impl Session {
    /// An election by name. Sends nothing.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the name is empty, begins or ends with `/`, contains `//` or control characters, is longer
    /// than 512 bytes, begins with `~` (this crate's own keys do), is in use for a [`Lock`](crate::Lock) of this session, or lies
    /// inside (or around) another election or lock of this session that is in use: `a` and `a/b` may not be used
    /// together, because other programs would count the keys of `a/b` in `a`.
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
    /// The election whose keys are `<prefix>/<lease id in hex>`, wherever they lie: for an election that exists already,
    /// under a name that other programs gave it. Nothing is trimmed or put before it. Sends nothing.
    ///
    /// A prefix that lies within the session's namespace is the election of the name that follows:
    /// `election_at("eldest/x")` is `election("x")` of the default namespace, with the same status and the same
    /// [name](Election::name). Elsewhere, the election has the whole prefix for its name, in logs and metrics too.
    ///
    /// # What must not be mixed
    ///
    /// * Every key exactly one level below the prefix counts as a candidate. Keep other keys out of it; one without a
    ///   lease that is the oldest [blocks](Roster::blocker) the election.
    /// * An election and a lock with the same prefix are one queue, and programs that follow etcd's own recipe count the
    ///   keys at every level below. This session refuses a second use of a prefix, and prefixes that nest, its own names
    ///   included. What other sessions and programs do there, nobody notices.
    /// * `/a` and `a` are two elections. Go's `concurrency.NewElection(session, "/a/")` and `etcdctl elect /a/` have their
    ///   keys at `/a//<lease id>`: an election that no prefix here can name.
    ///
    /// The session's user needs the permission `readwrite` on the prefix `<prefix>/` as well: one key of the lease
    /// that it may not write stops the renewals of all.
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
    /// `InvalidInput`: the prefix is empty, ends with `/`, contains control characters, is longer than 1025 bytes, or lies
    /// where this crate keeps other keys (a level `~semaphore`, `~partitions`, `~members` or `~run`; within the session's namespace any
    /// that begins with `~`); or it is in use for a lock of this session, nests with what is in use, or is the name of
    /// another election that is in use within the namespace.
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
        }
    }

    /// Its name within the session's namespace, or the exact prefix that [`Session::election_at`] was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The session that it belongs to, as one more handle of it.
    pub fn session(&self) -> Session {
        Session::of(self.handle.clone())
    }

    /// The prefix of its keys, with the final `/`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Chooses which part of the queue candidates watch ([`WatchScope::Auto`] by default); for those that campaign
    /// afterwards, through this handle.
    pub fn watch_scope(mut self, scope: WatchScope) -> Self {
        self.watch_scope = scope;
        self
    }

    /// What candidates announce that campaign afterwards through this handle, in place of the session's
    /// [announcement](crate::SessionOptions::announcement).
    pub fn announcement(mut self, announcement: impl Into<Announcement>) -> Self {
        self.announcement = Some(announcement.into());
        self
    }

    /// Stands as a candidate; returns once the key stands in etcd.
    ///
    /// Goes on trying while etcd cannot be reached; give it a timeout if that is not wanted.
    ///
    /// # Errors
    ///
    /// `AlreadyCampaigning`: this session stands in this election. `InvalidInput`: the announcement is too large.
    /// `PermissionDenied`, `Unauthenticated`, `Overloaded` (also: out of space), `Rejected`: etcd refused the key.
    /// `Closed`: the session was closed. Nothing is left in etcd.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: dropped before it is ready, the key is taken away again in the background.
    pub async fn campaign(&self) -> Result<Candidate> {
        self.stand(false).await
    }

    pub(crate) async fn stand(&self, persistent: bool) -> Result<Candidate> {
        let config = CandidateConfig {
            watch_scope: self.watch_scope,
            persistent,
            ..CandidateConfig::default()
        };
        let name = Arc::clone(&self.name);
        let local = Some(Arc::clone(&self.local));
        let prefix = self.prefix_bytes();
        let announcement = self.announcement.as_ref();
        Candidate::stand(
            &self.handle,
            name,
            prefix,
            None,
            local,
            announcement,
            |_| config,
        )
        .await
    }

    /// Where this session stands in it, whether by a [`Candidate`] or by [`Election::run`], through whichever handle.
    /// [`Status::Idle`]: it has not stood since its first handle of this election was made. Asks nobody.
    pub fn status(&self) -> Status {
        self.local.get().status.unwrap_or(Status::Idle)
    }

    /// The same as a channel: the current status at once (`changed()` returns for it), then every change, the latest
    /// winning. It goes on from one candidacy to the next, for as long as a handle of this election lives.
    ///
    /// A leader is told to stop when its status becomes [`Status::Ending`]; its term is over when another status follows.
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

    /// Whether this session leads and has not been told to stop: `false` from the cancellation of the term's
    /// [token](Term::lost) on. For what begins new work.
    ///
    /// Work that is under way may go on for the [grace period](crate::SessionOptions::grace): for that ask
    /// [`Term::is_valid`], of [`Election::term`].
    pub fn is_leader(&self) -> bool {
        let term = self.local.get().held.map(|held| held.term);
        term.is_some_and(|term| !term.shared.is_lost() && term.is_valid())
    }

    /// Ends this session's candidacy from outside of its work, whether it leads or waits; returns when etcd confirmed that
    /// the key is gone. At once if it does not stand.
    ///
    /// A leader's work is told through its token, awaited, and dropped after the
    /// [grace period](crate::SessionOptions::grace); then [`Election::run`] returns. Who went step by step drops its
    /// [`Leadership`] when its work has ended.
    ///
    /// # Errors
    ///
    /// `Unavailable`: not confirmed within the grace period and four request timeouts. It goes on in the background, and
    /// this call may be repeated. `Closed`: the session was closed.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: resigning goes on in the background.
    pub async fn resign(&self) -> Result<()> {
        let state = self.local.get();
        let Some(slot) = state.slot else {
            return Ok(());
        };
        if let Some(held) = state.held.filter(|held| held.id.0 == slot) {
            self.end(&held, LostReason::Resigned).await?;
        }
        self.handle.call(Command::Leave { slot }).await?;
        self.handle.ended_within(slot, self.patience()).await
    }

    /// Ends this session's term from outside of its work, and goes to the back of the queue; returns when etcd confirmed
    /// that the term's key is gone. At once if it does not lead.
    ///
    /// The work ends as after [`Election::resign`]; then the next eldest leads, and this node stands again behind all who
    /// wait.
    ///
    /// # Errors
    ///
    /// As [`Election::resign`].
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: stepping down goes on in the background.
    pub async fn step_down(&self) -> Result<()> {
        match self.local.get().held {
            Some(held) if held.term.is_valid() => self.step_down_from(&held).await,
            _ => Ok(()),
        }
    }

    pub(crate) async fn step_down_from(&self, held: &Held) -> Result<()> {
        self.end(held, LostReason::SteppedDown).await?;
        let (slot, term) = held.id;
        let patience = self.patience();
        self.handle.released_within(slot, term, patience).await
    }

    /// May be asked for any number of times: it waits for room among the commands.
    async fn end(&self, held: &Held, reason: LostReason) -> Result<()> {
        let (slot, term) = held.id;
        self.handle.call(Command::End { slot, term, reason }).await
    }

    /// How long a key may take to go whose work is awaited first.
    fn patience(&self) -> Duration {
        self.handle.shared.settings.grace + self.handle.patience()
    }

    /// The last term in which this session led, whoever holds the leadership; `None`: it has not. Asks nobody. The term
    /// may be over: [`Term::is_valid`] tells, at every use.
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

    /// Who leads, by one linearizable read. `None`: nobody, or a key without a lease is in the way (see
    /// [`Roster::blocker`]).
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

    /// All candidates, eldest first, by one linearizable read.
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

    /// Looks on: the current state first, then every change. Needs no lease, and only the permission to read. While
    /// etcd cannot be reached, the stream waits.
    ///
    /// # Errors
    ///
    /// `Closed`: the session was closed. What etcd refuses arrives as an item of the stream.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe, as is waiting for the stream's next item.
    pub async fn observe(&self) -> Result<Observer> {
        Observer::start(self.handle.clone(), self.prefix_bytes(), Reach::Children).await
    }

    /// Looks on as [`Election::observe`] does, and tells only of changes of the leader: who leads now first, then each
    /// election and each vacancy, once and in order.
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
    /// Cancel safe, as is waiting for the next change.
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
                "this session already stands in {election:?}; two candidates need two sessions"
            ),
        )
    }
}
