//! Decides which partitions a member takes, adopts and gives up, from the keys in the member's view.
//!
//! A member is a candidate that never leads: its key shows that the member is there, and the key's create revision is
//! its seniority. Each owned partition is a candidate of its own that leads from the start, so its term ends as any
//! other does.
//!
//! A member learns which partitions of others are coming to it, and may prepare for them. Their owner keeps each of them
//! until the member announces that it is ready, for a limited time. The assignment and the keys are as without the wait:
//! preparing gives no authority.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::assignment::{Owned, assign};
use super::facts::{Facts, ShareReaders, facts};
use super::keys::{KeyKind, kind_of, partition_key};
use crate::action::Class;
use crate::cleanup::Shown;
use crate::ids::{RequestId, SlotId};
use crate::kv::{Change, Entry};
use crate::pause::Pace;
use crate::queue::{Fate, Own, Roster};
use crate::time::Time;

/// The number of takes that a member may have in flight.
const AT_ONCE: usize = 8;
/// The shortest time between two rebalances, however fast changes arrive.
const BETWEEN: Duration = Duration::from_millis(10);
/// With many partitions, the time between two rebalances for each of them.
const EACH: Duration = Duration::from_micros(50);
/// The longest such time.
const MOST: Duration = Duration::from_millis(250);

/// A set of partitions that members own, named by a member's handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionSet {
    /// The number of partitions.
    pub count: u32,
    /// The prefix above the level that names the count. While a key of another count exists, no member can join.
    pub family: Arc<[u8]>,
    /// The text written into the keys of partitions, for people to read.
    pub tag: Arc<[u8]>,
}

/// A partition that we own, or that we owned and whose work continues.
#[derive(Debug, Clone)]
struct Hold {
    slot: SlotId,
    own: Own,
}

/// A partition that we own, and that another member should own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The number of the partition.
    pub partition: u32,
    /// The slot of its term.
    pub slot: SlotId,
    /// The lease of the member that should own it.
    pub to: i64,
}

/// The next actions of a member, by the state of its view.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Keys of ours that are gone or no longer ours.
    pub lost: Vec<(SlotId, Fate)>,
    /// Terms of partitions that others should own.
    pub give_up: Vec<Move>,
    /// Partitions that should be ours, and that their owner has not given up or gave up a moment ago.
    pub coming: BTreeSet<u32>,
    /// Terms of partitions without an owner, which we must not take before our work there has ended, and which other
    /// members could take.
    pub waiting: Vec<SlotId>,
    /// Partitions to take, because they have no owner.
    pub take: Vec<u32>,
    /// Keys to adopt: ours by a transaction whose answer was lost, and wanted.
    pub adopt: Vec<(u32, Own)>,
    /// Keys to delete: ours by a transaction whose answer was lost, and not wanted.
    pub discard: Vec<(u32, Own)>,
    /// Keys that belong to no term and block other members. A key of ours lost its lease; a late transaction put a key
    /// under our lease while the work of an earlier term continues; or a restore of etcd brought a key back.
    pub stray: Vec<(u32, i64)>,
    /// Partitions in whose place is a key without a lease, which no owner's key ever is.
    pub blocked: BTreeSet<u32>,
}

/// A partition as a view shows it.
struct Seen {
    partition: u32,
    key: Option<Owned>,
    /// Our lease.
    me: i64,
    /// The lease of the member that should own the partition.
    next: i64,
    /// True if the partition should be ours.
    wanted: bool,
}

impl Wants {
    /// Decides about a partition that we own, or that we owned and whose work continues. `others`: there are more
    /// members; `free`: its key is neither being put nor being deleted.
    fn of_held(
        &mut self,
        hold: &Hold,
        seen: &Seen,
        roster: &Roster,
        others: bool,
        free: impl FnOnce() -> bool,
    ) {
        // The view cannot judge a key that was written after its revision.
        if roster.revision() < hold.own.create_revision {
            return;
        }
        match hold.own.read(roster.get(&hold.own.key)) {
            Fate::Ours if seen.wanted => {}
            Fate::Ours => self.give_up.push(Move {
                partition: seen.partition,
                slot: hold.slot,
                to: seen.next,
            }),
            fate => {
                if seen.wanted && seen.key.is_none() && others {
                    self.waiting.push(hold.slot);
                }
                let ours = seen.key.filter(|key| key.lease == seen.me);
                let since = ours.map(|key| key.since);
                let newer = since.filter(|at| *at > hold.own.create_revision && free());
                self.stray.extend(newer.map(|at| (seen.partition, at)));
                self.lost.push((hold.slot, fate));
            }
        }
    }
}

