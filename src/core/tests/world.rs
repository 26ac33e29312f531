//! Virtual time, the network, and the driver's part: what the machines ask is done, delayed or lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::node::{Message, Node, Work};
use super::store::{Key, Store};
use crate::core::action::{Action, Answer, Ask, Class, RequestId, SlotId, TermId, WatchId};
use crate::core::machine::Machine;
use crate::core::reason::EndReason;
use crate::core::time::Time;

/// What becomes of one request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fate {
    RequestLost,
    AnswerLost,
    /// It arrives so much later, and its answer is lost.
    Late(Duration),
    /// It is answered so much later.
    Slow(Duration),
    /// Refused without effect.
    Refused(Class),
}

/// The fate of the next requests of one kind.
pub(super) struct Rule {
    pub(super) node: usize,
    pub(super) what: fn(&Ask) -> bool,
    pub(super) fate: Fate,
    pub(super) times: usize,
}

/// What reaches a node.
pub(super) enum Event {
    Answer {
        request: RequestId,
        answer: Answer,
        /// The keepalive stream that comes back with it: its generation and lease.
        stream: Option<(u64, Option<i64>)>,
    },
    Watched {
        generation: u64,
        message: Message,
    },
    Joined {
        slot: SlotId,
        term: TermId,
    },
}

/// What happens next in the world.
pub(super) enum Ev {
    /// A request reaches etcd; `back` is how long its answer takes, if it may arrive.
    Arrive {
        request: RequestId,
        ask: Ask,
        stream: Option<(u64, Option<i64>)>,
        sent: Time,
        back: Option<Duration>,
    },
    Register {
        generation: u64,
        id: WatchId,
        key: Key,
        prefix: bool,
        first: bool,
    },
    Cancel {
        generation: u64,
        id: WatchId,
    },
    Progress {
        generation: u64,
    },
    Deliver(Event),
    Do(Box<dyn FnOnce(&mut World)>),
}

/// A watch as etcd holds it.
pub(super) struct Watcher {
    pub(super) node: usize,
    pub(super) generation: u64,
    pub(super) id: WatchId,
    pub(super) key: Key,
    pub(super) prefix: bool,
    pub(super) last: Time,
}

/// A term that began.
#[derive(Debug, Clone)]
pub(super) struct Elected {
    pub(super) node: usize,
    pub(super) prefix: Key,
    pub(super) token: i64,
}

/// `SplitMix64`.
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }
}

pub(super) struct World {
    pub(super) now: Time,
    pub(super) store: Store,
    pub(super) nodes: Vec<Node>,
    pub(super) asked: Vec<(Time, usize, Ask)>,
    pub(super) rules: Vec<Rule>,
    pub(super) elected: Vec<Elected>,
    /// Keys that somebody else deleted or wrote over, by their create revision: their terms may overlap the next.
    pub(super) touched: BTreeSet<i64>,
    /// How long such terms overlapped the next.
    pub(super) overlaps: BTreeMap<i64, (Time, Time)>,
    /// Tokens count from anew, because the store was exchanged.
    pub(super) restored: bool,
    /// Messages take from a fifth of it up to this long.
    pub(super) delay: Duration,
    pub(super) prefixes: BTreeSet<Key>,
    pub(super) lives: Vec<u64>,
    inboxes: Vec<Vec<Event>>,
    queue: BTreeMap<(Time, u64), (usize, u64, Ev)>,
    count: u64,
    pub(super) rng: Rng,
    pub(super) watchers: Vec<Watcher>,
}

impl World {
    pub(super) fn new(nodes: usize, seed: u64) -> Self {
        Self {
            now: Time::ZERO,
            store: Store::new(),
            nodes: (0..nodes as u64)
                .map(|n| Node::new(seed ^ (n + 1)))
                .collect(),
            asked: Vec::new(),
            rules: Vec::new(),
            elected: Vec::new(),
            touched: BTreeSet::new(),
            overlaps: BTreeMap::new(),
            restored: false,
            delay: Duration::from_millis(1),
            prefixes: BTreeSet::new(),
            lives: vec![0; nodes],
            inboxes: (0..nodes).map(|_| Vec::new()).collect(),
            queue: BTreeMap::new(),
            count: seed,
            rng: Rng(seed),
            watchers: Vec::new(),
        }
    }

