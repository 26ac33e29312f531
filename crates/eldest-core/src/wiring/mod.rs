//! Takes the inputs of a session, and passes each to the handlers that borrow the part of the session that it concerns.
//! Time is an argument.
//!
//! | handler | borrows |
//! |---|---|
//! | `Seat` | one candidate, and the rooms that its rules change |
//! | `Holdings` | a member, the slots of its partitions, and the rooms |
//! | `Hall` | all slots and the rooms |
//! | `Tenure` | all slots, the rooms, the checks of leaders' keys, and the leases that must go |
//!
//! Each handler writes its requests and its reports into the outbox. A rule that finds the lease gone informs the lease
//! keeper; everything that depends on the lease ends right after that rule. At the end of an input, a closing session
//! checks whether it is done.
//!
//! Contract with the driver: every [`Ask`](crate::action::Ask) is answered exactly once (a timeout is an answer), watch
//! events arrive in the order of the stream, and `now` never goes back.

mod asserted;
mod challenges;
mod cleanup;
mod commands;
mod elders;
mod evacuation;
mod hall;
mod holdings;
mod lease;
mod slots;
mod suspicions;
mod view_sync;
mod watch;

use self::hall::Hall;
use self::lease::Tenure;
use self::slots::{Rooms, Slot, Slots};
pub use self::suspicions::Challenging;
use crate::action::{Action, Answer, RequestId, SlotId, WatchId};
use crate::candidate::Candidacy;
use crate::challenge::Elder;
use crate::cleanup::Revocations;
use crate::config::Config;
use crate::lease::{Deadlines, KeyChecks, Lease};
use crate::purpose::Purpose;
use crate::queue::Own;
use crate::time::Time;
use crate::timers::Timer;

/// The decisions of one session.
#[derive(Debug)]
pub struct Core {
    /// Candidates and observers.
    slots: Slots,
    /// The parts of the session that the rules of candidates change.
    rooms: Rooms,
    /// Reads of leaders' keys.
    checks: KeyChecks,
    /// Leases that must go.
    revocations: Revocations,
    /// True if a lease is wanted even without a candidate.
    keeps_lease: bool,
}

