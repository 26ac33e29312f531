//! Leads elections under a guard, and runs the agent.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use eldest::guard::{Guard, GuardState};
use eldest::{Credentials, ErrorKind, Session, SessionOptions};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::orders;

/// Far longer than any test: a key that goes was deleted, and did not expire.
const TTL: Duration = Duration::from_secs(300);

/// Reads the options that tests set through environment variables.
fn options(identity: &str) -> Result<SessionOptions> {
    let mut options = SessionOptions::new(identity).ttl(millis("TTL_MS")?.unwrap_or(TTL));
    if let Some(timeout) = millis("CONNECT_TIMEOUT_MS")? {
        options = options.connect_timeout(timeout);
    }
    if let Ok(user) = std::env::var("ETCD_USER") {
        options = options.credentials(Credentials::new(&user, &user));
    }
    Ok(options)
}

fn millis(variable: &str) -> Result<Option<Duration>> {
    let value = std::env::var(variable).ok();
    let value = value.map(|value| value.parse().map(Duration::from_millis));
    Ok(value.transpose()?)
}

/// Guards every process that connects, until it is killed.
pub(crate) async fn agent(endpoint: &str, socket: &str) -> Result<()> {
    let endpoints = [endpoint.to_owned()];
    let agent = eldest::internal::agent::listen(&endpoints, options("agent")?, Path::new(socket))?;
    println!("listening");
    agent.run().await;
    Ok(())
}

/// Leads `count` elections in each session, `work-0` and on, until the standard input ends. `SESSIONS` says how many
/// sessions; the second one leads the elections after those of the first.
pub(crate) async fn lead_elections(
    endpoint: &str,
    guard: &str,
    identity: &str,
    count: usize,
) -> Result<()> {
    let many: usize = std::env::var("SESSIONS").map_or(Ok(1), |many| many.parse())?;
    let mut sessions = Vec::new();
    for number in 0..many {
        let options = options(&format!(
            "{identity}{}",
            if number == 0 {
                String::new()
            } else {
                format!("-{number}")
            }
        ))?;
        let session = match Session::connect([endpoint], guarded(options, guard)?).await {
            Ok(session) => session,
            Err(error) => {
                println!("error {:?} {}", error.kind(), error.report());
                return Ok(());
            }
        };
        println!("connected");
        tokio::spawn(print_guard_states(session.clone()));
        for election in 0..count {
            let name = format!("work-{}", number * count + election);
            tokio::spawn(lead(session.clone(), name));
        }
        sessions.push(session);
    }
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        if line == "return" {
            return Ok(());
        }
        orders::obey(&line, &sessions).await?;
    }
    // The test has gone.
    for session in sessions {
        session.close().await?;
    }
    Ok(())
}

fn guarded(options: SessionOptions, guard: &str) -> Result<SessionOptions> {
    let guard = match guard.split_once('=').unwrap_or((guard, "")) {
        ("none", _) => return Ok(options),
        ("spawned", _) => Guard::spawned(),
        ("agent", path) => Guard::agent_at(path),
        ("optional", path) => Guard::agent_at(path).optional(),
        _ => bail!("no such guard: {guard}"),
    };
    let linger = millis("LINGER_MS")?.unwrap_or_default();
    Ok(options.guard(guard.linger(linger)))
}

async fn print_guard_states(session: Session) {
    let mut state = session.guard_state();
    loop {
        match &*state.borrow_and_update() {
            GuardState::Guarded { lease_id, .. } => println!("guarded {lease_id:x}"),
            GuardState::Unguarded { reason, .. } => println!("unguarded {reason}"),
            other => println!("{other}"),
        }
        if state.changed().await.is_err() {
            return;
        }
    }
}

/// Leads an election. If the guard is away at that time, leads as soon as it is back.
async fn lead(session: Session, name: String) {
    let leading = async || -> Result<(), eldest::Error> {
        let mut candidate = session.election(&*name)?.campaign().await?;
        loop {
            let leadership = candidate.elected().await?;
            println!("leading {name} {}", leadership.fencing_token());
            leadership.lost().cancelled().await;
            println!("lost {name} {:?}", leadership.lost_reason());
        }
    };
    let mut guard = session.guard_state();
    while let Err(error) = leading().await {
        println!("error {:?} {}", error.kind(), error.report());
        let is_guarded = |state: &GuardState| matches!(state, GuardState::Guarded { .. });
        if error.kind() != ErrorKind::Unguarded || guard.wait_for(is_guarded).await.is_err() {
            return;
        }
    }
}
