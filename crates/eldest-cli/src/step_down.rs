//! Implements `eldest step-down`: orders the leader of an election to step down, and waits until it has.

use std::time::Duration;

use anyhow::Result;
use eldest::{CancellationToken, Election, Member, Roster, StepDown, internal};
use eldest_http::contract::command::SteppedDown;

use crate::connection::duration;
use crate::exit::{Code, fault};
use crate::global::Global;
use crate::member;
use crate::output::{self, Format};
use crate::stop::Stop;
use crate::view::{self, Leases};

/// Order the leader of an election to step down, so that the next candidate leads
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Order the leader of an election to step down, so that the next candidate leads.\n\n\
    The leader ends its term: its work has the grace period to finish, then its key goes and the next eldest leads. The node \
    joins again, at the end of the queue. A leader obeys only while there is another candidate that may lead instead, and at \
    most once in 5 seconds. With --warm-within, it first leads on until the next node is warm. If it has not obeyed within --wait, or if \
    this command receives SIGINT, SIGTERM or SIGHUP before, the order is withdrawn, and the exit code is 5.\n\n\
    Programs of other libraries, older versions and nodes that may not read ~evacuated/ do not obey: `eldest evict` takes \
    their keys away without asking.",
    after_help = "Examples:
  # Let the next candidate lead, whichever node leads now
  eldest step-down billing/scheduler
  # Only if node-a leads, and wait up to two minutes for its work
  eldest step-down billing/scheduler --node node-a --wait 2m"
)]
pub(crate) struct Args {
    /// The name of the election
    election: String,

    /// Do nothing unless the node of that name leads
    #[arg(long, value_name = "NAME")]
    node: Option<String>,

    /// How long to wait until the leader has stepped down: 1s to 1h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    wait: Duration,

    /// Name of the person or program that gives the order, for the leader's log [default: this user at this machine]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    let session = global.connection.observer().await?;
    let election = session.election(&args.election)?;
    let by = args.by.unwrap_or_else(member::this_user);
    let mut order = StepDown::new().within(args.wait).by(by);
    if let Some(node) = args.node {
        order = order.node(node);
    }
    let (former, queue) = given(&election, order).await?;
    let former = view::candidate(&former, true, &Leases::new());
    let next = queue.leader();
    let next = next.map(|leader| view::candidate(leader, true, &Leases::new()));
    match global.output {
        Format::Json => output::say_json(&SteppedDown {
            election: election.name().to_owned(),
            stepped_down: former,
            leader: next,
        })?,
        Format::Text => {
            let former = view::described(&former);
            let next = view::leads_now(next.as_ref());
            let name = election.name();
            output::say(format!("{former} stepped down in {name}; {next}"))?;
        }
    }
    Ok(Code::Done)
}

/// Gives the order, and waits until it is obeyed. A signal withdraws it, and a second one ends the command at once.
async fn given(election: &Election, order: StepDown) -> Result<(Member, Roster)> {
    let (given_up, mut stop) = (CancellationToken::new(), Stop::new()?);
    let twice = async {
        stop.asked().await;
        given_up.cancel();
        stop.asked().await;
    };
    let ordered = internal::order_step_down(election, order, given_up.cancelled());
    tokio::select! {
        biased;
        done = ordered => Ok(done?),
        () = twice => {
            let message = "stopped before the order was withdrawn: it ends by itself, a few seconds after --wait";
            Err(fault(Code::NotDone, message))
        }
    }
}
