//! Hides how everything a session decides fits together: events in, actions out, time as an argument.
//!
//! Contract with the driver: every [`Ask`] is answered exactly once (a timeout is an answer), watch events
//! arrive in the order of the stream, and `now` never goes back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::action::{
    Action, Answer, Ask, Class, Condition, Note, RequestId, SlotId, Trouble, WatchId,
};
use super::candidacy::{Candidacy, Purpose};
use super::lease::{Lease, Next, Outcome, pause};
use super::lease_clock::{Step, Trust};
use super::reason::LostReason;
use super::time::Time;
use super::timers::Timers;
use super::view::{PrefixView, Watcher};
use crate::facts::{Change, Entry, Header};

/// What a session was configured to.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) ttl: Duration,
    pub(crate) trust: Trust,
    pub(crate) grace: Duration,
    pub(crate) request_timeout: Duration,
    /// Random; lease ids are drawn from it.
    pub(crate) seed: u64,
    /// A key of the namespace that is read when no other will do; it need not exist.
    pub(crate) probe_key: Arc<[u8]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Soft end of the belief in the lease.
    Trust,
    Grant,
    Renewal,
    Probe,
    Watches,
    Slot(SlotId),
    Relist(SlotId, RequestId),
    Removals,
    Revocations,
    /// End of the patience of a closing session.
    GiveUp,
}

/// The session's lease; each state is left by the answer or the time it names.
#[derive(Debug, Clone)]
pub(crate) enum Holding {
    /// Nobody campaigned yet, or the last grant failed and is due again.
    None {
        not_before: Time,
    },
    Granting,
    Held(Box<Lease>),
    /// Given back for good; never left.
    Closed,
}

/// Somebody who only looks on.
#[derive(Debug, Clone)]
pub(crate) struct Onlooker {
    pub(crate) prefix: Arc<[u8]>,
    pub(crate) view: PrefixView,
    pub(crate) failures: u32,
    pub(crate) not_before: Time,
    pub(crate) shown: i64,
}

#[derive(Debug, Clone)]
pub(crate) enum Slot {
    Candidate(Box<Candidacy>),
    Onlooker(Box<Onlooker>),
}

/// The watch stream as a whole.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stream {
    /// Broken; watches are opened again from then on.
    pub(crate) down_until: Option<Time>,
    pub(crate) failures: u32,
    /// The newest revision it told of.
    pub(crate) seen: i64,
    /// Since when linearizable reads are ahead of it, and the revision they showed then.
    pub(crate) behind: Option<(Time, i64)>,
}

/// A limit on requests of one kind under way, so that ten thousand elections do not flood etcd.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate {
    under_way: usize,
    queue: BTreeSet<SlotId>,
}

const MOST_UNDER_WAY: usize = 64;
/// Longest pause between attempts that etcd did not answer well.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// After a lost join, the lease's keys are swept every so many verified renewals.
const SWEEP_EVERY: u32 = 3;

/// The decisions of one session.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) config: Config,
    counter: Step,
    pub(crate) holding: Holding,
    grant_failures: u32,
    /// Until when the lease is believed in; `None` when it is not.
    pub(crate) trusted: Option<Time>,
    /// The last belief's end, kept for terms that fade with it.
    pub(crate) last_deadline: Time,
    pub(crate) slots: BTreeMap<SlotId, Slot>,
    pub(crate) removals: super::removal::Removals,
    /// What each request is for, and the newest revision known when it was sent.
    requests: BTreeMap<RequestId, (Purpose, i64)>,
    /// The cluster that answers, and the newest revision of a linearizable answer.
    store: (Option<u64>, i64),
    watches: BTreeMap<WatchId, SlotId>,
    pub(crate) stream: Stream,
    pub(crate) lists: Gate,
    pub(crate) joins: Gate,
    pub(crate) timers: Timers<Timer>,
    actions: VecDeque<Action>,
    condition: Condition,
    verified_slot: SlotId,
    /// Verified renewals since a join was lost on the way, if one ever was under this lease.
    pub(crate) suspicion: Option<u32>,
    pub(crate) closing: bool,
    probing: bool,
    revocations: Vec<super::removal::Revocation>,
}

