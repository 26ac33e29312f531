//! Runs the commands of a node that does not lead: the program of a follower, and the command that prepares a node.

use std::ffi::OsString;
use std::sync::Arc;

use eldest::{BoxError, CancellationToken, Following};

use crate::contain::{self, Ending, Exit, Gone, Keeper, Limit, STOPPED, Spec, Stop};
use crate::supervise::Supervisor;

/// Returns the arguments that run a command with /bin/sh.
pub(crate) fn shell(command: &str) -> Vec<OsString> {
    ["/bin/sh", "-c", command].map(OsString::from).to_vec()
}

/// Does the work of a follower. The end of its program does not end the command.
pub(crate) async fn follow(
    following: Following,
    supervisor: &Supervisor,
    spec: &Arc<Spec>,
) -> Result<(), BoxError> {
    if let Some(exit) = run_until(&following.stopped(), supervisor, spec).await? {
        tracing::warn!(%exit, "the follower's program has ended; it starts again after the next term");
    }
    Ok(())
}

/// Prepares the node for a term, or for a partition. If the command fails, this returns only once the preparation must end, so
/// the node counts as one that still prepares.
pub(crate) async fn prepare(
    stopped: CancellationToken,
    partition: Option<u32>,
    supervisor: &Supervisor,
    spec: &Arc<Spec>,
) -> Result<(), BoxError> {
    match run_until(&stopped, supervisor, spec).await? {
        Some(exit) if exit.code() == 0 => return Ok(()),
        Some(exit) => {
            tracing::warn!(%exit, partition, "the command of --prepare failed: this node is not warm");
        }
        // The command was stopped, or its processes could not be killed.
        None => {}
    }
    stopped.cancelled().await;
    Ok(())
}

/// Runs a program until it ends, or until it must end. Returns how it ended by itself.
async fn run_until(
    stopped: &CancellationToken,
    supervisor: &Supervisor,
    spec: &Arc<Spec>,
) -> Result<Option<Exit>, BoxError> {
    let keeper = Keeper::start(spec, &supervisor.child_registry).await?;
    let (stop, commands) = supervisor.commands();
    // A task of its own runs until no process of the program is left, even if this future is dropped.
    let mut job = tokio::spawn(keeper.go(None, || Limit::NEVER, commands));
    let ending = tokio::select! {
        biased;
        ending = &mut job => ending?,
        () = stopped.cancelled() => {
            stop.send_replace(Stop::By {
                at: contain::now() + spec.grace,
                why: STOPPED,
            });
            job.await?
        }
    };
    match ending {
        Ending::Gone(Gone {
            exit,
            by_itself: true,
            ..
        }) => Ok(Some(exit)),
        Ending::Gone(_) | Ending::TooLate => Ok(None),
        Ending::NotStarted(error) => Err(error.into()),
        Ending::Left(pids) => {
            tracing::error!(
                ?pids,
                "processes of the follower's program could not be killed"
            );
            Ok(None)
        }
    }
}
