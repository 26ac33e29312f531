//! Provides one interface for the watches and reads of candidates and observers, and holds the parts of a session that
//! they share.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::candidate::{Candidacy, Phase, Seat};
use crate::challenge::Challenges;
use crate::cleanup::Removals;
use crate::config::Config;
use crate::evacuation::Evacuation;
use crate::gate::Gate;
use crate::ids::{RequestId, SlotId, WatchId};
use crate::kv::Entry;
use crate::lease::{LeaseConfig, LeaseKeeper};
use crate::outbox::Outbox;
use crate::pause::Pace;
use crate::queue::Own;
use crate::time::Time;
use crate::watch::{Observer, WatchStream};

/// The content of a slot of the session.
#[derive(Debug, Clone)]
pub(super) enum Slot {
    Candidate(Box<Candidacy>),
    Observer(Box<Observer>),
}

impl Slot {
    pub(super) fn candidate(&self) -> Option<&Candidacy> {
        match self {
            Slot::Candidate(candidate) => Some(candidate),
            Slot::Observer(_) => None,
        }
    }

    /// Returns the slot's prefix.
    pub(super) fn prefix(&self) -> &Arc<[u8]> {
        match self {
            Slot::Candidate(candidate) => candidate.prefix(),
            Slot::Observer(observer) => observer.prefix(),
        }
    }

    /// Returns every watch of the slot.
    pub(super) fn watchers(&self) -> Vec<WatchId> {
        match self {
            Slot::Candidate(candidate) => candidate.view.watchers(),
            Slot::Observer(observer) => observer.watchers(),
        }
    }

    /// Returns the read in flight.
    pub(super) fn read(&self) -> Option<RequestId> {
        match self {
            Slot::Candidate(candidate) => candidate.view.read(),
            Slot::Observer(observer) => observer.read(),
        }
    }

    /// Records that a read began, or that the one in flight is over.
    pub(super) fn set_read(&mut self, read: Option<RequestId>) {
        match self {
            Slot::Candidate(candidate) => candidate.view.set_read(read),
            Slot::Observer(observer) => observer.set_read(read),
        }
    }

    /// Forgets the former reads, because another store answers now.
    pub(super) fn store_changed(&mut self) {
        match self {
            Slot::Candidate(candidate) => candidate.store_changed(),
            Slot::Observer(observer) => observer.store_changed(),
        }
    }
}

/// All slots of the session.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: BTreeMap<SlotId, Slot>,
}

impl Slots {
    /// Returns the candidate in that slot.
    pub(super) fn candidate(&self, slot: SlotId) -> Option<&Candidacy> {
        self.slots.get(&slot)?.candidate()
    }

    /// Returns the candidate in that slot, to change it.
    pub(super) fn candidate_mut(&mut self, slot: SlotId) -> Option<&mut Candidacy> {
        match self.slots.get_mut(&slot) {
            Some(Slot::Candidate(candidate)) => Some(candidate),
            _ => None,
        }
    }

    /// Returns every candidate with its slot.
    pub(super) fn candidates(&self) -> impl Iterator<Item = (SlotId, &Candidacy)> {
        let slots = self.slots.iter();
        slots.filter_map(|(id, slot)| Some((*id, slot.candidate()?)))
    }

    /// Returns the prefix of the slot.
    pub(super) fn prefix_of(&self, slot: SlotId) -> Arc<[u8]> {
        let prefix = self.slots.get(&slot).map(Slot::prefix);
        prefix.cloned().unwrap_or_default()
    }

    /// Returns true if the candidate leads by exactly that key.
    pub(super) fn leads_by(&self, slot: SlotId, own: &Own) -> bool {
        let phase = self.candidate(slot).map(Candidacy::phase);
        matches!(phase, Some(Phase::Leading { own: present, .. }) if present == own)
    }

    /// Returns the member that owns, or owned, the partition of that key.
    pub(super) fn member_of(&self, key: &[u8]) -> Option<SlotId> {
        let mut candidates = self.candidates();
        let member = candidates.find(|(_, c)| c.is_member() && key.starts_with(c.prefix()));
        member.map(|(slot, _)| slot)
    }

    /// Returns true if a candidate holds that key, is taking it, or still works for it after its term. Such work no
    /// longer keeps the key once its cutoff is `released`.
    pub(super) fn hold(&self, entry: &Entry, released: impl Fn(Time) -> bool) -> bool {
        let winds_up = |slot| match self.candidate(slot).and_then(Candidacy::ending) {
            Some((cutoff, _)) => !released(cutoff),
            None => false,
        };
        self.candidates().any(|(_, c)| {
            c.own().is_some_and(|own| own.is(entry))
                || c.member()
                    .and_then(|member| member.holder_of(entry))
                    .is_some_and(winds_up)
                || c.taking().any(|key| key == entry.key)
        })
    }

    /// Records in the view of a slot that a read began, or that the one in flight is over.
    pub(super) fn set_read(&mut self, slot: SlotId, read: Option<RequestId>) {
        if let Some(slot) = self.slots.get_mut(&slot) {
            slot.set_read(read);
        }
    }

