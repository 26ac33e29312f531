//! Holds the state of one node beside its core: its clock, its link, and the state of the driver and the handles.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::Event;
use super::announcing::Announced;
use super::batch::Sending;
use super::doubts::Doubts;
use super::driver::Inbox;
use super::message::Message;
use super::mutated::Memory;
use super::observers::Look;
use super::pace::Pace;
use super::settings::Settings;
use super::store::Key;
use super::tally::Tally;
use crate::mutant::Mutant;
use crate::plan::{Looks, Member};
use eldest_core::Core;
use eldest_core::action::{
    Action, Answer, CandidateAction, Class, FIRST_OF_PARTITIONS, Note, RequestError, RequestId,
    SessionState, SlotId, Status, TermId,
};
use eldest_core::batcher::Batcher;
use eldest_core::candidate::Phase;
use eldest_core::kv::Entry;
use eldest_core::reason::{EndReason, LostReason};
use eldest_core::time::Time;
use eldest_core::watch::Completeness;

/// The deadline of a lease's trust, as in `term::Belief`: it moves later until it is frozen.
#[derive(Debug)]
pub(crate) struct Belief {
    pub(crate) deadline: Cell<Time>,
    pub(crate) frozen: Cell<bool>,
}

/// A term, as in `term::Beside`, with the work that continues under it.
#[derive(Debug)]
pub(crate) struct Term {
    pub(crate) slot: SlotId,
    pub(crate) id: TermId,
    pub(crate) prefix: Key,
    pub(crate) prize: usize,
    pub(crate) key: Key,
    pub(crate) token: i64,
    pub(crate) lease: i64,
    pub(crate) belief: Rc<Belief>,
    pub(crate) lead: Option<Rc<Belief>>,
    pub(crate) until: Time,
    pub(crate) cutoff: Time,
    pub(crate) reason: Option<LostReason>,
    pub(crate) joined: bool,
    /// True if it can never be valid again, though its work may continue.
    pub(crate) over: bool,
}

impl Term {
    pub(crate) fn limit(&self) -> Time {
        self.until.min(self.deadline())
    }

    /// Returns the deadline of the lease, or that of clean reads if it is earlier.
    fn deadline(&self) -> Time {
        let lead = self.lead.as_ref();
        let lead = lead.map_or(Time::MAX, |lead| lead.deadline.get());
        self.belief.deadline.get().min(lead)
    }

    /// Returns the time by which its work must have ended.
    pub(crate) fn cutoff(&self) -> Time {
        self.cutoff.min(self.deadline())
    }
}

/// The state of the link to etcd; each field is a fault of its own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Link {
    pub(crate) requests_lost: bool,
    pub(crate) answers_lost: bool,
    pub(crate) watches_stalled: bool,
    /// Requests arrive up to that much later, long after they timed out here.
    pub(crate) late: Option<Duration>,
    /// True if answers are nearly too late.
    pub(crate) slow: bool,
    /// True if every answer arrives twice.
    pub(crate) twice: bool,
    /// The term of a deposed leader to which renewals go; it acknowledges them without effect.
    pub(crate) stale: Option<u64>,
    /// True if the node draws the lease ids that others have, as clones of one machine do.
    pub(crate) same_ids: bool,
    /// How much longer it takes until the first watch of a stream is requested.
    pub(crate) opening: Duration,
    /// True if etcd permits the node no key, neither to read nor to write. It may still have and renew its lease.
    pub(crate) not_permitted: bool,
    /// True if etcd permits the node no anchor and no challenge.
    pub(crate) sessions_denied: bool,
    /// True if etcd refuses to renew the node's lease, because it may not write all keys of it.
    pub(crate) renewals_denied: bool,
    /// The nodes whose signs of life do not arrive here, each until then.
    pub(crate) deaf: BTreeMap<usize, Time>,
    /// True if renewals are carried out, but acknowledged with another raft term than reads.
    pub(crate) odd_term: bool,
}

