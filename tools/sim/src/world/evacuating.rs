//! Marks data centres as evacuated, and orders leaders to step down. Checks at rest that members there let others lead
//! and own partitions, and that the others own their shares.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::World;
use super::cluster::ELECTIONS;
use super::home::{Home, MARKS, SHARES, cold_tag, home, share_tag, version, version_tag};
use super::promise::Invariant;
use super::store::Key;
use eldest_core::action::Ask;
use eldest_core::evacuation::step_down_key;
use eldest_core::kv::{Entry, Reach};
use eldest_core::partitions::{Assignee, Facts, KeyKind, Owned, assign, facts, kind_of};
use eldest_core::queue::Roster;

/// The number from which leases of marks count; no session draws such numbers.
const LEASES: i64 = -1000;

impl World {
    /// Lets an operator mark a data centre, for a while by a lease of the mark's own.
    pub(crate) fn evacuate(&mut self, home: Home, lasts: Option<Duration>) {
        let Some(key) = home.mark().filter(|_| self.store.headless.is_none()) else {
            return;
        };
        self.says(None, || format!("{home:?} is evacuated for {lasts:?}"));
        self.mark(&key, lasts);
    }

    /// Replaces a mark, under a lease of its own if it ends by itself.
    fn mark(&mut self, key: &Key, lasts: Option<Duration>) {
        let before = self.store.entry(key).map_or(0, |entry| entry.lease);
        let lease = lasts.map_or(0, |ttl| {
            let lease = LEASES - self.store.revision();
            self.store
                .perform(self.now, &Ask::Grant { ttl }, Some(lease));
            lease
        });
        if self.store.put(key, b"", lease) {
            self.store.revoke(self.now, before);
        }
        self.publish();
    }

    /// Lets an operator lift the mark.
    pub(crate) fn lift(&mut self, home: Home) {
        let Some(key) = home.mark().filter(|_| self.store.headless.is_none()) else {
            return;
        };
        self.says(None, || format!("{home:?} is evacuated no more"));
        let lease = self.store.entry(&key).map_or(0, |entry| entry.lease);
        self.store.delete(&key);
        self.store.revoke(self.now, lease);
        self.publish();
    }

    /// Lets an operator order the election's leader to step down, for a while.
    pub(crate) fn order_step_down(&mut self, election: &[u8], lasts: Duration) {
        let queue = self.store.queue(election);
        let leader = queue.first().filter(|first| first.lease != 0);
        let Some(leader) = leader.filter(|_| self.store.headless.is_none()) else {
            return;
        };
        let key = step_down_key(MARKS, &leader.key, leader.create_revision).into();
        self.says(None, || {
            format!("the first is ordered to step down within {lasts:?}")
        });
        self.mark(&key, Some(lasts));
    }

    /// Returns true if an operator has marked the data centre.
    pub(crate) fn is_evacuated(&self, home: Home) -> bool {
        let mark = home.mark();
        mark.is_some_and(|key| self.store.contains(&key))
    }

    /// Returns the marks and their leases, which belong to no session.
    pub(super) fn marks(&self) -> Vec<Entry> {
        self.store
            .state(MARKS, Reach::Everything)
            .into_values()
            .collect()
    }

    /// Returns true if the key's owner is in an evacuated data centre.
    fn is_away(&self, entry: &Entry) -> bool {
        let mark = home(&entry.value).map(|name| Key::from([MARKS, &name].concat()));
        mark.is_some_and(|key| self.store.contains(&key))
    }

    /// Checks that no member in an evacuated data centre leads or owns a partition, unless all possible members are
    /// there.
    pub(super) fn all_give_way(&self) -> Result<(), (Invariant, String)> {
        for election in ELECTIONS {
            let queue = self.store.queue(election);
            let requires = |first: &Entry| version(&first.value).is_some();
            let may_lead = |entry: &&Entry| {
                let is_free = !requires(entry) && !queue.first().is_some_and(requires);
                is_free || self.is_new_enough(election, entry)
            };
            let outsider =
                |entry: &&Entry| entry.lease != 0 && !self.is_away(entry) && may_lead(entry);
            let leads = queue.first().filter(|first| self.is_away(first));
            if let (Some(first), Some(other)) = (leads, queue.iter().find(outsider)) {
                let who = super::trace::keys([first, other]);
                let what = format!("one in an evacuated data centre leads beside another: {who}");
                return Err((Invariant::Evacuated, what));
            }
        }
        let Some(prefix) = self.prefix_of_partitions() else {
            return Ok(());
        };
        let keys = self.store.children(&prefix);
        let member =
            |entry: &&Entry| matches!(kind_of(&prefix, &entry.key), Some(KeyKind::Member { .. }));
        let members = || keys.iter().filter(member);
        let away: Vec<_> = members()
            .filter(|entry| self.is_away(entry))
            .map(|e| e.lease)
            .collect();
        if away.len() == members().count() {
            return Ok(());
        }
        let owns = |entry: &&Entry| {
            matches!(kind_of(&prefix, &entry.key), Some(KeyKind::Partition(_)))
                && away.contains(&entry.lease)
        };
        match keys.iter().find(owns) {
            Some(entry) => {
                let key = super::trace::keys([entry]);
                let what = format!("one in an evacuated data centre owns {key}");
                Err((Invariant::Evacuated, what))
            }
            None => Ok(()),
        }
    }

