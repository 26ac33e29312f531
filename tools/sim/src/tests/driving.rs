//! Tests the simulator's part of the driver: the inputs that wait during a turn, and the timers of a suspended machine.

use std::time::Duration;

use crate::tests::asks::{joins, ms, secs};
use crate::world::{Fate, World};
use eldest_core::action::Note;

fn failed(w: &World) -> bool {
    w.nodes[0].noted(|note| matches!(note, Note::JoinFailed { .. })) > 0
}

#[test]
fn timers_of_a_suspended_machine_go_on_where_they_stood() {
    let mut w = World::new(1, 1);
    w.next(0, joins, Fate::RequestLost);
    w.campaign(0);
    w.until("asked", secs(1), |w| w.count(0, joins) == 1);
    let (asked, timeout) = (w.now, w.settings.timeout);
    w.run(ms(100));
    w.suspend(0, secs(1), Duration::ZERO);
    w.until("timed out", secs(3), failed);
    assert_eq!(w.now.since(asked), timeout + secs(1));
}

#[test]
fn timer_of_a_stopped_process_fires_as_soon_as_the_process_continues() {
    let mut w = World::new(1, 1);
    w.next(0, joins, Fate::RequestLost);
    w.campaign(0);
    w.until("asked", secs(1), |w| w.count(0, joins) == 1);
    let asked = w.now;
    w.run(ms(100));
    w.pause(0, secs(1));
    w.until("timed out", secs(3), failed);
    assert_eq!(w.now.since(asked), secs(1) + ms(100));
}

#[test]
fn decisions_of_a_turn_take_effect_at_its_end() {
    let mut late = 0;
    for seed in 0..20 {
        let mut w = World::new(1, seed);
        w.plan.cost = ms(50);
        w.command(0, |w| {
            w.campaign(0);
        });
        w.until("asked", secs(1), |w| !w.asked.is_empty());
        let (at, ..) = w.asked[0];
        assert!(at.since(eldest_core::time::Time::ZERO) <= w.plan.cost);
        late += u32::from(at > eldest_core::time::Time::ZERO);
        w.until("leads", secs(10), |w| w.leads(0));
    }
    assert!((1..20).contains(&late), "some turns cost time, some none");
}

/// Its timers may fire late, but a check of validity reads the clock.
#[test]
fn leader_no_longer_leads_after_its_machine_was_suspended_for_a_ttl() {
    let mut w = World::seated(2);
    w.suspend(0, crate::tests::TTL, secs(1));
    w.run(crate::tests::TTL);
    assert!(!w.leads(0));
    w.until("the next one leads", crate::tests::TTL, |w| w.leads(1));
}

/// Joins two elections, both requested in the one turn in which the lease is granted.
fn two_elections(w: &mut World) {
    w.plan.together = true;
    for election in [b"e/", b"f/"] {
        w.join(0, election, eldest_core::candidate::WatchScope::Auto, false);
    }
}

fn created(w: &World) -> Vec<i64> {
    w.store.entries().map(|e| e.create_revision).collect()
}

#[test]
fn joins_of_one_turn_share_a_create_revision_and_both_lead() {
    let mut w = World::new(1, 1);
    two_elections(&mut w);
    let both = |w: &World| w.leader(b"e/").is_some() && w.leader(b"f/").is_some();
    w.until("both lead", secs(2), both);
    assert_eq!(created(&w), [2, 2]);
}

#[test]
fn joins_that_were_lost_together_are_adopted_each() {
    let mut w = World::new(1, 1);
    w.next(0, joins, Fate::AnswerLost);
    two_elections(&mut w);
    let both = |w: &World| w.leader(b"e/").is_some() && w.leader(b"f/").is_some();
    w.until("both lead", secs(3), both);
    assert_eq!(created(&w), [2, 2], "put once");
    assert_eq!(w.tally.of("joins lost together"), 1);
}
