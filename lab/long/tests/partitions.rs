//! Tests a thousand partitions over three to thirty processes that come, go, stop and die: at no instant do two of them
//! act for one partition, and none is without an owner for longer than guaranteed.
#![cfg(unix)] // its processes are stopped and ended by signals
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use eldest::{BoxError, Partitions, Session, SessionOptions, Term};
use eldest_testing::history::{Event, History, Recorder, Rules, What, check};
use eldest_testing::{Etcd, eventually};

type Result<T = ()> = std::result::Result<T, BoxError>;

const COUNT: u32 = 1024;
const TTL: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_secs(2);
/// The time beyond the TTL, after a death.
const SLACK: Duration = Duration::from_millis(3500);
/// The time of a move, beyond the grace period.
const MOVE: Duration = Duration::from_secs(1);
/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);
const FEW: usize = 3;
const MANY: usize = 30;
/// How often a process may need the processor between the end of one owner's term and the next one's beginning. The old
/// owner needs it for the event, for the end of its work, and for the answers of two earlier batches; the new owner for
/// the event and for its answer. Thirty processes share few processors here, and each time one may be as late as the
/// latest that was measured. (`tests/faults/partitions_shared.rs` has the guaranteed bounds.)
const TURNS: u32 = 6;

/// How often a process checks whether its terms are valid, and how often it records that they are.
const SAMPLE: Duration = Duration::from_millis(25);
const WRITE: Duration = Duration::from_millis(500);

const CHILD: &str = "ELDEST_TEST_PARTITIONS";
const TEST: &str = "a_thousand_partitions_survive_any_failure_of_their_members";

fn partitions(session: &Session) -> Result<Partitions> {
    Ok(session.partitions("shards", COUNT)?)
}

async fn connect(endpoint: &str, name: &str) -> Result<Session> {
    let options = SessionOptions::new(name)
        .ttl(TTL)
        .grace(GRACE)
        .request_timeout(Duration::from_secs(1));
    Ok(Session::connect([endpoint], options).await?)
}

// ---- a member, in a process of its own

/// A term in its own process: the last time it was valid, and when that was last recorded.
struct Seen {
    term: Term,
    valid: Option<Duration>,
    written: Duration,
}

/// Records when this process considers its terms valid.
struct Eye {
    node: String,
    recorder: Recorder,
    terms: Mutex<Vec<Seen>>,
}

impl Eye {
    fn begin(&self, term: Term) {
        let token = term.fencing_token();
        self.recorder
            .record(&*self.node, term.name(), What::Elected { token });
        let seen = Seen {
            term,
            valid: None,
            written: Duration::ZERO,
        };
        let mut terms = self.terms.lock().unwrap_or_else(PoisonError::into_inner);
        terms.push(seen);
    }

    fn end(&self, term: &Term) {
        let token = term.fencing_token();
        let reason = term.lost_reason().map_or("none", |reason| reason.as_str());
        let what = What::LostToken {
            token,
            reason: reason.to_owned(),
        };
        self.recorder.record(&*self.node, term.name(), what);
    }

    /// Samples on a separate thread, so that the runtime cannot delay it.
    fn sample_terms(&self) {
        let mut terms = self.terms.lock().unwrap_or_else(PoisonError::into_inner);
        terms.retain_mut(|seen| {
            let (election, token) = (seen.term.name(), seen.term.fencing_token());
            let before = self.recorder.now();
            let valid = seen.term.is_valid();
            let due = before.saturating_sub(seen.written) >= WRITE;
            if let Some(last) = seen.valid.filter(|_| !valid || due) {
                self.recorder
                    .record_at(last, &*self.node, election, What::Valid { token });
                seen.written = before;
            }
            if !valid {
                self.recorder
                    .record(&*self.node, election, What::Invalid { token });
            }
            seen.valid = Some(before);
            valid
        });
    }
}

