//! Tests processes that stop, runtimes that are blocked, and an etcd that is full.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use eldest::{CancellationToken, Challenges, ErrorKind, LostReason, Session, SessionOptions};
use eldest_testing::history::{History, Recorder, What};
use eldest_testing::{Etcd, eventually};
use etcd_client::{AlarmAction, AlarmOptions, AlarmType, CompactionOptions, ResponseHeader};

use crate::blocked::Blocked;
use crate::stage::{
    ELECTION, Key, Node, Result, SOON, Stage, Work, deadline, grace, millis, options, pass, seconds,
};

/// The leader's work blocks the only thread of its runtime.
#[tokio::test]
async fn leader_with_a_blocked_runtime_is_notified_by_the_watchdog() -> Result {
    const TTL: Duration = seconds(3);
    let etcd = Etcd::start().await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let (a, first) = Blocked::start(&stage, etcd.endpoint()).await?;
    let broken = stage.now();
    let b = stage.node("b", &[etcd.endpoint()]).await?;

    let lost = first.is_lost(TTL + SOON).await?;
    let end = first.deadline();
    assert!(end <= deadline(broken, TTL));
    let warning = end.saturating_sub(grace(TTL));
    assert!(
        lost >= warning && lost < end,
        "notified at {lost:?}, which is not from {warning:?} to {end:?}"
    );
    assert_eq!(first.reason(), Some(LostReason::LeaseExpiring));
    let second = b.elected(TTL + SOON).await?;
    assert!(second.elected_at > end);
    assert!(
        second.elected_at <= broken + TTL + millis(3500),
        "a late takeover"
    );
    assert!(first.last_valid() < end);

    a.unblock(b).await?;
    assert!(!first.term.is_valid());
    stage.judge(3, 1).await?;
    Ok(())
}

/// Another process, which runs this test's program.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    fn signal(&self, signal: &str) -> Result {
        let pid = self.0.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status()?;
        assert!(sent.success());
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Runs one test of this program in another process, with these arguments.
    pub(crate) fn start(test: &str, arguments: &str) -> Result<Self> {
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
    pub(crate) fn arguments() -> Option<String> {
        std::env::var(CHILD).ok()
    }
}

const CHILD: &str = "ELDEST_TEST_CHILD";

/// The checks of one term. The last one follows the end of the work, which the library drops if it first runs after the
/// deadline.
struct Checks {
    name: String,
    recorder: Recorder,
    term: eldest::Term,
}

impl Checks {
    fn sample(&self) {
        let (term, token) = (&self.term, self.term.fencing_token());
        self.recorder
            .sample(&*self.name, ELECTION, token, || term.is_valid());
    }
}

impl Drop for Checks {
    fn drop(&mut self) {
        self.sample();
    }
}

/// Runs in the other process, whose arguments are an endpoint, a file and a name: it leads, and records whether its term
/// is valid.
async fn child(arguments: &str, options: impl FnOnce(&str) -> SessionOptions) -> Result {
    let words: Vec<&str> = arguments.split(' ').collect();
    let [endpoint, file, name] = words[..] else {
        return Err("three words".into());
    };
    let recorder = Recorder::boottime().to_file(file)?;
    let session = Session::connect([endpoint], options(name)).await?;
    let election = session.election(ELECTION)?;
    let work = |leadership: eldest::Leadership| {
        let (term, recorder) = (leadership.term(), recorder.clone());
        let token = term.fencing_token();
        recorder.record(name, ELECTION, What::Elected { token });
        let checks = Checks {
            name: name.to_owned(),
            recorder,
            term,
        };
        async move {
            // The work occupies its runtime's only thread nearly all the time. So after a stop its check runs before
            // any task of the session, and only the clock shows the end.
            while !leadership.lost().is_cancelled() {
                for _ in 0..25 {
                    checks.sample();
                    std::thread::sleep(millis(2));
                }
                pass(millis(2)).await;
            }
            Ok::<_, eldest::BoxError>(())
        }
    };
    election.run(CancellationToken::new(), work).await?;
    Ok(())
}

fn samples(file: &Path, since: Duration) -> Result<Vec<What>> {
    let history = History::load([file])?;
    let later = history.events().iter().filter(|event| event.at >= since);
    let samples = later.map(|event| event.what.clone());
    Ok(samples
        .filter(|what| matches!(what, What::Valid { .. } | What::Invalid { .. }))
        .collect())
}

const STOPPED: &str = "processes::process_stopped_longer_than_the_ttl_fails_its_first_check";

