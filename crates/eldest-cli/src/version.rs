//! Implements `eldest version`: shows the newest version that led an election, and lets older ones lead again.

use anyhow::Result;
use eldest::{ErrorKind, Session, VersionMark};
use eldest_http::contract::command::{ElectionVersion, Queue};
use futures::StreamExt;

use crate::exit::{Code, fault};
use crate::global::Global;
use crate::output::{self, Format, one_line};
use crate::view::QUESTIONS;

/// Show the newest version that led an election, below which no node leads, or remove its mark
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show the newest version that led an election, below which no node leads, or remove its mark.\n\n\
    Nodes with --app-version mark the newest version right before they lead. A node of an older version then holds back, even \
    if there is no other node. With --remove, older versions may lead again, until the next leader sets the mark again. The \
    present leader leads on: order it to step down, or stop it.",
    after_help = "Examples:
  # Show the newest version that led
  eldest version billing/scheduler
  # Let an older version lead; `eldest step-down billing/scheduler` then ends the present term
  eldest version billing/scheduler --remove"
)]
pub(crate) struct Args {
    /// The name of the election
    election: String,

    /// Remove the mark, so that older versions may lead again
    #[arg(long)]
    remove: bool,
}

pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    let session = global.connection.observer().await?;
    let election = session.election(&args.election)?;
    let mark = if args.remove {
        election.remove_version_mark().await?
    } else {
        election.version_mark().await?
    };
    let name = election.name();
    if args.remove && mark.is_none() {
        let message = format!("{name} has no mark of a version; nothing was removed");
        return Err(fault(Code::NotDone, message));
    }
    match global.output {
        Format::Json => output::say_json(&ElectionVersion {
            election: name.to_owned(),
            newest_version: mark.as_ref().and_then(version),
            led_by: mark.as_ref().and_then(VersionMark::by).map(str::to_owned),
            mark_removed: args.remove,
        })?,
        Format::Text => {
            let removed = if args.remove { "removed: " } else { "" };
            let described = mark.as_ref().map_or_else(
                || "no node that requires a version has led".to_owned(),
                described,
            );
            output::say(format!("{removed}{name}: {described}"))?;
        }
    }
    Ok(Code::Done)
}

fn version(mark: &VersionMark) -> Option<String> {
    mark.version().map(|version| version.to_string())
}

fn described(mark: &VersionMark) -> String {
    let version = version(mark).unwrap_or_else(|| "a mark without a version".to_owned());
    match mark.by() {
        Some(by) => format!("{version}, first led by {}", one_line(by)),
        None => version,
    }
}

/// Adds to each election the newest version that led, if its eldest candidate requires one. `read` are the same queues.
pub(crate) async fn fill(session: &Session, queues: &mut [Queue], read: &[eldest::Queue]) {
    let asked = futures::stream::iter(queues.iter_mut().zip(read));
    let fill = asked.for_each_concurrent(QUESTIONS, |(shown, queue)| async move {
        shown.newest_version = newest(session, queue).await.unwrap_or_else(|error| {
            if error.kind() != ErrorKind::PermissionDenied {
                tracing::warn!(error = %error.report(), "the newest version that led is unknown");
            }
            None
        });
    });
    fill.await;
}

async fn newest(session: &Session, queue: &eldest::Queue) -> eldest::Result<Option<String>> {
    let Some(leader) = queue.roster().leader() else {
        return Ok(None);
    };
    let Some(own) = leader.version() else {
        return Ok(None);
    };
    let election = session.election(queue.name())?;
    let mark = election.version_mark().await?;
    let newest = mark.and_then(|mark| mark.version());
    if newest.is_some_and(|newest| newest > own) {
        // A version that has led only since the queue was read does not hold back the leader that was read.
        let now = election.leader().await?;
        if now.is_none_or(|now| now.create_revision() != leader.create_revision()) {
            return Ok(None);
        }
    }
    Ok(newest.map(|newest| newest.to_string()))
}
