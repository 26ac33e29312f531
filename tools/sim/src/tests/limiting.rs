//! Tests the limits of the simulated etcd, and what sessions make of its refusals and pauses.

use std::time::Duration;

use eldest_core::action::{Ask, Class};
use eldest_core::candidate::WatchScope;
use eldest_core::time::Time;

use crate::inflict::inflict;
use crate::kind::Kind;
use crate::plan::Fault;
use crate::tests::asks::{ms, secs};
use crate::tests::{E, TTL, key};
use crate::world::World;
use crate::world::store::limits::Size;

const F: &[u8] = b"f/";

#[test]
fn joins_that_are_too_large_together_are_sent_apart() {
    for size in [Size::Operations(3), Size::Bytes(80)] {
        let mut w = World::new(1, 1);
        w.plan.together = true;
        w.store.limits.refuse_above(size, w.now.after(TTL));
        for election in [E, F] {
            w.join(0, election, WatchScope::Auto, false);
        }
        w.until("both lead", secs(1), |w| {
            [E, F].iter().all(|e| w.leader(e) == Some(0))
        });
        assert_eq!((w.store.limits.refused, w.tally.of("joins in one transaction")), (1, 1));
    }
}

#[test]
fn single_request_that_is_too_large_is_reported_and_leaves_nothing() {
    let mut w = World::new(1, 1);
    let limit = (Size::Bytes(8), w.now.after(TTL));
    w.store.limits.refuse_above(limit.0, limit.1);
    w.campaign(0);
    let ended = |w: &World| w.nodes[0].candidate(E).unwrap().1.ended.clone();
    w.until("reported", secs(1), |w| ended(w).is_some());
    let (_, error) = ended(&w).unwrap();
    assert_eq!(error.unwrap().class, Class::Invalid);
    assert!(!w.store.entries().any(|entry| entry.key.starts_with(E)));
    assert!(w.store.limits.refused > 0);
}

#[test]
fn limit_is_lifted_by_its_own_end_only() {
    let mut w = World::seated(1);
    for lasts in [ms(200), ms(400), ms(100)] {
        let until = w.now.after(lasts);
        w.store.limits.refuse_above(Size::Operations(1), until);
    }
    for (wait, ends) in [(ms(250), true), (ms(200), false)] {
        w.run(wait);
        w.join(0, F, WatchScope::Auto, false);
        w.run(ms(20));
        let ended = w.nodes[0].candidate(F).unwrap().1.ended.is_some();
        assert_eq!(ended, ends, "after {wait:?}");
    }
}

#[test]
fn etcd_has_space_again_when_the_last_such_fault_ends() {
    let mut w = World::seated(1);
    for lasts in [ms(200), ms(400), ms(100)] {
        inflict(&mut w, no_space(lasts));
    }
    for (wait, joins) in [(ms(250), false), (ms(200), true)] {
        w.run(wait);
        assert_eq!(w.store.put(&key("other"), b"", 0), joins, "after {wait:?}");
    }
}

/// Makes etcd have no space for so long.
fn no_space(lasts: Duration) -> Fault {
    Fault {
        lasts,
        ..Fault::at(Duration::ZERO, Kind::NoSpace)
    }
}

/// Revokes the lease of the first of two nodes, whose two keys take 100 ms each, for as long as that lasts.
fn ends_slowly(lasts: Duration) -> (World, Time) {
    let mut w = World::seated(2);
    w.join(0, F, WatchScope::Auto, false);
    w.run(ms(100));
    w.store.limits.slow_down_ends(ms(100), w.now.after(lasts));
    let begun = w.now;
    w.revoke(w.nodes[0].lease().unwrap());
    (w, begun)
}

#[test]
fn requests_wait_for_the_end_of_a_lease_with_many_keys() {
    let (mut w, _) = ends_slowly(secs(1));
    w.join(1, F, WatchScope::Auto, false);
    let key = w.nodes[1].key(F).unwrap();
    w.run(ms(199));
    assert!(!w.store.contains(&key));
    w.until("joined", ms(2), |w| w.store.contains(&key));
    assert!(w.tally.of("requests that waited for the end of a lease") > 0);
}

#[test]
fn end_of_a_lease_takes_no_longer_than_the_fault() {
    let (w, begun) = ends_slowly(ms(150));
    assert_eq!(w.store.limits.busy_until().since(begun), ms(150));
}

#[test]
fn lease_that_is_due_expires_when_the_end_of_another_is_over() {
    let (mut w, _) = ends_slowly(secs(1));
    let (busy_until, lease) = (w.store.limits.busy_until(), 1);
    w.store
        .perform(w.now, &Ask::Grant { ttl: ms(100) }, Some(lease));
    w.until("expired", secs(1), |w| {
        !w.store.leases().contains_key(&lease)
    });
    assert_eq!(w.now, busy_until);
}
