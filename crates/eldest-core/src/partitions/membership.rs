//! Decides which partitions a member takes, adopts and gives up, from the keys in the member's view.
//!
//! A member is a candidate that never leads: its key shows that the member is there, and the key's create revision is
//! its seniority. Each owned partition is a candidate of its own that leads from the start, so its term ends as any
//! other does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::assignment::{Assignee, Center, Owned, assign};
use super::keys::{KeyKind, kind_of, partition_key};
use crate::action::Class;
use crate::cleanup::Shown;
use crate::ids::{RequestId, SlotId};
use crate::kv::{Change, Entry};
use crate::pause::Pace;
use crate::queue::{Fate, Own, Roster};
use crate::time::Time;

/// Takes of a member's under way.
const AT_ONCE: usize = 8;
/// However fast changes arrive, what they mean is worked out only so often: in this time,
const BETWEEN: Duration = Duration::from_millis(10);
/// or, with many partitions, in this time for each.
const EACH: Duration = Duration::from_micros(50);
/// but not longer than this.
const MOST: Duration = Duration::from_millis(250);

/// The partitions that members own, as a member's handle names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionSet {
    /// How many there are.
    pub count: u32,
    /// The count is the level below it. While a key of another count stands, nobody joins.
    pub family: Arc<[u8]>,
    /// Written into the keys of partitions, for people to read.
    pub tag: Arc<[u8]>,
}

/// The announcement of a member about its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// True if it does without partitions while other members do not.
    pub aside: bool,
    /// In proportion to the capacities of the others; at least 1.
    pub capacity: u32,
    /// Its data centre, if it wants data centres to own equal shares.
    pub center: Option<Center>,
}

/// Returns the members that share the partitions, the partitions' owners, and the number of members. `share` reads what
/// members announce. Those that do without partitions have no share unless all of them do.
pub fn facts(
    prefix: &[u8],
    roster: &Roster,
    share: fn(&[u8]) -> Share,
) -> (Vec<Assignee>, Vec<Owned>, usize) {
    let (mut members, mut aside, mut owned) = (Vec::new(), Vec::new(), Vec::new());
    for entry in roster.by_key() {
        let (since, lease) = (entry.create_revision, entry.lease);
        match kind_of(prefix, &entry.key) {
            // Written over by somebody, it is no member's any more.
            Some(KeyKind::Member { lease: named }) if named == lease => {
                let share = share(&entry.value);
                let of_all = if share.aside {
                    &mut aside
                } else {
                    &mut members
                };
                of_all.push(Assignee {
                    since,
                    lease,
                    capacity: share.capacity,
                    center: share.center,
                });
            }
            Some(KeyKind::Partition(partition)) => owned.push(Owned {
                since,
                partition,
                lease,
            }),
            _ => {}
        }
    }
    let all = members.len() + aside.len();
    if members.is_empty() {
        members = aside;
    }
    (members, owned, all)
}

/// A partition that we own, or owned and whose work goes on.
#[derive(Debug, Clone)]
struct Hold {
    slot: SlotId,
    own: Own,
}

/// The actions of a member, by what it sees.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Keys of ours that are gone or no longer ours.
    pub lost: Vec<(SlotId, Fate)>,
    /// Terms of partitions that others should own.
    pub give_up: Vec<SlotId>,
    /// Nobody's, and not to be taken before work of ours has ended there. There are others who could.
    pub waiting: Vec<SlotId>,
    /// Nobody's.
    pub take: Vec<u32>,
    /// Ours by a transaction whose answer was lost, and wanted.
    pub adopt: Vec<(u32, Own)>,
    /// The same, and not wanted.
    pub discard: Vec<(u32, Own)>,
    /// Keys that nobody holds and others would wait for: of ours once and without a lease since; put under our lease by a
    /// transaction that came late, while the work of an earlier term goes on; or brought back by a restore of etcd.
    pub stray: Vec<(u32, i64)>,
    /// Where a key without a lease stands, which no owner's ever is.
    pub blocked: BTreeSet<u32>,
}

/// A partition as a view shows it.
struct Seen {
    partition: u32,
    key: Option<Owned>,
    /// Our lease.
    me: i64,
    /// True if it should be ours.
    wanted: bool,
}

