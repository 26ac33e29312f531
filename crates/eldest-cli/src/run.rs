//! Implements `eldest run`: campaigns as a candidate whose work is a program, and decides what follows when the program
//! has ended.

use std::net::SocketAddr;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use eldest::internal::{self, Pause};
use eldest::{BoxError, CancellationToken, Election, Leadership, Status};
use eldest_http::Node;
use tokio::sync::Mutex;

use crate::answering::{self, Places};
use crate::exit;
use crate::following;
use crate::global::Global;
use crate::health::{self, Check};
use crate::pairing;
use crate::partitions;
use crate::resource::Sharing;
use crate::serving::{self, Readiness};
use crate::supervise::{self, Outcome, Supervisor};
use crate::waiting;

/// Run a program only while this node leads
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Run a program only while this node leads.\n\n\
    The node waits in the election. When it leads, it starts the program, with the term's fencing token in \
    ELDEST_FENCING_TOKEN. When it loses the leadership, it ends the program before another node can start its \
    own, and waits again. When the program has ended, the node leaves the election and exits with the program's code \
    (see --restart).\n\n\
    With --partitions, the node runs one program for each partition that it owns, with the partition's number in \
    ELDEST_PARTITION.",
    after_help = "Examples:
  # Run a scheduler on one of several nodes
  eldest run billing/scheduler -- ./scheduler --verbose
  # Start it again after each end, and answer health checks of a load balancer
  eldest run billing/scheduler --restart --serve 127.0.0.1:8470 -- ./scheduler
  # Lead only while a local service is healthy
  eldest run billing/scheduler --health-url http://127.0.0.1:8080/healthz -- ./scheduler
  # Send requests to the leader only once its program has filled its cache
  eldest run billing/scheduler --serving-within 2m --serving-url http://127.0.0.1:8080/ready -- ./scheduler
  # Fill a cache while this node is the next in line, and let a planned hand-over wait for that
  eldest run billing/scheduler --warm-within 5m --prepare ./fill-cache -- ./scheduler
  # Roll out version 2.1: once it has led, no older version does
  eldest run billing/scheduler --app-version 2.1 -- ./scheduler
  # Take a floating address back, however the program ends, before another node takes it
  eldest run billing/address --after ./address-down -- ./address-up
  # Share 16 partitions with other nodes, and run a consumer for each of its own
  eldest run --partitions billing --count 16 --restart -- ./consumer
  # The same on a machine that takes twice as many of them
  eldest run --partitions billing --count 16 --capacity 2 --restart -- ./consumer
  # Fill a cache for each partition before it moves here, and let others do the same when this command is stopped
  eldest run --partitions billing --count 16 --warm-within 1m --prepare ./fill-cache --hand-over-within 2m -- ./consumer"
)]
pub(crate) struct Args {
    /// The name of the election
    #[arg(required_unless_present = "partitions")]
    election: Option<String>,

    #[command(flatten)]
    partitions: partitions::Args,

    #[command(flatten)]
    supervise: supervise::Args,

    /// After the program has ended on its own, join again at the end of the queue instead of exiting with its code; with
    /// --partitions, start the partition's program again
    #[arg(long, help_heading = "Program")]
    restart: bool,

    /// The command to run with /bin/sh while this node does not lead; it ends before CMD begins
    #[arg(long, value_name = "COMMAND", value_parser = health::command, help_heading = "Program")]
    follow_cmd: Option<String>,

    /// The command to run with /bin/sh while this node is the next in line; once it has succeeded, the node is warm. It ends
    /// before CMD begins. With --partitions, it runs for each partition that is about to move to this node
    #[arg(
        long,
        value_name = "COMMAND",
        value_parser = health::command,
        requires = "warm_within",
        help_heading = "Program"
    )]
    prepare: Option<String>,

    /// When this node leads and is ordered to hand over, lead on until the next node is warm, for that long at most; with
    /// --partitions, own a partition that is to move until its next owner is warm
    #[arg(
        long, value_name = "DURATION", value_parser = serving::warm_limit, requires = "prepare", help_heading = "Program"
    )]
    warm_within: Option<Duration>,

    /// The version of the program: this node does not lead once a node of a newer version has led. One to four numbers with
    /// dots between them
    #[arg(
        long,
        value_name = "VERSION",
        env = "ELDEST_APP_VERSION",
        hide_env_values = true,
        help_heading = "Program"
    )]
    app_version: Option<eldest::Version>,

    #[command(flatten)]
    health: health::Args,

    #[command(flatten)]
    serving: serving::Args,

    /// Answer over HTTP at this address whether this node leads, as `eldest serve` does
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "ELDEST_SERVE",
        hide_env_values = true,
        help_heading = "HTTP"
    )]
    serve: Option<SocketAddr>,

    #[command(flatten)]
    answering: answering::Args,
}

