//! What users and operators do in the world, and what is checked at every step.

use std::sync::Arc;
use std::time::Duration;

use super::store::{Key, Write};
use super::world::{Elected, Fate, Rule, World};
use crate::core::action::{Ask, Note, SlotId, Standing};
use crate::core::candidacy::{Follow, Manner, Share};
use crate::core::reason::{EndReason, LostReason};
use crate::core::slots::key_of;

pub(super) const E: &[u8] = b"e/";

/// The permits of a semaphore, of which two may be held, and what lies around them.
pub(super) const PERMITS: &[u8] = b"s/2/";
pub(super) const FAMILY: &[u8] = b"s/";

/// How many may hold what lies under that prefix.
pub(super) fn seats_of(prefix: &[u8]) -> usize {
    let capacity = prefix.strip_prefix(FAMILY).unwrap_or(b"1/");
    let capacity = capacity.split(|byte| *byte == b'/').next();
    let capacity = capacity.and_then(|text| std::str::from_utf8(text).ok());
    capacity.and_then(|text| text.parse().ok()).unwrap_or(1)
}

pub(super) fn key(name: &str) -> Key {
    name.as_bytes().into()
}

impl World {
    // ---- users

    /// Stands, unless the driver's registry says that this session does already.
    pub(super) fn stand(
        &mut self,
        node: usize,
        prefix: &[u8],
        follow: Follow,
        persistent: bool,
    ) -> Option<SlotId> {
        let prefix: Key = prefix.into();
        let n = &mut self.nodes[node];
        let slot = n.seats.keys().next_back().map_or(1, |last| last + 1);
        if n.stood
            .get(&prefix)
            .is_some_and(|other| n.machine.stands(*other))
        {
            return None;
        }
        n.stood.insert(Arc::clone(&prefix), slot);
        n.seats.insert(
            slot,
            super::node::Seat {
                prefix: Arc::clone(&prefix),
                ..super::node::Seat::default()
            },
        );
        self.stands_for(&prefix);
        self.give(node, |m, now| {
            let value = format!("v{slot}").into_bytes().into();
            let manner = Manner {
                follow,
                persistent,
                ..Manner::default()
            };
            m.campaign(now, slot, prefix, value, manner);
        });
        Some(slot)
    }

    /// Asks for a lock, or for one of the permits of `PERMITS`. Whoever gets it does not stand again by itself.
    pub(super) fn acquire(&mut self, node: usize, prefix: &[u8], at_once: bool) -> Option<SlotId> {
        let prefix: Key = prefix.into();
        let n = &mut self.nodes[node];
        let slot = n.seats.keys().next_back().map_or(1, |last| last + 1);
        let share = prefix.starts_with(FAMILY).then(|| Share {
            seats: seats_of(&prefix),
            family: FAMILY.into(),
            number: slot,
        });
        if share.is_some() {
            n.permits.push(slot);
        } else {
            // As the session's own queue: the next task stands when nothing is left of the one before.
            let before = n.stood.get(&prefix).map(|other| &n.seats[other]);
            if before.is_some_and(|seat| seat.ended.is_none()) {
                return None;
            }
            n.stood.insert(Arc::clone(&prefix), slot);
        }
        let seat = super::node::Seat {
            prefix: Arc::clone(&prefix),
            brief: true,
            ..super::node::Seat::default()
        };
        n.seats.insert(slot, seat);
        self.stands_for(&prefix);
        self.give(node, |m, now| {
            let follow = if share.is_some() {
                Follow::Everyone
            } else {
                Follow::Predecessor
            };
            let manner = Manner {
                follow,
                persistent: false,
                at_once,
                share,
                sharing: None,
            };
            m.campaign(now, slot, prefix, (*b"held").into(), manner);
        });
        Some(slot)
    }

    /// Gives back what the node got first.
    pub(super) fn release(&mut self, node: usize, prefix: &[u8]) {
        let mut terms = self.nodes[node].terms.iter();
        let first = terms.find(|t| &*t.prefix == prefix && !t.joined);
        if let Some((slot, term)) = first.map(|t| (t.slot, t.id)) {
            self.joined(node, slot, term);
        }
    }

    /// The tasks that wait are dropped.
    pub(super) fn give_up(&mut self, node: usize, prefix: &[u8]) {
        let seats = self.nodes[node].seats.iter();
        let waiting = seats.filter(|(_, seat)| &*seat.prefix == prefix && seat.ended.is_none());
        for slot in waiting.map(|(slot, _)| *slot).collect::<Vec<_>>() {
            self.give(node, |m, now| m.leave(now, slot, EndReason::Left));
        }
    }

    /// How many hold, each by its own clock.
    pub(super) fn holders(&self, prefix: &[u8]) -> usize {
        let held = |n: &super::node::Node| n.held(prefix, self.now).count();
        self.nodes.iter().map(held).sum()
    }

    /// Stands in the one election of most scenarios.
    pub(super) fn campaign(&mut self, node: usize) -> SlotId {
        self.stand(node, E, Follow::Auto, false)
            .expect("does not stand yet")
    }