/// Returns the samples since then, once there is one.
async fn answered(file: &Path, since: Duration) -> Result<Vec<What>> {
    Ok(eventually(SOON, "the process checks its term", async || {
        let samples = samples(file, since).ok()?;
        (!samples.is_empty()).then_some(samples)
    })
    .await?)
}

#[cfg(unix)]
#[tokio::test]
async fn process_stopped_longer_than_the_ttl_fails_its_first_check() -> Result {
    const TTL: Duration = seconds(5);
    if let Some(arguments) = Process::arguments() {
        return child(&arguments, |name| options(name, TTL)).await;
    }
    let etcd = Etcd::start().await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("p.jsonl");
    let arguments = format!("{} {} p", etcd.endpoint(), file.display());
    let child = Process::start(STOPPED, &arguments)?;
    stage.expect("p");
    let own = stage.await_candidate("p").await?;
    let token = own.create_revision;
    let answered = async |since| answered(&file, since).await;
    answered(Duration::ZERO).await?;
    let b = stage.node("b", &[etcd.endpoint()]).await?;

    // A stop shorter than the remaining time: the term is kept.
    let stop = || -> Result {
        child.signal("-STOP")?;
        stage.recorder.record("p", ELECTION, What::Paused);
        Ok(())
    };
    let go_on = || -> Result<Duration> {
        stage.recorder.record("p", ELECTION, What::Resumed);
        let at = stage.now();
        child.signal("-CONT")?;
        Ok(at)
    };
    stop()?;
    pass(millis(500)).await;
    let resumed = go_on()?;
    assert_eq!(answered(resumed).await?[0], What::Valid { token });
    assert!(b.terms().is_empty());

    // Longer than the TTL.
    stop()?;
    let led = b.elected(TTL + SOON).await?;
    assert!(led.token() > token);
    pass(seconds(1)).await;
    let resumed = go_on()?;
    let after = answered(resumed).await?;
    assert!(
        after.iter().all(|what| *what == What::Invalid { token }),
        "valid after the stop: {after:?}"
    );
    let keys = stage.queue(&["b", "p"], SOON).await?;
    assert!(keys[1].create_revision > led.token());
    b.stop().await?;
    let token = keys[1].create_revision;
    let again = What::Valid { token };
    eventually(SOON, "the process leads again", async || {
        let samples = samples(&file, resumed).ok()?;
        samples.contains(&again).then_some(())
    })
    .await?;
    drop(child);
    stage.recorder.record("p", ELECTION, What::Killed);
    stage.include(&file);
    let report = stage.judge(3, 1).await?;
    assert_eq!(report.counts.overlaps_while_stopped, 1, "{report}");
    Ok(())
}

const WOKEN: &str = "processes::stopped_challenger_wakes_after_a_succession_and_condemns_nobody";
/// The time to answer.
const D: Duration = seconds(3);
const LONG_TTL: Duration = seconds(30);

fn challenging(name: &str) -> SessionOptions {
    let challenges = Challenges::answer_within(D).listen((Ipv4Addr::LOCALHOST, 0));
    let options = options(name, LONG_TTL).request_timeout(D / 5);
    options.challenges(challenges)
}

/// A node in another process, which records in a file.
struct Other {
    name: &'static str,
    process: Process,
    file: PathBuf,
    key: Key,
}

impl Other {
    async fn start(
        stage: &Stage,
        endpoint: &str,
        folder: &Path,
        name: &'static str,
    ) -> Result<Self> {
        let file = folder.join(name);
        let arguments = format!("{endpoint} {} {name}", file.display());
        let process = Process::start(WOKEN, &arguments)?;
        stage.expect(name);
        stage.include(&file);
        Ok(Self {
            name,
            process,
            file,
            key: stage.await_candidate(name).await?,
        })
    }

    fn stop(&self, stage: &Stage) -> Result {
        self.process.signal("-STOP")?;
        stage.recorder.record(self.name, ELECTION, What::Paused);
        Ok(())
    }

    fn wake(&self, stage: &Stage) -> Result {
        stage.recorder.record(self.name, ELECTION, What::Resumed);
        self.process.signal("-CONT")
    }

    fn kill(self, stage: &Stage) {
        drop(self.process);
        stage.recorder.record(self.name, ELECTION, What::Killed);
    }
}

