//! Gives a node's core its inputs and carries out its actions, as the library's driver does.
//!
//! If turns cost nothing, every input is taken up at once. Otherwise inputs wait while a turn lasts, and the next turn
//! takes one of them in the order of the core's [`Turns`]. The decisions of a turn take effect at its end, which is the
//! worst that a busy or interrupted thread can do.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::batch::Sending;
use super::{Ev, Event, World, store};
use crate::world::message::Message;
use eldest_core::Core;
use eldest_core::action::{Answer, Ask, RequestId, SlotId, TermId};
use eldest_core::time::Time;
use eldest_core::turns::{IN_ONE_TURN, Source, Turns};

/// The events and commands that wait for the driver of one node.
#[derive(Default)]
pub(crate) struct Inbox {
    /// The inputs of each [`Source`].
    waiting: [VecDeque<Input>; 6],
    turns: Turns,
    /// The requests whose answers are taken up first.
    urgent_requests: BTreeSet<RequestId>,
    turn: Turn,
}

/// The progress of a driver's turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Turn {
    /// There is no turn.
    #[default]
    Idle,
    /// The core receives inputs; its actions are kept for later.
    Deciding,
    /// The turn lasts. The core's actions are carried out at its end.
    Busy,
    /// The turn's time has passed while the process was stopped.
    Over,
}

/// An input that a driver takes up.
enum Input {
    Event(Event),
    /// A timer is due.
    Due,
    /// A request of a user's handle to the driver.
    Command(Box<dyn FnOnce(&mut World)>),
}

impl Inbox {
    /// Returns true if the driver takes up no input at this moment.
    pub(super) fn busy(&self) -> bool {
        self.turn != Turn::Idle
    }

    /// Records a sent request.
    pub(super) fn asked(&mut self, request: RequestId, ask: &Ask) {
        let urgent = matches!(
            ask,
            Ask::Grant { .. }
                | Ask::Open { .. }
                | Ask::Renew
                | Ask::Verify { .. }
                | Ask::Revoke { .. }
                | Ask::Sweep { .. }
                | Ask::Transact(_)
        );
        if urgent {
            self.urgent_requests.insert(request);
        }
    }

    fn put(&mut self, event: Event) {
        let source = match &event {
            Event::Answer { request, .. } if self.urgent_requests.remove(request) => Source::Urgent,
            Event::Answer { .. } | Event::Answers { .. } => Source::Answers,
            Event::Sent { .. } => Source::Sending,
            _ => Source::Watches,
        };
        self.waiting[source as usize].push_back(Input::Event(event));
    }

    /// Returns the inputs of the next turn.
    fn next(&mut self, due: bool) -> Option<Vec<Input>> {
        let mut turns = self.turns;
        let inputs = turns.take(|source| self.take(source, due));
        self.turns = turns;
        inputs
    }

    fn take(&mut self, source: Source, due: bool) -> Option<Vec<Input>> {
        let most = match source {
            Source::Timers => return due.then(|| vec![Input::Due]),
            Source::Commands => IN_ONE_TURN,
            _ => 1,
        };
        let waiting = &mut self.waiting[source as usize];
        let first = ..most.min(waiting.len());
        (!waiting.is_empty()).then(|| waiting.drain(first).collect())
    }

    fn is_empty(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty)
    }
}