/// A member's part of a candidacy.
#[derive(Debug, Clone)]
pub struct Membership {
    partitions: PartitionSet,
    held: BTreeMap<u32, Hold>,
    /// The takes in flight. Their number limits how much a member takes at once, and how many keys it may own without
    /// knowing. No partition is in two of them, so each answer is the only one about its partitions.
    taking: BTreeMap<RequestId, Vec<u32>>,
    /// Partitions that may be ours, because the answer to their take was lost.
    uncertain: BTreeSet<u32>,
    failures: u32,
    /// The last request that had been sent when a failure was last counted.
    counted: RequestId,
    not_before: Time,
    /// The time of the last rebalance, and whether the next one is due.
    rebalanced: Time,
    due: bool,
    /// By partition, the newest key of this lease that is no longer ours, even if older views show it.
    past: BTreeMap<u32, i64>,
    /// The keys that were ours under an earlier lease. If such a key has no lease, another program overwrote it unseen.
    former: BTreeMap<u32, i64>,
    /// The partitions that were reported as blocked.
    blocked: BTreeSet<u32>,
    /// Partitions that others had taken at the given revision, which the view has not reached.
    refused: BTreeMap<u32, i64>,
    /// How long the member keeps a partition whose next owner is not ready.
    warm_within: Duration,
    /// The end of that time, for each partition that others should own.
    kept_until: BTreeMap<u32, Time>,
    /// The partitions that were reported as coming.
    coming: BTreeSet<u32>,
}

impl Membership {
    /// Makes a member that owns no partition yet, and keeps one whose next owner is not ready for `warm_within`.
    pub fn new(partitions: PartitionSet, warm_within: Duration) -> Self {
        Self {
            partitions,
            held: BTreeMap::new(),
            taking: BTreeMap::new(),
            uncertain: BTreeSet::new(),
            failures: 0,
            counted: 0,
            not_before: Time::ZERO,
            rebalanced: Time::ZERO,
            due: false,
            former: BTreeMap::new(),
            blocked: BTreeSet::new(),
            past: BTreeMap::new(),
            refused: BTreeMap::new(),
            warm_within,
            kept_until: BTreeMap::new(),
            coming: BTreeSet::new(),
        }
    }

    /// Handles the loss of the lease, and of every key that was or may have been ours.
    pub fn lease_lost(&mut self) {
        let held = self.held.iter();
        self.former
            .extend(held.map(|(partition, hold)| (*partition, hold.own.create_revision)));
        self.taking.clear();
        self.uncertain.clear();
        self.past.clear();
        self.refused.clear();
    }

    /// Handles another store, which does not have our former keys, and may use the same revisions again. No key that it
    /// shows belongs to the work that continues.
    pub fn store_changed(&mut self) {
        self.former.clear();
        for hold in self.held.values_mut() {
            hold.own.create_revision = 0;
        }
    }

    /// Returns the text written into the keys of partitions, for people to read.
    pub(crate) fn tag(&self) -> &Arc<[u8]> {
        &self.partitions.tag
    }

    /// Records a change that affects the member. Returns when to rebalance, unless that is arranged already.
    pub(crate) fn rebalance_at(&mut self, now: Time) -> Option<Time> {
        let between = (EACH * self.partitions.count).clamp(BETWEEN, MOST);
        let at = self.rebalanced.after(between);
        let is_arranged = now < at && std::mem::replace(&mut self.due, true);
        (!is_arranged).then_some(at)
    }

    /// Records that the member rebalances now.
    pub(crate) fn rebalanced(&mut self, now: Time) {
        (self.rebalanced, self.due) = (now, false);
    }

