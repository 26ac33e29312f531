//! Holds the parts of a session that the rules of its candidates change.

use std::sync::Arc;

use super::slots::{Slot, Slots};
use crate::candidate::Seat;
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
