//! Tests how a key comes to exist, and which session owns it.

use std::sync::Arc;

use super::*;
use crate::tests::{E, key};
use crate::world::node::Work;
use crate::world::{Fate, World};
use eldest_core::action::{Class, Note, Status};
use eldest_core::candidate::WatchScope;
use eldest_core::reason::{EndReason, LostReason};

/// Makes a world in which a candidate left while its join was in flight, and another of the same session joins at once.
fn returned(fate: Option<Fate>) -> World {
    let mut w = World::new(2, 1);
    w.campaign(0);
    if let Some(fate) = fate {
        w.next(0, joins, fate);
    }
    w.until("a join is under way", secs(1), |w| w.count(0, joins) == 1);
    w.leave(0, E);
    w.campaign(0);
    w.run(secs(1));
    w.campaign(1);
    w
}

fn one_key_each(w: &mut World) {
    w.until("it leads", secs(1), |w| w.leads(0));
    w.run(secs(20));
    w.check_settled();
    assert_eq!(w.leader(E), Some(0));
    assert_eq!(w.elected.len(), 1, "one term, never disturbed");
}

#[test]
fn join_applied_but_refused_leaves_no_key() {
    for class in [Class::Denied, Class::Invalid] {
        let mut w = World::new(2, 1);
        w.next(0, joins, Fate::RefusedLater(class));
        w.campaign(0);
        w.until("the caller is refused", secs(1), |w| {
            w.nodes[0]
                .candidate(E)
                .is_some_and(|(_, candidate)| candidate.ended.is_some())
        });
        w.until("its key is gone", secs(1), |w| w.store.queue(E).is_empty());
        w.campaign(1);
        w.until("the next leads", secs(1), |w| w.leads(1));
    }
}

/// A candidate that had a key before is not refused: it joins again, and the key that it finds is its own.
#[test]
fn join_applied_but_refused_is_adopted_by_a_returning_candidate() {
    for class in [Class::Denied, Class::Invalid, Class::Backoff] {
        let mut w = World::seated(1);
        w.next(0, joins, Fate::RefusedLater(class));
        w.delete(&w.nodes[0].key(E).unwrap());
        w.until("it leads again", secs(1), |w| w.elected.len() == 2);
        assert_eq!(
            (w.count(0, joins), w.count(0, deletes)),
            (3, 0),
            "{class:?}"
        );
        assert_eq!(w.store.queue(E)[0].create_revision, w.elected[1].token);
    }
}

#[test]
fn two_candidacies_one_after_another_never_mix_up_their_keys() {
    let mut w = returned(None);
    one_key_each(&mut w);
}

#[test]
fn candidacy_after_an_abandoned_join_gets_its_own_key() {
    for fate in [
        Fate::AnswerLost,
        Fate::RequestLost,
        Fate::Slow(ms(250)),
        Fate::Refused(Class::Backoff),
    ] {
        let mut w = returned(Some(fate));
        one_key_each(&mut w);
    }
}

#[test]
fn a_candidacy_that_came_back_leaves_a_free_path() {
    // The first candidate never had a key, so the second must not wait for one.
    let mut w = returned(Some(Fate::Refused(Class::LeaseGone)));
    one_key_each(&mut w);
    assert!(
        w.join(0, E, WatchScope::Auto, false).is_none(),
        "the second still stands"
    );
}

#[test]
fn value_announced_while_joining_goes_with_the_key() {
    for fate in [None, Some(Fate::AnswerLost)] {
        let mut w = World::new(1, 1);
        let slot = w.campaign(0);
        if let Some(fate) = fate {
            w.next(0, joins, fate);
        }
        w.until("a join is under way", secs(1), |w| w.count(0, joins) == 1);
        w.give(0, |m, now| m.proclaim(now, slot, (*b"news").into(), 1));
        w.run(secs(1));
        assert!(w.nodes[0].proclaimed[0].1 == Ok(true));
        assert_eq!(*w.store.queue(E)[0].value, *b"news");
    }
}

#[test]
fn announcement_meant_for_the_join_is_repeated_until_made() {
    let proclaims = |ask: &Ask| matches!(ask, Ask::Proclaim { .. });
    for fate in [Fate::RequestLost, Fate::AnswerLost] {
        let mut w = World::new(1, 1);
        let slot = w.campaign(0);
        w.until("a join is under way", secs(1), |w| w.count(0, joins) == 1);
        w.the_next(3, 0, proclaims, fate);
        w.give(0, |m, now| m.proclaim(now, slot, (*b"news").into(), 1));
        assert!(w.nodes[0].proclaimed[0].1 == Ok(true));
        w.run(secs(10));
        assert_eq!(*w.store.queue(E)[0].value, *b"news");
        let writes = w.count(0, proclaims);
        assert!((3..=5).contains(&writes), "{writes}");
        // The caller learns of every failure from now on.
        w.next(0, proclaims, Fate::RequestLost);
        w.give(0, |m, now| m.proclaim(now, slot, (*b"more").into(), 2));
        w.run(secs(10));
        assert!(w.nodes[0].proclaimed[1].1.is_err());
        assert_eq!(w.count(0, proclaims), writes + 1);
    }
}

