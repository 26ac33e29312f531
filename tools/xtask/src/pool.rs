//! Runs tests of many programs in one pool, and says how long they took.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use crate::case::{Case, Failed};
use crate::room::{self, Room};
use crate::stage::Stage;

/// The fewest concurrent tests for each processor, however busy it is: at any time most of them wait for a deadline.
const PER_PROCESSOR: usize = 4;
/// The same for tests that do not wait.
const HEAVY_PER_PROCESSOR: usize = 2;
/// The group whose tests have six containers or more, whose processes the engine starts.
const CONTAINERS: &str = "containers";
const CONTAINERS_AT_ONCE: usize = 2;
/// The number of the slowest tests that are named.
const SLOWEST: usize = 10;

struct Ended {
    case: Case,
    took: Duration,
    failed: Result<Option<Failed>>,
}

/// Runs the cases, in that order, as many at the same time as this machine bears.
pub(crate) fn run(stage: &mut Stage, cases: Vec<Case>) -> Result<()> {
    run_within(stage, cases, Room::of(PER_PROCESSOR))
}

/// Runs cases that keep the processors busy: each starts a cluster with its nodes, or thousands of elections.
pub(crate) fn run_heavy(stage: &mut Stage, cases: Vec<Case>) -> Result<()> {
    run_within(stage, cases, Room::of(HEAVY_PER_PROCESSOR))
}

fn run_within(stage: &mut Stage, cases: Vec<Case>, room: Room) -> Result<()> {
    ensure!(!cases.is_empty(), "there is no test");
    let (tests, fewest, most) = (cases.len(), room.now(), room.most());
    stage.say(&format!("{tests} tests, {fewest} to {most} at a time"));
    let mut ended = all(stage, cases, room);
    print_times(stage, &mut ended);
    for Ended { case, failed, .. } in ended {
        stage.count(case, failed);
    }
    Ok(())
}

/// The cases that wait, and those that run.
struct Queue {
    waiting: VecDeque<Case>,
    running: usize,
    containers: usize,
    room: Room,
}

fn all(stage: &Stage, cases: Vec<Case>, room: Room) -> Vec<Ended> {
    let mut queue = Queue {
        waiting: VecDeque::from(cases),
        running: 0,
        containers: 0,
        room,
    };
    let mut all = Vec::new();
    let mut measured = Instant::now();
    let (sender, ends) = mpsc::channel();
    thread::scope(|scope| {
        loop {
            while let Some(case) = queue.take() {
                let sender = sender.clone();
                scope.spawn(move || {
                    // The receiver outlives this thread.
                    let _ = sender.send(run_one(stage, case));
                });
            }
            if queue.running == 0 {
                return;
            }
            if let Ok(ended) = ends.recv_timeout(room::PERIOD) {
                stage.progress();
                if let Ok(Some(Failed { failure, .. })) = &ended.failed {
                    let name = ended.case.shown();
                    println!("---- {name} ----\n{}", failure.output.join("\n"));
                }
                queue.end(&ended.case);
                all.push(ended);
            }
            if measured.elapsed() >= room::PERIOD {
                queue.room.measure(queue.running);
                measured = Instant::now();
            }
        }
    });
    all
}

fn run_one(stage: &Stage, mut case: Case) -> Ended {
    let begun = Instant::now();
    let failed = if stage.is_over() {
        Err(anyhow!("not run: the stage made no progress for too long"))
    } else {
        case.run(&mut Vec::new())
    };
    let took = begun.elapsed();
    Ended { case, took, failed }
}

impl Queue {
    /// Returns the next case that may run beside those that do.
    fn take(&mut self) -> Option<Case> {
        if self.running >= self.room.now() {
            return None;
        }
        let all = self.containers >= CONTAINERS_AT_ONCE;
        let may_run = |case: &Case| !all || case.group != CONTAINERS;
        let number = self.waiting.iter().position(may_run)?;
        let case = self.waiting.remove(number)?;
        self.running += 1;
        self.containers += usize::from(case.group == CONTAINERS);
        Some(case)
    }

    fn end(&mut self, case: &Case) {
        self.running -= 1;
        self.containers -= usize::from(case.group == CONTAINERS);
    }
}

/// Prints the slowest tests.
fn print_times(stage: &Stage, ended: &mut [Ended]) {
    ended.sort_by_key(|ended| std::cmp::Reverse(ended.took));
    for Ended { case, took, .. } in ended.iter().take(SLOWEST) {
        let seconds = took.as_secs_f64();
        stage.say(&format!(
            "among the slowest: {} {seconds:.1} s",
            case.shown()
        ));
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::run_within;
    use crate::case::tests::{PASSES, case, fails};
    use crate::room::Room;
    use crate::stage::{DEFAULT_LIMIT, Report, Stage};
    use std::time::Duration;

    fn pool(limit: Duration, scripts: &[&str]) -> Report {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        let cases = scripts.iter().enumerate().map(|(number, script)| {
            let script = script.replace("FOLDER", &path);
            case(folder.path(), &format!("p{number}"), &script)
        });
        let mut stage = Stage::start("test", limit);
        let result = run_within(&mut stage, cases.collect(), Room::starting_at(2));
        let mut report = stage.finish(result);
        report.retry();
        report
    }

    #[test]
    fn tests_run_at_the_same_time_and_are_counted() {
        // Each waits for the other: one after the other they would run into the time limit.
        let both = "touch FOLDER/ran-$$; while [ $(ls FOLDER/ran-* | wc -l) -lt 2 ]; do :; done";
        let script = format!("{both}; {PASSES}");
        let report = pool(DEFAULT_LIMIT, &[&script, &script]);
        assert_eq!((report.tally.passed, report.tally.failed), (2, 0));
        assert_eq!(report.result(), "passed");
    }

    /// Returns a script that fails with that reason until its first run has created a file.
    fn fails_once(reason: &str) -> String {
        let fails = fails(reason);
        format!("if [ -e FOLDER/ran ]; then {PASSES}; else touch FOLDER/ran; {fails}; fi")
    }

    #[test]
    fn a_test_that_fails_once_is_flaky_and_its_outputs_are_kept() {
        let report = pool(DEFAULT_LIMIT, &[PASSES, &fails_once("late")]);
        assert_eq!((report.tally.passed, report.tally.failed), (2, 0));
        assert_eq!(report.flaky, ["p1::a::b: Error: late"]);
        assert_eq!(report.result(), "flaky");
        let kept = crate::setup::target().join("flaky/test-p1.a.b.txt");
        let text = std::fs::read_to_string(&kept).unwrap();
        let parts = ["Error: late", "ok. 1 passed", "cargo xtask test p1::a::b"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        std::fs::remove_file(kept).unwrap();
    }

    #[test]
    fn test_that_fails_again_is_red_and_reported_with_its_command() {
        let report = pool(DEFAULT_LIMIT, &[&fails("late")]);
        assert_eq!((report.tally.failed, report.result()), (1, "FAILED"));
        assert!(report.failures[0].ends_with("cargo xtask test p0::a::b"));
    }

    #[test]
    fn a_broken_promise_is_red_though_it_would_be_kept_again() {
        let report = pool(DEFAULT_LIMIT, &[&fails_once("VIOLATION I1 overlap")]);
        assert_eq!((report.tally.failed, report.result()), (1, "FAILED"));
    }

    #[test]
    fn test_without_time_left_in_its_stage_fails() {
        let report = pool(Duration::ZERO, &[PASSES]);
        assert_eq!((report.tally.failed, report.result()), (1, "FAILED"));
    }
}
