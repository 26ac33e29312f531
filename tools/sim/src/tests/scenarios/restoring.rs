//! Tests that etcd's data is replaced by an older backup while sessions live on.

use super::*;
use crate::tests::{E, TTL, key};
use crate::world::{Fate, World};
use eldest_core::action::Note;
use eldest_core::candidate::WatchScope;

/// Another election of the same sessions, which keeps their leases alive.
const OTHER: &[u8] = b"f/";

fn changed(note: &Note) -> bool {
    matches!(note, Note::StoreChanged { .. })
}

/// Lets a candidate come and go: the sessions learn it through their watches alone.
fn comes_and_goes(w: &mut World) {
    w.store.put(&key("e/guest"), b"", 0);
    w.publish();
    w.store.delete(&key("e/guest"));
    w.publish();
    w.run(ms(20));
}

#[test]
fn deletion_confirmed_before_a_restore_is_requested_again() {
    let mut w = World::seated(2);
    w.join(0, OTHER, WatchScope::Auto, false);
    w.run(ms(20));
    // An overwritten key is not deleted with its lease.
    let key = w.nodes[0].key(E).unwrap();
    w.next(0, deletes, Fate::Slow(ms(250)));
    w.overwrite(&key);
    let backup = w.store.clone();
    w.until("gone", ms(50), |w| !w.store.contains(&key));
    comes_and_goes(&mut w);
    w.restore(&backup, 0);
    w.until("noticed before the answer", ms(150), |w| {
        w.nodes[0].noted(changed) > 0
    });
    w.until("gone again", TTL, |w| !w.store.contains(&key));
}

#[test]
fn restored_key_of_a_partition_is_deleted_and_the_partition_taken() {
    let mut w = World::with_partitions(1, 8);
    let backup = w.store.clone();
    let (partition, key) = w.any_of(0, 8);
    let old = w.store.entry(&key).unwrap().create_revision;
    w.drop_leadership(0, &key);
    w.until("taken again", secs(1), |w| {
        w.all_owned(8) && w.store.entry(&key).unwrap().create_revision > old
    });
    w.restore(&backup, 1000);
    assert_eq!(
        w.store.entry(&key).unwrap().create_revision,
        old,
        "{partition}"
    );
    // The next renewal, and with it a sweep, is later than that.
    let renewed = w.count(0, renews);
    w.until("taken once more", secs(1), |w| {
        let stands = w.store.entry(&key);
        w.all_owned(8) && stands.is_some_and(|e| e.create_revision > 1000)
    });
    assert_eq!(w.count(0, renews), renewed);
}

#[test]
fn deletions_before_a_restore_do_not_count_afterwards() {
    let mut w = World::with_partitions(1, 8);
    for _ in 0..200 {
        w.store.put(&key("other"), b"", 0);
    }
    let (_, given_up) = w.any_of(0, 8);
    // The second time, the key has a revision that the next store does not reach soon.
    for _ in 0..2 {
        w.drop_leadership(0, &given_up);
        w.run(ms(100));
        w.until("taken again", secs(1), |w| w.all_owned(8));
    }
    w.exchange_store();
    w.next(0, takes, Fate::AnswerLost);
    let before = w.count(0, takes);
    w.until("taken in the new store", TTL, |w| {
        w.count(0, takes) > before
    });
    w.until("adopted from the view", secs(1), |w| w.all_owned(8));
    assert_eq!(w.count(0, takes), before + 1);
    assert_eq!(w.count(0, sweeps), 0, "none had a part in it");
}

/// No revision of the restored store is older than one that the leader has seen: only the keys differ.
#[test]
fn leader_with_a_restored_elder_before_it_leads_no_longer() {
    let mut w = World::seated(2);
    let backup = w.store.clone();
    w.drop_leadership(0, E);
    w.until("it leads", TTL, |w| w.leads(1));
    w.restore(&backup, 1000);
    w.until("it leads no longer", TTL, |w| !w.leads(1));
}

#[test]
fn observer_shows_a_store_restored_to_the_revision_that_it_had_seen() {
    let mut w = World::new(2, 1);
    w.join(0, E, WatchScope::Everyone, true);
    w.observe(1);
    w.run(ms(50));
    let backup = w.store.clone();
    w.store.put(&key("e/lost"), b"", 0);
    w.publish();
    let shows = |w: &World, name: &str| {
        let last = w.nodes[1].observed.last();
        last.is_some_and(|seen| seen.2.iter().any(|entry| *entry.key == *name.as_bytes()))
    };
    w.until("the observer has seen it", ms(50), |w| shows(w, "e/lost"));
    let known = w.store.revision();
    w.nodes[1].dead_watches = Some(w.nodes[1].watch_generation);
    w.relink(1, |link| link.requests_lost = true);
    w.restore(&backup, 0);
    w.store.put(&key("e/new"), b"", 0);
    w.publish();
    assert_eq!(w.store.revision(), known, "only the keys differ");
    w.run(ms(50));
    w.relink(1, |link| link.requests_lost = false);
    w.until("the observer shows the restored store", TTL * 2, |w| {
        shows(w, "e/new") && !shows(w, "e/lost")
    });
}
