//! Keeps locks for HTTP callers, each for a time after its caller's last sign of life. The node releases a lock only
//! when the caller releases it, or after the time promised to the caller has passed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::contract::{KeptLock, Lock, millis};
use eldest::LockGuard;
use eldest::LostReason;
use eldest::internal::process::Process;
use eldest::internal::{self, Inside, SharedEnv};
use eldest::{Error, Session, Term};
use eldest_core::time::Time;

/// The largest number of kept locks.
const MOST: usize = 1024;

/// All locks that a node keeps for others.
#[derive(Debug, Default)]
pub(super) struct LockTable {
    kept: Mutex<HashMap<String, Arc<Held>>>,
}

/// One lock that is kept for a caller.
pub(super) struct Held {
    pub(super) id: String,
    pub(super) resource: String,
    pub(super) owner: String,
    ttl: Duration,
    env: SharedEnv,
    pub(super) term: Term,
    /// The session whose guard must know each promise. `None` if the guard awaits the end of the process that received
    /// it.
    session: Option<Session>,
    times: Mutex<Times>,
    /// Cancelled when the caller releases the lock.
    given_back: CancellationToken,
    /// True if etcd confirmed that the lock is free; `None` if that is not known yet.
    end: watch::Sender<Option<bool>>,
}

#[derive(Debug)]
struct Times {
    /// The time at which the lock is released unless a sign of life comes first.
    expires: Time,
    /// The time until which the caller may act.
    promised: Time,
    /// True if no time is promised any more.
    over: bool,
}

/// The result of a sign of life.
#[derive(Debug)]
pub(super) enum Sign {
    /// The lock is held, with these data for the caller.
    Held(Lock),
    Lost(Option<LostReason>),
    /// The sign of life came too late.
    Over,
    /// The session's guard does not know the promise, so no more time is promised.
    Unguarded(Error),
}

impl LockTable {
    /// Keeps a lock that was just acquired, for `ttl` after each sign of life, and no longer than `holder` lives.
    pub(super) fn keep(
        self: &Arc<Self>,
        session: &Session,
        guard: LockGuard,
        (resource, owner): (&str, String),
        ttl: Duration,
        holder: Option<Arc<Process>>,
    ) -> Arc<Held> {
        let inside = Inside::from(session);
        let env = inside.env();
        let mut held = Held::new(env, guard.term(), (resource, owner), ttl);
        let guarded = |holder: &Arc<Process>| inside.outlive(holder).is_ok();
        if !holder.as_ref().is_some_and(guarded) {
            held.session = Some(session.clone());
        }
        let held = Arc::new(held);
        self.lock().insert(held.id.clone(), Arc::clone(&held));
        let (lock_table, kept) = (Arc::clone(self), Arc::clone(&held));
        env.spawn(
            async move {
                tokio::select! {
                    () = kept.until_over() => {}
                    () = kept.outlived(holder.as_deref()) => {}
                }
                let confirmed = guard.release().await.is_ok();
                lock_table.lock().remove(&kept.id);
                kept.end.send_replace(Some(confirmed));
            }
            .boxed(),
        );
        held
    }

    pub(super) fn is_full(&self) -> bool {
        self.lock().len() >= MOST
    }

    pub(super) fn find(&self, resource: &str, id: &str) -> Option<Arc<Held>> {
        let held = self.lock().get(id).cloned();
        held.filter(|held| held.resource == resource)
    }

