//! Starts the program for the tests, and sets up the elections that it shows.

use std::process::Stdio;
use std::time::Duration;

use eldest::{Announcement, BoxError, Candidate, Session, SessionOptions};
use eldest_fixtures::tools::without_variables;
use eldest_testing::{Etcd, eventually};
use etcd_client::{Client, PutOptions};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

pub(crate) type Result<T = ()> = std::result::Result<T, BoxError>;

/// The deadline of every event that must happen.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// The exit codes; `--help` explains them.
pub(crate) const DONE: i32 = 0;
pub(crate) const USAGE: i32 = 2;
pub(crate) const UNAVAILABLE: i32 = 3;
pub(crate) const DENIED: i32 = 4;
pub(crate) const NOT_DONE: i32 = 5;
pub(crate) const SICK: i32 = 6;

/// Returns the command with these arguments, without the variables of this process that it would read.
pub(crate) fn eldest(args: &[&str]) -> Command {
    let mut command = Command::from(without_variables(env!("CARGO_BIN_EXE_eldest")));
    command.args(args).kill_on_drop(true);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Returns the words of a command line.
pub(crate) fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// Returns the command with that etcd as its endpoint.
pub(crate) fn at(etcd: &Etcd, args: &[&str]) -> Command {
    let mut command = eldest(args);
    command.env("ELDEST_ENDPOINTS", etcd.endpoint());
    command
}

/// The exit code and the output of a command that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Returns the one object that the command wrote.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        crate::schema::line(&self.stdout)
    }

    /// Asserts that the command failed like this, in one line, and wrote nothing else.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        let error = self.stderr.strip_prefix("error: ");
        let error = error.unwrap_or_else(|| panic!("no error line: {self:?}"));
        assert_eq!(error.trim_end().lines().count(), 1, "{self:?}");
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }

    /// Asserts that clap refused an argument.
    #[track_caller]
    pub(crate) fn failed_usage(&self, code: i32, part: &str) {
        assert_eq!((self.code, self.stdout.as_str()), (code, ""), "{self:?}");
        assert!(self.stderr.contains(part), "{part:?} is not in {self:?}");
    }

    /// Returns what the command wrote, which succeeded.
    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        &self.done().stdout
    }

    /// Asserts that the command succeeded and wrote no error.
    #[track_caller]
    pub(crate) fn done(&self) -> &Self {
        assert_eq!((self.code, self.stderr.as_str()), (DONE, ""), "{self:?}");
        self
    }
}

/// Runs a command to its end.
pub(crate) async fn run(mut command: Command) -> Result<Ended> {
    let output = tokio::time::timeout(SOON, command.output());
    let output = output.await.map_err(|_| "it does not end")??;
    Ok(Ended {
        code: output.status.code().ok_or("ended by a signal")?,
        stdout: String::from_utf8(output.stdout)?,
        stderr: String::from_utf8(output.stderr)?,
    })
}

/// Runs the command with these words and that etcd to its end.
pub(crate) async fn ran(etcd: &Etcd, line: &str) -> Result<Ended> {
    run(at(etcd, &words(line))).await
}

/// The program while it runs.
pub(crate) struct Running {
    pub(crate) child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().ok_or("its output")?;
        Ok(Self {
            child,
            lines: BufReader::new(stdout).lines(),
        })
    }

    /// Returns the next line that the command prints.
    pub(crate) async fn line(&mut self) -> Result<String> {
        let line = tokio::time::timeout(SOON, self.lines.next_line());
        let line = line.await.map_err(|_| "it prints no line")??;
        Ok(line.ok_or("it has ended")?)
    }

    pub(crate) async fn json(&mut self) -> Result<Value> {
        Ok(crate::schema::line(&self.line().await?))
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) -> Result {
        let pid = self.child.id().ok_or("it has ended")?.cast_signed();
        let pid = rustix::process::Pid::from_raw(pid).ok_or("no process")?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    /// Closes our end of the command's output.
    pub(crate) fn close(self) -> Child {
        self.child
    }

    /// Waits for the end, and returns the exit code and the text on stderr.
    pub(crate) async fn end(mut self) -> Result<(i32, String)> {
        let status = tokio::time::timeout(SOON, self.child.wait());
        let status = status.await.map_err(|_| "it does not end")??;
        let mut stderr = String::new();
        if let Some(mut pipe) = self.child.stderr.take() {
            pipe.read_to_string(&mut stderr).await?;
        }
        Ok((status.code().ok_or("ended by a signal")?, stderr))
    }
}

/// A node's session, with a TTL so long that nothing expires while a test runs.
pub(crate) async fn node(etcd: &Etcd, name: &str) -> Result<Session> {
    let options = SessionOptions::new(name).ttl(Duration::from_secs(60));
    Ok(Session::connect([etcd.endpoint()], options).await?)
}

/// Connects a session whose announcement has an address.
pub(crate) async fn placed(etcd: &Etcd, name: &str) -> Result<Session> {
    let announcement = Announcement::new(name)
        .with_address(format!("{name}:80"))
        .with_data_center("dc1")
        .with_metadata("zone", "z1");
    let options = SessionOptions::new(name)
        .ttl(Duration::from_secs(60))
        .announcement(announcement);
    Ok(Session::connect([etcd.endpoint()], options).await?)
}

/// Joins an election; the candidate's key exists on return.
pub(crate) async fn join(session: &Session, election: &str) -> Result<Candidate> {
    Ok(session.election(election)?.campaign().await?)
}

/// Returns the identities of those in the queue of "jobs", the eldest first.
pub(crate) async fn queue(session: &Session) -> Result<Vec<String>> {
    let roster = session.election("jobs")?.roster().await?;
    let members = roster.members().iter();
    Ok(members.map(|member| member.identity().to_owned()).collect())
}

/// Waits until these are in the queue of "jobs", in this order.
pub(crate) async fn queued(session: &Session, wanted: &[&str]) -> Result {
    let is_so = async || (queue(session).await.ok()? == wanted).then_some(());
    Ok(eventually(SOON, format!("{wanted:?} stand"), is_so).await?)
}

/// Puts a key without a lease, which belongs to no session.
pub(crate) async fn put(client: &mut Client, key: &str, value: &str) -> Result {
    client.put(key, value, None::<PutOptions>).await?;
    Ok(())
}

/// Returns all keys that exist.
pub(crate) async fn keys(client: &mut Client) -> Result<Vec<String>> {
    let all = etcd_client::GetOptions::new()
        .with_all_keys()
        .with_keys_only();
    let answer = client.get("", Some(all)).await?;
    let keys = answer.kvs().iter();
    Ok(keys
        .map(|kv| String::from_utf8_lossy(kv.key()).into_owned())
        .collect())
}

/// Waits until only the wanted number of leases is left, so none of a command's own.
pub(crate) async fn leases(client: &mut Client, wanted: usize) -> Result {
    Ok(eventually(SOON, format!("{wanted} leases"), async || {
        let leases = client.leases().await.ok()?;
        (leases.leases().len() == wanted).then_some(())
    })
    .await?)
}