async fn child(endpoint: &str, name: &str, file: &str) -> Result {
    let eye = Arc::new(Eye {
        node: name.to_owned(),
        recorder: Recorder::boottime().to_file(file)?,
        terms: Mutex::default(),
    });
    let sampled = Arc::clone(&eye);
    let late = format!("{file}.late");
    std::thread::spawn(move || {
        let mut latest = Duration::ZERO;
        loop {
            let before = Instant::now();
            sampled.sample_terms();
            std::thread::sleep(SAMPLE);
            if before.elapsed() > latest {
                latest = before.elapsed();
                let written = std::fs::write(&late, latest.as_millis().to_string());
                written.expect("the test's folder");
            }
        }
    });
    let session = connect(endpoint, name).await?;
    let shards = partitions(&session)?;
    let run = shards.run(eldest::shutdown_signal(), |partition| {
        let eye = Arc::clone(&eye);
        eye.begin(partition.term());
        async move {
            partition.lost().cancelled().await;
            eye.end(&partition);
            Ok::<_, eldest::BoxError>(())
        }
    });
    run.await?;
    session.close().await?;
    eye.sample_terms();

    Ok(())
}

// ---- the scene

struct Member {
    name: String,
    process: Child,
}

impl Member {
    fn signal(&self, signal: rustix::process::Signal) -> Result {
        let pid = rustix::process::Pid::from_raw(self.process.id().cast_signed());
        Ok(rustix::process::kill_process(
            pid.ok_or("no process")?,
            signal,
        )?)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Scene {
    etcd: Etcd,
    folder: tempfile::TempDir,
    recorder: Recorder,
    watched: Partitions,
    members: Vec<Member>,
    begun: usize,
    stopped: Vec<String>,
}

impl Scene {
    async fn new() -> Result<Self> {
        let etcd = Etcd::start().await?;
        let session = connect(&etcd.endpoint(), "eye").await?;
        Ok(Self {
            watched: partitions(&session)?,
            etcd,
            folder: tempfile::tempdir()?,
            recorder: Recorder::boottime(),
            members: Vec::new(),
            begun: 0,
            stopped: Vec::new(),
        })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&mut self, members: usize) -> Result {
        for _ in 0..members {
            self.begun += 1;
            let name = format!("n{}", self.begun);
            let process = Command::new(std::env::current_exe()?)
                .args(["--exact", TEST, "--nocapture"])
                .env(CHILD, &name)
                .env("ELDEST_TEST_ETCD", self.etcd.endpoint())
                .env("ELDEST_TEST_FILE", self.file(&name))
                .stdout(Stdio::null())
                .spawn()?;
            self.members.push(Member { name, process });
        }
        Ok(())
    }

    /// Waits until `members` members own all partitions, evenly.
    async fn even(&self, members: usize) -> Result {
        let what = format!("{COUNT} partitions are spread over {members} members");
        eventually(LONG, what, async || {
            // Frequent requests would only slow a machine that is this busy.
            tokio::time::sleep(Duration::from_millis(250)).await;
            let map = self.watched.map().await.ok()?;
            let mut loads: BTreeMap<i64, usize> = BTreeMap::new();
            for member in map.members() {
                loads.insert(member.lease_id(), 0);
            }
            for (_, owner) in map.iter() {
                *loads.entry(owner.lease_id()).or_default() += 1;
            }
            let fair = loads.values().max()? - loads.values().min()? <= 1;
            let all = loads.values().sum::<usize>() == COUNT as usize;
            (fair && all && loads.len() == members).then_some(())
        })
        .await?;
        Ok(())
    }

    fn record(&self, member: &Member, what: What) {
        self.recorder.record(&*member.name, "", what);
    }

    fn kill(&mut self, members: usize) {
        for mut member in self.members.drain(..members).collect::<Vec<_>>() {
            member.process.kill().expect("it runs");
            member.process.wait().expect("it is ours");
            self.record(&member, What::Killed);
        }
    }

    fn pause(&mut self, index: usize) -> Result {
        self.members[index].signal(rustix::process::Signal::STOP)?;
        self.stopped.push(self.members[index].name.clone());
        self.record(&self.members[index], What::Paused);
        Ok(())
    }

    fn resume(&self, index: usize) -> Result {
        self.record(&self.members[index], What::Resumed);
        self.members[index].signal(rustix::process::Signal::CONT)
    }

    async fn leave(&mut self, members: Range<usize>) -> Result {
        let mut leaving: Vec<_> = self.members.drain(members).collect();
        for member in &leaving {
            member.signal(rustix::process::Signal::TERM)?;
        }
        for member in &mut leaving {
            let status = eventually(LONG, format!("{} ends", member.name), async || {
                member.process.try_wait().ok().flatten()
            })
            .await?;
            assert!(status.success(), "{}: {status}", member.name);
        }
        Ok(())
    }

    /// Returns the longest time for which a process that no test stopped did not sample: the machine was overloaded,
    /// and the bounds hold for a machine that is not.
    fn starved(&self) -> Duration {
        let names = (1..=self.begun).map(|n| format!("n{n}"));
        let late = names
            .filter(|name| !self.stopped.contains(name))
            .filter_map(|name| {
                let text = std::fs::read_to_string(self.file(&format!("{name}.late"))).ok()?;
                text.parse().ok().map(Duration::from_millis)
            });
        late.max().unwrap_or_default()
    }

    fn history(&self) -> Result<History> {
        let names = (1..=self.begun).map(|n| self.file(&format!("n{n}")));
        let mut history = History::load(names.filter(|path| Path::exists(path)))?;
        history.extend(self.recorder.history()?.events().to_vec());
        Ok(history)
    }
}

/// Returns how long each partition was without an owner between two terms, with the reason for which the first one
/// ended.
fn vacancies(history: &History) -> Vec<(Duration, String, String)> {
    let mut events: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in history.events() {
        events.entry(&event.election).or_default().push(event);
    }
    let mut found = Vec::new();
    for (election, events) in events {
        let mut last: Option<(i64, Duration, String)> = None;
        for event in events {
            match &event.what {
                What::Elected { token } => {
                    if let Some((earlier, at, reason)) = last.take() {
                        assert!(earlier < *token, "{election}");
                        found.push((event.at.saturating_sub(at), election.to_owned(), reason));
                    }
                    last = Some((*token, event.at, "killed".to_owned()));
                }
                What::Valid { token } => {
                    if let Some((_, at, _)) = last.as_mut().filter(|(last, ..)| last == token) {
                        *at = event.at;
                    }
                }
                What::LostToken { token, reason } => {
                    if let Some((.., why)) = last.as_mut().filter(|(last, ..)| last == token) {
                        why.clone_from(reason);
                    }
                }
                _ => {}
            }
        }
    }
    found
}

#[tokio::test]
async fn a_thousand_partitions_survive_any_failure_of_their_members() -> Result {
    if let Ok(name) = std::env::var(CHILD) {
        let endpoint = std::env::var("ELDEST_TEST_ETCD")?;
        return child(&endpoint, &name, &std::env::var("ELDEST_TEST_FILE")?).await;
    }
    let mut scene = Scene::new().await?;
    scene.start(FEW)?;
    scene.even(FEW).await?;
    scene.start(MANY - FEW)?;
    scene.even(MANY).await?;

    // The eldest processes, which own as many partitions as any.
    scene.kill(5);
    scene.even(MANY - 5).await?;
    // One process stops for longer than its lease, another for less, and some leave meanwhile.
    scene.pause(0)?;
    scene.pause(1)?;
    tokio::time::sleep(TTL / 4).await;
    scene.resume(1)?;
    scene.leave(2..6).await?;
    scene.start(4)?;
    let members = scene.members.len();
    scene.even(members - 1).await?;
    scene.resume(0)?;
    scene.even(members).await?;

    scene.leave(0..members).await?;
    let map = scene.watched.map().await?;
    assert_eq!((map.members().len(), map.iter().count()), (0, 0));

    let history = scene.history()?;
    let report = check(&history, &Rules::new(TTL));
    report.assert_ok();
    report.require(COUNT as usize * 2, 3);
    let starved = scene.starved();
    let (mut moves, mut deaths) = (Duration::ZERO, Duration::ZERO);
    for (vacancy, partition, reason) in vacancies(&history) {
        let graceful = matches!(&*reason, "reassigned" | "shutdown");
        let (longest, bound) = if graceful {
            (&mut moves, GRACE + MOVE)
        } else {
            (&mut deaths, TTL + SLACK)
        };
        assert!(
            vacancy <= bound + starved * TURNS,
            "{partition} was vacant for {vacancy:?} ({reason}), with processes late by {starved:?}"
        );
        *longest = vacancy.max(*longest);
    }
    println!("longest vacancy: {moves:?} at a move, {deaths:?} after a death or a stop");
    println!("processes were late by {starved:?}");
    Ok(())
}
