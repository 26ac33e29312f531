//! Lets ended terms leave states, and checks each: the transaction that deletes its term's key saves it, or none does,
//! and the caller learns which.

use std::sync::Arc;

use super::World;
use super::cluster::{ELECTIONS, STATES};
use super::promise::Invariant;
use super::store::Key;
use eldest_core::action::{Answer, Ask, FinalState, Left, TermId};
use eldest_core::kv::Entry;

/// Returns the token of the term that left the state.
fn token_of(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

impl World {
    /// Returns the state that the term leaves when its work has ended in time.
    pub(super) fn state_of(&mut self, node: usize, term: TermId) -> Option<FinalState> {
        let every = i64::from(self.plan.leaves);
        let n = &mut self.nodes[node];
        let local = n.local(self.now);
        let term = n.terms.iter().find(|t| t.id == term && !t.joined)?;
        let is_chosen = every > 0 && term.token % every == 0 && ELECTIONS.contains(&&*term.prefix);
        if !is_chosen || local >= term.cutoff() {
            return None;
        }
        let name = term.prefix.strip_suffix(b"/")?;
        let key = Key::from([STATES, name].concat());
        let state = FinalState {
            key: Arc::clone(&key),
            value: term.token.to_string().into_bytes().into(),
        };
        n.leaves.insert(term.id, (key, term.token));
        Some(state)
    }

    /// Returns true if the request saves a state, and etcd does not permit that to the node.
    pub(super) fn may_not_save(&self, node: usize, ask: &Ask) -> bool {
        self.plan.saves_none == Some(node) && matches!(ask, Ask::Delete { state: Some(_), .. })
    }

    /// Carries out a deletion that saves a state, when it reaches etcd.
    pub(super) fn save(&mut self, key: &Key, state: &FinalState, ask: &Ask) -> Answer {
        let written = |w: &Self| w.store.entry(&state.key).map(|e| e.mod_revision);
        let (writer, before) = (self.store.entry(key), written(self));
        let answer = self.store.perform(self.now, ask, None);
        let Some(token) = token_of(&state.value).filter(|_| written(self) != before) else {
            return answer;
        };
        let is_writer = writer.is_some_and(|writer| writer.create_revision == token);
        let saved = self.saved_states.entry(Arc::clone(&state.key)).or_default();
        let newest = saved.last().copied();
        saved.insert(token);
        if !is_writer || self.store.contains(key) {
            let what = format!("the state of {token} is saved without the deletion of its key");
            self.broken(Invariant::States, what);
        }
        if newest >= Some(token) {
            let what = format!("the state of {token} replaces that of {newest:?}");
            self.broken(Invariant::States, what);
        }
        answer
    }

    /// Handles the report about the state of a term.
    pub(super) fn left(&mut self, node: usize, term: TermId, left: &Left) {
        let Some((key, token)) = self.nodes[node].leaves.remove(&term) else {
            let what = format!("node {node} learns twice about the state of term {term}");
            self.broken(Invariant::States, what);
            return;
        };
        let saved = self.saved_states.get(&key);
        let is_saved = saved.is_some_and(|saved| saved.contains(&token));
        // As `settle` of the library decides.
        let (is_open, found) = match left {
            Left::Saved => (false, Some(token)),
            Left::Refused { is_open, .. } => (*is_open, None),
            Left::KeyGone { found, is_open } => {
                let found = found.as_ref().and_then(|found| token_of(&found.value));
                (*is_open && found > Some(token), found)
            }
        };
        let learns = found == Some(token);
        let outcome = match (is_open, learns) {
            (true, _) => "states perhaps saved",
            (false, true) => "states saved",
            (false, false) => "states not saved",
        };
        self.tally.add(outcome, 1);
        if !is_open && learns != is_saved {
            let what = format!("node {node} learns of the state of {token}: {left:?}");
            self.broken(Invariant::States, what);
        }
    }

    /// Returns the states that etcd holds.
    pub(crate) fn states(&self) -> Vec<Entry> {
        self.store.children(STATES)
    }

    /// Checks, at rest, that the last state of each election is saved, and that every caller has learnt its outcome.
    pub(super) fn all_states_stand(&self, states: &[Entry]) -> Result<(), (Invariant, String)> {
        let nodes = self.nodes.iter().enumerate();
        for (node, n) in nodes.filter(|(_, n)| !n.closed()) {
            if let Some((_, token)) = n.leaves.values().next() {
                let what = format!("node {node} never learns of the state of {token}");
                return Err((Invariant::Liveness, what));
            }
        }
        for (key, saved) in self.saved_states.iter().filter(|_| !self.restored) {
            let state = states.iter().find(|state| state.key == *key);
            let state = state.and_then(|state| token_of(&state.value));
            if state.as_ref() != saved.last() {
                let what = format!("the last state is that of {state:?}, not of {saved:?}");
                return Err((Invariant::States, what));
            }
        }
        Ok(())
    }
}
