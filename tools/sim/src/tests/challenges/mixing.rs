//! Tests sessions with different settings in one election: some allow no challenges, and others lead longer than some.

use super::*;
use crate::tests::key;
use crate::world::World;
use crate::world::promise::Invariant;
use eldest_core::txn::{Txn, When};

/// Makes a world in which the sessions with these leads have joined in their order, and the first leads.
pub(super) fn seated_with(leads: &[Duration]) -> World {
    let mut w = World::of(SETTINGS, leads.len(), 1);
    for (node, lead) in leads.iter().enumerate() {
        w.set_lead(node, *lead);
        w.campaign(node);
        w.run(ms(20));
    }
    assert!(w.leads(0));
    w
}

/// The session is the next to lead, and another one condemns the leader.
#[test]
fn session_without_challenges_condemns_nobody() {
    let mut w = seated_with(&[LEAD, Duration::ZERO, LEAD]);
    w.pause(0, TTL);
    suspect(&mut w, 1, 0);
    w.run(wait() * 2);
    assert_eq!((w.leader(E), standing(&w)), (None, 0));
    suspect(&mut w, 2, 0);
    w.until("the next leads", wait() + ms(50), |w| w.leads(1));
    assert_eq!(w.count(1, challenges) + w.count(1, condemns), 0);
    assert_eq!(w.count(1, reads_cleanly), 0);
    w.run(TTL * 3);
    w.check_settled();
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
        w.nodes[node].rate_ppm = rate;
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
