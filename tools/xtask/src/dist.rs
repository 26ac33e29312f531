//! Makes what people install of the command `eldest`: static programs in archives, and packages for Debian. Checks that
//! they start, install and uninstall.

mod debian;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use anyhow::{Context, Result, ensure};

use crate::fixed::{self, COMMAND, PROFILE, RELEASE_LIMIT};
use crate::published::CLI;
use crate::setup::empty;
use crate::stage::{self, Stage};
use crate::{install, metadata, packages, setup, together};

/// The Python packages that contain the programs which compile for another Linux: musl's libc, and Zig as C compiler and linker.
const ZIGBUILD: (&str, &str) = ("cargo-zigbuild", "0.24.0");
const ZIG: (&str, &str) = ("ziglang", "0.17.1");
/// Files of the workspace, and their names in the archive.
const FILES: [(&str, &str); 3] = [
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("LICENSE-APACHE", "LICENSE-APACHE"),
    ("crates/eldest-cli/README.md", "README.md"),
];
/// Shells, and the file names under which they find a completion.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "eldest"),
    ("zsh", "_eldest"),
    ("fish", "eldest.fish"),
];

/// The targets of a release, with their names in Debian.
const TARGETS: [(&str, &str); 2] = [
    ("x86_64-unknown-linux-musl", "amd64"),
    ("aarch64-unknown-linux-musl", "arm64"),
];

/// The request on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Asked {
    /// Only makes and checks the Debian package of this machine, of a build without optimisation
    #[arg(long)]
    check: bool,
}

/// Runs `cargo xtask dist`.
pub(crate) fn run(asked: &Asked) -> ExitCode {
    let run = if asked.check { check } else { release };
    stage::run("dist", RELEASE_LIMIT, run)
}

/// Makes archives, packages and checksums for all targets.
fn release(stage: &mut Stage) -> Result<()> {
    let folder = setup::target().join("dist");
    empty(&folder)?;
    for (target, debian) in TARGETS {
        let binary = build(stage, target)?;
        let (name, laid_out) = lay_out(stage, target, &binary)?;
        let mut tar = setup::program("tar");
        // The same contents give the same archive, because all times are those of the last commit.
        tar.args(["--create", "--gzip", "--sort=name", "--owner=0"]);
        tar.args(["--group=0", "--numeric-owner", "--mode=go=rX,u+rw"]);
        tar.arg(format!("--mtime=@{}", time(stage)?));
        tar.arg("--file").arg(folder.join(format!("{name}.tar.gz")));
        tar.arg("--directory").arg(laid_out.with_file_name(""));
        stage.output(tar.arg(name))?;
        let package = package(&folder, debian)?;
        debian::make(stage, (target, PROFILE), &laid_out, &package)?;
        if is_native(target, &metadata::host(stage)?) {
            debian::check(stage, &package)?;
        }
    }
    let mut sums = setup::program("sh");
    sums.args(["-c", "sha256sum -- *.tar.gz *.deb | tee SHA256SUMS"]);
    let sums = stage.output(sums.current_dir(&folder))?;
    stage.say(&format!("{}:\n{sums}", folder.display()));
    Ok(())
}

/// Makes and checks only the package, of a program that is compiled without optimisation.
fn check(stage: &mut Stage) -> Result<()> {
    let host = metadata::host(stage)?;
    let mut targets = TARGETS.into_iter();
    let target = targets.find(|(target, _)| is_native(target, &host));
    let (target, debian) = target.with_context(|| format!("there is no package for {host}"))?;
    let binary = fixed::for_tests(stage)?;
    let folder = setup::target().join("dist-check");
    empty(&folder)?;
    let (_, laid_out) = lay_out(stage, target, &binary)?;
    let package = package(&folder, debian)?;
    debian::make(stage, (&host, "dev"), &laid_out, &package)?;
    debian::check(stage, &package)
}

/// Returns the path of a target's package in that folder.
fn package(folder: &Path, debian: &str) -> Result<PathBuf> {
    Ok(folder.join(format!("{COMMAND}_{}_{debian}.deb", version()?)))
}

