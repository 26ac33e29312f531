//! Runs the library's test suites through cargo, with the settings that each suite needs.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::compose::Compose;
use crate::fixed::COMMAND;
use crate::metadata::Metadata;
use crate::stage::{DEFAULT_LIMIT, Stage};
use crate::together::{build_all, test_all, test_package};
use crate::{chaos, packages, process, setup, tools};

/// The test file that needs the Docker Engine and has a stage of its own.
pub(crate) const CONTAINERS: &str = "containers";
/// The test file that is enough for old versions of etcd.
pub(crate) const SMOKE: &str = "smoke";

/// They test the command, the tools, the examples and the log; or the machine more than etcd. One version of etcd is
/// enough for them.
const ON_ONE_VERSION: [&str; 14] = [
    "burst",
    "cli",
    "cycles",
    "examples",
    "fuzzing",
    "http",
    "logs",
    "page",
    "partitions",
    "route",
    "serve",
    "supervise",
    "testing",
    "tls",
];

/// Names the etcdctl that tests use.
const ETCDCTL: &str = "ELDEST_ETCDCTL";
const ETCDCTL_NAME: &str = "etcdctl";
/// Set to 1, the tests with etcdctl are left out.
const NO_ETCDCTL: &str = "ELDEST_NO_ETCDCTL";

/// Tells the tests of the examples that those are built.
const EXAMPLES: &str = "ELDEST_EXAMPLES_ARE_BUILT";

/// Tests that wait for the next lookup of endpoints, for minutes, with next to no work: they run beside the other tests of
/// their file, and against one version of etcd.
const WAITING: (&str, &str) = ("faults", "moving::");
/// These files take longest. They begin first, so that no core waits for a last one.
const LONGEST: [&str; 3] = ["api", "faults", "http"];

/// Each integration test has an etcd of its own and mostly waits for its deadlines: on two cores, five at a time of each
/// of two files keep both busy. With three files of six, requests on a slow machine took longer than their timeouts.
const AT_ONCE: usize = 2;
const THREADS: &str = "--test-threads=5";

/// Each of these waits longer still, and has six containers or more.
const CONTAINER_THREADS: &str = "--test-threads=2";

/// Name the two generations of docker-compose.
const COMPOSE_V1: &str = "ELDEST_COMPOSE_V1";
const COMPOSE_V2: &str = "ELDEST_COMPOSE_V2";
/// Name the images of the node and of the command; without them, those of `cargo xtask images`.
const NODE_IMAGE: &str = "ELDEST_NODE_IMAGE";
const COMMAND_IMAGE: &str = "ELDEST_COMMAND_IMAGE";
/// The image that the compose file names and the Dockerfile makes.
#[cfg(test)]
pub(crate) const COMPOSE_IMAGE: &str = "eldest-node:0.1.0";
/// The same, made for the tests in less time: nobody's demo shall be slower for it.
pub(crate) const DEV_IMAGE: &str = "eldest-node-dev";
/// ... and the command alone.
pub(crate) const DEV_COMMAND_IMAGE: &str = "eldest-command-dev";

/// The tests of the whole stack: in virtual time, and of its etcd beside a real one.
const STACK: &str = "cluster";
const CONFORMANCE: &str = "conformance";
const DEMO: &str = "eldest-demo";
const NODE: &str = "eldest-node";
const FENCING: &str = "eldest-fencing-example";
const HANDOUT: &str = "eldest-handout-example";
const TELEMETRY: &str = "eldest-telemetry-example";
const GUARDED: &str = "eldest-guarded";

/// The stage `build`. The other stages build what they need too, when they run by themselves.
pub(crate) fn build(stage: &mut Stage) -> Result<()> {
    let all = ["--lib", "--bins", "--tests", "--examples"];
    stage.step(build_all(stage)?.args(all))?;
    Ok(())
}

/// The stage `unit`.
pub(crate) fn unit(stage: &mut Stage) -> Result<()> {
    stage.tests(test_all(stage)?.args(["--lib", "--bin", COMMAND]))?;
    Ok(())
}

