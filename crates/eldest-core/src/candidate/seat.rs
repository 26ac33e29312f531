//! Lends a candidate those parts of the session that its rules may change.

use std::sync::Arc;

use super::Candidacy;
use super::phase::Phase;
use crate::action::{CandidateAction, Note};
use crate::challenge::Challenges;
use crate::cleanup::Removals;
use crate::config::Config;
use crate::evacuation::Evacuation;
use crate::gate::Gate;
use crate::ids::SlotId;
use crate::kv::Entry;
use crate::lease::LeaseKeeper;
use crate::outbox::Outbox;
use crate::partitions::Membership;
use crate::pause::Pace;
use crate::queue::{Fate, Own};
use crate::reason::LostReason;
use crate::time::Time;
use crate::watch::WatchStream;

/// One candidate, with the parts of the session that it shares with the others, for one input.
///
/// The rules of a candidate are methods of its seat: each decides, changes the lent parts, and writes its requests and
/// reports into the outbox. A seat reaches no other slot. The core handles the consequences for others: that a
/// candidate has left, that a member's partitions must be reviewed, or that the lease is gone.
pub(crate) struct Seat<'a> {
    pub(crate) slot: SlotId,
    pub(crate) now: Time,
    pub(crate) me: &'a mut Candidacy,
    pub(crate) config: &'a Config,
    pub(crate) pace: Pace,
    /// True if the session closes.
    pub(crate) closing: bool,
    /// True once a key of this session was in etcd.
    pub(crate) stood_once: &'a mut bool,
    pub(crate) lease: &'a mut LeaseKeeper,
    pub(crate) challenges: &'a mut Challenges,
    pub(crate) joins: &'a mut Gate,
    pub(crate) lists: &'a mut Gate,
    pub(crate) watches: &'a mut WatchStream,
    pub(crate) removals: &'a mut Removals,
    pub(crate) evacuation: &'a Evacuation,
    pub(crate) out: &'a mut Outbox,
}

impl Seat<'_> {
    /// Deletes `key` if it has that create revision, and retries until it is gone. `waits`: the slot that waits for it.
    pub(crate) fn remove(
        &mut self,
        key: &Arc<[u8]>,
        create_revision: Option<i64>,
        waits: Option<SlotId>,
    ) {
        self.removals
            .add(self.now, key, create_revision, waits, self.out);
    }

    /// Deletes the candidate's own key, and waits until it is gone.
    pub(crate) fn give_up(&mut self, own: &Own) {
        self.remove(&own.key, Some(own.create_revision), Some(self.slot));
    }

    /// Reports the candidate's status, and the key that blocks its election, if these have changed.
    pub(crate) fn report_status(&mut self) {
        let slot = self.slot;
        if let Some(key) = self.me.blocked() {
            self.out.note(Note::Blocked { slot, key });
        }
        let may_lead = self.lease.deadlines().leads_until().is_some();
        if let Some(status) = self.me.news(may_lead) {
            self.out
                .notify_candidate(CandidateAction::Status { slot, status });
        }
    }

    // ---- checks of debug builds

    /// Checks that the candidate may join by that key: more than the grace period of the lease is left, and the session's
    /// anchor is known.
    pub(super) fn check_join(&self, key: &Arc<[u8]>) {
        let deadline = self.lease.deadlines().trusted();
        debug_assert!(
            deadline.is_some_and(|deadline| self.now.after(self.config.grace) < deadline),
            "nobody joins without a lease that is trusted"
        );
        debug_assert!(
            !self.removals.contains(key),
            "no join uses the path of a key that must go"
        );
        debug_assert!(
            self.me.wanted && !self.me.held,
            "only a candidate that wants to stand joins"
        );
        debug_assert!(
            !self.challenges.are_allowed() || self.challenges.anchor.known().is_some(),
            "a key announces its session's anchor"
        );
        debug_assert!(
            !(self.me.needs_clean_reads() && self.challenges.reads.is_barred()),
            "a session that has let others lead joins when it may lead again"
        );
    }

    /// Checks that the candidate may lead by that key.
    pub(super) fn check_lead(&self, own: &Own) {
        let deadline = self.lease.deadlines().leads_until();
        debug_assert!(
            deadline.is_some_and(|deadline| self.now < deadline),
            "nobody begins to lead unless the session may lead"
        );
        debug_assert!(
            !self.challenges.is_withdrawing(),
            "a session that withdraws its anchor begins no term"
        );
        debug_assert_eq!(
            self.lease.id(),
            Some(own.lease),
            "a candidate leads by a key of the session's lease"
        );
        debug_assert!(
            !self.me.requires_versions() || self.me.claim.is_won_by(own),
            "a candidate that requires versions leads when etcd has confirmed that no newer one led"
        );
        debug_assert!(
            self.me.leads() || self.me.owner_of().is_some(),
            "members own partitions and never lead themselves"
        );
        debug_assert!(
            self.me.owner_of().is_some() || self.me.view.may_be_first(own, self.me.capacity()),
            "the key of a leading candidate sorts first in its view"
        );
    }

    /// Checks that a read which does not show a leader's key has ended its term.
    pub(super) fn check_read(&self, create_revision: i64, entry: Option<&Entry>) {
        if let Phase::Leading { own, .. } = &self.me.phase {
            debug_assert!(
                own.create_revision != create_revision || own.read(entry) == Fate::Ours,
                "nobody leads by a key that a read does not show"
            );
        }
    }

    /// Checks that no state of the candidate depends on the lost lease.
    pub(super) fn check_lease_lost(&self) {
        debug_assert!(
            self.unknown_key(None).is_none() && !self.me.uncertain,
            "no join of a lost lease is awaited"
        );
        debug_assert!(
            self.me.member().is_none_or(Membership::has_no_lease),
            "no take of a lost lease is awaited"
        );
        let overwritten = matches!(
            self.me.phase,
            Phase::Ending {
                reason: LostReason::KeyOverwritten,
                ..
            }
        );
        debug_assert!(
            self.me.own().is_none() || overwritten,
            "nobody acts by a key of a lost lease"
        );
    }

    /// Checks that the work of the candidate's term may no longer continue.
    pub(super) fn check_outlived(&self) {
        let is_late = self.config.trust.margin.is_zero();
        debug_assert!(
            self.me
                .ending()
                .is_none_or(|(cutoff, _)| self.now > cutoff || (is_late && self.now == cutoff)),
            "a key is released after its work was dropped"
        );
    }
}
