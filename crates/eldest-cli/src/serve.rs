//! Implements `eldest serve`: leads elections for the program beside it, answers over HTTP, and stops answering last.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[cfg(unix)]
use anyhow::Context;
use anyhow::Result;
use eldest::internal::process::Process;
use eldest::{Announcement, CancellationToken, Election, Session, internal};
use eldest_http::contract::command::Listening;
use eldest_http::{Health, Leading, Node};
use futures::future::join_all;

use crate::answering::Places;
#[cfg(unix)]
use crate::contain::ChildRegistry;
use crate::exit::{Code, fault};
use crate::forwarding::Port;
use crate::global::Global;
#[cfg(unix)]
use crate::health;
use crate::output::{self, Format};
use crate::stop::Stop;
use crate::{answering, forwarding, guard, member, pod};

/// How long a second signal gives etcd to confirm that the keys are deleted; otherwise they expire with the lease.
const HASTE: Duration = Duration::from_secs(1);

/// The address at which it listens by default.
const USUAL: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8470));

/// Lead elections on behalf of another program, and answer its questions over HTTP
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Lead elections on behalf of another program, and answer its questions over HTTP.\n\n\
    The program asks GET /leader before it acts (with ?election= if there are several). The answer is 200 while this \
    node leads, and with --serving-within also serves; the program may then act for `may_act_for_ms`, counted from before it sent the request. Otherwise the \
    answer is 503. GET / is a page for people, /openapi.json describes the other paths, /metrics is for Prometheus, \
    /v1/locks offers locks to programs in any language, /v1/partitions shows who owns which partition (--partitions) and for \
    which of them the program may act (--own), and /v1/evacuations takes orders to evacuate a data centre.\n\n\
    On SIGTERM, SIGINT or SIGHUP, the node stops leading, waits until no program may act any longer, leaves the \
    elections, and stops answering last. After a second signal, it waits for etcd only, for at most one second. If it is \
    killed, an agent (--guard) frees its place when no program may act on its answers any longer.",
    after_help = "Examples:
  # Lead for a program on the same machine
  eldest serve billing/scheduler --announce address=10.0.0.1:8080
  # Lead for a process that runs already, and give up at once when it has ended
  eldest serve billing/scheduler --guard-pid 4711 --listen-unix /run/billing/eldest.sock
  # Pass requests on to the program beside the leader, whatever node they reach
  eldest serve billing/scheduler --forward http://127.0.0.1:8080 --forward-listen 10.0.0.1:8480
  # Give up the lead when the program does not answer, or sends no heartbeat for 30 s
  eldest serve billing/scheduler --health-url http://127.0.0.1:8080/healthz --stall-timeout 30s
  # Share 64 partitions with other nodes on behalf of a program, which asks GET /v1/partitions/billing/own before it acts
  eldest serve --own billing=64 --announce address=10.0.0.1:8080
  # Show two elections to people and to Prometheus, without joining them
  eldest serve --observe billing/scheduler billing/reports --listen 0.0.0.0:8470 --http-host node-a"
)]
pub(crate) struct Args {
    /// The names of the elections
    #[arg(required_unless_present = "own", value_name = "ELECTION")]
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

