//! Acquires several locks for one task: all of them, or none.

use std::fmt;
use std::time::Duration;

use futures::future::{join_all, select_all};

use super::{Lock, LockGuard};
use crate::error::{Error, ErrorKind, Result};
use crate::session::{Handle, Session};
use crate::state::Term;
use eldest_etcd::runtime::timeout;
use eldest_etcd::{Op, TxnOutcome};

/// Several locks that a task acquires together: all of them, or none.
///
/// Tasks wait for the locks of a set one after another, in the order of their names. Therefore sets never wait for each
/// other in a circle, whatever the order of the names in [`Session::lock_all`]. A task that holds a lock of its own and
/// then acquires a set, or a second set, has no such protection: put all names into one set.
///
/// The session's key in each queue is that of [`Lock`], so sets, single locks and `etcdctl lock` wait for each other.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), eldest::BoxError> {
/// # use eldest::{Session, SessionOptions};
/// # let etcd = eldest_testing::Etcd::start().await?;
/// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
/// use eldest::Op;
///
/// let accounts = session.lock_all(["accounts/17", "accounts/4"])?;
/// let guard = accounts.acquire().await?;
/// guard.txn([Op::put("balance/17", "90"), Op::put("balance/4", "110")]).await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LockSet {
    handle: Handle,
    /// By name.
    locks: Vec<Lock>,
}

impl Session {
    /// Returns the locks with those names, as a set. Sends nothing.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: there is no name, or one twice, or [`Session::lock`] would refuse one.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Result<LockSet> {
        let locks: Result<Vec<Lock>> = names.into_iter().map(|name| self.lock(name)).collect();
        let mut locks = locks?;
        locks.sort_by(|a, b| a.name().cmp(b.name()));
        let invalid = |why: String| Err(Error::new(ErrorKind::InvalidInput, why));
        if locks.is_empty() {
            return invalid("a set of locks needs at least one name".to_owned());
        }
        if let Some(twice) = locks.windows(2).find(|two| two[0].name() == two[1].name()) {
            let name = twice[0].name();
            return invalid(format!(
                "the set of locks has {name:?} twice; name each lock once"
            ));
        }
        let handle = self.handle().clone();
        Ok(LockSet { handle, locks })
    }
}

impl LockSet {
    /// Returns the locks, by name.
    pub fn locks(&self) -> &[Lock] {
        &self.locks
    }

    /// Waits until this task holds every lock, and returns their guard.
    ///
    /// If all are free, one transaction takes them, as far as etcd's limits allow. Otherwise the task waits for one after
    /// another, and keeps what it holds meanwhile: while it waits in one long queue, nobody else has the earlier locks of
    /// its set. If one of them is lost during the wait, it drops the others and begins again. When the call
    /// returns, every lock has just been checked to be valid.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`]. After an error, no lock is held; the keys of locks that were held before are deleted in
    /// the background.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: if the call is dropped before it completes, all places and locks are given up, in the background.
    pub async fn acquire(&self) -> Result<LockSetGuard> {
        match self.try_acquire().await {
            Ok(Some(guard)) => return Ok(guard),
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Unavailable => {}
            Err(error) => return Err(error),
        }
        self.in_turn().await
    }

    /// Waits as [`LockSet::acquire`] does, but for `limit` at most. Returns `None` if it does not hold every lock in
    /// time; it holds none then.
    ///
    /// # Errors
    ///
    /// As [`LockSet::acquire`], and `Unavailable`: etcd had four request timeouts, and did not answer whether they are free.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe, as [`LockSet::acquire`].
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<Option<LockSetGuard>> {
        let env = &*self.handle.shared.env;
        let end = env.now().after(limit);
        let silence = match timeout(env, limit, self.try_acquire()).await {
            None => return Ok(None),
            Some(Ok(None)) => None,
            Some(Err(error)) if error.kind() == ErrorKind::Unavailable => Some(error),
            Some(tried) => return tried,
        };
        let left = end.since(env.now());
        match timeout(env, left, self.in_turn()).await {
            Some(guard) => guard.map(Some),
            None => silence.map_or(Ok(None), Err),
        }
    }

