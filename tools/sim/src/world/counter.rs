//! Simulates the guarded work of leaders: a counter for each election. Every write to it compares the leader's key, as
//! `Term::txn` does.

use std::sync::Arc;
use std::time::Duration;

use super::promise::Invariant;
use super::store::Key;
use super::{Ev, Event, World};
use crate::mutant::Mutant;
use eldest_core::queue::is_shared;

/// The counter in the store, and the leaders' knowledge of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counter {
    value: u64,
    /// The version, raised by every write.
    version: u64,
    /// The token of the newest write.
    token: i64,
    /// The increments that were confirmed, and those without an answer.
    confirmed: u64,
    unknown: u64,
}

/// A step of guarded work on the leader's side.
#[derive(Debug, Clone)]
pub(crate) struct Effect {
    prize: usize,
    key: Key,
    token: i64,
    step: Step,
}

#[derive(Debug, Clone)]
enum Step {
    /// The leader begins, if its term is valid.
    Begin,
    /// The read value; the leader checks its term once more, and writes.
    Found {
        value: u64,
        version: u64,
    },
    Written {
        done: bool,
    },
}

impl Effect {
    /// Returns true if the leader waited for this step by a timer.
    pub(super) fn waited(&self) -> bool {
        matches!(self.step, Step::Begin)
    }
}

/// The pause between two increments.
const PAUSE: Duration = Duration::from_millis(1500);

impl World {
    /// Begins the work of a new leader.
    pub(super) fn begin_work(&mut self, node: usize, prize: usize, token: i64) {
        if !self.working || self.prizes[prize].capacity > 1 {
            return;
        }
        let Some(key) = self.nodes[node].terms.last().map(|t| Arc::clone(&t.key)) else {
            return;
        };
        // Readers write nothing.
        if is_shared(&key) {
            return;
        }
        let effect = Effect {
            prize,
            key,
            token,
            step: Step::Begin,
        };
        self.effect_later(node, effect);
    }

    fn effect_later(&mut self, node: usize, effect: Effect) {
        let wait = Duration::from_millis(self.nodes[node].draws.u64(..PAUSE.as_millis() as u64));
        let at = self.now.after(wait);
        self.schedule(at, node, Ev::Deliver(Event::Effect(effect)));
    }

    /// Does a step on the leader's side, after checking that the term is valid.
    pub(super) fn work_on(&mut self, node: usize, effect: Effect) {
        let now = self.now;
        let valid = self.nodes[node]
            .valid_terms(now)
            .any(|t| t.token == effect.token && t.prize == effect.prize);
        let counter = &mut self.prizes[effect.prize].counter;
        if let Step::Written { done } = effect.step {
            counter.unknown -= 1;
            counter.confirmed += u64::from(done);
        }
        if !valid {
            return;
        }
        self.check_work(node, effect.prize, (&effect.key, effect.token));
        self.check_clean(node);
        match effect.step {
            Step::Begin => {
                if !self.nodes[node].link.requests_lost {
                    let (hop, read) = (self.hop(node), effect.clone());
                    self.after(hop, move |w| w.read_counter(node, read));
                }
                // The leader does not wait for an answer that does not come.
                self.effect_later(node, effect);
            }
            Step::Found { value, version } => {
                // The process may be stopped here: after its check, and before its write is sent.
                let stopped = self.nodes[node].draws.u8(..) < 24;
                let wait = if stopped {
                    let most = self.settings.ttl.as_micros() as u64 * 3;
                    Duration::from_micros(self.nodes[node].draws.u64(..most))
                } else {
                    self.hop(node)
                };
                self.prizes[effect.prize].counter.unknown += 1;
                self.after(wait, move |w| {
                    w.write_counter(node, effect, (value + 1, version));
                });
            }
            Step::Written { .. } => {}
        }
    }

    /// Reads the counter on the store's side.
    fn read_counter(&mut self, node: usize, effect: Effect) {
        if self.store.headless.is_none() {
            let Counter { value, version, .. } = self.prizes[effect.prize].counter;
            self.answer_effect(node, effect, Step::Found { value, version });
        }
    }

    /// Writes the counter on the store's side, if it has that version.
    fn write_counter(&mut self, node: usize, effect: Effect, (value, version): (u64, u64)) {
        if self.store.headless.is_some() {
            return;
        }
        let stands = self.store.holds(&effect.key, effect.token);
        let guarded = self.mutant != Some(Mutant::Unguarded);
        let counter = &mut self.prizes[effect.prize].counter;
        let done = !guarded || (stands && counter.version == version);
        self.tally.add("stale writes refused", (!stands).into());
        self.tally.add("guarded writes", done.into());
        if done {
            let (newest, token) = (counter.token, effect.token);
            counter.value = value;
            counter.version += 1;
            counter.token = newest.max(token);
            self.store.bump(1);
            if token < newest || !stands {
                let what = format!("a stale write of {token} was admitted after {newest}");
                self.broken(Invariant::Fencing, what);
            }
        }
        self.check_counter(effect.prize);
        self.answer_effect(node, effect, Step::Written { done });
    }

    fn answer_effect(&mut self, node: usize, effect: Effect, step: Step) {
        if !self.nodes[node].link.answers_lost {
            let at = self.now.after(self.hop(node));
            let effect = Effect { step, ..effect };
            self.schedule(at, node, Ev::Deliver(Event::Effect(effect)));
        }
    }

    /// Checks I3: every confirmed increment counts, and none that was not requested.
    pub(crate) fn check_counter(&mut self, prize: usize) {
        let c = &self.prizes[prize].counter;
        if !(c.confirmed..=c.confirmed + c.unknown).contains(&c.value) {
            let what = format!(
                "the counter is {}, after {} confirmed increments and {} unknown ones",
                c.value, c.confirmed, c.unknown
            );
            self.broken(Invariant::Fencing, what);
        }
    }
}
