//! Runs one task per session, which passes etcd's events and users' commands to the core and executes the core's
//! actions. The task waits for all events and commands at once, and never for a single one.

mod announcing;
mod batch;
mod candidate_state;
mod challenging;
mod effects;
mod event;
mod failures;
mod inbox;
mod io;
mod marks;
mod notes;
mod observing;
mod peers;
mod releases;
mod spans;
mod watches;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use eldest_peers::Answering;
use tokio::sync::{oneshot, watch};

use crate::error::{Error, Result};
use crate::state::{Challenged, Deadlines, SessionState, TermState};
use eldest_core::action::{FinalState, Left, SlotId, TermId};
use eldest_core::candidate::CandidateConfig;
use eldest_core::kv::Entry;
use eldest_core::pause::LONGEST_PAUSE;
use eldest_core::reason::{EndReason, LostReason};
use eldest_core::time::Time;
use eldest_core::{Config, Core};
use eldest_etcd::runtime::SharedEnv;
use eldest_etcd::{Lane, Pool};

use announcing::{Answer, Said};
use candidate_state::Won;
pub(crate) use candidate_state::{CandidateState, Winner};
use failures::Failures;
pub(crate) use inbox::{CommandReceiver, Commands, Room, WeakCommands};
use inbox::{Inbox, Queued, Work};
pub(crate) use io::several;
pub(crate) use observing::{Observers, Parts as ObserverParts};

/// The state that a term leaves, and the caller that waits for the outcome.
pub(crate) struct Parting {
    pub(crate) state: FinalState,
    pub(crate) reply: oneshot::Sender<Left>,
}

/// A request of a handle to the driver.
pub(crate) enum Command {
    /// etcd answered a request that the core did not send.
    Connected,
    /// The session must hold a lease although it has no candidate.
    KeepLease,
    Campaign {
        slot: SlotId,
        value: Arc<[u8]>,
        config: CandidateConfig,
        candidate: Box<CandidateState>,
    },
    Leave {
        slot: SlotId,
        reason: EndReason,
    },
    /// Answered when the candidacy is over and its key gone.
    AwaitEnd {
        slot: SlotId,
        reply: oneshot::Sender<()>,
    },
    /// Answered when the key of the given term is gone.
    AwaitRelease {
        slot: SlotId,
        term: TermId,
        reply: oneshot::Sender<()>,
    },
    /// Sets whether the candidate is kept from joining again after a term.
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
        state: Option<Parting>,
    },
    Proclaim {
        slot: SlotId,
        value: Arc<[u8]>,
        reply: oneshot::Sender<Result<bool>>,
    },
    /// Announces that the leader serves in the term with that fencing token. Answered with `false` if the term is over.
    Serve {
        slot: SlotId,
        token: i64,
        reply: oneshot::Sender<Result<bool>>,
    },
    /// Announces that the waiting candidate is warm, or no longer. Answered with `false` if it does not wait, or announces no
    /// warmth.
    Warm {
        slot: SlotId,
        warm: bool,
        reply: oneshot::Sender<Result<bool>>,
    },
    /// Announces that the member is ready for these partitions. Answered with `false` if it prepares for none.
    Ready {
        slot: SlotId,
        ready: BTreeSet<u32>,
        reply: oneshot::Sender<Result<bool>>,
    },
    /// Announces that the member takes no more partitions, and hands over those that it owns. Answered with `false` if it
    /// never does so.
    HandOver {
        slot: SlotId,
        reply: oneshot::Sender<Result<bool>>,
    },
    /// Reports that the session of that lease is suspected to be silent, or no longer. It grants nothing.
    Suspect {
        lease: i64,
        is_silent: bool,
    },
    /// Reports that the session that holds this key is suspected to be silent. No candidate of this session waits for it.
    SuspectHolder {
        held: Box<Entry>,
    },
    Close {
        reply: oneshot::Sender<()>,
    },
}

/// The parts from which the driver is built.
pub(crate) struct Parts {
    pub(crate) env: SharedEnv,
    pub(crate) pool: Arc<Pool>,
    pub(crate) config: Config,
    pub(crate) deadlines: Arc<Deadlines>,
    pub(crate) state: watch::Sender<SessionState>,
    /// The challenges of the session, by it and of it.
    pub(crate) challenged: watch::Sender<Challenged>,
    pub(crate) commands: CommandReceiver,
    /// The way in which the tasks of the session reach the driver.
    pub(crate) inward: WeakCommands,
    /// The port at which the session gives signs of life.
    pub(crate) port: Option<Answering>,
    pub(crate) identity: Arc<str>,
    /// The prefix of all keys of the session.
    pub(crate) namespace: Arc<[u8]>,
}