    /// One more, which does nothing yet.
    pub(super) fn add_node(&mut self) {
        let seed = self.rng.below(u64::MAX);
        self.nodes.push(Node::new(seed));
        self.lives.push(0);
        self.inboxes.push(Vec::new());
    }

    // ---- time

    pub(super) fn schedule(&mut self, at: Time, node: usize, ev: Ev) {
        self.count += 1;
        let life = self.lives.get(node).copied().unwrap_or_default();
        self.queue.insert((at, self.count), (node, life, ev));
    }

    /// Does something to the world after a while.
    pub(super) fn after(&mut self, wait: Duration, act: impl FnOnce(&mut World) + 'static) {
        let at = self.now.after(wait);
        self.schedule(at, usize::MAX, Ev::Do(Box::new(act)));
    }

    pub(super) fn hop(&mut self) -> Duration {
        let micros = self.delay.as_micros() as u64;
        Duration::from_micros(micros / 5 + self.rng.below(micros * 4 / 5))
    }

    fn next_tick(&self) -> Option<(Time, usize)> {
        let awake = self
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, n)| !n.paused && !n.closed());
        awake
            .filter_map(|(i, n)| Some((n.world(n.machine.next_timeout()?).max(self.now), i)))
            .min()
    }

    /// The next thing that happens, unless that is later than `until`.
    pub(super) fn step(&mut self, until: Time) -> bool {
        let event = self.queue.keys().next().map(|(at, _)| (*at).max(self.now));
        let tick = self.next_tick();
        let expiry = self.store.next_expiry().map(|at| at.max(self.now));
        let first = [event, tick.map(|(at, _)| at), expiry];
        let Some(at) = first.into_iter().flatten().min().filter(|at| *at <= until) else {
            self.now = until;
            return false;
        };
        self.now = at;
        if event == Some(at) {
            if let Some((_, (node, life, ev))) = self.queue.pop_first() {
                self.happen(node, life, ev);
            }
        } else if expiry == Some(at) {
            self.store.expire(at);
        } else if let Some((_, node)) = tick {
            self.give(node, Machine::tick);
        }
        self.publish();
        self.check();
        true
    }

    pub(super) fn run(&mut self, wait: Duration) {
        let until = self.now.after(wait);
        while self.step(until) {}
    }

    /// Runs until it is so; panics if that takes longer than `most`.
    pub(super) fn until(&mut self, what: &str, most: Duration, so: impl Fn(&World) -> bool) {
        let until = self.now.after(most);
        while !so(self) {
            assert!(self.step(until), "not within {most:?}: {what}");
        }
    }

    // ---- the nodes' side

    pub(super) fn deliver(&mut self, node: usize, event: Event) {
        if self.nodes[node].paused {
            self.inboxes[node].push(event);
            return;
        }
        match event {
            Event::Answer {
                request,
                answer,
                stream,
            } => {
                if let Some((generation, lease)) = stream
                    && generation == self.nodes[node].generation
                {
                    self.nodes[node].stream = lease;
                }
                self.give(node, |m, now| m.answer(now, request, answer));
            }
            Event::Watched {
                generation,
                message,
            } => {
                let n = &mut self.nodes[node];
                if generation != n.watch_generation {
                    return;
                }
                if n.link.watches_stalled || n.link.answers_lost {
                    n.held.push((generation, message));
                    return;
                }
                self.give(node, |m, now| match message {
                    Message::Created { id, revision } => m.watch_created(now, id, revision),
                    Message::Events { id, changes } => m.watch_events(now, id, changes),
                    Message::Progress { revision } => m.watch_progress(revision),
                    Message::Canceled { id } => m.watch_canceled(now, id, "model".to_owned()),
                    Message::Broken => m.watch_lost(now, "model".to_owned()),
                });
            }
            Event::Joined { slot, term } => self.joined(node, slot, term),
        }
    }

    /// The work of a term has ended, or its leadership was dropped.
    pub(super) fn joined(&mut self, node: usize, slot: SlotId, term: TermId) {
        if let Some(t) = self.nodes[node].terms.iter_mut().find(|t| t.id == term) {
            t.joined = true;
            // As `Claim::joined`: views say no before the key may go.
            t.until = Time::ZERO;
        }
        self.give(node, |m, now| m.work_joined(now, slot, term));
    }

    /// The process goes on; its clock has.
    pub(super) fn resume(&mut self, node: usize) {
        self.nodes[node].paused = false;
        for event in std::mem::take(&mut self.inboxes[node]) {
            self.deliver(node, event);
        }
    }

    pub(super) fn relink(&mut self, node: usize, change: impl FnOnce(&mut super::node::Link)) {
        change(&mut self.nodes[node].link);
        let link = &self.nodes[node].link;
        if !link.watches_stalled && !link.answers_lost {
            let held = std::mem::take(&mut self.nodes[node].held);
            let held = held
                .into_iter()
                .map(|(generation, message)| Event::Watched {
                    generation,
                    message,
                });
            // What a paused node finds when it goes on is in the order of the stream.
            let later = std::mem::take(&mut self.inboxes[node]);
            for event in held.chain(later).collect::<Vec<_>>() {
                self.deliver(node, event);
            }
        }
    }

    /// The process dies and another takes its place.
    pub(super) fn kill(&mut self, node: usize) {
        self.lives[node] += 1;
        self.watchers.retain(|w| w.node != node);
        self.inboxes[node].clear();
        let seed = self.rng.below(u64::MAX);
        let old = std::mem::replace(&mut self.nodes[node], Node::new(seed));
        let new = &mut self.nodes[node];
        (new.offset, new.rate_ppm) = (old.offset, old.rate_ppm);
        (new.link, new.work) = (old.link, old.work);
    }

    /// Lets the node's machine do something, and does what it wants done.
    pub(super) fn give(&mut self, node: usize, act: impl FnOnce(&mut Machine, Time)) {
        let n = &mut self.nodes[node];
        if n.closed() {
            return;
        }
        let now = n.local(self.now);
        n.watchdog(now);
        act(&mut n.machine, now);
        while let Some(action) = self.nodes[node].machine.action() {
            self.act(node, action);
        }
    }

    pub(super) fn act(&mut self, node: usize, action: Action) {
        match action {
            Action::Ask { request, ask } => self.send(node, request, ask),
            Action::Watch { watch, key, prefix } => {
                let n = &mut self.nodes[node];
                let first = !std::mem::replace(&mut n.watching, true);
                n.watch_generation += u64::from(first);
                let generation = n.watch_generation;
                let at = self.now.after(self.hop());
                let register = Ev::Register {
                    generation,
                    id: watch,
                    key,
                    prefix,
                    first,
                };
                self.schedule(at, node, register);
            }
            Action::Unwatch { watch } => {
                let generation = self.nodes[node].watch_generation;
                let at = self.now.after(self.hop());
                self.schedule(
                    at,
                    node,
                    Ev::Cancel {
                        generation,
                        id: watch,
                    },
                );
            }
            Action::Progress => {
                let generation = self.nodes[node].watch_generation;
                let at = self.now.after(self.hop());
                self.schedule(at, node, Ev::Progress { generation });
            }
            Action::HangUpWatches { .. } => {
                let n = &mut self.nodes[node];
                n.watch_generation += 1;
                n.watching = false;
                self.watchers.retain(|w| w.node != node);
            }
            Action::TermEnded { slot, term, .. } => {
                if let Work::After(wait) = self.nodes[node].work {
                    let at = self.now.after(wait);
                    self.schedule(at, node, Ev::Deliver(Event::Joined { slot, term }));
                }
                self.nodes[node].told(action);
            }
            Action::Elected { slot, .. } => {
                if let Some((prefix, token)) = self.nodes[node].elected(&action) {
                    self.check_election(node, prefix, token);
                }
                // As `Resource::elected`: the candidate is dropped when it has what it waited for.
                if self.nodes[node].seats[&slot].brief {
                    self.give(node, |m, now| m.leave(now, slot, EndReason::Left));
                }
            }
            Action::Taken {
                member,
                partition,
                slot,
            } => self.taken(node, member, partition, slot),
            other => self.nodes[node].told(other),
        }
    }

    pub(super) fn stands_for(&mut self, prefix: &Key) {
        self.prefixes.insert(Arc::clone(prefix));
    }

    pub(super) fn prefixes(&self) -> Vec<Key> {
        self.prefixes.iter().cloned().collect()
    }
}
