//! Runs the one task per session that watches the keys of observers, on a watch stream and a connection of its own, so
//! that no burst of changes delays a renewal or a hand-over.
//!
//! The task starts with the first observer and ends a moment after the last. A second core, which never holds a lease,
//! makes its decisions. Observers of the same keys share one watch. The task reads the next message of the stream only
//! once it has applied the last one, so HTTP/2 flow control keeps further messages in etcd.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use super::failures::{Failures, Line, list, name_of};
use super::inbox::{Inbox, WeakCommands, Work};
use super::io;
use crate::error::{Error, Result};
use crate::state::{AsOf, Backlog, Complete, Confirmed, Roster, SessionState};
use eldest_core::action::{Action, Note, SlotId};
use eldest_core::kv::Reach;
use eldest_core::pause::LONGEST_PAUSE;
use eldest_core::time::Time;
use eldest_core::{Config, Core};
use eldest_etcd::runtime::SharedEnv;
use eldest_etcd::{Lane, Pool};

/// After this number of changes in one message, the runtime's other tasks have their turn.
const MANY: usize = 32;
/// How long keys stay watched after their last observer left: an observer that returns soon, or repeatedly, costs etcd
/// nothing.
const LINGER: Duration = Duration::from_secs(1);
/// A request of an observer.
enum Ask {
    Look {
        reader: u64,
        prefix: Arc<[u8]>,
        reach: Reach,
        backlog: Arc<Backlog>,
        _room: Option<OwnedSemaphorePermit>,
    },
    Leave {
        reader: u64,
    },
}

/// The way to the session's observer task, which is started if there is none.
pub(crate) struct Observers {
    entrance: Arc<Mutex<Entrance>>,
    parts: Parts,
}

/// The parts from which the observer task is built.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) env: SharedEnv,
    pub(crate) pool: Arc<Pool>,
    pub(crate) config: Config,
    pub(crate) state: watch::Receiver<SessionState>,
    pub(crate) driver: WeakCommands,
    pub(crate) identity: Arc<str>,
    pub(crate) namespace: Arc<[u8]>,
    pub(crate) span: tracing::Span,
}

#[derive(Default)]
struct Entrance {
    /// The way to the task, while there is one.
    asks: Option<mpsc::UnboundedSender<Ask>>,
    readers: u64,
}

impl Observers {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            entrance: Arc::default(),
            parts,
        }
    }

    /// Fills `backlog` until [`Observers::leave`] is called with the returned number.
    pub(crate) fn observe_prefix(
        &self,
        prefix: Arc<[u8]>,
        reach: Reach,
        backlog: Arc<Backlog>,
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<u64> {
        if matches!(*self.parts.state.borrow(), SessionState::Closed) {
            return Err(Error::closed());
        }
        let mut entrance = lock(&self.entrance);
        entrance.readers += 1;
        let reader = entrance.readers;
        let ask = Ask::Look {
            reader,
            prefix,
            reach,
            backlog,
            _room: room,
        };
        let asks = entrance.asks.get_or_insert_with(|| self.start());
        asks.send(ask).map_err(|_| Error::closed())?;
        Ok(reader)
    }

    pub(crate) fn leave(&self, reader: u64) {
        if let Some(asks) = &lock(&self.entrance).asks {
            // If the task is gone, no reader is left.
            let _ = asks.send(Ask::Leave { reader });
        }
    }

    fn start(&self) -> mpsc::UnboundedSender<Ask> {
        use futures::FutureExt;
        use tracing::Instrument;
        let (asks, asked) = mpsc::unbounded_channel();
        let task = Task::run(self.parts.clone(), asked, Arc::clone(&self.entrance));
        let task = task.instrument(self.parts.span.clone());
        self.parts.env.spawn(task.boxed());
        asks
    }
}

fn lock(entrance: &Mutex<Entrance>) -> MutexGuard<'_, Entrance> {
    entrance.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keys that at least one reader observes.
struct Look {
    what: (Arc<[u8]>, Reach),
    readers: Vec<(u64, Arc<Backlog>)>,
    newest: Option<Roster>,
    complete: Arc<Complete>,
    /// The time at which the watch ends if no reader comes; `None` while there is one.
    left: Option<Time>,
}

