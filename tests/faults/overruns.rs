//! Tests work that outlives its term, with each option for its process.
#![cfg(unix)] // a process that aborted is known by its signal

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use eldest::{CancellationToken, OnOverrun, Session};
use eldest_testing::history::{History, Recorder, What};
use eldest_testing::{Etcd, eventually};

use crate::stage::{ELECTION, Result, SOON, Stage, grace, millis, options, pass, seconds};

const TTL: Duration = seconds(5);
const STALL: Duration = seconds(1);
/// The TTL if the key is deleted: far longer than the grace period.
const LONG_TTL: Duration = seconds(20);
const SIGABRT: i32 = 6;

/// The variable that has the arguments of the other process.
const CHILD: &str = "ELDEST_TEST_CHILD";

/// Another process, which runs this test's program.
struct Process(Child);

impl Process {
    /// Runs one test of this program in another process, with these arguments.
    fn start(test: &str, arguments: &str) -> Result<Self> {
        // If it aborts, it must leave no core dump.
        let child = Command::new("sh")
            .args(["-c", "ulimit -c 0; exec \"$@\"", "sh"])
            .arg(std::env::current_exe()?)
            .args(["--exact", "--nocapture", test])
            .env(CHILD, arguments)
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self(child))
    }

    /// Returns the arguments of this process, if it is a child.
    fn arguments() -> Option<String> {
        std::env::var(CHILD).ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How the work of the other process overruns: it stalls and blocks its thread, or its key is deleted.
const BLOCKS: &str = "blocks";
const GOES_ON: &str = "goes-on";

/// Runs in the other process: the process leads, and its work does not end.
async fn child(arguments: &str) -> Result {
    let mut words = arguments.split(' ');
    let mut next = || words.next().ok_or("three words");
    let (endpoint, file, how) = (next()?, next()?, next()?);
    let recorder = Recorder::boottime().to_file(file)?;
    let (ttl, stall) = match how {
        GOES_ON => (LONG_TTL, LONG_TTL * 10),
        _ => (TTL, STALL),
    };
    let session = Session::connect([endpoint], options("p", ttl)).await?;
    let runner = session.election(ELECTION)?.runner();
    let runner = runner.stall_timeout(stall).on_overrun(OnOverrun::Abort);
    let work = async |leadership: eldest::Leadership| -> Result {
        let (term, token) = (leadership.term(), leadership.fencing_token());
        recorder.record("p", ELECTION, What::Elected { token });
        loop {
            recorder.sample("p", ELECTION, token, || term.is_valid());
            if how == BLOCKS {
                std::thread::sleep(millis(2));
            } else {
                pass(millis(2)).await;
            }
        }
    };
    runner.run(CancellationToken::new(), work).await?;
    Ok(())
}

/// Reads when the other process checked its term, and the results.
fn samples(file: &Path) -> Result<Vec<(Duration, bool)>> {
    let history = History::load([file])?;
    let samples = history
        .events()
        .iter()
        .filter_map(|event| match event.what {
            What::Valid { .. } => Some((event.at, true)),
            What::Invalid { .. } => Some((event.at, false)),
            _ => None,
        });
    Ok(samples.collect())
}

/// Waits until the other process leads and has checked its term.
async fn works(stage: &Stage, file: &Path) -> Result {
    stage.await_candidate("p").await?;
    eventually(SOON, "it works", async || {
        samples(file).ok().filter(|seen| !seen.is_empty())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_process_whose_work_outlives_its_term_aborts_before_another_leads() -> Result {
    // Complaint: work continues after the loss, or the process must end.
    if let Some(arguments) = Process::arguments() {
        return child(&arguments).await;
    }
    let etcd = Etcd::start().await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("p.jsonl");
    let mut process = Process::start(
        "overruns::a_process_whose_work_outlives_its_term_aborts_before_another_leads",
        &format!("{} {} {BLOCKS}", etcd.endpoint(), file.display()),
    )?;
    stage.expect("p");
    works(&stage, &file).await?;
    stage.fault("p", "stall");
    let b = stage.node("b", &[etcd.endpoint()]).await?;
    let status = eventually(SOON, "it ends", async || {
        process.0.try_wait().ok().flatten()
    })
    .await?;
    stage.recorder.record("p", ELECTION, What::Killed);
    assert_eq!(status.signal(), Some(SIGABRT), "{status}");
    assert!(b.terms().is_empty(), "nobody led beside it");
    let seen = samples(&file)?;
    let (began, _) = *seen.first().ok_or("no samples")?;
    let (last, _) = *seen.last().ok_or("no samples")?;
    // A stall timeout and a grace period after its start, long before its lease would have ended the term.
    assert!(
        last > began + STALL && last < began + TTL,
        "{began:?} to {last:?}"
    );
    stage.healed("p", "stall");
    // No process released its key; it expires with the lease.
    b.elected(TTL + SOON).await?;
    b.stop().await?;
    stage.include(&file);
    stage.judge(2, 1).await?;
    Ok(())
}

#[tokio::test]
async fn process_whose_key_was_deleted_aborts_after_the_grace_period() -> Result {
    if let Some(arguments) = Process::arguments() {
        return child(&arguments).await;
    }
    let etcd = Etcd::start().await?;
    let stage = Stage::new(&[etcd.endpoint()], LONG_TTL).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("p.jsonl");
    let mut process = Process::start(
        "overruns::process_whose_key_was_deleted_aborts_after_the_grace_period",
        &format!("{} {} {GOES_ON}", etcd.endpoint(), file.display()),
    )?;
    works(&stage, &file).await?;
    let own = stage.await_candidate("p").await?;
    let deleted = stage.now();
    stage.client.clone().delete(own.path, None).await?;
    let status = eventually(LONG_TTL, "it ends", async || {
        process.0.try_wait().ok().flatten()
    })
    .await?;
    assert_eq!(status.signal(), Some(SIGABRT), "{status}");
    let (last, _) = *samples(&file)?.last().ok_or("no samples")?;
    let took = last.saturating_sub(deleted);
    // Its lease was renewed less than a third of the TTL before.
    assert!(
        took < LONG_TTL / 2,
        "{took:?} is longer than {:?}",
        grace(LONG_TTL)
    );
    Ok(())
}

/// Runs in the other process: its work on a partition continues beyond its term.
async fn partitioned(endpoint: &str) -> Result {
    let session = Session::connect([endpoint], options("p", LONG_TTL)).await?;
    let runner = session.partitions(ELECTION, 1)?.runner();
    let runner = runner.stall_timeout(STALL).on_overrun(OnOverrun::Abort);
    let work = async |_| std::future::pending::<Result>().await;
    runner.run(CancellationToken::new(), work).await?;
    Ok(())
}

#[tokio::test]
async fn a_process_whose_work_on_a_partition_outlives_its_term_aborts() -> Result {
    if let Some(arguments) = Process::arguments() {
        return partitioned(&arguments).await;
    }
    let etcd = Etcd::start().await?;
    let mut process = Process::start(
        "overruns::a_process_whose_work_on_a_partition_outlives_its_term_aborts",
        &etcd.endpoint(),
    )?;
    let status = eventually(SOON, "it ends", async || {
        process.0.try_wait().ok().flatten()
    })
    .await?;
    assert_eq!(status.signal(), Some(SIGABRT), "{status}");
    // No process released its key; it expires with the lease.
    let session = Session::connect([etcd.endpoint()], options("b", LONG_TTL)).await?;
    let map = session.partitions(ELECTION, 1)?.map().await?;
    assert_eq!(map.owner(0).map(|owner| owner.identity()), Some("p"));
    Ok(session.close().await?)
}
