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
fn failing_join_is_sent_at_growing_intervals() {
    let tried = tried(joins);
    assert!((5..20).contains(&tried), "{tried}");
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
