//! Tests the effects of other clients' changes to our keys.

use super::*;
use crate::tests::{E, TTL};
use crate::world::{Fate, World};
use eldest_core::candidate::WatchScope;
use eldest_core::reason::LostReason;

fn own_key(w: &World, node: usize) -> crate::world::store::Key {
    w.nodes[node].key(E).unwrap()
}

/// Checks that a session that has lost its lease closes, and that its overwritten key does not stay.
fn check_key_goes_before_closing(w: &mut World) {
    w.lose_lease(0);
    w.close(0);
    w.until("closed", TTL * 2, |w| w.nodes[0].closed());
    assert!(
        w.store.entries().next().is_none(),
        "it does not go with the lease"
    );
}

#[test]
fn closing_session_waits_until_a_key_written_over_unseen_is_gone() {
    let mut w = World::seated(1);
    w.nodes[0].member.work = None;
    w.relink(0, |l| l.watches_stalled = true);
    w.overwrite(&own_key(&w, 0));
    check_key_goes_before_closing(&mut w);
}

#[test]
fn the_verifying_read_distinguishes_a_key_created_again_from_ours() {
    let mut w = World::seated(1);
    w.relink(0, |l| l.watches_stalled = true);
    w.recreate(&own_key(&w, 0), w.nodes[0].lease().unwrap());
    w.until("noticed", secs(2) + ms(100), |w| w.leader(E).is_none());
    assert_eq!(
        w.nodes[0].term_of(E).unwrap().reason,
        Some(LostReason::KeyDeleted)
    );
}

#[test]
fn late_answer_about_an_earlier_lease_keeps_the_present_one() {
    // The opening of the old lease's stream is answered when the new lease already exists.
    let mut w = World::seated(1);
    w.next(0, renews, Fate::RequestLost);
    w.next(0, opens, Fate::Slow(ms(200)));
    let opened = w.count(0, opens);
    w.relink(0, |l| l.watches_stalled = true);
    w.until("it opens again", secs(4), move |w| {
        w.count(0, opens) > opened
    });
    w.revoke(w.nodes[0].lease().unwrap());
    w.join(0, b"f/", WatchScope::Auto, false);
    w.until("another lease", ms(150), |w| w.count(0, grants) == 2);
    w.run(secs(20));
    w.check_settled();
    assert_eq!(w.count(0, grants), 2);
}
