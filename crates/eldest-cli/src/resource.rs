//! Takes a lock, or a permit of a semaphore, for the programs that run under it.

use std::time::Duration;

use eldest::{Lock, LockGuard, Partitions, Permit, Result, Roster, Semaphore, Session, Term};

/// The number of programs that may hold the resource at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// One program.
    Alone,
    /// Any number of programs that share it, and no other beside them.
    Shared,
    /// At most that many programs.
    Permits(usize),
}

/// Returns the name of the lock of the program of that partition.
pub(crate) fn lock_of_partition(partitions: &Partitions, number: u32) -> String {
    let (name, count) = (partitions.name(), partitions.count());
    format!("{name}.partition-{number}-of-{count}")
}

/// A lock or a semaphore.
pub(crate) enum Resource {
    Lock(Lock),
    Semaphore(Semaphore),
}

/// A lock or permit that is held until this value is dropped or the lock is lost.
pub(crate) enum Held {
    Lock(LockGuard),
    Permit(Permit),
}

impl Resource {
    /// Returns a semaphore if a capacity is given, even one of 1: the keys contain the capacity, so a different one is
    /// noticed.
    pub(crate) fn new(session: &Session, name: &str, sharing: Sharing) -> Result<Self> {
        Ok(match sharing {
            Sharing::Alone => Self::Lock(session.lock(name)?),
            Sharing::Shared => Self::Lock(session.lock(name)?.shared()),
            Sharing::Permits(capacity) => Self::Semaphore(session.semaphore(name, capacity)?),
        })
    }

    /// Describes the resource as a part of a sentence.
    pub(crate) fn described(&self) -> String {
        match self {
            Self::Lock(lock) if lock.is_shared() => format!("the shared lock {:?}", lock.name()),
            Self::Lock(lock) => format!("the lock {:?}", lock.name()),
            Self::Semaphore(semaphore) => {
                let (name, capacity) = (semaphore.name(), semaphore.capacity());
                format!("a permit of {name:?} (capacity {capacity})")
            }
        }
    }

    /// Returns its holders and waiters.
    pub(crate) async fn roster(&self) -> Result<Roster> {
        match self {
            Self::Lock(lock) => lock.roster().await,
            Self::Semaphore(semaphore) => semaphore.roster().await,
        }
    }

    pub(crate) async fn acquire(&self) -> Result<Held> {
        match self {
            Self::Lock(lock) => lock.acquire().await.map(Held::Lock),
            Self::Semaphore(semaphore) => semaphore.acquire().await.map(Held::Permit),
        }
    }

    /// Returns `None` if the resource was not free within the limit. Without a limit it waits as long as it takes; with
    /// zero, not at all.
    pub(crate) async fn acquire_within(&self, limit: Option<Duration>) -> Result<Option<Held>> {
        match (self, limit) {
            (_, None) => self.acquire().await.map(Some),
            (Self::Lock(lock), Some(Duration::ZERO)) => {
                Ok(lock.try_acquire().await?.map(Held::Lock))
            }
            (Self::Lock(lock), Some(limit)) => {
                Ok(lock.acquire_timeout(limit).await?.map(Held::Lock))
            }
            (Self::Semaphore(semaphore), Some(Duration::ZERO)) => {
                Ok(semaphore.try_acquire().await?.map(Held::Permit))
            }
            (Self::Semaphore(semaphore), Some(limit)) => {
                Ok(semaphore.acquire_timeout(limit).await?.map(Held::Permit))
            }
        }
    }
}

impl Held {
    pub(crate) fn term(&self) -> Term {
        match self {
            Self::Lock(guard) => guard.term(),
            Self::Permit(permit) => permit.term(),
        }
    }
}