/// The stage `integration`.
pub(crate) fn integration(stage: &mut Stage) -> Result<()> {
    let tests = all(stage, None);
    stage.step(test_all(stage)?.arg("--doc"))?;
    stage.side_by_side(
        &[DEMO, NODE, FENCING, HANDOUT, TELEMETRY, GUARDED],
        2,
        |part, package| {
            let mut tests = test_package(part, package)?;
            if package == FENCING {
                tools::add_postgres(part, &mut tests);
            }
            part.real_tests(&mut tests)?;
            Ok(())
        },
    );
    stage.tests(&mut setup::cargo(["test", "--package", "xtask"])?)?;
    tests
}

/// Everything in the folders `tests` that needs no containers, and the etcd of simulated time, against the vendored etcd;
/// against the one given, what depends on etcd's version.
pub(crate) fn all(stage: &mut Stage, etcd: Option<&Path>) -> Result<()> {
    let metadata = Metadata::of_workspace(stage)?;
    let mut tests: Vec<&str> = metadata
        .tests()
        .into_iter()
        .chain([CONFORMANCE])
        .filter(|name| *name != CONTAINERS)
        .filter(|name| etcd.is_none() || !ON_ONE_VERSION.contains(name))
        .collect();
    ensure!(!tests.is_empty(), "there is no test in tests/");
    let mut all = build_all(stage)?;
    for test in &tests {
        all.args(["--test", test]);
    }
    if let Some(etcd) = etcd {
        all.env("ELDEST_ETCD_BIN", etcd);
    }
    find_tools(stage, &mut all);
    all.env(EXAMPLES, "1");
    if !stage.step(all.arg("--examples"))? {
        return Ok(());
    }
    tests.sort_by_key(|test| !LONGEST.contains(test));
    let run = |part: &mut Stage, arguments: &[&str]| -> Result<()> {
        let mut one = test_all(part)?;
        process::set_variables_of(&all, &mut one);
        part.real_tests(one.arg("--test").args(arguments))?;
        Ok(())
    };
    let (waiting_file, waiting) = WAITING;
    let others =
        |part: &mut Stage, test: &str| run(part, &[test, "--", THREADS, "--skip", waiting]);
    if etcd.is_some() {
        // Other versions are tested beside one another already.
        stage.side_by_side(&tests, 1, others);
        return Ok(());
    }
    stage.side_by_side(&[waiting, "others"], 2, |part, which| {
        if which == waiting {
            return run(part, &[waiting_file, "--", waiting]);
        }
        part.side_by_side(&tests, AT_ONCE, others);
        Ok(())
    });
    Ok(())
}

/// Tells the tests where the programs of others are. Each is fetched once.
pub(crate) fn find_tools(stage: &Stage, cargo: &mut Command) {
    add_etcdctl(stage, cargo);
    tools::add_etcdutl(stage, cargo);
    tools::add_haproxy(stage, cargo);
    tools::add_faketime(stage, cargo);
    tools::add_postgres(stage, cargo);
    tools::add(stage, cargo);
}

/// The etcdctl for the tests that share an election with it: theirs to find, unless there is none on this machine
/// and Debian's can be had. Without one those tests fail and name the remedy.
fn add_etcdctl(stage: &Stage, cargo: &mut Command) {
    let wanted = std::env::var_os(NO_ETCDCTL).is_none_or(|value| value != "1");
    if !wanted || std::env::var_os(ETCDCTL).is_some() || packages::find(ETCDCTL_NAME).is_some() {
        return;
    }
    match etcdctl(stage) {
        Ok(etcdctl) => _ = cargo.env(ETCDCTL, etcdctl),
        Err(error) => stage.say(&format!("no etcdctl: {error:#}")),
    }
}

/// This machine's etcdctl, or Debian's.
pub(crate) fn etcdctl(stage: &Stage) -> Result<PathBuf> {
    let named = std::env::var_os(ETCDCTL).map(PathBuf::from);
    match named.or_else(|| packages::find(ETCDCTL_NAME)) {
        Some(found) => Ok(found),
        None => packages::unpack(stage, "etcd-client", "usr/bin/etcdctl"),
    }
}