/// The leader hangs. The next candidate challenges it, and hangs before it may condemn it. The third one succeeds both.
#[cfg(unix)]
#[tokio::test]
async fn stopped_challenger_wakes_after_a_succession_and_condemns_nobody() -> Result {
    if let Some(arguments) = Process::arguments() {
        return child(&arguments, challenging).await;
    }
    let etcd = Etcd::start().await?;
    let stage = Stage::new(&[etcd.endpoint()], LONG_TTL).await?;
    let folder = tempfile::tempdir()?;
    let a = Other::start(&stage, &etcd.endpoint(), folder.path(), "a").await?;
    answered(&a.file, Duration::ZERO).await?;
    let b = Other::start(&stage, &etcd.endpoint(), folder.path(), "b").await?;
    let session = Session::connect([etcd.endpoint()], challenging("c")).await?;
    let c = Node::of(&stage, session, Work::UntilLost)?;
    stage.await_candidate("c").await?;

    let began = stage.now();
    a.stop(&stage)?;
    let anchor = format!("eldest/~session/{:x}", a.key.lease);
    let challenge = format!("{anchor}/challenges/{:x}", b.key.lease);
    let stands = async |path: &str| !stage.keys_under(path).await.is_empty();
    eventually(SOON, "b challenges a", async || {
        stands(&challenge).await.then_some(())
    })
    .await?;
    b.stop(&stage)?;
    assert!(stands(&anchor).await, "condemned already");
    let led = c.elected(D + SOON).await?;
    let took = led.elected_at.saturating_sub(began);
    assert!(took > D && took < LONG_TTL / 2, "{took:?}");

    let (woken, token) = (stage.now(), a.key.create_revision);
    b.wake(&stage)?;
    a.wake(&stage)?;
    let after = answered(&a.file, woken).await?;
    let ended = What::Invalid { token };
    assert!(after.iter().all(|what| *what == ended), "{after:?}");
    eventually(SOON, "both stand behind c", async || {
        let keys = stage.keys().await;
        (keys.len() == 3 && keys[0].identity == "c").then_some(())
    })
    .await?;
    // A challenge that was left would condemn in this time.
    pass(D * 2).await;
    assert!(c.leads().is_some_and(|now| now.token() == led.token()));
    let anchors = stage.keys_under("eldest/~session/").await;
    assert_eq!(anchors.len(), 3, "{anchors:?}");
    b.kill(&stage);
    a.kill(&stage);
    c.stop().await?;
    stage.judge(2, 1).await?;
    Ok(())
}

#[tokio::test]
async fn full_etcd_keeps_its_leader_refuses_a_join_and_lets_run_wait() -> Result {
    const TTL: Duration = seconds(3);
    let builder = Etcd::builder().arg("--quota-backend-bytes=8000000");
    let etcd = builder.start().await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let a = stage.node("a", &[etcd.endpoint()]).await?;
    let led = a.elected(SOON).await?;
    let mut client = stage.client.clone();
    let filler = vec![b'x'; 1_000_000];
    stage.fault("", "no space");
    let mut revision = 0;
    let full = loop {
        match client.put("filler", filler.clone(), None).await {
            Ok(put) => revision = put.header().map_or(0, ResponseHeader::revision),
            Err(error) => break error.to_string(),
        }
        assert!(revision < 1000, "never full");
    };
    assert!(full.contains("database space exceeded"), "{full}");

    // One session that is new to etcd, and needs a lease; and one that has its lease.
    let session = Session::connect([etcd.endpoint()], options("b", TTL)).await?;
    let election = session.election(ELECTION)?;
    let error = tokio::time::timeout(SOON, election.campaign()).await?;
    let error = error.expect_err("a clear error");
    assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
    let c = Node::start(&stage, "c", &[etcd.endpoint()]).await?;

    // The leader continues beyond its deadline before the fault.
    let broken = stage.now();
    eventually(TTL * 3, "the lease is renewed all the same", async || {
        assert!(!led.lost.is_cancelled(), "lost: {:?}", led.reason());
        (led.deadline() > deadline(broken, TTL) + TTL / 2).then_some(())
    })
    .await?;
    assert_eq!(stage.keys().await.len(), 1);
    assert!(!c.has_ended(), "run gave up");

    let physical = Some(CompactionOptions::new().with_physical());
    client.compact(revision, physical).await?;
    client.defragment().await?;
    let alarms = client.alarm(AlarmAction::Get, AlarmType::Nospace, None);
    for alarm in alarms.await?.alarms() {
        let mut member = AlarmOptions::new();
        member.with_member(alarm.member_id());
        let disarmed = client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(member));
        disarmed.await?;
    }
    stage.queue(&["a", "c"], SOON).await?;
    stage.healed("", "no space");
    // The refused request left nothing behind that blocks the next attempt.
    let b = Node::of(&stage, session, Work::UntilLost)?;
    stage.queue(&["a", "c", "b"], SOON).await?;
    for node in [a, c, b] {
        node.elected(SOON).await?;
        node.stop().await?;
    }
    assert_eq!(stage.leases().await?, [0; 0]);
    stage.judge(3, 1).await?;
    Ok(())
}
