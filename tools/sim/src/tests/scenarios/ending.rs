//! Tests resigning, leaving and closing: which keys are released, and in which order.

use std::sync::Arc;

use super::*;
use crate::tests::E;
use crate::tests::TTL;
use crate::world::node::Work;
use crate::world::{Fate, World};
use eldest_core::action::{Class, Note, SessionState, Status};
use eldest_core::candidate::WatchScope;
use eldest_core::reason::{EndReason, LostReason};

#[test]
fn a_lease_lost_while_closing_does_not_reopen_the_session() {
    let mut w = World::new(1, 1);
    w.campaign(0);
    w.next(0, joins, Fate::Refused(Class::LeaseGone));
    w.until("a join is under way", secs(1), |w| w.count(0, joins) == 1);
    w.close(0);
    w.until("closed", secs(1), |w| w.nodes[0].closed());
    assert_eq!(w.count(0, revokes), 1);
    assert!(w.store.leases().is_empty(), "revoked first, closed then");
}

fn ended(w: &World, node: usize) -> Option<EndReason> {
    let (reason, _) = w.nodes[node].candidate(E)?.1.ended.as_ref()?;
    Some(*reason)
}

#[test]
fn the_key_is_released_when_the_work_has_ended() {
    for reason in [LostReason::Resigned, LostReason::Shutdown] {
        let mut w = World::seated(2);
        w.nodes[0].work = Work::After(ms(700));
        w.end(0, E, reason);
        assert_eq!(
            w.leads(0),
            reason == LostReason::Shutdown,
            "who resigns is done"
        );
        w.run(ms(690));
        assert_eq!(w.count(0, deletes), 0);
        assert!(!w.leads(1));
        w.until("the next leads", ms(50), |w| w.leads(1));
        w.run(ms(5));
        assert_eq!(
            ended(&w, 0).map(|r| r == EndReason::Resigned),
            Some(reason == LostReason::Resigned)
        );
    }
}

#[test]
fn next_candidacy_may_follow_a_released_key_despite_running_work() {
    for reason in [LostReason::Resigned, LostReason::Shutdown] {
        let mut w = World::seated(2);
        w.nodes[0].work = Work::Never;
        w.end(0, E, reason);
        assert!(
            w.join(0, E, WatchScope::Auto, false).is_none(),
            "its key stands"
        );
        w.until("released", TTL, |w| w.count(0, deletes) == 1);
        assert!(
            w.join(0, E, WatchScope::Auto, false).is_some(),
            "{reason:?}"
        );
    }
}

#[test]
fn candidate_has_left_when_its_released_key_is_deleted() {
    let mut w = World::seated(2);
    w.nodes[0].work = Work::Never;
    w.end(0, E, LostReason::Shutdown);
    w.next(0, deletes, Fate::RequestLost);
    w.until("asked to go", TTL, |w| w.count(0, deletes) == 1);
    w.drop_leadership(0, E);
    w.run(ms(50));
    assert_eq!(ended(&w, 0), None, "its key stands");
    w.until("it has left", secs(1), |w| ended(w, 0).is_some());
    assert_eq!(w.store.queue(E).len(), 1);
}

#[test]
fn leadership_dropped_after_its_loss_rejoins_at_the_back() {
    let mut w = World::seated(2);
    w.nodes[0].work = Work::Never;
    w.relink(0, |l| l.answers_lost = true);
    w.until("over", TTL, |w| {
        w.nodes[0].term_of(E).unwrap().reason.is_some()
    });
    w.relink(0, |l| l.answers_lost = false);
    w.drop_leadership(0, E);
    w.run(secs(3));
    assert_eq!(w.nodes[0].status(E), Some(Status::waiting(1)));
    assert!(w.leads(1));
    w.check_settled();
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

#[test]
fn a_session_that_never_campaigned_closes_at_once() {
    let mut w = World::new(1, 1);
    w.close(0);
    assert!(w.nodes[0].closed());
    assert!(w.asked.is_empty());
}

#[test]
fn a_session_closed_while_its_grant_is_under_way_leaves_no_lease() {
    for (fate, within) in [
        (Fate::Slow(ms(100)), ms(0)),
        // No session knows that the lease was granted, so it expires.
        (Fate::AnswerLost, TTL),
        (Fate::Refused(Class::Backoff), ms(0)),
    ] {
        let mut w = World::new(1, 1);
        w.next(0, grants, fate);
        w.campaign(0);
        w.run(ms(20));
        w.close(0);
        w.until("closed", secs(1), |w| w.nodes[0].closed());
        w.until("no lease", within, |w| w.store.leases().is_empty());
    }
}

#[test]
fn a_candidacy_in_a_closing_session_ends_at_once() {
    let mut w = World::seated(1);
    w.nodes[0].work = Work::Never;
    w.close(0);
    w.join(0, b"f/", WatchScope::Auto, false);
    let candidate = w.nodes[0].candidate(b"f/").unwrap().1;
    assert!(matches!(
        candidate.ended,
        Some((EndReason::SessionClosed, None))
    ));
    w.until("closed", TTL * 2, |w| w.nodes[0].closed());
    assert_eq!(
        w.nodes[0].session_states.last(),
        Some(&SessionState::Closed)
    );
    assert!(w.store.leases().is_empty() && w.store.entries().next().is_none());
}

#[test]
fn deletion_answered_by_another_store_is_requested_again() {
    let mut w = World::seated(1);
    w.run(ms(50));
    w.restored = true;
    w.drop_leadership(0, E);
    w.store = crate::world::store::Store::new();
    w.store.cluster = 8;
    w.run(ms(50));
    assert!(w.nodes[0].noted(|n| matches!(n, Note::StoreChanged { .. })) == 1);
    w.run(secs(5));
    w.close(0);
    w.until("closed", secs(1), |w| w.nodes[0].closed());
}

#[test]
fn late_answer_about_an_earlier_term_does_not_end_the_present_one() {
    for reason in [
        LostReason::Resigned,
        LostReason::Shutdown,
        LostReason::SteppedDown,
        LostReason::WorkFailed,
        LostReason::Stalled,
    ] {
        let mut w = World::seated(1);
        let first = w.nodes[0].term_of(E).unwrap();
        let (slot, term, key) = (first.slot, first.id, Arc::clone(&first.key));
        w.delete(&key);
        w.until("it leads again", secs(1), |w| {
            w.nodes[0].valid(E, w.now).is_some_and(|t| t.id != term)
        });
        w.give(0, |m, now| m.end_by_leader(now, slot, term, reason));
        assert_eq!(w.nodes[0].term_of(E).unwrap().reason, None, "{reason:?}");
        assert_eq!(ended(&w, 0), None);
    }
}
