//! Wires the rooms of the core: events go in, each room decides, actions come out. Time is an argument.
//!
//! Contract with the driver: every [`Ask`](crate::action::Ask) is answered exactly once (a timeout is an answer), watch events
//! arrive in the order of the stream, and `now` never goes back.

mod asserted;
mod cleanup;
mod commands;
mod evacuation;
mod holdings;
mod lease;
mod rooms;
mod slots;
mod view_sync;
mod watch;

use self::holdings::Holdings;
use self::rooms::Rooms;
use self::slots::{Slot, Slots};
use crate::action::{Action, Answer, Class, RequestId, SlotId, WatchId};
use crate::candidate::{Candidacy, Seat};
use crate::cleanup::Revocations;
use crate::config::Config;
use crate::known_store::{Floor, Origin};
use crate::kv::Header;
use crate::lease::{KeyChecks, Lease};
use crate::purpose::Purpose;
use crate::queue::Own;
use crate::reason::LostReason;
use crate::time::Time;
use crate::timers::Timer;

/// The decisions of one session.
#[derive(Debug)]
pub struct Core {
    /// Candidates and onlookers.
    slots: Slots,
    /// The parts of the session that the rules of candidates change.
    rooms: Rooms,
    /// Reads of leaders' keys.
    checks: KeyChecks,
    /// Leases that must go.
    revocations: Revocations,
    /// A lease is wanted whether or not anybody stands.
    keeps_lease: bool,
}

impl Core {
    /// Makes a session that has done nothing yet.
    pub fn new(config: Config) -> Self {
        let rooms = Rooms::new(config);
        Self {
            slots: Slots::default(),
            checks: KeyChecks::default(),
            revocations: Revocations::new(rooms.pace),
            keeps_lease: false,
            rooms,
        }
    }

    /// Returns the next action, in order.
    pub fn action(&mut self) -> Option<Action> {
        self.rooms.out.pop()
    }

    /// Returns the latest time at which [`Core::tick`] must be called.
    pub fn next_timeout(&self) -> Option<Time> {
        self.rooms.out.next_timeout()
    }

    /// Records that time has passed.
    pub fn tick(&mut self, now: Time) {
        self.expire(now);
        while let Some(timer) = self.rooms.out.due(now) {
            match timer {
                Timer::Trust => {}
                Timer::Grant | Timer::Renewal => self.keep_lease(now),
                Timer::Probe => self.probe(now),
                Timer::Watches => self.open_watches(now),
                Timer::Rewatch(slot) => self.rewatch(slot, now),
                Timer::Slot(slot) => self.slot_due(slot, now),
                Timer::Relist(slot, request) => self.relist(slot, request, now),
                Timer::Rebalance(slot) => self.holdings(slot, now).rebalance(),
                Timer::Announcement(slot) => {
                    if let Some(mut seat) = self.seat(slot, now) {
                        seat.announce_owed();
                    }
                }
                Timer::Marks => self.look_at_marks_again(now),
                Timer::Removals => self.rooms.removals.start_due(now, &mut self.rooms.out),
                Timer::Revocations => self.revocations.start(now, &mut self.rooms.out),
                Timer::GiveUp => self.rooms.lease.give_up(&mut self.rooms.out),
            }
        }
        self.close_if_done(now);
    }

