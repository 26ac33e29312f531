//! Sets up etcd and the nodes for the script, and removes all of it at the end, even after an interrupt.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use eldest::{Observer, Session, SessionOptions};
use eldest_testing::Etcd;
use eldest_testing::history::{Recorder, Report, Rules, TruthRecorder, check};
use etcd_client::{Client, DeleteOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use crate::args::{ELECTION, Options, Setup, TTL};
use crate::fleet::Fleet;
use crate::model::News;
use crate::script;
use crate::table::{Row, summary};
use crate::view::{View, out};
use crate::world::World;

/// TTL in seconds of the key for fenced writes; longer than the demo takes.
const WRITES_TTL: i64 = 120;
/// How long to wait for etcd when setting up and cleaning up.
const PATIENCE: Duration = Duration::from_secs(5);
/// Elections in a complete run: join, hand-over, kill, freeze.
const ELECTIONS: usize = 4;
/// Leaders that are killed or frozen in a complete run.
const HITS: usize = 2;

pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let mut interrupted = pin!(interrupted()?);
    let recorder = Recorder::boottime();
    let mut view = View::new(options.plain, recorder.now());
    let stage = tokio::select! {
        biased;
        () = &mut interrupted => return Ok(ExitCode::from(130)),
        ready = Stage::new(options.endpoints, &recorder, &mut view) => ready?,
    };
    let Stage {
        etcd,
        setup,
        client,
        ttl,
        session,
        truth,
        news,
        inbox,
    } = stage;
    let fleet = Fleet::new(setup.clone(), news);
    let nodes = (fleet, inbox);
    let (watch, of_world) = (recorder.clone(), client.clone());
    let mut world = World::new(watch, of_world, setup.clone(), ttl, nodes, view);

    let mut rows = Vec::new();
    let whole = tokio::select! {
        biased;
        () = &mut interrupted => false,
        () = script::play(&mut world, &mut rows) => true,
    };
    let now = world.now();
    let World {
        fleet,
        model,
        mut view,
        ..
    } = world;
    view.finish(&model, now);
    if !whole {
        out("\ninterrupted: the nodes are asked to leave\n");
    }
    fleet.end().await;
    let code = if whole {
        truth.stop().await;
        judge(&recorder, ttl, rows)
    } else {
        drop(truth);
        ExitCode::from(130)
    };
    let _ = timeout(PATIENCE, session.close()).await;
    let cleaned = timeout(PATIENCE, clean_up(&client, &setup)).await;
    if let (None, Err(_) | Ok(Err(_))) = (&etcd, &cleaned) {
        let namespace = &setup.namespace;
        out(&format!(
            "etcd did not answer in time: keys below {namespace}/ go with their leases, within {WRITES_TTL} s\n"
        ));
    }
    Ok(code)
}

/// The servers, nodes and clients that the script needs before it begins.
struct Stage {
    /// The own etcd, unless endpoints were given.
    etcd: Option<Etcd>,
    setup: Setup,
    client: Client,
    ttl: Duration,
    session: Session,
    truth: TruthRecorder,
    news: UnboundedSender<News>,
    inbox: tokio::sync::mpsc::UnboundedReceiver<News>,
}

impl Stage {
    async fn new(
        endpoints: Option<Vec<String>>,
        recorder: &Recorder,
        view: &mut View,
    ) -> Result<Self> {
        let (etcd, endpoints) = if let Some(endpoints) = endpoints {
            (None, endpoints)
        } else {
            view.title("eldest demo: starting an etcd in a temporary folder".to_owned());
            let etcd = Etcd::start().await.map_err(|error| anyhow!(error))?;
            let endpoints = vec![etcd.endpoint()];
            (Some(etcd), endpoints)
        };
        let random = RandomState::new().build_hasher().finish();
        let namespace = format!("eldest-demo-{}-{:08x}", std::process::id(), random as u32);
        // The session only observes, so it has no lease.
        let observer = SessionOptions::new("observer").namespace(&namespace);
        let session = Session::connect(&endpoints, observer)
            .await
            .context("connecting to etcd")?;
        let client = Client::connect(&endpoints, None).await?;
        let version = timeout(PATIENCE, client.maintenance_client().status()).await??;
        let ttl = granted(&client).await?;
        let lease = timeout(PATIENCE, client.lease_client().grant(WRITES_TTL, None)).await??;
        view.title(format!(
            "eldest demo: three nodes, one leader (etcd {} at {}, lease TTL {} s)",
            version.version(),
            endpoints.join(", "),
            ttl.as_secs()
        ));
        let election = session.election(ELECTION)?;
        let prefix = election.prefix().as_bytes().to_vec();
        let truth = TruthRecorder::with_client(client.clone(), recorder.clone(), ELECTION, prefix);
        let truth = timeout(PATIENCE, truth).await??;
        let (news, inbox) = unbounded_channel();
        tokio::spawn(report(election.observe().await?, news.clone()));
        let setup = Setup {
            name: String::new(),
            namespace,
            lease: lease.id(),
            endpoints,
        };
        Ok(Self {
            etcd,
            setup,
            client,
            ttl,
            session,
            truth,
            news,
            inbox,
        })
    }
}