impl World {
    /// Delivers an event to a node.
    pub(crate) fn deliver(&mut self, node: usize, event: Event) {
        let n = &mut self.nodes[node];
        if let Some(since) = n.suspended.filter(|_| event.is_timed()) {
            n.stopped.push((self.now.since(since), event));
            self.tally.add("timers that a suspend stopped", 1);
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
        // etcd reports no progress of a stream while one of its watches is behind.
        let is_news = matches!(message, Message::Events { .. } | Message::Progress { .. });
        let lost = number < n.messages.lost_below && is_news;
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
        if self.plan.cost.is_zero() {
            self.take_up(node, event);
        } else {
            self.nodes[node].inbox.put(event);
            self.begin_turn(node);
        }
    }

    /// Lets a handle send a request to the driver.
    pub(crate) fn command(&mut self, node: usize, act: impl FnOnce(&mut World) + 'static) {
        if self.plan.cost.is_zero() {
            act(self);
        } else {
            let commands = &mut self.nodes[node].inbox.waiting[Source::Commands as usize];
            commands.push_back(Input::Command(Box::new(act)));
            self.begin_turn(node);
        }
    }

    /// Fires the driver's timer.
    pub(super) fn ring(&mut self, node: usize) {
        if self.plan.cost.is_zero() {
            self.give(node, Core::tick);
        } else {
            self.begin_turn(node);
        }
    }

    /// Takes up waiting inputs, until a turn costs time or none is left.
    fn begin_turn(&mut self, node: usize) {
        loop {
            let now = self.now;
            let n = &mut self.nodes[node];
            if n.paused || n.inbox.busy() {
                return;
            }
            // The clock decides, not the timer, whatever woke the driver.
            let due = n.due.is_some_and(|due| due <= now) && !n.closed();
            let Some(inputs) = n.inbox.next(due) else {
                return;
            };
            n.inbox.turn = Turn::Deciding;
            let waits = !n.inbox.is_empty();
            self.tally
                .add("turns that left inputs waiting", waits.into());
            for input in inputs {
                match input {
                    Input::Event(event) => self.take_up(node, event),
                    Input::Due => self.give(node, Core::tick),
                    Input::Command(act) => act(self),
                }
            }
            // Most turns cost almost nothing.
            let costs = self.nodes[node].draws.u8(..2) == 0;
            if costs && let Ok(most @ 1..) = u64::try_from(self.plan.cost.as_micros()) {
                self.nodes[node].inbox.turn = Turn::Busy;
                let cost = Duration::from_micros(self.nodes[node].draws.u64(..=most));
                self.in_life(node, cost, move |w| w.turn_over(node));
                self.note_wake(node);
                return;
            }
            self.end_turn(node);
        }
    }

    /// Ends a turn whose time has passed.
    fn turn_over(&mut self, node: usize) {
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

    /// Takes up an event.
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
                self.give(node, |m, now| match message {
                    Message::Created { id, header } => m.watch_created(now, id, header),
                    Message::Events { id, term, changes } => m.watch_events(now, id, term, changes),
                    Message::Progress { header } => m.watch_progress(header),
                    Message::Refused { id } => m.watch_refused(now, id, store::denied()),
                    Message::Canceled { id } => m.watch_canceled(now, id, "model".to_owned()),
                    Message::Broken => m.watch_lost(now, Some("model".to_owned())),
                });
            }
            Event::Joined { .. } | Event::Effect(_) => {}
        }
    }

    /// Polls an answered transaction: its answers then wait for their turn among the other inputs.
    fn take_up_sent(&mut self, node: usize, sending: Sending, answers: Vec<Answer>) {
        let Some(event) = self.sent(node, sending, answers) else {
            return;
        };
        if self.plan.cost.is_zero() {
            self.take_up(node, event);
        } else {
            self.nodes[node].inbox.put(event);
        }
    }

    /// Records that the work of a term has ended, or that its leadership was dropped.
    pub(crate) fn joined(&mut self, node: usize, slot: SlotId, term: TermId) {
        let state = self.state_of(node, term);
        if !self.stays_valid(node, term, state.is_some())
            && let Some(prize) = self.nodes[node].ended(term)
        {
            self.says(Some(node), || format!("the work of term {term} has ended"));
            self.close_term(prize);
        }
        self.command(node, move |w| {
            w.give(node, |m, now| m.work_joined(now, slot, term, state));
        });
    }

    /// Gives the node's core an input, and carries out its actions: at once, or at the end of the driver's turn.
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
        if self.plan.together {
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

    /// Suspends the machine: the process is stopped, and the timers of its runtime stand still. Afterwards the driver's
    /// timer fires up to `late` later, unless another event wakes the driver.
    pub(crate) fn suspend(&mut self, node: usize, lasts: Duration, late: Duration) {
        let n = &mut self.nodes[node];
        if n.paused {
            return;
        }
        n.suspended = Some(self.now);
        self.pause(node, lasts);
        self.nodes[node].alarm = self.now.after(lasts + late);
    }

    /// Continues the process; its clock did not stop.
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
        // All inputs are there before the driver takes up the first.
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
