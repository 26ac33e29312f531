//! Starts an etcd, agents and subjects for one test, and reads which keys are left in etcd.

use std::path::{Path, PathBuf};
use std::time::Duration;

use eldest::BoxError;
use eldest_testing::{Etcd, eventually};
use etcd_client::{Client, GetOptions, LeaseTimeToLiveOptions, PutOptions};

use crate::process::{Process, start};

pub(crate) type Result<T = ()> = std::result::Result<T, BoxError>;

/// Longer than any step takes on a busy machine, and far shorter than a subject's TTL of 300 s.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The program of this package.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_eldest-guarded");

/// An etcd, and a folder for sockets.
pub(crate) struct Stage {
    pub(crate) etcd: Etcd,
    pub(crate) client: Client,
    folder: tempfile::TempDir,
}

/// A guard for a test: an agent, which this value keeps, or a spawned process.
pub(crate) struct Guard {
    pub(crate) agent: Option<Process>,
    pub(crate) word: String,
}

impl Stage {
    pub(crate) async fn new() -> Result<Self> {
        Self::with(Etcd::start().await?).await
    }

    pub(crate) async fn with(etcd: Etcd) -> Result<Self> {
        let client = etcd.client().await;
        let folder = tempfile::tempdir()?;
        // Other users of the system must be able to reach the sockets.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open)?;
        Ok(Self {
            etcd,
            client,
            folder,
        })
    }

    /// Starts an etcd, and an agent at the socket `agent.sock`.
    pub(crate) async fn with_agent() -> Result<(Self, Process)> {
        let stage = Self::new().await?;
        let agent = stage.agent().await?;
        Ok((stage, agent))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path at which the agent listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path("agent.sock")
    }

    /// Starts an agent at the socket `agent.sock`.
    pub(crate) async fn agent(&self) -> Result<Process> {
        self.agent_through(&self.etcd.endpoint(), &[], &[]).await
    }

