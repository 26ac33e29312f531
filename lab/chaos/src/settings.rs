//! Defines the settings of a run and their defaults.

use std::path::PathBuf;
use std::time::Duration;

/// Time that an orderly or announced change may take on a busy machine.
pub(crate) const SLACK: Duration = Duration::from_millis(3500);

/// etcd's own defaults.
const HEARTBEAT: Duration = Duration::from_millis(100);
const ELECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// How large a run's stage is, and how its nodes behave.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The program whose copies are the nodes: `eldest-chaos` itself.
    pub program: PathBuf,
    /// How many nodes stand.
    pub nodes: usize,
    /// How many servers form the cluster.
    pub members: usize,
    /// The servers' programs: the first is what they begin with, and an upgrade goes through the others. None: the one
    /// that is vendored.
    pub etcds: Vec<PathBuf>,
    /// How often etcd's leader tells the other servers that it is there.
    pub heartbeat: Duration,
    /// How long they wait for that before they choose another.
    pub election_timeout: Duration,
    /// The nodes' TTL.
    pub ttl: Duration,
    /// True if the register outside of etcd looks at tokens.
    pub fenced: bool,
    /// True if etcd has users, and demands a password.
    pub auth: bool,
    /// How much data etcd holds when it is defragmented, in MiB; each of these faults has a default.
    pub data_mib: Option<usize>,
    /// Tells what is going on, line by line.
    pub verbose: bool,
}

impl Settings {
    /// Three nodes, three servers, a TTL that survives a change of etcd's leader; fenced, and silent.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            nodes: 3,
            members: 3,
            etcds: Vec::new(),
            heartbeat: HEARTBEAT,
            election_timeout: ELECTION_TIMEOUT,
            ttl: Duration::from_secs(5),
            fenced: true,
            auth: false,
            data_mib: None,
            verbose: false,
        }
    }

    /// The longest vacancy that the checker allows while nothing is wrong: TTL, etcd's election timeout, and slack.
    pub(crate) fn takeover(&self) -> Duration {
        self.ttl + self.election_timeout + SLACK
    }

    /// With etcd set up for servers that are so far from each other: heartbeats as often as a round trip allows, and
    /// ten of them until another leader is chosen; never less than its defaults.
    pub fn far(mut self, round_trip: Duration) -> Self {
        self.heartbeat = round_trip.max(HEARTBEAT);
        self.election_timeout = (round_trip * 10).max(ELECTION_TIMEOUT);
        self
    }

    /// Patience with what ought to come by itself. The checker's bound is the promise; this only ends a run that
    /// hangs.
    pub(crate) fn patience(&self) -> Duration {
        self.takeover() * 3
    }
}
