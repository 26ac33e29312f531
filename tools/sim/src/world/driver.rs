//! Gives a node's core what reaches it and does what the core wants done, as the library's driver does.
//!
//! Where turns cost nothing, everything is taken up the moment it comes. Otherwise inputs wait while a turn goes on, and
//! the next turn takes one of them in the order of the core's [`Turns`]. What the core decides in a turn is done at its end:
//! that is the worst of what a busy or interrupted thread can do.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::batch::Sending;
use super::{Ev, Event, World, store};
use crate::world::message::Message;
use eldest_core::Core;
use eldest_core::action::{Answer, Ask, RequestId, SlotId, TermId};
use eldest_core::time::Time;
use eldest_core::turns::{IN_ONE_TURN, Source, Turns};

/// A request of a user's handle to the driver.
type Command = Box<dyn FnOnce(&mut World)>;

/// The events and commands that wait for the driver of one node.
#[derive(Default)]
pub(crate) struct Inbox {
    urgent: VecDeque<Event>,
    answers: VecDeque<Event>,
    watches: VecDeque<Event>,
    commands: VecDeque<Command>,
    /// Transactions of batches that are answered.
    sent: VecDeque<Event>,
    turns: Turns,
    /// Requests whose answers come first.
    urgent_requests: BTreeSet<RequestId>,
    turn: Turn,
}

/// How far the turn of a driver is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Turn {
    /// No turn is under way.
    #[default]
    Idle,
    /// Inputs are given to the core; what it wants done is left for later.
    Deciding,
    /// The turn takes its time. What the core wants done is done at the end.
    Busy,
    /// The time has passed while the process was stopped.
    Over,
}

/// How often something happened that must happen in some stories, or they show nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Happened {
    /// A turn left other inputs waiting.
    pub(crate) queued: u64,
    /// A timer stood still while the machine was suspended.
    pub(crate) stopped: u64,
    /// Joins shared a transaction, and nothing was heard of such a transaction.
    pub(crate) together: u64,
    pub(crate) lost_together: u64,
    /// Calls returned that a value is announced, or is not.
    pub(crate) announced: u64,
    pub(crate) not_announced: u64,
    /// Onlookers were shown a state, or were denied it.
    pub(crate) shown: u64,
    pub(crate) looks_failed: u64,
    /// The keys of a lease were read in pages.
    pub(crate) pages: u64,
    /// Somebody came to share a lock.
    pub(crate) shared: u64,
}

impl std::ops::AddAssign for Happened {
    fn add_assign(&mut self, other: Self) {
        self.queued += other.queued;
        self.stopped += other.stopped;
        self.together += other.together;
        self.lost_together += other.lost_together;
        self.announced += other.announced;
        self.not_announced += other.not_announced;
        self.shown += other.shown;
        self.looks_failed += other.looks_failed;
        self.pages += other.pages;
        self.shared += other.shared;
    }
}

/// The work of one turn.
enum Work {
    Event(Event),
    Due,
    Commands(Vec<Command>),
}

impl Inbox {
    /// Returns true if the driver takes nothing up at this moment.
    pub(super) fn busy(&self) -> bool {
        self.turn != Turn::Idle
    }

    /// A request is sent.
    pub(super) fn asked(&mut self, request: RequestId, ask: &Ask) {
        let urgent = matches!(
            ask,
            Ask::Grant { .. }
                | Ask::Open { .. }
                | Ask::Renew
                | Ask::Verify { .. }
                | Ask::Revoke { .. }
                | Ask::Sweep { .. }
        );
        if urgent {
            self.urgent_requests.insert(request);
        }
    }

    fn put(&mut self, event: Event) {
        let line = match &event {
            Event::Answer { request, .. } if self.urgent_requests.remove(request) => {
                &mut self.urgent
            }
            Event::Answer { .. } | Event::Answers { .. } => &mut self.answers,
            Event::Sent { .. } => &mut self.sent,
            _ => &mut self.watches,
        };
        line.push_back(event);
    }

    /// The next work.
    fn next(&mut self, due: bool) -> Option<Work> {
        let mut turns = self.turns;
        let work = turns.take(|source| self.take(source, due));
        self.turns = turns;
        work
    }

    fn take(&mut self, source: Source, due: bool) -> Option<Work> {
        let line = match source {
            Source::Urgent => &mut self.urgent,
            Source::Timers => return due.then_some(Work::Due),
            Source::Sending => &mut self.sent,
            Source::Commands => {
                let most = self.commands.len().min(IN_ONE_TURN);
                let commands: Vec<_> = self.commands.drain(..most).collect();
                return (!commands.is_empty()).then_some(Work::Commands(commands));
            }
            Source::Answers => &mut self.answers,
            Source::Watches => &mut self.watches,
        };
        line.pop_front().map(Work::Event)
    }

