//! Implements `eldest lock`: runs a program while a lock is held.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use eldest::Lock;

use crate::exit::{Code, fault};
use crate::global::Global;
use crate::supervise::{self, Outcome, Supervisor};

/// Run a program while holding a lock.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The name of what is locked
    resource: String,

    /// How long to wait for it; 0s: take it at once or not at all [default: as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = crate::connection::duration)]
    wait: Option<Duration>,

    #[command(flatten)]
    supervise: supervise::Args,
}

/// Waits for the lock, runs the program, releases the lock.
pub(crate) async fn run(global: &Global, args: Args) -> Result<ExitCode> {
    let opened = Supervisor::open(&global.connection, &args.supervise, &args.resource).await?;
    let (session, supervisor) = opened;
    let lock = session.lock(&args.resource)?;
    let done = hold(&lock, args.wait, &supervisor).await;
    supervisor.close(&session).await;
    done
}

async fn hold(lock: &Lock, wait: Option<Duration>, supervisor: &Supervisor) -> Result<ExitCode> {
    let acquired = async {
        match wait {
            None => lock.acquire().await.map(Some),
            Some(Duration::ZERO) => lock.try_acquire().await,
            Some(limit) => lock.acquire_timeout(limit).await,
        }
    };
    let guard = tokio::select! {
        biased;
        () = supervisor.signals.stop.cancelled() => return Err(not_run(lock)),
        guard = acquired => guard?,
    };
    let Some(guard) = guard else {
        let when = match wait {
            Some(wait) if !wait.is_zero() => format!("within {wait:?}"),
            _ => "at once".to_owned(),
        };
        let message = format!("the lock {:?} was not free {when}", lock.name());
        return Err(fault(Code::NotInTime, message));
    };
    let outcome = supervisor.run(&guard.term()).await?;
    match outcome {
        Outcome::Ended(exit) => Ok(exit.code().into()),
        Outcome::Stopped => Err(not_run(lock)),
        Outcome::Lost => {
            let message = format!("the lock {:?} was lost; the program was ended", lock.name());
            Err(fault(Code::Lost, message))
        }
    }
}

/// Who has asked for the program is not to believe that it ran.
fn not_run(lock: &Lock) -> anyhow::Error {
    let message = format!(
        "told to end while waiting for the lock {:?}; the program was not run",
        lock.name()
    );
    fault(Code::NotInTime, message)
}
