//! Runs tests of many programs in one pool, and prints how long they took.
//!
//! The tests use real time, processes, sockets and containers, and mostly wait. So many run at the same time that the
//! processors are busy.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::case::{Case, Failed};
use crate::stage::Stage;
use crate::times::Times;

/// The number of concurrent tests for each processor: at any time most of them wait for a deadline.
const PER_PROCESSOR: usize = 8;
/// The maximum number of concurrent tests; with more, they would wait for the disk.
const MOST: usize = 32;
/// The number of concurrent tests for each processor, of those that do not wait.
const HEAVY_PER_PROCESSOR: usize = 2;
/// The group whose tests have six containers or more, whose processes the engine starts.
const CONTAINERS: &str = "containers";
const CONTAINERS_AT_ONCE: usize = 2;
/// The number of the slowest tests that are named.
const SLOWEST: usize = 10;

/// Returns the number of concurrent tests on this machine.
fn size(per_processor: usize) -> usize {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    (per_processor * processors).min(MOST)
}

struct Ended {
    case: Case,
    took: Duration,
    failed: Result<Option<Failed>>,
}

/// Runs the cases, in that order, as many at the same time as this machine bears.
pub(crate) fn run(stage: &mut Stage, cases: Vec<Case>) -> Result<()> {
    Times::record(run_so_many(stage, cases, size(PER_PROCESSOR))?)
}

/// Runs cases that keep the processors busy: each starts a cluster with its nodes, or thousands of elections.
pub(crate) fn run_heavy(stage: &mut Stage, cases: Vec<Case>) -> Result<()> {
    Times::record(run_so_many(stage, cases, size(HEAVY_PER_PROCESSOR))?)
}

/// Runs the cases, and returns the name and the milliseconds of each that passed; the time of a failed one proves
/// nothing.
fn run_so_many(stage: &mut Stage, cases: Vec<Case>, at_once: usize) -> Result<Vec<(String, u128)>> {
    ensure!(!cases.is_empty(), "there is no test");
    stage.say(&format!("{} tests, {at_once} at a time", cases.len()));
    let mut ended = all(stage, cases, at_once);
    print_times(stage, &mut ended);
    let passed = ended.iter().filter(|it| matches!(it.failed, Ok(None)));
    let times = passed.map(|it| (it.case.shown(), it.took.as_millis()));
    let times = times.collect();
    for Ended { case, failed, .. } in ended {
        stage.count(case, failed);
    }
    Ok(times)
}

fn all(stage: &Stage, cases: Vec<Case>, at_once: usize) -> Vec<Ended> {
    let waiting = Mutex::new(VecDeque::from(cases));
    let ended = Mutex::new(Vec::new());
    let containers = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(mut case) = next(&waiting, &containers) {
                    let begun = Instant::now();
                    let mut output = Vec::new();
                    let failed = if stage.is_over() {
                        Err(anyhow::anyhow!("not run: the stage's time is over"))
                    } else {
                        case.run(&mut output)
                    };
                    let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
                    // The lock keeps the output of two cases apart.
                    if let Ok(Some(_)) = failed {
                        println!("---- {} ----\n{}", case.shown(), output.join("\n"));
                    }
                    let took = begun.elapsed();
                    if case.group == CONTAINERS {
                        containers.fetch_sub(1, Ordering::SeqCst);
                    }
                    ended.push(Ended { case, took, failed });
                }
            });
        }
    });
    ended.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the next case that may run beside the running ones, if there is one. The last container tests are run by the
/// threads that have run the ones before them.
fn next(waiting: &Mutex<VecDeque<Case>>, containers: &AtomicUsize) -> Option<Case> {
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    let all = containers.load(Ordering::SeqCst) >= CONTAINERS_AT_ONCE;
    let may_run = |case: &Case| !all || case.group != CONTAINERS;
    let number = waiting.iter().position(may_run)?;
    let case = waiting.remove(number)?;
    if case.group == CONTAINERS {
        containers.fetch_add(1, Ordering::SeqCst);
    }
    Some(case)
}

/// Prints the time of each group's tests, and the slowest tests.
fn print_times(stage: &Stage, ended: &mut [Ended]) {
    let mut groups: BTreeMap<&str, (usize, Duration)> = BTreeMap::new();
    for Ended { case, took, .. } in ended.iter() {
        let (tests, sum) = groups.entry(&case.group).or_default();
        *tests += 1;
        *sum += *took;
    }
    for (group, (tests, sum)) in groups {
        stage.say(&format!(
            "{group}: {tests} tests, {:.1} s",
            sum.as_secs_f64()
        ));
    }
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
    use super::run_so_many;
    use crate::case::tests::{PASSES, case, fails};
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
        let result = run_so_many(&mut stage, cases.collect(), 2);
        let mut report = stage.finish(result.map(drop));
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
