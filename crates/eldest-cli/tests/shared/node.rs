//! A process of the command that runs until it is stopped.

use std::fs::{File, read_dir, read_to_string};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};

use eldest_fixtures::http::answers;
use eldest_testing::eventually;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Result, SOON};

/// A process of the command, with its output and its log in files.
pub(crate) struct Node {
    pub(crate) child: Child,
    pub(crate) name: String,
    /// Where it answers over HTTP, if it does.
    pub(crate) at: SocketAddr,
    files: TempDir,
    /// The number of lines that were read of its output.
    read: usize,
}

impl Node {
    pub(crate) fn start(name: &str, mut command: Command) -> Result<Self> {
        let files = tempfile::tempdir()?;
        let file = |name: &str| File::create(files.path().join(name));
        command
            .stdin(Stdio::null())
            .stdout(file("output")?)
            .stderr(file("log")?);
        Ok(Self {
            child: command.spawn()?,
            name: name.to_owned(),
            at: ([127, 0, 0, 1], 0).into(),
            files,
            read: 0,
        })
    }

    /// Starts any command that prints its port, and waits until it is ready.
    pub(crate) async fn listening(name: &str, command: Command) -> Result<Self> {
        let node = Self::announced(name, "http", command).await?;
        answers(node.at, "/ready", 200).await?;
        Ok(node)
    }

    /// Starts a command, and reads in its next line where it answers by that scheme.
    pub(crate) async fn announced(name: &str, scheme: &str, command: Command) -> Result<Self> {
        let mut node = Self::start(name, command)?;
        node.hears(scheme).await?;
        Ok(node)
    }

    /// Reads in the next line where it answers by that scheme.
    pub(crate) async fn hears(&mut self, scheme: &str) -> Result {
        let line = self.line().await?;
        let address = line.strip_prefix(&format!("listening at {scheme}://"));
        let address = address.and_then(|address| address.strip_suffix('/'));
        self.at = address
            .ok_or_else(|| format!("it says {line:?}"))?
            .parse()?;
        Ok(())
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // It may have ended.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub(crate) async fn end(&mut self) -> Result<ExitStatus> {
        let what = format!("{} ends", self.name);
        Ok(eventually(SOON, what, async || self.exited()).await?)
    }

    /// Kills the process, and waits until it is dead.
    pub(crate) async fn kill(&mut self) -> Result {
        self.signal(Signal::KILL);
        self.end().await.map(drop)
    }

    /// Ends the process as an operator would.
    pub(crate) async fn stop(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::CONT);
        self.signal(Signal::TERM);
        self.end().await
    }

    /// Does the same, and fails unless the process ends without an error.
    pub(crate) async fn close(mut self) -> Result {
        let status = self.stop().await?;
        assert_eq!(status.code(), Some(0), "{}", self.log());
        Ok(())
    }

    /// Returns the next line of its output.
    pub(crate) async fn line(&mut self) -> Result<String> {
        let line = eventually(SOON, "its next line", async || {
            let output = self.output();
            let (whole, _) = output.rsplit_once('\n')?;
            whole.lines().nth(self.read).map(str::to_owned)
        });
        let line = line.await?;
        self.read += 1;
        Ok(line)
    }

    pub(crate) fn output(&self) -> String {
        read_to_string(self.files.path().join("output")).unwrap_or_default()
    }

    pub(crate) fn log(&self) -> String {
        read_to_string(self.files.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A test that fails with an error drops its nodes while they run.
        if std::thread::panicking() || self.exited().is_none() {
            println!("---- {} ----\n{}", self.name, self.log());
        }
        // A child that is stopped would not notice the end.
        for child in children(self.pid()) {
            let _ = Pid::from_raw(child).map(|pid| kill_process(pid, Signal::CONT));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the children of a process, on Linux. Its threads list them, which costs less than reading every process.
pub(crate) fn children(of: i32) -> Vec<i32> {
    let threads = read_dir(format!("/proc/{of}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| read_to_string(thread.path().join("children")).ok());
    let lists: Vec<String> = lists.collect();
    let numbers = lists.iter().flat_map(|list| list.split_whitespace());
    numbers.filter_map(|number| number.parse().ok()).collect()
}
