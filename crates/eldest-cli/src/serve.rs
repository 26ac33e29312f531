//! Implements `eldest serve`: leads elections for the program beside it, answers over HTTP, and stops answering last.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use eldest::internal::process::Process;
use eldest::{CancellationToken, Election, Session};
use eldest_http::contract::command::Listening;
use eldest_http::{Leading, Node};
use futures::future::join_all;

use crate::answering::Places;
use crate::exit::{Code, fault};
use crate::global::Global;
use crate::output::{self, Format};
use crate::stop::Stop;
use crate::{answering, guard, member};

/// How long a second signal lets etcd confirm that the keys are gone; otherwise they expire with the lease.
const HASTE: Duration = Duration::from_secs(1);

/// Where it listens unless it is told otherwise.
const USUAL: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8470));

/// Lead elections on behalf of another program, and answer its questions over HTTP
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Lead elections on behalf of another program, and answer its questions over HTTP.\n\n\
    The program asks GET /leader before it acts (with ?election= if there are several). The answer is 200 while this \
    node leads; the program may then act for `may_act_for_ms`, counted from before it sent the request. Otherwise the \
    answer is 503. GET / is a page for people, /openapi.json describes the other paths, /metrics is for Prometheus, and \
    /v1/locks offers locks to programs in any language.\n\n\
    On SIGTERM or SIGINT, the node stops leading, waits until no program may act any longer, leaves the elections, and \
    stops answering last. A second signal ends it at once. If it is killed, an agent (--guard) frees its place when no \
    program may act on its answers any longer.",
    after_help = "Examples:
  # Lead for a program on the same machine
  eldest serve billing/scheduler --announce address=10.0.0.1:8080
  # Lead for a process that runs already, and give up at once when it has ended
  eldest serve billing/scheduler --guard-pid 4711 --listen-unix /run/billing/eldest.sock
  # Show two elections to people and to Prometheus, without joining them
  eldest serve --observe billing/scheduler billing/reports --listen 0.0.0.0:8470 --http-host node-a"
)]
pub(crate) struct Args {
    /// The names of the elections
    #[arg(required = true, value_name = "ELECTION")]
    elections: Vec<String>,

    /// The address to listen at; port 0 takes any free port [default: 127.0.0.1:8470, or none with --listen-unix]
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "ELDEST_LISTEN",
        hide_env_values = true,
        help_heading = "HTTP"
    )]
    listen: Option<SocketAddr>,

    /// The Unix socket to listen at, for programs on this machine, which can bind locks and elections to their process there
    #[arg(
        long,
        value_name = "PATH",
        env = "ELDEST_LISTEN_UNIX",
        hide_env_values = true,
        help_heading = "HTTP"
    )]
    listen_unix: Option<PathBuf>,

    /// The permissions of the file of --listen-unix, in octal: who may write to the file may connect [default: 600]
    #[arg(
        long, value_name = "MODE", value_parser = crate::socket::mode, env = "ELDEST_LISTEN_UNIX_MODE",
        hide_env_values = true, help_heading = "HTTP", requires = "listen_unix"
    )]
    listen_unix_mode: Option<u32>,

    #[command(flatten)]
    answering: answering::Args,

    /// Only observe: join no election and offer no locks
    #[arg(long)]
    observe: bool,

    #[command(flatten)]
    member: member::Args,

    #[command(flatten)]
    guard: guard::Args,

    /// How long a program may act after the answer that this node leads [default: TTL/5, at most 10 s]
    #[arg(
        long, value_name = "DURATION", value_parser = crate::connection::duration, env = "ELDEST_GRACE",
        hide_env_values = true, help_heading = "Session"
    )]
    grace: Option<Duration>,

    /// The process of the program on whose behalf this node leads: when the program has ended, the node gives up its
    /// elections at once and exits with 69
    #[arg(long, value_name = "PID", conflicts_with = "observe")]
    guard_pid: Option<u32>,
}

