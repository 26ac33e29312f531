//! Finds the programs that tests need: on this machine, or in packages of Debian that are only unpacked. The tests of the command need
//! `HAProxy`, promtool and Chromium, tests/faults `HAProxy`, lab/long/tests/restore etcdutl, those of examples/fencing `PostgreSQL`,
//! tests/interop etcdctl.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::packages::Unpacked;
use crate::published::CLI;
use crate::stage::{DEFAULT_LIMIT, Stage};
use crate::{packages, process, setup};

/// The first release of Debian whose etcdctl restores a snapshot with a higher revision. It runs the code of etcdutl for
/// that, which no package of Debian has.
const ETCDUTL_SUITE: &str = "trixie";

/// A program, its package in Debian, and its file there.
type Tool = (&'static str, &'static str, &'static str);

const TOOLS: [Tool; 3] = [
    ("etcdctl", "etcd-client", "usr/bin/etcdctl"),
    ("promtool", "prometheus", "usr/bin/promtool"),
    ("haproxy", "haproxy", "usr/sbin/haproxy"),
];
/// The shell without windows needs the fewest libraries.
const CHROMIUM: Tool = (
    "chromium",
    "chromium-headless-shell",
    "usr/lib/chromium/chromium-headless-shell",
);

/// Passes the paths of external programs to the tests of the product. Each program is fetched once.
pub(crate) fn find(stage: &Stage, cargo: &mut Command) {
    for tool in TOOLS {
        add_tool(stage, cargo, tool);
    }
    add_faketime(stage, cargo);
}

/// Does the same for the programs that only the stage `long` needs.
pub(crate) fn find_more(stage: &Stage, cargo: &mut Command) {
    add(stage, cargo, "etcdutl", || {
        let file = packages::unpack_of(stage, ETCDUTL_SUITE, "etcd-client", "usr/bin/etcdctl")?;
        let libraries = String::new();
        Ok(Unpacked { file, libraries })
    });
    add_tool(stage, cargo, CHROMIUM);
}

fn add_tool(stage: &Stage, cargo: &mut Command, (program, package, file): Tool) {
    add(stage, cargo, program, || {
        packages::unpack(stage, package, file)
    });
}

/// Passes the path of a program to the tests, and the folders of its libraries if it needs any, unless this machine has the
/// program. Without it the tests fail and name the remedy.
fn add(
    stage: &Stage,
    cargo: &mut Command,
    program: &str,
    fetch: impl FnOnce() -> Result<Unpacked>,
) {
    if !is_wanted(program) {
        return;
    }
    match fetch() {
        Ok(Unpacked { file, libraries }) => {
            let variable = variable(program);
            if !libraries.is_empty() {
                cargo.env(format!("{variable}_LIBRARIES"), libraries);
            }
            cargo.env(variable, file);
        }
        Err(error) => stage.say(&format!("no {program}: {error:#}")),
    }
}

/// Passes the path of `PostgreSQL` to the tests, if this machine has none.
pub(crate) fn add_postgres(stage: &Stage, cargo: &mut Command) {
    if postgres_in(Path::new("/usr")).is_some() {
        return;
    }
    add(stage, cargo, "postgres", || {
        // This package depends on the server in the release's version; it contains only this file.
        let about = "usr/share/doc/postgresql/copyright";
        let Unpacked { file, libraries } = packages::unpack(stage, "postgresql", about)?;
        let usr = file.ancestors().nth(4).context("a folder")?;
        let file = postgres_in(usr).context("no server in it")?;
        Ok(Unpacked { file, libraries })
    });
}

/// Passes the path of the library that moves the wall clock of processes, if this machine has none. Without it the tests fail and name
/// the remedy.
pub(crate) fn add_faketime(stage: &Stage, cargo: &mut Command) {
    let library = format!(
        "usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1",
        std::env::consts::ARCH
    );
    if !Path::new("/").join(&library).is_file() {
        add(stage, cargo, "faketime", || {
            packages::unpack(stage, "libfaketime", &library)
        });
    }
}

/// Runs the command `pictures`: the test that takes the guide's pictures of the status page, which fails without a browser.
pub(crate) fn take_pictures() -> Result<ExitCode> {
    let stage = Stage::start("pictures", DEFAULT_LIMIT);
    let mut cargo = setup::cargo(["test", "--package", CLI, "--test", "page", "picture::"])?;
    add_tool(&stage, &mut cargo, CHROMIUM);
    process::become_it(cargo.env("ELDEST_PICTURES", setup::root().join("docs")))
}

/// Returns the variable that names the program for tests.
fn variable(program: &str) -> String {
    format!("ELDEST_{}", program.to_uppercase())
}

/// Returns true if the program is neither installed nor left out on request.
fn is_wanted(program: &str) -> bool {
    let no_variable = format!("ELDEST_NO_{}", program.to_uppercase());
    let left_out = std::env::var_os(no_variable).is_some_and(|value| value == "1");
    let named = std::env::var_os(variable(program)).is_some();
    let there = packages::find(program).is_some() || Path::new("/usr/sbin").join(program).is_file();
    !left_out && !named && !there
}

/// Returns the server's folder; Debian has one for each version.
fn postgres_in(usr: &Path) -> Option<PathBuf> {
    let versions = usr.join("lib/postgresql").read_dir().ok()?;
    let mut servers =
        versions.filter_map(|version| Some(version.ok()?.path().join("bin/postgres")));
    servers.find(|server| server.is_file())
}
