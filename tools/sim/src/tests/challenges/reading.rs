//! Tests that a session leads by clean reads, and not by its lease alone.

use super::*;
use crate::world::Fate;
use crate::world::node::Work;
use eldest_core::action::Class;
use eldest_core::reason::LostReason;

#[test]
fn session_whose_anchors_path_is_taken_takes_another_lease() {
    let mut w = World::of(SETTINGS, 1, 1);
    w.next(0, puts_anchor, Fate::RequestLost);
    w.campaign(0);
    w.run(ms(200));
    let lease = w.nodes[0].lease().unwrap();
    let anchor = crate::tests::key(&format!("~session/{lease:x}"));
    w.store.put(&anchor, b"1500000 somebody else's", 0);
    w.until("it leads", secs(3), |w| w.leads(0));
    assert_ne!(w.nodes[0].lease(), Some(lease));
}

#[test]
fn new_candidate_that_may_not_put_its_anchor_is_refused() {
    let mut w = World::of(SETTINGS, 1, 1);
    w.next(0, puts_anchor, Fate::Refused(Class::Denied));
    let slot = w.campaign(0);
    w.run(ms(500));
    assert!(w.nodes[0].candidates[&slot].ended.is_some());
}

/// The anchor is never put again under its lease.
#[test]
fn session_whose_anchor_is_gone_takes_another_lease() {
    let mut w = seated(2);
    let (anchor, lease) = (w.nodes[0].clean.clone().unwrap().0, w.nodes[0].lease());
    w.store.delete(&anchor);
    w.publish();
    w.until("it leads no longer", LEAD, |w| w.leads(1));
    w.until("another lease", TTL, |w| {
        w.nodes[0].lease().is_some_and(|other| Some(other) != lease)
    });
    w.run(TTL * 2);
    assert!(w.leads(1));
    w.check_settled();
}

/// The work of a leader that shuts down may go on until its lease ends, for as long as reads are clean.
#[test]
fn clean_reads_go_on_while_work_winds_up() {
    let mut w = seated(1);
    w.nodes[0].work = Work::Never;
    w.end(0, E, LostReason::Shutdown);
    w.run(LEAD * 2);
    assert!(w.leads(0), "its term is valid until the cutoff");
    w.run(TTL);
    assert!(!w.leads(0));
}
