//! Models the agreement of the members: elections, the revision that each has applied, the expiry of leases, and
//! faults.
//!
//! This is a model, not raft: the members share one store, and a member that is behind sees it at an older revision.
//! Exchanges between members send no messages over the network, but take a randomly drawn time. Only members that hear
//! each other take part in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::watch;
use tonic::Status;

use super::errors;
use super::store::{Lease, Store};
use crate::proto::{Event, EventType, Header};

/// How often etcd looks for leases that have expired.
const EXPIRY: Duration = Duration::from_millis(500);
/// At most so many leases are revoked at a look.
const REVOKED_AT_ONCE: usize = 500;
/// What etcd waits for its own members before it gives a request up, besides two election timeouts.
const PATIENCE: Duration = Duration::from_secs(5);
/// A member that hears of no leader for so many election timeouts ends the streams that require one.
const NO_LEADER: u32 = 3;
/// Longest lease that etcd grants.
const LONGEST_LEASE: i64 = 9_000_000_000;

/// How a cluster is made.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// How many members it has.
    pub members: usize,
    /// How long a member hears nothing of a leader before it stands for election.
    pub election_timeout: Duration,
    /// What a message from member to member takes: at least and at most.
    pub latency: (Duration, Duration),
    /// How long at the most a leader that another has replaced goes on as one, counted from when it runs.
    pub stale: Duration,
    /// Of what is drawn.
    pub seed: u64,
}

impl Default for ClusterOptions {
    /// One member, as a default etcd has it.
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

/// An etcd of one or more members. Clones are handles to the same.
#[derive(Clone)]
pub struct Cluster {
    clock: Arc<dyn Fn() -> Duration + Send + Sync>,
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
    options: Arc<ClusterOptions>,
}

/// What a test may want to know of a cluster's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// How often a leader was elected.
    pub elections: u64,
    /// Renewals that a member acknowledged which was not the leader any more.
    pub stale_renewals: u64,
    /// Leases revoked because they had expired.
    pub expired: u64,
    /// Leases revoked by a leader that took them for expired when it went on.
    pub revoked_early: u64,
    /// Answers that were lost after the request had been applied.
    pub answers_lost: u64,
}

/// What happened to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Vec<u8>,
    /// Its value, create revision and lease now; nothing if it was deleted.
    pub now: Option<(Vec<u8>, i64, i64)>,
}

impl Change {
    fn of(event: &Event) -> Option<Self> {
        let kv = event.kv.as_ref()?;
        let deleted = event.r#type == EventType::Delete as i32;
        Some(Change {
            key: kv.key.clone(),
            now: (!deleted).then(|| (kv.value.clone(), kv.create_revision, kv.lease)),
        })
    }
}

