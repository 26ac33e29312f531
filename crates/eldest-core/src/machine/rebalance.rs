//! Carries out a member's rebalance: takes partitions in batches, adopts keys from lost answers, gives partitions up,
//! and releases their keys.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{Machine, Slot};
use crate::action::{Action, Answer, Ask, Class, Note, RequestId, SlotId, Trouble};
use crate::candidate::{Candidacy, End, Phase, Role};
use crate::facts::Header;
use crate::partitions::{Membership, Wants, partition_key};
use crate::purpose::Purpose;
use crate::queue::Own;
use crate::reason::{EndReason, LostReason};
use crate::time::Time;
use crate::timers::Timer;

/// Takes of a member's under way.
const AT_ONCE: usize = 8;
/// However fast changes arrive, what they mean is worked out only so often: in this time,
const BETWEEN: Duration = Duration::from_millis(10);
/// or, with many partitions, in this time for each.
const EACH: Duration = Duration::from_micros(50);
/// but not longer than this.
const MOST: Duration = Duration::from_millis(250);
/// Slots of partitions are numbered from here; no handle ever makes so many.
const PARTITIONS: SlotId = 1 << 62;

impl Machine {
    pub(super) fn membership(&mut self, slot: SlotId) -> Option<&mut Membership> {
        match &mut self.candidate(slot)?.role {
            Role::Member(member) => Some(member),
            _ => None,
        }
    }

    /// Something changed that a member goes by.
    pub(super) fn arrange_soon(&mut self, slot: SlotId, now: Time) {
        let Some(member) = self.membership(slot) else {
            return;
        };
        let between = (EACH * member.sharing.count).clamp(BETWEEN, MOST);
        let at = member.arranged.after(between);
        if now >= at {
            self.arrange(slot, now);
        } else if !std::mem::replace(&mut member.due, true) {
            self.out.set_timer(at, Timer::Arrange(slot));
        }
    }

    /// Does what the view wants done now.
    pub(super) fn arrange(&mut self, slot: SlotId, now: Time) {
        if let Some(member) = self.membership(slot) {
            (member.arranged, member.due) = (now, false);
        }
        if self.lease.trusted().is_none() {
            return;
        }
        let Some(wants) = self.wants(slot) else {
            return;
        };
        self.tell_blocked(slot, &wants.blocked);
        for (partition, fate) in wants.lost {
            self.key_lost(partition, fate, now);
        }
        for partition in wants.give_up {
            self.end_term(partition, now, LostReason::Reassigned, End::Brief);
        }
        for (_, own) in wants.discard {
            self.discard(slot, &own, now);
        }
        for (partition, create_revision) in wants.stray {
            if let Some(candidate) = self.candidate(slot) {
                let key = partition_key(&candidate.prefix, partition);
                self.remove(now, &key, Some(create_revision), None);
            }
        }
        for (partition, own) in wants.adopt {
            self.out.note(Note::OrphanFound {
                key: Arc::clone(&own.key),
            });
            self.own_partition(slot, partition, own);
        }
        if wants.waiting.iter().any(|p| self.is_overdue(*p, now)) {
            self.step_aside(slot, now);
        } else {
            self.take(slot, &wants.take, now);
        }
    }

    /// Whether work goes on although its time is over and its key gone.
    fn is_overdue(&self, partition: SlotId, now: Time) -> bool {
        let Some(Slot::Candidate(owner)) = self.slots.get(&partition) else {
            return false;
        };
        matches!(owner.phase(), Phase::Ending { own: None, cutoff, .. } if now >= self.release_at(*cutoff))
    }

    /// As long as a member is there, nobody else takes what should be its own. It keeps what it owns, and joins again
    /// when the work has ended.
    fn step_aside(&mut self, slot: SlotId, now: Time) {
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let Phase::Waiting { own } = candidate.phase().clone() else {
            return;
        };
        candidate.held = true;
        candidate.enter(Phase::Joining {
            request: None,
            not_before: now,
        });
        self.remove(now, &own.key, Some(own.create_revision), Some(slot));
        self.tell(slot);
    }

    /// What a member that stepped aside may have taken without our knowing is looked for, now that its own key is gone and
    /// nothing more can come: until it comes back it does not look at its view.
    pub(super) fn tidy(&mut self, slot: SlotId, now: Time) {
        if self.removals.is_awaited_by(slot) {
            return;
        }
        let Some(candidate) = self.candidate(slot).filter(|c| c.held) else {
            return;
        };
        if matches!(candidate.phase(), Phase::Joining { .. }) {
            self.remove_uncertain(slot, None, now);
        }
    }

