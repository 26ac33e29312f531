//! Follows the sessions ahead of this one's candidates: where each gives signs of life, and which of them give none, so
//! that their leases are read instead.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::config::Announced;
use super::requests::{address_of, lead_of};
use crate::action::Ask;
use crate::ids::{RequestId, SlotId};
use crate::kv::Entry;
use crate::outbox::Outbox;
use crate::purpose::{Concern, Purpose};
use crate::time::Time;
use crate::timers::Timer;

/// The unit in which etcd reports how much of a lease is left, rounded down.
const ROUNDING: Duration = Duration::from_secs(1);

/// A session ahead of a candidate, with the port at which it gives signs of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elder {
    /// The session's lease.
    pub lease: i64,
    /// The address of its port, as `host:port`.
    pub address: String,
    /// How long a clean read lets the session lead.
    pub lead: Duration,
}

/// A key ahead of a candidate, whose session is an elder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) lease: i64,
    /// The key's create revision, if the key is among the first, so that its session should lead.
    pub(crate) first: Option<i64>,
}

/// A place of an elder in the queue of a slot.
#[derive(Debug)]
struct Place {
    lease: i64,
    first: Option<First>,
}

/// A key that is among the first of a queue.
#[derive(Debug)]
struct First {
    create_revision: i64,
    since: Time,
    /// True if the session was challenged since.
    is_proven: bool,
}

/// The data in an anchor.
#[derive(Debug)]
struct Anchored {
    lead: Duration,
    address: Option<String>,
}

/// The state of an elder, as far as it is known.
#[derive(Debug)]
struct Known {
    announced: Announced,
    /// The anchor's data, once the anchor was read.
    anchor: Option<Anchored>,
    /// True if signs of life are overdue.
    is_silent: bool,
    /// The number of slots in whose queues the session has a place.
    places: usize,
    /// The read of the anchor or of the lease in flight.
    reading: Option<RequestId>,
    /// The time before which nothing is read.
    not_before: Time,
    failures: u32,
}

impl Known {
    /// Returns how long clean reads let the session lead, if its anchor names no address.
    fn leads_unheard(&self) -> Option<Duration> {
        let anchor = self.anchor.as_ref()?;
        anchor.address.is_none().then_some(anchor.lead)
    }

    fn is_asked(&self) -> bool {
        let anchor = self.anchor.as_ref();
        anchor.is_some_and(|anchor| anchor.address.is_some())
    }
}

/// The sessions ahead of this one's candidates, by their leases.
#[derive(Debug, Default)]
pub(crate) struct Elders {
    by_lease: BTreeMap<i64, Known>,
    by_slot: BTreeMap<SlotId, Vec<Place>>,
    /// True if the ports to ask have changed since they were last taken.
    changed: bool,
}

impl Elders {
    /// Returns true if that session is an elder.
    pub(crate) fn contains(&self, lease: i64) -> bool {
        self.by_lease.contains_key(&lease)
    }

    /// Adds a session that announces that anchor. Its place follows by [`Elders::place`].
    pub(crate) fn add(&mut self, lease: i64, announced: Announced) {
        let known = Known {
            announced,
            anchor: None,
            is_silent: false,
            places: 0,
            reading: None,
            not_before: Time::ZERO,
            failures: 0,
        };
        self.by_lease.insert(lease, known);
    }

    /// Replaces the places in the queue of a slot. Returns the sessions that are elders no longer.
    pub(crate) fn place(
        &mut self,
        (slot, now): (SlotId, Time),
        standings: &[Standing],
        out: &mut Outbox,
    ) -> Vec<i64> {
        let mut before = self.by_slot.remove(&slot).unwrap_or_default();
        let mut places: Vec<Place> = Vec::with_capacity(standings.len());
        for Standing { lease, first } in standings.iter().copied() {
            if places.iter().any(|place| place.lease == lease) {
                continue;
            }
            let former = before.iter_mut().find(|place| place.lease == lease);
            let former = former.and_then(|place| place.first.take());
            let former = former.filter(|former| Some(former.create_revision) == first);
            let is_new = former.is_none();
            let first = first.map(|create_revision| {
                former.unwrap_or(First {
                    create_revision,
                    since: now,
                    is_proven: false,
                })
            });
            if first.is_some() && is_new && self.leads_unheard(lease).is_some() {
                out.set_timer(now, Timer::Elder(lease));
            }
            if let Some(known) = self.by_lease.get_mut(&lease) {
                known.places += 1;
            }
            places.push(Place { lease, first });
        }
        if !places.is_empty() {
            self.by_slot.insert(slot, places);
        }
        let left = before.into_iter().map(|place| place.lease);
        left.filter(|lease| self.has_left(*lease)).collect()
    }

    /// Takes a place from the session. Returns true if it was the last one, so that the session is an elder no longer.
    fn has_left(&mut self, lease: i64) -> bool {
        let Some(known) = self.by_lease.get_mut(&lease) else {
            return false;
        };
        known.places -= 1;
        if known.places > 0 {
            return false;
        }
        self.changed |= known.is_asked();
        self.by_lease.remove(&lease);
        true
    }

    /// Returns the elders in the queue of a slot.
    pub(crate) fn of_slot(&self, slot: SlotId) -> Vec<i64> {
        let places = self.by_slot.get(&slot).into_iter().flatten();
        places.map(|place| place.lease).collect()
    }

