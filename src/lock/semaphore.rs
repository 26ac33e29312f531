//! Implements a semaphore as a queue whose eldest candidates hold the permits, and writes the capacity into the keys.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use super::resource::Resource;
use crate::election::Leadership;
use crate::error::{Error, ErrorKind, Result};
use crate::session::MAX_CAPACITY;
use crate::state::{Roster, Term};

/// A fixed number of permits that the sessions of all nodes share. Up to [`capacity`](Semaphore::capacity) of them are
/// held at a time, in the order in which they were requested.
///
/// **Guaranteed**: at most [`capacity`](Semaphore::capacity) permits [are valid](Term::is_valid) at a time, under the
/// same conditions, and with the same exceptions, as for a [`Lock`](crate::Lock).
///
/// Each permit has its own key, `<namespace>/~semaphore/<name>/<capacity>/<lease id in hex>-<number>`, and the eldest
/// keys hold the permits. The capacity is part of the key. The transaction that joins the queue refuses another
/// capacity while any session holds or awaits a permit ([`ErrorKind::CapacityMismatch`]). To change the capacity of a
/// service, stop all users of the old one, then start those of the new one. Locks and elections may have the same name;
/// their keys have other prefixes.
///
/// Waiting costs etcd one watch of all the permits, so every change reaches all sessions that hold or await one.
/// Semaphores are meant for tens of holders, not for thousands. A semaphore with one permit costs the same as a lock.
///
/// # Tasks of one session
///
/// At most `capacity` tasks of a session hold or await a permit in etcd. The others queue in the session, first come,
/// first served, and join etcd's queue, at the end, when a key of a task before them is gone.
///
/// A semaphore is a cheap handle from [`Session::semaphore`](crate::Session::semaphore); clone it freely.
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

/// Refuses a capacity that is out of bounds.
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

    /// Returns the semaphore's name within the session's namespace.
    pub fn name(&self) -> &str {
        &self.resource.name
    }

    /// Returns the number of permits.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the prefix of the semaphore's keys, with the final `/`.
    pub fn prefix(&self) -> &str {
        &self.resource.prefix
    }

    /// Waits until this task holds a permit, as [`Lock::acquire`](crate::Lock::acquire) does for a lock.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire), and `CapacityMismatch`: another session holds or awaits a permit
    /// under another capacity, which the message names. After an error, nothing is left in etcd.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: if the call is dropped before it completes, the place in the queue is given up and the key is
    /// deleted in the background.
    pub async fn acquire(&self) -> Result<Permit> {
        self.resource.acquire().await.map(Permit::new)
    }

    /// Waits as [`Semaphore::acquire`] does, but for `limit` at most, including the wait for other tasks of this
    /// session. Returns `None` if no permit became free in time; its place in the queue is given up.
    ///
    /// # Errors
    ///
    /// As [`Semaphore::acquire`], and `Unavailable`: etcd had four request timeouts, and did not answer whether it is free.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe, as [`Semaphore::acquire`].
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<Option<Permit>> {
        let held = self.resource.acquire_timeout(limit).await?;
        Ok(held.map(Permit::new))
    }

    /// Takes a permit if one is free. Returns `None`, without writing a key, if none is free.
    ///
    /// If no permit is held, this takes one transaction. Otherwise the first answer shows whether a permit is free, and
    /// a second transaction takes it; both repeat while others are faster. A permit that was dropped is free when its
    /// key is gone: await [`Permit::release`] to be sure that it is gone.
    ///
    /// # Errors
    ///
    /// As [`Semaphore::acquire`], and `Unavailable`: etcd did not answer within four request timeouts. A key that the
    /// attempt may have left is deleted in the background.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe, as [`Semaphore::acquire`].
    pub async fn try_acquire(&self) -> Result<Option<Permit>> {
        let held = self.resource.try_acquire().await?;
        Ok(held.map(Permit::new))
    }

    /// Reads all permits, eldest first, by one linearizable read. The first [`capacity`](Semaphore::capacity) of them
    /// are held, and the others wait.
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

/// Holds a permit for as long as it [is valid](Term::is_valid). It dereferences to its [`Term`], which has the checks
/// and the fencing.
///
/// A later permit has a larger token. But several are held at once, so an outside resource cannot refuse the lower of
/// two tokens: only [`Term::txn`] and [`Term::fence`] fence a permit.
///
/// Dropping a permit, or a panic that unwinds through it, releases it at once, in the background, as with a
/// [`LockGuard`](crate::LockGuard). Drop it only when the work has ended. Keeping the value does not keep the permit:
/// when the permit is lost, its key is deleted at the frozen deadline at the latest.
#[must_use = "dropping a permit gives it back"]
pub struct Permit {
    leadership: Leadership,
}

impl Permit {
    fn new(leadership: Leadership) -> Self {
        Self { leadership }
    }

    /// Returns a view of the term, for everything that acts under the permit. The view does not hold the permit.
    pub fn term(&self) -> Term {
        self.leadership.term()
    }

    /// Releases the permit, and returns once etcd has confirmed that its key is gone.
    ///
    /// With this call, the caller states that the work has ended: validity ends at once. It is not an error if the
    /// permit was lost.
    ///
    /// # Errors
    ///
    /// `Unavailable`: etcd did not confirm within four request timeouts. The deletion is repeated in the background.
    /// `Closed`: the session was closed, which releases its permits.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: the release continues in the background.
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
