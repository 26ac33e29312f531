//! Records when each node of a test took itself for the leader, what it wrote and which faults hit it, and checks the
//! record against the promises of leader election.
//!
//! [`check`] is a pure function from a [`History`] and [`Rules`] to a [`Report`]. It never reads a clock, never waits,
//! and does not depend on the source of the events: one process, many processes that each wrote a file, or a
//! simulation. A history is only as good as its events, so a report also counts them: [`Report::require`] refuses a
//! test in which nothing happened.
//!
//! # What is checked
//!
//! | | invariant | needs |
//! |---|---|---|
//! | I1 | no two terms of an election overlap | [`What::Valid`], [`What::Guarded`] |
//! | I2 | a token belongs to one node, and tokens only grow | [`What::Elected`], [`What::Guarded`], admitted writes |
//! | I3 | no update is lost, no stale write is admitted | [`What::FencedWrite`], [`What::FinalCounter`] |
//! | I4 | the elected node holds the oldest live key | [`What::Truth`], see [`TruthRecorder`] |
//! | I5 | a vacancy ends within TTL + election timeout + slack after the last fault | [`What::Joined`], [`What::Left`], [`What::Killed`], faults |
//! | I6 | nothing is left behind | [`What::Baseline`], [`What::Final`] |
//!
//! What is not recorded is not checked.
//!
//! # What is counted, but is not a violation
//!
//! * **A key that another party deleted early.** An operator, and in rare cases etcd itself, can delete the key of a
//!   living leader. Its node takes itself for the leader until it learns of the deletion, at worst until its local
//!   deadline. Such an overlap is excused only on evidence. The test recorded [`What::DeletedByOther`], or
//!   [`TruthRecorder`] saw that etcd had promised the lease a longer life and that the whole lease is gone, no guard
//!   had deleted its keys ([`What::ReleasedByGuard`]), and no session had condemned it ([`What::Condemned`]). None of
//!   our nodes requested the deletion. And the overlap lies after the deletion and ends within one TTL of it.
//! * **A stopped process.** From the last check before a stop to the first check after it, a process has not noticed
//!   the end of its term. While it is stopped it does nothing, and only fencing (I3) covers its requests in flight, so
//!   this overlap has its own count: [`Counts::overlaps_while_stopped`]. [`Rules::stopped_counts_as_leading`] makes it
//!   a violation. A check that returns `true` after the stop is an ordinary overlap in any case.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use eldest_testing::history::{Recorder, Rules, What, check};
//!
//! let recorder = Recorder::boottime(); // or `.to_file(path)?` in each process, then `History::load(paths)`
//! recorder.record("n1", "jobs", What::Elected { token: 7 });
//! recorder.sample("n1", "jobs", 7, || true); // `|| term.is_valid()`, every few milliseconds
//! recorder.record("n1", "jobs", What::Killed);
//! recorder.record("n2", "jobs", What::Elected { token: 9 });
//! recorder.sample("n2", "jobs", 9, || true);
//!
//! let report = check(&recorder.history()?, &Rules::new(Duration::from_secs(10)));
//! report.assert_ok();
//! report.require(2, 1); // two elections, one fault that hit a leader
//! println!("{report}");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Limits
//!
//! All events come from one host: `CLOCK_BOOTTIME` cannot be compared between machines. One history covers one etcd
//! cluster; a restored backup begins a new one. The fenced counter starts at zero.
#![allow(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "programs that record themselves build these"
)]

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

mod check;
mod counter;
mod follow;
mod json;
mod liveness;
mod overlap;
mod recorder;
mod report;
mod rules;
mod terms;
mod tokens;
mod truth;

#[cfg(test)]
mod tests;

pub use check::check;
pub use recorder::Recorder;
pub use report::{Counts, Invariant, Report, Violation};
pub use rules::Rules;
pub use truth::TruthRecorder;

/// An event that an observer on this host saw. A line of a file holds one as a JSON object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The time of the event on the observer's clock, since boot; in files, in nanoseconds.
    #[serde(with = "json::nanos")]
    pub at: Duration,
    /// The name of the node concerned. Each candidate of an election is one node, even if several share a process. For
    /// [`What::Fault`] and [`What::Healed`], it is the node that is hit; empty for all nodes (etcd itself, for
    /// example).
    pub node: String,
    /// The election's name. It is ignored for events of a whole process: pauses, kills, faults, resources.
    pub election: String,
    /// The kind of event.
    #[serde(flatten)]
    pub what: What,
}

