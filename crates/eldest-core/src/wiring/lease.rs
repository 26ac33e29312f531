//! Wires the session's lease to the candidates that stand under it.

use std::sync::Arc;

use super::{Core, Slot};
use crate::action::{Action, Answer, Class, RequestError, RequestId, SlotId};
use crate::candidate::{Candidacy, End, Phase};
use crate::kv::{Entry, Header};
use crate::lease::{Confirmed, Renewed};
use crate::reason::LostReason;
use crate::time::Time;

impl Core {
    /// Grants, opens, renews: whatever is due.
    pub(super) fn keep_lease(&mut self, now: Time) {
        let (closing, slots, always) = (self.rooms.closing, &self.slots, self.keeps_lease);
        let looks = |slot: &Slot| matches!(slot, Slot::Candidate(c) if c.looks());
        let wanted = || !closing && (always || slots.values().any(looks));
        if let Some(request) = self.rooms.lease.keep(now, wanted, &mut self.rooms.out) {
            self.verify(request);
        }
    }

    /// Holds a lease from now on, although nobody stands, and replaces it when it is lost.
    pub fn always_keep_lease(&mut self, now: Time) {
        self.expire(now);
        self.keeps_lease = true;
        self.keep_lease(now);
    }

    pub(super) fn granted(&mut self, now: Time, sent: Time, answer: Answer) {
        match answer {
            Answer::Granted { lease, ttl, header } => {
                let granted = (lease, ttl, header);
                let fresh = self
                    .rooms
                    .lease
                    .granted(now, sent, granted, &mut self.rooms.out);
                self.look_afresh(fresh, now);
            }
            Answer::Failed(error) => {
                self.rooms
                    .lease
                    .grant_failed(now, error.clone(), &mut self.rooms.out);
                for slot in self.slots.ids() {
                    if let Some(mut seat) = self.seat(slot, now) {
                        seat.refuse_if_new(&error);
                        self.finish(slot, now);
                    }
                }
            }
            _ => {}
        }
    }

    /// After a new belief began, candidates may join and lead again.
    fn look_afresh(&mut self, fresh: bool, now: Time) {
        if fresh {
            for slot in self.slots.ids() {
                self.look(slot, now);
            }
        }
    }

    pub(super) fn renewed(&mut self, now: Time, request: RequestId, answer: Answer) {
        match self
            .rooms
            .lease
            .renewed(now, request, answer, &mut self.rooms.out)
        {
            Renewed::Nothing => {}
            Renewed::Keep => self.keep_lease(now),
            Renewed::Verify(request) => self.verify(request),
            Renewed::Gone => self.lose_lease(now, LostReason::LeaseLost),
        }
    }

