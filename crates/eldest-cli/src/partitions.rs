//! Implements `eldest run --partitions`: runs one program for each partition that this node owns.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use eldest::internal::Pause;
use eldest::{BoxError, CancellationToken, ComingPartition, Partition, Partitions};
use tokio::sync::RwLock;

use crate::contain::Exit;
use crate::following;
use crate::global::Global;
use crate::number;
use crate::pairing;
use crate::resource::Sharing;
use crate::serving;
use crate::supervise::{self, Outcome, Supervisor};

const HEADING: &str = "Partitions";

/// The options of shared partitions.
#[derive(Debug, clap::Args)]
#[group(id = "partitioned")]
pub(crate) struct Args {
    /// Instead of joining an election, share the partitions of this name with other nodes, and run one program for each
    /// partition that this node owns
    #[arg(
        long, value_name = "NAME", requires = "count", help_heading = HEADING,
        conflicts_with_all = [
            "election", "follow_cmd", "serve", "command", "url", "ca", "serving_within", "ready", "app_version"
        ]
    )]
    pub(crate) partitions: Option<String>,

    /// The number of partitions, the same on every node; 1 to 65536
    #[arg(
        long, value_name = "N", requires = "partitions", conflicts_with = "election", help_heading = HEADING,
        value_parser = number::within(1..=65536_u32)
    )]
    count: Option<u32>,

    /// This node's share in proportion to those of the others; 1 to 1000 [default: 1]
    #[arg(
        long, value_name = "C", requires = "partitions", conflicts_with = "election", help_heading = HEADING,
        value_parser = number::within(1..=1000_u32)
    )]
    capacity: Option<u32>,

    /// Keep this node's partitions for it while it is absent, for this time: until it returns, no other node takes them, so
    /// they have no owner; longer than --ttl, at most 24h
    #[arg(
        long, value_name = "DURATION", requires = "partitions", conflicts_with = "election", help_heading = HEADING,
        value_parser = crate::connection::duration, env = "ELDEST_KEEP_SHARE_FOR", hide_env_values = true
    )]
    keep_share_for: Option<Duration>,

    /// On SIGTERM or SIGINT, hand over this node's partitions before the programs end: each program runs until the partition moves,
    /// for this time at most; those that are left then have --grace. A second signal ends the hand-over
    #[arg(
        long, value_name = "DURATION", requires = "partitions", conflicts_with = "election", help_heading = HEADING,
        value_parser = serving::limit, env = "ELDEST_HAND_OVER_WITHIN", hide_env_values = true
    )]
    hand_over_within: Option<Duration>,
}

/// The options of the programs that those of an election have too.
pub(crate) struct Work<'a> {
    pub(crate) supervise: &'a supervise::Args,
    pub(crate) restart: bool,
    pub(crate) prepare: Option<&'a str>,
    pub(crate) warm_within: Option<Duration>,
}

/// Runs programs until one has ended for good, or a signal stops this command.
pub(crate) async fn run(global: &Global, args: &Args, work: Work<'_>) -> Result<ExitCode> {
    let name = args.partitions.as_deref().unwrap_or_default();
    let opened = Supervisor::open(
        &global.connection,
        work.supervise,
        name,
        Sharing::Alone,
        args.capacity,
        None,
    );
    let (session, supervisor) = opened.await?;
    // This supervisor's keeper belongs to no partition: each partition starts its own, with its number.
    supervisor.dismiss().await;
    let mut partitions = session.partitions(name, args.count.unwrap_or_default())?;
    if let Some(time) = args.keep_share_for {
        partitions = partitions.keep_share_for(time);
    }
    if let Some(limit) = work.warm_within {
        partitions = partitions.warm_within(limit);
    }
    supervisor.challenge_both(
        &session,
        pairing::Programs::OfPartitions(partitions.clone()),
    );
    let programs = Programs {
        partitions,
        supervisor: Arc::clone(&supervisor),
        restart: work.restart,
        prepare: work.prepare.map(str::to_owned),
        hand_over_within: args.hand_over_within,
        running: RwLock::default(),
        verdict: Mutex::default(),
    };
    let done = programs.share().await;
    supervisor.close(&session).await;
    done
}