pub(crate) struct Driver {
    env: SharedEnv,
    pool: Arc<Pool>,
    core: Core,
    /// The exchange of signs of life, if the session allows challenges.
    peers: Option<peers::Peers>,
    /// The time of the last line that this session is challenged.
    challenged_at: Option<Time>,
    challenged: watch::Sender<Challenged>,
    marks: marks::Marks,
    deadlines: Arc<Deadlines>,
    state: watch::Sender<SessionState>,
    identity: Arc<str>,
    failures: Failures,
    /// Boxed: the table has room for up to twice as many.
    candidates: HashMap<SlotId, Box<CandidateState>>,
    /// The last candidate of each prefix: one session holds one key per election.
    standing: HashMap<Arc<[u8]>, SlotId>,
    /// The calls that wait for an announcement, and the terms in which it says that a leader serves.
    proclaims: HashMap<u64, (Answer, Option<Arc<TermState>>)>,
    tickets: u64,
    releases: releases::Releases,
    /// The callers that leave a state.
    partings: HashMap<TermId, oneshot::Sender<Left>>,
    /// Terms won in this turn. Their callers wake when the turn's requests are in flight, and not between two of its
    /// actions.
    won: Vec<Won>,
    closers: Vec<oneshot::Sender<()>>,
    io: io::Io,
    /// True once a warning named too many keys under the session's lease.
    crowded: bool,
    closed: bool,
}

impl Driver {
    /// Makes a driver, and the inbox in which its work arrives.
    fn new(parts: Parts) -> (Self, Inbox<Queued>) {
        let Parts {
            env,
            pool,
            config,
            deadlines,
            state,
            challenged,
            commands,
            inward,
            port,
            identity,
            namespace,
        } = parts;
        let challenges = config.challenges.as_ref();
        let peers = challenges.map(|challenges| {
            peers::Peers::start(peers::Exchange {
                env: Arc::clone(&env),
                port,
                lead: challenges.lead,
                deadlines: Arc::clone(&deadlines),
                commands: inward,
                identity: Arc::clone(&identity),
            })
        });
        let (inbox, io) = Inbox::with_io(
            Arc::clone(&env),
            Arc::clone(&pool),
            Arc::clone(&namespace),
            Lane::Data,
            commands.into_queue(),
        );
        let driver = Driver {
            io,
            failures: Failures::new(
                LONGEST_PAUSE.saturating_add(config.request_timeout),
                Arc::clone(&identity),
                namespace,
            ),
            marks: marks::Marks::new(Arc::clone(&config.homes.marks)),
            core: Core::new(config),
            peers,
            challenged_at: None,
            challenged,
            env,
            pool,
            deadlines,
            state,
            identity,
            candidates: HashMap::new(),
            standing: HashMap::new(),
            proclaims: HashMap::new(),
            tickets: 0,
            releases: releases::Releases::default(),
            partings: HashMap::new(),
            won: Vec::new(),
            closers: Vec::new(),
            crowded: false,
            closed: false,
        };
        (driver, inbox)
    }

    /// Runs until the session is closed; when every handle is gone, it closes itself.
    pub(crate) async fn run(parts: Parts) {
        let (mut driver, mut inbox) = Driver::new(parts);
        while !driver.closed {
            let dues = [driver.core.next_timeout(), driver.failures.next()];
            let due = dues.into_iter().flatten().min();
            match inbox.next(due, &mut driver.io).await {
                Work::Event(event) => {
                    let now = driver.env.now();
                    driver.io.take(event, &mut driver.core, now);
                }
                Work::Due => {
                    let now = driver.env.now();
                    driver.core.tick(now);
                    let lines = driver.failures.due(now);
                    driver.log_lines(lines);
                }
                Work::Commands(commands) => {
                    for queued in commands {
                        driver.command(queued.command);
                    }
                }
                Work::HandlesGone => {
                    let now = driver.env.now();
                    driver.core.close(now);
                }
                // Its answer arrives as an event.
                Work::Sent => {}
            }
            driver.act();
        }
    }