impl Wants {
    /// A partition that we own, or owned and whose work goes on. `others`: there are more members; `free`: its key is
    /// neither being put nor being deleted.
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
            Fate::Ours => self.give_up.push(hold.slot),
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

/// The member's side of a candidacy.
#[derive(Debug, Clone)]
pub struct Membership {
    partitions: PartitionSet,
    held: BTreeMap<u32, Hold>,
    /// The transactions under way. How many they may be bounds what a member takes at once, and what it does not know.
    /// No partition is in two of them: so each answer is the only one about what it names.
    taking: BTreeMap<RequestId, Vec<u32>>,
    /// A transaction with them was lost on the way: they may be ours.
    uncertain: BTreeSet<u32>,
    failures: u32,
    /// The last request that had been sent when one of these failures was counted.
    counted: RequestId,
    not_before: Time,
    /// When it was last worked out what changes mean, and whether that is due again.
    rebalanced: Time,
    due: bool,
    /// By partition, the newest key of this lease that is not ours any more, whatever older views show.
    past: BTreeMap<u32, i64>,
    /// The keys that were ours under an earlier lease. Such a key without a lease was written over unseen.
    former: BTreeMap<u32, i64>,
    /// The partitions that were reported as blocked.
    blocked: BTreeSet<u32>,
    /// Taken by others at that revision, which the view has not come to.
    refused: BTreeMap<u32, i64>,
}

impl Membership {
    /// A member that owns nothing yet.
    pub fn new(partitions: PartitionSet) -> Self {
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
        }
    }

    /// The lease is gone, and with it whatever was or may have been ours.
    pub fn lease_lost(&mut self) {
        let held = self.held.iter();
        self.former
            .extend(held.map(|(partition, hold)| (*partition, hold.own.create_revision)));
        self.taking.clear();
        self.uncertain.clear();
        self.past.clear();
        self.refused.clear();
    }

    /// Another store knows nothing of what was ours, and may use the same revisions again. Whatever it shows, the keys of
    /// partitions whose work goes on are not in it.
    pub fn store_changed(&mut self) {
        self.former.clear();
        for hold in self.held.values_mut() {
            hold.own.create_revision = 0;
        }
    }

    /// Written into the keys of partitions, for people to read.
    pub(crate) fn tag(&self) -> &Arc<[u8]> {
        &self.partitions.tag
    }

    /// Something changed that it goes by. Returns when the consequences are to be worked out, unless that is arranged already.
    pub(crate) fn rebalance_at(&mut self, now: Time) -> Option<Time> {
        let between = (EACH * self.partitions.count).clamp(BETWEEN, MOST);
        let at = self.rebalanced.after(between);
        let is_arranged = now < at && std::mem::replace(&mut self.due, true);
        (!is_arranged).then_some(at)
    }

    /// Records that the consequences of changes are worked out now.
    pub(crate) fn rebalanced(&mut self, now: Time) {
        (self.rebalanced, self.due) = (now, false);
    }

    /// The slots of the partitions that it owns, or owned and whose work goes on.
    pub(crate) fn holds(&self) -> Vec<SlotId> {
        self.held.values().map(|hold| hold.slot).collect()
    }

    /// Returns the slot that owns, or owned, a partition by this key. An earlier read still shows a key that was lost.
    pub(crate) fn holder_of(&self, entry: &Entry) -> Option<SlotId> {
        let mut holds = self.held.values();
        let hold = holds.find(|hold| hold.own.is(entry));
        hold.map(|hold| hold.slot)
    }

    /// Returns true if nothing is left of it: no take is under way, and no partition is held.
    pub(crate) fn is_over(&self) -> bool {
        self.taking.is_empty() && self.held.is_empty()
    }

    /// Every take under way, with its partitions.
    pub(crate) fn takes(&self) -> impl Iterator<Item = (&RequestId, &Vec<u32>)> {
        self.taking.iter()
    }

    /// How many more takes may be under way.
    pub(crate) fn more_takes(&self) -> usize {
        AT_ONCE.saturating_sub(self.taking.len())
    }

    /// No take before this.
    pub(crate) fn not_before(&self) -> Time {
        self.not_before
    }

    /// A take was sent.
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

    /// A take is answered: its partitions. After the loss of the lease nobody waits for it.
    pub(crate) fn take_answered(&mut self, request: RequestId) -> Option<Vec<u32>> {
        self.taking.remove(&request)
    }

    /// A take was carried out.
    pub(crate) fn take_done(&mut self) {
        self.failures = 0;
    }

    /// A take was lost on the way: these partitions may be ours.
    pub(crate) fn take_lost(&mut self, partitions: Vec<u32>) {
        self.uncertain.extend(partitions);
    }

    /// The take `request` failed; `sent` is the last request. What was under way when a failure was counted, and fails as
    /// well, is the same failure.
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

    /// Returns true if the partition may be ours without our knowing.
    pub(crate) fn is_uncertain(&self, partition: u32) -> bool {
        self.uncertain.contains(&partition)
    }

    /// Returns true if nothing of it depends on a lease: no take, and nothing that is known or uncertain of keys under one.
    pub(crate) fn has_no_lease(&self) -> bool {
        let takes_nothing = self.taking.is_empty() && self.uncertain.is_empty();
        takes_nothing && self.past.is_empty() && self.refused.is_empty()
    }

    /// Checks that nothing of a member is left when it is forgotten.
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

