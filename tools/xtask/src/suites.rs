//! Runs the test suites, with the settings that each suite needs.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::case::Case;
use crate::containers::{self, DEV_COMMAND_IMAGE, DEV_IMAGE};
use crate::docker::{self, Compose};
use crate::programs::{Built, Kind, Program, names};
use crate::published::{CLI, PUBLISHED};
use crate::stage::Stage;
use crate::together::{self, EVERYTHING};
use crate::{chaos, images, packages, pool, process, setup, simulate, tools};

/// The test file that needs the Docker Engine.
const CONTAINERS: &str = "containers";
/// The test file that suffices for old versions of etcd.
pub(crate) const SMOKE: &str = "smoke";
/// The tests of the whole stack in virtual time.
const STACK: &str = "cluster";
/// The example of a team's own failover tests, which builds its image by itself.
const FAILOVER: &str = "failover";
/// The end of the names of packages that are examples.
const EXAMPLE: &str = "-example";
/// The examples in the documentation of all packages, as one case: the compiler makes one program of all those of a package.
const DOC: (&str, &str) = ("doc", "examples");
/// The test whose ten thousand cycles run only on request.
const CYCLES: &str = "cycles";

/// Test files about the command, the tools, the examples and the log, or about the machine more than etcd. One version
/// of etcd is enough for them.
const ON_ONE_VERSION: [&str; 12] = [
    "cli",
    "compiler",
    "examples",
    "fuzzing",
    "http",
    "logs",
    "page",
    "route",
    "serve",
    "supervise",
    "testing",
    "tls",
];

/// Unit tests, by program and beginning of their names, that start an etcd or other processes, or wait for sockets: the stage
/// `tests` runs them.
const REAL: [(&str, &str); 5] = [
    ("eldest", "driver::watches::tests::"),
    ("eldest_etcd", "pool::tests::"),
    ("eldest_peers", "tests::"),
    ("eldest_route", "tests::"),
    ("eldest_testing", ""),
];

/// The lab's package whose tests only the stages `long` and `leaks` run.
const LONG_PACKAGE: &str = "eldest-long";
/// Tests beside others of the first tier that take so long, or so much of the machine, that only the stage `long` runs them.
const LONG: [&str; 16] = [
    "auth::changes::",
    "auth::many::",
    "cli::pages::",
    "conformance::walk::other_",
    "faults::balancer::",
    "faults::moving::",
    "faults::nearest::",
    "faults::relisted::all_endpoints_",
    "guards::failing::",
    "guards::further::",
    "guards::leaks::",
    "guards::lives::",
    "page::",
    "serve::clients::",
    "supervise::chaos::",
    "testing::cluster::",
];
/// The tests of the others that take longest, so that no processor waits for a last one of them.
const SLOW: [&str; 8] = [
    "doc::",
    "cli::doctor::",
    "logs::connection::",
    "eldest_etcd::pool::tests::watches::",
    "conformance::walk::",
    "serve::guarded::",
    "api::challenges::",
    "faults::",
];
/// The failover tests of the design, and the compose file. The stage `containers` has them and all others.
const FAILOVERS: [&str; 2] = [
    "containers::node_faults::",
    "containers::walk::the_demo_comes_up",
];

/// The variable that says to the tests of the examples that those are built.
const EXAMPLES: &str = "ELDEST_EXAMPLES_ARE_BUILT";
/// The variable that names the etcd which the tests start.
const ETCD: &str = "ELDEST_ETCD_BIN";