    /// Lends the candidate in that slot the parts of the session that its rules may change.
    fn seat(&mut self, slot: SlotId, now: Time) -> Option<Seat<'_>> {
        self.rooms.seat(&mut self.slots, slot, now)
    }

    /// Lends the member in that slot its partitions.
    fn holdings(&mut self, slot: SlotId, now: Time) -> Holdings<'_> {
        Holdings {
            slot,
            now,
            slots: &mut self.slots,
            rooms: &mut self.rooms,
        }
    }

    /// Returns the lease that the session holds, whether it is trusted or not.
    pub fn lease(&self) -> Option<&Lease> {
        self.rooms.lease.lease()
    }

    /// Returns the time until which the lease is trusted, or `None` if it is not.
    pub fn trusted(&self) -> Option<Time> {
        self.rooms.lease.trusted()
    }

    /// Returns every candidate with its slot.
    pub fn candidates(&self) -> impl Iterator<Item = (SlotId, &Candidacy)> {
        self.slots.candidates()
    }

    /// Returns the key of the candidate in that slot, while it holds one and may still act on it.
    pub fn own(&self, slot: SlotId) -> Option<&Own> {
        self.slots.candidate(slot)?.own()
    }

    /// Returns `true` if the slot is in use.
    pub fn has_slot(&self, slot: SlotId) -> bool {
        self.slots.contains_key(&slot)
    }

    /// Returns every watch with its slot.
    pub fn watches(&self) -> impl Iterator<Item = (WatchId, SlotId)> {
        self.rooms.watches.iter()
    }

    /// Returns `true` if the session closes, or is closed.
    pub fn is_closing(&self) -> bool {
        self.rooms.closing
    }

    /// Records that etcd answered.
    pub fn connected(&mut self) {
        self.rooms.lease.connected(&mut self.rooms.out);
    }

    // ---- answers

    /// Processes the answer to a request.
    pub fn answer(&mut self, now: Time, request: RequestId, answer: Answer) {
        self.expire(now);
        let Some((purpose, floor)) = self.rooms.out.answered(request) else {
            return;
        };
        if !matches!(answer, Answer::Failed(_)) {
            self.connected();
        }
        if let Some(header) = answer.linearizable() {
            if !self.same_store(now, header, floor) {
                self.answered_by_another_store(now, request, purpose);
                return;
            }
            self.confirm(now, request, header);
        }
        match purpose {
            Purpose::Grant { sent } => self.granted(now, sent, answer),
            Purpose::Open | Purpose::Renew => self.renewed(now, request, answer),
            Purpose::Verify { subject } => self.verified(now, request, subject, answer),
            Purpose::Probe { sent } => {
                if let Answer::Read { header, .. } = answer {
                    self.probed(now, sent, header);
                }
            }
            Purpose::Permission { slot } => self.permission_told(slot, answer, now),
            Purpose::Check { subjects } => {
                self.checks.answered();
                self.checked(now, &subjects, answer);
            }
            Purpose::Join { slot } => {
                self.join_answered(slot, request);
                self.joined(now, slot, request, answer);
                self.start_joins(now);
                self.start_lists(now);
            }
            Purpose::List { slot, sent } => {
                self.rooms.lists.answered();
                self.listed(now, slot, request, sent, answer);
                self.start_lists(now);
            }
            Purpose::Remove { key } => self.removed(now, &key, request, answer),
            Purpose::Release { keys } => self.released(now, &keys, request, answer),
            Purpose::Take { slot } => self.taken(now, slot, request, answer),
            Purpose::Proclaim { slot, key, tickets } => match self.seat(slot, now) {
                Some(mut seat) => seat.proclaimed(&key, tickets, answer),
                None => self.rooms.out.answer_write(&key, tickets, answer),
            },
            Purpose::Revoke { lease } => {
                self.revocations
                    .answered(now, lease, answer, &mut self.rooms.out);
            }
            Purpose::Sweep { lease } => self.swept(now, lease, answer),
        }
        self.close_if_done(now);
        self.check_idle(request);
    }

    /// Repeats a request whose answer came from another store.
    fn answered_by_another_store(&mut self, now: Time, request: RequestId, purpose: Purpose) {
        match purpose {
            Purpose::Join { slot } => self.join_answered(slot, request),
            Purpose::Check { .. } => self.checks.answered(),
            Purpose::List { .. } => self.rooms.lists.answered(),
            Purpose::Remove { key } => {
                let out = &mut self.rooms.out;
                self.rooms
                    .removals
                    .again(&key, request, Class::Retry, now, out);
            }
            Purpose::Release { keys } => self.release_again(&keys, request, now),
            _ => {}
        }
        self.start_joins(now);
        self.start_lists(now);
    }

    /// Returns true if the answer proves something about the store that is known.
    fn same_store(&mut self, now: Time, header: Header, floor: Floor) -> bool {
        let origin = self.rooms.out.origin(header, floor);
        if origin == Origin::Other {
            self.store_exchanged(now, header);
        }
        origin == Origin::Known
    }

    /// Another store answers: everything known of the former one is given up.
    fn store_exchanged(&mut self, now: Time, header: Header) {
        self.rooms.out.store_exchanged(header);
        self.lose_lease(now, LostReason::StoreChanged);
        self.restart_watches(now, false);
        self.slots.values_mut().for_each(Slot::store_changed);
        debug_assert!(
            self.candidates().all(|(_, c)| c.knows_no_store()),
            "what was known of a former store is given up"
        );
    }

    // ---- gates

    fn start_joins(&mut self, now: Time) {
        while let Some(slot) = self.rooms.joins.next(true) {
            if self.seat(slot, now).is_some_and(|mut s| s.start_join()) {
                self.rooms.joins.sent();
            }
        }
    }

    fn start_lists(&mut self, now: Time) {
        while let Some(slot) = self.rooms.lists.next(self.rooms.joins.is_idle()) {
            if self.start_list(slot, now) {
                self.rooms.lists.sent();
            }
        }
    }

    /// The request is answered, whatever became of it.
    fn join_answered(&mut self, slot: SlotId, request: RequestId) {
        self.rooms.joins.answered();
        if let Some(candidate) = self.slots.candidate_mut(slot) {
            candidate.view.join_over(request);
        }
    }

    fn joined(&mut self, now: Time, slot: SlotId, request: RequestId, answer: Answer) {
        let seat = self.seat(slot, now);
        let stands = seat.is_some_and(|mut seat| seat.joined(request, answer));
        if self.rooms.lease.is_gone() {
            self.lose_lease(now, LostReason::LeaseLost);
        }
        self.finish(slot, now);
        if stands {
            self.holdings(slot, now).rebalance_soon();
        }
    }

    fn taken(&mut self, now: Time, slot: SlotId, request: RequestId, answer: Answer) {
        if self.holdings(slot, now).taken(request, answer) {
            if self.rooms.lease.is_gone() {
                self.lose_lease(now, LostReason::LeaseLost);
            }
            self.holdings(slot, now).tidy();
            self.finish(slot, now);
            self.holdings(slot, now).rebalance_soon();
        }
    }

    /// Looks again at where the candidate stands.
    fn look(&mut self, slot: SlotId, now: Time) {
        if let Some(mut seat) = self.seat(slot, now) {
            seat.look();
            self.holdings(slot, now).rebalance_soon();
            self.close_if_done(now);
        }
    }

    /// The slot's time has come: to join, to release a key, or to read.
    fn slot_due(&mut self, slot: SlotId, now: Time) {
        let candidate = self.slots.candidate(slot);
        match candidate.and_then(|c| Some((c.owner_of()?, c.ending()?))) {
            Some(((member, partition), (cutoff, false))) => {
                self.holdings(member, now).former_due(partition, cutoff);
            }
            _ => match self.seat(slot, now) {
                Some(mut seat) => seat.due(),
                None => self.want_read(slot, now),
            },
        }
    }

    /// The slot is empty from now on.
    fn forget(&mut self, slot: SlotId) {
        self.rooms.watches.forget(slot);
        let Some(forgotten) = self.slots.remove(&slot) else {
            return;
        };
        let watchers = forgotten.watchers();
        self.rooms.out.forget_deletes_below(forgotten.prefix());
        if let Slot::Candidate(candidate) = forgotten {
            if candidate.is_member() {
                self.rooms.removals.forget_below(candidate.prefix());
                debug_assert!(
                    self.rooms.removals.knows_nothing_below(candidate.prefix()),
                    "what a member knew is forgotten with it"
                );
            }
            self.rooms
                .out
                .answer_proclaims(candidate.unanswered(), false);
        }
        for watch in watchers {
            self.rooms.watches.close(watch, &mut self.rooms.out);
        }
    }
}
