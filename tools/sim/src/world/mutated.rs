//! Breaks a rule in the adapter between core and etcd. All such code is here, so the core contains no switch that could
//! stay on.

use std::collections::BTreeMap;

use super::World;
use super::step::Step;
use super::store::{Store, is_in_use};
use crate::mutant::Mutant;
use eldest_core::action::{Answer, Ask, RequestId, SlotId, TermId};
use eldest_core::kv::Header;
use eldest_core::time::Time;
use eldest_core::txn::Transacted;

/// The memory of a mutated adapter.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Requests in flight, and the time at which each was sent.
    pub(crate) asks: BTreeMap<RequestId, (Time, Ask)>,
    /// The last acknowledgement.
    pub(crate) acknowledged: Option<Header>,
    /// The lease that the proxy has renewed, and for which it may repeat its answer once.
    pub(crate) renewed: Option<i64>,
    /// The store at the last clean read.
    pub(crate) shown: Option<Box<Store>>,
}

impl World {
    /// Returns the seed of the next session on a node.
    pub(crate) fn seed_of(&self, node: usize, fresh: u64) -> u64 {
        match self.mutant {
            Some(Mutant::AdoptsLease) => self.nodes[node].seed,
            _ => fresh,
        }
    }

    /// Records a request that is about to be sent.
    pub(crate) fn remember(&mut self, node: usize, request: RequestId, ask: &Ask) {
        if self.mutant.is_some() {
            let n = &mut self.nodes[node];
            let now = n.local(self.now);
            n.memory.asks.insert(request, (now, ask.clone()));
        }
    }

    /// Returns etcd's answer as the core receives it.
    pub(crate) fn altered(&mut self, node: usize, request: RequestId, answer: Answer) -> Answer {
        let Some(mutant) = self.mutant else {
            return answer;
        };
        let header = self.store.header();
        let (ttl, lease) = (self.settings.ttl, self.nodes[node].drawn.1);
        let n = &mut self.nodes[node];
        let now = n.local(self.now);
        let Some((sent, ask)) = n.memory.asks.remove(&request) else {
            return answer;
        };
        if let Answer::Renewed { header, .. } = &answer {
            n.memory.acknowledged = Some(*header);
        }
        match (mutant, ask, answer) {
            (Mutant::ReceiveInstant, _, Answer::Renewed { ttl, header }) if !ttl.is_zero() => {
                let ttl = ttl + now.since(sent);
                Answer::Renewed { ttl, header }
            }
            (Mutant::ReceiveInstant, _, Answer::Granted { lease, ttl, header }) => {
                let ttl = ttl + now.since(sent);
                Answer::Granted { lease, ttl, header }
            }
            (Mutant::AdoptsLease, Ask::Grant { .. }, Answer::Failed(error))
                if is_in_use(&error) =>
            {
                Answer::Granted { lease, ttl, header }
            }
            (Mutant::RevokesTaken, Ask::Grant { .. }, Answer::Failed(error))
                if is_in_use(&error) =>
            {
                self.store.perform(self.now, &Ask::Revoke { lease }, None);
                Answer::Failed(error)
            }
            (
                Mutant::AdoptsDeleted,
                Ask::Delete { state: None, .. } | Ask::Release { .. },
                Answer::Failed(error),
            ) if error.ambiguous => Answer::Deleted { header },
            (_, _, answer) => answer,
        }
    }

    /// Reports the end of a term's work while the work continues.
    pub(crate) fn report_work_early(&mut self, node: usize, slot: SlotId, term: TermId) {
        if self.mutant == Some(Mutant::ReleasesEarly) {
            self.give(node, |m, now| m.work_joined(now, slot, term, None));
        }
    }

    /// Ends the work of a term that leaves a state, while the term stays valid. Returns false if nothing is broken.
    pub(crate) fn stays_valid(&mut self, node: usize, term: TermId, leaves: bool) -> bool {
        if !leaves || self.mutant != Some(Mutant::ActsWhileItLeaves) {
            return false;
        }
        let mut terms = self.nodes[node].terms.iter_mut();
        if let Some(term) = terms.find(|t| t.id == term) {
            term.joined = true;
        }
        true
    }

    /// Handles a renewal that reaches the proxy. The proxy may repeat the answer to the one before.
    pub(crate) fn answered_by_proxy(
        &mut self,
        node: usize,
        ask: &Ask,
        lease: Option<i64>,
    ) -> Option<Answer> {
        if self.mutant != Some(Mutant::Proxied) || *ask != Ask::Renew {
            return None;
        }
        let memory = &mut self.nodes[node].memory;
        if memory.renewed != lease {
            memory.renewed = lease;
            return None;
        }
        memory.renewed = None;
        let (ttl, header) = (self.settings.ttl, memory.acknowledged?);
        Some(Answer::Renewed { ttl, header })
    }

    /// Answers a clean read from the store as it was at the one before, unless there was no anchor then.
    pub(crate) fn read_late(&mut self, node: usize, ask: &Ask) -> Option<Answer> {
        if self.mutant != Some(Mutant::StaleReads) || Step::of(ask) != Some(Step::Read) {
            return None;
        }
        let present = Box::new(self.store.clone());
        let mut before = self.nodes[node].memory.shown.replace(present)?;
        let answer = before.perform(self.now, ask, None);
        let Answer::Transacted(Transacted { held, found, .. }) = answer else {
            return None;
        };
        // The header is not below the known state, or it would look like another store's.
        let header = self.store.header();
        let is_there = found.first().is_some_and(|anchor| !anchor.is_empty());
        is_there.then_some(Answer::Transacted(Transacted {
            header,
            held,
            found,
        }))
    }

    /// Handles a delete that reaches etcd. Returns true if it was carried out here.
    pub(crate) fn deleted_blindly(&mut self, ask: &Ask) -> bool {
        if self.mutant != Some(Mutant::DeletesBlindly) {
            return false;
        }
        match ask {
            Ask::Delete {
                key, state: None, ..
            } => self.store.delete(key),
            Ask::Release { keys } => keys.iter().for_each(|(key, _)| self.store.delete(key)),
            _ => return false,
        }
        true
    }

    /// Hides the pause of a process that was stopped since then.
    pub(crate) fn skip_pause(&mut self, node: usize, since: Time) {
        let n = &mut self.nodes[node];
        if self.mutant == Some(Mutant::ClockStops) {
            let stopped = n.local(self.now).since(n.local(since));
            n.offset = n.offset.saturating_sub(stopped);
            n.due = n.due_local.map(|at| n.world(at));
        }
    }
}
