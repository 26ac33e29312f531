//! Computes which member should own which partition, from the present members and owners alone.
//!
//! Every member computes the assignment from the same watch, so all members agree without exchanging messages. The
//! assignment is only advice: a partition's key is created only where none exists, so two members never own one
//! partition.

use std::collections::HashMap;

/// A member, by its lease; its seniority is its key's create revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat {
    pub since: i64,
    pub lease: i64,
}

/// A partition's key: whose it is, and its create revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owned {
    pub since: i64,
    pub partition: u32,
    pub lease: i64,
}

/// The lease that each of `count` partitions should belong to; empty without members.
///
/// Everybody's share is the average, rounded down or up. Rounded up first for those who own more than the average
/// rounded down, then by seniority. Who owns more than its share gives up what it took last; what nobody owns, or is
/// given up, or belongs to somebody who is no member, is dealt in order: the eldest gets the first run of it.
///
/// Runs, and shares that do not depend on how much of a run was taken already, make the answer stay the same while it
/// is carried out by many at once: who takes part of its run does not move the runs of the others.
pub fn assign(count: u32, members: &[Seat], owned: &[Owned]) -> Vec<i64> {
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
    let shares = shares(count as usize, &held);
    let mut target = vec![None; count as usize];
    for (member, keys) in held.iter_mut().enumerate() {
        // Who gives up nothing keeps them in whatever order.
        if keys.len() > shares[member] {
            keys.sort_unstable();
        }
        for key in keys.iter().take(shares[member]) {
            target[key.partition as usize] = Some(member);
        }
    }
    let missing = |(share, keys): (&usize, &Vec<Owned>)| share.saturating_sub(keys.len());
    let missing = shares.iter().zip(&held).map(missing);
    let mut dealt = (0..)
        .zip(missing)
        .flat_map(|(member, n)| std::iter::repeat_n(member, n));
    let target = target
        .into_iter()
        .filter_map(|keeper| keeper.or_else(|| dealt.next()));
    target.map(|member: usize| members[member].lease).collect()
}

/// How many each member is to own.
fn shares(count: usize, held: &[Vec<Owned>]) -> Vec<usize> {
    let (average, mut left) = (count / held.len(), count % held.len());
    let mut shares = vec![average; held.len()];
    for more in [true, false] {
        for (share, keys) in shares.iter_mut().zip(held) {
            if left > 0 && (keys.len() > average) == more {
                *share += 1;
                left -= 1;
            }
        }
    }
    shares
}

#[cfg(test)]
mod tests;
