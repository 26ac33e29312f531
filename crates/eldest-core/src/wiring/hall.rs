//! Holds the parts of a session that its candidates share, and does for one input what concerns several slots: reviews, reads,
//! watches, removals, and the end of a candidacy.

use std::sync::Arc;

use super::holdings::Holdings;
use super::slots::{Slot, Slots};
use crate::action::CandidateAction;
use crate::candidate::{Candidacy, Seat};
use crate::cleanup::Removals;
use crate::config::Config;
use crate::evacuation::Evacuation;
use crate::gate::Gate;
use crate::ids::SlotId;
use crate::lease::{LeaseConfig, LeaseKeeper};
use crate::outbox::Outbox;
use crate::pause::Pace;
use crate::time::Time;
use crate::watch::WatchStream;

/// Joins, which share transactions.
const MOST_JOINS: usize = 256;
const MOST_LISTS: usize = 64;

/// The parts of a session that the rules of its candidates change.
#[derive(Debug)]
pub(super) struct Rooms {
    pub(super) config: Config,
    /// The next actions, and the requests under way.
    pub(super) out: Outbox,
    /// The pauses between requests that failed.
    pub(super) pace: Pace,
    /// The session's lease.
    pub(super) lease: LeaseKeeper,
    /// The slots that wait to join.
    pub(super) joins: Gate,
    /// The slots that wait to read their queue.
    pub(super) lists: Gate,
    /// All watches, on one stream.
    pub(super) watches: WatchStream,
    /// Keys that must go.
    pub(super) removals: Removals,
    /// The data centres that are evacuated.
    pub(super) evacuation: Evacuation,
    /// A key of this session has stood.
    pub(super) stood_once: bool,
    /// Nothing begins any more; the lease goes when every term has ended.
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
        };
        Self {
            out: Outbox::new(config.batch),
            pace,
            lease: LeaseKeeper::new(lease, Arc::clone(&config.probe_key)),
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
            joins: &mut self.joins,
            lists: &mut self.lists,
            watches: &mut self.watches,
            removals: &mut self.removals,
            evacuation: &self.evacuation,
            out: &mut self.out,
        })
    }

    /// The slot is empty from now on.
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

/// All slots of a session, with the rooms that their rules change, for one input. It grants and ends no lease.
pub(super) struct Hall<'a> {
    pub(super) now: Time,
    pub(super) slots: &'a mut Slots,
    pub(super) rooms: &'a mut Rooms,
}

impl Hall<'_> {
    /// Lends the candidate in that slot the parts of the session that its rules may change.
    pub(super) fn seat(&mut self, slot: SlotId) -> Option<Seat<'_>> {
        self.rooms.seat(self.slots, slot, self.now)
    }

    /// Lends the member in that slot its partitions.
    pub(super) fn holdings(&mut self, slot: SlotId) -> Holdings<'_> {
        Holdings {
            slot,
            now: self.now,
            slots: self.slots,
            rooms: self.rooms,
        }
    }

    pub(super) fn start_joins(&mut self) {
        while let Some(slot) = self.rooms.joins.next(true) {
            if self.seat(slot).is_some_and(|mut s| s.start_join()) {
                self.rooms.joins.sent();
            }
        }
    }

    pub(super) fn start_lists(&mut self) {
        while let Some(slot) = self.rooms.lists.next(self.rooms.joins.is_idle()) {
            if self.start_list(slot) {
                self.rooms.lists.sent();
            }
        }
    }

    /// Reviews the candidate's place, and has its member rebalance soon.
    pub(super) fn review_candidate(&mut self, slot: SlotId) {
        if let Some(mut seat) = self.seat(slot) {
            seat.review_place();
            self.holdings(slot).rebalance_soon();
        }
    }

    /// Ends a candidacy that is over, once nothing of it is left. Returns true if it has ended.
    pub(super) fn finish(&mut self, slot: SlotId) -> bool {
        let candidate = self.slots.candidate(slot);
        let Some(reason) = candidate.and_then(Candidacy::leaving) else {
            return false;
        };
        if self.rooms.removals.is_awaited_by(slot) || !self.holdings(slot).nothing_left() {
            return false;
        }
        let Some(candidate) = self.slots.candidate_mut(slot) else {
            return false;
        };
        if let Some(member) = candidate.member() {
            member.check_forgotten();
        }
        let owner = candidate.owner_of();
        let (error, former) = candidate.finish();
        self.rooms.forget(self.slots, slot);
        if let Some(former) = former {
            self.remove(&former.key, Some(former.create_revision), None);
        }
        self.rooms.out.notify_candidate(CandidateAction::Ended {
            slot,
            reason,
            error,
        });
        if let Some((member, partition)) = owner {
            self.holdings(member).let_go(partition);
            self.finish(member);
            self.holdings(member).rebalance_soon();
        }
        true
    }

    /// The slot's time has come: to join, to release a key, or to read.
    pub(super) fn slot_due(&mut self, slot: SlotId) {
        let candidate = self.slots.candidate(slot);
        match candidate.and_then(|c| Some((c.owner_of()?, c.ending()?))) {
            Some(((member, partition), (cutoff, false))) => {
                self.holdings(member).former_due(partition, cutoff);
            }
            _ => match self.seat(slot) {
                Some(mut seat) => seat.due(),
                None => self.want_read(slot),
            },
        }
    }
}
