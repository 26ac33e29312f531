//! Runs sessions, their etcd and the network between them in virtual time, in place of the library's driver. The
//! cores' requests are executed, delayed or lost, and the invariants are checked after every step.

mod acting;
mod anchors;
pub(crate) mod announcing;
pub(crate) mod batch;
pub(crate) mod challenging;
pub(crate) mod cluster;
pub(crate) mod counter;
pub(crate) mod doubts;
pub(crate) mod driver;
mod evacuating;
pub(crate) mod home;
mod invariants;
pub(crate) mod leaving;
mod listening;
mod message;
mod mutated;
pub(crate) mod net;
pub(crate) mod node;
mod noting;
pub(crate) mod observers;
mod pace;
pub(crate) mod partitions;
pub(crate) mod promise;
pub(crate) mod settings;
pub(crate) mod step;
pub(crate) mod store;
pub(crate) mod suspecting;
pub(crate) mod tally;
mod trace;
pub(crate) mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use counter::{Counter, Effect};
use doubts::Anchors;
use message::Message;
use node::Node;
use observers::Past;
use promise::Broken;
use settings::Settings;
use step::Step;
use store::{Key, Store};
use tally::Tally;

use crate::mutant::Mutant;
use crate::plan::{Beside, Plan};
use eldest_core::action::{Answer, Ask, Class, RequestId, SlotId, TermId, WatchId};
use eldest_core::time::Time;
use eldest_core::version::Version;

/// The fate of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    RequestLost,
    AnswerLost,
    /// The request arrives that much later, and its answer is lost.
    Late(Duration),
    /// The request arrives that much later, and is answered if that is in time.
    Delayed(Duration),
    /// The answer comes that much later.
    Slow(Duration),
    /// The request is applied in time, and once more that much later.
    Twice(Duration),
    /// The request is refused without effect.
    Refused(Class),
    /// The request is carried out, and a later part of the same operation is refused, such as another page of a join's
    /// read.
    RefusedLater(Class),
}

/// The fate of the next requests of one kind.
pub(crate) struct Rule {
    pub(crate) node: usize,
    pub(crate) what: Box<dyn Fn(&Ask) -> bool>,
    pub(crate) fate: Fate,
    pub(crate) times: usize,
}

/// A node that is stopped for a while when it has sent its next request of one kind, or later.
pub(crate) struct Stop {
    pub(crate) node: usize,
    pub(crate) what: Box<dyn Fn(&Ask) -> bool>,
    /// The time from the request to the stop.
    pub(crate) wait: Duration,
    pub(crate) lasts: Duration,
}

/// An event that reaches a node.
pub(crate) enum Event {
    Answer {
        request: RequestId,
        answer: Answer,
        /// The keepalive stream that the answer opens: its generation and lease.
        stream: Option<(u64, Option<i64>)>,
        /// True if no answer came in time.
        timeout: bool,
    },
    /// The answers of etcd to a transaction of a batch, for the driver to take up.
    Sent {
        sending: Box<batch::Sending>,
        answers: Vec<Answer>,
        timeout: bool,
    },
    /// The answers to requests that shared a transaction; with the last of a batch, its result about the size of later
    /// batches.
    Answers {
        answers: Vec<(RequestId, Answer)>,
        kind: eldest_core::batcher::Kind,
        last: Option<eldest_core::batcher::Outcome>,
    },
    Watched {
        generation: u64,
        /// The number in the order of the node's messages.
        number: u64,
        message: Message,
    },
    Joined {
        slot: SlotId,
        term: TermId,
    },
    Effect(Effect),
}

impl Event {
    /// Returns true if a timer of the node's runtime causes it; such timers stand still while the machine is suspended.
    fn is_timed(&self) -> bool {
        match self {
            Event::Answer { timeout, .. } | Event::Sent { timeout, .. } => *timeout,
            Event::Watched { .. } | Event::Answers { .. } => false,
            Event::Joined { .. } => true,
            Event::Effect(effect) => effect.waited(),
        }
    }
}

