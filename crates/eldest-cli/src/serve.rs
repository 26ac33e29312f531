//! Implements `eldest serve`: leads elections for the program beside it, answers over HTTP, and stops answering last.

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

/// How long a second signal lets etcd confirm that the keys are gone; otherwise they expire with the lease.
const HASTE: Duration = Duration::from_secs(1);

/// Lead elections on behalf of another program, and answer its questions over HTTP
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Lead elections on behalf of another program, and answer its questions over HTTP.\n\n\
    The program asks GET /leader before it acts (with ?election= if there are several). The answer is 200 while this \
    node leads; the program may then act for `may_act_for_ms`, counted from before it sent the request. Otherwise the \
    answer is 503. GET / is a page for people, /openapi.json describes the other paths, /metrics is for Prometheus, and \
    /v1/locks offers locks to programs in any language.\n\n\
    On SIGTERM or SIGINT, the node stops leading, waits until no program may act any longer, leaves the elections, and \
    stops answering last. A second signal ends it at once.",
    after_help = "Examples:
  # Lead for a program on the same machine
  eldest serve billing/scheduler --announce address=10.0.0.1:8080
  # Show two elections to people and to Prometheus, without joining them
  eldest serve --observe billing/scheduler billing/reports --listen 0.0.0.0:8470 --http-host node-a"
)]
pub(crate) struct Args {
    /// The names of the elections
    #[arg(required = true, value_name = "ELECTION")]
    elections: Vec<String>,

    /// The address to listen at; port 0 takes any free port
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

    /// Only observe: join no election and offer no locks
    #[arg(long)]
    observe: bool,

    #[command(flatten)]
    member: member::Args,

    /// How long a program may act after the answer that this node leads [default: TTL/5, at most 10 s]
    #[arg(
        long, value_name = "DURATION", value_parser = crate::connection::duration, env = "ELDEST_GRACE",
        hide_env_values = true, help_heading = "Session"
    )]
    grace: Option<Duration>,
}

/// Answers until it is told to stop, or cannot continue.
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
            tracing::warn!(error = %error.report(), "etcd did not confirm the end of the session; its keys expire with the lease");
        },
        () = haste => {}
    }
    // Last, so that a request is answered that this node does not lead, instead of not at all.
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

/// Campaigns in each of them until a signal, or until one of them fails; then leaves all of them.
async fn stand(
    leading: &mut [Leading],
    shutdown: &CancellationToken,
    server: &mut answering::Server,
    stop: &mut Stop,
) -> Result<()> {
    let ended = stand_until(leading, shutdown, server, stop).await;
    if stop.in_a_hurry() {
        // The keys are released without waiting for programs that may act.
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