/// The settings of Go for the hundreds of etcds that the tests start, each for seconds: with one thread, and without collecting
/// garbage before it needs so much memory, an etcd starts with a third of a processor's time.
const OF_GO: [(&str, &str); 3] = [
    ("GOMAXPROCS", "1"),
    ("GOGC", "off"),
    ("GOMEMLIMIT", "256MiB"),
];
/// The variables that name the two generations of docker-compose.
const COMPOSE_V1: &str = "ELDEST_COMPOSE_V1";
const COMPOSE_V2: &str = "ELDEST_COMPOSE_V2";
/// The variables that name the images of the node and of the command.
const NODE_IMAGE: &str = "ELDEST_NODE_IMAGE";
const COMMAND_IMAGE: &str = "ELDEST_COMMAND_IMAGE";
/// Runs the stage `build`. The other stages also build their needs when they run by themselves.
pub(crate) fn build(stage: &mut Stage) -> Result<()> {
    together::build(stage, &EVERYTHING)?;
    together::build_xtask(stage)?;
    Ok(())
}

/// Runs the stage `unit`.
pub(crate) fn unit(stage: &mut Stage) -> Result<()> {
    let built = together::build(stage, &["--lib", "--bins", "--tests"])?;
    let xtask = together::build_xtask(stage)?;
    for built in [built, xtask] {
        ensure!(
            !built.tests(Kind::UnitTests, |_| true).is_empty(),
            "cargo has built no unit tests"
        );
        unit_tests(stage, &built, |_| true)?;
    }
    Ok(())
}

/// Runs the unit tests of the chosen programs that need only a processor.
pub(crate) fn unit_tests(
    stage: &mut Stage,
    built: &Built,
    of: impl Fn(&Program) -> bool,
) -> Result<()> {
    for program in built.tests(Kind::UnitTests, of) {
        let real = REAL.iter().filter(|(name, _)| *name == program.name);
        let is_real = |test: &&str| real.clone().any(|(_, begins)| test.starts_with(begins));
        let listed = stage.output(&mut program.listing())?;
        // A part of a name would skip tests of other modules too.
        let mut tests = program.command();
        tests.arg("--exact");
        for test in names(&listed).filter(is_real) {
            tests.args(["--skip", test]);
        }
        // Some programs have no tests.
        stage.unit_tests(&program.name, &mut tests)?;
    }
    Ok(())
}

/// Returns the case of the examples in the documentation. Some lead by real time, so they run as the other tests do, and not at the
/// lowest priority.
fn in_documentation(stage: &Stage) -> Result<Case> {
    let (group, name) = DOC;
    Ok(Case::compiled(group, name, together::doc_tests(stage)?))
}

/// Runs the stage `tests`: all tests of a real etcd, of processes, of sockets and of containers that take seconds.
pub(crate) fn tests(stage: &mut Stage) -> Result<()> {
    let built = together::build(stage, &EVERYTHING)?;
    let settings = with_tools(stage)?;
    let in_pool = |program: &Program| {
        ![CONTAINERS, FAILOVER, STACK, simulate::TESTS].contains(&program.name.as_str())
    };
    let in_pool = built.tests(Kind::Tests, in_pool);
    let mut cases = without(self::cases(stage, in_pool, &settings)?, &LONG);
    for (name, beginning) in REAL {
        let is_real = |program: &Program| program.name == name && program.package != CLI;
        let units = built.tests(Kind::UnitTests, is_real);
        let units = self::cases(stage, units, &settings)?;
        cases.extend(only(units, &[&format!("{name}::{beginning}")]));
    }
    cases.push(in_documentation(stage)?);
    // Failovers are the slowest of all, and each takes a place among the few with containers.
    cases.sort_by_key(|case| !begins(case, &SLOW));
    containers::with_engine(stage, &built, |stage, compose| {
        match compose.and_then(|compose| failovers(stage, &built, &compose)) {
            Ok(failovers) => drop(cases.splice(0..0, failovers)),
            // The other tests still run.
            Err(error) => stage.fail(format!("no failover in containers: {error:#}")),
        }
        pool::run(stage, cases)
    })
}

/// Returns the failover tests of the design in containers, and the compose file.
fn failovers(stage: &Stage, built: &Built, compose: &Compose) -> Result<Vec<Case>> {
    images::node::make(stage, built)?;
    let mut settings = setup::program("settings");
    with_compose(&mut settings, compose);
    Ok(only(in_containers(stage, built, &settings)?, &FAILOVERS))
}

