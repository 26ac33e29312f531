//! Tests locks and semaphores: the order of holders, and their number.

use super::*;
use crate::world::World;
use crate::world::cluster::PERMITS;
use eldest_core::action::Class;
use eldest_core::reason::EndReason;

const L: &[u8] = b"l/";

/// Returns how the node's latest candidacy has ended.
fn ended(w: &World, node: usize) -> Option<(EndReason, Option<Class>)> {
    let (_, candidate) = w.nodes[node].candidates.iter().next_back()?;
    let (reason, error) = candidate.ended.as_ref()?;
    Some((*reason, error.as_ref().map(|t| t.class)))
}

#[test]
fn an_attempt_takes_the_last_seat_with_a_second_transaction() {
    let mut w = World::new(3, 1);
    let mut joined = 0;
    for (node, taken) in [(0, false), (1, false), (2, true)] {
        w.acquire(node, PERMITS, true);
        w.run(ms(20));
        let expected = taken.then_some((EndReason::Taken, None));
        assert_eq!(ended(&w, node), expected);
        joined += w.count(node, joins);
    }
    assert_eq!((w.holders(PERMITS), joined), (2, 1 + 2 + 1));
    w.release(0, PERMITS);
    w.run(ms(20));
    w.acquire(2, PERMITS, true);
    w.run(ms(20));
    assert_eq!(w.holders(PERMITS), 2);
}

/// Only a restore brings older keys back that a leader did not see, but a permit's holder has older ones before it.
#[test]
fn holder_that_reads_an_older_holder_before_it_keeps_its_permit() {
    let mut w = World::new(2, 1);
    for node in 0..2 {
        w.acquire(node, PERMITS, false);
        w.run(ms(20));
    }
    let before = w.count(1, reads);
    w.disturb_watches(1, true);
    w.until("it reads", secs(1), |w| w.count(1, reads) > before);
    w.run(secs(1));
    assert_eq!((w.holders(PERMITS), w.elected.len()), (2, 2));
}

/// Makes an attempt to share the lock.
fn share(w: &mut World, node: usize) {
    w.acquire_as(node, L, true, true);
}

#[test]
fn attempt_to_share_takes_two_transactions_and_fails_behind_an_exclusive_one() {
    let mut w = World::new(4, 1);
    share(&mut w, 0);
    w.run(ms(20));
    share(&mut w, 1);
    w.run(ms(20));
    assert_eq!((w.holders(L), w.count(1, joins)), (2, 2));
    w.acquire(2, L, true);
    w.run(ms(20));
    assert_eq!(ended(&w, 2), Some((EndReason::Taken, None)));
    w.acquire(2, L, false);
    w.run(ms(20));
    share(&mut w, 3);
    w.run(ms(20));
    assert_eq!(ended(&w, 3), Some((EndReason::Taken, None)));
    assert_eq!(w.holders(L), 2);
    w.give_up(2, L);
    w.run(ms(40));
    share(&mut w, 3);
    w.run(ms(20));
    assert_eq!(w.holders(L), 3);
}
