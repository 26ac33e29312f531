//! Checks the invariants after every step, at every election and release, and at rest.

use std::sync::Arc;

use super::node::Node;
use super::promise::{Broken, Invariant};
use super::store::Key;
use super::{Prize, World};
use eldest_core::action::{Ask, Status};
use eldest_core::kv::Entry;
use eldest_core::queue::{excludes, is_shared};

impl World {
    /// Records a broken invariant. Only the first one counts, because it may cause the others. A restore deletes keys
    /// of running terms, and uses revisions again; after it, the promises are that elections recover and that nothing
    /// is left behind.
    pub(crate) fn broken(&mut self, invariant: Invariant, what: String) {
        let promised = matches!(
            invariant,
            Invariant::Liveness | Invariant::Leaks | Invariant::Present | Invariant::Panic
        );
        if self.restored && !promised {
            return;
        }
        let at = self.now;
        let broken = Broken {
            invariant,
            at,
            what,
        };
        assert!(!self.recording, "{broken}");
        self.says(None, || format!("BROKEN: {broken}"));
        self.broken.get_or_insert(broken);
    }

    /// Checks the invariants after every step.
    pub(super) fn check(&mut self) {
        self.check_terms();
        let astray = |node: &Node| {
            let mut watches = node.core.watches();
            let astray = watches.find(|(.., is_in_use)| !is_in_use);
            astray.map(|(watch, slot, _)| {
                format!("watch {watch} is for slot {slot}, which is forgotten")
            })
        };
        if let Some(what) = self.nodes.iter().find_map(astray) {
            self.broken(Invariant::Leaks, what);
        }
    }