/// The notifications of a candidate's handles.
#[derive(Debug, Default)]
pub(crate) struct SimCandidate {
    /// How often a key that the caller waited for was deleted.
    pub(crate) releases: usize,
    pub(crate) prefix: Key,
    /// Its last term that has ended.
    pub(crate) former_term: Option<TermId>,
    pub(crate) status: Option<Status>,
    pub(crate) registered: bool,
    /// True for a lock or semaphore: its holder does not join again by itself.
    pub(crate) brief: bool,
    /// True if the candidate does not wait for its turn.
    pub(crate) at_once: bool,
    pub(crate) ended: Option<(EndReason, Option<RequestError>)>,
    /// True if its last join failed before the session had any key. The end of the candidacy may follow later, when a
    /// key that the join may have put is deleted.
    pub(crate) failed_new: bool,
    /// The partitions that are coming to a member.
    pub(crate) coming: BTreeSet<u32>,
}

impl SimCandidate {
    pub(super) fn of(prefix: &[u8]) -> Self {
        Self {
            prefix: prefix.into(),
            ..Self::default()
        }
    }
}

pub(crate) struct Node {
    pub(crate) core: Core,
    pub(crate) settings: Settings,
    /// The seed of its lease ids.
    pub(crate) seed: u64,
    /// The number of lease ids that it has drawn, and the last one.
    pub(crate) drawn: (u64, i64),
    /// The node's other draws: the durations of its messages, and the end of its work.
    pub(crate) draws: fastrand::Rng,
    pub(crate) offset: Duration,
    pub(crate) link: Link,
    /// What the node is and announces, whichever process runs.
    pub(crate) member: Member,
    /// The number of the identity under which it shares partitions.
    pub(crate) identity: usize,
    /// The partitions for which it announces that it is ready.
    pub(crate) ready: BTreeSet<u32>,
    pub(crate) paused: bool,
    /// The time since which its machine is suspended: the node is paused, and the timers of its runtime stand still.
    pub(crate) suspended: Option<Time>,
    /// The events of those timers, and how long after the continuation they come.
    pub(crate) stopped: Vec<(Duration, Event)>,
    /// The earliest time at which the driver's timer fires, by the world's clock.
    pub(crate) alarm: Time,
    /// The driver's inbox, for worlds whose turns take time.
    pub(crate) inbox: Inbox,
    /// The requests that are sent at the end of a turn.
    pub(crate) batcher: Batcher,
    /// The transactions in flight that have one request.
    pub(crate) alone: BTreeMap<RequestId, Box<Sending>>,
    /// The requests that etcd refuses in every transaction.
    pub(crate) blamed: BTreeMap<RequestId, Class>,
    /// The core's next deadline, by the node's clock and by the world's.
    pub(crate) due_local: Option<Time>,
    pub(crate) due: Option<Time>,
    /// The lease of the open keepalive stream.
    pub(crate) stream: Option<i64>,
    pub(crate) generation: u64,
    pub(crate) watching: bool,
    pub(crate) watch_generation: u64,
    /// How often the core requested a watch stream at another endpoint.
    pub(crate) watches_moved: u64,
    /// The half-open watch stream, which delivers nothing.
    pub(crate) dead_watches: Option<u64>,
    /// The messages that the stalled stream holds back.
    pub(crate) held: Vec<(u64, u64, Message)>,
    pub(crate) messages: Messages,
    pub(crate) belief: Option<Rc<Belief>>,
    /// The deadline of clean reads, for a session that allows challenges.
    pub(crate) lead: Option<Rc<Belief>>,
    /// The last clean read by the store's own state: the session's anchor, and the time of its sending.
    pub(crate) clean: Option<(Key, Time)>,
    pub(crate) doubts: Doubts,
    pub(crate) pace: Pace,
    /// All terms; in a world that does not record, only those whose work continues.
    pub(crate) terms: Vec<Term>,
    pub(crate) candidates: BTreeMap<SlotId, SimCandidate>,
    pub(crate) stood: BTreeMap<Key, SlotId>,
    /// The slots of a semaphore or of a shared lock, of which one session may have several.
    pub(crate) permits: Vec<SlotId>,
    pub(crate) recording: bool,
    pub(crate) closed: bool,
    pub(crate) tally: Tally,
    /// All leases that the node was granted.
    pub(crate) leases: Vec<i64>,
    /// The create revisions of all keys with which it joined.
    pub(crate) joined: Vec<i64>,
    pub(crate) session_states: Vec<SessionState>,
    pub(crate) notes: Vec<Note>,
    pub(crate) proclaimed: Vec<(u64, Result<bool, RequestError>)>,
    pub(crate) observed: Vec<(SlotId, i64, Vec<Entry>)>,
    pub(crate) observe_failed: Vec<RequestError>,
    /// The time as of which all observed data is complete.
    pub(crate) confirmed: Option<Time>,
    /// The same for each observer: the time of its read and, while its view has no gap, the last confirmation before.
    pub(crate) complete: BTreeMap<SlotId, Completeness>,
    /// The slot of an observing node.
    pub(crate) lasting_look: Option<SlotId>,
    /// The observers, and the states that they were shown.
    pub(crate) looks: BTreeMap<SlotId, Look>,
    pub(crate) announced: Announced,
    /// The terms whose state waits for its outcome, with their tokens.
    pub(crate) leaves: BTreeMap<TermId, (Key, i64)>,
    pub(crate) memory: Memory,
}