    /// Returns the observer whose prefix is probed next, if there is one: another each time, and preferably one that
    /// was permitted to read it. So probes need no further permission.
    pub(super) fn probed_after(&self, after: SlotId) -> Option<(SlotId, Arc<[u8]>)> {
        let later = self.slots.range(after.saturating_add(1)..);
        let observers = later.chain(self.slots.range(..=after));
        let mut observers = observers.filter_map(|(id, slot)| match slot {
            Slot::Observer(observer) => Some((*id, observer)),
            Slot::Candidate(_) => None,
        });
        let first = observers.next()?;
        let permitted = std::iter::once(first).chain(observers);
        let permitted = permitted.into_iter().find(|(_, o)| o.is_synced());
        let (id, observer) = permitted.unwrap_or(first);
        Some((id, Arc::clone(observer.prefix())))
    }

    /// Returns the key that verifies a renewal next, with its slot and create revision: another each time.
    pub(super) fn verified_after(&self, after: SlotId) -> Option<(SlotId, i64, Arc<[u8]>)> {
        let slots = self.slots.range(after + 1..);
        let mut slots = slots.chain(self.slots.range(..=after));
        slots.find_map(|(id, slot)| {
            let own = slot.candidate()?.own()?;
            Some((*id, own.create_revision, Arc::clone(&own.key)))
        })
    }

    pub(super) fn ids(&self) -> Vec<SlotId> {
        self.slots.keys().copied().collect()
    }
}

impl Deref for Slots {
    type Target = BTreeMap<SlotId, Slot>;

    fn deref(&self) -> &Self::Target {
        &self.slots
    }
}

impl DerefMut for Slots {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.slots
    }
}

/// The number of joins in flight, which share transactions.
const MOST_JOINS: usize = 256;
const MOST_LISTS: usize = 64;

/// The parts of a session that the rules of its candidates change.
#[derive(Debug)]
pub(super) struct Rooms {
    pub(super) config: Config,
    /// The next actions, and the requests in flight.
    pub(super) out: Outbox,
    /// The pauses between failed requests.
    pub(super) pace: Pace,
    /// The session's lease.
    pub(super) lease: LeaseKeeper,
    /// The session's anchor and clean reads.
    pub(super) challenges: Challenges,
    /// The slots that wait to join.
    pub(super) joins: Gate,
    /// The slots that wait to read their queue.
    pub(super) lists: Gate,
    /// All watches, on one stream.
    pub(super) watches: WatchStream,
    /// Keys that must go.
    pub(super) removals: Removals,
    /// The evacuated data centres.
    pub(super) evacuation: Evacuation,
    /// True once a key of this session was in etcd.
    pub(super) stood_once: bool,
    /// True if no new term or candidacy begins; the lease goes when every term has ended.
    pub(super) closing: bool,
}

impl Rooms {
    pub(super) fn new(config: Config) -> Self {
        let pace = Pace::new(config.request_timeout);
        let lease = LeaseConfig {
            ttl: config.ttl,
            trust: config.trust,
            grace: config.grace,
            request_timeout: config.request_timeout,
            lead_grace: config
                .challenges
                .as_ref()
                .map(|challenges| challenges.grace),
        };
        Self {
            out: Outbox::new(config.batch),
            pace,
            lease: LeaseKeeper::new(lease, Arc::clone(&config.probe_key)),
            challenges: Challenges::new(config.challenges.clone()),
            joins: Gate::new(MOST_JOINS),
            lists: Gate::new(MOST_LISTS),
            watches: WatchStream::new(config.ttl, config.request_timeout),
            removals: Removals::new(pace),
            evacuation: Evacuation::new(config.homes.clone()),
            stood_once: false,
            closing: false,
            config,
        }
    }

    /// Lends the candidate in that slot the parts of the session that its rules may change.
    pub(super) fn seat<'a>(
        &'a mut self,
        slots: &'a mut Slots,
        slot: SlotId,
        now: Time,
    ) -> Option<Seat<'a>> {
        Some(Seat {
            slot,
            now,
            me: slots.candidate_mut(slot)?,
            config: &self.config,
            pace: self.pace,
            closing: self.closing,
            stood_once: &mut self.stood_once,
            lease: &mut self.lease,
            challenges: &mut self.challenges,
            joins: &mut self.joins,
            lists: &mut self.lists,
            watches: &mut self.watches,
            removals: &mut self.removals,
            evacuation: &self.evacuation,
            out: &mut self.out,
        })
    }

    /// Empties the slot.
    pub(super) fn forget(&mut self, slots: &mut Slots, slot: SlotId) {
        self.watches.forget(slot);
        let Some(forgotten) = slots.remove(&slot) else {
            return;
        };
        let watchers = forgotten.watchers();
        self.out.forget_deletes_below(forgotten.prefix());
        if let Slot::Candidate(candidate) = forgotten {
            if candidate.is_member() {
                self.removals.forget_below(candidate.prefix());
                debug_assert!(
                    self.removals.knows_nothing_below(candidate.prefix()),
                    "what a member knew is forgotten with it"
                );
            }
            self.out.answer_proclaims(candidate.unanswered(), false);
        }
        for watch in watchers {
            self.watches.close(watch, &mut self.out);
        }
    }
}
