//! Runs stages of a tier, one after the other or side by side, and prints a table of their results.

use std::panic::resume_unwind;
use std::process::ExitCode;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::process;
use crate::stage::{DEFAULT_LIMIT, Report, Stage, Tally};
use crate::stages::{self, CHECK, Entry, TEST, Way};
use crate::suites;

/// The request on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Asked {
    /// Stages, or tests by the beginnings of their names
    #[arg(value_parser = checked)]
    names: Vec<String>,
    /// The seconds without progress after which a stage is killed
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_LIMIT.as_secs())]
    limit: u64,
}

/// Refuses a name without `::` that is not a stage's.
fn checked(name: &str) -> Result<String> {
    if !name.contains("::") {
        stages::named(TEST, name)?;
    }
    Ok(name.to_owned())
}

/// Runs `cargo xtask check`.
pub(crate) fn check() -> ExitCode {
    finish(&run_all(CHECK.iter(), DEFAULT_LIMIT))
}

/// Runs `cargo xtask test`.
pub(crate) fn run(asked: &Asked) -> Result<ExitCode> {
    let given = asked.names.iter().map(String::as_str);
    let (tests, named): (Vec<&str>, Vec<&str>) = given.partition(|name| name.contains("::"));
    let limit = Duration::from_secs(asked.limit);
    ensure!(
        named.is_empty() || tests.is_empty(),
        "either stages or tests can be named"
    );
    if !tests.is_empty() {
        let mut stage = Stage::start("named", limit);
        let result = suites::named(&mut stage, &tests);
        let mut report = stage.finish(result);
        report.retry();
        return Ok(finish(&[report]));
    }
    let wanted = |entry: &&Entry| named.is_empty() || named.contains(&entry.name);
    let entries = TEST.iter().filter(wanted);
    Ok(finish(&run_all(entries, limit)))
}

fn run_one(entry: &Entry, limit: Duration) -> Report {
    let mut stage = Stage::start(entry.name, limit);
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
    let mut beside: Vec<(&Entry, JoinHandle<Report>)> = Vec::new();
    let join = |(_, thread): (&Entry, JoinHandle<Report>)| {
        let joined = thread.join();
        joined.unwrap_or_else(|panic| resume_unwind(panic))
    };
    let mut without: Option<&str> = None;
    for entry in entries {
        let is_due = |(other, _): &mut (&Entry, _)| other.way == Way::BesideUntil(entry.name);
        reports.extend(beside.extract_if(.., is_due).map(join));
        if let Some(missing) = without {
            reports.push(Report::not_run(entry.name, missing));
            continue;
        }
        if matches!(entry.way, Way::Beside | Way::BesideUntil(_)) {
            let run = move || process::beside(|| run_one(entry, limit));
            beside.push((entry, thread::spawn(run)));
            continue;
        }
        let report = run_one(entry, limit);
        if entry.way == Way::Needed && !report.failures.is_empty() {
            without = Some(entry.name);
        }
        reports.push(report);
    }
    reports.extend(beside.into_iter().map(join));
    for report in &mut reports {
        report.retry();
    }
    reports
}

/// Prints the table, and returns the exit code.
pub(crate) fn finish(reports: &[Report]) -> ExitCode {
    print!("{}", table(reports));
    let is_red = reports.iter().any(|report| !report.failures.is_empty());
    ExitCode::from(u8::from(is_red))
}

/// Formats the closing table, the failures, the parts that were left out, and one plain line with the sums.
fn table(reports: &[Report]) -> String {
    let mut lines = vec![format!(
        "\n{:<12} {:<8} {:>7} {:>7} {:>8} {:>8}",
        "stage", "result", "passed", "failed", "ignored", "seconds"
    )];
    let mut sum = Tally::default();
    for report in reports {
        let (name, result, it) = (report.name, report.result(), report.tally);
        let seconds = report.took.as_secs_f64();
        lines.push(format!(
            "{name:<12} {result:<8} {:>7} {:>7} {:>8} {seconds:>8.1}",
            it.passed, it.failed, it.ignored
        ));
        sum += it;
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
    lines.push(format!("{} passed, {} failed\n", sum.passed, sum.failed));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::{finish, table};
    use crate::stage::{DEFAULT_LIMIT, Stage};
    use std::process::ExitCode;

    #[test]
    fn the_last_line_is_the_plain_sum_and_a_failure_of_any_stage_is_one_of_all() {
        let mut green = Stage::start("unit", DEFAULT_LIMIT);
        green.pass("one");
        green.skip("not all");
        let mut reports = vec![green.finish(Ok(()))];
        assert_eq!(finish(&reports), ExitCode::SUCCESS);
        let red = Stage::start("versions", DEFAULT_LIMIT);
        reports.push(red.finish(Err(anyhow::anyhow!("no images"))));
        assert_eq!(finish(&reports), ExitCode::FAILURE);
        let text = table(&reports);
        assert_eq!(text.lines().last(), Some("1 passed, 1 failed"));
        assert!(text.contains("FAILED versions: no images"), "{text}");
        assert!(text.contains("skipped unit: not all"), "{text}");
    }
}