    fn is_empty(&self) -> bool {
        self.urgent.is_empty()
            && self.answers.is_empty()
            && self.sent.is_empty()
            && self.watches.is_empty()
            && self.commands.is_empty()
    }
}

impl World {
    /// Something reaches a node.
    pub(crate) fn deliver(&mut self, node: usize, event: Event) {
        let n = &mut self.nodes[node];
        if let Some(since) = n.suspended.filter(|_| event.is_timed()) {
            n.stopped.push((self.now.since(since), event));
            self.happened.stopped += 1;
            return;
        }
        if n.paused {
            self.inboxes[node].push(event);
            return;
        }
        match event {
            Event::Joined { slot, term } => self.joined(node, slot, term),
            Event::Effect(effect) => self.work_on(node, effect),
            event => {
                if let Some(event) = self.arrived(node, event) {
                    self.input(node, event);
                }
            }
        }
    }

    /// Returns the event if the network lets it through.
    #[inline]
    fn arrived(&mut self, node: usize, event: Event) -> Option<Event> {
        let Event::Watched {
            generation,
            number,
            message,
        } = event
        else {
            return Some(event);
        };
        let n = &mut self.nodes[node];
        // etcd does not tell how far a stream is while one of its watches is behind.
        let is_news = matches!(message, Message::Events { .. } | Message::Progress { .. });
        let lost = number < n.lost_below && is_news;
        let dead = n.dead_watches == Some(generation);
        if generation != n.watch_generation || lost || dead {
            return None;
        }
        if n.link.watches_stalled || n.link.answers_lost {
            n.held.push((generation, number, message));
            return None;
        }
        Some(Event::Watched {
            generation,
            number,
            message,
        })
    }

    #[inline]
    fn input(&mut self, node: usize, event: Event) {
        let event = self.answered_alone(node, event);
        if self.cost.is_zero() {
            self.take_up(node, event);
        } else {
            self.nodes[node].inbox.put(event);
            self.begin_turn(node);
        }
    }

    /// A handle asks something of the driver.
    pub(crate) fn command(&mut self, node: usize, act: impl FnOnce(&mut World) + 'static) {
        if self.cost.is_zero() {
            act(self);
        } else {
            self.nodes[node].inbox.commands.push_back(Box::new(act));
            self.begin_turn(node);
        }
    }

    /// The driver's timer rings.
    pub(super) fn ring(&mut self, node: usize) {
        if self.cost.is_zero() {
            self.give(node, Core::tick);
        } else {
            self.begin_turn(node);
        }
    }

    /// Takes up what waits, until a turn costs time or nothing is left.
    fn begin_turn(&mut self, node: usize) {
        loop {
            let now = self.now;
            let n = &mut self.nodes[node];
            if n.paused || n.inbox.busy() {
                return;
            }
            // The clock decides, not the timer, whatever woke the driver.
            let due = n.due.is_some_and(|due| due <= now) && !n.closed();
            let Some(work) = n.inbox.next(due) else {
                return;
            };
            n.inbox.turn = Turn::Deciding;
            self.happened.queued += u64::from(!n.inbox.is_empty());
            match work {
                Work::Event(event) => self.take_up(node, event),
                Work::Due => self.give(node, Core::tick),
                Work::Commands(commands) => commands.into_iter().for_each(|act| act(self)),
            }
            // Most turns cost next to nothing.
            let costs = self.nodes[node].draws.u8(..2) == 0;
            if costs && let Ok(most @ 1..) = u64::try_from(self.cost.as_micros()) {
                self.nodes[node].inbox.turn = Turn::Busy;
                let cost = Duration::from_micros(self.nodes[node].draws.u64(..=most));
                self.schedule(now.after(cost), node, Ev::TurnOver);
                self.note_wake(node);
                return;
            }
            self.end_turn(node);
        }
    }

    /// The time that a turn takes has passed.
    pub(super) fn turn_over(&mut self, node: usize) {
        if self.nodes[node].paused {
            self.nodes[node].inbox.turn = Turn::Over;
            return;
        }
        self.end_turn(node);
        self.begin_turn(node);
    }

    /// Carries out the core's decisions of this turn.
    fn end_turn(&mut self, node: usize) {
        self.nodes[node].inbox.turn = Turn::Idle;
        self.give(node, |_, _| {});
    }