    /// The permissions of the file of --listen-unix, in octal: every user who may write to the file may connect [default: 600]
    #[arg(
        long, value_name = "MODE", value_parser = crate::socket::mode, env = "ELDEST_LISTEN_UNIX_MODE",
        hide_env_values = true, help_heading = "HTTP", requires = "listen_unix"
    )]
    listen_unix_mode: Option<u32>,

    #[command(flatten)]
    answering: answering::Args,

    #[command(flatten)]
    forwarding: forwarding::Args,

    /// Show the owners of these partitions too, where COUNT is the number of partitions of that name; separated by commas
    #[arg(
        long, value_name = "NAME=COUNT,...", value_parser = partitions, value_delimiter = ',', env = "ELDEST_PARTITIONS",
        hide_env_values = true, help_heading = "HTTP"
    )]
    partitions: Vec<(String, u32)>,

    /// Share these partitions with other nodes on behalf of the program; separated by commas
    #[arg(
        long, value_name = "NAME=COUNT,...", value_parser = partitions, value_delimiter = ',', env = "ELDEST_OWN",
        hide_env_values = true, conflicts_with = "observe"
    )]
    own: Vec<(String, u32)>,

    /// Keep this node's partitions for it while it is absent, for this time: until it returns, no other node takes them, so
    /// they have no owner; longer than --ttl, at most 24h
    #[arg(
        long, value_name = "DURATION", requires = "own", value_parser = crate::connection::duration,
        env = "ELDEST_KEEP_SHARE_FOR", hide_env_values = true
    )]
    keep_share_for: Option<Duration>,

    /// Offer only locks whose names begin with one of these; separated by commas [default: all names that no election has]
    #[arg(
        long,
        value_name = "PREFIX,...",
        value_delimiter = ',',
        env = "ELDEST_LOCKS",
        hide_env_values = true,
        conflicts_with = "observe",
        help_heading = "HTTP"
    )]
    locks: Vec<String>,

    /// Only observe: join no election, offer no locks and take no orders
    #[arg(long)]
    observe: bool,

    #[command(flatten)]
    member: member::Args,

    #[command(flatten)]
    pod: pod::Args,

    #[command(flatten)]
    guard: guard::Args,

    #[cfg(unix)]
    #[command(flatten)]
    health: health::Args,

    /// Lead only while the program sends POST /v1/elections/{name}/heartbeat (for --own: POST
    /// /v1/partitions/{name}/heartbeat), one within each such time
    #[arg(
        long, value_name = "DURATION", value_parser = crate::connection::duration, conflicts_with = "observe",
        help_heading = "Health"
    )]
    stall_timeout: Option<Duration>,

    /// Count as a leader that serves only once the program sends POST /v1/elections/{name}/serving; if it does not within
    /// this time, the node joins again at the end of the queue
    #[arg(
        long, value_name = "DURATION", value_parser = crate::serving::limit, conflicts_with = "observe",
        requires = "elections", help_heading = "Health"
    )]
    serving_within: Option<Duration>,

    /// Announce that this node is warm once the program sends POST /v1/elections/{name}/warm while the node waits; a leader
    /// that is ordered to hand over leads on until the next node is warm, for that long at most
    #[arg(
        long, value_name = "DURATION", value_parser = crate::serving::warm_limit, conflicts_with = "observe",
        requires = "elections", help_heading = "Health"
    )]
    warm_within: Option<Duration>,

    /// The version of the program: this node does not lead once a node of a newer version has led. One to four numbers with
    /// dots between them
    #[arg(
        long,
        value_name = "VERSION",
        env = "ELDEST_APP_VERSION",
        hide_env_values = true,
        conflicts_with = "observe",
        help_heading = "Health"
    )]
    app_version: Option<eldest::Version>,

    /// How long a program may act, counted from before it asked whether this node leads [default: TTL/5, at most 10 s; with
    /// --challenges, a tenth of that time]
    #[arg(
        long, value_name = "DURATION", value_parser = crate::connection::duration, env = "ELDEST_GRACE",
        hide_env_values = true, help_heading = "Session"
    )]
    grace: Option<Duration>,

    /// The process of the program on whose behalf this node leads: it alone may act, and asks over --listen-unix; when it has
    /// ended, the node gives up its elections at once and exits with 69
    #[arg(long, value_name = "PID", value_parser = crate::number::within(0..=u32::MAX), conflicts_with = "observe")]
    guard_pid: Option<u32>,
}

