//! Defines the handle of an election: the prefix of its keys, and the ways to take part in it.

mod candidate;
mod following;
mod health;
mod leadership;
mod run;
mod runner;
mod work_monitor;

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::observe::Observer;
use crate::session::{Handle, Session, Use, check_name};
use crate::state::{LocalStatus, Member, Roster, Status, Term};
use eldest_core::candidate::{CandidateConfig, Follow};
use eldest_core::kv::Reach;

pub use candidate::Candidate;
pub use following::Following;
pub(crate) use leadership::Claim;
pub use leadership::Leadership;
pub(crate) use run::{span_of, tell_late, unconfirmed};
pub use runner::{NoCheck, NoFollower, OnOverrun, Runner};
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
    follow: Follow,
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

impl Election {
    pub(crate) fn new(handle: Handle, name: Arc<str>, prefix: Arc<str>) -> Self {
        let local = handle.shared.local_statuses.of(&name);
        Self {
            local,
            handle,
            name,
            prefix,
            follow: Follow::default(),
        }
    }

    /// Its name within the session's namespace.
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

    /// Chooses which part of the queue candidates watch ([`Follow::Auto`] by default); for those that campaign
    /// afterwards, through this handle.
    pub fn follow(mut self, follow: Follow) -> Self {
        self.follow = follow;
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
        let manner = CandidateConfig {
            follow: self.follow,
            persistent,
            ..CandidateConfig::default()
        };
        let name = Arc::clone(&self.name);
        let local = Some(Arc::clone(&self.local));
        let prefix = self.prefix_bytes();
        Candidate::stand(&self.handle, name, prefix, None, local, |_| manner).await
    }

    /// Where this session stands in it, whether by a [`Candidate`] or by [`Election::run`], through whichever handle.
    /// `None`: it has not stood since its first handle of this election was made. Asks nobody.
    pub fn status(&self) -> Option<Status> {
        self.local.get().status
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