struct State {
    /// When it was last moved on.
    now: Duration,
    store: Store,
    rng: Rng,
    term: u64,
    leader: Option<usize>,
    /// When the leader was last heard by a majority.
    leader_well: Duration,
    /// When a majority that hears no leader elects one.
    election_at: Option<Duration>,
    /// When each lease expires by the leader's countdown.
    expiry: BTreeMap<i64, Duration>,
    expiry_at: Duration,
    members: Vec<Member>,
    cut: BTreeSet<(usize, usize)>,
    no_space: bool,
    lose_answers: f64,
    tally: Tally,
    removed_early: Vec<(i64, Duration)>,
    /// When each revision was agreed on, until it is told.
    times: Vec<(i64, Duration)>,
    told: i64,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
struct Member {
    up: bool,
    frozen: bool,
    stalled_watches: bool,
    applied: i64,
    /// When it will have caught up.
    catches_up: Option<Duration>,
    term: u64,
    /// When it last heard of a leader.
    heard: Duration,
    /// It leads no more, and does not know.
    deposed: Option<Deposed>,
    /// Whether it revokes what it takes for expired when it goes on after a stop.
    revokes_on_thaw: bool,
}

#[derive(PartialEq)]
struct Mark {
    revision: i64,
    term: u64,
    leader: Option<usize>,
    members: Vec<(i64, bool, bool, bool)>,
}

/// What a leader that is none any more goes by.
struct Deposed {
    /// When it learns of it; not before it goes on, if it is stopped.
    until: Duration,
    leases: BTreeMap<i64, Lease>,
    expiry: BTreeMap<i64, Duration>,
}

/// What a member said of a lease.
pub(crate) struct Told {
    pub(crate) left: Duration,
    pub(crate) granted: i64,
    pub(crate) keys: Vec<Vec<u8>>,
}

impl Cluster {
    /// All members are up and hear each other, and the first leads. `clock` is one for all of them.
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
        let member = || Member {
            up: true,
            frozen: false,
            stalled_watches: false,
            applied: 1,
            catches_up: None,
            term: 2,
            heard: now,
            deposed: None,
            revokes_on_thaw: false,
        };
        let state = State {
            now,
            store: Store::default(),
            rng: Rng::with_seed(options.seed),
            term: 2,
            leader: Some(0),
            leader_well: now,
            election_at: None,
            expiry: BTreeMap::new(),
            expiry_at: now,
            members: (0..options.members).map(|_| member()).collect(),
            cut: BTreeSet::new(),
            no_space: false,
            lose_answers: 0.0,
            tally: Tally::default(),
            removed_early: Vec::new(),
            times: Vec::new(),
            told: 1,
        };
        Cluster {
            clock: Arc::new(clock),
            state: Arc::new(Mutex::new(state)),
            changed: watch::Sender::new(0),
            options: Arc::new(options),
        }
    }

    /// The member's process is dead.
    pub fn kill(&self, member: usize) {
        self.with(|state| {
            // It begins as a follower when it runs again.
            state.leader.take_if(|leader| *leader == member);
            let member = &mut state.members[member];
            member.up = false;
            member.frozen = false;
            member.deposed = None;
            member.catches_up = None;
        });
    }

    /// The member's process runs again, with what it had applied.
    pub fn boot(&self, member: usize) {
        let now = self.now();
        self.with(|state| {
            let member = &mut state.members[member];
            member.up = true;
            member.heard = now;
        });
    }

    /// Stops the member's process: it answers nothing and hears nothing.
    pub fn freeze(&self, member: usize) {
        self.with(|state| state.members[member].frozen = true);
    }

    /// Lets it go on. `revokes`: what it takes for expired by then it proposes to revoke, and is listened to, as was
    /// seen of real etcds now and then.
    pub fn thaw(&self, member: usize, revokes: bool) {
        let now = self.now();
        self.with(|state| {
            let within = state.draw(Duration::ZERO, self.options.stale);
            let member = &mut state.members[member];
            member.frozen = false;
            member.revokes_on_thaw = revokes;
            if let Some(deposed) = &mut member.deposed {
                deposed.until = now + within;
            }
        });
    }

    /// Every leader that was replaced learns of it now.
    pub fn learn(&self) {
        let now = self.now();
        self.with(|state| {
            for member in &mut state.members {
                if let Some(deposed) = &mut member.deposed {
                    deposed.until = deposed.until.min(now);
                }
            }
        });
    }

    /// Both do not hear each other; clients are not concerned.
    pub fn cut(&self, one: usize, other: usize) {
        self.with(|state| state.cut.insert(pair(one, other)));
    }

    /// All members hear each other again.
    pub fn join(&self) {
        self.with(|state| state.cut.clear());
    }

    /// Watches through that member are told nothing, while everything else goes on.
    pub fn stall_watches(&self, member: usize, stalled: bool) {
        self.with(|state| state.members[member].stalled_watches = stalled);
    }

    /// Nothing more may be written.
    pub fn no_space(&self, full: bool) {
        self.with(|state| state.no_space = full);
    }

    /// With that probability what was written is answered as if it had timed out.
    pub fn lose_answers(&self, probability: f64) {
        self.with(|state| state.lose_answers = probability);
    }

    /// Forgets all but the last so many revisions.
    pub fn compact(&self, keep: i64) {
        self.with(|state| {
            let revision = state.store.revision() - keep;
            if revision > state.store.compacted() {
                // It lies between both, so it is not refused.
                let _ = state.store.compact(revision);
            }
        });
    }

