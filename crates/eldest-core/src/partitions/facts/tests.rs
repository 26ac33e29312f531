//! Tests which kept shares count, for whom, and what the assignment makes of them.

use std::sync::Arc;

use super::*;
use crate::partitions::assignment::assign;
use crate::partitions::keys::{kept_key, member_key, partition_key};

const PREFIX: &[u8] = b"p/6/";
const COUNT: u32 = 6;

/// The value of a member's key is its identity; `!` before it sets the member aside. A record's value is
/// `<identity>:<partitions>`.
const READ: ShareReaders = ShareReaders {
    share,
    identity: |value| value.strip_prefix(b"!").unwrap_or(value).to_vec(),
    kept,
};

fn share(value: &[u8]) -> Share {
    Share {
        aside: value.starts_with(b"!"),
        capacity: 1,
        center: None,
    }
}

fn kept(value: &[u8]) -> Option<KeptShare> {
    let (identity, partitions) = std::str::from_utf8(value).ok()?.split_once(':')?;
    let numbers = partitions
        .split(',')
        .filter_map(|number| number.parse().ok());
    Some(KeptShare {
        identity: (READ.identity)(identity.as_bytes()),
        share: share(value),
        partitions: numbers.map(|number: u32| number..=number).collect(),
    })
}

fn entry(key: Arc<[u8]>, value: &str, revision: i64, lease: i64) -> Entry {
    Entry {
        key,
        value: value.as_bytes().into(),
        create_revision: revision,
        mod_revision: revision,
        lease,
    }
}

/// Makes the key of a member, which joined at the revision of its lease's number.
fn member(lease: i64, identity: &str) -> Entry {
    entry(member_key(PREFIX, lease), identity, lease, lease)
}

fn owner(partition: u32, lease: i64) -> Entry {
    entry(partition_key(PREFIX, partition), "", 50, lease)
}

/// Makes a record, which was written at the revision of its lease's number.
fn record(lease: i64, value: &str) -> Entry {
    entry(kept_key(PREFIX, lease), value, lease, lease)
}

fn read(entries: &[Entry]) -> Facts {
    facts(PREFIX, COUNT, entries, READ)
}

/// Returns the owners of all partitions by the assignment.
fn assigned(entries: &[Entry]) -> Vec<i64> {
    let facts = read(entries);
    assign(COUNT, &facts.members, &facts.counted())
}

#[test]
fn partitions_of_an_absent_member_are_taken_by_nobody_and_no_others_move() {
    let before = [
        member(1, "a"),
        member(2, "b"),
        owner(0, 1),
        owner(1, 1),
        owner(2, 1),
        owner(3, 2),
        owner(4, 2),
        owner(5, 2),
        record(101, "a:0,1,2"),
        record(102, "b:3,4,5"),
    ];
    assert_eq!(assigned(&before), [1, 1, 1, 2, 2, 2]);
    let without_b: Vec<_> = before
        .iter()
        .filter(|entry| entry.lease != 2)
        .cloned()
        .collect();
    assert_eq!(assigned(&without_b), [1, 1, 1, 102, 102, 102]);
    assert_eq!(read(&without_b).live, 1);
    // The record has expired.
    let expired = &without_b[..without_b.len() - 1];
    assert_eq!(assigned(expired), [1; 6]);
    // A restarted b has its share, although its lease is another one and it is the youngest member.
    let returned = [&without_b[..], &[member(3, "b"), owner(3, 3)]].concat();
    assert_eq!(assigned(&returned), [1, 1, 1, 3, 3, 3]);
    assert_eq!(read(&returned).kept.len(), 2, "what b does not own yet");
}

#[test]
fn member_that_joins_meanwhile_takes_its_share_and_nothing_else() {
    let entries = [
        member(1, "a"),
        member(3, "c"),
        owner(0, 1),
        owner(1, 1),
        owner(2, 1),
        record(102, "b:3,4,5"),
    ];
    let owners = assigned(&entries);
    let load = |lease| owners.iter().filter(|owner| **owner == lease).count();
    assert_eq!((load(1), load(3), load(102)), (2, 2, 2));
    assert_eq!((owners[0], owners[1]), (1, 1));
    assert_eq!((owners[3], owners[4]), (102, 102));
}

