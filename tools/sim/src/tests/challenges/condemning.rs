//! Tests how a silent session is replaced, and that none is condemned while it may act.

use crate::tests::challenges::*;
use crate::world::{Fate, World};
use eldest_core::candidate::WatchScope;
use eldest_core::kv::Entry;

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

/// The watch of the challenger is stalled, so its view shows a key of the suspect that is gone.
#[test]
fn challenges_by_an_outdated_view_are_sent_ever_more_rarely() {
    let mut w = seated(2);
    w.relink(1, |l| l.watches_stalled = true);
    w.delete(&w.nodes[0].key(E).unwrap());
    suspect(&mut w, 1, 0);
    w.run(secs(1));
    let sent = w.count(1, challenges);
    assert!((3..8).contains(&sent), "{sent}");
    w.relink(1, |l| l.watches_stalled = false);
    w.until("it leads", ms(50), |w| w.leads(1));
}

#[test]
fn suspect_is_condemned_at_the_very_end_of_the_wait() {
    let mut w = seated(2);
    w.plan.drawn = false;
    w.pause(0, secs(4));
    suspect(&mut w, 1, 0);
    w.until("it is condemned", secs(3), |w| w.count(1, condemns) == 1);
    let answered = w.last_sent(1, challenges).after(w.plan.delay * 2);
    assert_eq!(w.last_sent(1, condemns), answered.after(wait()));
}

/// Makes a world in which the first node leads two elections, and each of two others waits in one of them.
fn two_elections() -> World {
    let mut w = World::of(SETTINGS, 3, 1);
    for (node, election) in [(0, "e/"), (0, "f/"), (1, "e/"), (2, "f/")] {
        w.join(node, election.as_bytes(), WatchScope::Auto, false);
        w.run(ms(50));
    }
    w
}

#[test]
fn deletion_by_absence_that_failed_is_repeated() {
    let mut w = two_elections();
    w.pause(0, secs(5));
    w.next(1, revokes, Fate::RequestLost);
    suspect(&mut w, 1, 0);
    w.until("it is condemned", secs(2), |w| w.leads(1));
    w.next(2, deletes_by_absence, Fate::RequestLost);
    suspect(&mut w, 2, 0);
    w.until("it is replaced", secs(1), |w| w.leader(b"f/") == Some(2));
    assert_eq!(w.count(2, deletes_by_absence), 2);
}

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

/// Makes a world in which the nodes suspect silent sessions by themselves.
fn watchful(nodes: usize) -> World {
    let mut w = seated(nodes);
    w.watch_for_silence();
    w
}

/// The links to etcd work, so that the leader answers.
#[test]
fn leader_that_another_node_does_not_hear_keeps_its_term() {
    let mut w = watchful(2);
    w.deafen(1, 0, LEAD * 5);
    w.run(LEAD * 4);
    assert!(w.count(1, challenges) > 0 && w.count(0, challenges) == 0);
    assert!(w.leads(0) && w.elected.len() == 1);
    w.run(LEAD * 2);
    assert_eq!(standing(&w), 0, "it hears the leader again");
    w.check_settled();
}

/// Each of the two nodes behind a leader stops hearing it, again and again, at any moment of its reads. Every suspicion that
/// counts here stood for the time to answer, and etcd refused the condemnation.
#[test]
fn ten_thousand_wrong_suspicions_of_leaders_end_no_term() {
    let (fast, steady) = (ms(400), secs(4));
    let leads = [fast, fast, fast, LEAD, steady].repeat(4);
    let mut refuted = 0;
    for (seed, lead) in std::iter::zip(0.., leads) {
        let settings = Settings { lead, ..SLOW };
        let (mut w, mut rng) = (World::of(settings, 3, seed), fastrand::Rng::with_seed(seed));
        w.plan.delay = ms(20);
        for node in 0..3 {
            w.campaign(node);
            w.run(ms(100));
        }
        w.watch_for_silence();
        for _ in 0..500 {
            for node in [1, 2] {
                let lasts = lead.mul_f64(rng.f64() * 3.0);
                w.deafen(node, 0, lasts);
            }
            w.run(lead * 3);
            w.asked.clear();
            for what in ["condemned", "deleted by absence"] {
                assert_eq!(w.tally.of(what), 0);
            }
            assert!(w.leads(0) && w.elected.len() == 1);
        }
        w.run(lead);
        w.check_settled();
        refuted += w.tally.of("refuted");
    }
    assert!(refuted > 10_000, "{refuted}");
}
