//! Tests sessions with different settings: those that may not lead leave the way to others, and come back when they may.

use crate::tests::challenges::*;
use crate::tests::key;
use crate::world::promise::Invariant;
use crate::world::{Fate, World};
use eldest_core::action::Class;
use eldest_core::candidate::WatchScope;
use eldest_core::txn::{Txn, When};

/// The sessions of the first two allow challenges, and nobody behind them does.
const MIXED: [Duration; 3] = [LEAD, LEAD, Duration::ZERO];

fn deny(w: &mut World, node: usize, is_denied: bool) {
    w.relink(node, |l| l.sessions_denied = is_denied);
}

/// Makes the leader leave.
fn leave_first(w: &mut World) {
    w.drop_leadership(0, E);
    w.leave(0, E);
}

fn stands(w: &World, node: usize) -> bool {
    let lease = w.nodes[node].lease();
    w.store.queue(E).iter().any(|e| Some(e.lease) == lease)
}

#[test]
fn first_candidate_that_may_not_read_its_anchor_lets_the_next_lead() {
    let mut w = seated_with(&MIXED);
    deny(&mut w, 1, true);
    w.run(LEAD * 4);
    assert!(stands(&w, 1), "it is in nobody's way");
    let lease = w.nodes[1].lease();
    leave_first(&mut w);
    w.until("the next leads", LEAD, |w| w.leads(2));

    let joined = w.count(1, joins);
    w.run(TTL * 2);
    assert!(!stands(&w, 1) && w.count(1, joins) == joined);
    deny(&mut w, 1, false);
    w.until("it stands again", LEAD, |w| stands(w, 1));
    assert_eq!(w.nodes[1].lease(), lease);
    w.run(TTL);
    assert!(w.leads(2) && w.count(1, joins) == joined + 1);
    w.check_settled();
}

/// One refusal came before many reads that got no answer.
#[test]
fn refusals_are_counted_while_no_read_is_unanswered() {
    let mut w = seated_with(&MIXED);
    w.next(1, reads_cleanly, Fate::Refused(Class::Denied));
    w.run(LEAD / 3);
    w.the_next(usize::MAX, 1, reads_cleanly, Fate::AnswerLost);
    w.run(LEAD * 2);
    leave_first(&mut w);
    w.run(LEAD);
    w.rules.clear();
    w.next(1, reads_cleanly, Fate::Refused(Class::Denied));
    w.until("it leads", LEAD, |w| w.leads(1));
}

/// The answers come too late for the session, and in time for others.
#[test]
fn first_candidate_whose_reads_are_too_slow_lets_the_next_lead() {
    let lead = ms(180);
    let mut w = seated_with(&[LEAD, lead, Duration::ZERO]);
    w.the_next(usize::MAX, 1, reads_cleanly, Fate::Slow(ms(200)));
    w.run(lead * 4);
    leave_first(&mut w);
    w.until("the next leads", lead * 2, |w| w.leads(2));
    w.rules.clear();
    w.until("it stands again", ms(500), |w| stands(w, 1));
}

/// Its session stands in one election, and has let others lead.
#[test]
fn new_candidate_of_a_session_that_may_not_read_its_anchor_is_refused() {
    let mut w = seated_with(&MIXED);
    deny(&mut w, 1, true);
    w.run(LEAD * 4);
    leave_first(&mut w);
    w.until("the next leads", LEAD, |w| w.leads(2));
    let slot = w.join(1, b"f/", WatchScope::Auto, false).unwrap();
    w.run(LEAD);
    assert!(w.nodes[1].candidates[&slot].ended.is_some());
    assert!(w.store.queue(b"f/").is_empty());
}

/// Makes a world in which the sessions with these leads have joined in their order, and the first leads.
fn seated_with(leads: &[Duration]) -> World {
    let mut w = World::of(SETTINGS, leads.len(), 1);
    for (node, lead) in leads.iter().enumerate() {
        w.set_lead(node, *lead);
        w.campaign(node);
        w.run(ms(20));
    }
    assert!(w.leads(0));
    w
}

/// The challenger's clock is as fast as it may be, the leader's as slow, and no margin is left.
#[test]
fn clocks_at_the_bound_leave_no_overlap() {
    let bound = 100_000;
    let settings = Settings {
        drift_ppm: bound as u32,
        tight: true,
        ..SETTINGS
    };
    let mut w = World::of(settings, 2, 1);
    for (node, rate) in [(0, -bound), (1, bound)] {
        w.nodes[node].member.rate_ppm = rate;
        w.campaign(node);
        w.run(ms(20));
    }
    until_read(&mut w, 0);
    w.pause(0, secs(4));
    suspect(&mut w, 1, 0);
    // A term that is valid when its key is deleted breaks the story.
    w.until("it is replaced", LEAD * 2, |w| w.leads(1));
}

#[test]
fn step_of_a_session_without_challenges_breaks_a_promise() {
    for parties in [(0, 1), (1, 0)] {
        let mut w = seated_with(&[Duration::ZERO, LEAD]);
        w.recording = false;
        let own = w.store.queue(E)[parties.1].clone();
        let when = vec![
            When::NotCreated(key("~session/0"), 1),
            When::Created(own.key, own.create_revision),
        ];
        let ask = Ask::Transact(Txn {
            when,
            then: Vec::new(),
            otherwise: Vec::new(),
        });
        w.transact(parties.0, &ask);
        let broken = w.broken.map(|broken| broken.invariant);
        assert_eq!(broken, Some(Invariant::Plain));
    }
}

/// The first node goes on leading for a while after its last clean read.
#[test]
fn overlap_after_an_anchor_was_deleted_is_excused_no_longer() {
    let mut w = seated(2);
    until_read(&mut w, 0);
    w.pause(0, secs(4));
    w.delete_anchor(0, false);
    suspect(&mut w, 1, 0);
    let leads = |w: &World, node: usize| w.nodes[node].valid(E, w.now).is_some();
    w.until("both lead", ms(50), |w| leads(w, 0) && leads(w, 1));
    w.recording = false;
    let lead = w.nodes[0].lead.clone().unwrap();
    lead.deadline.set(lead.deadline.get().after(LEAD * 2));
    w.run(LEAD * 2);
    assert_eq!(w.broken.unwrap().invariant, Invariant::Overlap);
}