    /// Returns the slots of the partitions that the member owns, or owned and whose work continues.
    pub(crate) fn holds(&self) -> Vec<SlotId> {
        self.held.values().map(|hold| hold.slot).collect()
    }

    /// Returns the slot that owns, or owned, a partition by this key. An earlier read still shows a key that was lost.
    pub(crate) fn holder_of(&self, entry: &Entry) -> Option<SlotId> {
        let mut holds = self.held.values();
        let hold = holds.find(|hold| hold.own.is(entry));
        hold.map(|hold| hold.slot)
    }

    /// Returns true if no take is in flight, and no partition is held.
    pub(crate) fn is_over(&self) -> bool {
        self.taking.is_empty() && self.held.is_empty()
    }

    /// Returns every take in flight, with its partitions.
    pub(crate) fn takes(&self) -> impl Iterator<Item = (&RequestId, &Vec<u32>)> {
        self.taking.iter()
    }

    /// Returns how many more takes may be in flight.
    pub(crate) fn more_takes(&self) -> usize {
        AT_ONCE.saturating_sub(self.taking.len())
    }

    /// Returns the earliest time of the next take.
    pub(crate) fn not_before(&self) -> Time {
        self.not_before
    }

    /// Records that a take was sent.
    pub(crate) fn take_sent(&mut self, request: RequestId, partitions: &[u32]) {
        debug_assert!(self.taking.len() < AT_ONCE, "takes have a limit");
        debug_assert!(
            {
                let taking: BTreeSet<_> = self.taking.values().flatten().collect();
                partitions
                    .iter()
                    .all(|partition| !taking.contains(partition))
            },
            "no partition is in two takes"
        );
        self.taking.insert(request, partitions.to_vec());
    }

    /// Records that a take is answered, and returns its partitions. After the loss of the lease there are none.
    pub(crate) fn take_answered(&mut self, request: RequestId) -> Option<Vec<u32>> {
        self.taking.remove(&request)
    }

    /// Records that a take was carried out.
    pub(crate) fn take_done(&mut self) {
        self.failures = 0;
    }

    /// Records that the answer to a take was lost: these partitions may be ours.
    pub(crate) fn take_lost(&mut self, partitions: Vec<u32>) {
        self.uncertain.extend(partitions);
    }

    /// Records that the take `request` failed; `sent` is the last request. Takes that were in flight when a failure was
    /// counted, and fail as well, count as the same failure.
    pub(crate) fn take_failed(
        &mut self,
        (request, sent): (RequestId, RequestId),
        class: Class,
        now: Time,
        pace: Pace,
    ) {
        if request > self.counted {
            self.failures += 1;
            self.counted = sent;
        }
        let not_before = now.after(pace.pause(self.failures, class));
        self.not_before = not_before.max(self.not_before);
    }

    /// Returns true if the partition may be ours without our knowledge.
    pub(crate) fn is_uncertain(&self, partition: u32) -> bool {
        self.uncertain.contains(&partition)
    }

    /// Returns true if the member depends on no lease: it has no take, and no known or uncertain key.
    pub(crate) fn has_no_lease(&self) -> bool {
        let takes_nothing = self.taking.is_empty() && self.uncertain.is_empty();
        takes_nothing && self.past.is_empty() && self.refused.is_empty()
    }

    /// Checks that a forgotten member has nothing left.
    pub(crate) fn check_forgotten(&self) {
        debug_assert!(
            self.taking.is_empty(),
            "a member leaves when its takes are answered"
        );
        debug_assert!(
            self.held.is_empty(),
            "a member leaves when the work of its partitions has ended"
        );
        debug_assert!(
            self.uncertain.is_empty(),
            "a member leaves when it has looked for what it may own unknown"
        );
    }

    /// Returns the slot of the partition's term, with the key by which it is owned.
    pub(crate) fn held_at(&self, prefix: &[u8], key: &[u8]) -> Option<(SlotId, &Own)> {
        let Some(KeyKind::Partition(partition)) = kind_of(prefix, key) else {
            return None;
        };
        let hold = self.held.get(&partition)?;
        Some((hold.slot, &hold.own))
    }

