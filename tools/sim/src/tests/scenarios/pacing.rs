//! Counts how often a session repeats requests that etcd refuses at once: each kind is sent at growing intervals.

use super::*;
use crate::world::{Fate, World};
use eldest_core::action::Class;

/// Returns how many requests of that kind a new candidate sends in ten seconds in which etcd refuses each of them
/// within 2 ms.
fn tried(what: fn(&Ask) -> bool) -> usize {
    let mut w = World::new(1, 1);
    w.the_next(usize::MAX, 0, what, Fate::Refused(Class::Retry));
    w.campaign(0);
    w.run(secs(10));
    w.count(0, what)
}

#[test]
fn failing_grant_is_requested_at_growing_intervals() {
    let tried = tried(grants);
    assert!((5..20).contains(&tried), "{tried}");
}

#[test]
fn failing_join_is_sent_at_growing_intervals() {
    let tried = tried(joins);
    assert!((5..20).contains(&tried), "{tried}");
}

/// The pauses are no longer than the request timeout, for the lease is about to expire.
#[test]
fn failing_keepalive_stream_is_reopened_at_growing_intervals() {
    let mut w = World::seated(1);
    w.the_next(usize::MAX, 0, opens, Fate::Refused(Class::Retry));
    w.until("the first", secs(3), |w| w.count(0, opens) == 1);
    // This lasts while the lease is trusted; afterwards it is renewed differently.
    w.run(secs(2));
    let tried = w.count(0, opens);
    assert!((5..15).contains(&tried), "{tried}");
}

#[test]
fn failing_read_of_the_queue_is_repeated_at_growing_intervals() {
    let mut w = World::seated(1);
    w.the_next(usize::MAX, 0, reads, Fate::Refused(Class::Retry));
    w.disturb_watches(0, true);
    w.run(secs(10));
    let tried = w.count(0, reads);
    assert!((5..20).contains(&tried), "{tried}");
}
