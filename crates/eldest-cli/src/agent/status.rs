//! Implements `eldest agent status`: asks an agent what it guards, and shows it.

use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use eldest::internal::agent;
use eldest_http::contract::command::{AgentStatus, GuardedSession};
use serde_json::Value;

use crate::exit::{Code, fault};
use crate::global::Global;
use crate::output::{self, Format, one_line};
use crate::view;

/// How long an agent may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Show what the agent of this host guards, and whether it reaches etcd
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show what the agent of this host guards, and whether it reaches etcd.\n\n\
    The command asks the agent, not etcd, so it needs no endpoints. root and the agent's own user see the sessions of all \
    users; another user that may write to the socket sees its own. GUARDED FOR is how long ago the session introduced itself \
    to the agent. A session that is not connected is guarded, too. LINGER is how long the guard waits after the end of the \
    process before it deletes the keys. PROMISED is how long other programs may \
    still act on an answer of `eldest serve`. The exit code is 6 if the agent does not reach etcd, \
    and 3 if no agent answers.",
    after_help = "Examples:
  # Show the sessions that the agent guards
  eldest agent status
  # Ask an agent at another socket, as a program
  eldest agent status --socket /run/billing/agent.sock --output json"
)]
pub(super) struct Args {}

/// The reason why the agent did not answer.
#[derive(Debug)]
pub(crate) enum Unreached {
    /// No process listens at the socket.
    Absent(String),
    /// This user may not open the socket.
    Denied(String),
    /// Something listens at the socket, but its answer is not an agent's.
    Odd(String),
}

impl Unreached {
    pub(crate) fn into_reason(self) -> String {
        match self {
            Unreached::Absent(reason) | Unreached::Denied(reason) | Unreached::Odd(reason) => {
                reason
            }
        }
    }
}

pub(super) async fn run(global: &Global, socket: &Path) -> Result<Code> {
    let status = match ask(socket).await {
        Ok(status) => status,
        Err(unreached) => {
            let code = match unreached {
                Unreached::Denied(_) => Code::Denied,
                Unreached::Absent(_) | Unreached::Odd(_) => Code::Unavailable,
            };
            return Err(fault(code, unreached.into_reason()));
        }
    };
    match global.output {
        Format::Json => output::say_json(&status)?,
        Format::Text => output::say(text(&status))?,
    }
    Ok(match status.problem {
        None => Code::Done,
        Some(_) => Code::Sick,
    })
}

/// Asks the agent at that socket.
pub(crate) async fn ask(socket: &Path) -> Result<AgentStatus, Unreached> {
    let path = socket.display();
    let asked = tokio::time::timeout(ANSWER_WITHIN, agent::status(socket)).await;
    let answer = asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let (sessions, about) = answer.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            Unreached::Absent(format!("no agent listens at {path}: start `eldest agent`"))
        }
        io::ErrorKind::PermissionDenied => Unreached::Denied(format!(
            "this user may not use the agent at {path}: it must be in the socket's group"
        )),
        io::ErrorKind::TimedOut => Unreached::Odd(format!(
            "the agent at {path} did not answer within {ANSWER_WITHIN:?}"
        )),
        _ => Unreached::Odd(format!("the agent at {path}: {error}")),
    })?;
    read(&path.to_string(), sessions, &about).ok_or_else(|| {
        let reason = format!("the agent at {path} gave an answer that this version does not know");
        Unreached::Odd(reason)
    })
}

/// Parses an agent's answer; returns `None` if a part is missing.
fn read(socket: &str, sessions: Vec<Value>, about: &Value) -> Option<AgentStatus> {
    let sessions = sessions.into_iter();
    let sessions = sessions.map(|session| serde_json::from_value::<GuardedSession>(session).ok());
    Some(AgentStatus {
        socket: socket.to_owned(),
        pid: u32::try_from(about.get("pid")?.as_u64()?).ok()?,
        problem: about.get("problem")?.as_str().map(ToOwned::to_owned),
        released: about.get("released")?.as_u64()?,
        session_count: usize::try_from(about.get("sessions")?.as_u64()?).ok()?,
        guarded_sessions: sessions.collect::<Option<_>>()?,
    })
}

/// Describes an agent's state in one sentence.
pub(crate) fn summary(status: &AgentStatus) -> String {
    let etcd = match &status.problem {
        None => "reaches etcd".to_owned(),
        Some(problem) => format!("does not reach etcd: {};", one_line(problem)),
    };
    let sessions = match status.session_count {
        1 => "1 session".to_owned(),
        many => format!("{many} sessions"),
    };
    format!("process {} {etcd} and guards {sessions}", status.pid)
}

fn text(status: &AgentStatus) -> String {
    let head = format!("{}: {}", one_line(&status.socket), summary(status));
    if status.guarded_sessions.is_empty() {
        return head;
    }
    let header = [
        "IDENTITY",
        "NAMESPACE",
        "PID",
        "UID",
        "GUARDED FOR",
        "LEASES",
        "CONNECTED",
        "LINGER",
        "PROMISED",
    ];
    let table = view::table(&header, status.guarded_sessions.iter().map(row));
    format!("{head}\n{table}")
}

fn row(session: &GuardedSession) -> Vec<String> {
    let or_nothing = |text: String| {
        if text.is_empty() {
            "-".to_owned()
        } else {
            text
        }
    };
    vec![
        one_line(&session.identity),
        or_nothing(one_line(&session.namespace)),
        session.pid.map_or("-".to_owned(), |pid| pid.to_string()),
        session.uid.to_string(),
        view::length(view::age(session.since_unix_ms)),
        or_nothing(one_line(&session.leases.join(","))),
        if session.connected { "yes" } else { "no" }.to_owned(),
        match session.linger_ms {
            0 => "-".to_owned(),
            time => format!("{:?}", Duration::from_millis(time)),
        },
        session.promised_ms.map_or("-".to_owned(), |time| {
            format!("{:?}", Duration::from_millis(time))
        }),
    ]
}
