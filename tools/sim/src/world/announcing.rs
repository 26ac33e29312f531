//! Announces values in candidates' keys, and checks the results. No write replaces a newer value or another session's.
//! A value that was confirmed to its caller stays in the key until a newer one replaces it.

use std::collections::BTreeMap;

use super::World;
use super::anchors::plain;
use super::promise::Invariant;
use super::store::Key;
use crate::mutant::Mutant;
use eldest_core::action::{Answer, Ask, RequestError, SlotId};

/// The values that the callers of one node announced, and the answers.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    tickets: u64,
    /// The calls that wait for an answer: the candidate, and the number of its value.
    calls: BTreeMap<u64, (SlotId, u64)>,
    /// The number of values that each candidate announced.
    values: BTreeMap<SlotId, u64>,
    /// The newest value of each candidate whose announcement was confirmed to its caller.
    confirmed: BTreeMap<SlotId, u64>,
}

/// The first ticket of these calls; tickets of tests are smaller.
const FIRST_TICKET: u64 = 1 << 32;

/// Returns the session that wrote a value, the candidate, and the number of the value among the candidate's own. A
/// session's candidates in an election follow one another, and a late join of one may put the key of the next. The
/// node's place does not matter.
fn parts(value: &[u8]) -> Option<(&str, (SlotId, u64))> {
    let value = plain(value).rsplit(|byte| b"|~".contains(byte)).next()?;
    let (candidate, number) = std::str::from_utf8(value).ok()?.rsplit_once('.')?;
    let (session, slot) = candidate.rsplit_once('.')?;
    Some((session, (slot.parse().ok()?, number.parse().ok()?)))
}

impl World {
    /// Returns the value with that number of a candidate; a join puts number 0.
    pub(super) fn value(&self, node: usize, slot: SlotId, number: u64) -> Key {
        let life = self.lives[node];
        self.tagged(node, &format!("{node}.{life}.{slot}.{number}"))
    }

    /// Makes the node's candidate announce its next value.
    pub(crate) fn announce(&mut self, node: usize, prefix: &'static [u8]) {
        if self.nodes[node].paused {
            return;
        }
        self.command(node, move |w| {
            let n = &mut w.nodes[node];
            let Some(slot) = n.candidate(prefix).map(|(slot, _)| slot) else {
                return;
            };
            if n.closed() {
                return;
            }
            let ticket = FIRST_TICKET + n.announced.tickets;
            n.announced.tickets += 1;
            let number = n.announced.values.entry(slot).or_default();
            *number += 1;
            let number = *number;
            n.announced.calls.insert(ticket, (slot, number));
            let value = w.value(node, slot, number);
            w.give(node, |m, now| m.proclaim(now, slot, value, ticket));
        });
    }

    /// Records the answer to a call.
    pub(super) fn proclaimed(
        &mut self,
        node: usize,
        ticket: u64,
        result: &Result<bool, RequestError>,
    ) {
        let announced = &mut self.nodes[node].announced;
        let Some((slot, number)) = announced.calls.remove(&ticket) else {
            assert!(ticket < FIRST_TICKET, "a call is answered once");
            return;
        };
        if *result != Ok(true) {
            self.tally.add("values not announced", 1);
            return;
        }
        let newest = announced.confirmed.entry(slot).or_default();
        *newest = number.max(*newest);
        self.tally.add("values announced", 1);
        if let Err(what) = self.check_announced(node, slot) {
            self.broken(Invariant::Announced, what);
        }
    }

    /// Checks that the candidate's key, if it still exists, has the value reported to its caller, or a later one.
    fn check_announced(&self, node: usize, slot: SlotId) -> Result<(), String> {
        let n = &self.nodes[node];
        let own = n.core.own(slot);
        let (Some(confirmed), Some(own)) = (n.announced.confirmed.get(&slot), own) else {
            return Ok(());
        };
        let entry = self.store.entry(&own.key);
        let Some(entry) = entry.filter(|e| own.is(e) && e.lease == own.lease) else {
            return Ok(());
        };
        match parts(&entry.value) {
            Some((_, value)) if value >= (slot, *confirmed) => Ok(()),
            _ => {
                let value = String::from_utf8_lossy(&entry.value);
                Err(format!(
                    "node {node} learned that its value {confirmed} is announced, and {value} is"
                ))
            }
        }
    }

    /// Checks that every confirmed value is in its key, and that every call was answered.
    pub(super) fn all_is_announced(&self) -> Result<(), (Invariant, String)> {
        for (node, n) in self.nodes.iter().enumerate().filter(|(_, n)| !n.closed()) {
            if let Some(call) = n.announced.calls.values().next() {
                let what = format!("node {node} announced {call:?}, and is never answered");
                return Err((Invariant::Liveness, what));
            }
            // A restored backup has the values of its time.
            for slot in n.announced.confirmed.keys().filter(|_| !self.restored) {
                self.check_announced(node, *slot)
                    .map_err(|what| (Invariant::Announced, what))?;
            }
        }
        Ok(())
    }

    /// Carries out a request that reaches etcd.
    pub(super) fn perform(&mut self, node: usize, ask: &Ask, lease: Option<i64>) -> Answer {
        match ask {
            Ask::Transact(_) => return self.transact(node, ask),
            Ask::Delete {
                key,
                state: Some(state),
                ..
            } => return self.save(key, state, ask),
            _ => {}
        }
        let Ask::Proclaim { own, value, .. } = ask else {
            return self.store.perform(self.now, ask, lease);
        };
        let before = self.store.entry(&own.key);
        let mut ask = ask.clone();
        if let (Some(Mutant::AnnouncesBlindly), Ask::Proclaim { mod_revision, .. }, Some(entry)) =
            (self.mutant, &mut ask, &before)
        {
            *mod_revision = entry.mod_revision;
        }
        let answer = self.store.perform(self.now, &ask, lease);
        let written = matches!(answer, Answer::Proclaimed { held: Some(_), .. });
        if let (true, Some(before), Some(new)) = (written, before, parts(value)) {
            let older = |old: (&str, (SlotId, u64))| old.0 == new.0 && old.1 <= new.1;
            // A key that was put again at its path and under its lease may be the key of a join whose answer was lost.
            let adopted = *before.value == *b"again";
            if !adopted && !parts(&before.value).is_some_and(older) {
                let [old, new] = [&before.value, value].map(|v| String::from_utf8_lossy(v));
                let what = format!("node {node} replaces the value {old} by {new}");
                self.broken(Invariant::Announced, what);
            }
        }
        answer
    }
}
