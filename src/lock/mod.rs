//! Implements a distributed lock as an election with short terms.

mod resource;
mod semaphore;

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crate::election::Leadership;
use crate::error::Result;
use crate::session::{Session, Use};
use crate::state::{Roster, Term};
use resource::Resource;

use semaphore::check_capacity;
pub use semaphore::{Permit, Semaphore};

/// A lock that the sessions of all nodes share: one of them holds it at a time, in the order in which they asked.
///
/// **Guaranteed** is what is guaranteed of a leader: at most one guard of a lock [is valid](Term::is_valid) at a time,
/// on the three conditions that the [crate's documentation](crate) begins with, and what is written with the
/// [fencing token](Term::fencing_token) is refused once it is stale, in any case. **Not guaranteed**: that a guard stays
/// valid until it is dropped. Its lease can be lost, so whoever holds one watches [`Term::lost`] or asks
/// [`Term::is_valid`] before each step.
///
/// The keys are those of etcd's own lock recipe, `<namespace>/<name>/<lease id in hex>`, so `etcdctl lock
/// <namespace>/<name>`, Go's `concurrency.Mutex` and the v3lock RPC wait for it and it for them. That recipe is the one
/// of elections too: **a lock and an election of one name are one queue**. A session refuses to use a name for both;
/// that another session does so, nobody notices.
///
/// Waiting costs etcd two watched keys, the own and the one before it, however long the queue; a release wakes up one
/// waiter.
///
/// # Tasks of one session
///
/// A session has one key per lock. Its tasks queue in the session, first come, first served, and each joins etcd's queue,
/// at the back, when the key of the one before is gone: a busy session does not starve the others. A task that acquires
/// a lock which it holds already waits for itself, for ever.
///
/// A cheap handle from [`Session::lock`](crate::Session::lock); clone it freely.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), eldest::BoxError> {
/// # use eldest::{Session, SessionOptions};
/// # let etcd = eldest_testing::Etcd::start().await?;
/// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
/// use eldest::Op;
///
/// let lock = session.lock("billing/invoices")?;
/// let guard = lock.acquire().await?;
/// if guard.is_valid() {
///     // ... one piece of work that takes less than the grace period ...
///     guard.txn([Op::put("billing/next", "4712")]).await?; // refused if the lock was lost
/// }
/// guard.release().await?; // the next in the queue holds it
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Lock {
    resource: Resource,
}

impl Session {
    /// A lock by name. Sends nothing.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: as for [`Session::election`]. Elections and locks share their names.
    pub fn lock(&self, name: impl AsRef<str>) -> Result<Lock> {
        let resource = Resource::new(self.handle().clone(), name.as_ref(), Use::Lock)?;
        Ok(Lock::new(resource))
    }

    /// A semaphore by name, with 1 to 1024 permits. Sends nothing.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the capacity is out of bounds, or the name is as it must not be for [`Session::election`].
    /// Semaphores have names of their own, apart from those of elections and locks. `CapacityMismatch`: this session uses
    /// it with another capacity.
    pub fn semaphore(&self, name: impl AsRef<str>, capacity: usize) -> Result<Semaphore> {
        check_capacity(capacity)?;
        let what = Use::Semaphore { capacity };
        let resource = Resource::new(self.handle().clone(), name.as_ref(), what)?;
        Ok(Semaphore::new(resource, capacity))
    }
}

impl Lock {
    pub(crate) fn new(resource: Resource) -> Self {
        Self { resource }
    }

    /// Its name within the session's namespace.
    pub fn name(&self) -> &str {
        &self.resource.name
    }

    /// The prefix of its keys, with the final `/`.
    pub fn prefix(&self) -> &str {
        &self.resource.prefix
    }

    /// Waits until this task holds the lock.
    ///
    /// First come, first served, among the session's tasks and then among sessions. A key that is lost while it waits is
    /// replaced, at the back. The deadline is compared at the moment of return: what has died on the way is not handed
    /// out. Goes on trying while etcd cannot be reached.
    ///
    /// # Errors
    ///
    /// `PermissionDenied`, `Unauthenticated`, `Overloaded` (also: out of space), `Rejected`: etcd refused the key.
    /// `InvalidInput`: what the session [announces](crate::SessionOptions::announcement) is too large. `Closed`: the session
    /// was closed. Nothing is left in etcd.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: dropped before it is ready, the place in the queue is given up and the key taken away again in the
    /// background.
    pub async fn acquire(&self) -> Result<LockGuard> {
        self.resource.acquire().await.map(LockGuard::new)
    }

    /// As [`Lock::acquire`], for so long at most, the wait for other tasks of this session included. `None`: it did not
    /// get it in time. Its place in the queue is given up.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`].
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe, as [`Lock::acquire`].
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<Option<LockGuard>> {
        let held = self.resource.acquire_timeout(limit).await?;
        Ok(held.map(LockGuard::new))
    }

    /// Takes the lock if nobody holds it or waits for it, in one transaction. `None`: somebody does, and no key was
    /// written. A task of this session counts; so does one that dropped its guard, until its key is gone: to be sure that
    /// it is, await [`LockGuard::release`].
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`], and `Unavailable`: etcd did not answer within four request timeouts. What may be left of the
    /// attempt is taken away in the background.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe, as [`Lock::acquire`].
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        let held = self.resource.try_acquire().await?;
        Ok(held.map(LockGuard::new))
    }

    /// Who holds it, [the leader](Roster::leader), and which sessions wait, in order, by one linearizable read.
    ///
    /// # Errors
    ///
    /// As [`Election::leader`](crate::Election::leader).
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it only reads.
    pub async fn roster(&self) -> Result<Roster> {
        self.resource.roster().await
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name())
            .field("prefix", &self.prefix())
            .finish_non_exhaustive()
    }
}

/// A lock that is held, for as long as it [is valid](Term::is_valid). Checks and fencing are those of its [`Term`], to
/// which it dereferences; what is said there of leaders is true of holders.
///
/// Dropping it, or a panic that unwinds through it, releases the lock at once, in the background: the key is deleted, if
/// it still is the one of this guard, and that is retried until etcd confirms it. Drop it only when the work has ended.
///
/// Keeping it does not keep the lock: when it is lost, its token is cancelled and its deadline frozen, and the key is
/// deleted at that deadline at the latest. Other tasks of the session wait until it is dropped all the same.
#[must_use = "dropping a guard releases the lock"]
pub struct LockGuard {
    leadership: Leadership,
}

impl LockGuard {
    fn new(leadership: Leadership) -> Self {
        Self { leadership }
    }

    /// A view to pass to whatever acts under the lock; it does not hold it.
    pub fn term(&self) -> Term {
        self.leadership.term()
    }

    /// Releases the lock; returns when etcd confirmed that the key is gone.
    ///
    /// The caller says by it that the work has ended: validity ends at once. A lock that was lost is no error.
    ///
    /// # Errors
    ///
    /// `Unavailable`: etcd did not confirm within four request timeouts. The deletion is retried in the background.
    /// `Closed`: the session was closed, which releases its locks.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: the release goes on in the background.
    pub async fn release(self) -> Result<()> {
        self.leadership.resign().await
    }
}

impl Deref for LockGuard {
    type Target = Term;

    fn deref(&self) -> &Term {
        &self.leadership
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let term: &Term = self;
        f.debug_tuple("LockGuard").field(term).finish()
    }
}
