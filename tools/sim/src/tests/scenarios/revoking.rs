//! Tests the revocation of leases that were lost or given up: not while work continues, again after a failure, and not
//! for ever.

use super::*;
use crate::tests::{E, GRACE, TTL};
use crate::world::node::Work;
use crate::world::{Fate, World};
use eldest_core::action::Class;

#[test]
fn lost_lease_is_not_revoked_while_its_work_winds_up() {
    let mut w = World::seated(2);
    w.nodes[0].work = Work::After(GRACE.saturating_sub(ms(50)));
    w.lose_lease(0);
    assert!(!w.leads(0), "its term is over, its work is not");
    w.until("its work has ended", GRACE, |w| {
        assert_eq!(w.count(0, revokes), 0);
        assert!(!w.leads(1), "the key stands for as long as work goes on");
        w.nodes[0].term_of(E).unwrap().joined
    });
    w.until("the next leads", ms(100), |w| w.leads(1));
    assert_eq!(w.count(0, revokes), 1);
}

#[test]
fn a_revocation_that_failed_is_tried_again() {
    let mut w = World::seated(1);
    w.next(0, revokes, Fate::RequestLost);
    w.close(0);
    w.until("closed", secs(1), |w| w.nodes[0].closed());
    assert_eq!(w.count(0, revokes), 2);
    assert!(w.store.leases().is_empty());
}

#[test]
fn a_lease_that_is_gone_need_not_be_revoked_again() {
    let mut w = World::seated(1);
    w.the_next(usize::MAX, 0, revokes, Fate::Refused(Class::LeaseGone));
    w.revoke(w.nodes[0].lease().unwrap());
    w.close(0);
    w.until("closed", secs(1), |w| w.nodes[0].closed());
    assert_eq!(w.count(0, revokes), 1);
}

#[test]
fn a_lease_that_must_have_expired_is_not_revoked_any_more() {
    let mut w = World::seated(1);
    w.the_next(usize::MAX, 0, revokes, Fate::RequestLost);
    w.lose_lease(0);
    w.run(TTL * 2);
    let tried = w.count(0, revokes);
    assert!(tried > 1, "for as long as it may live");
    w.run(TTL * 2);
    assert_eq!(w.count(0, revokes), tried);
}
