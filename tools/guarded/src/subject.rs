//! Leads elections under a guard, and runs the agent.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use eldest::guard::{Guard, GuardState};
use eldest::{Session, SessionOptions};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::orders;

/// Far longer than any test: a key that goes was revoked, and did not expire.
const TTL: Duration = Duration::from_secs(300);

/// Guards whoever connects, until it is killed.
pub(crate) async fn agent(endpoint: &str, socket: &str) -> Result<()> {
    let options = SessionOptions::new("agent");
    let endpoints = [endpoint.to_owned()];
    let agent = eldest::internal::agent::listen(&endpoints, options, Path::new(socket))?;
    println!("listening");
    agent.run().await;
    Ok(())
}

/// Leads `count` elections, `work-0` and on, until the standard input ends.
pub(crate) async fn stand(endpoint: &str, guard: &str, identity: &str, count: usize) -> Result<()> {
    let options = SessionOptions::new(identity).ttl(TTL);
    let options = match guard.split_once('=').unwrap_or((guard, "")) {
        ("none", _) => options,
        ("spawned", _) => options.guard(Guard::spawned()),
        ("agent", path) => options.guard(Guard::agent_at(path)),
        ("optional", path) => options.guard(Guard::agent_at(path).optional()),
        _ => bail!("no such guard: {guard}"),
    };
    let session = match Session::connect([endpoint], options).await {
        Ok(session) => session,
        Err(error) => {
            println!("error {}", error.report());
            return Ok(());
        }
    };
    tokio::spawn(tell_guard(session.clone()));
    for number in 0..count {
        tokio::spawn(lead(session.clone(), format!("work-{number}")));
    }
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        orders::obey(&line, &session).await?;
    }
    // Its test has gone.
    session.close().await?;
    Ok(())
}

async fn tell_guard(session: Session) {
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

async fn lead(session: Session, name: String) {
    let leading = async {
        let mut candidate = session.election(&*name)?.campaign().await?;
        loop {
            let leadership = candidate.elected().await?;
            println!("leading {name} {}", leadership.fencing_token());
            leadership.lost().cancelled().await;
            println!("lost {name} {:?}", leadership.lost_reason());
        }
    };
    let ended: Result<(), eldest::Error> = leading.await;
    if let Err(error) = ended {
        println!("error {}", error.report());
    }
}
