//! Grants, renews, verifies and ends the session's lease, with everything that depends on it.

use std::sync::Arc;

use super::hall::Hall;
use super::slots::{Rooms, Slot, Slots};
use crate::action::{Action, Answer, Class, RequestError, RequestId, SlotId};
use crate::candidate::{Candidacy, End, Phase};
use crate::cleanup::Revocations;
use crate::known_store::{Floor, Origin};
use crate::kv::{Entry, Header};
use crate::lease::KeyChecks;
use crate::purpose::{Concern, Purpose};
use crate::reason::LostReason;
use crate::time::Time;

/// The session's lease with everything that depends on it, for one input.
pub(super) struct Tenure<'a> {
    pub(super) now: Time,
    pub(super) slots: &'a mut Slots,
    pub(super) rooms: &'a mut Rooms,
    pub(super) checks: &'a mut KeyChecks,
    pub(super) revocations: &'a mut Revocations,
    /// True if a lease is wanted even without a candidate.
    pub(super) is_kept: bool,
}

impl Tenure<'_> {
    pub(super) fn hall(&mut self) -> Hall<'_> {
        Hall {
            now: self.now,
            slots: self.slots,
            rooms: self.rooms,
        }
    }

    /// Grants, opens or renews, as is due.
    pub(super) fn keep_lease(&mut self) {
        let (closing, slots, always) = (self.rooms.closing, &self.slots, self.is_kept);
        let stays = |slot: &Slot| matches!(slot, Slot::Candidate(c) if c.leaving().is_none());
        let wanted = || !closing && (always || slots.values().any(stays));
        if let Some(request) = self.rooms.lease.keep(self.now, wanted, &mut self.rooms.out) {
            self.verify(request);
        }
    }

    pub(super) fn granted(&mut self, sent: Time, answer: Answer) {
        match answer {
            Answer::Granted { lease, ttl, header } => {
                let (granted, out) = ((lease, ttl, header), &mut self.rooms.out);
                self.rooms.lease.granted(self.now, sent, granted, out);
                self.review_candidates(None);
            }
            Answer::Failed(error) => {
                self.rooms
                    .lease
                    .grant_failed(self.now, error.clone(), &mut self.rooms.out);
                self.refuse_new(&error);
            }
            _ => {}
        }
    }

    /// Makes candidates that never had a key leave with this error, if it is not expected to pass.
    pub(super) fn refuse_new(&mut self, error: &RequestError) {
        for slot in self.slots.ids() {
            if let Some(mut seat) = self.hall().seat(slot) {
                seat.refuse_if_new(error);
                self.hall().finish(slot);
            }
        }
    }

    /// Reviews every candidate if the lease has become trusted: they may join and lead again.
    fn review_candidates(&mut self, trusted_before: Option<Time>) {
        self.hall().put_anchor();
        if trusted_before.is_none() && self.rooms.lease.deadlines().trusted().is_some() {
            for slot in self.slots.ids() {
                self.hall().review_candidate(slot);
            }
        }
    }

    pub(super) fn renewed(&mut self, request: RequestId, answer: Answer) {
        let (lease, out) = (&mut self.rooms.lease, &mut self.rooms.out);
        if let Some(read) = lease.renewed(self.now, request, answer, out) {
            self.verify(read);
        }
        self.end_if_gone();
        // An answer about a lost lease makes no request due.
        if self.rooms.lease.lease().is_some() {
            self.keep_lease();
        }
    }

    /// Reads an existing key of ours, another each time.
    fn verify(&mut self, request: RequestId) {
        let after = self.rooms.lease.verified_slot();
        let chosen = self.slots.verified_after(after);
        let next = chosen.as_ref().map_or(after, |(slot, ..)| *slot);
        self.rooms
            .lease
            .verify(request, chosen, &mut self.rooms.out);
        debug_assert_eq!(
            self.rooms.lease.verified_slot(),
            next,
            "each verification reads another key"
        );
    }

    /// Lets a linearizable answer verify the last acknowledgement.
    pub(super) fn confirm(&mut self, begun: RequestId, header: Header) {
        let (lease, out) = (&mut self.rooms.lease, &mut self.rooms.out);
        let trusted_before = lease.deadlines().trusted();
        if lease.confirm(self.now, begun, header, out) {
            self.review_candidates(trusted_before);
            self.rooms.lease.count_renewal(&mut self.rooms.out);
            self.check_unwatched();
        }
        self.end_if_gone();
    }

    pub(super) fn verified(
        &mut self,
        request: RequestId,
        subject: Option<(SlotId, i64)>,
        answer: Answer,
    ) {
        match answer {
            Answer::Read { header, entry } => {
                self.rooms.lease.verified(self.now, request);
                self.keep_lease();
                if let Some((slot, create_revision)) = subject {
                    self.own_key_read(slot, create_revision, entry.as_ref());
                }
                self.hall().compare_stream(header);
            }
            Answer::Failed(error) => {
                let (lease, out) = (&mut self.rooms.lease, &mut self.rooms.out);
                lease.renewal_failed(self.now, request, error, out);
                self.keep_lease();
            }
            _ => {}
        }
    }

    /// Applies the result of a read of one of our keys.
    fn own_key_read(&mut self, slot: SlotId, created: i64, entry: Option<&Entry>) {
        if let Some(mut seat) = self.hall().seat(slot) {
            seat.own_key_read(created, entry);
        }
    }

    pub(super) fn distrust(&mut self) {
        self.rooms.lease.distrust();
        for slot in self.slots.ids() {
            if let Some(mut seat) = self.hall().seat(slot) {
                seat.end_term(LostReason::LeaseExpiring, End::Fading);
            }
        }
        self.rooms.lease.report_distrust(&mut self.rooms.out);
    }

    /// Handles a lease that is gone or abandoned, and the loss of its keys.
    pub(super) fn lose_lease(&mut self, reason: LostReason) {
        let Some((lease, trusted)) = self.rooms.lease.lose(&mut self.rooms.out) else {
            return;
        };
        for slot in self.slots.ids() {
            if let Some(mut seat) = self.hall().seat(slot) {
                seat.lease_lost(reason);
                self.hall().finish(slot);
            }
        }
        if trusted {
            self.rooms.out.act(Action::Distrust);
        }
        self.lead_no_longer();
        self.challenges_lost();
        let waiting = self
            .rooms
            .removals
            .lease_lost(self.now, &mut self.rooms.out);
        self.hall().release_waiting(waiting);
        // etcd may still have the lease, and an abandoned one lives on, so it is revoked. If etcd has it, as a restored
        // store may, its keys stay for as long as work may continue under them.
        let ending = self.slots.candidates().filter_map(|(_, c)| c.ending());
        let not_before = ending.map(|(cutoff, _)| cutoff).max();
        let not_before = not_before.unwrap_or(self.now).max(self.now);
        self.rooms.out.forget_deletes();
        let (out, lost) = (&mut self.rooms.out, (lease.id(), lease.ttl()));
        self.revocations.add(self.now, lost, not_before, out);
        debug_assert!(
            self.revocations.contains(lease.id()),
            "a lease that is given up is revoked"
        );
        self.rooms
            .lease
            .lost(self.now, &lease, reason, &mut self.rooms.out);
        self.keep_lease();
    }

    /// Reads the keys of leaders that are not watched, unless such reads are in flight.
    fn check_unwatched(&mut self) {
        if self.checks.are_under_way() {
            return;
        }
        let slots = self.slots.iter();
        let unwatched = slots.filter_map(|(slot, candidate)| match candidate {
            Slot::Candidate(candidate) => self.unwatched_key(*slot, candidate),
            Slot::Observer(_) => None,
        });
        let unwatched: Vec<_> = unwatched.collect();
        self.checks.start(&unwatched, &mut self.rooms.out);
    }

    /// Returns the key of a leader, with its create revision, if the leader's view does not show whether the key
    /// exists.
    fn unwatched_key(
        &self,
        slot: SlotId,
        candidate: &Candidacy,
    ) -> Option<(SlotId, i64, Arc<[u8]>)> {
        let Phase::Leading { own, .. } = candidate.phase() else {
            return None;
        };
        let watched = match candidate.owner_of() {
            // A member's view shows the keys of its partitions.
            Some((member, _)) => {
                let member = self.slots.candidate(member);
                member.is_some_and(|member| member.view.is_current())
            }
            None => candidate.view.is_current(),
        };
        (!watched).then(|| (slot, own.create_revision, Arc::clone(&own.key)))
    }

    pub(super) fn checked(&mut self, subjects: &[(SlotId, i64)], answer: Answer) {
        match answer {
            Answer::Checked { entries, .. } => {
                for ((slot, created), entry) in subjects.iter().zip(entries) {
                    self.own_key_read(*slot, *created, entry.as_ref());
                }
            }
            Answer::Failed(error) => self.check_failed(subjects, error),
            _ => {}
        }
    }

    /// Splits a check that is too large for etcd and sends its parts at once. The rest waits for the next renewal.
    fn check_failed(&mut self, subjects: &[(SlotId, i64)], error: RequestError) {
        let parts = error.class == Class::Invalid && subjects.len() > 1;
        self.rooms.out.smaller_batches(error.class, subjects.len());
        let unwatched = subjects.iter().filter_map(|(slot, created)| {
            let candidate = self.slots.get(slot)?.candidate()?;
            let unwatched = self.unwatched_key(*slot, candidate);
            unwatched.filter(|(_, since, _)| since == created)
        });
        let unwatched: Vec<_> = unwatched.collect();
        let first = unwatched.first().map(|(.., key)| Arc::clone(key));
        self.rooms
            .out
            .note_failure("check leaders' keys", &first.unwrap_or_default(), error);
        if parts {
            self.checks.start(&unwatched, &mut self.rooms.out);
        }
    }

    /// Repeats a request whose answer came from another store.
    pub(super) fn answered_by_another_store(&mut self, request: RequestId, purpose: Purpose) {
        match purpose {
            Purpose::Join { slot } => {
                self.rooms.joins.answered();
                if let Some(candidate) = self.slots.candidate_mut(slot) {
                    candidate.view.join_over(request);
                }
            }
            Purpose::Check { .. } => self.checks.answered(),
            Purpose::List { .. } => self.rooms.lists.answered(),
            Purpose::Remove { key } => {
                let out = &mut self.rooms.out;
                self.rooms
                    .removals
                    .again(&key, request, Class::Retry, self.now, out);
            }
            Purpose::Release { keys } => self.hall().release_again(&keys, request),
            Purpose::Claim { slot } => {
                if let Some(mut seat) = self.hall().seat(slot) {
                    seat.claim_again(request);
                }
            }
            Purpose::Challenges(Concern::Elder { lease }) => {
                self.hall().read_elder_again(lease, request);
            }
            _ => {}
        }
        self.hall().start_joins();
        self.hall().start_lists();
    }

    /// Returns true if the answer to a request that was sent at `floor` comes from the known store.
    pub(super) fn same_store(&mut self, header: Header, floor: Floor) -> bool {
        let origin = self.rooms.out.origin(header, floor);
        if origin == Origin::Other {
            self.store_exchanged(header);
        }
        origin == Origin::Known
    }

    /// Handles another store: everything known of the former one is dropped.
    pub(super) fn store_exchanged(&mut self, header: Header) {
        self.rooms.out.store_exchanged(header);
        self.lose_lease(LostReason::StoreChanged);
        self.hall().restart_watches(false);
        self.slots.values_mut().for_each(Slot::store_changed);
        debug_assert!(
            self.slots.candidates().all(|(_, c)| !c.view.is_current()),
            "what was known of a former store is given up"
        );
    }

    /// Applies the answer to a join.
    pub(super) fn joined(&mut self, slot: SlotId, request: RequestId, answer: Answer) {
        let mut hall = self.hall();
        let seat = hall.seat(slot);
        let stands = seat.is_some_and(|mut seat| seat.joined(request, answer));
        self.end_if_gone();
        self.hall().finish(slot);
        if stands {
            self.hall().holdings(slot).rebalance_soon();
        }
        self.hall().review_others(slot);
    }

    /// Applies the answer to a member's take of partitions.
    pub(super) fn taken(&mut self, slot: SlotId, request: RequestId, answer: Answer) {
        if self.hall().holdings(slot).taken(request, answer) {
            self.end_if_gone();
            self.hall().holdings(slot).tidy();
            self.hall().finish(slot);
            self.hall().holdings(slot).rebalance_soon();
        }
    }

    /// Ends everything that depends on the lease if etcd reports that the lease is gone.
    pub(super) fn end_if_gone(&mut self) {
        if self.rooms.lease.is_gone() {
            self.lose_lease(LostReason::LeaseLost);
        }
    }
}