    /// Reads a live key of ours, another each time.
    fn verify(&mut self, request: RequestId) {
        let after = self.rooms.lease.verified_slot();
        let mut slots = self
            .slots
            .range(after + 1..)
            .chain(self.slots.range(..=after));
        let chosen = slots.find_map(|(id, slot)| match slot {
            Slot::Candidate(c) => c
                .own()
                .map(|own| (*id, own.create_revision, Arc::clone(&own.key))),
            Slot::Onlooker(_) => None,
        });
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

    /// Any linearizable answer may verify the last acknowledgement.
    pub(super) fn confirm(&mut self, now: Time, begun: RequestId, header: Header) {
        match self
            .rooms
            .lease
            .confirm(now, begun, header, &mut self.rooms.out)
        {
            Confirmed::Nothing => {}
            Confirmed::Extended { fresh } => {
                self.look_afresh(fresh, now);
                self.rooms.lease.count_renewal(&mut self.rooms.out);
                self.check_unwatched();
            }
            Confirmed::Hopeless => self.lose_lease(now, LostReason::LeaseLost),
        }
    }

    pub(super) fn verified(
        &mut self,
        now: Time,
        request: RequestId,
        subject: Option<(SlotId, i64)>,
        answer: Answer,
    ) {
        match answer {
            Answer::Read { header, entry } => {
                self.rooms.lease.verified(now, request);
                self.keep_lease(now);
                if let Some((slot, create_revision)) = subject {
                    self.own_key_read(slot, create_revision, entry.as_ref(), now);
                }
                self.compare_stream(now, header);
            }
            Answer::Failed(error) => {
                let out = &mut self.rooms.out;
                if self.rooms.lease.renewal_failed(now, request, error, out) {
                    self.keep_lease(now);
                }
            }
            _ => {}
        }
    }

    /// Applies the result of a read of one of our keys.
    fn own_key_read(&mut self, slot: SlotId, created: i64, entry: Option<&Entry>, now: Time) {
        if let Some(mut seat) = self.seat(slot, now) {
            seat.own_key_read(created, entry);
        }
    }

    /// Ends the belief in the lease when its time has come; called before anything else is looked at.
    pub(super) fn expire(&mut self, now: Time) {
        if self.rooms.lease.is_expired(now) {
            self.distrust(now);
        }
    }

    /// The watchdog, or a check past the deadline, ended the belief before we did.
    pub fn distrusted(&mut self, now: Time) {
        if self.rooms.lease.trusted().is_some() {
            self.distrust(now);
        }
    }

    fn distrust(&mut self, now: Time) {
        self.rooms.lease.distrust();
        for slot in self.slots.ids() {
            if let Some(mut seat) = self.seat(slot, now) {
                seat.end_term(LostReason::LeaseExpiring, End::Fading);
            }
        }
        self.rooms.lease.tell_distrust(&mut self.rooms.out);
    }

    /// The lease is gone, or given up: its keys with it.
    pub fn lose_lease(&mut self, now: Time, reason: LostReason) {
        let Some((lease, trusted)) = self.rooms.lease.lose(&mut self.rooms.out) else {
            return;
        };
        for slot in self.slots.ids() {
            if let Some(mut seat) = self.seat(slot, now) {
                seat.lease_lost(reason);
                self.finish(slot, now);
            }
        }
        if trusted {
            self.rooms.out.act(Action::Distrust);
        }
        let waiting = self.rooms.removals.lease_lost(now, &mut self.rooms.out);
        self.release_waiting(waiting, now);
        // etcd may not know yet that it is gone, and an abandoned one lives on: nothing of it may stay behind.
        // If it has it after all, as a restored store does, its keys stay for as long as work may go on under them.
        let working = |slot: &Slot| matches!(slot, Slot::Candidate(c) if c.ending().is_some());
        let not_before = if self.slots.values().any(working) {
            now.after(self.rooms.config.grace)
        } else {
            now
        };
        self.rooms.out.forget_deletes();
        self.revoke(now, lease.id(), lease.ttl(), not_before);
        debug_assert!(
            self.revocations.contains(lease.id()),
            "a lease that is given up is revoked"
        );
        self.rooms
            .lease
            .lost(now, &lease, reason, &mut self.rooms.out);
        self.keep_lease(now);
    }

    /// Reads the keys of leaders that are not watched, unless such reads are under way.
    fn check_unwatched(&mut self) {
        if self.checks.are_under_way() {
            return;
        }
        let slots = self.slots.iter();
        let unwatched = slots.filter_map(|(slot, candidate)| match candidate {
            Slot::Candidate(candidate) => self.unwatched_key(*slot, candidate),
            Slot::Onlooker(_) => None,
        });
        let unwatched: Vec<_> = unwatched.collect();
        self.checks.start(&unwatched, &mut self.rooms.out);
    }

    /// The key of a leader whose view cannot tell whether it stands, with its create revision.
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

    pub(super) fn checked(&mut self, now: Time, subjects: &[(SlotId, i64)], answer: Answer) {
        match answer {
            Answer::Checked { entries, .. } => {
                for ((slot, created), entry) in subjects.iter().zip(entries) {
                    self.own_key_read(*slot, *created, entry.as_ref(), now);
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
}
