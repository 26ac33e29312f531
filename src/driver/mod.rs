//! Runs one task per session, which passes etcd's events and users' commands to the core and executes the core's
//! actions. The task waits for all events and commands at once, and never for a single one.

mod batch;
mod event;
mod failures;
mod inbox;
mod io;
mod lookout;
mod notes;
mod seats;

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use crate::error::{Error, Result};
use crate::etcd::{Lane, Pool};
use crate::metrics;
use crate::runtime::SharedEnv;
use crate::state::{Beliefs, LeaseView, SessionState};
use eldest_core::action::{Action, Condition, SlotId, TermId};
use eldest_core::candidate::Manner;
use eldest_core::machine::{Config, Machine};
use eldest_core::pause::LONGEST_PAUSE;
use eldest_core::reason::{EndReason, LostReason};

use event::Event;
use failures::Failures;
pub(crate) use inbox::{CommandReceiver, Commands, Room, WeakCommands};
use inbox::{Inbox, Work};
pub(crate) use io::several;
pub(crate) use lookout::{Lookout, Parts as LookoutParts};
pub(crate) use seats::{Seat, Winner};

/// What handles ask of the driver.
pub(crate) enum Command {
    /// etcd answered, outside of what the core asks.
    Connected,
    Campaign {
        slot: SlotId,
        value: Arc<[u8]>,
        manner: Manner,
        seat: Box<Seat>,
    },
    Leave {
        slot: SlotId,
    },
    /// Answered when the candidacy is over and its key gone.
    AwaitEnd {
        slot: SlotId,
        reply: oneshot::Sender<()>,
    },
    /// Answered when the key of that term is gone.
    AwaitRelease {
        slot: SlotId,
        term: TermId,
        reply: oneshot::Sender<()>,
    },
    /// Whether the candidate may not join again after a term.
    HoldBack {
        slot: SlotId,
        held: bool,
    },
    End {
        slot: SlotId,
        term: TermId,
        reason: LostReason,
    },
    Joined {
        slot: SlotId,
        term: TermId,
    },
    Proclaim {
        slot: SlotId,
        value: Arc<[u8]>,
        reply: oneshot::Sender<Result<bool>>,
    },
    Close {
        reply: oneshot::Sender<()>,
    },
}

/// What the driver is made of.
pub(crate) struct Parts {
    pub(crate) env: SharedEnv,
    pub(crate) pool: Arc<Pool>,
    pub(crate) config: Config,
    pub(crate) beliefs: Arc<Beliefs>,
    pub(crate) state: watch::Sender<SessionState>,
    pub(crate) commands: CommandReceiver,
    pub(crate) identity: Arc<str>,
    /// What all keys of the session begin with.
    pub(crate) namespace: Arc<[u8]>,
}

pub(crate) struct Driver {
    env: SharedEnv,
    pool: Arc<Pool>,
    machine: Machine,
    beliefs: Arc<Beliefs>,
    state: watch::Sender<SessionState>,
    identity: Arc<str>,
    failures: Failures,
    /// Boxed: the table has room for up to twice as many.
    seats: HashMap<SlotId, Box<Seat>>,
    /// Who stood last under each prefix: one session holds one key per election.
    standing: HashMap<Arc<[u8]>, SlotId>,
    proclaims: HashMap<u64, oneshot::Sender<Result<bool>>>,
    tickets: u64,
    releases: Vec<(SlotId, TermId, oneshot::Sender<()>)>,
    closers: Vec<oneshot::Sender<()>>,
    io: io::Io,
    closed: bool,
}

