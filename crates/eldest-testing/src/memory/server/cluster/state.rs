//! Advances the state of a cluster: elections, the state that each member has applied, and the expiry of leases.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use eldest_store::{Bytes, Lease, Store};
use fastrand::Rng;

use super::{Cluster, ClusterOptions, Tally};
use crate::memory::proto::Header;

/// How often etcd searches for expired leases.
const EXPIRY: Duration = Duration::from_millis(500);
/// The default of `--max-txn-ops`.
const MOST_OPERATIONS: usize = 128;
/// The maximum number of leases revoked in one such search.
const REVOKED_AT_ONCE: usize = 500;
/// After so many election timeouts without news of a leader, a member ends the streams that require one.
pub(super) const NO_LEADER: u32 = 3;

pub(super) struct State {
    /// The time to which the state was last advanced.
    pub(super) now: Duration,
    pub(super) store: Store,
    pub(super) rng: Rng,
    pub(super) term: u64,
    pub(super) leader: Option<usize>,
    /// The time at which a majority last heard the leader.
    pub(super) leader_well: Duration,
    /// The time at which a majority without a leader elects one.
    pub(super) election_at: Option<Duration>,
    pub(super) expiry_at: Duration,
    pub(super) members: Vec<Member>,
    pub(super) cut: BTreeSet<(usize, usize)>,
    pub(super) no_space: bool,
    /// The maximum number of operations in one transaction.
    pub(super) most_operations: usize,
    pub(super) lose_answers: f64,
    pub(super) tally: Tally,
    pub(super) removed_early: Vec<(i64, Duration)>,
    /// The time at which each revision was agreed on, until it is reported.
    pub(super) times: Vec<(i64, Duration)>,
    pub(super) reported: i64,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(super) struct Member {
    pub(super) up: bool,
    pub(super) frozen: bool,
    pub(super) stalled_watches: bool,
    pub(super) applied: i64,
    /// The time at which the member will have caught up.
    pub(super) catches_up: Option<Duration>,
    pub(super) term: u64,
    /// The time at which the member last heard of a leader.
    pub(super) heard: Duration,
    /// Present if the member no longer leads, and does not know it.
    pub(super) deposed: Option<Deposed>,
    /// True if the member, when it continues after a stop, revokes the leases that it considers expired.
    pub(super) revokes_on_thaw: bool,
}

#[derive(PartialEq)]
pub(super) struct Mark {
    pub(super) revision: i64,
    pub(super) term: u64,
    pub(super) leader: Option<usize>,
    pub(super) members: Vec<(i64, bool, bool, bool)>,
}

/// The view of a leader that was replaced without knowing it.
pub(super) struct Deposed {
    /// The time at which it learns of its replacement; not before it continues, if it is stopped.
    pub(super) until: Duration,
    pub(super) leases: BTreeMap<i64, Lease>,
}

/// A member's answer about a lease.
pub(crate) struct LeaseAnswer {
    pub(crate) left: Duration,
    pub(crate) granted: Duration,
    pub(crate) keys: BTreeSet<Bytes>,
}

impl State {
    /// Makes a state in which all members are up, and the first one leads.
    pub(super) fn new(now: Duration, options: &ClusterOptions) -> Self {
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
        State {
            now,
            store: Store::default(),
            rng: Rng::with_seed(options.seed),
            term: 2,
            leader: Some(0),
            leader_well: now,
            election_at: None,
            expiry_at: now,
            members: (0..options.members).map(|_| member()).collect(),
            cut: BTreeSet::new(),
            no_space: false,
            most_operations: MOST_OPERATIONS,
            lose_answers: 0.0,
            tally: Tally::default(),
            removed_early: Vec::new(),
            times: Vec::new(),
            reported: 1,
        }
    }

