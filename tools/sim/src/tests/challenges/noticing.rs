//! Tests that suspicions may be wrong or late: links between sessions are cut, challengers stop, requests come twice.

use super::*;
use crate::world::{Fate, World};

/// Makes a world in which the nodes suspect silent sessions by themselves.
fn watchful(nodes: usize) -> World {
    let mut w = seated(nodes);
    w.watch_for_silence();
    w
}

/// The links to etcd work, so that the leader answers.
#[test]
fn leader_that_another_node_does_not_hear_keeps_its_term() {
    let mut w = watchful(2);
    w.deafen(1, 0, LEAD * 5);
    w.run(LEAD * 4);
    assert!(w.count(1, challenges) > 0 && w.count(0, challenges) == 0);
    assert!(w.leads(0) && w.elected.len() == 1);
    w.run(LEAD * 2);
    assert_eq!(standing(&w), 0, "it hears the leader again");
    w.check_settled();
}

/// Each of the two nodes behind a leader stops hearing it, again and again, at any moment of its reads. Every suspicion that
/// counts here stood for the time to answer, and etcd refused the condemnation.
#[test]
fn ten_thousand_wrong_suspicions_of_leaders_end_no_term() {
    let (fast, steady) = (ms(400), secs(4));
    let leads = [fast, fast, fast, LEAD, steady].repeat(4);
    let mut refuted = 0;
    for (seed, lead) in std::iter::zip(0.., leads) {
        let settings = Settings { lead, ..SLOW };
        let mut w = World::of(settings, 3, seed);
        w.plan.delay = ms(20);
        for node in 0..3 {
            w.campaign(node);
            w.run(ms(100));
        }
        w.watch_for_silence();
        for _ in 0..500 {
            for node in [1, 2] {
                let lasts = lead.mul_f64(w.rng.f64() * 3.0);
                w.deafen(node, 0, lasts);
            }
            w.run(lead * 3);
            w.asked.clear();
            for what in ["condemned", "deleted by absence"] {
                assert_eq!(w.tally.of(what), 0);
            }
            assert!(w.leads(0) && w.elected.len() == 1);
        }
        w.run(lead);
        w.check_settled();
        refuted += w.tally.of("refuted");
    }
    assert!(refuted > 10_000, "{refuted}");
}

/// The leader waits for no session behind it.
#[test]
fn leader_that_hears_nobody_challenges_nobody() {
    let mut w = watchful(3);
    w.deafen(0, 1, LEAD * 3);
    w.deafen(0, 2, LEAD * 3);
    w.run(LEAD * 4);
    assert_eq!(w.count(0, challenges), 0);
    assert!(w.leads(0) && w.elected.len() == 1);
}

/// A session that renews its lease and does not lead though it is the first is as good as dead.
#[test]
fn first_session_that_does_not_lead_is_suspected() {
    let mut w = watchful(3);
    w.the_next(usize::MAX, 1, reads_cleanly, Fate::RequestLost);
    w.the_next(usize::MAX, 1, answers, Fate::RequestLost);
    w.run(LEAD * 2);
    w.leave(0, E);
    w.drop_leadership(0, E);
    w.until("it is replaced", LEAD * 5, |w| w.leads(2));
    assert_eq!(w.tally.of("condemned"), 1);
}

/// The second copy stands when the count of the first one is over.
#[test]
fn challenge_that_is_applied_twice_condemns_no_leader_that_answers() {
    let mut w = seated(2);
    w.next(1, challenges, Fate::Twice(wait().saturating_sub(ms(20))));
    w.relink(0, |l| l.watches_stalled = true);
    suspect(&mut w, 1, 0);
    w.until("it is too late", secs(4), |w| {
        w.tally.of("refuted") == 1
    });
    assert!(w.leads(0) && w.elected.len() == 1);
    w.run(LEAD);
    assert_eq!(standing(&w), 0, "the copy is answered, too");
}

/// The copy deletes the next challenge of a session that is stopped by then.
#[test]
fn answer_that_is_applied_twice_only_delays_a_condemnation() {
    let mut w = seated(2);
    w.next(0, answers, Fate::Twice(LEAD));
    suspect(&mut w, 1, 0);
    w.until("it answers", LEAD, |w| w.tally.of("answers") == 1);
    w.pause(0, secs(20));
    for refuted in [1, 0] {
        trust_again(&mut w, 1, 0);
        w.run(ms(200));
        suspect(&mut w, 1, 0);
        w.run(wait() + ms(20));
        let counts = std::mem::take(&mut w.tally);
        let counts = ["refuted", "condemned"].map(|what| counts.of(what));
        assert_eq!(counts, [refuted, 1 - refuted]);
    }
    assert!(w.leads(1));
}
