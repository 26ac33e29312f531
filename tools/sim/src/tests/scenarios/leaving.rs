//! Tests the state that a term leaves: the removal of the term's key saves it, or its caller learns that nothing is saved.

use std::sync::Arc;

use super::*;
use crate::tests::{E, GRACE, TTL};
use crate::world::node::Work;
use crate::world::{Fate, World};
use eldest_core::action::{Ask, Class};
use eldest_core::reason::LostReason;

/// Makes a world in which the first of so many nodes leads, and each term leaves a state.
fn leaving(nodes: usize) -> World {
    let mut w = World::seated(nodes);
    w.plan.leaves = 1;
    w
}

/// Returns the number of states that callers know to be saved, not saved, and perhaps saved.
fn learnt(w: &World) -> (u64, u64, u64) {
    let outcomes = ["saved", "not saved", "perhaps saved"];
    outcomes.map(|outcome| w.tally.of(&format!("states {outcome}"))).into()
}

fn token(w: &World, node: usize) -> i64 {
    w.nodes[node].term_of(E).expect("a term").token
}

fn state(w: &World) -> Option<Vec<u8>> {
    w.states().first().map(|state| state.value.to_vec())
}

#[test]
fn state_is_saved_when_the_key_goes() {
    let reasons = [
        LostReason::Resigned,
        LostReason::SteppedDown,
        LostReason::Shutdown,
        LostReason::Stalled,
    ];
    for reason in reasons {
        let mut w = leaving(2);
        let token = token(&w, 0);
        w.end(0, E, reason);
        w.until("the next leads", ms(50), |w| w.leads(1));
        w.run(ms(50));
        assert_eq!(learnt(&w), (1, 0, 0), "{reason}");
        assert_eq!(state(&w), Some(token.to_string().into_bytes()), "{reason}");
        assert_eq!(w.count(0, deletes), 1, "{reason}");
    }
}

/// The session does not take its own deletion for a stranger's.
#[test]
fn no_sweep_follows_a_deletion_that_saves_a_state() {
    let sweeps_of = |every| {
        let mut w = World::seated(1);
        w.plan.leaves = every;
        w.end(0, E, LostReason::SteppedDown);
        w.run(TTL * 3);
        assert!(w.leads(0), "again");
        (w.tally.of("states saved"), w.count(0, sweeps))
    };
    let (saved, swept) = sweeps_of(1);
    assert_eq!((saved, swept), (1, sweeps_of(0).1));
}

#[test]
fn attempt_without_an_answer_is_repeated_with_the_state() {
    for fate in [
        Fate::RequestLost,
        Fate::AnswerLost,
        Fate::RefusedLater(Class::Denied),
        Fate::Refused(Class::Backoff),
    ] {
        let mut w = leaving(2);
        w.next(0, deletes, fate);
        w.end(0, E, LostReason::Resigned);
        w.until("an outcome", secs(1), |w| learnt(w) != (0, 0, 0));
        assert_eq!(learnt(&w), (1, 0, 0), "{fate:?}");
        assert_eq!((state(&w).is_some(), w.count(0, deletes)), (true, 2));
    }
}

/// A successor has saved a state by the time of the second attempt, so nobody knows whether the first one was there.
#[test]
fn state_that_a_successor_replaced_is_perhaps_saved() {
    let mut w = leaving(2);
    w.relink(0, |l| l.answers_lost = true);
    w.end(0, E, LostReason::Resigned);
    w.until("the next leads", ms(50), |w| w.leads(1));
    w.end(1, E, LostReason::Resigned);
    w.until("it is saved", ms(50), |w| learnt(w) == (1, 0, 0));
    w.relink(0, |l| l.answers_lost = false);
    w.until("an outcome", secs(2), |w| learnt(w) == (1, 0, 1));
}

#[test]
fn state_that_etcd_refuses_keeps_no_key() {
    for class in [Class::Denied, Class::Invalid, Class::Full] {
        let mut w = leaving(2);
        w.next(0, deletes, Fate::Refused(class));
        w.end(0, E, LostReason::Resigned);
        w.until("the next leads", ms(50), |w| w.leads(1));
        assert_eq!((learnt(&w), state(&w)), ((0, 1, 0), None), "{class:?}");
        assert_eq!(w.count(0, deletes), 2, "{class:?}");
    }
}

/// As behind a proxy that refuses large requests, or on a link that is too slow for them.
#[test]
fn state_that_is_never_saved_keeps_the_key_until_the_cutoff() {
    let saves = |ask: &Ask| matches!(ask, Ask::Delete { state: Some(_), .. });
    for (fate, outcome) in [
        (Fate::Refused(Class::Retry), (0, 1, 0)),
        (Fate::Refused(Class::Backoff), (0, 1, 0)),
        (Fate::RequestLost, (0, 0, 1)),
    ] {
        let mut w = leaving(2);
        w.the_next(usize::MAX, 0, saves, fate);
        w.end(0, E, LostReason::Resigned);
        w.run(GRACE);
        assert!(!w.leads(1) && learnt(&w) == (0, 0, 0), "{fate:?}");
        w.until("the next leads", TTL, |w| w.leads(1));
        w.run(ms(50));
        assert_eq!((learnt(&w), state(&w)), (outcome, None), "{fate:?}");
    }
}

/// A full etcd still deletes.
#[test]
fn full_etcd_saves_no_state_and_keeps_no_key() {
    let mut w = leaving(2);
    w.store.full = 1;
    w.end(0, E, LostReason::Resigned);
    w.until("the next leads", ms(50), |w| w.leads(1));
    assert_eq!((learnt(&w), state(&w)), ((0, 1, 0), None));
}

#[test]
fn nothing_is_saved_once_the_key_is_gone() {
    for is_seen in [true, false] {
        let mut w = leaving(1);
        w.nodes[0].work = Work::After(ms(50));
        w.relink(0, |l| l.watches_stalled = !is_seen);
        let key = Arc::clone(&w.nodes[0].term_of(E).expect("a term").key);
        w.end(0, E, LostReason::Shutdown);
        w.delete(&key);
        w.until("an outcome", ms(100), |w| learnt(w) != (0, 0, 0));
        assert_eq!((learnt(&w), state(&w)), ((0, 1, 0), None));
        assert_eq!(w.count(0, deletes), usize::from(!is_seen));
    }
}
