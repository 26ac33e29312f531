//! Tests the ends of terms and sessions: which keys are released, and when.

use crate::tests::scenarios::*;
use crate::tests::{E, GRACE, TTL};
use crate::world::{Fate, World};
use eldest_core::action::Status;
use eldest_core::reason::LostReason;

#[test]
fn candidate_has_left_when_its_released_key_is_deleted() {
    let mut w = World::seated(2);
    w.nodes[0].member.work = None;
    w.end(0, E, LostReason::Shutdown);
    w.next(0, deletes, Fate::RequestLost);
    w.until("asked to go", TTL, |w| w.count(0, deletes) == 1);
    w.drop_leadership(0, E);
    w.run(ms(50));
    assert!(w.nodes[0].ended_at(E).is_none(), "its key stands");
    w.until("it has left", secs(1), |w| w.nodes[0].ended_at(E).is_some());
    assert_eq!(w.store.queue(E).len(), 1);
}

#[test]
fn closing_session_abandons_its_release_after_two_ttl() {
    let mut w = World::seated(2);
    w.relink(0, |l| (l.requests_lost, l.answers_lost) = (true, true));
    w.close(0);
    w.run((TTL * 2).saturating_sub(ms(10)));
    assert!(!w.nodes[0].closed());
    w.run(ms(20));
    assert!(w.nodes[0].closed());
    assert!(w.leads(1));
}

const BEHIND: Option<Status> = Some(Status::waiting(1));

/// Returns the released state of the node's latest term, as its handles report it.
fn released(w: &World, node: usize) -> bool {
    let term = w.nodes[node].term_of(E).unwrap();
    w.nodes[node].core.is_released(term.slot, term.id)
}

#[test]
fn a_stalled_term_is_valid_for_the_grace_period_whatever_its_lease() {
    let mut w = World::seated(2);
    w.nodes[0].member.work = None;
    let since = w.nodes[0].local(w.now);
    w.end(0, E, LostReason::Stalled);
    let term = w.nodes[0].term_of(E).unwrap();
    assert_eq!(term.cutoff().since(since), GRACE);
    assert!(w.leads(0), "so that its work may wind up");
    w.run(GRACE.saturating_sub(ms(10)));
    assert!(w.leads(0));
    w.run(ms(20));
    assert!(!w.leads(0));
    w.until("released", ms(250), |w| w.count(0, deletes) == 1);
    w.until("the next leads", ms(50), |w| w.leads(1));
    assert_eq!(w.count(0, revokes), 0, "its lease is healthy");
    w.run(TTL * 2);
    assert_eq!(w.count(0, joins), 1, "not while its work goes on");
    w.drop_leadership(0, E);
    w.run(ms(50));
    assert_eq!(w.nodes[0].status(E), BEHIND);
}

#[test]
fn a_key_counts_as_released_when_etcd_confirmed_it_and_not_before() {
    let mut w = World::seated(2);
    assert!(!released(&w, 0), "it leads");
    w.next(0, deletes, Fate::RequestLost);
    w.nodes[0].member.work = Some(ms(100));
    w.end(0, E, LostReason::SteppedDown);
    assert!(!released(&w, 0), "its work goes on");
    w.until_sent(0, deletes);
    w.run(ms(5));
    assert!(!released(&w, 0), "asked for, not confirmed");
    let releases = |w: &World| w.nodes[0].candidate(E).unwrap().1.releases;
    assert_eq!(releases(&w), 0);
    w.until("the next leads", secs(1), |w| w.leads(1));
    w.run(ms(50));
    assert!(released(&w, 0));
    assert_eq!(releases(&w), 1, "notified");
    // The next term does not affect the record of the last one.
    let first = w.nodes[0].term_of(E).unwrap().id;
    w.drop_leadership(1, E);
    w.until("its next turn", ms(50), |w| w.leads(0));
    let slot = w.nodes[0].candidate(E).unwrap().0;
    assert!(w.nodes[0].core.is_released(slot, first) && !released(&w, 0));
}