    /// Takes every lock if none has a holder or a waiter. Otherwise returns `None`, and holds none.
    ///
    /// The session asks for all locks at once. If one is taken, it has released the free ones when the call returns, so
    /// another task may have found them held for a moment.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire`]. After an error, no lock is held.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe, as [`LockSet::acquire`].
    pub async fn try_acquire(&self) -> Result<Option<LockSetGuard>> {
        let tried = join_all(self.locks.iter().map(Lock::try_acquire)).await;
        let wanted = tried.len();
        let (mut guards, mut failure) = (Vec::with_capacity(wanted), None);
        for one in tried {
            match one {
                Ok(guard) => guards.extend(guard),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        let guard = LockSetGuard { guards };
        if guard.guards.len() == wanted && guard.is_valid() {
            return Ok(Some(guard));
        }
        // A deletion that is not confirmed yet is repeated in the background.
        let _ = guard.release().await;
        failure.map_or(Ok(None), Err)
    }

    /// Waits for one lock after another until it holds them all.
    async fn in_turn(&self) -> Result<LockSetGuard> {
        loop {
            if let Some(guard) = self.one_by_one().await? {
                return Ok(guard);
            }
        }
    }

    /// Waits for one lock after another. Returns `None` if one was lost meanwhile.
    async fn one_by_one(&self) -> Result<Option<LockSetGuard>> {
        let mut held = LockSetGuard {
            guards: Vec::with_capacity(self.locks.len()),
        };
        for lock in &self.locks {
            tokio::select! {
                biased;
                () = held.first_lost() => return Ok(None),
                guard = lock.acquire() => held.guards.push(guard?),
            }
        }
        Ok(held.is_valid().then_some(held))
    }
}

impl fmt::Debug for LockSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockSet").field(&self.locks).finish()
    }
}

/// Holds every lock of a [`LockSet`] for as long as [all are valid](LockSetGuard::is_valid).
///
/// Dropping it releases the locks as dropping each [`LockGuard`] does. Drop it only when the work has ended.
#[must_use = "dropping a guard releases the locks"]
pub struct LockSetGuard {
    /// By name.
    guards: Vec<LockGuard>,
}

impl LockSetGuard {
    /// Returns the guard of each lock, by name: each has a [fencing token](Term::fencing_token) of its own.
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// Returns `true` while every lock [is valid](Term::is_valid).
    pub fn is_valid(&self) -> bool {
        self.guards.iter().all(|guard| guard.is_valid())
    }

    /// Waits until the first of the locks [is lost](Term::lost).
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it only waits.
    pub async fn first_lost(&self) {
        let lost = self
            .guards
            .iter()
            .map(|guard| Box::pin(guard.lost().cancelled_owned()));
        let lost: Vec<_> = lost.collect();
        if lost.is_empty() {
            return std::future::pending().await;
        }
        select_all(lost).await;
    }

    /// Applies `operations` in one etcd transaction, on condition that the keys of all locks still exist.
    ///
    /// # Errors
    ///
    /// As [`Term::txn`].
    ///
    /// # Cancellation safety
    ///
    /// As [`Term::txn`]: not cancel safe.
    pub async fn txn(&self, operations: impl Into<Vec<Op>>) -> Result<TxnOutcome> {
        let terms: Vec<&Term> = self.guards.iter().map(|guard| &**guard).collect();
        Term::txn_under(&terms, operations.into()).await
    }

    /// Releases all locks, and returns once etcd has confirmed that their keys are gone.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::release`]; all locks are released, whichever failed.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: the release continues in the background.
    pub async fn release(self) -> Result<()> {
        let released = join_all(self.guards.into_iter().map(LockGuard::release)).await;
        released.into_iter().collect()
    }
}

impl fmt::Debug for LockSetGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockSetGuard").field(&self.guards).finish()
    }
}
