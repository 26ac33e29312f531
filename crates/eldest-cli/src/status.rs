//! Implements `eldest status`: shows elections, either in one line each or with their candidates.

use anyhow::Result;
use serde::Serialize;

use crate::exit::Code;
use crate::global::Global;
use crate::output::{self, Format};
use crate::view::{self, Standing};

/// Show who stands where: of one election, of all under a prefix, or of all there are
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show who stands where, the longest-standing first; a * marks who leads, or holds.\n\n\
    Of elections, locks, semaphores and partitions, those are shown in which somebody stands: etcd knows of no others. \
    AGE is since when a candidate stands by its own clock, if it announces an address or the like. LEASE LEFT is by the \
    clock of etcd's leader; a renewal every third of the TTL begins it anew."
)]
pub(crate) struct Args {
    /// The election, lock, semaphore or partitions of this name, and all whose names begin with it and a slash; all there
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

/// What is printed as JSON.
#[derive(Debug, Serialize)]
struct Status {
    namespace: String,
    revision: i64,
    standings: Vec<Standing>,
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
    let standings = queues.iter().map(|queue| Standing::new(queue, &leases));
    let standings: Vec<Standing> = standings.collect();
    match global.output {
        Format::Json => output::say_json(&Status {
            namespace: session.namespace().to_owned(),
            revision: overview.revision(),
            standings,
        })?,
        Format::Text if standings.is_empty() => output::say(nobody(&args.below))?,
        Format::Text if args.summary => output::say(summary(&standings))?,
        Format::Text => output::say(details(&standings))?,
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

fn summary(standings: &[Standing]) -> String {
    let row = |standing: &Standing| vec![standing.title(), standing.summary()];
    view::table(&["ELECTION", "STANDING"], standings.iter().map(row))
}

fn details(standings: &[Standing]) -> String {
    let block = |standing: &Standing| {
        let (title, summary) = (standing.title(), standing.summary());
        format!("{title}: {summary}\n{}", standing.table())
    };
    let blocks: Vec<String> = standings.iter().map(block).collect();
    blocks.join("\n\n")
}