    /// Removes what takes may have put without our knowing, for `waits`; how many keys those are. None while a take is
    /// under way: it may be the next of which nothing is known.
    fn remove_uncertain(&mut self, slot: SlotId, waits: Option<SlotId>, now: Time) -> usize {
        let Some(candidate) = self.candidate(slot) else {
            return 0;
        };
        let prefix = Arc::clone(&candidate.prefix);
        let Role::Member(member) = &mut candidate.role else {
            return 0;
        };
        if !member.taking.is_empty() {
            return 0;
        }
        // Also where work goes on: a term's own key is not what a search takes away.
        let uncertain = std::mem::take(&mut member.uncertain);
        for partition in &uncertain {
            self.remove(now, &partition_key(&prefix, *partition), None, waits);
        }
        uncertain.len()
    }

    /// Work of a member's has ended, for which it may have stepped aside.
    fn come_back(&mut self, slot: SlotId, now: Time) {
        if !self.candidate(slot).is_some_and(|c| c.held) {
            return;
        }
        let held = self.membership(slot).map(|member| member.held.values());
        let held: Vec<_> = held.into_iter().flatten().map(|hold| hold.slot).collect();
        if held.into_iter().any(|p| self.is_overdue(p, now)) {
            return;
        }
        if let Some(candidate) = self.candidate(slot) {
            candidate.held = false;
            self.queue_join(slot, now);
        }
    }

    fn wants(&self, slot: SlotId) -> Option<Wants> {
        let candidate = self.slots.get(&slot)?.candidate()?;
        candidate.wants(|key, created, seen| self.removals.shown(key, created, seen))
    }

    /// Of each key in the way once, until it is gone.
    fn tell_blocked(&mut self, slot: SlotId, blocked: &BTreeSet<u32>) {
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let Role::Member(member) = &mut candidate.role else {
            return;
        };
        let told = std::mem::replace(&mut member.blocked, blocked.clone());
        let key = |partition: &u32| partition_key(&candidate.prefix, *partition);
        let news: Vec<_> = blocked.difference(&told).map(key).collect();
        for key in news {
            self.out.note(Note::Blocked { slot, key });
        }
    }

    /// A partition is ours from now on.
    fn own_partition(&mut self, member: SlotId, partition: u32, own: Own) {
        let slot = PARTITIONS + self.out.next_id();
        let Some(candidate) = self.candidate(member) else {
            return;
        };
        let (prefix, value) = (Arc::clone(&candidate.prefix), Arc::clone(&candidate.value));
        if let Role::Member(membership) = &mut candidate.role {
            membership.hold(partition, slot, own.clone());
        }
        let owner = Candidacy::owner(prefix, value, member, partition);
        self.slots.insert(slot, Slot::Candidate(Box::new(owner)));
        self.out.act(Action::Taken {
            member,
            partition,
            slot,
        });
        self.lead(slot, own);
        self.tell(slot);
    }

    /// A key of ours that nobody wants goes again; a member that leaves waits for it.
    fn discard(&mut self, member: SlotId, own: &Own, now: Time) {
        self.out.note(Note::OrphanFound {
            key: Arc::clone(&own.key),
        });
        self.remove(now, &own.key, Some(own.create_revision), Some(member));
    }

    /// As many of these as may be under way; what follows from the answers takes the others.
    fn take(&mut self, slot: SlotId, partitions: &[u32], now: Time) {
        let batch = self.out.batch();
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let (Role::Member(member), Phase::Waiting { own }) = (&candidate.role, candidate.phase())
        else {
            return;
        };
        let more = AT_ONCE.saturating_sub(member.taking.len());
        if partitions.is_empty() || more == 0 {
            return;
        }
        if now < member.not_before {
            let at = member.not_before;
            self.out.set_timer(at, Timer::Arrange(slot));
            return;
        }
        let (own, prefix) = (own.clone(), Arc::clone(&candidate.prefix));
        let value = Arc::clone(&member.sharing.tag);
        for partitions in partitions.chunks(batch).take(more) {
            let keys = partitions.iter();
            let ask = Ask::Take {
                member: own.clone(),
                value: Arc::clone(&value),
                keys: keys.map(|p| partition_key(&prefix, *p)).collect(),
            };
            let request = self.out.ask(Purpose::Take { slot }, ask);
            if let Some(member) = self.membership(slot) {
                member.taking.insert(request, partitions.to_vec());
            }
        }
    }