/// The kinds of events. Each says how to stamp it, so that an inaccuracy never hides or invents an overlap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum What {
    /// The node registered its key.
    Joined {
        /// The key; see [`Change`] for how bytes are written.
        key: String,
        /// The key's create revision, which is the token of the node's term if it is elected.
        create_revision: i64,
    },
    /// The node left the election, or shut down, on its own. Record it before leaving.
    Left,
    /// The node learned that it leads.
    Elected {
        /// The term's fencing token.
        token: i64,
    },
    /// `is_valid()` returned `true`. Stamped *before* the check; see [`Recorder::sample`].
    Valid {
        /// The term's fencing token.
        token: i64,
    },
    /// `is_valid()` returned `false`. Stamped *after* the check.
    Invalid {
        /// The term's fencing token.
        token: i64,
    },
    /// An observer saw guarded work in progress.
    Guarded {
        /// The term's fencing token.
        token: i64,
    },
    /// The node saw its `lost()` token cancelled. It may still be valid for the grace period.
    LostToken {
        /// The term's fencing token.
        token: i64,
        /// The reason, in words.
        reason: String,
    },
    /// The node ended its term itself. Record it before releasing.
    Released {
        /// The term's fencing token.
        token: i64,
    },
    /// The node's process was stopped. Record it after the stop.
    Paused,
    /// The node's process continues. Record it before the process continues, and once more when it certainly runs, if
    /// that takes a moment: I1 uses the first record, and the time for a takeover (I5) begins with the last.
    Resumed,
    /// The node's process is dead. Record the event only after that.
    Killed,
    /// A fault began; while it lasts, a vacancy may last. Pauses and kills are faults without this event. Record it
    /// before the fault, and once more when the fault is certainly there, if that takes a moment: the two records are
    /// one fault, which excuses vacancies from the first record on, and hits the nodes that lead at the last record.
    Fault {
        /// The fault's name; [`What::Healed`] repeats it.
        name: String,
    },
    /// The fault of that name and node is certainly over, and the time for a takeover begins. A fault that is over at
    /// once needs this event too.
    Healed {
        /// The fault's name.
        name: String,
    },
    /// The counter was read after all writes had ended.
    FinalCounter {
        /// Its value.
        value: u64,
    },
    /// The library or the node requested etcd to delete its own key. Record it before the request.
    AskedToDelete {
        /// The key's create revision.
        create_revision: i64,
    },
    /// Another party deleted the key or revoked its lease: an operator, or the test in that role.
    DeletedByOther {
        /// The key's create revision.
        create_revision: i64,
    },
    /// A guard deleted the keys of the lease, because it considered the process that held it dead. Record it at once:
    /// etcd's changes to the lease count as the guard's if this event follows within [`Rules::observer_lag`].
    ReleasedByGuard {
        /// The lease.
        lease: i64,
    },
    /// The node's session condemned the session of the lease, which did not answer a challenge. Record it at once: etcd's
    /// changes to the lease count as the condemnation's if this event follows within [`Rules::observer_lag`].
    Condemned {
        /// The lease.
        lease: i64,
    },
    /// The resources that the node held before the test.
    Baseline(Resources),
    /// The resources that it holds after everything was dropped and a TTL has passed.
    Final(Resources),
    /// The node tried a write that carries its token.
    #[serde(untagged)]
    FencedWrite {
        /// The token it carried.
        token: i64,
        /// The result of the write.
        #[serde(flatten)]
        outcome: Outcome,
    },
    /// A change in etcd, from an independent watcher.
    #[serde(untagged)]
    Truth {
        /// The store's revision.
        revision: i64,
        /// The change.
        #[serde(flatten)]
        change: Change,
    },
}

/// The result of a fenced write to a counter that every admitted write raises by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// The write is about to be sent, and its result follows. If no result follows, the process was killed before it
    /// knew, and the write counts as unknown. Only needed if the writer may be killed; then for each of its writes.
    Sent,
    /// The write was admitted.
    Admitted {
        /// The counter's value after this write: 1 for the first write ever.
        value: u64,
    },
    /// The write was refused, and certainly did nothing.
    Refused,
    /// The answer was lost: the write may have been admitted, once.
    #[serde(rename = "unanswered")]
    Unknown,
}

/// A change in etcd. Keys are text with `\xNN` for what is not printable ASCII.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Change {
    /// A key appeared.
    #[serde(rename = "key_created")]
    Created {
        /// The key.
        key: String,
        /// Its create revision.
        create_revision: i64,
        /// Its lease, 0 for none.
        lease: i64,
    },
    /// A living key was written again.
    #[serde(rename = "key_overwritten")]
    Overwritten {
        /// The key.
        key: String,
        /// Its create revision, which stays.
        create_revision: i64,
        /// Its lease now, 0 for none.
        lease: i64,
    },
    /// A key was deleted, by a request or with its lease.
    #[serde(rename = "key_deleted")]
    Deleted {
        /// The key.
        key: String,
        /// The create revision it had.
        create_revision: i64,
    },
    /// etcd's leader reported the lease, and proved to be the current leader.
    Lease {
        /// The lease.
        lease: i64,
        /// The least time left, counted from the event's time; `None` if the lease is gone.
        #[serde(default, with = "json::some_nanos")]
        left: Option<Duration>,
    },
    /// A linearizable read that was sent at the event's time returned the event's revision, so etcd made every change of a
    /// later revision after that time. I4 takes the times of changes from these reads alone: watches deliver late.
    Current,
    /// Changes after revision `since`, up to and including the event's revision, are unknown: the watcher began here,
    /// or was cut off for longer than etcd keeps history.
    Gap {
        /// The last revision known before.
        since: i64,
    },
}

