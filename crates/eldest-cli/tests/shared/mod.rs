//! Starts the command: to its end, or as a node beside an etcd.

pub(crate) mod node;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use eldest::BoxError;
use eldest_fixtures::http::answers;
use eldest_fixtures::tools::without_variables;
use eldest_testing::Etcd;
use eldest_testing::internal::Port;
pub(crate) use node::Node;
use tempfile::TempDir;

pub(crate) type Result<T = ()> = std::result::Result<T, BoxError>;

/// The deadline of every event that must happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// Longer than a command that ends by itself takes.
const LONGEST: Duration = Duration::from_secs(60);
pub(crate) const ELECTION: &str = "team/e";

/// Returns the command with these arguments, without the variables of this process that it would read.
pub(crate) fn eldest(args: &[&str]) -> Command {
    let mut command = without_variables(env!("CARGO_BIN_EXE_eldest"));
    command.args(args);
    command
}

/// Returns the words of a command line.
pub(crate) fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// The exit code of a command that has ended, and what it wrote.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Asserts that the command ended with that code, and returns all that it wrote.
    #[track_caller]
    pub(crate) fn with(&self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// Runs a command to its end. If the test fails before, the command is killed.
pub(crate) async fn run(command: Command) -> Result<Ended> {
    let mut command = tokio::process::Command::from(command);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(LONGEST, command.output());
    let output = output.await.map_err(|_| "it does not end")??;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Ended {
        code: output.status.code().ok_or("ended by a signal")?,
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    })
}

/// An etcd, and a folder for the files of a test.
pub(crate) struct Stage {
    pub(crate) etcd: Etcd,
    folder: TempDir,
}

impl Stage {
    pub(crate) async fn new() -> Result<Self> {
        Ok(Self {
            // The cheapest hash is enough, because the check of passwords is not under test.
            etcd: Etcd::builder().arg("--bcrypt-cost=4").start().await?,
            folder: tempfile::tempdir()?,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the path of a file in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Returns the path of a file in the folder, as an argument.
    pub(crate) fn file(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Returns the command with its endpoint and the TTL of its lease.
    pub(crate) fn command(&self, ttl: &str, args: &[&str]) -> Command {
        let mut command = eldest(&["--endpoints", &self.etcd.endpoint(), "--ttl", ttl]);
        command.args(args).env("ELDEST_LOG", "info");
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
        if !more.contains(&"--grace") && !more.contains(&"--observe") {
            command.args(["--grace", "400ms"]);
        }
        Node::listening(name, command).await
    }

    /// Starts `eldest run --serve` at a free port around a shell's program, and waits until it is ready.
    pub(crate) async fn runner(
        &self,
        ttl: &str,
        name: &str,
        program: &str,
        variables: &[(&str, &str)],
    ) -> Result<Node> {
        let port = Port::free()?.address();
        let args = ["run", ELECTION, "--id", name, "--serve", &port];
        let mut command = self.command(ttl, &args);
        command
            .args(["--", "sh", "-c", program])
            .envs(variables.iter().copied())
            .current_dir(self.folder());
        let mut node = Node::start(name, command)?;
        node.at = port.parse()?;
        answers(node.at, "/ready", 200).await?;
        Ok(node)
    }
}
