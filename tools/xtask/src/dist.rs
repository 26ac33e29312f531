//! Makes what people install of the command `eldest`: static programs in archives, and packages for Debian. Checks that
//! they start, install and uninstall.

mod archive;
mod cross;
mod debian;
mod start;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use crate::fixed::{self, RELEASE_LIMIT};
use crate::metadata::{self, Metadata};
use crate::setup;
use crate::stage::Stage;

/// The targets of a release, with their names in Debian.
const TARGETS: [Target; 2] = [
    Target {
        triple: "x86_64-unknown-linux-musl",
        debian: "amd64",
    },
    Target {
        triple: "aarch64-unknown-linux-musl",
        debian: "arm64",
    },
];

/// The options, for the help.
pub(crate) const OPTIONS: &str = "[--check | TARGET …]";
/// The description for the help.
pub(crate) const ABOUT: &str = "archives and Debian packages of `eldest` in target/dist, checked; --check: one package, of a build without optimisation";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Target {
    triple: &'static str,
    debian: &'static str,
}

/// The request on the command line.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// A release for these targets.
    Release(Vec<Target>),
    /// A package for this machine, compiled without optimisation, and its check.
    Check,
}

/// A static program, and the folder for its archives and packages.
struct Program {
    version: String,
    target: Target,
    /// The target and the profile that cargo built it for.
    built_for: String,
    profile: &'static str,
    binary: PathBuf,
    folder: PathBuf,
}

/// Runs `cargo xtask dist`.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let wanted = parse(args)?;
    let mut stage = Stage::start("dist", RELEASE_LIMIT);
    let result = match &wanted {
        Wanted::Release(targets) => release(&mut stage, targets),
        Wanted::Check => check(&mut stage),
    };
    let report = stage.finish(result);
    Ok(if report.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn parse(args: &[String]) -> Result<Wanted> {
    if args == ["--check"] {
        return Ok(Wanted::Check);
    }
    if args.is_empty() {
        return Ok(Wanted::Release(TARGETS.to_vec()));
    }
    let targets = args.iter().map(|arg| {
        let mut targets = TARGETS.into_iter();
        targets
            .find(|target| target.triple == arg)
            .with_context(|| {
                let known = TARGETS.map(|target| target.triple).join(", ");
                format!("`{arg}` is neither --check nor one of the targets {known}")
            })
    });
    Ok(Wanted::Release(targets.collect::<Result<_>>()?))
}

fn release(stage: &mut Stage, targets: &[Target]) -> Result<()> {
    let folder = setup::target().join("dist");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let version = Metadata::of_workspace(stage)?.version()?.to_string();
    let mut files = Vec::new();
    for target in targets {
        match one(stage, &version, *target, &folder) {
            Ok(made) => files.extend(made),
            Err(error) => stage.fail(format!("{}: {error:#}", target.triple)),
        }
    }
    if !files.is_empty() {
        archive::sums(stage, &folder, &files)?;
    }
    Ok(())
}

/// Makes and checks everything for one target.
fn one(
    stage: &mut Stage,
    version: &str,
    target: Target,
    folder: &std::path::Path,
) -> Result<Vec<String>> {
    let binary = cross::build(stage, target.triple)?;
    let program = Program {
        version: version.to_owned(),
        target,
        built_for: target.triple.to_owned(),
        profile: "release",
        binary,
        folder: folder.to_owned(),
    };
    let laid_out = program.lay_out(stage)?;
    let archive = archive::pack(stage, &laid_out, folder)?;
    let package = debian::make(stage, &program, &laid_out)?;
    if program.is_of_this_machine(stage)? {
        debian::check(stage, &package)?;
    }
    Ok([archive, package]
        .iter()
        .map(|path| archive::name(path))
        .collect())
}

/// Makes and checks only the package, of a program that is compiled without optimisation.
fn check(stage: &mut Stage) -> Result<()> {
    let host = metadata::host(stage)?;
    let kind = |triple: &str| triple.split('-').next().map(str::to_owned);
    let target = TARGETS
        .into_iter()
        .find(|target| kind(target.triple) == kind(&host));
    let Some(target) = target.filter(|_| host.contains("-linux-")) else {
        bail!("there is no package for {host}");
    };
    let binary = fixed::for_tests(stage)?;
    let folder = setup::target().join("dist-check");
    fs::create_dir_all(&folder)?;
    let program = Program {
        version: Metadata::of_workspace(stage)?.version()?.to_string(),
        target,
        built_for: host,
        profile: "dev",
        binary,
        folder,
    };
    let laid_out = program.lay_out(stage)?;
    let package = debian::make(stage, &program, &laid_out)?;
    debian::check(stage, &package)
}

impl Program {
    /// Checks that the program is static and starts, and lays out all files of an archive.
    fn lay_out(&self, stage: &mut Stage) -> Result<PathBuf> {
        ensure!(
            fixed::is_static(&fs::read(&self.binary)?),
            "{} needs a loader: it is not static",
            self.binary.display()
        );
        let starter = start::Starter::find(stage, self.target.triple)?;
        starter.check(stage, &self.binary, &self.version)?;
        archive::lay_out(stage, self, &starter)
    }

    fn is_of_this_machine(&self, stage: &Stage) -> Result<bool> {
        let host = metadata::host(stage)?;
        Ok(start::is_native(self.target.triple, &host))
    }
}

#[cfg(test)]
mod tests {
    use super::{TARGETS, Wanted, parse};

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_release_is_for_all_targets_or_for_those_named() {
        assert_eq!(parse(&[]).unwrap(), Wanted::Release(TARGETS.to_vec()));
        let one = parse(&words("aarch64-unknown-linux-musl")).unwrap();
        assert_eq!(one, Wanted::Release(vec![TARGETS[1]]));
        assert_eq!(parse(&words("--check")).unwrap(), Wanted::Check);
    }

    #[test]
    fn an_unknown_target_is_refused_with_the_list() {
        let error = parse(&words("riscv64")).unwrap_err().to_string();
        assert!(
            error.contains("riscv64") && error.contains(TARGETS[0].triple),
            "{error}"
        );
        assert!(parse(&words("--check riscv64")).is_err());
    }
}