    /// Checks that every member owns the partitions that the assignment gives it, by the capacities and data centres
    /// that all of them announce.
    pub(super) fn all_own_their_share(&self) -> Result<(), (Invariant, String)> {
        let Some(prefix) = self.prefix_of_partitions() else {
            return Ok(());
        };
        let mut roster = Roster::new(Arc::clone(&prefix), Reach::Children);
        roster.replace(self.store.revision(), self.store.queue(&prefix));
        let segment = prefix.rsplit(|byte| *byte == b'/').nth(1);
        let count = segment.and_then(|bytes| std::str::from_utf8(bytes).ok());
        let count = count
            .and_then(|digits| digits.parse().ok())
            .unwrap_or_default();
        let Facts { members, owned, .. } = facts(&prefix, count, roster.by_key(), SHARES);
        let target = assign(count, &members, &owned);
        let moves = |key: &&Owned| target.get(key.partition as usize) != Some(&key.lease);
        match owned.iter().find(moves) {
            Some(key) if !members.is_empty() => {
                let what = format!(
                    "partition {} is not its member's: {members:?}",
                    key.partition
                );
                Err((Invariant::Liveness, what))
            }
            _ => all_own_a_fair_part(count, &members, &owned),
        }
    }

    /// Returns the prefix of the members and of the partitions that they share.
    fn prefix_of_partitions(&self) -> Option<Key> {
        let key = self
            .store
            .entries()
            .map(|e| e.key)
            .find(|key| key.starts_with(b"p/"))?;
        let end = key.iter().rposition(|byte| *byte == b'/')?;
        Some(key[..=end].into())
    }

    /// Returns the value that a node announces, with its data centre, its share, its version, and if it is cold.
    pub(crate) fn tagged(&self, node: usize, value: &str) -> Key {
        let (member, ready) = (&self.nodes[node].member, &self.nodes[node].ready);
        let tag = member.home.tag();
        let share = share_tag(member.capacity, member.spread);
        let version = version_tag(member.version);
        let cold = member.prepares.then(|| cold_tag(ready));
        let cold = cold.unwrap_or_default();
        Arc::from(format!("{tag}{share}{version}{cold}{value}").into_bytes())
    }
}

/// Checks that every member owns its share of the partitions, rounded up or down. Shares are in proportion to the
/// capacities, within each data centre if all members name theirs.
fn all_own_a_fair_part(
    count: u32,
    members: &[Assignee],
    owned: &[Owned],
) -> Result<(), (Invariant, String)> {
    let spread = members.iter().all(|member| member.center.is_some());
    let owns = |member: &Assignee| owned.iter().filter(|key| key.lease == member.lease).count();
    let mut centers: BTreeMap<_, Vec<&Assignee>> = BTreeMap::new();
    for member in members {
        let center = member.center.filter(|_| spread);
        centers.entry(center).or_default().push(member);
    }
    let differs = |parts: usize, all: usize, owned: usize, whole: usize| {
        (owned * all).abs_diff(whole * parts) >= all
    };
    for of_center in centers.values() {
        let here = of_center.iter().map(|member| owns(member)).sum();
        let capacities = of_center.iter().map(|member| member.capacity as usize);
        let all = capacities.sum();
        let unfair =
            |member: &&&Assignee| differs(member.capacity as usize, all, owns(member), here);
        let is_unfair = differs(1, centers.len(), here, count as usize);
        if is_unfair || of_center.iter().any(|member| unfair(&member)) {
            let what = format!("the partitions {owned:?} are not shared fairly by {members:?}");
            return Err((Invariant::Liveness, what));
        }
    }
    Ok(())
}
