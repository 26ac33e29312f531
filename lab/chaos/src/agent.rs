//! Starts the agent that guards the nodes, breaks and repairs it, and asks it which processes it guards.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use eldest::SessionOptions;
use eldest::internal::agent;
use eldest_testing::history::Recorder;
use eldest_testing::{EtcdCluster, Process, Proxy, eventually};
use serde_json::Value;
use tokio::time::timeout;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

use crate::certificates::{self, Certificates};
use crate::links::Links;
use crate::{AGENT, Result, Settings, users};

/// How long the agent may take to describe its sessions.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// If this variable is set, the agent uses its own etcd user.
const WITH_USER: &str = "ELDEST_CHAOS_USER";

/// The message that the agent logs when it has deleted the keys of a lease.
const RELEASED: &str = "the process of a session is dead: its keys are deleted";

/// The agent of this machine, which may run or not.
pub(crate) struct Agent {
    socket: PathBuf,
    folder: PathBuf,
    /// The agent's own connections to etcd.
    links: Links,
    /// The variables that name the files of its certificates.
    certificates: Vec<(&'static str, PathBuf)>,
    process: RefCell<Option<Process>>,
    paused: Cell<bool>,
}

impl Agent {
    /// Makes the agent of a folder; [`Agent::start`] starts it.
    pub(crate) async fn new(
        cluster: &EtcdCluster,
        folder: &Path,
        certificates: &Certificates,
    ) -> Result<Self> {
        Ok(Self {
            socket: folder.join("agent.sock"),
            folder: folder.to_owned(),
            links: Links::start(cluster).await?,
            certificates: certificates.environment(certificates::AGENT),
            process: RefCell::default(),
            paused: Cell::new(false),
        })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Starts the agent's process, unless it runs, and waits until it answers.
    pub(crate) async fn start(&self, settings: &Settings) -> Result {
        let (program, patience) = (&settings.program, settings.patience());
        if self.process.borrow().is_some() {
            return Ok(());
        }
        let mut log = File::options();
        let log = log.create(true).append(true).open(self.log())?;
        let mut command = Command::new(program);
        command
            .env(AGENT, &self.socket)
            .env("ETCD_ENDPOINTS", self.links.endpoints(0))
            .env("RUST_LOG", "eldest=debug")
            .envs(self.certificates.iter().cloned())
            .env(WITH_USER, if settings.auth { "yes" } else { "" })
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let process = Process::spawn(&mut command, &self.folder)?;
        *self.process.borrow_mut() = Some(process);
        let answers = eventually(patience, "the agent answers", async || {
            self.sessions().await.map(|_| ())
        });
        Ok(answers.await?)
    }

    /// Kills the process; on return it is dead.
    pub(crate) fn kill(&self) {
        self.process.borrow_mut().take();
        self.paused.set(false);
    }

    /// Stops the process; on return it is stopped.
    pub(crate) fn pause(&self) {
        if let Some(process) = &*self.process.borrow() {
            process.pause();
            self.paused.set(true);
        }
    }

    pub(crate) fn resume(&self) {
        if let Some(process) = &*self.process.borrow()
            && self.paused.replace(false)
        {
            process.resume();
        }
    }

    /// Resets its connections to etcd and refuses new ones.
    pub(crate) fn cut(&self) {
        self.links.all().iter().for_each(Proxy::cut);
    }

    /// Resets its connections to etcd; new ones are accepted.
    pub(crate) fn reset(&self) {
        self.links.reset();
    }

    pub(crate) fn heal(&self) {
        self.links.heal();
    }

    /// Returns the processes that the agent guards, and their leases; `None` while it does not answer.
    pub(crate) async fn guarded(&self) -> Option<(Vec<u32>, Vec<i64>)> {
        let sessions = self.sessions().await?;
        let pid = |session: &Value| u32::try_from(session["pid"].as_u64()?).ok();
        let pids = sessions.iter().filter_map(pid).collect();
        let leases = sessions
            .iter()
            .filter_map(|session| session["leases"].as_array());
        let hex = |lease: &Value| i64::from_str_radix(lease.as_str()?, 16).ok();
        Some((pids, leases.flatten().filter_map(hex).collect()))
    }

    /// Returns the leases that this agent and its predecessors have released, and when, by their log.
    pub(crate) fn released(&self) -> Result<Vec<(Duration, i64)>> {
        let log = std::fs::read_to_string(self.log())?;
        let released = log.lines().filter(|line| line.contains(RELEASED));
        Ok(released.filter_map(time_and_lease).collect())
    }

    fn log(&self) -> PathBuf {
        self.folder.join("agent.txt")
    }

    async fn sessions(&self) -> Option<Vec<Value>> {
        let asked = timeout(ANSWER_WITHIN, agent::status(&self.socket)).await;
        let (sessions, _) = asked.ok()?.ok()?;
        Some(sessions)
    }
}

/// Reads the time and the lease of a line of the agent's log.
fn time_and_lease(line: &str) -> Option<(Duration, i64)> {
    let at = line.split(' ').next()?.parse().ok()?;
    let lease = line.split("lease=\"").nth(1)?.split('"').next()?;
    Some((
        Duration::from_nanos(at),
        i64::from_str_radix(lease, 16).ok()?,
    ))
}

/// Stamps log lines with the time of the recorded histories, in nanoseconds.
struct Boottime(Recorder);

impl FormatTime for Boottime {
    fn format_time(&self, to: &mut Writer<'_>) -> std::fmt::Result {
        write!(to, "{}", self.0.now().as_nanos())
    }
}

/// Runs as an agent: the environment names its socket and the members of etcd.
///
/// # Errors
///
/// The environment names no members, or the agent cannot listen there.
pub fn main(socket: &Path) -> Result {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_timer(Boottime(Recorder::boottime()))
        .init();
    let endpoints = std::env::var("ETCD_ENDPOINTS")?;
    let endpoints: Vec<String> = endpoints.split(',').map(str::to_owned).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let options = eldest_node::tls::of_environment(SessionOptions::new("agent"))?;
        let options = match std::env::var(WITH_USER) {
            Ok(yes) if !yes.is_empty() => options.credentials(users::credentials(users::AGENT)),
            _ => options,
        };
        let agent = agent::listen(&endpoints, options, socket)?;
        agent.run().await;
        Ok(())
    })
}
