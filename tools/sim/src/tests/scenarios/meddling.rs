//! Tests the effects of other clients' changes to our keys.

use super::*;
use crate::tests::{E, TTL};
use crate::world::node::Work;
use crate::world::{Fate, World};
use eldest_core::action::Status;
use eldest_core::candidate::WatchScope;
use eldest_core::reason::LostReason;

fn own_key(w: &World, node: usize) -> crate::world::store::Key {
    w.nodes[node].key(E).unwrap()
}

#[test]
fn leader_whose_key_is_overwritten_steps_down_and_deletes_the_key() {
    for follow in [WatchScope::Everyone, WatchScope::Predecessor] {
        let mut w = World::new(2, 1);
        for node in 0..2 {
            w.join(node, E, follow, false);
            w.run(ms(20));
        }
        w.overwrite(&own_key(&w, 0));
        w.until("the next leads", ms(50), |w| w.leads(1));
        assert_eq!(
            w.nodes[0].term_of(E).unwrap().reason,
            Some(LostReason::KeyOverwritten)
        );
        w.run(secs(10));
        w.check_settled();
        assert_eq!(w.nodes[0].status(E), Some(Status::waiting(1)));
    }
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

#[test]
fn overwritten_waiting_key_is_deleted_and_its_candidate_rejoins_at_the_back() {
    let mut w = World::seated(3);
    w.overwrite(&own_key(&w, 1));
    w.run(ms(100));
    w.check_settled();
    assert_eq!(w.nodes[1].status(E), Some(Status::waiting(2)));
    assert_eq!(w.nodes[2].status(E), Some(Status::waiting(1)));
}

#[test]
fn overwritten_key_is_deleted_because_it_outlives_the_lease() {
    let mut w = World::seated(2);
    w.nodes[0].work = Work::After(secs(1));
    w.overwrite(&own_key(&w, 0));
    w.run(ms(10));
    w.relink(0, |l| (l.requests_lost, l.answers_lost) = (true, true));
    w.run(secs(10));
    w.relink(0, |l| (l.requests_lost, l.answers_lost) = (false, false));
    w.run(secs(10));
    w.check_settled();
}

#[test]
fn key_overwritten_while_cut_off_is_deleted_on_rejoining() {
    for node in [0, 1] {
        let mut w = World::seated(2);
        w.relink(node, |l| (l.requests_lost, l.answers_lost) = (true, true));
        w.run(ms(10));
        w.overwrite(&own_key(&w, node));
        w.run(secs(10));
        // The connection is a new one: messages in flight are lost with the old one.
        w.nodes[node].held.clear();
        w.relink(node, |l| (l.requests_lost, l.answers_lost) = (false, false));
        w.run(secs(10));
        w.check_settled();
        assert!(w.leads(1 - node));
    }
}

#[test]
fn a_closing_session_waits_until_a_key_written_over_is_gone() {
    let mut w = World::seated(1);
    w.nodes[0].work = Work::Never;
    w.overwrite(&own_key(&w, 0));
    w.run(ms(10));
    w.close(0);
    w.next(0, deletes, Fate::RequestLost);
    w.until("closed", secs(13), |w| w.nodes[0].closed());
    assert!(
        w.store.entries().next().is_none(),
        "the lease's end would not have taken it along"
    );
}

#[test]
fn closing_session_without_a_lease_awaits_the_end_of_an_overwritten_key() {
    let mut w = World::seated(1);
    w.nodes[0].work = Work::Never;
    w.overwrite(&own_key(&w, 0));
    w.run(ms(10));
    check_key_goes_before_closing(&mut w);
}

/// Checks that a session that has lost its lease closes, and that its overwritten key does not stay.
fn check_key_goes_before_closing(w: &mut World) {
    w.give(0, |m, now| m.lose_lease(now, LostReason::LeaseLost));
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
fn deleted_key_ends_the_term_and_its_node_rejoins_at_the_back() {
    let mut w = World::seated(3);
    w.delete(&own_key(&w, 0));
    w.until("the next leads", ms(50), |w| w.leads(1));
    assert_eq!(
        w.nodes[0].term_of(E).unwrap().reason,
        Some(LostReason::KeyDeleted)
    );
    w.run(ms(100));
    assert_eq!(w.nodes[0].status(E), Some(Status::waiting(2)));
    w.run(secs(10));
    w.check_settled();
}

#[test]
fn a_key_deleted_and_created_again_between_two_events_is_not_ours() {
    for same_lease in [true, false] {
        let mut w = World::seated(2);
        let lease = w.nodes[0].lease().unwrap();
        w.recreate(&own_key(&w, 0), if same_lease { lease } else { 0 });
        w.until("the next leads", ms(50), |w| w.leads(1));
        assert_eq!(
            w.nodes[0].term_of(E).unwrap().reason,
            Some(LostReason::KeyDeleted)
        );
        assert!(!w.leads(0));
        w.run(secs(10));
        w.check_settled();
    }
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
fn revoked_lease_ends_the_term_and_all_its_candidates_rejoin() {
    let mut w = World::seated(2);
    w.join(0, b"f/", WatchScope::Auto, false);
    w.run(ms(20));
    w.revoke(w.nodes[0].lease().unwrap());
    w.until("the next leads", ms(50), |w| w.leads(1));
    w.run(secs(10));
    w.check_settled();
    assert_eq!(w.leader(b"f/"), Some(0));
    assert_eq!(w.count(0, grants), 2);
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
fn first_key_without_a_lease_is_awaited() {
    let mut w = World::new(1, 1);
    w.store.put(&crate::tests::key("e/blocker"), b"", 0);
    w.store.put(&crate::tests::key("e/deep/er"), b"", 0);
    w.campaign(0);
    w.run(secs(20));
    assert_eq!(w.nodes[0].status(E), Some(Status::waiting(1)));
    w.delete(&crate::tests::key("e/blocker"));
    w.until("it leads, whatever lies deeper", ms(50), |w| w.leads(0));
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
fn key_put_again_under_our_lease_is_deleted_despite_running_work() {
    for reason in [LostReason::KeyDeleted, LostReason::Shutdown] {
        put_again_while_work_goes_on(reason);
    }
}

fn put_again_while_work_goes_on(reason: LostReason) {
    let mut w = World::new(2, 1);
    w.campaign(0);
    w.run(ms(20));
    w.nodes[0].work = Work::Never;
    if reason == LostReason::Shutdown {
        w.end(0, E, reason);
    }
    w.recreate(&own_key(&w, 0), w.nodes[0].lease().unwrap());
    w.campaign(1);
    w.run(secs(1));
    assert_eq!(w.nodes[1].status(E), Some(Status::waiting(1)));
    w.until("it is found and taken away", secs(7), |w| w.leads(1));
    let term = w.nodes[0].term_of(E).unwrap();
    assert_eq!((term.reason, term.joined), (Some(reason), false));
    let (slot, id) = (term.slot, term.id);
    w.joined(0, slot, id);
    w.run(secs(10));
    w.check_settled();
}

#[test]
fn key_put_again_unseen_is_deleted_after_a_release_despite_running_work() {
    let mut w = World::seated(1);
    w.add_node();
    // The first sweeps are over.
    w.run(TTL * 3);
    w.nodes[0].work = Work::Never;
    w.relink(0, |l| l.watches_stalled = true);
    let verified = w.count(0, verifies);
    w.until("renewed", TTL, |w| w.count(0, verifies) > verified);
    w.end(0, E, LostReason::Shutdown);
    // This is the last read of the key before its time is over.
    w.until("read", TTL, |w| w.count(0, verifies) == verified + 3);
    w.run(ms(100));
    w.recreate(&own_key(&w, 0), w.nodes[0].lease().unwrap());
    w.until("released", secs(2), |w| w.count(0, deletes) == 1);
    w.relink(0, |l| l.watches_stalled = false);
    w.campaign(1);
    w.until("it is found and taken away", TTL * 2, |w| w.leads(1));
    assert!(!w.nodes[0].term_of(E).unwrap().joined);
}

#[test]
fn key_overwritten_unseen_is_deleted_despite_running_work() {
    let mut w = World::seated(2);
    w.nodes[0].work = Work::Never;
    w.relink(0, |l| l.watches_stalled = true);
    w.overwrite(&own_key(&w, 0));
    w.revoke(w.nodes[0].lease().unwrap());
    w.until("the next leads", TTL, |w| w.leads(1));
    let term = w.nodes[0].term_of(E).unwrap();
    let lost = Some(LostReason::LeaseLost);
    assert_eq!((term.reason, term.joined), (lost, false));
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

#[test]
fn key_put_again_in_place_of_a_waiting_one_is_not_adopted() {
    // A lost answer to an earlier join makes no difference: the candidate's key has existed since.
    for lost in [false, true] {
        let mut w = World::seated(1);
        w.add_node();
        if lost {
            w.next(1, joins, Fate::AnswerLost);
        }
        w.campaign(1);
        let behind = Some(Status::waiting(1));
        w.until("it waits", secs(1), |w| w.nodes[1].status(E) == behind);
        let key = own_key(&w, 1);
        w.recreate(&key, w.nodes[1].lease().unwrap());
        let revision = w.store.entry(&key).unwrap().create_revision;
        w.until("it has a key of its own", secs(1), |w| {
            let stands = w.store.entry(&key);
            stands.is_some_and(|entry| entry.create_revision > revision)
        });
    }
}