    /// Checks I1 for prizes with more open terms than may be valid.
    fn check_terms(&mut self) {
        let mut valid = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            for term in node.valid_terms(self.now) {
                let key = Arc::clone(&term.key);
                valid.push((term.prize, term.token, index, self.is_beyond(node), key));
            }
        }
        valid.sort_unstable();
        let now = self.now;
        for node in 0..self.nodes.len() {
            while let Some(prize) = self.nodes[node].past(now) {
                self.close_term(prize);
            }
        }
        for group in valid.chunk_by(|a, b| a.0 == b.0) {
            self.check_prize(group);
        }
    }

    /// Checks I1 for one prize. Terms that share do not count against each other.
    fn check_prize(&mut self, valid: &[(usize, i64, usize, bool, Key)]) {
        let place = valid[0].0;
        let prize = &self.prizes[place];
        let capacity = prize.capacity;
        if valid.len() <= capacity || self.restored {
            return;
        }
        let now = self.now;
        // Overlaps with a node whose clock exceeds the promised drift are counted separately.
        let beyond = valid.iter().any(|(.., beyond, _)| *beyond);
        let mut older: Vec<&Key> = Vec::new();
        for (index, (_, token, .., key)) in valid.iter().enumerate() {
            let touched = self.was_touched(place, *token);
            let ahead = older.iter().filter(|older| excludes(older, key)).count();
            if ahead >= capacity && !beyond {
                let prefix = String::from_utf8_lossy(&prize.prefix).into_owned();
                let valid: Vec<_> = valid.iter().map(|(_, token, n, ..)| (token, n)).collect();
                let what = format!("too many hold {prefix}: {valid:?} as (token, node)");
                self.broken(Invariant::Overlap, what);
                return;
            }
            if !touched {
                older.push(key);
            }
            let younger = valid[index + 1..].iter();
            if younger.filter(|(.., other)| excludes(key, other)).count() < capacity {
                continue;
            }
            let class = if beyond {
                &mut self.skewed
            } else if touched {
                &mut self.overlaps
            } else {
                continue;
            };
            let (first, last) = class.entry((place, *token)).or_insert((now, now));
            *last = now;
            let (took, most) = (last.since(*first), self.settings.ttl_and_turns(self.turns));
            if !beyond && took > most && !self.recording {
                let what = format!("term {token} overlapped the next for {took:?}");
                self.broken(Invariant::Early, what);
                return;
            }
        }
    }

    /// Returns true if another client deleted or overwrote the key of a term, or deleted the anchor of its session a
    /// short time ago.
    pub(super) fn was_touched(&self, prize: usize, token: i64) -> bool {
        let prefix = &self.prizes[prize].prefix;
        let touched = self.touched.range((token, Key::default())..);
        let mut with_it = touched.take_while(|(revision, _)| *revision == token);
        // A partition's key is its own prefix.
        with_it.any(|(_, key)| key == prefix || (prefix.ends_with(b"/") && key.starts_with(prefix)))
            || self.lost_its_anchor(prize, token)
    }

    /// Returns the queue of a prize, eldest first. The key of a partition is its own queue.
    fn queue_of(&self, prefix: &Key) -> Vec<Entry> {
        if prefix.ends_with(b"/") {
            self.store.queue(prefix)
        } else {
            self.store.entry(prefix).into_iter().collect()
        }
    }

    /// Checks I2 and I4. A node whose key was deleted by another client may still see itself first in late events.
    pub(super) fn check_election(&mut self, node: usize, prize: usize, token: i64) {
        let prefix = Arc::clone(&self.prizes[prize].prefix);
        let capacity = self.prizes[prize].capacity;
        let queue = self.queue_of(&prefix);
        let terms = self.nodes[node].terms.iter();
        let term = terms.rev().find(|t| t.prize == prize && t.token == token);
        let key = term.map_or_else(|| Arc::clone(&prefix), |term| Arc::clone(&term.key));
        let older = |e: &&Entry| e.create_revision < token && excludes(&e.key, &key);
        let older = queue.iter().filter(older).count();
        let stands = queue.iter().any(|e| e.create_revision == token);
        let gone =
            self.was_touched(prize, token) || self.restored || self.is_beyond(&self.nodes[node]);
        if older >= capacity || !(stands || gone) {
            let what = format!(
                "node {node} leads with {token}, behind {older} in {}",
                super::trace::keys(&queue)
            );
            self.broken(Invariant::Seniority, what);
        }
        let Prize {
            newest,
            newest_alone,
            ..
        } = self.prizes[prize];
        // An older sharer may learn later that it holds.
        let shared = is_shared(&key);
        let before = if shared { newest_alone } else { newest };
        if token <= before && !gone && capacity == 1 {
            let what = format!("token {token} of node {node} after {newest}");
            self.broken(Invariant::Tokens, what);
        }
        self.prizes[prize].newest = newest.max(token);
        if !shared {
            self.prizes[prize].newest_alone = newest_alone.max(token);
        }
        if self.recording {
            self.elected.push(super::Elected {
                node,
                prefix,
                token,
            });
        }
    }

    /// Checks that a key, or its lease, is released only after the work under it has ended or its time has passed.
    pub(super) fn check_release(&mut self, node: usize, ask: &Ask) {
        if !matches!(
            ask,
            Ask::Delete { .. } | Ask::Release { .. } | Ask::Revoke { .. }
        ) {
            return;
        }
        let n = &self.nodes[node];
        let now = n.local(self.now);
        let mut working = n.terms.iter().filter(|t| !t.joined && now < t.cutoff());
        let released = working.find(|term| match ask {
            Ask::Revoke { lease } => self
                .store
                .entry(&term.key)
                .is_some_and(|e| e.create_revision == term.token && e.lease == *lease),
            _ => given_up(ask).any(|(key, created)| *key == term.key && created == term.token),
        });
        if let Some(token) = released.map(|term| term.token) {
            let what = format!(
                "node {node} gives up {token} while its work goes on: {}",
                super::trace::ask(ask)
            );
            self.broken(Invariant::Release, what);
        }
    }

    /// Checks that work under a term that its own clock finds valid has its key. So no work continues beyond the cutoff
    /// of a term, whatever stopped the process, its timers or its driver.
    pub(super) fn check_work(&mut self, node: usize, prize: usize, (key, token): (&Key, i64)) {
        let excused = self.was_touched(prize, token) || self.is_beyond(&self.nodes[node]);
        if !excused && !self.store.holds(key, token) {
            let what = format!("node {node} works under {token}, whose key is gone");
            self.broken(Invariant::Cutoff, what);
        }
    }

    /// Records a delete that reaches etcd, if it hits a key that its session holds at this moment.
    pub(super) fn is_held(&mut self, node: usize, alive: bool, ask: &Ask) -> bool {
        if !alive {
            return false;
        }
        let blind = self.mutant == Some(crate::mutant::Mutant::DeletesBlindly);
        let held = given_up(ask).find(|(key, created)| {
            let entry = self.store.entry(key);
            let hit = entry.filter(|e| blind || e.create_revision == *created);
            hit.is_some_and(|e| self.nodes[node].holds(key, e.create_revision))
        });
        let Some((key, _)) = held else {
            return false;
        };
        let key = String::from_utf8_lossy(key).into_owned();
        let what = format!("node {node} holds {key}, which it had asked to delete");
        self.broken(Invariant::Held, what);
        true
    }

    /// Checks I5 and I6 at rest: every election has one leader, every candidate has a place, and nothing else is left
    /// in etcd.
    pub(crate) fn settled(&self) -> Result<(), (Invariant, String)> {
        let mut owned = self.keys_of_candidates()?;
        for prize in &self.prizes {
            self.eldest_lead(prize, &mut owned)?;
        }
        let anchors = self.nodes.iter().filter(|n| !n.closed());
        owned.extend(anchors.filter_map(|n| self.anchor(n)));
        let marks = self.marks();
        let (states, records) = (self.states(), self.records());
        let others = marks.len() + states.len() + records.len();
        if self.store.entries().count() != owned.len() + others {
            let keys = self.store.entries();
            let keys: Vec<_> = keys
                .map(|e| String::from_utf8_lossy(&e.key).into_owned())
                .collect();
            let what = format!("{} keys are somebody's, of {keys:?}", owned.len());
            return Err((Invariant::Leaks, what));
        }
        let held = self.nodes.iter().filter_map(Node::lease);
        let others = marks.iter().chain(&records).map(|entry| entry.lease);
        let held: Vec<_> = held.chain(others).collect();
        let left = self
            .store
            .leases()
            .keys()
            .find(|lease| !held.contains(lease));
        if let Some(lease) = left {
            return Err((Invariant::Leaks, format!("a lease is left: {lease:x}")));
        }
        self.all_give_way()?;
        self.all_own_their_share()?;
        self.all_is_announced()?;
        self.all_states_stand(&states)?;
        self.all_is_shown()
    }

    /// Returns the keys of all candidates, each of which waits or leads, or has left.
    fn keys_of_candidates(&self) -> Result<Vec<Key>, (Invariant, String)> {
        let mut owned = Vec::new();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, n)| !n.closed()) {
            for slot in node.stood.values().chain(&node.permits) {
                let candidate = &node.candidates[slot];
                let place = node.core.is_candidate(*slot).then_some(candidate.status);
                match place {
                    Some(Some(
                        Status::Waiting { .. } | Status::Present | Status::Leading { .. },
                    )) => {
                        owned.extend(node.own_key(*slot));
                    }
                    Some(other) => return stuck(format!("node {index} is stuck: {other:?}")),
                    None if candidate.ended.is_none() => {
                        return stuck(format!("node {index} never left: {candidate:?}"));
                    }
                    None => {}
                }
            }
        }
        Ok(owned)
    }

    /// Checks that every key of the prize is owned, and that the eldest lead. Adds the key of a partition to the owned
    /// ones.
    fn eldest_lead(&self, prize: &Prize, owned: &mut Vec<Key>) -> Result<(), (Invariant, String)> {
        let queue = self.queue_of(&prize.prefix);
        // The key of a partition has an owner for as long as a node acts under it.
        if let Some(own) = queue.iter().find(|own| own.key == prize.prefix)
            && self.nodes.iter().any(|n| n.lease() == Some(own.lease))
        {
            owned.push(Arc::clone(&own.key));
        }
        let stray = queue.iter().find(|entry| !owned.contains(&entry.key));
        if let Some(entry) = stray {
            let what = format!("nobody's key: {}", super::trace::keys([entry]));
            return Err((Invariant::Leaks, what));
        }
        let nodes = self.nodes.iter();
        let held = nodes.flat_map(|n| n.held(&prize.prefix, self.now));
        let mut held: Vec<_> = held.map(|t| t.token).collect();
        held.sort_unstable();
        let ahead = |e: &Entry| {
            let older = queue
                .iter()
                .take_while(|o| o.create_revision < e.create_revision);
            older.filter(|o| excludes(&o.key, &e.key)).count()
        };
        let eldest = queue.iter().filter(|e| ahead(e) < prize.capacity);
        let eldest: Vec<_> = eldest.map(|e| e.create_revision).collect();
        if held != eldest {
            return stuck(format!("{held:?} lead, but the eldest are {eldest:?}"));
        }
        Ok(())
    }
}

/// Returns the keys that a request deletes because their session gives them up, each with its create revision.
fn given_up(ask: &Ask) -> impl Iterator<Item = (&Key, i64)> {
    let (alone, several) = match ask {
        Ask::Delete {
            key,
            create_revision,
            ..
        } => (Some((key, *create_revision)), &[][..]),
        Ask::Release { keys } => (None, &keys[..]),
        _ => (None, &[][..]),
    };
    let several = several.iter().map(|(key, created)| (key, *created));
    alone.into_iter().chain(several)
}

fn stuck<T>(what: String) -> Result<T, (Invariant, String)> {
    Err((Invariant::Liveness, what))
}