impl Machine {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            counter: 0,
            holding: Holding::None {
                not_before: Time::ZERO,
            },
            grant_failures: 0,
            trusted: None,
            last_deadline: Time::ZERO,
            slots: BTreeMap::new(),
            removals: super::removal::Removals::default(),
            requests: BTreeMap::new(),
            store: (None, 0),
            watches: BTreeMap::new(),
            stream: Stream::default(),
            lists: Gate::default(),
            joins: Gate::default(),
            timers: Timers::default(),
            actions: VecDeque::new(),
            condition: Condition::Connecting,
            verified_slot: 0,
            suspicion: None,
            closing: false,
            probing: false,
            revocations: Vec::new(),
        }
    }

    /// The next thing to do, in order.
    pub(crate) fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Machine::tick`] must be called at the latest.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Time) {
        self.expire(now);
        while let Some(timer) = self.timers.pop(now) {
            match timer {
                Timer::Trust => {}
                Timer::Grant | Timer::Renewal => self.keep_lease(now),
                Timer::Probe => self.probe(now),
                Timer::Watches => self.open_watches(now),
                Timer::Slot(slot) => self.slot_due(slot, now),
                Timer::Relist(slot, request) => self.relist(slot, request, now),
                Timer::Removals => self.start_removals(now),
                Timer::Revocations => self.start_revocations(now),
                Timer::GiveUp => self.set_closed(),
            }
        }
    }

    /// Ends the belief in the lease when its time has come; called before anything else is looked at.
    pub(crate) fn expire(&mut self, now: Time) {
        if let Some(deadline) = self.trusted
            && now >= deadline.before(self.config.grace)
        {
            self.distrust(now);
        }
    }

    /// The watchdog, or a check past the deadline, ended the belief before we did.
    pub(crate) fn distrusted(&mut self, now: Time) {
        if self.trusted.is_some() {
            self.distrust(now);
        }
    }

    fn distrust(&mut self, now: Time) {
        self.trusted = None;
        if let Holding::Held(lease) = &mut self.holding {
            lease.doubt();
        }
        for slot in self.slot_ids() {
            self.end_term(
                slot,
                now,
                LostReason::LeaseExpiring,
                super::slots::End::Fading,
            );
        }
        // After the reasons were told, for this cancels whatever is left.
        self.act(Action::Distrust);
        self.set_condition(Condition::Lost {
            reason: LostReason::LeaseExpiring,
        });
    }

    // ---- helpers shared by the machine's other files

    pub(crate) fn next_id(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(crate) fn note(&mut self, note: Note) {
        self.act(Action::Note(note));
    }

    pub(crate) fn ask(&mut self, purpose: Purpose, ask: Ask) -> RequestId {
        let request = self.next_id();
        self.ask_as(request, purpose, ask);
        request
    }

    fn ask_as(&mut self, request: RequestId, purpose: Purpose, ask: Ask) {
        self.requests.insert(request, (purpose, self.store.1));
        self.act(Action::Ask { request, ask });
    }

    pub(crate) fn slot_ids(&self) -> Vec<SlotId> {
        self.slots.keys().copied().collect()
    }

    pub(crate) fn lease(&self) -> Option<&Lease> {
        match &self.holding {
            Holding::Held(lease) => Some(lease),
            _ => None,
        }
    }

    /// A lease that may be believed in.
    pub(crate) fn trusted_lease(&self) -> Option<&Lease> {
        self.trusted.and(self.lease())
    }

    pub(crate) fn set_condition(&mut self, condition: Condition) {
        if self.condition != condition {
            self.condition = condition;
            self.act(Action::Session(condition));
        }
    }

    pub(crate) fn set_closed(&mut self) {
        self.set_condition(Condition::Closed);
    }

    pub(crate) fn pause(&self, failures: u32, class: Class) -> Duration {
        let pause = pause(failures, LONGEST_PAUSE);
        match class {
            Class::Retry | Class::LeaseGone => pause,
            _ => pause.max(self.config.request_timeout),
        }
    }

    /// etcd answered.
    pub(crate) fn connected(&mut self) {
        if self.condition == Condition::Connecting {
            self.set_condition(Condition::Ready);
        }
    }

    // ---- answers

    /// The answer to a request.
    pub(crate) fn answer(&mut self, now: Time, request: RequestId, answer: Answer) {
        self.expire(now);
        let Some((purpose, floor)) = self.requests.remove(&request) else {
            return;
        };
        if !matches!(answer, Answer::Failed(_)) {
            self.connected();
        }
        if let Answer::Read { header, .. }
        | Answer::Joined { header, .. }
        | Answer::Listed { header, .. }
        | Answer::Deleted { header } = &answer
        {
            if !self.same_store(now, *header, floor) {
                // The answer is the new store's; what was asked for was the old one's. It is asked for anew.
                self.joins.under_way -= usize::from(matches!(purpose, Purpose::Join { .. }));
                self.lists.under_way -= usize::from(matches!(purpose, Purpose::List { .. }));
                return;
            }
            self.confirm(now, request, *header);
        }
        match purpose {
            Purpose::Grant { lease, sent } => self.granted(now, lease, sent, answer),
            Purpose::Open | Purpose::Renew => self.renewed(now, request, answer),
            Purpose::Verify { subject } => self.verified(now, request, subject, answer),
            Purpose::Probe => {
                if let Answer::Read { header, .. } = answer {
                    self.compare_stream(now, header.revision);
                }
            }
            Purpose::Join { slot } => {
                self.joins.under_way -= 1;
                self.joined(now, slot, request, answer);
                self.start_joins(now);
            }
            Purpose::List { slot } => {
                self.lists.under_way -= 1;
                self.listed(now, slot, request, answer);
                self.start_lists(now);
            }
            Purpose::Remove { key } => self.removed(now, &key, request, answer),
            Purpose::Proclaim { ticket } => self.proclaimed(ticket, answer),
            Purpose::Revoke { lease } => self.revoked(now, lease, answer),
            Purpose::Sweep { lease } => self.swept(now, lease, answer),
        }
    }

    /// A linearizable answer never shows less than what was known when it was asked for, unless etcd was
    /// restored from a backup (which keeps cluster id and term) or is another cluster.
    fn same_store(&mut self, now: Time, header: Header, floor: i64) -> bool {
        let (cluster, newest) = self.store;
        let same = cluster.is_none_or(|c| c == header.cluster) && header.revision >= floor;
        if same {
            self.store = (Some(header.cluster), newest.max(header.revision));
            return true;
        }
        self.note(Note::StoreChanged {
            was: (cluster.unwrap_or_default(), newest),
            is: (header.cluster, header.revision),
        });
        self.store = (Some(header.cluster), header.revision);
        for (_, floor) in self.requests.values_mut() {
            *floor = 0;
        }
        self.lose_lease(now, LostReason::StoreChanged);
        self.restart_watches(now, false);
        for slot in self.slot_ids() {
            self.forget_store(slot);
        }
        false
    }

    // ---- the lease

    /// Grants, opens, renews: whatever is due.
    pub(crate) fn keep_lease(&mut self, now: Time) {
        match &mut self.holding {
            Holding::Granting | Holding::Closed => {}
            Holding::None { not_before } => {
                let not_before = *not_before;
                if self.closing || !self.wants_lease() {
                    return;
                }
                if now < not_before {
                    self.timers.set(not_before, Timer::Grant);
                    return;
                }
                self.holding = Holding::Granting;
                let lease = self.fresh_lease_id();
                let ttl = self.config.ttl;
                self.ask(
                    Purpose::Grant { lease, sent: now },
                    Ask::Grant { lease, ttl },
                );
            }
            Holding::Held(lease) => {
                let request = self.counter + 1;
                let id = lease.id();
                if let Some(next) = lease.start(now, request) {
                    self.counter = request;
                    match next {
                        Next::Open => self.ask_as(request, Purpose::Open, Ask::Open { lease: id }),
                        Next::Renew => self.ask_as(request, Purpose::Renew, Ask::Renew),
                        Next::Verify => self.verify(request),
                    }
                }
                self.set_renewal_timer();
            }
        }
    }

    fn wants_lease(&self) -> bool {
        self.slots
            .values()
            .any(|slot| matches!(slot, Slot::Candidate(c) if c.looks()))
    }

    fn set_renewal_timer(&mut self) {
        if let Some(at) = self.lease().and_then(Lease::next_at) {
            self.timers.set(at, Timer::Renewal);
        }
    }

    fn granted(&mut self, now: Time, lease: i64, sent: Time, answer: Answer) {
        match answer {
            Answer::Granted { ttl, header } => {
                self.grant_failures = 0;
                let lease = Lease::granted(
                    lease,
                    ttl,
                    self.config.trust,
                    self.config.request_timeout,
                    sent,
                    header,
                );
                self.note(Note::LeaseGranted {
                    lease: lease.id(),
                    ttl,
                });
                let deadline = lease.deadline();
                self.holding = Holding::Held(Box::new(lease));
                self.set_renewal_timer();
                self.trust(now, deadline);
                self.close_if_done(now);
            }
            Answer::Failed(trouble) => {
                self.grant_failures += 1;
                let pause = self.pause(self.grant_failures, trouble.class);
                let not_before = now.after(pause);
                self.holding = Holding::None { not_before };
                self.timers.set(not_before, Timer::Grant);
                self.note(Note::RequestFailed {
                    what: "grant",
                    trouble: trouble.clone(),
                });
                if trouble.ambiguous {
                    self.revoke(now, lease, self.config.ttl, now);
                }
                for slot in self.slot_ids() {
                    self.refuse_if_new(slot, &trouble, now);
                }
                self.close_if_done(now);
            }
            _ => {}
        }
    }

    /// A fresh id for every attempt: 'already exists' could be our own lost grant, older than we think, or
    /// somebody else's, and is never adopted. (`SplitMix64` over the session's random seed.)
    fn fresh_lease_id(&mut self) -> i64 {
        self.config.seed = self.config.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.config.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((z >> 1) as i64).max(1)
    }

    /// The lease may be believed in until `deadline`.
    fn trust(&mut self, now: Time, deadline: Time) {
        if now >= deadline.before(self.config.grace) {
            return;
        }
        let fresh = self.trusted.is_none();
        self.trusted = Some(deadline);
        self.last_deadline = deadline;
        self.timers
            .set(deadline.before(self.config.grace), Timer::Trust);
        self.act(Action::Trust { deadline, fresh });
        if let Some(lease) = self.lease().map(Lease::id) {
            self.set_condition(Condition::Live { lease });
        }
        if fresh {
            for slot in self.slot_ids() {
                self.look(slot, now);
            }
        }
    }

    fn renewed(&mut self, now: Time, request: RequestId, answer: Answer) {
        let verify = self.counter + 1;
        let received = self.counter;
        let Holding::Held(lease) = &mut self.holding else {
            return;
        };
        match answer {
            Answer::Opened => {
                lease.opened(now, request);
                self.keep_lease(now);
            }
            Answer::Renewed { ttl, header } => {
                match lease.acknowledged(request, received, ttl, header, verify) {
                    (Outcome::Gone, _) => self.lose_lease(now, LostReason::LeaseLost),
                    (_, Some(Next::Verify)) => self.verify(verify),
                    _ => {}
                }
            }
            // About this lease: the stream of an earlier one may answer late.
            Answer::Failed(trouble)
                if trouble.class == Class::LeaseGone && lease.awaits(request) =>
            {
                self.lose_lease(now, LostReason::LeaseLost);
            }
            Answer::Failed(trouble) if lease.failed(now, request) => {
                self.act(Action::HangUp);
                self.note(Note::RenewalFailed { trouble });
                self.keep_lease(now);
            }
            _ => {}
        }
    }

    /// Reads a live key of ours, another each time; leaders' keys and waiting ones alike.
    fn verify(&mut self, request: RequestId) {
        self.counter = self.counter.max(request);
        let after = self.verified_slot;
        let chosen = self
            .slots
            .range(after + 1..)
            .chain(self.slots.range(..=after))
            .find_map(|(id, slot)| match slot {
                Slot::Candidate(c) => c
                    .own()
                    .map(|own| (*id, own.create_revision, Arc::clone(&own.key))),
                Slot::Onlooker(_) => None,
            });
        let (subject, key) = match chosen {
            Some((slot, revision, key)) => {
                self.verified_slot = slot;
                (Some((slot, revision)), key)
            }
            None => (None, Arc::clone(&self.config.probe_key)),
        };
        self.ask_as(request, Purpose::Verify { subject }, Ask::Verify { key });
    }

    /// Any linearizable answer may verify the last acknowledgement.
    fn confirm(&mut self, now: Time, begun: RequestId, header: Header) {
        let Holding::Held(lease) = &mut self.holding else {
            return;
        };
        let before = lease.deadline();
        match lease.confirm(now, begun, header) {
            Outcome::Extended(deadline) => {
                let left = before.since(now);
                if left
                    < self
                        .config
                        .grace
                        .saturating_add(self.config.request_timeout)
                {
                    self.note(Note::RenewedLate { left });
                }
                self.set_renewal_timer();
                self.trust(now, deadline);
                self.count_renewal();
            }
            Outcome::Refused => {
                self.note(Note::RenewalRefused);
                self.set_renewal_timer();
                self.abandon_if_hopeless(now);
            }
            Outcome::None | Outcome::Gone => {}
        }
    }

    fn verified(
        &mut self,
        now: Time,
        request: RequestId,
        subject: Option<(SlotId, i64)>,
        answer: Answer,
    ) {
        match answer {
            Answer::Read { header, entry } => {
                if let Holding::Held(lease) = &mut self.holding {
                    lease.verified(now, request);
                }
                self.keep_lease(now);
                if let Some((slot, create_revision)) = subject {
                    self.own_key_read(slot, create_revision, entry.as_ref(), now);
                }
                self.compare_stream(now, header.revision);
            }
            Answer::Failed(trouble) => {
                if let Holding::Held(lease) = &mut self.holding
                    && lease.failed(now, request)
                {
                    self.act(Action::HangUp);
                    let heard = trouble.class != Class::Retry;
                    self.note(Note::RenewalFailed { trouble });
                    if heard {
                        self.abandon_if_hopeless(now);
                    }
                    self.keep_lease(now);
                }
            }
            _ => {}
        }
    }

    /// A lease that we renew but can never verify, although etcd answers, would keep our keys, and so everybody
    /// behind them, waiting for ever: let it go after a TTL without belief.
    fn abandon_if_hopeless(&mut self, now: Time) {
        if self.trusted.is_none()
            && let Some(lease) = self.lease()
            && now > lease.deadline().after(lease.ttl())
        {
            self.lose_lease(now, LostReason::LeaseLost);
        }
    }

    /// The lease is gone, or given up: its keys with it.
    pub(crate) fn lose_lease(&mut self, now: Time, reason: LostReason) {
        if self.lease().is_none() {
            return;
        }
        // Not `None` before it is revoked: a closing session would count as closed meanwhile.
        let Holding::Held(lease) = std::mem::replace(&mut self.holding, Holding::Granting) else {
            return;
        };
        self.act(Action::HangUp);
        self.suspicion = None;
        let trusted = self.trusted.take().is_some();
        for slot in self.slot_ids() {
            self.lease_lost(slot, reason, now);
        }
        if trusted {
            self.act(Action::Distrust);
        }
        self.removals_moot(now);
        // etcd may not know yet that it is gone, and an abandoned one lives on: nothing of it may stay behind.
        // A restored store still has it, with our keys: they stay for as long as work may go on under them.
        let not_before = match reason {
            LostReason::StoreChanged => now.after(self.config.grace),
            _ => now,
        };
        self.revoke(now, lease.id(), lease.ttl(), not_before);
        self.set_condition(Condition::Lost { reason });
        // A lease that is lost as soon as it is granted must not be granted in a tight loop.
        if now.since(lease.renewed()) < lease.ttl() / 3 {
            self.grant_failures += 1;
        }
        let not_before = now.after(pause(self.grant_failures, LONGEST_PAUSE));
        self.holding = Holding::None { not_before };
        self.keep_lease(now);
    }

    fn count_renewal(&mut self) {
        if let Some(count) = &mut self.suspicion {
            *count += 1;
            if count.is_multiple_of(SWEEP_EVERY)
                && let Some(lease) = self.lease().map(Lease::id)
            {
                self.ask(Purpose::Sweep { lease }, Ask::Sweep { lease });
            }
        }
    }

    pub(crate) fn revocations(&mut self) -> &mut Vec<super::removal::Revocation> {
        &mut self.revocations
    }

    // ---- the watch stream

    /// Watches `key`, or everything under it, for `slot`, unless the stream is down.
    pub(crate) fn watch(&mut self, slot: SlotId, key: Arc<[u8]>, prefix: bool) -> Option<Watcher> {
        if self.stream.down_until.is_some() {
            return None;
        }
        let watch = self.next_id() as WatchId;
        self.watches.insert(watch, slot);
        self.act(Action::Watch { watch, key, prefix });
        Some(Watcher::new(watch))
    }

    pub(crate) fn unwatch(&mut self, watch: WatchId) {
        if self.watches.remove(&watch).is_some() {
            self.act(Action::Unwatch { watch });
        }
    }

    /// The watch stands since `revision`.
    pub(crate) fn watch_created(&mut self, now: Time, watch: WatchId, revision: i64) {
        self.expire(now);
        self.stream.failures = 0;
        self.saw(revision);
        if let Some(slot) = self.watches.get(&watch).copied() {
            self.slot_watched(slot, watch, revision, now);
        }
    }

    /// Events of one watch, in order, up to `revision`.
    pub(crate) fn watch_events(&mut self, now: Time, watch: WatchId, changes: Vec<Change>) {
        self.expire(now);
        if let Some(last) = changes.last() {
            self.saw(last.revision());
        }
        if let Some(slot) = self.watches.get(&watch).copied() {
            self.slot_changed(slot, changes, now);
        }
    }

    /// Every watch of the stream has delivered everything up to `revision`.
    pub(crate) fn watch_progress(&mut self, revision: i64) {
        self.saw(revision);
    }

    /// etcd cancelled one watch (compaction, permission): the stream lives on, silent.
    pub(crate) fn watch_canceled(&mut self, now: Time, watch: WatchId, reason: String) {
        self.expire(now);
        if self.watches.contains_key(&watch) {
            self.note(Note::WatchLost { why: reason });
            self.restart_watches(now, true);
        }
    }

    /// The stream broke.
    pub(crate) fn watch_lost(&mut self, now: Time, why: String) {
        self.expire(now);
        self.note(Note::WatchLost { why });
        self.restart_watches(now, false);
    }

    fn restart_watches(&mut self, now: Time, elsewhere: bool) {
        self.act(Action::HangUpWatches { elsewhere });
        self.watches.clear();
        self.stream.behind = None;
        self.stream.seen = 0;
        self.stream.failures += 1;
        let until = now.after(pause(self.stream.failures, LONGEST_PAUSE));
        self.stream.down_until = Some(until);
        self.timers.set(until, Timer::Watches);
        for slot in self.slot_ids() {
            self.slot_unwatched(slot);
        }
    }

    fn open_watches(&mut self, now: Time) {
        if self.stream.down_until.is_some_and(|until| now >= until) {
            self.stream.down_until = None;
            for slot in self.slot_ids() {
                self.watch_slot(slot);
                self.want_read(slot, now);
            }
        }
    }

    fn saw(&mut self, revision: i64) {
        self.stream.seen = self.stream.seen.max(revision);
        if self
            .stream
            .behind
            .is_some_and(|(_, at)| self.stream.seen >= at)
        {
            self.stream.behind = None;
        }
    }

    /// A linearizable read showed `revision`: a stream that stays behind it for longer than a bound is stalled.
    fn compare_stream(&mut self, now: Time, revision: i64) {
        if self.watches.is_empty() || self.stream.down_until.is_some() {
            return;
        }
        if self.stream.seen >= revision {
            return;
        }
        let (since, _) = *self.stream.behind.get_or_insert((now, revision));
        if now.since(since) >= self.stall_bound() {
            self.note(Note::WatchLost {
                why: format!(
                    "stalled: reads show revision {revision}, the stream only {}",
                    self.stream.seen
                ),
            });
            self.restart_watches(now, true);
        } else {
            self.act(Action::Progress);
        }
    }

    fn stall_bound(&self) -> Duration {
        (self.config.request_timeout * 2).max(Duration::from_millis(500))
    }

    /// Sessions that renew nothing have no verifying read; their watches are compared with a read of their own.
    fn probe(&mut self, now: Time) {
        self.probing = false;
        let looks_on = self
            .slots
            .values()
            .any(|slot| matches!(slot, Slot::Onlooker(_)));
        if !looks_on {
            return;
        }
        self.probe_later(now);
        if self.lease().is_none() {
            let key = Arc::clone(&self.config.probe_key);
            self.ask(Purpose::Probe, Ask::Probe { key });
        }
    }

    pub(crate) fn probe_later(&mut self, now: Time) {
        if !std::mem::replace(&mut self.probing, true) {
            self.timers
                .set(now.after(self.config.ttl / 3), Timer::Probe);
        }
    }

    // ---- gates

    pub(crate) fn queue_join(&mut self, slot: SlotId, now: Time) {
        self.joins.queue.insert(slot);
        self.start_joins(now);
    }

    fn start_joins(&mut self, now: Time) {
        while self.joins.under_way < MOST_UNDER_WAY {
            let Some(slot) = self.joins.queue.pop_first() else {
                return;
            };
            if self.start_join(slot, now) {
                self.joins.under_way += 1;
            }
        }
    }

    pub(crate) fn queue_list(&mut self, slot: SlotId, now: Time) {
        self.lists.queue.insert(slot);
        self.start_lists(now);
    }

    fn start_lists(&mut self, now: Time) {
        while self.lists.under_way < MOST_UNDER_WAY {
            let Some(slot) = self.lists.queue.pop_first() else {
                return;
            };
            if self.start_list(slot, now) {
                self.lists.under_way += 1;
            }
        }
    }

    pub(crate) fn forget(&mut self, slot: SlotId) {
        self.slots.remove(&slot);
        let watches: Vec<_> = self
            .watches
            .iter()
            .filter(|(_, s)| **s == slot)
            .map(|(w, _)| *w)
            .collect();
        for watch in watches {
            self.unwatch(watch);
        }
    }

    pub(crate) fn entry_is_ours(&self, entry: &Entry) -> bool {
        self.lease().is_some_and(|lease| lease.id() == entry.lease)
    }

    pub(crate) fn fail_request(&mut self, what: &'static str, trouble: Trouble) {
        self.note(Note::RequestFailed { what, trouble });
    }
}