    /// Reads the session's anchor, or how much of its lease is left, if that is due.
    pub(crate) fn read(&mut self, lease: i64, now: Time, out: &mut Outbox) {
        let Some(known) = self.by_lease.get_mut(&lease) else {
            return;
        };
        let ask = match &known.anchor {
            None => Ask::Find {
                key: Arc::clone(&known.announced.anchor),
            },
            Some(anchor) if known.is_silent || anchor.address.is_none() => Ask::TimeLeft { lease },
            Some(_) => return,
        };
        if now < known.not_before {
            out.set_timer(known.not_before, Timer::Elder(lease));
        } else if known.reading.is_none() {
            let purpose = Purpose::Challenges(Concern::Elder { lease });
            let former = known.reading.replace(out.ask(purpose, ask));
            debug_assert!(
                former.is_none(),
                "one read of an elder is under way at a time"
            );
        }
    }

    /// Returns true if the answer to that read is awaited, and takes it.
    pub(crate) fn answered(&mut self, lease: i64, request: RequestId) -> bool {
        let known = self.by_lease.get_mut(&lease);
        let reading = known.and_then(|known| known.reading.take_if(|read| *read == request));
        reading.is_some()
    }

    /// Returns how often reads about the session have failed in a row, the last failure included.
    pub(crate) fn failed(&mut self, lease: i64) -> u32 {
        self.by_lease.get_mut(&lease).map_or(0, |known| {
            known.failures += 1;
            known.failures
        })
    }

    /// Repeats the read, not before that time.
    pub(crate) fn read_at(&mut self, lease: i64, at: Time, out: &mut Outbox) {
        if let Some(known) = self.by_lease.get_mut(&lease) {
            known.not_before = at;
            out.set_timer(at, Timer::Elder(lease));
        }
    }

    /// Records what a read of the anchor has found. Returns false if the announced anchor is gone.
    pub(crate) fn anchor_read(&mut self, lease: i64, found: Option<&Entry>) -> bool {
        let Some(known) = self.by_lease.get_mut(&lease) else {
            return true;
        };
        known.failures = 0;
        let announced = known.announced.create_revision;
        let found = found.filter(|entry| entry.create_revision == announced);
        // Nothing is known of a session whose anchor is unreadable, and nothing more can be learned of one that is gone.
        let value = found.map_or(&[][..], |entry| &entry.value);
        known.anchor = Some(Anchored {
            lead: lead_of(value).unwrap_or_default(),
            address: address_of(value),
        });
        self.changed |= known.is_asked();
        found.is_some()
    }

    /// Records what a read of the lease has shown, and reads it again when the next renewal would be overdue. Returns
    /// true if the last one is overdue. The owner of a lease renews it a third of its TTL after the last renewal.
    pub(crate) fn lease_read(
        &mut self,
        (lease, now): (i64, Time),
        (granted, left): (Duration, Duration),
        patience: Duration,
        out: &mut Outbox,
    ) -> bool {
        if let Some(known) = self.by_lease.get_mut(&lease) {
            known.failures = 0;
        }
        let since = granted.saturating_sub(left);
        let most = granted / 3 + ROUNDING + patience;
        let wait = most.saturating_sub(since).max(ROUNDING);
        self.read_at(lease, now.after(wait), out);
        since >= most
    }

    /// Records that signs of life of the session are overdue, or have arrived.
    pub(crate) fn set_silent(&mut self, lease: i64, is_silent: bool) {
        if let Some(known) = self.by_lease.get_mut(&lease) {
            known.is_silent = is_silent;
        }
    }

    /// Returns true if the session announces no address, and was not called silent: only etcd shows that it lives.
    pub(crate) fn is_unheard(&self, lease: i64) -> bool {
        let known = self.by_lease.get(&lease);
        known.is_some_and(|known| !known.is_silent && known.leads_unheard().is_some())
    }

    fn leads_unheard(&self, lease: i64) -> Option<Duration> {
        self.by_lease.get(&lease)?.leads_unheard()
    }

    /// Returns true once for each key of a session without an address that has been among the first for twice the time
    /// for which a clean read lets the session lead: nothing shows whether the session leads.
    pub(crate) fn take_unproven(&mut self, lease: i64, now: Time, out: &mut Outbox) -> bool {
        let Some(lead) = self.leads_unheard(lease) else {
            return false;
        };
        let places = self.by_slot.values_mut().flatten();
        let firsts = places.filter(|place| place.lease == lease);
        let firsts = firsts.filter_map(|place| place.first.as_mut());
        let mut unproven: Vec<_> = firsts.filter(|first| !first.is_proven).collect();
        let Some(since) = unproven.iter().map(|first| first.since).min() else {
            return false;
        };
        let due = since.after(lead.saturating_mul(2));
        if now < due {
            out.set_timer(due, Timer::Elder(lease));
            return false;
        }
        for first in &mut unproven {
            first.is_proven = true;
        }
        true
    }

    /// Returns the ports to ask for signs of life, if they have changed since the last call.
    pub(crate) fn take_changed(&mut self) -> Option<Vec<Elder>> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let asked = self.by_lease.iter().filter_map(|(lease, known)| {
            let anchor = known.anchor.as_ref()?;
            Some(Elder {
                lease: *lease,
                address: anchor.address.clone()?,
                lead: anchor.lead,
            })
        });
        Some(asked.collect())
    }
}