impl Driver {
    /// Runs until the session is closed; when every handle is gone, it closes itself.
    pub(crate) async fn run(parts: Parts) {
        let Parts {
            env,
            pool,
            config,
            beliefs,
            state,
            commands,
            identity,
            namespace,
        } = parts;
        let (urgent, urgent_events) = mpsc::unbounded_channel();
        let (answers, answer_events) = mpsc::unbounded_channel();
        let mut inbox = Inbox::new(Arc::clone(&env), urgent_events, answer_events, commands);
        let mut driver = Driver {
            io: io::Io::new(
                Arc::clone(&env),
                Arc::clone(&pool),
                Arc::clone(&namespace),
                Lane::Data,
                urgent,
                answers,
            ),
            failures: Failures::new(
                LONGEST_PAUSE.saturating_add(config.request_timeout),
                Arc::clone(&identity),
                namespace,
            ),
            machine: Machine::new(config),
            env,
            pool,
            beliefs,
            state,
            identity,
            seats: HashMap::new(),
            standing: HashMap::new(),
            proclaims: HashMap::new(),
            tickets: 0,
            releases: Vec::new(),
            closers: Vec::new(),
            closed: false,
        };
        while !driver.closed {
            let dues = [driver.machine.next_timeout(), driver.failures.next()];
            let due = dues.into_iter().flatten().min();
            match inbox.next(due, &mut driver.io).await {
                Work::Event(event) => driver.event(event),
                Work::Due => {
                    let now = driver.env.now();
                    driver.machine.tick(now);
                    let lines = driver.failures.due(now);
                    driver.tell(lines);
                }
                Work::Commands(commands) => {
                    for command in commands {
                        driver.command(command);
                    }
                }
                Work::HandlesGone => {
                    let now = driver.env.now();
                    driver.machine.close(now);
                }
                // The answer is among the events.
                Work::Sent => {}
            }
            driver.act();
        }
    }

    fn event(&mut self, event: Event) {
        let now = self.env.now();
        self.io.take(event, &mut self.machine, now);
    }

