//! Tests that a node with two sessions challenges both sessions of another node at once: the second one by a key for which
//! it does not wait yet.

use super::*;
use crate::world::World;
use eldest_core::kv::Entry;

const LOCK: &[u8] = b"l/";

/// Makes a world of two nodes with two sessions each: 0 leads and 1 holds a lock; 2 waits behind 0, and 3 only has a lease.
fn paired() -> World {
    let mut w = World::of(SETTINGS, 4, 1);
    w.campaign(0);
    w.acquire(1, LOCK, false);
    w.keep_lease(3);
    w.run(ms(50));
    w.campaign(2);
    w.run(ms(50));
    assert!(w.leads(0) && w.leader(LOCK) == Some(1) && w.nodes[3].clean.is_some());
    w
}

fn held(w: &World, owner: usize) -> Entry {
    let lease = w.nodes[owner].lease().unwrap();
    let mut keys = w.store.entries();
    let of_owner = |e: &Entry| e.lease == lease && e.key.starts_with(LOCK);
    keys.find(of_owner).unwrap()
}

fn suspect_holder(w: &mut World, node: usize, held: &Entry) {
    w.give(node, |m, now| m.challenges(now).suspect_holder(held));
}

#[test]
fn both_sessions_of_a_stopped_node_are_condemned_at_once() {
    let mut w = paired();
    for node in [0, 1] {
        w.pause(node, secs(8));
    }
    suspect(&mut w, 2, 0);
    let lock = held(&w, 1);
    suspect_holder(&mut w, 3, &lock);
    let begun = w.now;
    w.until("the election is free", wait() + ms(30), |w| w.leads(2));
    w.acquire(3, LOCK, false);
    w.until("the lock is free", ms(60), |w| w.leader(LOCK) == Some(3));
    assert!(w.now.since(begun) >= wait());
    assert_eq!(w.tally.of("condemned"), 2);
    w.run(ms(200));
    assert_eq!(standing(&w), 0);
    // Nothing is left of the suspicion: another report begins a new one.
    let before = w.count(3, challenges);
    suspect_holder(&mut w, 3, &lock);
    w.run(ms(200));
    assert_eq!(w.count(3, challenges), before + 1);
}

#[test]
fn holder_that_answers_stays() {
    let mut w = paired();
    let lock = held(&w, 1);
    suspect_holder(&mut w, 3, &lock);
    let answered = |w: &World| w.tally.of("answers") == 1;
    w.until("it answers", ms(100), answered);
    w.run(LEAD * 2);
    trust_again(&mut w, 3, 1);
    w.run(ms(200));
    assert!(w.leader(LOCK) == Some(1) && standing(&w) == 0);
    assert_eq!(w.tally.of("condemned"), 0);
}