/// Answers until it is told to stop, or cannot continue.
pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    let mut seen = BTreeSet::new();
    if let Some(twice) = args.elections.iter().find(|name| !seen.insert(*name)) {
        let message = format!("ELECTION {twice:?} is given twice");
        return Err(fault(Code::Usage, message));
    }
    let mut stop = Stop::new()?;
    let program = program(args.guard_pid)?;
    let listening = args.answering.listen(args.places()).await?;
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
    if !args.observe {
        node = node.locks(&session);
    }
    if let Some(program) = &program {
        node = node.only_for(program);
    }
    let (lines, objects) = (listening.lines(), listening.objects());
    let mut server = listening.serve(node);
    announce(global.output, &lines, &objects)?;
    let program = program.as_ref();
    let ended = stand(&mut leading, &shutdown, &mut server, &mut stop, program).await;
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
    ended
}

/// Says where the node listens.
fn announce(format: Format, lines: &[String], objects: &[Listening]) -> Result<()> {
    match format {
        Format::Text => {
            for line in lines {
                output::say(format_args!("{line}"))?;
            }
        }
        Format::Json => {
            for object in objects {
                output::say_json(object)?;
            }
        }
    }
    Ok(())
}

impl Args {
    fn places(&self) -> Places {
        let usual = || self.listen_unix.is_none().then_some(USUAL);
        let port = self.listen.or_else(usual);
        let mode = self.listen_unix_mode.unwrap_or(0o600);
        Places {
            port: port.map(|at| ("--listen", at)),
            socket: self.listen_unix.clone().map(|path| (path, mode)),
        }
    }
}

/// Opens the process of the program.
fn program(number: Option<u32>) -> Result<Option<Process>> {
    let opened = number.map(Process::open).transpose();
    opened.map_err(|reason| fault(Code::Usage, format!("--guard-pid: {reason}")))
}

async fn session(global: &Global, args: &Args) -> Result<Session> {
    let connection = &global.connection;
    let mut options = connection
        .session_options(&args.member.id())?
        .announcement(args.member.announcement(connection));
    if let Some(grace) = args.grace {
        options = options.grace(grace);
    }
    // Without a place in a queue, nothing is freed.
    if let Some(guard) = args.guard.guard().filter(|_| !args.observe) {
        options = options.guard(guard);
    }
    Ok(Session::connect(connection.node_endpoints()?, options).await?)
}

/// Campaigns in each of them until a signal, until one of them fails, or until the program has ended; then leaves all of
/// them.
async fn stand(
    leading: &mut [Leading],
    shutdown: &CancellationToken,
    server: &mut answering::Server,
    stop: &mut Stop,
    program: Option<&Process>,
) -> Result<Code> {
    let ended = stand_until(leading, shutdown, server, stop, program).await;
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
    program: Option<&Process>,
) -> Result<Code> {
    let at_once = CancellationToken::new();
    let each = leading.iter_mut().map(async |leading| {
        let stood = tokio::select! {
            stood = &mut *leading => stood,
            () = at_once.cancelled() => {
                leading.stop_at_once();
                leading.await
            }
        };
        shutdown.cancel();
        stood
    });
    let all = async {
        let (stood, ()) = tokio::join!(join_all(each), shutdown.cancelled());
        stood.into_iter().collect::<eldest::Result<()>>()
    };
    let mut all = std::pin::pin!(all);
    let mut dead = std::pin::pin!(ended(program));
    let mut broken = tokio::select! {
        biased;
        () = &mut dead => Ok(Code::ProgramEnded),
        stood = &mut all => return Ok(stood.map(|()| Code::Done)?),
        error = server.broken() => Err(error),
        () = stop.asked() => Ok(Code::Done),
    };
    shutdown.cancel();
    if matches!(broken, Ok(Code::ProgramEnded)) {
        let pid = program.map(Process::number);
        tracing::warn!(pid, "the program of --guard-pid has ended");
    } else {
        broken = tokio::select! {
            stood = &mut all => return stood.map_err(Into::into).and(broken),
            // In a hurry.
            () = stop.asked() => return broken,
            // It was to have its promised time, and needs it no longer.
            () = &mut dead => broken,
        };
    }
    at_once.cancel();
    tokio::select! {
        stood = &mut all => stood?,
        () = stop.asked() => {}
    }
    broken
}

/// Completes when the program has ended; never, without one.
async fn ended(program: Option<&Process>) {
    match program {
        Some(program) => program.ended().await,
        None => std::future::pending().await,
    }
}