    pub(super) fn observe(&mut self, node: usize) {
        self.give(node, |m, now| m.observe(now, u64::MAX, E.into()));
    }

    pub(super) fn leave(&mut self, node: usize, prefix: &[u8]) {
        if let Some((slot, _)) = self.nodes[node].seat(prefix) {
            self.give(node, |m, now| m.leave(now, slot, EndReason::Left));
        }
    }

    /// The leader says that its work has ended; the term's tasks end as `Work` says.
    pub(super) fn end(&mut self, node: usize, prefix: &[u8], reason: LostReason) {
        if let Some((slot, term)) = self.nodes[node].term_of(prefix).map(|t| (t.slot, t.id)) {
            self.give(node, |m, now| m.end_by_leader(now, slot, term, reason));
        }
    }

    /// Whether it may join again after a term.
    pub(super) fn hold_back(&mut self, node: usize, prefix: &[u8], held: bool) {
        if let Some((slot, _)) = self.nodes[node].seat(prefix) {
            self.give(node, |m, now| m.hold_back(now, slot, held));
        }
    }

    /// The leadership is dropped.
    pub(super) fn drop_leadership(&mut self, node: usize, prefix: &[u8]) {
        if let Some((slot, term)) = self.nodes[node].term_of(prefix).map(|t| (t.slot, t.id)) {
            self.joined(node, slot, term);
        }
    }

    pub(super) fn close(&mut self, node: usize) {
        self.give(node, crate::core::machine::Machine::close);
    }

    // ---- faults

    /// The next request of that kind from that node meets that fate.
    pub(super) fn next(&mut self, node: usize, what: fn(&Ask) -> bool, fate: Fate) {
        self.the_next(1, node, what, fate);
    }

    pub(super) fn the_next(
        &mut self,
        times: usize,
        node: usize,
        what: fn(&Ask) -> bool,
        fate: Fate,
    ) {
        self.rules.push(Rule {
            node,
            what,
            fate,
            times,
        });
    }

    /// How many requests of that kind a node has sent.
    pub(super) fn count(&self, node: usize, what: fn(&Ask) -> bool) -> usize {
        let of_node = self.asked.iter().filter(|(_, n, _)| *n == node);
        of_node.filter(|(_, _, ask)| what(ask)).count()
    }

    pub(super) fn pause(&mut self, node: usize, wait: Duration) {
        self.nodes[node].paused = true;
        self.after(wait, move |w| w.resume(node));
    }

    // ---- operators

    fn touch(&mut self, key: &Key) {
        let entry = self.store.keys.get(key);
        self.touched.extend(entry.map(|e| e.create_revision));
    }

    pub(super) fn delete(&mut self, key: &Key) {
        self.touch(key);
        self.store.delete(key);
        self.publish();
    }

    pub(super) fn revoke(&mut self, lease: i64) {
        for key in self.store.keys_of(lease) {
            self.touch(&key);
        }
        self.store.revoke(lease);
        self.publish();
    }

    pub(super) fn overwrite(&mut self, key: &Key) {
        self.touch(key);
        // What they created themselves stays theirs.
        let theirs = self
            .store
            .keys
            .get(key)
            .is_some_and(|e| *e.value == *b"anew");
        let value: &[u8] = if theirs { b"anew" } else { b"somebody else's" };
        self.store.put(key, value, 0);
        self.publish();
    }

    /// Deletes and creates again, seen by watchers in one message.
    pub(super) fn recreate(&mut self, key: &Key, lease: i64) {
        self.touch(key);
        self.store.delete(key);
        let value = (*b"anew").into();
        let key = Arc::clone(key);
        let lease = if self.store.leases.contains_key(&lease) {
            lease
        } else {
            0
        };
        self.store.write([Write::Put { key, value, lease }]);
        self.publish();
    }

    /// Operators take away what they left themselves. What they wrote over is for its owner, while that lives.
    pub(super) fn tidy(&mut self) {
        let living = self.nodes.iter().filter(|n| !n.closed());
        let mut owned = Vec::new();
        for note in living.flat_map(|n| &n.notes) {
            if let Note::LeaseGranted { lease, .. } = note {
                owned.extend(self.prefixes().iter().map(|p| key_of(p, *lease)));
            }
        }
        let left = self.store.keys.values().filter(|e| e.lease == 0);
        let left = left.filter(|e| *e.value == *b"anew" || !owned.contains(&e.key));
        for key in left.map(|e| Arc::clone(&e.key)).collect::<Vec<_>>() {
            self.store.delete(&key);
        }
        self.publish();
    }

    // ---- what is so

    /// Who leads by its own clock.
    pub(super) fn leader(&self, prefix: &[u8]) -> Option<usize> {
        (0..self.nodes.len()).find(|n| self.nodes[*n].valid(prefix, self.now).is_some())
    }

    pub(super) fn leads(&self, node: usize) -> bool {
        self.leader(E) == Some(node)
    }

