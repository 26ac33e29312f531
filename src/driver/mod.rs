//! Runs one task per session, which passes etcd's events and users' commands to the core and executes the core's
//! actions. The task waits for all events and commands at once, and never for a single one.

mod batch;
mod candidate_state;
mod event;
mod failures;
mod inbox;
mod io;
mod notes;
mod observing;

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use crate::error::{Error, Result};
use crate::etcd::{Lane, Pool};
use crate::metrics;
use crate::runtime::SharedEnv;
use crate::state::{LeaseDeadlines, LeaseView, SessionState};
use eldest_core::action::{Action, Condition, SlotId, TermId};
use eldest_core::candidate::Manner;
use eldest_core::machine::{Config, Machine};
use eldest_core::pause::LONGEST_PAUSE;
use eldest_core::reason::{EndReason, LostReason};

pub(crate) use candidate_state::{CandidateState, Winner};
use event::Event;
use failures::Failures;
pub(crate) use inbox::{CommandReceiver, Commands, Room, WeakCommands};
use inbox::{Inbox, Work};
pub(crate) use io::several;
pub(crate) use observing::{Observers, Parts as ObserverParts};

/// What handles ask of the driver.
pub(crate) enum Command {
    /// etcd answered, outside of what the core asks.
    Connected,
    Campaign {
        slot: SlotId,
        value: Arc<[u8]>,
        manner: Manner,
        candidate: Box<CandidateState>,
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
    pub(crate) lease_deadlines: Arc<LeaseDeadlines>,
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
    lease_deadlines: Arc<LeaseDeadlines>,
    state: watch::Sender<SessionState>,
    identity: Arc<str>,
    failures: Failures,
    /// Boxed: the table has room for up to twice as many.
    candidates: HashMap<SlotId, Box<CandidateState>>,
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
            lease_deadlines,
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
            lease_deadlines,
            state,
            identity,
            candidates: HashMap::new(),
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
                candidate,
            } => {
                let prefix = Arc::clone(&candidate.prefix);
                // A semaphore's permits have keys of their own.
                if manner.share.is_none() {
                    if self
                        .standing
                        .get(&prefix)
                        .is_some_and(|other| self.machine.stands(*other))
                    {
                        let error = Error::already_campaigning(&candidate.election);
                        candidate.refused(error);
                        return;
                    }
                    self.standing.insert(Arc::clone(&prefix), slot);
                }
                candidate.accepted();
                self.candidates.insert(slot, candidate);
                self.machine.campaign(now, slot, prefix, value, manner);
            }
            Command::Leave { slot } => self.machine.leave(now, slot, EndReason::Left),
            Command::AwaitEnd { slot, reply } => match self.candidates.get_mut(&slot) {
                Some(candidate) => candidate.await_end(reply),
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
                Action::Distrust => self.lease_deadlines.end(),
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
                    let candidate = self.candidates.get(&member);
                    if let Some(candidate) =
                        candidate.map(|candidate| candidate.partition(partition))
                    {
                        self.candidates.insert(slot, Box::new(candidate));
                    }
                }
                Action::TermEnded {
                    slot,
                    term,
                    reason,
                    cutoff,
                    valid,
                } => {
                    if let Some(candidate) = self.candidates.get_mut(&slot) {
                        candidate.term_ended(&self.identity, term, reason, cutoff, valid);
                    }
                }
                Action::Registered { slot } => {
                    if let Some(candidate) = self.candidates.get_mut(&slot) {
                        candidate.registered(Ok(()));
                    }
                }
                Action::Standing { slot, standing } => {
                    if let Some(candidate) = self.candidates.get_mut(&slot) {
                        candidate.standing(&self.identity, standing);
                    }
                }
                Action::Ended {
                    slot,
                    reason,
                    trouble,
                } => {
                    if let Some(candidate) = self.candidates.remove(&slot) {
                        if self.standing.get(&candidate.prefix) == Some(&slot) {
                            self.standing.remove(&candidate.prefix);
                        }
                        candidate.ended(&self.identity, reason, trouble.as_ref());
                    }
                }
                Action::Proclaimed { ticket, result } => {
                    if let Some(reply) = self.proclaims.remove(&ticket) {
                        drop(reply.send(result.map_err(|t| Error::from_trouble(&t))));
                    }
                }
                // Observers have a task of their own.
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
            self.lease_deadlines.begin(deadline);
            self.env.rewatch();
            return;
        }
        let extended = self
            .lease_deadlines
            .present()
            .is_some_and(|lease_deadline| lease_deadline.extend(deadline));
        if !extended {
            // The watchdog, or somebody's check, was faster than this renewal: what it ended stays ended.
            let now = self.env.now();
            self.machine.distrusted(now);
        }
    }

    fn elected(&mut self, slot: SlotId, term: TermId, key: Arc<[u8]>, token: i64) {
        let Some(lease_deadline) = self.lease_deadlines.present() else {
            return;
        };
        if let Some(candidate) = self.candidates.get_mut(&slot) {
            let (env, pool) = (Arc::clone(&self.env), Arc::clone(&self.pool));
            candidate.elected(
                &self.identity,
                (slot, term),
                (env, pool),
                lease_deadline,
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
            Condition::Live { lease } => match self.lease_deadlines.present() {
                Some(lease_deadline) => {
                    SessionState::Live(LeaseView::new(lease, lease_deadline, Arc::clone(&self.env)))
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
        let deadline = self.lease_deadlines.present().map_or(now, |b| b.deadline());
        for candidate in self.candidates.values_mut() {
            candidate.abandoned(&self.identity, deadline);
        }
        self.lease_deadlines.end();
        if !self.closed {
            self.state.send_replace(SessionState::Closed);
        }
    }
}
