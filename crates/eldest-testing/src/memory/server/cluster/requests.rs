//! Carries out clients' requests to a member: waits for the agreement of the others, and for the state that the member
//! has applied.

use std::time::Duration;

use eldest_store::{Refusal, Store};
use tonic::Status;

use super::Cluster;
use super::state::{LeaseAnswer, NO_LEADER};
use crate::memory::proto::Header;
use crate::memory::server::changes::Changed;
use crate::memory::server::errors;

/// How long etcd waits for its own members before it fails a request, besides two election timeouts.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest lease that etcd grants.
const LONGEST_LEASE: i64 = 9_000_000_000;

impl Cluster {
    /// Returns a receiver for tasks that wait until a member has applied a change.
    pub(crate) fn changes(&self) -> Changed {
        self.changed.subscribe()
    }

    /// Waits until the member is not stopped.
    pub(crate) async fn thawed(&self, member: usize) {
        let mut changed = self.changed.subscribe();
        while self.with(|state| state.members[member].frozen) {
            changed.changed().await;
        }
    }

    /// Returns how many operations a transaction may have.
    pub(crate) fn most_operations(&self) -> usize {
        self.with(|state| state.most_operations)
    }

    pub(crate) fn header(&self, member: usize) -> Header {
        self.with(|state| state.header(member))
    }

    /// Shows the part of the store that the member has applied.
    pub(crate) fn view<T>(&self, member: usize, look: impl FnOnce(&Store, i64) -> T) -> T {
        self.with(|state| {
            let view = state.view(member);
            look(&state.store, view)
        })
    }

    /// Shows the changes that a member's watches may report; none while they are stalled.
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

    /// Returns true if a member has had no leader for so long that it ends the streams that require one.
    pub(crate) fn leaderless(&self, member: usize) -> bool {
        let now = self.now();
        self.with(|state| {
            let heard = state.members[member].heard;
            now.saturating_sub(heard) >= self.options.election_timeout * NO_LEADER
        })
    }

    /// Returns true if the member has no leader now.
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

    /// Waits until the member reaches a leader with a majority, for the time of a message there and back.
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

    /// Waits for a change, but no longer than until that time.
    async fn another(&self, changed: &mut Changed, until: Duration) -> Result<(), Status> {
        let left = until.saturating_sub(self.now());
        if left.is_zero() {
            return Err(errors::timed_out());
        }
        tokio::select! {
            biased;
            () = changed.changed() => {}
            () = tokio::time::sleep(left) => {}
        }
        Ok(())
    }

    /// Waits until the member has applied the state that was agreed on at the time of the call.
    pub(crate) async fn read_index(&self, member: usize) -> Result<(), Status> {
        let wanted = self.with(|state| state.store.revision());
        self.agreed(member).await?;
        self.applied(member, wanted).await
    }

    /// Waits until the member has applied that revision.
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
        change: impl FnOnce(&mut Store) -> Result<T, Refusal>,
    ) -> Result<T, Status> {
        if grows && self.with(|state| state.no_space) {
            return Err(errors::refused(Refusal::NoSpace));
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
        done.map_err(errors::refused)
    }

    pub(crate) async fn grant(
        &self,
        member: usize,
        id: i64,
        ttl: i64,
    ) -> Result<(i64, i64), Status> {
        if ttl > LONGEST_LEASE {
            return Err(errors::refused(Refusal::LeaseTooLong));
        }
        let shortest = (self.options.election_timeout * 3).div_f64(2.0);
        let ttl = ttl.max(shortest.as_secs_f64().ceil() as i64);
        let id = match id {
            0 => self.with(|state| state.rng.i64(1..)),
            id => id,
        };
        let granted = Duration::from_secs(ttl.unsigned_abs());
        self.propose(member, true, |store| store.grant(self.now(), id, granted))
            .await?;
        Ok((id, ttl))
    }

    pub(crate) async fn end(&self, member: usize, id: i64) -> Result<(), Status> {
        self.propose(member, false, |store| store.revoke(id)).await
    }

    /// Renews a lease as the member sees it. Returns its new term, or `None` if it is gone. The member asks its
    /// supposed leader, which answers without asking others.
    pub(crate) async fn renew(&self, member: usize, id: i64) -> Result<Option<Duration>, Status> {
        let leader = self.whom_it_follows(member).await?;
        let now = self.now();
        Ok(self.with(|state| state.renew(leader, id, now)))
    }

    /// Returns the remaining time of a lease, by the member's supposed leader.
    pub(crate) async fn time_to_live(
        &self,
        member: usize,
        id: i64,
    ) -> Result<Option<LeaseAnswer>, Status> {
        let leader = self.whom_it_follows(member).await?;
        let now = self.now();
        Ok(self.with(|state| state.lease_answer(leader, id, now)))
    }

    /// Waits until the member follows a leader, and returns that leader.
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
