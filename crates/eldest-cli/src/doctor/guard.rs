//! Examines the agent that guards the sessions of this host: whether there is one, and whether it reaches etcd.

use std::path::Path;

use eldest::internal::agent::SOCKET;
use eldest_http::contract::command::Level;

use super::findings::Findings;
use crate::agent::{Unreached, ask, summary};

const ABOUT: (&str, &str) = ("guard", "guard");

/// Reports the state of the agent that `--guard` names. Only an agent that is named by its path must exist.
pub(super) async fn examine(findings: &mut Findings, guard: &str) {
    let (socket, named) = match guard {
        "off" => return,
        "auto" => (Path::new(SOCKET), false),
        path => (Path::new(path), true),
    };
    let remedy =
        "start `eldest agent`, or correct --guard; until then a session with this guard is refused";
    match ask(socket).await {
        Ok(status) => match status.problem {
            None => findings.ok(ABOUT.0, ABOUT.1, format!("{}: {}", status.socket, summary(&status))),
            Some(_) => findings.bad(
                Level::Warn,
                ABOUT,
                format!("{}: {}", status.socket, summary(&status)),
                "correct the agent's endpoints, user and certificates; until then a crash costs a TTL",
            ),
        },
        Err(Unreached::Absent(reason)) if !named => {
            let note = format!("{reason}, and a crash costs milliseconds instead of a TTL");
            findings.note(ABOUT.0, ABOUT.1, note);
        }
        Err(unreached) if named => findings.bad(Level::Fail, ABOUT, unreached.into_reason(), remedy),
        Err(unreached) => {
            let remedy = "let this user into the socket's group, or restart the agent if it hangs";
            findings.bad(Level::Warn, ABOUT, unreached.into_reason(), remedy);
        }
    }
}