    /// Returns every partition's term, with the key by which it is owned.
    pub(crate) fn held(&self) -> impl Iterator<Item = (SlotId, &Own)> {
        self.held.values().map(|hold| (hold.slot, &hold.own))
    }

    /// Takes the partitions that may be ours without our knowledge, to search for their keys. Returns none while a take is
    /// in flight, because its answer may be lost as well.
    pub(crate) fn look_for_uncertain(&mut self) -> BTreeSet<u32> {
        if !self.taking.is_empty() {
            return BTreeSet::new();
        }
        // Includes partitions whose work continues: a search does not delete a term's own key.
        std::mem::take(&mut self.uncertain)
    }

    /// Records the partitions whose place is blocked. Returns those that were not blocked before.
    pub(crate) fn blocked(&mut self, blocked: BTreeSet<u32>) -> Vec<u32> {
        let news = blocked.difference(&self.blocked).copied().collect();
        self.blocked = blocked;
        news
    }

    /// Returns the terms to end now. The member keeps a partition whose next owner `is_cold` for a limited time, which
    /// counts from when others first should own the partition. Also returns the end of the first such time.
    pub(crate) fn give_up_now(
        &mut self,
        moves: &[Move],
        now: Time,
        is_cold: impl Fn(&Move) -> bool,
    ) -> (Vec<SlotId>, Option<Time>) {
        let limit = now.after(self.warm_within);
        let before = std::mem::take(&mut self.kept_until);
        let (mut ending, mut next) = (Vec::new(), None);
        for of in moves {
            let until = *before.get(&of.partition).unwrap_or(&limit);
            self.kept_until.insert(of.partition, until);
            if now < until && is_cold(of) {
                next = Some(next.map_or(until, |next: Time| next.min(until)));
            } else {
                ending.push(of.slot);
            }
        }
        (ending, next)
    }

    /// Records the partitions that are coming. Returns them if they have changed.
    pub(crate) fn news_of_coming(&mut self, coming: BTreeSet<u32>) -> Option<BTreeSet<u32>> {
        if self.coming == coming {
            return None;
        }
        self.coming.clone_from(&coming);
        Some(coming)
    }

    /// Returns the create revision of a partition's key that was ours under an earlier lease.
    pub fn former_of(&self, partition: u32) -> Option<i64> {
        self.former.get(&partition).copied()
    }

    /// Records that the member owns the partition, by a term under that slot.
    pub fn hold(&mut self, partition: u32, slot: SlotId, own: Own) {
        let former = self.held.insert(partition, Hold { slot, own });
        debug_assert!(former.is_none(), "a partition has one term at a time");
    }

    /// Forgets a partition whose term is over, whose work has ended and whose key is gone.
    pub fn let_go(&mut self, partition: u32) {
        if let Some(hold) = self.held.remove(&partition) {
            self.forgo(partition, hold.own.create_revision);
        }
    }

    /// Records that the key is no longer ours.
    fn forgo(&mut self, partition: u32, create_revision: i64) {
        let newest = self.past.entry(partition).or_default();
        *newest = create_revision.max(*newest);
    }

    /// Records that another member's key existed at `revision`; `seen` is the revision of our view.
    pub fn refuse(&mut self, partition: u32, revision: i64, seen: i64) {
        if seen < revision {
            self.refused.insert(partition, revision);
        }
    }

    /// Returns the slot and the fate of a key of ours that an event shows as lost, even if the view is not ready for it.
    pub fn judge(&mut self, prefix: &[u8], change: &Change) -> Option<(SlotId, Fate)> {
        let Some(KeyKind::Partition(partition)) = kind_of(prefix, change.key()) else {
            return None;
        };
        self.refused.remove(&partition);
        let hold = self.held.get(&partition)?;
        let fate = hold.own.fate(change);
        (fate != Fate::Ours).then_some((hold.slot, fate))
    }