    /// Everybody stands, in that order, and the first leads.
    pub(super) fn seated(nodes: usize) -> Self {
        let mut world = World::new(nodes, 1);
        for node in 0..nodes {
            world.campaign(node);
            world.run(Duration::from_millis(20));
        }
        assert!(world.leads(0));
        world
    }

    // ---- what must be so, at every step

    /// I1.
    pub(super) fn check(&mut self) {
        for prefix in self.prefixes() {
            let valid = self.nodes.iter().enumerate();
            let mut valid: Vec<_> = valid
                .flat_map(|(i, n)| n.held(&prefix, self.now).map(move |t| (t.token, i)))
                .collect();
            valid.sort_unstable();
            let seats = seats_of(&prefix);
            let mut older = 0;
            for (index, (token, _)) in valid.iter().enumerate() {
                assert!(
                    older < seats || self.restored,
                    "{:?}: too many hold {}: {valid:?} as (token, node)",
                    self.now,
                    String::from_utf8_lossy(&prefix),
                );
                let touched = self.touched.contains(token);
                older += usize::from(!touched);
                if touched && index + seats < valid.len() {
                    let (_, last) = self.overlaps.entry(*token).or_insert((self.now, self.now));
                    *last = self.now;
                }
            }
        }
    }

    /// I2 and I4. Whose key somebody took away may still see itself first in events that reach it late.
    pub(super) fn check_election(&mut self, node: usize, prefix: Key, token: i64) {
        let mut queue = self.store.queue(&prefix);
        // A partition's key is its own queue.
        if let Some(own) = self.store.keys.get(&prefix) {
            queue = vec![own.clone()];
        }
        let older = queue.iter().filter(|e| e.create_revision < token).count();
        let stands = queue.iter().any(|e| e.create_revision == token);
        let gone = self.touched.contains(&token) || self.restored;
        assert!(
            older < seats_of(&prefix) && (stands || gone),
            "node {node} leads with {token}, behind {older} in {queue:?}"
        );
        let before = self.elected.iter().filter(|e| e.prefix == prefix);
        let newest = before.map(|e| e.token).max().unwrap_or_default();
        assert!(
            newest < token || gone || seats_of(&prefix) > 1,
            "token {token} of node {node} after {newest}"
        );
        self.elected.push(Elected {
            node,
            prefix,
            token,
        });
    }

    /// A key, or its lease, is given up only after the work under it has ended or its time has passed.
    pub(super) fn check_release(&mut self, node: usize, ask: &Ask) {
        let n = &self.nodes[node];
        let now = n.local(self.now);
        for term in n.terms.iter().filter(|t| !t.joined && now < t.cutoff()) {
            let released = match ask {
                Ask::Delete {
                    key,
                    create_revision,
                } => *key == term.key && *create_revision == term.token,
                Ask::Release { keys } => keys
                    .iter()
                    .any(|(key, created)| *key == term.key && *created == term.token),
                Ask::Revoke { lease } => self
                    .store
                    .keys
                    .get(&term.key)
                    .is_some_and(|e| e.create_revision == term.token && e.lease == *lease),
                _ => false,
            };
            assert!(
                !released,
                "node {node} gives up {} while its work goes on: {ask:?}",
                term.token
            );
        }
    }

    /// I5 and I6, once everything has settled: one leader of every election, whoever stands has a place, and
    /// nothing else is left in etcd.
    pub(super) fn check_settled(&self) {
        let mut owned = Vec::new();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, n)| !n.closed()) {
            for slot in node.stood.values().chain(&node.permits) {
                let seat = &node.seats[slot];
                let place = node.machine.stands(*slot).then_some(seat.standing);
                match place {
                    Some(Some(Standing::Waiting { .. } | Standing::Leading { .. })) => {
                        owned.extend(node.own_key(*slot));
                    }
                    Some(other) => panic!("node {index} is stuck: {other:?}"),
                    None => assert!(seat.ended.is_some(), "node {index} never left: {seat:?}"),
                }
            }
        }
        for prefix in self.prefixes() {
            let queue = self.store.queue(&prefix);
            for entry in &queue {
                assert!(owned.contains(&entry.key), "nobody's key: {entry:?}");
            }
            let held = self.nodes.iter().flat_map(|n| n.held(&prefix, self.now));
            let mut held: Vec<_> = held.map(|t| t.token).collect();
            held.sort_unstable();
            let eldest = queue.iter().take(seats_of(&prefix));
            let eldest: Vec<_> = eldest.map(|e| e.create_revision).collect();
            assert_eq!(held, eldest, "the eldest lead");
        }
        assert_eq!(
            self.store.keys.len(),
            owned.len(),
            "every key is there: {owned:?}"
        );
        let held: Vec<_> = self
            .nodes
            .iter()
            .filter_map(super::node::Node::lease)
            .collect();
        for lease in self.store.leases.keys() {
            assert!(held.contains(lease), "a lease is left: {lease:x}");
        }
    }
}
