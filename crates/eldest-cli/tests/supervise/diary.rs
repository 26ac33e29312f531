//! Gives the scripts that nodes run a file to write to, and waits for expected text in it.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use eldest_fixtures::wait::until;

use crate::stage::{Node, Result, Stage, TAKEOVER};

/// Runs a command to its end on another thread, and returns its output.
pub(crate) async fn output(mut command: Command) -> Result<Output> {
    command.stdin(Stdio::null());
    Ok(tokio::task::spawn_blocking(move || command.output()).await??)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The exit code of a command, and what it wrote.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) said: String,
}

impl Ran {
    /// Asserts that the command ended with that code, and returns what it wrote.
    #[track_caller]
    pub(crate) fn ended(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}", self.said);
        self.said
    }
}

/// A file that programs append to.
pub(crate) struct Diary(PathBuf);

impl Diary {
    pub(crate) fn of(stage: &Stage) -> Self {
        Self(stage.folder().join("notes"))
    }

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

    pub(crate) fn shell(&self, script: &str) -> [String; 3] {
        let script = script.replace("DIARY", &self.0.display().to_string());
        ["/bin/sh".to_owned(), "-c".to_owned(), script]
    }
}

impl Stage {
    /// Runs a command to its end.
    pub(crate) async fn runs(&self, ttl: Duration, args: &[&str]) -> Result<Ran> {
        let mut command = self.eldest(ttl);
        command.args(args);
        let output = output(command).await?;
        Ok(Ran {
            code: output.status.code(),
            said: text(&output.stdout) + &text(&output.stderr),
        })
    }

    /// Starts a node around a script that may write to a diary.
    pub(crate) fn script(&self, name: &str, options: &[&str], script: &str) -> Result<Node> {
        let program = Diary::of(self).shell(script);
        self.node_of(name, options, &program.each_ref().map(String::as_str))
    }
}

pub(crate) const FOR_EVER: &str = "while :; do sleep 1; done";
