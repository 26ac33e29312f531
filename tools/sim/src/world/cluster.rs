//! Carries out the actions of users and operators in the world, and finds the node that leads by its own clock.

use std::sync::Arc;
use std::time::Duration;

use super::World;
use super::home::MARKS;
use super::node::SimCandidate;
use super::store::{Key, Store};
use super::versions::required;
use eldest_core::Core;
use eldest_core::action::SlotId;
use eldest_core::candidate::key_of;
use eldest_core::candidate::{CandidateConfig, Permit, WatchScope};
use eldest_core::kv::Entry;
use eldest_core::reason::{EndReason, LostReason};

/// The elections of the nodes.
pub(crate) const ELECTIONS: [&[u8]; 2] = [b"e/", b"f/"];
/// The prefix of the keys of the states that terms leave.
pub(super) const STATES: &[u8] = b"~state/";
/// The prefix of the group.
pub(crate) const GROUP: &[u8] = b"g/";
/// The prefix of a semaphore with two permits, and of its surroundings.
pub(crate) const PERMITS: &[u8] = b"s/2/";
pub(crate) const FAMILY: &[u8] = b"s/";

/// Returns how many may hold below that prefix.
pub(crate) fn capacity_of(prefix: &[u8]) -> usize {
    let capacity = prefix.strip_prefix(FAMILY).unwrap_or(b"1/");
    let capacity = capacity.split(|byte| *byte == b'/').next();
    let capacity = capacity.and_then(|text| std::str::from_utf8(text).ok());
    capacity.and_then(|text| text.parse().ok()).unwrap_or(1)
}

impl World {
    // ---- users

    /// Joins an election, unless the driver's registry says that this session already did.
    pub(crate) fn join(
        &mut self,
        node: usize,
        prefix: &[u8],
        follow: WatchScope,
        persistent: bool,
    ) -> Option<SlotId> {
        let config = CandidateConfig {
            watch_scope: follow,
            persistent,
            gives_way: true,
            warm_within: self.nodes[node].member.warm_within,
            required: required(self.nodes[node].member.version),
            ..CandidateConfig::default()
        };
        self.join_as(node, prefix, config)
    }

    /// Announces the node as a member of a group, unless its session already did. No member leads.
    pub(crate) fn join_group(&mut self, node: usize, prefix: &[u8]) -> Option<SlotId> {
        let watch_scope = match self.nodes[node].settings.challenges() {
            Some(_) => WatchScope::Auto,
            None => WatchScope::Predecessor,
        };
        let config = CandidateConfig {
            watch_scope,
            persistent: true,
            present: true,
            ..CandidateConfig::default()
        };
        self.join_as(node, prefix, config)
    }

    fn join_as(&mut self, node: usize, prefix: &[u8], config: CandidateConfig) -> Option<SlotId> {
        let n = &self.nodes[node];
        let slot = n.next_slot();
        if n.is_candidate(prefix) {
            return None;
        }
        let candidate = SimCandidate::of(prefix);
        self.stand(node, slot, candidate, self.value(node, slot, 0), config);
        Some(slot)
    }

    /// Adds a candidate to those of the node, and lets its session join with that value.
    pub(super) fn stand(
        &mut self,
        node: usize,
        slot: SlotId,
        candidate: SimCandidate,
        value: Key,
        config: CandidateConfig,
    ) {
        let prefix = Arc::clone(&candidate.prefix);
        if !config.present && config.partitions.is_none() {
            self.prize_of(&prefix);
        }
        let n = &mut self.nodes[node];
        n.candidates.insert(slot, candidate);
        if config.permit.is_some() || config.shared.is_some() {
            n.permits.push(slot);
        } else {
            n.stood.insert(Arc::clone(&prefix), slot);
        }
        self.give(node, |m, now| m.campaign(now, slot, prefix, value, config));
    }

