//! Runs tests of many programs in one pool, as many at once as keep the processors busy, and says how long they took.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::fs;
use std::num::NonZero;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use crate::case::{Case, Failed};
use crate::process::BESIDE;
use crate::stage::Stage;

/// The fewest concurrent tests for each processor, however busy it is: at any time most of them wait for a deadline.
const PER_PROCESSOR: usize = 4;
/// The same for tests that do not wait.
const HEAVY_PER_PROCESSOR: usize = 2;
/// The most concurrent tests: with more, they wait for the disk.
const MOST: usize = 32;
/// How often the load is measured. A fixed number of tests overloads the machine while many begin, which delays renewals, and leaves
/// it idle while many wait.
const PERIOD: Duration = Duration::from_millis(500);
/// The number of threads for each processor that run or wait for it, without those of stages beside this one, up to which another
/// test starts, and above which one less runs.
const IDLE: usize = 1;
const OVERLOADED: usize = 2;
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
    run_within(stage, cases, PER_PROCESSOR)
}

/// Runs cases that keep the processors busy: each starts a cluster with its nodes, or thousands of elections.
pub(crate) fn run_heavy(stage: &mut Stage, cases: Vec<Case>) -> Result<()> {
    run_within(stage, cases, HEAVY_PER_PROCESSOR)
}

fn run_within(stage: &mut Stage, cases: Vec<Case>, per_processor: usize) -> Result<()> {
    ensure!(!cases.is_empty(), "there is no test");
    let tests = cases.len();
    stage.say(&format!("{tests} tests, up to {MOST} at a time"));
    let mut ended = all(stage, cases, per_processor);
    ended.sort_by_key(|ended| Reverse(ended.took));
    for Ended { case, took, .. } in ended.iter().take(SLOWEST) {
        let (name, seconds) = (case.shown(), took.as_secs_f64());
        stage.say(&format!("among the slowest: {name} {seconds:.1} s"));
    }
    for Ended { case, failed, .. } in ended {
        stage.count(case, failed);
    }
    Ok(())
}

fn all(stage: &Stage, cases: Vec<Case>, per_processor: usize) -> Vec<Ended> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let fewest = MOST.min(per_processor * processors);
    let mut waiting = VecDeque::from(cases);
    let (mut running, mut containers, mut room) = (0, 0, fewest);
    let (mut all, mut measured) = (Vec::new(), Instant::now());
    let (sender, ends) = mpsc::channel();
    thread::scope(|scope| {
        loop {
            while running < room
                && let Some(case) = next(&mut waiting, containers)
            {
                running += 1;
                containers += usize::from(case.group == CONTAINERS);
                let sender = sender.clone();
                scope.spawn(move || {
                    // The receiver outlives this thread.
                    let _ = sender.send(run_one(stage, case));
                });
            }
            if running == 0 {
                return;
            }
            if let Ok(ended) = ends.recv_timeout(PERIOD) {
                stage.progress();
                if let Ok(Some(failed)) = &ended.failed {
                    let (name, output) = (ended.case.shown(), failed.output.join("\n"));
                    println!("---- {name} ----\n{output}");
                }
                running -= 1;
                containers -= usize::from(ended.case.group == CONTAINERS);
                all.push(ended);
            }
            if measured.elapsed() >= PERIOD {
                measured = Instant::now();
                // A stage beside this one has a thread for each processor, at a lower priority.
                let others = 1 + processors * BESIDE.load(Ordering::Relaxed).min(1);
                let busy = runnable().unwrap_or(usize::MAX).saturating_sub(others);
                if busy <= IDLE * processors && running >= room {
                    room = MOST.min(room + 1);
                } else if busy > OVERLOADED * processors {
                    room = fewest.max(room - 1);
                }
            }
        }
    });
    all
}

/// Returns the next case that may run beside that many with containers.
fn next(waiting: &mut VecDeque<Case>, containers: usize) -> Option<Case> {
    let may_run = |case: &Case| containers < CONTAINERS_AT_ONCE || case.group != CONTAINERS;
    let number = waiting.iter().position(may_run)?;
    waiting.remove(number)
}

/// Returns the number of this machine's threads that run or wait for a processor, in the words of proc(5).
fn runnable() -> Option<usize> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    load.split([' ', '/']).nth(3)?.parse().ok()
}

fn run_one(stage: &Stage, mut case: Case) -> Ended {
    let begun = Instant::now();
    let failed = if stage.is_over() {
        Err(anyhow!("not run: the stage made no progress for too long"))
    } else {
        case.run().map(|(failed, _)| failed)
    };
    let took = begun.elapsed();
    Ended { case, took, failed }
}

#[cfg(test)]
mod tests {
    use super::run;
    use crate::case::tests::case;
    use crate::stage::{DEFAULT_LIMIT, Report, Stage};
    use std::time::Duration;

    fn pool(limit: Duration, scripts: &[&str]) -> Report {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        let cases = scripts.iter().enumerate().map(|(number, script)| {
            let script = script.replace("FOLDER", &path);
            case(&format!("p{number}"), &script)
        });
        let mut stage = Stage::start("test", limit);
        let result = run(&mut stage, cases.collect());
        let mut report = stage.finish(result);
        report.retry();
        report
    }

    fn counts(report: &Report) -> (u64, u64, &str) {
        (report.tally.passed, report.tally.failed, report.result())
    }

    #[test]
    fn tests_run_at_the_same_time_and_are_counted() {
        // Each waits for the other: one after the other they would run into the time limit.
        let both = "touch FOLDER/ran-$$; while [ $(ls FOLDER/ran-* | wc -l) -lt 2 ]; do :; done";
        let report = pool(DEFAULT_LIMIT, &[both, both]);
        assert_eq!(counts(&report), (2, 0, "passed"));
    }

    /// Returns a script that fails with that reason until its first run has created a file.
    fn fails_once(reason: &str) -> String {
        format!("[ -e FOLDER/ran ] || {{ touch FOLDER/ran; echo 'Error: {reason}'; exit 101; }}")
    }

    #[test]
    fn a_test_that_fails_once_is_flaky_and_its_outputs_are_kept() {
        let passes_later = format!("{} && echo fine", fails_once("late"));
        let report = pool(DEFAULT_LIMIT, &["true", &passes_later]);
        assert_eq!(counts(&report), (2, 0, "flaky"));
        assert!(report.flaky[0].starts_with("p1::a::b: Error: late"));
        let kept = crate::setup::target().join("flaky/test-p1.a.b.txt");
        let text = std::fs::read_to_string(&kept).unwrap();
        let parts = ["Error: late", "fine", "cargo xtask test p1::a::b"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        std::fs::remove_file(kept).unwrap();
    }

    #[test]
    fn a_flaky_test_does_not_take_away_another_failure_of_its_stage() {
        let report = pool(DEFAULT_LIMIT, &["exit 101", &fails_once("late")]);
        assert_eq!(counts(&report), (1, 1, "FAILED"));
        assert_eq!(report.flaky.len(), 1);
    }

    #[test]
    fn a_broken_promise_is_red_though_it_would_be_kept_again() {
        let report = pool(DEFAULT_LIMIT, &[&fails_once("VIOLATION I1 overlap")]);
        assert_eq!(counts(&report), (0, 1, "FAILED"));
    }

    #[test]
    fn test_without_time_left_in_its_stage_fails() {
        let report = pool(Duration::ZERO, &["true"]);
        assert_eq!(counts(&report), (0, 1, "FAILED"));
    }
}