#[test]
fn absent_member_receives_no_partition_that_it_did_not_own() {
    let entries = [member(1, "a"), owner(0, 1), record(102, "b:4")];
    assert_eq!(assigned(&entries), [1, 1, 1, 1, 102, 1]);
    // Partitions beyond the count are nobody's.
    let odd = [member(1, "a"), record(102, "b:4,9,4000000000")];
    assert_eq!(assigned(&odd), [1, 1, 1, 1, 102, 1]);
}

#[test]
fn listed_partition_with_an_owner_is_the_owners() {
    let entries = [
        member(1, "a"),
        owner(3, 1),
        owner(4, 9),
        record(102, "b:3,4,5"),
    ];
    let kept: Vec<_> = read(&entries).kept.iter().map(|of| of.partition).collect();
    assert_eq!(kept, [5], "4 belongs to a member that is leaving");
}

#[test]
fn record_that_was_written_last_counts() {
    let entries = [
        member(1, "a"),
        record(103, "b:4"),
        record(102, "b:0,1"),
        // Another member's record, which was written before 4 moved from it to b.
        record(101, "c:4,5"),
    ];
    let facts = read(&entries);
    let kept: Vec<_> = facts
        .kept
        .iter()
        .map(|of| (of.partition, of.lease))
        .collect();
    assert_eq!(kept, [(4, 103), (5, 101)]);
    assert_eq!(facts.members.len(), 3, "an identity counts once");
}

#[test]
fn foreign_record_and_record_of_a_member_set_aside_keep_nothing() {
    let overwritten = entry(kept_key(PREFIX, 102), "b:4", 102, 0);
    let of_a_session = entry(kept_key(PREFIX, 1), "b:4", 102, 1);
    for odd in [
        overwritten,
        of_a_session,
        record(102, "not ours"),
        record(102, "!b:4"),
    ] {
        let facts = read(&[member(1, "a"), odd.clone()]);
        assert_eq!((facts.kept, facts.members.len()), (vec![], 1), "{odd:?}");
    }
}

#[test]
fn without_a_member_that_is_there_nothing_is_assigned() {
    let entries = [record(102, "b:4")];
    assert_eq!(read(&entries).live, 0);
    assert!(assigned(&entries).is_empty());
}

#[test]
fn members_set_aside_share_what_is_not_kept() {
    let entries = [member(1, "!a"), record(102, "b:4")];
    assert_eq!(assigned(&entries), [1, 1, 1, 1, 102, 1]);
}

#[test]
fn member_that_came_back_waits_until_its_former_key_has_expired() {
    let before = [
        member(1, "a"),
        member(2, "b"),
        owner(0, 1),
        owner(1, 1),
        owner(2, 1),
        owner(3, 2),
        owner(4, 2),
        owner(5, 2),
        record(102, "b:3,4,5"),
    ];
    let crashed = [&before[..], &[member(3, "b")]].concat();
    assert_eq!(assigned(&crashed), [1, 1, 1, 2, 2, 2]);
    let expired: Vec<_> = crashed
        .iter()
        .filter(|entry| entry.lease != 2)
        .cloned()
        .collect();
    assert_eq!(assigned(&expired), [1, 1, 1, 3, 3, 3]);
    // Without a record, two members of one identity share as any others.
    let without: Vec<_> = crashed[..8].iter().chain(&crashed[9..]).cloned().collect();
    assert_eq!(read(&without).members.len(), 3);
}

#[test]
fn member_that_came_back_counts_at_once_while_its_former_self_hands_over() {
    let entries = [
        member(1, "!a"),
        member(2, "a"),
        owner(0, 1),
        record(9, "a:0"),
    ];
    assert_eq!(assigned(&entries), [2; 6]);
}
