//! Lists the public interface of each published library in docs/api/, so that a review shows each change of it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::published::{CORE, GUARD, HTTP, LIBRARY, PEERS, PROCESS, ROUTE, STORE, TESTING};
use crate::stage::{DEFAULT_LIMIT, Stage};
use crate::{checks, process, setup};

/// The packages with a library.
const LISTED: [&str; 9] = [
    CORE, PROCESS, PEERS, GUARD, LIBRARY, ROUTE, HTTP, STORE, TESTING,
];
/// The remedy for lists that are out of date.
const REMEDY: &str = "if that is meant, run `cargo xtask api` and commit docs/api";
/// The number of differences that are shown.
const SHOWN: usize = 20;

/// Runs the command `api`: writes the lists again.
pub(crate) fn run() -> Result<ExitCode> {
    let stage = Stage::start("api", DEFAULT_LIMIT);
    let mut command = documenting(&stage)?;
    let status = command.status().context("starting cargo")?;
    ensure!(status.success(), "{} failed", process::show(&command));
    std::fs::create_dir_all(folder())?;
    for package in LISTED {
        let file = file(package);
        std::fs::write(&file, list(package)?)?;
        println!("{}", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the stage `api`: compares the lists with the code.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let mut cargo = documenting(stage)?;
    if !stage.step(&mut cargo)? {
        return Ok(());
    }
    for package in LISTED {
        let committed = std::fs::read_to_string(file(package)).unwrap_or_default();
        match difference(&committed, &list(package)?) {
            None => stage.pass(&format!("{package}: the interface is the one in docs/api")),
            Some(difference) => {
                stage.fail(format!(
                    "{package} has another interface:\n{difference}{REMEDY}"
                ));
            }
        }
    }
    Ok(())
}

fn folder() -> PathBuf {
    setup::root().join("docs/api")
}

fn file(package: &str) -> PathBuf {
    folder().join(format!("{package}.txt"))
}

/// Returns a cargo command that writes the interfaces as JSON, without hidden items. The stage `docs` has already built
/// the libraries' dependencies.
fn documenting(stage: &Stage) -> Result<Command> {
    let mut cargo = checks::documenting(stage)?;
    // Only rustdoc receives options of the nightly compiler: with them in cargo too, build scripts would run again.
    let rustdoc = setup::root().join("tools/xtask/rustdoc-json");
    let flags = "-Z unstable-options --output-format json --cap-lints allow";
    cargo.env("RUSTDOC", rustdoc).env("RUSTDOCFLAGS", flags);
    Ok(cargo)
}

/// Lists the items, sorted, one a line. Implementations by the compiler itself, and those for all types, are left out.
fn list(package: &str) -> Result<String> {
    let name = package.replace('-', "_");
    let json = setup::target().join("doc").join(format!("{name}.json"));
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build()
        .with_context(|| format!("reading what rustdoc says of {package}"))?;
    let items: BTreeSet<String> = api.items().map(ToString::to_string).collect();
    Ok(items.into_iter().map(|item| item + "\n").collect())
}

/// Returns the lines that only one of the lists has; `None` if there are none.
fn difference(committed: &str, now: &str) -> Option<String> {
    let (old, new): (BTreeSet<_>, BTreeSet<_>) =
        (committed.lines().collect(), now.lines().collect());
    let gone = old.difference(&new).map(|line| format!("- {line}\n"));
    let come = new.difference(&old).map(|line| format!("+ {line}\n"));
    let all: Vec<String> = gone.chain(come).collect();
    let more = all.len().saturating_sub(SHOWN);
    let mut text: String = all.iter().take(SHOWN).map(String::as_str).collect();
    if more > 0 {
        let _ = writeln!(text, "and {more} more");
    }
    (!all.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_and_added_items_are_shown() {
        assert_eq!(difference("a\nb\n", "b\na\n"), None);
        let shown = difference("a\nb\n", "a\nc\n").expect("they differ");
        assert_eq!(shown, "- b\n+ c\n");
        let many: Vec<_> = (0..30).map(|line| line.to_string()).collect();
        assert!(
            difference("", &many.join("\n"))
                .expect("they differ")
                .ends_with("and 10 more\n")
        );
    }

    #[test]
    fn each_list_is_there() {
        for package in LISTED {
            let list = std::fs::read_to_string(file(package)).expect("`cargo xtask api` writes it");
            assert!(list.contains("pub mod "), "{package}");
        }
    }
}