    /// The slot of the partition's term, with the key by which it is owned.
    pub(crate) fn held_at(&self, prefix: &[u8], key: &[u8]) -> Option<(SlotId, &Own)> {
        let Some(KeyKind::Partition(partition)) = kind_of(prefix, key) else {
            return None;
        };
        let hold = self.held.get(&partition)?;
        Some((hold.slot, &hold.own))
    }

    /// Every partition's term, with the key by which it is owned.
    pub(crate) fn held(&self) -> impl Iterator<Item = (SlotId, &Own)> {
        self.held.values().map(|hold| (hold.slot, &hold.own))
    }

    /// The partitions that takes may have put without our knowing; they are looked for now. None while a take is under way:
    /// it may be the next of which nothing is known.
    pub(crate) fn look_for_uncertain(&mut self) -> BTreeSet<u32> {
        if !self.taking.is_empty() {
            return BTreeSet::new();
        }
        // Also where work goes on: a term's own key is not what a search takes away.
        std::mem::take(&mut self.uncertain)
    }

    /// The keys of these partitions are in the way. Those of which that is news.
    pub(crate) fn blocked(&mut self, blocked: BTreeSet<u32>) -> Vec<u32> {
        let news = blocked.difference(&self.blocked).copied().collect();
        self.blocked = blocked;
        news
    }

    /// When the key of a partition was created that was ours under an earlier lease.
    pub fn former_of(&self, partition: u32) -> Option<i64> {
        self.former.get(&partition).copied()
    }

    /// The member owns the partition, by a term under that slot.
    pub fn hold(&mut self, partition: u32, slot: SlotId, own: Own) {
        let former = self.held.insert(partition, Hold { slot, own });
        debug_assert!(former.is_none(), "a partition has one term at a time");
    }

    /// The term is over, its work has ended and its key is gone.
    pub fn let_go(&mut self, partition: u32) {
        if let Some(hold) = self.held.remove(&partition) {
            self.forgo(partition, hold.own.create_revision);
        }
    }

    /// Records that the key is not ours any more.
    fn forgo(&mut self, partition: u32, create_revision: i64) {
        let newest = self.past.entry(partition).or_default();
        *newest = create_revision.max(*newest);
    }

    /// Somebody else's key stood there at `revision`; `seen` is how far our view has come.
    pub fn refuse(&mut self, partition: u32, revision: i64, seen: i64) {
        if seen < revision {
            self.refused.insert(partition, revision);
        }
    }

    /// Returns the fate of each key of ours that events show as lost, even if the view is not ready for them.
    pub fn judge(&mut self, prefix: &[u8], changes: &[Change]) -> Vec<(SlotId, Fate)> {
        let mut lost = Vec::new();
        for change in changes {
            if let Some(KeyKind::Partition(partition)) = kind_of(prefix, change.key()) {
                self.refused.remove(&partition);
                let hold = self.held.get(&partition);
                let fate = hold.map(|hold| (hold.slot, hold.own.fate(change)));
                lost.extend(fate.filter(|(_, fate)| *fate != Fate::Ours));
            }
        }
        lost
    }

    /// Returns the member's next actions, by the state that `roster` shows. `own` is our member key, `share` reads what members
    /// announce, `shown` says what it means that a key exists that was created then, or that none does.
    pub fn wants(
        &self,
        prefix: &[u8],
        own: &Own,
        roster: &Roster,
        share: fn(&[u8]) -> Share,
        shown: impl Fn(&[u8], Option<i64>) -> Shown,
    ) -> Wants {
        let mut wants = Wants::default();
        let me = own.lease;
        // Written over by somebody, it is no member's any more.
        if roster.get(&own.key).is_none_or(|entry| entry.lease != me) {
            return wants;
        }
        let (members, owned, all) = facts(prefix, roster, share);
        let target = assign(self.partitions.count, &members, &owned);
        let mut keys = vec![None; target.len()];
        for key in owned {
            if let Some(of_it) = keys.get_mut(key.partition as usize) {
                *of_it = Some(key);
            }
        }
        let taking: BTreeSet<u32> = self.taking.values().flatten().copied().collect();
        // Members that do without partitions take them if this member is there no more.
        let others = all > 1;
        for (partition, (lease, key)) in (0..).zip(target.into_iter().zip(keys)) {
            let seen = Seen {
                partition,
                key,
                me,
                wanted: lease == me,
            };
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

    /// Returns true if a partition that is not held may need an action: nobody's and ours to take, ours, or without a lease.
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

    /// Returns true if a key under our lease was ours, and is not any more: it is never ours again.
    fn was_ours(&self, key: &Owned, shown: Shown) -> bool {
        let past = self.past.get(&key.partition);
        shown == Shown::Back || past.is_some_and(|past| key.since <= *past)
    }
}

#[cfg(test)]
mod tests;
