//! Tests that every transition is logged with the target, level, message and fields of docs/logging.md.
#![allow(clippy::disallowed_methods)] // tests run in real time

#[path = "../capture/mod.rs"]
mod capture;
mod challenges;
mod connection;
mod keys;
mod spans;
mod table;
mod terms;

use std::ops::Deref;
use std::time::Duration;

use eldest::{Candidate, Session, SessionOptions, Status};
use eldest_testing::Etcd;
use tokio::time::timeout;
use tracing::Level;
use tracing::subscriber::DefaultGuard;

use self::capture::{Line, Logs};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SESSION: &str = "eldest::session";
const ELECTION: &str = "eldest::election";
const ETCD: &str = "eldest::etcd";

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// The log since [`capture`]. At its end, each of our lines must be in the table.
#[derive(Debug)]
struct Captured {
    logs: Logs,
    _guard: DefaultGuard,
}

fn capture() -> Captured {
    let (logs, guard) = Logs::capture();
    Captured {
        logs,
        _guard: guard,
    }
}

impl Deref for Captured {
    type Target = Logs;

    fn deref(&self) -> &Logs {
        &self.logs
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            table::all_documented(&self.logs);
        }
    }
}

/// Asserts the level of a line and some of its fields.
#[track_caller]
fn is(line: &Line, level: Level, fields: &[(&str, &str)]) {
    assert!(line.level == level && line.says(fields), "{line:?}");
}

fn options(identity: &str) -> SessionOptions {
    SessionOptions::new(identity).ttl(Duration::from_secs(5))
}

async fn rank(candidate: &Candidate, wanted: usize) -> Result {
    let mut status = candidate.subscribe();
    let there = status.wait_for(|s| matches!(s, Status::Waiting { rank, .. } if *rank == wanted));
    timeout(LONG, there).await??;
    Ok(())
}

/// Waits until the only candidate, which joined again, leads again.
async fn elected_again(candidate: &mut Candidate) -> Result<eldest::Leadership> {
    Ok(timeout(LONG, candidate.elected()).await??)
}

async fn leader(etcd: &Etcd) -> Result<(Session, Candidate, eldest::Leadership)> {
    let session = Session::connect([etcd.endpoint()], options("a")).await?;
    let mut candidate = session.election("jobs")?.campaign().await?;
    let leadership = timeout(LONG, candidate.elected()).await??;
    Ok((session, candidate, leadership))
}
