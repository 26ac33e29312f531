//! Defines the option `--guard`, which says who deletes the keys of a session whose process is dead.

use std::fmt;
use std::path::Path;

use eldest::guard::Guard;
use eldest::internal::check_socket_path;

/// The socket at which the agent listens by default.
#[cfg(target_os = "linux")]
const SOCKET: &str = eldest::internal::agent::SOCKET;
/// A path for the help only: no agent runs on such a system.
#[cfg(not(target_os = "linux"))]
const SOCKET: &str = "/run/eldest/agent.sock";

/// The option of the sessions' guard.
#[derive(Debug, clap::Args)]
#[group(id = "guarded")]
pub(crate) struct Args {
    /// The agent that frees this node's place when this command is killed, without waiting for the TTL: auto uses the one
    /// at /run/eldest/agent.sock if there is one, off none, and the path of another socket requires the agent there
    #[arg(
        long = "guard", value_name = "off|auto|PATH", value_parser = parse, default_value_t = Choice::Auto, env = "ELDEST_GUARD",
        hide_env_values = true, help_heading = "Session"
    )]
    choice: Choice,
}

/// The value of the option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    Off,
    Auto,
    /// The agent at this path is required.
    At(String),
}

impl Args {
    /// Returns the guard of the sessions, if the option selects one.
    pub(crate) fn guard(&self) -> Option<Guard> {
        match &self.choice {
            Choice::Off => None,
            Choice::Auto => {
                let there = Path::new(SOCKET).exists();
                there.then(|| Guard::agent().optional())
            }
            Choice::At(path) => Some(Guard::agent_at(path)),
        }
    }

    /// Returns the path of the agent that is required.
    pub(crate) fn required(&self) -> Option<&str> {
        match &self.choice {
            Choice::At(path) => Some(path),
            Choice::Off | Choice::Auto => None,
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Choice::Off => "off",
            Choice::Auto => "auto",
            Choice::At(path) => path,
        })
    }
}

fn parse(text: &str) -> Result<Choice, String> {
    match text {
        "off" => Ok(Choice::Off),
        "auto" => Ok(Choice::Auto),
        path if path.contains('/') => {
            check_socket_path(Path::new(path)).map(|()| Choice::At(path.to_owned()))
        }
        _ => Err("write off, auto, or the path of the agent's socket with a /".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_is_off_auto_or_a_path() {
        assert_eq!(parse("off"), Ok(Choice::Off));
        assert_eq!(parse("auto"), Ok(Choice::Auto));
        let path = "./agent.sock";
        assert_eq!(parse(path), Ok(Choice::At(path.to_owned())));
        for wrong in ["", "on", "agent.sock"] {
            assert!(parse(wrong).unwrap_err().contains("off, auto"), "{wrong:?}");
        }
        let long = format!("/{}", "x".repeat(107));
        assert!(parse(&long).unwrap_err().contains("it has 108 bytes"));
    }

    #[test]
    fn only_a_path_requires_its_agent() {
        let guard = |choice| Args { choice };
        assert_eq!(guard(Choice::Off).guard(), None);
        let at = guard(Choice::At("/a/b".to_owned()));
        assert_eq!(at.guard(), Some(Guard::agent_at("/a/b")));
        assert_eq!(at.required(), Some("/a/b"));
        assert_eq!(guard(Choice::Auto).required(), None);
    }
}
