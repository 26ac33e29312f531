//! Observes, and checks the states that observers are shown: states that the store had, in their order, each complete
//! as of its stated time, and at rest the present.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::World;
use super::promise::Invariant;
use super::store::Key;
use super::trace::keys;
use eldest_core::action::{Action, SlotId};
use eldest_core::kv::{Change, Entry, Reach};
use eldest_core::queue::Queue;
use eldest_core::time::Time;

/// The slots of observers count down from here; those of tests are above.
const LAST_SLOT: SlotId = u64::MAX - (1 << 32);

/// An observer of a node.
#[derive(Debug)]
pub(crate) struct Look {
    /// The index of its prefix among the pasts of the world.
    past: usize,
    /// The revision of the state that it was shown last.
    shown: Option<i64>,
    entries: Queue,
}

/// The past states of some keys, as far as an observer may be shown them.
pub(crate) struct Past {
    prefix: Key,
    reach: Reach,
    states: Vec<State>,
}

struct State {
    revision: i64,
    at: Time,
    entries: BTreeMap<Key, Entry>,
}

impl Past {
    /// Records changes that etcd made at that time.
    fn record(&mut self, news: &[Change], at: Time) {
        for change in news {
            if !self.reach.covers(&self.prefix, change.key()) {
                continue;
            }
            let last = self.states.last();
            let revision = change.revision();
            if last.is_none_or(|last| last.revision != revision) {
                let entries = last.map(|last| last.entries.clone()).unwrap_or_default();
                self.states.push(State {
                    revision,
                    at,
                    entries,
                });
            }
            if let Some(State { entries, .. }) = self.states.last_mut() {
                match change {
                    Change::Put(entry) => entries.insert(Arc::clone(&entry.key), entry.clone()),
                    Change::Delete { key, .. } => entries.remove(key),
                };
            }
        }
    }

    /// Returns the state at that revision, and the next.
    fn around(&self, revision: i64) -> (Option<&State>, Option<&State>) {
        let later = self.states.partition_point(|s| s.revision <= revision);
        let state = later.checked_sub(1).map(|at| &self.states[at]);
        (state, self.states.get(later))
    }
}

/// Returns true if these are the entries, eldest first.
fn shows(entries: &Queue, truth: &BTreeMap<Key, Entry>) -> bool {
    let mut truth: Vec<_> = truth.values().collect();
    truth.sort_by_key(|entry| (entry.create_revision, &entry.key));
    entries.iter().map(|entry| &**entry).eq(truth)
}

impl World {
    /// Starts an observer of the prefix on that node.
    pub(crate) fn observe_prefix(
        &mut self,
        node: usize,
        prefix: &[u8],
        reach: Reach,
    ) -> Option<SlotId> {
        if self.nodes[node].paused || self.nodes[node].closed() {
            return None;
        }
        let alike = |past: &Past| *past.prefix == *prefix && past.reach == reach;
        let past = self.pasts.iter().position(alike).unwrap_or_else(|| {
            self.pasts.push(Past {
                prefix: prefix.into(),
                reach,
                states: vec![State {
                    revision: self.store.revision(),
                    at: self.now,
                    entries: self.store.state(prefix, reach),
                }],
            });
            self.pasts.len() - 1
        });
        self.looks += 1;
        let slot = LAST_SLOT - self.looks;
        let look = Look {
            past,
            shown: None,
            entries: Queue::default(),
        };
        self.nodes[node].looks.insert(slot, look);
        let prefix = Arc::clone(&self.pasts[past].prefix);
        self.command(node, move |w| {
            w.give(node, |m, now| m.observe(now, slot, prefix, reach));
        });
        Some(slot)
    }

    /// Returns the prefix that an observer reads.
    pub(super) fn looks_at(&self, look: &Look) -> &Key {
        &self.pasts[look.past].prefix
    }

    /// Ends the observer of that slot.
    pub(crate) fn stop_observing(&mut self, node: usize, slot: SlotId) {
        if !self.nodes[node].paused && self.nodes[node].looks.remove(&slot).is_some() {
            self.command(node, move |w| w.give(node, |m, _| m.unobserve(slot)));
        }
    }