/// Moves a deadline later, or begins a fresh one; returns false if it is frozen.
fn extend(word: &mut Option<Rc<Belief>>, deadline: Time, fresh: bool) -> bool {
    if fresh {
        *word = Some(Rc::new(Belief {
            deadline: Cell::new(deadline),
            frozen: Cell::new(false),
        }));
        return true;
    }
    match word {
        Some(word) if !word.frozen.get() => {
            word.deadline.set(word.deadline.get().max(deadline));
            true
        }
        _ => false,
    }
}

/// The messages that a node's watches sent it.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    /// The number of sent messages, and the number below which they were lost.
    pub(crate) sent: u64,
    pub(crate) lost_below: u64,
}

impl Node {
    pub(crate) fn new(settings: Settings, seed: u64) -> Self {
        Self {
            core: Core::new(settings.config()),
            settings,
            seed,
            drawn: (0, 0),
            draws: fastrand::Rng::with_seed(!seed),
            offset: Duration::from_secs(1000 + 100 * (seed % 7)),
            link: Link::default(),
            member: Member::default(),
            identity: 0,
            ready: BTreeSet::new(),
            paused: false,
            suspended: None,
            stopped: Vec::new(),
            alarm: Time::ZERO,
            inbox: Inbox::default(),
            batcher: Batcher::new(settings.timeout),
            alone: BTreeMap::new(),
            blamed: BTreeMap::new(),
            due_local: None,
            due: None,
            stream: None,
            generation: 0,
            watching: false,
            watch_generation: 0,
            watches_moved: 0,
            dead_watches: None,
            held: Vec::new(),
            messages: Messages::default(),
            belief: None,
            lead: None,
            clean: None,
            doubts: Doubts::default(),
            pace: Pace::default(),
            terms: Vec::new(),
            candidates: BTreeMap::new(),
            stood: BTreeMap::new(),
            permits: Vec::new(),
            recording: false,
            closed: false,
            tally: Tally::default(),
            leases: Vec::new(),
            joined: Vec::new(),
            session_states: Vec::new(),
            notes: Vec::new(),
            proclaimed: Vec::new(),
            observed: Vec::new(),
            observe_failed: Vec::new(),
            confirmed: None,
            complete: BTreeMap::new(),
            lasting_look: None,
            looks: BTreeMap::new(),
            announced: Announced::default(),
            leaves: BTreeMap::new(),
            memory: Memory::default(),
        }
    }

