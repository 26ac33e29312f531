//! Resigning, leaving, closing: what is given up, and in which order.

use super::*;
use crate::core::action::Class;
use crate::core::tests::cluster::E;
use crate::core::tests::node::Work;
use crate::core::tests::world::{Fate, World};

#[test]
fn a_lease_lost_while_closing_does_not_reopen_the_session() {
    let mut w = World::new(1, 1);
    w.campaign(0);
    w.next(0, joins, Fate::Refused(Class::LeaseGone));
    w.until("a join is under way", secs(1), |w| w.count(0, joins) == 1);
    w.close(0);
    w.until("closed", secs(1), |w| w.nodes[0].closed());
    assert_eq!(w.count(0, revokes), 1);
    assert!(w.store.leases.is_empty(), "revoked first, closed then");
}
