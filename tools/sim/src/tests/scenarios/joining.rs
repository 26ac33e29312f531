//! Tests how a key comes to exist, which session owns it, and how its value changes.

use crate::tests::asks::{joins, secs};
use crate::tests::scenarios::*;
use crate::tests::{E, key};
use crate::world::{Fate, World};
use eldest_core::action::Class;
use eldest_core::candidate::WatchScope;
use eldest_core::reason::EndReason;

#[test]
fn announcement_meant_for_the_join_is_repeated_until_made() {
    for fate in [Fate::RequestLost, Fate::AnswerLost] {
        let mut w = World::new(1, 1);
        let slot = w.campaign(0);
        w.until_sent(0, joins);
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
fn announcements_one_after_another_take_one_write_each() {
    let mut w = World::seated(1);
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
            let refused = w.nodes[0].ended_at(E);
            let refused = refused.map(|(r, t)| (*r, t.as_ref().map(|t| t.class)));
            let expected = ends.then_some((EndReason::Refused, Some(class)));
            assert_eq!(refused, expected, "{class:?} persistent {persistent}");
            assert_eq!(w.leads(0), !ends);
            assert_eq!(candidate.registered, !ends);
            w.check_settled();
        }
    }
}

/// Joins two elections, both requested in the one turn in which the lease is granted.
fn two_elections(w: &mut World) {
    w.plan.together = true;
    for election in [b"e/", b"f/"] {
        w.join(0, election, eldest_core::candidate::WatchScope::Auto, false);
    }
}

fn created(w: &World) -> Vec<i64> {
    w.store.entries().map(|e| e.create_revision).collect()
}

#[test]
fn joins_that_were_lost_together_are_adopted_each() {
    let mut w = World::new(1, 1);
    w.next(0, joins, Fate::AnswerLost);
    two_elections(&mut w);
    let both = |w: &World| w.leader(b"e/").is_some() && w.leader(b"f/").is_some();
    w.until("both lead", secs(3), both);
    assert_eq!(created(&w), [2, 2], "put once");
    assert_eq!(w.tally.of("joins lost together"), 1);
}

/// A kind of request, with the class by which etcd refuses each of them, the beginning of the story, and the kind that is repeated.
type Refused = (fn(&Ask) -> bool, Class, fn(&mut World), fn(&Ask) -> bool);

#[test]
fn refused_requests_are_repeated_at_growing_intervals() {
    let campaigns = |w: &mut World| {
        w.campaign(0);
    };
    let refused: [Refused; 4] = [
        (joins, Class::Retry, campaigns, joins),
        // The endpoints belong to two clusters: one grants the lease, the other does not know it.
        (joins, Class::LeaseGone, campaigns, grants),
        (reads, Class::Retry, reads_again, reads),
        (proclaims, Class::Retry, announces, proclaims),
    ];
    for (number, (what, class, begins, repeated)) in refused.into_iter().enumerate() {
        let mut w = World::new(1, 1);
        w.the_next(usize::MAX, 0, what, Fate::Refused(class));
        begins(&mut w);
        w.run(secs(10));
        let tried = w.count(0, repeated);
        assert!((3..20).contains(&tried), "row {number}: {tried}");
    }
}

fn reads_again(w: &mut World) {
    w.campaign(0);
    w.run(ms(100));
    w.disturb_watches(0, true);
}

/// The caller learns at once that its value goes with the join; the session owes it to the key from then on.
fn announces(w: &mut World) {
    let slot = w.campaign(0);
    w.until_sent(0, joins);
    w.give(0, |m, now| m.proclaim(now, slot, (*b"news").into(), 1));
}
