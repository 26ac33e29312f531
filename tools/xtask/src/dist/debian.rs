//! Makes a package for Debian by cargo-deb, and installs and purges it in a minimal Debian.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::images::bases;
use crate::install::Tool;
use crate::published::CLI;
use crate::stage::Stage;
use crate::{engine, packages, setup, sources};

/// The tool runs for a second; this profile saves minutes of building.
const TOOL: Tool = Tool {
    name: "cargo-deb",
    version: Some("3.8.0"),
    arguments: &["--profile", "dev"],
};
/// The folder in which crates/eldest-cli/Cargo.toml finds the files that the program has written.
const WRITTEN: &str = "target/deb";
/// The label of the container of a whole system, which distinguishes it from the containers of tests.
const LABEL: &str = "eldest.dist";

/// Files of the package whose absence no other check notices.
const FILES: [&str; 12] = [
    "/usr/bin/eldest",
    "/usr/share/man/man1/eldest.1.gz",
    "/usr/share/man/man1/eldest-serve.1.gz",
    "/usr/share/man/man1/eldest-agent.1.gz",
    "/usr/share/bash-completion/completions/eldest",
    "/usr/share/zsh/vendor-completions/_eldest",
    "/usr/share/fish/vendor_completions.d/eldest.fish",
    "/usr/lib/systemd/system/eldest-serve@.service",
    "/usr/lib/systemd/system/eldest-run@.service",
    "/usr/lib/systemd/system/eldest-agent.service",
    "/usr/lib/sysusers.d/eldest.conf",
    SETTINGS,
];
/// The units, an instance of each template, and the highest permitted exposure of each, of 100.
const UNITS: [(&str, &str, &str); 3] = [
    ("eldest-serve@", "instance", "20"),
    ("eldest-run@", "instance", "75"),
    ("eldest-agent", "", "20"),
];
/// The settings file, which stays until the package is purged.
const SETTINGS: &str = "/etc/eldest/eldest.env";

/// Makes the package of a program that cargo built for that target and profile, and whose archive is laid out in `from`.
pub(super) fn make(
    stage: &mut Stage,
    (target, profile): (&str, &str),
    from: &Path,
    package: &Path,
) -> Result<()> {
    let written = setup::root().join(WRITTEN);
    sources::empty(&written)?;
    for part in ["man", "completions"] {
        let mut copy = setup::program("cp");
        stage.output(copy.arg("--recursive").arg(from.join(part)).arg(&written))?;
    }
    let mut deb = setup::program(&TOOL.get()?.to_string_lossy());
    // The tool would warn about the files in target/deb, which cargo does not build.
    deb.args(["--quiet", "--no-build", "--no-strip", "--package", CLI]);
    deb.args(["--target", target, "--profile", profile]);
    deb.env("SOURCE_DATE_EPOCH", super::time(stage)?);
    stage.output(deb.arg("--output").arg(package))?;
    ensure!(package.is_file(), "cargo-deb made no {}", package.display());
    stage.say(&format!("{} made", package.display()));
    Ok(())
}

/// Checks that the units are valid, and that the package installs and uninstalls.
pub(super) fn check(stage: &mut Stage, package: &Path) -> Result<()> {
    units(stage, package)?;
    installs(stage, package)
}

/// Checks that systemd finds no fault in the units, and that each is restricted as it should be.
fn units(stage: &mut Stage, package: &Path) -> Result<()> {
    if packages::find("systemd-analyze").is_none() {
        stage.skip("the units are not verified: there is no systemd-analyze");
        return Ok(());
    }
    let root = package.with_extension("unpacked");
    sources::empty(&root)?;
    let mut unpack = setup::program("dpkg-deb");
    stage.output(unpack.arg("--extract").args([package, &root]))?;
    // The package's folder has only the program, and a unit also calls the shell.
    fs::create_dir_all(root.join("bin"))?;
    fs::copy("/bin/sh", root.join("bin/sh"))?;
    for (unit, instance, exposure) in UNITS {
        let mut verify = setup::program("systemd-analyze");
        let name = format!("{unit}.service");
        let path = root.join("usr/lib/systemd/system").join(&name);
        verify.args(["verify", "--man=no", "--recursive-errors=no"]);
        // Only the folder of the package is checked, so the program in it must be found.
        verify.arg("--root").arg(&root);
        stage.step(verify.arg(format!("/usr/lib/systemd/system/{unit}{instance}.service")))?;
        let mut security = setup::program("systemd-analyze");
        security.args(["security", "--offline=true", "--no-pager"]);
        security.args(["--threshold", exposure]);
        let output = security.arg(&path).output()?;
        ensure!(
            output.status.success(),
            "{name} is exposed more than {exposure} of 100: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        stage.pass(&format!("{name} is exposed less than {exposure} of 100"));
    }
    fs::remove_dir_all(&root)?;
    Ok(())
}

/// Installs, starts, removes and purges the package in a container of Debian; afterwards every file must be as before.
fn installs(stage: &mut Stage, package: &Path) -> Result<()> {
    if packages::find("docker").is_none() {
        stage.skip("the package is not installed and purged: there is no Docker Engine");
        return Ok(());
    }
    engine::ensure(stage)?;
    // Only root can lay out a Debian; otherwise the engine pulls one.
    if packages::is_root() {
        bases::make(stage)?;
    }
    let folder = package.parent().context("a folder")?;
    let mut docker = setup::program("docker");
    docker.args(["run", "--rm", "--network", "none", "--label", LABEL]);
    docker
        .arg("--volume")
        .arg(format!("{}:/dist:ro", folder.display()));
    docker.args([bases::DEBIAN, "sh", "-ec", &script(package)]);
    if stage.step(&mut docker)? {
        stage.pass("the package comes, starts, and goes without a trace");
    }
    Ok(())
}

fn script(package: &Path) -> String {
    let name = super::name(package);
    // The lists of dpkg itself, its log, and virtual file systems are ignored.
    let others = "-path /proc -o -path /sys -o -path /dev -o -path /dist -o -path /tmp -o -path /var/lib/dpkg \
                  -o -path /var/log";
    let list = format!("find / \\( {others} \\) -prune -o -print | sort");
    let there = FILES.map(|file| format!("test -f {file}")).join("\n");
    let gone = FILES.map(|file| format!("test ! -e {file}")).join("\n");
    // The public image leaves pages out, unless dpkg is instructed otherwise.
    format!(
        "{list} > /tmp/before
dpkg --path-include='/usr/share/*' --install /dist/{name}
{there}
eldest --version
dpkg --verify eldest
dpkg --remove eldest
test -f {SETTINGS}
test ! -e /usr/bin/eldest
dpkg --purge eldest
{gone}
{list} > /tmp/after
diff /tmp/before /tmp/after
if dpkg --status eldest 2> /dev/null; then exit 1; fi"
    )
}
