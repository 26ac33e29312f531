//! Defines the settings of a run and their defaults.

use std::path::PathBuf;
use std::time::Duration;

/// Time that an orderly or announced change may take on a busy machine.
pub(crate) const SLACK: Duration = Duration::from_millis(3500);

/// etcd's own defaults.
const HEARTBEAT: Duration = Duration::from_millis(100);
const ELECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// The size of a run's stage, and the behaviour of its nodes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The program that runs as the nodes: `eldest-chaos` itself.
    pub program: PathBuf,
    /// The number of nodes that campaign.
    pub nodes: usize,
    /// The number of servers in the cluster.
    pub members: usize,
    /// The servers' programs: they begin with the first, and an upgrade goes through the others. If empty, the vendored
    /// one.
    pub etcds: Vec<PathBuf>,
    /// The interval of heartbeats from etcd's leader to the other servers.
    pub heartbeat: Duration,
    /// How long the servers wait for a heartbeat before they elect another leader.
    pub election_timeout: Duration,
    /// The nodes' TTL.
    pub ttl: Duration,
    /// The level of the nodes' challenges, if they allow any: `fast` or `steady`.
    pub challenges: Option<String>,
    /// How long the nodes' leaders take until they serve, and the next ones until they are warm, if they use that. They
    /// then share partitions, too, keep their shares, and require a version.
    pub ready: Option<Duration>,
    /// True if the register outside of etcd checks tokens.
    pub fenced: bool,
    /// True if etcd has users, and demands a password.
    pub auth: bool,
    /// The amount of data in etcd when it is defragmented, in MiB; each of these faults has a default.
    pub data_mib: Option<usize>,
    /// True if each step is printed, line by line.
    pub verbose: bool,
}

impl Settings {
    /// Returns three nodes, three servers and a TTL that survives a change of etcd's leader; fenced, and silent.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            nodes: 3,
            members: 3,
            etcds: Vec::new(),
            heartbeat: HEARTBEAT,
            election_timeout: ELECTION_TIMEOUT,
            ttl: Duration::from_secs(5),
            challenges: None,
            ready: None,
            fenced: true,
            auth: false,
            data_mib: None,
            verbose: false,
        }
    }

    /// Returns the longest vacancy that the checker allows without a fault: TTL, etcd's election timeout, and slack.
    pub(crate) fn takeover(&self) -> Duration {
        self.ttl + self.election_timeout + SLACK
    }

    /// Configures etcd for servers at that distance: heartbeats as often as a round trip allows, and an election
    /// timeout of ten of them; never less than its defaults.
    pub fn far(mut self, round_trip: Duration) -> Self {
        self.heartbeat = round_trip.max(HEARTBEAT);
        self.election_timeout = (round_trip * 10).max(ELECTION_TIMEOUT);
        self
    }

    /// Returns how long to wait for events that must come. The checker's bound is the promise; this one only ends a run
    /// that hangs.
    pub(crate) fn patience(&self) -> Duration {
        self.takeover() * 3
    }
}
