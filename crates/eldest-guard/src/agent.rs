//! Keeps the list of the sessions that a guard guards, and accepts connections from their processes. Each session has a
//! task of its own.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound::{Excluded, Unbounded};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eldest_process::Pidfd;
use eldest_process::socket::Socket;
use futures::FutureExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::limits::{CONNECTION, Limits, Share};
use crate::timer::{self, Timer};
use crate::wire::hex;
use crate::{Claim, Etcd, Machine, Report, Unproven};
use eldest_core::error::Class;
use eldest_core::time::Time;

/// How often the guard checks that etcd answers. The check also keeps the connection open over which the guard deletes
/// keys.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often the same warning is logged, so that no process can fill the log.
const LOG_EVERY: Duration = Duration::from_secs(1);
/// The longest identity, and the longest prefix of a namespace, in bytes: the limits of sessions.
const LONGEST_IDENTITY: usize = 1024;
const LONGEST_NAMESPACE: usize = 1024;

/// A guard for the sessions of many processes.
pub(crate) struct Agent {
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) etcd: Arc<dyn Etcd>,
    /// Why etcd did not answer the last check.
    problem: Mutex<Option<String>>,
    /// True once the first check has ended.
    looked: AtomicBool,
    sessions: Mutex<BTreeMap<u64, Guarded>>,
    numbers: AtomicU64,
    released: AtomicU64,
    limits: Arc<Limits>,
    /// How long the guard tries to delete the keys of a dead process; `None`: as long as the TTL of their lease.
    pub(crate) patience: Option<Duration>,
    /// Cancelled when this process must end: the guard then deletes the last keys of a dead process at once, instead of
    /// after a request timeout.
    pub(crate) hurry: CancellationToken,
    /// The last time that a refusal, and that a failure to accept, was logged.
    logged: [Mutex<Option<Time>>; 2],
}

/// A guard's report of one session.
#[derive(Debug, Clone)]
pub(crate) struct Guarded {
    pub(crate) identity: String,
    pub(crate) namespace: String,
    /// The session's own process.
    pub(crate) process: Arc<Pidfd>,
    pub(crate) uid: u32,
    pub(crate) since: Duration,
    pub(crate) linger: Duration,
    pub(crate) leases: Vec<i64>,
    pub(crate) connected: bool,
    /// The processes, cgroups and timers that must have ended before the keys are deleted.
    pub(crate) processes: usize,
    pub(crate) cgroups: usize,
    pub(crate) timers: Vec<Arc<Timer>>,
}

impl Guarded {
    fn describe(&self) -> Value {
        let leases: Vec<String> = self.leases.iter().copied().map(hex).collect();
        let promised = timer::longest(&self.timers);
        json!({
            "identity": self.identity, "namespace": self.namespace.trim_end_matches('/'),
            "pid": self.process.pid(), "uid": self.uid, "since_unix_ms": millis(self.since),
            "linger_ms": millis(self.linger), "leases": leases, "connected": self.connected,
            "processes": self.processes, "cgroups": self.cgroups, "promised_ms": promised.map(millis),
        })
    }
}

impl Agent {
    /// Makes a guard that deletes keys through that etcd, and starts to check it.
    pub(crate) fn start(
        machine: &Arc<dyn Machine>,
        etcd: Arc<dyn Etcd>,
        limits: Arc<Limits>,
        patience: Option<Duration>,
    ) -> Arc<Self> {
        let agent = Arc::new(Self {
            machine: Arc::clone(machine),
            etcd,
            problem: Mutex::new(None),
            looked: AtomicBool::new(false),
            sessions: Mutex::new(BTreeMap::new()),
            numbers: AtomicU64::new(0),
            released: AtomicU64::new(0),
            limits,
            patience,
            hurry: CancellationToken::new(),
            logged: Default::default(),
        });
        machine.measure(Report::Started);
        let looking = Arc::downgrade(&agent);
        machine.spawn(
            async move {
                while let Some(agent) = looking.upgrade() {
                    let machine = Arc::clone(&agent.machine);
                    agent.check_etcd().await;
                    drop(agent);
                    machine.sleep(LOOK_EVERY).await;
                }
            }
            .boxed(),
        );
        agent
    }

    /// Reserves what a connection needs, out of its user's limits.
    pub(crate) fn share(&self, socket: &Socket) -> Result<Share, String> {
        let peer = socket.peer();
        let peer = peer.map_err(|error| format!("the peer is unknown: {error}"))?;
        self.limits.take(peer.uid, CONNECTION)
    }

    /// Counts a session or a lease that is not guarded, and logs why.
    pub(crate) fn refused(&self, identity: Option<&str>, reason: &str) {
        self.machine.measure(Report::Refused);
        if self.may_log(0) {
            tracing::warn!(target: "eldest::guard", identity, reason, "the guard refused a session");
        }
    }

    /// Returns `true` if a line about a session of that user may be logged. Logs first how many lines were left out.
    pub(crate) fn may_log_of(&self, share: &Share) -> bool {
        let left_out = share.line(self.machine.now());
        if let Some(lines @ 1..) = left_out {
            tracing::warn!(
                target: "eldest::guard", lines, uid = share.uid(),
                "lines about the sessions of a user were left out of the log"
            );
        }
        left_out.is_some()
    }

