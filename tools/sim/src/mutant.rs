//! Breaks the library's rules on purpose, one at a time, to show that the simulator notices. All of this is in the
//! adapter between core and etcd, so the core contains no switch that could be left on.

use std::sync::Arc;

use crate::world::node::Message;
use crate::world::store::{EXISTS, Key};
use crate::world::{Ev, Event, World};
use eldest_core::action::{Action, Answer, Ask, RequestId, SlotId, TermId, WatchId};
use eldest_core::facts::{Change, Entry};
use eldest_core::machine::Slot;
use eldest_core::time::Time;

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    ReceiveInstant,
    Proxied,
    NoVerification,
    AdoptsLease,
    RevokesTaken,
    AdoptsDeleted,
    ExtendsCancelled,
    ReleasesEarly,
    ForgetsElders,
    TrustsExistence,
    DeletesBlindly,
    NoRelist,
    Unguarded,
    ClockStops,
    AnnouncesBlindly,
}

impl Mutant {
    pub(crate) const ALL: [Mutant; 15] = [
        Mutant::ReceiveInstant,
        Mutant::Proxied,
        Mutant::NoVerification,
        Mutant::AdoptsLease,
        Mutant::RevokesTaken,
        Mutant::AdoptsDeleted,
        Mutant::ExtendsCancelled,
        Mutant::ReleasesEarly,
        Mutant::ForgetsElders,
        Mutant::TrustsExistence,
        Mutant::DeletesBlindly,
        Mutant::NoRelist,
        Mutant::Unguarded,
        Mutant::ClockStops,
        Mutant::AnnouncesBlindly,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Mutant::ReceiveInstant => "receive-instant",
            Mutant::Proxied => "proxied",
            Mutant::NoVerification => "no-verification",
            Mutant::AdoptsLease => "adopts-lease",
            Mutant::RevokesTaken => "revokes-taken",
            Mutant::AdoptsDeleted => "adopts-deleted",
            Mutant::ExtendsCancelled => "extends-cancelled",
            Mutant::ReleasesEarly => "releases-early",
            Mutant::ForgetsElders => "forgets-elders",
            Mutant::TrustsExistence => "trusts-existence",
            Mutant::DeletesBlindly => "deletes-blindly",
            Mutant::NoRelist => "no-relist",
            Mutant::Unguarded => "unguarded",
            Mutant::ClockStops => "clock-stops",
            Mutant::AnnouncesBlindly => "announces-blindly",
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Mutant::ReceiveInstant => {
                "the deadline counts from when the answer was received, not from when the request was sent"
            }
            Mutant::Proxied => {
                "a lease is renewed through etcd's gRPC proxy: every other renewal gets the answer to an earlier one"
            }
            Mutant::NoVerification => {
                "a renewal counts without a read of the same raft term: the adapter makes the read's answer up"
            }
            Mutant::AdoptsLease => {
                "a lease id is used again after a restart, and \"already exists\" is taken for a grant"
            }
            Mutant::RevokesTaken => {
                "a lease whose id is taken is revoked, as one may be whose grant got no answer"
            }
            Mutant::AdoptsDeleted => {
                "a delete whose answer was lost is taken for done, so that the key may be adopted again"
            }
            Mutant::ExtendsCancelled => {
                "renewals go on extending a term whose token was cancelled: its deadline is not frozen"
            }
            Mutant::ReleasesEarly => {
                "the key is released when the term ends, not when its work has ended"
            }
            Mutant::ForgetsElders => {
                "only the predecessor is known of the older keys, so that its end is taken for one's turn"
            }
            Mutant::TrustsExistence => {
                "whether the own key stands is told by its name, not by its create revision"
            }
            Mutant::DeletesBlindly => "a key is deleted whatever its create revision is",
            Mutant::NoRelist => {
                "a watch that etcd cancelled, as after compaction, is opened again without reading the prefix"
            }
            Mutant::Unguarded => "leaders write without comparing their key: fencing is off",
            Mutant::ClockStops => {
                "the clock does not count the time for which a process is stopped"
            }
            Mutant::AnnouncesBlindly => {
                "a value is announced whatever the mod revision of its key is, so a late write replaces a newer value"
            }
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mutant| mutant.name() == name)
    }
}

impl World {
    /// The seed of the session that follows on a node.
    pub(crate) fn seed_of(&self, node: usize, fresh: u64) -> u64 {
        match self.mutant {
            Some(Mutant::AdoptsLease) => self.nodes[node].seed,
            _ => fresh,
        }
    }

