//! Implements `eldest lock`: runs a program while a lock, or a permit of a semaphore, is held.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use eldest::Session;

use crate::exit::{Code, fault};
use crate::global::Global;
use crate::number;
use crate::pairing::Programs;
use crate::resource::{Resource, Sharing};
use crate::supervise::{self, Outcome, Supervisor};
use crate::waiting;

/// Run a program while holding a lock, or one of several permits
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Run a program while holding a lock, or one of several permits.\n\n\
    Without -n, one program at a time holds the lock. With -n N, up to N programs run at a time. The program finds its \
    fencing token in ELDEST_FENCING_TOKEN. It is ended before another program can start under the same lock or permit. \
    All users of a name must give the same N: another N is refused while anybody holds or awaits a permit. A lock and the \
    permits of the same name are independent.\n\n\
    With --shared, any number of programs hold the lock together, as readers. A program without --shared holds it alone, \
    as a writer. The program that has waited longest is first: a reader waits behind a writer that waits.",
    after_help = "Examples:
  # Run a backup on one machine at a time
  eldest lock billing/backup -- ./backup.sh
  # Run at most three imports at a time, and give up after a minute
  eldest lock billing/import -n 3 --wait 1m -- ./import.sh
  # Run a report beside other reports, but never beside the backup
  eldest lock billing/backup --shared -- ./report.sh"
)]
pub(crate) struct Args {
    /// The name of the lock or semaphore
    resource: String,

    /// Hold one of N permits instead of a lock, so that N programs run at a time; 1 to 1024
    #[arg(short = 'n', long, value_name = "N", value_parser = number::within(1..=1024_usize))]
    capacity: Option<usize>,

    /// Hold the lock together with other programs that share it, and never beside one that does not
    #[arg(long, conflicts_with = "capacity")]
    shared: bool,

    /// How long to wait; with 0s, exit at once if it is not free [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = crate::connection::duration)]
    wait: Option<Duration>,

    #[command(flatten)]
    supervise: supervise::Args,
}

/// Waits for the lock or permit, runs the program, and releases the lock or permit.
pub(crate) async fn run(global: &Global, args: Args) -> Result<ExitCode> {
    let name = &args.resource;
    let sharing = match args.capacity {
        _ if args.shared => Sharing::Shared,
        Some(capacity) => Sharing::Permits(capacity),
        None => Sharing::Alone,
    };
    let opened = Supervisor::open(
        &global.connection,
        &args.supervise,
        name,
        sharing,
        None,
        None,
    )
    .await?;
    let (session, supervisor) = opened;
    supervisor.challenge_both(&session, Programs::Of(name.clone(), sharing));
    let resource = Resource::new(&session, name, sharing)?;
    let done = hold(&session, &resource, args.wait, &supervisor).await;
    supervisor.close(&session).await;
    done
}

async fn hold(
    session: &Session,
    resource: &Resource,
    wait: Option<Duration>,
    supervisor: &Supervisor,
) -> Result<ExitCode> {
    let what = resource.described();
    let held = tokio::select! {
        biased;
        () = supervisor.signals.stop.cancelled() => return Err(not_run(resource)),
        held = resource.acquire_within(wait) => held?,
        never = waiting::report_rank(session, (&what, "holds it"), async || resource.roster().await.ok()) => never,
    };
    let Some(held) = held else {
        let when = match wait {
            Some(wait) if !wait.is_zero() => format!("within {wait:?}"),
            _ => "at once".to_owned(),
        };
        let message = format!("{what} was not free {when}");
        return Err(fault(Code::NotInTime, message));
    };
    let outcome = supervisor.run(&held.term()).await?;
    match outcome {
        Outcome::Ended { exit, .. } => Ok(exit.code().into()),
        Outcome::Stopped => Err(not_run(resource)),
        Outcome::Lost => {
            let message = format!("{what} was lost; the program was ended");
            Err(fault(Code::Lost, message))
        }
    }
}

/// Returns an error, so that the caller does not conclude that the program ran.
fn not_run(resource: &Resource) -> anyhow::Error {
    let what = resource.described();
    let message = format!("stopped while waiting for {what}; the program was not run");
    fault(Code::NotInTime, message)
}
