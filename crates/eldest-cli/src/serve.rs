//! Implements `eldest serve`: stands on behalf of the program beside it, answers over HTTP, and stops answering last.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use eldest::{CancellationToken, Election, Session};
use eldest_http::contract::command::Listening;
use eldest_http::{Leading, Node};
use futures::future::join_all;

use crate::exit::{Code, fault};
use crate::global::Global;
use crate::output::{self, Format};
use crate::stop::Stop;
use crate::{answering, member};

/// In a hurry etcd has so long to confirm that we have left; the keys go with the lease if it does not.
const HASTE: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
#[command(
    long_about = "Stand in elections on behalf of the program beside us, and answer over HTTP who leads.\n\n\
    The program asks GET /leader before it acts (?election= if there are several): 200 while this node leads, and then \
    it may act for `may_act_for_ms` from before the request was sent; 503 otherwise. GET / is a page for people, \
    /openapi.json describes the rest, /metrics is for Prometheus. Under /v1/locks programs in other languages take \
    locks.\n\n\
    SIGTERM or SIGINT: it leads no more, waits until nobody may act any longer, leaves the elections, and only then \
    ceases to answer. A second one ends it at once."
)]
pub(crate) struct Args {
    /// The elections
    #[arg(required = true, value_name = "ELECTION")]
    elections: Vec<String>,

    /// Where to listen; port 0: any that is free
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:8470",
        env = "ELDEST_LISTEN",
        hide_env_values = true,
        help_heading = "HTTP"
    )]
    listen: SocketAddr,

    #[command(flatten)]
    answering: answering::Args,

    /// Stand nowhere and take no locks: only look on
    #[arg(long)]
    observe: bool,

    #[command(flatten)]
    member: member::Args,

    /// How long whoever is told that we lead may act [default: TTL/5, at most 10 s]
    #[arg(
        long, value_name = "DURATION", value_parser = crate::connection::duration, env = "ELDEST_GRACE",
        hide_env_values = true, help_heading = "Session"
    )]
    grace: Option<Duration>,
}

/// Answers until it is told to end, or must.
pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    let mut seen = BTreeSet::new();
    if let Some(twice) = args.elections.iter().find(|name| !seen.insert(*name)) {
        let message = format!("ELECTION {twice:?} is given twice");
        return Err(fault(Code::Usage, message));
    }
    let mut stop = Stop::new()?;
    let listening = args.answering.listen("--listen", args.listen).await?;
    let session = session(global, &args).await?;
    let named = args.elections.iter().map(|name| session.election(name));
    let elections: Vec<Election> = named.collect::<Result<_, _>>()?;
    let shutdown = CancellationToken::new();
    let (mut node, mut leading) = (Node::new(), Vec::new());
    for election in &elections {
        if args.observe {
            node = node.observes(election);
        } else {
            let (standing, leads) = node.lead_on_behalf(election, shutdown.clone());
            node = standing;
            leading.push(leads);
        }
    }
    let node = if args.observe {
        node
    } else {
        node.locks(&session)
    };
    let (address, url) = (listening.address(), listening.url());
    let mut server = listening.serve(node);
    match global.output {
        Format::Text => output::say(format_args!("listening at {url}"))?,
        Format::Json => output::say_json(&Listening {
            listening: address.to_string(),
        })?,
    }
    let ended = stand(&mut leading, &shutdown, &mut server, &mut stop).await;
    let haste = async {
        if stop.in_a_hurry() {
            tokio::time::sleep(HASTE).await;
        } else {
            stop.asked().await;
        }
    };
    tokio::select! {
        closed = session.close() => if let Err(error) = closed {
            tracing::warn!(error = %error.report(), "etcd did not confirm the end of the session; its keys go with the lease");
        },
        () = haste => {}
    }
    // Last, so that whoever asks is told that we do not lead instead of nothing.
    if !stop.in_a_hurry() {
        server.stop().await;
    }
    ended.map(|()| Code::Done)
}

async fn session(global: &Global, args: &Args) -> Result<Session> {
    let connection = &global.connection;
    let mut options = connection
        .session_options(&args.member.id())?
        .announcement(args.member.announcement());
    if let Some(grace) = args.grace {
        options = options.grace(grace);
    }
    Ok(Session::connect(&connection.endpoints, options).await?)
}

/// Stands in each of them until we are told to end, or one cannot be stood in any more; then leaves them all.
async fn stand(
    leading: &mut [Leading],
    shutdown: &CancellationToken,
    server: &mut answering::Server,
    stop: &mut Stop,
) -> Result<()> {
    let ended = stand_until(leading, shutdown, server, stop).await;
    if stop.in_a_hurry() {
        // The keys go back without waiting for anybody.
        leading.iter().for_each(Leading::stop_at_once);
    }
    ended
}

async fn stand_until(
    leading: &mut [Leading],
    shutdown: &CancellationToken,
    server: &mut answering::Server,
    stop: &mut Stop,
) -> Result<()> {
    let each = leading.iter_mut().map(async |leading| {
        let stood = leading.await;
        shutdown.cancel();
        stood
    });
    let all = async {
        let (stood, ()) = tokio::join!(join_all(each), shutdown.cancelled());
        stood.into_iter().collect::<eldest::Result<()>>()
    };
    let mut all = std::pin::pin!(all);
    let broken = tokio::select! {
        stood = &mut all => return Ok(stood?),
        error = server.broken() => Err(error),
        () = stop.asked() => Ok(()),
    };
    shutdown.cancel();
    tokio::select! {
        stood = &mut all => stood?,
        // In a hurry.
        () = stop.asked() => {}
    }
    broken
}