    /// A request goes out. True: it was answered here.
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
        let mine = n.machine.slots.values().find_map(|slot| match slot {
            Slot::Candidate(c) => c.own().filter(|own| own.key == *key),
            Slot::Onlooker(_) => None,
        });
        let entry = mine.map(|own| Entry {
            key: Arc::clone(&own.key),
            value: Key::default(),
            create_revision: own.create_revision,
            mod_revision: own.create_revision,
            lease: own.lease,
        });
        // Not below what is known, or it would show another store.
        let mut header = header;
        header.revision = self.store.revision;
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

    /// What the core is told that etcd answered.
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
            (Mutant::AdoptsLease, Ask::Grant { .. }, Answer::Failed(trouble))
                if trouble.message == EXISTS =>
            {
                Answer::Granted { lease, ttl, header }
            }
            (Mutant::RevokesTaken, Ask::Grant { .. }, Answer::Failed(trouble))
                if trouble.message == EXISTS =>
            {
                self.store.perform(self.now, &Ask::Revoke { lease }, None);
                Answer::Failed(trouble)
            }
            (
                Mutant::AdoptsDeleted,
                Ask::Delete { .. } | Ask::Release { .. },
                Answer::Failed(trouble),
            ) if trouble.ambiguous => Answer::Deleted { header },
            (
                Mutant::ForgetsElders,
                Ask::Join { key, .. },
                Answer::Joined {
                    header,
                    created,
                    entries,
                    other,
                },
            ) => Answer::Joined {
                header,
                created,
                entries: nearest(entries, &key),
                other,
            },
            (Mutant::ForgetsElders, Ask::Older { .. }, Answer::Listed { header, entries }) => {
                // Its own is the youngest of them.
                let own = entries.iter().max_by_key(|e| e.create_revision);
                let own = own.map(|e| Arc::clone(&e.key)).unwrap_or_default();
                Answer::Listed {
                    header,
                    entries: nearest(entries, &own),
                }
            }
            (Mutant::TrustsExistence, _, Answer::Read { header, entry }) => Answer::Read {
                header,
                entry: entry.map(|e| n.memory.as_first_seen(e)),
            },
            (Mutant::TrustsExistence, _, Answer::Listed { header, entries }) => Answer::Listed {
                header,
                entries: n.memory.all_as_first_seen(entries),
            },
            (_, _, answer) => answer,
        }
    }

    /// What the core is told that a watch said.
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
            (Some(Mutant::NoRelist), Message::Created { id, revision }) => {
                let reopened = &mut self.nodes[node].memory.reopened;
                let again = reopened.iter().position(|other| *other == id);
                if let Some(at) = again {
                    reopened.remove(at);
                    return None;
                }
                Some(Message::Created { id, revision })
            }
            (Some(Mutant::TrustsExistence), Message::Events { id, changes }) => {
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
                Some(Message::Events { id, changes })
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

    /// A watch is opened.
    pub(crate) fn remember_watch(&mut self, node: usize, action: &Action) {
        if let (Some(_), Action::Watch { watch, key, prefix }) = (self.mutant, action) {
            let watches = &mut self.nodes[node].memory.watches;
            watches.insert(*watch, (Arc::clone(key), *prefix));
        }
    }

    /// A term is over and its work goes on.
    pub(crate) fn tell_early(&mut self, node: usize, slot: SlotId, term: TermId) {
        if self.mutant == Some(Mutant::ReleasesEarly) {
            self.give(node, |m, now| m.work_joined(now, slot, term));
        }
    }

    /// A renewal reaches the proxy. It may be answered there, with the answer to the one before.
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

    /// A delete reaches etcd. True: it was done here.
    pub(crate) fn deleted_blindly(&mut self, ask: &Ask) -> bool {
        if self.mutant != Some(Mutant::DeletesBlindly) {
            return false;
        }
        match ask {
            Ask::Delete { key, .. } => self.store.delete(key),
            Ask::Release { keys } => keys.iter().for_each(|(key, _)| self.store.delete(key)),
            _ => return false,
        }
        true
    }

    /// A process that was stopped since then goes on.
    pub(crate) fn skip_pause(&mut self, node: usize, since: Time) {
        let n = &mut self.nodes[node];
        if self.mutant == Some(Mutant::ClockStops) {
            let stopped = n.local(self.now).since(n.local(since));
            n.offset = n.offset.saturating_sub(stopped);
            n.due = n.due_local.map(|at| n.world(at));
        }
    }
}

impl crate::world::node::Memory {
    fn as_first_seen(&mut self, mut entry: Entry) -> Entry {
        let key = Arc::clone(&entry.key);
        entry.create_revision = *self.created.entry(key).or_insert(entry.create_revision);
        entry
    }

    fn all_as_first_seen(&mut self, entries: Vec<Entry>) -> Vec<Entry> {
        entries.into_iter().map(|e| self.as_first_seen(e)).collect()
    }
}

/// Of the keys older than `own` only the youngest.
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
