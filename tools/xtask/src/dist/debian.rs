//! Makes a package for Debian by cargo-deb, and installs and purges it in a minimal Debian.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::images::bases;
use crate::install::Tool;
use crate::published::CLI;
use crate::stage::Stage;
use crate::{docker, packages, setup};

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

/// The units, with an instance of each template.
const UNITS: [&str; 3] = [
    "eldest-serve@instance",
    "eldest-run@instance",
    "eldest-agent",
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
    setup::empty(&written)?;
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
    if packages::find("systemd-analyze").is_some() {
        units(stage, package)?;
    } else {
        stage.skip("the units are not verified: there is no systemd-analyze");
    }
    installs(stage, package)
}

/// Checks that systemd finds no fault in the units.
fn units(stage: &mut Stage, package: &Path) -> Result<()> {
    let root = package.with_extension("unpacked");
    setup::empty(&root)?;
    let mut unpack = setup::program("dpkg-deb");
    stage.output(unpack.arg("--extract").args([package, &root]))?;
    // Only the folder of the package is checked, so the programs of the units must be in it.
    fs::create_dir_all(root.join("bin"))?;
    fs::copy("/bin/sh", root.join("bin/sh"))?;
    let mut verify = setup::program("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no", "--root"]);
    let units = UNITS.map(|unit| format!("/usr/lib/systemd/system/{unit}.service"));
    stage.step(verify.arg(&root).args(units))?;
    fs::remove_dir_all(&root)?;
    Ok(())
}

/// Installs, starts, removes and purges the package in a container of Debian; afterwards every file must be as before.
fn installs(stage: &mut Stage, package: &Path) -> Result<()> {
    if packages::find("docker").is_none() {
        stage.skip("the package is not installed and purged: there is no Docker Engine");
        return Ok(());
    }
    docker::ensure_engine(stage)?;
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
    docker.args([bases::DEBIAN, "sh", "-ec", &script(package)?]);
    if stage.step(&mut docker)? {
        stage.pass("the package comes, starts, and goes without a trace");
    }
    Ok(())
}

fn script(package: &Path) -> Result<String> {
    let name = package.file_name().context("a file")?.display();
    // The lists of dpkg itself, its log, and virtual file systems are ignored.
    let others = "-path /proc -o -path /sys -o -path /dev -o -path /dist -o -path /tmp -o -path /var/lib/dpkg \
                  -o -path /var/log";
    let list = format!("find / \\( {others} \\) -prune -o -print | sort");
    // The public image leaves pages out, unless dpkg is instructed otherwise.
    Ok(format!(
        "{list} > /tmp/before
dpkg --path-include='/usr/share/*' --install /dist/{name}
eldest --version
dpkg --verify eldest
dpkg --remove eldest
test -f {SETTINGS}
test ! -e /usr/bin/eldest
dpkg --purge eldest
{list} > /tmp/after
diff /tmp/before /tmp/after
if dpkg --status eldest 2> /dev/null; then exit 1; fi"
    ))
}