impl Core {
    /// Makes a session that has received no input yet.
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
                Timer::Grant | Timer::Renewal => self.tenure(now).keep_lease(),
                Timer::Anchor => self.hall(now).put_anchor(),
                Timer::CleanRead => self.hall(now).clean_read_due(),
                Timer::Suspect(suspect) => self.hall(now).suspect_due(suspect),
                Timer::Elder(lease) => self.hall(now).elder_due(lease),
                Timer::Elders(slot) => self.hall(now).review_elders(slot),
                Timer::Probe => self.hall(now).probe(),
                Timer::Watches => self.hall(now).open_watches(),
                Timer::Rewatch(slot) => self.hall(now).rewatch(slot),
                Timer::Slot(slot) => self.hall(now).slot_due(slot),
                Timer::Relist(slot, request) => self.hall(now).relist(slot, request),
                Timer::Rebalance(slot) => self.hall(now).holdings(slot).rebalance(),
                Timer::Announcement(slot) => {
                    if let Some(mut seat) = self.hall(now).seat(slot) {
                        seat.announce_owed();
                    }
                }
                Timer::Marks => self.hall(now).retry_marks(),
                Timer::Removals => self.rooms.removals.start_due(now, &mut self.rooms.out),
                Timer::Revocations => self.revocations.start(now, &mut self.rooms.out),
                Timer::GiveUp => self.rooms.lease.give_up(&mut self.rooms.out),
            }
        }
        self.close_if_done(now);
    }

    /// Lends all slots and the rooms that their rules change.
    fn hall(&mut self, now: Time) -> Hall<'_> {
        Hall {
            now,
            slots: &mut self.slots,
            rooms: &mut self.rooms,
        }
    }

    /// Lends the lease and everything that depends on it.
    fn tenure(&mut self, now: Time) -> Tenure<'_> {
        Tenure {
            now,
            slots: &mut self.slots,
            rooms: &mut self.rooms,
            checks: &mut self.checks,
            revocations: &mut self.revocations,
            is_kept: self.keeps_lease,
        }
    }

    /// Returns the lease that the session holds, whether it is trusted or not.
    pub fn lease(&self) -> Option<&Lease> {
        self.rooms.lease.lease()
    }

    /// Returns until when the lease is trusted, and until when the session may lead.
    pub fn deadlines(&self) -> &Deadlines {
        self.rooms.lease.deadlines()
    }

    /// Returns every candidate with its slot.
    pub fn candidates(&self) -> impl Iterator<Item = (SlotId, &Candidacy)> {
        self.slots.candidates()
    }

    /// Returns the key of the candidate in that slot, while it holds one and may still act on it.
    pub fn own(&self, slot: SlotId) -> Option<&Own> {
        self.slots.candidate(slot)?.own()
    }

    /// Returns the value that a key of the session of that lease announces, if a candidate of this one sees such a key.
    pub fn announced_by(&self, lease: i64) -> Option<&[u8]> {
        let mut seen = self.candidates();
        seen.find_map(|(_, candidate)| {
            let key = candidate.view.of_lease(lease).into_iter().next()?;
            Some(&*key.value)
        })
    }

    /// Returns every watch with its slot, and `true` if the slot is in use.
    pub fn watches(&self) -> impl Iterator<Item = (WatchId, SlotId, bool)> {
        let watches = self.rooms.watches.iter();
        let challenged = self.rooms.challenges.reads.watch();
        watches.map(move |(watch, slot)| {
            let is_in_use = self.slots.contains_key(&slot) || challenged == Some(watch);
            (watch, slot, is_in_use)
        })
    }

    /// Returns `true` if the session closes, or is closed.
    pub fn is_closing(&self) -> bool {
        self.rooms.closing
    }

    /// Records that etcd answered.
    pub fn connected(&mut self) {
        self.rooms.lease.connected(&mut self.rooms.out);
    }

    /// Takes an input of challenges.
    pub fn challenges(&mut self, now: Time) -> Challenging<'_> {
        Challenging::new(self, now)
    }

    /// Returns the sessions to be asked for signs of life, if they have changed since the last call: those that a
    /// candidate of this session would succeed.
    pub fn take_elders(&mut self) -> Option<Vec<Elder>> {
        self.rooms.challenges.elders.take_changed()
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
            if !self.tenure(now).same_store(header, floor) {
                self.tenure(now).answered_by_another_store(request, purpose);
                return;
            }
            self.tenure(now).confirm(request, header);
        }
        match purpose {
            Purpose::Grant { sent } => self.tenure(now).granted(sent, answer),
            Purpose::Open | Purpose::Renew => self.tenure(now).renewed(request, answer),
            Purpose::Verify { subject } => self.tenure(now).verified(request, subject, answer),
            Purpose::Probe { sent } => {
                if let Answer::Read { header, .. } = answer {
                    self.hall(now).probed(sent, header);
                }
            }
            Purpose::Permission { slot } => self.hall(now).permission_answered(slot, answer),
            Purpose::Check { subjects } => {
                self.checks.answered();
                self.tenure(now).checked(&subjects, answer);
            }
            Purpose::Join { slot } => {
                self.rooms.joins.answered();
                self.tenure(now).joined(slot, request, answer);
                self.hall(now).start_joins();
                self.hall(now).start_lists();
            }
            Purpose::List { slot, sent } => {
                self.rooms.lists.answered();
                if let Some(header) = self.hall(now).listed(slot, request, sent, answer) {
                    self.tenure(now).store_exchanged(header);
                }
                self.hall(now).start_lists();
            }
            Purpose::Remove { key } => self.hall(now).removed(&key, request, answer),
            Purpose::Release { keys } => self.hall(now).released(&keys, request, answer),
            Purpose::Take { slot } => self.tenure(now).taken(slot, request, answer),
            Purpose::Claim { slot } => self.hall(now).claimed(slot, request, answer),
            Purpose::Proclaim { slot, key, tickets } => {
                self.hall(now).proclaimed(slot, &key, tickets, answer);
            }
            Purpose::Revoke { lease } => {
                self.revocations
                    .answered(now, lease, answer, &mut self.rooms.out);
            }
            Purpose::Sweep { lease } => self.hall(now).swept(lease, answer),
            Purpose::Challenges(concern) => {
                self.tenure(now)
                    .challenges_concerned(concern, request, answer);
            }
        }
        self.close_if_done(now);
        self.tenure(now).check_idle(request);
    }
}
