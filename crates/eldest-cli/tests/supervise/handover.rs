//! Measures how long a crashed program's successor takes to start, beside a hand-over of the library after which the test
//! itself starts such a program.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use eldest::{Leadership, Session, SessionOptions};
use eldest_testing::eventually;
use rustix::process::Signal;
use tokio::process::Command;

use crate::processes::{now, signal};
use crate::stage::{Node, Result, SOON, Stage, TAKEOVER, TTL};

const ROUNDS: usize = 8;
/// The cost allowed for noticing the crash, a sweep and the keeper's start, beside the hand-over and the program's start.
const LIMIT: f64 = 10.0;

/// Hand-overs between two sessions of this process.
struct Bare {
    sessions: [Session; 2],
    leader: Leadership,
}

impl Bare {
    async fn new(stage: &Stage) -> Result<Self> {
        let options = |name| SessionOptions::new(name).ttl(TTL);
        let endpoints = [stage.etcd.endpoint()];
        let sessions = [
            Session::connect(&endpoints, options("x")).await?,
            Session::connect(&endpoints, options("y")).await?,
        ];
        let leader = sessions[1]
            .election("bare")?
            .campaign()
            .await?
            .elected()
            .await?;
        Ok(Self { sessions, leader })
    }

    /// From the release to the next election, and to the end of a program that is started then.
    async fn hand_over(&mut self) -> Result<Duration> {
        let mut candidate = self.sessions[0].election("bare")?.campaign().await?;
        let begun = now();
        let (resigned, elected) = tokio::join!(self.leader.resign(), async {
            let elected = candidate.elected().await;
            let started = Command::new("/bin/sh").args(["-c", "date"]).output();
            (elected, started.await, now())
        });
        resigned?;
        let (elected, started, ended) = elected;
        assert!(started?.status.success());
        self.leader = elected?;
        self.sessions.swap(0, 1);
        Ok(ended.saturating_sub(begun))
    }
}

/// Nodes that wait for a crash of the one that leads. What they run is small: what its own start costs is no part of a
/// hand-over.
struct Supervised<'s> {
    stage: &'s Stage,
    diary: PathBuf,
    leader: Node,
    begun: usize,
}

impl<'s> Supervised<'s> {
    async fn new(stage: &'s Stage) -> Result<Self> {
        let diary = stage.folder().join("starts");
        let leader = Self::node(stage, &diary, 1)?;
        let mut this = Self {
            stage,
            diary,
            leader,
            begun: 0,
        };
        this.next_start().await?;
        Ok(this)
    }

    fn node(stage: &Stage, diary: &Path, number: usize) -> Result<Node> {
        let script = format!("date +%s%N >> {}; exec sleep 1000", diary.display());
        let program = ["/bin/sh", "-c", &script];
        stage.node_of(&format!("n{number}"), &[], &program)
    }

    /// When the next program began, by the wall clock.
    async fn next_start(&mut self) -> Result<Duration> {
        let line = self.begun;
        self.begun += 1;
        let start = async || {
            let text = std::fs::read_to_string(&self.diary).ok()?;
            text.lines().nth(line)?.parse().ok()
        };
        let what = format!("program number {} has begun", self.begun);
        Ok(Duration::from_nanos(
            eventually(TAKEOVER, what, start).await?,
        ))
    }

    /// From the kill of a program to the first thing that the next node's does.
    async fn crash(&mut self) -> Result<Duration> {
        let waiting = Self::node(self.stage, &self.diary, self.begun + 1)?;
        self.stage.stands(&waiting.name).await?;
        let runs = async || self.leader.running();
        let (_, program) = eventually(SOON, "the keeper runs", runs).await?;
        let killed = SystemTime::now().duration_since(UNIX_EPOCH)?;
        signal(program, Signal::KILL);
        let time = self.next_start().await?.saturating_sub(killed);
        assert_eq!(self.leader.end().await?.code(), Some(137));
        self.leader = waiting;
        Ok(time)
    }
}

#[tokio::test]
async fn a_crashed_program_s_successor_starts_about_as_soon_as_the_next_leader_is_elected() -> Result
{
    let stage = Stage::new().await?;
    let mut bare = Bare::new(&stage).await?;
    let mut supervised = Supervised::new(&stage).await?;
    let (mut alone, mut crashes) = (Vec::new(), Vec::new());
    // By turns, for the machine may be busy for a while.
    for _ in 0..ROUNDS {
        alone.push(bare.hand_over().await?);
        crashes.push(supervised.crash().await?);
        alone.push(bare.hand_over().await?);
    }
    supervised.leader.stop().await?;
    alone.sort_unstable();
    crashes.sort_unstable();
    let ratio = |at: usize, of: usize| {
        crashes[crashes.len() * at / of].as_secs_f64() / alone[alone.len() * at / of].as_secs_f64()
    };
    let (quickest, median) = (ratio(0, 2), ratio(1, 2));
    println!(
        "bare hand-overs {alone:?}, after a crash {crashes:?}: {quickest:.1} times as long at best, {median:.1} as a rule"
    );
    // A busy machine delays the start of processes more than the rest, so the quickest are compared.
    assert!(
        quickest < LIMIT,
        "{crashes:?} is {quickest:.1} times {alone:?}"
    );
    // A key that nobody releases goes with its lease, of which two thirds of the TTL are left at least.
    let usual = crashes[crashes.len() / 2];
    assert!(
        usual < TTL * 2 / 3,
        "as a rule, the lease had to end: {crashes:?}"
    );
    Ok(())
}