    fn command(&mut self, command: Command) {
        let now = self.env.now();
        match command {
            Command::Connected => self.machine.connected(),
            Command::Campaign {
                slot,
                value,
                manner,
                seat,
            } => {
                let prefix = Arc::clone(&seat.prefix);
                // A semaphore's permits have keys of their own.
                if manner.share.is_none() {
                    if self
                        .standing
                        .get(&prefix)
                        .is_some_and(|other| self.machine.stands(*other))
                    {
                        let error = Error::already_campaigning(&seat.election);
                        seat.refused(error);
                        return;
                    }
                    self.standing.insert(Arc::clone(&prefix), slot);
                }
                seat.accepted();
                self.seats.insert(slot, seat);
                self.machine.campaign(now, slot, prefix, value, manner);
            }
            Command::Leave { slot } => self.machine.leave(now, slot, EndReason::Left),
            Command::AwaitEnd { slot, reply } => match self.seats.get_mut(&slot) {
                Some(seat) => seat.await_end(reply),
                None => drop(reply.send(())),
            },
            Command::AwaitRelease { slot, term, reply } => self.releases.push((slot, term, reply)),
            Command::HoldBack { slot, held } => self.machine.hold_back(now, slot, held),
            Command::End { slot, term, reason } => {
                self.machine.end_by_leader(now, slot, term, reason);
            }
            Command::Joined { slot, term } => self.machine.work_joined(now, slot, term),
            Command::Proclaim { slot, value, reply } => {
                self.tickets += 1;
                self.proclaims.insert(self.tickets, reply);
                self.machine.proclaim(slot, value, self.tickets);
            }
            Command::Close { reply } => {
                self.closers.push(reply);
                self.machine.close(now);
            }
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.machine.action() {
            match action {
                Action::Ask { request, ask } => self.io.ask(request, ask),
                Action::HangUp => self.io.hang_up(),
                Action::Watch { watch, key, prefix } => self.io.watch(watch, &key, prefix),
                Action::Unwatch { watch } => self.io.unwatch(watch),
                Action::Progress => self.io.progress(),
                Action::HangUpWatches { elsewhere } => self.io.hang_up_watches(elsewhere),
                Action::Trust { deadline, fresh } => self.trust(deadline, fresh),
                Action::Distrust => self.beliefs.end(),
                Action::Elected {
                    slot,
                    term,
                    key,
                    token,
                } => self.elected(slot, term, key, token),
                Action::Taken {
                    member,
                    partition,
                    slot,
                } => {
                    let seat = self.seats.get(&member);
                    if let Some(seat) = seat.map(|seat| seat.partition(partition)) {
                        self.seats.insert(slot, Box::new(seat));
                    }
                }
                Action::TermEnded {
                    slot,
                    term,
                    reason,
                    cutoff,
                    valid,
                } => {
                    if let Some(seat) = self.seats.get_mut(&slot) {
                        seat.term_ended(&self.identity, term, reason, cutoff, valid);
                    }
                }
                Action::Registered { slot } => {
                    if let Some(seat) = self.seats.get_mut(&slot) {
                        seat.registered(Ok(()));
                    }
                }
                Action::Standing { slot, standing } => {
                    if let Some(seat) = self.seats.get_mut(&slot) {
                        seat.standing(&self.identity, standing);
                    }
                }
                Action::Ended {
                    slot,
                    reason,
                    trouble,
                } => {
                    if let Some(seat) = self.seats.remove(&slot) {
                        if self.standing.get(&seat.prefix) == Some(&slot) {
                            self.standing.remove(&seat.prefix);
                        }
                        seat.ended(&self.identity, reason, trouble.as_ref());
                    }
                }
                Action::Proclaimed { ticket, result } => {
                    if let Some(reply) = self.proclaims.remove(&ticket) {
                        drop(reply.send(result.map_err(|t| Error::from_trouble(&t))));
                    }
                }
                // Onlookers are the lookout's.
                Action::Observed { .. }
                | Action::ObserveFailed { .. }
                | Action::Synced { .. }
                | Action::Unsynced { .. }
                | Action::Confirmed { .. } => {}
                Action::Session(condition) => self.condition(condition),
                Action::Note(note) => self.note(&note),
            }
        }
        self.io.flush();
        let (machine, releases) = (&self.machine, &mut self.releases);
        let done = |(slot, term, reply): &mut (SlotId, TermId, oneshot::Sender<()>)| {
            reply.is_closed() || machine.is_released(*slot, *term)
        };
        for (.., reply) in releases.extract_if(.., done) {
            let _ = reply.send(());
        }
    }

    fn trust(&mut self, deadline: eldest_core::time::Time, fresh: bool) {
        let left = deadline.since(self.env.now());
        metrics::trusted(&self.identity, self.env.unix_time(), left);
        if fresh {
            self.beliefs.begin(deadline);
            self.env.rewatch();
            return;
        }
        let extended = self
            .beliefs
            .present()
            .is_some_and(|belief| belief.extend(deadline));
        if !extended {
            // The watchdog, or somebody's check, was faster than this renewal: what it ended stays ended.
            let now = self.env.now();
            self.machine.distrusted(now);
        }
    }

    fn elected(&mut self, slot: SlotId, term: TermId, key: Arc<[u8]>, token: i64) {
        let Some(belief) = self.beliefs.present() else {
            return;
        };
        if let Some(seat) = self.seats.get_mut(&slot) {
            let (env, pool) = (Arc::clone(&self.env), Arc::clone(&self.pool));
            seat.elected(
                &self.identity,
                (slot, term),
                (env, pool),
                belief,
                key,
                token,
            );
        }
    }

    fn condition(&mut self, condition: Condition) {
        let identity = &*self.identity;
        match condition {
            Condition::Lost { reason } => {
                metrics::lease_lost(identity, reason);
                tracing::warn!(target: "eldest::session", identity, reason = reason.as_str(), "lease lost");
            }
            Condition::Closed => {
                tracing::info!(target: "eldest::session", identity, "session closed");
            }
            _ => {
                tracing::debug!(target: "eldest::session", identity, ?condition, "session state");
            }
        }
        let state = match condition {
            Condition::Connecting => SessionState::Connecting,
            Condition::Ready => SessionState::Ready,
            Condition::Live { lease } => match self.beliefs.present() {
                Some(belief) => {
                    SessionState::Live(LeaseView::new(lease, belief, Arc::clone(&self.env)))
                }
                None => return,
            },
            Condition::Lost { reason } => SessionState::Lost { reason },
            Condition::Closed => SessionState::Closed,
        };
        self.closed = matches!(state, SessionState::Closed);
        self.state.send_replace(state);
        if self.closed {
            self.pool.hang_up();
            for closer in self.closers.drain(..) {
                let _ = closer.send(());
            }
        }
    }
}

impl Drop for Driver {
    /// The runtime went down, or the session was closed: nobody renews any more, so nobody may go on believing.
    fn drop(&mut self) {
        let now = self.env.now();
        let deadline = self.beliefs.present().map_or(now, |b| b.deadline());
        for seat in self.seats.values_mut() {
            seat.abandoned(&self.identity, deadline);
        }
        self.beliefs.end();
        if !self.closed {
            self.state.send_replace(SessionState::Closed);
        }
    }
}
