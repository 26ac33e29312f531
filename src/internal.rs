//! Gives the crates that are published beside this one access to parts of a session and its elections that users do not
//! need.
//!
//! Not covered by semver: those crates pin the exact version of this one.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::driver::Command;
pub use crate::election::{Pause, spawn};
use crate::error::Result;
use crate::session::SessionShared;
use crate::state::Backlog;
pub use crate::state::{
    ChallengeStep, Challenged, EVACUATION, Held, LocalState, Received, Suspicion, number, steers,
};
use crate::{
    Election, Evacuation, Leadership, Member, Observer, PartitionMapObserver, Partitions, Roster,
    Session, StepDown, Term, Version, VersionMark,
};
use eldest_core::kv::{LOCK, Reach, is_elected};
use eldest_core::time::Time;
pub use eldest_etcd::runtime::{Env, SharedEnv, System, timeout};
use tokio::sync::watch;

/// The session that a handle belongs to.
#[derive(Clone, Copy)]
pub struct Inside<'a>(&'a SessionShared);

impl<'a> From<&'a Session> for Inside<'a> {
    fn from(session: &'a Session) -> Self {
        Self(session.shared())
    }
}

impl<'a> From<&'a Election> for Inside<'a> {
    fn from(election: &'a Election) -> Self {
        Self(&election.handle.shared)
    }
}

impl<'a> From<&'a Partitions> for Inside<'a> {
    fn from(partitions: &'a Partitions) -> Self {
        Self(&partitions.handle.shared)
    }
}

impl<'a> From<&'a Leadership> for Inside<'a> {
    fn from(leadership: &'a Leadership) -> Self {
        Self(leadership.shared())
    }
}

impl<'a> Inside<'a> {
    /// Returns `true` if both handles belong to the same session.
    pub fn is(self, other: Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }

    /// Returns the session's clock, timers and tasks.
    pub fn env(self) -> &'a SharedEnv {
        &self.0.env
    }

    /// Returns the identity of the session's node.
    pub fn identity(self) -> &'a str {
        &self.0.settings.identity
    }

    /// Returns the TTL that the session requests.
    pub fn ttl(self) -> Duration {
        self.0.settings.ttl
    }

    /// Returns how long work may continue after its token was cancelled.
    pub fn grace(self) -> Duration {
        self.0.settings.grace
    }

    /// Returns how long one request to etcd may take.
    pub fn request_timeout(self) -> Duration {
        self.0.settings.request_timeout
    }

    /// Records a promise that another process may rely on until `until`, before it is given. If the session has a
    /// guard, the guard leaves its leases alone until the promise has ended, even if this process is dead.
    ///
    /// # Errors
    ///
    /// `Unguarded`: the guard cannot be informed. The promise must not be given.
    pub fn promise(self, until: Time) -> Result<()> {
        self.0.promise(until)
    }

    /// Returns `true` if the session allows challenges.
    pub fn allows_challenges(self) -> bool {
        self.0.settings.challenges.is_some()
    }

    /// Adds a process to which promises are made: the guard, if there is one, leaves the session's leases alone while
    /// that process lives. Such promises need no [`Inside::promise`]. A known process is not added again.
    ///
    /// # Errors
    ///
    /// `Unguarded`: the session has too many lives, or the guard cannot be informed.
    #[cfg_attr(not(target_os = "linux"), allow(unused_variables, clippy::unused_self))]
    pub fn outlive(self, process: &process::Process) -> Result<()> {
        #[cfg(target_os = "linux")]
        self.0.outlive(process.number(), || process.share())?;
        Ok(())
    }
}

impl fmt::Debug for Inside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Inside").field(&self.identity()).finish()
    }
}

/// Returns the status of the session's own candidate and its last term, both of one moment.
pub fn local_state(election: &Election) -> LocalState {
    election.local.get()
}

/// Returns the local state as a channel.
pub fn watch_local_state(election: &Election) -> watch::Receiver<LocalState> {
    election.local.watch()
}

/// Ends a term of this session and waits until etcd has confirmed that its key is gone; the candidate joins at the end
/// of the queue.
///
/// # Errors
///
/// `Unavailable`: not confirmed within the grace period and a few request timeouts; the release continues in the
/// background. `Closed`: the session was closed.
pub async fn step_down(election: &Election, held: &Held) -> Result<()> {
    election.step_down_from(held).await
}

/// Orders the leader to step down as [`Election::order_step_down`] does, and withdraws the order when `given_up` completes.
///
/// # Errors
///
/// As [`Election::order_step_down`]; `NotObeyed` also if it was given up, and the leader has not stepped down.
pub async fn order_step_down(
    election: &Election,
    order: StepDown,
    given_up: impl Future<Output = ()>,
) -> Result<(Member, Roster)> {
    election.order_step_down_until(order, given_up).await
}

/// Announces that the leader serves in that term of this session, as [`Leadership::serving`] does.
///
/// # Errors
///
/// As [`Leadership::serving`]; `Unavailable` also if etcd has not answered within four request timeouts.
pub async fn serve(election: &Election, held: &Held) -> Result<()> {
    election.serve(held).await
}