    /// Starts an agent that reaches etcd at that endpoint, with those words before its command, and those variables.
    pub(crate) async fn agent_through(
        &self,
        endpoint: &str,
        before: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Process> {
        let (socket, log) = (self.socket(), self.path("agent.log"));
        let path = socket.to_string_lossy();
        let words = [before, &[PROGRAM, "agent", endpoint, &path]];
        let mut agent = start(&words.concat(), variables, Some(&log))?;
        agent.socket = socket;
        agent.says("listening").await?;
        Ok(agent)
    }

    /// Starts the guard of that name: `agent` or `spawned`.
    pub(crate) async fn guard(&self, name: &str) -> Result<Guard> {
        let agent = match name {
            "agent" => Some(self.agent().await?),
            _ => None,
        };
        let word = agent
            .as_ref()
            .map_or_else(|| name.to_owned(), Process::guard);
        Ok(Guard { agent, word })
    }

    /// Waits until the agent's log has those words, and returns the line.
    pub(crate) async fn agent_logs(&self, words: &str) -> Result<String> {
        let what = format!("the agent's log has {words:?}");
        until(what, async || {
            let log = std::fs::read_to_string(self.path("agent.log"))?;
            let line = log.lines().find(|line| line.contains(words));
            Ok(line.map(str::to_owned))
        })
        .await
    }

    /// Starts a process that leads `count` elections.
    pub(crate) fn subject(&self, guard: &str, identity: &str, count: usize) -> Result<Process> {
        self.subject_with(guard, identity, count, &[], &[])
    }

    /// Starts a subject with those words before its command, and those variables.
    pub(crate) fn subject_with(
        &self,
        guard: &str,
        identity: &str,
        count: usize,
        before: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Process> {
        let (endpoint, count) = (self.etcd.endpoint(), count.to_string());
        let subject = [PROGRAM, "subject", &endpoint, guard, identity, &count];
        let words = [before, &subject];
        start(&words.concat(), variables, None)
    }

    /// Starts a subject that is guarded and leads `work-0`, and returns it with its lease.
    pub(crate) async fn leader(&self, guard: &str) -> Result<(Process, i64)> {
        let mut leader = self.subject(guard, "leader", 1)?;
        let lease = leader.leads().await?;
        Ok((leader, lease))
    }

    /// Starts a process that speaks the protocol message by message.
    pub(crate) fn peer(&self) -> Result<Process> {
        self.peer_behind(&[])
    }

    pub(crate) fn peer_behind(&self, before: &[&str]) -> Result<Process> {
        let socket = self.socket();
        let words = [before, &[PROGRAM, "peer", &socket.to_string_lossy()]];
        start(&words.concat(), &[], None)
    }

    /// Starts a peer that is guarded, and returns it with its lease.
    pub(crate) async fn guarded_peer(&self, name: &str) -> Result<(Process, i64)> {
        let mut peer = self.peer()?;
        peer.hello().await?;
        let lease = self.register(&mut peer, name).await?;
        Ok((peer, lease))
    }

    /// Has the guard that a peer has greeted guard a lease of that peer; returns the lease.
    pub(crate) async fn register(&self, peer: &mut Process, name: &str) -> Result<i64> {
        let lease = self.lease(name).await?;
        let key = peer.ask_to_guard(lease).await?;
        self.put(&key, lease).await?;
        assert_eq!(peer.prove(lease).await?, None);
        Ok(lease)
    }

    /// Grants a lease for a peer, with one key under it.
    pub(crate) async fn lease(&self, name: &str) -> Result<i64> {
        let mut client = self.client.clone();
        let lease = client.lease_grant(300, None).await?.id();
        self.put(&format!("eldest/{name}/key"), lease).await?;
        Ok(lease)
    }

    /// Puts a key under a lease.
    pub(crate) async fn put(&self, key: &str, lease: i64) -> Result {
        let under = PutOptions::new().with_lease(lease);
        self.client.clone().put(key, "", Some(under)).await?;
        Ok(())
    }

    /// Returns whether the lease has keys.
    pub(crate) async fn lives(&self, lease: i64) -> Result<bool> {
        let mut client = self.client.clone();
        let keys = Some(LeaseTimeToLiveOptions::new().with_keys());
        let answer = client.lease_time_to_live(lease, keys).await?;
        Ok(!answer.keys().is_empty())
    }

    /// Waits until the lease has no keys left, its proof included.
    pub(crate) async fn released(&self, lease: i64) -> Result {
        let what = format!("the keys of lease {lease:x} are deleted");
        until(what, async || Ok((!self.lives(lease).await?).then_some(()))).await
    }

    /// Kills another session of the same guard and waits until its keys are deleted: by then the guard would also have
    /// deleted the keys of any session that it considers dead.
    pub(crate) async fn another_dies(&self, guard: &str) -> Result {
        let mut other = self.subject(guard, "other", 1)?;
        let lease = other.says("guarded").await?;
        other.kill()?;
        self.released(i64::from_str_radix(&lease, 16)?).await
    }

    /// Waits until an election has so many candidates.
    pub(crate) async fn candidates(&self, election: &str, count: usize) -> Result {
        self.keys(&format!("eldest/{election}/"), count).await
    }

    /// Waits until no session's proof key is left.
    pub(crate) async fn no_proof_is_left(&self) -> Result {
        self.proofs(0).await
    }

    /// Waits until there are so many proof keys.
    pub(crate) async fn proofs(&self, count: usize) -> Result {
        self.keys("eldest/~guard/", count).await
    }

    /// Waits until so many keys have that prefix.
    pub(crate) async fn keys(&self, prefix: &str, count: usize) -> Result {
        let mut client = self.client.clone();
        let what = format!("{count} keys stand below {prefix}");
        until(what, async || {
            let below = GetOptions::new().with_prefix().with_keys_only();
            let found = client.get(prefix, Some(below)).await?;
            Ok((found.kvs().len() == count).then_some(()))
        })
        .await
    }
}

/// Waits until the condition yields a value; an error of the condition ends the wait.
pub(crate) async fn until<T>(
    what: impl std::fmt::Display,
    mut condition: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    eventually(LONG, what, async || condition().await.transpose()).await?
}

/// Returns true if there is such a program; prints a line if not.
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    if !found {
        println!("left out: no {program}");
    }
    found
}

/// Returns true if this process is root; prints a line if not.
pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("left out: only root may do this; run it as root");
    }
    root
}

/// Returns one word of the kernel's status of a process, such as its state `S`.
pub(crate) fn stat(pid: u32) -> Result<String> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"))?;
    let after = stat.rsplit_once(") ").ok_or("no name")?.1;
    Ok(after.split(' ').next().unwrap_or_default().to_owned())
}
