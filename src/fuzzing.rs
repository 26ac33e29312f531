//! Feeds arbitrary bytes to the code that reads foreign input: each function panics if that code returns an impossible
//! result. Not covered by semver; the programs in `lab/fuzz/` and `tests/fuzzing.rs` call it.
//!
//! Each function returns whether the bytes were of the kind that it reads, so that a run can count the inputs that it
//! accepted.
#![allow(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "hidden: for crates that pin the exact version"
)]

use std::time::Duration;

use crate::observe::Queue as Seen;
use crate::{Announcement, Roster};
use eldest_core::kv::{Change, Entry, Reach};
use eldest_core::queue::Roster as Queue;

/// One kind of input, and the code that reads it.
pub struct Target {
    /// The target's name for the programs in `lab/fuzz/`.
    pub name: &'static str,
    /// Reads bytes as this kind of input.
    pub read: fn(&[u8]) -> bool,
    /// Examples from which other inputs are made.
    pub seeds: &'static [&'static [u8]],
}

/// All targets.
pub const TARGETS: [Target; 3] = [
    Target {
        name: "announcement",
        read: announcement,
        seeds: &[
            b"node-a",
            br#"{"identity":"a","address":"1.2.3.4:5","data_center":"d","since_unix_ms":5,"metadata":{"k":"v"}}"#,
            br#"{"identity":"\ud83d\ude00\u0000","since_unix_ms":-1,"metadata":[]}"#,
        ],
    },
    Target {
        name: "keys",
        read: keys,
        seeds: &[
            b"\x0bns/jobs/1f2a\x01v\x05\x1f\x0bns/jobs/2b00\x00\x06\x00",
            b"\x18ns/~semaphore/a/b/3/1f-2\x00\x05\x1f\x14ns/~semaphore/a/0/1f\x00\x05\x1f",
            b"\x17ns/~partitions/a/4/m-1f\x01v\x05\x1f\x16ns/~partitions/a/4/o-2\x01v\x06\x1f\x16ns/~partitions/a/4/o-9\x01v\x06\x00",
        ],
    },
    Target {
        name: "events",
        read: events,
        seeds: &[
            b"\x01\x09ns/jobs/a\x01v\x05\x1f\x00\x09ns/jobs/a\x00\x06\x00\x01\x09ns/jobs/a\x01v\x07\x1f",
            b"\x01\x0bns/jobs/a/b\x01v\x05\x1f\x01\x08ns/jobs/\x01v\x05\x1f\x01\x09ns/jobs/b\x01v\x05\x00",
        ],
    },
];

/// Decodes an announcement that any program may have written.
fn announcement(bytes: &[u8]) -> bool {
    let read = Announcement::decode(bytes);
    let _ = format!("{read:?}");
    let again = Announcement::decode(&read.written(("", None), Duration::from_secs(1)));
    assert_eq!(again.identity(), read.identity());
    assert_eq!(again.address(), read.address());
    bytes.first() == Some(&b'{') && read.identity().as_bytes() != bytes
}

/// Takes a piece of the bytes, as long as their first one says.
fn piece<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first()?;
    let (piece, rest) = rest.split_at_checked(usize::from(*length))?;
    *bytes = rest;
    Some(piece)
}

/// Reads a key, its value, a revision and a lease.
fn entry(bytes: &mut &[u8]) -> Option<Entry> {
    let (key, value) = (piece(bytes)?, piece(bytes)?);
    let ([revision, lease], rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(Entry {
        key: key.into(),
        value: value.into(),
        // A broken etcd may send numbers of either sign.
        create_revision: i64::from(revision.cast_signed()),
        mod_revision: i64::from(revision.cast_signed()),
        lease: i64::from(lease.cast_signed()),
    })
}

/// Reads foreign keys below a namespace, as an overview does.
fn keys(mut bytes: &[u8]) -> bool {
    let mut entries = Vec::new();
    while let Some(entry) = entry(&mut bytes) {
        entries.push(entry);
    }
    let roster = Roster::new(9, entries.iter().cloned());
    let order = |member: &crate::Member| member.create_revision();
    assert!(roster.members().is_sorted_by_key(order));
    assert!(roster.leader().is_none() || roster.blocker().is_none());
    let _ = format!("{roster:?}");
    let mut numbered = false;
    for seen in Seen::all(9, b"ns/", entries) {
        let turns = seen.roster().members().iter();
        let _ = turns.filter(|member| seen.has_turn(member)).count();
        if let Some(map) = seen.partition_map() {
            numbered = true;
            let (free, blocked) = (map.unowned().count(), map.blocked().count());
            assert!(blocked <= free && free <= map.count() as usize);
            let _ = format!("{map:?}");
        }
    }
    numbered
}

/// Applies the changes that a watch reports under an election's prefix.
fn events(mut bytes: &[u8]) -> bool {
    let mut queue = Queue::new((*b"ns/jobs/").into(), Reach::Children);
    let mut applied = false;
    while let Some((kind, rest)) = bytes.split_first() {
        bytes = rest;
        let Some(entry) = entry(&mut bytes) else {
            break;
        };
        let (key, revision) = (entry.key.clone(), entry.mod_revision);
        let change = if kind % 2 == 0 {
            Change::Delete { key, revision }
        } else {
            Change::Put(entry)
        };
        applied |= queue.apply(change);
        if kind & 2 == 0 {
            queue.reached(revision);
        }
        let eldest = queue.in_order().next().map(|entry| &entry.key);
        assert_eq!(queue.eldest().map(|entry| &entry.key), eldest);
        assert!(queue.in_order().is_sorted_by_key(|e| e.create_revision));
        assert_eq!(queue.in_order().count(), queue.by_key().count());
    }
    applied
}
