//! Implements `eldest status`: shows elections, either in one line each or with their candidates.

use std::time::Duration;

use anyhow::Result;
use eldest::operator::Endpoint;
use eldest_http::contract::command::{MeasuredEndpoint, Queue, Status};
use futures::future::join_all;

use crate::challenged;
use crate::connection::Connection;
use crate::distance::{Distance, chosen};
use crate::evacuate;
use crate::exit::Code;
use crate::global::Global;
use crate::output::{self, Format, one_line};
use crate::{version, view};

/// Show elections with their candidates: one, all below a prefix, or all
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show elections with their candidates, eldest first: one, all below a prefix, or all.\n\n\
    A * marks the leader, or the holder of a lock or permit. Elections, locks, semaphores, partitions and groups appear \
    only while they have a candidate or member, because etcd knows of no others. AGE is how long a candidate has \
    been in the queue, by its own clock, but never longer than that of an older candidate. \"leads for\" counts from \
    the beginning of the term, by the leader's clock; a leader announces it a third of the TTL later. \
    LEASE LEFT is by the clock of etcd's leader; a renewal every third of the TTL resets it.\n\n\
    Below the candidates stands which of them are challenged, by whom, and which were condemned (see --challenges).\n\n\
    A data centre that is evacuated is shown first (see `eldest evacuate`).\n\n\
    With --etcd, the round trip from this machine to each endpoint is shown too (the median and the worst of ten), and which \
    endpoint a node with these options uses, and why.",
    after_help = "Examples:
  # Show one election
  eldest status billing/scheduler
  # Show one line for each election below billing
  eldest status billing --summary
  # Show which member of etcd a node in the data centre eu uses
  eldest status --etcd --data-center eu --endpoints eu=http://10.0.0.1:2379,us=http://10.1.0.1:2379"
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

    /// Show the endpoints of etcd, too: how far away they are, and which one a node here uses
    #[arg(long)]
    etcd: bool,
}

pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    let session = global.connection.observer().await?;
    let anchors = challenged::read_if_permitted(&session).await?;
    let overview = session.overview(&args.below).await?;
    let queues = overview.queues();
    let all = queues.iter().flat_map(|queue| queue.roster().members());
    let leases = if args.summary && global.output == Format::Text {
        view::Leases::new()
    } else {
        view::leases(&session, all).await
    };
    let now_unix_ms = view::now_unix_ms();
    let shown = queues.iter().map(|queue| view::queue(queue, &leases));
    let mut shown: Vec<Queue> = shown.collect();
    if let Some(anchors) = anchors {
        challenged::fill(&mut shown, queues, &anchors);
    }
    version::fill(&session, &mut shown, queues).await;
    let queues = shown;
    let endpoints = if args.etcd {
        Some(measured(&global.connection).await?)
    } else {
        None
    };
    let evacuations = evacuate::standing_if_permitted(&session).await?;
    match global.output {
        Format::Json => output::say_json(&Status {
            namespace: session.namespace().to_owned(),
            revision: overview.revision(),
            now_unix_ms,
            queues,
            endpoints,
            evacuations,
        })?,
        Format::Text => {
            for order in evacuations.iter().flatten() {
                output::say(format_args!("evacuated: {}", evacuate::described(order)))?;
            }
            if queues.is_empty() {
                output::say(nobody(&args.below))?;
            } else if args.summary {
                output::say(summary(&queues))?;
            } else {
                output::say(details(&queues))?;
            }
            if let Some(endpoints) = endpoints {
                output::say(format_args!("\n{}", table(&endpoints)))?;
            }
        }
    }
    Ok(Code::Done)
}

/// Asks all endpoints at once.
async fn measured(connection: &Connection) -> Result<Vec<MeasuredEndpoint>> {
    let options = connection.session_options("eldest")?;
    let connection = &connection.looked_up(&options).await?;
    let listed = connection.endpoints.iter();
    let all = listed.map(|one| Endpoint::new(one, options.clone()));
    let all: Vec<Endpoint> = all.collect::<eldest::Result<_>>()?;
    let distances = join_all(all.iter().map(Distance::to)).await;
    let chosen = chosen(connection, &distances);
    let each = connection.endpoints.iter().zip(distances).enumerate();
    let seconds = |time: Duration| time.as_secs_f64();
    let each = each.map(|(at, (one, distance))| MeasuredEndpoint {
        endpoint: one.url.clone(),
        data_center: one.data_center.clone(),
        round_trip_seconds: distance.map(|it| seconds(it.median)),
        worst_round_trip_seconds: distance.map(|it| seconds(it.worst)),
        failing: distance.is_none(),
        preferred: chosen
            .filter(|(used, _)| *used == at)
            .map(|(_, why)| why.as_str().to_owned()),
    });
    Ok(each.collect())
}

fn table(endpoints: &[MeasuredEndpoint]) -> String {
    let length = |seconds: Option<f64>| match seconds {
        Some(seconds) => format!("{:.1?}", Duration::from_secs_f64(seconds)),
        None => "no answer".to_owned(),
    };
    let or_nothing = |text: &Option<String>| text.as_deref().map_or("-".to_owned(), one_line);
    let row = |one: &MeasuredEndpoint| {
        vec![
            one_line(&one.endpoint),
            or_nothing(&one.data_center),
            length(one.round_trip_seconds),
            length(one.worst_round_trip_seconds),
            or_nothing(&one.preferred),
        ]
    };
    let header = ["ENDPOINT", "DATA CENTRE", "ROUND TRIP", "WORST", "USED"];
    view::table(&header, endpoints.iter().map(row))
}

fn nobody(below: &str) -> String {
    if below.is_empty() {
        "there is no candidate anywhere".to_owned()
    } else {
        format!("there is no candidate in {below} or below it")
    }
}

fn summary(queues: &[Queue]) -> String {
    let row = |queue: &Queue| {
        let summary = format!("{}{}", view::summary(queue), view::leads_for(queue));
        vec![view::title(queue), summary]
    };
    view::table(&["ELECTION", "STANDING"], queues.iter().map(row))
}

fn details(queues: &[Queue]) -> String {
    let block = |queue: &Queue| {
        let (title, summary) = (view::title(queue), view::summary(queue));
        let leads_for = view::leads_for(queue);
        let challenged = challenged::described(queue);
        format!(
            "{title}: {summary}{leads_for}\n{}{challenged}",
            view::roster(queue)
        )
    };
    let blocks: Vec<String> = queues.iter().map(block).collect();
    blocks.join("\n\n")
}
