//! Acquires a lock or a permit for a task: the task waits for its turn within the session, then in etcd's queue.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::election::{Candidate, Leadership, Opening};
use crate::error::{Error, ErrorKind, Result};
use crate::session::{Handle, LOCK_TURNS, Use, check_name};
use crate::state::Roster;
use eldest_core::candidate::{CandidateConfig, Permit, WatchScope};
use eldest_core::kv::Reach;
use eldest_etcd::runtime::timeout;

/// A lock or a semaphore of the session. In the words of the core, its holder leads.
#[derive(Clone)]
pub(crate) struct Resource {
    handle: Handle,
    pub(crate) name: Arc<str>,
    pub(crate) prefix: Arc<str>,
    /// The number of the session's tasks that may wait in etcd or hold; the others wait in order, without a key. For a
    /// lock, see [`LOCK_TURNS`].
    turns: Arc<Semaphore>,
    /// How many of the turns a task takes.
    takes: u32,
    /// True for a reader of a lock, which holds it together with other readers.
    shared: bool,
    /// A semaphore's capacity, and the prefix of the keys of all capacities.
    permits: Option<(usize, Arc<[u8]>)>,
}

impl Resource {
    pub(crate) fn new(handle: Handle, name: &str, what: Use) -> Result<Self> {
        check_name(name)?;
        let shared = &handle.shared;
        let (name, turns) = shared.names.register(name, what)?;
        let all = shared.settings.prefix(&what.path(&name));
        let (prefix, permits) = match what {
            Use::Semaphore { capacity } => (
                format!("{all}{capacity}/"),
                Some((capacity, all.into_bytes().into())),
            ),
            Use::Lock | Use::Election | Use::Partitions { .. } | Use::Group => (all, None),
        };
        let takes = match what {
            Use::Lock => LOCK_TURNS,
            _ => 1,
        };
        Ok(Self {
            handle,
            name,
            prefix: prefix.into(),
            turns,
            takes,
            shared: false,
            permits,
        })
    }

    /// Returns the same lock for readers, which hold it together.
    pub(crate) fn shared(&self) -> Self {
        Self {
            takes: 1,
            shared: true,
            ..self.clone()
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    pub(crate) async fn acquire(&self) -> Result<Leadership> {
        let turn = Arc::clone(&self.turns).acquire_many_owned(self.takes).await;
        let turn = turn.map_err(|_| Error::closed())?;
        self.elected(turn, false).await
    }

    /// Returns `None` if the lock or permit was not acquired in time. Fails if etcd had its usual time to answer, and has not
    /// confirmed a place in the queue: then nobody knows whether others hold it.
    pub(crate) async fn acquire_timeout(&self, limit: Duration) -> Result<Option<Leadership>> {
        let (env, patience) = (&*self.handle.shared.env, self.handle.patience());
        let end = env.now().after(limit);
        let turn = Arc::clone(&self.turns).acquire_many_owned(self.takes);
        let Some(turn) = timeout(env, limit, turn).await else {
            return Ok(None);
        };
        let turn = turn.map_err(|_| Error::closed())?;
        let left = end.since(env.now());
        let mut candidate = match timeout(env, left, self.join(turn, false)).await {
            Some(joined) => joined?,
            None if left < patience => return Ok(None),
            None => return Err(unanswered(limit)),
        };
        let left = end.since(env.now());
        timeout(env, left, candidate.elected()).await.transpose()
    }

    /// Returns `None` if others hold or await the lock or permit.
    pub(crate) async fn try_acquire(&self) -> Result<Option<Leadership>> {
        let Ok(turn) = Arc::clone(&self.turns).try_acquire_many_owned(self.takes) else {
            return Ok(None);
        };
        // Waiting for the guard has a time limit and an error of its own.
        self.handle.guarded(self.prefix.as_bytes()).await?;
        let (env, patience) = (&*self.handle.shared.env, self.handle.patience());
        match timeout(env, patience, self.elected(turn, true)).await {
            Some(Err(error)) if error.kind() == ErrorKind::Ended => Ok(None),
            Some(result) => result.map(Some),
            None => Err(unanswered(patience)),
        }
    }

    /// Waits for the election. The candidate leaves if this call is dropped, and after it has returned: a lock that was
    /// held once is not acquired again.
    ///
    /// A reader returns its turn when its key is in etcd: the tasks after it may join etcd's queue then, but not
    /// before.
    async fn elected(&self, turn: OwnedSemaphorePermit, at_once: bool) -> Result<Leadership> {
        self.join(turn, at_once).await?.elected().await
    }

    /// Waits until the candidate's key is in etcd.
    async fn join(&self, mut turn: OwnedSemaphorePermit, at_once: bool) -> Result<Candidate> {
        let joining = self.shared.then(|| turn.split(self.takes as usize));
        let config = |number| CandidateConfig {
            watch_scope: match self.permits {
                Some((2.., _)) => WatchScope::Everyone,
                _ => WatchScope::Predecessor,
            },
            persistent: false,
            at_once,
            permit: self.permits.as_ref().map(|(capacity, family)| Permit {
                capacity: *capacity,
                family: Arc::clone(family),
                number,
            }),
            shared: self.shared.then_some(number),
            lock: self.permits.is_none(),
            ..CandidateConfig::default()
        };
        let (name, prefix) = (Arc::clone(&self.name), self.prefix.as_bytes().into());
        let candidate = Candidate::join(
            &self.handle,
            name,
            prefix,
            Some(turn),
            None,
            Opening::default(),
            config,
        )
        .await?;
        drop(joining);
        Ok(candidate)
    }

    pub(crate) async fn roster(&self) -> Result<Roster> {
        self.handle
            .shared
            .roster(self.prefix.as_bytes(), Reach::Children)
            .await
    }
}

fn unanswered(time: Duration) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("etcd did not answer within {time:?}; the attempt was given up"),
    )
}
