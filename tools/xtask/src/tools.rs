//! Finds the programs that tests need: on this machine, or in packages of Debian that are only unpacked. The tests of the command need
//! `HAProxy`, promtool and Chromium, tests/faults `HAProxy`, lab/long/tests/restore etcdutl, those of examples/fencing `PostgreSQL`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::stage::Stage;
use crate::{packages, setup};

/// Libraries of `HAProxy` that few machines have; the others are essential, or OpenSSL's.
const LIBRARIES: [&str; 2] = ["liblua", "libopentracing"];

/// The first release of Debian whose etcdctl restores a snapshot with a higher revision. It runs the code of etcdutl for
/// that, which no package of Debian has.
const ETCDUTL_SUITE: &str = "trixie";

/// The variable that names the etcdctl for tests.
const ETCDCTL: &str = "ELDEST_ETCDCTL";
const ETCDCTL_NAME: &str = "etcdctl";
/// The variable that leaves out the tests with etcdctl if it is 1.
const NO_ETCDCTL: &str = "ELDEST_NO_ETCDCTL";
/// The variable that names libfaketime.
pub(crate) const FAKETIME: &str = "ELDEST_FAKETIME";

/// Passes the paths of external programs to the tests of the product. Each program is fetched once.
pub(crate) fn find(stage: &Stage, cargo: &mut Command) {
    add_etcdctl(stage, cargo);
    add_haproxy(stage, cargo);
    add_faketime(stage, cargo);
    add_promtool(stage, cargo);
}

/// Does the same for the programs that only the stage `long` needs.
pub(crate) fn find_more(stage: &Stage, cargo: &mut Command) {
    add_etcdutl(stage, cargo);
    add_chromium(stage, cargo);
}

/// Passes Debian's etcdctl to the tests that share an election with it, if this machine has none and Debian's can be
/// fetched. Otherwise the tests find their own. Without one they fail and name the remedy.
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

/// Returns this machine's etcdctl, or Debian's.
fn etcdctl(stage: &Stage) -> Result<PathBuf> {
    let named = std::env::var_os(ETCDCTL).map(PathBuf::from);
    match named.or_else(|| packages::find(ETCDCTL_NAME)) {
        Some(found) => Ok(found),
        None => packages::unpack(stage, "etcd-client", "usr/bin/etcdctl"),
    }
}

/// Passes the path of etcdutl to the tests, if this machine has none. Without it they fail and name the remedy.
fn add_etcdutl(stage: &Stage, cargo: &mut Command) {
    if is_wanted("etcdutl", "ETCDUTL") {
        match packages::unpack_of(stage, ETCDUTL_SUITE, "etcd-client", "usr/bin/etcdctl") {
            Ok(etcdctl) => _ = cargo.env("ELDEST_ETCDUTL", etcdctl),
            Err(error) => stage.say(&format!("no etcdutl: {error:#}")),
        }
    }
}

/// Passes the path of `HAProxy` to the tests, if this machine has none. Without it they fail and name the remedy.
fn add_haproxy(stage: &Stage, cargo: &mut Command) {
    if is_wanted("haproxy", "HAPROXY") {
        match haproxy(stage) {
            Ok((program, libraries)) => {
                cargo.env("ELDEST_HAPROXY", program);
                cargo.env("ELDEST_HAPROXY_LIBRARIES", libraries);
            }
            Err(error) => stage.say(&format!("no haproxy: {error:#}")),
        }
    }
}

/// Passes the path of `PostgreSQL` to the tests, if this machine has none. Without it they fail and name the remedy.
pub(crate) fn add_postgres(stage: &Stage, cargo: &mut Command) {
    if is_wanted("postgres", "POSTGRES") && postgres_in(Path::new("/usr")).is_none() {
        match postgres(stage) {
            Ok((program, libraries)) => {
                cargo.env("ELDEST_POSTGRES", program);
                cargo.env("ELDEST_POSTGRES_LIBRARIES", libraries);
            }
            Err(error) => stage.say(&format!("no PostgreSQL: {error:#}")),
        }
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
    let is_wanted = !is_there && is_wanted("faketime", "FAKETIME");
    is_wanted.then(|| packages::unpack(stage, "libfaketime", &library))
}

/// Passes the path of promtool to the tests, if this machine has none. Without it they fail and name the remedy.
fn add_promtool(stage: &Stage, cargo: &mut Command) {
    if is_wanted("promtool", "PROMTOOL") {
        match packages::unpack(stage, "prometheus", "usr/bin/promtool") {
            Ok(promtool) => _ = cargo.env("ELDEST_PROMTOOL", promtool),
            Err(error) => stage.say(&format!("no promtool: {error:#}")),
        }
    }
}

/// Passes the path of Chromium to the tests, if this machine has none. Without it they fail and name the remedy.
pub(crate) fn add_chromium(stage: &Stage, cargo: &mut Command) {
    if is_wanted("chromium", "CHROMIUM") {
        // The shell without windows needs the fewest libraries.
        let shell = "usr/lib/chromium/chromium-headless-shell";
        match packages::unpack_whole(stage, "chromium-headless-shell", shell) {
            Ok((program, libraries)) => {
                cargo.env("ELDEST_CHROMIUM", program);
                cargo.env("ELDEST_CHROMIUM_LIBRARIES", libraries);
            }
            Err(error) => stage.say(&format!("no chromium: {error:#}")),
        }
    }
}

/// Returns true if the program is neither installed nor left out on request.
fn is_wanted(program: &str, name: &str) -> bool {
    let left_out = std::env::var_os(format!("ELDEST_NO_{name}")).is_some_and(|value| value == "1");
    let named = std::env::var_os(format!("ELDEST_{name}")).is_some();
    let there = packages::find(program).is_some() || Path::new("/usr/sbin").join(program).is_file();
    !left_out && !named && !there
}

/// Returns the program, and the folders of its libraries in the loader's form.
fn haproxy(stage: &Stage) -> Result<(PathBuf, String)> {
    let program = packages::unpack(stage, "haproxy", "usr/sbin/haproxy")?;
    let mut depends = setup::program("apt-cache");
    depends.args(["depends", "--recurse", "--important", "haproxy"]);
    let depends = stage.output(&mut depends)?;
    let mut folders = Vec::new();
    let names = depends.lines().filter(|line| !line.starts_with(' '));
    for name in names.filter(|name| LIBRARIES.iter().any(|library| name.starts_with(library))) {
        folders.push(library(stage, name)?.display().to_string());
    }
    Ok((program, folders.join(":")))
}

/// Returns the program, and the folders of its libraries in the loader's form.
fn postgres(stage: &Stage) -> Result<(PathBuf, String)> {
    // This package depends on the server in the release's version; it contains only this file.
    let about = "usr/share/doc/postgresql/copyright";
    let (about, libraries) = packages::unpack_whole(stage, "postgresql", about)?;
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

/// Returns the folder of a package's libraries.
fn library(stage: &Stage, package: &str) -> Result<PathBuf> {
    let about = format!("usr/share/doc/{package}/copyright");
    packages::libraries_beside(&packages::unpack(stage, package, &about)?)
}
