//! One node of the world: a machine, its clock, and what the driver and the handles keep beside it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::store::Key;
use crate::core::action::{Action, Condition, Note, SlotId, Standing, TermId, Trouble, WatchId};
use crate::core::lease_clock::Trust;
use crate::core::machine::{Config, Machine, Slot};
use crate::core::reason::{EndReason, LostReason};
use crate::core::time::Time;
use crate::facts::{Change, Entry};

pub(super) const TTL: Duration = Duration::from_secs(6);
pub(super) const GRACE: Duration = Duration::from_millis(1200);
pub(super) const MARGIN: Duration = Duration::from_millis(300);
pub(super) const TIMEOUT: Duration = Duration::from_millis(300);

/// As `term::Belief`: moves later until it is frozen.
#[derive(Debug)]
pub(super) struct Belief {
    pub(super) deadline: Cell<Time>,
    pub(super) frozen: Cell<bool>,
}

/// As `term::Shared`, with the work that goes on under it.
#[derive(Debug)]
pub(super) struct Term {
    pub(super) slot: SlotId,
    pub(super) id: TermId,
    pub(super) prefix: Key,
    pub(super) key: Key,
    pub(super) token: i64,
    pub(super) belief: Rc<Belief>,
    pub(super) until: Time,
    pub(super) cutoff: Time,
    pub(super) reason: Option<LostReason>,
    pub(super) joined: bool,
}

impl Term {
    pub(super) fn limit(&self) -> Time {
        self.until.min(self.belief.deadline.get())
    }

    /// Work goes on no longer than until then.
    pub(super) fn cutoff(&self) -> Time {
        self.cutoff.min(self.belief.deadline.get())
    }
}

/// When the work of a term ends after the term did.
#[derive(Debug, Clone, Copy)]
pub(super) enum Work {
    After(Duration),
    Never,
}

/// How the way to etcd is; each field is a fault of its own.
#[derive(Debug, Clone, Default)]
pub(super) struct Link {
    pub(super) requests_lost: bool,
    pub(super) answers_lost: bool,
    pub(super) watches_stalled: bool,
    /// Requests arrive up to so much later, long after they timed out here.
    pub(super) late: Option<Duration>,
    /// Renewals go to a deposed leader of that term, which acknowledges and does nothing.
    pub(super) stale: Option<u64>,
}

/// A message of the watch stream.
#[derive(Debug, Clone)]
pub(super) enum Message {
    Created { id: WatchId, revision: i64 },
    Events { id: WatchId, changes: Vec<Change> },
    Progress { revision: i64 },
    Canceled { id: WatchId },
    Broken,
}

/// What a candidate's handles were told.
#[derive(Debug, Default)]
pub(super) struct Seat {
    pub(super) prefix: Key,
    pub(super) standing: Option<Standing>,
    pub(super) registered: bool,
    /// Of a lock or semaphore: its holder does not stand again by itself.
    pub(super) brief: bool,
    pub(super) ended: Option<(EndReason, Option<Trouble>)>,
}

pub(super) struct Node {
    pub(super) machine: Machine,
    pub(super) offset: Duration,
    pub(super) rate_ppm: i64,
    pub(super) link: Link,
    pub(super) work: Work,
    pub(super) paused: bool,
    /// The lease of the open keepalive stream.
    pub(super) stream: Option<i64>,
    pub(super) generation: u64,
    pub(super) watching: bool,
    pub(super) watch_generation: u64,
    /// What the stalled stream keeps back.
    pub(super) held: Vec<(u64, Message)>,
    pub(super) belief: Option<Rc<Belief>>,
    pub(super) terms: Vec<Term>,
    pub(super) seats: BTreeMap<SlotId, Seat>,
    pub(super) stood: BTreeMap<Key, SlotId>,
    /// Slots of a semaphore, of which one session has several.
    pub(super) permits: Vec<SlotId>,
    pub(super) conditions: Vec<Condition>,
    pub(super) notes: Vec<Note>,
    pub(super) proclaimed: Vec<(u64, Result<bool, Trouble>)>,
    pub(super) observed: Vec<(SlotId, i64, Vec<Entry>)>,
    pub(super) observe_failed: Vec<Trouble>,
}

