//! Implements a semaphore as a queue whose eldest candidates hold the permits, and writes the capacity into the keys.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use super::resource::Resource;
use crate::election::Leadership;
use crate::error::{Error, ErrorKind, Result};
use crate::session::MAX_CAPACITY;
use crate::state::{Roster, Term};

/// A number of permits that the sessions of all nodes share: that many hold one at a time, in the order in which they
/// asked.
///
/// **Guaranteed**: at most [`capacity`](Semaphore::capacity) permits [are valid](Term::is_valid) at a time, on the
/// conditions, and with the exceptions, that hold for a [`Lock`](crate::Lock).
///
/// Each permit is a key of its own, `<namespace>/~semaphore/<name>/<capacity>/<lease id in hex>-<number>`, and those whose
/// keys are the eldest hold. The capacity is part of the key: the transaction that joins the queue refuses another one
/// for as long as anybody holds or awaits a permit ([`ErrorKind::CapacityMismatch`]). To change the capacity of a
/// service, stop all that use the old one, then start those that use the new one. Locks and elections may have the same
/// name; their keys lie elsewhere.
///
/// Waiting costs etcd one watch of all the permits, so every change reaches everybody who holds or awaits one: meant for
/// tens of holders, not for thousands. A semaphore of one permit costs what a lock costs.
///
/// # Tasks of one session
///
/// At most `capacity` tasks of a session hold or await a permit in etcd; the others queue in the session, first come,
/// first served, and join etcd's queue, at the back, when a key of one before them is gone.
///
/// A cheap handle from [`Session::semaphore`](crate::Session::semaphore); clone it freely.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), eldest::BoxError> {
/// # use eldest::{Session, SessionOptions};
/// # let etcd = eldest_testing::Etcd::start().await?;
/// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
/// let uploads = session.semaphore("billing/uploads", 2)?;
/// let first = uploads.acquire().await?;
/// let second = uploads.acquire().await?;
/// assert!(uploads.try_acquire().await?.is_none());
/// first.release().await?;
/// assert!(uploads.try_acquire().await?.is_some());
/// # drop(second);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    resource: Resource,
    capacity: usize,
}

/// Refuses what cannot be a semaphore's capacity.
pub(crate) fn check_capacity(capacity: usize) -> Result<()> {
    if (1..=MAX_CAPACITY).contains(&capacity) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!("the semaphore's capacity is {capacity}; it must be from 1 to {MAX_CAPACITY}"),
    ))
}

impl Semaphore {
    pub(crate) fn new(resource: Resource, capacity: usize) -> Self {
        Self { resource, capacity }
    }

    /// Its name within the session's namespace.
    pub fn name(&self) -> &str {
        &self.resource.name
    }

    /// How many permits there are.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The prefix of its keys, with the final `/`.
    pub fn prefix(&self) -> &str {
        &self.resource.prefix
    }

    /// Waits until this task holds a permit, as [`Lock::acquire`](crate::Lock::acquire) does for a lock.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire), and `CapacityMismatch`: somebody holds or awaits a permit of another
    /// capacity, which the message names. Nothing is left in etcd.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: dropped before it is ready, the place in the queue is given up and the key taken away again in the
    /// background.
    pub async fn acquire(&self) -> Result<Permit> {
        self.resource.acquire().await.map(Permit::new)
    }

    /// As [`Semaphore::acquire`], for so long at most, the wait for other tasks of this session included. `None`: it did
    /// not get one in time. Its place in the queue is given up.
    ///
    /// # Errors
    ///
    /// As [`Semaphore::acquire`].
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe, as [`Semaphore::acquire`].
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<Option<Permit>> {
        let held = self.resource.acquire_timeout(limit).await?;
        Ok(held.map(Permit::new))
    }

    /// Takes a permit if one is free. `None`: none is, and no key was written.
    ///
    /// One transaction if nobody else holds a permit; otherwise its answer tells whether one is free, and a second takes
    /// it unless somebody else came in between, and so on. A permit that was dropped is free when its key is gone: to be
    /// sure that it is, await [`Permit::release`].
    ///
    /// # Errors
    ///
    /// As [`Semaphore::acquire`], and `Unavailable`: etcd did not answer within four request timeouts. What may be left
    /// of the attempt is taken away in the background.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe, as [`Semaphore::acquire`].
    pub async fn try_acquire(&self) -> Result<Option<Permit>> {
        let held = self.resource.try_acquire().await?;
        Ok(held.map(Permit::new))
    }

    /// Whose permits stand, eldest first, by one linearizable read: the first [`capacity`](Semaphore::capacity) of them
    /// are held, the others are waited for.
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

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.name())
            .field("capacity", &self.capacity)
            .field("prefix", &self.prefix())
            .finish_non_exhaustive()
    }
}

/// A permit that is held, for as long as it [is valid](Term::is_valid). Checks and fencing are those of its [`Term`], to
/// which it dereferences: each of its methods means the same here. A later permit has a larger token; but several are held
/// at once, so an outside resource cannot refuse the lower of two tokens: only [`Term::txn`] and [`Term::guard`] fence a
/// permit.
///
/// Dropping it, or a panic that unwinds through it, gives it back at once, in the background, as with a
/// [`LockGuard`](crate::LockGuard). Drop it only when the work has ended. Keeping it does not keep the permit: when it is
/// lost, its key is deleted at the frozen deadline at the latest.
#[must_use = "dropping a permit gives it back"]
pub struct Permit {
    leadership: Leadership,
}

impl Permit {
    fn new(leadership: Leadership) -> Self {
        Self { leadership }
    }

    /// A view to pass to whatever acts under the permit; it does not hold it.
    pub fn term(&self) -> Term {
        self.leadership.term()
    }

    /// Gives the permit back; returns when etcd confirmed that its key is gone.
    ///
    /// The caller says by it that the work has ended: validity ends at once. A permit that was lost is no error.
    ///
    /// # Errors
    ///
    /// `Unavailable`: etcd did not confirm within four request timeouts. The deletion is retried in the background.
    /// `Closed`: the session was closed, which gives its permits back.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: the release goes on in the background.
    pub async fn release(self) -> Result<()> {
        self.leadership.resign().await
    }
}

impl Deref for Permit {
    type Target = Term;

    fn deref(&self) -> &Term {
        &self.leadership
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let term: &Term = self;
        f.debug_tuple("Permit").field(term).finish()
    }
}