    /// Observes for as long as the node lives, unless it already does.
    pub(crate) fn start_observing(&mut self, node: usize) {
        let n = &self.nodes[node];
        let Some((prefix, reach)) = n.member.looks.at(self.plan.beside) else {
            return;
        };
        let stays = |slot: &SlotId| n.lasting_look == Some(*slot);
        if n.looks.keys().any(stays) {
            return;
        }
        let slot = self.observe_prefix(node, prefix, reach);
        self.nodes[node].lasting_look = slot;
    }

    /// Records changes that etcd made.
    pub(super) fn record_past(&mut self, news: &[Change]) {
        for past in &mut self.pasts {
            past.record(news, self.now);
        }
    }

    /// Checks a state that an observer is shown.
    pub(super) fn shown(&mut self, node: usize, action: &Action) {
        let Action::Observed {
            slot,
            revision,
            entries,
            as_of,
        } = action
        else {
            return;
        };
        let Some(look) = self.nodes[node].looks.get_mut(slot) else {
            return;
        };
        let before = look.shown.replace(*revision);
        look.entries.clone_from(entries);
        self.tally.add("states shown to observers", 1);
        let past = &self.pasts[look.past];
        let (state, _) = past.around(*revision);
        let right = state.is_some_and(|state| shows(entries, &state.entries));
        if before >= Some(*revision) || !right {
            let prefix = String::from_utf8_lossy(&past.prefix);
            let shown = keys(entries.iter().map(|entry| &**entry));
            let what = format!("node {node} is shown {prefix} at {revision} as {shown}");
            self.broken(Invariant::Shown, what);
        }
        self.check_age(node, *slot, *as_of);
    }

    /// Checks the age that each observer of a node is given.
    pub(super) fn check_ages(&mut self, node: usize) {
        let n = &self.nodes[node];
        let ages = n.looks.keys().filter_map(|slot| {
            let as_of = n.complete.get(slot)?.as_of(n.confirmed)?;
            Some((*slot, as_of))
        });
        for (slot, as_of) in ages.collect::<Vec<_>>() {
            self.check_age(node, slot, as_of);
        }
    }

    /// Checks that an observer shows every change that etcd had made by then.
    fn check_age(&mut self, node: usize, slot: SlotId, as_of: Time) {
        let n = &self.nodes[node];
        let look = &n.looks[&slot];
        let past = &self.pasts[look.past];
        let (_, missed) = past.around(look.shown.unwrap_or_default());
        let Some(missed) = missed.filter(|missed| n.local(missed.at) < as_of) else {
            return;
        };
        let prefix = String::from_utf8_lossy(&past.prefix);
        let (shown, missed) = (look.shown, missed.revision);
        let what = format!(
            "node {node} shows {prefix} at {shown:?}, and is assured that it has seen {missed}"
        );
        self.broken(Invariant::Shown, what);
    }

    /// Removes an observer that learned that it may not read.
    pub(super) fn observer_failed(&mut self, node: usize, slot: SlotId) {
        self.nodes[node].looks.remove(&slot);
        self.tally.add("observers refused", 1);
    }

    /// Checks that every observer shows the present state, and knows that it is recent.
    pub(super) fn all_is_shown(&self) -> Result<(), (Invariant, String)> {
        for (node, n) in self.nodes.iter().enumerate().filter(|(_, n)| !n.closed()) {
            let lasting = n
                .lasting_look
                .is_some_and(|slot| n.looks.contains_key(&slot));
            if n.observes() && !lasting {
                let what = format!("node {node} does not look on");
                return Err((Invariant::Liveness, what));
            }
            for (slot, look) in &n.looks {
                let past = &self.pasts[look.past];
                let truth = self.store.state(&past.prefix, past.reach);
                let complete = n.complete.get(slot);
                let as_of = complete.and_then(|complete| complete.as_of(n.confirmed));
                let age = as_of.map(|as_of| n.local(self.now).since(as_of));
                let prefix = String::from_utf8_lossy(&past.prefix);
                if !shows(&look.entries, &truth) {
                    let shown = keys(look.entries.iter().map(|entry| &**entry));
                    let what = format!("at rest node {node} is shown {prefix} as {shown}");
                    return Err((Invariant::Present, what));
                }
                if age.is_none_or(|age| age > self.settings.ttl) {
                    let what = format!("at rest {prefix} is {age:?} old to node {node}");
                    return Err((Invariant::Present, what));
                }
            }
        }
        Ok(())
    }
}