/// Passes on the observer's changes.
async fn report(mut observer: Observer, news: UnboundedSender<News>) {
    while let Some(roster) = observer.next().await {
        let seen = match roster {
            Ok(roster) => News::Roster(roster),
            Err(error) => News::Blind(error.to_string()),
        };
        if news.send(seen).is_err() {
            return;
        }
    }
}

/// Returns the TTL that etcd grants for [`TTL`], because etcd has a lower bound.
async fn granted(client: &Client) -> Result<Duration> {
    let mut leases = client.lease_client();
    let asked = i64::try_from(TTL.as_secs())?;
    let lease = timeout(PATIENCE, leases.grant(asked, None)).await??;
    timeout(PATIENCE, leases.revoke(lease.id())).await??;
    Ok(Duration::from_secs(lease.ttl().unsigned_abs()))
}

async fn clean_up(client: &Client, setup: &Setup) -> Result<()> {
    let below = format!("{}/", setup.namespace);
    let all = DeleteOptions::new().with_prefix();
    client.kv_client().delete(below, Some(all)).await?;
    client.lease_client().revoke(setup.lease).await?;
    Ok(())
}

/// Checks the records and prints the summary.
fn judge(recorder: &Recorder, ttl: Duration, mut rows: Vec<Row>) -> ExitCode {
    let complete = rows.iter().all(|row| row.outcome.is_ok());
    // The watcher shares two busy cores with all other processes.
    let rules = Rules::new(ttl).observer_lag(Duration::from_secs(1));
    match recorder.history() {
        Ok(history) => {
            let report = check(&history, &rules);
            let row = verdict(&report, complete);
            if !report.is_ok() {
                out(&format!("\n{report}"));
            }
            out(&format!("\n{}\n", explained(&report)));
            rows.push(row);
        }
        Err(error) => rows.push(Row {
            step: "7 history".to_owned(),
            expected: "no violation".to_owned(),
            outcome: Err(error.to_string()),
        }),
    }
    out(&format!("\n{}\n", summary(&rows)));
    let mut code = ExitCode::SUCCESS;
    for row in &rows {
        if let Err(why) = &row.outcome {
            out(&format!("FAILED: {}: {why}\n", row.step));
            code = ExitCode::FAILURE;
        }
    }
    if code == ExitCode::SUCCESS {
        out("All that was promised was kept.\n");
    }
    code
}

/// Returns the last row: whether the history keeps the promises, and has enough events to prove something.
fn verdict(report: &Report, complete: bool) -> Row {
    let counts = &report.counts;
    let enough = !complete
        || counts.elections >= ELECTIONS
            && counts.faults_on_leader >= HITS
            && counts.elections_checked_for_seniority >= ELECTIONS
            && counts.writes_admitted > 0
            && counts.writes_refused > 0;
    let outcome = if !report.is_ok() {
        Err(format!("{} violations, see above", report.violations.len()))
    } else if enough {
        Ok(format!("none in {} elections", counts.elections))
    } else {
        Err("too little was recorded to tell".to_owned())
    };
    Row {
        step: "7 history".to_owned(),
        expected: "no violation".to_owned(),
        outcome,
    }
}

fn explained(report: &Report) -> String {
    let counts = &report.counts;
    format!(
        "History: {} elections and {} checks by the nodes, compared with etcd's own record of {} of the elections.\n\
         Never two leaders at once (I1), growing tokens (I2), no stale write (I3), the eldest leads (I4),\n\
         no lasting vacancy (I5): {} violations; {} writes accepted, {} refused, {} unanswered.",
        counts.elections,
        counts.samples,
        counts.elections_checked_for_seniority,
        report.violations.len(),
        counts.writes_admitted,
        counts.writes_refused,
        counts.writes_unknown,
    )
}

/// Completes when the user or the system asks the demo to end.
fn interrupted() -> Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    })
}