/// Answers requests until a signal stops the node or it cannot continue.
pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    args.check_names()?;
    args.check_version()?;
    let mut stop = Stop::new()?;
    let program = args.program()?;
    let health = args.health()?;
    let listening = args.answering.listen(args.places()).await?;
    let announced = args.member.announcement(&global.connection);
    let (port, announced) = args.forwarding.listen(&args.elections, announced).await?;
    let (label, announced) = args.pod.label(&args.elections, announced)?;
    let session = session(global, &args, announced).await?;
    let elections = args.elections(&session)?;
    let shutdown = CancellationToken::new();
    let (node, mut leading) = if args.observe {
        let node = elections.iter().fold(Node::new(), Node::observes);
        (node, Vec::new())
    } else {
        let (node, leading) = leads(&elections, &health, &shutdown);
        let node = args.offers_locks(node, &session);
        (node.evacuations(&session), leading)
    };
    let node = args.observes_partitions(node, &session)?;
    let mut node = args.owns(node, &session, (&health, &shutdown), &mut leading)?;
    if let Some(program) = &program {
        node = node.only_for(program);
    }
    let said = said(&listening, port.as_ref());
    let passing = forwarding::serve(port, &elections).await?;
    let mut server = listening.serve(node);
    announce(global.output, &said.0, &said.1)?;
    let label = label.map(|label| label.keep(elections[0].clone()));
    let program = program.as_deref();
    let ended = campaign(&mut leading, &shutdown, &mut server, &mut stop, program).await;
    let haste = async {
        if stop.in_a_hurry() {
            tokio::time::sleep(HASTE).await;
        } else {
            stop.asked().await;
        }
    };
    let unlabelled = async {
        if let Some(label) = label {
            label.stop().await;
        }
    };
    let closed = async { tokio::join!(session.close(), unlabelled).0 };
    tokio::select! {
        closed = closed => if let Err(error) = closed {
            tracing::warn!(error = %error.report(), "etcd did not confirm the end of the session; its keys expire with the lease");
        },
        () = haste => {}
    }
    // The server stops last, so that callers receive the answer that this node does not lead, instead of none.
    if !stop.in_a_hurry() {
        forwarding::stop(passing).await;
        server.stop().await;
    }
    ended
}

/// Returns a name that is given twice.
fn twice<'a>(names: impl IntoIterator<Item = &'a String>) -> Option<&'a String> {
    let mut seen = BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

/// Campaigns in these elections on behalf of the program.
fn leads(
    elections: &[Election],
    health: &Health,
    shutdown: &CancellationToken,
) -> (Node, Vec<Leading>) {
    let mut leading = Vec::new();
    let node = elections.iter().fold(Node::new(), |node, election| {
        let (health, shutdown) = (health.clone(), shutdown.clone());
        let (node, leads) = node.lead_on_behalf_while_healthy(election, health, shutdown);
        leading.push(leads);
        node
    });
    (node, leading)
}

/// Reads `NAME=COUNT`. A name may contain `=`.
fn partitions(text: &str) -> Result<(String, u32), String> {
    let pair = text.rsplit_once('=');
    let pair = pair.and_then(|(name, count)| Some((name.to_owned(), internal::number(count)?)));
    pair.ok_or_else(|| "write it as NAME=COUNT, for example billing=64".to_owned())
}

/// Returns the places where the node listens, as lines and as objects.
fn said(listening: &answering::Listening, port: Option<&Port>) -> (Vec<String>, Vec<Listening>) {
    let (mut lines, mut objects) = (listening.lines(), listening.objects());
    lines.extend(port.map(Port::line));
    objects.extend(port.map(Port::object));
    (lines, objects)
}