    /// Requests a lock, or one of the permits of `PERMITS`. A shared lock is held together with others that share it. A node that
    /// got one does not join again by itself.
    pub(crate) fn acquire_as(
        &mut self,
        node: usize,
        prefix: &[u8],
        at_once: bool,
        shared: bool,
    ) -> Option<SlotId> {
        let n = &self.nodes[node];
        let slot = n.next_slot();
        let permit = prefix.starts_with(FAMILY).then(|| Permit {
            capacity: capacity_of(prefix),
            family: FAMILY.into(),
            number: slot,
        });
        // As in the session's own queue, the next task joins when the one before has left completely.
        let before = n.candidate(prefix).map(|(_, before)| before);
        let waits = before.is_some_and(|before| before.ended.is_none());
        if waits && permit.is_none() && !shared {
            return None;
        }
        let candidate = SimCandidate {
            brief: true,
            at_once,
            ..SimCandidate::of(prefix)
        };
        let config = CandidateConfig {
            watch_scope: match permit {
                Some(_) => WatchScope::Everyone,
                None => WatchScope::Predecessor,
            },
            persistent: false,
            at_once,
            permit,
            shared: shared.then_some(slot),
            ..CandidateConfig::default()
        };
        // The value is a candidate's, which would give up its place if its data centre were evacuated.
        let value = self.tagged(node, "held");
        self.stand(node, slot, candidate, value, config);
        Some(slot)
    }

    /// Releases the node's oldest hold.
    pub(crate) fn release(&mut self, node: usize, prefix: &[u8]) {
        let mut terms = self.nodes[node].terms.iter();
        let first = terms.find(|t| &*t.prefix == prefix && !t.joined);
        if let Some((slot, term)) = first.map(|t| (t.slot, t.id)) {
            self.joined(node, slot, term);
        }
    }

    /// Drops the waiting tasks.
    pub(crate) fn give_up(&mut self, node: usize, prefix: &[u8]) {
        let candidates = self.nodes[node].candidates.iter();
        let waiting = candidates
            .filter(|(_, candidate)| &*candidate.prefix == prefix && candidate.ended.is_none());
        for slot in waiting.map(|(slot, _)| *slot).collect::<Vec<_>>() {
            self.leave_slot(node, slot);
        }
    }

    pub(crate) fn leave(&mut self, node: usize, prefix: &[u8]) {
        if let Some((slot, _)) = self.nodes[node].candidate(prefix) {
            self.leave_slot(node, slot);
        }
    }

    pub(super) fn leave_slot(&mut self, node: usize, slot: SlotId) {
        self.command(node, move |w| {
            w.give(node, |m, now| m.leave(now, slot, EndReason::Left));
        });
    }

    /// Ends a term: the leader reports that its work has ended, and the term's tasks end as `Work` says.
    pub(crate) fn end(&mut self, node: usize, prefix: &[u8], reason: LostReason) {
        if let Some((slot, term)) = self.nodes[node].term_of(prefix).map(|t| (t.slot, t.id)) {
            self.command(node, move |w| {
                w.give(node, |m, now| m.end_by_leader(now, slot, term, reason));
            });
        }
    }

    /// Sets whether the candidate may join again after a term.
    pub(crate) fn hold_back(&mut self, node: usize, prefix: &[u8], held: bool) {
        if let Some((slot, _)) = self.nodes[node].candidate(prefix) {
            self.command(node, move |w| {
                w.give(node, |m, now| m.hold_back(now, slot, held));
            });
        }
    }

    /// Drops the leadership.
    pub(crate) fn drop_leadership(&mut self, node: usize, prefix: &[u8]) {
        if let Some((slot, term)) = self.nodes[node].term_of(prefix).map(|t| (t.slot, t.id)) {
            self.joined(node, slot, term);
        }
    }

    /// Makes the node keep a lease from now on, even without a candidate.
    #[cfg(test)]
    pub(crate) fn keep_lease(&mut self, node: usize) {
        self.command(node, move |w| w.give(node, Core::always_keep_lease));
    }

