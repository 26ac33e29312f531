//! Tests how a silent leader is replaced, and that no leader is condemned while it may act.

use super::*;
use crate::world::{Fate, World};

#[test]
fn stopped_leader_is_replaced_after_its_last_clean_read() {
    let mut w = seated(2);
    until_read(&mut w, 0);
    let lease = w.nodes[0].lease();
    w.pause(0, secs(4));
    suspect(&mut w, 1, 0);
    let (begun, most) = (w.now, wait() + ms(30));
    w.until("it is replaced", most, |w| w.leads(1));
    assert!(w.now.since(begun) >= wait());
    assert_eq!(w.tally.of("condemned"), 1);
    w.run(ms(10));
    assert!(!w.store.leases().contains_key(&lease.unwrap()), "revoked");

    w.until("it goes on", secs(4), |w| !w.nodes[0].paused);
    w.run(TTL);
    assert!(w.leads(1) && w.nodes[0].lease() != lease);
    w.check_settled();
}

#[test]
fn dead_leader_is_replaced_long_before_its_lease_ends() {
    let mut w = seated(3);
    let lease = w.nodes[0].lease().unwrap();
    w.kill(0);
    let dead = w.now;
    for node in [1, 2] {
        w.give(node, |m, now| m.challenges(now).suspect(lease));
    }
    w.until("it is replaced", wait() + ms(30), |w| w.leads(1));
    assert!(w.now.since(dead) < TTL / 2);
    // Before any sweep.
    w.run(ms(200));
    assert_eq!(standing(&w), 0, "the other challenge is gone, too");
}

/// A lock's holders follow their predecessors.
#[test]
fn dead_holder_of_a_lock_is_replaced() {
    let mut w = World::of(SETTINGS, 2, 1);
    for node in 0..2 {
        w.acquire(node, b"l/", false);
        w.run(ms(50));
    }
    assert!(w.leader(b"l/") == Some(0));
    w.pause(0, secs(4));
    suspect(&mut w, 1, 0);
    let replaced = |w: &World| w.leader(b"l/") == Some(1);
    w.until("it is replaced", wait() + ms(30), replaced);
}

/// The challenge arrives shortly after a clean read that was sent later.
#[test]
fn challenger_counts_from_the_arrival_of_the_answer() {
    let mut w = seated(2);
    until_read(&mut w, 0);
    w.run(ms(60));
    w.next(1, challenges, Fate::Delayed(ms(270)));
    suspect(&mut w, 1, 0);
    let before = w.now;
    until_read(&mut w, 0);
    assert!(w.now.since(before) > ms(230) && standing(&w) == 0);
    w.pause(0, secs(4));
    // A term that is valid when its key is deleted breaks the story.
    w.until("it is replaced", secs(3), |w| w.leads(1));
}

#[test]
fn condemnation_whose_answer_was_lost_is_found_done() {
    let mut w = seated(2);
    w.pause(0, secs(4));
    w.next(1, condemns, Fate::AnswerLost);
    suspect(&mut w, 1, 0);
    w.until("it is replaced", wait() + ms(30), |w| w.leads(1));
    w.run(secs(2));
    assert_eq!(w.count(1, condemns), 1);
    assert_eq!(standing(&w), 0);
}

/// The store may have been restored meanwhile, to a state in which an answered challenge stands.
#[test]
fn broken_connection_restarts_the_count() {
    let mut w = seated(2);
    w.pause(0, secs(5));
    suspect(&mut w, 1, 0);
    w.run(ms(1000));
    w.disturb_watches(1, true);
    let broken = w.now;
    w.until("it is replaced", secs(4), |w| w.leads(1));
    assert!(w.now.since(broken) >= wait());
}

#[test]
fn challenge_is_deleted_when_the_suspicion_ends() {
    let mut w = seated(2);
    w.pause(0, secs(4));
    suspect(&mut w, 1, 0);
    w.run(ms(500));
    assert_eq!(standing(&w), 1);
    trust_again(&mut w, 1, 0);
    // Before any sweep.
    w.run(ms(200));
    assert_eq!(standing(&w), 0);
    assert_eq!(w.tally.of("condemned"), 0);
}

/// The challenge was sent before the suspicion ended, and arrives when its answer is no longer awaited.
#[test]
fn challenge_that_arrives_after_the_suspicion_is_swept() {
    let mut w = seated(2);
    // The sweeps after the opening of the keepalive stream are over.
    w.run(TTL * 2);
    w.relink(0, |l| l.watches_stalled = true);
    w.the_next(usize::MAX, 0, reads_cleanly, Fate::RequestLost);
    w.run(ms(50));
    w.next(1, challenges, Fate::Late(ms(600)));
    suspect(&mut w, 1, 0);
    w.run(ms(100));
    trust_again(&mut w, 1, 0);
    w.run(ms(600));
    assert_eq!(standing(&w), 1);
    w.until("it is swept", TTL * 2, |w| standing(w) == 0);
    assert_eq!(w.count(0, answers), 0);
}

#[test]
fn suspicion_of_a_session_that_has_left_does_nothing() {
    let mut w = seated(2);
    suspect(&mut w, 1, 0);
    w.until("challenged", secs(1), |w| standing(w) == 1);
    w.drop_leadership(0, E);
    w.until("the next leads", secs(1), |w| w.leads(1));
    w.run(LEAD * 2);
    assert_eq!(standing(&w), 0);
    assert_eq!(w.tally.of("condemned"), 0);
}

#[test]
fn suspect_is_condemned_at_the_very_end_of_the_wait() {
    let mut w = seated(2);
    w.plan.drawn = false;
    w.pause(0, secs(4));
    suspect(&mut w, 1, 0);
    w.until("it is condemned", secs(3), |w| w.count(1, condemns) == 1);
    let answered = sent(&w, 1, challenges).after(w.plan.delay * 2);
    assert_eq!(sent(&w, 1, condemns), answered.after(wait()));
}

/// Nobody but the session that waited for the leader could profit.
#[test]
fn challenger_whose_candidate_has_left_condemns_nobody() {
    let mut w = seated(2);
    w.keep_lease(1);
    w.pause(0, secs(4));
    suspect(&mut w, 1, 0);
    w.until("challenged", secs(1), |w| standing(w) == 1);
    w.leave(1, E);
    w.run(wait() * 2);
    assert_eq!(w.count(1, condemns), 0);
    assert_eq!(standing(&w), 0);
}
