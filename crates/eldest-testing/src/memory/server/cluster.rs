//! Models the agreement of the members: elections, the revision that each has applied, the expiry of leases, and
//! faults.
//!
//! This is a model, not raft: the members share one store, and a member that is behind sees it at an older revision.
//! Exchanges between members send no messages over the network, but take a randomly drawn time. Only members that reach
//! each other take part in them.

mod faults;
mod requests;
mod state;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eldest_store::{Event, Keys};

use crate::memory::server::changes::Changes;
use state::State;

/// The options of a cluster.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The number of members.
    pub members: usize,
    /// How long a member without news of a leader waits before it takes part in an election.
    pub election_timeout: Duration,
    /// The shortest and the longest time of a message between members.
    pub latency: (Duration, Duration),
    /// How long a replaced leader may act as one, counted while it runs.
    pub stale: Duration,
    /// The seed of all random choices.
    pub seed: u64,
}

impl Default for ClusterOptions {
    /// Returns the options of one member, as a default etcd has them.
    fn default() -> Self {
        ClusterOptions {
            members: 1,
            election_timeout: Duration::from_secs(1),
            latency: (Duration::ZERO, Duration::ZERO),
            stale: Duration::from_secs(2),
            seed: 0,
        }
    }
}

/// A cluster of one or more members. Clones are handles to the same cluster.
#[derive(Clone)]
pub struct Cluster {
    clock: Arc<dyn Fn() -> Duration + Send + Sync>,
    state: Arc<Mutex<State>>,
    changed: Changes,
    options: Arc<ClusterOptions>,
}

/// Counts of a cluster's life, for tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// How often a leader was elected.
    pub elections: u64,
    /// Renewals that a member acknowledged after it had ceased to be the leader.
    pub stale_renewals: u64,
    /// Leases revoked because they had expired.
    pub expired: u64,
    /// Leases revoked by a leader that considered them expired when it continued after a stop.
    pub revoked_early: u64,
    /// Answers that were lost after the request had been applied.
    pub answers_lost: u64,
}

/// A change of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Vec<u8>,
    /// The value, create revision and lease now; `None` if the key was deleted.
    pub now: Option<(Vec<u8>, i64, i64)>,
}

impl Change {
    fn of(event: &Event) -> Self {
        let now = match event {
            Event::Put(kv) => Some((kv.value.to_vec(), kv.create_revision, kv.lease)),
            Event::Delete { .. } => None,
        };
        let key = event.key().to_vec();
        Change { key, now }
    }
}

impl Cluster {
    /// Makes a cluster whose members are all up and reach each other, and whose first member leads. All share `clock`.
    ///
    /// # Panics
    ///
    /// Without any member.
    pub fn new(
        options: ClusterOptions,
        clock: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Self {
        assert!(options.members > 0, "a cluster without members");
        let now = clock();
        let state = State::new(now, &options);
        Cluster {
            clock: Arc::new(clock),
            state: Arc::new(Mutex::new(state)),
            changed: Changes::default(),
            options: Arc::new(options),
        }
    }

    /// Returns the member that leads, if there is one.
    pub fn leader(&self) -> Option<usize> {
        self.with(|state| state.leader)
    }

    /// Returns true if a member takes itself for the leader, and is not.
    pub fn any_deposed(&self) -> bool {
        self.with(|state| state.members.iter().any(|member| member.deposed.is_some()))
    }

    /// Returns the counts so far.
    pub fn tally(&self) -> Tally {
        self.with(|state| state.tally)
    }

    /// Returns the revision of the agreed state.
    pub fn revision(&self) -> i64 {
        self.with(|state| state.store.revision())
    }

    /// Returns the keys below a prefix: path, value, create revision and lease, oldest first.
    pub fn keys(&self, prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>, i64, i64)> {
        self.with(|state| {
            let store = &state.store;
            let below = store.select(&Keys::below(&prefix.into()), store.revision());
            let mut keys: Vec<_> = below
                .map(|kv| {
                    let (key, value) = (kv.key.to_vec(), kv.value.to_vec());
                    (key, value, kv.create_revision, kv.lease)
                })
                .collect();
            keys.sort_by_key(|(_, _, created, _)| *created);
            keys
        })
    }

    /// Returns the changes since the last call, each with its revision and its time.
    pub fn changes_since(&self) -> Vec<(i64, Duration, Change)> {
        self.with(|state| {
            let mut changes = Vec::new();
            for (revision, at) in std::mem::take(&mut state.times) {
                state.reported = revision;
                for (_, events) in state.store.changes(revision - 1, revision) {
                    let all = events.iter().map(Change::of);
                    changes.extend(all.map(|change| (revision, at, change)));
                }
            }
            changes
        })
    }

    /// Returns the number of leases.
    pub fn leases(&self) -> usize {
        self.with(|state| state.store.leases().len())
    }

    /// Returns the keys whose leases were revoked early, with the create revision and the time. Each is reported once.
    pub fn removed_early(&self) -> Vec<(i64, Duration)> {
        self.with(|state| std::mem::take(&mut state.removed_early))
    }

    fn now(&self) -> Duration {
        (self.clock)()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only the tests themselves panic while they hold the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads or changes the present state, and notifies the waiting tasks.
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let now = self.now();
        let (done, changed) = {
            let mut state = self.lock();
            let before = state.mark();
            state.advance(now, &self.options);
            let done = act(&mut state);
            state.advance(now, &self.options);
            let newest = state.store.revision();
            let known = state
                .times
                .last()
                .map_or(state.reported, |(known, _)| *known);
            state
                .times
                .extend((known + 1..=newest).map(|revision| (revision, now)));
            (done, state.mark() != before)
        };
        if changed {
            self.changed.notify();
        }
        done
    }

    /// Advances the cluster's time. One such task runs for each member that is up.
    pub(crate) async fn beat(self) {
        let mut changed = self.changed.subscribe();
        loop {
            let next = self.with(|state| state.due(&self.options));
            let wait = next
                .saturating_sub(self.now())
                .max(Duration::from_millis(1));
            tokio::select! {
                biased;
                () = changed.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