/// Prints where the node listens.
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
    /// Refuses a name that is given twice.
    fn check_names(&self) -> Result<()> {
        if let Some(twice) = twice(&self.elections) {
            let message = format!("ELECTION {twice:?} is given twice");
            return Err(fault(Code::Usage, message));
        }
        for (option, given) in [("--partitions", &self.partitions), ("--own", &self.own)] {
            if let Some(twice) = twice(given.iter().map(|(name, _)| name)) {
                let message = format!("{option} names {twice:?} twice");
                return Err(fault(Code::Usage, message));
            }
        }
        Ok(())
    }

    /// Refuses a version without an election, because partitions have no versions. The version may come from a variable,
    /// which the message must name.
    fn check_version(&self) -> Result<()> {
        match self.app_version {
            Some(version) if self.elections.is_empty() => {
                let message = format!(
                    "--app-version or ELDEST_APP_VERSION is {version}, but no ELECTION is given: partitions have no versions"
                );
                Err(fault(Code::Usage, message))
            }
            _ => Ok(()),
        }
    }

    fn elections(&self, session: &Session) -> Result<Vec<Election>> {
        let named = self.elections.iter().map(|name| {
            let mut election = session.election(name)?;
            if let Some(limit) = self.serving_within {
                election = election.serving_within(limit);
            }
            if let Some(limit) = self.warm_within {
                election = election.warm_within(limit);
            }
            if let Some(version) = self.app_version {
                election = election.require_version(version);
            }
            Ok(election)
        });
        named.collect()
    }

    fn offers_locks(&self, node: Node, session: &Session) -> Node {
        let node = node.locks(session);
        match &self.locks[..] {
            [] => node,
            prefixes => node.lock_names(prefixes),
        }
    }

    fn observes_partitions(&self, mut node: Node, session: &Session) -> Result<Node> {
        for (name, count) in &self.partitions {
            node = node.observes_partitions(&session.partitions(name, *count)?);
        }
        Ok(node)
    }

    /// Shares partitions on behalf of the program.
    fn owns(
        &self,
        mut node: Node,
        session: &Session,
        (health, shutdown): (&Health, &CancellationToken),
        leading: &mut Vec<Leading>,
    ) -> Result<Node> {
        for (name, count) in &self.own {
            let mut partitions = session.partitions(name, *count)?;
            if let Some(time) = self.keep_share_for {
                partitions = partitions.keep_share_for(time);
                // The node must not say that it listens, and then end.
                internal::check_keep_share_for(&partitions)?;
            }
            let (health, shutdown) = (health.clone(), shutdown.clone());
            let (shares, owns) = node.own_on_behalf_while_healthy(&partitions, health, shutdown);
            leading.push(owns);
            node = shares;
        }
        Ok(node)
    }

    /// Returns the conditions under which the node leads.
    fn health(&self) -> Result<Health> {
        let mut health = Health::new();
        if let Some(timeout) = self.stall_timeout {
            health = health.stall_timeout(timeout);
        }
        #[cfg(unix)]
        if let Some(check) = self.health.check()? {
            if self.observe {
                let message =
                    "a health check cannot be used with --observe: this node leads nothing";
                return Err(fault(Code::Usage, message));
            }
            let child_registry =
                ChildRegistry::found().context("this process cannot find its child processes")?;
            let (every, limit) = (check.every, check.limit);
            let ask = move || check.clone().ask(Arc::clone(&child_registry));
            health = health.check(every, limit, ask);
        }
        Ok(health)
    }

    /// Opens the process of the program.
    fn program(&self) -> Result<Option<Arc<Process>>> {
        let opened = self.guard_pid.map(Process::open).transpose();
        let program =
            opened.map_err(|reason| fault(Code::Usage, format!("--guard-pid: {reason}")))?;
        if let (Some(program), None) = (&program, &self.listen_unix) {
            tracing::warn!(
                pid = program.number(),
                "the program of --guard-pid is promised no time: it must ask over --listen-unix, where the node sees who asks"
            );
        }
        Ok(program.map(Arc::new))
    }

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

async fn session(global: &Global, args: &Args, announced: Announcement) -> Result<Session> {
    let connection = &global.connection;
    let id = args.member.id();
    let options = if args.observe {
        connection.session_options(&id)
    } else {
        connection.node_options(&id)
    };
    let mut options = options?.announcement(announced);
    if let Some(grace) = args.grace {
        options = options.grace(grace);
    }
    // A node that only observes has no place in a queue that a guard could free.
    if let Some(guard) = args.guard.guard().filter(|_| !args.observe) {
        options = options.guard(guard);
    }
    Ok(Session::connect(connection.node_endpoints()?, options).await?)
}

/// Campaigns in each election until a signal, until one of them fails, or until the program has ended; then leaves all
/// of them.
async fn campaign(
    leading: &mut [Leading],
    shutdown: &CancellationToken,
    server: &mut answering::Server,
    stop: &mut Stop,
    program: Option<&Process>,
) -> Result<Code> {
    let ended = campaign_until(leading, shutdown, server, stop, program).await;
    if stop.in_a_hurry() {
        // The keys are deleted without waiting for programs that may still act.
        leading.iter().for_each(Leading::stop_at_once);
    }
    ended
}

async fn campaign_until(
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
            // A second signal came.
            () = stop.asked() => return broken,
            // The program has ended and no longer needs its promised time.
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

/// Completes when the program has ended; without a program it never completes.
async fn ended(program: Option<&Process>) {
    match program {
        Some(program) => program.ended().await,
        None => std::future::pending().await,
    }
}
