//! Tests members that share partitions, each rule in one story.

mod taking;
mod warming;

use std::time::Duration;

use crate::tests::asks::secs;
use crate::world::World;
use crate::world::partitions::prefix_of;
use crate::world::store::Key;
use eldest_core::kv::Entry;
use eldest_core::partitions::{KeyKind, kind_of, partition_key};
use eldest_core::reason::EndReason;

/// The time from the end of all faults until every partition is owned.
const RECOVERY: Duration = Duration::from_millis(3500);

impl World {
    pub(in crate::tests) fn keys_of_partitions(&self, count: u32) -> Vec<(u32, Entry)> {
        let prefix = prefix_of(count);
        let entries = self.store.children(&prefix).into_iter();
        let partition = |e: Entry| match kind_of(&prefix, &e.key) {
            Some(KeyKind::Partition(partition)) => Some((partition, e)),
            _ => None,
        };
        entries.filter_map(partition).collect()
    }

    /// Returns how many partitions each node acts for.
    pub(super) fn loads(&self, count: u32) -> Vec<usize> {
        let prefix = prefix_of(count);
        let load = |node: &crate::world::node::Node| {
            let valid = node.valid_terms(self.now);
            valid.filter(|t| t.prefix.starts_with(&prefix)).count()
        };
        self.nodes.iter().map(load).collect()
    }

    /// Returns how many members have keys.
    fn members(&self, count: u32) -> usize {
        let of_member = [&prefix_of(count)[..], b"m-"].concat();
        let keys = self.store.entries().map(|e| e.key);
        keys.filter(|key| key.starts_with(&of_member)).count()
    }

    pub(in crate::tests) fn all_owned(&self, count: u32) -> bool {
        self.loads(count).iter().sum::<usize>() == count as usize
    }

    /// Returns true if the members own all partitions, evenly.
    fn even(&self, count: u32, nodes: &[usize]) -> bool {
        let loads = self.loads(count);
        let among: Vec<_> = nodes.iter().map(|node| loads[*node]).collect();
        let (most, least) = (among.iter().max(), among.iter().min());
        let fair = most
            .zip(least)
            .is_some_and(|(most, least)| most - least <= 1);
        fair && among.iter().sum::<usize>() == count as usize
    }

    /// Makes a settled world with so many members.
    pub(in crate::tests) fn with_partitions(nodes: usize, count: u32) -> Self {
        let mut w = World::new(nodes, 1);
        for node in 0..nodes {
            w.join_partitions(node, count);
        }
        let all: Vec<_> = (0..nodes).collect();
        w.until("settled", secs(2), |w| w.even(count, &all));
        w
    }

    fn owns(&self, node: usize, count: u32, partition: u32) -> bool {
        let key = partition_key(&prefix_of(count), partition);
        self.nodes[node].valid(&key, self.now).is_some()
    }

    pub(in crate::tests) fn any_of(&self, node: usize, count: u32) -> (u32, Key) {
        let owned = (0..count).find(|p| self.owns(node, count, *p));
        let partition = owned.expect("owns one");
        (partition, partition_key(&prefix_of(count), partition))
    }

    pub(in crate::tests) fn leave_partitions(&mut self, node: usize, count: u32) {
        if let Some((slot, _)) = self.nodes[node].candidate(&prefix_of(count)) {
            self.give(node, |m, now| m.leave(now, slot, EndReason::Left));
        }
    }
}
