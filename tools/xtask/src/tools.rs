//! Finds the programs that tests need: on this machine, or in packages of Debian that are only unpacked. The tests of the command need
//! `HAProxy`, promtool and Chromium, tests/faults `HAProxy`, lab/long/tests/restore etcdutl, those of examples/fencing `PostgreSQL`,
//! tests/interop etcdctl.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::published::CLI;
use crate::stage::{DEFAULT_LIMIT, Stage};
use crate::{packages, process, setup};

/// The first release of Debian whose etcdctl restores a snapshot with a higher revision. It runs the code of etcdutl for
/// that, which no package of Debian has.
const ETCDUTL_SUITE: &str = "trixie";

/// The variable that names libfaketime.
pub(crate) const FAKETIME: &str = "ELDEST_FAKETIME";

/// Passes the paths of external programs to the tests of the product. Each program is fetched once.
pub(crate) fn find(stage: &Stage, cargo: &mut Command) {
    for (program, package, file) in [
        ("etcdctl", "etcd-client", "usr/bin/etcdctl"),
        ("promtool", "prometheus", "usr/bin/promtool"),
    ] {
        add(stage, cargo, program, || {
            Ok((packages::unpack(stage, package, file)?, None))
        });
    }
    add(stage, cargo, "haproxy", || {
        whole(stage, "haproxy", "usr/sbin/haproxy")
    });
    add_faketime(stage, cargo);
}

/// Does the same for the programs that only the stage `long` needs.
pub(crate) fn find_more(stage: &Stage, cargo: &mut Command) {
    add(stage, cargo, "etcdutl", || {
        let etcdctl = packages::unpack_of(stage, ETCDUTL_SUITE, "etcd-client", "usr/bin/etcdctl")?;
        Ok((etcdctl, None))
    });
    add_chromium(stage, cargo);
}

/// Passes the path of a program to the tests, and the folders of its libraries if it needs any, unless this machine has the
/// program. Without it the tests fail and name the remedy.
fn add(
    stage: &Stage,
    cargo: &mut Command,
    program: &str,
    fetch: impl FnOnce() -> Result<(PathBuf, Option<String>)>,
) {
    if !is_wanted(program) {
        return;
    }
    match fetch() {
        Ok((path, libraries)) => {
            let variable = variable(program);
            if let Some(libraries) = libraries {
                cargo.env(format!("{variable}_LIBRARIES"), libraries);
            }
            cargo.env(variable, path);
        }
        Err(error) => stage.say(&format!("no {program}: {error:#}")),
    }
}

/// Passes the path of `PostgreSQL` to the tests, if this machine has none.
pub(crate) fn add_postgres(stage: &Stage, cargo: &mut Command) {
    if postgres_in(Path::new("/usr")).is_none() {
        add(stage, cargo, "postgres", || postgres(stage));
    }
}

/// Passes the path of libfaketime to the tests, if this machine has none. Without it they fail and name the remedy.
pub(crate) fn add_faketime(stage: &Stage, cargo: &mut Command) {
    match faketime(stage) {
        Some(Ok(library)) => _ = cargo.env(FAKETIME, library),
        Some(Err(error)) => stage.say(&format!("no libfaketime: {error:#}")),
        None => {}
    }
}

/// Returns the library that moves the wall clock of processes, unless this machine has it.
pub(crate) fn faketime(stage: &Stage) -> Option<Result<PathBuf>> {
    let library = format!(
        "usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1",
        std::env::consts::ARCH
    );
    let is_there = Path::new("/").join(&library).is_file();
    let is_wanted = !is_there && is_wanted("faketime");
    is_wanted.then(|| packages::unpack(stage, "libfaketime", &library))
}

/// Runs the command `pictures`: the test that takes the guide's pictures of the status page, which fails without a browser.
pub(crate) fn take_pictures() -> Result<ExitCode> {
    let stage = Stage::start("pictures", DEFAULT_LIMIT);
    let mut cargo = setup::cargo(["test", "--package", CLI, "--test", "page", "picture::"])?;
    add_chromium(&stage, &mut cargo);
    process::exit_code_of(cargo.env("ELDEST_PICTURES", setup::root().join("docs")))
}

/// Passes the path of Chromium to the tests, if this machine has none.
fn add_chromium(stage: &Stage, cargo: &mut Command) {
    // The shell without windows needs the fewest libraries.
    let shell = "usr/lib/chromium/chromium-headless-shell";
    add(stage, cargo, "chromium", || {
        whole(stage, "chromium-headless-shell", shell)
    });
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

/// Unpacks a program with its libraries.
fn whole(stage: &Stage, package: &str, file: &str) -> Result<(PathBuf, Option<String>)> {
    let (program, libraries) = packages::unpack_whole(stage, package, file)?;
    Ok((program, Some(libraries)))
}

/// Returns the program, and the folders of its libraries in the loader's form.
fn postgres(stage: &Stage) -> Result<(PathBuf, Option<String>)> {
    // This package depends on the server in the release's version; it contains only this file.
    let about = "usr/share/doc/postgresql/copyright";
    let (about, libraries) = whole(stage, "postgresql", about)?;
    let usr = about.ancestors().nth(4).context("a folder")?;
    Ok((postgres_in(usr).context("no server in it")?, libraries))
}

/// Returns the server's folder; Debian has one for each version.
fn postgres_in(usr: &Path) -> Option<PathBuf> {
    let versions = usr.join("lib/postgresql").read_dir().ok()?;
    let mut servers =
        versions.filter_map(|version| Some(version.ok()?.path().join("bin/postgres")));
    servers.find(|server| server.is_file())
}
