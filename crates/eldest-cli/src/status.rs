//! Implements `eldest status`: shows elections, either in one line each or with their candidates.

use anyhow::Result;
use eldest_http::contract::command::{Queue, Status};

use crate::exit::Code;
use crate::global::Global;
use crate::output::{self, Format};
use crate::view;

/// Show who stands where: of one election, of all under a prefix, or of all there are
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show who stands where, the longest-standing first; a * marks who leads, or holds.\n\n\
    Of elections, locks, semaphores, partitions and groups, those are shown in which somebody stands: etcd knows of no others. \
    AGE is how long ago a candidate began to campaign, by its own clock; one that lost its key and joined again keeps its age, \
    and RANK alone tells its place. LEASE LEFT is by the clock of etcd's leader; a renewal every third of the TTL begins it anew."
)]
pub(crate) struct Args {
    /// The election, lock, semaphore, partitions or group of this name, and all whose names begin with it and a slash; all there
    /// are, if it is left out
    #[arg(
        value_name = "ELECTION|PREFIX",
        default_value = "",
        hide_default_value = true
    )]
    below: String,

    /// One line for each, without those who stand there
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