    pub(crate) fn close(&mut self, node: usize) {
        self.command(node, move |w| {
            // The handles of observers end with the session.
            w.nodes[node].looks.clear();
            w.give(node, Core::close);
        });
    }

    // ---- faults

    pub(crate) fn pause(&mut self, node: usize, wait: Duration) {
        self.says(Some(node), || format!("is stopped for {wait:?}"));
        self.nodes[node].paused = true;
        self.note_wake(node);
        let since = self.now;
        self.in_life(node, wait, move |w| {
            w.skip_pause(node, since);
            w.resume(node);
        });
    }

    // ---- operators

    /// Replaces etcd's data by `backup`, as from a restored snapshot: every connection breaks, every lease of the
    /// backup starts again, and the revision continues `bump` after the backup's.
    pub(crate) fn restore(&mut self, backup: &Store, bump: i64) {
        self.says(None, || {
            format!("etcd: restored to {} + {bump}", backup.revision())
        });
        self.restored = true;
        self.store.restore(self.now, backup, bump);
        for node in 0..self.nodes.len() {
            self.disturb_watches(node, true);
            let n = &mut self.nodes[node];
            n.stream = None;
            n.generation += 1;
        }
    }

    fn touch(&mut self, key: &Key) {
        let entry = self.store.entry(key);
        self.touched
            .extend(entry.map(|e| (e.create_revision, Arc::clone(key))));
    }

    pub(crate) fn delete(&mut self, key: &Key) {
        self.touch(key);
        self.store.delete(key);
        self.publish();
    }

    pub(crate) fn revoke(&mut self, lease: i64) {
        for key in self.store.keys_of(lease) {
            self.touch(&key);
        }
        self.store.revoke(self.now, lease);
        self.publish();
    }

    pub(crate) fn overwrite(&mut self, key: &Key) {
        self.touch(key);
        // Keys that other clients created stay theirs.
        let theirs = self.store.entry(key).is_some_and(|e| *e.value == *b"again");
        let value: &[u8] = if theirs { b"again" } else { b"somebody else's" };
        self.store.put(key, value, 0);
        self.publish();
    }

    /// Deletes and creates a key again, which watchers see in one message.
    pub(crate) fn recreate(&mut self, key: &Key, lease: i64) {
        self.touch(key);
        self.store.delete(key);
        let lease = if self.store.leases().contains_key(&lease) {
            lease
        } else {
            0
        };
        self.store.put(key, b"again", lease);
        self.publish();
    }

    /// Lets operators delete the keys that they created themselves. A key that they overwrote stays its owner's, if
    /// that lives and ever knew the key. A closing session reads nothing any more: it only revokes its lease.
    pub(crate) fn tidy(&mut self) {
        let living = self
            .nodes
            .iter()
            .filter(|n| !n.closed() && !n.core.is_closing());
        let mut owned = Vec::new();
        let mut known = Vec::new();
        for node in living {
            known.extend(&node.joined);
            for lease in &node.leases {
                owned.extend(self.prefixes().iter().map(|p| key_of(p, *lease)));
            }
        }
        let known = |e: &Entry| owned.contains(&e.key) && known.contains(&e.create_revision);
        let left = self.store.entries().filter(|e| e.lease == 0);
        // Only operators can delete keys that a restore brought back without a lease.
        let left = left.filter(|e| self.restored || *e.value == *b"again" || !known(e));
        let left = left.filter(|e| !e.key.starts_with(MARKS) && !e.key.starts_with(STATES));
        let copies = self.store.entries().filter(|e| self.is_copy_of_anchor(e));
        for key in left.chain(copies).map(|e| e.key).collect::<Vec<_>>() {
            self.store.delete(&key);
        }
        self.forget_shares();
        self.publish();
    }

    // ---- what is so

    /// Returns the node that leads by its own clock.
    pub(crate) fn leader(&self, prefix: &[u8]) -> Option<usize> {
        (0..self.nodes.len()).find(|n| self.nodes[*n].valid(prefix, self.now).is_some())
    }
}