#[test]
fn refused_announcement_that_is_owed_is_repeated_with_pauses() {
    let proclaims = |ask: &Ask| matches!(ask, Ask::Proclaim { .. });
    let mut w = World::new(1, 1);
    let slot = w.campaign(0);
    w.until("a join is under way", secs(1), |w| w.count(0, joins) == 1);
    w.the_next(1000, 0, proclaims, Fate::Refused(Class::Retry));
    w.give(0, |m, now| m.proclaim(now, slot, (*b"news").into(), 1));
    w.run(secs(10));
    assert!((3..20).contains(&w.count(0, proclaims)));
}

#[test]
fn late_announcement_does_not_overwrite_a_newer_one() {
    for late in [ms(400), ms(900)] {
        let mut w = World::seated(1);
        let proclaims = |ask: &Ask| matches!(ask, Ask::Proclaim { .. });
        w.next(0, proclaims, Fate::Late(late));
        w.give(0, |m, now| m.proclaim(now, 1, (*b"older").into(), 1));
        w.give(0, |m, now| m.proclaim(now, 1, (*b"newer").into(), 2));
        w.run(secs(2));
        let results: Vec<_> = w.nodes[0]
            .proclaimed
            .iter()
            .map(|(t, r)| (*t, r.is_ok()))
            .collect();
        assert_eq!(results, [(1, false), (2, true)]);
        assert_eq!(*w.store.queue(E)[0].value, *b"newer");
    }
}

#[test]
fn announcements_whose_answer_was_lost_are_followed_by_newer_ones() {
    let mut w = World::seated(1);
    let proclaims = |ask: &Ask| matches!(ask, Ask::Proclaim { .. });
    w.next(0, proclaims, Fate::AnswerLost);
    w.give(0, |m, now| m.proclaim(now, 1, (*b"older").into(), 1));
    for (ticket, value) in [(2, b"value"), (3, b"newer")] {
        w.give(0, |m, now| m.proclaim(now, 1, value[..].into(), ticket));
    }
    w.run(secs(2));
    assert_eq!(*w.store.queue(E)[0].value, *b"newer");
    // The writes are one for each of the first, its repetition with the present mod revision, and the newest.
    assert_eq!(w.count(0, proclaims), 3);
}

#[test]
fn announcements_one_after_another_take_one_write_each() {
    let mut w = World::seated(1);
    let proclaims = |ask: &Ask| matches!(ask, Ask::Proclaim { .. });
    for (ticket, value) in [(1, b"older"), (2, b"newer")] {
        w.give(0, |m, now| m.proclaim(now, 1, value[..].into(), ticket));
        w.run(ms(100));
    }
    assert_eq!(*w.store.queue(E)[0].value, *b"newer");
    assert_eq!(w.count(0, proclaims), 2);
}

#[test]
fn announcement_in_an_adopted_key_takes_one_write() {
    let mut w = World::new(1, 1);
    let proclaims = |ask: &Ask| matches!(ask, Ask::Proclaim { .. });
    w.next(0, joins, Fate::AnswerLost);
    let slot = w.campaign(0);
    w.until("it stands", secs(1), |w| !w.store.queue(E).is_empty());
    // The store's revision is higher when the key is adopted.
    w.store.put(&key("other"), b"", 0);
    w.publish();
    w.run(secs(1));
    w.give(0, |m, now| m.proclaim(now, slot, (*b"news").into(), 1));
    w.run(ms(100));
    assert_eq!(*w.store.queue(E)[0].value, *b"news");
    assert_eq!(w.count(0, proclaims), 1);
}

#[test]
fn deleted_or_overwritten_key_gets_no_announcement() {
    for written_over in [false, true] {
        let mut w = World::seated(1);
        w.relink(0, |l| l.watches_stalled = true);
        let key = w.nodes[0].key(E).unwrap();
        if written_over {
            w.overwrite(&key);
        } else {
            w.delete(&key);
        }
        let stood = w.store.entry(&key);
        w.give(0, |m, now| m.proclaim(now, 1, (*b"news").into(), 1));
        w.run(ms(100));
        assert!(w.nodes[0].proclaimed[0].1 == Ok(false));
        assert_eq!(w.store.entry(&key), stood);
    }
}

