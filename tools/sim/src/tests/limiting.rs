//! Tests the limits of the simulated etcd, and what sessions make of its refusals.

use eldest_core::action::Class;
use eldest_core::candidate::WatchScope;

use crate::tests::asks::{ms, secs};
use crate::tests::{E, TTL};
use crate::world::World;
use crate::world::store::limits::Size;

const F: &[u8] = b"f/";

#[test]
fn joins_that_are_too_large_together_are_sent_apart() {
    for size in [Size::Operations(3), Size::Bytes(80)] {
        let mut w = World::new(1, 1);
        w.together = true;
        w.store.limits.refuse_above(size, w.now.after(TTL));
        for election in [E, F] {
            w.join(0, election, WatchScope::Auto, false);
        }
        w.until("both lead", secs(1), |w| {
            [E, F].iter().all(|e| w.leader(e) == Some(0))
        });
        assert_eq!((w.store.limits.refused, w.happened.together), (1, 1));
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
