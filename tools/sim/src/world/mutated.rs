//! Breaks a rule in the adapter between core and etcd. All such code is here, so the core contains no switch that could
//! stay on.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::message::Message;
use super::step::Step;
use super::store::{Key, Store, is_in_use};
use super::{Ev, Event, World};
use crate::mutant::Mutant;
use eldest_core::action::{Answer, Ask, Join, Joined, Listed, RequestId, SlotId, TermId, WatchId};
use eldest_core::kv::{Change, Entry, Header};
use eldest_core::queue::Own;
use eldest_core::time::Time;
use eldest_core::txn::Transacted;

/// The memory of a mutated adapter.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Requests in flight, and the time at which each was sent.
    pub(crate) asks: BTreeMap<RequestId, (Time, Ask)>,
    /// The last acknowledgement.
    pub(crate) acknowledged: Option<Header>,
    /// The lease that the proxy has renewed, and for which it may repeat its answer once.
    pub(crate) renewed: Option<i64>,
    /// The create revision under which a key was first seen.
    pub(crate) created: BTreeMap<Key, i64>,
    /// Watches that etcd cancelled, unreported to the core.
    pub(crate) reopened: Vec<WatchId>,
    /// The store at the last clean read.
    pub(crate) shown: Option<Box<Store>>,
    /// The key of each watch, and whether it is a prefix.
    pub(crate) watches: BTreeMap<WatchId, (Key, bool)>,
}

impl World {
    /// Returns the seed of the next session on a node.
    pub(crate) fn seed_of(&self, node: usize, fresh: u64) -> u64 {
        match self.mutant {
            Some(Mutant::AdoptsLease) => self.nodes[node].seed,
            _ => fresh,
        }
    }

    /// Handles a request that is about to be sent. Returns true if it was answered here.
    pub(crate) fn intercepted(&mut self, node: usize, request: RequestId, ask: &Ask) -> bool {
        let Some(mutant) = self.mutant else {
            return false;
        };
        let n = &mut self.nodes[node];
        let now = n.local(self.now);
        n.memory.asks.insert(request, (now, ask.clone()));
        let (Mutant::NoVerification, Ask::Verify { key }) = (mutant, ask) else {
            return false;
        };
        let Some(header) = n.memory.acknowledged else {
            return false;
        };
        let own = |own: &&Own| own.key == *key;
        let core = &n.core;
        let mine = core.candidates().find_map(|(_, c)| c.own().filter(own));
        let entry = mine.map(|own| Entry {
            key: Arc::clone(&own.key),
            value: Key::default(),
            create_revision: own.create_revision,
            mod_revision: own.create_revision,
            lease: own.lease,
        });
        // The header is not below the known state, or it would look like another store's.
        let mut header = header;
        header.revision = self.store.revision();
        let answer = Answer::Read { header, entry };
        let event = Event::Answer {
            request,
            answer,
            stream: None,
            timeout: false,
        };
        self.schedule(self.now, node, Ev::Deliver(event));
        true
    }

    /// Returns etcd's answer as the core receives it.
    pub(crate) fn altered(&mut self, node: usize, request: RequestId, answer: Answer) -> Answer {
        let Some(mutant) = self.mutant else {
            return answer;
        };
        let header = self.store.header();
        let (ttl, lease) = (self.settings.ttl, self.nodes[node].drawn.1);
        let n = &mut self.nodes[node];
        let now = n.local(self.now);
        let Some((sent, ask)) = n.memory.asks.remove(&request) else {
            return answer;
        };
        if let Answer::Renewed { header, .. } = &answer {
            n.memory.acknowledged = Some(*header);
        }
        match (mutant, ask, answer) {
            (Mutant::ReceiveInstant, _, Answer::Renewed { ttl, header }) if !ttl.is_zero() => {
                let ttl = ttl + now.since(sent);
                Answer::Renewed { ttl, header }
            }
            (Mutant::ReceiveInstant, _, Answer::Granted { lease, ttl, header }) => {
                let ttl = ttl + now.since(sent);
                Answer::Granted { lease, ttl, header }
            }
            (Mutant::AdoptsLease, Ask::Grant { .. }, Answer::Failed(error))
                if is_in_use(&error) =>
            {
                Answer::Granted { lease, ttl, header }
            }
            (Mutant::RevokesTaken, Ask::Grant { .. }, Answer::Failed(error))
                if is_in_use(&error) =>
            {
                self.store.perform(self.now, &Ask::Revoke { lease }, None);
                Answer::Failed(error)
            }
            (
                Mutant::AdoptsDeleted,
                Ask::Delete { state: None, .. } | Ask::Release { .. },
                Answer::Failed(error),
            ) if error.ambiguous => Answer::Deleted { header },
            (Mutant::ForgetsElders, ask, answer) => without_elders(&ask, answer),
            (Mutant::TrustsExistence, _, Answer::Read { header, entry }) => Answer::Read {
                header,
                entry: entry.map(|e| n.memory.as_first_seen(e)),
            },
            (Mutant::TrustsExistence, _, Answer::Listed(Listed { header, entries })) => {
                let entries = n.memory.all_as_first_seen(entries);
                Answer::Listed(Listed { header, entries })
            }
            (_, _, answer) => answer,
        }
    }