#[test]
fn calls_that_wait_to_announce_are_answered_when_the_candidate_leaves() {
    let mut w = World::seated(1);
    let proclaims = |ask: &Ask| matches!(ask, Ask::Proclaim { .. });
    w.next(0, proclaims, Fate::AnswerLost);
    for ticket in 1..=2 {
        w.give(0, |m, now| m.proclaim(now, 1, (*b"value").into(), ticket));
    }
    w.drop_leadership(0, E);
    w.run(secs(2));
    assert_eq!(w.nodes[0].proclaimed.len(), 2);
}

#[test]
fn a_join_whose_answer_was_lost_is_adopted_once() {
    let mut w = World::new(1, 1);
    w.next(0, joins, Fate::AnswerLost);
    w.campaign(0);
    w.until("it leads", secs(1), |w| w.leads(0));
    assert_eq!(w.count(0, joins), 2);
    assert_eq!(w.store.queue(E)[0].create_revision, w.elected[0].token);
    w.run(secs(20));
    w.check_settled();
    assert_eq!((w.elected.len(), w.count(0, deletes)), (1, 0));
}

#[test]
fn overwritten_key_of_a_lost_join_is_not_adopted() {
    let mut w = World::new(1, 1);
    w.next(0, joins, Fate::AnswerLost);
    w.campaign(0);
    w.until("done", secs(1), |w| !w.store.queue(E).is_empty());
    w.overwrite(&w.nodes[0].key(E).unwrap());
    w.until("it leads", secs(1), |w| w.leads(0));
    let stood = |note: &Note| matches!(note, Note::Joined { .. });
    assert_eq!(w.nodes[0].noted(stood), 1, "by a key of its own");
    w.run(secs(1));
    w.check_settled();
}

/// Other clients write meanwhile.
#[test]
fn value_in_an_adopted_key_is_announced_by_one_write() {
    let mut w = World::new(1, 1);
    w.next(0, joins, Fate::AnswerLost);
    let slot = w.campaign(0);
    w.until("done", secs(1), |w| !w.store.queue(E).is_empty());
    w.store.put(&key("other"), b"", 0);
    w.until("it leads", secs(1), |w| w.leads(0));
    w.give(0, |m, now| m.proclaim(now, slot, (*b"news").into(), 1));
    w.run(secs(1));
    let proclaims = |ask: &Ask| matches!(ask, Ask::Proclaim { .. });
    assert_eq!(w.count(0, proclaims), 1);
    assert_eq!(*w.store.queue(E)[0].value, *b"news");
}

#[test]
fn candidate_leaving_under_another_lease_searches_no_key_of_the_lost_one() {
    let mut w = World::new(1, 1);
    w.next(0, joins, Fate::RequestLost);
    w.campaign(0);
    w.until("lost", secs(1), |w| {
        w.nodes[0].noted(|note| matches!(note, Note::JoinFailed { .. })) == 1
    });
    w.hold_back(0, E, true);
    w.give(0, |m, now| m.lose_lease(now, LostReason::LeaseLost));
    w.run(secs(1));
    assert!(w.nodes[0].lease().is_some());
    w.leave(0, E);
    w.run(ms(100));
    assert!(w.nodes[0].candidate(E).unwrap().1.ended.is_some());
    assert_eq!(w.count(0, finds), 0);
}

#[test]
fn a_join_that_arrives_after_its_repetition_makes_no_second_key() {
    let mut w = World::new(2, 1);
    w.next(0, joins, Fate::Late(secs(2)));
    w.campaign(0);
    w.until("it leads", secs(1), |w| w.leads(0));
    w.campaign(1);
    w.run(secs(1));
    // The key is deleted in between, so the late put creates it again, without an owner.
    w.drop_leadership(0, E);
    w.run(ms(50));
    w.until("the late put arrives", secs(2), |w| {
        w.store.queue(E).len() == 2
    });
    assert!(w.leads(1));
    w.run(secs(10));
    w.check_settled();
    assert_eq!(w.store.queue(E).len(), 1, "swept");
}

#[test]
fn a_candidate_that_left_after_a_lost_join_leaves_no_key() {
    let mut w = World::new(1, 1);
    w.campaign(0);
    w.next(0, joins, Fate::AnswerLost);
    w.until("sent", secs(1), |w| w.count(0, joins) == 1);
    w.run(ms(100));
    w.leave(0, E);
    assert!(
        w.nodes[0].candidate(E).unwrap().1.ended.is_none(),
        "not before it is certain"
    );
    w.until("it has left", secs(1), |w| {
        w.nodes[0].candidate(E).unwrap().1.ended.is_some()
    });
    assert!(w.store.queue(E).is_empty());
    assert_eq!(w.count(0, finds), 1);
}

