//! Finds the programs that tests need: on this machine, or in packages of Debian that are only unpacked. The tests of the command need
//! `HAProxy`, promtool and Chromium, tests/faults `HAProxy`, tests/restore etcdutl, those of examples/fencing `PostgreSQL`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::stage::Stage;
use crate::{packages, setup};

/// Libraries of `HAProxy`'s that few machines have; the others are essential, or OpenSSL's.
const LIBRARIES: [&str; 2] = ["liblua", "libopentracing"];

/// The first release of Debian whose etcdctl restores a snapshot with a higher revision. It runs the code of etcdutl for
/// that, which no package of Debian has.
const ETCDUTL_SUITE: &str = "trixie";

/// Names the etcdctl that tests use.
const ETCDCTL: &str = "ELDEST_ETCDCTL";
const ETCDCTL_NAME: &str = "etcdctl";
/// Set to 1, the tests with etcdctl are left out.
const NO_ETCDCTL: &str = "ELDEST_NO_ETCDCTL";
/// Names libfaketime.
pub(crate) const FAKETIME: &str = "ELDEST_FAKETIME";

/// Tells the tests of the product where the programs of others are. Each is fetched once.
pub(crate) fn find(stage: &Stage, cargo: &mut Command) {
    add_etcdctl(stage, cargo);
    add_etcdutl(stage, cargo);
    add_haproxy(stage, cargo);
    add_faketime(stage, cargo);
    add_others(stage, cargo);
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

/// Tells the tests where etcdutl is, if this machine has none. Without it they fail and name the remedy.
fn add_etcdutl(stage: &Stage, cargo: &mut Command) {
    if is_wanted("etcdutl", "ETCDUTL") {
        match packages::unpack_of(stage, ETCDUTL_SUITE, "etcd-client", "usr/bin/etcdctl") {
            Ok(etcdctl) => _ = cargo.env("ELDEST_ETCDUTL", etcdctl),
            Err(error) => stage.say(&format!("no etcdutl: {error:#}")),
        }
    }
}

/// Tells the tests where `HAProxy` is, if this machine has none. Without it they fail and name the remedy.
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

/// Tells the tests where `PostgreSQL` is, if this machine has none. Without it they fail and name the remedy.
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

/// Tells the tests where libfaketime is, if this machine has none. Without it they fail and name the remedy.
pub(crate) fn add_faketime(stage: &Stage, cargo: &mut Command) {
    match faketime(stage) {
        Some(Ok(library)) => _ = cargo.env(FAKETIME, library),
        Some(Err(error)) => stage.say(&format!("no libfaketime: {error:#}")),
        None => {}
    }
}

/// The library that moves the wall clock of processes, unless this machine has it.
pub(crate) fn faketime(stage: &Stage) -> Option<Result<PathBuf>> {
    let library = format!(
        "usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1",
        std::env::consts::ARCH
    );
    let is_there = Path::new("/").join(&library).is_file();
    let is_wanted = !is_there && is_wanted("faketime", "FAKETIME");
    is_wanted.then(|| packages::unpack(stage, "libfaketime", &library))
}

/// Tells the tests where the tools are that this machine does not have, and that one version of etcd is enough for.
/// Without one they fail and name the remedy.
fn add_others(stage: &Stage, cargo: &mut Command) {
    if is_wanted("promtool", "PROMTOOL") {
        match packages::unpack(stage, "prometheus", "usr/bin/promtool") {
            Ok(promtool) => _ = cargo.env("ELDEST_PROMTOOL", promtool),
            Err(error) => stage.say(&format!("no promtool: {error:#}")),
        }
    }
    if is_wanted("chromium", "CHROMIUM") {
        // The one without windows needs the fewest libraries.
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

/// Neither there already nor left out.
fn is_wanted(program: &str, name: &str) -> bool {
    let left_out = std::env::var_os(format!("ELDEST_NO_{name}")).is_some_and(|value| value == "1");
    let named = std::env::var_os(format!("ELDEST_{name}")).is_some();
    let there = packages::find(program).is_some() || Path::new("/usr/sbin").join(program).is_file();
    !left_out && !named && !there
}

/// The program, and the folders of its libraries as the loader wants them.
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

/// The program, and the folders of its libraries as the loader wants them.
fn postgres(stage: &Stage) -> Result<(PathBuf, String)> {
    // The package that depends on the server in this release's version; it has nothing but this file.
    let about = "usr/share/doc/postgresql/copyright";
    let (about, libraries) = packages::unpack_whole(stage, "postgresql", about)?;
    let usr = about.ancestors().nth(4).context("a folder")?;
    Ok((postgres_in(usr).context("no server in it")?, libraries))
}

/// Debian has a folder for each version of the server.
fn postgres_in(usr: &Path) -> Option<PathBuf> {
    let versions = usr.join("lib/postgresql").read_dir().ok()?;
    let mut servers =
        versions.filter_map(|version| Some(version.ok()?.path().join("bin/postgres")));
    servers.find(|server| server.is_file())
}

/// The folder of a package's libraries.
fn library(stage: &Stage, package: &str) -> Result<PathBuf> {
    let about = format!("usr/share/doc/{package}/copyright");
    packages::libraries_beside(&packages::unpack(stage, package, &about)?)
}
