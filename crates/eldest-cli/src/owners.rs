//! Implements `eldest partitions`: shows which member owns each partition, or the partition of a key.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use eldest::{PartitionMap, Partitions, QueueKind, Session};
use eldest_http::contract::command::PartitionOwners;
use eldest_http::contract::millis;
use eldest_http::contract::partitions::{
    AbsentMember, ForgottenShare, PartitionMember, PartitionState,
};

use crate::exit::{Code, fault};
use crate::global::Global;
use crate::number;
use crate::output::{self, Format, one_line};
use crate::view::{self, length};

/// Show which member owns each partition, or the partition of a key
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show which member owns each partition, or the partition of a key.\n\n\
    etcd knows the number of partitions while they have a member, or while the share of an absent member is kept. Otherwise, \
    give --count.",
    after_help = "Examples:
  # Show the owner of each partition
  eldest partitions billing
  # Show who owns the partition that a key belongs to, as JSON
  eldest partitions billing --of customer-4711 --output json
  # Let the others take the partitions that are kept for a node that does not return
  eldest partitions billing --forget node-b"
)]
pub(crate) struct Args {
    /// The name of the set of partitions
    name: String,

    /// The number of partitions [default: the one that the members use]
    #[arg(long, value_name = "NUMBER", value_parser = number::within(1..=65536_u32))]
    count: Option<u32>,

    /// Show only the partition that this key belongs to
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    of: Option<String>,

    /// Let the other members take the partitions that are kept for this absent member; refused if it is there
    #[arg(long, value_name = "IDENTITY", conflicts_with = "of")]
    forget: Option<String>,
}

pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    let session = global.connection.observer().await?;
    let count = match args.count {
        Some(count) => count,
        None => used(&session, &args.name).await?,
    };
    let partitions = session.partitions(&args.name, count)?;
    if let Some(identity) = &args.forget {
        return forget(global, &partitions, identity).await;
    }
    let map = partitions.map().await?;
    let wanted = args.of.map(|key| partitions.partition_for(key));
    let mut shown = shown(&session, &args.name, &map, wanted);
    for (share, absent) in map.kept_shares().iter().zip(&mut shown.absent) {
        let time = session.lease_time(share.lease_id()).await?;
        absent.lease_left_ms = time.map(|time| millis(time.left()));
    }
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
        absent: AbsentMember::all(map).collect(),
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
            (None, None) => match &one.kept_for {
                Some(absent) => format!("- (kept for {})", one_line(absent)),
                None => nothing(),
            },
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
    let mut text = view::table(&header, shown.partitions.iter().map(row));
    for absent in &shown.absent {
        text += &absent_line(&shown.name, absent);
    }
    text
}

/// Describes an absent member, and says how to give its partitions to others.
fn absent_line(name: &str, absent: &AbsentMember) -> String {
    let left = absent.lease_left_ms.map(Duration::from_millis);
    let left = left.map_or_else(String::new, |left| format!(" for {} more", length(left)));
    let (name, identity) = (one_line(name), one_line(&absent.identity));
    let count = absent.kept_count;
    format!(
        "\n{identity} is absent and keeps {count} partitions{left}; `eldest partitions {name} --forget {identity}` ends that"
    )
}

/// Ends the time for which the share of an absent member is kept.
async fn forget(global: &Global, partitions: &Partitions, identity: &str) -> Result<Code> {
    if !partitions.forget_share(identity).await? {
        let map = partitions.map().await?;
        let is_there = map.members().iter().any(|one| one.identity() == identity);
        let why = match map.kept_shares() {
            _ if is_there => "that member is there".to_owned(),
            [] => "no share is kept for an absent member".to_owned(),
            some => {
                let names: Vec<_> = some
                    .iter()
                    .map(|share| one_line(share.identity()))
                    .collect();
                format!("shares are kept for {}", names.join(", "))
            }
        };
        let message = format!("nothing is kept for {identity:?}: {why}");
        return Err(fault(Code::NotDone, message));
    }
    let forgotten = ForgottenShare {
        name: partitions.name().to_owned(),
        partition_count: partitions.count(),
        forgotten: identity.to_owned(),
    };
    match global.output {
        Format::Json => output::say_json(&forgotten)?,
        Format::Text => {
            let (name, identity) = (one_line(&forgotten.name), one_line(identity));
            output::say(format!(
                "the partitions of {name} are kept for {identity} no longer"
            ))?;
        }
    }
    Ok(Code::Done)
}
