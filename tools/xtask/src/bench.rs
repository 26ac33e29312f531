//! Builds and runs the benchmarks, and finds, builds or fetches the peers that they compare the library with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, anyhow, ensure};

use crate::fixed::{self, COMMAND, RELEASE_LIMIT};
use crate::programs::Built;
use crate::published::CLI;
use crate::stage::Stage;
use crate::together::BENCH;
use crate::workspaces::Workspace;
use crate::{consumer, packages, process, python, setup, tools};

/// The option with which peers are fetched that take more than a few Debian packages.
const INSTALL: &str = "--install-peers";
/// The option with which the sampler of processes is built.
const PROFILE: &str = "--profile";
const REMEDY: &str = "`cargo xtask bench --install-peers` fetches it";
const KAZOO: (&str, &str) = ("kazoo", "2.11.0");
/// The Go client of etcd in Debian bookworm.
const GO_LIBRARIES: (&str, &str) = (
    "golang-etcd-server-dev",
    "usr/share/gocode/src/go.etcd.io/etcd/clientv3/client.go",
);

/// Runs `cargo xtask bench`: builds, finds the external programs that are needed, and passes all arguments on.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let stage = Stage::start("bench", RELEASE_LIMIT);
    let install = args.iter().any(|arg| arg == INSTALL);
    let args: Vec<&String> = args.iter().filter(|arg| *arg != INSTALL).collect();
    eprintln!("==> bench: building for release");
    let mut what = vec!["--package", BENCH, "--release"];
    if args.iter().any(|arg| *arg == PROFILE) {
        what.extend(["--features", "profile"]);
    }
    let program = build(&stage, (Workspace::Lab, BENCH), &what)?;
    let mut bench = Command::new(&program);
    let needs = stage.output(Command::new(&program).args(&args).arg("--needs"))?;
    for name in needs.lines() {
        let found = match name {
            "go" => go_peer(&stage),
            "command" => command(&stage),
            "users" => users(&stage, &mut bench),
            "etcdctl" => tools::etcdctl(&stage),
            "kazoo" => kazoo(&stage, install),
            "zookeeper" => zookeeper(&stage, install),
            _ => Err(anyhow!("nobody knows where to find it")),
        };
        let name = name.to_uppercase();
        match found {
            Ok(path) => bench.env(format!("ELDEST_BENCH_{name}"), path),
            Err(error) => bench.env(format!("ELDEST_BENCH_NO_{name}"), format!("{error:#}")),
        };
    }
    let status = bench
        .current_dir(setup::root())
        .args(args)
        .status()
        .context("starting it")?;
    Ok(process::exit_code(status))
}

/// Runs the stage `bench`: the counts, and a few ratios that are far from their targets if something is wrong. It
/// leaves out the other tests' features, because the library allocates more with metrics.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    stage.tests(&mut Workspace::Lab.cargo(["test", "--package", BENCH])?)?;
    let mut bench = Command::new(build(
        stage,
        (Workspace::Lab, BENCH),
        &["--package", BENCH],
    )?);
    stage.step(bench.arg("--check"))?;
    Ok(())
}

fn build(stage: &Stage, (workspace, name): (Workspace, &str), what: &[&str]) -> Result<PathBuf> {
    let json = "--message-format=json-render-diagnostics";
    let mut cargo = workspace.cargo(["build", json])?;
    Built::read(&stage.output(cargo.args(what))?).program(name)
}

/// Builds the command `eldest` as users receive it, but for this machine's libraries.
fn command(stage: &Stage) -> Result<PathBuf> {
    eprintln!("==> bench: building the command, which takes minutes the first time");
    let command = (Workspace::Product, COMMAND);
    build(
        stage,
        command,
        &["--profile", fixed::PROFILE, "--package", CLI],
    )
}

/// Builds the peer that is written in Go, without a network, from Debian's packages of the compiler and of etcd's client.
fn go_peer(stage: &Stage) -> Result<PathBuf> {
    let (compiler, _) = packages::unpack_whole(stage, "golang-go", "usr/bin/go")?;
    let (library, _) = packages::unpack_whole(stage, GO_LIBRARIES.0, GO_LIBRARIES.1)?;
    let libraries = library.to_string_lossy();
    let path = libraries.split("/src/").next().context("a folder")?;
    let usr = Path::new(&compiler).ancestors().nth(2).context("usr")?;
    let target = setup::target().join("bench");
    fs::create_dir_all(&target)?;
    let program = target.join("go-peer");
    let mut build = Command::new(fs::canonicalize(&compiler)?);
    build
        .current_dir(setup::root().join("lab/bench/go"))
        .env("GOROOT", usr.join("lib/go"))
        // Installed packages are not downloaded.
        .env("GOPATH", format!("{path}:/usr/share/gocode"))
        .env("GO111MODULE", "off")
        .env("GOFLAGS", "")
        .env("CGO_ENABLED", "0")
        .env("GOCACHE", target.join("go-cache"))
        .args(["build", "-o"])
        .arg(&program)
        .arg(".");
    stage.output(&mut build)?;
    Ok(program)
}

/// Returns the folder of kazoo, for Python's path.
fn kazoo(stage: &Stage, install: bool) -> Result<PathBuf> {
    let there = python::is_there(KAZOO);
    ensure!(there || install, "not there; {REMEDY}");
    python::package(stage, KAZOO)
}

/// Returns the jars of Debian's `ZooKeeper`, in the form that Java expects.
fn zookeeper(stage: &Stage, install: bool) -> Result<PathBuf> {
    const PACKAGE: &str = "zookeeper";
    const JAR: &str = "usr/share/java/zookeeper.jar";
    ensure!(packages::find("java").is_some(), "there is no java here");
    let there = packages::is_unpacked(PACKAGE);
    ensure!(there || install, "not there; {REMEDY}");
    let (jar, _) = packages::unpack_whole(stage, PACKAGE, JAR)?;
    let jars = jar.parent().context("a folder")?.display().to_string();
    // Jars that this machine already has were not fetched.
    Ok(format!("{jars}/*:/usr/share/java/slf4j-api.jar").into())
}

/// Makes packages of users, and tells the bench which cargo can build them.
fn users(stage: &Stage, bench: &mut Command) -> Result<PathBuf> {
    let cargo = setup::cargo([])?;
    for (name, value) in cargo.get_envs() {
        match value {
            Some(value) => bench.env(name, value),
            None => bench.env_remove(name),
        };
    }
    bench.env("CARGO", cargo.get_program());
    consumer::pair(stage)
}