/// The stage `chaos`.
pub(crate) fn chaos(stage: &mut Stage) -> Result<()> {
    // Data centres are network namespaces.
    if cfg!(target_os = "linux") {
        packages::ensure(stage, &["iproute2", "util-linux"])?;
    }
    let mut tests = test_package(stage, chaos::PACKAGE)?;
    tools::add_faketime(stage, &mut tests);
    stage.real_tests(tests.args(["--", THREADS]))?;
    Ok(())
}

/// The stage `stack`.
pub(crate) fn stack(stage: &mut Stage) -> Result<()> {
    stage.tests(test_all(stage)?.args(["--test", STACK]))?;
    Ok(())
}

/// The smoke test, against the vendored etcd or the one given.
pub(crate) fn smoke(stage: &mut Stage, etcd: Option<&Path>) -> Result<()> {
    ensure!(has(stage, SMOKE)?, "there is no tests/{SMOKE}.rs");
    let mut cargo = test_all(stage)?;
    cargo.args(["--test", SMOKE]).env("ELDEST_SMOKE", "1");
    if let Some(etcd) = etcd {
        cargo.env("ELDEST_ETCD_BIN", etcd);
    }
    stage.real_tests(cargo.args(["--", THREADS]))?;
    Ok(())
}

/// The command `leaks`: ten thousand cycles on a good network and on one that flaps.
pub(crate) fn leaks() -> Result<ExitCode> {
    let stage = Stage::start("leaks", true, DEFAULT_LIMIT);
    let mut cargo = test_all(&stage)?;
    cargo.args(["--test", "cycles", "--", "--ignored", "--nocapture"]);
    let status = cargo.status().context("starting cargo")?;
    Ok(process::exit_code(status))
}

/// The tests that need the Docker Engine.
pub(crate) fn containers(stage: &mut Stage, compose: &Compose) -> Result<()> {
    let mut cargo = test_all(stage)?;
    cargo.args(["--test", CONTAINERS, "--", CONTAINER_THREADS]);
    cargo
        .env(COMPOSE_V1, &compose.v1)
        .env(NODE_IMAGE, DEV_IMAGE)
        .env(COMMAND_IMAGE, DEV_COMMAND_IMAGE);
    stage.real_tests(cargo.env(COMPOSE_V2, &compose.v2))?;
    Ok(())
}

/// The example of a team's own failover tests, which builds its image by itself.
pub(crate) fn failover(stage: &mut Stage) -> Result<()> {
    stage.real_tests(&mut test_package(stage, "eldest-failover-example")?)?;
    Ok(())
}

/// The test of the sweep, which cannot be run without the engine.
pub(crate) fn sweep(stage: &mut Stage) -> Result<()> {
    stage.tests(&mut setup::cargo([
        "test",
        "--package",
        "xtask",
        "sweep",
        "--",
        "--ignored",
    ])?)?;
    Ok(())
}

/// Whether `tests/` has this one.
pub(crate) fn has(stage: &Stage, test: &str) -> Result<bool> {
    Ok(Metadata::of_workspace(stage)?.tests().contains(&test))
}

#[cfg(test)]
mod tests {
    use super::ON_ONE_VERSION;
    use crate::setup;

    #[test]
    fn what_is_left_out_for_other_versions_is_there_for_one() {
        let packages = [
            ".",
            "crates/eldest-route",
            "crates/eldest-http",
            "crates/eldest-cli",
            "crates/eldest-testing",
        ];
        for name in ON_ONE_VERSION {
            let (file, folder) = (format!("{name}.rs"), format!("{name}/main.rs"));
            let there = packages.iter().any(|package| {
                let tests = setup::root().join(package).join("tests");
                [&file, &folder]
                    .iter()
                    .any(|path| tests.join(path).is_file())
            });
            assert!(there, "{name}");
        }
    }
}