    /// Revokes a lease as an operator would.
    pub fn revoke(&self, lease: i64) {
        self.with(|state| {
            state.expiry.remove(&lease);
            // Nothing to revoke is fine.
            let _ = state.store.revoke(lease);
            state.committed();
        });
    }

    /// The member that leads, if any does.
    pub fn leader(&self) -> Option<usize> {
        self.with(|state| state.leader)
    }

    /// Whether a member takes itself for the leader, and is not.
    pub fn any_deposed(&self) -> bool {
        self.with(|state| state.members.iter().any(|member| member.deposed.is_some()))
    }

    /// What has happened.
    pub fn tally(&self) -> Tally {
        self.with(|state| state.tally)
    }

    /// The revision of what is agreed on.
    pub fn revision(&self) -> i64 {
        self.with(|state| state.store.revision())
    }

    /// The keys below a prefix: path, value, create revision and lease, oldest first.
    pub fn keys(&self, prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>, i64, i64)> {
        self.with(|state| {
            let request = crate::proto::RangeRequest {
                key: prefix.to_vec(),
                range_end: vec![0],
                ..Default::default()
            };
            let Ok(found) = state.store.range(&request, state.store.revision()) else {
                return Vec::new();
            };
            let mut keys: Vec<_> = found
                .kvs
                .into_iter()
                .filter(|kv| kv.key.starts_with(prefix))
                .map(|kv| (kv.key, kv.value, kv.create_revision, kv.lease))
                .collect();
            keys.sort_by_key(|(_, _, created, _)| *created);
            keys
        })
    }

    /// What changed since the last call, each with its revision and its time.
    pub fn changes_since(&self) -> Vec<(i64, Duration, Change)> {
        self.with(|state| {
            let mut changes = Vec::new();
            for (revision, at) in std::mem::take(&mut state.times) {
                state.told = revision;
                for (_, events) in state.store.changes(revision - 1, revision) {
                    let all = events.iter().filter_map(Change::of);
                    changes.extend(all.map(|change| (revision, at, change)));
                }
            }
            changes
        })
    }

    /// How many leases there are.
    pub fn leases(&self) -> usize {
        self.with(|state| state.store.leases().len())
    }

    /// Keys whose leases were revoked early: create revision, and when. Each is told once.
    pub fn removed_early(&self) -> Vec<(i64, Duration)> {
        self.with(|state| std::mem::take(&mut state.removed_early))
    }

    fn now(&self) -> Duration {
        (self.clock)()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held but the tests themselves.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at, or changes, the state as it is now, and tells those who wait.
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let now = self.now();
        let (done, told) = {
            let mut state = self.lock();
            let before = state.mark();
            state.advance(now, &self.options);
            let done = act(&mut state);
            state.advance(now, &self.options);
            let newest = state.store.revision();
            let known = state.times.last().map_or(state.told, |(known, _)| *known);
            state
                .times
                .extend((known + 1..=newest).map(|revision| (revision, now)));
            (done, state.mark() != before)
        };
        if told {
            self.changed.send_modify(|count| *count += 1);
        }
        done
    }