    fn command(&mut self, command: Command) {
        let now = self.env.now();
        match command {
            Command::Connected => self.core.connected(),
            Command::KeepLease => self.core.always_keep_lease(now),
            Command::Campaign {
                slot,
                value,
                config,
                candidate,
            } => self.campaign(slot, value, config, candidate),
            Command::Leave { slot, reason } => self.core.leave(now, slot, reason),
            Command::AwaitEnd { slot, reply } => match self.candidates.get_mut(&slot) {
                Some(candidate) => candidate.await_end(reply),
                None => drop(reply.send(())),
            },
            Command::AwaitRelease { slot, term, reply } => {
                if self.core.await_release(slot, term) {
                    let _ = reply.send(());
                } else {
                    self.releases.wait(slot, term, reply);
                }
            }
            Command::HoldBack { slot, held } => self.core.hold_back(now, slot, held),
            Command::End { slot, term, reason } => {
                self.core.end_by_leader(now, slot, term, reason);
            }
            Command::Joined { slot, term, state } => self.joined(slot, term, state),
            Command::Proclaim { slot, value, reply } => self.replace(slot, value, reply),
            Command::Serve { slot, token, reply } => {
                self.announce(slot, reply, |leader, identity| {
                    leader.serve(identity, token)
                });
            }
            Command::Warm { slot, warm, reply } => {
                self.announce(slot, reply, |waiting, identity| {
                    waiting.warm(identity, warm)
                });
            }
            Command::Ready { slot, ready, reply } => {
                self.announce(slot, reply, |member, identity| {
                    member.ready(identity, ready)
                });
            }
            Command::HandOver { slot, reply } => {
                self.announce(slot, reply, |member, _| member.hand_over());
            }
            Command::Suspect { lease, is_silent } => {
                let challenges = self.core.challenges(now);
                if is_silent {
                    challenges.suspect(lease);
                } else {
                    challenges.trust_again(lease);
                }
            }
            Command::SuspectHolder { held } => self.core.challenges(now).suspect_holder(&held),
            Command::Close { reply } => {
                self.closers.push(reply);
                self.core.close(now);
            }
        }
    }

    /// Replaces the caller's announcement of a candidate.
    fn replace(&mut self, slot: SlotId, value: Arc<[u8]>, reply: Answer) {
        let said = match self.candidates.get_mut(&slot) {
            Some(candidate) => candidate.announcing.replace(value).map(Some),
            None => Ok(Some(Said::of(&value))),
        };
        self.answer_with(slot, said, reply);
    }

    /// Announces what a candidate says about itself. Answers `false` if it says nothing.
    fn announce(
        &mut self,
        slot: SlotId,
        reply: Answer,
        says: impl FnOnce(&mut CandidateState, &str) -> Option<Said>,
    ) {
        let candidate = self.candidates.get_mut(&slot);
        let said = candidate.and_then(|candidate| says(candidate, &self.identity));
        self.answer_with(slot, Ok(said), reply);
    }

    /// Gives back the key of a term whose work has ended, with the state that it leaves.
    fn joined(&mut self, slot: SlotId, term: TermId, parting: Option<Parting>) {
        let state = parting.map(|Parting { state, reply }| {
            self.partings.insert(term, reply);
            state
        });
        let now = self.env.now();
        self.core.work_joined(now, slot, term, state);
    }

    /// Takes a new candidate, unless the session has one in that election already.
    fn campaign(
        &mut self,
        slot: SlotId,
        value: Arc<[u8]>,
        config: CandidateConfig,
        mut candidate: Box<CandidateState>,
    ) {
        candidate.announcing.begin_with(&value);
        let prefix = Arc::clone(&candidate.prefix);
        // A semaphore's permits and the readers of a shared lock have keys of their own.
        if config.permit.is_none() && config.shared.is_none() {
            if self
                .standing
                .get(&prefix)
                .is_some_and(|other| self.core.is_candidate(*other))
            {
                let error = Error::already_campaigning(&candidate.election);
                candidate.refused(error);
                return;
            }
            self.standing.insert(Arc::clone(&prefix), slot);
        }
        candidate.accepted();
        self.candidates.insert(slot, candidate);
        let now = self.env.now();
        self.core.campaign(now, slot, prefix, value, config);
    }
}

impl Drop for Driver {
    /// The runtime shut down, or the session was closed: the lease is no longer renewed, so every term must end.
    fn drop(&mut self) {
        let now = self.env.now();
        let deadline = self.deadlines.lease().map_or(now, |lease| lease.time());
        for candidate in self.candidates.values_mut() {
            candidate.abandoned(&self.identity, deadline);
        }
        self.deadlines.end();
        self.deadlines.end_reads();
        if !self.closed {
            self.state.send_replace(SessionState::Closed);
        }
    }
}
