//! Implements `eldest evacuate`: marks a data centre as evacuated, lifts the mark, and lists the marks.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use eldest::{ErrorKind, Evacuate, Member, Overview, QueueKind, Session, internal};
use eldest_http::contract::Evacuation;
use eldest_http::contract::command::{Evacuations, Staying};

use crate::connection::duration;
use crate::exit::Code;
use crate::global::Global;
use crate::output::{self, Format, one_line};
use crate::{member, view};

/// Let the nodes of a data centre give up leadership to nodes elsewhere
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Let the nodes of a data centre give up leadership to nodes elsewhere.\n\n\
    The order is in force until its time is over or it is lifted. Meanwhile, a leader that announces this data centre ends \
    its term as soon as there is a candidate elsewhere, waiting candidates wait behind those elsewhere, and members of \
    partitions give their partitions to members elsewhere. With --warm-within, the leader leads on for up to that limit until \
    that candidate is warm, so --for needs more. Without a candidate elsewhere that may lead, the leader continues, and the command says why. \
    Locks, semaphores and groups ignore the order. A new order replaces the old one.\n\n\
    When the order has ended, nobody moves back: the nodes keep their places in the queues.",
    after_help = "Examples:
  # Evacuate dc1 for two hours
  eldest evacuate dc1 --for 2h --reason maintenance
  # Show the data centres that are evacuated
  eldest evacuate --list
  # Lift the order
  eldest evacuate dc1 --lift"
)]
pub(crate) struct Args {
    /// The name of the data centre, as its nodes announce it
    #[arg(value_name = "DATA_CENTER", required_unless_present = "list")]
    name: Option<String>,

    /// How long the order is in force: 5s to 744h, which are 31 days [default: until it is lifted]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    lasting: Option<Duration>,

    /// Why, for those who list the orders
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Name of the person or program that gives the order [default: this user at this machine]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,

    /// Lift the order
    #[arg(long, conflicts_with_all = ["lasting", "reason", "by"])]
    lift: bool,

    /// Show the data centres that are evacuated
    #[arg(long, conflicts_with_all = ["name", "lift", "lasting", "reason", "by"])]
    list: bool,
}

pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    let session = global.connection.observer().await?;
    let (mut lifted, mut staying) = (None, None);
    let said = match args.name {
        None => None,
        Some(name) if args.lift => {
            lifted = session.lift(&name).await?.as_ref().map(Evacuation::from);
            let name = one_line(&name);
            Some(match lifted {
                Some(_) => format!("{name} is no longer evacuated"),
                None => format!("{name} was not evacuated"),
            })
        }
        Some(name) => {
            let by = args.by.unwrap_or_else(member::this_user);
            let mut order = Evacuate::new(&name).by(by);
            if let Some(time) = args.lasting {
                order = order.lasting(time);
            }
            if let Some(reason) = args.reason {
                order = order.reason(reason);
            }
            session.evacuate(order).await?;
            // The order is in force, even if this user may not see the candidates.
            let overview = session.overview("").await.ok();
            let mut said = ordered(overview.as_ref(), &name, args.lasting);
            if let Some(overview) = &overview {
                let stay = stay(&session, overview, &name).await;
                for one in stay.iter().flatten() {
                    let (election, leader) = (one_line(&one.election), one_line(&one.leader));
                    let reason = one_line(&one.reason);
                    let _ = write!(said, "\n{election}: {leader} leads on: {reason}");
                }
                staying = stay;
            }
            Some(said)
        }
    };
    match (global.output, said) {
        (Format::Text, Some(said)) => output::say(said)?,
        (Format::Text, None) => output::say(table(&standing(&session).await?))?,
        (Format::Json, _) => output::say_json(&Evacuations {
            namespace: session.namespace().to_owned(),
            now_unix_ms: view::now_unix_ms(),
            evacuations: standing(&session).await?,
            lifted,
            staying,
        })?,
    }
    Ok(Code::Done)
}