    /// Keeps the cluster's time going. One of them for each member that is up.
    pub(crate) async fn beat(self) {
        let mut changed = self.changed.subscribe();
        loop {
            let next = self.with(|state| state.due(&self.options));
            let wait = next
                .saturating_sub(self.now())
                .max(Duration::from_millis(1));
            tokio::select! {
                biased;
                _ = changed.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// For those who wait for what a member has applied.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// While the member is stopped, nothing returns.
    pub(crate) async fn thawed(&self, member: usize) {
        let mut changed = self.changed.subscribe();
        while self.with(|state| state.members[member].frozen) {
            // The sender is ours.
            let _ = changed.changed().await;
        }
    }

    pub(crate) fn header(&self, member: usize) -> Header {
        self.with(|state| state.header(member))
    }

    /// What the member has applied, in the store of all.
    pub(crate) fn view<T>(&self, member: usize, look: impl FnOnce(&Store, i64) -> T) -> T {
        self.with(|state| {
            let view = state.view(member);
            look(&state.store, view)
        })
    }

    /// What a member's watches may tell; nothing while they are stalled.
    pub(crate) fn watched<T>(
        &self,
        member: usize,
        look: impl FnOnce(&Store, i64) -> T,
    ) -> Option<T> {
        self.with(|state| {
            let who = &state.members[member];
            if who.stalled_watches || who.frozen {
                return None;
            }
            let view = state.view(member);
            Some(look(&state.store, view))
        })
    }

    /// Whether a member has known no leader for so long that it ends what requires one.
    pub(crate) fn leaderless(&self, member: usize) -> bool {
        let now = self.now();
        self.with(|state| {
            let heard = state.members[member].heard;
            now.saturating_sub(heard) >= self.options.election_timeout * NO_LEADER
        })
    }

    /// Whether the member knows no leader now.
    pub(crate) fn knows_no_leader(&self, member: usize) -> bool {
        let now = self.now();
        self.with(|state| {
            let heard = state.members[member].heard;
            now.saturating_sub(heard) >= self.options.election_timeout
        })
    }

    fn patience(&self) -> Duration {
        PATIENCE + self.options.election_timeout * 2
    }

    /// Waits until the member hears a leader that has a majority, for the time of a message there and back.
    async fn agreed(&self, member: usize) -> Result<u64, Status> {
        let until = self.now() + self.patience();
        let mut changed = self.changed.subscribe();
        loop {
            let term = self.with(|state| state.reaches(member).then_some(state.term));
            if let Some(term) = term {
                let there_and_back = self.with(|state| state.trip(&self.options) * 2);
                if there_and_back.is_zero() {
                    return Ok(term);
                }
                tokio::time::sleep(there_and_back).await;
                self.thawed(member).await;
                let same = self.with(|state| state.reaches(member) && state.term == term);
                if same {
                    return Ok(term);
                }
                if self.with(|state| state.term != term) {
                    return Err(errors::leader_changed());
                }
            }
            self.another(&mut changed, until).await?;
            self.thawed(member).await;
        }
    }

    /// Waits for something to change, until then at most.
    async fn another(
        &self,
        changed: &mut watch::Receiver<u64>,
        until: Duration,
    ) -> Result<(), Status> {
        let left = until.saturating_sub(self.now());
        if left.is_zero() {
            return Err(errors::timed_out());
        }
        tokio::select! {
            biased;
            _ = changed.changed() => {}
            () = tokio::time::sleep(left) => {}
        }
        Ok(())
    }

    /// Waits until the member has applied what was agreed on when it asked.
    pub(crate) async fn read_index(&self, member: usize) -> Result<(), Status> {
        let wanted = self.with(|state| state.store.revision());
        self.agreed(member).await?;
        self.applied(member, wanted).await
    }

    /// Waits until the member has applied that much.
    async fn applied(&self, member: usize, wanted: i64) -> Result<(), Status> {
        let until = self.now() + self.patience();
        let mut changed = self.changed.subscribe();
        while self.with(|state| state.view(member)) < wanted {
            self.another(&mut changed, until).await?;
        }
        self.thawed(member).await;
        Ok(())
    }

    /// Has all members agree on a change, and waits until this one has applied it.
    pub(crate) async fn propose<T>(
        &self,
        member: usize,
        grows: bool,
        change: impl FnOnce(&mut Store) -> Result<T, Status>,
    ) -> Result<T, Status> {
        if grows && self.with(|state| state.no_space) {
            return Err(errors::no_space());
        }
        self.agreed(member).await?;
        let (done, revision, lost) = self.with(|state| {
            let done = change(&mut state.store);
            state.committed();
            let lost = state.rng.f64() < state.lose_answers;
            state.tally.answers_lost += u64::from(lost);
            (done, state.store.revision(), lost)
        });
        if lost {
            return Err(errors::timed_out());
        }
        self.applied(member, revision).await?;
        done
    }

    pub(crate) async fn grant(
        &self,
        member: usize,
        id: i64,
        ttl: i64,
    ) -> Result<(i64, i64), Status> {
        if ttl > LONGEST_LEASE {
            return Err(errors::lease_too_long());
        }
        let shortest = (self.options.election_timeout * 3).div_f64(2.0);
        let ttl = ttl.max(shortest.as_secs_f64().ceil() as i64);
        let id = match id {
            0 => self.with(|state| state.rng.i64(1..)),
            id => id,
        };
        self.propose(member, true, |store| store.grant(id, ttl))
            .await?;
        Ok((id, ttl))
    }

    pub(crate) async fn end(&self, member: usize, id: i64) -> Result<(), Status> {
        self.propose(member, false, |store| store.revoke(id)).await
    }

    /// Renews a lease as the member sees it: what term it has now, or nothing if it is gone. It asks whom it takes for
    /// the leader, and that one answers without asking anybody.
    pub(crate) async fn renew(&self, member: usize, id: i64) -> Result<Option<i64>, Status> {
        let leader = self.whom_it_follows(member).await?;
        let now = self.now();
        Ok(self.with(|state| state.renew(leader, id, now)))
    }

    /// What is left of a lease, by whom the member takes for the leader.
    pub(crate) async fn time_to_live(
        &self,
        member: usize,
        id: i64,
    ) -> Result<Option<Told>, Status> {
        let leader = self.whom_it_follows(member).await?;
        let now = self.now();
        Ok(self.with(|state| state.told(leader, id, now)))
    }

    /// Waits until the member takes somebody for the leader, and asks there.
    async fn whom_it_follows(&self, member: usize) -> Result<usize, Status> {
        let until = self.now() + self.patience();
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(leader) = self.with(|state| state.follows(member)) {
                if leader != member {
                    let trip = self.with(|state| state.trip(&self.options) * 2);
                    tokio::time::sleep(trip).await;
                    self.thawed(leader).await;
                }
                self.thawed(member).await;
                if self.with(|state| state.follows(member)) == Some(leader) {
                    return Ok(leader);
                }
            }
            self.another(&mut changed, until).await?;
        }
    }

    pub(crate) fn lease_ids(&self) -> Vec<i64> {
        self.with(|state| state.store.leases().keys().copied().collect())
    }

    pub(crate) fn members(&self) -> usize {
        self.options.members
    }

    pub(crate) fn member_id(member: usize) -> u64 {
        0xe1de_0000 + member as u64 + 1
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

fn pair(one: usize, other: usize) -> (usize, usize) {
    (one.min(other), one.max(other))
}

impl State {
    /// Differs if those who wait must look again.
    fn mark(&self) -> Mark {
        let member = |member: &Member| {
            let deposed = member.deposed.is_some();
            let held = member.frozen || member.stalled_watches;
            (member.applied, member.up, held, deposed)
        };
        Mark {
            revision: self.store.revision(),
            term: self.term,
            leader: self.leader,
            members: self.members.iter().map(member).collect(),
        }
    }

    fn draw(&mut self, least: Duration, most: Duration) -> Duration {
        least + (most.saturating_sub(least)).mul_f64(self.rng.f64())
    }

    fn trip(&mut self, options: &ClusterOptions) -> Duration {
        self.draw(options.latency.0, options.latency.1)
    }

    fn runs(&self, member: usize) -> bool {
        self.members[member].up && !self.members[member].frozen
    }

    fn hears(&self, one: usize, other: usize) -> bool {
        let both = self.runs(one) && self.runs(other);
        both && (one == other || !self.cut.contains(&pair(one, other)))
    }

    /// Whether that member hears a majority, itself included.
    fn has_majority(&self, member: usize) -> bool {
        let all = self.members.len();
        let heard = (0..all).filter(|other| self.hears(member, *other)).count();
        heard * 2 > all
    }

    /// Whether the member hears the leader, and that one a majority.
    fn reaches(&self, member: usize) -> bool {
        let leads = |leader| self.hears(member, leader) && self.has_majority(leader);
        self.members[member].deposed.is_none() && self.leader.is_some_and(leads)
    }

    /// Whom the member takes for the leader, if that one can be asked.
    fn follows(&self, member: usize) -> Option<usize> {
        if self.members[member].deposed.is_some() {
            return Some(member);
        }
        if let Some(leader) = self.leader
            && self.hears(member, leader)
        {
            return Some(leader);
        }
        let deposed = |other: &usize| self.members[*other].deposed.is_some();
        (0..self.members.len()).find(|other| deposed(other) && self.hears(member, *other))
    }

    /// A change was made: the leader has it at once, the others some time later.
    fn committed(&mut self) {
        // Leases that are new begin to count down; those that are gone do not any more.
        let (store, expiry) = (&self.store, &mut self.expiry);
        expiry.retain(|id, _| store.leases().contains_key(id));
        if let Some(leader) = self.leader {
            self.members[leader].applied = self.store.revision();
        }
    }

    fn header(&self, member: usize) -> Header {
        Header {
            cluster_id: 0xe1de_57ac,
            member_id: Cluster::member_id(member),
            revision: self.view(member),
            raft_term: self.members[member].term,
        }
    }

    fn view(&self, member: usize) -> i64 {
        self.members[member].applied.max(self.store.compacted())
    }

    /// Moves everything on that time alone moves.
    fn advance(&mut self, now: Duration, options: &ClusterOptions) {
        self.now = now;
        self.lead(now, options);
        for member in 0..self.members.len() {
            self.follow(member, now, options);
        }
        self.count_down(now);
    }

    fn lead(&mut self, now: Duration, options: &ClusterOptions) {
        if let Some(leader) = self.leader
            && self.has_majority(leader)
        {
            self.leader_well = now;
            self.election_at = None;
            return;
        }
        // Those that could elect another one.
        let electors: Vec<usize> = (0..self.members.len())
            .filter(|member| Some(*member) != self.leader || self.leader.is_none())
            .filter(|member| self.has_majority(*member))
            .collect();
        let timeout = options.election_timeout;
        if electors.is_empty() {
            self.election_at = None;
            // A leader that hears no majority lays its office down.
            if let Some(leader) = self.leader
                && now >= self.leader_well + timeout * 2
                && self.runs(leader)
            {
                self.leader = None;
            }
            return;
        }
        let at = if let Some(at) = self.election_at {
            at
        } else {
            let at = now + self.draw(timeout, timeout * 2);
            *self.election_at.insert(at)
        };
        if now < at {
            return;
        }
        self.election_at = None;
        let elected = electors[self.rng.usize(..electors.len())];
        let within = self.draw(Duration::ZERO, options.stale);
        if let Some(old) = self.leader.take()
            && self.members[old].up
        {
            self.members[old].deposed = Some(Deposed {
                until: now + within,
                leases: self.store.leases().clone(),
                expiry: self.expiry.clone(),
            });
        }
        self.term += 1;
        self.tally.elections += 1;
        self.leader = Some(elected);
        self.leader_well = now;
        let member = &mut self.members[elected];
        member.applied = self.store.revision();
        member.catches_up = None;
        member.deposed = None;
        // Every lease begins anew, with the time that the election may have taken.
        for (id, lease) in self.store.leases() {
            let ttl = Duration::from_secs(lease.ttl.unsigned_abs());
            self.expiry.insert(*id, now + ttl + timeout);
        }
    }

    fn follow(&mut self, member: usize, now: Duration, options: &ClusterOptions) {
        if !self.runs(member) {
            return;
        }
        if let Some(deposed) = &self.members[member].deposed {
            if self.members[member].revokes_on_thaw {
                let late: Vec<i64> = deposed
                    .expiry
                    .iter()
                    .filter(|(_, at)| **at <= now)
                    .map(|(id, _)| *id)
                    .collect();
                self.members[member].revokes_on_thaw = false;
                for id in late {
                    self.revoke_early(id);
                }
            }
            let Some(deposed) = &self.members[member].deposed else {
                return;
            };
            if now < deposed.until {
                // It takes itself for the leader.
                self.members[member].heard = now;
                return;
            }
            self.members[member].deposed = None;
        }
        if Some(member) != self.leader && !self.reaches(member) {
            self.members[member].catches_up = None;
            return;
        }
        if Some(member) == self.leader && !self.has_majority(member) {
            self.members[member].heard = now;
            return;
        }
        let trip = self.trip(options);
        let (term, newest) = (self.term, self.store.revision());
        let leads = Some(member) == self.leader;
        let member = &mut self.members[member];
        member.heard = now;
        member.term = term;
        if member.applied < newest {
            let at = *member.catches_up.get_or_insert(now + trip);
            if now >= at || leads {
                member.applied = newest;
                member.catches_up = None;
            }
        }
    }

    fn revoke_early(&mut self, id: i64) {
        if let Some(lease) = self.store.leases().get(&id).cloned() {
            let newest = self.store.revision();
            for key in &lease.keys {
                if let Some(kv) = self.store.at(key, newest) {
                    self.removed_early.push((kv.create_revision, self.now));
                }
            }
            self.expiry.remove(&id);
            // It is there.
            let _ = self.store.revoke(id);
            self.tally.revoked_early += 1;
        }
    }

    /// Leases that are new begin, and the leader revokes those that have expired.
    fn count_down(&mut self, now: Duration) {
        for (id, lease) in self.store.leases() {
            let ttl = Duration::from_secs(lease.ttl.unsigned_abs());
            self.expiry.entry(*id).or_insert(now + ttl);
        }
        if now < self.expiry_at {
            return;
        }
        let Some(leader) = self.leader else { return };
        if !self.has_majority(leader) {
            return;
        }
        self.expiry_at = now + EXPIRY;
        let expired = self.expiry.iter().filter(|(_, at)| **at <= now);
        let expired: Vec<i64> = expired.map(|(id, _)| *id).take(REVOKED_AT_ONCE).collect();
        for id in expired {
            self.expiry.remove(&id);
            // It may be gone.
            if self.store.revoke(id).is_ok() {
                self.tally.expired += 1;
            }
        }
        self.members[leader].applied = self.store.revision();
    }

    /// When time moves something next.
    fn due(&self, options: &ClusterOptions) -> Duration {
        let members = self.members.iter().flat_map(|member| {
            let deposed = member.deposed.as_ref().map(|deposed| deposed.until);
            [
                member.catches_up,
                deposed,
                Some(member.heard + options.election_timeout * NO_LEADER),
            ]
        });
        let late = self.now + options.election_timeout / 2;
        members
            .flatten()
            .chain(self.election_at)
            .chain([late])
            .chain((!self.expiry.is_empty()).then_some(self.expiry_at))
            .filter(|at| *at > self.now)
            .min()
            .unwrap_or(late)
    }

    fn renew(&mut self, leader: usize, id: i64, now: Duration) -> Option<i64> {
        let until = |lease: &Lease| now + Duration::from_secs(lease.ttl.unsigned_abs());
        if let Some(deposed) = &mut self.members[leader].deposed {
            let lease = deposed.leases.get(&id)?;
            deposed.expiry.insert(id, until(lease));
            self.tally.stale_renewals += 1;
            return Some(lease.ttl);
        }
        let lease = self.store.leases().get(&id)?;
        // One that has expired is as good as revoked.
        let expired = self.expiry.get(&id).is_some_and(|at| *at <= now);
        if expired {
            return None;
        }
        self.expiry.insert(id, until(lease));
        Some(lease.ttl)
    }

    fn told(&self, leader: usize, id: i64, now: Duration) -> Option<Told> {
        let (leases, expiry) = match &self.members[leader].deposed {
            Some(deposed) => (&deposed.leases, &deposed.expiry),
            None => (self.store.leases(), &self.expiry),
        };
        let lease = leases.get(&id)?;
        let left = expiry.get(&id)?.checked_sub(now)?;
        Some(Told {
            left,
            granted: lease.ttl,
            keys: lease.keys.iter().cloned().collect(),
        })
    }
}