    /// Returns the watch's message as the core receives it.
    pub(crate) fn filtered(
        &mut self,
        node: usize,
        generation: u64,
        message: Message,
    ) -> Option<Message> {
        match (self.mutant, message) {
            (Some(Mutant::NoRelist), Message::Canceled { id }) => {
                self.reopen(node, generation, id);
                None
            }
            (Some(Mutant::NoRelist), Message::Created { id, header }) => {
                let reopened = &mut self.nodes[node].memory.reopened;
                let again = reopened.iter().position(|other| *other == id);
                if let Some(at) = again {
                    reopened.remove(at);
                    return None;
                }
                Some(Message::Created { id, header })
            }
            (Some(Mutant::TrustsExistence), Message::Events { id, term, changes }) => {
                let memory = &mut self.nodes[node].memory;
                let put_later = |at: usize, key: &[u8]| {
                    let mut later = changes[at + 1..].iter();
                    later.any(|c| matches!(c, Change::Put(entry) if *entry.key == *key))
                };
                let seen = changes.iter().enumerate();
                let seen = seen.filter_map(|(at, change)| match change {
                    Change::Delete { key, .. } if put_later(at, key) => None,
                    Change::Put(entry) => Some(Change::Put(memory.as_first_seen(entry.clone()))),
                    Change::Delete { .. } => Some(change.clone()),
                });
                let changes = seen.collect();
                Some(Message::Events { id, term, changes })
            }
            (_, message) => Some(message),
        }
    }

    fn reopen(&mut self, node: usize, generation: u64, id: WatchId) {
        let n = &mut self.nodes[node];
        let Some((key, prefix)) = n.memory.watches.get(&id).cloned() else {
            return;
        };
        n.memory.reopened.push(id);
        let at = self.now.after(self.hop(node));
        let register = Ev::Register {
            generation,
            id,
            key,
            prefix,
            first: false,
        };
        self.schedule(at, node, register);
    }

    /// Records an opened watch.
    pub(crate) fn remember_watch(&mut self, node: usize, id: WatchId, key: &Key, prefix: bool) {
        if self.mutant.is_some() {
            let watches = &mut self.nodes[node].memory.watches;
            watches.insert(id, (Arc::clone(key), prefix));
        }
    }

    /// Reports the end of a term's work while the work continues.
    pub(crate) fn report_work_early(&mut self, node: usize, slot: SlotId, term: TermId) {
        if self.mutant == Some(Mutant::ReleasesEarly) {
            self.give(node, |m, now| m.work_joined(now, slot, term, None));
        }
    }

    /// Ends the work of a term that leaves a state, while the term stays valid. Returns false if nothing is broken.
    pub(crate) fn stays_valid(&mut self, node: usize, term: TermId, leaves: bool) -> bool {
        if !leaves || self.mutant != Some(Mutant::ActsWhileItLeaves) {
            return false;
        }
        let mut terms = self.nodes[node].terms.iter_mut();
        if let Some(term) = terms.find(|t| t.id == term) {
            term.joined = true;
        }
        true
    }

