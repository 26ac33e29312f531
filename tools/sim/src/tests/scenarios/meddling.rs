//! Tests the effects of other clients' changes to our keys.

use super::*;
use crate::tests::{E, TTL};
use crate::world::node::Work;
use crate::world::{Fate, World};
use eldest_core::candidate::WatchScope;
use eldest_core::reason::LostReason;

fn own_key(w: &World, node: usize) -> crate::world::store::Key {
    w.nodes[node].key(E).unwrap()
}

#[test]
fn resigning_leader_deletes_a_key_overwritten_unseen() {
    for follow in [WatchScope::Everyone, WatchScope::Predecessor] {
        let mut w = World::new(1, 1);
        w.nodes[0].work = Work::After(secs(1));
        w.join(0, E, follow, false);
        w.run(ms(20));
        w.disturb_watches(0, true);
        w.overwrite(&own_key(&w, 0));
        w.run(ms(200));
        let term = w.nodes[0].term_of(E).unwrap();
        assert_eq!(term.reason, Some(LostReason::KeyOverwritten), "{follow:?}");
        w.leave(0, E);
        w.run(secs(10));
        w.check_settled();
    }
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
    w.nodes[0].work = Work::Never;
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
fn foreign_key_at_our_path_is_deleted_before_we_join() {
    for under_our_lease in [false, true] {
        let mut w = World::new(1, 1);
        w.campaign(0);
        w.until("the join is sent", secs(1), |w| w.count(0, joins) == 1);
        let (key, lease) = (own_key(&w, 0), w.nodes[0].lease().unwrap());
        w.store
            .put(&key, b"squatter", if under_our_lease { lease } else { 0 });
        let squatter = w.store.entry(&key).unwrap().create_revision;
        w.until("it leads", ms(50), |w| w.leads(0));
        assert!(w.elected[0].token > squatter, "by a key of its own");
        w.run(secs(3));
        w.check_settled();
    }
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

#[test]
fn candidate_whose_key_was_deleted_unseen_does_not_lead() {
    for follow in [WatchScope::Everyone, WatchScope::Predecessor] {
        let mut w = World::new(2, 1);
        for node in 0..2 {
            w.join(node, E, follow, false);
            w.run(ms(20));
        }
        let gone = w.store.queue(E)[1].create_revision;
        w.disturb_watches(1, true);
        w.delete(&own_key(&w, 1));
        // A read of the prefix shows no key before the deleted one.
        w.drop_leadership(0, E);
        w.until("it leads", secs(1), |w| w.leads(1));
        assert!(w.elected.iter().all(|e| e.token != gone), "{follow:?}");
    }
}
