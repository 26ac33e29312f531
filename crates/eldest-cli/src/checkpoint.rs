//! Implements `eldest checkpoint`: shows the state that a leader or the owner of a partition left, and removes it.

use std::str::FromStr;

use anyhow::Result;
use eldest::{internal, operator};
use eldest_http::contract::command::{Checkpoint, Saved};

use crate::exit::{Code, fault};
use crate::global::Global;
use crate::output::{self, Format, one_line};

/// Show or remove the state that a leader left for the next
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show or remove the state that a leader, or the owner of a partition, left for the next.\n\n\
    The state outlives all nodes. It is final if the leader saved it as it resigned; otherwise the leader may have \
    worked on. Remove it to let the next leader begin without one: stop the nodes first, because a leader that has read \
    it may save it again.",
    after_help = "Examples:
  eldest checkpoint billing/scheduler
  # Of partition 3 of 64
  eldest checkpoint billing --of-partition 3/64 --output json
  eldest checkpoint billing/scheduler --remove"
)]
pub(crate) struct Args {
    /// The name of the election, or of the partitions
    name: String,

    /// The checkpoint of a partition: its number, and how many there are
    #[arg(long, value_name = "NUMBER/COUNT")]
    of_partition: Option<Which>,

    /// Remove it, if it is still the one that is shown
    #[arg(long)]
    remove: bool,
}

/// A partition, and the number of all partitions.
#[derive(Debug, Clone, Copy)]
struct Which {
    number: u32,
    count: u32,
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (number, count) = text.split_once('/')?;
            let (number, count) = (internal::number(number)?, internal::number(count)?);
            (number < count).then_some(Self { number, count })
        };
        read().ok_or_else(|| {
            "it must be a number and a count, such as 3/64; numbers begin with 0".to_owned()
        })
    }
}

pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    let session = global.connection.observer().await?;
    let partition = args.of_partition.map(|which| (which.number, which.count));
    let stored = operator::checkpoint(&session, &args.name, partition).await?;
    let named = match args.of_partition {
        None => args.name.clone(),
        Some(Which { number, count }) => format!("partition {number} of {count} of {}", args.name),
    };
    let Some(stored) = stored else {
        return Err(fault(Code::NotDone, format!("{named} has no checkpoint")));
    };
    if args.remove && !operator::remove_checkpoint(&session, &stored).await? {
        let message =
            format!("the checkpoint of {named} was replaced meanwhile; nothing was removed");
        return Err(fault(Code::NotDone, message));
    }
    let saved = match &stored.read {
        Ok(saved) => Some(saved),
        Err(_) if args.remove => None,
        Err(why) => return Err(fault(Code::Failed, why)),
    };
    match global.output {
        Format::Json => output::say_json(&Checkpoint {
            name: args.name,
            partition: args.of_partition.map(|which| which.number),
            removed: args.remove,
            saved: saved.map(|saved| Saved {
                fencing_token: saved.fencing_token(),
                identity: saved.identity().to_owned(),
                is_final: saved.is_final(),
                bytes: saved.value().len(),
                state: str::from_utf8(saved.value()).ok().map(str::to_owned),
            }),
        })?,
        Format::Text => {
            let removed = if args.remove { "removed: " } else { "" };
            let described = saved.map_or_else(|| "it could not be read".to_owned(), described);
            output::say(format!("{removed}checkpoint of {named}: {described}"))?;
        }
    }
    Ok(Code::Done)
}

fn described(saved: &eldest::Checkpoint) -> String {
    let when = if saved.is_final() {
        "when its work had ended"
    } else {
        "during the term"
    };
    let state = str::from_utf8(saved.value()).map_or_else(
        |_| format!("{} bytes, not text", saved.value().len()),
        |text| format!("{:?}", one_line(text)),
    );
    let (by, token) = (one_line(saved.identity()), saved.fencing_token());
    format!("{state}, saved by {by} {when}, token {token}")
}
