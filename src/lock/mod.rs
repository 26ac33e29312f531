//! Implements a distributed lock as an election with short terms.

mod resource;
mod semaphore;
mod set;

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crate::election::Leadership;
use crate::error::Result;
use crate::session::{Session, Use};
use crate::state::{Roster, Term};
use eldest_core::queue::is_shared;
use resource::Resource;

use semaphore::check_capacity;
pub use semaphore::{Permit, Semaphore};
pub use set::{LockSet, LockSetGuard};

/// A lock that the sessions of all nodes share. One of them holds it at a time, in the order in which they asked.
///
/// **Guaranteed**, as for a leader: at most one guard of a lock [is valid](Term::is_valid) at a time, under the three
/// conditions at the head of the [crate's documentation](crate). Stale writes with a [fencing
/// token](Term::fencing_token) are refused in any case. **Not guaranteed**: that a guard stays valid until it is
/// dropped. Its lease can be lost, so a holder watches [`Term::lost`] or checks [`Term::is_valid`] before each step.
///
/// The keys are those of etcd's own lock recipe, `<namespace>/<name>/<lease id in hex>`. So `etcdctl lock
/// <namespace>/<name>`, Go's `concurrency.Mutex` and the v3lock RPC wait for this lock, and it waits for them.
/// Elections use the same recipe: **a lock and an election with one name are one queue**. A session refuses to use a
/// name for both. If another session has candidates of an election there, a lock is refused (`NameInUse`), in the
/// transaction that would put its key: the value of a lock's key begins with a space, or is empty, as `etcdctl lock`
/// leaves it. An election that begins while the name is held as a lock waits for it.
///
/// Waiting costs etcd two watched keys, the waiter's own and the one before it, however long the queue is. A release
/// wakes up one waiter.
///
/// # Tasks of one session
///
/// A session has one key per lock. Its tasks queue in the session, first come, first served. Each joins etcd's queue,
/// at the end, when the key of the task before it is gone, so a busy session does not starve the others. A task that
/// acquires a lock which it already holds waits for itself, forever.
///
/// # Readers and writers
///
/// [`Lock::shared`] returns the same lock for readers: any number of them hold it together, on one node and on many.
/// Every other holder is a writer, and holds it alone. A reader waits for every older writer, even for one that waits
/// itself, and a writer waits for all older holders and waiters. So neither readers nor writers starve: the
/// longest-waiting is first.
///
/// Each reader has a key of its own, `<namespace>/<name>/<lease id in hex>-shared-<number>`. To a program that knows
/// nothing of readers, it is one more candidate in the queue: `etcdctl lock`, Go's `concurrency.Mutex` and earlier
/// versions of this crate are writers. A reader cannot become a writer while it holds the lock: release it, and acquire
/// it again.
///
/// A lock is a cheap handle from [`Session::lock`](crate::Session::lock); clone it freely.
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
    /// Returns the lock with that name. Sends nothing.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: as for [`Session::election`]. Elections and locks share their names.
    pub fn lock(&self, name: impl AsRef<str>) -> Result<Lock> {
        let resource = Resource::new(self.handle().clone(), name.as_ref(), Use::Lock)?;
        Ok(Lock::new(resource))
    }

    /// Returns the semaphore with that name and 1 to 1024 permits. Sends nothing.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the capacity is out of bounds, or [`Session::election`] would refuse the name. Semaphores have
    /// their own names, apart from those of elections and locks. `CapacityMismatch`: this session uses the semaphore
    /// with another capacity.
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

    /// Returns the lock's name within the session's namespace.
    pub fn name(&self) -> &str {
        &self.resource.name
    }

    /// Returns the prefix of the lock's keys, with the final `/`.
    pub fn prefix(&self) -> &str {
        &self.resource.prefix
    }

    /// Waits until this task holds the lock, and returns its guard.
    ///
    /// Tasks are served in the order in which they came, first within the session and then among sessions. If the key
    /// is lost during the wait, a new one joins at the end. The deadline is checked at the moment of return, so a
    /// guard that has already ended is never returned. The call retries while etcd cannot be reached.
    ///
    /// # Errors
    ///
    /// `PermissionDenied`, `Unauthenticated`, `Overloaded` (also: out of space), `Rejected`: etcd refused the key. Once
    /// a key of this session was in etcd, the call waits through `Unauthenticated` and `Overloaded`, and logs a
    /// warning. `NameInUse`: an election with that name has candidates. `InvalidInput`: the session's
    /// [announcement](crate::SessionOptions::announcement) is too large. `Unguarded`: the
    /// [guard](crate::SessionOptions::guard) that the session requires does not guard its lease. `Closed`: the session
    /// was closed. After an error, nothing is left in etcd.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: if the call is dropped before it completes, the place in the queue is given up and the key is
    /// deleted in the background.
    pub async fn acquire(&self) -> Result<LockGuard> {
        self.resource.acquire().await.map(LockGuard::new)
    }

    /// Waits as [`Lock::acquire`] does, but for `limit` at most, including the wait for other tasks of this session.
    /// Returns `None` if the lock did not become free in time; its place in the queue is given up.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`], and `Unavailable`: etcd had four request timeouts, and did not answer whether it is free.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe, as [`Lock::acquire`].
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<Option<LockGuard>> {
        let held = self.resource.acquire_timeout(limit).await?;
        Ok(held.map(LockGuard::new))
    }

    /// Takes the lock if it has no holder and no waiter, in one transaction. Otherwise returns `None`, without writing
    /// a key.
    ///
    /// Another task of this session counts too. So does a task that dropped its guard, until its key is gone: await
    /// [`LockGuard::release`] to be sure that it is gone.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`], and `Unavailable`: etcd did not answer within four request timeouts. A key that the
    /// attempt may have left is deleted in the background.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe, as [`Lock::acquire`].
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        let held = self.resource.try_acquire().await?;
        Ok(held.map(LockGuard::new))
    }

    /// Reads the holder ([the leader](Roster::leader)) and the sessions that wait, in order, by one linearizable read.
    /// If the leader [is a reader](crate::Member::is_shared), all readers before the first writer hold the lock.
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

    /// Returns the same lock for readers: the methods of the returned handle acquire it together with other readers,
    /// and never beside a writer. Sends nothing.
    ///
    /// They behave as for a writer, except that [`Lock::try_acquire`] takes a second transaction if other readers hold
    /// or await the lock. A waiting reader watches its own key and the two youngest writers before it. Readers cost
    /// each other nothing.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// let lock = session.lock("billing/prices")?;
    /// let reader = lock.shared().acquire().await?;
    /// let another = lock.shared().acquire().await?;
    /// assert!(lock.try_acquire().await?.is_none()); // a writer would wait for both
    /// reader.release().await?;
    /// another.release().await?;
    /// let writer = lock.acquire().await?;
    /// assert!(lock.shared().try_acquire().await?.is_none());
    /// # drop(writer);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared(&self) -> Self {
        Self::new(self.resource.shared())
    }

    /// Returns `true` if this handle acquires the lock for readers.
    pub fn is_shared(&self) -> bool {
        self.resource.is_shared()
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name())
            .field("prefix", &self.prefix())
            .field("shared", &self.is_shared())
            .finish_non_exhaustive()
    }
}

