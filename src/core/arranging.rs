//! Hides how a member carries out what its view wants: partitions taken in batches, adopted, given up and let go.

use std::sync::Arc;
use std::time::Duration;

use super::action::{Action, Answer, Ask, Class, Note, RequestId, SlotId, Trouble};
use super::candidacy::{Candidacy, Phase, Purpose, Role};
use super::lease::Lease;
use super::machine::{Machine, Slot, Timer};
use super::membership::{Membership, Wants, partition_key};
use super::reason::{EndReason, LostReason};
use super::slots::End;
use super::time::Time;
use super::view::{Fate, Own, View};
use crate::facts::Header;

/// etcd takes 128 operations in a transaction unless it was configured otherwise, and our member key is compared too.
pub(super) const BATCH: usize = 127;
/// However fast changes arrive, what they mean is worked out only so often: in this time,
const BETWEEN: Duration = Duration::from_millis(10);
/// or, with many partitions, in this time for each.
const EACH: Duration = Duration::from_micros(50);
/// but not longer than this.
const MOST: Duration = Duration::from_millis(250);
/// Slots of partitions are numbered from here; no handle ever makes so many.
const PARTITIONS: SlotId = 1 << 62;

impl Machine {
    fn membership(&mut self, slot: SlotId) -> Option<&mut Membership> {
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
            self.timers.set(at, Timer::Arrange(slot));
        }
    }

    /// Does what the view wants done now.
    pub(super) fn arrange(&mut self, slot: SlotId, now: Time) {
        if let Some(member) = self.membership(slot) {
            (member.arranged, member.due) = (now, false);
        }
        if self.trusted.is_none() || self.closing {
            return;
        }
        let Some(wants) = self.wants(slot) else {
            return;
        };
        for (partition, fate) in wants.lost {
            self.key_lost(partition, fate, now);
        }
        for partition in wants.give_up {
            self.end_term(partition, now, LostReason::Reassigned, End::Brief);
        }
        for (partition, own) in wants.discard {
            self.discard(slot, partition, &own, now);
        }
        for (partition, own) in wants.adopt {
            self.note(Note::OrphanFound {
                key: Arc::clone(&own.key),
            });
            self.own(slot, partition, own);
        }
        self.take(slot, wants.take, now);
    }

    fn wants(&self, slot: SlotId) -> Option<Wants> {
        let Some(Slot::Candidate(candidate)) = self.slots.get(&slot) else {
            return None;
        };
        let (Role::Member(member), Phase::Waiting { own }, View::Prefix(view)) =
            (&candidate.role, candidate.phase(), &candidate.view)
        else {
            return None;
        };
        let roster = view.roster();
        let ready = view.is_synced() && roster.revision() >= own.create_revision;
        let gone = |key: &[u8]| self.removals.contains_key(key);
        ready.then(|| member.wants(&candidate.prefix, own, roster, gone))
    }

    /// A partition is ours from now on.
    fn own(&mut self, member: SlotId, partition: u32, own: Own) {
        let slot = PARTITIONS + self.next_id();
        let Some(candidate) = self.candidate(member) else {
            return;
        };
        let (prefix, value) = (Arc::clone(&candidate.prefix), Arc::clone(&candidate.value));
        if let Role::Member(membership) = &mut candidate.role {
            membership.hold(partition, slot, own.clone());
        }
        let owner = Candidacy::owner(prefix, value, member, partition);
        self.slots.insert(slot, Slot::Candidate(Box::new(owner)));
        self.act(Action::Taken {
            member,
            partition,
            slot,
        });
        self.lead(slot, own);
        self.tell(slot);
    }

    /// A key of ours that nobody wants goes again.
    fn discard(&mut self, member: SlotId, partition: u32, own: &Own, now: Time) {
        if let Some(membership) = self.membership(member) {
            membership.forgo(partition, own.create_revision);
        }
        self.note(Note::OrphanFound {
            key: Arc::clone(&own.key),
        });
        self.remove(now, &own.key, Some(own.create_revision), None);
    }

    fn take(&mut self, slot: SlotId, mut partitions: Vec<u32>, now: Time) {
        partitions.truncate(self.batch);
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let (Role::Member(member), Phase::Waiting { own }) = (&candidate.role, candidate.phase())
        else {
            return;
        };
        if partitions.is_empty() || member.taking.is_some() {
            return;
        }
        if now < member.not_before {
            let at = member.not_before;
            self.timers.set(at, Timer::Arrange(slot));
            return;
        }
        let ask = Ask::Take {
            member: own.clone(),
            value: Arc::clone(&member.sharing.tag),
            keys: partitions
                .iter()
                .map(|partition| partition_key(&candidate.prefix, *partition))
                .collect(),
        };
        let request = self.ask(Purpose::Take { slot }, ask);
        if let Some(member) = self.membership(slot) {
            member.taking = Some((request, partitions));
        }
    }

    pub(super) fn taken(&mut self, now: Time, slot: SlotId, request: RequestId, answer: Answer) {
        let lease = self.lease().map(Lease::id);
        let Some(member) = self.membership(slot) else {
            return;
        };
        // After the loss of the lease nobody waits for it.
        let Some((_, partitions)) = member.taking.take_if(|(awaited, _)| *awaited == request)
        else {
            return;
        };
        match (answer, lease) {
            (Answer::Taken { header, taken }, Some(lease)) => {
                member.failures = 0;
                let results = partitions.into_iter().zip(taken);
                for (partition, taken) in results {
                    self.take_result(slot, partition, (taken, lease), header, now);
                }
            }
            (Answer::Failed(trouble), _) => self.take_failed(slot, partitions, trouble, now),
            _ => {}
        }
        self.finish(slot, now);
        self.arrange_soon(slot, now);
    }

    fn take_result(
        &mut self,
        slot: SlotId,
        partition: u32,
        (taken, lease): (bool, i64),
        header: Header,
        now: Time,
    ) {
        let believes = self.trusted.is_some() && !self.closing;
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let own = Own {
            key: partition_key(&candidate.prefix, partition),
            create_revision: header.revision,
            lease,
        };
        let stands = matches!(candidate.phase(), Phase::Waiting { .. });
        let (Role::Member(member), View::Prefix(view)) = (&mut candidate.role, &candidate.view)
        else {
            return;
        };
        let seen = view.roster().revision();
        if !taken {
            member.refuse(partition, header.revision, seen);
            return;
        }
        // The events of its end may have come before this answer.
        let over = view.is_synced()
            && seen >= header.revision
            && own.read(view.roster().get(&own.key)) != Fate::Ours;
        if over {
            member.forgo(partition, own.create_revision);
        }
        if stands && believes && !over {
            self.own(slot, partition, own);
        } else {
            self.discard(slot, partition, &own, now);
        }
    }

    fn take_failed(&mut self, slot: SlotId, partitions: Vec<u32>, trouble: Trouble, now: Time) {
        if trouble.class == Class::LeaseGone {
            self.lose_lease(now, LostReason::LeaseLost);
            return;
        }
        self.smaller_batches(trouble.class);
        let Some(member) = self.membership(slot) else {
            return;
        };
        if trouble.ambiguous {
            member.uncertain.extend(partitions);
        }
        member.failures += 1;
        let failures = member.failures;
        let not_before = now.after(self.pause(failures, trouble.class));
        if let Some(member) = self.membership(slot) {
            member.not_before = not_before;
        }
        self.timers.set(not_before, Timer::Arrange(slot));
        self.fail_request("take partitions", trouble);
    }

    /// etcd may be configured to take fewer operations, or less at once.
    pub(super) fn smaller_batches(&mut self, class: Class) {
        if class == Class::Invalid {
            self.batch = (self.batch / 2).max(1);
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

    /// Whether nothing of a member that leaves is left. What may have come to be without our knowing is looked for,
    /// now that its own key is gone and nothing more can come.
    pub(super) fn nothing_left(&mut self, slot: SlotId, now: Time) -> bool {
        let Some(candidate) = self.candidate(slot) else {
            return true;
        };
        let prefix = Arc::clone(&candidate.prefix);
        let Role::Member(member) = &mut candidate.role else {
            return true;
        };
        if member.taking.is_some() || !member.held.is_empty() || self.is_awaiting_removal(slot) {
            return false;
        }
        let uncertain = self
            .membership(slot)
            .map(|m| std::mem::take(&mut m.uncertain));
        let uncertain = uncertain.unwrap_or_default();
        for partition in &uncertain {
            self.remove(now, &partition_key(&prefix, *partition), None, Some(slot));
        }
        uncertain.is_empty()
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
            self.finish(member, now);
            self.arrange_soon(member, now);
        }
    }
}