    /// Returns a slot that no candidate has used. Slots of partitions are the core's own.
    pub(super) fn next_slot(&self) -> SlotId {
        let of_handles = self.candidates.range(..FIRST_OF_PARTITIONS);
        of_handles.last().map_or(1, |(last, _)| last + 1)
    }

    /// Draws a lease id for one request: `SplitMix64` over the seed, which no other node has.
    pub(crate) fn draw_lease(&mut self) {
        self.drawn.0 += 1;
        let mut z = self.drawn.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = z.wrapping_add(self.seed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        self.drawn.1 = ((z >> 1) as i64).max(1);
    }

    /// Counts a lost take, before the core receives its answer.
    pub(crate) fn count_lost_take(&mut self, request: RequestId, answer: &Answer) {
        let lost = matches!(answer, Answer::Failed(error) if error.ambiguous);
        let beside = lost && self.takes().count() > 1;
        if beside && self.takes().any(|(take, _)| *take == request) {
            self.tally.add("takes lost beside others", 1);
        }
    }

    /// Returns the partitions of every take in flight.
    pub(crate) fn takes(&self) -> impl Iterator<Item = (&RequestId, &Vec<u32>)> {
        self.core.candidates().flat_map(|(_, c)| c.takes())
    }

    /// Returns this node's clock at an instant of the world. It overflows after 18,000 s of the world.
    pub(crate) fn local(&self, world: Time) -> Time {
        let rate = 1_000_000_u64.saturating_add_signed(self.member.rate_ppm);
        Time::from_nanos(world.as_nanos() * rate / 1_000_000).after(self.offset)
    }

    /// Returns the first instant of the world at which this node's clock shows at least `local`.
    pub(crate) fn world(&self, local: Time) -> Time {
        let nanos = local
            .as_nanos()
            .saturating_sub(self.offset.as_nanos() as u64);
        let rate = 1_000_000_u64.saturating_add_signed(self.member.rate_ppm);
        Time::from_nanos((nanos * 1_000_000).div_ceil(rate))
    }

    /// Returns true if it is an observer, and no candidate.
    pub(crate) fn observes(&self) -> bool {
        self.member.looks != Looks::Nothing
    }

    /// Returns true if its clock runs at a rate beyond the promised drift.
    pub(crate) fn beyond(&self) -> bool {
        self.member.rate_ppm.unsigned_abs() > u64::from(self.settings.drift_ppm)
    }

    /// Acts as the watchdog thread.
    pub(crate) fn watchdog(&self, local: Time) {
        if let Some(belief) = &self.belief
            && local >= belief.deadline.get().before(self.settings.grace)
        {
            belief.frozen.set(true);
        }
        if let Some(lead) = &self.lead
            && local >= lead.deadline.get().before(self.settings.lead_grace())
        {
            lead.frozen.set(true);
        }
    }

    /// Extends the deadline of clean reads; returns false if it had ended.
    pub(crate) fn lead(&mut self, deadline: Time, fresh: bool) -> bool {
        extend(&mut self.lead, deadline, fresh)
    }

    /// Extends the trust as the driver does with `Action::Trust`; returns false if the trust had ended.
    pub(crate) fn trust(&mut self, deadline: Time, fresh: bool, mutant: Option<Mutant>) -> bool {
        if let (Some(belief), Some(Mutant::ExtendsCancelled)) = (&self.belief, mutant) {
            belief.deadline.set(belief.deadline.get().max(deadline));
            return true;
        }
        extend(&mut self.belief, deadline, fresh)
    }

    /// Returns the valid term for `prefix`, by this node's clock.
    pub(crate) fn valid(&self, prefix: &[u8], world: Time) -> Option<&Term> {
        self.held(prefix, world).next()
    }

    /// Returns all valid terms for `prefix`.
    pub(crate) fn held(&self, prefix: &[u8], world: Time) -> impl Iterator<Item = &Term> {
        let terms = self.valid_terms(world);
        terms.filter(move |t| &*t.prefix == prefix)
    }

    /// Returns all valid terms for any prefix.
    pub(crate) fn valid_terms(&self, world: Time) -> impl Iterator<Item = &Term> {
        let local = self.local(world);
        let terms = self.terms.iter();
        terms.filter(move |t| local < t.limit())
    }

    /// Returns the prize of each term whose end has passed, once.
    pub(crate) fn past(&mut self, world: Time) -> Option<usize> {
        let local = self.local(world);
        let mut terms = self.terms.iter_mut();
        let past = |t: &&mut Term| !t.over && !t.joined && t.reason.is_some() && local >= t.until;
        let term = terms.find(past)?;
        term.over = true;
        Some(term.prize)
    }

    /// Returns the key that a candidate holds, by its core.
    pub(crate) fn own_key(&self, slot: SlotId) -> Option<Key> {
        self.core.own(slot).map(|own| Arc::clone(&own.key))
    }

    /// Returns true if its core holds that very key, and intends to keep it.
    pub(crate) fn holds(&self, key: &[u8], create_revision: i64) -> bool {
        self.core
            .candidates()
            .any(|(_, candidate)| match candidate.phase() {
                Phase::Waiting { own } | Phase::Leading { own, .. } => {
                    *own.key == *key && own.create_revision == create_revision
                }
                _ => false,
            })
    }

    pub(crate) fn candidate(&self, prefix: &[u8]) -> Option<(SlotId, &SimCandidate)> {
        let slot = self.stood.get(prefix)?;
        Some((*slot, &self.candidates[slot]))
    }

    /// Returns true if the session is a candidate there.
    pub(crate) fn is_candidate(&self, prefix: &[u8]) -> bool {
        let slot = self.stood.get(prefix);
        slot.is_some_and(|slot| self.core.is_candidate(*slot))
    }

    pub(crate) fn lease(&self) -> Option<i64> {
        self.core.lease().map(eldest_core::lease::Lease::id)
    }

    pub(crate) fn key(&self, prefix: &[u8]) -> Option<Key> {
        Some(eldest_core::candidate::key_of(prefix, self.lease()?))
    }

    pub(crate) fn term_of(&self, prefix: &[u8]) -> Option<&Term> {
        self.terms.iter().rev().find(|t| &*t.prefix == prefix)
    }

    pub(crate) fn closed(&self) -> bool {
        self.closed
    }

    /// Begins a term, unless the lease is no longer trusted, and returns its token.
    pub(crate) fn elected(&mut self, action: &Action, prize: usize) -> Option<i64> {
        let Action::Candidate(CandidateAction::Elected {
            slot,
            term,
            key,
            token,
        }) = action
        else {
            return None;
        };
        let belief = Rc::clone(self.belief.as_ref()?);
        let lead = self.lead.clone();
        let reads = !self.settings.lead.is_zero() && !self.doubts.withdrawn;
        if lead.is_none() && reads {
            return None;
        }
        // The lease may have been lost since, in the same turn.
        let lease = self.lease().or(self.leases.last().copied())?;
        self.terms.push(Term {
            slot: *slot,
            id: *term,
            prefix: Arc::clone(&self.candidates[slot].prefix),
            prize,
            key: Arc::clone(key),
            token: *token,
            lease,
            belief,
            lead,
            until: Time::MAX,
            cutoff: Time::MAX,
            reason: None,
            joined: false,
            over: false,
        });
        Some(*token)
    }

    /// Ends the work of that term. Returns the term's prize unless it had ended already.
    pub(crate) fn ended(&mut self, term: TermId) -> Option<usize> {
        let at = self.terms.iter().position(|t| t.id == term)?;
        let t = &mut self.terms[at];
        let open = !std::mem::replace(&mut t.joined, true);
        // As in `Claim::joined`, views report the end before the key may be deleted.
        t.until = Time::ZERO;
        let (prize, open) = (t.prize, open && !t.over);
        if !self.recording {
            self.terms.remove(at);
        }
        open.then_some(prize)
    }
}
