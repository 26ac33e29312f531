//! Computes which member should own which partition, from the present members and owners alone.
//!
//! Every member computes the assignment from the same watch, so all members agree without exchanging messages. The
//! assignment is only advice: a partition's key is created only where none exists, so two members never own one
//! partition.

use std::collections::{BTreeMap, HashMap};

/// A member, by its lease; its seniority is its key's create revision. A member that is away has the lease and the create
/// revision of the record that keeps its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Assignee {
    /// True if the member is away and its share is kept. It ranks behind all others.
    pub absent: bool,
    /// The create revision of the member's key: its age.
    pub since: i64,
    /// The lease of the member's key.
    pub lease: i64,
    /// The member's share of the partitions, in proportion to the capacities of the others; at least 1.
    pub capacity: u32,
    /// The data centre in which the member runs, if data centres must own equal shares.
    pub center: Option<Center>,
}

/// A data centre, as a number that every node computes from its name in the same way.
pub type Center = u64;

/// A partition's key, with its owner and its create revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owned {
    /// The create revision of the partition's key.
    pub since: i64,
    /// The number of the partition.
    pub partition: u32,
    /// The lease of the partition's key: its owner.
    pub lease: i64,
}

/// Returns the lease to which each of `count` partitions should belong; empty if no member is there.
///
/// A member's share of the partitions is its share of all capacities; its quota is that share rounded down or up.
/// Members that own more than their share rounded down are rounded up first, then the senior ones. A member above its
/// quota gives up the partitions that it took last. Partitions without an owner, given up, or owned by a non-member are
/// dealt in order: the eldest gets the first run of them.
///
/// If every member names its data centre, each data centre has an equal share, and divides it among its members in this
/// way.
///
/// A member that is [away](Assignee::absent) keeps what is kept for it, up to its share rounded up, and receives nothing else.
/// The members that are there divide the rest.
///
/// Runs, and quotas that do not depend on how much of a run was taken already, keep the answer the same while many
/// members carry it out at once: a member that takes a part of its run does not move the runs of the others.
pub fn assign(count: u32, members: &[Assignee], owned: &[Owned]) -> Vec<i64> {
    let mut members = members.to_vec();
    members.sort_unstable();
    if members.iter().all(|member| member.absent) {
        return Vec::new();
    }
    let index: HashMap<i64, usize> = (0..).zip(&members).map(|(i, m)| (m.lease, i)).collect();
    let mut held: Vec<Vec<Owned>> = vec![Vec::new(); members.len()];
    for key in owned.iter().filter(|key| key.partition < count) {
        if let Some(member) = index.get(&key.lease) {
            held[*member].push(*key);
        }
    }
    let quotas = quotas(count, &members, &held);
    let mut target = vec![None; count as usize];
    for (member, keys) in held.iter_mut().enumerate() {
        // A member that gives up none keeps them in any order.
        if keys.len() > quotas[member] {
            keys.sort_unstable();
        }
        for key in keys.iter().take(quotas[member]) {
            target[key.partition as usize] = Some(member);
        }
    }
    let missing = |(quota, keys): (&usize, &Vec<Owned>)| quota.saturating_sub(keys.len());
    let missing = quotas.iter().zip(&held).map(missing);
    let mut dealt = (0..)
        .zip(missing)
        .flat_map(|(member, n)| std::iter::repeat_n(member, n));
    let target = target
        .into_iter()
        .filter_map(|keeper| keeper.or_else(|| dealt.next()));
    target.map(|member: usize| members[member].lease).collect()
}

/// Returns how many partitions each member should own.
///
/// A data centre whose members are all away owns no more than is kept for them. The others have equal shares of the rest.
fn quotas(count: u32, members: &[Assignee], held: &[Vec<Owned>]) -> Vec<usize> {
    let held: Vec<usize> = held.iter().map(Vec::len).collect();
    let (mut quotas, mut left) = (vec![0; members.len()], count);
    let centers = by_center(members);
    let shares = divided_evenly(count, centers.len());
    let is_away = |of: &[usize]| of.iter().all(|m| members[*m].absent);
    let (away, there): (Vec<_>, Vec<_>) = shares.zip(centers).partition(|(_, of)| is_away(of));
    for (share, of) in away {
        let rest = keep(share, &of, members, &held, &mut quotas);
        left = left.saturating_sub(share - rest);
    }
    for (share, (_, of)) in divided_evenly(left, there.len()).zip(there) {
        let rest = keep(share, &of, members, &held, &mut quotas);
        let of: Vec<_> = of.into_iter().filter(|m| !members[*m].absent).collect();
        let capacities: Vec<_> = of.iter().map(|m| members[*m].capacity.max(1)).collect();
        let holds: Vec<_> = of.iter().map(|m| held[*m]).collect();
        for (member, quota) in of.into_iter().zip(divide(rest, &capacities, &holds)) {
            quotas[member] = quota;
        }
    }
    quotas
}

/// Returns the parts of `count` that `among` data centres own.
///
/// The remainders depend only on the data centres, so no action of a member changes the share of its data centre.
fn divided_evenly(count: u32, among: usize) -> impl Iterator<Item = u32> {
    let among = among as u32;
    (0..among).map(move |at| count / among + u32::from(at < count % among))
}

/// Sets the quotas of a data centre's members that are away: what is kept for each, up to its share of `count` rounded up.
/// Returns the rest.
///
/// The quotas depend on no action of the other members, so the answer stays the same while they carry it out.
fn keep(
    count: u32,
    of: &[usize],
    members: &[Assignee],
    held: &[usize],
    quotas: &mut [usize],
) -> u32 {
    let weight = |m: &Assignee| u64::from(m.capacity).max(1);
    let all: u64 = of.iter().map(|m| weight(&members[*m])).sum();
    let mut rest = count;
    for member in of.iter().copied().filter(|m| members[*m].absent) {
        let share = (u64::from(count) * weight(&members[member])).div_ceil(all) as usize;
        quotas[member] = held[member].min(share).min(rest as usize);
        rest -= quotas[member] as u32;
    }
    rest
}

/// Returns the members of each data centre; all in one, unless every member names its data centre.
fn by_center(members: &[Assignee]) -> Vec<Vec<usize>> {
    let spread = members.iter().all(|member| member.center.is_some());
    let mut centers: BTreeMap<Option<Center>, Vec<usize>> = BTreeMap::new();
    for (index, member) in members.iter().enumerate() {
        let center = member.center.filter(|_| spread);
        centers.entry(center).or_default().push(index);
    }
    centers.into_values().collect()
}

/// Divides `count` partitions by capacity, among members that hold the numbers `held`.
fn divide(count: u32, capacities: &[u32], held: &[usize]) -> Vec<usize> {
    let all: u64 = capacities.iter().copied().map(u64::from).sum();
    // Returns each share rounded down, and whether that lost a remainder.
    let share = |capacity: &u32| {
        let share = u64::from(count) * u64::from(*capacity);
        ((share / all) as usize, share % all > 0)
    };
    let shares: Vec<_> = capacities.iter().map(share).collect();
    let mut quotas: Vec<usize> = shares.iter().map(|(whole, _)| *whole).collect();
    let mut left = count as usize - quotas.iter().sum::<usize>();
    for more in [true, false] {
        for ((quota, (whole, uneven)), held) in quotas.iter_mut().zip(&shares).zip(held) {
            if left > 0 && *uneven && (held > whole) == more {
                *quota += 1;
                left -= 1;
            }
        }
    }
    quotas
}

#[cfg(test)]
mod tests;
