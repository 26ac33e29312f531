//! Lets nodes join as members that share partitions, and records the partitions that each member takes.

use std::time::Duration;

use super::World;
use super::home::kept_value;
use super::node::{Node, SimCandidate, Term};
use super::store::Key;
use crate::plan::COUNT;
use eldest_core::action::{Ask, SlotId};
use eldest_core::candidate::{CandidateConfig, WatchScope};
use eldest_core::kv::Entry;
use eldest_core::partitions::{KeyKind, PartitionSet, kept_key, kind_of_entry, partition_key};

/// The leases of records begin here, above those of nodes.
const LEASES: i64 = 1 << 60;

/// The ticket of a member's announcement that it is ready; nobody awaits the answer.
const READY: u64 = 1;

pub(crate) fn prefix_of(count: u32) -> Key {
    format!("p/{count}/").into_bytes().into()
}

/// Returns true if the key is the record of a kept share.
pub(crate) fn is_record(prefix: &[u8], entry: &Entry) -> bool {
    matches!(kind_of_entry(prefix, entry), Some(KeyKind::Kept { .. }))
}

impl World {
    /// Shares partitions, unless this session already does.
    pub(crate) fn join_partitions(&mut self, node: usize, count: u32) {
        let prefix = prefix_of(count);
        let n = &self.nodes[node];
        if n.is_candidate(&prefix) {
            return;
        }
        let slot = n.next_slot();
        let config = CandidateConfig {
            watch_scope: WatchScope::Everyone,
            persistent: true,
            warm_within: n.member.warm_within,
            partitions: Some(PartitionSet {
                count,
                family: (*b"p/").into(),
                tag: (*b"tag").into(),
            }),
            ..CandidateConfig::default()
        };
        let value = self.tagged(node, &self.name_of(node));
        self.stand(node, slot, SimCandidate::of(&prefix), value, config);
    }

    /// Returns the end of a member's announcement.
    fn name_of(&self, node: usize) -> String {
        format!("n{}", self.nodes[node].identity)
    }

    /// Lets a member that prepares announce, after a while, that it is ready for the partitions that are then coming to it.
    pub(super) fn prepare(&mut self, node: usize, slot: SlotId) {
        let member = &self.nodes[node].member;
        if !member.prepares {
            return;
        }
        let takes = member.prepares_for;
        self.in_life(node, takes, move |w| {
            if !w.nodes[node].paused {
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
        self.tally.add("partitions prepared", ready.len() as u64);
        n.ready = ready;
        let value = self.tagged(node, &self.name_of(node));
        self.give(node, |m, now| m.proclaim(now, slot, value, READY));
    }

    /// Writes the record that keeps a node's partitions for it, under a lease of its own. Returns the lease, unless the
    /// node owns nothing or etcd writes nothing.
    pub(crate) fn keep_share(&mut self, node: usize, count: u32, ttl: Duration) -> Option<i64> {
        let prefix = prefix_of(count);
        let n = &self.nodes[node];
        let owns = |partition: &u32| {
            let key = partition_key(&prefix, *partition);
            n.valid(&key, self.now).is_some()
        };
        let owned: Vec<u32> = (0..count).filter(owns).collect();
        if owned.is_empty() || self.store.headless.is_some() || self.store.full > 0 {
            return None;
        }
        let record = kept_value(n.identity, &owned);
        let lease = LEASES + self.store.revision();
        self.store
            .perform(self.now, &Ask::Grant { ttl }, Some(lease));
        self.store
            .put(&kept_key(&prefix, lease), record.as_bytes(), lease);
        self.publish();
        Some(lease)
    }

    /// Returns an identity that no node has had.
    pub(crate) fn unused_identity(&self) -> usize {
        // The greatest one was given last, or is a node's first.
        let greatest = self.nodes.iter().map(|n| n.identity).max();
        greatest.unwrap_or_default().max(self.nodes.len()) + 1
    }

    /// Returns the records that keep shares.
    pub(super) fn records(&self) -> Vec<Entry> {
        let prefix = prefix_of(COUNT);
        let mut records = self.store.children(&prefix);
        records.retain(|entry| is_record(&prefix, entry));
        records
    }

    /// Lets operators end the records of members that are not there.
    pub(super) fn forget_shares(&mut self) {
        let prefix = prefix_of(COUNT);
        // Work that never ends may keep a member from joining again in the calm.
        let ends = |n: &&Node| !n.closed() && n.member.work.is_some();
        let living = self.nodes.iter().filter(ends);
        let there = |n: &&Node| {
            let member = n.candidate(&prefix).and_then(|(slot, _)| n.own_key(slot));
            member.is_some_and(|key| self.store.contains(&key))
        };
        let there: Vec<_> = living
            .filter(there)
            .map(|n| kept_value(n.identity, &[]))
            .collect();
        let mut left = self.records();
        left.retain(|e| {
            !there
                .iter()
                .any(|kept| e.value.starts_with(kept.as_bytes()))
        });
        for record in left {
            self.store.revoke(self.now, record.lease);
        }
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
        n.candidates.insert(slot, SimCandidate::of(&key));
        self.prize_of(&key);
    }
}