/// Runs the stage `long`.
pub(crate) fn long(stage: &mut Stage) -> Result<()> {
    let built = together::build(stage, &EVERYTHING)?;
    let mut settings = with_tools(stage)?;
    tools::find_more(stage, &mut settings);
    let of_product = built.tests(Kind::Tests, |_| true);
    let mut all = only(cases(stage, of_product, &settings)?, &LONG);
    let lab = together::build_lab(stage)?;
    let of_lab = lab.tests(Kind::Tests, |program| program.package == LONG_PACKAGE);
    all.extend(cases(stage, of_lab, &settings)?);
    pool::run_heavy(stage, all)
}

/// Runs the tests whose names begin like that, whichever stage usually runs them.
pub(crate) fn named(stage: &mut Stage, beginnings: &[&str]) -> Result<()> {
    let is_named = |program: &Program| {
        let mut names = beginnings.iter();
        names.any(|name| name.split("::").next() == Some(&program.name))
    };
    let mut settings = with_tools(stage)?;
    tools::find_more(stage, &mut settings);
    let built = together::build(stage, &EVERYTHING)?;
    if beginnings.iter().any(|name| name.starts_with(CONTAINERS)) {
        images::node::make(stage, &built)?;
        with_compose(&mut settings, &docker::compose(stage)?);
    }
    let search = |built: &Built| -> Result<Vec<Case>> {
        let kinds = [Kind::Tests, Kind::UnitTests];
        let programs = kinds.iter().flat_map(|kind| built.tests(*kind, is_named));
        Ok(only(cases(stage, programs, &settings)?, beginnings))
    };
    let mut found = search(&built)?;
    found.extend(only(vec![in_documentation(stage)?], beginnings));
    if found.is_empty() {
        found = search(&together::build_xtask(stage)?)?;
    }
    if found.is_empty() {
        found = search(&together::build_lab(stage)?)?;
    }
    ensure!(
        !found.is_empty(),
        "there is no test whose name begins with {}",
        beginnings.join(" or ")
    );
    pool::run(stage, found)
}

/// Returns the tests of the chosen programs, one case each.
fn cases<'a>(
    stage: &Stage,
    programs: impl IntoIterator<Item = &'a Program>,
    settings: &Command,
) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for program in programs {
        let ignored = stage.output(program.listing().arg("--ignored"))?;
        let ignored: Vec<&str> = names(&ignored).collect();
        let all = stage.output(&mut program.listing())?;
        let run = names(&all).filter(|test| !ignored.contains(test));
        cases.extend(run.map(|test| Case::test(program, test, settings)));
    }
    Ok(cases)
}

fn begins(case: &Case, beginnings: &[&str]) -> bool {
    let name = case.shown();
    beginnings.iter().any(|start| name.starts_with(start))
}

fn only(mut cases: Vec<Case>, beginnings: &[&str]) -> Vec<Case> {
    cases.retain(|case| begins(case, beginnings));
    cases
}

fn without(mut cases: Vec<Case>, beginnings: &[&str]) -> Vec<Case> {
    cases.retain(|case| !begins(case, beginnings));
    cases
}

/// Returns the tests of the chosen programs with that etcd, without those that take minutes, which the stage `long` runs.
pub(crate) fn on_version(
    stage: &Stage,
    programs: &[&Program],
    tools: &Command,
    (series, etcd): (&str, &Path),
) -> Result<Vec<Case>> {
    let mut settings = setup::program("settings");
    process::set_variables_of(tools, &mut settings);
    settings.env(ETCD, etcd);
    let cases = cases(stage, programs.iter().copied(), &settings)?;
    let cases = without(cases, &LONG).into_iter();
    let of = cases.map(|case| case.of(&format!("etcd {series}"), "cargo xtask verify versions"));
    Ok(of.collect())
}

