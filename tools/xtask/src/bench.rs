//! Builds and runs the benchmarks, and builds the peer in Go that they compare the library with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::fixed::RELEASE_LIMIT;
use crate::stage::Stage;
use crate::together::{self, BENCH};
use crate::workspaces::Workspace;
use crate::{packages, process, setup};

/// The Go client of etcd in Debian bookworm.
const GO_LIBRARIES: (&str, &str) = (
    "golang-etcd-server-dev",
    "usr/share/gocode/src/go.etcd.io/etcd/clientv3/client.go",
);

/// Runs `cargo xtask bench`: builds, and passes all arguments on.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let stage = Stage::start("bench", RELEASE_LIMIT);
    let measures = !args.iter().any(|arg| arg == "--help" || arg == "-h");
    // Optimised, it takes minutes to compile, which its help is not worth.
    let options: &[&str] = if measures { &["--release"] } else { &[] };
    eprintln!("==> bench: cargo build {}", options.concat());
    let mut bench = Command::new(build(&stage, options)?);
    if measures {
        match go_peer(&stage) {
            Ok(path) => bench.env("ELDEST_BENCH_GO", path),
            Err(error) => bench.env("ELDEST_BENCH_NO_GO", format!("{error:#}")),
        };
    }
    process::become_it(bench.current_dir(setup::root()).args(args))
}

/// Runs the stage `bench`: allocations, and a few ratios that are far from their targets if something is wrong. It leaves
/// out the other tests' features, because the library allocates more with metrics.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    stage.tests(&mut Workspace::Lab.cargo(["test", "--color", "never", "--package", BENCH])?)?;
    let mut bench = Command::new(build(stage, &[])?);
    stage.step(bench.arg("--check"))?;
    Ok(())
}

fn build(stage: &Stage, options: &[&str]) -> Result<PathBuf> {
    let mut cargo = Workspace::Lab.cargo(["build", "--package", BENCH])?;
    together::built_by(stage, cargo.args(options))?.program(BENCH)
}

/// Builds the peer that is written in Go, without a network, from Debian's packages of the compiler and of etcd's client.
fn go_peer(stage: &Stage) -> Result<PathBuf> {
    let compiler = packages::unpack(stage, "golang-go", "usr/bin/go")?.file;
    let library = packages::unpack(stage, GO_LIBRARIES.0, GO_LIBRARIES.1)?.file;
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
