//! Starts nodes around workers, waits for what the workers write, checks it, and cleans up at the end.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use eldest::BoxError;
use eldest_fixtures::tools::without_variables;
use eldest_fixtures::wait::until;
use eldest_testing::{Etcd, eventually};
use etcd_client::{Client, GetOptions};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::processes::{Seen, children, is_alive, marked, signal};
use crate::worker::{self, Line, read};

pub(crate) type Result<T = ()> = std::result::Result<T, BoxError>;

/// The shortest TTL that etcd grants.
pub(crate) const TTL: Duration = Duration::from_secs(2);
/// The limit for operations that take milliseconds, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// The time within which a place is free for certain, unless etcd's own leader changes.
pub(crate) const TAKEOVER: Duration = Duration::from_secs(10);
pub(crate) const ELECTION: &str = "jobs";

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn eldest() -> Command {
    without_variables(env!("CARGO_BIN_EXE_eldest"))
}

/// An etcd, a folder, and the nodes that run there.
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

    /// Starts a node around a worker of these manners.
    pub(crate) fn node(&self, name: &str, manners: &str, options: &[&str]) -> Result<Node> {
        self.patient_node(TTL, name, manners, options)
    }

    /// Starts a node with a longer lease, so that a test can distinguish waiting for its end from not waiting.
    pub(crate) fn patient_node(
        &self,
        ttl: Duration,
        name: &str,
        manners: &str,
        options: &[&str],
    ) -> Result<Node> {
        let program = worker::command(self.folder(), manners);
        self.any_node(ttl, name, options, &program)
    }

    /// Starts a node around any program.
    pub(crate) fn node_of(&self, name: &str, options: &[&str], program: &[&str]) -> Result<Node> {
        self.any_node(TTL, name, options, program)
    }

    fn any_node(
        &self,
        ttl: Duration,
        name: &str,
        options: &[&str],
        program: &[impl AsRef<OsStr>],
    ) -> Result<Node> {
        let mut command = self.eldest(ttl);
        command.args(["run", ELECTION, "--id", name]);
        command.args(options).arg("--").args(program);
        Node::start(command, self.folder(), name)
    }

    /// Returns the command with its endpoint.
    pub(crate) fn eldest(&self, ttl: Duration) -> Command {
        let ttl = format!("{}s", ttl.as_secs());
        let mut command = eldest();
        command.env("ELDEST_LOG", "info");
        command.args(["--endpoints", &self.etcd.endpoint(), "--ttl", &ttl]);
        command
    }

    pub(crate) fn lines(&self) -> Vec<Line> {
        read(self.folder())
    }

    /// Returns the first line of that kind by a worker with a higher token than this one.
    pub(crate) fn after(&self, token: i64, word: &str) -> Option<Line> {
        let mut lines = self.lines().into_iter();
        lines.find(|line| line.word == word && line.token > token)
    }

    /// Waits for the next worker.
    pub(crate) async fn next_worker(&self, after: i64) -> Result<Line> {
        let what = format!("a worker after the token {after} is ready");
        let ready = eventually(TAKEOVER, what, async || self.after(after, "ready"));
        Ok(ready.await.inspect_err(|_| self.print_logs())?)
    }

    fn print_logs(&self) {
        println!("alive: {:?}", self.marked());
        for entry in std::fs::read_dir(self.folder())
            .into_iter()
            .flatten()
            .flatten()
        {
            if entry.file_name().to_string_lossy().starts_with("log-") {
                let log = std::fs::read_to_string(entry.path()).unwrap_or_default();
                println!("---- {} ----\n{log}", entry.path().display());
            }
        }
    }

    /// Returns the live processes of all workers.
    pub(crate) fn marked(&self) -> Vec<Seen> {
        marked(self.folder())
    }

    /// Waits until no process is left that a worker with this token started, including the worker.
    pub(crate) async fn nothing_of(&self, token: i64, within: Duration) -> Result {
        let what = format!("nothing is left of the worker with token {token}");
        let gone = eventually(within, what, async || {
            worker::of_token(self.folder(), token)
                .is_empty()
                .then_some(())
        });
        let left = || worker::of_token(self.folder(), token);
        gone.await
            .map_err(|error| format!("{error}: {:?}", left()).into())
    }

    pub(crate) async fn client(&self) -> Client {
        self.etcd.client().await
    }

    /// Returns the keys under a prefix, the eldest first, with their leases.
    pub(crate) async fn keys(&self, prefix: &str) -> Result<Vec<(Vec<u8>, i64)>> {
        let options = GetOptions::new().with_prefix();
        let answer = self.client().await.get(prefix, Some(options)).await?;
        let mut found: Vec<_> = answer.kvs().iter().collect();
        found.sort_by_key(|kv| kv.create_revision());
        Ok(found
            .iter()
            .map(|kv| (kv.key().to_vec(), kv.lease()))
            .collect())
    }

    /// Waits until no key is left below that prefix.
    pub(crate) async fn is_free(&self, prefix: &str) -> Result {
        Ok(
            eventually(TAKEOVER, format!("no key below {prefix}"), async || {
                self.keys(prefix).await.ok()?.is_empty().then_some(())
            })
            .await?,
        )
    }

    /// Waits until a node of that name is in the queue.
    pub(crate) async fn has_candidate(&self, name: &str) -> Result {
        let options = GetOptions::new().with_prefix();
        let prefix = format!("eldest/{ELECTION}/");
        let mut client = self.client().await;
        Ok(eventually(TAKEOVER, format!("{name} stands"), async || {
            let answer = client
                .get(prefix.as_str(), Some(options.clone()))
                .await
                .ok()?;
            let identity = format!("\"identity\":\"{name}\"");
            let mut values = answer.kvs().iter().filter_map(|kv| kv.value_str().ok());
            values.any(|value| value.contains(&identity)).then_some(())
        })
        .await?)
    }

    /// Asserts that no two workers lived at a time, that tokens rise, and that no process is left.
    pub(crate) async fn judge(&self) -> Result<Vec<Line>> {
        let lines = self.lines();
        judge(&lines);
        until(SOON, "no process is left", async || {
            self.marked().is_empty()
        })
        .await?;
        Ok(lines)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for process in self.marked() {
            signal(process.pid, Signal::KILL);
        }
    }
}