#[test]
fn a_put_delayed_beyond_its_candidates_leaving_is_swept() {
    // The put arrives before the sweeps that follow a lost join, or after the first of them.
    for late in [secs(3), secs(10)] {
        let mut w = World::seated(1);
        w.next(0, joins, Fate::Late(late));
        w.join(0, b"f/", WatchScope::Auto, false);
        w.run(ms(5));
        w.leave(0, b"f/");
        w.until("it arrives", secs(11), |w| !w.store.queue(b"f/").is_empty());
        w.run(secs(20));
        w.check_settled();
        assert!(w.store.queue(b"f/").is_empty(), "{late:?}");
        assert!(w.leads(0));
    }
}

#[test]
fn candidate_leaving_during_an_earlier_join_does_not_free_its_key() {
    // The join is lost, or is slow but answered.
    for fate in [Fate::RequestLost, Fate::Delayed(ms(200))] {
        let mut w = World::new(1, 1);
        w.next(0, joins, fate);
        w.campaign(0);
        w.until("sent", secs(1), |w| w.count(0, joins) == 1);
        // Two candidacies end and begin again, before the first knows the result of its join.
        for _ in 0..2 {
            w.leave(0, E);
            w.run(ms(5));
            w.campaign(0);
            w.run(ms(5));
        }
        w.until("the last leads", secs(2), |w| w.leads(0));
        w.run(secs(3));
        assert!(w.leads(0));
        assert_eq!(
            w.elected.len(),
            1,
            "what the first looks for is not the last one's key: {fate:?}"
        );
    }
}

#[test]
fn key_whose_deletion_was_requested_is_never_adopted() {
    // The deletion is lost, so the key still exists when the node comes back.
    for fate in [Fate::RequestLost, Fate::AnswerLost, Fate::Late(secs(2))] {
        let mut w = World::seated(2);
        let token = w.elected[0].token;
        w.the_next(2, 0, deletes, fate);
        w.drop_leadership(0, E);
        assert!(w.join(0, E, WatchScope::Auto, false).is_some());
        w.run(ms(100));
        assert_eq!(
            w.count(0, joins),
            1,
            "it waits for the deletion to be confirmed"
        );
        w.run(secs(10));
        assert!(w.leads(1), "{fate:?}");
        assert!(w.elected.iter().all(|e| e.node != 0 || e.token == token));
        assert_eq!(w.nodes[0].status(E), Some(Status::waiting(1)));
        w.check_settled();
    }
}

#[test]
fn leaving_ends_only_when_the_deletion_is_confirmed() {
    let mut w = World::seated(2);
    w.the_next(3, 1, deletes, Fate::AnswerLost);
    w.leave(1, E);
    w.run(ms(250));
    assert!(w.nodes[1].candidate(E).unwrap().1.ended.is_none());
    w.until("confirmed", secs(3), |w| {
        w.nodes[1].candidate(E).unwrap().1.ended.is_some()
    });
    assert_eq!(w.count(1, deletes), 4);
}

#[test]
fn leaving_while_the_last_terms_key_is_not_gone_waits_for_it() {
    let mut w = World::seated(2);
    w.nodes[0].work = Work::Never;
    w.end(0, E, eldest_core::reason::LostReason::LeaseExpiring);
    w.the_next(3, 0, deletes, Fate::RequestLost);
    w.drop_leadership(0, E);
    w.leave(0, E);
    w.run(ms(200));
    let candidate = w.nodes[0].candidate(E).unwrap().1;
    assert!(candidate.ended.is_none(), "the key still stands");
    w.until("confirmed", secs(3), |w| {
        w.nodes[0].candidate(E).unwrap().1.ended.is_some()
    });
    assert_eq!(w.store.queue(E).len(), 1);
}