    /// Lists all locks, without the data that only owners may know.
    pub(super) fn list(&self) -> Vec<KeptLock> {
        let kept = self.lock();
        let mut all: Vec<&Arc<Held>> = kept.values().collect();
        all.sort_by_key(|held| held.term.fencing_token());
        let each = all.iter().map(|held| KeptLock {
            resource: held.resource.clone(),
            owner: held.owner.clone(),
            fencing_token: held.term.fencing_token(),
        });
        each.collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Held>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn new(env: &SharedEnv, term: Term, (resource, owner): (&str, String), ttl: Duration) -> Self {
        let now = env.now();
        // The system draws new bits for each lock, so that only the caller that receives the id can release the lock.
        let [high, low] = [env.random(), env.random()];
        Self {
            id: format!("{high:016x}{low:016x}"),
            resource: resource.to_owned(),
            owner,
            ttl,
            env: Arc::clone(env),
            term,
            session: None,
            times: Mutex::new(Times {
                expires: now.after(ttl),
                promised: now,
                over: false,
            }),
            given_back: CancellationToken::new(),
            end: watch::channel(None).0,
        }
    }

    /// Records a sign of life: the caller may act for a while more.
    pub(super) fn sign(&self) -> Sign {
        let mut times = self.lock();
        if times.over || self.given_back.is_cancelled() {
            return Sign::Over;
        }
        let now = self.env.now();
        let until = now.after(self.ttl);
        let promised = until.min(Time::ZERO.after(self.term.valid_until().since_boot()));
        if self.term.lost_reason().is_some() || !self.term.is_valid() {
            return Sign::Lost(self.term.lost_reason());
        }
        // The guard learns the promise before the caller does.
        if let Some(session) = &self.session
            && let Err(error) = Inside::from(session).promise(promised)
        {
            return Sign::Unguarded(error);
        }
        times.expires = times.expires.max(until);
        times.promised = times.promised.max(promised);
        Sign::Held(Lock {
            lock: self.id.clone(),
            resource: self.resource.clone(),
            owner: self.owner.clone(),
            fencing_token: self.term.fencing_token(),
            ttl_ms: millis(self.ttl),
            may_act_for_ms: millis(promised.since(now)),
            may_act_until_boot_ms: millis(promised.since(Time::ZERO)),
        })
    }

    /// Records that the caller's work has ended. Completes when the lock is certainly free, or when that cannot be
    /// confirmed now.
    pub(super) async fn give_back(&self) -> bool {
        let mut end = self.end.subscribe();
        self.given_back.cancel();
        let confirmed = end.wait_for(Option::is_some).await;
        confirmed.is_ok_and(|confirmed| *confirmed == Some(true))
    }

    /// Completes when a caller that keeps its lock by its connection is due for a line.
    pub(super) async fn pause(&self) {
        self.env.sleep(self.ttl / 4).await;
    }

    /// Completes when the lock is released, or must be.
    async fn until_over(&self) {
        let lost = self.term.lost();
        let expired = self.given_back.run_until_cancelled(async {
            tokio::select! {
                () = lost.cancelled() => {}
                () = self.sleep(false) => {}
            }
            if lost.is_cancelled() {
                // The promises still hold unless the key itself was deleted, so the release waits for their end.
                self.sleep(true).await;
            }
        });
        expired.await;
        self.lock().over = true;
    }

    /// Completes when the process to which the lock is bound has ended: nobody can act under the lock any longer. Never,
    /// without such a process.
    async fn outlived(&self, holder: Option<&Process>) {
        let Some(holder) = holder else {
            return std::future::pending().await;
        };
        holder.ended().await;
        self.lock().over = true;
        tracing::info!(
            target: "eldest::http", lock = self.resource, owner = self.owner, pid = holder.number(),
            "the holder of a lock has ended: the lock is released"
        );
    }

    /// Sleeps until the time for a sign of life is over or, if the lock is lost, until the promise has passed.
    async fn sleep(&self, lost: bool) {
        loop {
            let until = {
                let mut times = self.lock();
                let until = if lost {
                    times.promised.min(internal::cutoff(&self.term))
                } else {
                    times.expires
                };
                // The decision and its effect share one locked section, so that no sign of life comes in between.
                if self.env.now() >= until {
                    times.over = true;
                    return;
                }
                until
            };
            self.env.wake_at(until).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Held {
    /// Formats the lock without its id.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held")
            .field("resource", &self.resource)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
