//! Tests the limits on concurrent requests of one kind: each answer, whatever it is, makes room for the next request.

use super::*;
use crate::tests::TTL;
use crate::world::World;
use eldest_core::action::Note;
use eldest_core::candidate::WatchScope;
use eldest_core::kv::Reach;

/// More elections than joins may be in flight.
const ELECTIONS: usize = 300;
const MOST_JOINS: usize = 256;
/// More observers than reads may be in flight.
const OBSERVERS: u64 = 100;
const MOST_READS: usize = 64;

fn prefix(election: usize) -> Vec<u8> {
    format!("{election}/").into_bytes()
}

fn checks(ask: &Ask) -> bool {
    matches!(ask, Ask::Check { .. })
}

fn changed(note: &Note) -> bool {
    matches!(note, Note::StoreChanged { .. })
}

fn join_everywhere(w: &mut World, elections: usize) {
    for election in 0..elections {
        w.join(0, &prefix(election), WatchScope::Auto, true);
    }
}

fn leads_everywhere(w: &World, elections: usize) -> bool {
    (0..elections).all(|election| w.leader(&prefix(election)) == Some(0))
}

fn observe_everywhere(w: &mut World) {
    for slot in 1..=OBSERVERS {
        w.give(0, |m, now| {
            let prefix = format!("o{slot}/").into_bytes();
            m.observe(now, slot, prefix.into(), Reach::Children);
        });
    }
}

fn sees_everything(w: &World) -> bool {
    let sees = |slot| w.nodes[0].observed.iter().any(|(s, ..)| *s == slot);
    (1..=OBSERVERS).all(sees)
}

/// Makes another cluster answer than the one that the session knows.
fn exchanged(w: &mut World) {
    w.restored = true;
    w.store.cluster += 1;
}

#[test]
fn joins_of_a_session_go_out_a_limited_number_at_once() {
    let mut w = World::new(1, 1);
    join_everywhere(&mut w, ELECTIONS);
    w.until("joins are under way", secs(1), |w| w.count(0, joins) > 0);
    assert_eq!(w.count(0, joins), MOST_JOINS);
    w.until("it leads everywhere", secs(1), |w| {
        leads_everywhere(w, ELECTIONS)
    });
}

#[test]
fn reads_of_a_session_go_out_a_limited_number_at_once() {
    let mut w = World::new(1, 1);
    observe_everywhere(&mut w);
    assert_eq!(w.count(0, reads), MOST_READS);
    w.until("everything is seen", secs(1), sees_everything);
}

/// Makes all watches silent, so that the session notices it and checks its leaders' keys.
fn checked(w: &mut World) {
    let before = w.count(0, checks);
    w.relink(0, |l| l.watches_stalled = true);
    w.store.put(&crate::tests::key("other"), b"", 0);
    w.until("a check is under way", TTL * 2, |w| {
        w.count(0, checks) > before
    });
}

#[test]
fn leaders_keys_are_checked_again_after_a_check_that_another_store_answered() {
    let mut w = World::new(1, 1);
    join_everywhere(&mut w, 2);
    w.until("it leads", secs(1), |w| leads_everywhere(w, 2));
    checked(&mut w);
    exchanged(&mut w);
    w.until("noticed", ms(20), |w| w.nodes[0].noted(changed) == 1);
    w.relink(0, |l| l.watches_stalled = false);
    w.until("it leads again", TTL, |w| leads_everywhere(w, 2));
    checked(&mut w);
}