/// Returns the orders in force, by the names of the data centres.
pub(crate) async fn standing(session: &Session) -> eldest::Result<Vec<Evacuation>> {
    let all = session.evacuations().await?;
    Ok(all.iter().map(Evacuation::from).collect())
}

/// Returns the same, or `None` if this user may not read the orders: a user with access to a part of the namespace need
/// not see them.
pub(crate) async fn standing_if_permitted(
    session: &Session,
) -> eldest::Result<Option<Vec<Evacuation>>> {
    match standing(session).await {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(None),
        standing => standing.map(Some),
    }
}

/// Writes an order as a part of a line.
pub(crate) fn described(order: &Evacuation) -> String {
    let ends = match order.until_unix_ms {
        Some(until) => format!("for {} more", left(until)),
        None => "until it is lifted".to_owned(),
    };
    let by = order.by.as_deref().map(|by| format!(", by {by}"));
    let reason = order.reason.as_deref().map(|why| format!(": {why}"));
    let (by, reason) = (by.unwrap_or_default(), reason.unwrap_or_default());
    one_line(&format!("{} {ends}{by}{reason}", order.data_center))
}

/// Returns the elections whose leaders announce the data centre and lead on, because no candidate elsewhere may lead.
/// `None` if that is unknown.
async fn stay(session: &Session, overview: &Overview, name: &str) -> Option<Vec<Staying>> {
    let mut staying = Vec::new();
    let queues = overview.queues().iter();
    for queue in queues.filter(|queue| queue.kind() == QueueKind::Election) {
        let is_there = |leader: &&Member| leader.announcement().data_center() == Some(name);
        let Some(leader) = queue.roster().leader().filter(is_there) else {
            continue;
        };
        let election = session.election(queue.name()).ok()?;
        let why = internal::no_successor_elsewhere(&election, queue.roster(), leader).await;
        if let Some(reason) = why.ok()? {
            staying.push(Staying {
                election: queue.name().to_owned(),
                leader: leader.identity().to_owned(),
                reason,
            });
        }
    }
    Some(staying)
}

/// Reports what was ordered and which nodes it concerns, so that a misspelt name is noticed.
fn ordered(overview: Option<&Overview>, name: &str, lasting: Option<Duration>) -> String {
    let ends = match lasting {
        Some(time) => format!("for {}", view::length(time)),
        None => "until it is lifted".to_owned(),
    };
    let ordered = format!("{} is evacuated {ends}", one_line(name));
    let Some(overview) = overview else {
        return ordered;
    };
    let queues = overview.queues().iter();
    let members = queues.flat_map(|queue| queue.roster().members());
    let announced = members.filter(|member| member.announcement().data_center() == Some(name));
    match announced.count() {
        0 => format!("{ordered}; no node announces this data centre now"),
        1 => format!("{ordered}; 1 key announces this data centre"),
        count => format!("{ordered}; {count} keys announce this data centre"),
    }
}

fn left(until_unix_ms: u64) -> String {
    let left = until_unix_ms.saturating_sub(view::now_unix_ms());
    view::length(Duration::from_millis(left))
}

fn table(orders: &[Evacuation]) -> String {
    if orders.is_empty() {
        return "no data centre is evacuated".to_owned();
    }
    let or_nothing = |text: &Option<String>| text.as_deref().map_or("-".to_owned(), one_line);
    let row = |order: &Evacuation| {
        let age = order
            .since_unix_ms
            .map(|since| view::length(view::age(since)));
        vec![
            one_line(&order.data_center),
            age.unwrap_or("-".to_owned()),
            order
                .until_unix_ms
                .map_or("when lifted".to_owned(), |until| {
                    format!("in {}", left(until))
                }),
            or_nothing(&order.by),
            or_nothing(&order.reason),
        ]
    };
    let header = ["DATA CENTRE", "AGE", "ENDS", "BY", "REASON"];
    view::table(&header, orders.iter().map(row))
}