    pub(crate) fn may_log(&self, which: usize) -> bool {
        let now = self.machine.now();
        let mut logged = lock(&self.logged[which]);
        if logged.is_some_and(|logged| now.since(logged) < LOG_EVERY) {
            return false;
        }
        *logged = Some(now);
        true
    }

    async fn check_etcd(&self) {
        // No lease has this key. The answer shows that etcd can be reached over the connection that deletes keys, and keeps
        // that connection open.
        let problem = match self.etcd.prove(Claim::of("~guard", 0)).await {
            // A user without permission for the key gets an answer as well.
            Err(Unproven::Unknown { failure, .. }) if failure.class != Class::Denied => {
                Some(failure.to_string())
            }
            _ => None,
        };
        let mut known = lock(&self.problem);
        if problem.is_some() && known.is_none() {
            let problem = problem.as_deref().unwrap_or_default();
            tracing::warn!(target: "eldest::guard", problem, "the guard does not reach etcd");
        } else if problem.is_none() && known.is_some() {
            tracing::warn!(target: "eldest::guard", "the guard reaches etcd again");
        }
        *known = problem;
        self.looked.store(true, Ordering::Release);
    }

    /// Returns why the guard does not reach etcd at present.
    pub(crate) fn problem(&self) -> Option<String> {
        lock(&self.problem).clone()
    }

    /// Describes the same problem for people, and also says if etcd was not checked yet.
    pub(crate) fn describe_problem(&self) -> Option<String> {
        if self.looked.load(Ordering::Acquire) {
            return self.problem();
        }
        Some("etcd was not asked yet".to_owned())
    }

    /// Adds a session to the list, and returns its number.
    pub(crate) fn enlist(&self, session: Guarded) -> Result<u64, String> {
        for (what, text, longest) in [
            ("identity", &session.identity, LONGEST_IDENTITY),
            ("namespace", &session.namespace, LONGEST_NAMESPACE),
        ] {
            if text.len() > longest {
                return Err(format!(
                    "the {what} has {} bytes; at most {longest} are allowed",
                    text.len()
                ));
            }
        }
        let mut sessions = lock(&self.sessions);
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        sessions.insert(number, session);
        self.machine.measure(Report::Sessions(sessions.len()));
        Ok(number)
    }

    pub(crate) fn change(&self, number: u64, change: impl FnOnce(&mut Guarded)) {
        if let Some(session) = lock(&self.sessions).get_mut(&number) {
            change(session);
        }
    }

    pub(crate) fn strike_off(&self, number: u64) {
        let mut sessions = lock(&self.sessions);
        sessions.remove(&number);
        self.machine.measure(Report::Sessions(sessions.len()));
    }

    pub(crate) fn count_released(&self) {
        self.released.fetch_add(1, Ordering::Relaxed);
    }

    /// Describes the first session after that number which this user may see. root and the guard's own user see the
    /// sessions of all users. Sessions are described one at a time, so that a reader costs the memory of one
    /// description.
    pub(crate) fn describe_after(&self, number: Option<u64>, viewer: u32) -> Option<(u64, Value)> {
        let all = viewer == 0 || viewer == rustix::process::geteuid().as_raw();
        let listed = lock(&self.sessions);
        let after = (number.map_or(Unbounded, Excluded), Unbounded);
        let mut seen = listed
            .range(after)
            .filter(|(_, one)| all || one.uid == viewer);
        seen.next().map(|(number, one)| (*number, one.describe()))
    }

    /// Describes the guard itself.
    pub(crate) fn describe(&self) -> Value {
        json!({
            "pid": std::process::id(), "sessions": lock(&self.sessions).len(),
            "released": self.released.load(Ordering::Relaxed), "problem": self.describe_problem(),
        })
    }

    /// Returns how long the guard lingers if it has sessions and all of their processes have ended.
    pub(crate) fn bereaved(&self) -> Option<Duration> {
        let listed = lock(&self.sessions);
        let lingers = listed.values().map(|one| one.linger);
        let dead = listed.values().all(|one| one.process.has_ended());
        lingers.max().filter(|_| dead)
    }
}

/// Reads the status of the agent at that path, of its sessions and of itself, as JSON.
///
/// # Errors
///
/// No agent answered at the path.
pub async fn status(path: &Path) -> io::Result<(Vec<Value>, Value)> {
    use crate::wire::{Reply, Request};
    let socket = Socket::connect(path)?;
    socket.send(&Request::Status.encode(), &[]).await?;
    let mut sessions = Vec::new();
    while let Some(received) = socket.receive().await? {
        match Reply::decode(&received.message) {
            Some(Reply::Session(session)) => sessions.push(session),
            Some(Reply::Agent(agent)) => return Ok((sessions, agent)),
            Some(Reply::Refused { reason }) => return Err(io::Error::other(reason)),
            _ => break,
        }
    }
    Err(io::Error::other("the agent's answer ended early"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under these locks is complete in itself.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
