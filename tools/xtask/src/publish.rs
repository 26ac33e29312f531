//! The commands of a release: `release` sets the version, and `publish` publishes all packages in the order in which they build
//! on one another, or tries it.

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use crate::install::Tool;
use crate::metadata::Metadata;
use crate::published::PUBLISHED;
use crate::stage::{DEFAULT_LIMIT, Stage};
use crate::{process, setup};

/// The tool that sets versions, commits and tags, in the newest version that the minimum Rust version can build.
const RELEASER: Tool = Tool {
    name: "cargo-release",
    version: Some("0.25.20"),
    ask: &["release", "--version"],
    arguments: &[],
};

const USAGE: &str = "cargo xtask publish [--dry-run] [--tag TAG]";

/// The options on the command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    dry_run: bool,
    /// The tag of the release, which names its version.
    tag: Option<String>,
}

/// Runs the command `publish`. cargo builds each package from its packed files alone, and takes the others from their
/// packed files too.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let options = parse(args)?;
    let stage = Stage::start("publish", DEFAULT_LIMIT);
    let metadata = Metadata::of_workspace(&stage)?;
    if let Some(tag) = &options.tag {
        let expected = format!("v{}", metadata.version()?);
        ensure!(
            *tag == expected,
            "the tag is {tag}, and the tag of this version is {expected}"
        );
    }
    let mut cargo = setup::cargo(["publish", "--locked"])?;
    if options.dry_run {
        cargo.args(["--dry-run", "--allow-dirty"]);
    }
    for package in PUBLISHED {
        cargo.args(["--package", package]);
    }
    let status = cargo.status().context("starting cargo")?;
    Ok(process::exit_code(status))
}

/// Runs the command `release`: cargo-release with these arguments, by the settings in the manifests. It changes nothing
/// without `--execute`.
pub(crate) fn release(args: &[String]) -> Result<ExitCode> {
    let tool = RELEASER.get()?;
    let mut command = setup::program(&tool.to_string_lossy());
    let status = command.arg("release").args(args).status();
    let status = status.context("starting cargo-release")?;
    Ok(process::exit_code(status))
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--dry-run" => options.dry_run = true,
            "--tag" => options.tag = Some(args.next().context(USAGE)?.clone()),
            other => bail!("`{other}` is no option: {USAGE}"),
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::{Options, parse, run};

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn only_known_options_are_accepted() {
        let tag = Some("v1.2.3".to_owned());
        let expected = Options { dry_run: true, tag };
        assert_eq!(parse(&words("--dry-run --tag v1.2.3")).unwrap(), expected);
        assert_eq!(parse(&[]).unwrap(), Options::default());
        assert!(parse(&words("--dryrun")).is_err());
        assert!(parse(&words("--tag")).is_err());
    }

    #[test]
    fn a_tag_of_another_version_is_refused_before_anything_is_published() {
        let error = run(&words("--dry-run --tag v999.0.0")).unwrap_err();
        assert!(error.to_string().contains("v999.0.0"), "{error}");
    }
}
