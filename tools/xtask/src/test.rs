//! Defines the stages and their order, runs them, and prints a summary of their results.

use std::fmt::Write as _;
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::stage::{DEFAULT_LIMIT, Report, Stage};
use crate::tally::Tally;
use crate::{
    api, bench, checks, consumer, deny, docker, imports, manifests, matrix, model, simulate, suites,
};

struct Entry {
    name: &'static str,
    about: &'static str,
    /// Runs when no stage is named.
    by_default: bool,
    /// Runs beside the stages after it, on what they leave of the machine, and has ended before this one starts.
    ends_before: Option<&'static str>,
    run: fn(&mut Stage) -> Result<()>,
}

const STAGES: &[Entry] = &[
    // Beside stages without a test that could be late, and with commands that leave a core idle.
    beside(
        UNIT,
        stage(
            "prepare",
            "images, and the programs of others that tests need: fetched or made beside the stages after it",
            docker::prepare,
        ),
    ),
    stage(
        "lint",
        "formatting and clippy, of all packages with all features",
        checks::lint,
    ),
    stage(
        "docs",
        "the documentation builds without a warning, and every link of the pages leads somewhere",
        checks::docs,
    ),
    stage(
        "api",
        "the public interface of each library is the one listed in docs/api",
        api::stage,
    ),
    stage(
        "imports",
        "which room imports which, as ARCHITECTURE.md says; no import circle in any package",
        imports::stage,
    ),
    stage(
        "build",
        "all tests, programs and examples at once, so that no core waits for a last one",
        suites::build,
    ),
    stage(
        "model",
        "every state of the protocol's model, and what each rule is for",
        model::stage,
    ),
    stage(
        "simulate",
        "the core against a model of etcd: its rules, random faults from seeds, mutations",
        simulate::stage,
    ),
    stage(
        UNIT,
        "unit tests of all libraries and of the command",
        suites::unit,
    ),
    stage(
        "integration",
        "tests/ and the etcd of simulated time against etcd 3.7, doctests, examples, the tools' tests",
        suites::integration,
    ),
    beside(
        BENCH,
        stage(
            "msrv",
            "every dependency declares a Rust version not above ours",
            checks::msrv,
        ),
    ),
    beside(
        BENCH,
        stage(
            "deny",
            "licences, bans and sources of all dependencies, by deny.toml; advisories if cargo-deny is there",
            deny::stage,
        ),
    ),
    beside(
        BENCH,
        stage(
            "consumer",
            "README's program against the package as it would be published, AWS' cryptography; dependencies counted",
            consumer::run,
        ),
    ),
    beside(
        BENCH,
        stage(
            "manifests",
            "the Helm chart, and the kustomize bases rendered from it, against the schema, if Python is there",
            manifests::stage,
        ),
    ),
    stage(
        "chaos",
        "every fault of the harness on a real cluster, and one random pair",
        suites::chaos,
    ),
    stage(
        BENCH,
        "requests and allocations counted, a few ratios to bare calls of etcd; the tests of the benches",
        bench::stage,
    ),
    beside(
        CONTAINERS,
        stage(
            "features",
            "clippy of the library for each feature by itself, and of what is built without the others",
            checks::features,
        ),
    ),
    beside(
        CONTAINERS,
        stage(
            "stack",
            "hours of a cluster's life in simulated time",
            suites::stack,
        ),
    ),
    stage(
        "versions",
        "what depends on etcd's version against 3.5 and 3.6, the smoke test against 3.4, an upgrade",
        matrix::versions,
    ),
    when_named(stage(
        CHECK,
        "formatting, clippy, unit tests and a short simulation (parts of the others)",
        checks::quick,
    )),
    when_named(stage(
        "smoke",
        "the smoke test alone, against etcd 3.4 and 3.7 (part of the others)",
        matrix::smoke,
    )),
    stage(
        CONTAINERS,
        "images, then tests/containers on the Docker Engine, which is started if need be",
        docker::stage,
    ),
];

const fn stage(
    name: &'static str,
    about: &'static str,
    run: fn(&mut Stage) -> Result<()>,
) -> Entry {
    Entry {
        name,
        about,
        by_default: true,
        ends_before: None,
        run,
    }
}

const fn beside(ends_before: &'static str, mut stage: Entry) -> Entry {
    stage.ends_before = Some(ends_before);
    stage
}

const fn when_named(mut stage: Entry) -> Entry {
    stage.by_default = false;
    stage
}

/// The first stage with tests that run in real time.
const UNIT: &str = "unit";
/// Compares times, so nothing runs beside it.
const BENCH: &str = "bench";

/// Its containers are outside of what a priority of ours says.
const CONTAINERS: &str = "containers";

/// The stage of `cargo xtask check`.
const CHECK: &str = "check";

/// `cargo xtask check`: what a contributor runs again and again.
pub(crate) fn check(args: &[String]) -> Result<ExitCode> {
    ensure!(
        args.is_empty(),
        "`cargo xtask check` takes no arguments, not `{}`; `cargo xtask test` takes the names of stages",
        args.join(" ")
    );
    run(&[CHECK.to_owned()])
}

/// One line for each stage.
pub(crate) fn describe() -> String {
    STAGES.iter().fold(String::new(), |mut text, stage| {
        let _ = writeln!(text, "  {:<12} {}", stage.name, stage.about);
        text
    })
}