/// Holds a lock for as long as the guard [is valid](Term::is_valid). It dereferences to its [`Term`], which has the
/// checks and the fencing. What `Term` says about leaders applies to holders.
///
/// A writer has a larger [token](Term::fencing_token) than all holders before it, and a reader a larger one than the
/// writers before it. An outside resource that keeps the highest token of a *writer*, and refuses lower ones, is safe.
/// Readers hold the lock together, so their tokens do not order them.
///
/// Dropping it, or a panic that unwinds through it, releases the lock at once, in the background: the session deletes
/// the key if it still belongs to this guard, and repeats this until etcd confirms it. Drop it only when the work has
/// ended.
///
/// Keeping the guard does not keep the lock: when the lock is lost, its token is cancelled, its deadline is frozen, and
/// the key is deleted at that deadline at the latest. Other tasks of the session still wait until the guard is dropped.
#[must_use = "dropping a guard releases the lock"]
pub struct LockGuard {
    leadership: Leadership,
}

impl LockGuard {
    fn new(leadership: Leadership) -> Self {
        Self { leadership }
    }

    /// Returns a view of the term, for everything that acts under the lock. The view does not hold the lock.
    pub fn term(&self) -> Term {
        self.leadership.term()
    }

    /// Returns `true` if this guard holds the lock as a [reader](Lock::shared).
    pub fn is_shared(&self) -> bool {
        is_shared(self.key())
    }

    /// Releases the lock, and returns once etcd has confirmed that the key is gone.
    ///
    /// With this call, the caller states that the work has ended: validity ends at once. It is not an error if the lock
    /// was lost.
    ///
    /// # Errors
    ///
    /// `Unavailable`: etcd did not confirm within four request timeouts. The deletion is repeated in the background.
    /// `Closed`: the session was closed, which releases its locks.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: the release continues in the background.
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