/// Returns true for the tests that depend on etcd's version: all in the folders `tests` of the published packages,
/// without those that need containers.
pub(crate) fn depends_on_etcd(program: &Program) -> bool {
    let name = program.name.as_str();
    let published = PUBLISHED.contains(&program.package.as_str());
    published && name != CONTAINERS && !ON_ONE_VERSION.contains(&name)
}

/// Returns the settings of tests: the paths of external programs, including protoc, and that the examples are built.
pub(crate) fn with_tools(stage: &Stage) -> Result<Command> {
    let mut settings = setup::cargo([])?;
    tools::find(stage, &mut settings);
    settings.env(EXAMPLES, "1");
    settings.envs(OF_GO);
    Ok(settings)
}

/// Runs the stage `examples`: those with a client of their own, which the first tier does not build.
pub(crate) fn examples(stage: &mut Stage) -> Result<()> {
    let built = together::build_lab(stage)?;
    let mut settings = setup::program("settings");
    tools::add_postgres(stage, &mut settings);
    let is_example = |program: &Program| program.package.ends_with(EXAMPLE);
    unit_tests(stage, &built, is_example)?;
    let cases = cases(stage, built.tests(Kind::Tests, is_example), &settings)?;
    pool::run(stage, cases)
}

/// Runs the stage `chaos`.
pub(crate) fn chaos(stage: &mut Stage) -> Result<()> {
    // Data centres are network namespaces, which only Linux has.
    if cfg!(target_os = "linux") {
        packages::ensure(stage, &[("ip", "iproute2"), ("nsenter", "util-linux")])?;
    }
    let built = together::build_lab(stage)?;
    let mut settings = setup::program("settings");
    tools::add_faketime(stage, &mut settings);
    let harness = |program: &Program| program.package == chaos::PACKAGE;
    unit_tests(stage, &built, harness)?;
    let cases = cases(stage, built.tests(Kind::Tests, harness), &settings)?;
    pool::run_heavy(stage, cases)
}

/// Runs the stage `stack`.
pub(crate) fn stack(stage: &mut Stage) -> Result<()> {
    in_lab(stage, STACK, &[])
}

/// Runs the stage `leaks`: ten thousand cycles on a good network and on one that flaps.
pub(crate) fn leaks(stage: &mut Stage) -> Result<()> {
    in_lab(stage, CYCLES, &["--ignored", "--nocapture"])
}

fn in_lab(stage: &mut Stage, name: &str, options: &[&str]) -> Result<()> {
    let built = together::build_lab(stage)?;
    for program in built.tests(Kind::Tests, |program| program.name == name) {
        stage.tests(program.command().args(options))?;
    }
    Ok(())
}

/// Runs the stage `containers`: all tests that need the Docker Engine, with the images that the Dockerfile describes.
pub(crate) fn containers(stage: &mut Stage) -> Result<()> {
    let built = together::build(stage, &EVERYTHING)?;
    containers::with_engine(stage, &built, |stage, compose| {
        let compose = compose?;
        containers::build(stage, &compose)?;
        // The example of a team's own tests builds its service by cargo.
        let mut settings = setup::cargo([])?;
        with_compose(&mut settings, &compose);
        settings.env(NODE_IMAGE, DEV_IMAGE);
        settings.env(COMMAND_IMAGE, DEV_COMMAND_IMAGE);
        let all = in_containers(stage, &built, &settings)?;
        pool::run(stage, all)
    })
}

fn in_containers(stage: &Stage, built: &Built, settings: &Command) -> Result<Vec<Case>> {
    let chosen = |program: &Program| [CONTAINERS, FAILOVER].contains(&program.name.as_str());
    cases(stage, built.tests(Kind::Tests, chosen), settings)
}

fn with_compose(settings: &mut Command, compose: &Compose) {
    settings.env(COMPOSE_V1, &compose.v1);
    settings.env(COMPOSE_V2, &compose.v2);
}
