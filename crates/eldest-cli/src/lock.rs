//! Implements `eldest lock`: runs a program while a lock, or a permit of a semaphore, is held.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::exit::{Code, fault};
use crate::global::Global;
use crate::resource::Resource;
use crate::supervise::{self, Outcome, Supervisor};

/// Run a program while holding a lock, or one of several permits
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Run a program while holding a lock, or with -n one of N permits: then N programs run at a time.\n\n\
    The program is told its fencing token by ELDEST_FENCING_TOKEN, and ends before anybody else can have what it holds. \
    All who share a name give the same N, which is refused while others hold or await permits of another. A lock is \
    what there is without -n; it and the permits of the same name do not know each other."
)]
pub(crate) struct Args {
    /// The name of what is locked
    resource: String,

    /// How many programs may run at a time, 1 to 1024: takes a permit of a semaphore of that capacity
    #[arg(short = 'n', long, value_name = "N", value_parser = capacity)]
    capacity: Option<usize>,

    /// How long to wait for it; 0s: take it at once or not at all [default: as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = crate::connection::duration)]
    wait: Option<Duration>,

    #[command(flatten)]
    supervise: supervise::Args,
}

fn capacity(text: &str) -> Result<usize, String> {
    let capacity = text.parse().ok();
    let capacity = capacity.filter(|capacity| (1..=1024).contains(capacity));
    capacity.ok_or_else(|| "it must be a whole number from 1 to 1024".to_owned())
}

/// Waits for the lock or permit, runs the program, gives back what it held.
pub(crate) async fn run(global: &Global, args: Args) -> Result<ExitCode> {
    let (name, capacity) = (&args.resource, args.capacity);
    let opened = Supervisor::open(&global.connection, &args.supervise, name, capacity).await?;
    let (session, supervisor) = opened;
    let resource = Resource::new(&session, name, capacity)?;
    let done = hold(&resource, args.wait, &supervisor).await;
    supervisor.close(&session).await;
    done
}

async fn hold(
    resource: &Resource,
    wait: Option<Duration>,
    supervisor: &Supervisor,
) -> Result<ExitCode> {
    let held = tokio::select! {
        biased;
        () = supervisor.signals.stop.cancelled() => return Err(not_run(resource)),
        held = resource.acquire_within(wait) => held?,
    };
    let what = resource.described();
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
        Outcome::Ended(exit) => Ok(exit.code().into()),
        Outcome::Stopped => Err(not_run(resource)),
        Outcome::Lost => {
            let message = format!("{what} was lost; the program was ended");
            Err(fault(Code::Lost, message))
        }
    }
}

/// Who has asked for the program is not to believe that it ran.
fn not_run(resource: &Resource) -> anyhow::Error {
    let what = resource.described();
    let message = format!("told to end while waiting for {what}; the program was not run");
    fault(Code::NotInTime, message)
}