struct Task {
    parts: Parts,
    /// Receives events and the readers' requests. When the task ends, it also ends the readers whose requests still wait.
    inbox: Inbox<Ask>,
    core: Core,
    io: io::Io,
    looks: HashMap<SlotId, Look>,
    slots: HashMap<(Arc<[u8]>, Reach), SlotId>,
    /// The slot that each reader observes.
    readers: HashMap<u64, SlotId>,
    /// The time up to which all views without a gap are complete.
    confirmed: Arc<Confirmed>,
    next_slot: SlotId,
    /// The slots whose last reader has left, with the time at which each watch ends if no other reader comes.
    lingering: VecDeque<(Time, SlotId)>,
    failures: Failures,
    entrance: Arc<Mutex<Entrance>>,
}

impl Task {
    fn new(
        parts: Parts,
        asked: mpsc::UnboundedReceiver<Ask>,
        entrance: Arc<Mutex<Entrance>>,
    ) -> Self {
        let (env, pool) = (Arc::clone(&parts.env), Arc::clone(&parts.pool));
        let namespace = Arc::clone(&parts.namespace);
        let (inbox, io) = Inbox::with_io(env, pool, Arc::clone(&namespace), Lane::Observers, asked);
        let attempts = LONGEST_PAUSE.saturating_add(parts.config.request_timeout);
        let failures = Failures::new(attempts, Arc::clone(&parts.identity), namespace);
        Task {
            inbox,
            io,
            core: Core::new(parts.config.clone()),
            parts,
            looks: HashMap::new(),
            slots: HashMap::new(),
            readers: HashMap::new(),
            confirmed: Arc::default(),
            next_slot: 1,
            lingering: VecDeque::new(),
            failures,
            entrance,
        }
    }

