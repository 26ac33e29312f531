//! Implements `eldest partitions`: shows which member owns each partition, or the partition of a key.

use std::collections::HashMap;

use anyhow::Result;
use eldest::{PartitionMap, QueueKind, Session};
use eldest_http::contract::command::PartitionOwners;
use eldest_http::contract::partitions::{PartitionMember, PartitionState};

use crate::exit::{Code, fault};
use crate::global::Global;
use crate::output::{self, Format, one_line};
use crate::view;

/// Show which member owns each partition, or the partition of a key
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show which member owns each partition, or the partition of a key.\n\n\
    etcd knows the number of partitions while they have a member. Without members, give --count.",
    after_help = "Examples:
  # Show the owner of each partition
  eldest partitions billing
  # Show who owns the partition that a key belongs to, as JSON
  eldest partitions billing --of customer-4711 --output json"
)]
pub(crate) struct Args {
    /// The name of the set of partitions
    name: String,

    /// The number of partitions [default: the one that the members use]
    #[arg(long, value_name = "NUMBER")]
    count: Option<u32>,

    /// Show only the partition that this key belongs to
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    of: Option<String>,
}

pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    let session = global.connection.observer().await?;
    let count = match args.count {
        Some(count) => count,
        None => used(&session, &args.name).await?,
    };
    let partitions = session.partitions(&args.name, count)?;
    let map = partitions.map().await?;
    let wanted = args.of.map(|key| partitions.partition_for(key));
    let shown = shown(&session, &args.name, &map, wanted);
    match global.output {
        Format::Json => output::say_json(&shown)?,
        Format::Text => output::say(text(&shown))?,
    }
    Ok(Code::Done)
}

/// Returns the count that the members use.
async fn used(session: &Session, name: &str) -> Result<u32> {
    let overview = session.overview(name).await?;
    let mut counts = overview
        .queues()
        .iter()
        .filter_map(|queue| match queue.kind() {
            QueueKind::Partitions { count } if queue.name() == name => Some(count),
            _ => None,
        });
    counts.next().ok_or_else(|| {
        let message = format!("nobody shares the partitions {name:?}; give --count");
        fault(Code::Usage, message)
    })
}

fn shown(
    session: &Session,
    name: &str,
    map: &PartitionMap,
    wanted: Option<u32>,
) -> PartitionOwners {
    let blocked: HashMap<u32, _> = map.blocked().collect();
    let numbers = (0..map.count()).filter(|at| wanted.is_none_or(|wanted| wanted == *at));
    let partitions = numbers.map(|at| PartitionState::of(map, at, blocked.get(&at)));
    PartitionOwners {
        namespace: session.namespace().to_owned(),
        name: name.to_owned(),
        partition_count: map.count(),
        revision: map.revision(),
        now_unix_ms: view::now_unix_ms(),
        members: PartitionMember::all(map).collect(),
        partitions: partitions.collect(),
    }
}

fn text(shown: &PartitionOwners) -> String {
    let row = |one: &PartitionState| {
        let nothing = || "-".to_owned();
        let owner = one.owner.as_ref();
        let identity = match (owner, &one.blocked_by) {
            (Some(owner), _) => one_line(&owner.identity),
            (None, Some(key)) => format!("BLOCKED by the key {}", one_line(key)),
            (None, None) => nothing(),
        };
        let address = owner.and_then(|owner| owner.address.as_deref());
        vec![
            one.partition.to_string(),
            identity,
            address.map_or_else(nothing, one_line),
            owner.map_or_else(nothing, |owner| owner.fencing_token.to_string()),
        ]
    };
    let header = ["PARTITION", "OWNER", "ADDRESS", "TOKEN"];
    view::table(&header, shown.partitions.iter().map(row))
}
