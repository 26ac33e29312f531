//! Hides how the benchmarks are built, and where what they are compared with comes from.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::fixed::RELEASE_LIMIT;
use crate::stage::Stage;
use crate::{metadata, packages, setup};

const PACKAGE: &str = "eldest-bench";
/// The client of Go's etcd that Debian bookworm has.
const GO_LIBRARIES: (&str, &str) = (
    "golang-etcd-server-dev",
    "usr/share/gocode/src/go.etcd.io/etcd/clientv3/client.go",
);

/// `cargo xtask bench`: builds, finds the peers, and passes everything on.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let stage = Stage::start("bench", true, RELEASE_LIMIT);
    eprintln!("==> bench: building for release");
    let mut bench = Command::new(build(&stage, &["--release"])?);
    add_peers(&stage, &mut bench, args);
    let status = bench.args(args).status().context("starting it")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The stage `bench`: a few ratios that are far from what has to be reached if something is wrong. Built as the tests are,
/// which CI has mostly done by then: what is compared with the library is built in the same way.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let mut bench = Command::new(build(stage, &[])?);
    stage.step(bench.arg("--check"))?;
    Ok(())
}

fn build(stage: &Stage, profile: &[&str]) -> Result<PathBuf> {
    let json = "--message-format=json-render-diagnostics";
    let mut cargo = setup::cargo(["build", json, "--package", PACKAGE])?;
    let messages = stage.output(cargo.args(profile))?;
    let mut found = messages.lines();
    let found = found.find_map(|line| metadata::executable(line, PACKAGE));
    found.context("cargo built no benchmarks")
}

/// Tells the benchmarks where the peers are, or why they are not.
fn add_peers(stage: &Stage, bench: &mut Command, args: &[String]) {
    let unwanted = ["--check", "--help", "-h"];
    if args.iter().any(|arg| unwanted.contains(&arg.as_str())) {
        return;
    }
    match go_peer(stage) {
        Ok(path) => bench.env("ELDEST_BENCH_GO", path),
        Err(error) => bench.env("ELDEST_BENCH_NO_GO", format!("{error:#}")),
    };
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
        .current_dir(setup::root().join("bench/go"))
        .env("GOROOT", usr.join("lib/go"))
        // What is installed is not downloaded.
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