/// The resources that a node, or a whole test, can leave behind. Uncounted ones are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Resources {
    pub leases: u64,
    pub keys: u64,
    pub watchers: u64,
    pub tasks: u64,
    pub threads: u64,
    pub fds: u64,
}

impl Resources {
    pub(super) fn named(&self) -> [(&'static str, u64); 6] {
        [
            ("leases", self.leases),
            ("keys", self.keys),
            ("watchers", self.watchers),
            ("tasks", self.tasks),
            ("threads", self.threads),
            ("fds", self.fds),
        ]
    }
}

/// Events in the order of their times, or of their recording if the times are equal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    events: Vec<Event>,
}

impl History {
    /// Sorts the events by time.
    pub fn new(events: impl IntoIterator<Item = Event>) -> Self {
        events.into_iter().collect()
    }

    /// Merges files of JSON lines, as [`Recorder::to_file`] writes them.
    ///
    /// An incomplete last line is skipped, because a killed process may leave one behind.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or a line is not an event; the error names the file and the line's number.
    pub fn load<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> io::Result<Self> {
        let mut events = Vec::new();
        for path in paths {
            json::read_file(path.as_ref(), &mut events)?;
        }
        Ok(Self::new(events))
    }

    /// Writes the history as JSON lines, replacing the file.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let lines: io::Result<String> = self.events.iter().map(json::line).collect();
        std::fs::write(path, lines?)
    }

    /// Returns the events in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }
}

impl FromIterator<Event> for History {
    fn from_iter<I: IntoIterator<Item = Event>>(events: I) -> Self {
        let mut events: Vec<Event> = events.into_iter().collect();
        events.sort_by_key(|event| event.at);
        History { events }
    }
}

impl Extend<Event> for History {
    fn extend<I: IntoIterator<Item = Event>>(&mut self, events: I) {
        self.events.extend(events);
        self.events.sort_by_key(|event| event.at);
    }
}

/// Writes the event in a few words, without the time, the node and the election.
impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Joined {
                create_revision, ..
            } => write!(f, "joined as {create_revision}"),
            What::Left => f.write_str("left"),
            What::Elected { token } => write!(f, "elected {token}"),
            What::Valid { token } => write!(f, "valid {token}"),
            What::Invalid { token } => write!(f, "not valid {token}"),
            What::Guarded { token } => write!(f, "guarded work {token}"),
            What::LostToken { token, reason } => write!(f, "lost {token} ({reason})"),
            What::Released { token } => write!(f, "released {token}"),
            What::Paused => f.write_str("PAUSED"),
            What::Resumed => f.write_str("RESUMED"),
            What::Killed => f.write_str("KILLED"),
            What::Fault { name } => write!(f, "FAULT {name}"),
            What::Healed { name } => write!(f, "HEALED {name}"),
            What::FencedWrite { token, outcome } => match outcome {
                Outcome::Sent => write!(f, "writes with {token}"),
                Outcome::Admitted { value } => write!(f, "wrote {value} with {token}"),
                Outcome::Refused => write!(f, "refused with {token}"),
                Outcome::Unknown => write!(f, "no answer with {token}"),
            },
            What::FinalCounter { value } => write!(f, "counter ends at {value}"),
            What::AskedToDelete { create_revision } => {
                write!(f, "asked to delete {create_revision}")
            }
            What::DeletedByOther { create_revision } => {
                write!(f, "somebody else deleted {create_revision}")
            }
            What::ReleasedByGuard { lease } => {
                write!(f, "a guard deleted the keys of lease {lease:x}")
            }
            What::Condemned { lease } => write!(f, "condemned lease {lease:x}"),
            What::Truth { revision, change } => match change {
                Change::Created {
                    create_revision, ..
                } => write!(f, "key {create_revision} created @{revision}"),
                Change::Overwritten {
                    create_revision, ..
                } => write!(f, "key {create_revision} overwritten @{revision}"),
                Change::Deleted {
                    create_revision, ..
                } => write!(f, "key {create_revision} deleted @{revision}"),
                Change::Lease { lease, left } => match left {
                    Some(left) => write!(f, "lease {lease:x} has {left:?} left"),
                    None => write!(f, "lease {lease:x} is gone"),
                },
                Change::Current => write!(f, "revision {revision} was the newest"),
                Change::Gap { since } => write!(f, "nothing known from {since} to {revision}"),
            },
            What::Baseline(resources) => write!(f, "held {resources:?} before"),
            What::Final(resources) => write!(f, "holds {resources:?} after"),
        }
    }
}