/// The programs of all partitions that this node owns.
struct Programs {
    partitions: Partitions,
    supervisor: Arc<Supervisor>,
    restart: bool,
    /// The command that prepares this node for a partition.
    prepare: Option<String>,
    hand_over_within: Option<Duration>,
    /// Each running program holds a read lock.
    running: RwLock<()>,
    /// The result of the first program whose end stops the command.
    verdict: Mutex<Option<Result<Exit>>>,
}

impl Programs {
    /// Takes part in sharing the partitions until all programs have ended.
    async fn share(self) -> Result<ExitCode> {
        let shutdown = CancellationToken::new();
        let signals = &self.supervisor.signals;
        let mut runner = self.partitions.runner();
        let leave = self.hand_over_within.map(|_| signals.leave_first());
        if let Some(limit) = self.hand_over_within {
            runner = runner.hand_over_within(limit);
        }
        if let Some(command) = &self.prepare {
            runner = runner.prepare(|coming| self.prepare(coming, command));
        }
        let handing_over = async {
            match &leave {
                Some(leave) => leave.cancelled().await,
                None => std::future::pending().await,
            }
            shutdown.cancel();
            std::future::pending::<()>().await;
        };
        // The member keeps all its keys until the last program has ended.
        let stopping = async {
            signals.stop.cancelled().await;
            drop(self.running.write().await);
            // Without programs, there is nothing to hand over.
            if leave.is_none() {
                shutdown.cancel();
                std::future::pending::<()>().await;
            }
        };
        let work = async |partition: Partition| {
            self.work(&partition).await;
            Ok::<_, BoxError>(())
        };
        let ran = tokio::select! {
            ran = runner.run(shutdown.clone(), work) => ran,
            () = handing_over => Ok(None),
            () = stopping => Ok(None),
        };
        let verdict = self.verdict.into_inner();
        match verdict.unwrap_or_else(PoisonError::into_inner) {
            Some(exit) => Ok(exit?.code().into()),
            None => Ok(ran.map(|_| ExitCode::SUCCESS)?),
        }
    }

    /// Prepares this node for a partition that is about to be its own.
    async fn prepare(&self, coming: ComingPartition, command: &str) -> Result<(), BoxError> {
        let number = coming.number();
        let supervisor = self.supervisor.for_partition(&self.partitions, number)?;
        let spec = supervisor.spec_for(following::shell(command));
        following::prepare(coming.stopped(), Some(number), &supervisor, &spec).await
    }

    /// The work on one partition, which lasts as long as its term.
    async fn work(&self, partition: &Partition) {
        let lost = partition.lost();
        let running = tokio::select! {
            biased;
            () = lost.cancelled() => return,
            running = self.running.read() => running,
        };
        if let Some(verdict) = self.run(partition).await {
            let mut first = self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(verdict);
            self.supervisor.signals.stop.cancel();
        }
        drop(running);
        lost.cancelled().await;
    }

    /// Runs the partition's program during its term. Returns `None` if the term is over or the command stops.
    async fn run(&self, partition: &Partition) -> Option<Result<Exit>> {
        let (stop, lost) = (&self.supervisor.signals.stop, partition.lost());
        let number = partition.number();
        let supervisor = match self.supervisor.for_partition(&self.partitions, number) {
            Ok(supervisor) => supervisor,
            Err(error) => return Some(Err(error)),
        };
        let mut pause = Pause::default();
        loop {
            let (exit, ran) = match supervisor.run(&partition.term()).await {
                Err(error) => return Some(Err(error)),
                Ok(Outcome::Stopped) => return None,
                Ok(_) if lost.is_cancelled() || stop.is_cancelled() => return None,
                // If only the lock was lost while the term lasts, the program starts again when it can.
                Ok(Outcome::Lost) if supervise::outlives_lock(&partition.term()).await => continue,
                Ok(Outcome::Lost) => return None,
                Ok(Outcome::Ended { exit, ran }) => (exit, ran),
            };
            if !self.restart {
                tracing::warn!(partition = number, %exit, "the partition's program has ended: stopping");
                return Some(Ok(exit));
            }
            let pause = pause.after(ran);
            tracing::warn!(partition = number, %exit, ?pause, "the partition's program has ended; it starts again");
            tokio::select! {
                () = stop.cancelled() => return None,
                () = lost.cancelled() => return None,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}