/// Runs the stages named, or all.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let (names, limit) = parse(args)?;
    let all = names.is_empty();
    let mut reports = Vec::new();
    let mut beside = Vec::new();
    for entry in STAGES {
        let due = beside.extract_if(.., |(before, _)| *before == entry.name);
        reports.extend(due.map(|(_, stage)| joined(stage)));
        let asked_for = names.iter().any(|name| name == entry.name);
        let runs = asked_for || (all && entry.by_default);
        if !runs {
            continue;
        }
        let run = move || {
            let mut stage = Stage::start(entry.name, asked_for, limit);
            stage.yields = entry.ends_before.is_some();
            stage.say(entry.about);
            let result = (entry.run)(&mut stage);
            stage.finish(result)
        };
        match entry.ends_before {
            Some(other) => beside.push((other, thread::spawn(run))),
            None => reports.push(run()),
        }
    }
    reports.extend(beside.into_iter().map(|(_, stage)| joined(stage)));
    for report in &mut reports {
        report.retry();
    }
    print!("{}", table(&reports));
    let failed = reports.iter().any(|report| !report.failures.is_empty());
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn joined(stage: JoinHandle<Report>) -> Report {
    stage.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// The stages and the limit that these arguments name.
pub(crate) fn parse(args: &[String]) -> Result<(Vec<String>, Duration)> {
    let mut names = Vec::new();
    let mut limit = DEFAULT_LIMIT;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--limit" {
            let seconds = args.next().and_then(|seconds| seconds.parse().ok());
            limit = Duration::from_secs(seconds.context("--limit takes a number of seconds")?);
        } else if STAGES.iter().any(|stage| stage.name == arg) {
            names.push(arg.clone());
        } else {
            bail!("there is no stage `{arg}`; the stages are\n{}", describe());
        }
    }
    Ok((names, limit))
}

/// The closing table, what failed, what was left out, and one plain line with the sums.
fn table(reports: &[Report]) -> String {
    let mut text = String::new();
    let mut sum = Tally::default();
    let mut line = |parts: std::fmt::Arguments| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{parts}");
    };
    line(format_args!(
        "\n{:<12} {:<8} {:>7} {:>7} {:>8} {:>8}",
        "stage", "result", "passed", "failed", "ignored", "seconds"
    ));
    for report in reports {
        let Tally {
            passed,
            failed,
            ignored,
        } = report.tally;
        let seconds = report.took.as_secs_f64();
        line(format_args!(
            "{:<12} {:<8} {passed:>7} {failed:>7} {ignored:>8} {seconds:>8.1}",
            report.name,
            report.result()
        ));
        sum += report.tally;
    }
    line(format_args!(""));
    for report in reports {
        for failure in &report.failures {
            line(format_args!("FAILED {}: {failure}", report.name));
        }
        for flaky in &report.flaky {
            line(format_args!("flaky {}: {flaky}", report.name));
        }
        for skip in &report.skips {
            line(format_args!("skipped {}: {skip}", report.name));
        }
    }
    line(format_args!("{} passed, {} failed", sum.passed, sum.failed));
    text
}

#[cfg(test)]
mod tests {
    use super::{STAGES, parse, table};
    use crate::stage::{DEFAULT_LIMIT, Report};
    use crate::tally::Tally;
    use std::time::Duration;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn stages_and_a_limit_are_understood() {
        let (names, limit) = parse(&words("lint --limit 90 unit")).unwrap();
        assert_eq!(names, ["lint", "unit"]);
        assert_eq!(limit, Duration::from_secs(90));
        assert_eq!(parse(&[]).unwrap(), (Vec::new(), DEFAULT_LIMIT));
    }

    #[test]
    fn an_unknown_stage_is_refused_with_the_list() {
        let error = parse(&words("lint nope")).unwrap_err().to_string();
        assert!(
            error.contains("nope") && error.contains("integration"),
            "{error}"
        );
        assert!(parse(&words("--limit soon")).is_err());
    }

    #[test]
    fn stage_names_are_unique() {
        let mut names: Vec<_> = STAGES.iter().map(|stage| stage.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STAGES.len());
    }

    #[test]
    fn what_runs_beside_others_ends_before_a_later_stage() {
        let position = |name| STAGES.iter().position(|stage| stage.name == name);
        for (at, stage) in STAGES.iter().enumerate() {
            if let Some(before) = stage.ends_before {
                assert!(position(before) > Some(at + 1), "{}", stage.name);
            }
        }
    }

    #[test]
    fn the_last_line_is_the_plain_sum_and_skips_are_told() {
        let report = |name, passed, failed| Report {
            name,
            tally: Tally {
                passed,
                failed,
                ignored: 0,
            },
            failures: (0..failed).map(|n| format!("failure {n}")).collect(),
            retries: Vec::new(),
            flaky: vec![format!("{name} was late")],
            skips: vec![format!("not all of {name}")],
            took: Duration::from_millis(1500),
        };
        let text = table(&[report("unit", 5, 0), report("versions", 7, 2)]);
        assert_eq!(text.lines().last(), Some("12 passed, 2 failed"));
        assert!(text.contains("FAILED versions: failure 1"), "{text}");
        assert!(text.contains("flaky unit: unit was late"), "{text}");
        assert!(text.contains("skipped unit: not all of unit"), "{text}");
    }
}