    /// Returns a value that changes whenever waiting tasks must check again.
    pub(super) fn mark(&self) -> Mark {
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

    pub(super) fn draw(&mut self, least: Duration, most: Duration) -> Duration {
        least + (most.saturating_sub(least)).mul_f64(self.rng.f64())
    }

    pub(super) fn trip(&mut self, options: &ClusterOptions) -> Duration {
        self.draw(options.latency.0, options.latency.1)
    }

    fn runs(&self, member: usize) -> bool {
        self.members[member].up && !self.members[member].frozen
    }

    fn hears(&self, one: usize, other: usize) -> bool {
        let both = self.runs(one) && self.runs(other);
        both && (one == other || !self.cut.contains(&pair(one, other)))
    }

    /// Returns true if that member reaches a majority, itself included.
    fn has_majority(&self, member: usize) -> bool {
        let all = self.members.len();
        let heard = (0..all).filter(|other| self.hears(member, *other)).count();
        heard * 2 > all
    }

    /// Returns true if the member reaches the leader, and the leader a majority.
    pub(super) fn reaches(&self, member: usize) -> bool {
        let leads = |leader| self.hears(member, leader) && self.has_majority(leader);
        self.members[member].deposed.is_none() && self.leader.is_some_and(leads)
    }

    /// Returns the member's supposed leader, if that one can be asked.
    pub(super) fn follows(&self, member: usize) -> Option<usize> {
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

    /// Records that a change was agreed on: the leader has it at once, the others some time later.
    pub(super) fn committed(&mut self) {
        if let Some(leader) = self.leader {
            self.members[leader].applied = self.store.revision();
        }
    }

    pub(super) fn header(&self, member: usize) -> Header {
        Header {
            cluster_id: 0xe1de_57ac,
            member_id: Cluster::member_id(member),
            revision: self.view(member),
            raft_term: self.members[member].term,
        }
    }

    pub(super) fn view(&self, member: usize) -> i64 {
        self.members[member].applied.max(self.store.compacted())
    }

    /// Applies all changes that depend on time alone.
    pub(super) fn advance(&mut self, now: Duration, options: &ClusterOptions) {
        self.now = now;
        self.lead(now, options);
        for member in 0..self.members.len() {
            self.follow(member, now, options);
        }
        self.revoke_expired(now);
    }

    fn lead(&mut self, now: Duration, options: &ClusterOptions) {
        if let Some(leader) = self.leader
            && self.has_majority(leader)
        {
            self.leader_well = now;
            self.election_at = None;
            return;
        }
        // The members that could elect another leader.
        let electors: Vec<usize> = (0..self.members.len())
            .filter(|member| Some(*member) != self.leader || self.leader.is_none())
            .filter(|member| self.has_majority(*member))
            .collect();
        let timeout = options.election_timeout;
        if electors.is_empty() {
            self.election_at = None;
            // A leader that does not reach a majority steps down.
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
        // Every lease starts again, prolonged by the time that the election may have taken.
        self.store.renew_all(now, timeout);
    }

    fn follow(&mut self, member: usize, now: Duration, options: &ClusterOptions) {
        if !self.runs(member) {
            return;
        }
        if let Some(deposed) = &self.members[member].deposed {
            if self.members[member].revokes_on_thaw {
                let late = deposed.leases.iter().filter(|(_, l)| l.is_expired(now));
                let late: Vec<i64> = late.map(|(id, _)| *id).collect();
                self.members[member].revokes_on_thaw = false;
                for id in late {
                    self.revoke_early(id);
                }
            }
            let Some(deposed) = &self.members[member].deposed else {
                return;
            };
            if now < deposed.until {
                // The member considers itself the leader.
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
            // The lease exists.
            let _ = self.store.revoke(id);
            self.tally.revoked_early += 1;
        }
    }

    /// Lets the leader revoke the leases that have expired.
    fn revoke_expired(&mut self, now: Duration) {
        if now < self.expiry_at {
            return;
        }
        let Some(leader) = self.leader else { return };
        if !self.has_majority(leader) {
            return;
        }
        self.expiry_at = now + EXPIRY;
        let expired: Vec<i64> = self.store.expired(now).take(REVOKED_AT_ONCE).collect();
        for id in expired {
            // The lease exists.
            let _ = self.store.revoke(id);
            self.tally.expired += 1;
        }
        self.members[leader].applied = self.store.revision();
    }

    /// Returns the next time at which the state changes by itself.
    pub(super) fn due(&self, options: &ClusterOptions) -> Duration {
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
            .chain((!self.store.leases().is_empty()).then_some(self.expiry_at))
            .filter(|at| *at > self.now)
            .min()
            .unwrap_or(late)
    }

    pub(super) fn renew(&mut self, leader: usize, id: i64, now: Duration) -> Option<Duration> {
        if let Some(deposed) = &mut self.members[leader].deposed {
            let ttl = deposed.leases.get_mut(&id)?.renew(now);
            self.tally.stale_renewals += 1;
            return Some(ttl);
        }
        // An expired lease counts as revoked.
        if self.store.leases().get(&id)?.is_expired(now) {
            return None;
        }
        self.store.renew(now, id)
    }

    pub(super) fn lease_answer(
        &self,
        leader: usize,
        id: i64,
        now: Duration,
    ) -> Option<LeaseAnswer> {
        let deposed = self.members[leader].deposed.as_ref();
        let leases = deposed.map_or_else(|| self.store.leases(), |deposed| &deposed.leases);
        let lease = leases.get(&id)?;
        let left = lease.expires.checked_sub(now)?;
        Some(LeaseAnswer {
            left,
            granted: lease.ttl,
            keys: lease.keys.clone(),
        })
    }
}

pub(super) fn pair(one: usize, other: usize) -> (usize, usize) {
    (one.min(other), one.max(other))
}
