//! Runs the library's test suites through cargo, with the settings that each suite needs.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::compose::Compose;
use crate::metadata::Metadata;
use crate::published::{CLI, CORE, HTTP, LIBRARY, TESTING};
use crate::stage::Stage;
use crate::{packages, setup, tools};

/// The test file that needs the Docker Engine and has a stage of its own.
pub(crate) const CONTAINERS: &str = "containers";
/// The test file that is enough for old versions of etcd.
pub(crate) const SMOKE: &str = "smoke";

/// They test the command, the tools, the examples and the log; or the machine more than etcd. One version of etcd is
/// enough for them.
const ON_ONE_VERSION: [&str; 12] = [
    "cli",
    "cycles",
    "examples",
    "fuzzing",
    "http",
    "logs",
    "page",
    "partitions",
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

/// Each integration test has an etcd of its own and mostly waits for its deadlines: on two cores, five at
/// a time of each of two files keep both busy without making the deadlines late.
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

/// The library and the crates beside it. Always all of them: cargo builds a dependency once for each set of features that
/// the packages it was asked for need.
pub(crate) const TOGETHER: [&str; 9] = [
    "--package",
    LIBRARY,
    "--package",
    HTTP,
    "--package",
    CLI,
    "--package",
    TESTING,
    "--all-features",
];

/// By itself: what it needs of etcd-client, nothing else should be built with.
const TEST_STACK: [&str; 4] = ["test", "--package", "eldest-sim-stack", "--no-fail-fast"];

const TEST_CHAOS: [&str; 4] = ["test", "--package", "eldest-chaos", "--no-fail-fast"];

fn test_library() -> Result<Command> {
    let mut cargo = setup::cargo(["test", "--no-fail-fast"])?;
    cargo.args(TOGETHER);
    Ok(cargo)
}

/// The stage `unit`.
pub(crate) fn unit(stage: &mut Stage) -> Result<()> {
    stage.tests(&mut setup::cargo([
        "test",
        "--package",
        CORE,
        "--no-fail-fast",
    ])?)?;
    stage.tests(test_library()?.args(["--lib", "--bins"]))?;
    Ok(())
}

/// The stage `integration`.
pub(crate) fn integration(stage: &mut Stage) -> Result<()> {
    let tests = all(stage, None);
    stage.step(test_library()?.arg("--doc"))?;
    let mut examples = setup::cargo(["build"])?;
    stage.step(examples.args(TOGETHER).arg("--examples"))?;
    stage.tests(&mut setup::cargo([
        "test",
        "--no-fail-fast",
        "--package",
        "eldest-demo",
        "--package",
        "eldest-node",
        "--features",
        "eldest-node/history,eldest-node/register",
        "--package",
        "xtask",
    ])?)?;
    tests
}

/// Everything in the folders `tests` that needs no containers, against the vendored etcd; against the one given, what depends on
/// etcd's version.
pub(crate) fn all(stage: &mut Stage, etcd: Option<&Path>) -> Result<()> {
    let metadata = Metadata::of_workspace(stage)?;
    let tests: Vec<&str> = metadata
        .tests()
        .into_iter()
        .filter(|name| *name != CONTAINERS)
        .filter(|name| etcd.is_none() || !ON_ONE_VERSION.contains(name))
        .collect();
    ensure!(!tests.is_empty(), "there is no test in tests/");
    let mut all = test_library()?;
    for test in &tests {
        all.args(["--test", test]);
    }
    if let Some(etcd) = etcd {
        all.env("ELDEST_ETCD_BIN", etcd);
    }
    add_etcdctl(stage, &mut all);
    tools::add_etcdutl(stage, &mut all);
    tools::add_haproxy(stage, &mut all);
    if etcd.is_none() {
        tools::add(stage, &mut all);
    }
    if !stage.step(all.arg("--no-run"))? {
        return Ok(());
    }
    // Other versions are tested beside one another already.
    let at_once = if etcd.is_none() { 2 } else { 1 };
    stage.side_by_side(&tests, at_once, |part, test| {
        let mut one = test_library()?;
        for (name, value) in all.get_envs() {
            match value {
                Some(value) => one.env(name, value),
                None => one.env_remove(name),
            };
        }
        part.tests(one.args(["--test", test, "--", THREADS]))?;
        Ok(())
    });
    Ok(())
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
    stage.tests(setup::cargo(TEST_CHAOS)?.args(["--", THREADS]))?;
    Ok(())
}

/// The stage `stack`.
pub(crate) fn stack(stage: &mut Stage) -> Result<()> {
    stage.tests(&mut setup::cargo(TEST_STACK)?)?;
    Ok(())
}

/// The etcd of simulated time, against the etcd given.
pub(crate) fn conformance(stage: &mut Stage, etcd: &Path) -> Result<()> {
    let mut cargo = setup::cargo(TEST_STACK)?;
    cargo.args(["--test", "conformance"]);
    stage.tests(cargo.env("ELDEST_ETCD_BIN", etcd))?;
    Ok(())
}

/// The smoke test, against the vendored etcd or the one given.
pub(crate) fn smoke(stage: &mut Stage, etcd: Option<&Path>) -> Result<()> {
    ensure!(has(stage, SMOKE)?, "there is no tests/{SMOKE}.rs");
    let mut cargo = test_library()?;
    cargo.args(["--test", SMOKE]).env("ELDEST_SMOKE", "1");
    if let Some(etcd) = etcd {
        cargo.env("ELDEST_ETCD_BIN", etcd);
    }
    stage.tests(cargo.args(["--", THREADS]))?;
    Ok(())
}

/// The command `leaks`: ten thousand cycles on a good network and on one that flaps.
pub(crate) fn leaks() -> Result<ExitCode> {
    let mut cargo = test_library()?;
    cargo.args(["--test", "cycles", "--", "--ignored", "--nocapture"]);
    let status = cargo.status().context("starting cargo")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}

/// The tests that need the Docker Engine.
pub(crate) fn containers(stage: &mut Stage, compose: &Compose) -> Result<()> {
    let mut cargo = test_library()?;
    cargo.args(["--test", CONTAINERS, "--", CONTAINER_THREADS]);
    cargo
        .env(COMPOSE_V1, &compose.v1)
        .env(NODE_IMAGE, DEV_IMAGE)
        .env(COMMAND_IMAGE, DEV_COMMAND_IMAGE);
    stage.tests(cargo.env(COMPOSE_V2, &compose.v2))?;
    Ok(())
}

/// The example of a team's own failover tests, which builds its image by itself.
pub(crate) fn failover(stage: &mut Stage) -> Result<()> {
    // Beside the library, whose features decide how its dependencies are built: alone, the example would need another
    // build of them.
    let mut cargo = test_library()?;
    cargo.args(["--package", "eldest-failover-example"]);
    stage.tests(cargo.args(["--test", "failover", "--test", "in_process"]))?;
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