    pub(super) fn taken(&mut self, now: Time, slot: SlotId, request: RequestId, answer: Answer) {
        let lease = self.lease.id();
        let Some(member) = self.membership(slot) else {
            return;
        };
        // After the loss of the lease nobody waits for it.
        let Some(partitions) = member.taking.remove(&request) else {
            return;
        };
        match (answer, lease) {
            (
                Answer::Taken {
                    header,
                    taken: Some(taken),
                },
                Some(lease),
            ) => {
                member.failures = 0;
                let results = partitions.into_iter().zip(taken);
                for (partition, taken) in results {
                    self.take_result(slot, partition, (taken, lease), header, now);
                }
            }
            // Its own key went, as the view will say; that tells nothing about the partitions.
            (Answer::Taken { taken: None, .. }, _) => {
                self.take_later(slot, request, Class::Retry, now);
            }
            (Answer::Failed(trouble), _) => {
                self.take_failed(slot, (request, partitions), trouble, now);
            }
            _ => {}
        }
        self.tidy(slot, now);
        self.finish(slot, now);
        self.arrange_soon(slot, now);
    }

    fn take_result(
        &mut self,
        slot: SlotId,
        partition: u32,
        taken: (bool, i64),
        header: Header,
        now: Time,
    ) {
        let believes = self.lease.trusted().is_some();
        let candidate = self.candidate(slot);
        match candidate.and_then(|c| c.took(partition, taken, header.revision, believes)) {
            Some(Ok(own)) => self.own_partition(slot, partition, own),
            Some(Err(own)) => self.discard(slot, &own, now),
            None => {}
        }
    }

    fn take_failed(
        &mut self,
        slot: SlotId,
        (request, partitions): (RequestId, Vec<u32>),
        trouble: Trouble,
        now: Time,
    ) {
        if trouble.class == Class::LeaseGone {
            self.lose_lease(now, LostReason::LeaseLost);
            return;
        }
        self.out.smaller_batches(trouble.class, partitions.len());
        let Some(member) = self.membership(slot) else {
            return;
        };
        if trouble.ambiguous {
            member.uncertain.extend(partitions);
        }
        self.take_later(slot, request, trouble.class, now);
        let prefix = self.prefix_of(slot);
        self.out.note_failure("take partitions", &prefix, trouble);
    }

    /// What was under way when a failure was counted, and fails as well, is the same failure.
    fn take_later(&mut self, slot: SlotId, request: RequestId, class: Class, now: Time) {
        let sent = self.out.last_id();
        let Some(member) = self.membership(slot) else {
            return;
        };
        if request > member.counted {
            member.failures += 1;
            member.counted = sent;
        }
        let failures = member.failures;
        let not_before = now.after(self.pace.pause(failures, class));
        if let Some(member) = self.membership(slot) {
            member.not_before = not_before.max(member.not_before);
        }
    }

    /// The member leaves: what it owns it gives up, each partition when its work has ended.
    pub(super) fn give_up_partitions(&mut self, slot: SlotId, reason: EndReason, now: Time) {
        let reason = match reason {
            EndReason::SessionClosed => LostReason::SessionClosed,
            _ => LostReason::Shutdown,
        };
        let held = self.membership(slot).map(|member| member.held.values());
        let held: Vec<_> = held.into_iter().flatten().map(|hold| hold.slot).collect();
        for partition in held {
            self.end_term(partition, now, reason, End::Brief);
        }
    }

    /// Whether nothing of a member that leaves is left. What may have come to be without our knowing is looked for as soon
    /// as its own key is gone and nothing more can come: others wait for that, and its work may go on for long.
    pub(super) fn nothing_left(&mut self, slot: SlotId, now: Time) -> bool {
        if !self.candidate(slot).is_some_and(|c| c.is_member()) {
            return true;
        }
        if self.removals.is_awaited_by(slot) || self.remove_uncertain(slot, Some(slot), now) > 0 {
            return false;
        }
        let membership = self.membership(slot);
        membership.is_none_or(|member| member.taking.is_empty() && member.held.is_empty())
    }

    /// The key is gone for certain, which its member may have waited for.
    pub(super) fn may_be_taken_again(&mut self, key: &[u8], now: Time) {
        let member = self.slots.iter().find_map(|(slot, of)| match of {
            Slot::Candidate(c) if c.is_member() && key.starts_with(&c.prefix) => Some(*slot),
            _ => None,
        });
        if let Some(member) = member {
            self.arrange_soon(member, now);
        }
    }

    /// A partition's term is over, and nothing of it is left.
    pub(super) fn let_go(&mut self, role: &Role, now: Time) {
        if let Role::Owner { member, partition } = *role {
            if let Some(membership) = self.membership(member) {
                membership.let_go(partition);
            }
            self.come_back(member, now);
            self.finish(member, now);
            self.arrange_soon(member, now);
        }
    }
}