    /// The driver takes an event up.
    #[inline]
    fn take_up(&mut self, node: usize, event: Event) {
        match event {
            Event::Answer {
                request,
                answer,
                stream,
                ..
            } => {
                if let Some((generation, lease)) = stream
                    && generation == self.nodes[node].generation
                {
                    self.nodes[node].stream = lease;
                }
                self.says_answer(node, request, &answer);
                self.nodes[node].count_lost_take(request, &answer);
                let answer = self.altered(node, request, answer);
                self.give(node, |m, now| m.answer(now, request, answer));
            }
            Event::Sent {
                sending, answers, ..
            } => self.take_up_sent(node, *sending, answers),
            Event::Answers {
                mut answers,
                kind,
                last,
            } => {
                self.nodes[node].batcher.answered(kind, last);
                for (request, answer) in &mut answers {
                    self.says_answer(node, *request, answer);
                    *answer = self.altered(node, *request, answer.clone());
                }
                self.give(node, |m, now| {
                    for (request, answer) in answers {
                        m.answer(now, request, answer);
                    }
                });
            }
            Event::Watched {
                generation,
                message,
                ..
            } => {
                if generation != self.nodes[node].watch_generation {
                    return;
                }
                self.says_message(node, &message);
                let Some(message) = self.filtered(node, generation, message) else {
                    return;
                };
                self.give(node, |m, now| match message {
                    Message::Created { id, header } => m.watch_created(now, id, header),
                    Message::Events { id, term, changes } => m.watch_events(now, id, term, changes),
                    Message::Progress { header } => m.watch_progress(header),
                    Message::Refused { id } => m.watch_refused(now, id, store::denied()),
                    Message::Canceled { id } => m.watch_canceled(now, id, "model".to_owned()),
                    Message::Broken => m.watch_lost(now, "model".to_owned()),
                });
            }
            Event::Joined { .. } | Event::Effect(_) => {}
        }
    }

    /// The driver polls a transaction that is answered: its answers wait for their turn among the others.
    fn take_up_sent(&mut self, node: usize, sending: Sending, answers: Vec<Answer>) {
        let Some(event) = self.sent(node, sending, answers) else {
            return;
        };
        if self.cost.is_zero() {
            self.take_up(node, event);
        } else {
            self.nodes[node].inbox.put(event);
        }
    }

    /// The work of a term has ended, or its leadership was dropped.
    pub(crate) fn joined(&mut self, node: usize, slot: SlotId, term: TermId) {
        if let Some(prize) = self.nodes[node].ended(term) {
            self.says(Some(node), || format!("the work of term {term} has ended"));
            self.close_term(prize);
        }
        self.command(node, move |w| {
            w.give(node, |m, now| m.work_joined(now, slot, term));
        });
    }

    /// Lets the node's core do something, and does what it wants done: at once, or at the end of the driver's turn.
    pub(crate) fn give(&mut self, node: usize, act: impl FnOnce(&mut Core, Time)) {
        let n = &mut self.nodes[node];
        if n.closed() {
            return;
        }
        let now = n.local(self.now);
        n.watchdog(now);
        act(&mut n.core, now);
        if n.inbox.turn == Turn::Deciding {
            return;
        }
        while let Some(action) = self.nodes[node].core.action() {
            self.act(node, action);
        }
        if self.together {
            self.flush(node);
        }
        let n = &mut self.nodes[node];
        let due = n.core.next_timeout();
        if n.due_local != due {
            n.due_local = due;
            n.due = due.map(|at| n.world(at));
        }
        self.note_wake(node);
    }

    // ---- stops of the process, and of the machine

    /// The machine is suspended: the process is stopped, and the timers of its runtime stand still. After it the driver's
    /// timer rings up to `late` later, unless something else wakes it.
    pub(crate) fn suspend(&mut self, node: usize, lasts: Duration, late: Duration) {
        let n = &mut self.nodes[node];
        if n.paused {
            return;
        }
        n.suspended = Some(self.now);
        self.pause(node, lasts);
        self.nodes[node].alarm = self.now.after(lasts + late);
    }

    /// The process goes on; its clock has.
    pub(crate) fn resume(&mut self, node: usize) {
        self.says(Some(node), || "goes on".to_owned());
        let n = &mut self.nodes[node];
        n.paused = false;
        n.suspended = None;
        let stopped = std::mem::take(&mut n.stopped);
        self.note_wake(node);
        for (wait, event) in stopped {
            self.schedule(self.now.after(wait), node, Ev::Deliver(event));
        }
        if self.cost.is_zero() {
            for event in std::mem::take(&mut self.inboxes[node]) {
                self.deliver(node, event);
            }
            return;
        }
        // All of it is there before the driver takes up the first.
        let before = std::mem::replace(&mut self.nodes[node].inbox.turn, Turn::Busy);
        for event in std::mem::take(&mut self.inboxes[node]) {
            self.deliver(node, event);
        }
        self.nodes[node].inbox.turn = before;
        self.note_wake(node);
        match before {
            Turn::Over => self.turn_over(node),
            Turn::Idle if !self.nodes[node].inbox.is_empty() => self.begin_turn(node),
            _ => {}
        }
    }
}