fn version() -> Result<String> {
    Ok(metadata::library()?.version.to_string())
}

/// Builds the command for this target, for release.
fn build(stage: &Stage, target: &str) -> Result<PathBuf> {
    let mut libraries = setup::program("rustc");
    libraries.args(["--print", "target-libdir", "--target", target]);
    if !Path::new(stage.output(&mut libraries)?.trim()).is_dir() {
        stage.output(setup::program("rustup").args(["target", "add", target]))?;
    }
    let remedy = "the compiler of C comes from Python's registry: install Python with pip";
    let zigbuild = install::from_python(stage, ZIGBUILD, &["--no-deps"]).context(remedy)?;
    let zig = install::from_python(stage, ZIG, &["--no-deps"]).context(remedy)?;
    stage.say(&format!("building {COMMAND} for {target}"));
    let mut cargo = setup::cargo(["zigbuild", "--locked", "--package", CLI])?;
    cargo.args(["--profile", PROFILE, "--target", target]);
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = [zigbuild.join("bin")].into_iter();
    let folders = folders.chain(env::split_paths(&path));
    cargo.env("PATH", env::join_paths(folders)?);
    cargo.env("CARGO_ZIGBUILD_ZIG_PATH", zig.join("ziglang/zig"));
    together::built_by(stage, &mut cargo)?.program(COMMAND)
}

/// Checks that the program is static and starts, and lays out the folder that becomes the archive: the program itself writes pages
/// and completions.
fn lay_out(stage: &mut Stage, target: &str, binary: &Path) -> Result<(String, PathBuf)> {
    fixed::ensure_static(binary)?;
    let version = version()?;
    let said = stage.output(starter(stage, target, binary)?.arg("--version"))?;
    let expected = format!("{COMMAND} {version}");
    ensure!(
        said.trim() == expected,
        "{} says {said:?}",
        binary.display()
    );
    stage.pass(&format!("{} is static, and starts", binary.display()));
    // The folder is not beside the archives, because every file there belongs to a release.
    let parts = setup::target().join("dist-parts");
    let name = format!("{COMMAND}-{version}-{target}");
    let folder = parts.join(&name);
    empty(&folder)?;
    fs::copy(binary, folder.join(COMMAND))?;
    for (from, to) in FILES {
        fs::copy(setup::root().join(from), folder.join(to)).context(from)?;
    }
    let mut pages = starter(stage, target, binary)?;
    stage.output(pages.args(["man", "--to"]).arg(folder.join("man")))?;
    for (shell, name) in SHELLS {
        let mut completions = starter(stage, target, binary)?;
        let script = stage.output(completions.args(["completions", shell]))?;
        let to = folder.join("completions").join(shell);
        fs::create_dir_all(&to)?;
        fs::write(to.join(name), script)?;
    }
    Ok((name, folder))
}

/// Returns a command that starts a target's program, in an emulator if this machine cannot.
fn starter(stage: &Stage, target: &str, program: &Path) -> Result<Command> {
    if is_native(target, &metadata::host(stage)?) {
        return Ok(setup::program(&program.to_string_lossy()));
    }
    let name = format!("qemu-{}-static", processor(target));
    let emulator = match packages::find(&name) {
        Some(emulator) => emulator,
        None => packages::unpack(stage, "qemu-user-static", &format!("usr/bin/{name}"))?.file,
    };
    let mut command = setup::program(&emulator.to_string_lossy());
    command.arg(program);
    Ok(command)
}

/// Returns true if this machine starts the target's programs without an emulator.
fn is_native(target: &str, host: &str) -> bool {
    processor(target) == processor(host) && host.contains("-linux-")
}

fn processor(triple: &str) -> &str {
    triple.split('-').next().unwrap_or_default()
}

/// Returns the time of the last commit, in seconds since 1970.
fn time(stage: &Stage) -> Result<String> {
    let mut log = setup::program("git");
    let time = stage.output(log.args(["log", "-1", "--format=%ct"]))?;
    Ok(time.trim().to_owned())
}
