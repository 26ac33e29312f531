//! Lets nodes join as members that share partitions, and records the partitions that each member takes.

use std::sync::Arc;

use super::World;
use super::node::{Seat, Term};
use super::store::Key;
use eldest_core::action::SlotId;
use eldest_core::candidate::{CandidateConfig, Follow};
use eldest_core::partitions::{Sharing, partition_key};

pub(crate) fn prefix_of(count: u32) -> Key {
    format!("p/{count}/").into_bytes().into()
}

impl World {
    /// Shares partitions, unless this session does already.
    pub(crate) fn share(&mut self, node: usize, count: u32) {
        let prefix = prefix_of(count);
        let n = &mut self.nodes[node];
        let known = n.stood.get(&prefix);
        if known.is_some_and(|other| n.machine.stands(*other)) {
            return;
        }
        let own = n.seats.keys().rev().find(|slot| **slot < 1 << 32);
        let slot = own.map_or(1, |last| last + 1);
        n.stood.insert(Arc::clone(&prefix), slot);
        let seat = Seat {
            prefix: Arc::clone(&prefix),
            ..Seat::default()
        };
        n.seats.insert(slot, seat);
        let manner = CandidateConfig {
            follow: Follow::Everyone,
            persistent: true,
            sharing: Some(Sharing {
                count,
                family: (*b"p/").into(),
                tag: (*b"tag").into(),
            }),
            ..CandidateConfig::default()
        };
        let value = format!("n{node}").into_bytes().into();
        self.give(node, |m, now| m.campaign(now, slot, prefix, value, manner));
    }

    pub(crate) fn taken(&mut self, node: usize, member: SlotId, partition: u32, slot: SlotId) {
        let n = &mut self.nodes[node];
        let key = partition_key(&n.seats[&member].prefix, partition);
        // I1 of one node: the work of an earlier term of it has ended.
        let open = |t: &&Term| t.prefix == key && !t.joined;
        assert!(
            n.terms.iter().find(open).is_none(),
            "{partition} was taken while its work goes on"
        );
        let seat = Seat {
            prefix: Arc::clone(&key),
            ..Seat::default()
        };
        n.seats.insert(slot, seat);
        self.stands_for(&key);
    }
}