impl Node {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            machine: Machine::new(Config {
                ttl: TTL,
                trust: Trust {
                    margin: MARGIN,
                    drift_ppm: 1000,
                },
                grace: GRACE,
                request_timeout: TIMEOUT,
                seed,
                probe_key: (*b"probe").into(),
            }),
            offset: Duration::from_secs(100 * (seed % 7)),
            rate_ppm: 0,
            link: Link::default(),
            work: Work::After(Duration::ZERO),
            paused: false,
            stream: None,
            generation: 0,
            watching: false,
            watch_generation: 0,
            held: Vec::new(),
            belief: None,
            terms: Vec::new(),
            seats: BTreeMap::new(),
            stood: BTreeMap::new(),
            permits: Vec::new(),
            conditions: Vec::new(),
            notes: Vec::new(),
            proclaimed: Vec::new(),
            observed: Vec::new(),
            observe_failed: Vec::new(),
        }
    }

    /// This node's clock at an instant of the world.
    pub(super) fn local(&self, world: Time) -> Time {
        let scaled =
            i128::from(world.as_nanos()) * i128::from(1_000_000 + self.rate_ppm) / 1_000_000;
        Time::from_nanos(u64::try_from(scaled).unwrap()).after(self.offset)
    }

    /// The first instant of the world at which this node's clock shows at least `local`.
    pub(super) fn world(&self, local: Time) -> Time {
        let nanos = i128::try_from(local.since(Time::ZERO.after(self.offset)).as_nanos()).unwrap();
        let rate = i128::from(1_000_000 + self.rate_ppm);
        let scaled = (nanos * 1_000_000 + rate - 1) / rate;
        Time::from_nanos(u64::try_from(scaled).unwrap())
    }

    /// The watchdog thread.
    pub(super) fn watchdog(&self, local: Time) {
        if let Some(belief) = &self.belief
            && local >= belief.deadline.get().before(GRACE)
        {
            belief.frozen.set(true);
        }
    }

    /// As the driver does with `Action::Trust`; false: the belief had ended.
    pub(super) fn trust(&mut self, deadline: Time, fresh: bool) -> bool {
        if fresh {
            self.belief = Some(Rc::new(Belief {
                deadline: Cell::new(deadline),
                frozen: Cell::new(false),
            }));
            return true;
        }
        match &self.belief {
            Some(belief) if !belief.frozen.get() => {
                belief.deadline.set(belief.deadline.get().max(deadline));
                true
            }
            _ => false,
        }
    }

    fn distrust_unless(&mut self, stands: bool, now: Time) {
        if !stands {
            self.machine.distrusted(now);
        }
    }

    /// The term that is valid for `prefix`, by this node's clock.
    pub(super) fn valid(&self, prefix: &[u8], world: Time) -> Option<&Term> {
        self.held(prefix, world).next()
    }

    /// All terms that are.
    pub(super) fn held(&self, prefix: &[u8], world: Time) -> impl Iterator<Item = &Term> {
        let local = self.local(world);
        let terms = self.terms.iter();
        terms.filter(move |t| &*t.prefix == prefix && local < t.limit())
    }

    /// The key that a candidate holds, as its machine knows.
    pub(super) fn own_key(&self, slot: SlotId) -> Option<Key> {
        match self.machine.slots.get(&slot)? {
            Slot::Candidate(candidate) => candidate.own().map(|own| Arc::clone(&own.key)),
            Slot::Onlooker(_) => None,
        }
    }

    pub(super) fn seat(&self, prefix: &[u8]) -> Option<(SlotId, &Seat)> {
        let slot = self.stood.get(prefix)?;
        Some((*slot, &self.seats[slot]))
    }

    pub(super) fn standing(&self, prefix: &[u8]) -> Option<Standing> {
        self.seat(prefix)?.1.standing
    }

    pub(super) fn lease(&self) -> Option<i64> {
        self.machine.lease().map(crate::core::lease::Lease::id)
    }

    pub(super) fn key(&self, prefix: &[u8]) -> Option<Key> {
        Some(crate::core::slots::key_of(prefix, self.lease()?))
    }

    pub(super) fn term_of(&self, prefix: &[u8]) -> Option<&Term> {
        self.terms.iter().rev().find(|t| &*t.prefix == prefix)
    }

    pub(super) fn noted(&self, which: impl Fn(&Note) -> bool) -> usize {
        self.notes.iter().filter(|n| which(n)).count()
    }

    pub(super) fn closed(&self) -> bool {
        self.conditions.contains(&Condition::Closed)
    }

    /// A term begins, unless nothing may be believed in any more: its prefix and token.
    pub(super) fn elected(&mut self, action: &Action) -> Option<(Key, i64)> {
        let Action::Elected {
            slot,
            term,
            key,
            token,
        } = action
        else {
            return None;
        };
        let belief = Rc::clone(self.belief.as_ref()?);
        let prefix = Arc::clone(&self.seats[slot].prefix);
        self.terms.push(Term {
            slot: *slot,
            id: *term,
            prefix: Arc::clone(&prefix),
            key: Arc::clone(key),
            token: *token,
            belief,
            until: Time::MAX,
            cutoff: Time::MAX,
            reason: None,
            joined: false,
        });
        Some((prefix, *token))
    }

    /// Actions that only tell.
    pub(super) fn told(&mut self, action: Action) {
        match action {
            Action::HangUp => {
                self.generation += 1;
                self.stream = None;
            }
            Action::Trust { deadline, fresh } => {
                let stands = self.trust(deadline, fresh);
                // The driver reads the clock again; no time passes here.
                self.distrust_unless(stands, deadline.before(TTL));
            }
            Action::Distrust => {
                if let Some(belief) = self.belief.take() {
                    belief.frozen.set(true);
                }
            }
            Action::TermEnded {
                term,
                reason,
                cutoff,
                valid,
                ..
            } => {
                if let Some(t) = self.terms.iter_mut().find(|t| t.id == term) {
                    t.reason = Some(reason);
                    t.until = t.until.min(if valid { cutoff } else { Time::ZERO });
                    t.cutoff = t.cutoff.min(cutoff);
                }
            }
            Action::Registered { slot } => self.seat_of(slot).registered = true,
            Action::Standing { slot, standing } => self.seat_of(slot).standing = Some(standing),
            Action::Ended {
                slot,
                reason,
                trouble,
            } => {
                let seat = self.seat_of(slot);
                assert!(seat.ended.is_none(), "a candidacy ends once");
                seat.ended = Some((reason, trouble));
            }
            Action::Proclaimed { ticket, result } => self.proclaimed.push((ticket, result)),
            Action::Observed {
                slot,
                revision,
                entries,
            } => self.observed.push((slot, revision, entries)),
            Action::ObserveFailed { trouble, .. } => self.observe_failed.push(trouble),
            Action::Session(condition) => {
                assert!(!self.closed(), "after the end came {condition:?}");
                self.conditions.push(condition);
            }
            Action::Note(note) => self.notes.push(note),
            _ => {}
        }
    }

    fn seat_of(&mut self, slot: SlotId) -> &mut Seat {
        self.seats.entry(slot).or_default()
    }
}
