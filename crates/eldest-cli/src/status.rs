//! Implements `eldest status`: shows elections, either in one line each or with their candidates.

use anyhow::Result;
use eldest_http::contract::command::{Queue, Status};

use crate::exit::Code;
use crate::global::Global;
use crate::output::{self, Format};
use crate::view;

/// Show elections with their candidates: one, all below a prefix, or all
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show elections with their candidates, eldest first: one, all below a prefix, or all.\n\n\
    A * marks the leader, or the holder of a lock or permit. Elections, locks, semaphores, partitions and groups appear \
    only while they have a candidate or member, because etcd knows of no others. AGE is how long ago a candidate began to \
    campaign, by its own clock. A candidate that lost its key and joined again keeps its age; only RANK tells its place. \
    LEASE LEFT is by the clock of etcd's leader; a renewal every third of the TTL resets it.",
    after_help = "Examples:
  # Show one election
  eldest status billing/scheduler
  # Show one line for each election below billing, as JSON
  eldest status billing --summary --output json"
)]
pub(crate) struct Args {
    /// The name of an election, lock, semaphore, group or set of partitions; names that begin with it and a slash are shown too
    /// [default: all]
    #[arg(
        value_name = "ELECTION|PREFIX",
        default_value = "",
        hide_default_value = true
    )]
    below: String,

    /// Show one line for each, without its candidates
    #[arg(long)]
    summary: bool,
}

pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    let session = global.connection.onlooker().await?;
    let overview = session.overview(&args.below).await?;
    let queues = overview.queues();
    let all = queues.iter().flat_map(|queue| queue.roster().members());
    let leases = if args.summary && global.output == Format::Text {
        view::Leases::new()
    } else {
        view::leases(&session, all).await
    };
    let now_unix_ms = view::now_unix_ms();
    let queues = queues.iter().map(|queue| view::queue(queue, &leases));
    let queues: Vec<Queue> = queues.collect();
    match global.output {
        Format::Json => output::say_json(&Status {
            namespace: session.namespace().to_owned(),
            revision: overview.revision(),
            now_unix_ms,
            queues,
        })?,
        Format::Text if queues.is_empty() => output::say(nobody(&args.below))?,
        Format::Text if args.summary => output::say(summary(&queues))?,
        Format::Text => output::say(details(&queues))?,
    }
    Ok(Code::Done)
}

fn nobody(below: &str) -> String {
    if below.is_empty() {
        "nobody stands anywhere".to_owned()
    } else {
        format!("nobody stands in {below} or below it")
    }
}

fn summary(queues: &[Queue]) -> String {
    let row = |queue: &Queue| vec![view::title(queue), view::summary(queue)];
    view::table(&["ELECTION", "STANDING"], queues.iter().map(row))
}

fn details(queues: &[Queue]) -> String {
    let block = |queue: &Queue| {
        let (title, summary) = (view::title(queue), view::summary(queue));
        format!("{title}: {summary}\n{}", view::roster(queue))
    };
    let blocks: Vec<String> = queues.iter().map(block).collect();
    blocks.join("\n\n")
}
