//! Tests the reported age of observers' views: never too young, and young while etcd answers.

use super::*;
use crate::tests::{E, TTL, key};
use crate::world::World;
use eldest_core::kv::Reach;
use eldest_core::time::Time;

const F: &[u8] = b"f/";
/// The observer's slots and their prefixes.
const LOOKS: [(u64, &[u8]); 2] = [(u64::MAX, E), (u64::MAX - 1, F)];

/// A change: the time at which etcd accepted it, by the observer's clock, its prefix, and its revision.
type Accepted = (Time, &'static [u8], i64);

fn age(w: &World, slot: u64) -> Option<std::time::Duration> {
    let n = &w.nodes[0];
    let as_of = n.complete.get(&slot)?.as_of(n.confirmed)?;
    Some(n.local(w.now).since(as_of))
}

fn check(w: &World, accepted: &[Accepted]) {
    let n = &w.nodes[0];
    for (slot, prefix) in LOOKS {
        let as_of = n.complete.get(&slot).and_then(|c| c.as_of(n.confirmed));
        let Some(as_of) = as_of else { continue };
        let seen = n.observed.iter().rev().find(|(of, ..)| *of == slot);
        let (_, seen, _) = seen.expect("it was shown something");
        for (at, _, revision) in accepted.iter().filter(|(_, of, _)| *of == prefix) {
            assert!(
                *at >= as_of || revision <= seen,
                "revision {revision} was accepted before {as_of:?}, and only {seen} is shown"
            );
        }
    }
}

fn change(w: &mut World, prefix: &'static [u8], accepted: &mut Vec<Accepted>) {
    let name = key(&format!(
        "{}{}",
        String::from_utf8_lossy(prefix),
        w.rng.u64(..4)
    ));
    if w.store.contains(&name) && w.rng.bool() {
        w.store.delete(&name);
    } else {
        w.store.put(&name, b"", 0);
    }
    w.publish();
    accepted.push((w.nodes[0].local(w.now), prefix, w.store.revision()));
}

fn looking(seed: u64) -> World {
    let mut w = World::new(1, seed);
    for (slot, prefix) in LOOKS {
        w.give(0, |m, now| {
            m.observe(now, slot, prefix.into(), Reach::Children);
        });
    }
    w
}

#[test]
fn no_observer_is_assured_of_changes_that_it_has_not_seen() {
    for seed in 0..300 {
        let mut w = looking(seed);
        let mut accepted = Vec::new();
        // In a quiet store the probe alone confirms the view.
        let many = if seed % 2 == 0 { 40 } else { 800 };
        for _ in 0..400 {
            w.plan.delay = ms(w.rng.u64(2..200));
            match w.rng.u64(..many) {
                0 => w.relink(0, |l| l.watches_stalled = true),
                1 | 2 => w.relink(0, |l| l.watches_stalled = false),
                3 => w.relink(0, |l| l.answers_lost = true),
                4 | 5 => w.relink(0, |l| l.answers_lost = false),
                6 => w.disturb_watches(0, true),
                7 => w.disturb_watches(0, false),
                8 => w.compact(0),
                9..20 => change(&mut w, E, &mut accepted),
                20..30 => change(&mut w, F, &mut accepted),
                _ => {}
            }
            let pause = w.rng.u64(1..100);
            w.run(ms(pause));
            check(&w, &accepted);
        }
        w.plan.delay = ms(2);
        w.relink(0, |l| *l = crate::world::node::Link::default());
        w.run(TTL * 2);
        check(&w, &accepted);
        for (slot, _) in LOOKS {
            let age = age(&w, slot);
            assert!(age < Some(TTL / 3 + ms(50)), "{age:?}");
        }
    }
}
