//! Computes which member should own which partition, from the present members and owners alone.
//!
//! Every member computes the assignment from the same watch, so all members agree without exchanging messages. The
//! assignment is only advice: a partition's key is created only where none exists, so two members never own one
//! partition.

use std::collections::HashMap;

/// A member, by its lease; its seniority is its key's create revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Assignee {
    /// The create revision of the member's key: its age.
    pub since: i64,
    /// The lease of the member's key.
    pub lease: i64,
}

/// A partition's key: whose it is, and its create revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owned {
    /// The create revision of the partition's key.
    pub since: i64,
    /// Its number.
    pub partition: u32,
    /// The lease of the partition's key: its owner.
    pub lease: i64,
}

/// The lease that each of `count` partitions should belong to; empty without members.
///
/// Everybody's quota is the average, rounded down or up. Rounded up first for those who own more than the average
/// rounded down, then by seniority. Who owns more than its quota gives up what it took last; what nobody owns, or is
/// given up, or belongs to somebody who is no member, is dealt in order: the eldest gets the first run of it.
///
/// Runs, and quotas that do not depend on how much of a run was taken already, make the answer stay the same while it
/// is carried out by many at once: who takes part of its run does not move the runs of the others.
pub fn assign(count: u32, members: &[Assignee], owned: &[Owned]) -> Vec<i64> {
    let mut members = members.to_vec();
    members.sort_unstable();
    if members.is_empty() {
        return Vec::new();
    }
    let index: HashMap<i64, usize> = (0..).zip(&members).map(|(i, m)| (m.lease, i)).collect();
    let mut held: Vec<Vec<Owned>> = vec![Vec::new(); members.len()];
    for key in owned.iter().filter(|key| key.partition < count) {
        if let Some(member) = index.get(&key.lease) {
            held[*member].push(*key);
        }
    }
    let quotas = quotas(count as usize, &held);
    let mut target = vec![None; count as usize];
    for (member, keys) in held.iter_mut().enumerate() {
        // Who gives up nothing keeps them in whatever order.
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

/// How many each member is to own.
fn quotas(count: usize, held: &[Vec<Owned>]) -> Vec<usize> {
    let (average, mut left) = (count / held.len(), count % held.len());
    let mut quotas = vec![average; held.len()];
    for more in [true, false] {
        for (quota, keys) in quotas.iter_mut().zip(held) {
            if left > 0 && (keys.len() > average) == more {
                *quota += 1;
                left -= 1;
            }
        }
    }
    quotas
}

#[cfg(test)]
mod tests;