/// The arrival of a request at etcd, given true if the node's process lives.
type Arrival = Box<dyn FnOnce(&mut World, bool)>;

/// An event of the world.
pub(crate) enum Ev {
    /// A request of a node reaches etcd.
    Arrive(Arrival),
    /// An event reaches a process.
    Deliver(Event),
    /// An act that is forgotten if its process is killed; that of [`NOBODY`] never is.
    Do(Box<dyn FnOnce(&mut World)>),
}

/// The node of acts that belong to no process.
const NOBODY: usize = usize::MAX;

/// A watch as etcd holds it.
pub(crate) struct Watcher {
    pub(crate) node: usize,
    pub(crate) generation: u64,
    pub(crate) id: WatchId,
    pub(crate) key: Key,
    pub(crate) prefix: bool,
    pub(crate) last: Time,
}

impl Watcher {
    pub(crate) fn sees(&self, key: &[u8]) -> bool {
        if self.prefix {
            key.starts_with(&self.key)
        } else {
            *key == *self.key
        }
    }
}

/// A prefix below which etcd refuses a node's watches.
pub(crate) struct Forbidden {
    pub(crate) node: usize,
    pub(crate) prefix: Key,
    /// True if the node may read there: its stream has an old token, and its requests have a new one.
    pub(crate) readable: bool,
}

/// A term that began.
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "tests of single rules look at it")
)]
#[derive(Debug, Clone)]
pub(crate) struct Elected {
    pub(crate) node: usize,
    pub(crate) prefix: Key,
    pub(crate) token: i64,
}

/// A prize that several nodes may want and a limited number may hold: an election, a lock, a semaphore, a partition.
#[derive(Debug)]
pub(crate) struct Prize {
    pub(crate) prefix: Key,
    pub(crate) capacity: usize,
    /// The terms whose work has not ended. Only if they exceed the capacity can too many be valid.
    pub(crate) open: usize,
    pub(crate) newest: i64,
    /// The newest token of a term that excludes all others.
    pub(crate) newest_alone: i64,
    pub(crate) counter: Counter,
}

/// One line of a trace.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) at: Time,
    pub(crate) node: Option<usize>,
    pub(crate) what: String,
    /// True if the node sends a request.
    pub(crate) asks: bool,
    /// The step of a challenge that the request makes.
    pub(crate) step: Option<Step>,
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) settings: Settings,
    pub(crate) plan: Plan,
    pub(crate) store: Store,
    pub(crate) nodes: Vec<Node>,
    /// The time at which the driver of each node is to be woken.
    pub(crate) wakes: Vec<Time>,
    /// True if every request and report is recorded and a broken invariant panics; for the tests of single rules.
    pub(crate) recording: bool,
    pub(crate) asked: Vec<(Time, usize, Ask)>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) stops: Vec<Stop>,
    /// Prefixes that nodes may not watch.
    pub(crate) forbidden: Vec<Forbidden>,
    pub(crate) elected: Vec<Elected>,
    /// Keys that another client deleted or overwrote, with their create revision: their terms may overlap the next.
    pub(crate) touched: BTreeSet<(i64, Key)>,
    /// How long such terms overlapped the next, by their prize and their token, which partitions may share.
    pub(crate) overlaps: BTreeMap<(usize, i64), (Time, Time)>,
    /// How long terms overlapped if one of them had a clock beyond the stated bound.
    pub(crate) skewed: BTreeMap<(usize, i64), (Time, Time)>,
    /// True if tokens count from the start again, because the store was exchanged.
    pub(crate) restored: bool,
    /// True if leaders do guarded work.
    pub(crate) working: bool,
    pub(crate) anchors: Anchors,
    /// The tokens of the terms whose state was ever saved in each key.
    saved_states: BTreeMap<Key, BTreeSet<i64>>,
    /// The newest version that led each election since its mark was last removed.
    newest_led: BTreeMap<Key, Version>,
    /// How many keys a session may have; each is checked in turn.
    pub(crate) turns: u32,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) broken: Option<Broken>,
    pub(crate) trace: Option<Vec<Line>>,
    pub(crate) prizes: Vec<Prize>,
    places: BTreeMap<Key, usize>,
    /// Prizes with more open terms than the capacity.
    crowded: usize,
    pub(crate) lives: Vec<u64>,
    pub(crate) inboxes: Vec<Vec<Event>>,
    /// The future events by time and, at the same instant, in the order of their planning; each with its node and that node's life.
    agenda: BTreeMap<(Time, u64), (usize, u64, Ev)>,
    planned: u64,
    pub(crate) watchers: Vec<Watcher>,
    /// The histories of all observed prefixes, and how many observers were ever started.
    pub(crate) pasts: Vec<Past>,
    pub(crate) looks: u64,
    pub(crate) steps: u64,
    pub(crate) tally: Tally,
}

