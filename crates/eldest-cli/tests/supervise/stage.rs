//! Starts nodes around workers and scripts, waits for what these write, checks it, and cleans up at the end.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use eldest_fixtures::wait::until;
use eldest_testing::eventually;
use etcd_client::{Client, GetOptions};
use rustix::process::Signal;

use crate::processes::{Seen, children, marked, signal};
use crate::shared::run;
pub(crate) use crate::shared::{Ended, Node, Result, Stage};
use crate::worker::{self, Line, read};

/// The shortest TTL that etcd grants.
pub(crate) const TTL: Duration = Duration::from_secs(2);
/// The limit for operations that take milliseconds, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// The time within which a place is free for certain, unless etcd's own leader changes.
pub(crate) const TAKEOVER: Duration = Duration::from_secs(10);
pub(crate) const ELECTION: &str = "jobs";
/// The script of a program that only SIGTERM ends.
pub(crate) const FOR_EVER: &str = "while :; do sleep 1; done";

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Stage {
    /// Returns the command with its endpoint and the TTL of its leases.
    pub(crate) fn eldest(&self, ttl: Duration, args: &[&str]) -> Command {
        self.command(&format!("{ttl:?}"), args)
    }

    /// Starts a node around a worker of these manners.
    pub(crate) fn worker(&self, name: &str, manners: &str, options: &[&str]) -> Result<Node> {
        self.patient_worker(TTL, name, manners, options)
    }

    /// Starts a node with a longer lease, so that a test can distinguish waiting for its end from not waiting.
    pub(crate) fn patient_worker(
        &self,
        ttl: Duration,
        name: &str,
        manners: &str,
        options: &[&str],
    ) -> Result<Node> {
        let mut command = self.eldest(ttl, &["run", ELECTION, "--id", name]);
        command.args(options).arg("--");
        command.args(worker::command(self.folder(), manners));
        Node::start(name, command)
    }

    /// Starts a node around a script that may write to the diary.
    pub(crate) fn script(&self, name: &str, options: &[&str], script: &str) -> Result<Node> {
        let run = [&["run", ELECTION], options].concat();
        self.scripted(TTL, name, &run, script)
    }

    /// Starts a node by that command, around a script that may write to the diary.
    pub(crate) fn scripted(
        &self,
        ttl: Duration,
        name: &str,
        args: &[&str],
        script: &str,
    ) -> Result<Node> {
        let mut command = self.eldest(ttl, args);
        command.args(["--id", name, "--"]);
        command.args(self.diary().shell(script));
        Node::start(name, command)
    }

    /// Runs a command to its end.
    pub(crate) async fn runs(&self, ttl: Duration, args: &[&str]) -> Result<Ended> {
        run(self.eldest(ttl, args)).await
    }

    pub(crate) fn diary(&self) -> Diary {
        Diary(self.path("notes"))
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
        Ok(ready
            .await
            .inspect_err(|_| println!("alive: {:?}", self.marked()))?)
    }

    /// Returns the live processes of all workers.
    pub(crate) fn marked(&self) -> Vec<Seen> {
        marked(self.folder())
    }

    /// Waits until no process is left that a worker with this token started, including the worker.
    pub(crate) async fn nothing_of(&self, token: i64, within: Duration) -> Result {
        let what = format!("nothing is left of the worker with token {token}");
        let left = || worker::of_token(self.folder(), token);
        let gone = until(within, what, async || left().is_empty()).await;
        gone.map_err(|error| format!("{error}: {:?}", left()).into())
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
        let key = |kv: &&etcd_client::KeyValue| (kv.key().to_vec(), kv.lease());
        Ok(found.iter().map(key).collect())
    }

    /// Waits until no key is left below that prefix.
    pub(crate) async fn is_free(&self, prefix: &str) -> Result {
        let what = format!("no key below {prefix}");
        let free = async || self.keys(prefix).await.is_ok_and(|keys| keys.is_empty());
        Ok(until(TAKEOVER, what, free).await?)
    }

    /// Waits until a node of that name is in the queue.
    pub(crate) async fn has_candidate(&self, name: &str) -> Result {
        let prefix = format!("eldest/{ELECTION}/");
        let identity = format!("\"identity\":\"{name}\"");
        let mut client = self.client().await;
        Ok(until(TAKEOVER, format!("{name} stands"), async || {
            let options = GetOptions::new().with_prefix();
            let answer = client.get(prefix.as_str(), Some(options)).await;
            answer.is_ok_and(|answer| {
                let mut values = answer.kvs().iter().filter_map(|kv| kv.value_str().ok());
                values.any(|value| value.contains(&identity))
            })
        })
        .await?)
    }

    /// Asserts that no two workers lived at a time, that tokens rise, and that no process is left.
    pub(crate) async fn judge(&self) -> Result<Vec<Line>> {
        let lines = self.lines();
        for line in &lines {
            assert_ne!(line.word, "overlap", "two leaders: {line:?}");
        }
        let starts: Vec<&Line> = lines.iter().filter(|line| line.word == "start").collect();
        let rises = starts.is_sorted_by(|a, b| a.token < b.token);
        assert!(rises, "tokens do not rise: {starts:?}");
        for start in starts {
            let earlier = lines.iter().filter(|line| line.token < start.token);
            let last = earlier.max_by_key(|line| line.at);
            assert!(
                last.is_none_or(|last| last.at < start.at),
                "{start:?} began before {last:?}"
            );
        }
        let gone = async || self.marked().is_empty();
        until(SOON, "no process is left", gone).await?;
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

impl Node {
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

    /// Waits until the node has a program, and returns its keeper and the program.
    pub(crate) async fn runs(&self) -> Result<(i32, i32)> {
        Ok(eventually(SOON, "the program runs", async || self.running()).await?)
    }
}

/// A file to which scripts append lines.
pub(crate) struct Diary(PathBuf);

impl Diary {
    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap_or_default()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.text().lines().map(str::to_owned).collect()
    }

    pub(crate) async fn says(&self, wanted: &str) -> Result {
        let what = format!("{wanted:?} in {:?}", self.text());
        Ok(until(TAKEOVER, what, async || self.text().contains(wanted)).await?)
    }

    /// Returns the script with the diary's path in place of DIARY.
    pub(crate) fn filled(&self, script: &str) -> String {
        script.replace("DIARY", &self.0.display().to_string())
    }

    /// Returns the words that run such a script.
    pub(crate) fn shell(&self, script: &str) -> [String; 3] {
        ["/bin/sh".to_owned(), "-c".to_owned(), self.filled(script)]
    }
}
