//! Starts nodes as processes of the command, reads their addresses, and sends them signals.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use eldest::BoxError;
use eldest_testing::{Etcd, eventually};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::caller::get;
use eldest_fixtures::hang::freeze;
use eldest_fixtures::tools::without_variables;

pub(crate) type Result<T = ()> = std::result::Result<T, BoxError>;

/// The deadline of every event that must happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);
pub(crate) const ELECTION: &str = "team/e";

/// Returns the command without the variables of this process that it would read.
pub(crate) fn eldest(args: &[&str]) -> Command {
    let mut command = without_variables(env!("CARGO_BIN_EXE_eldest"));
    command.args(args).stdin(Stdio::null());
    command
}

/// An etcd, and a folder for the files of nodes.
pub(crate) struct Stage {
    pub(crate) etcd: Etcd,
    pub(crate) folder: TempDir,
}

impl Stage {
    pub(crate) async fn new() -> Result<Self> {
        Ok(Self {
            etcd: Etcd::start().await?,
            folder: tempfile::tempdir()?,
        })
    }

    /// Returns the command with its endpoint and the TTL of its lease.
    pub(crate) fn command(&self, ttl: &str, args: &[&str]) -> Command {
        let mut command = eldest(args);
        command.args(["--endpoints", &self.etcd.endpoint(), "--ttl", ttl]);
        command.env("ELDEST_LOG", "info");
        command
    }

    /// Returns `eldest serve` of that name at a free port.
    pub(crate) fn serve(&self, ttl: &str, name: &str) -> Command {
        let args = ["serve", ELECTION, "--id", name, "--listen", "127.0.0.1:0"];
        self.command(ttl, &args)
    }

    /// Starts `eldest serve` at a free port, and waits until it is ready.
    pub(crate) async fn node(&self, ttl: &str, name: &str, more: &[&str]) -> Result<Node> {
        let mut command = self.serve(ttl, name);
        command.args(more);
        // The time for which an ending leader waits for its callers.
        if !more
            .iter()
            .any(|option| ["--grace", "--observe"].contains(option))
        {
            command.args(["--grace", "400ms"]);
        }
        self.listening(name, command).await
    }

    /// Starts `eldest run --serve` at a free port around a shell's program, and waits until it is ready.
    pub(crate) async fn runner(
        &self,
        ttl: &str,
        name: &str,
        program: &str,
        variables: &[(&str, &str)],
    ) -> Result<Node> {
        let at = free_port().await?;
        let address = at.to_string();
        let args = ["run", ELECTION, "--id", name, "--serve", &address];
        let mut command = self.command(ttl, &args);
        command
            .args(["--", "sh", "-c", program])
            .envs(variables.iter().copied())
            .current_dir(self.folder.path());
        let mut node = Node::start(self, name, command)?;
        node.at = at;
        answers(at, "/ready", 200).await?;
        Ok(node)
    }

    /// Starts any command that prints its port.
    pub(crate) async fn listening(&self, name: &str, command: Command) -> Result<Node> {
        let node = self.announced(name, "http", command).await?;
        answers(node.at, "/ready", 200).await?;
        Ok(node)
    }

    /// Starts a node, and reads from its output where it listens, in that format.
    pub(crate) async fn announced(
        &self,
        name: &str,
        scheme: &str,
        command: Command,
    ) -> Result<Node> {
        let mut node = Node::start(self, name, command)?;
        node.at = eventually(SOON, format!("{name} listens"), async || {
            let said = std::fs::read_to_string(&node.output).ok()?;
            let line = said.strip_prefix(&format!("listening at {scheme}://"))?;
            line.strip_suffix("/\n")?.parse().ok()
        })
        .await?;
        Ok(node)
    }
}

/// A process of the command.
pub(crate) struct Node {
    child: Child,
    pub(crate) at: SocketAddr,
    output: PathBuf,
    log: PathBuf,
}

impl Node {
    pub(crate) fn start(stage: &Stage, name: &str, mut command: Command) -> Result<Self> {
        let [output, log] =
            ["out", "log"].map(|kind| stage.folder.path().join(format!("{kind}-{name}")));
        command.stdout(File::create(&output)?);
        command.stderr(File::create(&log)?);
        Ok(Self {
            child: command.spawn()?,
            at: ([127, 0, 0, 1], 0).into(),
            output,
            log,
        })
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result {
        Ok(kill_process(self.pid(), signal)?)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Stops the process; on return none of its threads runs any more.
    pub(crate) fn freeze(&self) -> Result {
        freeze(&self.child)
    }

    pub(crate) async fn end(&mut self) -> Result<ExitStatus> {
        Ok(eventually(SOON, "it ends", async || {
            self.child.try_wait().ok().flatten()
        })
        .await?)
    }

    /// Ends the node as an operator would.
    pub(crate) async fn stop(mut self) -> Result {
        self.signal(Signal::TERM)?;
        let status = self.end().await?;
        assert_eq!(status.code(), Some(0), "{}", self.log());
        Ok(())
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("---- {} ----\n{}", self.log.display(), self.log());
        }
    }
}

/// Waits until requests for the path are answered with that status.
pub(crate) async fn answers(at: SocketAddr, path: &str, status: u16) -> Result {
    Ok(eventually(SOON, format!("{status} at {path}"), async || {
        let answer = get(at, path).await.ok()?;
        (answer.status == status).then_some(())
    })
    .await?)
}

/// Returns a port that was free a moment ago. It is below the range from which the kernel takes ports for clients, so
/// no client takes it before its server starts.
pub(crate) async fn free_port() -> Result<SocketAddr> {
    loop {
        let at = SocketAddr::from(([127, 0, 0, 1], fastrand::u16(16_000..32_000)));
        if tokio::net::TcpListener::bind(at).await.is_ok() {
            return Ok(at);
        }
    }
}