impl World {
    pub(crate) fn with(settings: Settings, plan: Plan, nodes: usize) -> Self {
        let mut world = Self {
            settings,
            plan,
            turns: 2,
            ..Self::default()
        };
        (0..nodes).for_each(|_| world.add_node());
        world
    }

    /// Adds a node, which does nothing yet.
    pub(crate) fn add_node(&mut self) {
        let identity = self.nodes.len();
        let mut node = Node::new(self.settings, self.plan.seed ^ (identity as u64 + 1));
        (node.identity, node.recording) = (identity, self.recording);
        self.nodes.push(node);
        self.wakes.push(Time::MAX);
        self.lives.push(0);
        self.inboxes.push(Vec::new());
    }

    pub(crate) fn says(&mut self, node: Option<usize>, what: impl FnOnce() -> String) {
        let at = self.now;
        if let Some(trace) = &mut self.trace {
            let what = what();
            trace.push(Line {
                at,
                node,
                what,
                asks: false,
                step: None,
            });
        }
    }

    /// Gives that fate to the node's next request of that kind.
    pub(crate) fn next(&mut self, node: usize, what: impl Fn(&Ask) -> bool + 'static, fate: Fate) {
        self.the_next(1, node, what, fate);
    }

    pub(crate) fn the_next(
        &mut self,
        times: usize,
        node: usize,
        what: impl Fn(&Ask) -> bool + 'static,
        fate: Fate,
    ) {
        self.rules.retain(|rule| rule.times > 0);
        self.rules.push(Rule {
            node,
            what: Box::new(what),
            fate,
            times,
        });
    }

    /// Makes etcd refuse the node's watches below the prefix from now on, and its reads there unless it is readable.
    pub(crate) fn forbid(&mut self, node: usize, prefix: &[u8], readable: bool) {
        self.forbidden.push(Forbidden {
            node,
            prefix: prefix.into(),
            readable,
        });
    }

    pub(crate) fn has_partitions(&self) -> bool {
        self.plan.beside == Beside::Partitions
    }

    // ---- time

    pub(crate) fn schedule(&mut self, at: Time, node: usize, ev: Ev) {
        let life = self.lives.get(node).copied().unwrap_or_default();
        self.plan_at(at, (node, life, ev));
    }

    fn plan_at(&mut self, at: Time, planned: (usize, u64, Ev)) {
        self.planned += 1;
        self.agenda.insert((at, self.planned), planned);
    }

    /// Plans an action on the world after a while.
    pub(crate) fn after(&mut self, wait: Duration, act: impl FnOnce(&mut World) + 'static) {
        self.in_life(NOBODY, wait, act);
    }

    /// Plans an action after a while, unless the node's process is killed before.
    pub(crate) fn in_life(
        &mut self,
        node: usize,
        wait: Duration,
        act: impl FnOnce(&mut World) + 'static,
    ) {
        self.schedule(self.now.after(wait), node, Ev::Do(Box::new(act)));
    }

