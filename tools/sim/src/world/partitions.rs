//! Lets nodes join as members that share partitions, and records the partitions that each member takes.

use std::sync::Arc;
use std::time::Duration;

use super::World;
use super::home::kept_value;
use super::node::{SimCandidate, Term};
use super::store::Key;
use eldest_core::action::{Ask, SlotId};
use eldest_core::candidate::{CandidateConfig, WatchScope};
use eldest_core::partitions::{PartitionSet, kept_key, partition_key};

/// The leases of records begin here, above those of nodes.
const LEASES: i64 = 1 << 60;

/// The ticket of a member's announcement that it is ready; nobody awaits the answer.
const READY: u64 = 1;

pub(crate) fn prefix_of(count: u32) -> Key {
    format!("p/{count}/").into_bytes().into()
}

impl World {
    /// Shares partitions, unless this session already does.
    pub(crate) fn join_partitions(&mut self, node: usize, count: u32) {
        let prefix = prefix_of(count);
        let n = &mut self.nodes[node];
        let known = n.stood.get(&prefix);
        if known.is_some_and(|other| n.core.is_candidate(*other)) {
            return;
        }
        let own = n.candidates.keys().rev().find(|slot| **slot < 1 << 32);
        let slot = own.map_or(1, |last| last + 1);
        n.stood.insert(Arc::clone(&prefix), slot);
        let candidate = SimCandidate {
            prefix: Arc::clone(&prefix),
            ..SimCandidate::default()
        };
        n.candidates.insert(slot, candidate);
        let config = CandidateConfig {
            watch_scope: WatchScope::Everyone,
            persistent: true,
            warm_within: n.warmth.within,
            partitions: Some(PartitionSet {
                count,
                family: (*b"p/").into(),
                tag: (*b"tag").into(),
            }),
            ..CandidateConfig::default()
        };
        let value = self.tagged(node, &format!("n{node}"));
        self.give(node, |m, now| m.campaign(now, slot, prefix, value, config));
    }

    /// Lets a member that prepares announce, after a while, that it is ready for the partitions that are then coming to it.
    pub(super) fn prepare(&mut self, node: usize, slot: SlotId) {
        let life = self.lives[node];
        let Some(takes) = self.nodes[node].warmth.takes else {
            return;
        };
        self.after(takes, move |w| {
            if w.lives[node] == life && !w.nodes[node].paused {
                w.command(node, move |w| w.say_ready(node, slot));
            }
        });
    }

    fn say_ready(&mut self, node: usize, slot: SlotId) {
        let n = &mut self.nodes[node];
        let coming = n.candidates.get(&slot).map(|member| member.coming.clone());
        let Some(ready) = coming.filter(|_| !n.closed()) else {
            return;
        };
        self.happened.prepared += ready.len() as u64;
        n.warmth.ready = ready;
        let value = self.tagged(node, &format!("n{node}"));
        self.give(node, |m, now| m.proclaim(now, slot, value, READY));
    }

    /// Writes the record that keeps these partitions for a node, under a lease of its own. Returns the lease.
    pub(crate) fn keep_share(&mut self, node: usize, count: u32, partitions: &[u32]) -> i64 {
        let lease = LEASES + self.store.revision();
        let ttl = Duration::from_secs(3600);
        self.store
            .perform(self.now, &Ask::Grant { ttl }, Some(lease));
        let key = kept_key(&prefix_of(count), lease);
        let record = kept_value(node, partitions);
        self.store.put(&key, record.as_bytes(), lease);
        self.publish();
        lease
    }

    pub(crate) fn taken(&mut self, node: usize, member: SlotId, partition: u32, slot: SlotId) {
        let n = &mut self.nodes[node];
        let key = partition_key(&n.candidates[&member].prefix, partition);
        // I1 of one node: the work of its earlier term has ended.
        let open = |t: &&Term| t.prefix == key && !t.joined;
        assert!(
            n.terms.iter().find(open).is_none(),
            "{partition} was taken while its work goes on"
        );
        let candidate = SimCandidate {
            prefix: Arc::clone(&key),
            ..SimCandidate::default()
        };
        n.candidates.insert(slot, candidate);
        self.prize_of(&key);
    }
}
