//! Starts the agent that guards the nodes, breaks and mends it, and asks it what it guards.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use eldest::SessionOptions;
use eldest::internal::agent;
use eldest_testing::{EtcdCluster, Process, Proxy, eventually};
use serde_json::Value;
use tokio::time::timeout;

use crate::links::Links;
use crate::{AGENT, Result};

/// How long the agent may take to describe its sessions.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The agent of this machine, running or not.
pub(crate) struct Agent {
    socket: PathBuf,
    folder: PathBuf,
    /// Its own connections to etcd.
    links: Links,
    process: RefCell<Option<Process>>,
    paused: Cell<bool>,
    /// The process that answered last, and how many leases it had revoked; and how many those before it had.
    revoked: Cell<(u64, u64, u64)>,
}

impl Agent {
    /// Makes the agent of a folder; it is started with [`Agent::start`].
    pub(crate) async fn new(cluster: &EtcdCluster, folder: &Path) -> Result<Option<Self>> {
        Ok(Some(Self {
            socket: folder.join("agent.sock"),
            folder: folder.to_owned(),
            links: Links::start(cluster).await?,
            process: RefCell::default(),
            paused: Cell::new(false),
            revoked: Cell::default(),
        }))
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Starts its process, unless it runs, and waits until it answers.
    pub(crate) async fn start(&self, program: &Path, patience: Duration) -> Result {
        if self.process.borrow().is_some() {
            return Ok(());
        }
        let mut log = File::options();
        let log = log
            .create(true)
            .append(true)
            .open(self.folder.join("agent.txt"))?;
        let mut command = Command::new(program);
        command
            .env(AGENT, &self.socket)
            .env("ETCD_ENDPOINTS", self.links.endpoints(0))
            .env("RUST_LOG", "eldest=debug")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let process = Process::spawn(&mut command, &self.folder)?;
        *self.process.borrow_mut() = Some(process);
        let answers = eventually(patience, "the agent answers", async || {
            self.status().await.map(|_| ())
        });
        Ok(answers.await?)
    }

    /// On return its process is dead.
    pub(crate) fn kill(&self) {
        self.process.borrow_mut().take();
        self.paused.set(false);
    }

    /// On return its process is stopped.
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

    pub(crate) fn heal(&self) {
        self.links.heal();
    }

    /// Returns the processes that it guards, and their leases; none while it does not answer.
    pub(crate) async fn guarded(&self) -> Option<(Vec<u32>, Vec<i64>)> {
        let (sessions, _) = self.status().await?;
        let pid = |session: &Value| u32::try_from(session["pid"].as_u64()?).ok();
        let pids = sessions.iter().filter_map(pid).collect();
        let leases = sessions
            .iter()
            .filter_map(|session| session["leases"].as_array());
        let hex = |lease: &Value| i64::from_str_radix(lease.as_str()?, 16).ok();
        Some((pids, leases.flatten().filter_map(hex).collect()))
    }

    /// Returns how many leases it and those before it have revoked, as far as they have told.
    pub(crate) fn revoked(&self) -> u64 {
        let (_, now, before) = self.revoked.get();
        now + before
    }

    async fn status(&self) -> Option<(Vec<Value>, u64)> {
        let asked = timeout(ANSWER_WITHIN, agent::status(&self.socket)).await;
        let (sessions, about) = asked.ok()?.ok()?;
        let (pid, count) = (about["pid"].as_u64()?, about["revoked"].as_u64()?);
        let (known, last, before) = self.revoked.get();
        let before = if known == pid { before } else { before + last };
        self.revoked.set((pid, count, before));
        Some((sessions, count))
    }
}

/// Is an agent: the environment names its socket and the members of etcd.
///
/// # Errors
///
/// The environment names no members, or the agent cannot listen there.
pub fn main(socket: &Path) -> Result {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let endpoints = std::env::var("ETCD_ENDPOINTS")?;
    let endpoints: Vec<String> = endpoints.split(',').map(str::to_owned).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let agent = agent::listen(&endpoints, SessionOptions::new("agent"), socket)?;
        agent.run().await;
        Ok(())
    })
}
