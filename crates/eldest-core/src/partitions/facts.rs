//! Reads from the keys which members share the partitions, which partitions they own, and which are kept for a member that
//! is away.
//!
//! A **kept share** is the record of a member that wants its partitions back after a restart. It lists them, and has a
//! lease of its own, which outlives the member's. It gives no authority: a listed partition only counts as owned while it
//! has no owner, so that no other member takes it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::assignment::{Assignee, Center, Owned};
use super::keys::{KeyKind, kind_of_entry};
use crate::kv::Entry;

/// A member's announcement of its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// True if the member takes no partitions while other members do.
    pub aside: bool,
    /// The share, in proportion to the capacities of the others; at least 1.
    pub capacity: u32,
    /// The member's data centre, if data centres must own equal shares.
    pub center: Option<Center>,
}

/// The record that keeps a member's share while the member is away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptShare {
    /// The identity of the member.
    pub identity: Vec<u8>,
    /// The share that the member announced.
    pub share: Share,
    /// The partitions of the member, in ascending ranges that do not overlap.
    pub partitions: Vec<RangeInclusive<u32>>,
}

/// The functions that read the values of members' keys.
#[derive(Debug, Clone, Copy)]
pub struct ShareReaders {
    /// Reads a member's share from its announcement.
    pub share: fn(&[u8]) -> Share,
    /// Returns the identity that a member announces.
    pub identity: fn(&[u8]) -> Vec<u8>,
    /// Reads a kept share. `None`: the value is not in our spelling.
    pub kept: fn(&[u8]) -> Option<KeptShare>,
}

/// The members and the partitions as a view shows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The members that share the partitions, including those that are away. Members that take no partitions are left out,
    /// unless all members do so.
    pub members: Vec<Assignee>,
    /// The keys of partitions.
    pub owned: Vec<Owned>,
    /// The partitions without a key that count as owned, because they are kept for their former owner. The owner's lease is
    /// that of its member key, or that of the record if it is away.
    pub kept: Vec<Owned>,
    /// The number of members that are not away.
    pub live: usize,
}

impl Facts {
    /// Returns the partitions that count as owned.
    pub fn counted(&self) -> Vec<Owned> {
        [&self.owned[..], &self.kept].concat()
    }
}

/// Reads the members that share `count` partitions, and the owners.
pub fn facts<'a>(
    prefix: &[u8],
    count: u32,
    entries: impl IntoIterator<Item = &'a Entry>,
    read: ShareReaders,
) -> Facts {
    let (mut facts, mut standing, mut records) = (Facts::default(), Vec::new(), Vec::new());
    for entry in entries {
        match kind_of_entry(prefix, entry) {
            Some(KeyKind::Member { .. }) => standing.push(entry),
            Some(KeyKind::Kept { .. }) => records.push(entry),
            Some(KeyKind::Partition(partition)) => facts.owned.push(Owned {
                since: entry.create_revision,
                partition,
                lease: entry.lease,
            }),
            None => {}
        }
    }
    facts.live = standing.len();
    let assignees = standing.iter().map(|entry| {
        let share = (read.share)(&entry.value);
        (share.aside, assignee(entry, share, false))
    });
    let mut assignees: Vec<_> = assignees.collect();
    // Most groups keep no shares, and need no identities.
    if !records.is_empty() {
        let waiting = facts.keep(count, &standing, records, read);
        assignees.retain(|(_, member)| !waiting.contains(&member.lease));
    }
    let (aside, sharing): (Vec<_>, Vec<_>) = assignees.into_iter().partition(|(aside, _)| *aside);
    let there = if sharing.is_empty() { aside } else { sharing };
    facts
        .members
        .extend(there.into_iter().map(|(_, member)| member));
    facts
}

fn assignee(entry: &Entry, share: Share, absent: bool) -> Assignee {
    Assignee {
        absent,
        since: entry.create_revision,
        lease: entry.lease,
        capacity: share.capacity,
        center: share.center,
    }
}

impl Facts {
    /// Adds the kept shares and the members that are away. The record of a member that is there only says which partitions
    /// return to it. Returns the leases of the members that wait.
    ///
    /// After a crash, the member that came back may be there before its former key has expired. Until then it waits, and its
    /// former key counts, so that no partition moves. A former member that takes no partitions, because it hands them over,
    /// lets the next one count at once.
    fn keep(
        &mut self,
        count: u32,
        standing: &[&Entry],
        mut records: Vec<&Entry>,
        read: ShareReaders,
    ) -> BTreeSet<i64> {
        let named = standing.iter().map(|member| {
            let is_aside = (read.share)(&member.value).aside;
            let rank = (is_aside, member.create_revision, member.lease);
            ((read.identity)(&member.value), rank)
        });
        let named: Vec<_> = named.collect();
        let mut first: BTreeMap<&[u8], (bool, i64, i64)> = BTreeMap::new();
        for (identity, rank) in &named {
            let counting = first.entry(identity).or_insert(*rank);
            *counting = (*counting).min(*rank);
        }
        let leases: BTreeSet<i64> = standing.iter().map(|member| member.lease).collect();
        let mut taken: BTreeSet<u32> = self.owned.iter().map(|key| key.partition).collect();
        let mut known = BTreeSet::new();
        // The record that was written last counts, for an identity and for a partition.
        records.sort_unstable_by_key(|record| Reverse((record.mod_revision, record.lease)));
        for record in records {
            let kept = (read.kept)(&record.value);
            let Some(kept) = kept.filter(|_| !leases.contains(&record.lease)) else {
                continue;
            };
            let member = first.get(&*kept.identity).map(|(.., lease)| *lease);
            let is_away = member.is_none();
            if !known.insert(kept.identity) || (is_away && kept.share.aside) {
                continue;
            }
            // A member gives up its youngest partitions first: those that it does not own yet come before the others.
            let since = member.map_or(record.create_revision, |_| i64::MAX);
            let lease = member.unwrap_or(record.lease);
            let listed = kept.partitions.into_iter().flatten();
            for partition in listed.take_while(|partition| *partition < count) {
                if taken.insert(partition) {
                    self.kept.push(Owned {
                        since,
                        partition,
                        lease,
                    });
                }
            }
            if is_away {
                self.members.push(assignee(record, kept.share, true));
            }
        }
        let waits = |(identity, rank): &&(Vec<u8>, (bool, i64, i64))| {
            known.contains(identity) && first.get(&**identity) != Some(rank)
        };
        let waiting = named.iter().filter(waits);
        waiting.map(|(_, (.., lease))| *lease).collect()
    }
}

#[cfg(test)]
mod tests;