#[test]
fn new_candidate_receives_permanent_refusals() {
    for (class, persistent, ends) in [
        (Class::Denied, false, true),
        (Class::Denied, true, true),
        (Class::Invalid, true, true),
        (Class::Backoff, false, true),
        (Class::Auth, false, true),
        (Class::Backoff, true, false),
        (Class::Auth, true, false),
        (Class::Retry, false, false),
        // Another connection authenticates again.
        (Class::Stale, false, false),
    ] {
        for kind in [joins as fn(&Ask) -> bool, grants] {
            let mut w = World::new(1, 1);
            w.the_next(3, 0, kind, Fate::Refused(class));
            w.join(0, E, WatchScope::Auto, persistent);
            w.run(secs(5));
            let candidate = w.nodes[0].candidate(E).unwrap().1;
            let refused = candidate
                .ended
                .as_ref()
                .map(|(r, t)| (*r, t.as_ref().map(|t| t.class)));
            let expected = ends.then_some((EndReason::Refused, Some(class)));
            assert_eq!(refused, expected, "{class:?} persistent {persistent}");
            assert_eq!(w.leads(0), !ends);
            assert_eq!(candidate.registered, !ends);
            w.check_settled();
        }
    }
}

#[test]
fn refusal_after_an_earlier_success_ends_only_a_single_attempt() {
    for (class, at_once, ends) in [
        (Class::Auth, false, false),
        (Class::Backoff, false, false),
        (Class::Stale, false, false),
        (Class::Stale, true, false),
        (Class::Auth, true, true),
        (Class::Backoff, true, true),
        (Class::Denied, false, true),
    ] {
        let mut w = World::seated(1);
        w.the_next(3, 0, joins, Fate::Refused(class));
        let lock = b"lock/";
        w.acquire(0, lock, at_once);
        w.run(secs(5));
        let candidate = w.nodes[0].candidate(lock).unwrap().1;
        let refused = candidate.ended.as_ref().map(|(reason, _)| *reason);
        assert_eq!(
            refused,
            ends.then_some(EndReason::Refused),
            "{class:?} at once {at_once}"
        );
        assert_eq!(candidate.registered, !ends, "{class:?} at once {at_once}");
        assert!(w.leads(0), "the other election goes on");
    }
}

#[test]
fn candidate_that_had_a_key_retries_after_any_refusal() {
    for class in [
        Class::Denied,
        Class::Invalid,
        Class::Backoff,
        Class::Auth,
        Class::Stale,
    ] {
        let mut w = World::seated(2);
        w.the_next(3, 0, joins, Fate::Refused(class));
        w.revoke(w.nodes[0].lease().unwrap());
        w.run(secs(5));
        assert_eq!(w.nodes[0].status(E), Some(Status::waiting(1)));
    }
}

#[test]
fn answers_of_an_earlier_attempt_are_dropped() {
    // The join under the first lease is answered when the second lease exists.
    let mut w = World::new(1, 1);
    w.campaign(0);
    w.next(0, joins, Fate::Slow(ms(250)));
    w.until("sent", secs(1), |w| w.count(0, joins) == 1);
    w.run(ms(20));
    w.give(0, |m, now| {
        m.lose_lease(now, eldest_core::reason::LostReason::LeaseLost);
    });
    w.run(secs(20));
    w.check_settled();
    assert_eq!(w.elected.len(), 1);
    assert_eq!(w.count(0, joins), 2);
}

#[test]
fn searched_key_is_left_to_the_candidate_that_owns_it() {
    // No search for the key may run while it has an owner. If one ran, as a bug once did, its work must be awaited all
    // the same.
    let mut w = World::seated(1);
    let key = Arc::clone(&w.store.queue(E)[0].key);
    w.give(0, |m, now| m.remove(now, &key, None, None));
    w.until("it was looked for", secs(1), |w| w.count(0, finds) == 1);
    w.run(secs(5));
    assert!(w.leads(0));
    assert_eq!(w.elected.len(), 1, "one term, never disturbed");
    assert_eq!(w.count(0, deletes), 0);
}

#[test]
fn known_keys_are_kept_during_a_search() {
    let mut w = World::seated(1);
    let key: Arc<[u8]> = (*b"elsewhere").into();
    w.store.put(&key, b"", 0);
    let create_revision = w.store.entry(&key).unwrap().create_revision;
    w.next(0, finds, Fate::Slow(ms(50)));
    w.give(0, |m, now| m.remove(now, &key, None, None));
    w.give(0, |m, now| m.remove(now, &key, Some(create_revision), None));
    w.until("it is gone", secs(1), |w| !w.store.contains(&key));
}

#[test]
fn failed_deletion_is_paused_for_all_its_requesters() {
    let mut w = World::seated(1);
    w.the_next(100, 0, deletes, Fate::Refused(Class::Backoff));
    w.drop_leadership(0, E);
    // Candidates that begin and leave wait for the same deletion.
    for _ in 0..10 {
        w.campaign(0);
        w.run(ms(5));
        w.leave(0, E);
        w.run(ms(5));
    }
    assert_eq!(w.count(0, deletes), 1);
}