impl Args {
    /// Returns the options of the programs that partitions have too.
    fn work(&self) -> partitions::Work<'_> {
        partitions::Work {
            supervise: &self.supervise,
            restart: self.restart,
            prepare: self.prepare.as_deref(),
            warm_within: self.warm_within,
        }
    }
}

/// Joins, and rejoins as the options say, until the program has ended for good or a signal stops this command.
pub(crate) async fn run(global: &Global, args: Args) -> Result<ExitCode> {
    if args.serve.is_none() {
        args.answering.refused_without("--serve")?;
    }
    let Some(name) = &args.election else {
        return partitions::run(global, &args.partitions, args.work()).await;
    };
    let check = args.health.check()?;
    let readiness = args.serving.readiness()?;
    let listening = match args.serve {
        Some(at) => Some(args.answering.listen(Places::port("--serve", at)).await?),
        None => None,
    };
    let opened = Supervisor::open(
        &global.connection,
        &args.supervise,
        name,
        Sharing::Alone,
        None,
        readiness.as_ref().and_then(Readiness::variable),
    )
    .await?;
    let (session, supervisor) = opened;
    supervisor.challenge_both(
        &session,
        pairing::Programs::Of(name.clone(), Sharing::Alone),
    );
    let mut election = session.election(name)?;
    if let Some(readiness) = &readiness {
        election = election.serving_within(readiness.limit);
    }
    if let Some(limit) = args.warm_within {
        election = election.warm_within(limit);
    }
    if let Some(version) = args.app_version {
        election = election.require_version(version);
    }
    let mut server = listening.map(|listening| {
        tracing::info!(address = listening.place(), "listening for requests");
        listening.serve(Node::new().works_in(&election))
    });
    let conditions = (check.as_ref(), readiness.as_ref());
    let rounds = rounds(&args, &election, &supervisor, conditions);
    let done = while_asked(rounds, server.as_mut(), &supervisor.signals.stop);
    let queue = async || match election.status() {
        Status::Waiting { .. } => election.roster().await.ok(),
        _ => None,
    };
    let done = tokio::select! {
        done = done => done,
        never = waiting::report_rank(&session, (name, "leads"), queue) => never,
    };
    supervisor.close(&session).await;
    // The server stops last: until then, a caller that asks receives the answer that this node does not lead.
    if let Some(server) = server {
        server.stop().await;
    }
    done
}

/// Runs the rounds, and stops them if the HTTP server fails: no load balancer finds the program of a node that cannot
/// be asked whether it leads. The command then ends as after a signal, so that another node leads, but with an error,
/// so that the service manager restarts it.
async fn while_asked(
    rounds: impl Future<Output = Result<ExitCode>>,
    server: Option<&mut answering::Server>,
    stop: &CancellationToken,
) -> Result<ExitCode> {
    let mut rounds = pin!(rounds);
    let Some(server) = server else {
        return rounds.await;
    };
    tokio::select! {
        biased;
        done = &mut rounds => done,
        error = server.broken() => {
            tracing::error!(%error, "the HTTP server failed: stopping");
            stop.cancel();
            rounds.await.and(Err(error))
        }
    }
}

/// The conditions under which the node may lead, and serves.
type Conditions<'a> = (Option<&'a Check>, Option<&'a Readiness>);