    /// Handles a renewal that reaches the proxy. The proxy may repeat the answer to the one before.
    pub(crate) fn answered_by_proxy(
        &mut self,
        node: usize,
        ask: &Ask,
        lease: Option<i64>,
    ) -> Option<Answer> {
        if self.mutant != Some(Mutant::Proxied) || *ask != Ask::Renew {
            return None;
        }
        let memory = &mut self.nodes[node].memory;
        if memory.renewed != lease {
            memory.renewed = lease;
            return None;
        }
        memory.renewed = None;
        let (ttl, header) = (self.settings.ttl, memory.acknowledged?);
        Some(Answer::Renewed { ttl, header })
    }

    /// Answers a clean read from the store as it was at the one before, unless there was no anchor then.
    pub(crate) fn read_late(&mut self, node: usize, ask: &Ask) -> Option<Answer> {
        if self.mutant != Some(Mutant::StaleReads) || Step::of(ask) != Some(Step::Read) {
            return None;
        }
        let present = Box::new(self.store.clone());
        let mut before = self.nodes[node].memory.shown.replace(present)?;
        let answer = before.perform(self.now, ask, None);
        let Answer::Transacted(Transacted { held, found, .. }) = answer else {
            return None;
        };
        // The header is not below the known state, or it would look like another store's.
        let header = self.store.header();
        let is_there = found.first().is_some_and(|anchor| !anchor.is_empty());
        is_there.then_some(Answer::Transacted(Transacted {
            header,
            held,
            found,
        }))
    }

    /// Handles a delete that reaches etcd. Returns true if it was carried out here.
    pub(crate) fn deleted_blindly(&mut self, ask: &Ask) -> bool {
        if self.mutant != Some(Mutant::DeletesBlindly) {
            return false;
        }
        match ask {
            Ask::Delete {
                key, state: None, ..
            } => self.store.delete(key),
            Ask::Release { keys } => keys.iter().for_each(|(key, _)| self.store.delete(key)),
            _ => return false,
        }
        true
    }

    /// Hides the pause of a process that was stopped since then.
    pub(crate) fn skip_pause(&mut self, node: usize, since: Time) {
        let n = &mut self.nodes[node];
        if self.mutant == Some(Mutant::ClockStops) {
            let stopped = n.local(self.now).since(n.local(since));
            n.offset = n.offset.saturating_sub(stopped);
            n.due = n.due_local.map(|at| n.world(at));
        }
    }
}

impl Memory {
    fn as_first_seen(&mut self, mut entry: Entry) -> Entry {
        let key = Arc::clone(&entry.key);
        entry.create_revision = *self.created.entry(key).or_insert(entry.create_revision);
        entry
    }

    fn all_as_first_seen(&mut self, entries: Vec<Entry>) -> Vec<Entry> {
        entries.into_iter().map(|e| self.as_first_seen(e)).collect()
    }
}

/// Returns the answer to a join, or to a search for older keys, with only the predecessor and younger keys.
fn without_elders(ask: &Ask, mut answer: Answer) -> Answer {
    match (ask, &mut answer) {
        (Ask::Join(Join { key, .. }), Answer::Joined(Joined { entries, .. })) => {
            *entries = nearest(std::mem::take(entries), key);
        }
        (Ask::Older { .. }, Answer::Listed(Listed { entries, .. })) => {
            // Its own key is the youngest of them.
            let own = entries.iter().max_by_key(|e| e.create_revision);
            let own = own.map(|e| Arc::clone(&e.key)).unwrap_or_default();
            *entries = nearest(std::mem::take(entries), &own);
        }
        _ => {}
    }
    answer
}

/// Keeps only the youngest of the keys older than `own`.
fn nearest(mut entries: Vec<Entry>, own: &[u8]) -> Vec<Entry> {
    let Some(mine) = entries.iter().find(|e| *e.key == *own) else {
        return entries;
    };
    let mine = mine.create_revision;
    let older = entries.iter().map(|e| e.create_revision);
    let nearest = older.filter(|revision| *revision < mine).max();
    entries.retain(|e| e.create_revision >= mine || Some(e.create_revision) == nearest);
    entries
}