/// Asserts what holds for every diary.
pub(crate) fn judge(lines: &[Line]) {
    for line in lines {
        assert_ne!(line.word, "overlap", "two leaders: {line:?}");
    }
    let starts: Vec<&Line> = lines.iter().filter(|line| line.word == "start").collect();
    for pair in starts.windows(2) {
        assert!(
            pair[0].token < pair[1].token,
            "tokens do not rise: {pair:?}"
        );
    }
    for start in &starts {
        let earlier = lines.iter().filter(|line| line.token < start.token);
        let last = earlier.max_by_key(|line| line.at);
        assert!(
            last.is_none_or(|last| last.at < start.at),
            "{start:?} began before {last:?}"
        );
    }
}

/// One `eldest run`.
pub(crate) struct Node {
    child: Child,
    pub(crate) name: String,
    log: PathBuf,
}

impl Node {
    /// Starts the command with its output in a file.
    pub(crate) fn start(mut command: Command, folder: &Path, name: &str) -> Result<Self> {
        let log = folder.join(format!("log-{name}"));
        let file = File::options().append(true).create(true).open(&log)?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        Ok(Self {
            child: command.spawn()?,
            name: name.to_owned(),
            log,
        })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub(crate) fn signal(&self, with: Signal) {
        signal(self.pid(), with);
    }

    /// Returns the node's keepers, of which at most one has a program.
    pub(crate) fn keepers(&self) -> Vec<Seen> {
        let mut keepers = children(self.pid());
        keepers.retain(Seen::is_keeper);
        keepers
    }

    /// Returns the keeper of the running program, and the program.
    pub(crate) fn running(&self) -> Option<(i32, i32)> {
        self.keepers().iter().find_map(|keeper| {
            let mut children = children(keeper.pid).into_iter();
            let program = children.find(Seen::is_program)?;
            Some((keeper.pid, program.pid))
        })
    }

    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for the end of the node.
    pub(crate) async fn end(&mut self) -> Result<ExitStatus> {
        let what = format!("{} ends", self.name);
        Ok(eventually(TAKEOVER, what, async || self.exited()).await?)
    }

    /// Kills the node, and waits until it is dead.
    pub(crate) async fn kill(&mut self) -> Result {
        self.signal(Signal::KILL);
        self.end().await.map(drop)
    }

    /// Ends the node as an operator would.
    pub(crate) async fn stop(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::CONT);
        self.signal(Signal::TERM);
        self.end().await
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let keepers = self.keepers();
        // A test that fails with an error drops its nodes while they run.
        if std::thread::panicking() || self.exited().is_none() {
            println!("---- {} ----\n{}", self.name, self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        for keeper in keepers {
            // A stopped keeper would not notice the supervisor's end.
            if is_alive(keeper.pid) {
                signal(keeper.pid, Signal::CONT);
            }
        }
    }
}
