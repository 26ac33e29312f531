//! Reads the options of the command that follows each program, and refuses a command that could not run.

use std::ffi::OsStr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::challenges::Pace;
use crate::contain::{After, ChildRegistry};
use crate::executable::{self, find};
use crate::exit::{Code, fault};

const HEADING: &str = "Program";

/// The start of a process takes tens of milliseconds.
const SHORTEST: Duration = Duration::from_millis(100);

/// The options of the command that follows each program.
#[derive(Debug, clap::Args)]
#[group(id = "followed")]
pub(crate) struct Args {
    /// The command to run with /bin/sh after each end of the program, before another node can start its own: also if this
    /// command is killed
    #[arg(long, value_name = "COMMAND", env = "ELDEST_AFTER", hide_env_values = true, help_heading = HEADING)]
    after: Option<String>,

    /// How long the command of --after may run; the program is ended that much earlier [default: half of the default of --grace]
    #[arg(
        long, value_name = "DURATION", value_parser = crate::connection::duration, env = "ELDEST_AFTER_LIMIT",
        hide_env_values = true, requires = "after", help_heading = HEADING
    )]
    after_limit: Option<Duration>,
}

impl Args {
    /// Returns the pace with the chosen grace period. Program and command share the time that is usual for the program alone.
    pub(crate) fn share(&self, usual: Pace, grace: Option<Duration>) -> Pace {
        let half = usual.grace / 2;
        let (usually, after) = match &self.after {
            Some(_) => (half, self.after_limit.unwrap_or(half)),
            None => (usual.grace, Duration::ZERO),
        };
        let grace = grace.unwrap_or(usually);
        Pace {
            grace,
            after,
            ..usual
        }
    }

    /// Returns the command with this limit. Its program must exist: a node that could not run it should not lead.
    pub(crate) async fn checked(
        &self,
        limit: Duration,
        child_registry: &Arc<ChildRegistry>,
    ) -> Result<Option<After>> {
        let Some(command) = &self.after else {
            return Ok(None);
        };
        if cfg!(not(target_os = "linux")) {
            return Err(refused("it needs Linux"));
        }
        if limit < SHORTEST {
            let rule = "it needs at least 100ms: set --after-limit, and a longer --ttl or --challenges if they refuse it";
            return Err(refused(format!(
                "the command would have {limit:?}, and {rule}"
            )));
        }
        let mut words = command.split_whitespace();
        let Some(first) = words.next() else {
            return Err(refused("the command is empty"));
        };
        let is_function = words.next().is_some_and(|next| next.starts_with('('));
        // The shell parses the command without running it.
        if let Err(why) = shell(&["-n", "-c", command], child_registry).await? {
            return Err(refused(format!("the shell cannot read {command:?}: {why}")));
        }
        if is_plain(first) && !is_function {
            let missing = format!("no program {first} in PATH");
            let asked = ["-c", "command -v \"$0\"", first];
            if first.contains('/') {
                find(OsStr::new(first)).context("--after")?;
            } else if shell(&asked, child_registry).await?.is_err() {
                return Err(fault(Code::NotFound, format!("--after: {missing}")));
            }
        }
        Ok(Some(After {
            command: command.clone(),
            limit,
        }))
    }
}

fn refused(why: impl std::fmt::Display) -> anyhow::Error {
    fault(Code::Usage, format!("--after: {why}"))
}

/// Runs the shell to its end; returns what it wrote to stderr if it failed.
async fn shell(arguments: &[&str], child_registry: &ChildRegistry) -> Result<Result<(), String>> {
    let mut shell = executable::shell(arguments);
    shell
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = child_registry.spawn(&mut shell).context("/bin/sh")?;
    let output = child.wait_with_output().await.context("/bin/sh")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let failed = || said.trim().to_owned();
    Ok(output.status.success().then_some(()).ok_or_else(failed))
}

/// Returns true if the word names a program, a builtin or a keyword in every context of the shell.
fn is_plain(word: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+".contains(letter);
    !word.starts_with('-') && word.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_and_command_share_the_time_of_a_program_alone() {
        let usual = Pace::of(Duration::from_secs(10), None);
        let second = Duration::from_secs(1);
        let args = |after: Option<&str>, after_limit| Args {
            after: after.map(str::to_owned),
            after_limit,
        };
        let alone = args(None, None);
        assert_eq!(alone.share(usual, None), usual);
        let followed = args(Some("true"), None);
        let pace = followed.share(usual, None);
        assert_eq!((pace.grace, pace.after), (second, second));
        assert_eq!(pace.grace + pace.after, usual.grace);
        let pace = followed.share(usual, Some(second * 3));
        assert_eq!((pace.grace, pace.after), (second * 3, second));
        let pace = args(Some("true"), Some(second / 2)).share(usual, None);
        assert_eq!((pace.grace, pace.after), (second, second / 2));
    }
}
