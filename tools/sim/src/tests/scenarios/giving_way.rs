//! Tests leaders that step down, on their own or by an order: they rejoin at the back, and not before they may.

use super::*;
use crate::tests::E;
use crate::tests::{GRACE, TTL};
use crate::world::node::Work;
use crate::world::{Fate, World};
use eldest_core::action::Status;
use eldest_core::reason::{EndReason, LostReason};

const BEHIND: Option<Status> = Some(Status::waiting(1));

fn ended(w: &World, node: usize) -> Option<EndReason> {
    let (reason, _) = w.nodes[node].candidate(E)?.1.ended.as_ref()?;
    Some(*reason)
}

/// Returns the released state of the node's latest term, as its handles report it.
fn released(w: &World, node: usize) -> bool {
    let term = w.nodes[node].term_of(E).unwrap();
    w.nodes[node].core.is_released(term.slot, term.id)
}

#[test]
fn leader_that_steps_down_rejoins_at_the_back_after_its_release() {
    let mut w = World::seated(2);
    w.nodes[0].work = Work::After(ms(700));
    w.end(0, E, LostReason::SteppedDown);
    assert!(!w.leads(0), "it says that its work is done");
    w.run(ms(690));
    assert_eq!((w.count(0, deletes), w.leads(1)), (0, false));
    w.until("the next leads", ms(50), |w| w.leads(1));
    w.run(ms(50));
    assert_eq!(w.nodes[0].status(E), BEHIND);
    assert_eq!(ended(&w, 0), None);
    w.drop_leadership(1, E);
    w.until("its next turn", ms(50), |w| w.leads(0));
}

#[test]
fn lone_leader_that_steps_down_leads_again_with_a_new_key() {
    let mut w = World::seated(1);
    let first = w.nodes[0].term_of(E).unwrap().token;
    w.end(0, E, LostReason::SteppedDown);
    w.until("it leads again", ms(50), |w| w.leads(0));
    assert!(w.nodes[0].term_of(E).unwrap().token > first);
    assert_eq!((w.count(0, deletes), w.count(0, joins)), (1, 2));
}

/// The key is deleted at the deadline; a caller requests it only later.
#[test]
fn caller_that_awaits_a_departing_key_is_notified_of_its_deletion() {
    let mut w = World::seated(1);
    w.nodes[0].work = Work::Never;
    w.end(0, E, LostReason::SteppedDown);
    w.next(0, deletes, Fate::RequestLost);
    w.until("asked for", TTL, |w| w.count(0, deletes) == 1);
    let term = w.nodes[0].term_of(E).unwrap();
    let (slot, id) = (term.slot, term.id);
    assert!(!w.nodes[0].core.await_release(slot, id));
    w.until("notified", secs(2), |w| {
        w.nodes[0].candidate(E).unwrap().1.releases > 0
    });
    assert!(w.nodes[0].core.await_release(slot, id));
}

#[test]
fn stepping_down_after_the_term_was_lost_changes_nothing() {
    for reason in [
        LostReason::SteppedDown,
        LostReason::WorkFailed,
        LostReason::Stalled,
    ] {
        let mut w = World::seated(2);
        w.nodes[0].work = Work::Never;
        w.relink(0, |l| l.answers_lost = true);
        w.until("over", TTL, |w| {
            w.nodes[0].term_of(E).unwrap().reason.is_some()
        });
        w.relink(0, |l| l.answers_lost = false);
        w.end(0, E, reason);
        let term = w.nodes[0].term_of(E).unwrap();
        assert_eq!(term.reason, Some(LostReason::LeaseExpiring));
        w.drop_leadership(0, E);
        w.run(secs(3));
        assert_eq!(w.nodes[0].status(E), BEHIND);
        w.check_settled();
    }
}

#[test]
fn a_candidate_that_was_dropped_leaves_when_it_steps_down_or_stalls() {
    for reason in [
        LostReason::SteppedDown,
        LostReason::WorkFailed,
        LostReason::Stalled,
    ] {
        let mut w = World::seated(2);
        w.leave(0, E);
        w.end(0, E, reason);
        w.run(ms(50));
        assert_eq!(ended(&w, 0), Some(EndReason::Left));
        assert!(w.leads(1));
        w.check_settled();
    }
}

#[test]
fn a_stalled_term_is_valid_for_the_grace_period_whatever_its_lease() {
    let mut w = World::seated(2);
    w.nodes[0].work = Work::Never;
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
fn a_stall_near_the_end_of_the_lease_does_not_outlast_it() {
    let mut w = World::seated(1);
    w.nodes[0].work = Work::Never;
    w.relink(0, |l| l.answers_lost = true);
    let end = w.nodes[0].term_of(E).unwrap().limit();
    // This is just before the trust ends by itself.
    let before = end.before(GRACE).before(ms(1));
    w.run(before.since(w.nodes[0].local(w.now)));
    w.end(0, E, LostReason::Stalled);
    let term = w.nodes[0].term_of(E).unwrap();
    assert_eq!(term.reason, Some(LostReason::Stalled));
    assert!(term.limit() <= end);
}

#[test]
fn a_stalled_term_whose_work_ends_releases_its_key_at_once() {
    let mut w = World::seated(2);
    w.nodes[0].work = Work::After(ms(300));
    w.end(0, E, LostReason::Stalled);
    w.run(ms(290));
    assert_eq!(w.count(0, deletes), 0);
    w.until("the next leads", ms(50), |w| w.leads(1));
}

#[test]
fn paused_candidate_can_leave_and_its_session_can_close() {
    for closes in [false, true] {
        let mut w = World::seated(2);
        w.hold_back(0, E, true);
        w.end(0, E, LostReason::Stalled);
        w.run(secs(1));
        if closes {
            w.close(0);
        } else {
            w.leave(0, E);
        }
        w.run(secs(1));
        assert!(ended(&w, 0).is_some());
        assert_eq!(w.nodes[0].closed(), closes);
        assert_eq!(w.store.entries().count(), 1);
    }
}

#[test]
fn a_key_counts_as_released_when_etcd_confirmed_it_and_not_before() {
    let mut w = World::seated(2);
    assert!(!released(&w, 0), "it leads");
    w.next(0, deletes, Fate::RequestLost);
    w.nodes[0].work = Work::After(ms(100));
    w.end(0, E, LostReason::SteppedDown);
    assert!(!released(&w, 0), "its work goes on");
    w.until("asked for", secs(1), |w| w.count(0, deletes) == 1);
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