    /// Returns the member's next actions, by the state that `roster` shows. `own` is our member key, `read` reads the
    /// announcements of members. `shown` interprets a key with the given create revision, or its absence.
    pub fn wants(
        &self,
        prefix: &[u8],
        own: &Own,
        roster: &Roster,
        read: ShareReaders,
        shown: impl Fn(&[u8], Option<i64>) -> Shown,
    ) -> Wants {
        let mut wants = Wants::default();
        let me = own.lease;
        // A key that another program overwrote no longer belongs to a member.
        if roster.get(&own.key).is_none_or(|entry| entry.lease != me) {
            return wants;
        }
        let count = self.partitions.count;
        let facts = facts(prefix, count, roster.by_key(), read);
        let target = assign(count, &facts.members, &facts.counted());
        let Facts { owned, live, .. } = facts;
        let mut keys = vec![None; target.len()];
        for key in owned {
            if let Some(of_it) = keys.get_mut(key.partition as usize) {
                *of_it = Some(key);
            }
        }
        let taking: BTreeSet<u32> = self.taking.values().flatten().copied().collect();
        // Members without a share take partitions if this member no longer exists.
        let others = live > 1;
        for (partition, (lease, key)) in (0..).zip(target.into_iter().zip(keys)) {
            let seen = Seen {
                partition,
                key,
                me,
                next: lease,
                wanted: lease == me,
            };
            if self.is_coming(&seen) {
                wants.coming.insert(partition);
            }
            let created = key.as_ref().map(|key| key.since);
            let shown = || shown(&partition_key(prefix, partition), created);
            let free = || !taking.contains(&partition) && shown() != Shown::Going;
            match self.held.get(&partition) {
                Some(hold) => wants.of_held(hold, &seen, roster, others, free),
                None if self.concerns(&seen, roster) && free() => {
                    self.want_other(&mut wants, &seen, prefix, shown);
                }
                None => {}
            }
        }
        wants
    }

    /// Returns true if the partition should be ours, and another member owns it or gave it up a moment ago. A key of our
    /// earlier lease is nobody's.
    fn is_coming(&self, seen: &Seen) -> bool {
        let is_others = match seen.key {
            Some(key) => {
                let was_ours = self.former.get(&seen.partition) == Some(&key.since);
                key.lease != seen.me && key.lease != 0 && !was_ours
            }
            None => self.coming.contains(&seen.partition),
        };
        seen.wanted && is_others && !self.held.contains_key(&seen.partition)
    }

    /// Returns true if a partition that we do not hold may need an action: it has no owner and we should take it, it is
    /// ours, or its key has no lease.
    fn concerns(&self, seen: &Seen, roster: &Roster) -> bool {
        match seen.key {
            None => seen.wanted && self.may_take(seen.partition, roster.revision()),
            Some(key) => key.lease == seen.me || key.lease == 0,
        }
    }

    /// Adds the action on such a partition, whose key is neither being put nor being deleted.
    fn want_other(&self, wants: &mut Wants, seen: &Seen, prefix: &[u8], shown: impl Fn() -> Shown) {
        let partition = seen.partition;
        match seen.key {
            None => wants.take.push(partition),
            Some(key) if key.lease == seen.me && self.was_ours(&key, shown()) => {
                wants.stray.push((partition, key.since));
            }
            Some(key) if key.lease == seen.me => {
                let own = Own {
                    key: partition_key(prefix, partition),
                    create_revision: key.since,
                    lease: seen.me,
                };
                let list = if seen.wanted {
                    &mut wants.adopt
                } else {
                    &mut wants.discard
                };
                list.push((partition, own));
            }
            Some(key) if self.former.get(&partition) == Some(&key.since) => {
                wants.stray.push((partition, key.since));
            }
            Some(_) => {
                wants.blocked.insert(partition);
            }
        }
    }

    fn may_take(&self, partition: u32, seen: i64) -> bool {
        self.refused.get(&partition).is_none_or(|at| seen >= *at)
    }

    /// Returns true if a key under our lease was ours, and is no longer: it never becomes ours again.
    fn was_ours(&self, key: &Owned, shown: Shown) -> bool {
        let past = self.past.get(&key.partition);
        shown == Shown::Back || past.is_some_and(|past| key.since <= *past)
    }
}

#[cfg(test)]
mod tests;