    async fn run(
        parts: Parts,
        asked: mpsc::UnboundedReceiver<Ask>,
        entrance: Arc<Mutex<Entrance>>,
    ) {
        let mut state = parts.state.clone();
        let mut task = Task::new(parts, asked, entrance);
        loop {
            let lingers = task.lingering.front().map(|(until, _)| *until);
            let dues = [task.core.next_timeout(), lingers, task.failures.next()];
            let due = dues.into_iter().flatten().min();
            let work = tokio::select! {
                biased;
                closed = state.wait_for(|state| matches!(state, SessionState::Closed)) => {
                    drop(closed);
                    return;
                }
                work = task.inbox.next(due, &mut task.io) => work,
            };
            let changes = task.work(work);
            task.act();
            if task.looks.is_empty() && task.ends() {
                return;
            }
            if changes >= MANY {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Handles the next piece of work, and returns the number of changes of watched keys in it.
    fn work(&mut self, work: Work<Ask>) -> usize {
        let now = self.parts.env.now();
        match work {
            Work::Event(event) => return self.io.take(event, &mut self.core, now),
            Work::Due => {
                self.core.tick(now);
                self.stop_lingering(now);
                let lines = self.failures.due(now);
                self.log_lines(lines);
            }
            Work::Commands(asks) => asks.into_iter().for_each(|ask| self.asked(ask)),
            // The entrance keeps a sender until the task ends, and the answer to a request is an event.
            Work::HandlesGone | Work::Sent => {}
        }
        0
    }

    /// Returns `true` if no request waits; further requests then start a new task.
    fn ends(&self) -> bool {
        let mut entrance = lock(&self.entrance);
        let ends = self.inbox.has_no_command();
        if ends {
            entrance.asks = None;
        }
        ends
    }

    fn asked(&mut self, ask: Ask) {
        match ask {
            Ask::Look {
                reader,
                prefix,
                reach,
                backlog,
                _room,
            } => {
                let what = (prefix, reach);
                let slot = match self.slots.get(&what) {
                    Some(slot) => *slot,
                    None => self.begin(what),
                };
                self.readers.insert(reader, slot);
                if let Some(look) = self.looks.get_mut(&slot) {
                    backlog.begin(Arc::clone(&look.complete), look.newest.clone());
                    look.readers.push((reader, backlog));
                    look.left = None;
                }
            }
            Ask::Leave { reader } => {
                let Some(slot) = self.readers.remove(&reader) else {
                    return;
                };
                if let Some(look) = self.looks.get_mut(&slot) {
                    look.readers.retain(|(other, _)| *other != reader);
                    if look.readers.is_empty() {
                        let until = self.parts.env.now().after(LINGER);
                        look.left = Some(until);
                        self.lingering.push_back((until, slot));
                    }
                }
            }
        }
    }

    fn begin(&mut self, what: (Arc<[u8]>, Reach)) -> SlotId {
        let slot = self.next_slot;
        self.next_slot += 1;
        let (prefix, reach) = what.clone();
        self.slots.insert(what.clone(), slot);
        let look = Look {
            what,
            readers: Vec::new(),
            newest: None,
            complete: Arc::new(Complete::new(Arc::clone(&self.confirmed))),
            left: None,
        };
        self.looks.insert(slot, look);
        let now = self.parts.env.now();
        self.core.observe(now, slot, prefix, reach);
        slot
    }

    /// Ends the watches that have had no reader for a while.
    fn stop_lingering(&mut self, now: Time) {
        while let Some((until, slot)) = self.lingering.front().copied() {
            if now < until {
                return;
            }
            self.lingering.pop_front();
            if self
                .looks
                .get(&slot)
                .is_some_and(|look| look.left == Some(until))
            {
                self.end(slot);
                self.core.unobserve(slot);
            }
        }
    }

    fn end(&mut self, slot: SlotId) -> Option<Look> {
        let look = self.looks.remove(&slot)?;
        look.complete.unsynced();
        self.slots.remove(&look.what);
        for (reader, _) in &look.readers {
            self.readers.remove(reader);
        }
        Some(look)
    }

    fn act(&mut self) {
        while let Some(action) = self.core.action() {
            let Some(action) = self.io.act(action) else {
                continue;
            };
            match action {
                Action::Observed {
                    slot,
                    revision,
                    entries,
                    as_of,
                } => {
                    if let Some(look) = self.looks.get_mut(&slot) {
                        let as_of = AsOf::new(as_of, Arc::clone(&self.parts.env));
                        let roster = Roster::of(revision, entries).with_as_of(Some(as_of));
                        look.newest = Some(roster.clone());
                        for (_, backlog) in &look.readers {
                            backlog.push(Ok(roster.clone()));
                        }
                    }
                }
                Action::Synced { slot, as_of } => {
                    let look = self.looks.get(&slot);
                    look.inspect(|look| look.complete.synced(as_of));
                }
                Action::Unsynced { slot } => {
                    let look = self.looks.get(&slot);
                    look.inspect(|look| look.complete.unsynced());
                }
                // One write, however many elections are observed.
                Action::Confirmed { as_of } => self.confirmed.set(as_of),
                Action::ObserveFailed { slot, error } => {
                    let look = self.end(slot);
                    for (_, backlog) in look.iter().flat_map(|look| &look.readers) {
                        backlog.push(Err(Error::from_request(&error)));
                        backlog.end();
                    }
                }
                // etcd answered: the session is ready, though the driver itself requests nothing.
                Action::Session(_) => self.parts.driver.connected(),
                Action::Note(note) => self.note(&note),
                // The other actions concern candidates and leases, of which there are none here.
                _ => {}
            }
        }
    }

    fn note(&mut self, note: &Note) {
        // A session with a lease detects the change itself, and logs it once.
        if matches!(note, Note::StoreChanged { .. }) && self.session_has_lease() {
            return;
        }
        let line = self.failures.note(self.parts.env.now(), note);
        self.log_lines(line);
    }

    fn session_has_lease(&self) -> bool {
        let state = self.parts.state.borrow();
        matches!(*state, SessionState::Live(_) | SessionState::Lost { .. })
    }

    fn log_lines(&self, lines: impl IntoIterator<Item = Line>) {
        let all = || {
            let looked_at = self.looks.values().map(|look| &*look.what.0);
            let names: Vec<_> = looked_at
                .map(|prefix| name_of(&self.parts.namespace, prefix))
                .collect();
            list(names.iter().map(String::as_str))
        };
        self.failures.log_lines(lines, all);
    }
}

impl Drop for Task {
    /// The session was closed, or the runtime shuts down.
    fn drop(&mut self) {
        for ask in self.inbox.close() {
            if let Ask::Look { backlog, .. } = ask {
                backlog.end();
            }
        }
        for (_, backlog) in self.looks.values().flat_map(|look| &look.readers) {
            backlog.end();
        }
    }
}
