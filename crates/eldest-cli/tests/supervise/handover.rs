//! Tests that a crashed program's successor does not wait for the lease.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use eldest_testing::eventually;
use rustix::process::Signal;

use crate::processes::signal;
use crate::stage::{Node, Result, SOON, Stage, TAKEOVER, TTL};

/// So many crashes that a few slow ones on a busy machine do not matter.
const ROUNDS: usize = 7;

/// Nodes that wait for a crash of the leader's program. Their program is small, because its own start is no part of a
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

    /// Returns when the next program began, by the wall clock.
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

    /// Returns the time from the kill of a program to the first action of the next node's program.
    async fn crash(&mut self) -> Result<Duration> {
        let waiting = Self::node(self.stage, &self.diary, self.begun + 1)?;
        self.stage.has_candidate(&waiting.name).await?;
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
async fn a_crashed_program_s_successor_starts_before_the_lease_could_end() -> Result {
    let stage = Stage::new().await?;
    let mut supervised = Supervised::new(&stage).await?;
    let mut crashes = Vec::new();
    for _ in 0..ROUNDS {
        crashes.push(supervised.crash().await?);
    }
    supervised.leader.stop().await?;
    crashes.sort_unstable();
    // A key that no process releases expires with its lease, of which at least two thirds of the TTL are left.
    let usual = crashes[ROUNDS / 2];
    assert!(
        usual < TTL * 2 / 3,
        "as a rule, the lease had to end: {crashes:?}"
    );
    Ok(())
}
