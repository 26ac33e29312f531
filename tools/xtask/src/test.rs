//! Runs stages of a tier, one after the other or side by side, and prints a table of their results.

use std::panic::resume_unwind;
use std::process::ExitCode;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::limit::Limit;
use crate::stage::{DEFAULT_LIMIT, Report, Stage};
use crate::stages::{self, CHECK, Entry, Tier};
use crate::suites;
use crate::tally::Tally;

/// The request on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Asked {
    /// Stages, or tests by the beginnings of their names
    #[arg(value_parser = Name::parse)]
    names: Vec<Name>,
    #[command(flatten)]
    limit: StageLimit,
}

/// The time without progress after which a stage is killed.
#[derive(Debug, clap::Args)]
pub(crate) struct StageLimit {
    /// The seconds without progress after which a stage is killed
    #[arg(long = "limit", value_name = "SECONDS", default_value_t = DEFAULT_LIMIT.as_secs())]
    seconds: u64,
}

impl StageLimit {
    pub(crate) fn get(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

/// A name on the command line.
#[derive(Debug, Clone)]
enum Name {
    Stage(&'static str),
    /// The beginning of the names of tests, whichever stage runs them.
    Tests(String),
}

impl Name {
    fn parse(name: &str) -> Result<Self> {
        if name.contains("::") {
            return Ok(Self::Tests(name.to_owned()));
        }
        stages::named(Tier::Test, name).map(Self::Stage)
    }
}

/// Runs `cargo xtask check`.
pub(crate) fn check() -> ExitCode {
    finish(&run_all(CHECK.iter(), DEFAULT_LIMIT))
}

/// Runs `cargo xtask test`.
pub(crate) fn run(asked: &Asked) -> Result<ExitCode> {
    let (mut named, mut tests) = (Vec::new(), Vec::new());
    for name in &asked.names {
        match name {
            Name::Stage(stage) => named.push(*stage),
            Name::Tests(beginning) => tests.push(beginning.as_str()),
        }
    }
    ensure!(
        named.is_empty() || tests.is_empty(),
        "either stages or tests can be named"
    );
    if !tests.is_empty() {
        let mut stage = Stage::start("named", asked.limit.get());
        let result = suites::named(&mut stage, &tests);
        let mut report = stage.finish(result);
        report.retry();
        return Ok(finish(&[report]));
    }
    let wanted = |entry: &&Entry| named.is_empty() || named.contains(&entry.name);
    let entries = stages::of(Tier::Test).filter(wanted);
    Ok(finish(&run_all(entries, asked.limit.get())))
}

/// A stage that runs beside others, and the stage before which it ends, if not the last.
struct Beside {
    ends_before: Option<&'static str>,
    limit: Limit,
    thread: JoinHandle<Report>,
}

impl Beside {
    fn start(entry: &'static Entry, limit: Duration) -> Self {
        let limit = Limit::held_back(limit);
        let stage = Stage::beside(entry.name, limit.clone());
        Self {
            ends_before: entry.ends_before,
            limit,
            thread: thread::spawn(move || run_one(entry, stage)),
        }
    }

    /// Waits for the stage, which nothing holds back any more.
    fn join(self) -> Report {
        self.limit.begin();
        let joined = self.thread.join();
        joined.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

fn run_one(entry: &Entry, mut stage: Stage) -> Report {
    stage.say(entry.about);
    let result = (entry.run)(&mut stage);
    stage.finish(result)
}

/// Runs those stages. Each one runs after failures of earlier ones, unless it needs their results. Then the failed
/// tests that may be repeated run once more.
pub(crate) fn run_all(
    entries: impl Iterator<Item = &'static Entry>,
    limit: Duration,
) -> Vec<Report> {
    let mut reports: Vec<Report> = Vec::new();
    let mut beside: Vec<Beside> = Vec::new();
    let mut without: Option<&str> = None;
    for entry in entries {
        let due = beside.extract_if(.., |other| other.ends_before == Some(entry.name));
        reports.extend(due.map(Beside::join));
        if let Some(missing) = without {
            reports.push(Report::not_run(entry.name, missing));
            continue;
        }
        if entry.is_beside {
            beside.push(Beside::start(entry, limit));
            continue;
        }
        let report = run_one(entry, Stage::start(entry.name, limit));
        if entry.is_needed && !report.failures.is_empty() {
            without = Some(entry.name);
        }
        reports.push(report);
    }
    reports.extend(beside.into_iter().map(Beside::join));
    for report in &mut reports {
        report.retry();
    }
    reports
}

/// Prints the table, and returns the exit code.
pub(crate) fn finish(reports: &[Report]) -> ExitCode {
    print!("{}", table(reports));
    if reports.iter().any(|report| !report.failures.is_empty()) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Formats the closing table, the failures, the parts that were left out, and one plain line with the sums.
fn table(reports: &[Report]) -> String {
    let mut lines = vec![format!(
        "\n{:<12} {:<8} {:>7} {:>7} {:>8} {:>8}",
        "stage", "result", "passed", "failed", "ignored", "seconds"
    )];
    let mut sum = Tally::default();
    for report in reports {
        let Tally {
            passed,
            failed,
            ignored,
        } = report.tally;
        let seconds = report.took.as_secs_f64();
        lines.push(format!(
            "{:<12} {:<8} {passed:>7} {failed:>7} {ignored:>8} {seconds:>8.1}",
            report.name,
            report.result()
        ));
        sum += report.tally;
    }
    lines.push(String::new());
    for report in reports {
        for (result, details) in [
            ("FAILED", &report.failures),
            ("flaky", &report.flaky),
            ("skipped", &report.skips),
        ] {
            let named = details
                .iter()
                .map(|it| format!("{result} {}: {it}", report.name));
            lines.extend(named);
        }
    }
    let Tally { passed, failed, .. } = sum;
    lines.push(format!("{passed} passed, {failed} failed\n"));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::{finish, table};
    use crate::stage::Report;
    use crate::tally::Tally;

    fn report(name: &'static str, passed: u64, failed: u64) -> Report {
        Report {
            name,
            tally: Tally {
                passed,
                failed,
                ignored: 0,
            },
            failures: (0..failed).map(|n| format!("failure {n}")).collect(),
            flaky: vec![format!("{name} was late")],
            skips: vec![format!("not all of {name}")],
            ..Report::default()
        }
    }

    #[test]
    fn the_last_line_is_the_plain_sum_and_skips_are_reported() {
        let text = table(&[report("unit", 5, 0), report("versions", 7, 2)]);
        assert_eq!(text.lines().last(), Some("12 passed, 2 failed"));
        assert!(text.contains("FAILED versions: failure 1"), "{text}");
        assert!(text.contains("flaky unit: unit was late"), "{text}");
        assert!(text.contains("skipped unit: not all of unit"), "{text}");
    }

    #[test]
    fn a_failure_of_any_stage_is_a_failure_of_all() {
        let code = |code| format!("{code:?}");
        let green = finish(&[report("unit", 5, 0)]);
        let red = finish(&[report("unit", 5, 0), report("tests", 1, 1)]);
        assert_eq!(code(green), code(std::process::ExitCode::SUCCESS));
        assert_eq!(code(red), code(std::process::ExitCode::FAILURE));
    }
}