/// Runs one candidacy after the other.
async fn rounds(
    args: &Args,
    election: &Election,
    supervisor: &Arc<Supervisor>,
    conditions: Conditions<'_>,
) -> Result<ExitCode> {
    let mut pause = Pause::default();
    let mut last = None;
    loop {
        let pause = match (
            run_candidacy(args, election, supervisor, conditions).await,
            last,
        ) {
            (Ok(Some(Outcome::Ended { exit, ran })), _) => {
                last = Some(exit);
                if !args.restart || supervisor.signals.stop.is_cancelled() {
                    return Ok(exit.code().into());
                }
                let pause = pause.after(ran);
                tracing::warn!(%exit, ?pause, "the program has ended; joining again");
                pause
            }
            (Ok(_), _) => return Ok(ExitCode::SUCCESS),
            // The node has been a candidate, so this refusal may pass.
            (Err(error), Some(_)) if error.downcast_ref().is_some_and(exit::may_pass) => {
                let pause = pause.after(Duration::ZERO);
                tracing::warn!(%error, ?pause, "the candidacy was refused; joining again");
                pause
            }
            (Err(error), _) => return Err(error),
        };
        tokio::select! {
            () = supervisor.signals.stop.cancelled() => {
                return Ok(last.map_or(ExitCode::SUCCESS, |exit| exit.code().into()));
            }
            () = tokio::time::sleep(pause) => {}
        }
        supervisor.prepare();
    }
}

/// Runs one candidacy, which lasts until a program has ended for good. Returns `None` if a signal stopped the command
/// before the program began.
async fn run_candidacy(
    args: &Args,
    election: &Election,
    supervisor: &Arc<Supervisor>,
    conditions: Conditions<'_>,
) -> Result<Option<Outcome>> {
    let shutdown = CancellationToken::new();
    let outcome = Mutex::new(None);
    let (check, readiness) = conditions;
    let work =
        async |leadership: Leadership| lead(&leadership, supervisor, readiness, &outcome).await;
    let spec = |command: &String| supervisor.spec_for(following::shell(command));
    let (follows, prepares) = (
        args.follow_cmd.as_ref().map(spec),
        args.prepare.as_ref().map(spec),
    );
    let mut runner = election.runner();
    if let Some(spec) = &follows {
        runner = runner.follow(|it| following::follow(it, supervisor, spec));
    }
    if let Some(spec) = &prepares {
        runner = runner.prepare(|it| following::prepare(it.stopped(), None, supervisor, spec));
    }
    if let Some(check) = check {
        let ask = || check.clone().ask(Arc::clone(&supervisor.child_registry));
        runner = runner.health_check(check.every, check.limit, ask);
    }
    let standing = runner.run(shutdown.clone(), work);
    // A running program is asked to end. Our place is kept until it has ended, because only then does its work return.
    let stopping = async {
        supervisor.signals.stop.cancelled().await;
        drop(outcome.lock().await);
        shutdown.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        stood = standing => {
            stood?;
        }
        () = stopping => {}
    }
    outcome.into_inner().transpose()
}

/// Does the work of a leader.
async fn lead(
    leadership: &Leadership,
    supervisor: &Arc<Supervisor>,
    readiness: Option<&Readiness>,
    outcome: &Mutex<Option<Result<Outcome>>>,
) -> Result<(), BoxError> {
    // The keeper enforces the end of the program; this task only waits for it, and for confirmations of etcd.
    internal::interruptible(&leadership.term());
    // The lock is held for as long as the program runs.
    let mut outcome = outcome.lock().await;
    let serve = async |group| match readiness {
        None => std::future::pending().await,
        Some(readiness) => {
            readiness.wait(group, &supervisor.child_registry).await;
            // If etcd refuses the announcement, the session tries again.
            let announced = async { drop(leadership.serving().await) };
            tokio::join!(announced, readiness.ignore_the_rest());
            std::future::pending().await
        }
    };
    let done = supervisor.run_beside(&leadership.term(), serve).await;
    let lost = matches!(done, Ok(Outcome::Lost));
    *outcome = Some(done);
    if lost {
        supervisor.prepare();
    }
    if lost && supervise::outlives_lock(&leadership.term()).await {
        // The next program needs a token of its own, so the node steps down. If etcd does not confirm that in time, the
        // session repeats it in the background, and the node joins after it.
        match leadership.step_down().await {
            Err(error) if !error.is_transient() => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}