    /// Returns how long a message takes from that node to etcd, or back.
    pub(crate) fn hop(&mut self, node: usize) -> Duration {
        let micros = self.plan.delay.as_micros() as u64;
        self.lasts(node, micros / 5..micros)
    }

    /// Draws microseconds. Each node draws from numbers of its own, so that a node that sends more changes no other.
    pub(crate) fn lasts(&mut self, node: usize, micros: Range<u64>) -> Duration {
        let drawn = self
            .plan
            .drawn
            .then(|| self.nodes[node].draws.u64(micros.clone()));
        Duration::from_micros(drawn.unwrap_or(micros.end))
    }

    /// Returns the earliest time that a core waits for, and its node.
    fn next_tick(&self) -> (Time, usize) {
        let due = self.wakes.iter().enumerate().map(|(i, at)| (*at, i)).min();
        due.unwrap_or((Time::MAX, 0))
    }

    /// Updates the time at which the node's driver is to be woken, after a possible change.
    pub(super) fn note_wake(&mut self, node: usize) {
        let n = &self.nodes[node];
        let asleep = n.paused || n.closed() || n.inbox.busy();
        let due = n.due.filter(|_| !asleep);
        self.wakes[node] = due.map_or(Time::MAX, |due| due.max(n.alarm));
    }

    /// Carries out the next event, unless it is later than `until`.
    pub(crate) fn step(&mut self, until: Time) -> bool {
        let first = self.agenda.first_key_value();
        let event = first.map_or(Time::MAX, |((at, _), _)| (*at).max(self.now));
        let (tick, node) = self.next_tick();
        let at = event.min(tick.max(self.now)).min(until);
        let expiry = self.store.next_expiry(at).map(|at| at.max(self.now));
        let at = expiry.unwrap_or(at);
        if expiry.is_none() && event > until && tick > until {
            self.now = until;
            return false;
        }
        self.now = at;
        self.steps += 1;
        if event == at {
            if let Some((_, (node, life, ev))) = self.agenda.pop_first() {
                self.happen(node, life, ev);
            }
        } else if expiry.is_some() {
            self.expire();
        } else {
            self.ring(node);
        }
        self.publish();
        if self.crowded > 0 {
            self.check();
        }
        true
    }

    fn expire(&mut self) {
        let now = self.now;
        if self.trace.is_some() {
            for lease in self.store.due(now) {
                self.says(None, || format!("etcd: lease {lease:x} expires"));
            }
        }
        self.store.expire(now);
    }

    pub(crate) fn run(&mut self, wait: Duration) {
        let until = self.now.after(wait);
        while self.broken.is_none() && self.step(until) {}
    }

    /// Runs until the condition holds, and returns true if it did in time.
    pub(crate) fn within(&mut self, most: Duration, so: impl Fn(&World) -> bool) -> bool {
        let until = self.now.after(most);
        while self.broken.is_none() && !so(self) {
            if !self.step(until) {
                return false;
            }
        }
        true
    }

    pub(crate) fn prize_of(&mut self, prefix: &Key) -> usize {
        if let Some(place) = self.places.get(prefix) {
            return *place;
        }
        self.places.insert(Arc::clone(prefix), self.prizes.len());
        self.prizes.push(Prize {
            prefix: Arc::clone(prefix),
            capacity: cluster::capacity_of(prefix),
            open: 0,
            newest: 0,
            newest_alone: 0,
            counter: Counter::default(),
        });
        self.prizes.len() - 1
    }

    pub(crate) fn prefixes(&self) -> Vec<Key> {
        self.places.keys().cloned().collect()
    }

    /// Returns the events of the world and of all nodes.
    pub(crate) fn total_tally(&self) -> Tally {
        let mut tally = self.tally.clone();
        for node in &self.nodes {
            tally += &node.tally;
        }
        tally
    }
}