/// Announces whether the session's waiting candidate is warm, as [`Election::set_warm`] does.
///
/// # Errors
///
/// As [`Election::set_warm`]; `Unavailable` also if etcd has not answered within four request timeouts.
pub async fn set_warm(election: &Election, is_warm: bool) -> Result<()> {
    election.set_warm_soon(is_warm).await
}

/// Reports that the session of that lease is silent, or that it is heard again. A session that allows challenges then
/// challenges it, or deletes its challenge. A wrong report costs small writes, and ends no term of a session that
/// answers.
///
/// # Errors
///
/// `Closed`: the session was closed.
pub fn suspect(session: &Session, lease: i64, is_silent: bool) -> Result<()> {
    session.handle().send(Command::Suspect { lease, is_silent })
}

/// Reports that the session that holds a key is silent, although no candidate of this session waits for the key yet. A
/// node of two sessions challenges both sessions of another node at once by this.
///
/// # Errors
///
/// As [`suspect`].
pub fn suspect_holder(session: &Session, held: &Member) -> Result<()> {
    let held = Box::new(held.entry().clone());
    session.handle().send(Command::SuspectHolder { held })
}

/// Returns the last challenges of a session, by it and of it, as a channel.
pub fn watch_challenges(session: &Session) -> watch::Receiver<Challenged> {
    session.shared().challenged.clone()
}

/// Returns `true` if the roster has a candidate of an election, alone or beside locks.
pub fn has_candidates(roster: &Roster) -> bool {
    let mut members = roster.members().iter();
    members.any(|member| is_elected(&member.entry().value))
}

/// Refuses a path that cannot be the address of a Unix socket, with its length and the rule.
pub fn check_socket_path(path: &Path) -> std::result::Result<(), String> {
    crate::guard::check_path(path)
}

/// Declares that the work of a term has nothing to finish when the term ends, so that neither its drop at the frozen
/// deadline nor a late error is logged as a fault.
pub fn interruptible(term: &Term) {
    term.shared.interruptible();
}

/// Returns the time until which the work of a term may continue; far away while the term is not over.
pub fn cutoff(term: &Term) -> Time {
    term.shared.cutoff()
}

/// The freshness of an observer's changes; outlives the observer.
#[derive(Debug, Clone)]
pub struct Freshness(Arc<Backlog>);

impl Freshness {
    /// Returns the freshness of this observer's changes.
    pub fn of(observer: &Observer) -> Self {
        Self(observer.backlog())
    }

    /// Returns the freshness of the changes of this observer of partitions.
    pub fn of_map(observer: &PartitionMapObserver) -> Self {
        Self(observer.changes().backlog())
    }

    /// Returns the time up to which every change was seen, including changes that wait to be read.
    pub fn as_of(&self) -> Option<Time> {
        self.0.as_of()
    }

    /// Returns the time up to which the first `taken` changes are complete, if there are no others.
    pub fn as_of_all(&self, taken: u64) -> Option<Time> {
        self.0.as_of_all(taken)
    }
}

/// Observes the orders to evacuate data centres in the session's namespace. [`evacuations`] reads the rosters that it
/// delivers.
///
/// # Errors
///
/// As [`Election::observe`].
pub async fn observe_evacuations(session: &Session) -> Result<Observer> {
    let handle = session.handle().clone();
    let marks = handle.shared.settings.marks().into();
    let observer = Observer::start(handle, marks, Reach::Everything).await?;
    Ok(observer.unled())
}

/// Returns the newest version that led the election, by what an observer of [`observe_evacuations`] has delivered.
pub fn newest_version(election: &Election, seen: &Roster) -> Option<Version> {
    let key = election.version_key();
    let mut marks = seen.members().iter();
    let mark = marks.find(|mark| mark.key() == key)?;
    VersionMark::decode(mark.entry()).version()
}

/// Returns why the leader of this queue of the election would not make way for a candidate outside of evacuated data centres, or
/// `None` if it would or holds a lock.
///
/// # Errors
///
/// As [`Session::evacuations`] and [`Election::roster`].
pub async fn no_successor_elsewhere(
    election: &Election,
    queue: &Roster,
    leader: &Member,
) -> Result<Option<String>> {
    if leader.value().starts_with(LOCK) {
        return Ok(None);
    }
    election.no_successor(queue, leader, true).await
}

/// Refuses a time of [`Partitions::keep_share_for`] that joining would refuse.
///
/// # Errors
///
/// `InvalidInput`.
pub fn check_keep_share_for(partitions: &Partitions) -> Result<()> {
    partitions.check_keep_share_for()
}

/// Returns the orders that an observer of [`observe_evacuations`] has delivered, by the names of the data centres.
pub fn evacuations(session: &Session, seen: &Roster) -> Arc<[Evacuation]> {
    let marks = seen.members().iter().map(Member::entry);
    Evacuation::all(&session.shared().settings.marks(), marks)
}

/// Sets the gauges `eldest_leading` and `eldest_serving`, with the feature `metrics`.
pub fn report_leading(identity: &str, election: &str, leads: bool, serves: bool) {
    crate::metrics::leading(identity, election, leads, serves);
}

#[cfg(target_os = "linux")]
pub mod agent;

#[cfg(target_os = "linux")]
pub mod guard;

/// Opens other processes by their number, and waits until they have ended.
pub mod process {
    pub use eldest_process::Process;
}

/// Terms and clocks that a test sets, and sessions that a test abandons.
pub mod scripted;
